"""Looks at a whole cluster: bookies, ledgers, logs, clocks. It neither fences nor writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bk_core.client.doctor.admission import refusing
from bk_core.client.doctor.bookies import (
    judge_admission,
    judge_bookies,
    judge_cluster,
    judge_count,
    judge_marks,
    states_of,
    told_by_probes,
)
from bk_core.client.doctor.findings import Diagnosis, Finding, sorted_findings
from bk_core.client.doctor.last_entries import judge_last_entries
from bk_core.client.doctor.ledgers import LedgerScan
from bk_core.client.doctor.logs import Lists, judge_logs, judge_orphans, read_lists
from bk_core.client.doctor.probe import TIMEOUT_S, probe_bookies
from bk_core.display.ledgers import DOWN
from bk_core.display.words import counted, told_age
from bk_core.errors import MetadataDeniedError, MetadataFormatError, NoSuchLogRootError
from bk_core.protocol.log.times import SKEW_MS

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

STUCK_S = 600.0
_TELL_EVERY = 256


class OnStep(Protocol):
    """A function that is told the step that is under way, how much of it is done, and of how much if that is known."""

    def __call__(self, step: str, done: int, total: int | None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of a look at a cluster. ``stuck_s``: a recovery without progress for so many seconds is stuck. ``timeout_s``: the time
    that a bookie has for each answer. ``clock``: also learn the time of the metadata store by a write to an empty node, which is the only
    way to see that this host's clock is ahead. ``read_last``: also read the last entry of every CLOSED ledger."""

    stuck_s: float = STUCK_S
    timeout_s: float = TIMEOUT_S
    clock: bool = False
    read_last: bool = False


def examine(client: BookKeeper, options: DoctorOptions, on_step: OnStep | None = None) -> Diagnosis:
    """Look at the whole cluster once. Raises what a lost metadata store raises, NoClusterError for one."""
    return _Examination(client, options, on_step or (lambda step, done, total: None)).run()


class _Examination:
    """One look at a cluster."""

    def __init__(self, client: BookKeeper, options: DoctorOptions, on_step: OnStep) -> None:
        self._client = client
        self._options = options
        self._tell = on_step
        self._found: list[Finding] = []
        self._unchecked: list[str] = []
        self._lacks_logs = False

    def run(self) -> Diagnosis:
        begun = time.monotonic()
        client = self._client
        cluster = client.store.cluster_id()
        self._found += judge_cluster(client)
        states = states_of(client)
        self._tell("asking bookies", 0, len(states))
        asked = [bookie for bookie, state in states.items() if state != DOWN or client.store.unregistered()]
        probes = probe_bookies(client, asked, timeout_s=self._options.timeout_s)
        states = told_by_probes(states, probes)
        there = [bookie for bookie, state in states.items() if state != DOWN]
        lists = self._lists()
        self._found += judge_admission(client, probes)
        refused = [probe.bookie for probe in refusing(probes.values())]
        if refused:
            self._unchecked.append(f"copies on {counted(len(refused), 'bookie')} by which this client is not admitted")
        dead = [bookie for bookie, probe in probes.items() if not probe.answers and bookie not in refused]
        scan = self._scan(there, dead, lists)
        counts = scan.counts()
        now_ms = max(time.time_ns() // 1_000_000, scan.newest_ms)
        self._found += scan.findings(now_ms)
        self._found += judge_bookies(client, states, probes, counts.ledgers)
        self._found += judge_marks(client, frozenset(scan.without_copy), scan.lacking)
        self._found += judge_count(states, lists.ensemble_size)
        left: list[str] | None = self._unchecked if refused else None
        self._found += judge_logs(client, lists, scan.ids, now_ms, self._step("looking at logs"), left)
        self._found += judge_orphans(client, scan.suspects, more=len(scan.suspects) == scan.SUSPECTS_MAX)
        if self._options.read_last:
            self._found += judge_last_entries(client, scan.closed, self._step("reading last entries"))
        self._found += self._clock(scan.newest_ms)
        client.store.check_cluster()  # a store that was emptied meanwhile is no cluster with nothing wrong (OWN-2)
        found = sorted_findings(self._found)
        logs = len(lists.lists) + len(lists.bad)
        return Diagnosis(cluster, found, states, probes, counts, logs, time.monotonic() - begun, tuple(self._unchecked))

    def _step(self, step: str) -> Callable[[int, int], None]:
        return lambda done, total: self._tell(step, done, total)

    def _lists(self) -> Lists:
        try:
            return read_lists(self._client, self._step("reading lists of logs"))
        except NoSuchLogRootError as error:
            self._unchecked.append(f"logs: {error.args[0]}")
            self._lacks_logs = True
            return Lists()

    def _scan(self, registered: list[str], dead: list[str], lists: Lists) -> LedgerScan:
        store = self._client.store
        log_root = None if self._lacks_logs else store.log_root
        scan = LedgerScan(registered, dead, log_root, lists.ids(), int(self._options.stuck_s * 1000))
        self._tell("listing ledgers", 0, None)
        total = sum(1 for _ in store.list_ledgers())
        for done, _ in enumerate(scan.feed(store.read_ledgers(store.list_ledgers())), 1):
            if done % _TELL_EVERY == 0:
                self._tell("reading metadata of ledgers", done, max(total, done))
        return scan

    def _clock(self, newest_ms: int) -> Iterator[Finding]:
        """Compare this host's clock with the store's: with what it has stamped, which cannot lie ahead, or with the time that it tells."""
        here_ms = time.time_ns() // 1_000_000
        told_ms = None
        if self._options.clock:
            try:
                told_ms = self._client.store.clock_ms()
            except (MetadataDeniedError, MetadataFormatError) as error:
                self._unchecked.append(f"clock: {error.args[0]}")
        apart_ms = here_ms - (newest_ms if told_ms is None else told_ms)
        if apart_ms < -SKEW_MS or (told_ms is not None and apart_ms > SKEW_MS):
            side = "ahead of" if apart_ms > 0 else "behind"
            what = f"the clock of this host is {told_age(abs(apart_ms))} {side} the metadata store's"
            yield Finding("clock-skew", what, "set it right (NTP); ages that are shown here are wrong until then", "timedatectl")
