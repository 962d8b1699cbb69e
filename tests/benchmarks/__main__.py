"""``python -m tests.benchmarks [--quick] [--only kernels,client.sinks,...] [--rounds N]``: see README.md."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.report import Report
from tests.benchmarks.settings import Settings

ROUNDS, ROUNDS_QUICK = 5, 3
CACHE = Path(".cache")
Part = Callable[[Report, Settings, Sequence[str]], None]


def kernels(report: Report, settings: Settings, chosen: Sequence[str]) -> None:
    from tests.benchmarks.kernels import run

    run(report, settings, chosen)


def client(report: Report, settings: Settings, chosen: Sequence[str]) -> None:
    from tests.benchmarks.client import run

    run(report, settings, chosen)


def bookies(report: Report, settings: Settings, chosen: Sequence[str]) -> None:
    from tests.benchmarks.bookies import run

    run(report, settings, chosen)


def spark(report: Report, settings: Settings, chosen: Sequence[str]) -> None:
    from tests.benchmarks.spark_all import run

    run(report, settings.quick, chosen)


PARTS: Mapping[str, Part] = {"kernels": kernels, "client": client, "bookies": bookies, "spark": spark}


def chosen_parts(words: str) -> dict[str, list[str]]:
    """``client.sinks,client.apache,kernels`` as ``{"client": ["sinks", "apache"], "kernels": []}``. ValueError for an unknown part."""
    found: dict[str, list[str]] = {}
    for word in words.split(","):
        name, _, detail = word.partition(".")
        if name not in PARTS:
            raise ValueError(f"no such part: {name}; there are {', '.join(PARTS)}")
        found.setdefault(name, []).extend([detail] if detail else [])
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed, side by side; see tests/benchmarks/README.md.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, sizes and bytes")
    parser.add_argument("--only", type=chosen_parts, default=",".join(PARTS), help=f"of {', '.join(PARTS)}; also client.sinks, spark.read")
    parser.add_argument("--rounds", type=int, help=f"counted rounds ({ROUNDS}; quick: {ROUNDS_QUICK})")
    parser.add_argument("--json", type=Path, default=CACHE / "bench.json")
    options = parser.parse_args(arguments)
    settings = Settings(options.quick, options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS))
    report = Report(options.json)
    failed: list[str] = []
    for name, details in options.only.items():
        report.say(f"part {name} {' '.join(details)}".rstrip())
        try:
            PARTS[name](report, settings, details)
        except Exception:  # the other parts are still worth their figures
            traceback.print_exc()
            failed.append(name)
    report.print_summary()
    report.plot(options.json.with_suffix(".png"))
    report.say(f"{options.json} and {options.json.with_suffix('.png')}")
    if failed:
        print(f"failed, see above: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
