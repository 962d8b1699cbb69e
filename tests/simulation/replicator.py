"""A re-replicator: looks at fragments whose contents are decided, fills in what is missing, moves data off bookies (RR-1..RR-13, G-27)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import (
    ExchangeGroup,
    FragmentRepair,
    FragmentReport,
    FragmentSpan,
    LedgerCheck,
    eligible_fragments,
    guaranteed,
    span_now,
)
from bk_core.protocol.ledger.replication.change import MetadataChange
from tests.simulation.clients import Client
from tests.simulation.store import Answer
from tests.simulation.truth import Truth
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PAUSE_NS = 30 * MS


class Replicator(Client):
    """Goes round and round. ``move`` is the chance that it moves a healthy replica elsewhere; ``lost`` are bookies to be left for good."""

    role = "replicator"

    def __init__(self, cluster: Cluster, name: str, truth: Truth, *, move: float = 0.0, lost: tuple[str, ...] = ()) -> None:
        super().__init__(cluster, name, truth)
        self.move, self.lost_bookies = move, lost
        self.content = False  # a whole round over a CLOSED ledger found nothing to do
        self.results: list[Any] = []
        self.rounds = 0
        self._metadata: LedgerMetadata | None = None
        self._version = -1
        self._reports: list[FragmentReport] = []
        self._group = ExchangeGroup(0)
        self._to_fill: list[FragmentSpan] = []
        self._found_something = False
        self._losses = 0  # a disk lost during a round may have been looked at before
        self.on_done = self._done

    @property
    def busy(self) -> bool:
        """B-12: it holds the ledger's replication lock."""
        return isinstance(self.machine, FragmentRepair) or bool(self._group.exchanges)

    def start(self) -> None:
        self.content, self._found_something = False, False
        self._group = ExchangeGroup(0)
        self._losses = self.truth.losses
        self.cluster.store.read(self.name, self.truth, lambda found: self.soon(lambda: self._opened(found)))

    def _opened(self, found: Answer) -> None:
        if found.value is None:
            self._later(self.start)
            return
        self._metadata, self._version = found.value, found.version
        self.rounds += 1
        registered = [n for n, b in self.cluster.bookies.items() if b.up and n not in self.lost_bookies]
        limits, spans = self.cluster.limits, eligible_fragments(found.value)
        options: dict[str, Any] = {"registered": registered, "full": True, "limits": limits}
        self.change_machine(LedgerCheck(self.truth.ledger_id, found.value, spans, "check", **options))
        self.act(self.machine.start(self.now))

    def _next(self) -> None:
        """The next report, or what follows the last one. Chance says when the group is exchanged: safety does not depend on it (RR-15)."""
        md = self._metadata
        assert md is not None
        if self._group.exchanges and (not self._reports or self.world.random() < 0.5):
            self._exchange(md)
            return
        if not self._reports:
            if not self._found_something and guaranteed.needs_filling(md):
                self._to_fill = list(guaranteed.spans_to_fill(md))
                self._fill(md)
                return
            self.content = md.state is LedgerState.CLOSED and not self._found_something and self._losses == self.truth.losses
            self.change_machine(None)
            if not self.content:
                self._later(self.start)
            return
        self._repair(self._reports.pop(0))

    def _exchange(self, md: LedgerMetadata) -> None:
        """RR-7: all in the group are copied and confirmed."""
        if len(self._group.exchanges) > 1:
            self.world.probes["several fragments were exchanged by one change"] += 1
        limits, ledger_id = self.cluster.limits, self.truth.ledger_id
        self.change_machine(MetadataChange(ledger_id, md, self._version, self._group.intent, "exchanged", limits))
        self.act(self.machine.start())

    def _done(self, token: Any, value: Any) -> None:
        if token == "check":
            self._reports = list(value)
            self._next()
            return
        if token == "copied" and not isinstance(value, Exception):
            machine = self.machine
            self.world.stats["repairs"] += 1
            if machine.exchanges:
                self._group.add(machine.span.first_entry_id, machine.exchanges, machine.bytes_copied)
            self._next()
            return
        if token == "exchanged" and not isinstance(value, Exception):
            self._metadata, self._version = self.machine.metadata, self.machine.version
            for error in self._group.refused.values():
                self.world.note(f"{self.name}: {error}")
            self._group = ExchangeGroup(0)
            if self._reports:
                self._next()
                return
        if token == "filled" and not isinstance(value, Exception):
            assert self._metadata is not None
            self._fill(self._metadata)
            return
        self.results.append(value)
        if isinstance(value, Exception):
            self.world.note(f"{self.name}: {value}")
            self.world.stats["repairs failed"] += 1
        if token == "sealed" and not isinstance(value, Exception):
            self.world.note(f"{self.name}: ledger {self.truth.ledger_id} is sealed")
            self.world.probes["an unsealed ledger was filled in and sealed"] += 1
        self.change_machine(None)
        self._group = ExchangeGroup(0)
        self._later(self.start)

    def _fill(self, md: LedgerMetadata) -> None:
        """G-27: the round found every entry of every fragment; the last two are written again all the same, then the ledger is sealed."""
        limits, ledger_id = self.cluster.limits, self.truth.ledger_id
        if self._to_fill:
            span = self._to_fill.pop(0)
            refill = guaranteed.everything(md, span)
            self.change_machine(FragmentRepair(ledger_id, md, self._version, span, "filled", refill=refill, limits=limits))
            self.act(self.machine.start(self.now))
            return

        def seal(stored: LedgerMetadata) -> LedgerMetadata | None:
            return guaranteed.sealed(stored, md.fragments)

        self.change_machine(MetadataChange(ledger_id, md, self._version, seal, "sealed", limits))
        self.act(self.machine.start())

    def _repair(self, report: FragmentReport) -> None:
        md = self._metadata
        assert md is not None
        spare = [n for n in self.cluster.writable() if n not in report.span.ensemble and n not in self.lost_bookies]
        targets: dict[int, str] = {}
        for replica in report.replicas:
            gone = not replica.registered or (self.move and self.world.random() < self.move)
            if gone and spare:
                targets[replica.position] = spare.pop(0)
        refill = {r.position: r.damaged for r in report.replicas if r.damaged and r.registered and r.position not in targets}
        if not targets and not refill:
            self._found_something = self._found_something or any(not r.registered or r.silent for r in report.replicas)
            self._next()
            return
        self._found_something = True
        options: dict[str, Any] = {"targets": targets, "refill": refill, "limits": self.cluster.limits, "exchange": False}
        try:
            span = span_now(md, report.span)
            machine = FragmentRepair(self.truth.ledger_id, md, self._version, span, "copied", **options)
        except BkError as error:
            self._done("copied", error)
            return
        self.change_machine(machine)
        self.act(machine.start(self.now))

    def _later(self, function: Callable[[], None]) -> None:
        self.world.timer(PAUSE_NS, lambda: self.soon(function))
