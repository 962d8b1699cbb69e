"""The reading side of a log with a history, against a plain list of segments; every answer of the one must be the answer of the other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, LogDataLossError, LogError
from bk_core.protocol.log.codec import decode, decode_chunk, encode, encode_chunk
from bk_core.protocol.log.history import Chunk, no_history
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits, next_chunk, ref_to, seal
from bk_core.protocol.log.segments import HistoryRef, LogProperties, Segment, SegmentRange
from bk_core.protocol.log.view import LogView

SMALL = SealLimits(tail_max=5, chunk=3, fan_out=2)


@dataclass
class World:
    """A log, its history ledgers as bytes, and beside it every segment it ever had."""

    listed: LedgerList = field(default_factory=lambda: LedgerList(log_id="a"))
    model: list[Segment] = field(default_factory=list)
    ledgers: dict[int, bytes] = field(default_factory=dict)
    loads: int = 0
    next_ledger: int = 1000
    gone: set[int] = field(default_factory=set)

    def load(self, ref: HistoryRef) -> Chunk:
        self.loads += 1
        return decode_chunk(self.ledgers[ref.ledger_id], "a", ref)

    @property
    def view(self) -> LogView:
        return LogView(self.listed, self.load)

    @property
    def kept(self) -> list[Segment]:
        return self.model[self.listed.trimmed_seq :]

    def append(self, *ranges: SegmentRange, at_ms: int = 1) -> None:
        batch = len(self.model)
        self.listed = self.listed.append_segments(ranges, at_ms, "q", batch)
        for r in ranges:
            entries = (r.first_entry_id, r.last_entry_id)
            self.model.append(Segment(len(self.model), r.ledger_id, *entries, r.rows, r.bytes, at_ms, r.rows_per_entry))

    def seal(self, limits: SealLimits = SMALL) -> None:
        while chunk := next_chunk(self.listed, limits):
            self.next_ledger += 1
            self.ledgers[self.next_ledger] = encode_chunk("a", chunk)
            sealed = seal(self.listed, [(chunk, ref_to(chunk, self.next_ledger))])
            assert sealed is not None
            self.listed = sealed

    def delete_condemned(self) -> None:
        self.gone.update(self.listed.condemned)
        for ledger_id in self.listed.condemned:
            self.ledgers.pop(ledger_id, None)
        self.listed = self.listed.absolve(self.listed.condemned)

    def sweep_all(self, keep: Collection[int] = ()) -> list[int]:
        gone = list(self.listed.condemned)
        while self.listed.dropped:
            self.listed, free = self.listed.sweep(self.load, keep)
            gone += free
            self.delete_condemned()
        self.delete_condemned()
        return gone


def grown(count: int, limits: SealLimits = SMALL) -> World:
    """``count`` segments of ten rows in three entries (4, 4, 2) of ten bytes each; two segments per ledger."""
    world = World()
    for i in range(count):
        world.append(SegmentRange(i // 2, 3 * (i % 2), 3 * (i % 2) + 2, 10, 30, 4), at_ms=100 + i)
        world.seal(limits)
    return world


# --- naive answers --------------------------------------------------------------------------------------------------------


def naive_positions(segments: list[Segment]) -> list[tuple[Position, int, int]]:
    """Every position with the cumulative (rows, bytes) before it, up to the first live segment, by going through it unit by unit."""
    found = []
    rows = size = 0
    for s in segments:
        if s.live:
            break
        for unit in range(s.units):
            per_entry = s.rows_per_entry or 1
            part = (s.rows * unit // s.units, s.bytes * unit // s.units)
            found.append((Position(s.seq, s.first_entry_id + unit // per_entry, unit % per_entry), rows + part[0], size + part[1]))
        rows, size = rows + s.rows, size + s.bytes
    return found


def check(world: World, rng: random.Random) -> None:
    view, listed = world.view, world.listed
    assert list(view.segments()) == world.kept
    assert decode(encode(listed)) == listed
    positions = [p for p in naive_positions(world.model) if p[0].seq >= listed.trimmed_seq]
    total = (sum(s.rows for s in world.model), sum(s.bytes for s in world.model))
    assert (listed.total_rows, listed.total_bytes) == total
    end = (view.end_position, *total)
    for position, rows, size in rng.sample(positions, min(8, len(positions))):
        assert view.normal(position) == position
        assert view.counts_before(position) == (rows, size)
        limits = rng.choice([None, rng.randrange(60)]), rng.choice([None, rng.randrange(300)])
        fitting = [p for p in [*positions, end] if p[0] > position and _fits(p[1] - rows, limits[0]) and _fits(p[2] - size, limits[1])]
        following = [p[0] for p in [*positions, end] if p[0] > position]
        expected = fitting[-1][0] if fitting else following[0]
        assert view.position_at_rows(position, *limits) == expected, (position, limits)
    assert view.counts_before(view.end_position) == total
    for s in rng.sample(world.kept, min(5, len(world.kept))):
        assert view.segment(s.seq) == s
        if s.entries:
            entry = rng.randint(s.first_entry_id, s.first_entry_id + s.entries - 1)
            assert view.position_of_entry(s.ledger_id, entry) == Position(s.seq, entry)
    ms = rng.randrange(120)
    since = next((s.seq for s in world.kept if s.live or s.committed_at_ms >= ms), None)
    assert view.position_at_time(ms) == (None if since is None else view.normal(Position(since)))
    wanted = {rng.randrange(40) for _ in range(4)}
    assert view.named(wanted) == wanted & {s.ledger_id for s in world.kept}


def _fits(amount: int, limit: int | None) -> bool:
    return limit is None or amount <= limit


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_a_random_walk_agrees_with_a_plain_list_of_segments(seed: int) -> None:
    """Commits of several shapes, live segments, sealing over several levels, trims and sweeps in any order."""
    rng = random.Random(seed)
    world = World()
    next_entry: dict[int, int] = {}
    for step in range(40):
        action = rng.random()
        if world.listed.live_segments:
            world.listed = _close_live(world, rng, 100 * step)
        elif action < 0.6:
            world.append(
                *(_some_range(rng, next_entry, step, world.gone) for _ in range(rng.randint(1, 3))), at_ms=100 * step + rng.randint(1, 99)
            )
        elif action < 0.7:
            ledger = 500 + step
            world.listed = world.listed.add_live_segment(ledger, 100 * step)
            world.model.append(Segment(len(world.model), ledger, 0, None, 0, 0, 100 * step))
        elif action < 0.85 and world.model:
            seq = rng.randint(0, len(world.model))
            world.listed, _ = world.listed.trim(seq, world.load, keep=_some(rng, world))
        else:
            world.sweep_all(_some(rng, world))
            world.listed = world.listed.settle(_some(rng, world), world.load)
        world.gone.update(world.listed.condemned)
        if rng.random() < 0.7:
            world.seal()
        if step % 3 == 0:
            check(world, rng)
    world.sweep_all()
    world.listed = world.listed.settle((), world.load)
    world.delete_condemned()
    check(world, rng)
    assert world.listed.released == ()
    assert _reachable(world.listed.history, world) | {r.ledger_id for r in world.listed.opened} == set(world.ledgers), (
        "history ledgers that nothing refers to"
    )
    assert len(world.listed.history) < 14
    assert world.gone.isdisjoint(s.ledger_id for s in world.kept)
    assert {s.ledger_id for s in world.model} <= world.gone | {s.ledger_id for s in world.kept}


def _reachable(refs: tuple[HistoryRef, ...], world: World) -> set[int]:
    found: set[int] = set()
    for ref in refs:
        found.add(ref.ledger_id)
        found |= _reachable(tuple(item for item in world.load(ref) if isinstance(item, HistoryRef)), world)
    return found


def _some_range(rng: random.Random, next_entry: dict[int, int], step: int, gone: Collection[int]) -> SegmentRange:
    """Ledgers overlap in time as those of several workers do; one that was deleted is not written any more."""
    ledger = next(i for i in itertools.count(step // 4 * 2 + rng.randrange(3)) if i not in gone)
    first = next_entry.get(ledger, 0) + rng.randrange(2)
    entries, per_entry = rng.randint(1, 4), rng.choice([0, 1, 1, 3, 5])
    next_entry[ledger] = first + entries
    rows = rng.randint(per_entry * (entries - 1) + 1, per_entry * entries) if per_entry else rng.randint(0, 9)
    return SegmentRange(ledger, first, first + entries - 1, rows, rng.randint(0, 50), per_entry)


def _some(rng: random.Random, world: World) -> set[int]:
    """Ledgers that somebody is entitled to write just now."""
    return {s.ledger_id for s in world.model if rng.random() < 0.2}


def _close_live(world: World, rng: random.Random, at_ms: int) -> LedgerList:
    last = world.model[-1]
    end = rng.randint(-1, 5)
    size = 7 * (end + 1)
    world.model[-1] = replace(last, last_entry_id=end, rows=end + 1, bytes=size, committed_at_ms=at_ms)
    return world.listed.close_live(last.ledger_id, end, size, at_ms)


# --- by hand ------------------------------------------------------------------------------------------------------------------


def test_the_list_stays_small_however_many_segments_there_are() -> None:
    world = grown(3000, SealLimits(tail_max=16, chunk=8, fan_out=4))
    sizes = [len(encode(grown(n, SealLimits(tail_max=16, chunk=8, fan_out=4)).listed)) for n in (300,)]
    assert len(encode(world.listed)) < 2 * sizes[0]
    assert len(world.listed.segments) <= 16 and len(world.listed.history) <= 4 * 5
    levels = [ref.level for ref in world.listed.history]
    assert levels == sorted(levels, reverse=True) and levels[0] == 4


def test_questions_about_the_tail_load_nothing_and_others_one_chunk_per_level() -> None:
    world = grown(200, SealLimits(tail_max=16, chunk=8, fan_out=4))
    view = world.view
    view.position_at_rows(Position(195), 10, None)
    view.counts_before(view.end_position)
    view.position_at_time(295)
    assert [s.seq for s in view.segments(196)] == [196, 197, 198, 199] and world.loads == 0
    levels = world.listed.history[0].level + 1
    view.segment(3)
    assert world.loads == levels
    world.loads = 0
    assert view.position_at_rows(Position(199, 3), None, None) == view.end_position
    assert view.position_at_rows(view.first_position, 1900, None) == Position(190)
    assert world.loads <= 4 * levels  # a handful of look-ups, whatever the number of chunks between


def test_a_history_that_cannot_be_loaded_is_said() -> None:
    world = grown(20)
    with pytest.raises(LogError, match=r"segments 0..\d+ are in history ledger"):
        LogView(world.listed).segment(0)
    assert LogView(world.listed).segment(19).ledger_id == 9
    with pytest.raises(LogError):
        no_history(world.listed.history[0])
    assert "segments 0..19" in repr(world.view) and world.view.properties == LogProperties()


def test_rows_are_exact_at_every_position_and_normal_forms_are_unique() -> None:
    view = grown(20).view
    assert view.normal(Position(4, 1, 4)) == Position(4, 2)
    assert view.normal(Position(4, 2, 2)) == view.normal(Position(4, 9)) == Position(5, 3)
    assert view.normal(Position(4, 0, 3)) == Position(4, 0, 3)
    assert view.normal(Position(5, 0, 3)) == Position(5, 3)  # entry 0 stands for the first: a row of it means nothing
    assert view.counts_before(Position(4, 1, 3)) == (47, 141)
    assert view.position_at_rows(Position(4, 1, 3), 3, None) == Position(5, 3)
    assert view.position_at_rows(Position(4, 1, 3), 2, None) == Position(4, 2, 1)
    assert view.position_at_rows(view.end_position, 5, 5) == view.end_position


def test_a_segment_without_known_rows_per_entry_is_cut_between_entries_only() -> None:
    world = World()
    world.append(SegmentRange(1, 0, 2, 10, 30, 0))
    view = world.view
    assert view.position_at_rows(Position(0), 4, None) == Position(0, 1)
    assert view.position_at_rows(Position(0), 1, None) == Position(0, 1)
    assert view.counts_before(Position(0, 1)) == (3, 10)
    assert view.normal(Position(0, 1, 7)) == Position(0, 1, 7)  # nothing is known of it, so nothing is made up


def test_entries_are_found_by_ledger_whether_listed_between_or_behind() -> None:
    world = grown(20)
    world.append(SegmentRange(100, 5, 6, 2, 20), at_ms=200)
    world.append(SegmentRange(100, 10, 11, 2, 20), at_ms=201)
    world.seal()
    view = world.view
    assert view.position_of_entry(3, 4) == Position(7, 4)
    assert view.position_of_entry(100, 0) == Position(20, 5)
    assert view.position_of_entry(100, 8) == Position(21, 10)
    assert view.position_of_entry(100, 50) == view.end_position
    with pytest.raises(LogDataLossError, match="ledger 777 is not in the log"):
        view.position_of_entry(777, 0)
    world.listed = world.listed.add_live_segment(101, 202)
    assert world.view.position_of_entry(101, 7) == Position(22, 7)
    world.listed = world.listed.close_live(101, -1, 0, 203).add_live_segment(102, 300)
    assert world.view.position_of_entry(101, 0) == Position(23)
    trimmed, _ = world.listed.trim(8, world.load)
    with pytest.raises(LogDataLossError, match="now starts at segment 8"):
        LogView(trimmed, world.load).position_of_entry(3, 4)


def test_a_time_is_the_first_segment_committed_since_and_a_live_one_always_counts() -> None:
    world = grown(20)
    assert world.view.position_at_time(0) == Position(0)
    assert world.view.position_at_time(107) == Position(7, 3)
    assert world.view.position_at_time(119) == Position(19, 3)
    assert world.view.position_at_time(120) is None
    assert LogView(world.listed.add_live_segment(500, 1)).position_at_time(120) == Position(20)
    assert LogView(LedgerList("a")).position_at_time(0) is None
    trimmed, _ = world.listed.trim(4, world.load)
    assert LogView(trimmed, world.load).position_at_time(0) == Position(4)


def test_trimming_into_the_history_opens_what_straddles_the_cut_and_frees_what_is_before() -> None:
    world = grown(40)
    trimmed, free = world.listed.trim(21, world.load)
    assert LogView(trimmed, world.load).first_position == Position(21, 3)
    assert set(range(10)) & trimmed.named(range(20), world.load) == set()
    assert 10 not in free  # segment 21 is in it, which is kept
    assert trimmed.dropped and all(ref.after_seq <= 21 for ref in trimmed.dropped)
    world.listed = trimmed
    gone = world.sweep_all()
    assert set(range(10)) <= {*gone, *free}
    assert world.view.counts_before(Position(21)) == (210, 630)
    assert _reachable(world.listed.history, world) | {ref.ledger_id for ref in trimmed.opened} == set(world.ledgers)
    assert world.listed.trim(40, world.load)[0].history == ()


def test_ledgers_that_the_caller_keeps_are_not_condemned() -> None:
    """An overwrite goes on in the ledger that the trimmed rows are in; and a janitor watches those that have an intent."""
    world = grown(20)
    everything, free = world.listed.trim(20, world.load, keep={9, 3})
    assert 9 not in free and 9 not in everything.condemned
    world.listed = everything
    while world.listed.dropped:
        world.listed, _ = world.listed.sweep(world.load, keep={3})
    assert 3 not in world.listed.condemned and 4 in world.listed.condemned
    assert world.listed.released == (3, 9) and decode(encode(world.listed)) == world.listed
    assert world.listed.settle({3, 9}, world.load) is world.listed
    assert world.listed.append_segments([SegmentRange(9, 50, 51, 2, 2)], 1, "q", 99).next_seq == 21
    again = world.listed.append_segments([SegmentRange(9, 50, 51, 2, 2)], 1, "q", 99).settle((), world.load)
    assert again.released == () and 3 in again.condemned and 9 not in again.condemned


def test_a_janitor_condemns_neither_what_the_history_names_nor_the_history_itself() -> None:
    world = grown(60)
    hidden = next(item for item in world.load(world.listed.history[0]) if isinstance(item, HistoryRef))
    listed = world.listed.condemn([2, hidden.ledger_id, world.listed.history[-1].ledger_id, 99], world.load)
    assert listed.condemned == (99,)
    assert listed.condemn([99, 2], world.load) is listed
    dropped, _ = world.listed.trim(60, world.load)
    assert hidden.ledger_id in dropped.mentioned([hidden.ledger_id, 99], world.load)
    assert hidden.ledger_id not in dropped.condemn([hidden.ledger_id], world.load).condemned


def test_somebody_else_sealed_or_trimmed_meanwhile() -> None:
    world = grown(5)
    world.append(SegmentRange(50, 0, 0, 1, 1))
    chunk = next_chunk(world.listed, SMALL)
    step = (chunk, ref_to(chunk, 2000))
    first = seal(world.listed, [step])
    assert first is not None and seal(first, [step]) is None
    assert seal(world.listed.condemn([2000]), [step]) is None
    assert seal(world.listed.trim(1)[0], [step]) is None
    many = grown(40, SealLimits(tail_max=5, chunk=3, fan_out=20))
    refs = next_chunk(many.listed, SMALL)
    merge = (refs, ref_to(refs, 3000))
    once = seal(many.listed, [merge])
    assert once is not None and seal(once, [merge]) is None


@pytest.mark.parametrize("limits", [(2, 1, 2), (5, 0, 2), (5, 3, 1)])
def test_limits_of_sealing_leave_two_segments_and_really_merge(limits: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="tail_max"):
        SealLimits(*limits)
