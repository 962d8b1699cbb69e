"""The CPU that counting costs a hot write: ``python -m tests.benchmarks.metrics_cost [--rounds 30] [--before COMMIT]``.

Two trees write alike to the same acknowledging sinks: this one, and the one before there were metrics (``--before``, by default the parent
of the commit that made ``bk_core/metrics``; whatever else was changed since is in the ratio too). In each round both have a new process,
and they take turns (A B B A). The ratio of their CPU seconds is taken round by round; printed are its quartiles. Rounds are many because
one is off by several percent on a shared machine, and the median of many is not. ``--before HEAD`` tells how far off that is.

A second figure is less noisy: one process writes, with what counts as it is and replaced by functions that do nothing, in turns of a
tenth of a second. What stays in both are those empty calls and a few additions to attributes.

Beside that, what one look at the counters costs, and what they cost by themselves: the calls that a write makes of them, timed alone.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import timeit
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import bk_core
from bk_core.client.ledger.appending import Appending
from bk_core.metrics.client import ClientCounts
from bk_core.metrics.marks import Marks
from bk_core.metrics.registry import Histogram
from tests.benchmarks.metrics_writes import write
from tests.benchmarks.standins import standins

ROOT = Path(__file__).resolve().parents[2]
MILLION = 1e6
SCENES = (("runs of 500 entries", 1_000_000, 1024, 500), ("one entry each", 30_000, 1024, 1))


def commit_before_metrics() -> str:
    """Return the parent of the commit that made the package."""
    made = _git("log", "--diff-filter=A", "--format=%H", "--", "bk_core/metrics/__init__.py").split()
    if not made:
        raise SystemExit("there is no commit that made bk_core/metrics: name one with --before")
    return _git("rev-parse", f"{made[-1]}^").strip()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tree_of(commit: str, directory: Path) -> Path:
    """Unpack the packages of a commit, with the compiled kernels of this tree."""
    packed = subprocess.run(["git", "archive", commit, "bk_core"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")
    for kernel in (ROOT / "bk_core/kernels").glob("_native*.so"):
        (directory / "bk_core/kernels" / kernel.name).write_bytes(kernel.read_bytes())
    return directory


class Writer:
    """A process that writes with the packages of one tree."""

    def __init__(self, process: subprocess.Popen[str], tree: Path) -> None:
        self._process = process
        found = self._answer()
        assert found.startswith(str(tree)), f"the packages of {tree} were wanted, and {found} was loaded"

    def cpu_s(self, entries: int, size: int, run: int) -> float:
        """Write, and return the CPU seconds that it took."""
        assert self._process.stdin is not None
        print(entries, size, run, file=self._process.stdin, flush=True)
        return int(self._answer().split()[0]) / 1e9

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a writer ended; see its messages above")
        return line


@contextmanager
def writer(tree: Path, uri: str) -> Iterator[Writer]:
    program = str(Path(__file__).with_name("metrics_writes.py"))
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        [sys.executable, "-P", program, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree
    ) as process:
        try:
            yield Writer(process, tree)
        finally:
            process.kill()


def compared(trees: Sequence[Path], uri: str, scene: tuple[str, int, int, int], rounds: int) -> str:
    """Return a line about one way of writing. Each round has processes of its own, because two that do the same differ by some percent for
    as long as they live."""
    name, entries, size, run = scene
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        with ExitStack() as stack:
            before, after = (stack.enter_context(writer(tree, uri)) for tree in trees)
            for one in (before, after):
                one.cpu_s(entries // 4, size, run)  # uncounted
            order = (before, after, after, before) if number % 2 else (after, before, before, after)
            took = [(one, one.cpu_s(entries, size, run)) for one in order]
            first, second = (sum(cpu for whose, cpu in took if whose is one) / 2 for one in (before, after))
            pairs.append((first, second))
    per_million = [statistics.median(found) / entries * MILLION for found in zip(*pairs, strict=True)]
    ratios = [after_s / before_s for before_s, after_s in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    off = 0.93 * (high - low) / math.sqrt(rounds)  # the standard error of a median, from the quartiles
    return (
        f"{name}: {per_million[0]:.3f} CPU s/M before, {per_million[1]:.3f} with metrics; "
        f"ratio by rounds {low - 1:+.1%} / {middle - 1:+.1%} / {high - 1:+.1%} (quartiles of {rounds}; the median is good to {off:.1%})"
    )


COUNTING = ((Histogram, "observe"), (Marks, "began"), (Marks, "answered"), (Marks, "clear"), (Appending, "_count_answered"))
"""The calls that metrics add to the way of an add and of its answer."""


@contextmanager
def counting_nothing() -> Iterator[None]:
    """Replace what counts by functions that do nothing. Nothing may be under way."""

    with ExitStack() as stack:
        for cls, name in COUNTING:
            stack.enter_context(mock.patch.object(cls, name, lambda *_: None))
        yield


def toggled(uri: str, scene: tuple[str, int, int, int], rounds: int) -> str:
    """Return a line about one process that writes with and without counting."""
    name, entries, size, run = scene
    entries = max(run, entries // 10 // run * run)
    ratios = []
    with bk_core.connect(uri) as client:
        write(client, entries, size, run)
        for number in range(rounds * 10):
            took = {}
            for counting in (True, False) if number % 2 else (False, True):
                with nullcontext() if counting else counting_nothing():
                    took[counting] = write(client, entries, size, run)[0]
            ratios.append(took[True] / took[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    off = 0.93 * (high - low) / math.sqrt(len(ratios))
    return f"{name}, one process: counting costs {middle - 1:+.2%} (median of {len(ratios)} pairs, good to {off:.2%})"


def alone() -> Iterator[str]:
    """Yield lines about the counters by themselves: what a turn of the reactor and an answer call, in nanoseconds."""
    counts, number = ClientCounts(), 0
    marks = Marks(counts.add_seconds)
    times = 100_000

    def turn() -> None:  # three bookies and one ledger are sent something, and each answers
        nonlocal number
        number += 500
        counts.add_runs.value += 1
        counts.add_entries.value += 500
        for _ in range(4):
            marks.began(number - 500, number)
        marks.answered(number, number + 1000)
        for _ in range(3):
            counts.add_seconds.observe(number)

    yield f"counters of one turn and its answers: {timeit.timeit(turn, number=times) / times * 1e9:,.0f} ns"
    yield f"one look at all of them: {timeit.timeit(counts.registry.snapshot, number=1000) / 1000 * 1e6:,.0f} µs"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.metrics_cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="how many (default: %(default)s)")
    parser.add_argument("--only", choices=("runs", "single"), help="one of the two ways of writing (default: both)")
    parser.add_argument("--before", metavar="COMMIT", help="the tree to compare with (default: the one before there were metrics)")
    options = parser.parse_args(arguments)
    commit = options.before or commit_before_metrics()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-metrics-")))
        cluster = stack.enter_context(standins(3))
        trees = (tree_of(commit, directory), ROOT)
        print(f"before: {commit[:12]}", flush=True)
        scenes = SCENES if options.only is None else SCENES[options.only == "single" :][:1]
        for scene in scenes:
            print(toggled(cluster.uri, scene, options.rounds), flush=True)
        for scene in scenes:
            print(compared(trees, cluster.uri, scene, options.rounds), flush=True)
    for line in alone():
        print(line)


if __name__ == "__main__":
    main()
