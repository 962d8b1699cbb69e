"""The end of writing, one rule at a time (replication-protocol.md 5, WR-11..WR-13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
    PersistenceViolatedError,
)
from bk_core.protocol.effects import ReadLedger, WriteLedger
from bk_core.protocol.events import LedgerRead, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.write.writer import WriterOptions, WriterState
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.writer_script import WriterScript

CLOSE_ANYWAY = WriterOptions(close_in_recovery=True)


def closing(script: WriterScript, token: str = "close") -> WriteLedger:
    return script.do(script.writer.close(token, script.now)).write


def test_a_close_drains_the_queue_and_fixes_the_end() -> None:
    """CL-1, CL-3, META-10, WR-1: in id order, and nothing is admitted or acknowledged afterwards."""
    script = WriterScript().append("t", b"four", b"five5").append("u", b"x").ack("ab", 0)
    write = closing(script)
    assert script.failed == [("t", LedgerClosedError), ("u", LedgerClosedError)]
    assert (write.metadata.state, write.metadata.last_entry_id, write.metadata.length) == (LedgerState.CLOSED, 0, 4)
    assert script.ack("abc", 1, 2).effects == []
    assert script.append("v").failed[-1] == ("v", LedgerClosedError)
    assert script.stored(write).done == [("close", write.metadata)]
    assert (script.writer.last_add_confirmed, script.writer.state) == (0, WriterState.CLOSED)


def test_an_empty_ledger_closes_at_minus_one() -> None:
    """CL-3, CL-6."""
    script = WriterScript()
    write = closing(script)
    assert (write.metadata.last_entry_id, write.metadata.length) == (-1, 0)


def test_a_late_answer_about_an_older_version_is_not_the_close_s() -> None:
    """SM-3, CL-4, META-12, L-5: the timer of an ambiguous change repeats the close; both conflict, one of them late. The close over what
    was read then has an ambiguous outcome of its own, and is repeated."""
    script = WriterScript().append("t").ack("ab", 0).append("u")
    change = script.lose("b").write
    assert script.stored(change, Outcome.UNKNOWN).timers == ["metadata"]
    write = closing(script)
    assert script.fire("metadata").write == write
    again = script.conflict(write, change.metadata, 1).write
    assert script.feed(LedgerWritten(write.request, Outcome.CONFLICT)).effects == []
    script.stored(again, Outcome.UNKNOWN)
    assert script.fire("metadata").write == again


def test_a_close_settles_the_change_in_flight() -> None:
    """CL-2, META-13: made at the same version; if the change was first its content is taken over, an empty fragment at LAC + 1."""
    script = WriterScript().append("t").ack("ab", 0).append("u")
    change = script.lose("b").write
    write = closing(script)
    assert write.version == change.version
    assert script.feed(LedgerWritten(change.request, Outcome.OK, 1)).effects == []
    again = script.conflict(write, change.metadata, 1).write
    assert (again.version, again.metadata.fragments) == (1, change.metadata.fragments)
    assert (again.metadata.last_entry_id, again.metadata.length) == (0, 1)
    assert script.stored(again).done[-1] == ("close", again.metadata)


def test_an_unknown_close_is_repeated() -> None:
    """CL-4, META-12."""
    script = WriterScript().append("t").ack("ab", 0)
    write = closing(script)
    assert script.stored(write, Outcome.UNKNOWN).timers == ["metadata"]
    assert script.fire("metadata").effects == [write]
    assert script.conflict(write, write.metadata).done[-1][0] == "close"  # the first attempt had been applied


@pytest.mark.parametrize(
    ("last", "error"), [(0, None), (3, MetadataConflictError), (-1, PersistenceViolatedError)], ids=["same end", "later", "earlier"]
)
def test_a_ledger_closed_by_another(last: int, error: type | None) -> None:
    """CL-4: the same end is success, another one is not, an earlier one breaks persistence."""
    script = WriterScript().append("t").ack("ab", 0)
    script.conflict(closing(script), script.writer.metadata.closed(last, 1))
    assert script.failed == ([] if error is None else [("close", error)])
    assert script.writer.state is (WriterState.CLOSED if error is None else WriterState.CLOSE_FAILED)
    assert script.writer.last_add_confirmed == 0


def test_another_length_is_worth_a_warning() -> None:
    """CL-4: not an error."""
    script = WriterScript().append("t").ack("ab", 0)
    script.conflict(closing(script), script.writer.metadata.closed(0, 77))
    assert "length 77" in script.logs[-1]
    assert script.done[-1][1].length == 77


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.NO_SUCH_LEDGER, NoSuchLedgerError), (Outcome.REFUSED, MetadataError)], ids=lambda v: str(v)
)
@pytest.mark.parametrize("when", ["write", "read"])
def test_a_close_that_fails_is_final(outcome: Outcome, error: type, when: str) -> None:
    """CL-4, CL-7."""
    script = WriterScript().append("t").ack("ab", 0)
    write = closing(script)
    if when == "write":
        script.stored(write, outcome)
    else:
        script.stored(write, Outcome.CONFLICT)
        assert script.feed(LedgerRead(write.request, Outcome.UNKNOWN)).timers == ["metadata"]
        assert script.fire("metadata").effects == [ReadLedger(write.request)]
        assert script.feed(LedgerRead(write.request, Outcome.OK, script.writer.metadata, 0)).timers == ["metadata"]  # stale
        script.feed(LedgerRead(write.request, outcome))
    assert script.failed == [("close", error)]
    assert script.append("u").failed[-1] == ("u", error)
    assert script.do(script.writer.close("again", 0)).failed[-1] == ("again", error)
    assert script.feed(LedgerWritten(write.request, Outcome.OK, 9)).effects == []
    assert script.do(script.writer.abandon(0)).effects == []


def test_abandon_leaves_the_ledger_open() -> None:
    """WR-13, G-10: what is pending fails, nothing is written."""
    script = WriterScript().append("t")
    assert script.do(script.writer.abandon(0)).failed == [("t", LedgerClosedError)]
    assert script.writes == []
    assert script.writer.state is WriterState.FAILED
    script = WriterScript()
    closing(script)
    assert script.do(script.writer.abandon(0)).failed == [("close", LedgerClosedError)]
    assert script.writer.state is WriterState.CLOSE_FAILED


def test_a_fenced_writer_may_be_told_to_close() -> None:
    """D1, the option: after FENCED it closes at its own end, also over IN_RECOVERY."""
    script = WriterScript(options=CLOSE_ANYWAY).append("t").ack("ab", 0).append("u").refuse("c", 1, Status.FENCED)
    assert script.failed == [("u", LedgerFencedError)]
    again = script.conflict(script.write, script.writer.metadata.in_recovery()).write
    assert (again.version, again.metadata.state, again.metadata.last_entry_id) == (5, LedgerState.CLOSED, 0)
    script.stored(again)
    assert script.writer.state is WriterState.CLOSED
    assert script.append("v").failed[-1] == ("v", LedgerFencedError)


def test_a_conflict_with_a_recoverer_may_be_closed_over() -> None:
    """D1, the option, from EC-9: with the version just read."""
    script = WriterScript(options=CLOSE_ANYWAY).append("t").ack("ab", 0).append("u")
    script.conflict(script.lose("c").write, script.writer.metadata.in_recovery())
    assert script.failed == [("u", LedgerFencedError)]
    assert (script.write.version, script.write.metadata.last_entry_id) == (5, 0)


def test_a_fatal_error_on_a_ledger_that_is_not_open_writes_nothing() -> None:
    """WR-12."""
    script = WriterScript().append("t")
    script.writer.metadata = replace(script.writer.metadata, state=LedgerState.IN_RECOVERY)
    assert script.refuse("a", 0, Status.UNAUTHORIZED).writes == []
    assert script.writer.state is WriterState.FAILED
