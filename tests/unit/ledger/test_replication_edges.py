"""Answers nobody hopes for, met by the replication machines (replication-protocol.md 12): late, doubled, cut off, empty, refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError, ReplicationError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import digests
from bk_core.protocol.events import AddReply, BookiesChanged, BytesDrained, Event, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata
from bk_core.protocol.ledger.replication import EntryRanges, FragmentCheck, FragmentRepair, FragmentReport, MetadataChange, RepairState
from bk_core.protocol.ledger.replication import eligible_fragments as fragments_of
from bk_core.protocol.ledger.replication.bodies import bodies_of
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ForceLedgerResponse, ReadRequest, ReadResponse, Status
from tests.unit.ledger.replication_world import LEDGER, PASSWORD, Bookie, World, body, ledger

ABC = ("a", "b", "c")
LAST = 29
KEY = digests.hmac_key(PASSWORD)
Answer = Callable[[ReadRequest | BatchReadRequest], Any]


def closed(quorums: tuple[int, int, int] = (3, 3, 2), last: int = LAST) -> World:
    return World(ledger(quorums, {0: ABC}, last=last), last_written=last, extra=("x",))


def repair(world: World, **options: Any) -> FragmentRepair:
    (span,) = fragments_of(world.metadata)
    return FragmentRepair(LEDGER, world.metadata, world.version, span, "t", **options)


def check(world: World, **options: Any) -> FragmentCheck:
    (span,) = fragments_of(world.metadata)
    return FragmentCheck(LEDGER, world.metadata, span, "t", registered=set(ABC), **options)


def read_reply(effect: Effect, status: Status = Status.OK, data: bytes | None = None) -> ReadReply:
    """The answer to a single read: by default the good copy."""
    assert isinstance(effect, SendRead) and isinstance(effect.request, int)
    assert isinstance(effect.message, ReadRequest)
    entry_id = effect.message.entry_id
    response = ReadResponse(effect.message.request_id, status, LEDGER, entry_id, body(entry_id) if data is None else data)
    return ReadReply(effect.request, effect.bookie, status, response if status is Status.OK else None)


def answering(bookie: Bookie, entry_id: int, answer: Answer) -> None:
    """Reads that begin at the entry get OK and what ``answer`` makes; batches from elsewhere stop before it."""
    read = bookie.read
    bookie.read_refusals[entry_id] = Status.IO_ERROR

    def other(request: ReadRequest | BatchReadRequest) -> tuple[Status, Any]:
        return (Status.OK, answer(request)) if request.entry_id == entry_id else read(request)

    bookie.read = other  # type: ignore[method-assign]


def cut_off(bookie: Bookie) -> None:
    """Each batch answer lacks its last byte; single reads are whole."""
    read = bookie.read

    def shorter(request: ReadRequest | BatchReadRequest) -> tuple[Status, Any]:
        status, response = read(request)
        return status, replace(response, bodies=response.bodies[:-1]) if isinstance(response, BatchReadResponse) else response

    bookie.read = shorter  # type: ignore[method-assign]


# --- RR-4: the check ---------------------------------------------------------------------------------------------------


NOTHING_IN_IT: list[Answer] = [
    lambda request: None,
    lambda request: ReadResponse(request.request_id, Status.OK, LEDGER, request.entry_id),
    lambda request: BatchReadResponse(request.request_id, Status.OK, LEDGER, request.entry_id),
    lambda request: ForceLedgerResponse(request.request_id, Status.OK, LEDGER),
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("answer", NOTHING_IN_IT)
def test_rr4_ok_without_an_entry_is_neither_a_good_copy_nor_a_denial(answer: Answer, batch: bool) -> None:
    """RR-4: the entry is unreadable there, not missing; all others are judged as ever."""
    world = closed()
    answering(world.bookies["b"], 5, answer)
    report = world.run(check(world, full=True, batch=batch))
    assert isinstance(report, FragmentReport)
    first, second, third = report.replicas
    assert (second.unreadable.ranges, second.missing.ranges, second.corrupt.ranges) == (((5, 5),), (), ())
    assert second.checked == LAST + 1 and not second.is_good
    assert first.is_good and third.is_good


def test_rr4_of_a_cut_off_batch_what_came_whole_counts() -> None:
    """RR-4: a bookie whose batches always end in the middle of an entry is not blamed for it."""
    data = b"".join(len(body(e)).to_bytes(4, "big") + body(e) for e in range(3))
    response = BatchReadResponse(1, Status.OK, LEDGER, 0, data[:-1])
    found = bodies_of(response, LEDGER, 0, 9, DigestType.CRC32C, KEY)
    assert [(each.entry_id, each.data, each.problem) for each in found] == [(e, body(e), None) for e in range(2)]
    world = closed()
    cut_off(world.bookies["a"])
    report = world.run(check(world, full=True))
    assert isinstance(report, FragmentReport)
    assert report.is_good and report.replicas[0].checked == LAST + 1


def test_rr4_reads_that_fail_together_count_once() -> None:
    """RR-4: thirty reads in flight to a silent bookie are one silence: all are tried again, round by round, and it is said once."""
    world = closed()
    world.bookies["a"].silent = True
    report = world.run(check(world, full=True, batch=False))
    assert isinstance(report, FragmentReport)
    silent = report.replicas[0]
    assert (silent.silent, silent.checked, silent.missing.ranges, silent.unreadable.ranges) == (Status.TIMEOUT, 0, (), ())
    rounds = Counter(entry_id for name, entry_id in world.asked if name == "a")
    assert set(rounds) == set(range(LAST + 1)) and len(set(rounds.values())) == 1
    assert rounds[0] == 1 + Limits().replication_retries_max
    assert len(world.logs) == 1 and "bookie a gives no answer" in world.logs[0]


def test_rr4_an_answer_after_the_verdict_changes_nothing() -> None:
    """RR-4: a bookie given up as silent stays so, though the answer to its other read comes; answers to nothing are not heard."""
    world = closed()
    machine = check(world, positions=[0], limits=Limits(replication_retries_max=0))
    first, last = machine.start()
    (log,) = machine.handle(read_reply(first, Status.TIMEOUT), 1)
    assert isinstance(log, Log)
    assert machine.handle(read_reply(first), 2) == []  # answered already
    assert machine.handle(ReadReply(99, "a", Status.NO_ENTRY), 3) == []
    assert machine.handle(BookiesChanged(), 4) == []
    (complete,) = machine.handle(read_reply(last), 5)
    assert isinstance(complete, Complete) and isinstance(complete.value, FragmentReport)
    (replica,) = complete.value.replicas
    assert (replica.silent, replica.checked, replica.missing.ranges) == (Status.TIMEOUT, 0, ())
    assert machine.handle(read_reply(last), 6) == [] and machine.handle(TimerFired("again"), 6) == []


# --- RR-5, RR-7, RR-8: the repair --------------------------------------------------------------------------------------


def test_rr5_a_source_without_batch_reads_is_read_one_by_one() -> None:
    """RR-5: a bookie that hangs up on a batch read is asked again for single entries at once; the lost one is not needed."""
    world = closed()
    world.bookies["a"].has_batch_read = False
    assert isinstance(world.run(repair(world, targets={2: "x"})), LedgerMetadata)
    assert world.asked[:2] == [("a", 0), ("a", 0)] and {name for name, _ in world.asked} == {"a", "b"}
    assert sorted(entry_id for _, entry_id in world.asked) == [0, *range(LAST + 1)]  # each entry once, but for the batch in vain
    assert world.lacks() == [] and world.metadata.fragments == (Fragment(0, ("a", "b", "x")),)


def test_rr5_of_a_cut_off_batch_what_came_whole_is_copied() -> None:
    """RR-5, RR-7: every entry arrives whole, and only then the metadata changes."""
    world = closed()
    for name in ABC:
        cut_off(world.bookies[name])
    had: list[int] = []
    world.before_cas = lambda: had.extend(world.copies("x"))
    assert isinstance(world.run(repair(world, targets={2: "x"})), LedgerMetadata)
    assert len(world.asked) == 2 and world.asked[1][1] == LAST  # only what was cut off is read again
    assert had == world.copies("x") == list(range(LAST + 1))


def test_rr5_neighbours_for_different_bookies_come_in_one_read_and_go_where_they_lack() -> None:
    """RR-5: entries 0 and 2 to one bookie, 1 to another, 3 to both: no bookie gets what it has."""
    world = closed()
    for name, entry_id in (("b", 0), ("c", 1), ("b", 2), ("b", 3), ("c", 3)):
        del world.bookies[name].entries[entry_id]
    lacking = {1: EntryRanges(((0, 0), (2, 3))), 2: EntryRanges(((1, 1), (3, 3)))}
    machine = repair(world, refill=lacking)
    assert isinstance(world.run(machine), LedgerMetadata)
    assert world.asked == [("a", 0)]
    assert sorted(world.sent_to) == [("b", 0), ("b", 2), ("b", 3), ("c", 1), ("c", 3)]
    assert (machine.entries_copied, machine.copies_made) == (4, 5)
    assert world.lacks() == [] and world.writes == []


def test_rr7_a_doubled_answer_stands_for_no_other_entry() -> None:
    """RR-7: of two entries one is read twice and confirmed twice: the metadata waits for the other."""
    world = closed(last=1)
    machine = repair(world, targets={0: "x"}, batch=False)
    first, second = machine.start()
    (sent, timer) = machine.handle(read_reply(first), 1)
    assert isinstance(sent, SendAdds) and sent.bookie == "x" and isinstance(timer, SetTimer)
    assert machine.handle(read_reply(first), 2) == []
    assert machine.handle(AddReply("x", 0, 1, Status.OK), 3) == []
    assert machine.handle(AddReply("x", 0, 1, Status.OK), 4) == []
    assert machine.handle(BookiesChanged(), 5) == []
    assert (machine.state, machine.copies_made, machine.entries_copied) == (RepairState.COPYING, 1, 1)
    machine.handle(read_reply(second), 6)
    (write,) = machine.handle(AddReply("x", 1, 1, Status.OK), 7)
    assert isinstance(write, WriteLedger) and write.metadata.fragments == (Fragment(0, ("x", "b", "c")),)
    assert machine.copies_made == 2


def test_rr7_an_answer_with_gaps_confirms_the_entries_in_it() -> None:
    """RR-7: of three copies the middle one is not confirmed."""
    world = closed(last=2)
    machine = repair(world, targets={0: "x"}, batch=False)
    for read in machine.start():
        machine.handle(read_reply(read), 1)
    assert machine.handle(AddReply("x", 0, 3, Status.OK, 0b101), 2) == []
    assert (machine.state, machine.copies_made) == (RepairState.COPYING, 2)
    (write,) = machine.handle(AddReply("x", 1, 1, Status.OK), 3)
    assert isinstance(write, WriteLedger) and machine.copies_made == 3


def test_rr8_a_copy_that_waits_to_be_sent_again_fails_only_once() -> None:
    """RR-8: a timeout and the refusal that came late are one failure: with one retry allowed the second sending still happens."""
    world = closed(last=0)
    limits = Limits(replication_retries_max=1)
    machine = repair(world, targets={0: "x"}, limits=limits)
    (read,) = machine.start()
    machine.handle(read_reply(read), 0)
    late = machine.handle(TimerFired("tick"), limits.add_timeout_ns)
    assert SetTimer("again", limits.replication_retry_ns) in late
    assert machine.handle(AddReply("x", 0, 1, Status.TOO_MANY_REQUESTS), limits.add_timeout_ns + 1) == []
    (sent,) = machine.handle(TimerFired("again"), limits.add_timeout_ns + limits.replication_retry_ns)
    assert isinstance(sent, SendAdds) and sent.bookie == "x"
    assert machine.state is RepairState.COPYING and machine.failed_bookies == {}
    log, fail = machine.handle(AddReply("x", 0, 1, Status.TOO_MANY_REQUESTS), limits.add_timeout_ns + limits.replication_retry_ns + 1)
    assert isinstance(log, Log) and isinstance(fail, Fail) and machine.failed_bookies == {"x": "too many requests"}


def test_rr8_a_target_that_takes_copies_slowly_is_not_late() -> None:
    """RR-8, LINK-1: neither while it confirms others, nor while bytes for it go on."""
    world = closed(last=1)
    limits = Limits()
    machine = repair(world, targets={0: "x"}, batch=False)
    for read in machine.start():
        machine.handle(read_reply(read), 0)
    second = limits.add_timeout_ns // 5
    machine.handle(AddReply("x", 0, 1, Status.OK), 4 * second)
    assert SetTimer("again", limits.replication_retry_ns) not in machine.handle(TimerFired("tick"), 6 * second)
    machine.handle(BytesDrained("x", 8 * second), 8 * second)
    assert SetTimer("again", limits.replication_retry_ns) not in machine.handle(TimerFired("tick"), 12 * second)
    assert SetTimer("again", limits.replication_retry_ns) in machine.handle(TimerFired("tick"), 13 * second)


def test_rr8_a_confirmation_that_comes_during_the_back_off_counts() -> None:
    """RR-8, RR-7: the bookie has the entry after all; it is not sent again."""
    world = closed(last=0)
    limits = Limits()
    machine = repair(world, targets={0: "x"}, limits=limits)
    (read,) = machine.start()
    machine.handle(read_reply(read), 0)
    machine.handle(TimerFired("tick"), limits.add_timeout_ns)
    (write,) = machine.handle(AddReply("x", 0, 1, Status.OK), limits.add_timeout_ns + 1)
    assert isinstance(write, WriteLedger)
    assert machine.handle(TimerFired("again"), limits.add_timeout_ns + limits.replication_retry_ns) == []


def test_rr8_the_last_entry_of_a_range_may_be_the_unreadable_one() -> None:
    """RR-8: without an exchange everything before it is filled in, and the attempt ends instead of reading beyond the fragment."""
    world = closed()
    world.bookies["b"].entries.clear()
    for name in ("a", "c"):
        del world.bookies[name].entries[LAST]
    machine = repair(world, refill={1: EntryRanges(((0, LAST),))})
    assert isinstance(world.run(machine), ReplicationError)
    assert machine.unreadable == [LAST] and world.copies("b") == list(range(LAST))
    assert max(e for _, e in world.asked) == LAST and world.writes == []


LATE: list[Event] = [
    AddReply("x", 1, 1, Status.OK),
    TimerFired("again"),
    TimerFired("tick"),
    TimerFired("metadata"),
    LedgerWritten(1, Outcome.OK, 6),
]


def test_rr8_after_the_end_nothing_happens_any_more() -> None:
    """RR-8: an attempt that failed makes no change when the confirmation it lacked comes late."""
    world = closed(last=1)
    machine = repair(world, targets={0: "x"}, batch=False)
    reads = machine.start()
    for read in reads:
        machine.handle(read_reply(read), 1)
    effects = machine.handle(AddReply("x", 0, 1, Status.READ_ONLY), 2)
    assert isinstance(effects[-1], Fail) and machine.state is RepairState.FAILED
    for event in LATE:
        assert machine.handle(event, 3) == []
    assert machine.state is RepairState.FAILED and machine.version == world.version


# --- META-11, META-12, RR-7: the change --------------------------------------------------------------------------------

STORED = ledger((3, 3, 2), {0: ABC}, last=LAST, custom={"gwq": b"1"})
RETRY = [SetTimer("metadata", Limits().metadata_retry_ns)]


def seal() -> tuple[MetadataChange, WriteLedger]:
    change = MetadataChange(LEDGER, STORED, 4, lambda stored: None if stored.sealed else stored.with_seal(), "t")
    (write,) = change.start()
    assert isinstance(write, WriteLedger)
    return change, write


def conflicted() -> tuple[MetadataChange, ReadLedger]:
    change, write = seal()
    (read,) = change.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0)
    assert isinstance(read, ReadLedger)
    return change, read


def test_meta11_only_the_answer_to_the_question_asked_is_heard() -> None:
    """META-11: neither another request's outcome nor a read while a write is undecided installs anything."""
    newer = STORED.with_seal()
    change, write = seal()
    strangers: list[Event] = [
        LedgerWritten(write.request + 1, Outcome.OK, 9),
        LedgerRead(write.request, Outcome.OK, newer, 9),
        TimerFired("again"),
        BookiesChanged(),
    ]
    assert [change.handle(event, 0) for event in strangers] == [[]] * len(strangers)
    assert (change.metadata, change.version) == (STORED, 4)
    (read,) = change.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0)
    assert isinstance(read, ReadLedger)
    assert change.handle(LedgerWritten(read.request, Outcome.OK, 9), 0) == []
    assert change.handle(LedgerRead(write.request, Outcome.OK, newer, 9), 0) == []
    assert (change.metadata, change.version) == (STORED, 4)


def test_meta11_after_the_end_nothing_is_installed() -> None:
    """META-11: the outcome is told once; what is known then stays."""
    change, write = seal()
    assert change.handle(LedgerWritten(write.request, Outcome.OK, 5), 0) == [Complete("t", STORED.with_seal())]
    late: list[Event] = [
        LedgerWritten(write.request, Outcome.OK, 7),
        LedgerWritten(write.request, Outcome.CONFLICT),
        TimerFired("metadata"),
    ]
    assert [change.handle(event, 1) for event in late] == [[], [], []]
    assert change.version == 5


def test_meta12_an_unknown_outcome_is_cleared_up_by_the_identical_write() -> None:
    """META-12: no read in between, however often."""
    change, write = seal()
    for _ in range(3):
        assert change.handle(LedgerWritten(write.request, Outcome.UNKNOWN), 0) == RETRY
        assert change.handle(TimerFired("metadata"), 1) == [write]
    assert change.version == 4


def test_meta12_refused_is_definite() -> None:
    """META-12: the write was not applied and is not tried again; the store's error is told, any other is wrapped."""
    refusal = MetadataUnavailableError("the store is closed", ledger=LEDGER)
    change, write = seal()
    assert change.handle(LedgerWritten(write.request, Outcome.REFUSED, error=refusal), 0) == [Fail("t", refusal)]
    assert change.handle(TimerFired("metadata"), 1) == [] and change.version == 4
    change, write = seal()
    (fail,) = change.handle(LedgerWritten(write.request, Outcome.REFUSED, error=ValueError("no room")), 0)
    assert isinstance(fail, Fail) and isinstance(fail.error, MetadataError)
    assert "no room" in str(fail.error) and fail.error.context == {"ledger": LEDGER}


def test_meta12_a_read_without_an_answer_is_asked_again() -> None:
    """META-12, META-14: after a conflict nothing is written before what is stored has been seen."""
    change, read = conflicted()
    assert change.handle(LedgerRead(read.request, Outcome.UNKNOWN), 0) == RETRY
    assert change.handle(TimerFired("metadata"), 1) == [read]
    (write,) = change.handle(LedgerRead(read.request, Outcome.OK, STORED, 8), 2)
    assert isinstance(write, WriteLedger) and write.version == 8


def test_rr7_a_ledger_that_is_gone_at_the_second_look_is_dropped() -> None:
    """RR-7: deleted between the conflict and the read."""
    change, read = conflicted()
    (fail,) = change.handle(LedgerRead(read.request, Outcome.NO_SUCH_LEDGER), 0)
    assert isinstance(fail, Fail) and isinstance(fail.error, NoSuchLedgerError)
    assert fail.error.context == {"ledger": LEDGER} and change.handle(TimerFired("metadata"), 1) == []


def test_rr7_metadata_that_cannot_be_understood_ends_the_attempt() -> None:
    """RR-7: the predicate cannot be asked of what is not known, so nothing is written."""
    unreadable = MetadataError("version 9 of the format", ledger=LEDGER)
    change, read = conflicted()
    assert change.handle(LedgerRead(read.request, Outcome.REFUSED, error=unreadable), 0) == [Fail("t", unreadable)]
    assert (change.metadata, change.version) == (STORED, 4)


# --- RR-19: bookies that do not admit this client -------------------------------------------------------------------------


def stranger_at(world: World, status: Status, *names: str) -> None:
    """These bookies refuse every read."""
    for name in names:
        world.bookies[name].read = lambda request: (status, None)  # type: ignore[method-assign]


REFUSED = [Status.UNAUTHORIZED, Status.NOT_ADMITTED]


@pytest.mark.parametrize("status", REFUSED)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_a_refused_read_finds_nothing_missing(status: Status, batch: bool, full: bool) -> None:
    """RR-19: it is asked once, and told apart from silence."""
    world = closed()
    stranger_at(world, status, "b", "c")
    report = world.run(check(world, full=full, batch=batch))
    a, b, c = report.replicas
    assert a.is_good and not a.is_refused
    for replica in (b, c):
        assert replica.is_refused and not replica.is_good and replica.silent is Status.NOT_ADMITTED
        assert not (replica.damaged or replica.unreadable)
    assert world.now == 0, "it was asked again after a pause"


@pytest.mark.parametrize("status", REFUSED)
def test_a_refused_copy_is_not_readable_nowhere(status: Status) -> None:
    """RR-19: the repair ends at once, changes nothing, and says why."""
    world = closed((3, 2, 2))
    stranger_at(world, status, "a", "b", "c")
    machine = repair(world, targets={0: "x"})
    error = world.run(machine)
    assert isinstance(error, ReplicationError) and "is not found where this client is admitted (" in str(error)
    assert machine.not_admitting == {*ABC} and not world.writes and world.now == 0


def test_what_admitting_bookies_deny_may_be_where_this_client_is_refused() -> None:
    """RR-19."""
    world = closed((3, 3, 2))
    stranger_at(world, Status.UNAUTHORIZED, "c")
    for name in ("a", "b"):
        world.bookies[name].entries.clear()
    machine = repair(world, refill={0: EntryRanges(((0, 0),))})
    error = world.run(machine)
    assert isinstance(error, ReplicationError) and str(error).endswith("c may have some, and did not admit this client")
    assert machine.not_admitting == {"c"} and not world.writes
