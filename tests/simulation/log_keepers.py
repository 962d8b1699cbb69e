"""Keeps a simulated log small: trims, janitors, and the sealing of its history. Each performs what its production machine asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log import effects as log_effects
from bk_core.protocol.log.cleaning import LogCleaning
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits, next_chunk, ref_to, seal
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.trimming import LogTrimming, TrimBounds
from bk_core.protocol.log.view import LogView
from tests.simulation.logs import LIST, LogClient, LogTruth
from tests.simulation.store import Answer
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

SEAL = SealLimits(tail_max=4, chunk=2, fan_out=2)
FIRST_HISTORY_LEDGER = 100_000  # ledgers of the history hold no data: here they are values that come and go at once


class Keeper(LogClient):
    """Runs one trim, or one pass of a janitor."""

    role = "janitor"
    machine: ListClearing

    def __init__(self, cluster: Cluster, name: str, log: LogTruth, machine: ListClearing, bounds: TrimBounds | None = None) -> None:
        super().__init__(cluster, name, log, (1, 1, 1), machine)
        self.bounds = bounds
        self.retention: tuple[int, int] | None = None  # (now on the store's clock, milliseconds to keep)

    def _one(self, effect: Any) -> None:
        match effect:
            case log_effects.ChangeList(request, value, version):
                self._change(request, value, version)
            case log_effects.LookAtLedger(request, ledger_id):
                self._look_at(request, ledger_id)
            case log_effects.RecoverLedger(request, ledger_id) if ledger_id >= FIRST_HISTORY_LEDGER:
                outcome = Outcome.OK if ledger_id in self.log.chunks else Outcome.NO_SUCH_LEDGER
                self.world.at(self.world.delay(), lambda: self.feed(log_effects.LedgerEnded(request, outcome, 0)))
            case log_effects.DeleteLedger(request, ledger_id):
                self._delete_unlisted(request, ledger_id)
            case log_effects.ForgetIntent():
                pass
            case _:
                super()._one(effect)

    def _change(self, request: int, value: LedgerList, version: int) -> None:
        before = self.lists[version]

        def changed(_value: LedgerList) -> None:
            self._check_bounds(before, value)
            self.log.listed(value)

        self.cluster.store.set_item(self.name, LIST, value, version, lambda found: self._list_written(request, found, value), changed)

    def _check_age(self, segment: Segment) -> None:
        """I-L10."""
        if self.retention is None or not segment.entries:
            return
        judged_ms, kept_ms = self.retention
        if self.name in self.log.hosts_ms:
            self.world.probes["a janitor whose clock is hours wrong trimmed by age"] += 1
        age_ms = judged_ms - self.log.made(segment.ledger_id)
        if age_ms < kept_ms:
            self.log.untimely.append(f"{self.name} cut off {segment}, {age_ms} ms old, of which {kept_ms} ms were to be kept")

    def _check_bounds(self, before: LedgerList, after: LedgerList) -> None:
        """I-L8: what goes lies before the position, was committed before the time, or is beyond the newest bytes."""
        if self.bounds is None or after.trimmed_seq == before.trimmed_seq:
            return
        view = LogView(before, self.log.load)
        for segment in view.segments(before.trimmed_seq, after.trimmed_seq - 1):
            self._check_age(segment)
            if not self._is_beyond(view, segment):
                self.log.overdone.append(f"{self.name} with {self.bounds} cut off {segment}")

    def _is_beyond(self, view: LogView, segment: Segment) -> bool:
        """Looked at segment by segment; the machine looks at whole chunks. A segment without entries may go with those before it."""
        bounds = self.bounds
        assert bounds is not None
        before = bounds.before is not None and segment.seq < bounds.before.seq
        old = bounds.before_ms is not None and segment.committed_at_ms < bounds.before_ms
        newer = sum(one.bytes for one in view.segments(segment.seq + 1))
        return segment.entries == 0 or before or old or (bounds.max_bytes is not None and newer >= bounds.max_bytes)

    def _look_at(self, request: int, ledger_id: int) -> None:
        def heard(found: Answer) -> None:
            closed = found.outcome is Outcome.OK and found.value.state is LedgerState.CLOSED
            self.feed(log_effects.LedgerOpened(request, found.outcome, closed))

        self.cluster.store.read(self.name, self.cluster.truths[ledger_id], heard)

    def _delete_unlisted(self, request: int, ledger_id: int) -> None:
        def serve() -> Answer:
            self._check_deletion(ledger_id)
            if ledger_id >= FIRST_HISTORY_LEDGER:
                self.log.chunks.pop(ledger_id, None)
            elif not self.cluster.truths[ledger_id].deleted:
                if ledger_id not in self.log.ever:
                    self.world.probes["a janitor took a ledger that a leader was about to list"] += 1
                self.cluster.store.delete(self.cluster.truths[ledger_id])
            return Answer(Outcome.OK)

        self.cluster.store.call(
            self.name, "delete", ledger_id, serve, lambda found: self.feed(log_effects.LedgerDeleted(request, found.outcome))
        )

    def _check_deletion(self, ledger_id: int) -> None:
        """I-L7: the list has condemned it, or another pass was done with it; and it is CLOSED. An old request may arrive late."""
        value: LedgerList = self.cluster.store.items[LIST][0]
        gone = ledger_id not in self.log.chunks if ledger_id >= FIRST_HISTORY_LEDGER else self.cluster.truths[ledger_id].deleted
        if gone:
            return
        if value.named([ledger_id], self.log.load) or ledger_id not in value.condemned:
            self.log.wronged.append(f"{self.name} deletes ledger {ledger_id}, which the list names or has not condemned")
        if ledger_id < FIRST_HISTORY_LEDGER and not self.log.closed(ledger_id):
            self.log.wronged.append(f"{self.name} deletes ledger {ledger_id}, which is not CLOSED")
        self.log.changed = True


def trim(cluster: Cluster, name: str, log: LogTruth, bounds: TrimBounds, on_done: Callable[[Any], None]) -> Keeper:
    """LOG-11."""
    return _run(Keeper(cluster, name, log, LogTrimming(LIST, bounds, retry_ns=30 * MS), bounds), on_done)


def retain(cluster: Cluster, name: str, log: LogTruth, kept_ms: int) -> None:
    """As client/log/janitor.py does it: what is older than ``kept_ms`` goes, and who tells how old it is (JAN-1)."""
    keeper = Keeper(cluster, name, log, ListClearing(LIST))
    keeper.retention = cluster.store.clock_ms(), kept_ms
    keeper.bounds = TrimBounds(before_ms=keeper.now_ms() - kept_ms)
    keeper.machine = LogTrimming(LIST, keeper.bounds, retry_ns=30 * MS)
    _run(keeper, lambda value: None)


def trimming(cluster: Cluster, name: str, log: LogTruth, keep_from: int, on_done: Callable[[Any], None]) -> Keeper:
    """LOG-11: everything before ledger ``keep_from`` goes."""
    value: LedgerList = cluster.store.items[LIST][0]
    seq = next(segment.seq for segment in LogView(value, log.load).segments() if segment.ledger_id == keep_from)
    return trim(cluster, name, log, TrimBounds(before=Position(seq)), on_done)


def cleaning(cluster: Cluster, name: str, log: LogTruth, abandoned: Collection[int], on_done: Callable[[Any], None]) -> Keeper:
    """A janitor that takes the writers of these ledgers for gone."""
    return _run(Keeper(cluster, name, log, LogCleaning(LIST, abandoned, retry_ns=30 * MS)), on_done)


def _run(keeper: Keeper, on_done: Callable[[Any], None]) -> Keeper:
    keeper.on_done = lambda token, value: on_done(value)
    keeper.act(keeper.machine.start("kept", keeper.now))
    return keeper


def seal_some(cluster: Cluster, name: str, log: LogTruth) -> None:
    """Move what is too much of the list into history ledgers, if nobody is faster (client/log/history.py)."""

    def heard(found: Answer) -> None:
        if found.outcome is not Outcome.OK:
            return
        value: LedgerList = found.value
        made: list[int] = []
        while chunk := next_chunk(value, SEAL):
            log.sealed += 1
            made.append(FIRST_HISTORY_LEDGER + log.sealed)
            log.chunks[made[-1]] = chunk
            value = seal(value, [(chunk, ref_to(chunk, made[-1]))]) or value
        if made:
            cluster.store.set_item(name, LIST, value, found.version, lambda answer: written(answer, made), log.listed)

    def written(found: Answer, made: list[int]) -> None:
        if found.outcome is Outcome.CONFLICT:
            for ledger_id in made:
                del log.chunks[ledger_id]

    cluster.store.read_item(name, LIST, heard)
