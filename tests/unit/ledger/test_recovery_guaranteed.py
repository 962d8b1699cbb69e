"""Recovery of ledgers with guaranteed write quorum (replication-protocol.md 9), and of such ledgers by a client that does not know."""

from __future__ import annotations

import pytest

from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.entry import layout
from bk_core.protocol.events import BookiesChanged, Outcome
from bk_core.protocol.ledger.metadata import GWQ_MARK, GWQ_SEAL, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import RecoveryState
from bk_core.protocol.wire.messages import ReadLacRequest, Status, WriteLacRequest
from tests.unit.ledger.recovery_script import LEDGER, NO, Script, body, ledger, spoiled
from tests.unit.ledger.recovery_table import Table

MARKED = {GWQ_MARK: b"1"}
DIGEST = ledger().digest_type


def packet(lafr: int) -> bytes:
    return layout.encode_lac_packet(LEDGER, lafr, DIGEST)


def lafr_asked(sent: list[SendRead]) -> list[str]:
    return [r.bookie for r in sent if isinstance(r.message, ReadLacRequest)]


def fenced(stored: LedgerMetadata | None = None, **more: object) -> Script:
    """Fenced; a tells LAC 5, nobody has told a LAFR yet."""
    script = Script(stored or ledger(custom=MARKED), **more)  # type: ignore[arg-type]
    script.fence("a", body(6, lac=5))
    script.fence("b")
    return script


# --- where to start ------------------------------------------------------------------------------------------------


def test_the_slots_are_read_beside_the_fence() -> None:
    """G-22, G-0: in marked ledgers only; the requests go to the same bookies at the same time."""
    assert lafr_asked(Script(ledger(custom=MARKED)).sent) == ["a", "b", "c"]
    assert not lafr_asked(Script(ledger()).sent)
    assert not lafr_asked(Script(ledger(custom=MARKED), options=RecoveryOptions(explicit_lafr=False)).sent)
    assert not lafr_asked(Script(ledger(custom=MARKED, shape=(3, 2, 2))).sent), "with Qw = Qa the mark means nothing"
    assert not lafr_asked(Script(ledger(custom=MARKED, state=LedgerState.IN_RECOVERY)).sent), "everything is read again anyway"


def test_reading_starts_after_the_lafr_and_not_after_the_lac() -> None:
    """G-12: ids between them may be on Qa bookies only. The stamp is the LAC all the same: it is no lie."""
    script = Script(ledger(custom=MARKED))
    for bookie, lafr in (("a", packet(2)), ("b", packet(1)), ("c", None)):
        script.explicit_lac(bookie, lafr, Status.OK if lafr else Status.IO_ERROR)
    script.fence("a", body(6, lac=5))
    script.fence("b")
    assert (script.machine.base, script.machine.frozen) == (2, 5)
    assert script.waiting(3) and not script.waiting(2)


@pytest.mark.parametrize("first", [0, 4])
def test_without_a_lafr_the_whole_last_fragment_is_read(first: int) -> None:
    """G-12, G-21, G-23, scenario 51: -1 counts as none, the floor is K - 1."""
    script = fenced(ledger(*([(0, "def"), (first, "abc")] if first else [(0, "abc")]), custom=MARKED))
    script.timer("recovery-lafr")
    assert (script.machine.base, script.machine.frozen) == (first - 1, 5)


@pytest.mark.parametrize("bad", [spoiled(packet(3)), layout.encode_lac_packet(8, 3, DIGEST), b"?"], ids=["digest", "ledger", "size"])
def test_a_lafr_that_nobody_vouches_for_is_none(bad: bytes) -> None:
    """G-12: as with the LAC, a number too high would cost safety."""
    script = Script(ledger(custom=MARKED))
    for bookie in "abc":
        script.explicit_lac(bookie, bad)
    script.fence("ab")
    assert script.machine.base == -1


def test_a_lafr_is_taken_from_an_answer_without_entries() -> None:
    """G-22: a bookie that holds the slot but no entry answers IO_ERROR and attaches it (wire-protocol.md 8.8)."""
    script = Script(ledger(custom=MARKED))
    script.explicit_lac("c", packet(3), Status.IO_ERROR)
    script.fence("ab")
    script.timer("recovery-lafr")
    assert script.machine.base == 3


def test_the_lafr_is_waited_for_briefly_and_never_needed() -> None:
    """G-12: fenced is fenced; once the last slot is in, or the time is up, reading starts."""
    script = fenced()
    assert script.machine.state is RecoveryState.FENCING
    assert script.timers["recovery-lafr"] == script.limits.recovery_lafr_wait_ns
    script.fence("c", body(9, lac=7))
    assert script.machine.state is RecoveryState.FENCING
    script.explicit_lac("a", packet(2))
    script.timer("recovery-lafr")
    assert (script.machine.state, script.machine.base, script.machine.frozen) == (RecoveryState.READING, 2, 7)
    assert not script.explicit_lac("b", packet(4)), "too late"
    assert script.machine.base == 2
    quick = fenced()
    for bookie in "abc":
        quick.explicit_lac(bookie, packet(2))
    assert quick.machine.state is RecoveryState.READING


def test_the_lafr_alone_starts_nothing() -> None:
    """G-22: the explicit read does not fence."""
    script = Script(ledger(custom=MARKED), recovery_retries_max=0)
    for bookie in "abc":
        script.explicit_lac(bookie, packet(2))
    assert not script.timer("recovery-lafr")
    assert script.machine.state is RecoveryState.FENCING
    script.fence("abc", Status.TIMEOUT)
    assert len(script.results) == 1


def test_after_another_recoverer_neither_lac_nor_lafr_is_built_on() -> None:
    """Open question 3: the slot may have been written by a client for which it means LAC."""
    script = fenced(ledger((0, "def"), (2, "abc"), custom=MARKED, state=LedgerState.IN_RECOVERY))
    assert (script.machine.base, script.machine.frozen) == (1, 1)


# --- writing back and closing ----------------------------------------------------------------------------------------


def recovering(*entry_ids: int, **more: object) -> Script:
    script = Script(ledger(custom=MARKED), options=RecoveryOptions(explicit_lafr=False), **more)  # type: ignore[arg-type]
    script.fence("ab")
    for entry_id in entry_ids:
        script.answer("a", entry_id, body(entry_id))
    script.answer("bc", entry_ids[-1] + 1, NO)
    return script


def test_an_entry_is_done_when_its_whole_write_set_has_it() -> None:
    """G-13, G-14: also one that the writer never acknowledged; only then the ledger is closed, and sealed by the same write."""
    script = recovering(0, 1)
    script.stored_by("abc", 1)
    script.stored_by("ab", 0)
    assert not script.is_closing
    script.stored_by("c", 0)
    assert script.end == (1, 10)
    assert script.closing.custom == {GWQ_MARK: b"1", GWQ_SEAL: b"1"}
    assert script.closing.sealed
    script.outcome(Outcome.OK)
    assert script.result.sealed


def test_a_private_change_takes_along_what_is_not_fully_replicated() -> None:
    """G-13: F is the run's LAFR + 1, no position is pinned, and the metadata is left alone until the end (RC-15)."""
    script = recovering(0, 1)
    script.stored_by("abc", 0)
    script.stored_by("ab", 1)
    script.lost("c")
    assert script.machine.writer is not None
    ((first, ensemble),) = script.machine.writer.private_changes.items()
    assert (first, ensemble[:2]) == (1, ("a", "b"))
    assert len(script.written) == 1 and not script.is_closing
    script.stored_by(ensemble[2], 1)
    assert script.closing.fragments == (Fragment(0, ("a", "b", "c")), Fragment(1, ensemble))


def test_a_change_keeps_the_end_closed_until_the_newcomer_has_everything() -> None:
    """G-13: the copies of a departed bookie no longer count."""
    script = recovering(0, 1)
    script.stored_by("ac", 1, 0)
    script.lost("b")
    assert not script.is_closing
    new = script.machine.writer.ensemble[1]  # type: ignore[union-attr]
    script.stored_by(new, 0)
    assert not script.is_closing
    script.stored_by(new, 1)
    assert script.end == (1, 10)


def test_without_bookies_for_the_whole_write_set_nothing_is_closed() -> None:
    """G-13: not enough bookies leaves the ledger IN_RECOVERY, though Qa have every entry."""
    script = recovering(0, bookies="abc")
    script.stored_by("ab", 0)
    script.lost("c")
    script.looked()
    assert isinstance(script.result, NotEnoughBookiesError)
    assert not script.feed(BookiesChanged())
    assert not script.is_closing


def test_the_barrier_writes_the_base_into_the_slot() -> None:
    """RC-11a: the slot means LAFR here, and the LAC heard may lie above it."""
    script = Script(ledger(custom=MARKED), options=RecoveryOptions(barrier=True))
    script.fence("a", body(6, lac=5))
    script.explicit_lac("a", packet(5))
    script.explicit_lac("b", packet(4))
    script.explicit_lac("c", None, NO)
    script.fence("b")
    script.answer("bc", 6, NO)
    told = [layout.decode_lac_packet(r.message.body, LEDGER, DIGEST) for r in script.reads if isinstance(r.message, WriteLacRequest)]
    assert told == [script.machine.base] * 2 == [5, 5]
    lower = fenced(options=RecoveryOptions(barrier=True))
    lower.timer("recovery-lafr")
    for entry_id in range(7):
        lower.answer("a", entry_id, body(entry_id))
    lower.answer("bc", 7, NO)
    told = [layout.decode_lac_packet(r.message.body, LEDGER, DIGEST) for r in lower.reads if isinstance(r.message, WriteLacRequest)]
    assert told == [-1, -1]
    assert lower.machine.frozen == 5


# --- on the table ----------------------------------------------------------------------------------------------------


def _two_of_three(table: Table) -> None:
    """Entries 0..3 of a live writer: c has none of them, all are acknowledged."""
    table.writer()
    for index in range(4):
        table.append(b"entry %d" % index)
        table.drop(lambda m: m.to == "c")
        table.run()
    assert table.results["w"] == [0, 1, 2, 3]


def test_recovery_fills_what_the_writer_left_at_its_ack_quorum() -> None:
    """G-12, G-13, I-G2: ids up to the LAC too, which a recovery of an unmarked ledger would not even read."""
    table = Table(ledger(custom=MARKED))
    _two_of_three(table)
    table.recover("r")
    table.run(hold=lambda m: isinstance(m.what, ReadLacRequest))
    table.fire("r", "recovery-lafr")
    table.run()
    (closed,) = table.results["r"]
    assert closed.sealed and closed.last_entry_id == 3
    assert [len(table.holders(e)) for e in range(4)] == [3, 3, 3, 3]


def test_a_client_that_does_not_know_the_mark_loses_nothing_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """G-25, G-26, scenario 50: plain recovery keeps every acknowledged entry; the tail may stay at Qa and the ledger is not sealed."""
    table = Table(ledger(custom=MARKED))
    _two_of_three(table)
    monkeypatch.setattr(LedgerMetadata, "guaranteed", property(lambda self: False))
    table.recover("plain")
    table.run()
    (closed,) = table.results["plain"]
    assert closed.last_entry_id == 3
    assert not closed.sealed
    assert closed.custom == MARKED
    assert [len(table.holders(e)) for e in range(4)] == [2, 2, 2, 3]
