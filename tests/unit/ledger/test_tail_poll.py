"""One long poll: who is asked, and what ends the wait."""

from __future__ import annotations

import pytest

from bk_core.errors import NoSuchEntryError, ReadError, UnauthorizedError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.events import BookieLost, ReadReply
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.read.long_poll import POLL_SPECULATE, LongPoll, PollResult
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status
from tests.unit.ledger.reader_world import LEDGER, World, body, metadata, nothing_new, payload, single

S = 1_000_000_000
EVERYBODY = set("abcdef")


def poll(
    md: LedgerMetadata | None = None, *, primed: set[str] | None = None, options: ReadOptions | None = None, previous: int = 4
) -> World:
    found = md or metadata()
    machine = LongPoll(
        LEDGER,
        found,
        previous,
        "poll",
        limits=Limits(),
        options=options or ReadOptions(),
        order=ReplicaOrder(Distribution(found.ensemble_size, found.write_quorum_size, found.ack_quorum_size)),
        primed=EVERYBODY if primed is None else primed,
    )
    return World(machine).start()


def is_poll(ask: SendRead) -> bool:
    return isinstance(ask.message, ReadRequest) and ask.message.previous_lac is not None


def result(world: World) -> PollResult:
    (end,) = world.ends
    assert isinstance(end, PollResult)
    return end


def test_all_positions_are_asked_because_the_lac_may_advance_in_any_write_set() -> None:
    """LC-6; LC-5: previous LAC, time, piggyback, no fence."""
    world = poll(metadata((5, 2, 2)))
    assert sorted(world.bookies) == list("abcde")
    for ask in world.asks:
        message = ask.message
        assert isinstance(message, ReadRequest)
        assert (message.entry_id, message.previous_lac, message.timeout_ms) == (LAST_ENTRY, 4, 2000)
        assert message.piggyback and not message.fence
        assert ask.timeout_ns is not None and ask.timeout_ns > 2 * S  # must exceed what the bookie may take


def test_the_entry_that_comes_along_ends_the_wait() -> None:
    """LC-6: entry n verified."""
    world = poll()
    world.answer("b", single(5, max_lac=5))
    found = result(world)
    assert found.lac == 5 and found.run is not None
    assert (found.run.first_entry_id, found.run.payloads()) == (5, [payload(5)])
    world.answer("a", single(5, max_lac=5))
    assert len(world.ends) == 1  # RD-12


def test_an_entry_without_a_lac_beside_it_is_confirmed_all_the_same() -> None:
    """LC-5: it is only sent when the LAC is above the one polled from."""
    world = poll()
    world.answer("b", single(5))
    assert result(world).lac == 5


def test_a_lac_without_the_entry_ends_the_wait() -> None:
    """LC-6: the entry is then read normally."""
    world = poll()
    world.answer("b", nothing_new(9))
    assert result(world) == PollResult(9)


@pytest.mark.parametrize("bad", [single(5, max_lac=9, corrupt=True), single(6, max_lac=9), ReadResponse(0, Status.OK, LEDGER, 5, b"")])
def test_a_bad_entry_is_a_failed_bookie(bad: ReadResponse) -> None:
    """RD-8: and its LAC is not believed."""
    world = poll()
    for bookie in "abc":
        assert world.ends == []
        world.answer(bookie, bad)
    assert isinstance(world.ends[0], ReadError) and world.ends[0].context["status"] == "DIGEST"


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 2), (3, 2, 1), (1, 1, 1)])
def test_enough_empty_answers_end_the_wait(quorums: tuple[int, int, int]) -> None:
    """LC-6: E - AQ + 1, over the ensemble."""
    world = poll(metadata(quorums))
    needed = quorums[0] - quorums[2] + 1
    for count in range(needed):
        assert world.ends == [], count
        world.answer(world.asks[0], nothing_new(4 if count % 2 else None))
    assert result(world) == PollResult()


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 2), (1, 1, 1)])
def test_too_many_denials(quorums: tuple[int, int, int]) -> None:
    """LC-6: more than E - AQ definite negatives."""
    world = poll(metadata(quorums))
    for _ in range(quorums[0] - quorums[2] + 1):
        assert world.ends == []
        world.answer(world.asks[0], Status.NO_LEDGER)
    assert isinstance(world.ends[0], NoSuchEntryError)


def test_when_all_fail_the_first_real_error_is_told() -> None:
    """LC-6, RD-6."""
    world = poll()
    for bookie, status in zip("abc", (Status.UNAVAILABLE, Status.IO_ERROR, Status.TIMEOUT), strict=True):
        world.answer(bookie, status)
    (error,) = world.ends
    assert isinstance(error, ReadError) and error.context["status"] == "IO_ERROR"
    world = poll(metadata((1, 1, 1)))
    world.answer("a", Status.UNAUTHORIZED)
    assert isinstance(world.ends[0], UnauthorizedError)


def test_some_empty_and_some_denials_are_no_advance() -> None:
    """LC-6: 4/2/2 with two of each: neither count is reached and nobody failed."""
    world = poll(metadata((4, 2, 2)))
    for ask, answer in zip(list(world.asks), (nothing_new(), nothing_new(), Status.NO_ENTRY, Status.NO_ENTRY), strict=True):
        assert world.ends == []
        world.answer(ask, answer)
    assert result(world) == PollResult()


# --- the plain read before the first poll ------------------------------------------------------------------------------


def test_a_bookie_s_first_poll_is_preceded_by_a_plain_read() -> None:
    """wire-protocol.md 8.7: else DbLedgerStorage sleeps through a LAC it has on disk."""
    primed = {"a"}
    world = poll(primed=primed)
    assert {ask.bookie: is_poll(ask) for ask in world.asks} == {"a": True, "b": False, "c": False}
    world.answer("b", ReadResponse(0, Status.OK, LEDGER, LAST_ENTRY, body(4, lac=3), 3))
    world.answer(next(a for a in world.asks if a.bookie == "c"), Status.NO_LEDGER)
    assert primed == {"a", "b"} and world.ends == []  # "c" knows no LAC yet
    assert sorted(world.bookies) == ["a", "b", "c"] and all(is_poll(ask) for ask in world.asks)


@pytest.mark.parametrize(("lac", "max_lac"), [(7, None), (3, 7), (7, 2)])
def test_a_plain_read_may_tell_the_lac_at_once(lac: int, max_lac: int | None) -> None:
    """LC-6, RD-9."""
    world = poll(primed=set())
    world.answer("b", ReadResponse(0, Status.OK, LEDGER, LAST_ENTRY, body(8, lac=lac), max_lac))
    assert result(world) == PollResult(7)


@pytest.mark.parametrize("answer", [Status.UNAVAILABLE, ReadResponse(0, Status.OK, LEDGER, LAST_ENTRY, body(8, corrupt=True), 9)])
def test_a_bookie_that_fails_the_plain_read_is_not_polled(answer: Status | ReadResponse) -> None:
    """LC-6: and needs another plain read next time."""
    primed: set[str] = set()
    world = poll(metadata((1, 1, 1)), primed=primed)
    world.answer("a", answer)
    assert isinstance(world.ends[0], ReadError) and primed == set() and world.asks == []


# --- one after the other -----------------------------------------------------------------------------------------------

SEQUENTIAL = ReadOptions(parallel_polls=False)


def test_sequential_polls_follow_up_speculatively() -> None:
    """LC-6, RD-4: the write set of the entry first, the others then; each follow-up takes twice as long."""
    world = poll(metadata((4, 2, 2)), options=SEQUENTIAL)
    assert world.bookies == ["b"]  # entry 5
    delays = []
    while world.timers:
        delays.append(world.timers[POLL_SPECULATE])
        world.fire(POLL_SPECULATE)
    assert world.bookies == ["b", "c", "a", "d"]
    assert delays == [2 * S, 4 * S, 8 * S]
    world.answer("d", nothing_new(9))
    assert result(world) == PollResult(9)


def test_sequential_polls_ask_the_next_when_one_failed() -> None:
    """LC-6: also without speculation."""
    world = poll(options=ReadOptions(parallel_polls=False, speculative=False))
    assert world.timers == {}
    asked = []
    while world.asks:
        asked.append(world.bookies[0])
        world.answer(world.asks[0], Status.IO_ERROR)
    assert sorted(asked) == ["a", "b", "c"] and isinstance(world.ends[0], ReadError)


def test_what_means_nothing_to_a_poll() -> None:
    """RD-12, SM-3."""
    world = poll(options=SEQUENTIAL)
    assert world.machine.handle(ReadReply(99, "a", Status.OK, single(5)), 0) == []
    assert world.machine.handle(BookieLost("a"), 0) == []
    for _ in range(2):
        world.fire(POLL_SPECULATE)
    assert len(world.asks) == 3 and world.timers == {}
    world.perform(world.machine._ask_next())
    assert len(world.asks) == 3
