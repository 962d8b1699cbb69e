"""Sealing moves the oldest part of the tail into the history and merges references, so that the list stays small for ever. Pure.

Sealing does not change what a log lists, only where it is stored. Levels fall from front to back (a trim may leave lower ones at the very
front): when ``fan_out`` references at the end have one level, one of the next level takes their place. So a log of n segments has about
``fan_out`` * log(n) references in its list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.history import Chunk
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import HistoryRef, Segment

_CHUNKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SealLimits:
    """Sealing begins when the tail has more than ``tail_max`` segments, and leaves ``tail_max`` - ``chunk`` of them there."""

    tail_max: int = 256
    chunk: int = 128
    fan_out: int = 16

    def __post_init__(self) -> None:
        """Check the limits. A new leader recovers the last two ledgers, so two segments always stay in the tail; live ones are among them
        (LOG-1)."""
        if self.chunk < 1 or self.tail_max - self.chunk < 2 or self.fan_out < 2:
            raise InvalidArgumentError(f"need chunk >= 1, tail_max >= chunk + 2 and fan_out >= 2, not {self}")


SEAL_LIMITS = SealLimits()


def next_chunk(listed: LedgerList, limits: SealLimits = SEAL_LIMITS) -> Chunk:
    """Return the segments or references to seal next, or () if the list is small enough. One chunk has at most eight times ``chunk``
    segments."""
    last = listed.history[-limits.fan_out :]
    if len(last) == limits.fan_out and len({ref.level for ref in last}) == 1:
        return last
    if len(listed.segments) <= limits.tail_max:
        return ()
    count = min(len(listed.segments) - limits.tail_max + limits.chunk, _CHUNKS_AT_ONCE * limits.chunk)
    return listed.segments[:count]


def ref_to(items: Chunk, ledger_id: int, entry_id: int = 0) -> HistoryRef:
    """Return the reference to ``items``, kept in that entry."""
    first = items[0]
    spans = [(item.ledger_id, item.ledger_id) for item in items]
    times = [(s.committed_at_ms, s.committed_at_ms) for s in items if isinstance(s, Segment)]
    refs = [item for item in items if isinstance(item, HistoryRef)]
    spans += [(ref.min_ledger, ref.max_ledger) for ref in refs]
    times += [(ref.first_ms, ref.last_ms) for ref in refs]
    return HistoryRef(
        level=refs[0].level + 1 if refs else 0,
        ledger_id=ledger_id,
        entry_id=entry_id,
        first_seq=first.seq if isinstance(first, Segment) else first.first_seq,
        count=items[-1].after_seq - (first.seq if isinstance(first, Segment) else first.first_seq),
        rows=sum(item.rows for item in items),
        bytes=sum(item.bytes for item in items),
        min_ledger=min(low for low, _ in spans),
        max_ledger=max(high for _, high in spans),
        first_ms=min(low for low, _ in times),
        last_ms=max(high for _, high in times),
    )


def seal(listed: LedgerList, steps: Sequence[tuple[Chunk, HistoryRef]]) -> LedgerList | None:
    """Put each reference in the place of its items. None if they are not there any more (somebody else has sealed or trimmed meanwhile), or
    if a janitor has condemned the reference's ledger.
    """
    for items, ref in steps:
        if ref.ledger_id in listed.condemned:
            return None
        if isinstance(items[0], Segment):
            if listed.segments[: len(items)] != items:
                return None
            left = tuple(span for span in listed.batches if span.after_seq > ref.after_seq)
            listed = replace(listed, segments=listed.segments[len(items) :], history=(*listed.history, ref), batches=left)
        else:
            if listed.history[-len(items) :] != items:
                return None
            listed = replace(listed, history=(*listed.history[: -len(items)], ref))
    return listed
