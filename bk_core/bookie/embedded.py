"""A whole bookie in this process: identity, storage, loop, registration, and the threads that talk to the metadata store."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bk_core.background import Worker
from bk_core.bookie.collector import Collector, CollectorOptions
from bk_core.bookie.disk import DISK_RESERVE_BYTES
from bk_core.bookie.door import Door
from bk_core.bookie.guard import ClusterGuard
from bk_core.bookie.identity import Standing, begin_anew, examine, kept_address, sign, write_durably
from bk_core.bookie.leaving import AWAY_S, left_undone
from bk_core.bookie.loop import BookieServer
from bk_core.bookie.private import FILE_MODE, make_private
from bk_core.bookie.refill import Refill, mark_losses
from bk_core.bookie.replicas import ReplicaReader
from bk_core.display.words import host_port, is_ipv6
from bk_core.errors import BkError, BookieIOError, InvalidArgumentError, NoClusterError
from bk_core.metadata.store import MetadataStore, Registration
from bk_core.metrics.bookie import ServerCounts
from bk_core.metrics.snapshot import Metrics
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.security import Security
from bk_core.threads import join

log = logging.getLogger("bk_core.bookie")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """Options of a bookie. ``accept_data_loss`` lets a bookie start that has lost its data, with every ledger that may be affected in limbo
    (B-10). ``door`` is what it asks of those who connect, and ``security`` how it comes in to other bookies.

    Times are in seconds. ``disk_reserve_bytes`` of free disk are kept for fences and recovery (B-11).
    """

    accept_data_loss: bool = False
    collector: CollectorOptions = CollectorOptions()
    refill_interval_s: float = 10.0
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    limits: ConnectionLimits = ConnectionLimits()
    door: Door | None = None
    security: Security | None = None


class EmbeddedBookie:
    """A bookie on a thread of its own. Without a ``store`` it is not registered, collects nothing and cannot ask about lost data.

    ``port`` 0 takes the port the directory had before, or any free one. Raises InvalidArgumentError if another bookie runs on the directory
    or if host and port are not those that its ledgers know.
    """

    def __init__(
        self,
        directory: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        store: MetadataStore | None = None,
        options: BookieOptions | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._wanted = (host, port)
        self._store = store
        self._options = options or BookieOptions()
        self._registration: Registration | None = None
        self._loop: threading.Thread | None = None
        self._owner = threading.Lock()  # held by who closes the server: the loop once it runs, or ``close`` if it never did
        self._never_ran = False
        self._announcer: Worker | None = None
        self._worker: Worker | None = None
        self._reader: ReplicaReader | None = None
        self._lock_descriptor = -1
        self._server: BookieServer | None = None
        self.host = host
        self.port = port
        self.counts = ServerCounts()
        self.failed = threading.Event()  # set when the loop has ended, wanted or not

    @property
    def bookie_id(self) -> str:
        """The id, host and port. An address of IPv6 has no brackets, as in the ids of Apache's bookies."""
        return f"{self.host}:{self.port}"

    def metrics(self) -> Metrics:
        """Return what this bookie has counted so far, also after it was closed. Any thread."""
        return self.counts.registry.snapshot()

    def start(self) -> EmbeddedBookie:
        """Bind, check the cookie, open the storage, mark what was lost, serve, register: in this order.

        Raises InvalidArgumentError if data was lost here and ``accept_data_loss`` is not set, or if the directory is another bookie's;
        BookieIOError if the directory cannot be used, because it cannot be written, is full and new, or no more files can be opened.
        """
        try:
            self._start()
        except OSError as error:
            raise BookieIOError(f"the bookie on {self._directory} cannot start: {error}{_advice(error)}") from error
        return self

    def _start(self) -> None:
        if self._options.door is not None:
            self._options.door.check()  # before anything is changed: with other files the next start would find a bookie that had begun
        make_private(self._directory)
        self._lock()
        try:
            listener = self._bind()
            self._owner, self._never_ran = threading.Lock(), False
            self._server = self._open(listener)
            self._loop = threading.Thread(target=self._serve, args=(self._server, self._owner), name="bookie-loop", daemon=True)
            self._loop.start()
            if self._store is not None:
                self._register(self._store)
        except BaseException:
            try:
                self.close()
            except Exception:  # the reason why it cannot start is what the caller is told
                log.exception("bookie %s cannot start, and could not be closed either", self.bookie_id)
            raise

    def _open(self, listener: socket.socket) -> BookieServer:
        """Return the server on its storage, which serves nothing yet; every loss is marked durably (B-10)."""
        server: BookieServer | None = None
        try:
            lost = self._store is not None and self._has_lost_data(self._store)
            if lost:
                begin_anew(self._directory)
            reserve, limits = self._options.disk_reserve_bytes, self._options.limits
            server = BookieServer(
                listener,
                self._directory / "current",
                disk_reserve_bytes=reserve,
                limits=limits,
                counts=self.counts,
                door=self._options.door,
            )
            if self._store is not None:
                if lost:
                    mark_losses(server, self._store, self.bookie_id)
                sign(self._store, self.bookie_id, self._directory)
            server.check_disk()
            return server
        except BaseException:
            listener.close()
            if server is not None:
                server.close()
            raise

    def _has_lost_data(self, store: MetadataStore) -> bool:
        """Return True if data was lost. Raises InvalidArgumentError if nobody said that this is known, because the disk may only be mounted
        elsewhere."""
        finding = examine(store, self.bookie_id, self._directory)
        if finding.standing is not Standing.LOST:
            return False
        if not self._options.accept_data_loss:
            raise InvalidArgumentError(
                f"bookie {self.bookie_id} has lost its data: {finding.reason}. If the data cannot be brought back, start it with "
                "--accept-data-loss: it then asks the other replicas for what it lost"
            )
        log.warning("bookie %s has lost its data: %s", self.bookie_id, finding.reason)
        return True

    def close(self) -> None:
        """Unregister, answer what was accepted, stop. Safe to call twice. A metadata store that is away is waited for a moment only."""
        is_away = not self._unregistered()
        server = self._server
        if server is not None:
            server.stop()
            self._never_ran = self._never_ran or self._owner.acquire(blocking=False)
            if self._never_ran:
                self.failed.set()
        workers = [worker for worker in (self._announcer, self._worker) if worker is not None]
        for worker in workers:
            worker.close()
        until = time.monotonic() + AWAY_S
        for worker in workers:  # they may wait for the store; what they do to the bookie fails from now on
            worker.join(max(0.0, until - time.monotonic()) if is_away else None)
        self._announcer = self._worker = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._loop is not None:
            if self._loop.is_alive():  # it may never have been started
                join(self._loop)
            self._loop = None
        try:
            if server is not None and self._never_ran:
                server.close()
        finally:
            self._server = None
            self._unlock()

    def _unlock(self) -> None:
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def _unregistered(self) -> bool:
        """Take the registration away. Return False if the metadata store does not do it in time, and say so: it goes with the session."""
        if self._registration is None:
            return True
        registration, self._registration = self._registration, None
        why = left_undone(registration.close)
        if why:
            log.warning("bookie %s ends; its registration lapses with its session: %s", self.bookie_id, why)
        return not why

    def __enter__(self) -> EmbeddedBookie:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, server: BookieServer, owner: threading.Lock) -> None:
        if not owner.acquire(blocking=False):
            return  # the start was interrupted, and undone
        try:
            server.run()
        except Exception:
            log.exception("the bookie's loop has failed")
        finally:
            self.failed.set()

    def _lock(self) -> None:
        self._lock_descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1
            if isinstance(error, BlockingIOError):
                raise InvalidArgumentError(f"another bookie runs on {self._directory}") from error
            raise

    def _bind(self) -> socket.socket:
        host, port = self._wanted
        kept = kept_address(self._directory)
        if kept is not None:
            if host != kept[0] or port not in (0, kept[1]):
                raise InvalidArgumentError(f"the bookie of {self._directory} is {host_port(*kept)}, not {host_port(host, port)}")
            port = kept[1]
        listener = socket.socket(socket.AF_INET6 if is_ipv6(host) else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(512)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise InvalidArgumentError(f"cannot listen on {host_port(host, port)}: {error}") from error
        self.host, self.port = host, listener.getsockname()[1]
        self.counts.registry.of = f"bookie {self.bookie_id}"
        if kept is None:
            write_durably(self._directory / "address", f"{self.bookie_id}\n".encode())
        return listener

    # --- the metadata store, on threads of their own because its calls block: announcements do not wait for a refill -------------

    def _register(self, store: MetadataStore) -> None:
        assert self._server is not None
        server = self._server
        with suppress(NoClusterError):
            store.check_cluster()  # a LAYOUT that is there now must be there whenever ledgers are missing (BKE-1)
        self._announcer = Worker("bookie-registration")
        self._worker = worker = Worker("bookie-metadata")
        announce = partial(self._announcer.submit, partial(_told, partial(self._announce, server)))
        server.on_read_only = lambda _: announce()
        read_only = server.machine.read_only
        self._registration = store.register_bookie(self.bookie_id, self.host, self.port, read_only)
        if server.machine.read_only is not read_only:  # a registration may take seconds, and what came before its end was told to nobody
            announce()
        self._look_after(worker, server, store)

    def _announce(self, server: BookieServer) -> None:
        registration = self._registration
        if registration is not None:
            registration.set_readonly(server.machine.read_only)

    def _look_after(self, worker: Worker, server: BookieServer, store: MetadataStore) -> None:
        """Fill up what was lost, and collect what was deleted, again and again."""
        reader = self._reader = ReplicaReader(store.resolve, security=self._options.security)
        guard = ClusterGuard(store, self.bookie_id, self._directory, lambda foreign: self._on_loop(lambda: server.see_foreign(foreign)))
        refill = Refill(store, self.bookie_id, self._directory, server, self._on_loop, reader, guard)
        collector = Collector(store, self.bookie_id, server, self._on_loop, self._options.collector, guard)
        collect_s = self._options.collector.interval_s
        _again_and_again(worker, "refill", 0.0, self._options.refill_interval_s, refill.run)  # at once: lost entries are missed now
        _again_and_again(worker, "collect", collect_s, collect_s, collector.run)

    def _on_loop(self, function: Callable[[], _T]) -> _T:
        if self._server is None:
            raise BookieIOError("the bookie has stopped")
        future = self._server.call(function)
        while not self.failed.is_set():
            try:
                return future.result(0.2)
            except FutureTimeoutError:
                continue
        raise BookieIOError("the bookie has stopped")


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return ". A new bookie needs some MiB of disk: make room, or name another directory"
        case errno.EMFILE | errno.ENFILE:
            return ". Allow more open files (ulimit -n)"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ". It must be able to write there: name another directory, or change who may"
        case _:
            return ""


def _again_and_again(worker: Worker, name: str, after_s: float, interval_s: float, run: Callable[[], object]) -> None:
    """Run it after ``after_s``, and from then on every ``interval_s``, behind what else the worker was given."""

    def turn() -> None:
        worker.later(name, interval_s, turn)
        _told(run)

    worker.later(name, after_s, turn)


def _told(run: Callable[[], object]) -> None:
    try:
        run()
    except (BkError, OSError) as error:
        log.warning("%s", error)
