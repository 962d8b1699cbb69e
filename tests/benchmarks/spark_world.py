"""The things that Spark contenders share: one session, the bookies, the broker, and the meter that tells their CPU apart."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

import bk_core
from bk_core.bookie.apache import DEFAULT_VERSION
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.protocol.ledger import metadata_codec
from pyspark_bookkeeper import DefaultSource
from tests.benchmarks.measure import CpuMeter, Sample, descendants, usage_of
from tests.benchmarks.report import Report
from tests.benchmarks.settings import APACHE_SETTINGS, Settings
from tests.benchmarks.spark_prebuilt import PrebuiltSource
from tests.benchmarks.standins import standins
from tests.kafka.broker import Broker
from tests.kafka.jars import CONNECTOR, resolve

URI = "bookkeeper.metadataServiceUri"
APACHE, EMBEDDED, REPLAYING, SINKS = "Apache", "embedded", "replaying", "acknowledging"
FRESH_S = 0.05
DISK_MAX = 16 << 30
# No 4.2 or 4.3 of it is on Maven; this one runs on pyspark 4.3.
AVRO = (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.maxPartitionBytes": "64g",  # one task per file
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
KAFKA_WRITING = {"kafka.batch.size": "262144", "kafka.linger.ms": "5"}
KAFKA_READING = {"kafka.max.partition.fetch.bytes": str(8 << 20), "kafka.fetch.max.bytes": str(64 << 20)}
ONE_COPY = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
THREE_COPIES = {"ensembleSize": "3", "writeQuorumSize": "3", "ackQuorumSize": "2"}
_KINDS = (
    ("python_streaming_source_runner", "source runner"),
    ("pyspark.daemon pyspark.worker", "Python workers"),
    ("pyspark.daemon", "planner"),
    ("deploy.SparkSubmit", "JVM"),
    ("kafka.Kafka", "broker"),
    ("bookkeeper.server.Main", "bookies"),
    ("bk_core.bookie.server", "bookies"),
    ("standin", "stand-ins"),
    ("ZooKeeperServerMain", "ZooKeeper"),
)
PYTHON = ("Python workers", "planner", "source runner")
ENDING_S = 20.0
PROCESSES = tuple(dict.fromkeys(name for _, name in _KINDS))


class Kinds:
    """Process ids by kind, of all that this process has started. A command line is read once per process.

    The list of processes is kept for ``FRESH_S``: the meter asks for each kind, and looking costs milliseconds.
    """

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}
        self._living: list[int] = []
        self._looked = -FRESH_S

    def of(self, kind: str) -> list[int]:
        if time.monotonic() >= self._looked + FRESH_S:
            self._living = descendants(os.getpid())
            self._looked = time.monotonic()
            for pid in self._living:
                if self._known.get(pid) is None:
                    self._known[pid] = kind_of(pid)
        return [pid for pid in self._living if self._known[pid] == kind]


def kind_of(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((name for text, name in _KINDS if text in command), None)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _size(path: Path) -> int:
    """Bytes; none if it is gone by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def end_spark(session: SparkSession | None) -> None:
    """The session and its JVM, which keeps Python processes with clients of the bookies, and which may hang; the next session has a JVM of
    its own."""
    gateway = cast(Any, SparkContext._gateway)
    try:
        if session is not None:
            session.stop()
    finally:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        if gateway is not None:
            _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends with its standard input
    try:
        gateway.proc.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


class World:
    """One session. Bookies and the broker are started when they are first asked for; ``close`` ends all."""

    def __init__(self, directory: Path, report: Report, quick: bool, rounds: int, *, asked: bool = False) -> None:
        """The last three as in ``Settings``."""
        self.directory, self.report, self.quick, self.rounds = directory, report, quick, rounds
        self.at_most = Settings(quick, rounds, asked).at_most
        self._resources = ExitStack()
        self._clusters: dict[str, Any] = {}
        self._servers: dict[str, ExitStack] = {}
        self._clients: dict[str, Any] = {}
        self._broker: Broker | None = None
        self._numbers = itertools.count()
        self._kinds = Kinds()
        try:
            self.spark = self._session()
        except BaseException:  # a JVM with half of a context would be taken for a whole one; another one is not known at all yet
            end_spark(None)
            kill(self._kinds.of("JVM"))
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all that was started, whatever it is at."""
        try:
            for query in self.spark.streams.active:
                query.stop()
            self.spark.sparkContext.cancelAllJobs()
        finally:
            try:
                end_spark(self.spark)
            finally:
                self._resources.close()

    def _session(self) -> SparkSession:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        root = str(Path(__file__).resolve().parents[2])
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        jars = [*resolve("spark-kafka", CONNECTOR, transitive=False).glob("*.jar")]
        jars += resolve("spark-avro", AVRO, transitive=False).glob("*.jar")
        own = {"spark.jars": ",".join(map(str, sorted(jars))), "spark.local.dir": str(self.directory / "spark")}
        own["spark.sql.warehouse.dir"] = str(self.directory / "warehouse")
        builder: Any = SparkSession.builder
        for key, value in {**SETTINGS, **own}.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.master("local[2]").appName("benchmark").getOrCreate()
        # what a stream that is stopped leaves half read would be told with a traceback
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._register(session)
        return session

    @staticmethod
    def _register(session: SparkSession, turn: str = "") -> None:
        """Each with workers and planners of its own, which Spark keeps by their environment: ours spares its processes most of pyspark's
        collections (bk_spark/README.md, decision 1), and nothing that it is compared with is to have that from it."""
        for source in (PrebuiltSource, DefaultSource):
            session.sparkContext.environment["BENCHMARK_TURN"] = f"{turn} {source.name()}"
            session.dataSource.register(source)

    def fresh_workers(self) -> None:
        """New task workers from here on: Spark keeps those of one environment, and what they have read before stays in their heaps."""
        self._register(self.spark, self.name("turn"))

    # --- servers -------------------------------------------------------------------------------------------------------

    def uri(self, kind: str) -> str:
        """Return the URI of three bookies, Apache's or embedded ones, or of three stand-ins, replaying sources or acknowledging sinks."""
        if kind not in self._clusters:
            self.report.say(f"starting 3 bookies: {kind}")
            if kind in (APACHE, EMBEDDED):
                apache = DEFAULT_VERSION if kind == APACHE else None
                directory = self.directory / f"bookies-{kind}"
                cluster: Any = bk_core.local_cluster(3, directory=directory, apache=apache, apache_settings=APACHE_SETTINGS)
            else:
                cluster = standins(3, keep=kind == REPLAYING, kept_bytes=6 << 30)
            self._servers[kind] = self._resources.enter_context(ExitStack())
            self._clusters[kind] = self._servers[kind].enter_context(cluster)
        return str(self._clusters[kind].uri)

    def end(self, kind: str) -> None:
        """Stop bookies; what they hold is gone. So are Spark's Python processes, whose clients would look for them for ever."""
        if kind in self._clusters:
            old = [pid for of in PYTHON for pid in self._kinds.of(of)]
            self.fresh_workers()
            kill(old)
            del self._clusters[kind]
            self._clients.pop(kind, None)
            self._servers.pop(kind).close()

    def spare_disk(self) -> None:
        """End bookies that have written much: Apache's give the space of deleted ledgers back after a quarter of an hour."""
        for kind in [kind for kind in (APACHE, EMBEDDED) if kind in self._clusters]:
            kept = sum(map(_size, (self.directory / f"bookies-{kind}").rglob("*")))
            if kept > DISK_MAX:
                self.report.say(f"{kept >> 30} GiB on disk: ending the {kind} bookies")
                self.end(kind)
                self.remove(self.directory / f"bookies-{kind}")

    def client(self, kind: str) -> Any:
        """For looking at logs and deleting them, in this process."""
        uri = self.uri(kind)
        if kind not in self._clients:
            self._clients[kind] = self._servers[kind].enter_context(bk_core.connect(uri))
        return self._clients[kind]

    @property
    def kafka(self) -> str:
        """Bootstrap servers."""
        if self._broker is None:
            self.report.say("starting a Kafka broker")
            self._broker = self._resources.enter_context(Broker(self.directory / "kafka"))
        return self._broker.servers

    def topic(self, partitions: int = 2) -> str:
        """A new one."""
        name = self.name("topic")
        with self._admin() as admin:
            jvm: Any = admin.jvm
            one = jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
            wanted = jvm.java.util.Collections.singletonList(one)
            admin.client.createTopics(wanted).all().get()
        return name

    def drop_topic(self, name: str) -> None:
        with self._admin() as admin:
            admin.client.deleteTopics(admin.jvm.java.util.Collections.singletonList(name)).all().get()

    def topic_bytes(self, name: str) -> int:
        """On the broker's disk."""
        return sum(path.stat().st_size for path in (self.directory / "kafka" / "data").glob(f"{name}-*/*.log"))

    def _admin(self) -> _Admin:
        return _Admin(self.spark, self.kafka)

    # --- names and frames ----------------------------------------------------------------------------------------------

    def name(self, what: str) -> str:
        """One that was not used before."""
        return f"{what}-{next(self._numbers)}"

    def path(self, what: str) -> Path:
        return self.directory / self.name(what)

    def activate(self) -> None:
        """Make the session active in the JVM's thread for this one, which py4j exchanges after a pause: without an active session Spark
        finds no Python format."""
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.spark._jsparkSession)

    def read(self, format: str, **options: Any) -> DataFrame:
        self.activate()
        return self.spark.read.format(format).options(**{key: str(value) for key, value in options.items()}).load()

    def read_ours(self, uri: str, log: str, **options: Any) -> DataFrame:
        return self.read("bookkeeper", **{URI: uri, "log": log}, **options)

    def read_kafka(self, topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.kafka, "subscribe": topic, **KAFKA_READING}
        return self.read("kafka", **options)

    # --- measuring -----------------------------------------------------------------------------------------------------

    def meter(self) -> CpuMeter:
        return CpuMeter({name: partial(self._kinds.of, name) for name in PROCESSES})

    def measured(self, amount: float, size: int, action: Callable[[], Mapping[str, float] | None]) -> Callable[[], Sample]:
        """A contender: ``action`` under the meter. What it returns goes into the sample as extra figures."""

        def run() -> Sample:
            self.activate()
            with self.meter() as meter:
                extra = action() or {}
            return meter.sample(amount, size, **extra)

        return run

    def pids(self, kind: str) -> list[int]:
        return self._kinds.of(kind)

    def idle_worker_mib(self, others: Container[int] = ()) -> float:
        """Anonymous memory of a task worker that has imported what every Python source needs and has done nothing else. ``others`` are
        workers that have."""
        self.read("prebuilt", rows=2, partitions=2).count()
        time.sleep(0.5)
        fresh = [pid for pid in self._kinds.of("Python workers") if pid not in others]
        found = [usage.anonymous for pid in fresh if (usage := usage_of(pid)) is not None]
        return max(found, default=0) / (1 << 20)

    def drop_log(self, kind: str, log: str) -> None:
        """But not from sinks: they keep nothing, and cannot be asked where a ledger ends that a stream has left open."""
        if kind != SINKS:
            delete_log(self.client(kind), log)

    def log_bytes(self, kind: str, log: str) -> int:
        """Payload bytes of one copy."""
        return int(read_ledger_list(self.client(kind), log).total_bytes)

    def close_ledgers(self, kind: str, log: str) -> None:
        """In their metadata only, as what the log lists says: stand-ins serve closed ledgers."""
        client = self.client(kind)
        ends: dict[int, tuple[int, int]] = {}
        for segment in read_log(client, log).segments():
            last, size = ends.get(segment.ledger_id, (-1, 0))
            ends[segment.ledger_id] = (max(last, segment.last_entry_id or 0), size + segment.bytes)
        for ledger_id, (last, size) in ends.items():
            stored = client.store.read_ledger(ledger_id)
            closed = metadata_codec.decode(stored.data).closed(last, size)
            client.store.write_ledger(ledger_id, metadata_codec.encode(closed), stored.version)

    def remove(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


class _Admin:
    """Kafka's own admin client, in Spark's JVM."""

    def __init__(self, spark: SparkSession, servers: str) -> None:
        self.jvm = cast(Any, spark._jvm)
        properties = self.jvm.java.util.Properties()
        properties.put("bootstrap.servers", servers)
        self.client = self.jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()


# --- values ---------------------------------------------------------------------------------------------------------------


def value(number: Column, size: int) -> Column:
    """A value of ``size`` bytes (at least 20): the number as text, then bytes that do not compress. The JVM makes it with one copy."""
    filler = (os.urandom(4096) * (size // 4096 + 1))[: size - 20]
    return f.concat(f.lpad(number.cast("string"), 20, "0").cast("binary"), f.lit(bytearray(filler))).alias("value")


def values(spark: SparkSession, rows: int, size: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select(value(f.col("id"), size))


def summed(frame: DataFrame) -> int:
    """The action of all batch reads: every value is fetched, and none is moved elsewhere."""
    return int(frame.select(f.sum(f.length("value"))).collect()[0][0] or 0)


def to_partitions(frame: DataFrame) -> DataFrame:
    """For Kafka's sink: each task writes a partition of its own, as with the other sinks."""
    return frame.withColumn("partition", f.spark_partition_id())
