"""The size of a checkpoint in ledgers as its query goes on, with what Spark keeps by default."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import bk_core
from tests.checkpoints.figures.history import Task
from tests.checkpoints.figures.numbers import load, table
from tests.faults.harness import ROOT

BOOKIES = 3
KINDS = {"stateless": 0, "stateful": 2}  # partitions with state
EARLY = (10, 100, 300, 1000)
POINTS = 100
MB = 1e6
SHOWN = {
    "logBytes": "log, MB",
    "dataBytes": "data ledgers, MB",
    "logLedgers": "ledgers of the log",
    "dataLedgers": "data ledgers",
    "nodes": "nodes in ZooKeeper",
    "diskBytes": "disks of three bookies, MB",
}


class HistoryError(Exception):
    """The process that writes has ended."""


@contextmanager
def history(task: Task, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """A process that has written so many batches and still owns the store; it is killed behind the block."""
    command = [sys.executable, "-m", "tests.checkpoints.figures.history", json.dumps(asdict(task))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said = json.loads(line)
                if "done" in said:
                    break
                tell(said)
            else:
                raise HistoryError(f"{task.name} ended before it had {task.batches} batches")
            yield
        finally:
            process.kill()


def points(batches: int) -> list[int]:
    """Return the batches at which the size is looked at: a few early on, then evenly, but not always as far from Spark's last look at its
    state."""
    step = max(1, batches // POINTS)
    return sorted(
        {*(point for point in EARLY if point <= batches), *(at + at // step % 7 for at in range(step, batches - 7, step)), batches}
    )


def measure(batches: int, kinds: Sequence[str], apache: str | None, say: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Measure the sizes by kind, in order."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number, kind in enumerate(kinds):
        with bk_core.local_cluster(BOOKIES, apache=apache) as cluster:

            def keep(look: dict[str, Any], kind: str = kind) -> None:
                found[kind].append(look)
                say(f"{kind}: {look}; {load()}")

            with history(Task(cluster.uri, f"size-{number}", batches, points(batches), KINDS[kind], str(cluster.directory)), keep):
                pass
    return found


def summary(found: dict[str, list[dict[str, Any]]]) -> str:
    """The first looks, the last one, and the largest of all."""
    rows: list[list[object]] = []
    for kind, looks in found.items():
        chosen = [look for look in looks if look["batches"] in EARLY] + looks[-1:]
        rows += [[kind, f"{look['batches']:,}", *(_cell(look, what) for what in SHOWN)] for look in chosen]
        largest = {what: max(look[what] for look in looks) for what in SHOWN}
        rows.append([kind, f"largest of {len(looks)} looks", *(_cell(largest, what) for what in SHOWN)])
    return table(["query", "batches", *SHOWN.values()], rows)


def _cell(look: dict[str, Any], what: str) -> str:
    return f"{look[what] / MB:.2f}" if what.endswith("Bytes") else f"{look[what]}"


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A PNG: over the batches, the bytes in ledgers, the ledgers and nodes, and the disks."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex=True).flat
    for axes, (title, parts) in zip(
        panels,
        {
            "bytes in ledgers, without replicas, MB": {"logBytes": "log", "dataBytes": "data"},
            "ledgers": {"logLedgers": "log", "dataLedgers": "data"},
            "nodes in ZooKeeper, its own and the bookies' included": {"nodes": ""},
            "disks of three bookies, MB: all replicas, journals, indexes": {"diskBytes": ""},
        }.items(),
        strict=True,
    ):
        for colour, (kind, looks) in enumerate(found.items()):
            for style, (what, name) in zip(("-", "--"), parts.items(), strict=False):
                scale = MB if what.endswith("Bytes") else 1
                label = f"{kind}: {name}" if name else kind
                at = [look["batches"] for look in looks]
                axes.plot(at, [look[what] / scale for look in looks], style, color=f"C{colour}", label=label, linewidth=1.2)
        axes.set_title(title, fontsize=10)
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # with room for the legend
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left", ncols=2)
    for axes in figure.axes[2:]:
        axes.set_xlabel("batches")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.suptitle("A checkpoint in ledgers with Spark's default retention (100 batches)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
