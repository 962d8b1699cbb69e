"""``checkpoint_location``: a place for Spark's checkpoint that lies in ledgers, and the one gateway of an application that serves it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from bk_core.arguments import POSITIVE_SECONDS, Check, checked, whole
from bk_core.client.files.names import store_log
from bk_core.errors import BkError, InvalidArgumentError, LocalResourceError
from bk_spark.checkpoint import hadoop_conf
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.secret import keep_out_of_logs, let_go
from bk_spark.checkpoint.staging import REQUEST_PATIENCES, CheckpointFiles
from bk_spark.options import URI_ENVIRONMENT
from bk_spark.plain_errors import plainly

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

URI_CONF = "spark.bookkeeper.metadataServiceUri"
_PASSWORD = Check("text or bytes", lambda value: isinstance(value, str | bytes), secret=True)
log = logging.getLogger("bk_spark.checkpoint")


class _Application:
    """The gateway of one SparkContext, with the clients that its stores use."""

    def __init__(self, context: Any, bind: str, port: int, host: str) -> None:
        self.context = context
        self.pid = os.getpid()
        self.lock = threading.Lock()  # of opening; requests never take it
        self.asked: dict[str, dict[str, Any]] = {}  # how each was opened
        self.read_timeout_s = 0.0
        self._clients: dict[tuple[str, str, float | None], BookKeeper] = {}
        self._silenced: list[tuple[logging.Logger, Any]] = []
        try:
            self.gateway = Gateway(bind, port, host, ended=self.has_ended, on_close=self._tidy)
        except OSError as error:
            raise LocalResourceError(f"the checkpoint gateway cannot listen at {bind}:{port}: {error}") from error
        self._silenced = keep_out_of_logs([self.gateway.refresh, self.gateway.access])

    def client(self, uri: str, protocol: str, patience_s: float | None) -> BookKeeper:
        from bk_core.client import connect

        key = (uri, protocol, patience_s)
        if key not in self._clients:
            settings: dict[str, Any] = {} if patience_s is None else {"operation_timeout_s": patience_s}
            self._clients[key] = connect(uri, protocol=protocol, await_store=True, **settings)
        return self._clients[key]

    def lead_spark_here(self, read_timeout_s: float) -> None:
        """Set Hadoop's settings, unless they are set already and wait long enough."""
        if read_timeout_s <= self.read_timeout_s:
            return
        configuration = self.context._jsc.hadoopConfiguration()
        secret, idle = self.gateway.refresh.reveal(), not self.gateway.files
        hadoop_conf.apply(self.context._jvm, configuration, self.gateway.address, secret, read_timeout_s, forget=idle)
        self.read_timeout_s = read_timeout_s

    def has_ended(self) -> bool:
        """True once the SparkContext was stopped."""
        return self.context._jsc is None

    def _tidy(self) -> None:
        """After the gateway and its stores."""
        _applications.pop(id(self.context), None)
        let_go(self._silenced)
        self.close_clients()

    def close_clients(self) -> None:
        """Those that no store uses any more; another one is made when it is needed."""
        while self._clients:
            _, client = self._clients.popitem()
            try:
                client.close()
            except BkError as error:
                log.warning("a client of the checkpoint gateway did not close well: %s", error)


_applications: dict[int, _Application] = {}
_making = threading.Lock()


@plainly
@checked(
    name=Check("the name of a checkpoint, text", lambda value: isinstance(value, str)),
    password=_PASSWORD,
    patience_s=POSITIVE_SECONDS,
    port=whole(0, 65535),
)
def checkpoint_location(
    spark: Any,
    name: str,
    *,
    uri: str | None = None,
    password: Any = b"",
    protocol: str = "v2",
    take_over: bool = True,
    ensemble_size: int | None = None,
    write_quorum_size: int | None = None,
    ack_quorum_size: int | None = None,
    digest_type: str | None = None,
    patience_s: float | None = None,
    host: str | None = None,
    bind_address: str | None = None,
    port: int = 0,
) -> str:
    """The place of the checkpoint ``name`` for ``option("checkpointLocation", ...)``: in ledgers of the cluster at ``uri``.

    Opens the checkpoint, or makes it. The driver that had it loses it: its query ends with BK-FILES-TAKEN-OVER. ``take_over=False`` refuses
    instead, also where that driver died. It is closed when the application ends, or by ``bk_spark.checkpoint.close``. The same call again,
    while it is open here, returns the same place and opens nothing; with other options it is refused.

    ``uri``: else Spark's setting ``spark.bookkeeper.metadataServiceUri``, else BOOKKEEPER_METADATA_SERVICE_URI. ``password``, quorums and
    ``digest_type`` are those of the ledgers of a new checkpoint; an existing one needs its password. ``patience_s``: how long a request of
    Spark's waits for bookies and metadata store before the query fails (the client's ``operation_timeout_s``, 60 s).

    Tasks reach the driver at ``host`` (``spark.driver.host``) and ``port`` (0: any free one), where it listens on ``bind_address``
    (``spark.driver.bindAddress``, else ``host``); with ``local[...]`` on the loopback address only. The first call of an application
    decides these three.

    InvalidArgumentError, FileStoreError, and what connecting raises.
    """
    store_log(name)
    context = _context(spark)
    uri = uri or spark.conf.get(URI_CONF, None) or os.environ.get(URI_ENVIRONMENT)
    if not uri:
        raise InvalidArgumentError(
            f'name the cluster: checkpoint_location(spark, {name!r}, uri="zk://host:2181/ledgers"), or Spark\'s setting {URI_CONF}, '
            f"or {URI_ENVIRONMENT}"
        )
    quorums = {"ensemble_size": ensemble_size, "write_quorum_size": write_quorum_size, "ack_quorum_size": ack_quorum_size}
    options: dict[str, Any] = {key: value for key, value in {**quorums, "digest_type": digest_type}.items() if value is not None}
    options |= {"password": password.encode() if isinstance(password, str) else password, "take_over": take_over}
    asked = {**options, "uri": uri, "protocol": protocol, "patience_s": patience_s}
    application = _application(context, host, bind_address, port)
    with application.lock:
        if not _is_open_here(application, name, asked):
            _open(application, name, uri, protocol, patience_s, options)
            application.asked[name] = asked
    return hadoop_conf.location(name)


def close(spark: Any, name: str | None = None) -> None:
    """Close the checkpoint ``name``, or all that are open in this application, so that its ledgers are closed and another driver need not
    recover them. Queries that still use one end. Nothing happens if none is open, nor after the session was stopped and all were closed."""
    application = _applications.get(id(getattr(spark, "sparkContext", None)))
    if application is not None:
        for known in [name] if name is not None else list(application.gateway.files):
            application.gateway.close_files(known)
        with application.lock:
            if not application.gateway.files:
                application.close_clients()


def _is_open_here(application: _Application, name: str, asked: dict[str, Any]) -> bool:
    """InvalidArgumentError if it is, and was opened in another way."""
    files = application.gateway.files.get(name)
    if files is None:
        return False
    if not files.store.is_open:
        application.gateway.close_files(name)  # it was taken over, or failed
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


def _open(application: _Application, name: str, uri: str, protocol: str, patience_s: float | None, options: dict[str, Any]) -> None:
    from bk_core.client.files.store import FileStore

    client = application.client(uri, protocol, patience_s)
    waits_s = client.config.operation_timeout_s

    def tell(error: BkError) -> None:
        log.warning("the checkpoint %s is no longer written by this driver: %s", name, error)

    store = FileStore.open(client, name, on_end=tell, **options)
    try:
        application.lead_spark_here(REQUEST_PATIENCES * waits_s + 60)
    except BaseException:
        store.close()
        raise
    application.gateway.files[name] = CheckpointFiles(store, waits_s)


def _context(spark: Any) -> Any:
    """The SparkContext. InvalidArgumentError for a session that has none: with Spark Connect the driver is elsewhere."""
    context = None
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        context = getattr(spark, "sparkContext", None)
    if context is None or getattr(context, "_jsc", None) is None:
        raise InvalidArgumentError(
            "a checkpoint in ledgers is served by the driver: call checkpoint_location there, with a session that has a SparkContext and "
            "is not stopped. With Spark Connect that is the server's own session, not the client's"
        )
    return context


def _application(context: Any, host: str | None, bind: str | None, port: int) -> _Application:
    with _making:
        for earlier in [known for known in _applications.values() if known.has_ended()]:
            earlier.gateway.close()  # before its stores are opened anew, so that nobody has to be fenced
        application = _applications.get(id(context))
        if application is None or application.context is not context or application.pid != os.getpid():
            hadoop_conf.check(context._jsc.hadoopConfiguration())
            bind, host = _addresses(context, host, bind)
            application = _applications[id(context)] = _Application(context, bind, port, host)
        return application


def _addresses(context: Any, host: str | None, bind: str | None) -> tuple[str, str]:
    """The address to listen at, and the one at which tasks find it."""
    master = str(context.master)
    if master.startswith("local") and not master.startswith("local-cluster") and host is None and bind is None:
        return "127.0.0.1", "127.0.0.1"
    host = host or str(context.getConf().get("spark.driver.host"))
    return bind or context.getConf().get("spark.driver.bindAddress") or host, host


def _close_all() -> None:
    for application in list(_applications.values()):
        if application.pid == os.getpid():
            application.gateway.close()


atexit.register(_close_all)  # bk_core is imported already, so clients are still there then
