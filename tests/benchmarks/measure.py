"""Measuring side by side: samples, CPU time by process, rounds that alternate, ratios round by round, and one report.

A figure of one run says little on a shared machine; the ratio of two contenders measured next to each other says more. So every
comparison runs A B A B, and its ratios are taken within a round: ``min/median/max`` of them are what the report prints.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

GIB = float(1 << 30)
MILLION = 1e6
MEMORY_INTERVAL_S = 0.2
SHARE_TOLD = 0.01  # of all CPU: who used less is not told
LIMIT_SHARE = 0.85  # of a core, or of the whole machine: above it a process (or the machine) counts as busy
_TICKS = os.sysconf("SC_CLK_TCK")
_NOTHING: Mapping[str, float] = MappingProxyType({})

Pids = Iterable[int] | Callable[[], Iterable[int]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run: seconds, entries or rows, payload bytes, CPU seconds by process name, and other figures by name.

    ``extra`` holds what is compared as it is, such as ``p99_ms`` or ``peak_mib:client``.
    """

    seconds: float
    amount: float
    bytes: int = 0
    cpu: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    def value(self, of: str) -> float | None:
        """A figure by name, None if this sample has no such thing.

        ``rate`` is amount per second, ``cpu:NAME`` amount per CPU second of a process, anything else is looked up in ``extra``.
        """
        if of == "rate":
            return self.amount / self.seconds if self.seconds > 0 else None
        if of.startswith("cpu:"):
            spent = self.cpu.get(of[4:], 0.0)
            return self.amount / spent if spent > 0 else None
        return self.extra.get(of)


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of one process at one moment: CPU seconds since its start, all threads together, and memory in bytes."""

    cpu: float
    rss: int
    anonymous: int


def usage_of(pid: int) -> Usage | None:
    """None when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    memory = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("VmRSS", "RssAnon"))}
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, 1024 * int(memory.get("VmRSS", "0")), 1024 * int(memory.get("RssAnon", "0")))


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one, itself left out; for what starts workers of its own."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


class CpuMeter:
    """CPU seconds and peak memory of processes by name while the ``with`` block runs; those of one name are added up.

    ``processes`` maps a name to process ids, or to a callable that gives them and is asked again and again, so that processes that come
    and go are found. What a process that ends used after the last look (every 0.2 s) is lost. The kernel counts CPU in ticks of 10 ms:
    measure for a second or longer.
    """

    def __init__(self, processes: Mapping[str, Pids]) -> None:
        self._processes = dict(processes)
        self._start: dict[int, float] = {}
        self._latest: dict[str, dict[int, float]] = {name: {} for name in processes}
        self._peak_rss: dict[str, int] = dict.fromkeys(processes, 0)
        self._peak_anonymous: dict[str, int] = dict.fromkeys(processes, 0)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu-meter", daemon=True)
        self._began = self.seconds = 0.0

    def __enter__(self) -> Self:
        for pids in self._processes.values():
            for pid in self._ids(pids):
                found = usage_of(pid)
                self._start[pid] = found.cpu if found else 0.0
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.seconds = time.perf_counter() - self._began
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(MEMORY_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        for name, pids in self._processes.items():
            rss = anonymous = 0
            for pid in self._ids(pids):
                if (found := usage_of(pid)) is not None:
                    # a process that was not there at the start began after it
                    self._latest[name][pid] = max(0.0, found.cpu - self._start.get(pid, 0.0))
                    rss, anonymous = rss + found.rss, anonymous + found.anonymous
            self._peak_rss[name] = max(self._peak_rss[name], rss)
            self._peak_anonymous[name] = max(self._peak_anonymous[name], anonymous)

    @staticmethod
    def _ids(pids: Pids) -> list[int]:
        return list(pids() if callable(pids) else pids)

    @property
    def cpu(self) -> dict[str, float]:
        """CPU seconds by name."""
        return {name: sum(latest.values()) for name, latest in self._latest.items()}

    @property
    def peak_rss(self) -> dict[str, int]:
        """Bytes by name: the highest sum seen at one moment, pages of mapped files included."""
        return dict(self._peak_rss)

    @property
    def peak_anonymous(self) -> dict[str, int]:
        """Bytes by name: what is the processes' own."""
        return dict(self._peak_anonymous)

    def sample(self, amount: float, size: int = 0, *, seconds: float | None = None, **extra: float) -> Sample:
        """Return the measurement, by this clock unless ``seconds`` gives a closer one; peaks of anonymous memory as ``peak_mib:NAME``."""
        peaks = {f"peak_mib:{name}": value / (1 << 20) for name, value in self._peak_anonymous.items()}
        return Sample(self.seconds if seconds is None else seconds, amount, size, self.cpu, {**peaks, **extra})


def interleave(
    contenders: Mapping[str, Callable[[], Sample]], rounds: int = 5, warm_up: int = 1, say: Callable[[str], None] | None = None
) -> dict[str, list[Sample]]:
    """Run all once per round, in order, A B A B; the samples of ``rounds`` rounds after ``warm_up`` uncounted ones."""
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        for name, run in contenders.items():
            sample = run()
            if number >= 0:
                samples[name].append(sample)
            if say is not None:
                rate = sample.value("rate") or 0.0
                say(f"{'warm-up' if number < 0 else f'round {number + 1}'} {name}: {rate:,.0f}/s in {sample.seconds:.2f} s")
    return samples


class Steady:
    """A contender whose samples take about ``seconds``: shorter work is repeated and added up, as often as the last time suggests."""

    def __init__(self, run: Callable[[], Sample], seconds: float, repeats_max: int = 40) -> None:
        self._run = run
        self._seconds = seconds
        self._repeats_max = repeats_max
        self._repeats = 1

    def __call__(self) -> Sample:
        found = total([self._run() for _ in range(self._repeats)])
        once = found.seconds / self._repeats
        self._repeats = max(1, min(self._repeats_max, round(self._seconds / once)))
        return found


def total(samples: Sequence[Sample]) -> Sample:
    """One sample of several: sums, and of the other figures the largest."""
    cpu: dict[str, float] = {}
    extra: dict[str, float] = {}
    for sample in samples:
        for process, seconds in sample.cpu.items():
            cpu[process] = cpu.get(process, 0.0) + seconds
        for key, value in sample.extra.items():
            extra[key] = max(extra.get(key, value), value)
    return Sample(sum(s.seconds for s in samples), sum(s.amount for s in samples), sum(s.bytes for s in samples), cpu, extra)


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest of some figures; of none at all it is all zeros."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(found[0], statistics.median(found), found[-1]) if found else cls(0.0, 0.0, 0.0)

    def __str__(self) -> str:
        return f"{number(self.low):>9}{number(self.median):>10}{number(self.high):>10}"


def number(value: float) -> str:
    """Three digits that matter: 1,234,567 as ``1.23 M``, 43,210 as ``43.2 k``."""
    for limit, divisor, suffix in ((1e10, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}" if abs(value) / divisor < 999.5 else f"{value / divisor:,.0f}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cost(seconds_per_million: float) -> str:
    return f"{seconds_per_million:.2f} s/M" if seconds_per_million < 1000 else f"{seconds_per_million / 1000:.1f} ms each"


@dataclass(frozen=True, slots=True)
class Reach:
    """The goal of a contender: the median ratio of its figure to the same figure of ``against`` (else the comparison's baseline).

    ``of`` names the figure as in ``Sample.value``. ``at_most`` is for figures where less is better. With ``against`` "" the figure itself
    is meant, not a ratio.
    """

    name: str
    limit: float
    of: str = "rate"
    against: str | None = None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Samples by contender, round by round, of one thing measured. ``unit`` is what the amount counts: ``entries``, ``rows``, ``bytes``.

    ``group`` is the part of the benchmark that it belongs to: one picture. ``shown`` is the figure that is drawn (``Sample.value``).
    """

    title: str
    unit: str
    samples: Mapping[str, Sequence[Sample]]
    baseline: str
    note: str = ""
    reaches: Sequence[Reach] = ()
    group: str = ""
    shown: str = "rate"

    def spread(self, name: str, of: str = "rate") -> Spread:
        """Over the rounds; see ``Sample.value``."""
        return Spread.of(value for sample in self.samples[name] if (value := sample.value(of)) is not None)

    def ratio(self, name: str, of: str = "rate", against: str | None = None) -> Spread:
        """Return the per-round ratios to the baseline (or ``against``)."""
        pairs = zip(self.samples[name], self.samples[self.baseline if against is None else against], strict=False)
        values = ((ours.value(of), theirs.value(of)) for ours, theirs in pairs)
        return Spread.of(a / b for a, b in values if a is not None and b)

    def cpu(self, name: str) -> dict[str, float]:
        """CPU seconds by process, all rounds together."""
        total: dict[str, float] = {}
        for sample in self.samples[name]:
            for process, seconds in sample.cpu.items():
                total[process] = total.get(process, 0.0) + seconds
        return total

    def cpu_per(self, name: str) -> dict[str, tuple[float, float]]:
        """Return by process: CPU seconds per million of the unit, and per GiB of payload (0 where no bytes were counted)."""
        amount = sum(sample.amount for sample in self.samples[name])
        size = sum(sample.bytes for sample in self.samples[name])
        return {
            process: (seconds * MILLION / amount if amount else 0.0, seconds * GIB / size if size else 0.0)
            for process, seconds in self.cpu(name).items()
        }

    def limit(self, name: str, cores: int | None = None) -> str:
        """One sentence: who used the machine, and so what the rate is limited by."""
        seconds = sum(sample.seconds for sample in self.samples[name])
        shares = {process: spent / seconds for process, spent in self.cpu(name).items() if spent > 0 and seconds > 0}
        if not shares:
            return ""
        cores = cores or os.cpu_count() or 1
        most = max(shares, key=lambda process: shares[process])
        total = sum(shares.values())
        told = sorted(((process, share) for process, share in shares.items() if share >= SHARE_TOLD), key=lambda item: -item[1])
        used = " + ".join(f"{process} {share:.2f}" for process, share in told)
        if total >= LIMIT_SHARE * cores:
            verdict = f"the machine is the limit, most of it goes to {most}"
        elif shares[most] >= LIMIT_SHARE:
            verdict = f"{most} is the limit"
        else:
            verdict = f"nobody is busy all the time, {most} most; it waits"
        return f"{name}: {used} = {total:.2f} of {cores} cores: {verdict}"

    def reached(self, reach: Reach) -> tuple[float, bool] | None:
        """The figure that counts and whether it is good enough; None if it was not measured."""
        if reach.name not in self.samples or (reach.against or self.baseline) not in self.samples:
            return None
        found = self.spread(reach.name, reach.of) if reach.against == "" else self.ratio(reach.name, reach.of, reach.against)
        if found.median == 0.0:
            return None
        return found.median, found.median <= reach.limit if reach.at_most else found.median >= reach.limit

    def verdicts(self) -> list[str]:
        """One line per reach, such as ``reach client entries per CPU second >= 4: 4.3 yes``."""
        lines = []
        for reach in self.reaches:
            if (found := self.reached(reach)) is not None:
                what = {"rate": f"{self.unit}/s"}.get(
                    reach.of, f"{self.unit} per CPU second of {reach.of[4:]}" if ":" in reach.of else reach.of
                )
                against = f" x {reach.against or self.baseline}" if reach.against != "" else ""
                sign = "<=" if reach.at_most else ">="
                lines.append(f"reach {reach.name} {what} {sign} {reach.limit:g}{against}: {number(found[0])} {'yes' if found[1] else 'NO'}")
        return lines

    def text(self) -> str:
        """The table as it is printed."""
        width = max(24, *(len(name) + 2 for name in self.samples))
        head = f"{self.unit + '/s':<{width}}{'min':>9}{'median':>10}{'max':>10}{'MB/s':>8}    x {self.baseline}: min / median / max"
        lines = [f"== {self.title}", *([self.note] if self.note else []), head]
        for name, samples in self.samples.items():
            speed = statistics.median(sample.bytes / sample.seconds / 1e6 for sample in samples)
            lines.append(f"{name:<{width}}{self.spread(name)}{number(speed) if speed else '':>8}{self._compared(name, 'rate')}")
        return "\n".join([*lines, *self._extra_lines(width), *self._cpu_lines(), *self.verdicts()])

    def _compared(self, name: str, of: str) -> str:
        """With the baseline; nothing for the baseline itself."""
        ratio = self.ratio(name, of)
        shown = name != self.baseline and ratio.high > 0
        return f"    {ratio.low:.2f} / {ratio.median:.2f} / {ratio.high:.2f}" if shown else ""

    def _extra_lines(self, width: int) -> list[str]:
        """Figures of their own, a line each; peaks of memory are left to the CPU lines."""
        found = dict.fromkeys(key for samples in self.samples.values() for sample in samples for key in sample.extra)
        keys = [key for key in found if not key.startswith("peak_mib:")]
        wide = max([width, *(len(key) + len(name) + 5 for key in keys for name in self.samples)])
        return [
            f"  {key + ' ' + name:<{wide - 2}}{self.spread(name, key)}{'':>8}{self._compared(name, key)}"
            for key in keys
            for name in self.samples
            if any(key in sample.extra for sample in self.samples[name])
        ]

    def _cpu_lines(self) -> list[str]:
        lines = []
        for name in self.samples:
            per = self.cpu_per(name)
            least = SHARE_TOLD * sum(million for million, _ in per.values())
            costs = [
                f"{process} {', '.join(self._costs(million, gib))}{self._peak(name, process)}"
                for process, (million, gib) in per.items()
                if million and million >= least
            ]
            if costs:
                lines += [f"  CPU, peak memory: {name}: " + "; ".join(costs), f"  {self.limit(name)}"]
        return lines

    def _costs(self, million: float, gib: float) -> list[str]:
        return [_cost(million)] * (self.unit != "bytes") + [f"{gib:.2f} s/GiB"] * bool(gib)

    def _peak(self, name: str, process: str) -> str:
        peak = max((sample.extra.get(f"peak_mib:{process}", 0.0) for sample in self.samples[name]), default=0.0)
        return f", {peak:.0f} MiB" if peak else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "group": self.group,
            "unit": self.unit,
            "note": self.note,
            "baseline": self.baseline,
            "contenders": {name: self._contender_json(name) for name in self.samples},
            "shown": self.shown,
            "reach": self.verdicts(),
        }

    def _contender_json(self, name: str) -> dict[str, Any]:
        rate, ratio = self.spread(name), self.ratio(name)
        return {
            "rate": {"min": rate.low, "median": rate.median, "max": rate.high},
            "ratio": {"min": ratio.low, "median": ratio.median, "max": ratio.high},
            "cpuSecondsPerMillion": {process: cost[0] for process, cost in self.cpu_per(name).items()},
            "cpuSecondsPerGiB": {process: cost[1] for process, cost in self.cpu_per(name).items()},
            "limit": self.limit(name),
            "samples": [
                {"seconds": s.seconds, "amount": s.amount, "bytes": s.bytes, "cpu": dict(s.cpu), "extra": dict(s.extra)}
                for s in self.samples[name]
            ],
        }
