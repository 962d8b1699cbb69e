"""``python -m tests.benchmarks [--quick] [--only kernels,client.sinks,...] [--rounds N]``: see README.md."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.benchmarks.plan import PATIENCE, SLACK_S, Step, Took, account, bounded, chosen, clock, table
from tests.benchmarks.report import Report
from tests.benchmarks.settings import ROUNDS, ROUNDS_QUICK, Settings

CACHE = Path(".cache")
CLOSING_S = 120.0


class Part(Protocol):
    """Steps that share processes."""

    def run(self, detail: str) -> None:
        """One step."""

    def close(self) -> None:
        """End all processes. Comes after the last step, and after one that failed: the next ``run`` starts afresh."""


def kernels(report: Report, settings: Settings) -> Part:
    from tests.benchmarks.kernels import KernelsPart

    return KernelsPart(report, settings)


def client(report: Report, settings: Settings) -> Part:
    from tests.benchmarks.client import ClientPart

    return ClientPart(report, settings)


def bookies(report: Report, settings: Settings) -> Part:
    from tests.benchmarks.bookies import BookiesPart

    return BookiesPart(report, settings)


def spark(report: Report, settings: Settings) -> Part:
    from tests.benchmarks.spark_all import SparkPart

    return SparkPart(report, settings)


PARTS: Mapping[str, Callable[[Report, Settings], Part]] = {"kernels": kernels, "client": client, "bookies": bookies, "spark": spark}


def expected_s(step: Step, settings: Settings) -> float:
    return step.expected_s(quick=settings.quick, rounds=settings.rounds, asked=settings.asked)


def run_step(part: Part, step: Step, report: Report, settings: Settings, patience: float) -> bool:
    """Return True if the step worked. Its error is printed; the part is closed then, so that nothing of it disturbs the next step."""
    expected = expected_s(step, settings)
    report.say(f"=== {step.name}, about {clock(expected)} minutes")
    began = time.monotonic()
    worked = False
    try:
        with bounded(SLACK_S + patience * expected, step.name):
            part.run(step.detail)
        worked = True
    except (Exception, SystemExit):  # the other steps are still worth their figures
        traceback.print_exc()
        close(part, step.name)
    report.took(Took(step, expected, time.monotonic() - began, not worked))
    return worked


def close(part: Part, name: str) -> None:
    try:
        with bounded(CLOSING_S, f"ending {name}"):
            part.close()
    except (Exception, SystemExit):
        traceback.print_exc()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed, side by side; see tests/benchmarks/README.md.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, sizes and bytes")
    parser.add_argument("--only", default="", help="names of parts, separated by commas: kernels, client.sinks, spark.read, spark.scale")
    parser.add_argument("--rounds", type=int, help=f"counted rounds ({ROUNDS}; quick: {ROUNDS_QUICK}), everywhere")
    parser.add_argument("--json", type=Path, default=CACHE / "bench.json", help="the page of plots goes beside it")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="a step may take so many times what it is expected to take")
    options = parser.parse_args(arguments)
    settings = Settings.of(quick=options.quick, rounds=options.rounds)
    try:
        steps = chosen(options.only, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    report = Report(options.json)
    report.say(
        f"{settings.rounds} rounds{' (quick)' if settings.quick else ''}; minutes {table([(s, expected_s(s, settings)) for s in steps])}"
    )
    page = options.json.with_suffix(".html")
    failed: list[str] = []
    for name, group in itertools.groupby(steps, key=lambda step: step.part):
        part = PARTS[name](report, settings)
        try:
            failed += [step.name for step in group if not run_step(part, step, report, settings, options.patience)]
        finally:
            close(part, name)
            report.plot(page)
    report.print_summary()
    report.say(f"minutes\n{account(report.steps)}")
    report.say(f"{options.json} and {page}")
    if failed:
        print(f"failed, see above: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def stop(*_: object) -> None:
    """As by Ctrl-C: what was started is ended, and that is not to be disturbed (``timeout`` tells a process and then its group)."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    raise SystemExit(main(sys.argv[1:]))
