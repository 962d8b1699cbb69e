"""JVMs that live for seconds: to compile less, by one compiler, and to collect by one thread, halves what they compute. Classes that lie
ready (``class_archives``) save a third of the rest, and metadata that is made here saves the JVM of ``initnewcluster``."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from unittest import mock

import bk_core
from bk_core.bookie import apache, zookeeper_process
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.metadata import open_store
from tests import class_archives

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_OF_SPARK = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")  # the JVM that makes the driver's command line, and the driver's
_TRAINING_S = 100  # of the time that the first test of Spark has
_start = ZooKeeperProcess.start


def hasten_spark() -> None:
    """Spark drivers that this process and its children start. What the environment says already stands behind, so that it holds."""
    for name in _OF_SPARK:
        _put_before(name, OPTIONS)


def ready_spark() -> None:
    """The same drivers find their classes ready, which is half of what one computes that does little. What they would leave behind when
    they are killed goes with the test run."""
    _put_before(_OF_SPARK[-1], [f"-Djava.io.tmpdir={spark_leftovers()}"])
    _put_before(_OF_SPARK[-1], _of_spark(zookeeper_process.find_java(), zookeeper_process.find_jars()))


@cache
def spark_leftovers() -> Path:
    """Return the temporary folder of this run's drivers: native libraries, blocks and artifacts."""
    directory = Path(tempfile.mkdtemp(prefix="bk-tests-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _put_before(name: str, options: Sequence[str]) -> None:
    given = os.environ.get(name, "")
    if not all(option in given.split() for option in options):
        os.environ[name] = " ".join([*options, given]).strip()


@cache
def _of_spark(java: str, jars: str) -> list[str]:
    def train(options: list[str]) -> None:
        given = os.environ.get(_OF_SPARK[-1], "")
        environment = {**os.environ, _OF_SPARK[-1]: " ".join([*options, given])}
        command = [sys.executable, "-m", "tests.spark_classes"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=_TRAINING_S)

    return class_archives.options("spark", java, jars, train)


def hasten_zookeeper() -> None:
    """Each ZooKeeper that this process starts, those of local clusters too."""

    def start(process: ZooKeeperProcess) -> ZooKeeperProcess:
        if not process.running:
            found = zookeeper_options()
            process._java_options = [*found, *(one for one in process._java_options if one not in found)]
        return _start(process)

    ZooKeeperProcess.start = start  # type: ignore[method-assign]


def zookeeper_options() -> list[str]:
    """Return the options by which a ZooKeeper finds its classes ready."""
    return _of_zookeeper(zookeeper_process.find_java(), zookeeper_process.find_jars())


@cache
def _of_zookeeper(java: str, jars: str) -> list[str]:
    def train(options: list[str]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            process = ZooKeeperProcess(directory, java_options=options)
            try:
                _start(process)
                with closing(open_store(f"zk://{process.connect_string}/ledgers")) as store:
                    store.initialize_cluster()
            finally:
                process.stop()

    return class_archives.options("zookeeper", java, jars, train)


@cache
def java_options(release: str) -> tuple[str, ...]:
    """Return the options for JVMs with the jars of a release of Apache BookKeeper: bookies, shells, clients."""

    def train(options: list[str]) -> None:
        settings = ApacheSettings(java=(*OPTIONS, *options))
        with tempfile.TemporaryDirectory() as directory, _started(1, Path(directory), release, settings) as cluster:
            with bk_core.connect(cluster.uri) as bk, bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                ledger.append(b"warm")
                bk.recover_ledger(ledger.ledger_id).close()

    jars = f"{apache.resolve(release)}/*"
    return (*OPTIONS, *class_archives.options(f"bookkeeper-{release}", apache.find_java(), jars, train))


def bookies(release: str = apache.DEFAULT_VERSION) -> ApacheSettings:
    return ApacheSettings(java=java_options(release))


def apache_cluster(
    count: int,
    directory: Path,
    release: str = apache.DEFAULT_VERSION,
    settings: ApacheSettings | None = None,
    zookeeper: str | None = None,
) -> LocalCluster:
    """Start a cluster of Apache's bookies, with the settings of ``bookies``. Its metadata is made by the product's store; what Apache's own
    makes of it is the subject of ``test_cluster_init.py``."""
    return _started(count, directory, release, settings or bookies(release), zookeeper)


def _started(count: int, directory: Path, release: str, settings: ApacheSettings, zookeeper: str | None = None) -> LocalCluster:
    with mock.patch.object(LocalCluster, "_initialize", lambda cluster: cluster._store.initialize_cluster()):
        return bk_core.local_cluster(count, directory, apache=release, zookeeper=zookeeper, apache_settings=settings)
