"""Writes off what a log lists although it is lost: segments whose ledger does not exist become empty ones. Pure.

Sequence numbers stay, so every position keeps its meaning. An empty segment needs a ledger that exists and is CLOSED, because a take-over
recovers the last two (LOG-1): a *stand-in* without entries. Lost rows are counted no more; ``repairs`` of the list tells that to those who
know counts from before. That a segment was written off shows by its rows per entry, which are not known any more
(``Segment.written_off``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from bk_core.protocol.log.history import Chunk, Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.sealing import ref_to
from bk_core.protocol.log.segments import HistoryRef, Segment

Store = Callable[[Chunk], int]
"""Writes a chunk of history and returns its ledger."""


def emptied(segment: Segment, stand_in: int) -> Segment:
    return replace(segment, ledger_id=stand_in, first_entry_id=0, last_entry_id=-1, rows=0, bytes=0, rows_per_entry=0)


def write_off(listed: LedgerList, missing: Collection[int], stand_in: int, load: Load, store: Store) -> LedgerList:
    """Return the list without segments of ``missing`` ledgers, and without history that lay in them. It is unchanged if it names none
    (GRD-5).

    A chunk of history that lay in a missing ledger is lost with all that it told: its segments are empty from now on. Chunks around the
    changes are written anew by ``store``; their old ledgers are deleted when all that they tell of is trimmed (``opened``).
    """
    replaced: list[HistoryRef] = []

    def mend(item: Segment | HistoryRef) -> Segment | HistoryRef:
        if isinstance(item, Segment):
            return emptied(item, stand_in) if item.ledger_id in missing else item
        if item.after_seq <= listed.trimmed_seq:
            return item
        if item.ledger_id in missing:
            places = range(item.first_seq, item.after_seq)
            lost = [emptied(Segment(seq, item.ledger_id, 0, -1, committed_at_ms=item.last_ms), stand_in) for seq in places]
            return ref_to(tuple(lost), store(tuple(lost)))
        if not any(item.min_ledger <= ledger_id <= item.max_ledger for ledger_id in missing):
            return item
        before = load(item)
        after: Chunk = tuple(mend(one) for one in before)  # type: ignore[assignment]
        if after == before:
            return item
        replaced.append(item)
        return ref_to(after, store(after))

    history = tuple(mend(ref) for ref in listed.history)
    segments = tuple(mend(segment) for segment in listed.segments)
    if (history, segments) == (listed.history, listed.segments):
        return listed
    opened = (*listed.opened, *replaced)
    return replace(listed, history=history, segments=segments, opened=opened, repairs=listed.repairs + 1)  # type: ignore[arg-type]
