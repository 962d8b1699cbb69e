"""All Spark contenders in one session: ``run(report, quick=...)``, or ``python -m tests.benchmarks.spark_all [--quick] [PART ...]``."""

from __future__ import annotations

import argparse
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.report import Report
from tests.benchmarks.spark_flights import typed_columns
from tests.benchmarks.spark_read import batch_reads
from tests.benchmarks.spark_scale import scale
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
    "flights": typed_columns,
    "scale": scale,
}
QUICK = ("read", "write", "overhead", "flights")


ROUNDS, ROUNDS_QUICK = 5, 3


def run(report: Report, quick: bool, parts: Sequence[str] = (), rounds: int | None = None) -> None:
    """``parts``: some of PARTS; by default all, or with ``quick`` those of QUICK. A part that fails does not stop the next one;
    RuntimeError at the end if one did."""
    counted = rounds or (ROUNDS_QUICK if quick else ROUNDS)
    failed = []
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-", ignore_cleanup_errors=True) as directory,
        World(Path(directory), report, quick, counted) as world,
    ):
        for part in parts or (QUICK if quick else tuple(PARTS)):
            report.say(f"Spark: {part}")
            try:
                PARTS[part](world)
            except Exception:
                failed.append(part)
                report.say(traceback.format_exc())
    if failed:
        raise RuntimeError(f"parts of the Spark benchmark failed: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    chosen = parser.parse_args()
    report = Report(chosen.json)
    run(report, chosen.quick, chosen.parts, chosen.rounds)
    report.print_summary()


if __name__ == "__main__":
    main()
