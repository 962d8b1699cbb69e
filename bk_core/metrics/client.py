"""The counts of one client, by the names under which its parts count."""

from __future__ import annotations

import weakref
from typing import Protocol

from bk_core.metrics.registry import Count, Histogram, Registry
from bk_core.metrics.snapshot import Labels
from bk_core.metrics.table import CLIENT

_PREFIX = "bookkeeper_client_"


class Reader(Protocol):
    """A reader of a log that knows its lag."""

    name: str

    @property
    def lag_entries(self) -> int: ...


class BookieCounts:
    """The counts of one client about one bookie. All connections to that bookie count here."""

    __slots__ = (
        "_bookie", "_registry", "_requests", "add_seconds", "connect_failed", "connected", "connections", "lost", "received_bytes",
        "sent_bytes",
    )  # fmt: skip

    def __init__(self, registry: Registry, bookie: str) -> None:
        self._registry = registry
        self._bookie = bookie
        self._requests: dict[str, Histogram] = {}
        self.add_seconds = registry.histogram(f"{_PREFIX}bookie_add_seconds", bookie)
        self.connections = self._count("bookie_connections")
        self.connected = self._count("bookie_connected_total")
        self.connect_failed = self._count("bookie_connect_failed_total")
        self.lost = self._count("bookie_connection_lost_total")
        self.sent_bytes = self._count("bookie_sent_bytes_total")
        self.received_bytes = self._count("bookie_received_bytes_total")

    def _count(self, name: str) -> Count:
        return self._registry.count(_PREFIX + name, self._bookie)

    def asked(self, operation: str, elapsed_ns: int) -> None:
        """Count a request that was answered, or given up, after ``elapsed_ns``."""
        found = self._requests.get(operation)
        if found is None:
            found = self._requests[operation] = self._registry.histogram(f"{_PREFIX}bookie_request_seconds", self._bookie, operation)
        found.observe(elapsed_ns)

    def failed(self, operation: str, status: str, times: int = 1) -> None:
        """Count answers with another status than OK."""
        self._registry.count(f"{_PREFIX}bookie_request_failed_total", self._bookie, operation, status).value += times

    def gave_up(self, cause: str) -> None:
        """Count a timeout; ``cause`` is silent or late."""
        self._registry.count(f"{_PREFIX}bookie_timeout_total", self._bookie, cause).value += 1


class MetadataCounts:
    """The counts of one client about the requests to its metadata store."""

    __slots__ = ("_registry", "outages")

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.outages = registry.count(f"{_PREFIX}metadata_outage_total")

    def asked(self, operation: str, elapsed_ns: int) -> None:
        """Count a request, whatever became of it."""
        self._registry.histogram(f"{_PREFIX}metadata_request_seconds", operation).observe(elapsed_ns)

    def conflict(self, operation: str) -> None:
        """Count a write that found another version."""
        self._registry.count(f"{_PREFIX}metadata_conflict_total", operation).value += 1

    def unanswered(self, operation: str) -> None:
        """Count a request without an answer."""
        self._registry.count(f"{_PREFIX}metadata_unanswered_total", operation).value += 1


class ClientCounts:
    """The counts of one client. Its registry outlives the client."""

    def __init__(self, of: str = "a client") -> None:
        self.registry = registry = Registry(of, CLIENT)
        self._bookies: dict[str, BookieCounts] = {}
        self.metadata = MetadataCounts(registry)
        self.add_entries = self._count("add_entry_total")
        self.add_failed = self._count("add_entry_failed_total")
        self.add_runs = self._count("add_run_total")
        self.add_seconds = self._histogram("add_entry_seconds")
        self.add_wait_seconds = self._histogram("add_wait_seconds")
        self.read_entries = self._count("read_entry_total")
        self.read_bytes = self._count("read_entry_bytes_total")
        self.reads_failed = self._count("read_failed_total")
        self.speculative_reads = self._count("speculative_read_total")
        self.read_retries = self._count("read_retry_total")
        self.ledgers_created = self._count("ledger_create_total")
        self.ledgers_opened = self._count("ledger_open_total")
        self.ledgers_deleted = self._count("ledger_delete_total")
        self.recover_seconds = self._histogram("ledger_recover_seconds")
        self.recoveries_failed = self._count("ledger_recover_failed_total")
        self.fences = self._count("fence_total")
        self.fenced = self._count("fenced_total")
        self.ensemble_changes = self._count("ensemble_change_total")
        self.log_take_overs = self._count("log_take_over_total")
        self.log_rolls = self._count("log_roll_total")
        self.log_commits = self._count("log_commit_total")
        self.log_conflicts = self._count("log_commit_conflict_total")
        self.log_trims = self._count("log_trim_total")
        self.log_deleted_ledgers = self._count("log_deleted_ledger_total")
        self.file_changes = self._count("file_store_change_total")
        self.file_bytes = self._count("file_store_bytes_total")
        self.file_compactions = self._count("file_store_compaction_total")

        self._readers: dict[int, weakref.ref[Reader]] = {}
        registry.read(f"{_PREFIX}log_reader_lag_entries", self._lags)

    def _count(self, name: str) -> Count:
        return self.registry.count(_PREFIX + name)

    def _histogram(self, name: str) -> Histogram:
        return self.registry.histogram(_PREFIX + name)

    def bookie(self, bookie: str) -> BookieCounts:
        """Return what is counted of a bookie."""
        found = self._bookies.get(bookie)
        return found if found is not None else self._bookies.setdefault(bookie, BookieCounts(self.registry, bookie))

    def watch_reader(self, reader: Reader) -> None:
        """Tell the lag of a log's reader as long as there is one. It is not kept."""
        number, readers = id(reader), self._readers
        readers[number] = weakref.ref(reader, lambda _: readers.pop(number, None))

    def _lags(self) -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for known in tuple(self._readers.values()):
            reader = known()
            if reader is not None:
                found[(reader.name,)] = max(found.get((reader.name,), 0), reader.lag_entries)
        return found

    def replaced(self, bookies: frozenset[str]) -> None:
        """Count a change of an ensemble that took ``bookies`` out."""
        self.ensemble_changes.value += 1
        for bookie in bookies:
            self.registry.count(f"{_PREFIX}bookie_replaced_total", bookie).value += 1
