"""Collects garbage: ledgers that were deleted, closed ledgers that live elsewhere now, and tombstones past their time (B-6, B-12)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bk_core.bookie.guard import ClusterGuard
from bk_core.bookie.loop import BookieServer
from bk_core.bookie.refill import OnLoop, read_metadata
from bk_core.errors import BookieIOError, CollectionRefusedError, MetadataContradictionError, NoNodeError
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.bookie import Effect, may_delete
from bk_core.protocol.ledger.metadata import BookieId

log = logging.getLogger("bk_core.bookie")


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """The collector's options; times are in seconds. Looking for moved ledgers reads the metadata of every ledger here, so it is done
    seldom.

    A round drops deleted ledgers only if they are at most ``few`` or ``few_share`` of all there are, whichever is more (BKE-2).
    """

    interval_s: float = 60.0
    moved_interval_s: float = 86_400.0
    tombstone_keep_s: float = 30 * 86_400.0
    few: int = 100
    few_share: float = 0.5


def collectable(local: Iterable[int], store: MetadataStore) -> list[int]:
    """Return those of ``local`` whose metadata is gone (B-12): they are not listed, and not there when asked for by id, whichever server of
    the store is asked (BKE-10). Raises MetadataContradictionError.

    ``local`` must have been gathered before this call: metadata is created before a ledger's first add, so a ledger that was known here by
    then and is missing from a listing made afterwards has been deleted.
    """
    listed = set(store.list_ledgers())
    return store.gone_ledgers(ledger_id for ledger_id in local if ledger_id not in listed)


class Collector:
    """Collects garbage, on the metadata thread; the loop deletes what it finds."""

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        server: BookieServer,
        on_loop: OnLoop,
        options: CollectorOptions,
        guard: ClusterGuard,
    ) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._server = server
        self._on_loop = on_loop
        self._options = options
        self._guard = guard
        self._moved_at = time.monotonic() + options.moved_interval_s

    def run(self) -> None:
        """Make one round. Errors of the metadata store end it early, with nothing deleted wrongly. Raises CollectionRefusedError (BKE-1,
        BKE-2, BKE-10)."""
        self._forget_tombstones()
        try:
            self._collect_deleted()
        except CollectionRefusedError:
            self._server.counts.collections_refused.value += 1
            raise
        if time.monotonic() >= self._moved_at:
            self._moved_at = time.monotonic() + self._options.moved_interval_s
            self._collect_moved()

    def _collect_deleted(self) -> None:
        self._guard.require_home()
        held = self._server.storage.ledger_ids()
        try:
            gone = collectable(held, self._store)
        except MetadataContradictionError as error:
            raise CollectionRefusedError(f"bookie {self._bookie_id} keeps all it has: {error.args[0]}", bookie=self._bookie_id) from error
        if not gone:
            return
        full = set(self._server.storage.full_ledger_ids())  # fences of ids that nobody ever wrote to are not counted
        self._guard.require_few(len(full.intersection(gone)), len(full), floor=self._options.few, share=self._options.few_share)
        self._guard.require_home()  # the list and the looks at single ledgers lie between two sights of this cluster
        for ledger_id in gone:
            if self._change(ledger_id, lambda number: self._server.machine.collect(number, self._server.now_ms())):
                self._server.counts.collected_ledgers.value += 1
                log.info("ledger %d is gone from the metadata store; its entries are dropped", ledger_id)
        self._guard.done()

    def _forget_tombstones(self) -> None:
        keep_ms = int(self._options.tombstone_keep_s * 1000)
        for ledger_id in self._server.storage.tombstone_ids():
            self._change(ledger_id, lambda number: self._server.machine.forget_tombstone(number, self._server.now_ms(), keep_ms))

    def _collect_moved(self) -> None:
        """Collect ledgers that left this bookie. The first look, without the lock, saves locks: none is taken for ledgers that
        went before."""
        for ledger_id in self._server.storage.ledger_ids():
            if self._has_moved(ledger_id, lock_held=True) and self._holds_moved(ledger_id):
                self._collect_moved_one(ledger_id)

    def _holds_moved(self, ledger_id: int) -> bool:
        try:
            return self._on_loop(lambda: self._server.machine.holds_moved(ledger_id))
        except BookieIOError:
            return True  # a later job handles it

    def _collect_moved_one(self, ledger_id: int) -> None:
        lock = self._store.underreplication().lock(ledger_id, self._bookie_id)
        if lock is None:
            return  # another process copies it, perhaps to here
        try:
            if not self._has_moved(ledger_id, lock_held=lock.is_held()):
                return
            self._guard.require_home()
            if self._change(ledger_id, self._server.machine.collect_moved):
                self._server.counts.collected_ledgers.value += 1
                log.info("closed ledger %d names this bookie no more; its entries are dropped", ledger_id)
        finally:
            lock.release()

    def _has_moved(self, ledger_id: int, *, lock_held: bool) -> bool:
        """Return True if the ledger has moved. The result is False as well for metadata that makes no sense, and for a ledger deleted since
        it was listed, which the next round deals with."""
        try:
            metadata = read_metadata(self._store, ledger_id)
        except NoNodeError:
            return False
        return metadata is not None and may_delete(metadata, self._bookie_id, lock_held=lock_held)

    def _change(self, ledger_id: int, decide: Callable[[int], list[Effect]]) -> bool:
        """Return True if anything was changed. A ledger that cannot be read here is left alone."""
        try:
            return self._on_loop(lambda: self._server.change(decide(ledger_id)))
        except BookieIOError as error:
            log.warning("ledger %d cannot be collected: %s", ledger_id, error)
            return False
