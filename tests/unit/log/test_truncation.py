"""Cutting the front off a log: what may go, in which order, and what a lost answer or another truncation does to it."""

from __future__ import annotations

import pytest

from bk_core.errors import BkError, InvalidArgumentError, NoSuchLogError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import DeleteLedger, OpenLedger, ReadList, WriteList
from bk_core.protocol.log.truncation import LogTruncation
from tests.unit.log.talk import Talk

LISTED = (5, 3, 8, 6)


def begin(keep_from: int, listed: tuple[int, ...] = LISTED) -> Talk:
    talk = Talk(LogTruncation(keep_from))
    talk.take(talk.machine.start("cut", 0))
    talk.reply(ReadList, ledgers=listed, version=7)
    return talk


def look(talk: Talk, closed: dict[int, bool]) -> list[int]:
    seen = []
    while talk.asks(OpenLedger):
        ledger_id = talk.find(OpenLedger).ledger_id
        seen.append(ledger_id)
        talk.reply(OpenLedger, closed=closed[ledger_id], last_entry_id=0)
    return seen


def test_a_prefix_of_closed_ledgers_is_unlisted_then_deleted_oldest_first() -> None:
    """LOG-11, LOG-12, LOG-I5: one compare-and-set, and no deletion before it is definitely OK."""
    talk = begin(8)
    assert look(talk, {5: True, 3: True}) == [5, 3]
    write = talk.reply(WriteList, Outcome.UNKNOWN)
    assert (write.ledgers, write.version) == ((8, 6), 7) and not talk.asks(DeleteLedger)
    talk.fire("list")
    again = talk.reply(WriteList, version=8)  # META-12: identical
    assert (again.ledgers, again.version) == (write.ledgers, write.version)
    assert talk.reply(DeleteLedger, Outcome.UNKNOWN).ledger_id == 5
    talk.fire("delete")
    talk.reply(DeleteLedger)
    assert talk.done == {} and talk.find(DeleteLedger).ledger_id == 3
    talk.reply(DeleteLedger)
    assert talk.done == {"cut": (5, 3)} and talk.deleted == [5, 5, 3]


def test_it_stops_before_the_first_ledger_that_is_not_closed() -> None:
    """LOG-12: bookies go on taking entries of a writer whose ledger was deleted."""
    talk = begin(6)
    assert look(talk, {5: True, 3: False}) == [5, 3]
    assert talk.find(WriteList).ledgers == (3, 8, 6)


@pytest.mark.parametrize(("last_closed", "left"), [(True, (6,)), (False, (8, 6))])
def test_the_last_two_go_only_when_both_are_closed_and_the_last_never(last_closed: bool, left: tuple[int, ...]) -> None:
    """LOG-11."""
    talk = begin(6)
    look(talk, {5: True, 3: True, 8: True, 6: last_closed})
    assert talk.find(WriteList).ledgers == left


def test_two_ledgers_with_an_open_last_one_stay() -> None:
    """LOG-11: nothing to do is success."""
    talk = begin(6, (8, 6))
    look(talk, {8: True, 6: False})
    assert talk.done == {"cut": ()} and not talk.asks(WriteList)
    talk = begin(5)
    assert talk.done == {"cut": ()}


def test_a_conflict_is_decided_on_the_new_list() -> None:
    """META-14: a leader has appended; the same prefix goes from the new list."""
    talk = begin(3)
    look(talk, {5: True})
    talk.reply(WriteList, Outcome.CONFLICT)
    talk.reply(ReadList, ledgers=(*LISTED, 9), version=8)
    look(talk, {5: True})
    write = talk.reply(WriteList, version=9)
    assert (write.ledgers, write.version) == ((3, 8, 6, 9), 8)
    talk.reply(DeleteLedger)
    assert talk.done == {"cut": (5,)}


def test_an_own_lost_answer_is_recognised_and_the_ledgers_are_deleted() -> None:
    """META-12, scenario 18: UNKNOWN, CONFLICT, and the ledgers are unlisted: nobody else may ever delete them."""
    talk = begin(8)
    look(talk, {5: True, 3: True})
    talk.reply(WriteList, Outcome.UNKNOWN)
    talk.fire("list")
    talk.reply(WriteList, Outcome.CONFLICT)
    talk.reply(ReadList, ledgers=(8, 6), version=8)
    talk.reply(DeleteLedger)
    talk.reply(DeleteLedger)
    assert talk.done == {"cut": (5, 3)}


def test_a_ledger_that_is_gone_already_counts_as_closed() -> None:
    """LOG-12: whoever deleted it was to see that it was; the list must not name it for ever."""
    talk = begin(8)
    talk.reply(OpenLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(OpenLedger, Outcome.UNKNOWN)
    talk.fire("check")
    talk.reply(OpenLedger, closed=True)
    assert talk.find(WriteList).ledgers == (8, 6)


def test_what_cannot_be_done_is_an_error() -> None:
    talk = begin(77)
    assert isinstance(talk.failed["cut"], InvalidArgumentError)
    for outcome, error in ((Outcome.NO_SUCH_LEDGER, NoSuchLogError), (Outcome.REFUSED, BkError)):
        talk = Talk(LogTruncation(3))
        talk.take(talk.machine.start("cut", 0))
        talk.reply(ReadList, Outcome.UNKNOWN)
        talk.fire("list")
        talk.reply(ReadList, outcome)
        assert isinstance(talk.failed["cut"], error)
        talk = begin(3)
        look(talk, {5: True})
        talk.reply(WriteList, outcome)
        assert isinstance(talk.failed["cut"], error) and not talk.asks(DeleteLedger)
    talk = begin(3)
    talk.reply(OpenLedger, Outcome.REFUSED)
    assert isinstance(talk.failed["cut"], BkError)
    talk = begin(3)
    look(talk, {5: True})
    talk.reply(WriteList, version=8)
    talk.reply(DeleteLedger, Outcome.REFUSED)
    assert isinstance(talk.failed["cut"], BkError)
