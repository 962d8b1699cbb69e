"""The counts of one embedded bookie, by the names under which its parts count."""

from __future__ import annotations

from bk_core.metrics.registry import Count, Histogram, Registry
from bk_core.metrics.table import BOOKIE

_PREFIX = "bookkeeper_bookie_"


class ServerCounts:
    """The counts of one bookie: of its loop, its storage's threads, and the thread that talks to the metadata store."""

    def __init__(self, of: str = "a bookie") -> None:
        self.registry = registry = Registry(of, BOOKIE)
        self.add_entries = self._count("add_entry_total")
        self.add_bytes = self._count("add_entry_bytes_total")
        self.read_entries = self._count("read_entry_total")
        self.read_bytes = self._count("read_entry_bytes_total")
        self.fences = self._count("fence_total")
        self.journal_bytes = self._count("journal_bytes_total")
        self.collected_ledgers = self._count("collected_ledger_total")
        self.collections_refused = self._count("collection_refused_total")
        self.journal_sync_seconds = self._histogram("journal_sync_seconds")
        self.store_seconds = self._histogram("store_seconds")
        self._registry = registry

    def _count(self, name: str) -> Count:
        return self.registry.count(_PREFIX + name)

    def _histogram(self, name: str) -> Histogram:
        return self.registry.histogram(_PREFIX + name)

    def add_failed(self, status: str, times: int = 1) -> None:
        """Count adds that were refused."""
        self._registry.count(f"{_PREFIX}add_failed_total", status).value += times

    def read_failed(self, status: str) -> None:
        """Count a read that brought no entry."""
        self._registry.count(f"{_PREFIX}read_failed_total", status).value += 1

    def request(self, kind: str) -> None:
        """Count a request that is neither an add nor a read."""
        self._registry.count(f"{_PREFIX}request_total", kind).value += 1

    def refused(self, why: str) -> None:
        """Count a peer that was turned away."""
        self._registry.count(f"{_PREFIX}refused_total", why).value += 1

    def write_failed(self, file: str) -> None:
        """Count a write of the journal or the database that failed."""
        self._registry.count(f"{_PREFIX}write_failed_total", file).value += 1
