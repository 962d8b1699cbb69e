"""Walks the history of a log, a forest of references whose chunks are loaded one by one and only where they are needed.

A *load* is injected. It returns the children of a reference, in order, and is expected to remember them (closed ledgers never change).
Items are segments and references alike, always in the order of the log and without gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from bk_core.errors import LogError
from bk_core.protocol.log.segments import HistoryRef, Segment

Chunk: TypeAlias = "tuple[Segment, ...] | tuple[HistoryRef, ...]"
Load: TypeAlias = Callable[[HistoryRef], Chunk]
Item: TypeAlias = "Segment | HistoryRef"


def no_history(ref: HistoryRef) -> Chunk:
    """Raise LogError; this is the load for callers that cannot read ledgers."""
    span = f"{ref.first_seq}..{ref.after_seq - 1}"
    raise LogError(f"segments {span} are in history ledger {ref.ledger_id}, which is not readable here", ledger=ref.ledger_id)


def find(refs: Sequence[HistoryRef], seq: int, load: Load) -> Segment:
    """Return the segment ``seq``, which one of ``refs`` holds."""
    ref = refs[bisect_right(refs, seq, key=lambda item: item.first_seq) - 1]
    chunk = load(ref)
    first = chunk[0]
    if isinstance(first, Segment):
        found = chunk[seq - first.seq]
        assert isinstance(found, Segment)
        return found
    return find([item for item in chunk if isinstance(item, HistoryRef)], seq, load)


def pieces(items: Iterable[Item], first_seq: int, load: Load) -> Iterator[Item]:
    """Yield items that cover the segments from ``first_seq`` on, as large as they come; only references that straddle it are loaded."""
    for item in items:
        if item.after_seq <= first_seq:
            continue
        if isinstance(item, Segment) or item.first_seq >= first_seq:
            yield item
        else:
            yield from pieces(load(item), first_seq, load)


def segments_of(items: Iterable[Item], first_seq: int, last_seq: int, load: Load) -> Iterator[Segment]:
    """Yield the segments ``first_seq .. last_seq`` (inclusive) among ``items``."""
    for item in items:
        if isinstance(item, Segment):
            if first_seq <= item.seq <= last_seq:
                yield item
        elif item.after_seq > first_seq and item.first_seq <= last_seq:
            yield from segments_of(load(item), first_seq, last_seq, load)


def counts(items: Iterable[Item], seq: int, load: Load) -> tuple[int, int]:
    """Return (rows, bytes) of all segments before ``seq`` among ``items``."""
    rows = size = 0
    for item in items:
        if item.after_seq <= seq:
            rows, size = rows + item.rows, size + item.bytes
        elif isinstance(item, HistoryRef) and item.first_seq < seq:
            part_rows, part_size = counts(load(item), seq, load)
            return rows + part_rows, size + part_size
        else:
            break
    return rows, size


def named(items: Iterable[Item], wanted: Collection[int], load: Load, trimmed_seq: int = 0) -> frozenset[int]:
    """Return those of the ledgers ``wanted`` that a segment from ``trimmed_seq`` on names, or that a reference lies in."""
    found: set[int] = set()
    for item in items:
        missing = [ledger_id for ledger_id in wanted if ledger_id not in found]
        if item.ledger_id in missing and item.after_seq > trimmed_seq:
            found.add(item.ledger_id)
        if isinstance(item, HistoryRef) and any(item.min_ledger <= ledger_id <= item.max_ledger for ledger_id in missing):
            found |= named(load(item), missing, load, trimmed_seq)
    return frozenset(found)
