"""Re-replication that runs by itself: an auditor that marks what lost bookies had, and workers that repair what is marked.

The marks, the locks and the vote for the auditor are Apache's own (docs/metadata.md 1.4), so this runs beside Apache's auto-recovery, or
instead of it. ``bk_core/protocol/ledger/replication/auditing.py`` decides (RR-16 to RR-19); here are the threads, the store and the clock.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bk_core.arguments import POSITIVE, SECONDS, check_fields, settings
from bk_core.client.doctor.admission import check_admitted
from bk_core.client.doctor.probe import ANSWERS, NOT_ADMITTED, probe_bookies
from bk_core.client.inspect import found_ledgers
from bk_core.client.repair.jobs import check_ledger, repair_ledger
from bk_core.client.repair.report import LedgerReport, RepairOptions, RepairReport
from bk_core.display.words import about, counted, rest_about
from bk_core.errors import (
    BkError,
    BookieUnavailableError,
    ClientClosedError,
    LedgerError,
    MetadataFormatError,
    NoAutoRecoveryError,
    NoSuchLedgerError,
    OperationTimeoutError,
)
from bk_core.metadata.service_info import is_address
from bk_core.metadata.store import BookieView, MetadataStore, Watch
from bk_core.metadata.underreplication import Candidate
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.replication import Ended, LostBookies, RepairQueue, check_due, check_pause_ns
from bk_core.threads import Flag, join, mark_own

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

log = logging.getLogger("bk_core.client")
NS = 1_000_000_000
JOIN_S = 60.0
BRISK_S = 0.5  # between two looks at the marks while there is work, or may soon be
BRISK_FOR_S = 15.0  # after a bookie came or went
RUNNING_ASKED_S = 2.0  # for each answer of a bookie that is away


@settings
@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """The settings of auto-recovery, in seconds.

    ``look_s`` passes at most between two looks at the bookies, at the marks and at the switch; a bookie that comes or goes is looked at
    at once. ``delay_s`` is how long a bookie is away before it is lost; if a second one goes meanwhile, both are lost at once. None takes
    what the cluster has stored, which is 0 where nobody stored it. ``grace_s`` is what the writer of an open ledger has to replace a lost
    bookie (RR-18). Ledgers of lost bookies are marked again a minute later, and then every ``again_s``. All ledgers are looked at every
    ``check_s``, 0 for never. ``workers`` ledgers are repaired at a time.
    """

    look_s: float = 5.0
    delay_s: float | None = None
    grace_s: float = 30.0
    again_s: float = 86_400.0
    check_s: float = 604_800.0
    workers: int = 2

    def __post_init__(self) -> None:
        """Check the settings; raise InvalidArgumentError."""
        check_fields(self, {**dict.fromkeys(("look_s", "delay_s", "grace_s", "again_s", "check_s"), SECONDS), "workers": POSITIVE})


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """Something that auto-recovery did or met.

    ``kind`` is elected, deposed (another one audits), off, on, spared (a bookie without a registration may run), lost, marked, checked,
    repaired, recovered, waits, failed or trouble.
    ``text`` says it in words. ``count`` is a number of ledgers. The numbers are 0, and ``bookies`` is empty, where they say nothing.
    """

    kind: str
    text: str
    ledger_id: int | None = None
    bookies: tuple[BookieId, ...] = ()
    count: int = 0
    entries: int = 0
    bytes: int = 0


OnEvent = Callable[[RecoveryEvent], object]


def check_served(store: MetadataStore) -> None:
    """Raise NoAutoRecoveryError where a bookie without a registration may serve, because an auditor takes such a bookie for lost."""
    why = store.unregistered()
    if why:
        raise NoAutoRecoveryError(f"there is no auto-recovery in this cluster, Apache's neither: {why}, and would be taken for lost")


class AutoRecovery:
    """An auditor and workers on threads of their own, from ``start`` to ``close`` or until the client is closed. It is a context manager.

    ``audits`` and ``repairs`` choose the parts. ``repair`` has the options of each repair; which ledgers are open too long is decided here.
    ``on_event`` is called on those threads, one call at a time; what it raises is logged, and changes nothing.
    """

    def __init__(
        self,
        client: BookKeeper,
        options: AutoRecoveryOptions | None = None,
        *,
        audits: bool = True,
        repairs: bool = True,
        repair: RepairOptions | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self._client = client
        self._options = options or AutoRecoveryOptions()
        self._repair = replace(repair or RepairOptions(), lock_wait_s=0.0, grace_s=0.0)
        self._on_event = on_event or (lambda event: log.info("auto-recovery: %s", event.text))
        self._telling = threading.Lock()
        self._teller: int | None = None  # the thread that is in ``on_event``
        self._stopping = Flag()
        self._audit_now, self._check_now, self._repair_now = Flag(), Flag(), Flag()
        self._brisk_until = 0.0
        self._watch: Watch | None = None
        self._store = client.store.underreplication()
        self._candidate: Candidate = self._store.candidate(socket.gethostname())
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._lost = LostBookies(int(self._options.again_s * NS))
        self._queue = RepairQueue(int(self._options.grace_s * NS))
        self._is_elected = False
        self._is_off = False
        self._check_again_ns = 0  # no look at all ledgers begins before
        self._checks_refused = 0  # looks at all ledgers in a row in which bookies refused this client
        self._threads: list[threading.Thread] = []
        if audits:
            self._threads.append(self._thread("bk-auditor", self._audit_turn, self._audit_now, self._candidate.withdraw))
            if self._options.check_s:  # apart, because it may take hours
                self._threads.append(self._thread("bk-checker", self._check_turn, self._check_now))
        if repairs:
            self._threads.append(self._thread("bk-replicator", self._repair_turn, self._repair_now))

    def start(self) -> AutoRecovery:
        """Begin. Raises NoAutoRecoveryError, BookieSecurityError if all bookies that answer refuse this client (RR-19), and what a first
        look at the cluster raises, such as MetadataUnavailableError and WrongClusterError."""
        check_served(self._client.store)
        self._client.store.check_cluster()
        check_admitted(self._client, "auto-recovery")
        self._watch = self._client.store.watch_bookies(self._bookies_changed)
        for thread in self._threads:
            thread.start()
        return self

    def _bookies_changed(self, _: BookieView) -> None:
        self._brisk_until = time.monotonic() + BRISK_FOR_S
        self._audit_now.set()
        self._repair_now.set()

    def close(self) -> None:
        """End: the copies that are under way are finished or fail, and the vote is taken back. Waits for that at most a minute, and not at
        all in ``on_event``, for whose end they wait."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.cancel()
        for flag in (self._audit_now, self._check_now, self._repair_now):
            flag.set()
        if self._teller == threading.get_ident():
            return
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread.ident is not None:
                join(thread, max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> AutoRecovery:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- threads -----------------------------------------------------------------------------------------------------

    def _thread(self, name: str, turn: Callable[[], None], now: Flag, at_end: Callable[[], None] = lambda: None) -> threading.Thread:
        def run() -> None:
            mark_own()
            try:
                self._again_and_again(name, turn, now)
            finally:  # nobody else is elected while the vote stands
                try:
                    at_end()
                except BkError as error:
                    log.debug("%s did not end well: %s", name, error)

        return threading.Thread(target=run, name=name, daemon=True)

    def _again_and_again(self, name: str, turn: Callable[[], None], now: Flag) -> None:
        while not self._stopping.is_set():
            now.clear()  # a change during the turn leads to another one
            try:
                turn()
            except ClientClosedError:
                return  # nothing can be done any more, and nobody waits for it
            except BkError as error:
                self._say(RecoveryEvent("trouble", f"{name}: {error}"))
            except Exception:
                log.exception("%s: a turn failed", name)
                self._say(RecoveryEvent("trouble", f"{name}: a turn failed; see the log"))
            if not self._stopping.is_set():  # its flag may have been cleared with it
                now.wait(self._pause_s(now))

    def _pause_s(self, now: Flag) -> float:
        """Return the seconds until the next turn. Nobody tells a worker of the marks of another host's auditor, so it looks often where
        some may come."""
        is_brisk = now is self._repair_now and time.monotonic() < self._brisk_until
        return min(BRISK_S, self._options.look_s) if is_brisk else self._options.look_s

    def _say(self, event: RecoveryEvent) -> None:
        with self._telling:
            self._teller = threading.get_ident()
            try:
                self._on_event(event)
            except BaseException:  # callbacks of users may raise SystemExit, and without these threads nothing is repaired
                log.exception("a callback of auto-recovery failed: %s", event.text)
            finally:
                self._teller = None

    # --- the auditor -------------------------------------------------------------------------------------------------

    def _audit_turn(self) -> None:
        """Look which bookies are away, and mark what lost ones have, if this is the auditor. Others follow, to know how long bookies have
        been away if they are elected, and take it that the auditor marks. Who is elected marks once more what was marked before."""
        leads, is_off = self._leads(), self._store.is_disabled()
        self._client.store.check_cluster()
        view, now_ns = self._client.store.bookies(), time.monotonic_ns()
        self._remember(view)
        audit = self._lost.look(self._client.store.cookies(), view.registered, self._delay_ns(), now_ns)
        if is_off:  # nothing is marked, but bookies come back
            return
        if not leads:
            self._lost.marked(audit.lost, now_ns)
            return
        running = frozenset(self._running(self._lost.to_ask(audit.lost)))
        lost = audit.lost - running
        if running:
            self._lost.answered(running, time.monotonic_ns())
            lost -= self._client.store.bookies().registered  # while they were asked, some may have registered
        if running:
            who, have = ("is", "has") if len(running) == 1 else ("are", "have")
            text = f"{', '.join(sorted(running))} {who} not registered, may run all the same, and {have} a minute to register again"
            self._say(RecoveryEvent("spared", text, bookies=tuple(sorted(running))))
        if lost:
            self._say(RecoveryEvent("lost", f"lost: {', '.join(sorted(lost))}", bookies=tuple(sorted(lost))))
            if self._mark_all(lost):
                self._lost.marked(lost, now_ns)
            self._repair_now.set()

    def _remember(self, view: BookieView) -> None:
        """Remember the addresses of registered bookies whose ids are no addresses: nothing else has them when they are away."""
        for bookie in view.registered:
            if not is_address(bookie):
                with suppress(BookieUnavailableError):
                    self._addresses[bookie] = self._client.store.resolve(bookie)

    def _running(self, bookies: list[BookieId]) -> list[BookieId]:
        """Return those that answer where they were, or that refuse this client. One of which nobody knows where it was counts as well."""
        if not bookies:
            return []
        probes = probe_bookies(self._client, bookies, timeout_s=RUNNING_ASKED_S, addresses=self._addresses)
        return sorted(bookie for bookie, probe in probes.items() if probe.address is None or probe.state in (ANSWERS, NOT_ADMITTED))

    def _leads(self) -> bool:
        was, self._is_elected = self._is_elected, self._candidate.is_elected()
        if was != self._is_elected:
            self._lost.took_over()
            said = "this is the auditor" if self._is_elected else f"the auditor is {self._store.auditor()}"
            self._say(RecoveryEvent("elected" if self._is_elected else "deposed", said))
        return self._is_elected

    def _delay_ns(self) -> int:
        seconds = self._store.recovery_delay_s() if self._options.delay_s is None else self._options.delay_s
        return int((seconds or 0) * NS)

    def _mark_all(self, lost: frozenset[BookieId]) -> bool:
        """Mark every ledger that names a lost bookie (RR-16). Return False if it was told to end before it had seen them all."""
        count = 0
        for found in found_ledgers(self._client, self._ids()):
            if found.metadata is None:
                what = f"ledger {found.ledger_id}"
                self._say(RecoveryEvent("failed", f"{what} cannot be understood: {rest_about(what, found.problem)}", found.ledger_id))
                continue
            named = lost.intersection(*[{bookie for fragment in found.metadata.fragments for bookie in fragment.ensemble}])
            if named:
                self._store.mark(found.ledger_id, sorted(named), self._now_ms())
                count += 1
        if self._stopping.is_set():
            return False
        what = f"{counted(count, 'ledger')} marked that {'names' if count == 1 else 'name'} {', '.join(sorted(lost))}"
        self._say(RecoveryEvent("marked", what, bookies=tuple(sorted(lost)), count=count))
        return True

    def _ids(self) -> Iterator[int]:
        for ledger_id in self._client.list_ledgers():
            if self._stopping.is_set():
                return
            yield ledger_id

    def _check_turn(self) -> None:
        if not self._is_elected or self._store.is_disabled() or time.monotonic_ns() < self._check_again_ns:
            return
        checked_ms = self._store.checked_ms()
        if check_due(checked_ms, self._now_ms(), int(self._options.check_s * 1000)):
            self._check_all()

    def _check_all(self) -> None:
        """Look at the first and the last entry of each replica of each ledger, and mark what lacks one (RR-4). Where bookies refuse this
        client, nothing is marked, and the look is not noted as done: the next one begins after a pause that grows (RR-19)."""
        seen = marked = 0
        refused: dict[BookieId, None] = {}
        unknown = 0
        options = replace(self._repair, full=False)
        known = frozenset(self._client.store.cookies())
        for ledger_id in self._ids():
            if not self._is_elected:
                return  # the next auditor begins anew
            away = known - self._client._session.bookies().registered
            try:
                report = check_ledger(self._client, ledger_id, options)
            except (LedgerError, MetadataFormatError, OperationTimeoutError) as error:
                log.debug("ledger %d is not checked: %s", ledger_id, error)
                continue
            seen += 1
            refused |= dict.fromkeys(report.not_admitting)
            unknown += bool(report.not_admitting)
            away |= known - self._client._session.bookies().registered
            if bad := _in_need(report, away):
                self._store.mark(ledger_id, bad, self._now_ms())
                marked += 1
        if self._stopping.is_set():
            return
        if refused:
            self._checks_refused += 1
            self._check_again_ns = time.monotonic_ns() + check_pause_ns(self._checks_refused, int(self._options.check_s * NS))
            which = f"{counted(unknown, 'ledger')} with copies on bookies that do not admit this client, of which nothing is known"
            self._say(RecoveryEvent("trouble", f"{which}: {', '.join(refused)}", bookies=tuple(refused), count=unknown))
        else:
            self._checks_refused = 0
            self._store.note_checked(self._now_ms())
        self._say(RecoveryEvent("checked", f"{counted(seen, 'ledger')} checked, {marked:,} marked", count=marked))

    def _now_ms(self) -> int:
        """Return the time as this host has it: marks and times of checks are for people, and for when to look next."""
        return time.time_ns() // 1_000_000

    # --- the workers -------------------------------------------------------------------------------------------------

    def _repair_turn(self) -> None:
        if self._is_switched_off():
            return
        ready = self._queue.ready(list(self._store.marked_ledgers()), time.monotonic_ns())
        if ready:
            self._brisk_until = time.monotonic() + BRISK_FOR_S
        random.shuffle(ready)  # workers of several hosts meet less often
        several = [threading.Thread(target=self._work, args=(ready,), name="bk-replicator", daemon=True) for _ in range(self._extra(ready))]
        for thread in several:
            thread.start()
        self._work(ready)
        for thread in several:
            thread.join()

    def _extra(self, ready: list[int]) -> int:
        return min(self._options.workers, len(ready)) - 1 if ready else 0

    def _is_switched_off(self) -> bool:
        was, self._is_off = self._is_off, self._store.is_disabled()
        if was != self._is_off:
            self._say(RecoveryEvent("off" if self._is_off else "on", f"auto-recovery is switched {'off' if self._is_off else 'on'}"))
        return self._is_off

    def _work(self, ready: list[int]) -> None:
        """Repair one ledger after the other. ``ready`` is shared by the threads: each takes the last one."""
        mark_own()
        while not self._stopping.is_set():
            try:
                ledger_id = ready.pop()
            except IndexError:
                return
            try:
                how = self._repair_one(ledger_id)
            except ClientClosedError:
                return
            except BkError as error:
                what = f"ledger {ledger_id}"
                self._say(RecoveryEvent("failed", f"{what} is not repaired: {rest_about(what, error)}", ledger_id))
                how = Ended.FAILED
            except Exception:  # the others go on, and this one is tried again after a pause
                log.exception("ledger %d is not repaired", ledger_id)
                self._say(RecoveryEvent("failed", f"ledger {ledger_id} is not repaired; see the log", ledger_id))
                how = Ended.FAILED
            self._queue.ended(ledger_id, how, time.monotonic_ns())

    def _repair_one(self, ledger_id: int) -> Ended:
        recovers = self._queue.recovers(ledger_id, time.monotonic_ns())
        try:
            mark = self._store.mark_of(ledger_id)
            named = () if mark is None else mark.replicas
            spared = frozenset(self._client.store.cookies()).difference(named)  # the auditor says which of them is lost, by a mark (RR-16)
            report = repair_ledger(self._client, ledger_id, replace(self._repair, recover_open=recovers, spared=spared))
        except NoSuchLedgerError:
            return Ended.DONE  # and its mark is taken away
        if report.locked_by:
            return Ended.HELD
        if report.changed or report.is_complete:
            self._say(_told(report))
        if report.is_complete:
            return Ended.DONE
        if report.problems:
            self._say(RecoveryEvent("failed", about(f"ledger {ledger_id}", "; ".join(report.problems)), ledger_id))
            return Ended.FAILED
        if not recovers:
            lost = ", ".join(report.open_tail_lost)
            text = f"ledger {ledger_id} is open and its writer has {self._options.grace_s:g} s to replace {lost}"
            self._say(RecoveryEvent("waits", text, ledger_id, report.open_tail_lost))
        return Ended.TAIL


def _in_need(report: LedgerReport, away: frozenset[BookieId]) -> list[BookieId]:
    """Return the bookies of which a check found that a copy is missing there. One that is registered and gives no answer says nothing, and
    those that are ``away`` are lost when the auditor says so, perhaps after a delay (RR-16)."""
    bad = {one.bookie for fragment in report.fragments for one in fragment.replicas if not one.is_good and one.silent is None}
    return sorted(bad.union(report.open_tail_lost) - away)


def _told(report: RepairReport) -> RecoveryEvent:
    done = f"{counted(report.entries_copied, 'entry', 'entries')} copied" if report.changed else "nothing was missing"
    kind = "recovered" if report.recovered else "repaired"
    text = f"ledger {report.ledger_id}{' recovered and' if report.recovered else ''} repaired: {done}"
    lost = tuple(sorted({one.old for one in report.moved}))
    return RecoveryEvent(kind, text, report.ledger_id, lost, 0, report.entries_copied, report.bytes_copied)
