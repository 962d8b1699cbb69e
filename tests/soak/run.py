"""One run: start, harm, heal, stop, read everything, judge."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bk_core.bookie import apache
from bk_core.bookie.children import Child
from bk_core.client import BookKeeper
from tests.secured_matrix.logs import shown_secrets
from tests.soak.auto_recovery import AutoRecoveries
from tests.soak.checker import BESIDE_JAVA, Violation, check, lost
from tests.soak.cluster import OPERATION_TIMEOUT_S, SoakCluster
from tests.soak.faults import FAULTS, Injector, Writers
from tests.soak.history import DIGEST_BYTES, Op, Recorder
from tests.soak.java_side import Deck, Duelist, JavaProcess
from tests.soak.workload import (
    LOG,
    STALL_S,
    Actor,
    Auditor,
    Author,
    Board,
    Leader,
    ListSampler,
    LogFollower,
    Reader,
    Recoverers,
    Tailer,
    make_log,
)

ROOT = Path(__file__).resolve().parents[2]
MORE_S = 60.0
SKEWS_S = (2 * 3600.0, -2 * 3600.0)  # of the clocks of two janitors; the log keeps its entries for an hour
SETTLE_S = 2.0  # of work after the last fault, before everybody is told to stop
_JOIN_S = 2 * STALL_S + OPERATION_TIMEOUT_S


@dataclass(frozen=True)
class Plan:
    """``version``: an Apache release, None for embedded bookies. ``seconds``: from the first operation until faults are healed.

    ``java``: with Apache's client beside ours (of the bookies' release, 4.18.0 for embedded ones); ``others``: with all other actors.
    ``metadata``: where it is kept, "zookeeper" or "etcd". ``auto_recovery``: with two processes of it, for AUTO_RECOVERY_FAULTS.
    ``secured``: embedded bookies ask for a certificate and a password, which must stand in no log.
    ``complete``: go on for up to a minute until each kind of fault has happened; a machine under load may need it.
    """

    seconds: float
    seed: int
    bookies: int = 4
    version: str | None = "4.18.0"
    protocol: str = "v2"
    java: bool = False
    others: bool = True
    faults: tuple[str, ...] = FAULTS
    complete: bool = False
    metadata: str = "zookeeper"
    auto_recovery: bool = False
    secured: bool = False


@dataclass
class Report:
    """The result of a run. ``failures`` are violations, and anything that kept the run from being one."""

    plan: Plan
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    duels: Counter[str] = field(default_factory=Counter)
    facts: dict[str, int] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    history: list[Path] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.violations and not self.failures

    def text(self) -> str:
        kinds = sorted({kind for kind, _outcome in self.operations})
        lines = ["operations              ok     fail  unknown"]
        for kind in kinds:
            numbers = [self.operations[kind, outcome] for outcome in ("ok", "fail", "unknown")]
            lines.append(f"  {kind:<16}{numbers[0]:>10}{numbers[1]:>9}{numbers[2]:>9}")
        lines.append("faults")
        lines += [f"  {kind:<20}{count:>6}" for kind, count in sorted(self.faults.items())]
        lines.append("errors that clients met")
        lines += [f"  {kind:<12} {code:<26}{count:>6}" for (kind, code), count in sorted(self.errors.items())]
        lines += [f"{name.replace('_', ' ')}: {value}" for name, value in [*self.facts.items(), *sorted(self.duels.items())]]
        lines.append("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in self.took.items()))
        lines.append(f"violations: {len(self.violations)}")
        lines += [f"  {violation}" for violation in self.violations[:50]]
        lines += [f"  the run itself: {failure}" for failure in self.failures]
        if not self.good:
            lines.append(f"seed {self.plan.seed}; history in " + ", ".join(map(str, self.history)))
        return "\n".join(lines)


def soak(plan: Plan, directory: Path, say: Callable[[str], None] = lambda _line: None) -> Report:
    """Run a plan in an empty directory, which keeps the history."""
    report = Report(plan)
    started = time.monotonic()
    with SoakCluster(directory, plan.bookies, plan.version, plan.metadata, plan.secured) as cluster:
        report.took["start"] = time.monotonic() - started
        run = _Soak(plan, cluster, report, say)
        try:
            run.play()
        finally:
            run.close()
        if (password := cluster.password) is not None:
            report.failures += [f"a log shows the password: {log}" for log in shown_secrets(directory, [password])]
    return report


class _Soak:
    def __init__(self, plan: Plan, cluster: SoakCluster, report: Report, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._cluster = cluster
        self._report = report
        self._say = say
        self._rng = random.Random(plan.seed)
        self._stop = threading.Event()
        self._board = Board()
        self._recorder = Recorder(cluster.directory / "history.jsonl")
        self._clients: list[BookKeeper] = []
        self._direct = cluster.connect_directly(plan.protocol)
        self._clients.append(self._direct)
        self._writers = Writers(cluster, self._recorder, self._board, plan.protocol, random.Random(self._rng.getrandbits(32)))
        self._actors: list[Actor] = []
        self._java: JavaProcess | None = None
        self._deck: Deck | None = None
        self._janitors: list[Child] = []
        self._recoveries = AutoRecoveries(cluster, self._direct) if plan.auto_recovery else None

    def _janitor(self, skew_s: float) -> Child:
        """Cleans the log up and applies its retention all the time, by a clock that is wrong."""
        name = f"janitor{skew_s:+.0f}"
        options = json.dumps({"uri": self._cluster.uri, "skew_s": skew_s, "logs": [LOG]})
        command = [sys.executable, "-u", "-m", "tests.soak.janitor_process", options]
        path_of_imports = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        return Child(name, command, self._cluster.directory / f"{name}.log", env={"PYTHONPATH": path_of_imports})

    def _client(self, owner: str) -> BookKeeper:
        client = self._cluster.connect(owner, self._plan.protocol)
        self._clients.append(client)
        return client

    def _make_actors(self) -> None:
        def make(kind: type[Actor], name: str, client: BookKeeper) -> Actor:
            actor = kind(name, client, self._recorder, random.Random(self._rng.getrandbits(32)), self._stop)
            if isinstance(actor, Author | Reader | Recoverers):
                actor.board = self._board
            self._actors.append(actor)
            return actor

        if self._plan.java:
            self._java = JavaProcess(self._cluster, self._plan.version or apache.DEFAULT_VERSION, self._plan.protocol)
            self._deck = Deck(random.Random(self._rng.getrandbits(32)))
            for name in ("duelist-1", "duelist-2"):
                duelist = make(Duelist, name, self._client(name))
                assert isinstance(duelist, Duelist)
                duelist.use(self._java, self._board, self._deck)
        if not self._plan.others:
            return
        readers = self._client("readers")
        for name in ("author-1", "author-2"):
            make(Author, name, self._client(name))
        make(Reader, "reader", readers)
        make(Tailer, "tailer-1", readers)
        make(Tailer, "tailer-2", readers)
        recoverers = make(Recoverers, "recoverer", self._client("recoverer-a"))
        assert isinstance(recoverers, Recoverers)
        recoverers.other = self._client("recoverer-b")
        for name in ("leader-1", "leader-2"):
            make(Leader, name, self._client(name))
        make(LogFollower, "log-reader", readers)
        make(ListSampler, "sampler", readers)

    def play(self) -> None:
        make_log(self._direct)
        self._make_actors()
        rng = random.Random(self._rng.getrandbits(32))
        injector = Injector(self._cluster, self._recorder, self._writers, self._direct, rng, self._plan.faults, self._recoveries)
        threads = [threading.Thread(target=actor.run, name=actor.name, daemon=True) for actor in self._actors]
        begun = time.monotonic()
        if self._plan.others:
            self._writers.start()
            self._janitors = [self._janitor(skew_s) for skew_s in SKEWS_S]
        if self._recoveries is not None:
            self._recoveries.start()
        for thread in threads:
            thread.start()
        injector.start()
        self._work(begun, injector)
        injector.stop()
        injector.heal()
        self._wait(time.monotonic() + SETTLE_S)
        self._report.took["work"] = time.monotonic() - begun
        self._stop.set()
        self._join(threads)
        if self._plan.others:
            self._writers.kill()
        for janitor in self._janitors:
            if not janitor.running:
                self._report.failures.append(f"{janitor.name} ended early; see {janitor.log}")
            janitor.kill()
        if self._recoveries is not None:
            self._report.failures += self._recoveries.ended()
            self._recoveries.close()
        if injector.crash is not None:
            self._report.failures.append(f"faults ended early: {injector.crash!r}")
        self._audit()
        self._judge()

    def _work(self, begun: float, injector: Injector) -> None:
        """The time planned, and up to a minute more for what has not had its turn."""
        told = begun
        while injector.crash is None and ((now := time.monotonic()) < begun + self._plan.seconds or self._has_more(begun, injector)):
            self._wait(now + 0.2)
            if now - told > 30:
                told = now
                self._say(f"{now - begun:.0f} s: {len(self._recorder.ops)} operations, {len(self._board.all())} ledgers")

    def _has_more(self, begun: float, injector: Injector) -> bool:
        """A pairing with Java, or a kind of fault."""
        ahead = self._deck is not None and not self._deck.all_dealt or self._plan.complete and not injector.complete
        return ahead and time.monotonic() < begun + self._plan.seconds + MORE_S

    def _wait(self, until: float) -> None:
        while time.monotonic() < until:
            self._writers.follow()
            time.sleep(0.05)

    def _join(self, threads: list[threading.Thread]) -> None:
        begun = time.monotonic()
        for actor, thread in zip(self._actors, threads, strict=True):
            thread.join(max(0.1, begun + _JOIN_S - time.monotonic()))
            if thread.is_alive():
                self._report.failures.append(f"L-1: {actor.name} hangs since {time.monotonic() - actor.busy_since:.0f} s")
            if actor.crash is not None:
                self._report.failures.append(f"{actor.name} ended early: {actor.crash!r}")
        self._report.took["stop"] = time.monotonic() - begun

    def _audit(self) -> None:
        begun = time.monotonic()
        self._say("reading everything ...")
        auditor = Auditor("auditor", self._direct, self._recorder, random.Random(0), self._stop)
        auditor.audit([seen.ledger_id for seen in self._board.all()])
        sampler = next((actor for actor in self._actors if isinstance(actor, ListSampler)), None)
        if sampler is not None:
            sampler.sample()
            auditor.audit_log()
        self._report.took["read"] = time.monotonic() - begun

    def _judge(self) -> None:
        begun = time.monotonic()
        ops = [*self._recorder.ops, *self._writers.ops()]
        self._report.history = sorted(self._cluster.directory.glob("history*.jsonl"))
        found = check(ops)
        self._report.violations = [violation for violation in found if violation.rule != BESIDE_JAVA]
        self._report.facts["seen above the end beside a Java recoverer"] = len(found) - len(self._report.violations)
        for op in ops:
            if op.kind == "fault":
                self._report.faults[op.args["fault"]] += 1
            else:
                self._report.operations[op.kind, op.outcome] += 1
                if op.error:
                    self._report.errors[op.kind, op.error] += 1
        self._report.facts.update(facts(ops) | self._cluster.store.facts())
        if self._recoveries is not None:
            self._report.facts.update(self._recoveries.facts())
            lost = sorted(op.value["replicated_s"] for op in ops if op.args.get("fault") == "bookie_lost" and op.ok)
            self._report.facts["seconds_until_replicated_at_most"] = round(max(lost, default=0))
        for actor in self._actors:
            if isinstance(actor, Duelist):
                self._report.duels.update(actor.counts)
            elif isinstance(actor, Recoverers):
                self._report.duels["recovered_by_two_at_once"] += actor.duels
        self._report.took["judge"] = time.monotonic() - begun

    def close(self) -> None:
        self._stop.set()
        self._cluster.proxy.heal_all()
        for janitor in self._janitors:
            janitor.kill()
        if self._recoveries is not None:
            self._recoveries.close()
        if self._java is not None:
            self._java.close()
        for actor in self._actors:
            if isinstance(actor, Duelist):
                actor.close()
        for client in self._clients:
            client.close()
        self._recorder.close()


def facts(ops: list[Op]) -> dict[str, int]:
    """Counts for the report."""
    finals = [op for op in ops if op.kind == "final" and op.ok]
    reads = [op for op in ops if op.kind in ("read", "tail", "final_read") and op.ok]
    return {
        "ledgers": len(finals),
        "fragments": sum(len(op.value["fragments"]) for op in finals),
        "entries_lost": len(lost(ops)),
        "entries_acknowledged": sum(op.args["count"] for op in ops if op.kind == "append" and op.ok),
        "log_entries_acknowledged": sum(op.kind == "log_append" and op.ok for op in ops),
        "entries_read": sum(len(op.value["digests"]) // DIGEST_BYTES for op in reads),
        "guaranteed_ledgers_sealed": sum(op.kind == "copies" and op.ok and op.value["sealed"] for op in ops),
        "writers_killed": sum(op.kind == "killed" for op in ops),
    }


def missing_faults(report: Report) -> list[str]:
    """Kinds that were planned and did not happen."""
    return [kind for kind in report.plan.faults if not report.faults[kind]]
