"""Deals with a loss of data: puts ledgers into limbo before anything is served (B-10, RC-26), then fetches entries back and ends limbo
(RC-27)."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from bk_core.bookie.guard import ClusterGuard
from bk_core.bookie.identity import loss_file, sync_directory
from bk_core.bookie.loop import UNCOMMITTED_BYTES_MAX, BookieServer
from bk_core.bookie.replicas import ReplicaReader
from bk_core.errors import (
    BookieIOError,
    CollectionRefusedError,
    DigestError,
    MetadataContradictionError,
    MetadataFormatError,
    NoNodeError,
)
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.bookie import AfterLoss, after_loss, decided_entries, may_leave_limbo
from bk_core.protocol.entry.digests import hmac_key, master_key
from bk_core.protocol.entry.layout import decode_body
from bk_core.protocol.ledger.metadata import BookieId, DigestType, LedgerMetadata
from bk_core.protocol.ledger.metadata_codec import decode

log = logging.getLogger("bk_core.bookie")

CHUNK_ENTRIES = 128

_IDS = struct.Struct(">qq")

_T = TypeVar("_T")


class OnLoop(Protocol):
    """Runs a function on the bookie's loop and returns its outcome. Raises BookieIOError if the loop has ended."""

    def __call__(self, function: Callable[[], _T]) -> _T: ...


def mark_losses(server: BookieServer, store: MetadataStore, bookie_id: BookieId) -> int:
    """Fence every ledger that may have lost something here, or put it into limbo, durably and before the loop runs (RC-26).

    Returns the number of ledgers in limbo. One that is listed and not found is among them, unless it is gone whichever server is asked
    (BKE-10). Errors of the metadata store mean that the bookie must not serve; so does CollectionRefusedError
    when the cluster went or changed while its ledgers were listed (BKE-1).
    """
    cluster = store.instance_id()
    limbo: list[int] = []
    closed: list[int] = []
    absent: list[int] = []
    keys: dict[int, bytes] = {}
    for ledger_id in store.list_ledgers():
        try:
            metadata = read_metadata(store, ledger_id)
        except NoNodeError:
            absent.append(ledger_id)
            continue
        if metadata is not None and metadata.stores_password:
            keys[ledger_id] = master_key(metadata.password)
        match after_loss(metadata, bookie_id):
            case AfterLoss.LIMBO:
                limbo.append(ledger_id)
            case AfterLoss.FENCE:
                closed.append(ledger_id)
            case AfterLoss.NOTHING:
                pass
    limbo += _perhaps_there(store, absent)
    if (found := store.instance_id()) != cluster:
        raise CollectionRefusedError(f"the metadata store changed from cluster {cluster} to {found} while its ledgers were listed")
    server.change(server.machine.enter_limbo(limbo, keys))
    server.change(server.machine.fence_closed(closed, keys))
    server.storage.sync()
    log.warning("data was lost: %d ledgers are in limbo until they are recovered; %d closed ones are fenced", len(limbo), len(closed))
    return len(limbo)


def _perhaps_there(store: MetadataStore, absent: Sequence[int]) -> list[int]:
    """Return those of the ledgers that may exist although one server has no metadata of them."""
    if not absent:
        return []
    try:
        gone = set(store.gone_ledgers(absent))
    except MetadataContradictionError as error:
        log.warning("ledgers that seem to be gone are taken for lost here: %s", error)
        gone = set()
    return [ledger_id for ledger_id in absent if ledger_id not in gone]


def read_metadata(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    """Return None if the bytes make no sense. Raises NoNodeError if there are none."""
    data = store.read_ledger(ledger_id).data
    try:
        return decode(data)
    except MetadataFormatError as error:
        log.warning("metadata of ledger %d: %s", ledger_id, error)
        return None


class Refill:
    """Fetches the missing entries of this bookie from the other replicas, on the metadata thread.

    After a loss it goes through all ledgers; ``LOST`` in the directory stays until everything decided is here and no ledger is in limbo, so
    a restart goes on with it. Each ``run`` is one attempt at all that is left.
    """

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        directory: Path,
        server: BookieServer,
        on_loop: OnLoop,
        reader: ReplicaReader,
        guard: ClusterGuard,
    ) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._directory = directory
        self._server = server
        self._on_loop = on_loop
        self._reader = reader
        self._guard = guard
        self._left: set[int] | None = None  # ledgers to try again; None before the first attempt, which is at all ledgers
        self._told: set[int] = set()  # ledgers in limbo and not closed that were logged already

    @property
    def wanted(self) -> bool:
        return loss_file(self._directory).exists()

    def run(self) -> bool:
        """Make one attempt and return True if nothing is left to do. Raises CollectionRefusedError for an empty or foreign metadata store
        (BKE-1), and if its servers contradict each other (BKE-10)."""
        if not self.wanted:
            return True
        self._guard.require_home()
        limbo = set(self._server.storage.limbo_ids())
        ledger_ids = {*limbo, *(self._all() if self._left is None else self._left)}
        absent: list[int] = []
        self._left = {
            ledger_id for ledger_id in sorted(ledger_ids) if not self._try(ledger_id, partial(self._refill, ledger_id in limbo, absent))
        }
        self._left -= self._gone(absent, limbo)
        if not self._left:
            self._guard.require_home()
            self._server.storage.sync()
            loss_file(self._directory).unlink(missing_ok=True)
            sync_directory(self._directory / "current")
            log.info("everything that was lost and can be named is here again")
        return not self._left

    def _all(self) -> set[int]:
        """Return the ledgers that are listed, and those that were marked here, which a server that is behind may not list."""
        return {*self._store.list_ledgers(), *self._server.storage.ledger_ids()}

    def _gone(self, absent: Collection[int], limbo: Collection[int]) -> set[int]:
        """End limbo for those of the ledgers that are gone, whichever server of the store is asked (BKE-10), and return them."""
        if not absent:
            return set()
        try:
            gone = self._store.gone_ledgers(absent)
        except MetadataContradictionError as error:
            text = f"bookie {self._bookie_id} leaves in limbo what seems to be gone: {error.args[0]}"
            raise CollectionRefusedError(text, bookie=self._bookie_id) from error
        self._guard.require_home()
        return {ledger_id for ledger_id in gone if self._try(ledger_id, partial(self._leave, ledger_id in limbo))}

    def _try(self, ledger_id: int, attempt: Callable[[int], bool]) -> bool:
        try:
            return attempt(ledger_id)
        except BookieIOError as error:
            log.warning("ledger %d cannot be completed now: %s", ledger_id, error)
            return False

    def _refill(self, in_limbo: bool, absent: list[int], ledger_id: int) -> bool:
        """Refill one ledger; return True if nothing is left to do for it. One without metadata is added to ``absent``: that is the word of
        one server, and the others are asked about all of these at once."""
        try:
            metadata = read_metadata(self._store, ledger_id)
        except NoNodeError:
            absent.append(ledger_id)
            return False
        if metadata is None or not self._fetch_all(ledger_id, metadata):
            return False
        if may_leave_limbo(metadata):
            return self._leave(in_limbo, ledger_id)
        if in_limbo and ledger_id not in self._told:
            self._told.add(ledger_id)
            log.warning("ledger %d stays in limbo until it is recovered, by whoever opens it", ledger_id)
        return not in_limbo

    def _leave(self, in_limbo: bool, ledger_id: int) -> bool:
        machine = self._server.machine
        if in_limbo and self._on_loop(lambda: self._server.change(machine.leave_limbo(ledger_id))):
            log.info("ledger %d has left limbo", ledger_id)
        return True

    def _fetch_all(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Fetch entries; return True if every decided entry is here now."""
        complete = True
        decided = decided_entries(metadata, self._bookie_id)
        for chunk in _chunks(decided, CHUNK_ENTRIES):
            replicas = dict(chunk)
            missing = self._missing(ledger_id, replicas)
            bodies = self._fetch(ledger_id, metadata, {entry_id: replicas[entry_id] for entry_id in missing})
            self._store_bodies(ledger_id, metadata, bodies)
            if len(bodies) < len(missing):
                log.warning("ledger %d: %d of %d lost entries found nowhere yet", ledger_id, len(missing) - len(bodies), len(missing))
                complete = False
        return complete

    def _missing(self, ledger_id: int, entry_ids: Iterable[int]) -> list[int]:
        return self._on_loop(lambda: self._server.machine.missing(ledger_id, entry_ids))

    def _fetch(self, ledger_id: int, metadata: LedgerMetadata, replicas: dict[int, tuple[BookieId, ...]]) -> dict[int, bytes]:
        """Return sound bodies of as many of the entries as can be had: from the first other replica, the rest from the next, and so on."""
        bodies: dict[int, bytes] = {}
        for choice in range(max(map(len, replicas.values()), default=0)):
            by_bookie: dict[BookieId, list[int]] = {}
            for entry_id, others in replicas.items():
                if entry_id not in bodies and choice < len(others):
                    by_bookie.setdefault(others[choice], []).append(entry_id)
            for bookie, entry_ids in by_bookie.items():
                found = self._reader.read(bookie, ledger_id, entry_ids)
                bodies.update({entry_id: body for entry_id, body in found.items() if is_sound(body, ledger_id, entry_id, metadata)})
        return bodies

    def _store_bodies(self, ledger_id: int, metadata: LedgerMetadata, bodies: dict[int, bytes]) -> None:
        if not bodies:
            return
        server = self._server
        key = master_key(metadata.password) if metadata.stores_password else None

        def restore() -> None:
            for entry_id, body in sorted(bodies.items()):
                if not server.takes_copies():
                    raise BookieIOError("the disk has no room for what was lost", ledger_id=ledger_id, entry_id=entry_id)
                server.change(server.machine.restore(ledger_id, entry_id, body, key))

        self._on_loop(restore)
        server.storage.wait_for_room(UNCOMMITTED_BYTES_MAX // 2)


def is_sound(body: bytes, ledger_id: int, entry_id: int, metadata: LedgerMetadata) -> bool:
    """Return True if a replica's body is the entry, because a damaged copy must not be multiplied.

    Where metadata stores no digest, or not the password that a MAC needs, only the ids can be compared (META-15).
    """
    if not metadata.has_digest or (metadata.digest_type is DigestType.MAC and not metadata.stores_password):
        return body[: _IDS.size] == _IDS.pack(ledger_id, entry_id)
    with suppress(DigestError):
        decode_body(body, ledger_id, entry_id, metadata.digest_type, hmac_key(metadata.password))
        return True
    return False


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
