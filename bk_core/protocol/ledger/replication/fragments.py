"""Functions without state about fragments: which may be checked and copied, which entries a position stores, and how bookies
are exchanged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bk_core.errors import ReplicationError
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, Fragment, LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class FragmentSpan:
    """The decided entries ``first_entry_id..last_entry_id`` of one fragment; there are none if the last is below the first."""

    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[BookieId, ...]

    @property
    def is_empty(self) -> bool:
        return self.last_entry_id < self.first_entry_id


def distribution_of(metadata: LedgerMetadata) -> Distribution:
    return Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)


def known_last_entry(metadata: LedgerMetadata) -> int:
    """Return the highest entry that is decided: ``last_entry_id`` of a CLOSED ledger, else the entry before the last fragment.

    This floor (D5) makes every fragment but the last eligible even where no bookie tells a LAC that high (R18).
    """
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return metadata.last_fragment.first_entry_id - 1


def eligible_fragments(metadata: LedgerMetadata, *, with_empty: bool = False) -> tuple[FragmentSpan, ...]:
    """Return all fragments of a CLOSED ledger, clipped to its end; of any other ledger all but the last, never the last (RR-2, RR-12, R15).

    A fragment of a CLOSED ledger beyond the last entry stores nothing and is left out (RR-4, R17). With ``with_empty`` it comes with an
    empty span, for callers who want a bookie's name to vanish.
    """
    end = known_last_entry(metadata)
    closed = metadata.state is LedgerState.CLOSED
    candidates = metadata.fragments if closed else metadata.fragments[:-1]
    spans: list[FragmentSpan] = []
    for index, fragment in enumerate(candidates):
        following = metadata.fragments[index + 1].first_entry_id - 1 if index + 1 < len(metadata.fragments) else end
        span = FragmentSpan(fragment.first_entry_id, min(following, end), fragment.ensemble)
        if with_empty or not span.is_empty:
            spans.append(span)
    return tuple(spans)


def is_eligible(metadata: LedgerMetadata, first_entry_id: int) -> bool:
    """Return True if the fragment with this key is eligible (RR-2). It is looked up and not searched, because this is asked once for each
    fragment."""
    index = fragment_index(metadata, first_entry_id)
    return index is not None and (metadata.state is LedgerState.CLOSED or index < len(metadata.fragments) - 1)


def fragment_index(metadata: LedgerMetadata, first_entry_id: int) -> int | None:
    """Return the index of the fragment with this key in the metadata; None if there is none."""
    index = bisect_left(metadata.fragments, first_entry_id, key=lambda fragment: fragment.first_entry_id)
    found = index < len(metadata.fragments) and metadata.fragments[index].first_entry_id == first_entry_id
    return index if found else None


def span_now(metadata: LedgerMetadata, span: FragmentSpan) -> FragmentSpan:
    """Return ``span`` with the bookies that its fragment has in ``metadata``. Raises ReplicationError if the fragment is gone or undecided
    (RR-2)."""
    index = fragment_index(metadata, span.first_entry_id)
    if index is None or not is_eligible(metadata, span.first_entry_id):
        raise _gone(span.first_entry_id)
    return replace(span, ensemble=metadata.fragments[index].ensemble)


def open_tail_without(metadata: LedgerMetadata, available: Collection[BookieId]) -> tuple[BookieId, ...]:
    """Return the bookies of the undecided last fragment that are not in ``available``, whether or not anything was written (RR-3, R16)."""
    if metadata.state is LedgerState.CLOSED:
        return ()
    return tuple(bookie for bookie in metadata.last_fragment.ensemble if bookie not in available)


# --- the entries of a position ------------------------------------------------------------------------------------------


def stripe(distribution: Distribution, position: int, first: int, last: int) -> Iterator[int]:
    """Yield the ids in ``first..last`` whose write set has ``position``, ascending."""
    return (entry_id for entry_id in range(first, last + 1) if distribution.holds(position, entry_id))


def stored_bounds(distribution: Distribution, position: int, first: int, last: int) -> tuple[int, int] | None:
    """Return the first and last id that ``position`` stores of ``first..last``; None if it stores none.

    This is computed over the stripe, not the range (RR-4, R36): with E > Qw the ends of the range may belong to other positions.
    """
    size = distribution.ensemble_size
    low = next(stripe(distribution, position, first, min(first + size - 1, last)), None)
    if low is None:
        return None
    high = next(entry_id for entry_id in range(last, last - size, -1) if distribution.holds(position, entry_id))
    return low, high


@dataclass(frozen=True, slots=True)
class EntryRanges:
    """The ids of one position as inclusive ranges over its stripe: ``(3, 9)`` means every id from 3 to 9 that the position stores."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def over_stripe(cls, distribution: Distribution, position: int, ids: Iterable[int]) -> EntryRanges:
        """Return ids, given in any order, as ranges; they are joined where the stripe has nothing in between."""
        ranges: list[list[int]] = []
        for entry_id in sorted(ids):
            if ranges and next(stripe(distribution, position, ranges[-1][1] + 1, entry_id), entry_id) == entry_id:
                ranges[-1][1] = entry_id
            else:
                ranges.append([entry_id, entry_id])
        return cls(tuple((low, high) for low, high in ranges))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, entry_id: object) -> bool:
        return isinstance(entry_id, int) and any(low <= entry_id <= high for low, high in self.ranges)

    def __or__(self, other: EntryRanges) -> EntryRanges:
        """Return the ids of both, with overlapping ranges joined."""
        joined: list[list[int]] = []
        for low, high in sorted((*self.ranges, *other.ranges)):
            if joined and low <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        return EntryRanges(tuple((low, high) for low, high in joined))

    def count(self, distribution: Distribution, position: int) -> int:
        """The number of ids. Each period of the stripe is counted at once."""
        size, held = distribution.ensemble_size, distribution.write_quorum_size
        total = 0
        for low, high in self.ranges:
            periods, rest = divmod(high - low + 1, size)
            total += periods * held + sum(1 for _ in stripe(distribution, position, high - rest + 1, high))
        return total

    def __str__(self) -> str:
        return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)


# --- changes of metadata ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """The replacement of ``old`` by ``new`` at one position of one fragment."""

    position: int
    old: BookieId
    new: BookieId


def exchanged(metadata: LedgerMetadata, first_entry_id: int, exchanges: Iterable[Exchange]) -> LedgerMetadata | None:
    """Return the metadata in which the fragment with that key has each ``old`` replaced by ``new`` at the same position; everything else is
    unchanged (RR-7).

    The result is None if every exchange is there already (one's own write whose answer was lost, scenario 18). Raises ReplicationError if a
    position names neither ``old`` nor ``new``, if ``new`` meanwhile stands elsewhere in the ensemble, or if the fragment is gone or
    undecided (RR-2).
    """
    changed = _exchanged_fragment(metadata, first_entry_id, exchanges)
    return None if changed is None else _with_fragments(metadata, [changed])


def exchanged_together(
    metadata: LedgerMetadata, exchanges: Mapping[int, Sequence[Exchange]], refused: dict[int, ReplicationError]
) -> LedgerMetadata | None:
    """Return the metadata with several fragments changed at once, each as ``exchanged`` does it (RR-7). A fragment that cannot be exchanged
    stays as it is, with its error in ``refused``, and does not affect the others. The result is None if nothing is left to write."""
    refused.clear()
    changes: list[tuple[int, Fragment]] = []
    for first_entry_id, wanted in exchanges.items():
        try:
            changed = _exchanged_fragment(metadata, first_entry_id, wanted)
        except ReplicationError as error:
            refused[first_entry_id] = error
        else:
            changes += [] if changed is None else [changed]
    return _with_fragments(metadata, changes) if changes else None


def _with_fragments(metadata: LedgerMetadata, changes: Iterable[tuple[int, Fragment]]) -> LedgerMetadata:
    fragments = list(metadata.fragments)
    for index, fragment in changes:
        fragments[index] = fragment
    return replace(metadata, fragments=tuple(fragments))


def _gone(first_entry_id: int) -> ReplicationError:
    return ReplicationError(f"fragment {first_entry_id} is gone or not decided; its bookies stay")


def _exchanged_fragment(metadata: LedgerMetadata, first_entry_id: int, exchanges: Iterable[Exchange]) -> tuple[int, Fragment] | None:
    index = fragment_index(metadata, first_entry_id)
    if index is None or not is_eligible(metadata, first_entry_id):
        raise _gone(first_entry_id)
    fragment = metadata.fragments[index]
    ensemble = list(fragment.ensemble)
    for exchange in exchanges:
        present = ensemble[exchange.position]
        if present == exchange.new:
            continue
        if present != exchange.old:
            raise ReplicationError(f"another program put {present} where {exchange.old} was in fragment {first_entry_id}")
        if exchange.new in ensemble:
            raise ReplicationError(f"another program put {exchange.new} into fragment {first_entry_id} meanwhile")
        ensemble[exchange.position] = exchange.new
    return None if tuple(ensemble) == fragment.ensemble else (index, replace(fragment, ensemble=tuple(ensemble)))


def exchanges_of(span: FragmentSpan, targets: Mapping[int, BookieId]) -> tuple[Exchange, ...]:
    return tuple(Exchange(position, span.ensemble[position], new) for position, new in sorted(targets.items()))
