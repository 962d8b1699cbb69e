"""A log that was deleted and created again under its name is another log (OWN-5, OWN-7), over a store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bk_core.client.log.intents import create_intended, intents_of
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.client.log.list_store import change_ledger_list, read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.orphans import adopt_log
from bk_core.errors import (
    BkError,
    MetadataOutcomeUnknownError,
    NoNodeError,
    NoSuchLogError,
    VersionConflictError,
)
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import SegmentRange
from tests.unit.log.raw_logs import RAW, Store, untied, written


def recreated(client: Any, during: list[Any]) -> Callable[..., None]:
    """A ``delete`` of the list whose answer is lost; the log is created again, with a writer's ledger, before anybody looks."""
    honest = client.store

    def delete(path: str, version: int | None = None) -> None:
        honest.delete(path, version)
        if path == "logs/a" and not during:
            log_id = create_log(client, "a", RAW).log_id
            during.append(create_intended(client, "a", RAW, log_id=log_id))
            honest.create("readers/a/new", json.dumps({"cluster": "x", "offsets": {"a": {"logId": log_id}}}).encode())
            raise MetadataOutcomeUnknownError("the answer was lost")

    return delete


@pytest.mark.parametrize("fresh", [True, False])
def test_a_deletion_spares_the_log_that_was_created_again(client: Any, fresh: bool) -> None:
    """OWN-5, OWN-7: the list of a fresh log has version 0, and so has that of the log created again."""
    old = create_log(client, "a", RAW).log_id if fresh else ""
    if not fresh:
        written(client)
        old = read_ledger_list(client, "a").log_id
    mine = create_intended(client, "a", RAW, log_id=old)
    unnamed = create_intended(client, "a", RAW)
    client.store.create("readers/a/old", json.dumps({"a": {"logId": old}}).encode())
    during: list[Any] = []
    honest = client.store
    client.store = Store(honest, delete=recreated(client, during))
    delete_log(client, "a")
    client.store = honest
    assert read_ledger_list(client, "a").log_id != old
    assert set(client.ledgers) == {during[0].ledger_id} and not {mine.ledger_id, unnamed.ledger_id} & set(client.ledgers)
    assert list(intents_of(client, "a")) == [during[0].ledger_id]
    assert client.store.children("readers/a") == ["new"] and client.store.children("deleted/a") == []


def test_a_deletion_that_was_applied_is_not_repeated_on_what_came_after(client: Any) -> None:
    """OWN-7: conflict: the list of the log created again has another version than the one that was deleted."""
    written(client)
    honest = client.store

    def delete(path: str, version: int | None = None) -> None:
        if path == "logs/a" and read_ledger_list(client, "a").segments:
            honest.delete(path)
            create_log(client, "a", RAW)
        honest.delete(path, version)

    client.store = Store(honest, delete=delete)
    delete_log(client, "a")
    assert client.ledgers == {} and read_ledger_list(client, "a").segments == ()


@pytest.mark.parametrize("error", [VersionConflictError("changed"), NoNodeError("done with")])
def test_two_that_delete_a_log_do_not_meet_at_its_tombstone(client: Any, error: BkError) -> None:
    """OWN-7: what one of them does to the tombstone is no error of the other's, and all ledgers go."""
    written(client)
    log_id = read_ledger_list(client, "a").log_id
    honest, path = client.store, f"deleted/a/{log_id}"
    honest.create(path, encode(read_ledger_list(client, "a")))

    def write(where: str, data: bytes, version: int) -> int:
        if where == path:
            client.store = honest
            if isinstance(error, NoNodeError):
                honest.delete(path)
            raise error
        return int(honest.write(where, data, version))

    client.store = Store(honest, write=write)
    delete_log(client, "a")
    assert client.store is honest and client.ledgers == {} and client.store.children("deleted/a") == []


def test_a_log_that_is_deleted_while_somebody_says_whose_it_is(client: Any) -> None:
    """OWN-4: it is told as a log that is not there, not as a node of the store."""
    create_log(client, "a", RAW)
    untied(client, "a")
    honest = client.store

    def write(path: str, data: bytes, version: int) -> int:
        honest.delete(path)
        return int(honest.write(path, data, version))

    client.store = Store(honest, write=write)
    with pytest.raises(NoSuchLogError, match="log 'a' was deleted"):
        adopt_log(client, "a")


def test_a_change_is_not_repeated_on_a_log_created_again(client: Any) -> None:
    """OWN-7: the answer to a change is lost, the log deleted, and created again up to the very version."""
    old = create_log(client, "a", RAW)
    honest = client.store
    tries: list[str] = []

    def write(path: str, data: bytes, version: int) -> int:
        tries.append(decode(data).log_id)
        if len(tries) == 1:
            honest.delete(path)
            create_log(client, "a", RAW)
            raise MetadataOutcomeUnknownError("the answer was lost")
        return int(honest.write(path, data, version))

    client.store = Store(honest, write=write)
    changed = change_ledger_list(
        client, "a", lambda listed: listed.append_segments([SegmentRange(1, 0, 0, 1, 1)], 1) if listed.log_id == old.log_id else listed
    )
    assert tries == [old.log_id] and changed.log_id != old.log_id and read_ledger_list(client, "a").segments == ()


def made_anew(client: Any, store: Any) -> str:
    """Delete the log and make it anew up to the very version that it had, with one segment; return the new log's id."""
    version = store.read("logs/a").version
    store.delete("logs/a")
    log_id = create_log(client, "a", RAW).log_id
    for number in range(version):
        stored = store.read("logs/a")
        changed = decode(stored.data).append_segments([SegmentRange(900 + number, 0, 0, 1, 1)], 1)
        store.write("logs/a", encode(changed), stored.version)
    assert store.read("logs/a").version == version
    return log_id


def test_a_change_does_not_begin_on_a_log_created_again(client: Any) -> None:
    """OWN-7: what decides takes a while, and the version is the same then."""
    old = create_log(client, "a", RAW)
    change_ledger_list(client, "a", lambda listed: listed.condemn([7]))
    anew: list[str] = []

    def change(listed: Any) -> Any:
        if listed.log_id != old.log_id:
            return listed
        anew.append(made_anew(client, client.store))
        return listed.append_segments([SegmentRange(1, 0, 0, 1, 1)], 1)

    assert change_ledger_list(client, "a", change).log_id == anew[0]
    found = read_ledger_list(client, "a")
    assert found.log_id == anew[0] and [segment.ledger_id for segment in found.segments] == [900]


def test_a_janitor_leaves_alone_what_was_created_again_while_it_deleted(client: Any) -> None:
    """OWN-7: it reads the list, deletes for minutes, and changes the list then."""
    old = create_log(client, "a", RAW).log_id
    left = create_intended(client, "a", RAW, log_id=old).ledger_id
    change_ledger_list(client, "a", lambda listed: listed.condemn([left]))
    anew: list[str] = []
    honest = client.delete_ledger

    def delete_ledger(ledger_id: int, **options: Any) -> None:
        anew.append(made_anew(client, client.store))
        honest(ledger_id, **options)

    client.delete_ledger = delete_ledger
    gc_log(client, "a", min_age_s=0)
    found = read_ledger_list(client, "a")
    assert [found.log_id] == anew and [segment.ledger_id for segment in found.segments] == [900]


def test_a_deletion_does_not_begin_on_a_log_created_again(client: Any) -> None:
    """OWN-7: the tombstone is written between the look at the list and its deletion."""
    written(client)
    honest = client.store
    anew: list[str] = []

    def create(path: str, data: bytes) -> int:
        version = int(honest.create(path, data))
        if path.startswith("deleted/") and not anew:
            anew.append("")
            anew[0] = made_anew(client, honest)
        return version

    client.store = Store(honest, create=create)
    delete_log(client, "a")
    client.store = honest
    assert read_ledger_list(client, "a").log_id == anew[0] and client.store.children("deleted/a") == [] and client.ledgers == {}
