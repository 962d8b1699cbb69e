"""Facts about the cluster that the driver gives to a read task, so that it need not ask the metadata store (SES-13).

A task may trust them. The contents of acknowledged entries never change. Their places may change (a bookie is replaced), and a ledger may
go; then no known replica has the entry, and the task asks the store (RD-7).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from bk_core.background import WorkerPool
from bk_core.errors import BkError, NoNodeError
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger import metadata_codec

KEPT_S = 10.0
_KEPT = 4096
_READERS = 8


@dataclass(frozen=True, slots=True)
class Known:
    """The identity of the cluster, the metadata of ledgers as it is stored (with their passwords, so it is not shown), and addresses of
    bookies."""

    cluster: str
    ledgers: Mapping[int, Versioned] = field(repr=False)
    addresses: Mapping[str, tuple[str, int]] = field(repr=False)


class Learned:
    """The driver's knowledge of ledgers. A stream keeps it for ``KEPT_S``, because it reads the same ledgers again and again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[float, Versioned]] = OrderedDict()

    def known(self, client: Any, ledger_ids: Iterable[int]) -> Known:
        """Return the knowledge, without ledgers that do not exist and bookies whose address is not known. The identity is read last:
        whatever was read before is of this cluster (OWN-3)."""
        ledgers = self._ledgers(client, list(dict.fromkeys(ledger_ids)))
        bookies = {bookie for stored in ledgers.values() for bookie in facts_of(stored).bookies}
        addresses: dict[str, tuple[str, int]] = {}
        for bookie in sorted(bookies):
            try:
                addresses[bookie] = client.store.resolve(bookie)
            except BkError:  # it may be gone for good, and others have its entries
                continue
        return Known(client.store.cluster_id(), ledgers, addresses)

    def _ledgers(self, client: Any, ledger_ids: Collection[int]) -> dict[int, Versioned]:
        now = time.monotonic()
        while self._kept and now - next(iter(self._kept.values()))[0] > KEPT_S:
            self._kept.popitem(last=False)
        missing = [ledger_id for ledger_id in ledger_ids if ledger_id not in self._kept]
        for ledger_id, stored in zip(missing, _read_all(client, missing), strict=True):
            if stored is not None:
                self._kept[ledger_id] = now, stored
        found = {ledger_id: self._kept[ledger_id][1] for ledger_id in ledger_ids if ledger_id in self._kept}
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found


def _read_all(client: Any, ledger_ids: Collection[int]) -> list[Versioned | None]:
    """Read several at a time; None stands for one that does not exist."""
    reads: list[Callable[[], Versioned | None]] = [partial(_read, client, ledger_id) for ledger_id in ledger_ids]
    if len(reads) < 2:
        return [read() for read in reads]
    pool = WorkerPool("bk-plan", min(_READERS, len(reads)))
    try:
        return [answer.result() for answer in [pool.call(read) for read in reads]]
    finally:
        pool.close()


def _read(client: Any, ledger_id: int) -> Versioned | None:
    try:
        found: Versioned = client.store.read_ledger(ledger_id)
    except NoNodeError:
        return None
    return found


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The facts about a ledger that planning needs. ``password`` is None if none is stored, so that any may be the right one (META-15)."""

    bookies: frozenset[str]
    fragment_starts: tuple[int, ...]
    password: bytes | None = field(repr=False)


def facts_of(stored: Versioned) -> LedgerFacts:
    """Return the facts. Raises MetadataFormatError."""
    return _facts_of(stored.data)


@lru_cache(_KEPT)
def _facts_of(data: bytes) -> LedgerFacts:
    metadata = metadata_codec.decode(data)
    bookies = frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
    starts = tuple(fragment.first_entry_id for fragment in metadata.fragments)
    return LedgerFacts(bookies, starts, metadata.password if metadata.stores_password else None)


def part_of(known: Known, ledger_ids: Collection[int]) -> Known:
    """Return the part that a task needs which reads these ledgers."""
    ledgers = {ledger_id: known.ledgers[ledger_id] for ledger_id in ledger_ids if ledger_id in known.ledgers}
    bookies = {bookie for stored in ledgers.values() for bookie in facts_of(stored).bookies}
    return replace(known, ledgers=ledgers, addresses={bookie: known.addresses[bookie] for bookie in bookies & known.addresses.keys()})
