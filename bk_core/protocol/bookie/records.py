"""The record that a bookie keeps of a ledger, the storage as the machine sees it, and the effects that the machine asks of its host."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from bk_core.protocol.bookie.runs import AddsAnswer, ReadsAnswer
from bk_core.protocol.wire.messages import Response

NO_LAC = -1
NO_ENTRIES = -1


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A bookie's knowledge about one ledger besides its entries. All of it survives a restart.

    ``key`` is None only for a ledger marked after a loss for which nobody has presented a key; the next key is then pinned. ``deleted`` is
    the tombstone left by garbage collection, so that an old writer stays locked out (B-6); ``deleted_at_ms`` is Unix time.
    """

    ledger_id: int
    key: bytes | None = field(default=None, repr=False)
    fenced: bool = False
    limbo: bool = False
    deleted: bool = False
    last_add_confirmed: int = NO_LAC  # the greatest LAC seen in adds and explicit LACs (B-9)
    last_entry_id: int = NO_ENTRIES  # the highest id held here
    explicit_lac: bytes | None = field(default=None, repr=False)  # the last packet, byte for byte
    deleted_at_ms: int = 0

    @property
    def has_entries(self) -> bool:
        return self.last_entry_id != NO_ENTRIES


class BookieStorageView(Protocol):
    """The machine's view of the storage. Everything applied before is visible, durable or not (B-5). Any method may raise BookieIOError."""

    def ledger(self, ledger_id: int) -> LedgerRecord | None: ...

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return the body, or None only if the index proves absence (B-7)."""

    def entries(self, ledger_id: int, first_entry_id: int, entries_max: int, bytes_max: int) -> tuple[int, bytes]:
        """Return consecutive entries that are stored together: (number, their bodies as ``(u32 length, body)*``).

        There are at most ``entries_max`` entries and ``bytes_max`` bytes of bodies and lengths. (0, b"") means no more than that the caller
        must use ``entry``.
        """

    def entry_ids(self, ledger_id: int) -> Iterable[int]:
        """Return all ids in ascending order at once. For a whole ledger on a live bookie there is ``entry_runs``."""

    def entry_runs(self, ledger_id: int, first_entry_id: int, rows_max: int) -> tuple[list[tuple[int, int]], int | None]:
        """Return the ids from ``first_entry_id`` on as ascending, disjoint (first, count), and the id at which to go on, None at the end.

        This looks at about ``rows_max`` rows in any case. The result is complete below the second value.
        """

    def disk_bytes(self) -> tuple[int, int]:
        """Return the total and the free bytes."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Send the response now."""

    tag: Hashable
    response: Response | ReadsAnswer


@dataclass(frozen=True, slots=True)
class ReplyAfterSync:
    """Send the response once every change made so far is durable; if that fails, send ``io_error(response)`` instead."""

    tag: Hashable
    response: Response | AddsAnswer


@dataclass(frozen=True, slots=True)
class Persist:
    """Store ``record`` and, if ``entry_id`` is given, ``body``: both or neither. ``drop_entries`` removes the ledger's entries first.

    ``forget`` removes the record too, as if the bookie had never heard of the ledger.
    """

    record: LedgerRecord
    entry_id: int | None = None
    body: bytes = field(default=b"", repr=False)
    drop_entries: bool = False
    forget: bool = False


@dataclass(frozen=True, slots=True)
class PersistMany:
    """Store ``record`` and ``count`` entries from ``first_entry_id`` on, with ``bodies`` as ``(u32 length, body)*``: all or nothing."""

    record: LedgerRecord
    first_entry_id: int
    count: int
    bodies: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WakeLater:
    """Call ``wake`` at ``at_ms``, because the request ``tag`` waits. Another input may answer it before."""

    tag: Hashable
    at_ms: int


Change = Persist | PersistMany
Effect = Reply | ReplyAfterSync | Change | WakeLater
