"""``python -m tests.checkpoints.hardships WHAT``: checkpoints in ledgers on bad disks and links, in outages, and large. See README.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.checkpoints.figures.numbers import load, table
from tests.checkpoints.hardships import disks, large, links, outages
from tests.checkpoints.hardships.ground import Outcome, gist


def _say(what: object) -> None:
    print(what, file=sys.stderr, flush=True)


def summary(found: list[Outcome]) -> str:
    """A line for each play."""
    rows = []
    for one in found:
        judged = one.judged
        counts = f"{judged.missing} / {judged.doubled} / {judged.foreign} / {judged.wrong}"
        told = "; ".join(dict.fromkeys(gist(error) for error in one.told)) or "-"
        rows.append([one.hardship, one.state, one.bookies, one.starts, judged.rows, judged.states, counts, len(one.left), one.more, told])
    wrong = "missing / doubled / foreign / wrong state"
    return table(["hardship", "state", "bookies", "starts", "rows", "rows of state", wrong, "left over", "meanwhile", "told"], rows)


def _played(
    measure: Callable[[Path, str | None, str, Callable[[object], None]], list[Outcome]],
) -> Callable[[argparse.Namespace, Path], bool]:
    def run(options: argparse.Namespace, directory: Path) -> bool:
        found = measure(directory, options.apache, options.only, _say)
        print(summary(found), flush=True)
        return all(one.good for one in found)

    return run


def _deleted(options: argparse.Namespace, directory: Path) -> bool:
    found = outages.deleted(directory, options.apache, _say)
    print(table(["ledger of", "checkpoint", "told"], [[what, when, "; ".join(map(gist, told))] for what, when, told in found]), flush=True)
    return all(told and all("[BK-" in one or one.startswith("goes on") for one in told) for _, _, told in found)


def _large(options: argparse.Namespace, directory: Path) -> bool:
    found = large.measure(directory, options.apache, options.bytes, options.files, _say)
    print(large.summary(found), flush=True)
    for problem in found.problems:
        print(problem)
    return found.good


PARTS: dict[str, Callable[[argparse.Namespace, Path], bool]] = {
    "disks": _played(disks.measure),
    "links": _played(links.measure),
    "outages": _played(outages.measure),
    "deleted": _deleted,
    "large": _large,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints.hardships")
    parser.add_argument("parts", choices=list(PARTS), nargs="*", default=list(PARTS), help="all, if none is named")
    parser.add_argument("--apache", metavar="VERSION", default=None, help="Apache's bookies")
    parser.add_argument("--only", default="", metavar="PATTERN", help="plays whose hardship and state store this finds")
    parser.add_argument("--bytes", type=int, default=large.LARGE_BYTES, help="of the large file; 0: none")
    parser.add_argument("--files", type=int, default=large.MANY, help="in one directory; 0: none")
    parser.add_argument("--directory", type=Path, default=None, help="for input, output and drivers' logs; kept")
    options = parser.parse_args()
    whole = (options.directory or Path(tempfile.mkdtemp(prefix="bk-hardships-"))).absolute()
    good = True
    for part in options.parts:
        directory = whole / part
        directory.mkdir(parents=True)
        _say(f"{directory}; {load()}")
        good = PARTS[part](options, directory) and good
    print(f"\n{load()} at the end")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
