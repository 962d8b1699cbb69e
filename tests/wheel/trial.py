"""Everything that the installed wheel promises, played in the environment that runs this file. Uses only what the wheel declares.

    ENVIRONMENT/bin/python trial.py

Prints the versions and one line per part; ends with status 0 if all parts held. Alone in its folder, so that no checkout is on the path.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROWS = 5000
COLUMNS = "id bigint, text string, n int, price decimal(9,2), day date, at timestamp, tags array<string>, m map<string,double>, b binary"
UNDECLARED = ("numpy", "pandas", "psutil", "grpc", "typing_extensions")


@contextmanager
def bk_local() -> Iterator[str]:
    """``bk local`` as a user starts it, until the end of the block."""
    bk = Path(sys.executable).with_name("bk")
    with subprocess.Popen([bk, "local", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["uri"]
        finally:
            process.terminate()


class Trial:
    def __init__(self, uri: str, directory: Path) -> None:
        from pyspark.sql import SparkSession

        self.uri = uri
        self.directory = directory
        builder = SparkSession.builder.master("local[2]").appName("trial").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.showConsoleProgress", "false")
        self.spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def write(self, frame: Any, log: str, mode: str = "append", **options: str) -> None:
        frame.write.format("bookkeeper").options(**{"bookkeeper.metadataServiceUri": self.uri}, log=log, **options).mode(mode).save()

    def read(self, **options: str) -> Any:
        return self.spark.read.format("bookkeeper").options(**{"bookkeeper.metadataServiceUri": self.uri}, **options).load()

    def stream(self, **options: str) -> Any:
        given = {"bookkeeper.metadataServiceUri": self.uri, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("bookkeeper").options(**given).load()

    def copy(self, frame: Any, log: str, **options: str) -> None:
        writer = frame.writeStream.format("bookkeeper").options(**{"bookkeeper.metadataServiceUri": self.uri}, log=log, **options)
        query = writer.option("checkpointLocation", str(self.directory / f"checkpoint-{log}")).trigger(availableNow=True).start()
        query.awaitTermination()

    # --- parts --------------------------------------------------------------------------------------------------------------

    def kernels(self) -> None:
        from bk_core import kernels

        assert kernels.IMPLEMENTATION == "native", kernels.IMPLEMENTATION

    def rows_of_every_type(self) -> None:
        at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
        one = [1, "a", 2, "3.50", at.date(), at, ["x", None], {"k": 0.5}, b"\0\xff"]
        rows: list[Any] = [one, [None] * len(one)]
        frame = self.spark.createDataFrame([(*r[:3], None, *r[4:]) for r in rows], COLUMNS)
        for compression in ("none", "zstd", "lz4"):
            self.write(frame, f"types-{compression}", compression=compression)
            found = self.read(log=f"types-{compression}")
            assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect()))

    def batch(self) -> None:
        self.write(self.spark.range(ROWS).selectExpr("id", "cast(id as string) text"), "batch")
        assert self.read(log="batch").selectExpr("count(distinct id)", "sum(length(text))").first()[0] == ROWS
        assert self.read(log="batch", includeMetadata="true", columns="id,_offset").where("id <> _offset").count() >= 0
        self.write(self.spark.range(3).selectExpr("id", "'new' text", "1L extra"), "batch", mergeSchema="true")
        assert self.read(log="batch").where("extra = 1").count() == 3
        self.write(self.spark.range(7).selectExpr("id", "'over' text"), "batch", mode="overwrite")
        assert self.read(log="batch").count() == 7

    def raw(self) -> None:
        for log, value in (("raw-text", "cast(id as string)"), ("raw-bytes", "cast(cast(id as string) as binary)")):
            self.write(self.spark.range(ROWS).selectExpr(f"{value} value"), log, entryFormat="raw")
            found = self.read(log=log)
            assert found.selectExpr("count(*)", "sum(cast(cast(value as string) as bigint))").first() == (ROWS, ROWS * (ROWS - 1) // 2)
            self.copy(self.stream(log=log).select("value"), f"{log}-copy", entryFormat="raw")
            assert self.read(log=f"{log}-copy").count() == ROWS
        self.write(self.spark.range(0).selectExpr("cast(id as string) value"), "raw-empty", entryFormat="raw")
        assert self.read(log="raw-empty").count() == 0

    def streams(self) -> None:
        self.write(self.spark.range(ROWS), "in")
        self.copy(self.stream(log="in", maxRowsPerTrigger=str(ROWS // 3)), "out")
        assert self.read(log="out").selectExpr("count(id)", "count(distinct id)").first() == (ROWS, ROWS)
        routed = self.stream(logPattern="in|out", columns="id").selectExpr("id", "concat('part-', id % 3) log")
        given = {"bookkeeper.metadataServiceUri": self.uri, "checkpointLocation": str(self.directory / "routed")}
        routed.writeStream.format("bookkeeper").options(**given).trigger(availableNow=True).start().awaitTermination()
        assert self.read(logPattern="part-.*").count() == 2 * ROWS

    def metadata_tables(self) -> None:
        for table in ("ledgers", "fragments", "bookies", "logs", "segments"):
            assert self.read(metadata=table).count() > 0, table
        assert self.read(metadata="entries", log="raw-text").where("digestOk").count() == ROWS

    def sql(self) -> None:
        options = f"`bookkeeper.metadataServiceUri` '{self.uri}', log 'sql'"
        given = f"`bookkeeper.metadataServiceUri` = '{self.uri}', log = 'sql'"
        self.write(self.spark.range(10), "sql")
        self.spark.sql(f"CREATE TABLE t USING bookkeeper OPTIONS ({options})")
        self.spark.sql(f"INSERT INTO t WITH ({given}) SELECT id + 10 AS id FROM range(10)")
        assert self.spark.sql("SELECT sum(id) FROM t").first()[0] == 190
        filtered = self.read(log="sql", includeMetadata="true").where("_offset >= 15")
        assert filtered.count() == 5
        self.spark.sql("DROP TABLE t")

    def command_line(self) -> None:
        bk = Path(sys.executable).with_name("bk")
        for words in (["log", "ls"], ["log", "show", "batch"], ["ledger", "ls"], ["bookie", "ls"], ["log", "check", "in"], ["--help"],
                      ["query", "lag", str(self.directory / "checkpoint-out")]):  # fmt: skip
            done = subprocess.run(
                [bk, *words], env={**os.environ, "BOOKKEEPER_METADATA_SERVICE_URI": self.uri}, capture_output=True, text=True
            )
            assert done.returncode == 0, (words, done.stdout, done.stderr)

    def python(self) -> None:
        import bk_core

        with bk_core.connect(self.uri) as bk, bk.create_ledger(digest_type="MAC", password=b"p") as ledger:
            pending = [ledger.append_future(b"%d" % n) for n in range(1000)]
            assert [f.result() for f in pending] == list(range(1000))


def main() -> int:
    names = ("pyspark", "pyarrow", "kazoo", "protobuf", "lmdb", "click", "rich")
    print(" ".join(f"{name}={version(name)}" for name in names), flush=True)
    there = [name for name in UNDECLARED if find_spec(name)]
    if there:
        print(f"this environment has more than the wheel declares: {', '.join(there)}")
        return 2
    os.environ["PYSPARK_PYTHON"] = sys.executable
    failed = 0
    with tempfile.TemporaryDirectory(prefix="bk-trial-") as directory, bk_local() as uri:
        trial = Trial(uri, Path(directory))
        parts: list[Callable[[], None]] = [trial.kernels, trial.python, trial.rows_of_every_type, trial.batch, trial.raw, trial.streams]
        for part in [*parts, trial.metadata_tables, trial.sql, trial.command_line]:
            try:
                part()
            except Exception as error:
                failed += 1
                print(f"{part.__name__}: FAILED {type(error).__name__}: {error}", flush=True)
            else:
                print(f"{part.__name__}: held", flush=True)
        trial.spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
