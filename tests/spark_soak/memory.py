"""Resident memory of each process over time, by kind; and whether it is flat."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MB = 1 << 20
# The first of these texts that a command line contains says what the process is.
KINDS = (
    ("python_streaming_source_runner", "source runner"),
    ("pyspark.daemon pyspark.worker", "task worker"),
    ("pyspark.daemon pyspark.sql.worker", "planner worker"),
    ("CoarseGrainedExecutorBackend", "executor JVM"),
    ("deploy.SparkSubmit", "driver JVM"),
    ("tests.spark_soak.queries", "driver Python"),
    ("bk_core.bookie.server", "bookie"),
    ("bookkeeper.server.Main", "bookie"),
    ("ZooKeeperServerMain", "ZooKeeper"),
)
JVM_KINDS = ("executor JVM", "driver JVM", "ZooKeeper")
GROWTH_MB = 24.0
GROWTH_SHARE = 0.10
LIFE_S = 180.0  # a process that lived less has only warmed up


@dataclass
class Series:
    """One process: seconds since the start of the run, and MiB."""

    kind: str
    pid: int
    times: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    @property
    def lived_s(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    def growth(self) -> float:
        """MiB between the second and the last quarter of its life: what it takes to warm up does not count."""
        quarter = max(1, len(self.sizes) // 4)
        return statistics.median(self.sizes[-quarter:]) - statistics.median(self.sizes[quarter : 2 * quarter] or self.sizes)


class Sampler:
    """Samples all descendants of this process every ``interval_s`` seconds, in a thread."""

    def __init__(self, interval_s: float = 2.0) -> None:
        self.series: dict[tuple[int, float], Series] = {}
        self._interval_s = interval_s
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self.sample()

    def sample(self) -> None:
        at = time.monotonic() - self._begun
        for process in psutil.Process().children(recursive=True):
            try:
                key = (process.pid, process.create_time())
                if key not in self.series:
                    kind = kind_of(" ".join(process.cmdline()), process.parent())
                    if kind is None:
                        continue
                    self.series[key] = Series(kind, process.pid)
                memory = process.memory_info()
                size = (memory.rss - memory.shared) / MB  # a bookie's mapped database file is the kernel's cache, not its own memory
            except psutil.Error:
                continue
            if size > 0:
                self.series[key].times.append(round(at, 1))
                self.series[key].sizes.append(round(size, 1))

    def pids(self, kind: str) -> list[int]:
        """Return the ids of living processes."""
        return sorted(pid for (pid, _), series in list(self.series.items()) if series.kind == kind and psutil.pid_exists(pid))


def kind_of(command: str, parent: psutil.Process | None) -> str | None:
    for text, kind in KINDS:
        if text in command:
            if "pyspark.daemon" in text and parent is not None and parent.name() == "java":
                return "Python daemon"  # the workers are its forks
            return kind
    return None


def summary(series: Sequence[Series], run_s: float) -> dict[str, dict[str, Any]]:
    """Return by kind: how many processes, the largest size, the worst growth of those that lived long enough to tell.

    Long enough is a quarter of the run, and at least ``LIFE_S``.

    ``flat``: no such process grew by more than ``GROWTH_MB`` or ``GROWTH_SHARE``, whichever is more. A JVM takes of its heap what it is
    allowed; its growth is shown and not judged. None: no process lived long enough.
    """
    kinds: dict[str, list[Series]] = {}
    for one in series:
        if one.sizes:
            kinds.setdefault(one.kind, []).append(one)
    found = {}
    for kind, members in sorted(kinds.items()):
        old = [one for one in members if one.lived_s >= max(run_s / 4, LIFE_S) and len(one.sizes) >= 8]
        flat = [one.growth() <= max(GROWTH_MB, GROWTH_SHARE * statistics.median(one.sizes)) for one in old]
        found[kind] = {
            "processes": len(members),
            "judged": len(old),
            "max_mb": max(max(one.sizes) for one in members),
            "median_mb": round(statistics.median(size for one in members for size in one.sizes), 1),
            "growth_mb": round(max((one.growth() for one in old), default=0.0), 1),
            "flat": None if kind in JVM_KINDS or not old else all(flat),
        }
    return found


def plot(series: Sequence[Series], faults: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """One panel per kind, one line per process, a mark for each fault. A canvas of its own: no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = sorted({one.kind for one in series})
    rows = (len(kinds) + 1) // 2
    figure = Figure(figsize=(14, 2.6 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for number, kind in enumerate(kinds):
        _panel(figure.add_subplot(rows, 2, number + 1), [one for one in series if one.kind == kind], kind, faults)
    figure.savefig(path, dpi=90)


def _panel(axes: Axes, series: Sequence[Series], kind: str, faults: Sequence[Mapping[str, Any]]) -> None:
    for one in series:
        axes.plot([at / 60 for at in one.times], one.sizes, linewidth=1)
    for fault in faults:
        axes.axvline(fault["at_s"] / 60, color="0.85", linewidth=0.5, zorder=0)
    axes.set(title=f"{kind} ({len(series)} processes)", xlabel="minutes", ylabel="MiB")
    axes.set_ylim(0, 1.2 * max((size for one in series for size in one.sizes), default=1.0))
