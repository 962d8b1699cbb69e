"""From batches to bookies and back, over logs that the sink's own steps made: in the tail, in the history, and by older programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bk_core
from bk_core.client.log.history import seal_log, update_ledger_list
from bk_core.client.log.intents import create_intended, forget_intent
from bk_core.client.log.list_store import change_ledger_list, read_ledger_list
from bk_core.errors import InvalidArgumentError, NoSuchBatchError, NoSuchLedgerError
from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.sealing import SealLimits
from tests.unit.bk_core.conftest import Bk

QUERY, OTHER = "0b5c3d1e-aaaa-4f00-8000-000000000001", "0b5c9999-bbbb-4f00-8000-000000000002"


def commit(client: bk_core.BookKeeper, log: str, query: str, batch: int, entries: int, *, noted: bool = True) -> int:
    """Write a ledger and commit its first entries in two segments, with one that is left out between them. Returns the ledger."""
    listed = read_ledger_list(client, log)
    handle = create_intended(client, log, listed.properties, log_id=listed.log_id)
    handle.append_many([b"0123456789"] * (2 * entries + 1))
    handle.close()
    ranges = [SegmentRange(handle.ledger_id, at, at + entries - 1, entries, 10 * entries) for at in (0, entries + 1)]

    def change(current: LedgerList) -> LedgerList:
        at_ms = 1_000_000 + 1000 * batch + (query == OTHER)
        changed = current.append_segments(ranges, at_ms)
        changed = changed.note_batch(query, batch, current.next_seq) if noted else changed
        return changed.mark_committed(query, batch, at_ms, 2 * entries, 20 * entries)

    update_ledger_list(client, log, change)
    forget_intent(client, log, handle.ledger_id)
    return int(handle.ledger_id)


@pytest.fixture
def log(client: bk_core.BookKeeper) -> str:
    client.create_log("events")
    return "events"


def test_a_batch_is_traced_to_its_bookies_and_back(bk: Bk, client: bk_core.BookKeeper, log: str) -> None:
    ledgers = [commit(client, log, QUERY, batch, 5 + batch) for batch in range(3)]
    found = client.trace_batch(log, batch=1)
    assert (found.query_id, found.rows, found.bytes, found.ledgers, found.known) == (QUERY, 12, 120, (ledgers[1],), "recorded")
    assert found.bookies == tuple(sorted(client.bookies().writable))
    assert [[(held.first, held.last) for held in one.held] for one in found.segments] == [[(0, 5)], [(7, 12)]]
    back = client.trace_entry(ledgers[1], 8)
    assert (back.log, back.query_id, back.batch_id, back.known) == (log, QUERY, 1, "recorded")
    assert back.segment == found.segments[1].segment
    assert set(back.bookies) == set(found.bookies)
    (told,) = bk.json("batch", log, group="trace")
    assert (told["batch"], told["query"], told["rows"], told["ledgers"]) == (2, QUERY, 14, [ledgers[2]])
    assert told["segments"][0]["held"] == [{"firstEntryId": 0, "lastEntryId": 6, "bookies": told["segments"][0]["held"][0]["bookies"]}]
    (told,) = bk.json("entry", ledgers[0], 4, group="trace")
    assert (told["log"], told["batch"], told["segment"]["seq"], told["note"]) == (log, 0, 0, None)
    assert "batch 1 of query" in bk("batch", log, "--batch", 1, "--query", QUERY[:8], group="trace")
    assert QUERY in bk("entry", ledgers[0], 4, group="trace")


def test_an_entry_between_the_segments_is_of_no_batch(client: bk_core.BookKeeper, log: str) -> None:
    ledger_id = commit(client, log, QUERY, 0, 5)
    found = client.trace_entry(ledger_id, 5)
    assert (found.log, found.segment, found.batch_id) == (log, None, None)
    assert "does not list this entry" in found.note
    with pytest.raises(InvalidArgumentError, match="ends at entry 10, and has no entry 11"):
        client.trace_entry(ledger_id, 11)
    with pytest.raises(NoSuchLedgerError):
        client.trace_entry(987654, 0)


def test_two_queries_are_told_apart(bk: Bk, client: bk_core.BookKeeper, log: str) -> None:
    commit(client, log, QUERY, 0, 3)
    other = commit(client, log, OTHER, 0, 4)
    with pytest.raises(
        NoSuchBatchError, match=f"more than one query or write has written log 'events': it knows {QUERY}, {OTHER}; .*--query"
    ):
        client.trace_batch(log)
    with pytest.raises(NoSuchBatchError, match="more than one query"):
        client.trace_batch(log, "0b5c")
    assert client.trace_batch(log, OTHER).ledgers == (other,)
    assert client.trace_batch(log, "0b5c99").ledgers == (other,)
    bk("batch", log, "--query", "nobody", group="trace", status=1)
    assert "no query nobody has written log 'events'" in bk.err
    with pytest.raises(NoSuchBatchError, match="up to 0 to log 'events', not 5"):
        client.trace_batch(log, OTHER, 5)


def test_batches_are_found_in_the_history(client: bk_core.BookKeeper, log: str) -> None:
    ledgers = [commit(client, log, QUERY, batch, 3) for batch in range(12)]
    limits = SealLimits(tail_max=6, chunk=4, fan_out=2)
    assert seal_log(client, log, limits=limits)
    listed = read_ledger_list(client, log)
    assert listed.history
    assert max(ref.level for ref in listed.history) >= 0
    assert len(listed.batches) < 5
    for batch, ledger_id in enumerate(ledgers):
        found = client.trace_batch(log, QUERY, batch)
        assert (found.ledgers, found.rows, found.known) == ((ledger_id,), 6, "recorded")
        back = client.trace_entry(ledger_id, 4)
        assert (back.batch_id, back.query_id) == (batch, QUERY)
    history = client.trace_entry(listed.history[-1].ledger_id, 0)
    assert (history.log, history.segment) == (log, None)
    assert "part of the log's history" in history.note


def test_of_an_older_program_the_last_batch_is_found_by_its_time(bk: Bk, client: bk_core.BookKeeper, log: str) -> None:
    ledgers = [commit(client, log, QUERY, batch, 3, noted=False) for batch in range(3)]
    last = client.trace_batch(log)
    assert (last.batch_id, last.ledgers, last.known) == (2, (ledgers[2],), "by the time of its commit")
    assert client.trace_entry(ledgers[2], 0).batch_id == 2
    with pytest.raises(NoSuchBatchError, match="does not tell which segments are of batch 1"):
        client.trace_batch(log, batch=1)
    assert "does not tell its batch" in client.trace_entry(ledgers[0], 0).note
    assert "an older program committed" in bk("batch", log, group="trace")


def test_a_batch_without_rows_and_a_trimmed_one(bk: Bk, client: bk_core.BookKeeper, log: str) -> None:
    commit(client, log, QUERY, 0, 3)

    def empty(current: LedgerList) -> LedgerList:
        return current.mark_committed(QUERY, 1, 2_000_000, 0, 0)

    change_ledger_list(client, log, empty)
    found = client.trace_batch(log)
    assert (found.batch_id, found.segments, found.committed_at_ms, found.had_no_rows) == (1, (), 2_000_000, True)
    assert "it had no rows, committed" in bk("batch", log, group="trace")
    assert client.trace_batch(log, QUERY, 0).had_no_rows is False
    client.log(log).trim(before=replace(client.log(log).info.end, entry=0))
    with pytest.raises(NoSuchBatchError, match="had no rows, was trimmed"):
        client.trace_batch(log, QUERY, 0)


def test_a_ledger_of_a_checkpoint_is_told_as_one(client: bk_core.BookKeeper) -> None:
    with bk_core.FileStore.open(client, "flights") as store:
        store.put("/offsets/0", b"v1")
        (segment,) = client.log("files.flights").segments()
    found = client.trace_entry(segment.ledger_id, 0)
    assert (found.log, found.query_id) == ("files.flights", None)
    assert "belongs to file store 'flights', such as a checkpoint of Spark" in found.note


def test_other_ledgers_are_told_as_what_they_are(bk: Bk, client: bk_core.BookKeeper, log: str) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"x")
    assert client.trace_entry(ledger.ledger_id, 0).note == "no log lists this ledger"
    with client.create_ledger(custom={"log": b"gone"}) as ledger:
        ledger.append(b"x")
    assert "does not exist" in client.trace_entry(ledger.ledger_id, 0).note
    with client.log(log).writer() as writer:
        writer.append(b"x")
        live = client.log(log).info
        (segment,) = client.log(log).segments()
        assert "an exclusive writer writes" in client.trace_entry(segment.ledger_id, 0).note
        assert live.writer is not None
    html = client.trace_entry(segment.ledger_id, 0)._repr_html_()
    assert "<table>" in html
    assert log in html
