"""A log as tables, without Spark and beside it: ``python -m tests.benchmarks.tables [--rows 2020656] [--rounds 5] [--ways polars,...]``.

The flights, repeated, are written by ``Log.write`` to a log on one embedded bookie and read back in every way there is. Each sample is a
process of its own, which tells its seconds, its CPU seconds and how far its memory rose above what it had after connecting. Ways alternate.
The first way is what bounds the others: the entries as bytes, not decoded. The last is Spark's batch read of all columns with two cores,
into nothing, by a session that has read once before; its CPU and memory are those of the JVM and its workers too. The figures are printed
and never asserted on, but that every way saw every row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import bk_core
from bk_spark.demo.flights import read_lines, to_table
from tests.benchmarks.measure import descendants, usage_of

LOG, COPY = "flights", "copy"
YEAR = 336_776
SOME = ["carrier", "dest", "dep_delay"]
ROOT = Path(__file__).resolve().parents[2]


def bytes_alone(log: bk_core.Log) -> int:
    return sum(run.count for run in log.reader()) and log.info.rows


def batches(log: bk_core.Log) -> int:
    return sum(batch.num_rows for batch in log.to_batches())


def some_columns(log: bk_core.Log) -> int:
    return sum(batch.num_rows for batch in log.to_batches(columns=SOME))


def second_half(log: bk_core.Log) -> int:
    """From the middle of the log, to the row. It counts as half of the rows."""
    middle = log.info.rows // 2
    segments = list(log.segments())
    for segment in segments:
        if middle < segment.rows:
            start = bk_core.Position(
                segment.seq, segment.first_entry_id + middle // segment.rows_per_entry, middle % segment.rows_per_entry
            )
            break
        middle -= segment.rows
    return sum(batch.num_rows for batch in log.to_batches(start=start))


def arrow(log: bk_core.Log) -> int:
    return int(log.to_arrow().num_rows)


def pandas(log: bk_core.Log) -> int:
    return len(log.to_pandas())


def polars(log: bk_core.Log) -> int:
    import polars as library

    return int(library.DataFrame(log).height)


def duckdb(log: bk_core.Log) -> int:
    import duckdb as library

    reader = log.to_batches()  # noqa: F841  # DuckDB finds it by its name
    found = library.sql("SELECT count(*), sum(dep_delay), count(DISTINCT tailnum) FROM reader").fetchall()
    return int(found[0][0])


def write(log: bk_core.Log) -> int:
    """The table is in memory before."""
    table = held[0]
    return log.write(table).rows


def spark(log: bk_core.Log) -> int:
    """Every column of every row leaves the source; what reads them is Spark's own sink that drops them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    (session,) = sessions
    seen = Observation("rows")
    reading = session.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uris[0])
    reading.load(log.name).observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def start_spark(uri: str, log: bk_core.Log) -> None:
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    builder: Any = SparkSession.builder
    session = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    sessions.append(session)
    uris.append(uri)
    spark(log)  # what is compiled, imported and connected once


WAYS: dict[str, Callable[[bk_core.Log], int]] = {
    "bytes alone": bytes_alone,
    "to_batches": batches,
    "three columns": some_columns,
    "second half": second_half,
    "to_arrow": arrow,
    "to_pandas": pandas,
    "polars": polars,
    "duckdb": duckdb,
    "write": write,
    "spark": spark,
}
held: list[pa.Table] = []
sessions: list[Any] = []
uris: list[str] = []


def sample(uri: str, way: str) -> dict[str, float]:
    """Make one read or write, in a child process."""
    with bk_core.connect(uri) as client:
        log = client.log(COPY if way == "write" else LOG)
        if way == "write":
            held.append(client.log(LOG).to_arrow())
        elif way in ("polars", "duckdb", "to_pandas"):
            __import__(way.removeprefix("to_"))
        elif way == "spark":
            start_spark(uri, log)
        next(client.log(LOG).to_batches(columns=SOME[:1]))  # what is imported, and the first connection
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
        here = _spent()
        began = time.perf_counter()
        rows = WAYS[way](log)
        seconds = time.perf_counter() - began
        spent = _spent()
        peak = spent[1] - here[1] if way == "spark" else _peak() - here[1]
        for session in sessions:
            session.stop()
    return {"rows": rows, "seconds": seconds, "cpu": spent[0] - here[0], "peak": peak}


def _spent() -> tuple[float, int]:
    """Return CPU seconds and resident bytes of this process and all below it."""
    found = [usage for pid in (os.getpid(), *descendants(os.getpid())) if (usage := usage_of(pid)) is not None]
    return sum(usage.cpu for usage in found), sum(usage.rss for usage in found)


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def child(uri: str, way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.tables", "--uri", uri, "--ways", way]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tables", description="Speed of logs as tables, without Spark.")
    parser.add_argument("--rows", type=int, default=6 * YEAR)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--uri", help="measure one way there, and print it as JSON")
    given = parser.parse_args(arguments)
    if given.uri:
        print(json.dumps(sample(given.uri, given.ways)))
        return 0
    ways = given.ways.split(",")
    with bk_core.local_cluster(1) as cluster, bk_core.connect(cluster.uri) as client:
        size = prepare(client, given.rows)
        print(f"{given.rows:,} rows, {size / 1e6:.0f} MB of entries", flush=True)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(given.rounds + 1):
            for way in ways:
                one = child(cluster.uri, way)
                expected = given.rows - given.rows // 2 if way == "second half" else given.rows
                if one["rows"] != expected:
                    raise RuntimeError(f"{way} saw {one['rows']:,} rows instead of {expected:,}")
                if number:  # the first round fills caches
                    found[way].append(one)
                if way == "write":
                    client.log(COPY).trim(before=client.log(COPY).info.end)
        print(table(found, size, given.rows))
    return 0


def prepare(client: Any, rows: int) -> int:
    year = to_table(*read_lines(min(rows, YEAR)))
    quorums = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    log = client.create_log(LOG, entry_format="arrow", **quorums)
    client.create_log(COPY, schema=year.schema, **quorums)
    written = log.write(year.slice(0, min(YEAR, rows - done)).combine_chunks().to_batches()[0] for done in range(0, rows, YEAR))
    return int(written.bytes)


def table(found: dict[str, list[dict[str, float]]], size: int, rows: int) -> str:
    lines = [f"{'':<14}{'MB/s':>22}{'rows/s':>12}{'CPU s/GB':>10}{'memory MB':>11}"]
    for way, samples in found.items():
        moved = size * (0.5 if way == "second half" else 1.0)
        rates = sorted(moved / one["seconds"] / 1e6 for one in samples)
        spread = f"{statistics.median(rates):.0f} [{rates[0]:.0f} to {rates[-1]:.0f}]"
        per_s = statistics.median(one["rows"] / one["seconds"] for one in samples)
        cpu = statistics.median(one["cpu"] for one in samples) / moved * 1e9
        lines.append(
            f"{way:<14}{spread:>22}{per_s / 1e6:>10.2f} M{cpu:>10.2f}{statistics.median(one['peak'] for one in samples) / 1e6:>11.0f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
