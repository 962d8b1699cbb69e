"""In which order a reader goes through a log, whatever becomes of its ledgers meanwhile (LOG-13, LOG-15 .. LOG-17)."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import BkError, LogDataLossError, NoSuchLogError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import AwaitLedger, AwaitList, DeleteLedger, OpenLedger, ReadList, RecoverLedger, WriteList
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTruncated
from bk_core.protocol.log.truncation import LogTruncation
from tests.unit.log.talk import Talk


def reader(listed: tuple[int, ...], version: int = 1, **where: Any) -> Talk:
    talk = Talk(LogReaderOrder(**where))
    talk.take(talk.machine.start("read", 0))
    talk.reply(ReadList, ledgers=listed, version=version)
    return talk


def test_closed_ledgers_are_read_to_their_end_in_list_order() -> None:
    """LOG-8, LOG-15: list order, not the order of ids; empty ledgers deliver nothing. LOG-16: then the list is watched."""
    talk = reader((5, 3, 8))
    assert talk.reply(OpenLedger, closed=True, last_entry_id=4).ledger_id == 5
    talk.reply(ReadList, ledgers=(5, 3, 8), version=1)
    assert talk.reply(OpenLedger, closed=True, last_entry_id=-1).ledger_id == 3
    talk.reply(ReadList, ledgers=(5, 3, 8), version=1)
    talk.reply(OpenLedger, closed=True, last_entry_id=0)
    talk.reply(ReadList, ledgers=(5, 3, 8), version=2)
    assert talk.delivered == [(5, 0, 4), (8, 0, 0)]
    assert talk.reply(AwaitList).version == 2
    talk.reply(ReadList, ledgers=(5, 3, 8, 6), version=3)
    talk.reply(OpenLedger, closed=False, last_entry_id=1)
    assert talk.delivered[-1] == (6, 0, 1)


def test_an_unclosed_ledger_that_is_not_the_last_is_waited_for() -> None:
    """LOG-15: a successor says nothing about where this one ends: read up to the LAC, go on only once it is CLOSED."""
    talk = reader((1, 2))
    talk.reply(OpenLedger, closed=False, last_entry_id=3)
    assert talk.delivered == [(1, 0, 3)]
    wait = talk.reply(AwaitLedger)
    assert (wait.ledger_id, wait.last_entry_id) == (1, 3) and talk.pending == [talk.find(OpenLedger, ledger_id=1)]
    talk.reply(OpenLedger, closed=False, last_entry_id=3)
    talk.reply(AwaitLedger)
    talk.reply(OpenLedger, closed=True, last_entry_id=6)
    talk.reply(ReadList, ledgers=(1, 2), version=1)
    assert talk.delivered == [(1, 0, 3), (1, 4, 6)] and talk.find(OpenLedger).ledger_id == 2


def test_moving_on_at_the_lac_would_skip_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-15, broken on purpose: entries 4 .. 6 of ledger 1 come between, and are never delivered."""
    monkeypatch.setattr(LogReaderOrder, "_may_move_on", lambda self, closed: True)
    talk = reader((1, 2))
    talk.reply(OpenLedger, closed=False, last_entry_id=3)
    talk.reply(ReadList, ledgers=(1, 2), version=1)
    talk.reply(OpenLedger, closed=False, last_entry_id=0)
    assert talk.delivered == [(1, 0, 3), (2, 0, 0)]


def test_the_last_ledger_is_tailed() -> None:
    """LOG-15, LC-5; no entry twice, and a LAC that goes back changes nothing."""
    talk = reader((1,))
    for lac in (-1, 2, 1, 2, 5):
        talk.reply(OpenLedger, closed=False, last_entry_id=lac)
        talk.reply(AwaitLedger)
    assert talk.delivered == [(1, 0, 2), (1, 3, 5)]


def test_a_plain_reader_never_recovers() -> None:
    """LOG-17: whatever it meets, it only reads."""
    talk = reader((1, 2))
    for outcome in (Outcome.UNKNOWN, Outcome.OK):
        talk.reply(OpenLedger, outcome)
        if "open" in talk.timers:
            talk.fire("open")
        assert not talk.asks(RecoverLedger)
    assert talk.asks(AwaitLedger)


def test_an_empty_log_is_watched() -> None:
    """LOG-16."""
    talk = reader(())
    talk.reply(AwaitList)
    talk.reply(ReadList, ledgers=(4,), version=2)
    assert talk.find(OpenLedger).ledger_id == 4


def test_a_reader_begins_where_it_is_told() -> None:
    """LOG-10: an entry of a ledger."""
    talk = reader((1, 2, 3), ledger_id=2, entry_id=7)
    talk.reply(OpenLedger, closed=True, last_entry_id=9)
    assert talk.delivered == [(2, 7, 9)]


def test_scenario_57_truncation_with_a_slow_reader_in_it() -> None:
    """LOG-13: NoSuchLedger, the list again: jump to the first ledger that is left, or report."""
    cut = Talk(LogTruncation(2))
    cut.take(cut.machine.start("cut", 0))
    cut.reply(ReadList, ledgers=(1, 2, 3), version=1)
    slow, strict = (reader((1, 2, 3), ledger_id=1, entry_id=4, on_truncated=choice) for choice in (OnTruncated.JUMP, OnTruncated.FAIL))
    cut.reply(OpenLedger, closed=True, last_entry_id=9)
    assert cut.reply(WriteList, version=2).ledgers == (2, 3)
    assert cut.reply(DeleteLedger).ledger_id == 1
    for talk in (slow, strict):
        talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
        talk.reply(ReadList, ledgers=(2, 3), version=2)
    assert slow.find(OpenLedger).ledger_id == 2
    slow.reply(OpenLedger, closed=True, last_entry_id=0)
    assert slow.delivered == [(2, 0, 0)]
    assert isinstance(strict.failed["read"], LogDataLossError)


def test_a_reader_that_had_delivered_all_of_a_truncated_ledger_has_lost_nothing() -> None:
    """LOG-13: its successor is the first that is left."""
    talk = reader((1, 2, 3))
    talk.reply(OpenLedger, closed=True, last_entry_id=3)
    talk.reply(ReadList, ledgers=(2, 3, 4), version=2)
    assert talk.find(OpenLedger).ledger_id == 2 and talk.failed == {}
    talk.reply(OpenLedger, closed=True, last_entry_id=3)
    talk.reply(ReadList, ledgers=(4,), version=3)
    assert isinstance(talk.failed["read"], LogDataLossError)  # ledger 3 went unread


def test_a_listed_ledger_that_does_not_exist_is_an_alarm() -> None:
    """LOG-11, LOG-13: truncation unlists first."""
    talk = reader((1, 2), on_truncated=OnTruncated.JUMP)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(ReadList, Outcome.UNKNOWN)
    talk.fire("list")
    talk.reply(ReadList, ledgers=(1, 2), version=1)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(ReadList, ledgers=(1, 2), version=1)
    assert isinstance(talk.failed["read"], LogDataLossError)


def test_a_stale_list_is_not_believed() -> None:
    """META-11."""
    talk = reader((1, 2), version=5)
    talk.reply(OpenLedger, closed=True, last_entry_id=0)
    talk.reply(ReadList, ledgers=(1,), version=4)
    assert not talk.asks(AwaitList)
    talk.fire("list")
    talk.reply(ReadList, ledgers=(1, 2), version=5)
    assert talk.find(OpenLedger).ledger_id == 2


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.NO_SUCH_LEDGER, NoSuchLogError), (Outcome.REFUSED, BkError)])
def test_what_cannot_be_read_ends_the_reader(outcome: Outcome, error: type[BkError]) -> None:
    talk = Talk(LogReaderOrder())
    talk.take(talk.machine.start("read", 0))
    talk.reply(ReadList, outcome)
    assert isinstance(talk.failed["read"], error)
    if outcome is Outcome.REFUSED:
        talk = reader((1,))
        talk.reply(OpenLedger, outcome)
        assert isinstance(talk.failed["read"], error)
