"""``client.ledgers()``: the ledgers of a cluster as a table that is read when it is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from bk_core.arguments import COUNT, POSITIVE, checked
from bk_core.client.exploring.filters import LedgerFilters, Wanted
from bk_core.client.exploring.lazy_table import LazyTable
from bk_core.client.exploring.ledger import LEDGER_COLUMNS, Ledger, ledger_row, ledger_summary
from bk_core.client.inspect import found_ledgers
from bk_core.client.showing import SHOWN_S, shown_in_time
from bk_core.display.words import counted
from bk_core.protocol.ledger.metadata import LedgerState

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

SHOWN_ROWS = 20
SHOWN_WITHIN_S = SHOWN_S - 1.0  # what was found by then is shown, and a second is left to show it
TELL_S = 0.5  # between two words of progress


class Ledgers(LazyTable):
    """The ledgers of a cluster, in the order of their ids. Nothing is read before it is asked for, and nothing is kept.

    It never changes: ``where`` and ``limit`` return another table. Each iteration, and each of the calls that return rows, reads anew.
    Metadata is read for many ledgers at a time, and memory holds those alone. Conditions on ids are looked at before. No bookie is asked.
    There is no ``len``, which Python calls by itself, as ``list`` does: that would read everything twice. ``count`` is what it would be.

    >>> table = client.ledgers(state="CLOSED", min_length=1_000_000).limit(100)
    >>> table.to_pandas()
    >>> for ledger in table:
    ...     ledger.ledger_id, ledger.bookies
    """

    columns = LEDGER_COLUMNS

    def __init__(
        self, client: BookKeeper, wanted: Wanted, limit: int | None = None, progress: Callable[[int], object] | bool = False
    ) -> None:
        """``client.ledgers`` makes it, of the ledgers ``wanted`` of ``client``, ``limit`` at most, telling its ``progress`` or not."""
        self._client = client
        self._wanted = wanted
        self._limit = None if limit is None else min(limit, sys.maxsize)  # more than that is no number for islice
        self._progress = progress

    def where(self, predicate: Callable[[Ledger], bool] | None = None, **filters: Unpack[LedgerFilters]) -> Ledgers:
        """Return the table of those of the ledgers that meet these conditions too.

        ``filters`` are those of ``BookKeeper.ledgers``. ``predicate`` is a function of a Ledger that returns True for one to keep. A limit
        that was set counts the ledgers that meet all conditions.

        Raises InvalidArgumentError and ArgumentTypeError for a condition that cannot be.

        >>> client.ledgers().where(lambda ledger: len(ledger.fragments) > 1, state="OPEN")
        """
        return Ledgers(self._client, self._wanted.with_filters(filters, predicate), self._limit, self._progress)

    @checked(limit=COUNT)
    def limit(self, limit: int) -> Ledgers:
        """Return the table of the first ``limit`` of the ledgers. No further ones are read."""
        return Ledgers(self._client, self._wanted, limit if self._limit is None else min(limit, self._limit), self._progress)

    def __iter__(self) -> Iterator[Ledger]:
        """Yield the ledgers. One that is deleted meanwhile is left out. Raises MetadataUnavailableError, NoSuchLogError (``listed_by``)."""
        return self._read(self._progress)

    def _read(self, progress: Callable[[int], object] | bool, scan: _Scan | None = None) -> Iterator[Ledger]:
        wanted, scan = self._wanted, scan or _Scan()
        ids: Iterator[int] = scan.over(wanted.ids(self._client))
        if progress:
            ids = _with_progress(ids, progress)
        if not wanted.tests and not wanted.sources and self._limit is not None:
            ids = islice(ids, self._limit)  # ids alone decide, so the metadata of no further ledger is read
        ledgers = (Ledger(self._client, found) for found in found_ledgers(self._client, ids))
        yield from islice((ledger for ledger in ledgers if wanted.meets(ledger)), self._limit)

    def _rows(self) -> Iterator[dict[str, Any]]:
        return map(ledger_row, self)

    @checked(limit=POSITIVE)
    def head(self, limit: int = 10) -> list[Ledger]:
        """Return the first ``limit`` ledgers."""
        return list(self.limit(limit))

    def count(self) -> int:
        """Return how many ledgers there are. Where ids alone decide, no metadata is read."""
        if not self._wanted.is_cheap:
            return sum(1 for _ in self)
        return sum(1 for _ in islice(self._wanted.ids(self._client), self._limit))

    def copies(self) -> LedgerCopies:
        """Return a table of the places of all entries: a row for each fragment of these ledgers and each bookie of its ensemble."""
        return LedgerCopies(self)

    def __repr__(self) -> str:
        told = list(self._wanted.told) + ([] if self._limit is None else [f"the first {self._limit:,}"])
        which = f" ({', '.join(told)})" if told else ""
        return f"<Ledgers of {self._client.config.shown_uri}{which}: iterate, or call to_pandas(), to_arrow(), to_pylist(), count()>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the first rows, after a few seconds at most. Reading stops there."""
        return shown_in_time(self._shown, repr(self).strip("<>"))

    def _shown(self) -> str:
        from bk_core.display import ledgers, table

        scan = _Scan(time.monotonic() + SHOWN_WITHIN_S)
        found = list(islice(self._read(False, scan), SHOWN_ROWS + 1))
        rows = ledgers.ledgers(map(ledger_summary, found[:SHOWN_ROWS]), time.time_ns() // 1_000_000)
        if scan.is_cut:
            more = f"only the first {counted(scan.looked_at, 'ledger')} were looked at: the cluster took too long for more to be shown here"
        elif len(found) > SHOWN_ROWS:
            more = f"... and more: only the first {SHOWN_ROWS} are shown. count() returns how many there are"
        else:
            more = counted(len(found), "ledger")
        return table.html(repr(self).partition(": iterate")[0].strip("<>"), rows, more)


@dataclass
class _Scan:
    """Counts the ids that were looked at, and ends at a time on the monotonic clock."""

    until_s: float | None = None
    looked_at: int = 0
    is_cut: bool = False

    def over(self, ids: Iterator[int]) -> Iterator[int]:
        for ledger_id in ids:
            if self.until_s is not None and self.looked_at and time.monotonic() > self.until_s:
                self.is_cut = True
                return
            self.looked_at += 1
            yield ledger_id


def _with_progress(ids: Iterator[int], progress: Callable[[int], object] | bool) -> Iterator[int]:
    """Yield the ids, and tell now and then how many of them there were: by a line on standard error, or to a function."""
    told_s, count = time.monotonic(), 0
    for ledger_id in ids:
        yield ledger_id
        count += 1
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            _tell(progress, count)
    _tell(progress, count, end="\n")


def _tell(progress: Callable[[int], object] | bool, count: int, end: str = "") -> None:
    if callable(progress):
        progress(count)
    else:
        print(f"\r{counted(count, 'ledger')} read", end=end, file=sys.stderr, flush=True)


COPY_COLUMNS: Mapping[str, str] = {
    "ledgerId": "BIGINT",
    "fragment": "INT",
    "firstEntryId": "BIGINT",
    "lastEntryId": "BIGINT",
    "position": "INT",
    "bookie": "STRING",
    "entries": "BIGINT",
    "bytes": "BIGINT",
}
"""The columns of a table of places. ``entries`` is how many copies the bookie has, ``bytes`` their part of what the ledger takes."""


class LedgerCopies(LazyTable):
    """The places of the entries of ledgers: a row for each fragment and each bookie of its ensemble. It is read as ``Ledgers`` is.

    ``entries`` and ``bytes`` are what the bookie has to have of it; they are None while the fragment may grow. Metadata knows the bytes of
    whole ledgers only, so ``bytes`` shares them out evenly over the entries.

    >>> client.ledgers().copies().to_pandas().groupby("bookie")["bytes"].sum()
    """

    columns = COPY_COLUMNS

    def __init__(self, ledgers: Ledgers) -> None:
        """``Ledgers.copies`` makes it, of these ``ledgers``."""
        self._ledgers = ledgers

    def _rows(self) -> Iterator[dict[str, Any]]:
        for ledger in self._ledgers:
            yield from copy_rows(ledger)

    def __repr__(self) -> str:
        return f"<LedgerCopies of {self._ledgers!r}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the first rows, after a few seconds at most. Reading stops there."""
        return shown_in_time(self._shown, repr(self).strip("<>"))

    def _shown(self) -> str:
        from bk_core.display import copies, table

        scan = _Scan(time.monotonic() + SHOWN_WITHIN_S)
        found = list(islice((row for ledger in self._ledgers._read(False, scan) for row in copy_rows(ledger)), SHOWN_ROWS + 1))
        if scan.is_cut:
            more = f"only the first {counted(scan.looked_at, 'ledger')} were looked at: the cluster took too long for more to be shown here"
        else:
            more = f"... and more: only the first {SHOWN_ROWS} are shown" if len(found) > SHOWN_ROWS else counted(len(found), "row")
        return table.html(f"copies of {self._ledgers!r}".partition(": iterate")[0], copies.places(found[:SHOWN_ROWS]), more)


def copy_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the rows of one ledger."""
    closed = ledger.state == LedgerState.CLOSED.name
    stored = ledger.stored_bytes or 0
    all_copies = 0 if not closed else (ledger.metadata.last_entry_id + 1) * ledger.metadata.write_quorum_size
    for fragment in ledger.fragments:
        for position, bookie in enumerate(fragment.ensemble):
            copies = fragment.copies_on(position)
            yield {
                "ledgerId": ledger.ledger_id,
                "fragment": fragment.index,
                "firstEntryId": fragment.first_entry_id,
                "lastEntryId": fragment.last_entry_id,
                "position": position,
                "bookie": bookie,
                "entries": copies,
                "bytes": stored * copies // all_copies if closed and copies is not None and all_copies else None,
            }
