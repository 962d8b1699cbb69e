"""Plays the rows of one place, one operation after the other; what fails is written down, and the rest is played."""

from __future__ import annotations

import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from tests import quick_java
from tests.secured_matrix import operations
from tests.secured_matrix.logs import client_log, shown_secrets
from tests.secured_matrix.operations import Sides, sides_at
from tests.secured_matrix.refusals import REFUSALS, play_refusal
from tests.secured_matrix.spark_work import Jobs
from tests.secured_matrix.table import EMBEDDED, JAVA, JAVA_STAYS_OUT, OPERATIONS, SPARK, Cell, Row, argued, signs_outside
from tests.secured_matrix.worlds import SECRETS, Keys, World, made_keys, made_world, without_kerberos

CONNECTS_MAX = 3
"""Java's first connection with SASL fails now and then on a busy machine: at Apache's bookies by a race of TLS and AUTH
(wire-protocol.md 10.4), and with GSSAPI where the name of the bookie's host is not found at first. Its cells are judged after that."""
TOGETHER: Sequence[tuple[tuple[str, Callable[[Sides], str]], tuple[str, Callable[[Sides], str]]]] = (
    (("write", operations.write), ("Java writes", operations.write_by_java)),
    (("read", operations.read), ("Java reads", operations.read_by_java)),
    (("recover", operations.recover), ("Java recovers", operations.recover_by_java)),
)
"""Ours and Java's at the same time."""


@contextmanager
def session() -> Iterator[SparkSession]:
    """Run a Spark of this machine."""
    from tests.spark.conftest import start_spark

    quick_java.ready_spark()
    spark = start_spark("local[2]")
    spark.sparkContext.setLogLevel("OFF")
    spark.createDataFrame([(1,)], "a int")  # which makes it the session of this thread
    try:
        yield spark
    finally:
        spark.stop()


def play_all(
    rows: Sequence[Row],
    directory: Path,
    say: Callable[[str], None],
    *,
    with_spark: bool = True,
    keep: Callable[[Sequence[Row]], object] = lambda _rows: None,
) -> list[str]:
    """Play the rows, those of one place on one cluster. Without Spark its columns are left out. ``keep`` gets the rows of each place.
    Return the logs in which a password stands: there must be none."""
    with ExitStack() as stack:
        stack.enter_context(client_log(directory / "client.log"))
        keys = stack.enter_context(made_keys(directory / "keys"))
        # Spark's workers keep a client for each cluster that they have met, so there are more connections than ZooKeeper takes by default
        keeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper", settings={"maxClientCnxns": "0"}))
        spark = stack.enter_context(session()) if with_spark else None
        for place in dict.fromkeys(row.place for row in rows):
            mine = [row for row in rows if row.place == place]
            _play_place(mine, keys, keeper, directory, spark, say)
            keep(mine)
    return shown_secrets(directory, SECRETS)


def _play_place(
    rows: Sequence[Row], keys: Keys, keeper: ZooKeeperProcess, directory: Path, spark: SparkSession | None, say: Callable[[str], None]
) -> None:
    place = rows[0].place
    for row in rows:
        reasons = {operation: argued(place, operation) for operation in OPERATIONS}
        row.cells |= {operation: Cell("argued", reason) for operation, reason in reasons.items() if reason is not None}
        if spark is None:
            row.cells |= {operation: Cell("left out", "no Spark") for operation in SPARK if operation not in row.cells}
        if place.auth == "gssapi" and keys.tickets is None:
            row.cells |= {one: Cell("left out", f"no {without_kerberos()}") for one in OPERATIONS if one not in row.cells}
    if all(len(row.cells) == len(OPERATIONS) for row in rows):
        return
    try:
        with made_world(place, keys, keeper, directory) as world:
            for row in rows:
                _play_row(row, world, spark)
                say(_line(row))
    except Exception as error:
        for row in rows:
            row.cells = {one: row.cells.get(one, Cell("failed", f"no cluster: {_told(error)}")) for one in OPERATIONS}
            say(_line(row))


def _play_row(row: Row, world: World, spark: SparkSession | None) -> None:
    with sides_at(world, row.protocol) as sides, tempfile.TemporaryDirectory() as checkpoint:
        if (outside := _java_outside(row, world, sides)) is not None:
            sides.java = None
            row.cells |= {name: outside for name in JAVA}
        for (ours, we), (theirs, java) in TOGETHER:
            beside = None if theirs in row.cells else sides.pool.submit(_cell, lambda java=java: java(sides))  # type: ignore[misc]
            row.cells[ours] = _cell(lambda we=we: we(sides))  # type: ignore[misc]
            if beside is not None:
                row.cells[theirs] = beside.result()
        row.cells["long poll"] = _cell(lambda: operations.long_poll(sides))
        if spark is not None:
            jobs = Jobs(spark, sides, Path(checkpoint))
            row.cells |= {"Spark batch": _cell(jobs.batch), "Spark stream": _cell(jobs.stream)}
        for name in REFUSALS:
            if name not in row.cells:
                row.cells[name] = _cell(lambda name=name: play_refusal(world, row.protocol, name))  # type: ignore[misc]


def _java_outside(row: Row, world: World, sides: Sides) -> Cell | None:
    """Return what is to be said of Java where it does not come in: argued for the known reason, failed for any other one."""
    signs = signs_outside(row.place, row.protocol)
    if not signs:
        if row.place.auth != "none" and row.place.bookies != EMBEDDED:
            any(operations.java_connects(sides) for _ in range(CONNECTS_MAX))
        return None
    tried = _cell(lambda: "" if operations.java_comes_in(sides, signs, world.cluster.directory) else Cell("argued", JAVA_STAYS_OUT))
    return None if tried.state == "passed" else tried


def _cell(play: Callable[[], str | Cell]) -> Cell:
    begun = time.monotonic()
    try:
        found = play()
        cell = found if isinstance(found, Cell) else Cell("passed", found)
    except (Exception, pytest.fail.Exception) as error:
        cell = Cell("failed", _told(error))
    cell.seconds = round(time.monotonic() - begun, 2)
    return cell


def _told(error: BaseException) -> str:
    """The error and the line of ours that met it. What pytest says of an error that did not come is no Exception."""
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" in frame.filename]
    place = f" at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else ""
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:600] + place


def _line(row: Row) -> str:
    seconds = sum(cell.seconds for cell in row.cells.values())
    failed = "".join(f"\n    {name}: {cell.note}" for name, cell in row.cells.items() if cell.state == "failed")
    counts = " ".join(f"{name}={cell.state}" for name, cell in row.cells.items() if cell.state not in ("passed", "refused", "argued"))
    return f"{row.name}: {seconds:.1f} s {counts or 'good'}{failed}"
