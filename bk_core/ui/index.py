"""The ledgers of a cluster, as little of each as filters need: the ids in order, and for each a shared value of its state, bookies, log and
write sets.

A hundred thousand ledgers take about ten megabytes here. Whatever else a page shows of a ledger is read when it is shown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice

from bk_core.display.ledgers import UNREADABLE
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.log.identity import LOG_KEY


@dataclass(frozen=True, slots=True)
class Kind:
    """The state, bookies and log that many ledgers have in common. ``write_sets`` are the bookies of each write set with entries."""

    state: str
    bookies: frozenset[str]
    log: str
    write_sets: frozenset[frozenset[str]] = frozenset()


UNREAD = Kind("?", frozenset(), "")
SPARE = 1000
"""The number of shared values that may be kept although no ledger has them: logs and bookies come and go as long as the page runs."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The ledgers that are wanted; an empty field takes all. ``most_id`` is the highest id."""

    state: str = ""
    bookie: str = ""
    log: str = ""
    most_id: int | None = None

    @property
    def needs_kind(self) -> bool:
        """True if the metadata of a ledger has to be known."""
        return bool(self.state or self.bookie or self.log)

    def takes(self, kind: Kind) -> bool:
        """Return True if a ledger of this kind is wanted."""
        return (
            (not self.state or kind.state == self.state)
            and (not self.bookie or self.bookie in kind.bookies)
            and (not self.log or kind.log == self.log)
        )


class LedgerIndex:
    """One thread changes it. Others read: ``ids`` is replaced as a whole, and never changed."""

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self._kinds: dict[int, Kind] = {}
        self._shared: dict[Kind, Kind] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def known(self) -> int:
        """The number of ledgers whose metadata was read."""
        return len(self._kinds)

    def replace(self, ids: array[int]) -> tuple[list[int], list[int]]:
        """Take a new list of all ids, ascending; return those that came and those that went."""
        created, deleted = _differences(self.ids, ids)
        self.ids = ids
        for one in deleted:
            self._kinds.pop(one, None)
        if len(self._shared) > len(self._kinds) + SPARE:
            self._shared = {kind: kind for kind in self._kinds.values()}
        return created, deleted

    def learn(self, ledger_id: int, metadata: LedgerMetadata | None) -> None:
        """Note the metadata of a ledger; None for metadata that cannot be understood."""
        kind = Kind(UNREADABLE, frozenset(), "") if metadata is None else _kind(metadata)
        self._kinds[ledger_id] = self._shared.setdefault(kind, kind)

    def forget(self, ledger_id: int) -> None:
        """Drop what is known of a ledger that does not exist any more."""
        self._kinds.pop(ledger_id, None)

    def kind(self, ledger_id: int) -> Kind:
        """Return what is known of a ledger."""
        return self._kinds.get(ledger_id, UNREAD)

    def states(self) -> Counter[str]:
        """Return the number of ledgers in each state, and "?" for those that were not read yet."""
        found = Counter(kind.state for kind in tuple(self._kinds.values()))
        unread = len(self.ids) - sum(found.values())
        return found + Counter({UNREAD.state: max(0, unread)})

    def unread(self, most: int) -> list[int]:
        """Return ids whose metadata was not read yet, the newest first."""
        return list(islice((one for one in reversed(self.ids) if one not in self._kinds), most)) if len(self._kinds) < len(self.ids) else []

    def without_copy(self, alive: Set[str]) -> list[int]:
        """Return the ids of ledgers with entries of which no bookie of ``alive`` has a copy, ascending."""
        lost = {id(kind) for kind in tuple(self._shared) if any(alive.isdisjoint(one) for one in kind.write_sets)}
        return sorted(one for one, kind in tuple(self._kinds.items()) if id(kind) in lost) if lost else []

    def count(self, wanted: Filter) -> int:
        """Return the number of ledgers that the filter takes."""
        return sum(1 for _ in self._wanted((one for one in self.ids if wanted.most_id is None or one <= wanted.most_id), wanted))

    def older(self, wanted: Filter, below: int | None, count: int) -> list[int]:
        """Return ids that the filter takes, the highest first, all below ``below``."""
        ids = self.ids
        end = len(ids) if below is None else bisect_left(ids, below)
        if wanted.most_id is not None:
            end = min(end, bisect_right(ids, wanted.most_id))
        return list(islice(self._wanted((ids[at] for at in range(end - 1, -1, -1)), wanted), count))

    def newer(self, wanted: Filter, above: int, count: int) -> list[int]:
        """Return the ``count`` ids next above ``above`` that the filter takes, the highest first."""
        ids = self.ids
        end = len(ids) if wanted.most_id is None else bisect_right(ids, wanted.most_id)
        return list(islice(self._wanted((ids[at] for at in range(bisect_right(ids, above), end)), wanted), count))[::-1]

    def _wanted(self, ids: Iterable[int], wanted: Filter) -> Iterator[int]:
        takes: Callable[[int], bool] = (lambda one: wanted.takes(self.kind(one))) if wanted.needs_kind else (lambda _: True)
        return (one for one in ids if takes(one))


def _kind(metadata: LedgerMetadata) -> Kind:
    bookies = frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
    log = metadata.custom.get(LOG_KEY, b"").decode("utf-8", "replace")
    return Kind(metadata.state.name, bookies, log, frozenset(_write_sets(metadata)))


def _write_sets(metadata: LedgerMetadata) -> Iterator[frozenset[str]]:
    """Yield the bookies of each write set that has entries, or may have some. Write sets repeat after E entries."""
    size = metadata.ensemble_size
    distribution = Distribution(size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ends = [*(one.first_entry_id for one in metadata.fragments[1:]), metadata.last_entry_id + 1]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        first = fragment.first_entry_id
        goes_on = fragment is metadata.last_fragment and metadata.state is not LedgerState.CLOSED
        count = min(size if distribution.striped else 1, size if goes_on else end - first)
        for entry_id in range(first, first + count):
            yield frozenset(fragment.ensemble[position] for position in distribution.write_set(entry_id))


def _differences(before: array[int], now: array[int]) -> tuple[list[int], list[int]]:
    """Return what is in ``now`` only and what is in ``before`` only, of two ascending lists, in one pass over both."""
    created: list[int] = []
    deleted: list[int] = []
    at, end = 0, len(before)
    for one in now:
        while at < end and before[at] < one:
            deleted.append(before[at])
            at += 1
        if at < end and before[at] == one:
            at += 1
        else:
            created.append(one)
    deleted.extend(before[at:])
    return created, deleted
