"""The past defects of recovery (replication-protocol.md 14), replayed with the production machines of all parties."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import LedgerFencedError, NotEnoughBookiesError, RecoveryFailedError
from bk_core.protocol.events import AddReply, Outcome, ReadReply
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.ledger.recover.fence_phase import FencePhase
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery, RecoveryState
from bk_core.protocol.ledger.write.writer import WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import ReadRequest, Status
from tests.unit.ledger.recovery_script import LEDGER, NO, Script, body, ledger
from tests.unit.ledger.recovery_table import Message, Table

TRUSTING = RecoveryOptions(reread_last_fragment=False)


def timeout(table: Table, message: Message) -> None:
    """A read that was lost, seen from its sender."""
    table.messages.remove(message)
    table._feed(message.of, ReadReply(message.what.request_id, message.to, Status.TIMEOUT))


# --- R1, scenario 1: recovery reads must fence ---------------------------------------------------------------------


def _late_add_after_close(table: Table) -> None:
    """Entry 0 reaches b, is lost on the way to a, is slow to c. The recoverer fences a and b only, and hears no from a and c."""
    table.writer()
    table.append(b"entry 0")
    table.drop(lambda m: m.to == "a")
    slow = next(m for m in table.messages if m.to == "c")
    table.run(hold=lambda m: m is slow)
    table.recover("r")
    fence_of_c = [m for m in table.run(hold=lambda m: m is slow or (m.of == "r" and m.to in "bc" and not _is_store(m))) if m.to in "bc"]
    fence_b = next(m for m in fence_of_c if m.to == "b")
    table.deliver(fence_b)
    lost = next(m for m in table.messages if m.of == "r" and m.to == "c")
    table.run(hold=lambda m: m is slow or m is lost or (m.of == "r" and m.to == "b"))
    assert table.metadata.state is LedgerState.CLOSED
    assert table.metadata.last_entry_id == -1
    table.deliver(slow)
    table.run(hold=lambda m: m is lost or (m.of == "r" and m.to == "b"))


def _is_store(message: Message) -> bool:
    return message.to == "store" or message.to == message.of


def test_r1_an_entry_denied_to_recovery_is_denied_to_the_old_writer() -> None:
    """R1, RC-8, RC-9, I-12, scenario 1: c was not fenced when the ledger was, but by the read that it denied."""
    table = Table(ledger())
    _late_add_after_close(table)
    assert table.machines["w"].state is WriterState.FENCED
    assert all(isinstance(result, LedgerFencedError) for result in table.results["w"])
    assert table.storages["c"].entry(LEDGER, 0) is None


def test_r1_without_the_flag_the_same_messages_lose_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """RC-9: what the test above is worth. With plain reads the entry is acknowledged after the ledger was closed below it."""
    original = LedgerRecovery._ask

    def plain(self: LedgerRecovery, question: object, position: int) -> object:
        effect = original(self, question, position)  # type: ignore[arg-type]
        assert isinstance(effect.message, ReadRequest)
        return replace(effect, message=replace(effect.message, fence=False))

    monkeypatch.setattr(LedgerRecovery, "_ask", plain)
    table = Table(ledger())
    _late_add_after_close(table)
    assert table.results["w"] == [0]


# --- R2, scenario 2: never below the last fragment -----------------------------------------------------------------


def test_r2_recovery_never_starts_below_the_last_fragment() -> None:
    """R2, RC-3, RC-6, scenario 2, with one bookie of the last ensemble down."""
    table = Table(ledger((0, "abc"), (1000, "bcd"), (2000, "def")), "abcdef")
    table.store("bcd", 1999, body(1999))
    table.recover("r")
    table.run(hold=lambda m: m.to == "f")
    (closed,) = table.results["r"]
    assert closed.last_entry_id == 1999
    assert [f.first_entry_id for f in closed.fragments] == [0, 1000, 2000]
    assert closed.length == 10_000


# --- R3: reads do not follow the private ensemble --------------------------------------------------------------------


def test_r3_reads_go_to_the_ensemble_that_the_metadata_names() -> None:
    """R3, RC-2: a, where entries 0 and 1 are, fails as a target of the write-back; entry 1 is still read from it."""
    script = Script(recovery_window_entries=1)
    script.fence("bc")
    script.answer("a", 0, body(0))
    script.lost("a")
    assert script.machine.writer is not None
    assert "a" not in script.machine.writer.ensemble
    assert set(script.waiting(1)) == {"a", "b", "c"}
    script.answer("bc", 1, Status.TIMEOUT)
    script.answer("a", 1, body(1))
    script.answer("bc", 2, NO)
    script.stored_by("bc", 0, 1)
    assert script.end == (1, 10)


# --- R4, replication-protocol.md 14.1 item 4: what a dead recoverer leaves behind -------------------------------------


def _half_written(table: Table) -> None:
    """Entries 0..2 are on a and b. r1 finds them, loses b and c, writes them to a and to replacements, and dies."""
    for entry_id in range(3):
        table.store("ab", entry_id, body(entry_id, lac=-1))
    table.recover("r1", TRUSTING)
    table.run(hold=lambda m: m.is_add or (m.of == "r1" and m.entry_id == 3))
    table.lose("r1", "b")
    table.lose("r1", "c")
    table.run(hold=lambda m: m.of == "r1" and m.entry_id == 3)
    assert len(table.machines["r1"].writer.private_changes) == 1
    assert table.machines["r1"].writer.last_add_confirmed == 2
    table.die("r1")
    table.messages.clear()


def test_r4_private_ensembles_die_with_their_recoverer() -> None:
    """R4, RC-15, RC-21, scenario 28: the metadata still names the only place where everything is."""
    table = Table(ledger())
    _half_written(table)
    assert table.metadata == ledger(state=LedgerState.IN_RECOVERY)
    table.recover("r2", TRUSTING)
    table.run()
    (closed,) = table.results["r2"]
    assert (closed.last_entry_id, closed.length) == (2, 15)
    assert all(len(table.holders(entry_id)) == 3 for entry_id in range(3))


def test_item_4_a_frozen_lac_keeps_the_next_recoverer_honest() -> None:
    """replication-protocol.md 14.1 item 4, RC-7, D6, scenario 28: no copy of the dead recoverer claims more than was known when it
    began."""
    table = Table(ledger())
    _half_written(table)
    assert {table.entry("a", e).last_add_confirmed for e in range(3)} == {-1}
    assert all(table.lac(bookie) == -1 for bookie in table.bookies)


@pytest.mark.parametrize("again", [True, False], ids=["reread", "trusting"])
def test_item_4_a_recoverer_that_did_not_freeze_its_lac(again: bool) -> None:
    """RC-7 (b), open question 3: a LAC stamped by such a recoverer (Apache's) lies above entries whose copies are where only it knew.
    Reading the last fragment again mends that; without, the ledger is closed over entries that too few recorded bookies have."""
    table = Table(ledger(state=LedgerState.IN_RECOVERY))
    for entry_id in range(3):
        table.store("ade", entry_id, body(entry_id, lac=entry_id - 1), recovery=True)
    table.recover("r2", RecoveryOptions(reread_last_fragment=again))
    table.run(hold=lambda m: m.entry_id in (0, 1, 2) and not m.is_add and m.to in "bc")
    table.run()
    assert table.metadata.last_entry_id == 2
    assert all((len(table.holders(entry_id)) >= 2) is again for entry_id in range(2))


def test_item_4_two_recoverers_with_different_ends() -> None:
    """replication-protocol.md 14.1 item 4, RC-7 (a), RC-19, RC-22, I-6, scenario 27: r1 sees the end at 0, r2 finds entry 0 on c and more;
    r1 wins."""
    table = Table(ledger())
    for entry_id in range(2):
        table.store("c", entry_id, body(entry_id))
    table.recover("r1")
    table.run(hold=lambda m: m.of == "r1" and (m.to == "c" or "LedgerMetadata CLOSED" in repr(m.what)))
    table.recover("r2")
    table.run(hold=lambda m: (m.of == "r1" and m.to in ("c", "store")) or "LedgerMetadata CLOSED" in repr(m.what))
    assert table.machines["r2"].state is RecoveryState.CLOSING
    (first,) = [m for m in table.messages if m.of == "r1" and m.to == "store"]
    table.deliver(first)
    table.run()
    assert [table.results[name][0].last_entry_id for name in ("r1", "r2")] == [-1, -1]
    assert table.results["r1"] == table.results["r2"]
    assert all(table.lac(bookie) <= table.metadata.last_entry_id for bookie in table.bookies)


# --- R5: a failed write-back is no end -----------------------------------------------------------------------------


def test_r5_not_enough_bookies_is_no_reason_to_close_short() -> None:
    """R5, RC-15, RC-21, scenario 26: the ledger stays as it is, and the next run closes it with everything."""
    table = Table(ledger(), "abc")
    table.store("ab", 0, body(0))
    table.recover("r1")
    table.run(hold=lambda m: m.is_add)
    table.lose("r1", "c")
    table.run(hold=lambda m: m.is_add)
    (error,) = table.results["r1"]
    assert isinstance(error, NotEnoughBookiesError)
    table.die("r1")
    assert table.metadata.state is LedgerState.IN_RECOVERY
    table.recover("r2")
    table.run()
    assert table.results["r2"][0].last_entry_id == 0


# --- R11, R12: coverage --------------------------------------------------------------------------------------------


def test_r11_one_answer_does_not_cover_a_write_set() -> None:
    """R11, RC-5, Q-4, Q-8: with Qw > Qa an entry may be on the two that are silent."""
    script = Script(ledger(shape=(3, 3, 2)), recovery_retries_max=0)
    script.fence("a")
    assert script.machine.state is RecoveryState.FENCING
    script.fence("bc", Status.TIMEOUT)
    assert isinstance(script.result, RecoveryFailedError)


@pytest.mark.parametrize(
    ("shape", "down", "good"),
    [((2, 2, 2), "b", True), ((4, 2, 2), "ab", False), ((4, 2, 2), "ac", True), ((3, 2, 1), "a", False), ((5, 4, 3), "ab", True)],
    ids=str,
)
def test_r12_coverage_is_counted_per_write_set(shape: tuple[int, int, int], down: str, good: bool) -> None:
    """R12, RC-5, D4, Q-5: one dead of two is recovered; two neighbours of four are not, two others are."""
    letters = "abcdefghi"[: shape[0]]
    table = Table(ledger(shape=shape), letters)
    table.recover("r")
    for message in table.run(hold=lambda m: m.of == "r" and m.to in down):
        timeout(table, message)
    while table.messages:
        for message in table.run(hold=lambda m: m.of == "r" and m.to in down):
            timeout(table, message)
    assert (table.metadata.state is LedgerState.CLOSED) is good


# --- R13: one dead or hanging bookie --------------------------------------------------------------------------------


def test_r13_nobody_waits_for_a_bookie_that_never_answers() -> None:
    """R13, RC-5, RC-11, RC-20, scenarios 38 and 39: not for the fence, not for the verdict, not for the length."""
    table = Table(ledger())
    table.store("a", 0, body(0, lac=-1))
    table.store("a", 1, body(1, lac=0))
    table.store("b", 0, body(0, lac=-1))
    table.recover("r")
    table.run(hold=lambda m: m.to == "c")
    assert table.metadata.state is LedgerState.CLOSED
    assert (table.metadata.last_entry_id, table.metadata.length) == (1, 10)


# --- length, batches, completion -------------------------------------------------------------------------------------


def test_item_5_the_length_of_an_empty_last_fragment() -> None:
    """replication-protocol.md 14.1 item 5, RC-16, I-18: entries 0..2 of five bytes; the last ensemble has seen nothing."""
    table = Table(ledger((0, "abc"), (3, "def")))
    for entry_id in range(3):
        table.store("abc", entry_id, body(entry_id, lac=entry_id - 1))
    table.recover("r")
    table.run()
    assert (table.metadata.last_entry_id, table.metadata.length) == (2, 15)


def test_item_5_the_length_when_a_later_entry_was_seen() -> None:
    """replication-protocol.md 14.1 item 5, RC-16, I-18: entry 1 is nowhere, entry 2 on one bookie brings the LAC and a length of its
    own."""
    table = Table(ledger())
    table.store("abc", 0, body(0))
    table.store("a", 2, body(2, lac=0))
    table.recover("r")
    table.run()
    assert (table.metadata.last_entry_id, table.metadata.length) == (0, 5)


def test_item_13_an_error_beyond_the_first_missing_entry() -> None:
    """replication-protocol.md 14.1 item 13, RC-8: a batch of three, entry 1 missing, entry 2 timing out everywhere: closes all the same."""
    script = Script(recovery_window_entries=3, recovery_retries_max=0)
    script.fence("abc")
    script.answer("a", 0, body(0))
    script.answer("abc", 2, Status.TIMEOUT)
    script.answer("ab", 1, NO)
    script.stored_by("ab", 0)
    assert script.end == (0, 5)


def test_r28_recovery_completes_exactly_once() -> None:
    """R28: success is not followed by the error of a late answer, nor an error by a success."""
    script = Script(recovery_retries_max=0)
    script.fence("ab")
    late = list(script.reads)
    script.answer("ab", 0, NO)
    script.outcome(Outcome.OK)
    for read in late:
        script.late(read, Status.UNAUTHORIZED)
    assert script.result.state is LedgerState.CLOSED
    failed = Script(recovery_retries_max=0)
    failed.fence("abc", Status.TIMEOUT)
    for read in failed.sent:
        failed.late(read, NO)
    assert isinstance(failed.result, RecoveryFailedError)


def test_r34_a_run_that_could_not_close_leaves_no_ensembles_to_the_next() -> None:
    """R34, RC-21, RC-18: the same machine begins again after a foreign change, without the private map of its first run."""
    script = Script()
    script.fence("ab")
    script.answer("a", 0, body(0))
    script.answer("ab", 1, NO)
    script.lost("c")
    script.stored_by("ab", 0)
    assert script.closing.fragments != ledger().fragments
    script.outcome(Outcome.CONFLICT)
    foreign = ledger((0, "abi"), state=LedgerState.IN_RECOVERY)
    script.found(foreign, 9)
    script.reads.clear()
    script.found(foreign, 9)
    script.fence("ab")
    script.answer("a", 0, body(0))
    script.answer("ab", 1, NO)
    script.stored_by("ab", 0)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "i")),)


# --- the old writer --------------------------------------------------------------------------------------------------


def test_an_old_writer_may_still_acknowledge_what_recovery_will_find() -> None:
    """RC-23, scenario 14, I-1: b and c took entry 0 before the fence; their answers reach the writer after the ledger was marked."""
    table = Table(ledger())
    table.writer()
    table.append(b"entry 0")
    answers = table.run(hold=lambda m: m.to == "w")
    table.recover("r")
    table.run(hold=lambda m: m in answers or m.is_fence)
    table.deliver(*[m for m in answers if m.what.bookie in "bc"])
    assert table.results["w"] == [0]
    table.run()
    assert table.metadata.last_entry_id == 0


def test_a_writer_that_is_only_cut_off_from_the_store_ends_nothing() -> None:
    """RC-23, RC-24, D1, scenario 12: the first refusal stops it; nothing above the end is acknowledged, nothing is written to the store."""
    table = Table(ledger())
    writer = table.writer()
    table.append(b"entry 0")
    table.run()
    table.recover("r")
    table.run()
    table.append(b"entry 1")
    table.run()
    assert writer.state is WriterState.FENCED
    assert table.results["w"][0] == 0 and isinstance(table.results["w"][1], LedgerFencedError)
    assert table.results["r"][0] == table.metadata == table.history[2]


def test_three_recoverers_and_a_writer_agree() -> None:
    """RC-22, RC-18, META-3, META-9, I-15, L-8: interleaved message by message; OPEN, IN_RECOVERY, CLOSED, each once for ever."""
    table = Table(ledger((0, "abcd"), shape=(4, 2, 2)), limits=Limits(recovery_window_entries=2))
    table.writer()
    table.append(*[b"entry %d" % i for i in range(5)])
    for name in ("r1", "r2", "r3"):
        table.recover(name)
    step = 0
    while table.messages:
        step += 1
        table.deliver(table.messages[(step * 7) % len(table.messages)])
    closed = [table.results[name] for name in ("r1", "r2", "r3")]
    assert closed == [[table.metadata]] * 3
    assert [m.state for m in table.history] == [LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    acknowledged = [r for r in table.results["w"] if isinstance(r, int)]
    assert max(acknowledged, default=-1) <= table.metadata.last_entry_id
    assert all(len(table.holders(e)) == 2 for e in range(table.metadata.last_entry_id + 1))


def test_a_writer_that_died_between_its_change_and_the_copies() -> None:
    """EC-17, RC-6: the new fragment has holes; recovery starts before it and settles what of it exists."""
    table = Table(ledger())
    table.writer()
    table.append(b"first")
    table.run()
    table.append(b"other", b"third")
    lost = [m for m in table.messages if m.to in "bc"]
    table.run(hold=lambda m: m in lost)
    table.lose("w", "b")
    table.run(hold=lambda m: m in lost or (m.is_add and m.to not in "abc"))
    assert [f.first_entry_id for f in table.metadata.fragments] == [0, 1]
    table.die("w")
    table.messages.clear()
    table.recover("r")
    table.run()
    assert (table.metadata.state, table.metadata.last_entry_id >= 0) == (LedgerState.CLOSED, True)
    assert all(len(table.holders(e)) >= 2 for e in range(table.metadata.last_entry_id + 1))


def test_the_end_verdict_fences_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q-9: even had the fence phase been content with one bookie, QC of the first missing entry's write set refuse it for ever."""
    monkeypatch.setattr(FencePhase, "covered", property(lambda self: len(self.inquiry.heard) >= 1))
    table = Table(ledger())
    table.writer()
    table.recover("r")
    table.run(hold=lambda m: m.of == "r" and m.to in "bc" and m.is_fence and m.entry_id is None)
    assert table.metadata.last_entry_id == -1
    table.append(b"entry 0")
    table.run()
    assert isinstance(table.results["w"][0], LedgerFencedError)
    assert sum(table.storages[b].entry(LEDGER, 0) is None for b in "abc") >= 2


def test_a_late_acknowledgement_of_an_abandoned_run_is_harmless() -> None:
    """SM-3: it is true that the bookie has the entry."""
    script = Script()
    script.fence("ab")
    assert not script.feed(AddReply("c", 5, 1, Status.OK))
    assert script.machine.state is RecoveryState.READING
