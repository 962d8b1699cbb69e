"""The range reader, rule by rule: which replica is asked when, what counts as an answer, and what the error says."""

from __future__ import annotations

import itertools
import random
from array import array
from dataclasses import replace

import pytest

from bk_core.errors import BkError, NoSuchEntryError, NoSuchLedgerError, ReadError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.entry import layout
from bk_core.protocol.events import BookieLost, LedgerRead, Outcome, ReadReply, ReadsMoving, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import DigestType, LedgerState
from bk_core.protocol.ledger.read.chunks import LANE_ENTRIES, EntrySizes
from bk_core.protocol.ledger.read.failures import Failure, decisive, failure_of
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.ledger.read.reader import SINGLE_READS_IN_FLIGHT, SPECULATE, RangeReader
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse, ReadRunRequest, Response, Status
from bk_core.protocol.wire.read_run import RunAnswers
from tests.unit.ledger.reader_world import LEDGER, World, batch, body, closed, good, metadata, payload, read_run, single

OPEN = metadata()
TEN = closed(OPEN, 9)
S = 1_000_000_000


def reader(first: int = 0, last: int = 9, md: object = TEN, **options: object) -> World:
    settings: dict[str, object] = {"start": 0, "batch": True, "version": 1, **options}
    return World(RangeReader(LEDGER, md, first, last, **settings)).start()  # type: ignore[arg-type]


def expected(first: int, last: int) -> dict[int, bytes]:
    return {e: payload(e) for e in range(first, last + 1)}


def fail_all(world: World, *statuses: Status) -> None:
    """Each replica in turn, then the second look at the metadata, which has nothing new."""
    for status in statuses:
        (ask,) = world.asks
        world.answer(ask, status)
    world.look(TEN, 1)


# --- RD-3, RD-8 ------------------------------------------------------------------------------------------------------


def test_a_corrupt_copy_is_passed_over_and_reported() -> None:
    """RD-8, RD-3, scenario 33: the next replica is asked, and a log line says so."""
    world = reader()
    world.answer("a", batch(0, [body(e, corrupt=True) for e in range(10)]))
    (line,) = world.logs
    assert "corrupt" in line.message and "at a" in line.message and "ledger 7" in line.message
    assert world.bookies == ["b"]
    world.answer("b", good)
    assert world.entries == expected(0, 9)
    assert world.ends == [None]


@pytest.mark.parametrize(
    "bad",
    [
        single(5),  # another entry
        ReadResponse(0, Status.OK, LEDGER, 4, body(4, ledger_id=8)),  # of another ledger
        ReadResponse(0, Status.OK, LEDGER, 4, body(4)[:20]),  # cut off
        ReadResponse(0, Status.OK, LEDGER, 4, None),  # nothing
        batch(4, [body(4)]),  # an answer to what was not asked
    ],
)
def test_what_is_not_the_entry_asked_for_is_a_failed_replica_never_an_absent_entry(bad: ReadResponse | BatchReadResponse) -> None:
    """RD-8: three bad answers are a read error, not NoSuchEntry."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], bad)
    world.look(TEN, 1)
    (error,) = world.ends
    assert type(error) is ReadError
    assert error.context["status"] == "DIGEST"


def test_sequential_asks_the_next_replica_only_when_nothing_is_outstanding() -> None:
    """RD-3: with a speculative read under way a failure waits for it."""
    world = reader(4, 4)
    assert world.bookies == ["a"]
    world.fire(SPECULATE)
    assert world.bookies == ["a", "b"]
    world.answer("a", Status.IO_ERROR)
    assert world.bookies == ["b"]
    world.answer("b", Status.IO_ERROR)
    assert world.bookies == ["c"]
    world.answer("c", good)
    assert world.entries == expected(4, 4)


# --- RD-4 -------------------------------------------------------------------------------------------------------------


def test_speculation_asks_one_more_replica_at_a_time_and_doubles_its_delay() -> None:
    """RD-4: 2 s, 4 s, ... up to the bound; the first verified answer wins."""
    world = reader(4, 4, limits=Limits(speculative_read_ns_max=5 * S))
    delays = []
    for bookies in (["a"], ["a", "b"], ["a", "b", "c"]):
        assert world.bookies == bookies
        delays.append(world.timers[SPECULATE])
        world.fire(SPECULATE)
    assert delays + [world.timers[SPECULATE]] == [2 * S, 4 * S, 5 * S, 5 * S]
    assert world.bookies == ["a", "b", "c"]  # there is no fourth
    world.answer("c", good)
    assert world.ends == [None]
    world.fire(SPECULATE)
    assert world.timers == {}


def test_no_speculation_while_an_answer_waits_behind_others_that_come() -> None:
    """RD-4, LINK-1: what the link says counts as of that moment; the next look is twice as far away."""
    world = reader(4, 4)
    (first,) = world.asks
    world.perform(world.machine.handle(ReadsMoving(frozenset({first.request})), 0))
    world.fire(SPECULATE)
    assert world.bookies == ["a"] and world.timers[SPECULATE] == 4 * S
    world.perform(world.machine.handle(ReadsMoving(frozenset()), 0))
    world.fire(SPECULATE)
    assert world.bookies == ["a", "b"]


def test_no_speculation_against_a_bookie_that_answered_well_in_this_operation() -> None:
    """RD-4: "a" is alive; its other answers will come."""
    world = reader(0, 9, limits=Limits(read_chunk_entries=5), options=ReadOptions(spread=False))
    first, second = world.asks
    world.answer(first, good)
    world.fire(SPECULATE)
    assert world.asks == [second]


def test_a_negative_answer_does_not_hold_speculation_up() -> None:
    """RD-4: only a successful answer does."""
    world = reader(4, 4)
    world.answer("a", Status.NO_ENTRY)
    world.fire(SPECULATE)
    assert world.bookies == ["b", "c"]


def test_progress_starts_the_delay_over() -> None:
    """RD-4: what was slow before says nothing about what is asked now."""
    world = reader(0, 9)
    world.fire(SPECULATE)
    assert world.timers[SPECULATE] == 4 * S
    world.answer("b", batch(0, [body(0)]))
    world.fire(SPECULATE)  # armed before
    assert world.timers[SPECULATE] == 4 * S  # 2 s doubled once, not twice


@pytest.mark.parametrize("options", [{"options": ReadOptions(speculative=False)}, {"md": closed(metadata((1, 1, 1)), 9)}])
def test_without_speculation_or_another_replica_no_timer_runs(options: dict[str, object]) -> None:
    """RD-4."""
    world = reader(**options)
    assert world.timers == {}
    world.perform(world.machine.handle(TimerFired(SPECULATE), 0))
    assert len(world.asks) == 1 and world.timers == {}


# --- RD-5 -------------------------------------------------------------------------------------------------------------

PARALLEL = ReadOptions(mode=ReadMode.PARALLEL)


def test_parallel_reads_ask_all_and_the_first_good_answer_wins() -> None:
    """RD-5; RD-12: the late ones are dropped."""
    world = reader(4, 4, options=PARALLEL)
    assert world.bookies == ["a", "b", "c"] and world.timers == {}
    late = list(world.asks)
    world.answer("b", Status.NO_ENTRY)
    assert world.ends == []
    world.answer("c", good)
    assert world.entries == expected(4, 4) and world.ends == [None]
    for ask in late:
        world.answer(ask, good)
    assert len(world.runs) == 1 and world.ends == [None]


def test_parallel_reads_fail_when_all_have_answered() -> None:
    """RD-5."""
    world = reader(4, 4, options=PARALLEL)
    for bookie in "abc":
        assert world.ends == [] and world.looks == []
        world.answer(bookie, Status.IO_ERROR)
    world.look(TEN, 1)
    assert type(world.ends[0]) is ReadError


def test_parallel_batches_go_on_from_the_first_prefix() -> None:
    """RD-5, RD-10, RD-12: all are asked for the rest; answers to the round before count no more."""
    world = reader(0, 9, options=PARALLEL)
    old = {ask.bookie: ask for ask in world.asks}
    world.answer("b", batch(0, [body(e) for e in range(4)]))
    fresh = [ask for ask in world.asks if ask not in old.values()]
    assert [ask.bookie for ask in fresh] == ["a", "b", "c"]
    assert all(isinstance(ask.message, BatchReadRequest) and ask.message.entry_id == 4 for ask in fresh)
    world.answer(old["a"], good)
    assert world.entries == expected(0, 3)
    world.answer(fresh[1], good)
    assert world.entries == expected(0, 9) and world.ends == [None]


# --- RD-6, RD-7 ---------------------------------------------------------------------------------------------------------


def test_when_all_copies_are_bad_the_error_names_them() -> None:
    """RD-6: ledger, entry and each bookie with what it said."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], single(4, corrupt=True))
    world.look(TEN, 1)
    (error,) = world.ends
    assert isinstance(error, ReadError)
    for part in ("ledger 7", "entry 4", "a: corrupt", "b: corrupt", "c: corrupt"):
        assert part in str(error)


@pytest.mark.parametrize(
    "statuses", list(itertools.product((Status.NO_ENTRY, Status.NO_LEDGER, Status.UNAVAILABLE, Status.TIMEOUT), repeat=3))
)
def test_error_precedence(statuses: tuple[Status, ...]) -> None:
    """RD-6: absence needs every replica; any real error beats it; "not available" is displaced by any other real error."""
    world = reader(4, 4, limits=Limits(unreachable_ns=0))
    fail_all(world, *statuses)
    (error,) = world.ends
    if all(s in (Status.NO_ENTRY, Status.NO_LEDGER) for s in statuses):
        assert type(error) is NoSuchEntryError
    else:
        assert type(error) is ReadError
        assert error.context["status"] == ("TIMEOUT" if Status.TIMEOUT in statuses else "UNAVAILABLE")


def test_among_real_errors_the_first_is_reported() -> None:
    """RD-6."""
    failures = [failure_of(s) for s in (Status.NO_ENTRY, Status.UNAVAILABLE, Status.IO_ERROR, Status.TIMEOUT)]
    assert decisive(failures).status is Status.IO_ERROR
    assert decisive([Failure(None, "bad copy"), *failures]).status is None


def test_a_unanimous_denial_of_a_confirmed_entry_is_an_alarm() -> None:
    """RD-6: data loss or wrong metadata, not the end of the ledger. RD-11: of an unconfirmed entry it is nothing special."""
    for unconfirmed in (False, True):
        world = reader(4, 4, md=OPEN, unconfirmed=unconfirmed)
        fail_all(world, *[Status.NO_ENTRY] * 3)
        assert type(world.ends[0]) is NoSuchEntryError
        assert [line.level for line in world.logs if line.level == "error"] == ([] if unconfirmed else ["error"])


def test_before_giving_up_the_metadata_is_read_again() -> None:
    """RD-7: the entry's replicas moved; the new ones are asked, once."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], Status.IO_ERROR)
    assert world.ends == [] and len(world.looks) == 1
    moved = closed(metadata((3, 3, 2), (0, "def")), 9)
    world.look(moved, 2)
    assert world.adopted == [(moved, 2)]
    assert world.all_asks[-1].bookie in "def"
    for _ in range(3):
        world.answer(world.asks[0], Status.IO_ERROR)
    assert world.looks == [] and type(world.ends[0]) is ReadError


def test_replicas_that_are_elsewhere_now_are_asked_again() -> None:
    """RD-7: the metadata is as it was, and one of its bookies has another address. They are asked again once."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], Status.NO_ENTRY)
    assert sorted(world.looks[0].bookies) == ["a", "b", "c"]
    world.look(TEN, 1, moved=True)
    assert world.ends == []
    for _ in range(2):
        world.answer(world.asks[0], Status.NO_ENTRY)
    world.answer(world.asks[0], good)
    assert world.entries == expected(4, 4)
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], Status.NO_ENTRY)
    world.look(TEN, 1, moved=True)
    for _ in range(3):
        world.answer(world.asks[0], Status.NO_ENTRY)
    assert world.looks == [] and type(world.ends[0]) is NoSuchEntryError


def test_metadata_that_moved_only_other_entries_is_no_reason_to_ask_again() -> None:
    """RD-7: the ensemble of *that entry* must have changed."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], Status.IO_ERROR)
    world.look(closed(metadata((3, 3, 2), (0, "abc"), (5, "abd")), 9), 2)
    assert world.asks == [] and type(world.ends[0]) is ReadError


@pytest.mark.parametrize(
    ("outcome", "kind"), [(Outcome.UNKNOWN, ReadError), (Outcome.REFUSED, ReadError), (Outcome.NO_SUCH_LEDGER, NoSuchLedgerError)]
)
def test_a_look_that_fails(outcome: Outcome, kind: type[BkError]) -> None:
    """RD-7, LOG-13: a deleted ledger says so; else the error of the entry stands."""
    world = reader(4, 4)
    for _ in range(3):
        world.answer(world.asks[0], Status.IO_ERROR)
    world.look(None, outcome=outcome)
    assert type(world.ends[0]) is kind


def test_each_entry_gets_its_own_second_look() -> None:
    """RD-7: entry 0 was saved by one, entry 1 may be too."""
    world = reader(0, 1, md=closed(metadata((2, 2, 2)), 1), batch=True)
    for _ in range(2):
        world.answer(world.asks[0], Status.IO_ERROR)
    world.look(closed(metadata((2, 2, 2), (0, "ac")), 1), 2)
    world.answer(world.asks[0], batch(0, [body(0)]))
    for _ in range(2):
        world.answer(world.asks[0], Status.IO_ERROR)
    assert world.ends == []
    world.look(closed(metadata((2, 2, 2), (0, "de")), 1), 3)
    world.answer(world.asks[0], good)
    assert world.entries == expected(0, 1)


# --- RD-9, RD-11, RD-12 ----------------------------------------------------------------------------------------------------


def test_a_lac_beside_a_verified_entry_is_told() -> None:
    """RD-9: only higher ones, and never beside a bad copy."""
    world = reader(4, 5, md=metadata(), batch=False)
    world.answer("a", lambda ask: read_run(ask, max_lac=50, corrupt=4))
    assert world.heard == []
    world.answer("b", lambda ask: read_run(ask, max_lac=50, corrupt=5))
    assert world.heard == [] and world.entries == expected(4, 4)
    world.answer("c", lambda ask: good(ask, max_lac=5))
    assert world.heard == []
    world = reader(4, 5, md=metadata(), batch=False)
    world.answer("a", lambda ask: good(ask, max_lac=8))
    assert world.heard == [8]


def test_unconfirmed_reads_learn_any_lac() -> None:
    """RD-11, RD-9."""
    world = reader(4, 4, md=OPEN, batch=False, unconfirmed=True)
    world.answer("a", lambda ask: good(ask, max_lac=2))
    assert world.heard == [2] and world.entries == expected(4, 4)


def test_of_a_closed_ledger_nothing_beyond_the_end_is_shown() -> None:
    """OP-6, RD-11: an unconfirmed read under way while the ledger is closed below it."""
    world = reader(0, 9, md=OPEN, unconfirmed=True, limits=Limits(read_chunk_entries=4, read_chunks_in_flight=3))
    asks = list(world.asks)
    world.answer(asks[1], good)  # entries 4..7 wait for 0..3
    world.change(closed(OPEN, 5), 2)
    world.answer(asks[2], good)  # 8 and 9 are no part of the ledger
    assert world.ends == [] and world.runs == []
    world.answer(asks[0], good)
    assert world.entries == expected(0, 5)
    assert type(world.ends[0]) is NoSuchEntryError and "closed at entry 5" in str(world.ends[0])


def test_a_close_cuts_what_is_asked_and_what_is_not_asked_yet() -> None:
    """OP-6: the answer to a request that is under way may go beyond the end."""
    world = reader(0, 29, md=OPEN, unconfirmed=True, limits=Limits(read_chunk_entries=10, read_chunks_in_flight=1))
    world.change(closed(OPEN, 5), 2)
    world.answer("a", good)
    assert world.entries == expected(0, 5)
    assert type(world.ends[0]) is NoSuchEntryError
    assert len(world.all_asks) == 1


def test_a_close_behind_what_came_ends_the_read() -> None:
    """OP-6."""
    world = reader(0, 9, md=OPEN, unconfirmed=True)
    world.answer("a", batch(0, [body(e) for e in range(6)]))
    late = world.asks[0]
    world.change(closed(OPEN, 5), 2)
    assert type(world.ends[0]) is NoSuchEntryError
    world.answer(late, good)
    assert world.entries == expected(0, 5)


def test_a_second_look_that_finds_the_end_below_the_entry() -> None:
    """RD-7, RD-11."""
    world = reader(4, 4, md=OPEN, unconfirmed=True)
    for _ in range(3):
        world.answer(world.asks[0], Status.NO_ENTRY)
    world.look(closed(OPEN, 3), 2)
    assert type(world.ends[0]) is NoSuchEntryError and "closed at entry 3" in str(world.ends[0])


def test_later_chunks_use_metadata_that_came_meanwhile_and_older_metadata_is_ignored() -> None:
    """OP-6, META-11."""
    world = reader(0, 9, limits=Limits(read_chunk_entries=5, read_chunks_in_flight=1), options=ReadOptions(spread=False))
    world.change(closed(metadata((3, 3, 2), (0, "def")), 9), 3)
    world.change(closed(metadata((3, 3, 2), (0, "xyz")), 9), 2)
    world.answer("a", good)
    world.consume()
    assert world.bookies == ["d"]


def test_nothing_that_comes_after_the_end_does_anything() -> None:
    """RD-12, SM-3: every late event."""
    world = reader(4, 4)
    world.fire(SPECULATE)
    late = world.ask_of("b")
    world.answer("a", good)
    events = [
        ReadReply(late.request, "b", Status.OK, good(late)),
        ReadReply(late.request, "b", Status.IO_ERROR),
        TimerFired(SPECULATE),
        LedgerRead(1, Outcome.OK, TEN, 5),
    ]
    assert [world.machine.handle(event, 0) for event in events] == [[]] * 4
    assert world.ends == [None]


def test_strange_events_are_ignored() -> None:
    """SM-3: an answer twice, answers to nobody, events that mean nothing to a reader."""
    world = reader(0, 1, limits=Limits(read_chunk_entries=1))
    first = world.asks[0]
    world.answer(first, good)
    for event in (
        ReadReply(first.request, "a", Status.OK, good(first)),
        ReadReply(99, "a", Status.OK),
        LedgerRead(99, Outcome.OK, TEN, 9),
        BookieLost("a"),
        TimerFired("other"),
    ):
        assert world.machine.handle(event, 0) == []
    assert len(world.runs) == 1


# --- RD-10 ---------------------------------------------------------------------------------------------------------------


def test_a_short_batch_is_good_for_what_it_brings() -> None:
    """RD-10: go on after the prefix."""
    world = reader()
    world.answer("a", batch(0, [body(e) for e in range(4)]))
    (following,) = world.asks
    assert isinstance(following.message, BatchReadRequest)
    assert (following.message.entry_id, following.message.entries_max) == (4, 6)


def test_entries_before_a_bad_one_in_a_batch_are_good() -> None:
    """RD-10, RD-8: the verified prefix is taken, the rest comes from another replica."""
    world = reader()
    world.answer("a", batch(0, [body(e, corrupt=e == 4) for e in range(10)]))
    assert world.entries == expected(0, 3)
    (following,) = world.asks
    assert following.bookie == "b"
    assert isinstance(following.message, BatchReadRequest) and following.message.entry_id == 4
    assert "entry 4" in world.logs[0].message
    world.answer(following, good)
    assert world.entries == expected(0, 9)


@pytest.mark.parametrize("entries", [[0, 2], [0, 0]])
def test_of_a_batch_with_other_entries_what_comes_before_them_is_good(entries: list[int]) -> None:
    """RD-8, RD-10: it is verified by itself; the replica is not asked for the rest."""
    world = reader()
    world.answer("a", batch(0, [body(e) for e in entries]))
    assert world.entries == expected(0, 0) and world.bookies == ["b"]


@pytest.mark.parametrize("entries", [range(1, 5), range(11)])
def test_a_batch_of_other_entries_is_no_answer(entries: range) -> None:
    """RD-8, RD-10."""
    world = reader()
    world.answer("a", batch(0, [body(e) for e in entries]))
    assert world.runs == [] and world.bookies == ["b"]


@pytest.mark.parametrize("bodies", [b"", b"\x00\x00\x00\xff1"])
def test_a_batch_that_is_none(bodies: bytes) -> None:
    """RD-10: a bad first entry means the next replica."""
    world = reader()
    world.answer("a", BatchReadResponse(0, Status.OK, LEDGER, 0, bodies))
    assert world.runs == [] and world.bookies == ["b"]


def test_chunks_stay_inside_a_fragment() -> None:
    """RD-10, META-5: the second fragment's bookies are asked for its entries."""
    world = reader(md=closed(metadata((1, 1, 1), (0, "a"), (6, "b")), 9))
    first, second = world.asks
    assert (first.bookie, second.bookie) == ("a", "b")
    assert isinstance(first.message, BatchReadRequest) and first.message.entries_max == 6


def test_with_striping_each_lane_is_read_by_itself() -> None:
    """RD-10: a bookie of a striped ledger holds only some of the entries. RD-2: write-set order."""
    world = reader(md=closed(metadata((4, 2, 2)), 9))
    assert [(ask.bookie, ask.message) for ask in world.asks] == [
        ("a", ReadRunRequest(1, LEDGER, 0, 3, 4)),  # 0, 4, 8
        ("b", ReadRunRequest(2, LEDGER, 1, 3, 4)),
        ("c", ReadRunRequest(3, LEDGER, 2, 2, 4)),
        ("d", ReadRunRequest(4, LEDGER, 3, 2, 4)),
    ]
    world.answer_all()
    assert world.entries == expected(0, 9) and world.ends == [None]


@pytest.mark.parametrize("last", [0, 1, 3, 4, 5, 300])
def test_lanes_of_any_length_are_merged(last: int) -> None:
    """RD-10."""
    world = reader(0, last, md=closed(metadata((5, 3, 2)), last))
    while world.asks:
        world.answer(world.asks[-1], good)
        while world.machine.unconsumed:
            world.consume()
    assert world.entries == expected(0, last) and world.ends == [None]


def test_a_lane_goes_on_from_its_prefix_at_the_next_replica() -> None:
    """RD-3, RD-8, RD-10: only that lane; the others are what they are."""
    world = reader(md=closed(metadata((4, 2, 2)), 9))
    world.answer("a", lambda ask: read_run(ask, corrupt=4))
    (following,) = [ask for ask in world.asks if ask.message.entry_id == 4]  # type: ignore[union-attr]
    assert following.bookie == "a" and following.message == ReadRunRequest(5, LEDGER, 4, 2, 4)  # each round asks in write-set order
    world.answer(following, Status.IO_ERROR)
    world.answer(world.asks[-1], good)
    world.answer_all()
    assert world.entries == expected(0, 9) and world.ends == [None]


def test_of_a_striped_ledger_closed_meanwhile_nothing_beyond_the_end_is_shown() -> None:
    """OP-6, RD-11: lanes of which nothing is left, lanes that are cut, and answers that are already there."""
    world = reader(0, 9, md=metadata((4, 2, 2)), unconfirmed=True)
    world.answer("a", good)  # 0, 4, 8
    late = world.ask_of("d")
    world.change(closed(metadata((4, 2, 2)), 2), 2)
    world.answer(late, good)
    world.answer("b", good)
    world.answer("c", good)
    assert world.entries == expected(0, 2) and type(world.ends[0]) is NoSuchEntryError


def test_the_parts_of_a_long_read_begin_at_one_replica_after_the_other() -> None:
    """RD-2: all of them work at it; what is read again is asked of the same ones. A failure moves the rest on as ever."""
    limits = Limits(read_chunk_entries=2, read_chunks_in_flight=5, read_turn_entries=2)
    for _ in range(2):
        world = reader(0, 9, start=1, limits=limits)
        assert world.bookies == ["b", "c", "a", "b", "c"]
    world.answer(world.asks[0], Status.IO_ERROR)
    assert world.bookies == ["c", "a", "b", "c", "c"]
    world.answer_all()
    assert world.entries == expected(0, 9) and world.ends == [None]


def test_a_replica_s_turn_lasts_for_so_many_entries() -> None:
    """What a bookie read ahead of one part of the read is asked of it by the next part."""
    limits = Limits(read_chunk_entries=2, read_chunks_in_flight=5, read_turn_entries=3)
    assert reader(0, 9, start=1, limits=limits).bookies == ["b", "b", "c", "c", "a"]
    assert reader(0, 9, start=1, limits=limits, options=ReadOptions(spread=False)).bookies == ["b"] * 5


def test_runs_leave_in_order_whatever_order_answers_come_in() -> None:
    """RD-10; one entry that fails fails the range."""
    world = reader(0, 9, batch=False, limits=Limits(read_chunk_entries=2))
    for ask in reversed(world.asks[1:]):
        world.answer(ask, good)
    assert world.runs == []
    world.answer(world.asks[0], good)
    assert world.entries == expected(0, 9) and world.ends == [None]
    world = reader(0, 1, batch=False, limits=Limits(read_chunk_entries=1))
    first, second = world.asks
    world.answer(second, good)
    world.answer(first, Status.IO_ERROR)
    fail_all(world, Status.IO_ERROR, Status.IO_ERROR)
    assert world.runs == [] and len(world.ends) == 1


def test_how_far_a_read_is_ahead_is_bounded_in_bytes() -> None:
    """RD-10: whatever entries and answers there are, what is held and asked for stays near the bound, and the reader gets on."""
    world = reader(0, 99, md=closed(OPEN, 99), limits=Limits(read_chunk_entries=10, read_ahead_bytes=25))
    assert len(world.asks) == 3  # 10 entries of a byte each are asked for at a time
    world.answer(world.asks[1], lambda ask: batch(10, [body(e) for e in range(10, 15)]))
    world.answer(world.asks[1], good)
    assert len(world.asks) == 1 and world.runs == []  # 30 bytes are here: what the middle one lacks has to wait
    world.answer(world.asks[0], lambda ask: batch(0, [body(e) for e in range(5)]))
    assert world.asks == []
    while not world.ends:
        while world.machine.unconsumed:
            world.consume()
        world.answer_all()
    assert world.entries == expected(0, 99) and world.ends == [None]


def test_single_reads_begin_with_a_few_while_the_size_of_entries_is_not_known() -> None:
    """RD-10: of a ledger that is open nothing tells it; each of them may have as much as a frame holds."""
    for md, few in ((OPEN, [8]), (metadata((5, 3, 2)), [1] * 5)):
        world = reader(0, 9999, batch=False, md=md)
        assert [getattr(ask.message, "count", 1) for ask in world.asks] == few
        world.answer_all()
        assert sum(getattr(ask.message, "count", 1) for ask in world.asks) >= LANE_ENTRIES
    sizes = EntrySizes(OPEN)
    assert getattr(reader(0, 9999, batch=False, sizes=sizes).asks[0].message, "count", 1) == 8
    sizes.saw(EntryRun(0, 1, b"x" * 100, memoryview(array("q", (0, 100)))))  # by another read of the same handle
    assert getattr(reader(0, 9999, batch=False, sizes=sizes).asks[0].message, "count", 1) == LANE_ENTRIES


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)])
@pytest.mark.parametrize("seed", range(20))
def test_runs_of_single_reads_hold_no_more_than_the_bound(seed: int, quorums: tuple[int, int, int]) -> None:
    """RD-10: whatever was guessed, entries become a thousand times larger and smaller in the middle of a ledger; nobody takes them for a
    while. What two blocks were asked for before the jump may come on top, and each run may have one entry too much."""
    rng = random.Random(seed)
    jumps = sorted(rng.randrange(600) for _ in range(4))
    large, limits = 20_000, Limits(read_batch_bytes=50_000, read_ahead_bytes=300_000)

    def size(entry_id: int) -> int:
        return large if sum(at <= entry_id for at in jumps) % 2 else 20

    def answers(ask: SendRead) -> Response:
        message = ask.message
        if isinstance(message, ReadRequest):
            return large_single(message.entry_id, size(message.entry_id))
        assert isinstance(message, ReadRunRequest)
        run = RunAnswers(message)
        for entry_id in range(message.entry_id, message.last_entry_id + 1, message.step):
            if run.awaits(entry_id):
                run.take(large_single(entry_id, size(entry_id)))
        return run.response(Status.TIMEOUT)

    world = reader(0, 599, batch=False, md=metadata(quorums), limits=limits)
    read = most = 0
    while not world.ends:
        while world.asks:
            world.answer(rng.choice(world.asks), answers)
            held = sum(run.payload_bytes for run in world.runs[read:]) + sum(block.held for block in world.machine._blocks)
            most = max(most, held)
        while read < len(world.runs):
            read += 1
            world.consume()
    assert world.entries == {entry_id: b"x" * size(entry_id) for entry_id in range(600)}
    lanes = quorums[0] if quorums[0] > quorums[1] else 1
    assert most <= 2 * limits.read_ahead_bytes + 2 * lanes * large, f"seed {seed}: {most}"


def large_single(entry_id: int, size: int) -> ReadResponse:
    content = layout.encode_body(LEDGER, entry_id, entry_id - 1, size, b"x" * size, DigestType.CRC32C, b"")
    return ReadResponse(0, Status.OK, LEDGER, entry_id, content)


def test_how_much_is_asked_for_follows_the_size_of_entries() -> None:
    """RD-10: about what one answer holds."""
    limits = Limits(read_batch_bytes=1000)
    counts = {size: reader(0, 99, md=replace(closed(OPEN, 99), length=100 * size), limits=limits).asks[0].message for size in (0, 36, 9000)}
    assert [message.entries_max for message in counts.values() if isinstance(message, BatchReadRequest)] == [15, 10]
    assert isinstance(counts[9000], ReadRequest)


def test_the_window_bounds_what_is_asked_and_not_taken() -> None:
    """RD-10: the next chunk is asked when a run has been taken."""
    world = reader(0, 9, limits=Limits(read_chunk_entries=1, read_chunks_in_flight=2))
    world.answer_all()
    assert len(world.runs) == 2 and world.asks == []
    world.consume()
    assert len(world.asks) == 1
    many = reader(0, 999, batch=False, md=closed(OPEN, 999))
    assert sum(ask.message.count for ask in many.asks if isinstance(ask.message, ReadRunRequest)) == SINGLE_READS_IN_FLIGHT


def test_a_bookie_without_batch_reads_is_asked_entry_by_entry() -> None:
    """wire-protocol.md 8.5: an old bookie closes the connection, which links tell as BAD_REQUEST (LINK-7); nothing is held against it once
    it answers a single read."""
    world = reader(0, 1)
    world.answer("a", Status.BAD_REQUEST)
    (ask,) = world.asks
    assert isinstance(ask.message, ReadRequest) and ask.bookie == "a"
    assert not world.machine.batch_refused
    world.answer(ask, good)
    assert world.machine.batch_refused and world.logs == []
    (ask,) = world.asks
    assert isinstance(ask.message, ReadRequest) and ask.message.entry_id == 1
    world.answer(ask, good)
    assert world.ends == [None]


def test_a_dead_bookie_is_no_reason_to_give_batch_reads_up() -> None:
    """RD-10: the single read fails too, so it was the bookie and not the request."""
    world = reader(0, 1)
    world.answer("a", Status.BAD_REQUEST)
    world.answer("a", Status.UNAVAILABLE)
    (ask,) = world.asks
    assert isinstance(ask.message, BatchReadRequest) and ask.bookie == "b"
    world.answer(ask, good)
    assert world.ends == [None] and not world.machine.batch_refused


def test_a_lost_connection_is_no_refusal_of_batch_reads() -> None:
    """LINK-7: the next replica is asked, by batch read again."""
    world = reader(0, 1)
    world.answer("a", Status.UNAVAILABLE)
    (ask,) = world.asks
    assert isinstance(ask.message, BatchReadRequest) and ask.bookie == "b"
    world.answer(ask, good)
    assert world.ends == [None] and not world.machine.batch_refused


# --- RD-2 ----------------------------------------------------------------------------------------------------------------


def test_a_handle_s_reads_share_the_order() -> None:
    """RD-2: a failure met by one read moves where the next one starts; a bad copy counts, a late answer does not."""
    order = ReplicaOrder(Distribution(3, 3, 2), 2)
    world = reader(4, 4, order=order)
    assert world.bookies == ["c"]
    world.answer("c", single(4, corrupt=True))
    assert order.sticky == 0 and world.bookies == ["a"]
    world.answer("a", good)
    assert reader(4, 4, order=order).bookies == ["a"]


@pytest.mark.parametrize("entry_id", [2**31 - 1, 2**31, 2**31 + 1, 2**62 + 5, 2**63 - 2])
def test_large_entry_ids_are_striped_like_small_ones(entry_id: int) -> None:
    """SM-5, scenario 59: e mod E in 64 bits."""
    md = replace(metadata((5, 3, 2)), state=LedgerState.CLOSED, last_entry_id=entry_id)
    world = reader(entry_id, entry_id, md=md)
    asked = []
    for _ in range(3):
        asked.append(world.bookies[0])
        world.answer(world.asks[0], Status.IO_ERROR)
    assert asked == ["abcde"[(entry_id + k) % 5] for k in range(3)]


def test_requests_are_numbered_from_where_the_caller_says() -> None:
    """SM-3: machines that follow each other in one world never share a number."""
    world = reader(4, 4, first_request=50)
    assert world.asks[0].request == 50 and world.machine.next_request == 51
    world.answer("a", good)
    assert world.machine.unconsumed == 1


def test_a_close_cuts_parts_that_wait_for_their_turn() -> None:
    """OP-6: whole parts and half ones."""
    world = reader(0, 19, md=OPEN, unconfirmed=True, limits=Limits(read_chunk_entries=10))
    head = world.asks[0]
    world.answer(world.asks[1], batch(10, [body(10), body(11), body(12)]))
    world.answer(world.asks[1], batch(13, [body(13), body(14)]))
    world.change(closed(OPEN, 11), 2)
    world.answer(head, good)
    assert world.entries == expected(0, 11)
    assert type(world.ends[0]) is NoSuchEntryError
