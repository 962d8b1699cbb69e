"""Looks at a cluster again and again: bookies, how many ledgers come and go, how fast logs grow. The load of one look is bounded."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.client.doctor.bookies import states_of
from bk_core.client.doctor.probe import TIMEOUT_S, BookieProbe, probe_bookies
from bk_core.client.inspect import intact_header
from bk_core.client.log.list_store import is_log_name, log_path, read_ledger_list
from bk_core.client.log.live_writers import LiveWriter, foremost, live_writers
from bk_core.display.ledgers import DOWN
from bk_core.errors import BkError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import BookieId, LedgerState
from bk_core.protocol.log.ledger_list import LedgerList

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.client.ledger.read_handle import ReadHandle

LOGS_MAX = 200
"""The number of logs whose growth is watched: the first by name."""
NEW_MAX = 1000  # ledgers made meanwhile of which it is watched if they are closed
_LISTING_SHARE = 0.1  # of the time may be spent on listing ledgers, of which there may be millions


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """A log at one look. ``rows`` and ``bytes`` are all that were ever written, with what a live writer has confirmed so far. The rates are
    those since the look before; None at the first one. ``writer`` is the one of a live segment, None without one."""

    name: str
    rows: int
    bytes: int
    rows_per_second: float | None
    bytes_per_second: float | None
    writer: LiveWriter | None


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at a cluster. ``created`` and ``deleted`` count ledgers since the first look, ``closed`` those of the created ones that are
    closed by now. ``logs_total`` is the number of all logs; ``logs`` has at most ``LOGS_MAX``, the fastest first."""

    at_ms: int
    cluster: str
    states: Mapping[BookieId, str]
    probes: Mapping[BookieId, BookieProbe]
    ledgers: int
    created: int
    closed: int
    deleted: int
    logs: Sequence[LogGrowth]
    logs_total: int


class ClusterWatch:
    """Looks at one cluster. It reads only; a live ledger is asked for its LAC, which disturbs no writer.

    A look costs a probe of each bookie, a list of each watched log, and two reads for each live ledger. Ledgers are listed again only when
    that took less than a tenth of the time since the last listing.
    """

    def __init__(self, client: BookKeeper, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._ids: array[int] | None = None
        self._listed_s = self._listing_s = 0.0
        self._created = self._closed = self._deleted = 0
        self._new: set[int] = set()
        self._live: dict[int, ReadHandle] = {}
        self._before: dict[str, tuple[float, int, int]] = {}

    def look(self) -> Moment:
        """Look once. Raises what a lost metadata store raises; the next look may succeed."""
        client = self._client
        cluster = client.store.cluster_id()
        states = states_of(client)
        registered = [bookie for bookie, state in states.items() if state != DOWN]
        probes = probe_bookies(client, registered, timeout_s=self._timeout_s)
        self._list_ledgers()
        names = [name for name in client.store.children("logs") if is_log_name(name)]
        logs = sorted(self._logs(names[:LOGS_MAX]), key=lambda log: (-(log.bytes_per_second or 0.0), log.name))
        counts = (len(self._ids or ()), self._created, self._closed, self._deleted)
        return Moment(time.time_ns() // 1_000_000, cluster, states, probes, *counts, logs, len(names))

    def close(self) -> None:
        """Close the readers of live ledgers."""
        for handle in self._live.values():
            handle.close()
        self._live.clear()

    # --- ledgers ---------------------------------------------------------------------------------------------------------

    def _list_ledgers(self) -> None:
        now = time.monotonic()
        if self._ids is None or (now - self._listed_s) * _LISTING_SHARE >= self._listing_s:
            found = array("q", self._client.list_ledgers())
            self._listing_s = time.monotonic() - now
            self._listed_s = now
            if self._ids is not None:
                made, gone = _changes(self._ids, found)
                self._created += len(made)
                self._deleted += gone
                self._new.update(made[: max(0, NEW_MAX - len(self._new))])
            self._ids = found
        for ledger_id, stored in self._client.store.read_ledgers(sorted(self._new)):
            with suppress(BkError):
                if stored is None or metadata_codec.decode(stored.data).state is LedgerState.CLOSED:
                    self._new.discard(ledger_id)
                    self._closed += stored is not None

    # --- logs ------------------------------------------------------------------------------------------------------------

    def _logs(self, names: Collection[str]) -> list[LogGrowth]:
        found: list[LogGrowth] = []
        live: set[int] = set()
        for name in names:
            try:
                log_path(name)
                listed = read_ledger_list(self._client, name)
                growth = self._growth(name, listed)
            except BkError:  # deleted meanwhile, or unreadable: `bk cluster doctor` tells
                continue
            live.update(segment.ledger_id for segment in listed.live_segments)
            found.append(growth)
        for ledger_id in self._live.keys() - live:
            self._live.pop(ledger_id).close()
        for gone in self._before.keys() - set(names):
            del self._before[gone]
        return found

    def _growth(self, name: str, listed: LedgerList) -> LogGrowth:
        now = time.monotonic()
        rows, size = listed.total_rows, listed.total_bytes
        for segment in listed.live_segments:
            more_rows, length = self._confirmed(segment.ledger_id, segment.first_entry_id)
            listed_bytes = sum(one.bytes for one in listed.segments if one.ledger_id == segment.ledger_id)
            rows, size = rows + more_rows, size + max(0, length - listed_bytes)
        before = self._before.get(name)
        self._before[name] = (now, rows, size)
        rates: tuple[float | None, float | None] = (None, None)
        if before is not None and now > before[0]:
            # never below zero: what a live writer confirmed may be listed without what is uncertain
            rates = (max(0, rows - before[1]) / (now - before[0]), max(0, size - before[2]) / (now - before[0]))
        writer = foremost(live_writers(self._client, [segment.ledger_id for segment in listed.live_segments]))
        return LogGrowth(name, rows, size, *rates, writer)

    def _confirmed(self, ledger_id: int, first_entry_id: int) -> tuple[int, int]:
        """Return the confirmed entries of a live segment, and the confirmed payload bytes of its whole ledger; zeros where it cannot be
        read, as with a password."""
        try:
            handle = self._live.get(ledger_id)
            if handle is None:
                handle = self._live[ledger_id] = self._client.open_ledger(ledger_id)
            last = handle.try_read_last_add_confirmed()
            if last < first_entry_id:
                return 0, 0
            header = intact_header(self._client, ledger_id, handle.metadata, last, rotation=0)
        except BkError:
            return 0, 0
        return last - first_entry_id + 1, 0 if header is None or header.length is None else header.length


def _changes(before: Sequence[int], now: Sequence[int]) -> tuple[list[int], int]:
    """Return the ids that are new, and the number of those that are gone. Both are ascending."""
    made: list[int] = []
    at = kept = 0
    for ledger_id in now:
        while at < len(before) and before[at] < ledger_id:
            at += 1
        if at < len(before) and before[at] == ledger_id:
            kept += 1
        else:
            made.append(ledger_id)
    return made, len(before) - kept
