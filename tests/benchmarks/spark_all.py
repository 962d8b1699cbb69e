"""All Spark contenders in one session. ``python -m tests.benchmarks.spark_all [--quick] [PART ...]`` is short for ``--only spark.PART``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks import spark_scale
from tests.benchmarks.report import Report
from tests.benchmarks.settings import Settings
from tests.benchmarks.spark_flights import typed_columns
from tests.benchmarks.spark_read import batch_reads
from tests.benchmarks.spark_stream import latencies, overheads, streaming_reads
from tests.benchmarks.spark_world import World
from tests.benchmarks.spark_write import batch_writes, streaming_writes

PARTS: Mapping[str, Callable[[World], None]] = {
    "read": batch_reads,
    "write": batch_writes,
    "stream-write": streaming_writes,
    "stream-read": streaming_reads,
    "overhead": overheads,
    "latency": latencies,
    "flights.some": typed_columns,
    "flights.all": partial(typed_columns, whole=True),
    **{f"scale.{part.__name__}": partial(spark_scale.run, part) for part in spark_scale.PARTS},
}


class SparkPart:
    """One session for all steps, until one fails."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self._report, self._settings = report, settings
        self._world: World | None = None
        self._directory: Path | None = None

    def run(self, detail: str) -> None:
        if self._world is None:
            self._report.say("starting Spark")
            self._directory = Path(tempfile.mkdtemp(prefix="bk-bench-"))
            self._world = World(self._directory, self._report, self._settings.quick, self._settings.rounds, asked=self._settings.asked)
        PARTS[detail](self._world)
        self._world.spare_disk()

    def close(self) -> None:
        world, self._world = self._world, None
        directory, self._directory = self._directory, None
        try:
            if world is not None:
                world.close()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    from tests.benchmarks.__main__ import main as whole

    named: list[str] = []
    options: list[str] = []
    last = ""
    for word in words:
        option = word.startswith("--") or last in ("--json", "--rounds", "--patience")
        (options if option else named).append(word)
        last = word
    return whole([*options, "--only", ",".join(f"spark.{word}" for word in named) or "spark"])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
