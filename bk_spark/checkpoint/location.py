"""``checkpoint_location``: a place for Spark's checkpoint that lies in ledgers, and the one gateway of an application that serves it."""

from __future__ import annotations

import hmac
import logging
import os
import re
import ssl
import threading
from _thread import RLock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from bk_core.arguments import POSITIVE_SECONDS, TEXT, Check, checked, whole
from bk_core.client.files.names import store_log
from bk_core.client.files.words import of_checkpoint, stored_at
from bk_core.config import WireProtocol
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    BlockingCallError,
    ForkedClientError,
    ImportUnfinishedError,
    InvalidArgumentError,
    LocalResourceError,
    NotEnoughBookiesError,
)
from bk_core.exit_hook import before_clients_end
from bk_core.near import meant
from bk_core.threads import cannot_wait, start_aside
from bk_spark.active import activate
from bk_spark.checkpoint import hadoop_conf
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.secret import keep_out_of_logs, let_go
from bk_spark.checkpoint.staging import REQUEST_PATIENCES, CheckpointFiles
from bk_spark.options.table import URI_ENVIRONMENT
from bk_spark.plain_errors import plainly

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

URI_CONF = "spark.bookkeeper.metadataServiceUri"
_SALT = os.urandom(32)  # of this process
_FILE = (str, os.PathLike)
_TLS = Check(
    "the files of a certificate chain and of its key, both PEM",
    lambda value: value is None or (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, _FILE) for one in value)),
)
_PASSWORD = Check("text or bytes", lambda value: isinstance(value, str | bytes), secret=True)
READ_TIMEOUT_MIN_S = 3600.0  # so that a later checkpoint may have more patience: the JVM keeps the client of the first
_PLACE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
log = logging.getLogger("bk_spark.checkpoint")


class _Application:
    """The gateway of one SparkContext, with the clients that its stores use."""

    def __init__(self, context: Any, bind: str, port: int, host: str, where: dict[str, Any]) -> None:
        self.context, self.where = context, where
        self.pid = os.getpid()
        self.lock = RLock()  # of opening; requests never take it. A handler of a signal may close inside of ``close``
        self.asked: dict[str, dict[str, Any]] = {}  # how each was opened, with a digest of its password
        self.read_timeout_s = 0.0
        self._clients: dict[tuple[str, str, float | None], BookKeeper] = {}
        self._silenced: list[tuple[logging.Logger, Any]] = []
        try:
            self.gateway = Gateway(bind, port, host, ended=self.has_ended, on_close=self._tidy, tls=_tls(where["tls"]))
        except OSError as error:
            raise LocalResourceError(f"the checkpoint gateway cannot listen at {bind}:{port}: {error}") from error
        self._silenced = keep_out_of_logs([self.gateway.refresh, self.gateway.access])

    def client(self, uri: str, protocol: WireProtocol, patience_s: float | None) -> BookKeeper:
        from bk_core.client import connect

        key = (uri, protocol, patience_s)
        if key not in self._clients:
            settings: dict[str, Any] = {} if patience_s is None else {"operation_timeout_s": patience_s}
            self._clients[key] = connect(uri, protocol=protocol, await_store=True, **settings)
        return self._clients[key]

    def check_where(self, where: dict[str, Any]) -> None:
        """Raise InvalidArgumentError for another place to listen at than the one that was chosen by the first call."""
        others = sorted(key for key, value in where.items() if value and value != self.where[key])
        if others:
            raise InvalidArgumentError(
                f"{', '.join(others)} cannot change: the first checkpoint_location of this application decided where its gateway listens "
                f"({self.gateway.address}). Give {'it' if len(others) == 1 else 'them'} in that call"
            )

    def check_wait(self, read_timeout_s: float, patience_s: float) -> None:
        """Raise InvalidArgumentError if clients that are kept in JVMs would give up requests that this patience has not given up yet."""
        if not self.read_timeout_s or read_timeout_s <= self.read_timeout_s:
            return
        if self.gateway.files or not is_local(self.context):
            raise InvalidArgumentError(
                f"patience_s={patience_s:g} is more than Spark's clients wait for ({self.read_timeout_s:g} s for an answer, which may take "
                f"{REQUEST_PATIENCES} times patience_s): they keep what the first checkpoint of an application gave them. Open the one "
                "with the most patience first"
            )

    def lead_spark_here(self, read_timeout_s: float) -> None:
        """Set Hadoop's settings, unless they are set already and wait long enough."""
        if read_timeout_s <= self.read_timeout_s:
            return
        configuration = self.context._jsc.hadoopConfiguration()
        secret, idle = self.gateway.refresh.reveal(), not self.gateway.files
        hadoop_conf.apply(self.context._jvm, configuration, self.gateway.url, secret, read_timeout_s, forget=idle)
        self.read_timeout_s = read_timeout_s

    def has_ended(self) -> bool:
        """True once the SparkContext was stopped."""
        return self.context._jsc is None

    def _tidy(self) -> None:
        """Tidy up after the gateway and its stores."""
        _applications.pop(id(self.context), None)
        let_go(self._silenced)
        self.close_clients()

    def close_clients(self) -> None:
        """Close the clients, which no store uses any more. Another one is made when it is needed."""
        with suppress(KeyError):  # there is none, or another thread has closed the last one
            while True:
                _, client = self._clients.popitem()
                try:
                    client.close()
                except BkError as error:
                    log.warning("a client of the checkpoint gateway did not close well: %s", error)
                except BaseException:  # an interrupt: nobody else has this client any more
                    start_aside(client.close, "bookkeeper-checkpoint-client")
                    raise


_applications: dict[int, _Application] = {}
_making = RLock()
_mine = threading.local()  # ``calls``: the names of the calls that this thread is in; there is more than one in a handler of a signal


@contextmanager
def _in_call(name: str, *others: str) -> Iterator[None]:
    """Raise BlockingCallError in a handler of a signal that interrupts one of the ``others`` in this thread, which it would have to wait
    for."""
    calls: list[str] = _mine.__dict__.setdefault("calls", [])
    for other in others:
        if other in calls:
            raise BlockingCallError(f"{name} has to wait, and {cannot_wait(other)}")
    calls.append(name)
    try:
        yield
    finally:
        calls.remove(name)


@plainly
@checked(
    name=Check("the name of a checkpoint, text (spark comes first, the name behind it)", lambda value: isinstance(value, str)),
    password=_PASSWORD,
    protocol=TEXT,
    patience_s=POSITIVE_SECONDS,
    port=whole(0, 65535),
    tls=_TLS,
)
def checkpoint_location(
    spark: Any,
    name: str,
    *,
    uri: str | None = None,
    password: Any = b"",
    protocol: WireProtocol = "v2",
    take_over: bool = True,
    ensemble_size: int | None = None,
    write_quorum_size: int | None = None,
    ack_quorum_size: int | None = None,
    digest_type: str | None = None,
    patience_s: float | None = None,
    host: str | None = None,
    bind_address: str | None = None,
    port: int = 0,
    tls: tuple[str, str] | None = None,
) -> str:
    """Open the checkpoint ``name``, or make it, in ledgers of the cluster at ``uri``, and return its place for
    ``option("checkpointLocation", ...)``.

    ``spark`` is the session. The driver that had the checkpoint loses it: its query ends with BK-FILES-TAKEN-OVER. ``take_over=False``
    refuses instead, also where that driver died. The checkpoint is closed when the application ends, or by ``bk_spark.checkpoint.close``.
    The same call again, while it is open here, returns the same place and opens nothing; with other options it is refused. It makes the
    session active in the calling thread, as ``bk_spark.activate`` does.

    Without ``uri`` Spark's setting ``spark.bookkeeper.metadataServiceUri`` counts, else BOOKKEEPER_METADATA_SERVICE_URI. ``protocol`` is
    that of ``bk_core.connect``. ``password``, ``ensemble_size``, ``write_quorum_size``, ``ack_quorum_size`` and ``digest_type`` are those
    of the ledgers of a new checkpoint; an existing one needs its password. ``patience_s`` is how many seconds a request of Spark's waits
    for bookies and metadata store before the query fails (the client's ``operation_timeout_s``, 60 s).

    Tasks reach the driver at ``host`` (``spark.driver.host``) and ``port`` (0: any free one), where it listens on ``bind_address``
    (``spark.driver.bindAddress``, else ``host``); with ``local[...]`` on the loopback address only. With ``tls``, the files of a
    certificate chain and of its key (PEM, without a passphrase), they speak HTTPS, and the place is one of ``swebhdfs:``. The certificate
    must name ``host``, and the JVMs of driver and executors must trust it. The first call of an application decides these four.

    Raises InvalidArgumentError; FileStoreError; and what connecting raises.
    """
    _check_name(name)
    _context(spark)
    uri = uri or spark.conf.get(URI_CONF, None) or os.environ.get(URI_ENVIRONMENT)
    if not uri:
        raise InvalidArgumentError(
            f'name the cluster: checkpoint_location(spark, {name!r}, uri="zk://host:2181/ledgers"), or Spark\'s setting {URI_CONF}, '
            f"or {URI_ENVIRONMENT}"
        )
    quorums = {"ensemble_size": ensemble_size, "write_quorum_size": write_quorum_size, "ack_quorum_size": ack_quorum_size}
    options: dict[str, Any] = {key: value for key, value in {**quorums, "digest_type": digest_type}.items() if value is not None}
    options |= {"password": password.encode() if isinstance(password, str) else password, "take_over": take_over}
    asked = {**options, "password": _digest(options["password"]), "uri": uri, "protocol": protocol, "patience_s": patience_s}
    where = {"host": host, "bind_address": bind_address, "port": port, "tls": None if tls is None else tuple(map(str, tls))}
    with _in_call("checkpoint_location", "checkpoint_location", "close"):
        while True:
            application = _application(_context(spark), where)
            with application.lock:
                if application.gateway.is_closing:  # the call that made it failed meanwhile
                    continue
                application.check_where(where)
                if not _is_open_here(application, name, asked):
                    _open_or_leave(application, name, asked, options)
            activate(spark)  # whoever asks for a checkpoint writes next, perhaps in a thread that has no session yet
            return hadoop_conf.location(name, secure=application.where["tls"] is not None)


@plainly
@checked(
    name=Check("the name of a checkpoint (spark comes first, the name behind it)", lambda value: value is None or isinstance(value, str))
)
def close(spark: Any, name: str | None = None) -> None:
    """Close the checkpoint ``name``, or all that are open in this application, so that its ledgers are closed and another driver need not
    recover them. Queries that still use one end. Nothing happens if none is open, nor after the session was stopped and all were closed.

    Any thread may call it, and a handler of a signal; BlockingCallError in one that has interrupted ``checkpoint_location``, and then
    nothing was done. InvalidArgumentError for what is no name, for one that was never opened in this application, and for what is no
    session of a driver, as one of Spark Connect.
    """
    if name is not None:
        _check_name(name)
    context = _context_of(spark)
    application = _known(context)
    if name is not None and not _is_stopped(context):
        _check_known(name, application)
    if application is not None:
        with _in_call("close", "checkpoint_location"):
            for known in [name] if name is not None else list(application.gateway.files):
                application.gateway.close_files(known, is_asked=True)
            with application.lock:
                application.gateway.if_idle(application.close_clients)


def _digest(password: bytes) -> bytes:
    """Return what tells passwords apart and is none. It is kept for as long as the application runs, also behind a close."""
    return hmac.digest(_SALT, password, "sha256")


def _check_known(name: str, application: _Application | None) -> None:
    """Raise InvalidArgumentError for a checkpoint that was never open here."""
    asked, opened = ({}, {}) if application is None else (application.asked, application.gateway.files)
    if name not in asked:
        near = meant(name, asked)
        shown = ", ".join(map(repr, sorted(list(opened)))) or "none is"
        raise InvalidArgumentError(
            f"there is no checkpoint {name!r} to close, none was opened in this application under that name; open here: {shown}"
            + (f". {near[0].upper()}{near[1:]}" if near else "")
        )


def _check_name(name: str) -> None:
    """Raise InvalidArgumentError for a name that no checkpoint can have."""
    place = stored_at(name)
    if place is not None:
        given, path = place[0], place[1].strip("/")
        more = f", and put /{path} behind the place that checkpoint_location returns" if path else ""
        told = repr(given) if given else "a name such as 'flights'"
        raise InvalidArgumentError(f"{name} is the place of a checkpoint, not its name: give {told}{more}")
    if _PLACE.match(name):
        raise InvalidArgumentError(
            f"{name} is a place, and not the name of a checkpoint in ledgers: give a name such as 'flights'. A query that keeps its "
            "checkpoint in another file system is given that place itself, without bk_spark"
        )
    try:
        store_log(name)
    except InvalidArgumentError as error:
        raise of_checkpoint(error, name, password=b"", password_given_by="", flags=False) from None


def _is_open_here(application: _Application, name: str, asked: dict[str, Any]) -> bool:
    """Return True if the checkpoint is open here. Raises InvalidArgumentError if it was opened in another way."""
    files = application.gateway.files.get(name)
    if files is None or not files.store.is_open:  # closed, being closed in another thread, taken over, or failed
        application.gateway.close_files(name)
        return False
    before = application.asked[name]
    if before["uri"] != asked["uri"]:
        raise InvalidArgumentError(f"the checkpoint {name!r} is open from {before['uri']}; close it before one of {asked['uri']}")
    others = sorted(key for key in before.keys() | asked.keys() if before.get(key) != asked.get(key))
    if others:  # named without their values: one of them is the password
        raise InvalidArgumentError(
            f"the checkpoint {name!r} is open already, with other options ({', '.join(others)}): give the same ones, or close it with "
            f"bk_spark.checkpoint.close(spark, {name!r}) first"
        )
    return True


def _open_or_leave(application: _Application, name: str, asked: dict[str, Any], options: dict[str, Any]) -> None:
    """Errors speak of the checkpoint. An application whose first checkpoint cannot be opened is left without a gateway, as it was."""
    try:
        _open(application, name, asked, options)
    except BaseException as error:
        ended = application.gateway.is_closing or application.has_ended()
        if ended or not application.read_timeout_s:
            application.gateway.close()
            application.close_clients()  # those that were made when the gateway had closed its own
        if ended and isinstance(error, Exception):
            raise _stopped() from error
        if not isinstance(error, BkError):
            raise
        given_by = "password=... of checkpoint_location"
        told = of_checkpoint(error, name, password=options["password"], password_given_by=given_by, flags=False)
        raise _with_its_name(told, name) from error


def _with_its_name(error: BkError, name: str) -> BkError:
    """The error of an open. A user knows none of the ledgers that it may be about, so the checkpoint is named before them."""
    if isinstance(error, InvalidArgumentError):
        return error
    text = str(error.args[0])
    if isinstance(error, NotEnoughBookiesError):
        stays = "one that is there already keeps those that it was made with, whatever is asked for later"
        text = f"{text}. The sizes asked for are those of a new checkpoint; {stays}"
    if "checkpoint" not in error.context:
        text = f"checkpoint {name!r} cannot be opened: {text}"
    return error.retold(text)


def _open(application: _Application, name: str, asked: dict[str, Any], options: dict[str, Any]) -> None:
    from bk_core.client.files.imports import delete_unfinished_imports, forget_import, is_made_by_import, unfinished_imports
    from bk_core.client.files.names import store_log
    from bk_core.client.files.store import FileStore

    client = application.client(asked["uri"], asked["protocol"], asked["patience_s"])
    waits_s = client.config.operation_timeout_s
    read_timeout_s = max(READ_TIMEOUT_MIN_S, REQUEST_PATIENCES * waits_s + 60)
    application.check_wait(read_timeout_s, waits_s)

    def tell(error: BkError) -> None:
        log.warning("the checkpoint %s is no longer written by this driver: %s", name, error)

    store = FileStore.open(client, name, on_end=tell, **options)
    try:
        left, has_more = unfinished_imports(store)
        if not has_more and (left or is_made_by_import(client, store_log(name))):
            # a query would take it for a new checkpoint, begin anew and write all its batches once more
            has = f"only a part of what an import was to bring ({left[0]})" if left else "and an import made it"
            ended = "that import was killed, or ended by this driver, before it was done"
            message = f"checkpoint {name!r} has no files, {has}: {ended}. Nothing was changed"
            raise ImportUnfinishedError(message, path=left[0] if left else "/")
        if has_more:
            with suppress(BkError):  # it is a matter of a store that is emptied later
                forget_import(client, store_log(name))
        if delete_unfinished_imports(store):
            done = "its files are those from before it, and what the import had written was deleted"
            log.warning("an import of the checkpoint %s was killed or fenced before it was done: %s", name, done)
        application.lead_spark_here(read_timeout_s)
        application.asked[name] = asked  # before it is served, because an interrupt may come right behind that
        if not application.gateway.add(name, CheckpointFiles(store, waits_s)):
            raise _stopped()
    except BaseException:
        with suppress(BkError):  # the first error is the one to tell
            store.close()
        raise


def _context_of(spark: Any) -> Any:
    """The SparkContext of a session, stopped or not. InvalidArgumentError for a session of Spark Connect, ArgumentTypeError for none."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidArgumentError(
            "this is a session of Spark Connect's client, and a checkpoint in ledgers is served by the driver, which is elsewhere: call it "
            "in the server's own Python, with the session of that driver"
        )
    context = getattr(spark, "sparkContext", None)
    if context is None:
        given = "None" if spark is None else f"of type {type(spark).__name__}"
        here = "SparkSession.builder.getOrCreate() gives it in the driver, and a task has none"
        raise ArgumentTypeError(f"spark must be the SparkSession of the driver, not {given}: {here}")
    return context


def _is_stopped(context: Any) -> bool:
    return getattr(context, "_jsc", None) is None


def _context(spark: Any) -> Any:
    """The SparkContext of a session that is not stopped."""
    context = _context_of(spark)
    if _is_stopped(context):
        raise _stopped()
    return context


def _stopped() -> InvalidArgumentError:
    return InvalidArgumentError(
        "this session was stopped, and the gateway of its checkpoints has ended with it: take one that runs; "
        "SparkSession.builder.getOrCreate() makes it"
    )


def _known(context: Any) -> _Application | None:
    """The application of this context, if it has opened a checkpoint. ForkedClientError in a forked child: it shares the JVM, and a gateway
    of its own would lead the JVM away from the driver's."""
    application = _applications.get(id(context))
    if application is None or application.context is not context:
        return None
    if application.pid != os.getpid():
        raise ForkedClientError(
            f"the checkpoints of this application belong to process {application.pid}, its driver; process {os.getpid()}, a forked child, "
            "shares its JVM and can have none. Nothing was done: open them in the driver"
        )
    return application


def _application(context: Any, where: dict[str, Any]) -> _Application:
    with _making:
        for earlier in [known for known in _applications.values() if known.has_ended()]:
            earlier.gateway.close()  # before its stores are opened anew, so that nobody has to be fenced
        application = _known(context)
        if application is None:
            hadoop_conf.check(context._jsc.hadoopConfiguration())
            bind, host = _addresses(context, where["host"], where["bind_address"])
            application = _applications[id(context)] = _Application(context, bind, where["port"], host, where)
        return application


def _tls(files: tuple[str, str] | None) -> ssl.SSLContext | None:
    """Raises InvalidArgumentError for files that are no certificate and key."""
    if files is None:
        return None
    for file in files:
        try:
            open(file, "rb").close()
        except OSError as error:
            raise InvalidArgumentError(f"tls: {file} cannot be read: {error.strerror or error}") from error
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(*files, password=lambda: _no_passphrase(files[1]))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgumentError(f"tls: {files[0]} and {files[1]} are no certificate with its key, both PEM: {error}") from error
    return made


def _no_passphrase(file: str) -> str:
    raise InvalidArgumentError(f"tls: the key in {file} has a passphrase; give one without, in a file that only the driver's user can read")


def is_local(context: Any) -> bool:
    """True if all tasks run in the driver's JVM."""
    master = str(context.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def _addresses(context: Any, host: str | None, bind: str | None) -> tuple[str, str]:
    """The address to listen at, and the one at which tasks find it."""
    if is_local(context) and host is None and bind is None:
        return "127.0.0.1", "127.0.0.1"
    host = host or str(context.getConf().get("spark.driver.host"))
    return bind or context.getConf().get("spark.driver.bindAddress") or host, host


def _close_all() -> None:
    for application in list(_applications.values()):
        if application.pid == os.getpid():
            application.gateway.close()


before_clients_end(_close_all)
