"""``python -m bk_spark.demo``: 0 if every row came back exactly once, 1 if not, 2 if the demo could not be carried through."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    if chosen.driver or chosen.reader:
        from bk_spark.demo.session import run_driver, run_reader

        work = chosen.out / "work"
        if chosen.driver:
            run_driver(chosen.uri, work, chosen.follow)
        else:
            run_reader(chosen.uri, work, chosen.rows)
        return 0
    return demo(chosen)


def demo(chosen: argparse.Namespace) -> int:
    from rich.console import Console

    from bk_spark.demo.processes import DemoError
    from bk_spark.demo.run import Settings, run_demo, show

    settings = Settings(chosen.out.resolve(), chosen.rows, chosen.parts, chosen.patience)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        report = run_demo(settings, console)
    except (DemoError, FileNotFoundError) as error:
        console.print(f"[bold red]the demo stopped:[/bold red] {error}", highlight=False)
        return 2
    show(report, settings, console)
    return 0 if report.comparison.exact else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bk_spark.demo", description="Flights through a log while things are killed.")
    parser.add_argument("--rows", type=int, help="only the first ROWS flights (default: all 336,776)")
    parser.add_argument("--parts", type=int, default=24, help="number of CSV files (default: 24)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for report, picture, logs (default: demo-out)")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds that any single wait may take (default: 180)")
    for role in ("--driver", "--reader", "--follow"):
        parser.add_argument(role, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
