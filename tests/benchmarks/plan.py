"""The plan of a run: steps with a name, a time that they are expected to take, and a bound on it; which are chosen; what they took.

The expected times are those of a machine with two cores and nothing else to do. They are printed before and beside what was taken, and a
step that takes several times as long is ended: the next one is worth more than the rest of one that hangs.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

PATIENCE = 3.0  # times the expected seconds
SLACK_S = 120.0  # what is resolved, compiled and started the first time comes on top
AGAIN_S = 60.0  # after which an exception that somebody swallowed is raised again


class Overdue(Exception):
    """A step took longer than its bound."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step: once (servers, data, warm-up), and for each counted round. ``rounds`` is the most that it makes by itself."""

    once_s: float
    round_s: float
    rounds: int | None = None

    def seconds(self, rounds: int, *, asked: bool) -> float:
        """``asked``: the number of rounds is somebody's wish and holds for this step too."""
        return self.once_s + self.round_s * (rounds if asked or self.rounds is None else min(rounds, self.rounds))


@dataclass(frozen=True, slots=True)
class Step:
    """``name`` is ``part.detail``; a detail may have parts of its own (``spark.scale.segments``). Without a ``quick`` cost the quick run
    leaves it out unless it is asked for by name."""

    name: str
    full: Cost
    quick: Cost | None = None

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def detail(self) -> str:
        return self.name.partition(".")[2]

    def expected_s(self, *, quick: bool, rounds: int, asked: bool) -> float:
        return ((self.quick if quick else None) or self.full).seconds(rounds, asked=asked)


@dataclass(frozen=True, slots=True)
class Took:
    step: Step
    expected_s: float
    seconds: float
    failed: bool = False


STEPS: Sequence[Step] = (
    Step("kernels.crc", Cost(4, 4), Cost(3, 2.5)),
    Step("kernels.frames", Cost(3, 3), Cost(1, 0.5)),
    Step("client.sinks", Cost(35, 17), Cost(14, 4)),
    Step("client.sources", Cost(45, 24), Cost(12, 4)),
    Step("client.embedded", Cost(70, 46)),
    Step("client.apache", Cost(90, 60), Cost(27, 9)),
    Step("bookies", Cost(60, 26)),
    Step("spark.read", Cost(170, 45), Cost(70, 6)),
    Step("spark.write", Cost(100, 75)),
    Step("spark.stream-write", Cost(50, 40)),
    Step("spark.stream-read", Cost(50, 16)),
    Step("spark.overhead", Cost(60, 50), Cost(10, 14, 2)),
    Step("spark.latency", Cost(5, 45)),
    Step("spark.flights.some", Cost(60, 40), Cost(16, 6, 2)),
    Step("spark.flights.all", Cost(60, 400, 1)),
    Step("spark.scale.partitions", Cost(100, 20)),
    Step("spark.scale.segments", Cost(45, 20)),
    Step("spark.scale.fragments", Cost(45, 5)),
    Step("spark.scale.entries", Cost(60, 9)),
    Step("spark.scale.memory", Cost(10, 85, 2)),
    Step("spark.scale.ledgers", Cost(60, 9)),
)


def chosen(words: str, *, quick: bool) -> list[Step]:
    """``client.sinks,kernels,spark.scale`` in the order of STEPS; without words all of them, or all of the quick run. Those that are
    named are measured in the quick run too: its own selection of a part if there is one, else all of the part.

    ValueError for a word that names nothing.
    """
    found: set[str] = set()
    for word in filter(None, (word.strip() for word in words.split(","))):
        named = [step for step in STEPS if step.name == word or step.name.startswith(f"{word}.")]
        if not named:
            raise ValueError(f"nothing is called {word}; there are {', '.join(step.name for step in STEPS)}")
        of_quick = [step for step in named if step.quick is not None]
        found.update(step.name for step in (of_quick if quick and of_quick else named))
    return [step for step in STEPS if step.name in found or (not found and (step.quick is not None or not quick))]


def table(steps: Sequence[tuple[Step, float]]) -> str:
    """Return the steps to come, with the time that each is expected to take."""
    lines = [f"  {step.name:<26}{clock(seconds):>8}" for step, seconds in steps]
    return "\n".join(["expected", *lines, f"  {'all':<26}{clock(sum(seconds for _, seconds in steps)):>8}"])


def account(took: Sequence[Took]) -> str:
    """Return the steps that were made, with the expected time and the real one."""
    lines = [f"  {t.step.name:<26}{clock(t.expected_s):>10}{clock(t.seconds):>8}{'  FAILED' if t.failed else ''}" for t in took]
    whole = f"  {'all':<26}{clock(sum(t.expected_s for t in took)):>10}{clock(sum(t.seconds for t in took)):>8}"
    return "\n".join([f"  {'':<26}{'expected':>10}{'took':>8}", *lines, whole])


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


@contextmanager
def bounded(seconds: float, what: str) -> Iterator[None]:
    """Overdue in the main thread, wherever it waits, after so many seconds."""

    def overdue(number: int, frame: FrameType | None) -> None:
        raise Overdue(f"{what} was not done within {clock(seconds)} minutes")

    before = signal.signal(signal.SIGALRM, overdue)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
