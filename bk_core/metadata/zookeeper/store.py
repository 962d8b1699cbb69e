"""The metadata store in ZooKeeper, node for node as Apache BookKeeper keeps it (metadata.md 1, 2, 4).

Requests go through kazoo's asynchronous calls, each with a deadline, because kazoo itself waits without end while it reconnects. A
request that met a lost connection, an expired session or its deadline may still reach the server: for a write that is
MetadataOutcomeUnknownError, a read is repeated until the deadline. Without a connection nothing is sent at all, and the error is
MetadataUnavailableError.

Kazoo's client, its states and its errors are behind link.py.
"""

from __future__ import annotations

from contextlib import suppress

from kazoo import exceptions as kazoo_errors

from bk_core.errors import (
    MetadataDeniedError,
    MetadataError,
    MetadataOutcomeUnknownError,
    NodeExistsError,
    NoNodeError,
)
from bk_core.metadata import paths
from bk_core.metadata.access import MetadataTls, ZooKeeperAuth
from bk_core.metadata.tree.clock import since_boot_s
from bk_core.metadata.tree.store import CLOCK_KEPT_S, TreeStore
from bk_core.metadata.zookeeper.link import Link, translated
from bk_core.metadata.zookeeper.nodes import Nodes

_STOP_FAILED_S = 1.0  # for a session that never began: kazoo may wait for a silent server, and ends by itself after that


class ZooKeeperStore(TreeStore):
    """MetadataStore (bk_core/metadata/store.py) in ZooKeeper. ``root`` and ``log_root`` lie below ``chroot``; with ``manager`` None LAYOUT
    decides.

    With ``patient`` the first connection waits its whole time even for servers that refuse it, because they may be starting again (SES-11).
    """

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
        auth: ZooKeeperAuth | None = None,
        tls: MetadataTls | None = None,
    ) -> None:
        self._link = Link(hosts, session_timeout_s, self._on_connection, auth=auth, tls=tls)
        self._nodes = Nodes(self._link, timeout_s)
        super().__init__(
            self._link,
            self._nodes,
            place=f"ZooKeeper {hosts}",
            root=root,
            chroot=chroot,
            manager=manager,
            timeout_s=timeout_s,
            held_s=session_timeout_s,
            log_root=log_root,
        )
        self._keeps_rights = auth is not None and auth.acl == "creator"
        self._clock: tuple[float, int] | None = None  # seconds since this host's boot, the servers' time then
        try:
            self._link.start(timeout_s, patient)
            self._manager()
        except BaseException:
            self._close(_STOP_FAILED_S)
            raise

    def clock_ms(self) -> int:
        """Return the servers' clock, in milliseconds since 1970. One write to the node ``clock`` tells it, and this host counts on from
        there for ``CLOCK_KEPT_S`` at most."""
        known = self._clock
        passed_s = 0.0 if known is None else since_boot_s() - known[0]
        if known is None or not 0 <= passed_s < CLOCK_KEPT_S:
            told_ms = self._stamp_clock()
            known, passed_s = (since_boot_s(), told_ms), 0.0  # after the answer, so that the clock told is never ahead of the servers
            self._clock = known
        return known[1] + int(passed_s * 1000)

    def _stamp_clock(self) -> int:
        """Write the node ``clock``. This is repeated like a read, because it does no harm."""
        path = self._log("clock")
        try:
            while True:
                try:
                    return int(self._nodes.read("set", path, b"").mtime)
                except NoNodeError:
                    with suppress(NodeExistsError, MetadataOutcomeUnknownError):
                        self.create("clock", b"")
        except MetadataDeniedError:
            message = (
                f"the metadata store tells its time by a write to {path}, which this client may not do. What goes by age or time needs"
            )
            raise MetadataDeniedError(f"{message} it; name segments or bytes instead, or let who may write do it") from None

    # what a new cluster and new numbers take ----------------------------------------------------------------------------

    def initialize_cluster(self, *, new: bool = False) -> str:
        """Make the cluster, and with ``acl="creator"`` the place of its logs, too: whoever made that one later with other rights could take
        all logs out of it."""
        found = super().initialize_cluster(new=new)
        if self._keeps_rights:
            self._log_root.find(writing=True)
        return found

    def _create_cluster(self, instance_id: str) -> None:
        available = f"{self._root}/available"
        transaction = self._link.client.transaction()
        transaction.create(self._root)
        transaction.create(available)
        transaction.create(f"{available}/readonly")
        transaction.create(f"{self._root}/INSTANCEID", instance_id.encode())
        results = self._nodes.send("transaction", transaction.commit_async, self._timeout_s)
        failures = [result for result in results if isinstance(result, Exception)]
        for failure in failures:
            if not isinstance(failure, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency):
                raise translated(failure, self._root)
        if failures:
            raise MetadataError(f"ZooKeeper refused to make the cluster at {self._root}")

    def _sequence(self, directory: str) -> int | None:
        """Return the counter of a new ephemeral sequential child of ``directory``, which is deleted again; None if the counter
        overflowed."""
        while True:
            try:
                made = self._nodes.read("create", f"{directory}/ID-", b"", ephemeral=True, sequence=True)
                break
            except NoNodeError:
                if directory == self._root:
                    raise
                self._nodes.ensure(directory)
        # nobody waits for this, because the node goes with the session at the latest
        self._link.aside(lambda: self._link.client.delete_async(made))
        return paths.sequence_number(made.rpartition("/")[2])
