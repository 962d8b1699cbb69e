"""Checks many fragments of one ledger at once, in one budget of bytes (RR-4, RR-15).

Theory of operation. Each fragment has a FragmentCheck of its own. Some of them are under way, and the next begins when one has ended, so
that memory does not grow with the number of fragments. They share the budget: a check that had no room to ask goes on when an answer of
another one makes room. A bookie that stayed silent for one fragment is not asked again by checks that begin later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bk_core.protocol.effects import Complete, Effect, SetTimer
from bk_core.protocol.events import Event, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.replication.budget import ByteBudget
from bk_core.protocol.ledger.replication.check import FragmentCheck, FragmentReport
from bk_core.protocol.ledger.replication.fragments import FragmentSpan
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

FRAGMENTS_AT_ONCE = 32
FRAGMENTS_AT_ONCE_FULL = 4  # each of them has many reads under way; a bookie's queue is finite
_REQUESTS = 32  # bits of a request's number that count within its fragment

Positions = Callable[[FragmentSpan], Iterable[int] | None]


class LedgerCheck:
    """Machine: completes ``token`` with a list of FragmentReports, one for each of ``spans`` in their order. It never fails.

    ``positions`` returns the positions of a fragment to look at; None, or a result of None, means all. The other arguments are
    FragmentCheck's. Raises InvalidArgumentError, when it is begun, for a fragment that is not decided (RR-2).
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        spans: Sequence[FragmentSpan],
        token: Any,
        *,
        registered: Collection[BookieId],
        full: bool = False,
        batch: bool = True,
        positions: Positions | None = None,
        bytes_per_second: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self._metadata = metadata
        self._spans = spans
        self._token = token
        self._limits = limits or Limits()
        self._registered = registered
        self._full = full
        self._at_once = FRAGMENTS_AT_ONCE_FULL if full else FRAGMENTS_AT_ONCE
        self._batch = batch
        self._positions = positions
        self._budget = ByteBudget(self._limits.replication_bytes_in_flight, bytes_per_second, self._limits.read_batch_bytes)
        self._reports: dict[int, FragmentReport] = {}
        self._active: dict[int, FragmentCheck] = {}
        self._begun = 0
        self._silent: dict[BookieId, Status] = {}
        self._counted = (0, 0)  # the entries and bytes of the fragments that have ended
        self._finished = False

    @property
    def entries_checked(self) -> int:
        return self._counted[0] + sum(check.entries_checked for check in tuple(self._active.values()))

    @property
    def bytes_read(self) -> int:
        return self._counted[1] + sum(check.bytes_read for check in tuple(self._active.values()))

    def start(self, now_ns: int = 0) -> list[Effect]:
        return self._go_on(now_ns)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case ReadReply(request=request):
                effects = self._tell(request >> _REQUESTS, event, now_ns)
            case TimerFired("pace"):
                effects = [effect for number in tuple(self._active) for effect in self._tell(number, event, now_ns)]
            case TimerFired(key):
                number, _, name = key.partition(" ")
                effects = self._tell(int(number), TimerFired(name), now_ns)
        return effects + self._go_on(now_ns)

    def _tell(self, number: int, event: Event, now_ns: int) -> list[Effect]:
        check = self._active.get(number)
        return [] if check is None else self._take(number, check.handle(event, now_ns))

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Begin as many checks as there is room for, and resume those that waited for room; report when nothing is left."""
        effects: list[Effect] = []
        for number in [number for number, check in self._active.items() if check.starved]:
            effects += self._take(number, self._active[number].resume(now_ns))
        while len(self._active) < self._at_once and self._begun < len(self._spans):
            number, self._begun = self._begun, self._begun + 1
            self._active[number] = check = self._new_check(number)
            effects += self._take(number, check.start(now_ns))
        if not self._active and not self._finished:
            self._finished = True
            effects.append(Complete(self._token, [self._reports[number] for number in range(len(self._spans))]))
        return effects

    def _new_check(self, number: int) -> FragmentCheck:
        span = self._spans[number]
        return FragmentCheck(
            self.ledger_id,
            self._metadata,
            span,
            None,
            registered=self._registered,
            full=self._full,
            batch=self._batch,
            positions=None if self._positions is None else self._positions(span),
            limits=self._limits,
            budget=self._budget,
            silent=self._silent,
            first_request=number << _REQUESTS,
        )

    def _take(self, number: int, effects: list[Effect]) -> list[Effect]:
        """Take the effects of one fragment's check. Its timers get its own name, but all checks share the pace."""
        taken: list[Effect] = []
        for effect in effects:
            match effect:
                case Complete(value=FragmentReport() as report):
                    self._end(number, report)
                case SetTimer(key=key) if key != "pace":
                    taken.append(replace(effect, key=f"{number} {key}"))
                case _:
                    taken.append(effect)
        return taken

    def _end(self, number: int, report: FragmentReport) -> None:
        check = self._active.pop(number)
        self._counted = self._counted[0] + check.entries_checked, self._counted[1] + check.bytes_read
        self._reports[number] = report
        self._silent.update({replica.bookie: replica.silent for replica in report.replicas if replica.silent is not None})
