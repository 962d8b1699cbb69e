"""The writer machine, one rule at a time: the events are written down, nothing is left to timing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from bk_core.errors import LedgerClosedError, LedgerFencedError, NotEnoughBookiesError, PersistenceViolatedError
from bk_core.protocol.effects import Complete, Effect, Fail, LookForBookies, ReadLedger, SendAdds, SendAndForget, SetTimer, WriteLedger
from bk_core.protocol.events import AddReply, BookieLost, BookiesLookedFor, LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.write.writer import LedgerWriter, WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

SECOND = 1_000_000_000


def opened(shape: tuple[int, int, int] = (3, 3, 2), bookies: Sequence[str] = ("a", "b", "c", "d"), **options: int) -> LedgerWriter:
    ensemble = tuple(bookies[: shape[0]])
    metadata = LedgerMetadata(*shape, LedgerState.OPEN, (Fragment(0, ensemble),))
    chance = iter(range(10_000))
    placement = RandomPlacement(lambda: list(bookies), lambda: float(next(chance)))
    return LedgerWriter(7, metadata, 0, placement, Limits(**options))


def append(writer: LedgerWriter, *payloads: bytes, token: str = "t") -> list[Effect]:
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return writer.append(b"".join(payloads), offsets, token, 0)


def acked(writer: LedgerWriter, bookie: str, first: int, count: int = 1) -> list[Effect]:
    return writer.handle(AddReply(bookie, first, count, Status.OK), 0)


def only(effects: Sequence[Effect], kind: type) -> list[Effect]:
    return [e for e in effects if isinstance(e, kind)]


def sent_to(effects: Sequence[Effect]) -> list[str]:
    return [e.bookie for e in effects if isinstance(e, SendAdds)]


def test_entries_are_acknowledged_in_order_whatever_order_the_bookies_answer_in() -> None:
    """WR-8."""
    writer = opened()
    append(writer, b"0", token="first")
    append(writer, b"1", token="second")
    assert not only(acked(writer, "a", 1) + acked(writer, "b", 1), Complete)
    assert writer.last_add_confirmed == -1
    acked(writer, "a", 0)
    assert acked(writer, "c", 0) == [Complete("first", 0), Complete("second", 1), SetTimer("explicit-lac", Limits().explicit_lac_ns)]


def test_an_answer_with_gaps_counts_for_the_entries_in_it() -> None:
    """WR-7 with striping: a set of entries over the ends of two runs."""
    writer = opened()
    append(writer, b"0", b"1", token="first")
    append(writer, b"2", b"3", token="second")
    writer.handle(AddReply("a", 0, 4, Status.OK, 0b1101), 0)  # not entry 1
    assert not only(acked(writer, "b", 0, 4), Complete)
    assert writer.acknowledged_head == 0
    assert only(writer.handle(AddReply("c", 1, 3, Status.OK, 0b101), 0), Complete) == [Complete("first", 1), Complete("second", 3)]


def test_a_bookie_counts_once() -> None:
    """WR-7, SM-3: duplicate answers add nothing."""
    writer = opened()
    append(writer, b"x")
    acked(writer, "a", 0)
    assert not only(acked(writer, "a", 0), Complete)


def test_nothing_is_acknowledged_while_the_change_is_not_stored() -> None:
    """EC-8 and EC-10: acknowledgements of the departing bookie do not count, those of survivors do, the newcomer is sent everything."""
    writer = opened()
    append(writer, b"x")
    acked(writer, "a", 0)
    change = writer.handle(BookieLost("b"), 0)
    (write,) = only(change, WriteLedger)
    assert isinstance(write, WriteLedger)
    assert write.metadata.fragments == (Fragment(0, ("a", "d", "c")),)
    assert not only(acked(writer, "c", 0), Complete)  # two acks, but the window is open
    done = writer.handle(LedgerWritten(write.request, Outcome.OK, 1), 0)
    assert sent_to(done) == ["d"]
    assert only(done, Complete) == [Complete("t", 0)]


def test_an_acknowledgement_of_a_replaced_bookie_is_taken_back() -> None:
    """EC-12, replication-protocol.md 14.1 item 2 with striping: the head is untouched by the change, the next entry had the departing
    bookie's ack."""
    writer = opened((4, 2, 2), ("a", "b", "c", "d", "e"))
    append(writer, b"0", token="head")  # a b
    append(writer, b"1", token="next")  # b c
    acked(writer, "b", 1)
    acked(writer, "c", 1)
    acked(writer, "a", 0)
    (write,) = only(writer.handle(BookieLost("d"), 0) + append(writer, b"2") + writer.handle(BookieLost("c"), 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    done = writer.handle(LedgerWritten(write.request, Outcome.OK, 1), 0)
    assert not only(done, Complete)
    assert writer.last_add_confirmed == -1
    assert only(acked(writer, "b", 0), Complete) == [Complete("head", 0)]  # entry 1 is not: its copy on c left with c


def test_a_new_fragment_starts_after_the_last_acknowledged_entry() -> None:
    """EC-7, EC-13."""
    writer = opened()
    append(writer, b"0", b"1", b"2")
    acked(writer, "a", 0, 2)
    acked(writer, "c", 0, 2)
    (write,) = only(writer.handle(BookieLost("b"), 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    assert write.metadata.fragments[-1] == Fragment(2, ("a", "d", "c"))
    done = writer.handle(LedgerWritten(write.request, Outcome.OK, 1), 0)
    (resend,) = only(done, SendAdds)
    assert isinstance(resend, SendAdds)
    assert (resend.bookie, resend.start) == ("d", 2)


def test_an_unknown_outcome_repeats_the_identical_request() -> None:
    """META-12: the same bytes at the same version, until it is definite."""
    writer = opened()
    append(writer, b"x")
    (write,) = only(writer.handle(BookieLost("b"), 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    assert writer.handle(LedgerWritten(write.request, Outcome.UNKNOWN), 0) == [SetTimer("metadata", Limits().metadata_retry_ns)]
    assert writer.handle(TimerFired("metadata"), 0) == [write]
    # Conflict: the first attempt had been applied after all. Its content is found and adopted as done (EC-9).
    assert writer.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0) == [ReadLedger(write.request)]
    done = writer.handle(LedgerRead(write.request, Outcome.OK, write.metadata, 1), 0)
    assert sent_to(done) == ["d"]
    assert not only(done, WriteLedger)


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_conflict_with_recovery_stops_the_writer_without_a_write(state: LedgerState) -> None:
    """EC-9, D1, R6."""
    writer = opened()
    append(writer, b"x")
    (write,) = only(writer.handle(BookieLost("b"), 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    writer.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0)
    stored = LedgerMetadata(3, 3, 2, state, writer.metadata.fragments, last_entry_id=0 if state is LedgerState.CLOSED else -1)
    effects = writer.handle(LedgerRead(write.request, Outcome.OK, stored, 5), 0)
    (failed,) = effects
    assert isinstance(failed, Fail)
    assert type(failed.error) is (LedgerFencedError if state is LedgerState.IN_RECOVERY else LedgerClosedError)
    assert writer.last_add_confirmed == -1


def test_fenced_means_stop() -> None:
    """WR-11: the queue fails in order, later appends and the close too, metadata is left alone."""
    writer = opened()
    append(writer, b"0", token="first")
    append(writer, b"1", token="second")
    effects = writer.handle(AddReply("a", 0, 1, Status.FENCED), 0)
    assert [e.token for e in effects if isinstance(e, Fail)] == ["first", "second"]
    assert all(isinstance(e, Fail) and isinstance(e.error, LedgerFencedError) for e in effects)
    assert isinstance(append(writer, b"2")[0], Fail)
    assert isinstance(writer.close("close", 0)[0], Fail)
    assert writer.state is WriterState.FENCED


def test_a_silent_bookie_is_replaced_after_the_add_timeout() -> None:
    """WR-6: timeout is a bookie failure; a bookie that owes nothing is left in peace."""
    writer = opened(add_timeout_ns=SECOND)
    append(writer, b"x")
    acked(writer, "a", 0)
    assert not only(writer.handle(TimerFired("tick"), SECOND // 2), WriteLedger)
    (write,) = only(writer.handle(TimerFired("tick"), 2 * SECOND), WriteLedger)
    assert isinstance(write, WriteLedger)
    assert write.metadata.last_fragment.ensemble[0] == "a"
    assert "b" not in write.metadata.last_fragment.ensemble


def test_two_dead_bookies_are_not_swapped_for_one_another() -> None:
    """R37: a bookie that failed a moment ago is no replacement; without any the ledger is closed at the LAC (EC-6, WR-12)."""
    writer = opened(bookies=("a", "b", "c", "d"))
    append(writer, b"x")
    (write,) = only(writer.handle(BookieLost("b"), 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    writer.handle(LedgerWritten(write.request, Outcome.OK, 1), 0)
    (look,) = only(writer.handle(BookieLost("d"), 1), LookForBookies)
    assert isinstance(look, LookForBookies)
    effects = writer.handle(BookiesLookedFor(look.request), 1)
    (failed,) = only(effects, Fail)
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, NotEnoughBookiesError)
    (close,) = only(effects, WriteLedger)
    assert isinstance(close, WriteLedger)
    assert (close.metadata.state, close.metadata.last_entry_id) == (LedgerState.CLOSED, -1)


def test_close_fixes_the_end_and_the_length() -> None:
    """CL-1, META-10, R26: drained entries do not count into the length."""
    writer = opened()
    append(writer, b"four", b"seven77", token="run")
    acked(writer, "a", 0)
    acked(writer, "b", 0)
    effects = writer.close("close", 0)
    (failed,) = only(effects, Fail)
    assert isinstance(failed, Fail)
    assert failed.token == "run"
    (write,) = only(effects, WriteLedger)
    assert isinstance(write, WriteLedger)
    assert (write.metadata.last_entry_id, write.metadata.length) == (0, 4)
    assert writer.handle(LedgerWritten(write.request, Outcome.OK, 1), 0) == [Complete("close", write.metadata)]


@pytest.mark.parametrize(("stored_last", "good"), [(0, True), (3, False), (-1, False)])
def test_close_against_a_ledger_that_somebody_closed(stored_last: int, good: bool) -> None:
    """CL-4: the same end is success, a later one a conflict, an earlier one breaks persistence and says so loudly."""
    writer = opened()
    append(writer, b"x")
    acked(writer, "a", 0)
    acked(writer, "b", 0)
    (write,) = only(writer.close("close", 0), WriteLedger)
    assert isinstance(write, WriteLedger)
    writer.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0)
    stored = writer.metadata.closed(stored_last, 1)
    effects = writer.handle(LedgerRead(write.request, Outcome.OK, stored, 3), 0)
    if good:
        assert only(effects, Complete) == [Complete("close", stored)]
    else:
        (failed,) = only(effects, Fail)
        assert isinstance(failed, Fail)
        assert isinstance(failed.error, PersistenceViolatedError) is (stored_last < 0)


def test_the_last_entry_of_an_idle_writer_becomes_known() -> None:
    """WR-16: the explicit LAC goes to every bookie of the ensemble, once."""
    writer = opened()
    append(writer, b"x")
    acked(writer, "a", 0)
    acked(writer, "b", 0)
    effects = writer.handle(TimerFired("explicit-lac"), 0)
    assert [e.bookie for e in effects if isinstance(e, SendAndForget)] == ["a", "b", "c"]
    assert not writer.handle(TimerFired("explicit-lac"), 0)


def test_a_run_is_forgotten_when_everyone_has_it() -> None:
    """WR-9, WR-15: memory is held until the last position answered."""
    writer = opened()
    append(writer, b"12345")
    acked(writer, "a", 0)
    acked(writer, "b", 0)
    assert (writer.pending_bytes, writer.unretired_bytes) == (0, 5)
    acked(writer, "c", 0)
    assert writer.unretired_bytes == 0
