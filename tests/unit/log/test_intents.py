"""The content of an intent's node, and its changes, over a store in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client.log.intents import HISTORY, Intent, change_intent, intents_of, record_intent
from bk_core.errors import MetadataFormatError

INTENT = Intent(7, "q", "host", 12, 1_700_000_000_000, 99, "boot/pid", log_id="log-id")


def value_of(client: Any, child: str = "7") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.store.read(f"intents/a/{child}").data)
    return found


def test_what_is_recorded_is_what_format_md_says(client: Any) -> None:
    """LOG-9, OWN-5."""
    assert record_intent(client, "a", INTENT)
    assert record_intent(client, "a", replace(INTENT, ledger_id=8, purpose=HISTORY, log_id="", cluster=client.store.cluster_id()))
    common = {"query": "q", "host": "host", "pid": 12, "createdMs": 1_700_000_000_000, "started": 99, "boot": "boot/pid"}
    assert value_of(client) == {**common, "logId": "log-id"}
    assert value_of(client, "8.history") == {**common, "cluster": client.store.cluster_id()}
    found = intents_of(client, "a")
    assert replace(found[7], created_ms=INTENT.created_ms) == INTENT
    assert found[8].purpose == HISTORY and found[8].cluster == client.store.cluster_id()


def test_an_intent_of_an_earlier_program_is_read_and_changed(client: Any) -> None:
    client.store.create("intents/a/7", b'{"query":"q","host":"h","pid":1,"createdMs":5}')
    assert change_intent(client, "a", 7, lambda intent: replace(intent, query_id="*"))
    found = intents_of(client, "a")[7]
    assert (found.query_id, found.host, found.pid, found.started, found.boot, found.log_id) == ("*", "h", 1, 0, "", "")


def test_a_change_keeps_what_a_later_program_noted(client: Any) -> None:
    client.store.create("intents/a/7", json.dumps({**INTENT.stored(), "of later": [1]}).encode())
    assert change_intent(client, "a", 7, lambda intent: replace(intent, query_id="*"))
    assert value_of(client) == {**INTENT.stored(), "query": "*", "of later": [1]}


def test_a_claimed_intent_is_changed_only_by_who_says_so(client: Any) -> None:
    record_intent(client, "a", INTENT)
    assert change_intent(client, "a", 7, Intent.claimed)
    assert value_of(client)["createdMs"] == 0 and intents_of(client, "a")[7].is_claimed
    before = client.store.read("intents/a/7").version
    assert not change_intent(client, "a", 7, lambda intent: replace(intent, query_id="*"))
    assert change_intent(client, "a", 7, lambda intent: None, even_if_claimed=True)
    assert client.store.read("intents/a/7").version == before


def test_who_comes_too_late_changes_nothing(client: Any) -> None:
    record_intent(client, "a", INTENT)

    def somebody_is_faster(intent: Intent) -> Intent:
        node = client.store.read("intents/a/7")
        client.store.write("intents/a/7", json.dumps({**INTENT.stored(), "query": "other"}).encode(), node.version)
        return replace(intent, query_id="*")

    assert not change_intent(client, "a", 7, somebody_is_faster)
    assert value_of(client)["query"] == "other"
    assert not change_intent(client, "a", 8, Intent.claimed)


@pytest.mark.parametrize("data", [b"[", b"[]", b"{}", b'"text"', b'{"query":"q","host":"h","pid":"x","createdMs":1}', b"[" * 100_000])
def test_what_is_no_intent_is_named(client: Any, data: bytes) -> None:
    client.store.create("intents/a/7", data)
    with pytest.raises(MetadataFormatError, match="intents/a/7 in the metadata store is no intent to write a ledger"):
        intents_of(client, "a")
    with pytest.raises(MetadataFormatError, match="intents/a/7 in the metadata store is no intent to write a ledger"):
        change_intent(client, "a", 7, Intent.claimed)
