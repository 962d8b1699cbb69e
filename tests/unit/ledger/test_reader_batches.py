"""The requests of the range reader for many entries at a time (RD-10): batches, lanes of striped ledgers, how far it is ahead."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from bk_core.errors import NoSuchEntryError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.read.chunks import LANE_ENTRIES, EntrySizes
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.reader import SINGLE_READS_IN_FLIGHT
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse, ReadRunRequest, Response, Status
from bk_core.protocol.wire.read_run import RunAnswers
from tests.unit.ledger.reader_world import (
    LEDGER,
    OPEN,
    batch,
    body,
    closed,
    expected,
    fail_all,
    good,
    metadata,
    read_run,
    reader,
)

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
    """The next part of a read asks a bookie for what it has read ahead."""
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
