"""Reads ranges of entries from their ledgers, in order, with the next ledgers opened ahead. No pyspark."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from bk_core.background import WorkerPool
from bk_core.client.log.list_store import now_ms
from bk_core.errors import BkError, LogDataLossError, NoSuchLedgerError
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_spark.entries.columns import RunSplitter
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.unpacking import Entries

_log = logging.getLogger("bk_spark.read")
OPENERS = 4  # ledgers that a reader opens ahead
Stretch = list[EntryRange]
LedgerEnd = tuple[int, int, bool]
"""The last entry, the payload bytes, and True if the ledger is CLOSED there."""


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges with one client. ``reads`` are its read options, ``known`` the metadata of ledgers that need not be asked for.

    Without ``fail_on_data_loss`` ledgers that are gone are left out, with a warning for each stretch. ``advice`` ends the message of the
    error otherwise; it is asked with the ledger's id.
    """

    client: Any
    password: bytes = field(repr=False)
    reads: Any
    known: Mapping[int, Versioned]
    fail_on_data_loss: bool
    advice: Callable[[int], str]

    def runs(self, ranges: Sequence[EntryRange]) -> Iterator[tuple[EntryRange, Iterator[Entries]]]:
        """Yield each range with its entries. Ranges that touch are read as one, through one handle. A range's runs must be used up before
        the next one is asked for."""
        for stretch, handle in self._opened(list(_touching(ranges))):
            first, last = stretch[0], stretch[-1]
            with handle as ledger:
                _check_end(ledger, stretch)
                # The planner learned that these entries are acknowledged, from a ledger list or a LAC; this handle's LAC may be lower
                # (RD-1).
                found = ledger.read_runs(first.first, last.last, unchecked_bound=first.acknowledged)
                runs = RunSplitter(self._there(stretch, ledger, found))
                for r in stretch:
                    yield r, runs.through(r.last)

    def _there(self, stretch: Stretch, ledger: Any, runs: Iterator[Entries]) -> Iterator[Entries]:
        """Yield the runs. If the ledger is found to be gone on the way, ``fail_on_data_loss`` decides between an error and an early end.
        Raises LogDataLossError if it was closed before their end since the planner looked; ClusterChangedError (OWN-2)."""
        here = stretch[0].first
        try:
            for run in runs:
                here = run.first_entry_id + run.count
                yield run
        except NoSuchLedgerError:
            if self.fail_on_data_loss:
                raise self._deleted(stretch) from None
            _warn_of_lost(stretch, here)
        except BkError:
            if self.client.store.cluster_has_changed:
                self.client.store.check_cluster()
            _check_end(ledger, stretch)
            raise

    def _open(self, stretch: Stretch) -> Any:
        ledger_id, acknowledged = stretch[0].ledger_id, stretch[0].acknowledged
        if acknowledged and ledger_id in self.known:
            return self.client.open_known(ledger_id, self.known[ledger_id], password=self.password, options=self.reads)
        # otherwise the LAC is not needed
        return self.client.open_ledger(ledger_id, password=self.password, options=self.reads, lac=not acknowledged)

    def _opened(self, stretches: Sequence[Stretch]) -> Iterator[tuple[Stretch, Any]]:
        """Yield each stretch with its handle, in order. The next few are opened meanwhile, unless all are ``known``: opening waits for the
        metadata store, which is most of the time that small ledgers take. A ledger that is gone is an error in its turn."""
        waits = any(not stretch[0].acknowledged or stretch[0].ledger_id not in self.known for stretch in stretches)
        pool = WorkerPool("bk-open", OPENERS) if len(stretches) > 1 and waits else None
        rest = iter(stretches)

        def begun(count: int) -> list[tuple[Stretch, Future[Any] | None]]:
            return [(stretch, None if pool is None else pool.call(partial(self._open, stretch))) for stretch in islice(rest, count)]

        waiting: deque[tuple[Stretch, Future[Any] | None]] = deque((stretch, None) for stretch in islice(rest, 1))
        try:
            waiting.extend(begun(OPENERS - 1))
            while waiting:
                stretch, future = waiting.popleft()
                waiting.extend(begun(1))
                try:
                    handle = self._open(stretch) if future is None else future.result()
                except NoSuchLedgerError:
                    if self.fail_on_data_loss:
                        raise self._deleted(stretch) from None
                    _warn_of_lost(stretch, stretch[0].first)
                    continue
                yield stretch, handle
        finally:
            for _, unused in waiting:
                if unused is not None:
                    with suppress(BkError):
                        unused.result().close()
            if pool is not None:
                pool.close()

    def _deleted(self, stretch: Sequence[EntryRange]) -> LogDataLossError:
        """Return the error for a ledger that was trimmed between planning and reading (RD-6, LOG-13)."""
        first, last, name = stretch[0], stretch[-1], stretch[0].log
        whose = "" if name is None else f" of log {name!r}"
        message = f"entries {first.first}..{last.last} of ledger {first.ledger_id}{whose} are lost: the ledger does not exist (any more)"
        return LogDataLossError(f"{message}. {self.advice(first.ledger_id)}", ledger=first.ledger_id)


def _warn_of_lost(stretch: Stretch, here: int) -> None:
    """Warn that entries from ``here`` on are left out, as the driver does of a ledger that it finds gone when it plans."""
    first, left = stretch[0], [_rows_from(r, here) for r in stretch if r.last >= here]
    rows = None if None in left else sum(count or 0 for count in left)
    whose = "" if first.log is None else f" of log {first.log!r}"
    counted = "" if rows is None else f" ({rows:,} rows)"
    message = f"ledger {first.ledger_id}{whose} does not exist any more: its entries {here}..{stretch[-1].last}{counted} are lost"
    context = {"log": first.log or "", "ledger": str(first.ledger_id), "rows": "" if rows is None else str(rows)}
    _log.warning("%s", LogDataLossError(message, ledger=first.ledger_id), extra={"context": context})


def _rows_from(r: EntryRange, here: int) -> int | None:
    """Return the rows of the range from entry ``here`` on; None if they are not known."""
    if here <= r.first or r.rows is None:
        return r.rows
    return r.rows - ((here - r.first) * r.rows_per_entry - r.skip_rows) if r.rows_per_entry else None


def _touching(ranges: Sequence[EntryRange]) -> Iterator[Stretch]:
    stretch: list[EntryRange] = []
    for r in ranges:
        before = stretch[-1] if stretch else None
        if before and (before.ledger_id, before.last + 1, before.acknowledged) != (r.ledger_id, r.first, r.acknowledged):
            yield stretch
            stretch = []
        stretch.append(r)
    if stretch:
        yield stretch


def _check_end(ledger: Any, stretch: Stretch) -> None:
    """Raise LogDataLossError for a ledger that is known to be CLOSED before the end of what is to be read."""
    first, last, end = stretch[0].first, stretch[-1].last, ledger.last_add_confirmed
    if ledger.is_closed and end < last:
        message = f"entries {max(first, end + 1)}..{last} of ledger {ledger.ledger_id} are lost: the ledger was closed at entry {end}"
        raise LogDataLossError(message, ledger=ledger.ledger_id, first_entry_id=max(first, end + 1), last_entry_id=last)


# --- the ends of ledgers --------------------------------------------------------------------------------------------------


def end_of(client: Any, ledger_id: int, password: bytes, open_ledgers: str) -> LedgerEnd | None:
    """Return (last entry, payload bytes, True if it is CLOSED there) by ``open_ledgers``; None if the ledger is skipped. Never fences
    unless the word is ``recover``."""
    metadata = client.ledger_metadata(ledger_id)
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id, metadata.length, True
    if open_ledgers == "skip":
        return None
    open_ledger = client.recover_ledger if open_ledgers == "recover" else client.open_ledger
    with open_ledger(ledger_id, password=password) as ledger:
        closed = bool(ledger.is_closed)  # this comes before the LAC, which then is the end
        last = int(ledger.last_add_confirmed)
        return last, ledger.length if closed else _estimate(ledger, last), closed


def _estimate(ledger: Any, last: int) -> int:
    """Estimate the payload bytes of entries 0..last of a ledger that is not CLOSED. Its metadata does not have them; a few entries spread
    evenly do."""
    picked = sorted({last * i // 3 for i in range(4)}) if last >= 0 else []
    sizes = [len(payload) for entry in picked for payload in ledger.read(entry, entry)]
    return sum(sizes) * (last + 1) // len(sizes) if sizes else 0


def with_live(view: LogView, ends: Iterable[tuple[Segment, LedgerEnd]]) -> tuple[LogView, Position]:
    """Return the log with its live segments ended at ``ends``, and the end of what can be read. Nothing is read behind a segment whose
    ledger is not CLOSED, nor are later ends asked for (LOG-15)."""
    listed, end = view.listed, view.end_position
    for segment, (last, size, closed) in ends:
        if last >= 0 or closed:
            listed = listed.close_live(segment.ledger_id, last, size, now_ms())
        end = Position(segment.seq + 1) if closed else Position(segment.seq, last + 1)
        if not closed:
            break
    seen = copy(view)
    seen.listed = listed
    return seen, end
