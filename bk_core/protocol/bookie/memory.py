"""A bookie's storage in memory that knows what would survive a crash: for the simulator and for tests."""

from __future__ import annotations

from bk_core.protocol.bookie.machine import LedgerRecord, Persist


class _Contents:
    __slots__ = ("entries", "records")

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord] = {}
        self.entries: dict[int, dict[int, bytes]] = {}

    def apply(self, change: Persist) -> None:
        ledger_id = change.record.ledger_id
        self.records[ledger_id] = change.record
        if change.drop_entries:
            self.entries.pop(ledger_id, None)
        if change.entry_id is not None:
            self.entries.setdefault(ledger_id, {})[change.entry_id] = change.body

    def copy(self) -> _Contents:
        other = _Contents()
        other.records = dict(self.records)
        other.entries = {ledger_id: dict(entries) for ledger_id, entries in self.entries.items()}
        return other


class MemoryBookieStorage:
    """What reads see is ``applied``; what a crash leaves is ``durable``. ``sync`` moves changes over in the order they were made.

    A reply may leave once ``durable_position`` has reached the ``position`` at which it was made.
    """

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self._applied = _Contents()
        self._durable = _Contents()
        self._changes: list[Persist] = []
        self._total_bytes = total_bytes
        self.position = 0
        self.durable_position = 0

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self._applied.records.get(ledger_id)

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self._applied.entries.get(ledger_id, {}).get(entry_id)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Ascending."""
        return sorted(self._applied.entries.get(ledger_id, ()))

    def ledger_ids(self) -> list[int]:
        """Ledgers with a record, tombstones left out, ascending."""
        return sorted(ledger_id for ledger_id, record in self._applied.records.items() if not record.deleted)

    def disk_bytes(self) -> tuple[int, int]:
        used = sum(len(body) for entries in self._applied.entries.values() for body in entries.values())
        return self._total_bytes, max(0, self._total_bytes - used)

    def apply(self, change: Persist) -> None:
        """Visible to reads at once, not yet durable (B-5)."""
        self._applied.apply(change)
        self._changes.append(change)
        self.position += 1

    def sync(self, changes: int | None = None) -> int:
        """Make the oldest ``changes`` pending ones durable (all, if None). Returns the new durable position."""
        count = len(self._changes) if changes is None else min(changes, len(self._changes))
        for change in self._changes[:count]:
            self._durable.apply(change)
        del self._changes[:count]
        self.durable_position += count
        return self.durable_position

    def crash(self) -> None:
        """Lose everything that was not synced. Replies still waiting must never be sent by the host."""
        self._applied = self._durable.copy()
        self._changes.clear()
        self.position = self.durable_position

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does (B-10)."""
        self._durable = _Contents()
        self.crash()
