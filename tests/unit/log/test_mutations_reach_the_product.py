"""The rules that the simulator breaks on purpose are decided by code that production runs: broken there, the client breaks them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.intents import create_intended
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import LogDataLossError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from tests.simulation.mutation import applied
from tests.simulation.mutations import MUTATIONS

RAW = LogProperties(entry_format="raw")


def commit(client: Any, entries: int = 2) -> int:
    """A segment of a CLOSED ledger; its id."""
    handle = create_intended(client, "a", RAW)
    ledger = client.ledgers[handle.ledger_id]
    ledger.entries += [b"%d" % n for n in range(entries)]
    ledger.state = LedgerState.CLOSED
    wanted = [SegmentRange(ledger.ledger_id, 0, entries - 1, entries, entries)]
    update_ledger_list(client, "a", lambda listed: listed.append_segments(wanted, 1, "q", listed.next_seq))
    client.store.delete(f"intents/a/{ledger.ledger_id}")
    return int(ledger.ledger_id)


def read(reader: LogReader) -> int:
    return sum(run.count for run in reader.read())


def a_trim_stops_before_what_is_live(client: Any) -> None:
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        trim_log(client, "a", before=Position(1))
        assert len(read_ledger_list(client, "a").live_segments) == 1


def what_is_deleted_was_condemned(client: Any) -> None:
    commit(client)
    commit(client)
    delete = client.delete_ledger

    def delete_ledger(ledger_id: int, **options: Any) -> None:
        assert ledger_id in read_ledger_list(client, "a").condemned
        delete(ledger_id, **options)

    client.delete_ledger = delete_ledger
    trim_log(client, "a", before=Position(1))


def a_trim_keeps_what_it_was_told_to_keep(client: Any) -> None:
    for _ in range(3):
        commit(client)
    trim_log(client, "a", before=Position(1))
    assert read_ledger_list(client, "a").trimmed_seq == 1


def what_was_trimmed_unread_is_a_loss(client: Any) -> None:
    for _ in range(3):
        commit(client)
    reader = LogReader(client, "a", start=Position(0))
    trim_log(client, "a", before=Position(2))
    with pytest.raises(LogDataLossError):
        read(reader)


def a_successor_does_not_end_a_ledger(client: Any) -> None:
    for _ in range(2):
        handle = client.create_ledger()
        client.ledgers[handle.ledger_id].entries.append(b"x")
        update_ledger_list(client, "a", lambda listed, handle=handle: listed.add_live_segment(handle.ledger_id, 1))
    assert read(LogReader(client, "a")) == 1


def who_waits_at_the_end_sees_what_is_listed(client: Any) -> None:
    commit(client)
    reader = LogReader(client, "a")
    assert read(reader) == 2
    commit(client)
    assert read(reader) == 2


def a_reader_fences_nobody(client: Any) -> None:
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        assert read(LogReader(client, "a")) == 1 and client.recovered == []


def a_condemned_ledger_is_closed_first(client: Any) -> None:
    """Deleting would close it as well, and fence its writer (``delete_own``): here the machine's order shows."""
    ledger_id = create_intended(client, "a", RAW).ledger_id
    recovered = client.recover_ledger

    def recover_ledger(ledger_id: int, **options: Any) -> Any:
        assert ledger_id in read_ledger_list(client, "a").condemned
        return recovered(ledger_id, **options)

    client.recover_ledger = recover_ledger
    assert gc_log(client, "a", min_age_s=0).deleted == (ledger_id,)


STORIES: dict[str, Callable[[Any], None]] = {
    "LOG-11": a_trim_stops_before_what_is_live,
    "LOG-11 (order)": what_is_deleted_was_condemned,
    "LOG-11 (bounds)": a_trim_keeps_what_it_was_told_to_keep,
    "LOG-13": what_was_trimmed_unread_is_a_loss,
    "LOG-15": a_successor_does_not_end_a_ledger,
    "LOG-16": who_waits_at_the_end_sees_what_is_listed,
    "LOG-17": a_reader_fences_nobody,
}


@pytest.mark.parametrize("rule", STORIES)
def test_the_client_keeps_the_rule(client: Any, rule: str) -> None:
    """LOG-11, LOG-13, LOG-15, LOG-16, LOG-17, over in-memory ledgers: well without the mutation, and not with it."""
    create_log(client, "a", RAW)
    STORIES[rule](client)


@pytest.mark.parametrize("rule", STORIES)
def test_the_client_breaks_with_the_mutation(client: Any, rule: str) -> None:
    """LOG-11, LOG-13, LOG-15, LOG-16, LOG-17: what the simulator calls broken is what the client runs."""
    (mutation,) = (one for one in MUTATIONS if one.rule == rule)
    create_log(client, "a", RAW)
    with applied(mutation), pytest.raises((AssertionError, pytest.fail.Exception)):
        STORIES[rule](client)


def test_deleting_closes_even_if_the_machine_forgets_to(client: Any) -> None:
    """LOG-12: the machine closes first, and whoever deletes for it looks again (defence in depth)."""
    create_log(client, "a", RAW)
    a_condemned_ledger_is_closed_first(client)
    (mutation,) = (one for one in MUTATIONS if one.rule == "LOG-12")
    with applied(mutation):
        a_condemned_ledger_is_closed_first(client)
    assert len(client.recovered) == 2
