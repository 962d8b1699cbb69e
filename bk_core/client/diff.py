"""Compares two replicas of a ledger, entry by entry, as their bookies have them. It neither fences nor writes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bk_core.client.copies import BodyReader, BookieCopies, CopyRun, check_named, held_spans
from bk_core.client.repair.report import OnProgress, Progress
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.wire.messages import Status

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

DIFFERENCES_MAX = 10_000
"""The number of differences that are kept. Further ones are only counted."""
_PLACES = 16  # bytes of the two bounds of one entry


@dataclass(frozen=True, slots=True)
class Difference:
    """Entries ``first`` to ``last``, ``count`` of them, which both bookies should have and which differ alike.

    ``what`` is "only in the first", "only in the second", "in neither", or "differs". Then ``fields`` name what differs in the bodies: LAC,
    length, payload, digest; and the two ``digest_ok`` tell which copy is intact.
    """

    first: int
    last: int
    count: int
    what: str
    fields: tuple[str, ...] = ()
    first_digest_ok: bool | None = None
    second_digest_ok: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReplicaDiff:
    """The differences between the copies of two bookies, of the entries ``first`` to ``last``.

    ``same`` entries are alike byte by byte, ``differing`` are not. ``held_by_one`` should be on one of the two alone and were not compared.
    ``differences`` are at most DIFFERENCES_MAX, in the order of entries.
    """

    ledger_id: int
    bookies: tuple[BookieId, BookieId]
    first: int
    last: int
    same: int
    differing: int
    held_by_one: int
    differences: tuple[Difference, ...]

    def __repr__(self) -> str:
        return f"<ReplicaDiff ledger {self.ledger_id}: {counted(self.same, 'entry', 'entries')} alike, {self.differing:,} not>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import copies, table

        return table.html(copies.differences(self), *copies.diff_notes(self))

    @property
    def is_same(self) -> bool:
        """True if no entry differs."""
        return not self.differing


class _Found:
    """Gathers differences; neighbours that differ alike become one."""

    def __init__(self) -> None:
        self.same = self.differing = self.held_by_one = 0
        self.kept: list[Difference] = []

    def add(self, one: Difference, next_entry: int) -> None:
        self.differing += 1
        last = self.kept[-1] if self.kept else None
        if last is not None and last.last == next_entry and replace(one, first=last.first, last=last.last, count=last.count) == last:
            self.kept[-1] = replace(last, last=one.first, count=last.count + 1)
        elif len(self.kept) < DIFFERENCES_MAX:
            self.kept.append(one)


def diff_replicas(
    client: BookKeeper,
    ledger_id: int,
    metadata: LedgerMetadata,
    bookies: tuple[BookieId, BookieId],
    first: int,
    last: int,
    on_progress: OnProgress | None = None,
) -> ReplicaDiff:
    """Compare the copies that both bookies should have of entries ``first`` to ``last``.

    Raises InvalidArgumentError for bookies that no fragment names, or one bookie twice, and BookieUnavailableError if one gives no answer.
    """
    check_named(ledger_id, metadata, *bookies)
    if bookies[0] == bookies[1]:
        raise InvalidArgumentError(f"a replica differs from another one: bookie {bookies[0]} was given twice", ledger=ledger_id)
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    reader, found = BodyReader(ledger_id, metadata), _Found()
    sources = [BookieCopies(client, ledger_id, bookie) for bookie in bookies]
    held = [{span[0]: span for span in held_spans(metadata, bookie, first, last)} for bookie in bookies]
    done = size = 0
    for start in sorted({*held[0], *held[1]}):
        spans = [one[start] for one in held if start in one]
        low, high = spans[0][:2]
        positions = [span[2] for span in spans]
        for lane, step in _lanes(distribution, low):
            count = max(0, (high - lane) // step + 1)
            holders = [position for position in positions if distribution.holds(position, lane)]
            if len(holders) < 2:
                found.held_by_one += count if holders else 0
                continue
            for pair in _aligned(sources[0].runs(lane, high, step), sources[1].runs(lane, high, step)):
                _compare(*pair, reader, found)
                done, size = done + pair[0].count, size + len(pair[0].frames) + len(pair[1].frames)
                if on_progress is not None:
                    on_progress(Progress(ledger_id, "compare", done, None, size))
    differences = tuple(sorted(found.kept, key=lambda one: (one.first, one.last)))
    return ReplicaDiff(ledger_id, bookies, first, last, found.same, found.differing, found.held_by_one, differences)


def _lanes(distribution: Distribution, first: int) -> list[tuple[int, int]]:
    """Return first entry and step of sequences of entries that have one write set each."""
    step = distribution.ensemble_size if distribution.striped else 1
    return [(first + offset, step) for offset in range(step)]


def _aligned(left: Iterator[CopyRun], right: Iterator[CopyRun]) -> Iterator[tuple[CopyRun, CopyRun]]:
    """Yield what the two tell of the same entries."""
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        count = min(a.count, b.count)
        yield _cut(a, count), _cut(b, count)
        a = next(left, None) if count == a.count else _rest(a, count)
        b = next(right, None) if count == b.count else _rest(b, count)


def _cut(run: CopyRun, count: int) -> CopyRun:
    """Return the first ``count`` entries of a run."""
    if count == run.count:
        return run
    bounds = memoryview(run.bounds)[: count * _PLACES]
    return replace(run, count=count, frames=memoryview(run.frames)[: _place(bounds, -8)], bounds=bounds)


def _rest(run: CopyRun, count: int) -> CopyRun:
    """Return a run without its first ``count`` entries."""
    start = _place(memoryview(run.bounds), count * _PLACES - 8)
    places = array("q", bytes(memoryview(run.bounds)[count * _PLACES :]))
    bounds = array("q", (place - start for place in places)).tobytes()
    frames = memoryview(run.frames)[start:]
    return replace(run, first=run.first + count * run.step, count=run.count - count, frames=frames, bounds=bounds)


def _place(bounds: memoryview, at: int) -> int:
    return int.from_bytes(bounds[at:][:8], sys.byteorder)


def _compare(a: CopyRun, b: CopyRun, reader: BodyReader, found: _Found) -> None:
    if a.status is Status.OK and b.status is Status.OK and a.frames == b.frames:
        found.same += a.count
        return
    for (entry_id, one), (_, other) in zip(_bodies(a), _bodies(b), strict=True):
        if one is not None and one == other:
            found.same += 1
        else:
            found.add(_difference(entry_id, one, other, reader), entry_id - a.step)


def _bodies(run: CopyRun) -> Iterator[tuple[int, memoryview | None]]:
    if run.status is not Status.OK:
        yield run.first, None
    yield from run.bodies()


def _difference(entry_id: int, one: memoryview | None, other: memoryview | None, reader: BodyReader) -> Difference:
    if one is None or other is None:
        what = "in neither" if one is other else "only in the second" if one is None else "only in the first"
        return Difference(entry_id, entry_id, 1, what)
    a, b = reader.copy(entry_id, one), reader.copy(entry_id, other)
    pairs = (("LAC", a.last_add_confirmed, b.last_add_confirmed), ("length", a.length, b.length), ("payload", a.payload, b.payload))
    fields = tuple(name for name, left, right in pairs if left != right)
    return Difference(entry_id, entry_id, 1, "differs", fields or ("digest",), a.digest_ok, b.digest_ok)
