"""Hadoop's own suites about file systems and Spark's about its checkpoints, as judges of the checkpoint gateway (hadoop/README.md).

Spark's client in Spark's JVM against the gateway, over a real file store, whose bookies are in this process.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.files.store import FileStore
from bk_core.metadata import open_store
from bk_spark.checkpoint import hadoop_conf
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.conformance.hadoop import suites
from tests.conformance.hadoop.expected import HADOOP, LONG_SPARK, QUICK, SPARK, Expected
from tests.conformance.hadoop.suites import Outcome, SuitesUnavailableError
from tests.integration.patience import PATIENT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(suites.RUN_TIMEOUT_S)]
ALL = os.environ.get("BK_SUITES") == "all"
CHOSEN_HADOOP = HADOOP if ALL else {name: HADOOP[name] for name in QUICK}
ALL_OF_SPARK = SPARK | LONG_SPARK
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suites")


@pytest.fixture(scope="module")
def site(directory: Path) -> Iterator[str]:
    """The text of core-site.xml, with which the gateway is the default file system too: what a suite keeps at a path below the temporary
    directory is kept in a checkpoint. "target" is where some suites of Hadoop work."""
    uri = f"memory://{directory.name}"
    with closing(open_store(uri)) as store, ExitStack() as opened:
        store.initialize_cluster()
        for number in range(3):
            opened.enter_context(closing(EmbeddedBookie(directory / f"bookie-{number}", "127.0.0.1", 0, store).start()))
        client = opened.enter_context(bk_core.connect(uri, limits=PATIENT))
        gateway = opened.enter_context(closing(Gateway()))
        for name in ("test", "target", directory.parts[1]):
            gateway.files[name] = CheckpointFiles(FileStore.open(client, name), PATIENCE_S)
        settings = hadoop_conf.settings(gateway.url, gateway.refresh.reveal(), 3 * PATIENCE_S + 60)
        settings["fs.defaultFS"] = hadoop_conf.location("")
        properties = (f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>" for key, value in settings.items())
        yield f"<configuration>{''.join(properties)}</configuration>"


@pytest.fixture(scope="module")
def of_hadoop(site: str, directory: Path) -> list[Outcome]:
    try:
        return suites.run_hadoop(CHOSEN_HADOOP, site, directory / "hadoop")
    except SuitesUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def of_spark(site: str, directory: Path) -> list[Outcome]:
    try:
        return suites.run_spark(ALL_OF_SPARK, site, directory / "spark")
    except SuitesUnavailableError as error:
        pytest.skip(str(error))


def test_the_suites_are_of_the_hadoop_that_spark_brings() -> None:
    assert (suites.BUNDLED / f"hadoop-client-api-{suites.HADOOP}.jar").exists(), "pyspark bundles another Hadoop now: suites.HADOOP"


@pytest.mark.parametrize("suite", CHOSEN_HADOOP)
def test_hadoop(of_hadoop: list[Outcome], suite: str) -> None:
    _compare(of_hadoop, suite, CHOSEN_HADOOP[suite])


if ALL:  # their jars are 75 MB, and they take minutes

    @pytest.mark.parametrize("suite", ALL_OF_SPARK)
    def test_spark(of_spark: list[Outcome], suite: str) -> None:
        _compare(of_spark, suite, ALL_OF_SPARK[suite])


def _compare(outcomes: Sequence[Outcome], suite: str, expected: Expected) -> None:
    """The tests that fail or are skipped are those of the list, no more and no fewer, and no test has gone."""
    found = [outcome for outcome in outcomes if outcome.suite == suite.rpartition("$")[2]]
    assert found, f"{suite} did not run; the suites that did: {sorted({outcome.suite for outcome in outcomes})}"
    others = {(outcome.result, outcome.name): outcome.text for outcome in found if outcome.result != "passed"}
    listed = {("failed", name) for name in expected.failing} | {("skipped", name) for name in expected.skipped}
    assert not others.keys() - listed, "\n".join(f"{key}: {others[key]}" for key in sorted(others.keys() - listed))
    assert not listed - others.keys(), f"on the list, and passed: {sorted(listed - others.keys())}"
    assert Counter(outcome.result for outcome in found)["passed"] == expected.passing
