"""ZooKeeper, or etcd, and some bookies on this machine, for a first run, notebooks, tests and fault injection. Not for production.

The bookies are embedded ones (a Python process each) or Apache's (a JVM each); everything else cannot tell which. All live in one
directory::

    cluster.json        kind, ports: found again at the next start, so the URI and the bookie ids stay the same
    lock                held while the cluster runs; remover.py waits for it beside a temporary directory
    zookeeper/, etcd/   data and log of the metadata store
    bookie-0/ ...       data and bookie.log of one bookie

All children die with this process, however it ends. A temporary directory goes then, too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol, TypeAlias, get_args

from bk_core.arguments import SECONDS, TEXT, checked, whole
from bk_core.bookie import apache as apache_releases
from bk_core.bookie.apache import ApacheBookie, ApacheSettings
from bk_core.bookie.certificates import LocalSecurity
from bk_core.bookie.children import free_port, spawn_remover
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.leaving import left_undone
from bk_core.bookie.ports import wanted_port
from bk_core.bookie.private import DIRECTORY_MODE
from bk_core.bookie.telling import check_page
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import DiskFullError, InvalidArgumentError, MetadataError, OperationTimeoutError
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from bk_core.sasl import check_sasl
from bk_core.threads import Home

BOOKIES_MAX = 64
ROOM_BYTES = 32 << 20  # of the disk, below which a cluster does not start
_EMBEDDED = "embedded"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE = "make room there, or name another directory"
_START_TIMEOUT_S = 60.0
_log = logging.getLogger("bk_core.bookie")
_Progress = Callable[[str], None]
Metadata: TypeAlias = Literal["zookeeper", "etcd"]


class _Bookie(Protocol):
    """The interface that EmbeddedBookieProcess and ApacheBookie share."""

    @property
    def bookie_id(self) -> str: ...
    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...
    def wait_ready(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


class LocalCluster:
    """A running cluster; a context manager. Bookies are named by index from 0, in the order in which they were added.

    ``uri`` is what ``bk_core.connect`` and Spark's ``uri`` option take.
    """

    def __init__(
        self,
        bookies: int,
        directory: Path | None,
        apache: str | None,
        zookeeper: str | None,
        progress: _Progress | None = None,
        apache_settings: ApacheSettings | None = None,
        metrics: bool = False,
        port: int | None = None,
        tls: bool = False,
        sasl: bool = False,
        metadata: Metadata = "zookeeper",
        kerberos: KerberosService | None = None,
    ) -> None:
        if metadata not in get_args(Metadata):
            raise InvalidArgumentError(f"metadata must be one of {', '.join(get_args(Metadata))}, not {metadata!r}")
        if metadata == "etcd" and apache is not None:
            raise InvalidArgumentError("Apache's bookies cannot keep their metadata in this etcd: leave apache or metadata='etcd' out")
        if metadata == "etcd" and zookeeper is not None:
            raise InvalidArgumentError("zookeeper names a metadata store that runs, an etcd:// URI too: leave metadata='etcd' out")
        if not 1 <= bookies <= BOOKIES_MAX:
            raise InvalidArgumentError(f"bookies={bookies} is not from 1 to {BOOKIES_MAX}")
        if metrics and apache is not None:
            raise InvalidArgumentError("Apache's bookies serve metrics of their own: see httpServerEnabled and statsProviderClass")
        if port is not None and zookeeper is not None:
            raise InvalidArgumentError(
                "port is that of a metadata store to start, and zookeeper names one that runs: leave one of them out"
            )
        if (tls or sasl or kerberos) and apache is not None:
            raise InvalidArgumentError(
                "tls, sasl and kerberos are those of embedded bookies: give Apache's their own lines (apache_settings)"
            )
        if sasl and kerberos:
            raise InvalidArgumentError("clients of a bookie have passwords or tickets: leave sasl or kerberos out")
        if sasl:
            check_sasl("bookies")  # the bookies need none, and every client that takes the URI does
        self._wants = tls, sasl, None if kerberos is None else _examined(kerberos)
        self._security: LocalSecurity | None = None
        self._metrics = metrics
        self._asked_port = port
        check_page(0 if metrics else None)
        self._say: _Progress = progress or (lambda _message: None)
        self._bookies: list[_Bookie] = []
        self._closed = False
        self._home = Home()
        self._libraries = apache_releases.resolve(apache, self._say) if apache else None
        self._settings = apache_settings or ApacheSettings()
        self._resources = ExitStack()
        self._metadata: Metadata = metadata
        self._keeper: ZooKeeperProcess | EtcdProcess | None = None
        try:
            self._start(bookies, directory, apache, zookeeper)
        except BaseException as error:
            self._resources.close()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise DiskFullError(f"the disk of {error.filename or directory or tempfile.gettempdir()} is full: {_ADVICE}") from error
            raise

    def _start(self, bookies: int, directory: Path | None, apache: str | None, zookeeper: str | None) -> None:
        self.directory = self._open_directory(directory)
        self._state = self._load_state(f"apache {apache}" if apache else _EMBEDDED)
        if any(self._wants):
            self._security = LocalSecurity(self.directory / "security", *self._wants)
            self._security.make()
        self.uri = self._with_security(self._start_keeper(zookeeper))
        self._store = self._open_store(zookeeper is not None)
        self._resources.callback(left_undone, self._store.close)
        self._resources.callback(self._stop_bookies)
        self._start_bookies(max(bookies, len(self._state["bookie_ports"])))

    def _with_security(self, uri: str) -> str:
        """Return the URI with the options by which a client comes in to the bookies."""
        return uri if self._security is None else f"{uri}{'&' if '?' in uri else '?'}{self._security.query()}"

    # --- the life of the whole ---------------------------------------------------------------------------------------

    def _open_directory(self, directory: Path | None) -> Path:
        is_temporary = directory is None
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="bk-cluster-"))
            self._resources.callback(shutil.rmtree, directory, ignore_errors=True)
        directory = directory.absolute()
        try:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)  # one that is there stays as it is
            lock: IO[str] = self._resources.enter_context((directory / "lock").open("w"))
        except OSError as error:
            if error.errno in _FULL:
                raise
            message = f"no local cluster can be kept in {directory}: {error.strerror} ({error.filename}); name a directory of yours"
            raise InvalidArgumentError(message) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidArgumentError(f"a local cluster is already running in {directory}") from None
        if is_temporary:  # for an owner that dies: it removes what its rmtree above cannot
            self._resources.callback(spawn_remover(directory).wait)
        self._resources.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a forked child may have the file open for longer
        self._require_room(directory)
        return directory

    def _require_room(self, directory: Path) -> None:
        """Raise DiskFullError where the metadata store could not even start, because it would not tell the reason."""
        free = shutil.disk_usage(directory).free
        if free < ROOM_BYTES:
            raise DiskFullError(
                f"the disk of {directory} has {free >> 20} MiB free, and a local cluster needs {ROOM_BYTES >> 20}: {_ADVICE}"
            )

    def _load_state(self, kind: str) -> dict[str, Any]:
        path = self.directory / "cluster.json"
        if not path.exists():
            return {"kind": kind, "metadata": self._metadata, "bookie_ports": []}
        state: dict[str, Any] = json.loads(path.read_text())
        if state["kind"].split()[0] != kind.split()[0]:  # another Apache release on the same data is an upgrade, and allowed
            raise InvalidArgumentError(f"{self.directory} holds a cluster of kind {state['kind']!r}, not {kind!r}")
        kept = state.get("metadata", "zookeeper")
        if kept != self._metadata:
            raise InvalidArgumentError(f"{self.directory} holds a cluster with its metadata in {kept}, not in {self._metadata}")
        return {**state, "kind": kind}

    def _save_state(self) -> None:
        path = self.directory / "cluster.json"
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(self._state, indent=2) + "\n")
        beside.replace(path)

    def _start_keeper(self, zookeeper: str | None) -> str:
        if zookeeper is not None:
            return zookeeper if "://" in zookeeper else f"zk://{zookeeper}/ledgers"
        self._say(f"starting {self._keeper_name} ...")
        make = EtcdProcess if self._metadata == "etcd" else ZooKeeperProcess
        process = self._keeper = make(
            self.directory / self._metadata, wanted_port(self._state.get(f"{self._metadata}_port"), self._asked_port, self.directory)
        )
        self._resources.callback(process.stop)
        process.start()
        self._state[f"{self._metadata}_port"] = process.port
        self._save_state()
        return f"{'etcd' if self._metadata == 'etcd' else 'zk'}://127.0.0.1:{process.port}/ledgers"

    @property
    def _keeper_name(self) -> str:
        return "etcd" if self._metadata == "etcd" else "ZooKeeper"

    def _open_store(self, given: bool) -> MetadataStore:
        """Open the store. One that was ``given`` must be there; its absence is an error at once."""
        if given:
            return open_store(self.uri)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                return open_store(self.uri)
            except MetadataError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _start_bookies(self, count: int) -> None:
        for _ in range(count):
            self._bookies.append(self._make_bookie(len(self._bookies)))
        self._initialize()
        self._say(f"starting {count} {self._state['kind']} bookies ...")
        for bookie in self._bookies:
            bookie.start()
        for bookie in self._bookies:
            bookie.wait_ready()

    def _initialize(self) -> None:
        first = self._bookies[0]
        if not isinstance(first, ApacheBookie):
            self._store.initialize_cluster()
        elif self._instance_id() is None:
            first.init_new_cluster()

    def _instance_id(self) -> str | None:
        try:
            return self._store.instance_id()
        except MetadataError:
            return None

    def _make_bookie(self, index: int) -> _Bookie:
        ports: list[int] = self._state["bookie_ports"]
        if index == len(ports):
            ports.append(free_port())
            self._save_state()
        directory = self.directory / f"bookie-{index}"
        if self._libraries is not None:
            return ApacheBookie(self._libraries, directory, self.uri, ports[index], self._is_registered, self._settings)
        door = None if self._security is None else self._security.door
        return EmbeddedBookieProcess(directory, self.uri, ports[index], free_port() if self._metrics else None, door)

    def _is_registered(self, bookie_id: str) -> bool:
        try:
            return bookie_id in self._store.bookies().writable
        except MetadataError:
            return False

    def _stop_bookies(self) -> None:
        """Stop them all, even if one fails or the caller is interrupted, in which case the others are killed. Embedded ones end at the same
        time, because each may wait for a metadata store that is away."""
        interrupt: BaseException | None = None
        for bookie in self._bookies:
            if isinstance(bookie, EmbeddedBookieProcess):
                bookie.begin_to_stop()
        for bookie in self._bookies:
            try:
                if interrupt is None:
                    bookie.stop()
                else:
                    bookie.kill()
            except Exception as error:
                _log.debug("bookie %s did not stop well: %s", bookie.bookie_id, error)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def close(self) -> None:
        """Stop everything. The data stays, unless no directory was given. An interrupt (Ctrl-C) kills what has not stopped yet.

        The call has no effect in a forked child, whose cluster it is not.
        """
        if not self._closed and self._home.is_here:
            self._closed = True
            self._resources.close()

    @property
    def is_closed(self) -> bool:
        """True once ``close`` has begun, also one that was interrupted: a cluster that is closed does not start again."""
        return self._closed

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.uri}, {len(self._bookies)} {self._state['kind']} bookies, {self.directory}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the processes, and where they keep their data."""
        from bk_core.display import ledgers, table

        states = {bookie.bookie_id: "running" if bookie.running else "stopped" for bookie in self._bookies}
        return table.html(repr(self).strip("<>"), ledgers.bookies(states))

    # --- single bookies ----------------------------------------------------------------------------------------------

    @property
    def bookie_ids(self) -> list[str]:
        """The ids by index, of running and stopped bookies alike."""
        return [bookie.bookie_id for bookie in self._bookies]

    @property
    def metrics_urls(self) -> list[str]:
        """The pages of the bookies' metrics for Prometheus, by index; none without ``metrics=True``."""
        ports = [bookie.metrics_port for bookie in self._bookies if isinstance(bookie, EmbeddedBookieProcess)]
        return [f"http://127.0.0.1:{port}/metrics" for port in ports if port is not None]

    @property
    def kind(self) -> str:
        """The kind: ``embedded`` or ``apache VERSION``."""
        return str(self._state["kind"])

    def ended(self) -> list[str]:
        """Return the names of the processes that do not run, each with the file of its log. Bookies that the caller stopped are among
        them."""
        names = [f"bookie {self.bookie_ids[at]} ({self.bookie_log(at)})" for at, bookie in enumerate(self._bookies) if not bookie.running]
        if self._keeper is not None and not self._keeper.running:
            names.append(f"{self._keeper_name} ({self.directory / self._metadata / f'{self._metadata}.log'})")
        return names

    def is_running(self, index: int) -> bool:
        """Return True if the process of bookie ``index`` runs."""
        return self._bookie(index).running

    def pid(self, index: int) -> int | None:
        """Return the process id, for experiments with signals; None if the bookie is stopped."""
        pid: int | None = getattr(self._bookie(index), "pid", None)
        return pid

    def bookie_log(self, index: int) -> Path:
        """Return the file that bookie ``index`` writes its log to."""
        self._bookie(index)
        return self.directory / f"bookie-{index}" / "bookie.log"

    def kill(self, index: int) -> None:
        """Kill a bookie with SIGKILL. Its registration stays until its session ends, as after a power cut."""
        self._bookie(index).kill()

    def stop_bookie(self, index: int) -> None:
        """Stop a bookie in an orderly way."""
        self._bookie(index).stop()

    def restart(self, index: int, *, accept_data_loss: bool = False) -> None:
        """Start a stopped or killed bookie again on its own data and port; a running one is stopped first. The call ends when it serves.

        ``accept_data_loss`` is for an embedded bookie whose data is gone (B-10); without it, such a one refuses to start.
        """
        bookie = self._embedded(index) if accept_data_loss else self._bookie(index)
        bookie.stop()
        if isinstance(bookie, EmbeddedBookieProcess):
            bookie.start(accept_data_loss=accept_data_loss)
        else:
            bookie.start()
        bookie.wait_ready()

    def wipe(self, index: int) -> None:
        """Kill an embedded bookie and destroy everything it kept."""
        bookie = self._embedded(index)
        bookie.kill()
        bookie.wipe()

    def _embedded(self, index: int) -> EmbeddedBookieProcess:
        bookie = self._bookie(index)
        if not isinstance(bookie, EmbeddedBookieProcess):
            raise InvalidArgumentError(f"bookie {index} is no embedded one")
        return bookie

    def add_bookie(self) -> int:
        """Start one more bookie and return its index.

        Raises InvalidArgumentError if there are as many as there may be.
        """
        self._home.check("local cluster")
        if len(self._bookies) >= BOOKIES_MAX:
            raise InvalidArgumentError(f"there are {BOOKIES_MAX} bookies already")
        bookie = self._make_bookie(len(self._bookies))
        self._bookies.append(bookie)
        bookie.start()
        bookie.wait_ready()
        return len(self._bookies) - 1

    @checked(timeout_s=SECONDS)
    def wait_unregistered(self, index: int, timeout_s: float = 30.0) -> None:
        """Wait until the metadata store no longer lists the stopped bookie ``index``, at most ``timeout_s`` seconds.

        Raises OperationTimeoutError.
        """
        bookie_id = self._bookie(index).bookie_id
        deadline = time.monotonic() + timeout_s
        while self._is_registered(bookie_id):
            if time.monotonic() > deadline:
                raise OperationTimeoutError(f"bookie {bookie_id} is still registered after {timeout_s:.0f} s")
            time.sleep(0.1)

    @checked()
    def _bookie(self, index: int) -> _Bookie:
        self._home.check("local cluster")
        if self._closed:
            raise InvalidArgumentError("the local cluster is closed")
        if not 0 <= index < len(self._bookies):
            raise InvalidArgumentError(f"no bookie {index}; there are {len(self._bookies)}")
        return self._bookies[index]


def _examined(kerberos: KerberosService) -> KerberosService:
    """Return it with the full path of its keytab. Raises MissingPackageError without gssapi, InvalidArgumentError if there is no key, or if
    bookies may not ask each other."""
    kerberos = replace(kerberos, keytab=os.path.abspath(kerberos.keytab))
    name = kerberos.check()
    if not kerberos.admits(name):
        raise InvalidArgumentError(
            f"clients of KerberosService, {kerberos.clients!r}, must match {name} too, by which bookies ask each other"
        )
    return kerberos


@checked(bookies=whole(1, BOOKIES_MAX), port=whole(0, 65_535), metadata=TEXT)
def local_cluster(
    bookies: int = 3,
    directory: str | os.PathLike[str] | None = None,
    apache: str | None = None,
    zookeeper: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    apache_settings: ApacheSettings | None = None,
    metrics: bool = False,
    port: int | None = None,
    tls: bool = False,
    sasl: bool = False,
    metadata: Metadata = "zookeeper",
    kerberos: KerberosService | None = None,
) -> LocalCluster:
    """Start a cluster on this machine and return it when every bookie serves.

    ``bookies`` is how many there are at least; a directory with more starts them all. ``directory`` is where data is kept and found again;
    None is a temporary one, removed at close. ``apache`` is a release such as "4.18.0" for Apache's bookies (Java 17, and Maven once); None
    is for embedded ones. ``zookeeper`` is "host:port" of a running ZooKeeper, or the URI of any running metadata store; None starts one.
    ``progress`` is called with one line of text for each step. ``apache_settings`` is an ``ApacheSettings`` of ``bk_core.bookie.apache``:
    memory and configuration of Apache's bookies, small without it. ``metrics`` has each embedded bookie serve its metrics for Prometheus on
    the loopback (``LocalCluster.metrics_urls``). ``port`` is the one of the metadata store that is started; 0 is a free one, and None the
    one that the directory keeps, else a free one. ``metadata`` is the kind of that store: "zookeeper", or "etcd" with embedded bookies (the
    extra ``etcd``, and the program, which is looked for as ``bk_core.bookie.etcd_process.find_etcd`` says).
    ``tls`` and ``sasl`` make embedded bookies ask for TLS with client certificates, and for a password; the certificates and the user are
    made in the directory, and ``LocalCluster.uri`` names their files. ``kerberos`` is a ``KerberosService`` of
    ``bk_core.bookie.kerberos_service``: the principal, at a KDC of yours, for which embedded bookies ask tickets; ``LocalCluster.uri``
    names its keytab.

    Raises InvalidArgumentError for arguments that cannot work; MissingPackageError for ``metrics`` without prometheus_client and for
    ``kerberos`` without gssapi; DiskFullError
    where the disk has no room; BookieUnavailableError or OperationTimeoutError, with the end of the log, if something does not start.

    >>> with local_cluster() as cluster, connect(cluster.uri) as client:
    ...     client.bookies()
    """
    place = Path(directory) if directory is not None else None
    return LocalCluster(bookies, place, apache, zookeeper, progress, apache_settings, metrics, port, tls, sasl, metadata, kerberos)
