"""The metadata store in etcd with the keys of Apache BookKeeper's own driver (metadata.md 6.2, 6.3).

The keys of a cluster lie below its scope, which is the root here. What ledgers, cookies and registrations hold is the same as in ZooKeeper;
only registrations of Apache's bookies are empty. The driver's bookies may lose their registration while they serve (6.1), so one without
it is not taken for lost.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Literal

from bk_core.errors import InvalidArgumentError, LayoutMismatchError, MetadataError, MetadataFormatError, NoNodeError
from bk_core.metadata import paths
from bk_core.metadata.etcd.listing import below, skipping
from bk_core.metadata.etcd.store import EtcdStore
from bk_core.metadata.service_info import is_address
from bk_core.metadata.store import BookieView, Version
from bk_core.metadata.tree.names import APACHE_ETCD, ZOOKEEPER, Names
from bk_core.metadata.uri import APACHE, BY_COOKIES
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.metadata_codec import is_bookie_id

LAYOUT = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
UNLISTED_ID = paths.LEDGER_ID_MAX
"""The driver's listing ends before this id, so bookies would collect such a ledger as garbage."""

_BUCKETS = 128
_BITS_IN_BUCKET = 56
_LEDGER = re.compile(r"0{8}-0{4}-0{4}-[0-7][0-9a-f]{3}-[0-9a-f]{12}")
_MARKERS = ("cookies", "bookies", "bookies/writable", "bookies/readonly", "ledgers", "buckets", "underreplication")


def ledger_name(ledger_id: int) -> str:
    """Return the name of a ledger below ``ledgers``: its id as the lower half of a UUID.

    >>> ledger_name(12345678901)
    '00000000-0000-0000-0000-0002dfdc1c35'

    Raises InvalidArgumentError for an id that no ledger has.
    """
    if not 0 <= ledger_id <= paths.LEDGER_ID_MAX:
        raise InvalidArgumentError(f"ledger id {ledger_id} is outside 0..2^63-1")
    return f"00000000-0000-0000-{ledger_id >> 48:04x}-{ledger_id & (1 << 48) - 1:012x}"


class ApacheEtcdStore(EtcdStore):
    """MetadataStore (bk_core/metadata/store.py) in etcd, in the layout of Apache's driver. ``root`` is the scope. ``bookies`` count as
    writable although they are not registered, unless they are registered as read-only; "cookies" stands for all that have a cookie and an
    id ``host:port``."""

    _names: ClassVar[Names] = APACHE_ETCD
    _other_names: ClassVar[Names] = ZOOKEEPER

    def __init__(self, *, bookies: tuple[BookieId, ...] | Literal["cookies"] = (), **of_all: Any) -> None:
        self._named = bookies
        self._buckets = itertools.count(random.randrange(_BUCKETS))
        super().__init__(**of_all)

    # ledgers ----------------------------------------------------------------------------------------------------------

    def new_ledger_id(self) -> int:
        """Return a new id: one of 128 buckets, in turn, in the upper 8 bits, and how often its key was written. A lost answer only wastes a
        number, so this is repeated like a read."""
        try:
            self._manager()
            for bucket in itertools.islice(self._buckets, _BUCKETS):
                key = f"{self._root}/buckets/{bucket % _BUCKETS:03d}"
                number = self._nodes.count_up(key, self._root) + 1
                ledger_id = (bucket % _BUCKETS) << _BITS_IN_BUCKET | number
                if number < 1 << _BITS_IN_BUCKET and ledger_id != UNLISTED_ID:
                    return ledger_id
        except NoNodeError:
            self.check_cluster()
            raise
        raise MetadataError(f"{self._root} has no ledger ids left: all {_BUCKETS} buckets are used up")

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        if ledger_id == UNLISTED_ID:
            text = "Apache's driver for etcd leaves that one out of its listing, and bookies would collect the ledger as garbage"
            raise InvalidArgumentError(f"ledger id {ledger_id} cannot be used in this cluster: {text}; choose a smaller one")
        return super().create_ledger(ledger_id, data)

    def list_ledgers(self) -> Iterator[int]:
        """Yield the ids. Raises NoClusterError instead of ending early if the cluster is gone or goes meanwhile (OWN-2)."""
        self._manager()
        self.check_cluster()
        folder = f"{self._root}/ledgers"
        for path in skipping(*below(folder), self._nodes.keys, lambda name: _LEDGER.fullmatch(name) is not None):
            name = path[len(folder) + 1 :]
            if "/" not in name:
                yield int(name.replace("-", ""), 16)
        self.check_cluster()

    # bookies ----------------------------------------------------------------------------------------------------------

    def unregistered(self) -> str:
        return "with Apache's driver for etcd bookies may lose their registration while they serve (docs/metadata.md 6.1)"

    def _bookies(self, watch: Callable[[Any], None] | None) -> BookieView:
        """Return those that are registered, and those that count as writable all the same."""
        registered = self._listed(watch)
        if self._named == BY_COOKIES:
            names = self._base.children(f"{self._root}/cookies", watch)
            more = {name for name in names if is_bookie_id(name) and is_address(name)}
        else:
            more = set(self._named)
        writable = more.difference(registered.readonly).union(registered.writable)
        return BookieView(tuple(sorted(writable)), registered.readonly)

    # the layout -------------------------------------------------------------------------------------------------------

    def _stored_manager(self) -> str:
        path = f"{self._root}/{self._names.layout}"
        stored = self._base.get(path).data
        if stored != LAYOUT:
            raise MetadataFormatError(f"{path} holds {stored[:100]!r}, not the layout of Apache's driver for etcd")
        return APACHE

    def _check_driver(self) -> None:
        if self._layout is not None:
            return
        for name in (ZOOKEEPER.instance_id, ZOOKEEPER.layout, ZOOKEEPER.writable):
            with suppress(NoNodeError):
                self._base.get(f"{self._root}/{name}")
                raise LayoutMismatchError(
                    f"{self._root} is a cluster with the paths of ZooKeeper as keys, as Pulsar's driver keeps them: write etcd:// for it, "
                    "without +apache"
                )

    def _ledger(self, ledger_id: int) -> str:
        return f"{self._root}/ledgers/{ledger_name(ledger_id)}"

    def _create_cluster(self, instance_id: str) -> None:
        nodes = [(self._root, b""), (f"{self._root}/{self._names.layout}", LAYOUT)]
        nodes += [(f"{self._root}/{self._names.instance_id}", instance_id.encode())]
        self._nodes.create_all([*nodes, *((f"{self._root}/{name}", b"") for name in _MARKERS)])

    def _create_layout(self) -> None:
        """Do nothing: the layout was made with the cluster."""
