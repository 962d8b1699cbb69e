"""Time, chance and the network: one heap of timed events in one thread, everything drawn from one seed.

Nothing here iterates a set or reads a clock, so a seed replays exactly (papers.md 9). Uniform delays miss the rare interleavings
(replication-protocol.md 13.5); therefore each message draws one of four speed classes that lie three orders of magnitude apart.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

MS = 1_000_000  # nanoseconds
SPEEDS_NS = (MS // 10, MS, 10 * MS, 120 * MS)
STORE = "md"  # the metadata store's name on the network


@dataclass(slots=True)
class Weather:
    """The faults of the network, the disks and the clocks. All zero is a calm day; probabilities are per message or per timer."""

    loss: float = 0.0
    duplication: float = 0.0
    slow: float = 0.0  # a message draws one of SPEEDS_NS instead of the fastest
    slow_disk: float = 0.0  # a sync takes a hundred times as long
    store_loss: float = 0.0  # requests to and answers from the metadata store
    store_slow: float = 0.0
    reset: float = 1.0  # a crashing bookie's clients notice at once (else by timeout)
    timers: float = 0.0  # a timer fires early or late by a factor of up to eight
    fixed_ns: int = 0  # every delay is this long (written scenarios)


@dataclass(slots=True, eq=False)
class Message:
    """One message on its way from ``source`` to ``target``. ``kind`` is a word of the vocabulary in README.md."""

    source: str
    target: str
    kind: str
    ledger_id: int
    entry_id: int
    deliver: Callable[[], None]

    def __str__(self) -> str:
        what = f" e{self.entry_id}" if self.entry_id >= 0 else ""
        return f"{self.source} -> {self.target}: {self.kind} of ledger {self.ledger_id}{what}"


@dataclass(slots=True, eq=False)
class Rule:
    """A standing order about messages: those that match are kept in ``messages`` (hold) or forgotten (drop)."""

    kind: str | None = None
    source: str | None = None
    target: str | None = None
    entry_id: int | None = None
    ledger_id: int | None = None
    count: int = -1  # how many more it takes; -1: all
    drop: bool = False
    messages: list[Message] = field(default_factory=list)

    def takes(self, message: Message) -> bool:
        return (
            self.count != 0
            and (self.kind is None or self.kind == message.kind)
            and (self.source is None or self.source == message.source)
            and (self.target is None or self.target == message.target)
            and (self.entry_id is None or self.entry_id == message.entry_id)
            and (self.ledger_id is None or self.ledger_id == message.ledger_id)
        )


class World:
    """Clock, event heap, network and the trace. ``step`` runs the next event; the owner checks the invariants after it."""

    def __init__(self, seed: int, weather: Weather, *, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.weather = weather
        self.verbose = verbose
        self.now = 0
        self.lines: list[str] = []
        self.stats: Counter[str] = Counter()
        self.probes: Counter[str] = Counter()
        self.rules: list[Rule] = []
        self.cut: dict[tuple[str, str], int] = {}  # one way, source to target; how many partitions cover it
        self.clogged: dict[tuple[str, str], int] = {}  # until when messages of a link take the slowest class
        self.steps = 0
        self._mixed = 0
        self._trace = hashlib.sha256()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # --- time ------------------------------------------------------------------------------------------------------

    def at(self, after_ns: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + (after_ns if after_ns > 1 else 1), self._sequence, function))

    def timer(self, after_ns: int, function: Callable[[], None]) -> None:
        """Like ``at``, but of a clock that may be wrong (scenario 58)."""
        if self.weather.timers and self.random() < self.weather.timers:
            after_ns = int(after_ns * 8.0 ** (self.random() * 2 - 1))
        self.at(after_ns, function)

    def step(self) -> bool:
        if not self._heap:
            return False
        self.now, sequence, function = heapq.heappop(self._heap)
        self.steps += 1
        self._mixed = hash((self._mixed, self.now, sequence))
        function()
        return True

    def next_at(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def delay(self) -> int:
        weather = self.weather
        if weather.fixed_ns:
            return weather.fixed_ns
        base = SPEEDS_NS[0]
        if weather.slow and self.random() < weather.slow:
            base = SPEEDS_NS[int(self.random() * 4)]
        return 1 + int(base * (0.5 + self.random()))

    # --- network ---------------------------------------------------------------------------------------------------

    def send(self, source: str, target: str, kind: str, ledger_id: int, entry_id: int, deliver: Callable[[], None]) -> None:
        """Lost, late, twice, held, or cut off: the receiver must cope."""
        if self.verbose or self.rules:
            message = Message(source, target, kind, ledger_id, entry_id, deliver)
            if self.rules:
                for rule in self.rules:
                    if rule.takes(message):
                        return self._take(rule, message)
            deliver = self._told(message)
        if self.cut and (source, target) in self.cut:
            return
        weather = self.weather
        if weather.loss and STORE not in (source, target) and self.random() < weather.loss:
            return
        delay = self.delay()
        if self.clogged and self.clogged.get((source, target), 0) > self.now:
            delay += int(SPEEDS_NS[3] * (0.5 + self.random()))
        self.at(delay, deliver)
        if weather.duplication and self.random() < weather.duplication and STORE not in (source, target):
            self.at(self.delay(), deliver)

    def _take(self, rule: Rule, message: Message) -> None:
        rule.count -= 1
        if not rule.drop:
            rule.messages.append(message)
        if self.verbose:
            self.lines.append(f"{self.now / MS:10.3f} {'dropped' if rule.drop else 'held'}: {message}")

    def _told(self, message: Message) -> Callable[[], None]:
        def deliver() -> None:
            if self.verbose:
                self.lines.append(f"{self.now / MS:10.3f} {message}")
            message.deliver()

        return deliver

    def deliver_held(self, message: Message) -> None:
        """A released message travels from here on like any other, past all rules."""
        self.at(self.delay(), self._told(message))

    def partition(self, a: str, b: str, one_way: bool = False) -> None:
        self.cut[a, b] = self.cut.get((a, b), 0) + 1
        if not one_way:
            self.cut[b, a] = self.cut.get((b, a), 0) + 1

    def reconnect(self, a: str, b: str, one_way: bool = False) -> None:
        for link in ((a, b),) if one_way else ((a, b), (b, a)):
            left = self.cut.get(link, 0) - 1
            if left > 0:
                self.cut[link] = left
            else:
                self.cut.pop(link, None)

    def heal(self) -> None:
        self.cut.clear()
        self.clogged.clear()

    # --- trace -----------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        text = f"{self.now / MS:10.3f} {line}"
        self._trace.update(text.encode())
        self.lines.append(text)

    def fingerprint(self) -> str:
        """Return a fingerprint of everything that was noted and of when every event ran. Equal fingerprints: equal runs."""
        trace = self._trace.copy()
        trace.update(str((self._mixed, self.now)).encode())
        return trace.hexdigest()[:32]
