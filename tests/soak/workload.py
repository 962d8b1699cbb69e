"""The work that goes on while things break: writers, readers, recoverers, log leaders. Every operation goes through the recorder."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from functools import partial

from bk_core.client import BookKeeper, ReadHandle, WriteHandle
from bk_core.client.log.history import read_log
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.client.operations import wait
from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.ledger_list import LogProperties
from tests.soak.history import Op, Recorder, digest, digests

# Mostly narrower than the cluster of four, so that a bookie that is away can be replaced.
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 2), (2, 2, 2), (2, 2, 2), (4, 3, 2))
GUARANTEED = 0.2  # of the ledgers with Qw > Qa
LOG = "soak"
RETENTION_MS = 3600 * 1000  # longer than a run, shorter than the clocks of its janitors are wrong
PASSWORD = b"soak"
STALL_S = 60.0
READ_ENTRIES_MAX = 200
COPIES_OF_ONE_IN = 8
RUNS_IN_FLIGHT = 6
_RECENT = 12  # readers and recoverers prefer what happens now


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Tells its place, and is of many lengths. Duel.java makes the same."""
    return b"%d:%d;" % (ledger_id, entry_id) * (1 + entry_id % 40)


@dataclass(slots=True)
class Seen:
    """The common knowledge about a ledger. ``left`` is True if its writer is gone and did not close it."""

    ledger_id: int
    writer: str
    left: bool = False
    closed: bool = False


class Board:
    """The ledgers of the run, oldest first, shared by all actors."""

    def __init__(self) -> None:
        self._ledgers: dict[int, Seen] = {}
        self._lock = threading.Lock()

    def add(self, ledger_id: int, writer: str) -> None:
        with self._lock:
            self._ledgers.setdefault(ledger_id, Seen(ledger_id, writer))

    def leave(self, ledger_id: int, closed: bool) -> None:
        with self._lock:
            seen = self._ledgers[ledger_id]
            seen.closed = seen.closed or closed
            seen.left = not seen.closed

    def leave_all_of(self, writer: str) -> None:
        with self._lock:
            for seen in self._ledgers.values():
                if seen.writer == writer and not seen.closed:
                    seen.left = True

    def all(self) -> list[Seen]:
        with self._lock:
            return list(self._ledgers.values())

    def pick(self, rng: random.Random, wanted: Callable[[Seen], bool]) -> Seen | None:
        """One of the latest that are wanted; now and then any."""
        fitting = [seen for seen in self.all() if wanted(seen)]
        if not fitting:
            return None
        return rng.choice(fitting if rng.random() < 0.2 else fitting[-_RECENT:])


class Actor:
    """A thread's work, repeated until the run stops. Errors of the product are recorded where they happen and end one round only; any
    other exception is kept in ``crash`` and fails the run."""

    def __init__(self, name: str, client: BookKeeper, recorder: Recorder, rng: random.Random, stop: threading.Event) -> None:
        self.name = name
        self.client = client
        self.recorder = recorder
        self.rng = rng
        self.stop = stop
        self.crash: BaseException | None = None
        self.busy_since = 0.0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.busy_since = time.monotonic()
                try:
                    self.round()
                except BkError:
                    self.stop.wait(self.rng.uniform(0.05, 0.3))
        except BaseException as error:
            self.crash = error

    def round(self) -> None:
        raise AssertionError(f"{type(self).__name__} does nothing")

    def pause(self, low: float, high: float) -> None:
        self.stop.wait(self.rng.uniform(low, high))


# --- ledgers -------------------------------------------------------------------------------------------------------------


class Author(Actor):
    """Writes ledgers, one after the other, in runs with several in flight; closes most of them and leaves the others."""

    board: Board = Board()
    entries_max = 1500
    pace_s = 0.04

    def round(self) -> None:
        handle = self.create()
        closed = False
        try:
            closed = self._finish(handle, self.write(handle))
        finally:
            if not closed:  # a close that takes too long is given up, and the ledger left to others
                handle.abandon()
            self.board.leave(handle.ledger_id, closed)

    def create(self) -> WriteHandle:
        e, w, a = self.rng.choice(QUORUMS)
        guaranteed = self.rng.random() < GUARANTEED
        with self.recorder.during(self.name, "create", e=e, w=w, a=a, guaranteed=guaranteed) as value:
            handle = self.client.create_ledger(
                ensemble_size=e, write_quorum_size=w, ack_quorum_size=a, password=PASSWORD, guaranteed_write_quorum=guaranteed
            )
            value["ledger"] = handle.ledger_id
        self.board.add(handle.ledger_id, self.name)
        return handle

    def write(self, handle: WriteHandle) -> bool:
        """Return True if everything was acknowledged. Returns when nothing is in flight any more."""
        futures: list[Future[int]] = []
        following, total = 0, self.rng.randint(1, self.entries_max)
        try:
            while following < total and not self.stop.is_set():
                count = min(self.rng.randint(1, 30), total - following)
                futures.append(self._append(handle, following, count))
                following += count
                if len(futures) >= RUNS_IN_FLIGHT and futures[-RUNS_IN_FLIGHT].exception(STALL_S) is not None:
                    break
                time.sleep(self.pace_s * self.rng.random())
        except (BkError, TimeoutError):
            pass  # recorded by _append; what is in flight is still to be answered
        _done, open_ = wait_for_futures(futures, STALL_S)
        return not open_ and all(future.exception() is None for future in futures)

    def _append(self, handle: WriteHandle, first: int, count: int) -> Future[int]:
        payloads = [payload(handle.ledger_id, entry) for entry in range(first, first + count)]
        op = self.recorder.begin(self.name, "append", handle.ledger_id, first=first, count=count, digests=digests(payloads))
        try:
            future = handle.append_many_future(payloads)
        except BkError as error:
            self.recorder.fail(op, error)
            raise
        future.add_done_callback(partial(self._answered, op))
        return future

    def _answered(self, op: Op, future: Future[int]) -> None:
        error = future.exception()
        if error is not None:
            self.recorder.fail(op, error)
        else:
            self.recorder.ok(op, last=future.result())

    def _finish(self, handle: WriteHandle, written: bool) -> bool:
        if written and self.rng.random() < 0.6:
            with self.recorder.during(self.name, "close", handle.ledger_id) as value:
                metadata = handle.close()
                value.update(last=metadata.last_entry_id, length=metadata.length, state=metadata.state.name)
            return True
        self.give_up(handle)
        return False

    def give_up(self, handle: WriteHandle) -> None:
        """Leave the ledger as it is, for others to recover."""
        self.recorder.note(self.name, "give_up", handle.ledger_id, lac=handle.last_add_confirmed)
        handle.abandon()


def open_recorded(actor: Actor, ledger_id: int) -> ReadHandle:
    """Open without recovery."""
    with actor.recorder.during(actor.name, "open", ledger_id) as value:
        handle = actor.client.open_ledger(ledger_id, password=PASSWORD)
        value.update(last=handle.last_add_confirmed, length=handle.length, state=handle.metadata.state.name)
    return handle


def read_recorded(actor: Actor, handle: ReadHandle, name: str, first: int, last: int) -> None:
    with actor.recorder.during(actor.name, "read", handle.ledger_id, handle=name, first=first, last=last) as value:
        value["digests"] = digests(handle.read(first, last))


class Reader(Actor):
    """Opens any ledger, learns what may be read, reads some of it."""

    board: Board = Board()
    count = 0

    def round(self) -> None:
        seen = self.board.pick(self.rng, lambda _seen: True)
        if seen is None:
            return self.pause(0.05, 0.1)
        self.count += 1
        name = f"{self.name}#{self.count}"
        with open_recorded(self, seen.ledger_id) as handle:
            if not handle.is_closed:
                with self.recorder.during(self.name, "lac", handle.ledger_id, handle=name) as value:
                    value["lac"] = handle.read_last_add_confirmed()
            last = handle.last_add_confirmed
            if last >= 0:
                first = self.rng.randint(0, last)
                read_recorded(self, handle, name, first, min(last, first + self.rng.randrange(READ_ENTRIES_MAX)))
        return self.pause(0.01, 0.15)


class Tailer(Reader):
    """Follows a ledger from its start until it is CLOSED and read, or nothing comes any more."""

    def round(self) -> None:
        seen = self.board.pick(self.rng, lambda seen: not seen.closed)
        if seen is None:
            return self.pause(0.05, 0.1)
        self.count += 1
        name, following, idle = f"{self.name}#{self.count}", 0, 0
        with open_recorded(self, seen.ledger_id) as handle:
            if self.rng.random() < 0.5:
                return self._tail(handle, name)
            while not self.stop.is_set() and idle < 4:
                try:
                    reached = self._wait(handle, name, following)
                    if reached:
                        last = min(handle.last_add_confirmed, following + READ_ENTRIES_MAX - 1)
                        read_recorded(self, handle, name, following, last)
                        following, idle = last + 1, 0
                    elif handle.is_closed:
                        return None
                    else:
                        idle += 1
                except BkError:
                    idle += 1
                    self.pause(0.1, 0.5)
        return None

    def _tail(self, handle: ReadHandle, name: str) -> None:
        """Read what comes by itself too, from the moment at which it was asked for."""
        runs = handle.tail(0, timeout_s=2.0)
        while not self.stop.is_set():
            op = self.recorder.begin(self.name, "tail", handle.ledger_id, handle=name)
            try:
                run = next(runs, None)
            except BkError as error:
                self.recorder.fail(op, error)
                raise
            if run is None:
                self.recorder.ok(op, first=-1, last=-1, digests=b"")
                return
            self.recorder.ok(op, first=run.first_entry_id, last=run.last_entry_id, digests=digests(run.payloads()))

    def _wait(self, handle: ReadHandle, name: str, entry: int) -> bool:
        with self.recorder.during(self.name, "wait_for", handle.ledger_id, handle=name, entry=entry) as value:
            reached = handle.wait_for(entry, 2.0)
            value.update(reached=reached, lac=handle.last_add_confirmed, closed=handle.is_closed)
        return reached


class Recoverers(Actor):
    """Recovers what was left, and now and then a ledger that is being written; every second time two clients at once."""

    board: Board = Board()
    other: BookKeeper | None = None
    duels = 0

    def round(self) -> None:
        fighting = self.rng.random() < 0.25
        seen = self.board.pick(self.rng, lambda seen: not seen.closed and seen.left is not fighting)
        if seen is None:
            return self.pause(0.05, 0.2)
        rivals = [(self.client, "a")]
        if self.other is not None and self.rng.random() < 0.5:
            rivals.append((self.other, "b"))
            self.duels += 1
        with ThreadPoolExecutor(len(rivals)) as pool:
            done = list(pool.map(lambda rival: recover_recorded(self, rival[0], seen.ledger_id, rival[1]), rivals))
        if any(done):
            self.board.leave(seen.ledger_id, closed=True)
        return self.pause(0.3, 1.0)


def recover_recorded(actor: Actor, client: BookKeeper, ledger_id: int, which: str) -> bool:
    try:
        with actor.recorder.during(f"{actor.name}-{which}", "recover", ledger_id, by="python") as value:
            with client.recover_ledger(ledger_id, password=PASSWORD) as handle:
                value.update(last=handle.last_add_confirmed, length=handle.length, state=handle.metadata.state.name)
    except BkError:
        return False
    return True


# --- a log ---------------------------------------------------------------------------------------------------------------


def make_log(client: BookKeeper) -> None:
    properties = LogProperties("raw", ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, retention_ms=RETENTION_MS)
    create_log(client, LOG, properties, exist_ok=True)


class Leader(Actor):
    """Takes the log over, appends for a while, rolls, leaves it closed or as it is. Several of them fight."""

    count = 0

    def round(self) -> None:
        with self.recorder.during(self.name, "log_open", log=LOG, leader=self.name) as value:
            writer = LogWriter.open(self.client, LOG, password=PASSWORD, attempts=3)
            value["ledger"] = writer.ledger_id
        for _ in range(self.rng.randint(5, 150)):
            if self.stop.is_set():
                break
            self._append(writer)
            if self.rng.random() < 0.02:
                writer.roll()
            self.pause(0, 0.03)
        if self.rng.random() < 0.5:
            writer.close()
        self.pause(0.1, 3.0)

    def _append(self, writer: LogWriter) -> None:
        self.count += 1
        entry = f"{self.name} {self.count};".encode() * self.rng.randint(1, 20)
        with self.recorder.during(self.name, "log_append", log=LOG, leader=self.name, digest=digest(entry)) as value:
            future = writer.append_run_future(entry, array("q", (0, len(entry))))
            (span,) = wait(future, self.client.config.operation_timeout_s, "append to the log")
            value["ledger"], value["entry"] = span.ledger_id, span.first_entry_id


class LogFollower(Actor):
    """Reads the log from its start and goes on; starts again from the start now and then."""

    count = 0

    def round(self) -> None:
        self.count += 1
        reader = LogReader(self.client, LOG, password=PASSWORD)
        for _ in range(self.rng.randint(5, 60)):
            if self.stop.is_set() or not read_log_recorded(self, reader, f"{self.name}#{self.count}"):
                break
            self.pause(0.05, 0.4)


def read_log_recorded(actor: Actor, reader: LogReader, name: str, kind: str = "log_read") -> bool:
    """Read a log and go on behind an error. What was delivered before the error counts too. Return False if it cannot go on."""
    op = actor.recorder.begin(actor.name, kind, log=LOG, reader=name)
    runs: list[tuple[int, int, int, bytes]] = []
    problem = ""
    try:
        for run in reader.read():
            runs.append((run.segment.seq, run.segment.ledger_id, run.first_entry_id, digests(run.payloads())))
    except BkError as error:
        problem = error.code
    actor.recorder.ok(op, runs=runs, error=problem)
    return not problem or problem in ("BK-READ", "BK-TIMEOUT", "BK-METADATA-UNAVAILABLE", "BK-BOOKIE-UNAVAILABLE", "BK-BOOKIE-TIMEOUT")


class ListSampler(Actor):
    """Looks at the list and at the state of all its ledgers but the last two."""

    def __init__(self, name: str, client: BookKeeper, recorder: Recorder, rng: random.Random, stop: threading.Event) -> None:
        super().__init__(name, client, recorder, rng, stop)
        self._closed: set[int] = set()

    def round(self) -> None:
        self.sample()
        self.pause(0.2, 1.0)

    def sample(self) -> None:
        with self.recorder.during(self.name, "log_list", log=LOG) as value:
            listed = [segment.ledger_id for segment in read_log(self.client, LOG).segments()]
            value.update(ledgers=listed, unclosed=[ledger for ledger in listed[:-2] if not self._is_closed(ledger)])

    def _is_closed(self, ledger_id: int) -> bool:
        if ledger_id not in self._closed and self.client.ledger_metadata(ledger_id).state is LedgerState.CLOSED:
            self._closed.add(ledger_id)
        return ledger_id in self._closed


# --- the end -------------------------------------------------------------------------------------------------------------


class Auditor(Actor):
    """After everything is healed: closes what is open, and reads all of everything with a client of its own."""

    def audit(self, ledger_ids: list[int]) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._audit_ledger, ledger_ids))

    def _audit_ledger(self, ledger_id: int) -> None:
        try:
            with self.recorder.during(self.name, "final", ledger_id) as value:
                handle = self._closed_handle(ledger_id)
                metadata = handle.metadata
                value.update(last=metadata.last_entry_id, length=metadata.length, state=metadata.state.name)
                value.update(ensemble_size=metadata.ensemble_size)
                value["fragments"] = [[fragment.first_entry_id, list(fragment.ensemble)] for fragment in metadata.fragments]
        except BkError:
            return  # a failed ``final`` is a violation of its own
        with handle:
            try:
                self._count_copies(handle)
            except BkError:
                pass  # counted among the operations that failed; no verdict follows from it
            last = handle.last_add_confirmed
            for first in range(0, last + 1, READ_ENTRIES_MAX * 10):
                self._read(handle, first, min(last, first + READ_ENTRIES_MAX * 10 - 1))

    def _closed_handle(self, ledger_id: int) -> ReadHandle:
        """Recovery needs several tries if bookies come back late."""
        deadline = time.monotonic() + STALL_S
        while True:
            try:
                return self.client.recover_ledger(ledger_id, password=PASSWORD)
            except BkError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _read(self, handle: ReadHandle, first: int, last: int) -> None:
        try:
            with self.recorder.during(self.name, "final_read", handle.ledger_id, first=first, last=last) as value:
                payloads = handle.read(first, last)
                value.update(digests=digests(payloads), bytes=sum(map(len, payloads)))
        except BkError:
            return  # the entries are missing then

    def _count_copies(self, handle: ReadHandle) -> None:
        """All replicas of all entries: of every ledger that promised them, and of some others."""
        metadata = handle.metadata
        e, w = metadata.ensemble_size, metadata.write_quorum_size
        if not metadata.guaranteed and handle.ledger_id % COPIES_OF_ONE_IN:
            return
        with self.recorder.during(self.name, "copies", handle.ledger_id, w=w, a=metadata.ack_quorum_size) as value:
            report = self.client.check_ledger(handle.ledger_id, full=True)
            missing: Counter[int] = Counter()
            for fragment in report.fragments:
                for replica in fragment.replicas:
                    for first, last in replica.damaged.ranges:
                        missing.update(entry for entry in range(first, last + 1) if (replica.position - entry) % e < w)
            replicas = [replica for fragment in report.fragments for replica in fragment.replicas]
            unknown = sum(replica.silent is not None or bool(replica.unreadable) for replica in replicas)
            value.update(sealed=metadata.sealed, missing=sorted(missing.items()), unknown=unknown)

    def audit_log(self) -> None:
        """Take the log over, so that its last ledgers are closed, and read it once more from the start."""
        try:
            self._audit_log()
        except BkError:
            return  # without a ``log_final`` the judge complains

    def _audit_log(self) -> None:
        with self.recorder.during(self.name, "log_open", log=LOG, leader=self.name) as value:
            writer = LogWriter.open(self.client, LOG, password=PASSWORD)
            value["ledger"] = writer.ledger_id
        writer.close()
        with self.recorder.during(self.name, "log_final", log=LOG) as value:
            runs = []
            for run in LogReader(self.client, LOG, password=PASSWORD).read():
                runs.append((run.segment.seq, run.segment.ledger_id, run.first_entry_id, digests(run.payloads())))
            listed = read_log(self.client, LOG)
            ends = {str(segment.ledger_id): self.client.ledger_metadata(segment.ledger_id).last_entry_id for segment in listed.segments()}
            value.update(runs=runs, ends=ends)
