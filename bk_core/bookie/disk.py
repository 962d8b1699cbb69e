"""The disk of a bookie: how much may be accepted until the next look at it, and whether the bookie takes anything at all."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from bk_core.bookie import standby
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BookieIOError
from bk_core.metrics.bookie import ServerCounts
from bk_core.protocol.bookie import BookieMachine
from bk_core.protocol.bookie.room import RESERVE_BYTES, DiskLook, free_bytes, judge_room

log = logging.getLogger("bk_core.bookie")

DISK_RESERVE_BYTES = RESERVE_BYTES  # see judge_room
HOUSEKEEPING_S = 1.0


class JudgedDisk(ABC):
    """The storage of a bookie with its machine, and what the last look at the disk said of them. Used on the loop."""

    def __init__(self, directory: Path, disk_reserve_bytes: int, counts: ServerCounts) -> None:
        self.counts = counts
        self.storage = LmdbBookieStorage(directory, self._commit_completed, counts=counts)
        self.machine = BookieMachine(self.storage)
        self.on_read_only: Callable[[bool], None] = lambda read_only: None
        self._disk_reserve_bytes = self.storage.reserve_bytes = disk_reserve_bytes
        self._accept_until = 0  # a bound on the storage's accepted bytes (BKE-8)
        self._look_again = True  # something was written since the last look at the disk
        self._scarce = False
        self._commit_failed = False
        self._foreign = False
        self._housekeeping_at = 0.0
        self._free_bytes = 0  # at the last look at the disk

    @abstractmethod
    def _commit_completed(self, position: int, error: BaseException | None) -> None:
        """Note that the storage has committed up to a position, or could not. Any thread."""

    def check_disk(self) -> None:
        """Decide how much may be accepted until the next look (B-11, BKE-3, BKE-8, BKE-9). Called on the loop, or before it runs."""
        self._look_again = False
        accepted = self.storage.accepted_bytes
        try:
            look = self.storage.look()
        except BookieIOError as error:
            log.debug("%s", error)
            look = DiskLook(0)
        self._free_bytes = free_bytes(look, self._disk_reserve_bytes)
        room = judge_room(look, self._disk_reserve_bytes)
        self._accept_until = accepted + room.accept_bytes
        self.machine.accept_recovery_adds = room.recovery_adds and not self._commit_failed
        self.machine.fence_unknown = room.fence_unknown
        if room.scarce or self._scarce:
            self._scarce = room.scarce
            self.storage.be_scarce(room.scarce)
        told = standby.is_told(self.storage.directory.parent)
        self._set_read_only(self._reason(look, told) if self._commit_failed or self._foreign or room.read_only or told else None)

    def _reason(self, look: DiskLook, told: bool) -> str:
        if self._commit_failed:
            return f"what it accepted cannot be written, which is tried again every {HOUSEKEEPING_S:g} s"
        if self._foreign:
            return "the metadata store holds another cluster, or another cookie of this bookie"
        if told:
            return "an operator has made it so (bk bookie read-only)"
        return (
            f"{free_bytes(look, self._disk_reserve_bytes) >> 20} MiB are free on the disk of {self.storage.directory}, and "
            f"{self._disk_reserve_bytes >> 20} MiB are kept for fences and recovery; delete ledgers or make room"
        )

    def _disk_has_room(self) -> bool:
        """Return True if the disk has room; otherwise connections wait until the database has more of what was accepted (BKE-8)."""
        if self.storage.accepted_bytes < self._accept_until:
            return True
        if self._look_again:
            self.check_disk()
        if self.storage.accepted_bytes < self._accept_until:
            return True
        self.storage.request_store()
        return False

    def takes_copies(self) -> bool:
        """Return True if there is room for an entry that is restored (B-11, BKE-8). Called on the loop."""
        return self.machine.accept_recovery_adds and self._disk_has_room()

    def see_foreign(self, foreign: bool) -> None:
        """Accept nothing new while the store holds another cluster, whose ledgers may have the ids of those that are here (BKE-1). Called
        on the loop."""
        if foreign != self._foreign:
            self._foreign = foreign
            self.check_disk()

    def _set_read_only(self, reason: str | None) -> None:
        read_only = reason is not None
        if read_only != self.machine.read_only:
            self.machine.read_only = read_only
            log.warning("bookie is %s", f"read-only: {reason}" if read_only else "writable again")
            self.on_read_only(read_only)

    def _judge_disk(self, failure: BaseException | None) -> None:
        if failure is not None and not self._commit_failed:
            log.error("%s", failure)
        if self._commit_failed != (failure is not None):
            self._commit_failed = failure is not None
            self._housekeeping_at = 0.0
