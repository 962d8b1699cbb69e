"""Cutting the front off a log, and cleaning up: what may go, in which order, and what a lost answer or another pass does to it."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import BkError, NoSuchLogError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.cleaning import LogCleaning
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.effects import ChangeList, DeleteLedger, LoadChunk, LookAtLedger, ReadList, RecoverLedger
from bk_core.protocol.log.history import no_history
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import ref_to, seal
from bk_core.protocol.log.segments import SegmentRange
from bk_core.protocol.log.trimming import LogTrimming, TrimBounds
from tests.unit.log.talk import Talk

EMPTY = LedgerList("log")


def committed(*ledgers: int, listed: LedgerList = EMPTY, at_ms: int = 1) -> LedgerList:
    for ledger_id in ledgers:
        listed = listed.append_segments([SegmentRange(ledger_id, 0, 9, 10, 100)], at_ms)
    return listed


LISTED = committed(5, 3, 8, 6)


def begin(machine: ListClearing, listed: LedgerList = LISTED) -> Talk:
    talk = Talk(machine)
    talk.take(machine.start("cut", 0))
    talk.reply(ReadList, listed=listed, version=7)
    return talk


def trim(before: int, listed: LedgerList = LISTED, intents: tuple[int, ...] = ()) -> Talk:
    return begin(LogTrimming("a", TrimBounds(before=Position(before)), intents), listed)


def look(talk: Talk, closed: dict[int, bool]) -> list[int]:
    seen = []
    while talk.asks(LookAtLedger):
        ledger_id = talk.find(LookAtLedger).ledger_id
        seen.append(ledger_id)
        talk.reply(LookAtLedger, closed=closed[ledger_id])
    return seen


def ledgers(listed: LedgerList) -> list[int]:
    return [segment.ledger_id for segment in listed.segments]


def clear(talk: Talk, version: int = 8) -> list[int]:
    """Everything that is left to do succeeds; the ledgers deleted, in their order."""
    order = []
    while talk.pending:
        (effect,) = talk.pending
        match effect:
            case RecoverLedger():
                talk.reply(RecoverLedger)
            case DeleteLedger(_, ledger_id):
                order.append(ledger_id)
                talk.reply(DeleteLedger)
            case ChangeList():
                version += 1
                talk.reply(ChangeList, version=version)
            case _:
                raise AssertionError(effect)
    return order


def machine_of(talk: Talk) -> Any:
    return talk.machine


# --- trims -----------------------------------------------------------------------------------------------------------------


def test_a_prefix_of_closed_ledgers_is_unlisted_then_closed_and_deleted() -> None:
    """LOG-11, LOG-12, LOG-I5: one compare-and-set condemns them, and nothing is deleted before it is definitely OK."""
    talk = trim(2)
    assert look(talk, {5: True, 3: True}) == [5, 3]
    write = talk.reply(ChangeList, version=8)
    assert ledgers(write.listed) == [8, 6] and write.listed.condemned == (3, 5) and write.version == 7
    assert talk.deleted == [] and talk.reply(RecoverLedger).ledger_id == 3
    assert talk.reply(DeleteLedger, Outcome.UNKNOWN).ledger_id == 3
    talk.fire("delete")
    talk.reply(DeleteLedger)
    assert talk.reply(RecoverLedger).ledger_id == 5
    talk.reply(DeleteLedger)
    assert talk.done == {} and talk.find(ChangeList).listed.condemned == ()
    talk.reply(ChangeList, version=9)
    assert talk.done == {"cut": (3, 5)} and talk.deleted == [3, 3, 5]


def test_an_ambiguous_compare_and_set_is_looked_into() -> None:
    """META-12, scenario 18: applied or not shows in the list, and the cut survives being made twice; nothing is deleted before."""
    for applied in (True, False):
        talk = trim(2)
        look(talk, {5: True, 3: True})
        write = talk.reply(ChangeList, Outcome.UNKNOWN)
        assert not talk.asks(RecoverLedger)
        talk.fire("list")
        talk.reply(ReadList, listed=write.listed if applied else LISTED, version=7 + applied)
        assert talk.asks(ChangeList) is not applied
        assert clear(talk) == [3, 5] and talk.done == {"cut": (3, 5)}


def test_it_stops_before_the_first_ledger_that_is_not_closed() -> None:
    """LOG-12: bookies go on taking entries of a writer whose ledger was deleted."""
    talk = trim(3)
    assert look(talk, {5: True, 3: False}) == [5, 3]
    assert ledgers(talk.find(ChangeList).listed) == [3, 8, 6]


def test_it_stops_before_what_is_live_and_nothing_to_do_is_success() -> None:
    """LOG-11: so a log that is written keeps its last ledger, and the last two until the first is known to be closed."""
    live = committed(5).add_live_segment(8, 1).add_live_segment(6, 1)
    talk = trim(9, live)
    assert look(talk, {5: True}) == [5] and ledgers(talk.find(ChangeList).listed) == [8, 6]
    talk = trim(9, EMPTY.add_live_segment(8, 1).add_live_segment(6, 1))
    assert talk.done == {"cut": ()} and talk.pending == []
    assert trim(0).done == {"cut": ()}


def test_everything_may_go_and_the_list_remembers_how_far_it_had_come() -> None:
    """LOG-11, LOG-13: nobody writes any more, and positions of readers stay what they are."""
    talk = trim(9)
    look(talk, {5: True, 3: True, 8: True, 6: True})
    left = talk.find(ChangeList).listed
    assert left.segments == () and (left.trimmed_seq, left.trimmed_rows) == (4, 40)


def test_what_an_intent_watches_is_cut_off_and_released() -> None:
    """LOG-12: nobody asks whether it is closed; it is not deleted before the intent is gone."""
    talk = trim(2, intents=(5,))
    assert look(talk, {3: True}) == [3]
    write = talk.find(ChangeList)
    assert (write.listed.condemned, write.listed.released) == ((3,), (5,))
    assert clear(talk) == [3] and talk.done == {"cut": (3,)}
    talk = trim(0, write.listed)
    assert talk.find(ChangeList).listed.condemned == (3, 5)


def test_a_conflict_is_decided_on_the_new_list() -> None:
    """META-14: a leader has appended; the same prefix goes from the new list, and the cut is no other one."""
    talk = trim(1)
    look(talk, {5: True})
    talk.reply(ChangeList, Outcome.CONFLICT)
    talk.reply(ReadList, listed=committed(9, listed=LISTED), version=8)
    write = talk.find(ChangeList)
    assert (ledgers(write.listed), write.version) == ([3, 8, 6, 9], 8)
    assert clear(talk) == [5] and talk.done == {"cut": (5,)}


def test_a_log_that_was_created_again_is_left_alone() -> None:
    talk = trim(1)
    look(talk, {5: True})
    talk.reply(ChangeList, Outcome.CONFLICT)
    talk.reply(ReadList, listed=committed(9, listed=LedgerList("another")), version=0)
    assert talk.done == {"cut": ()} and talk.pending == []


def test_a_ledger_that_is_gone_already_counts_as_closed() -> None:
    """LOG-12: whoever deleted it was to see that it was; the list must not name it for ever."""
    talk = trim(2)
    talk.reply(LookAtLedger, Outcome.NO_SUCH_LEDGER)
    talk.reply(LookAtLedger, Outcome.UNKNOWN)
    talk.fire("check")
    talk.reply(LookAtLedger, closed=True)
    assert ledgers(talk.find(ChangeList).listed) == [8, 6]
    talk.reply(ChangeList, version=8)
    talk.reply(RecoverLedger)
    talk.reply(DeleteLedger)
    talk.reply(RecoverLedger, Outcome.NO_SUCH_LEDGER)
    assert talk.find(ChangeList).listed.condemned == () and machine_of(talk).deleted == [3]


@pytest.mark.parametrize(
    ("bounds", "cut"),
    [
        (TrimBounds(before=Position(2, 9)), 2),
        (TrimBounds(before_ms=30), 2),
        (TrimBounds(before_ms=99), 4),
        (TrimBounds(max_bytes=200), 2),
        (TrimBounds(max_bytes=201), 1),
        (TrimBounds(max_bytes=0), 4),
        (TrimBounds(before=Position(1), before_ms=30, max_bytes=999), 2),
    ],
)
def test_bounds(bounds: TrimBounds, cut: int) -> None:
    """LOG-11: by position, by age, by bytes; of several the farthest holds."""
    listed = EMPTY
    for n, ledger_id in enumerate((5, 3, 8, 6)):
        listed = committed(ledger_id, listed=listed, at_ms=10 * (n + 1))
    assert machine_of(begin(LogTrimming("a", bounds), listed)).cut == cut


@pytest.mark.parametrize(
    ("bounds", "segments"),
    [(TrimBounds(before=Position(1), before_ms=40), 1), (TrimBounds(before=Position(5)), 4), (TrimBounds(max_bytes=0, before_ms=40), 4)],
)
def test_a_dry_run_tells_what_a_trim_drops(bounds: TrimBounds, segments: int) -> None:
    """A segment with a time ahead of the later ones stops a trim by age, and a live one any trim."""
    listed = EMPTY
    for ledger_id, at_ms in ((5, 50), (3, 10), (8, 20), (6, 30)):
        listed = committed(ledger_id, listed=listed, at_ms=at_ms)
    listed = listed.add_live_segment(9, 60)
    assert bounds.dropped(listed, no_history) == (segments, 10 * segments, 100 * segments)
    talk = begin(LogTrimming("a", bounds), listed)
    look(talk, dict.fromkeys((5, 3, 8, 6), True))
    assert ledgers(talk.find(ChangeList).listed) == [5, 3, 8, 6, 9][segments:]


def test_bytes_are_kept_whatever_empty_segments_lie_behind_them() -> None:
    """LOG-11: retention by bytes keeps the only segment that has any."""
    listed = EMPTY.append_segments([SegmentRange(5, 0, 0, 1, 100)], 1)
    for ledger_id in (3, 8):
        listed = listed.add_live_segment(ledger_id, 1).close_live(ledger_id, -1, 0, 1)
    assert machine_of(begin(LogTrimming("a", TrimBounds(max_bytes=30)), listed)).cut == 0


def test_what_cannot_be_done_is_an_error() -> None:
    for outcome, error in ((Outcome.NO_SUCH_LEDGER, NoSuchLogError), (Outcome.REFUSED, BkError)):
        talk = Talk(LogTrimming("a", TrimBounds(before=Position(1))))
        talk.take(machine_of(talk).start("cut", 0))
        talk.reply(ReadList, Outcome.UNKNOWN)
        talk.fire("list")
        talk.reply(ReadList, outcome)
        assert isinstance(talk.failed["cut"], error)
        talk = trim(1)
        look(talk, {5: True})
        talk.reply(ChangeList, outcome)
        assert isinstance(talk.failed["cut"], error) and not talk.asks(DeleteLedger)
    talk = trim(1)
    talk.reply(LookAtLedger, Outcome.REFUSED)
    assert isinstance(talk.failed["cut"], BkError)


def test_ledgers_that_cannot_be_closed_or_deleted_now_are_told_and_left_condemned() -> None:
    """LOG-12: not closed is not deleted; the others go all the same."""
    talk = trim(3)
    look(talk, {5: True, 3: True, 8: True})
    talk.reply(ChangeList, version=8)
    talk.reply(RecoverLedger, Outcome.UNKNOWN)
    talk.reply(RecoverLedger)
    talk.reply(DeleteLedger, Outcome.REFUSED)
    talk.reply(RecoverLedger)
    talk.reply(DeleteLedger)
    assert talk.reply(ChangeList, version=9).listed.condemned == (3, 5)
    assert sorted(machine_of(talk).failed) == [3, 5] and talk.done == {"cut": (8,)}


# --- history that was dropped ------------------------------------------------------------------------------------------------


def dropped() -> tuple[LedgerList, Any, tuple[Any, ...]]:
    """Two segments in history ledger 99, and all of it trimmed."""
    chunk = LISTED.segments[:2]
    ref = ref_to(chunk, 99)
    sealed = seal(LISTED, [(chunk, ref)])
    assert sealed is not None
    return sealed.trim(2, lambda _ref: chunk)[0], ref, chunk


def test_a_history_ledger_goes_after_what_it_tells_of_was_condemned() -> None:
    """LOG-11: else a crash would leave ledgers that nobody knows of."""
    listed, ref, chunk = dropped()
    talk = begin(LogTrimming("a", TrimBounds(before=Position(0))), listed)
    assert talk.reply(LoadChunk, chunk=chunk).ref == ref
    swept = talk.find(ChangeList).listed
    assert swept.dropped == () and swept.condemned == (3, 5, 99)
    assert clear(talk) == [3, 5, 99]


def test_history_that_cannot_be_read_is_told_and_stops_nothing_else() -> None:
    listed, ref, _ = dropped()
    talk = begin(LogCleaning("a", [4], [4]), listed)
    talk.reply(LoadChunk, Outcome.REFUSED, error=BkError("damaged"))
    assert list(machine_of(talk).failed) == [99]
    talk.reply(LoadChunk, Outcome.REFUSED, error=BkError("damaged"))  # what it mentions cannot be condemned before it is known
    assert isinstance(talk.failed["cut"], BkError)
    talk = begin(LogCleaning("a", []), listed)
    talk.reply(LoadChunk, Outcome.NO_SUCH_LEDGER)
    talk.reply(ReadList, listed=LISTED.trim(2)[0], version=8)  # another pass was faster
    assert machine_of(talk).failed == {} and talk.pending[0].ledger_id == 3


# --- janitors ----------------------------------------------------------------------------------------------------------------


def test_what_is_not_listed_is_condemned_then_deleted_and_what_is_listed_is_closed() -> None:
    """LOG-18, LOG-12: the list first, so that no commit can name it any more; an intent is forgotten last."""
    talk = begin(LogCleaning("a", [77, 8, 78], [77, 8, 78, 5]))
    write = talk.reply(ChangeList, version=8)
    assert write.listed.condemned == (77, 78) and talk.deleted == []
    for ledger_id in (77, 78):
        assert talk.reply(RecoverLedger).ledger_id == ledger_id and ledger_id not in talk.forgotten
        talk.reply(DeleteLedger)
    assert talk.reply(ChangeList, version=9).listed.condemned == ()
    assert talk.reply(RecoverLedger).ledger_id == 8
    assert talk.done == {"cut": (77, 78)} and machine_of(talk).closed == [8] and talk.forgotten == [77, 78, 8]


def test_a_ledger_that_was_committed_meanwhile_is_not_condemned() -> None:
    """LOG-18: the compare-and-set of the commit came first."""
    talk = begin(LogCleaning("a", [77], [77]))
    talk.reply(ChangeList, Outcome.CONFLICT)
    talk.reply(ReadList, listed=committed(77, listed=LISTED), version=8)
    assert talk.reply(RecoverLedger).ledger_id == 77
    assert talk.deleted == [] and machine_of(talk).closed == [77]


def test_without_the_log_nothing_has_to_be_condemned() -> None:
    talk = Talk(LogCleaning("a", [77], [77]))
    talk.take(machine_of(talk).start("cut", 0))
    talk.reply(ReadList, Outcome.NO_SUCH_LEDGER)
    assert clear(talk) == [77] and talk.done == {"cut": (77,)}


def test_a_pass_whose_time_is_over_begins_nothing_more() -> None:
    """Condemned segments stay on the list for the next trim."""
    talk = begin(LogCleaning("a", [77, 78], [77, 78]))
    talk.reply(ChangeList, version=8)
    talk.reply(RecoverLedger)
    machine_of(talk).stop()
    talk.reply(DeleteLedger)
    assert talk.reply(ChangeList, version=9).listed.condemned == (78,)
    assert talk.done == {"cut": (77,)}
