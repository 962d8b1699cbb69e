"""The recovery machine from the first recovered entry to the closed ledger, one rule at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    RecoveryFailedError,
)
from bk_core.protocol.effects import SendAdds, WriteLedger
from bk_core.protocol.entry import layout
from bk_core.protocol.events import AddReply, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import RecoveryState
from bk_core.protocol.ledger.write.options import EnsembleChangeMode
from bk_core.protocol.wire.messages import ForceLedgerRequest, ReadRequest, Status, WriteLacRequest
from tests.unit.ledger.recovery_script import LEDGER, NO, Script, body, ledger

IN_RECOVERY = LedgerState.IN_RECOVERY


def recovered(*entry_ids: int, stored: LedgerMetadata | None = None, first: int = 0, **more: object) -> Script:
    """Everything fenced, nothing heard, these entries read, the next one denied: write-backs are on their way."""
    script = Script(stored, **more)  # type: ignore[arg-type]
    for bookie in script.waiting():
        script.fence(bookie)
    for entry_id in entry_ids:
        script.answer(script.waiting(entry_id)[0], entry_id, body(entry_id))
    missing = (entry_ids[-1] if entry_ids else first - 1) + 1
    script.answer("".join(script.waiting(missing)), missing, NO)
    return script


# --- writing back ------------------------------------------------------------------------------------------------


def test_an_entry_is_written_back_as_it_was_read() -> None:
    """RC-13, RC-7, D6: payload and running length of the copy, the frozen LAC (not the run's own), the recovery flag, the write set."""
    script = Script()
    script.fence("a", body(2, lac=1))
    script.fence("b")
    script.answer("c", 2, body(2, lac=0, length=40, payload=b"pay"))
    script.stored_by("abc", 2)
    script.answer("c", 3, body(3, lac=1, length=47, payload=b"payload"))
    assert [(a.bookie, a.entry.entry_id) for a in script.added] == [(b, i) for i in (2, 3) for b in "abc"]
    assert all(a.recovery for a in script.added)
    assert {(a.entry.last_add_confirmed, a.entry.length, a.entry.payload) for a in script.added} == {(1, 40, b"pay"), (1, 47, b"payload")}


def test_an_entry_that_does_not_follow_is_never_written_back() -> None:
    """RC-13: asserted, not assumed."""
    script = Script()
    script.fence("ab")
    entry = layout.decode_body(body(3), LEDGER, 3, script.stored.digest_type)
    with pytest.raises(AssertionError, match="RC-13"):
        script.machine._write_back(entry, 0)


def test_write_backs_complete_into_the_machine_only() -> None:
    """RC-14, RC-19, OP-4: nothing is reported before the closing compare-and-set is definite."""
    script = recovered(0, 1)
    assert not script.results
    assert not script.is_closing
    script.stored_by("ab", 1, 0)
    assert script.end == (1, 10)
    assert not script.results
    script.outcome(Outcome.OK)
    assert script.result == script.closing


def test_reading_goes_on_while_entries_are_written_back() -> None:
    """RC-13: concurrently; the close waits for the slowest."""
    script = recovered(0, 1, 2)
    script.stored_by("abc", 0, 1)
    assert not script.is_closing
    script.stored_by("a", 2)
    assert not script.is_closing
    script.stored_by("c", 2)
    assert script.end == (2, 15)


def test_an_ensemble_change_stays_private_until_the_end() -> None:
    """RC-15, RC-17: no compare-and-set before the closing one, which carries it."""
    script = recovered(0, 1)
    script.stored_by("ab", 0)
    script.lost("c")
    assert len(script.written) == 1
    assert script.machine.writer is not None
    ((first, ensemble),) = script.machine.writer.private_changes.items()
    assert (first, ensemble[:2]) == (1, ("a", "b")) and ensemble[2] not in "abc"
    script.stored_by("ab", 1)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "c")), Fragment(1, ensemble))


def test_a_change_at_the_first_entry_replaces_the_last_fragment() -> None:
    """RC-17, META-6: F = K; fragments before it stay as they are."""
    script = recovered(5, stored=ledger((0, "abc"), (5, "def")))
    script.lost("d")
    script.stored_by("ef", 5)
    assert script.closing.fragments[0] == Fragment(0, ("a", "b", "c"))
    assert [f.first_entry_id for f in script.closing.fragments] == [0, 5]
    assert "d" not in script.closing.last_fragment.ensemble


def test_a_change_beyond_the_end_is_dropped() -> None:
    """RC-17: pairs with F > last + 1 belong to no entry."""
    script = recovered(0)
    assert script.machine.writer is not None
    script.machine.writer.private_changes[1] = ("a", "b", "x")
    script.machine.writer.private_changes[2] = ("a", "b", "y")
    script.stored_by("ab", 0)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "c")), Fragment(1, ("a", "b", "x")))


def test_without_a_replacement_nothing_is_closed() -> None:
    """RC-15, RC-21, R5, scenario 26: the entry was read, so a shorter ledger would lose it; a later run may succeed."""
    script = recovered(0, bookies="abc")
    script.lost("c")
    assert not script.results
    script.looked()
    assert isinstance(script.result, NotEnoughBookiesError)
    assert not script.is_closing
    assert script.machine.state is RecoveryState.ABORTED


def test_without_a_replacement_while_still_reading() -> None:
    script = Script(bookies="abc")
    script.fence("ab")
    script.answer("a", 0, body(0))
    script.lost("b")
    script.looked()
    assert isinstance(script.result, NotEnoughBookiesError)
    assert not script.stored_by("abc", 0)


def test_with_delayed_changes_a_dead_bookie_needs_no_replacement() -> None:
    """EC-3, RC-15: the mode is the write-back writer's."""
    script = recovered(0, bookies="abc", options=RecoveryOptions(ensemble_change=EnsembleChangeMode.DELAYED))
    script.lost("c")
    script.stored_by("ab", 0)
    assert script.end == (0, 5)


def test_fenced_is_no_answer_to_a_recovery_add() -> None:
    """RC-15: it counts as an unknown failure of that bookie, not as the end of recovery."""
    script = recovered(0)
    effects = script.feed(AddReply("c", 0, 1, Status.FENCED))
    assert [e.bookie for e in effects if isinstance(e, SendAdds)] not in ([], ["c"])
    script.stored_by("ab", 0)
    assert script.is_closing


def test_what_recovery_does_not_understand_it_carries_along() -> None:
    """META-7, META-8: through the mark and through the close, format version and unknown fields included."""
    odd = replace(ledger(custom={"owner": b"x"}), unknown_fields=b"\x7a\x01z", ctime_ms=5, creator_token=9, format_version=2)
    script = recovered(0, stored=odd)
    script.stored_by("ab", 0)
    assert script.written[0].metadata == odd.in_recovery()
    assert script.closing == odd.closed(0, 5)


# --- length ------------------------------------------------------------------------------------------------------


def length_asked(script: Script) -> list[str]:
    return [r.bookie for r in script.reads if isinstance(r.message, ReadRequest) and not r.message.fence]


def test_the_length_is_that_of_the_last_entry_read() -> None:
    """RC-16, D9, META-10: not the one that came with the LAC."""
    script = Script()
    script.fence("a", body(5, lac=0, length=999))
    script.fence("b")
    script.answer("b", 1, body(1, length=10))
    script.answer("bc", 2, NO)
    script.stored_by("bc", 1)
    assert script.end == (1, 10)


@pytest.mark.parametrize("fragments", [((0, "abc"),), ((0, "def"), (4, "abc"))], ids=["same fragment", "fragment before"])
def test_the_length_of_a_ledger_from_which_nothing_was_read(fragments: tuple[tuple[int, str], ...]) -> None:
    """RC-16, replication-protocol.md 14.1 item 5: the header of entry ``last`` is read where it is, though entry 5 with another length was
    seen."""
    script = Script(ledger(*fragments), recovery_retries_max=1)
    script.fence("a", body(5, lac=3, length=999))
    script.fence("b")
    script.answer("ab", 4, NO)
    assert not script.is_closing
    holders = "".join(length_asked(script))
    assert sorted(holders) == sorted(fragments[0][1])
    script.answer(holders[0], 3, NO)
    script.answer(holders[1], 3, Status.TIMEOUT)
    script.answer(holders[2], 3, body(3, length=21))
    assert script.end == (3, 21)


def test_the_length_is_asked_for_again() -> None:
    """RC-16: whoever was silent or strangely denied a committed entry gets another chance; a second answer changes nothing."""
    script = Script(recovery_retries_max=1)
    script.fence("a", body(0, lac=0))
    script.fence("b")
    script.answer("ab", 1, NO)
    script.answer("a", 0, Status.IO_ERROR)
    script.answer("b", 0, NO)
    script.timer("recovery-retry")
    assert sorted(length_asked(script)) == ["a", "b", "c"]
    script.answer("b", 0, body(0))
    assert script.end == (0, 5)
    script.outcome(Outcome.OK)
    assert script.result.length == 5


def test_no_length_no_close() -> None:
    """RC-16, RC-21: never a made-up number."""
    script = Script(recovery_retries_max=1)
    script.fence("a", body(0, lac=0))
    script.fence("b")
    script.answer("ab", 1, NO)
    for _ in range(2):
        assert not script.results
        script.answer("abc", 0, Status.TIMEOUT)
        script.timer("recovery-retry")
    assert isinstance(script.result, OperationTimeoutError)
    assert isinstance(script.result, RecoveryFailedError)
    assert not script.is_closing


# --- empty endings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2), (5, 3, 2), (6, 3, 2)], ids=str)
def test_an_empty_ledger_closes_with_bookies_down(shape: tuple[int, int, int]) -> None:
    """RC-20, R12, scenario 39: Qw - Qa of each window may be down."""
    letters = "abcdefghi"[: shape[0]]
    down = letters[:: shape[1]] if shape[1] > shape[2] else ""
    down = down if (shape[0] % shape[1] == 0 or len(down) < 2) else down[:1]
    script = Script(ledger(shape=shape), recovery_retries_max=0)
    script.fence(down, Status.UNAVAILABLE)
    script.fence("".join(b for b in letters if b not in down))
    for entry_id in range(3):
        for bookie in script.waiting(entry_id):
            script.answer(bookie, entry_id, Status.UNAVAILABLE if bookie in down else NO)
    assert script.end == (-1, 0)


def test_an_empty_last_fragment_stays_behind() -> None:
    """RC-20, META-4: closed at K - 1 with a trailing fragment that no entry uses."""
    script = Script(ledger((0, "abc"), (4, "def")))
    script.fence("de")
    script.answer("de", 4, NO)
    script.answer("a", 3, body(3))
    assert script.end == (3, 20)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "c")), Fragment(4, ("d", "e", "f")))


# --- the barrier -------------------------------------------------------------------------------------------------


def barriers(script: Script) -> list[str]:
    return [r.bookie for r in script.reads if isinstance(r.message, WriteLacRequest)]


def test_the_barrier_comes_between_the_denials_and_the_close() -> None:
    """RC-11a: one journaled request, with the frozen LAC, to each bookie whose denial counted; QC of them must confirm."""
    script = recovered(0, options=RecoveryOptions(barrier=True))
    script.stored_by("ab", 0)
    assert not script.is_closing
    deniers = barriers(script)
    assert len(deniers) == 2
    for read in script.reads:
        if isinstance(read.message, WriteLacRequest):
            assert layout.decode_lac_packet(read.message.body, LEDGER, script.stored.digest_type) == script.machine.frozen == -1
    script.barrier(deniers[0])
    assert not script.is_closing
    script.barrier(deniers[1])
    assert script.end == (0, 5)


def test_the_barrier_is_tried_again_within_the_budget() -> None:
    """RC-11a: without it, abort (RC-21)."""
    good, bad = (recovered(options=RecoveryOptions(barrier=True), recovery_retries_max=1) for _ in range(2))
    for script in (good, bad):
        first, second = barriers(script)
        script.barrier(first)
        script.barrier(second, Status.TIMEOUT)
        script.timer("recovery-retry")
        assert barriers(script) == [second]
    good.barrier(second)
    assert good.end == (-1, 0)
    bad.barrier(second, Status.IO_ERROR)
    assert isinstance(bad.result, RecoveryFailedError)
    assert not bad.is_closing


def test_a_read_only_bookie_is_asked_for_a_force_in_place_of_the_barrier() -> None:
    """RC-11a: it takes no LAC, and a ledger of read-only bookies must not stay in recovery. Its force counts, and a failure of that does
    not: it is tried again as a force within the budget."""
    script = Script(options=RecoveryOptions(barrier=True), recovery_retries_max=1)
    script.fence("abc", body(0))
    script.answer("".join(script.waiting(0))[0], 0, body(0))
    script.answer("".join(script.waiting(1)), 1, NO)
    script.stored_by("abc", 0)
    first, second = barriers(script)
    for bookie in (first, second):
        script.barrier(bookie, Status.READ_ONLY)
    assert not barriers(script) and not script.is_closing and forces(script) == [first, second]
    script.force(first)
    script.force(second, Status.READ_ONLY)
    assert not script.is_closing
    script.timer("recovery-retry")
    assert forces(script) == [second] and not barriers(script)
    script.force(second)
    assert script.end[0] == 0


def test_a_read_only_bookie_without_an_entry_confirms_nothing() -> None:
    """RC-11a, B-4: its disk has the ledger's key from the fence alone, so that it may forget the mark, whatever it has synced."""
    script = recovered(options=RecoveryOptions(barrier=True), recovery_retries_max=1)
    first, second = barriers(script)
    script.barrier(first)
    script.barrier(second, Status.READ_ONLY)
    assert not forces(script) and not script.is_closing
    script.timer("recovery-retry")
    assert barriers(script) == [second]  # it may be writable by now
    script.barrier(second, Status.READ_ONLY)
    assert isinstance(script.result, RecoveryFailedError) and not script.is_closing


def forces(script: Script) -> list[str]:
    return [r.bookie for r in script.reads if isinstance(r.message, ForceLedgerRequest)]


def test_without_the_option_there_is_no_barrier() -> None:
    assert not barriers(recovered(0))


# --- closing -----------------------------------------------------------------------------------------------------


def closing(stored: LedgerMetadata | None = None) -> Script:
    script = recovered(0, stored=stored)
    script.stored_by("abc", 0)
    assert script.is_closing
    return script


def test_an_unknown_outcome_of_the_close_is_repeated() -> None:
    """RC-18, META-12."""
    script = closing()
    write = script.written[-1]
    script.outcome(Outcome.UNKNOWN)
    script.timer("recovery-metadata")
    assert script.written[-1] == write and script.written.count(write) == 2
    assert not script.results


@pytest.mark.parametrize("last", [-1, 0, 3])
def test_whoever_closed_first_is_right(last: int) -> None:
    """RC-18, RC-19, RC-22: their end and length are adopted, also where this run saw another one."""
    script = closing()
    script.outcome(Outcome.CONFLICT)
    theirs = script.stored.closed(last, 77)
    writes = len(script.written)
    script.found(theirs, 9)
    assert script.result == theirs
    assert len(script.written) == writes


def test_a_foreign_change_of_an_older_fragment_is_kept() -> None:
    """RC-18, RR-9: rebuilt from the new content, at its version."""
    script = recovered(5, stored=ledger((0, "abc"), (5, "def")))
    script.stored_by("de", 5)
    script.outcome(Outcome.CONFLICT)
    script.found(ledger((0, "abg"), (5, "def"), state=IN_RECOVERY), 9)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "g")), Fragment(5, ("d", "e", "f")))
    assert script.written[-1].version == 9


@pytest.mark.parametrize("fragments", [((0, "abd"),), ((0, "abc"), (1, "abd"))], ids=["other bookie", "other fragment"])
def test_a_foreign_change_of_the_last_fragment_means_a_new_run(fragments: tuple[tuple[int, str], ...]) -> None:
    """RC-18, RR-12, SM-6: a new run from RC-1 that knows nothing of the old one (RC-21), late answers included; but only once."""
    script = closing()
    old = list(script.reads)
    script.outcome(Outcome.CONFLICT)
    script.found(ledger(*fragments, state=IN_RECOVERY), 9)
    machine = script.machine
    assert (machine.state, machine.writer) == (RecoveryState.MARKING, None)
    assert [log.level for log in script.logs] == ["warning"]
    for read in old:
        assert not script.late(read, Status.UNAUTHORIZED)
    changed = ledger(*fragments, state=IN_RECOVERY)
    script.reads.clear()
    script.found(changed, 9)
    for bookie in script.waiting():
        script.fence(bookie)
    start = fragments[-1][0]
    script.answer("ab", start, NO)
    if start:
        script.answer("a", 0, body(0))
    assert script.end == (start - 1, 5 * start)
    script.outcome(Outcome.CONFLICT)
    script.found(ledger((0, "abe"), (1, "abf"), state=IN_RECOVERY), 12)
    assert isinstance(script.result, MetadataConflictError)


def test_an_open_ledger_is_none_to_close() -> None:
    """RC-18: cannot happen; and then nothing is written."""
    script = closing()
    script.outcome(Outcome.CONFLICT)
    script.found(ledger(), 9)
    assert isinstance(script.result, MetadataConflictError)
    assert script.machine.state is RecoveryState.ABORTED


@pytest.mark.parametrize(("outcome", "kind"), [(Outcome.NO_SUCH_LEDGER, NoSuchLedgerError), (Outcome.REFUSED, MetadataError)])
def test_a_deleted_ledger_and_a_store_that_refuses(outcome: Outcome, kind: type) -> None:
    """RC-18, LOG-14: nothing is left to recover, and nothing is created again."""
    script = closing()
    writes = len(script.written)
    script.outcome(outcome)
    assert type(script.result) is kind
    assert len(script.written) == writes


def test_recovery_completes_once() -> None:
    """R28, L-11: every event that comes after the end, of any kind, leads nowhere."""
    script = recovered(0)
    late = [r for r in script.sent if isinstance(r.message, ReadRequest)]
    script.stored_by("abc", 0)
    script.outcome(Outcome.OK)
    assert script.result.last_entry_id == 0
    for read in late:
        assert not script.late(read, body(read.message.entry_id) if read.message.entry_id >= 0 else NO)  # type: ignore[union-attr]
    assert not script.stored_by("abc", 0)
    assert not script.outcome(Outcome.OK)
    assert not script.timer("recovery-retry")
    assert len(script.results) == 1


def test_between_the_close_and_its_outcome_bookies_are_not_listened_to() -> None:
    """RC-21: no write-back, change or retry begins after the closing content is fixed."""
    script = closing()
    assert not script.lost("a")
    assert not script.stored_by("a", 0)
    assert not script.timer("recovery-retry")
    assert [e for e in script.outcome(Outcome.OK) if isinstance(e, WriteLedger)] == []


def test_a_password_never_shows() -> None:
    """Errors and reprs of what a recovery sends carry neither password nor key."""
    script = closing()
    for shown in (repr(script.sent), repr(script.written), repr(script.machine.metadata)):
        assert "secret" not in shown
