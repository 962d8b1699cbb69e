"""The metadata store in etcd: the paths of ZooKeeper as keys, as Pulsar's driver keeps them (metadata.md 6)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import ClassVar

from bk_core.errors import LayoutMismatchError, MetadataError, MetadataUnavailableError
from bk_core.metadata import paths
from bk_core.metadata.access import EtcdAuth, MetadataTls
from bk_core.metadata.etcd import http
from bk_core.metadata.etcd.certificates import check_tls
from bk_core.metadata.etcd.lease import Lease
from bk_core.metadata.etcd.link import Link
from bk_core.metadata.etcd.listing import below, skipping
from bk_core.metadata.etcd.members import members_of
from bk_core.metadata.etcd.nodes import Nodes
from bk_core.metadata.etcd.stamps import ServerClock
from bk_core.metadata.etcd.watching import Watching
from bk_core.metadata.tree.connected import STOP_S
from bk_core.metadata.tree.names import APACHE_ETCD, Names
from bk_core.metadata.tree.store import TreeStore

_STOP_FAILED_S = 1.0
_CLOCK_S = 3.0  # for one server to tell its time
_ELECTION_S = 2.0  # a new leader gives each lease its whole time again, and that of an election
_NO_CLOCK_S = 30.0  # for which writes carry no time after a server did not tell it


class EtcdStore(TreeStore):
    """MetadataStore (bk_core/metadata/store.py) in etcd. ``root`` and ``log_root`` lie below ``chroot``; with ``manager`` None LAYOUT
    decides, and a cluster of Pulsar's without one has the hierarchical layout.

    With ``patient`` the first connection waits its whole time even for servers that refuse it, because they may be starting again (SES-11).
    """

    _other_names: ClassVar[Names] = APACHE_ETCD

    def __init__(
        self,
        *,
        hosts: str,
        root: str,
        chroot: str = "",
        manager: str | None = None,
        timeout_s: float = 10.0,
        session_timeout_s: float = 10.0,
        log_root: str | None = None,
        patient: bool = False,
        auth: EtcdAuth | None = None,
        tls: MetadataTls | None = None,
    ) -> None:
        if tls is not None:
            check_tls(tls)
        self._tls = tls
        self._link = Link(hosts, session_timeout_s, self._on_connection, auth=auth, tls=tls)
        self._lease = Lease(self._link, session_timeout_s, self._on_lost)
        self._watching = Watching(self._link)
        self._no_clock_until = 0.0
        self._clock = ServerClock(self._told_ms)
        self._nodes = Nodes(self._link, self._lease, self._watching, timeout_s, self._stamp_ms)
        super().__init__(
            self._link,
            self._nodes,
            place=f"etcd {hosts}",
            root=root,
            chroot=chroot,
            manager=manager,
            timeout_s=timeout_s,
            held_s=2 * session_timeout_s + _ELECTION_S,
            log_root=log_root,
            has_old_logs=False,
            others=[self._other_names],
        )
        try:
            self._link.start(timeout_s, patient)
            self._manager()
            self._check_driver()
        except BaseException:
            self._close(_STOP_FAILED_S)
            raise

    def _check_driver(self) -> None:
        if self._layout is None and self._nodes.stat(f"{self._root}/{APACHE_ETCD.layout}") is not None:
            raise LayoutMismatchError(
                f"{self._root} is a cluster of Apache BookKeeper's own etcd driver, which keeps ledgers in another way than Pulsar's: "
                "write etcd+apache:// for it"
            )

    def list_ledgers(self) -> Iterator[int]:
        """Yield the ids. Raises NoClusterError instead of ending early if the cluster is gone or goes meanwhile (OWN-2)."""
        manager = self._manager()
        self.check_cluster()
        for tree in paths.trees(manager):
            yield from self._ids_of(tree.levels)
        self.check_cluster()

    def gone_ledgers(self, ledger_ids: Iterable[int]) -> list[int]:
        """Ask each server of the URI by itself, if there are several."""
        gone = super().gone_ledgers(ledger_ids)
        if not gone or len(self._link.servers) == 1:
            return gone
        keys = {self._ledger(ledger_id).encode(): ledger_id for ledger_id in gone}
        with members_of(self._link, self._timeout_s) as members:
            return [keys[key] for key in members.without(list(keys))]

    def _ids_of(self, levels: tuple[re.Pattern[str], ...]) -> Iterator[int]:
        found = self._in_order(levels)
        return iter(sorted(found)) if len(levels) == 1 else found  # ids of the flat layout differ in length

    def _in_order(self, levels: tuple[re.Pattern[str], ...]) -> Iterator[int]:
        start, end = below(self._root)
        for path in skipping(start, end, self._nodes.keys, lambda name: levels[0].fullmatch(name) is not None):
            parts = path[len(self._root) + 1 :].split("/")
            if len(parts) == len(levels) and all(level.fullmatch(part) for level, part in zip(levels, parts, strict=True)):
                ledger_id = int("".join(parts).replace("L", ""))
                if ledger_id <= paths.LEDGER_ID_MAX:
                    yield ledger_id

    # the clock ------------------------------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        """Return the servers' clock, which a server tells by HTTP, in whole seconds. This host counts on from there for some seconds.
        Raises MetadataUnavailableError."""
        self._link.home.check("metadata store")
        return self._clock.now_ms()

    def _told_ms(self) -> int:
        host, port = self._link.server
        try:
            told = http.ask((host, port), host, self._tls, "/version", min(self._timeout_s, _CLOCK_S)).date_ms
        except OSError as error:
            raise MetadataUnavailableError(f"etcd at {host}:{port} did not tell its time: {error}") from error
        if told is None:
            raise MetadataError(
                f"etcd at {host}:{port} tells no time by HTTP at the port of its clients (see --listen-client-http-urls), and what goes by "
                "age needs it"
            )
        return told

    def _stamp_ms(self, path: str) -> int | None:
        """Return the time of what is written now; None for values that carry none; 0 where the servers do not tell it."""
        if f"{path}/".startswith(f"{self._root}/") or path == self._rack_map:
            return None
        if time.monotonic() < self._no_clock_until:
            return 0
        try:
            return self.clock_ms()
        except MetadataError:
            self._no_clock_until = time.monotonic() + _NO_CLOCK_S
            return 0

    # what a new cluster and new numbers take ---------------------------------------------------------------------------

    def _create_cluster(self, instance_id: str) -> None:
        available = f"{self._root}/available"
        self._nodes.create_all(
            [(self._root, b""), (available, b""), (f"{available}/readonly", b""), (f"{self._root}/INSTANCEID", instance_id.encode())]
        )

    def _sequence(self, directory: str) -> int | None:
        """Return the next number, which is how often the key of the directory was written before, as Pulsar's driver counts."""
        return paths.sequence_number(f"ID-{self._nodes.count_up(directory, self._root):010d}")

    def _on_lost(self) -> None:
        self._keeper.look_at_all()

    def _close(self, wait_s: float) -> None:
        begun = time.monotonic()
        self._closed = True
        self._keeper.close()
        self._watching.close()
        self._lease.close(wait_s)
        super()._close(max(wait_s - (time.monotonic() - begun), 0.5) if wait_s == STOP_S else wait_s)
