"""``python -m tests.checkpoints.figures WHAT``: the figures of checkpoints in ledgers, as tables. See README.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.checkpoints.figures import cost, drivers, openings, secret, size
from tests.checkpoints.figures.numbers import load


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cost(options: argparse.Namespace, directory: Path) -> bool:
    found, files = cost.measure(directory, options.rounds, options.batches, options.apache, options.kinds.split(","), _say)
    print(cost.report(found, files))
    return True


def _drivers(options: argparse.Namespace, directory: Path) -> bool:
    found = drivers.measure(directory, options.rounds, _say)
    print(drivers.summary(found))
    return all(one.good for one in found if (one.side, one.sink) == (drivers.LEDGERS, "log"))


def _size(options: argparse.Namespace, directory: Path) -> bool:
    found = size.measure(options.history, options.kinds.split(","), options.apache, _say)
    print(size.summary(found))
    size.draw(found, directory / "size.png")
    (directory / "size.json").write_text(json.dumps(found))
    print(f"\npicture: {directory / 'size.png'}")
    return True


def _openings(options: argparse.Namespace, directory: Path) -> bool:
    sizes = [batches for batches in openings.SIZES if batches <= options.history]
    found = openings.measure(directory, sizes, options.times, options.apache, _say)
    print(openings.summary(found))
    return all(one.good for one in found)


def _secret(options: argparse.Namespace, directory: Path) -> bool:
    verdict = secret.measure(directory, _say)
    print(secret.summary(verdict))
    return verdict.good


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints.figures")
    parser.add_argument("--directory", type=Path, default=None, help="for input, output, checkpoints, pictures and drivers' logs; kept")
    parts = parser.add_subparsers(required=True)

    def part(name: str, run: Callable[[argparse.Namespace, Path], bool]) -> argparse.ArgumentParser:
        made = parts.add_parser(name)
        made.set_defaults(run=run)
        return made

    apache = {"default": None, "metavar": "VERSION", "help": "Apache's bookies"}
    found = part("drivers", _drivers)
    found.add_argument("--rounds", type=int, default=5)
    found = part("cost", _cost)
    found.add_argument("--rounds", type=int, default=6)
    found.add_argument("--batches", type=int, default=18, help="of each query in each round")
    found.add_argument("--kinds", default=",".join(cost.KINDS), help="of queries")
    found.add_argument("--apache", **apache)
    found = part("openings", _openings)
    found.add_argument("--history", type=int, default=max(openings.SIZES), help="the most batches")
    found.add_argument("--times", type=int, default=3, help="openings of each checkpoint")
    found.add_argument("--apache", **apache)
    found = part("size", _size)
    found.add_argument("--history", type=int, default=max(openings.SIZES), help="batches")
    found.add_argument("--kinds", default=",".join(size.KINDS), help="of queries")
    found.add_argument("--apache", **apache)
    part("secret", _secret)
    return parser


def main() -> int:
    options = _parser().parse_args()
    directory = (options.directory or Path(tempfile.mkdtemp(prefix="bk-figures-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    _say(f"{directory}; {load()}")
    good = options.run(options, directory)
    print(f"\n{load()} at the end")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
