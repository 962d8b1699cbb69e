"""The range reader, rule by rule: which replica is asked when, what counts as an answer, and what the error says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bk_core.errors import BkError, NoSuchEntryError, NoSuchLedgerError, ReadError
from bk_core.protocol.events import BookieLost, LedgerRead, Outcome, ReadReply, ReadsMoving, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.read.failures import Failure, decisive, failure_of
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.ledger.read.reader import SPECULATE
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadResponse, Status
from tests.unit.ledger.reader_world import (
    LEDGER,
    OPEN,
    TEN,
    batch,
    body,
    closed,
    expected,
    fail_all,
    good,
    metadata,
    read_run,
    reader,
    single,
)

S = 1_000_000_000


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


def test_a_bookie_that_answered_well_is_not_waited_for_without_its_connection() -> None:
    """RD-4: the next connection may hang in its handshake, for much longer than another replica takes."""
    world = reader(0, 9, limits=Limits(read_chunk_entries=5), options=ReadOptions(spread=False))
    first, _ = world.asks
    world.answer(first, good)
    asked = len(world.asks)
    world.fire(SPECULATE)
    assert len(world.asks) == asked
    world.perform(world.machine.handle(ReadsMoving(frozenset(), frozenset({"a"})), 0))
    world.fire(SPECULATE)
    assert world.asks[-1].bookie == "b"


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
