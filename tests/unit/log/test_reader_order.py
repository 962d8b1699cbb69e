"""In which order a reader goes through a log, whatever becomes of its ledgers meanwhile (LOG-13, LOG-15 .. LOG-17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import BkError, LogDataLossError, LogHistoryError, NoSuchLogError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log import reading
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.effects import AwaitLedger, AwaitList, Deliver, LoadChunk, OpenLedger, ReadList, RecoverLedger
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTrimmed
from bk_core.protocol.log.sealing import ref_to, seal
from bk_core.protocol.log.segments import SegmentRange
from bk_core.protocol.log.writing_off import write_off
from tests.unit.log.talk import Talk

EMPTY = LedgerList("log")


def committed(*ledgers: int, entries: int = 10, listed: LedgerList = EMPTY) -> LedgerList:
    return listed.append_segments([SegmentRange(ledger_id, 0, entries - 1, entries, entries) for ledger_id in ledgers], 1)


def live(*ledgers: int, listed: LedgerList = EMPTY) -> LedgerList:
    for ledger_id in ledgers:
        listed = listed.add_live_segment(ledger_id, 1)
    return listed


def reader(listed: LedgerList, version: int = 1, **where: Any) -> Talk:
    talk = Talk(LogReaderOrder("a", **where))
    talk.take(talk.machine.start("read", 0))
    talk.reply(ReadList, listed=listed, version=version)
    return talk


def read(talk: Talk, *, closed: bool = True, last: int = 9) -> int:
    """The ledger that is opened, and read as far as it may be."""
    ledger_id = talk.reply(OpenLedger, closed=closed, last_entry_id=last).ledger_id
    while talk.asks(Deliver):
        talk.reply(Deliver)
    return int(ledger_id)


def position(talk: Talk) -> Position:
    assert isinstance(talk.machine, LogReaderOrder) and talk.machine.position is not None
    return talk.machine.position


def test_segments_are_read_in_list_order_and_then_the_list_is_watched() -> None:
    """LOG-21, LOG-15, LOG-16: list order, not the order of ids; the list is read once for all of it."""
    talk = reader(committed(5, 3, 8))
    assert [read(talk) for _ in range(3)] == [5, 3, 8]
    assert talk.delivered == [(5, 0, 9), (3, 0, 9), (8, 0, 9)] and position(talk) == Position(3)
    assert talk.reply(AwaitList).version == 1
    talk.reply(ReadList, listed=committed(5, 3, 8, 6), version=2)
    assert read(talk) == 6


def test_ranges_of_one_ledger_are_read_whatever_lies_between() -> None:
    """LOG-21: several ranges of a ledger that is still written; what no range names is not read, and no bookie is asked for the LAC."""
    listed = EMPTY
    for batch, (first, last) in enumerate([(2, 4), (9, 9)]):
        listed = listed.append_segments([SegmentRange(7, first, last, last - first + 1, 1)], 1, "q", batch)
    talk = reader(listed)
    for _ in range(2):
        assert talk.find(OpenLedger).wanted is None
        assert read(talk, closed=False, last=-1) == 7
    assert talk.delivered == [(7, 2, 4), (7, 9, 9)] and talk.asks(AwaitList)


def test_an_unclosed_ledger_that_is_not_the_last_is_waited_for() -> None:
    """LOG-15: a successor says nothing about where this one ends: read up to the LAC, go on only once it is CLOSED."""
    talk = reader(live(1, 2))
    assert talk.find(OpenLedger).wanted == 0
    read(talk, closed=False, last=3)
    assert talk.delivered == [(1, 0, 3)]
    wait = talk.reply(AwaitLedger)
    assert (wait.ledger_id, wait.last_entry_id) == (1, 3) and talk.pending == [talk.find(OpenLedger, ledger_id=1)]
    read(talk, closed=False, last=3)
    talk.reply(AwaitLedger)
    read(talk, last=6)
    assert talk.delivered == [(1, 0, 3), (1, 4, 6)] and talk.find(OpenLedger).ledger_id == 2


def test_moving_on_at_the_lac_would_skip_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-15, broken on purpose: entries 4 .. 6 of ledger 1 come between, and are never delivered."""
    monkeypatch.setattr(reading, "may_move_on", lambda segment, *, closed: True)
    talk = reader(live(1, 2))
    read(talk, closed=False, last=3)
    read(talk, closed=False, last=0)
    assert talk.delivered == [(1, 0, 3), (2, 0, 0)]


def test_the_last_ledger_is_tailed() -> None:
    """LOG-15, LC-5; no entry twice, and a LAC that goes back changes nothing."""
    talk = reader(live(1))
    for lac in (-1, 2, 1, 2, 5):
        read(talk, closed=False, last=lac)
        talk.reply(AwaitLedger)
    assert talk.delivered == [(1, 0, 2), (1, 3, 5)]


def test_a_plain_reader_never_recovers() -> None:
    """LOG-17: whatever it meets, it only reads."""
    talk = reader(live(1, 2))
    for outcome in (Outcome.UNKNOWN, Outcome.OK):
        talk.reply(OpenLedger, outcome)
        if "open" in talk.timers:
            talk.fire("open")
        assert not talk.asks(RecoverLedger)
    assert talk.asks(AwaitLedger)


def test_an_empty_log_is_watched() -> None:
    """LOG-16."""
    talk = reader(EMPTY)
    talk.reply(AwaitList)
    talk.reply(ReadList, listed=live(4), version=2)
    assert talk.find(OpenLedger).ledger_id == 4


def test_a_reader_begins_where_it_is_told() -> None:
    """LOG-10: at an entry of a segment."""
    talk = reader(committed(1, 2, 3), position=Position(1, 7))
    assert read(talk) == 2 and talk.delivered == [(2, 7, 9)]


def test_who_is_asked_to_look_decides_again() -> None:
    """SM-3: what was asked before is nobody's answer any more; without a change the list is not read again."""
    talk = reader(live(1))
    read(talk, closed=False, last=3)
    old = talk.find(AwaitLedger)
    talk.pending.clear()
    assert isinstance(talk.machine, LogReaderOrder)
    talk.take(talk.machine.look(0, list_changed=False))
    assert talk.find(OpenLedger).wanted == 4
    talk.pending.append(old)
    talk.reply(AwaitLedger)
    assert [type(effect) for effect in talk.pending] == [OpenLedger]
    talk.pending.clear()
    talk.take(talk.machine.look(0))
    talk.reply(ReadList, listed=live(1), version=1)
    talk.reply(OpenLedger, closed=False, last_entry_id=9)
    talk.machine.passed(6)  # its consumer stopped in the middle
    talk.pending.clear()
    talk.take(talk.machine.look(0, list_changed=False))
    read(talk, closed=False, last=9)
    assert talk.delivered == [(1, 0, 3), (1, 4, 9), (1, 7, 9)]


# --- history -------------------------------------------------------------------------------------------------------------


def sealed(count: int) -> tuple[LedgerList, Any, tuple[Any, ...]]:
    listed = committed(*range(10, 10 + count))
    chunk = listed.segments[: count - 2]
    ref = ref_to(chunk, 99)
    changed = seal(listed, [(chunk, ref)])
    assert changed is not None
    return changed, ref, chunk


def test_chunks_of_the_history_are_loaded_where_they_are_needed() -> None:
    """LOG-21: once, and not at all where the reader stands behind them."""
    listed, ref, chunk = sealed(6)
    talk = reader(listed)
    assert talk.reply(LoadChunk, Outcome.UNKNOWN).ref == ref
    talk.fire("chunk")
    talk.reply(LoadChunk, chunk=chunk)
    assert [read(talk) for _ in range(6)] == list(range(10, 16)) and not talk.asks(LoadChunk)
    assert not reader(listed, position=Position(4)).asks(LoadChunk)


def test_a_chunk_that_is_gone_means_another_list() -> None:
    """LOG-13: a trim deletes history ledgers that it has unlisted; one that is listed and gone is an alarm."""
    listed, _, _ = sealed(6)
    talk = reader(listed, on_trimmed=OnTrimmed.JUMP)
    talk.reply(LoadChunk, Outcome.NO_SUCH_LEDGER)
    cut = replace(LedgerList("log"), segments=listed.segments[-2:], trimmed_seq=4, trimmed_rows=40)
    talk.reply(ReadList, listed=cut, version=2)
    assert read(talk) == 14
    for outcome in (Outcome.NO_SUCH_LEDGER, Outcome.REFUSED):
        talk = reader(listed)
        talk.reply(LoadChunk, outcome)
        if outcome is Outcome.NO_SUCH_LEDGER:
            talk.reply(ReadList, listed=listed, version=1)
            talk.reply(LoadChunk, outcome)
        assert isinstance(talk.failed["read"], LogHistoryError)


# --- losses --------------------------------------------------------------------------------------------------------------


def test_scenario_57_a_trim_with_a_slow_reader_in_it() -> None:
    """LOG-13: NoSuchLedger, the list again: jump to the first ledger that is left, or report."""
    listed = committed(1, 2, 3)
    slow, strict = (reader(listed, position=Position(0, 4), on_trimmed=choice) for choice in (OnTrimmed.JUMP, OnTrimmed.FAIL))
    for talk in (slow, strict):
        talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
        talk.reply(ReadList, listed=listed.trim(1)[0], version=2)
    assert read(slow) == 2 and slow.delivered == [(2, 0, 9)]
    assert isinstance(strict.failed["read"], LogDataLossError)
    assert "(it was at entry 4 of segment 0); the log now starts at segment 1" in str(strict.failed["read"])


@pytest.mark.parametrize("unread", [0, 1])
def test_a_live_segment_that_was_read_to_its_end_and_trimmed_is_no_loss(unread: int) -> None:
    """LOG-13: the rows that are trimmed are those that were read; one more, and something is lost."""
    talk = reader(live(1, listed=committed(7)), position=Position(1))
    read(talk, closed=False, last=3)
    talk.reply(AwaitLedger)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    closed = live(1, listed=committed(7)).close_live(1, 3 + unread, 0, 1)
    talk.reply(ReadList, listed=live(2, listed=closed).trim(2)[0], version=3)
    if unread:
        assert isinstance(talk.failed["read"], LogDataLossError)
    else:
        assert talk.find(OpenLedger).ledger_id == 2 and talk.failed == {}


@pytest.mark.parametrize("looked", [False, True])
def test_rows_that_were_written_off_are_not_set_against_rows_that_were_not_read(looked: bool) -> None:
    """LOG-13: ten rows before the reader are lost and written off; then ten are trimmed that it did not read."""
    listed = live(2, listed=committed(1))
    talk = reader(listed, position=Position(1))
    read(talk, closed=False, last=3)
    talk.reply(AwaitLedger)
    repaired = decode(encode(write_off(listed, {1}, 8, lambda _: (), lambda _: 0)))
    if looked:  # the list tells anew what lies before the live segment
        assert isinstance(talk.machine, LogReaderOrder)
        talk.pending.clear()
        talk.take(talk.machine.look(0))
        talk.reply(ReadList, listed=repaired, version=2)
        talk.reply(OpenLedger, last_entry_id=3, closed=False)
        talk.reply(AwaitLedger)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    more = committed(3, listed=repaired.close_live(2, 3, 0, 1))
    talk.reply(ReadList, listed=live(4, listed=more).trim(3)[0], version=5)
    assert isinstance(talk.failed["read"], LogDataLossError)
    assert "segments 1..2" in str(talk.failed["read"])


def test_two_live_segments_that_were_read_may_be_trimmed_before_the_list_says_where_they_ended() -> None:
    """LOG-13, LOG-15: only who has read the first knows how many rows lie before the second."""
    both = live(1, 2)
    for start, lost in ((Position(0), False), (Position(1), True)):
        talk = reader(both, position=start)
        while talk.find(OpenLedger).ledger_id == 1:
            read(talk, last=9)
        read(talk, closed=False, last=4)
        talk.reply(AwaitLedger)
        talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
        told = both.close_live(1, 9, 0, 1).close_live(2, 4, 0, 1)
        talk.reply(ReadList, listed=told.trim(2)[0], version=3)
        assert ("read" in talk.failed) is lost and (lost or talk.find(AwaitList).version == 3)


def test_an_empty_segment_that_comes_and_goes_at_the_end_is_no_loss() -> None:
    """LOG-13: a reader at the end of the log, a writer that wrote nothing, a trim."""
    talk = reader(committed(1), position=Position(1))
    talk.reply(AwaitList)
    empty = live(2, listed=committed(1)).close_live(2, -1, 0, 1)
    talk.reply(ReadList, listed=live(3, listed=empty).trim(2)[0], version=4)
    assert talk.find(OpenLedger).ledger_id == 3


def test_rows_of_a_segment_that_was_not_read_are_never_taken_for_read() -> None:
    """LOG-13: a range that begins at entry 5 of its ledger and has five rows in it was not read by who stands before it."""
    talk = reader(committed(1), position=Position(1))
    talk.reply(AwaitList)
    more = committed(1).append_segments([SegmentRange(2, 5, 9, 5, 5)], 1)
    talk.reply(ReadList, listed=more, version=2)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(ReadList, listed=more.trim(2)[0], version=3)
    assert isinstance(talk.failed["read"], LogDataLossError)


def test_a_log_that_was_created_again_is_another_one() -> None:
    """LOG-13: versions start anew, so the lower one is no stale answer."""
    talk = reader(committed(1), version=7)
    read(talk)
    talk.reply(AwaitList)
    talk.reply(ReadList, listed=replace(committed(2), log_id="another"), version=0)
    assert isinstance(talk.failed["read"], LogDataLossError) and "created again" in str(talk.failed["read"])


def test_a_listed_ledger_that_does_not_exist_is_an_alarm() -> None:
    """LOG-11, LOG-13: a trim unlists first."""
    talk = reader(committed(1, 2), on_trimmed=OnTrimmed.JUMP)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(ReadList, Outcome.UNKNOWN)
    talk.fire("list")
    talk.reply(ReadList, listed=committed(1, 2), version=1)
    assert isinstance(talk.failed["read"], LogDataLossError) and "does not exist" in str(talk.failed["read"])


def test_a_ledger_closed_below_what_the_list_says_is_a_loss() -> None:
    """RD-1: what is there is read, and then the loss is told, again and again."""
    talk = reader(committed(1, 2))
    read(talk, last=4)
    assert talk.delivered == [(1, 0, 4)] and "entries 5..9 of ledger 1" in str(talk.failed.pop("read"))
    assert isinstance(talk.machine, LogReaderOrder)
    talk.take(talk.machine.look(0))
    talk.reply(ReadList, listed=committed(1, 2), version=1)
    read(talk, last=4)
    assert talk.delivered == [(1, 0, 4)] and isinstance(talk.failed["read"], LogDataLossError)


@pytest.mark.parametrize("listed", [committed(1, 2), live(1, 2)])
def test_a_ledger_that_is_closed_too_low_while_it_is_read_is_a_loss(listed: LedgerList) -> None:
    """OP-6, RD-1: what was told to be acknowledged is not there any more."""
    talk = reader(listed)
    talk.reply(OpenLedger, closed=False, last_entry_id=9)
    talk.reply(Deliver, Outcome.CONFLICT, next_entry_id=5)
    talk.reply(ReadList, listed=listed, version=1)
    read(talk, last=4)
    assert "entries 5..9 of ledger 1" in str(talk.failed["read"]) and position(talk) == Position(0, 5)


def test_a_ledger_that_is_trimmed_while_it_is_read_is_a_loss_or_none() -> None:
    """LOG-13: the list tells."""
    for choice in OnTrimmed:
        talk = reader(committed(1, 2), on_trimmed=choice)
        talk.reply(OpenLedger, closed=True, last_entry_id=9)
        talk.reply(Deliver, Outcome.CONFLICT, next_entry_id=5)
        talk.reply(ReadList, listed=committed(1, 2).trim(1)[0], version=2)
        assert ("read" in talk.failed) is (choice is OnTrimmed.FAIL)


def test_a_stale_list_is_not_believed() -> None:
    """META-11."""
    talk = reader(committed(1), version=5)
    read(talk)
    talk.reply(AwaitList)
    talk.reply(ReadList, listed=EMPTY, version=4)
    assert not talk.asks(AwaitList)
    talk.fire("list")
    talk.reply(ReadList, listed=committed(1, 2), version=6)
    assert talk.find(OpenLedger).ledger_id == 2


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.NO_SUCH_LEDGER, NoSuchLogError), (Outcome.REFUSED, BkError)])
def test_what_cannot_be_read_ends_the_reader(outcome: Outcome, error: type[BkError]) -> None:
    talk = Talk(LogReaderOrder("a"))
    talk.take(talk.machine.start("read", 0))
    talk.reply(ReadList, outcome)
    assert isinstance(talk.failed["read"], error)
    if outcome is Outcome.REFUSED:
        talk = reader(committed(1))
        talk.reply(OpenLedger, outcome)
        assert isinstance(talk.failed["read"], error)
