"""Measures adds and reads of one cluster: latency of single entries, throughput of many, percentiles. Deletes its ledgers."""

from __future__ import annotations

import logging
import random
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bk_core.client.operations import wait
from bk_core.errors import BkError, InvalidArgumentError, NoSuchLedgerError
from bk_core.protocol.ledger.metadata import DigestName, DigestType
from bk_core.protocol.ledger.quorums import check_sizes

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.client.ledger.read_handle import ReadHandle
    from bk_core.client.ledger.write_handle import WriteHandle

ADD_LATENCY, ADD_THROUGHPUT, READ_THROUGHPUT, READ_LATENCY = "add latency", "add throughput", "read throughput", "read latency"
MARK = {"application": b"bk bench"}
"""The custom metadata of a bench's ledgers, by which those of one that was killed are known."""
ENTRY_BYTES_MAX = 4_000_000
_BITS = 6  # of a time that a bucket of the histogram keeps: 64 to an octave, so that a percentile is at most 1.6 % too high
_READ_AT_ONCE = 4096
_log = logging.getLogger("bk_core.client")
OnDone = Callable[[str, float], None]
"""A function that is told the phase that is under way, and the share of it that is done."""


class Histogram:
    """Counts times in buckets that grow with the time; any number of times takes a few kilobytes."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.worst_ns = 0

    def add(self, ns: int, times: int = 1) -> None:
        """Count a time of ``ns`` nanoseconds, ``times`` times."""
        self._counts[_bucket(ns)] += times
        self.count += times
        self.worst_ns = max(self.worst_ns, ns)

    def percentile_ns(self, share: float) -> int | None:
        """Return the time that ``share`` (0 to 1) of all did not exceed; None without any."""
        left = share * self.count
        for bucket, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return min(_end_of(bucket), self.worst_ns)
        return self.worst_ns if self.count else None


def _bucket(ns: int) -> int:
    shift = max(0, ns.bit_length() - _BITS - 1)
    return (shift << (_BITS + 1)) + (ns >> shift)


def _end_of(bucket: int) -> int:
    shift, top = bucket >> (_BITS + 1), bucket & ((2 << _BITS) - 1)
    return ((top + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The settings of a bench. Each phase takes ``seconds``, or ``entries`` entries if they are given. In the phase of throughput,
    ``in_flight`` entries at most are not acknowledged, and are sent in runs of ``run_entries``."""

    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: DigestType | DigestName = "CRC32C"
    entry_bytes: int = 1000
    seconds: float = 5.0
    entries: int | None = None
    in_flight: int = 1000
    run_entries: int = 50

    def check(self) -> None:
        """Raise InvalidArgumentError for a plan that cannot be."""
        check_sizes(self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if not 0 <= self.entry_bytes <= ENTRY_BYTES_MAX:
            raise InvalidArgumentError(f"entries of {self.entry_bytes:,} bytes: choose 0 to {ENTRY_BYTES_MAX:,}")
        if not 1 <= self.run_entries <= self.in_flight:
            raise InvalidArgumentError(f"runs of {self.run_entries:,} entries do not fit into {self.in_flight:,} in flight")


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase. ``times`` are those of single entries, or of runs in the phase of throughput of adds; empty for that of reads."""

    name: str
    entries: int
    bytes: int
    seconds: float
    times: Histogram

    @property
    def entries_per_second(self) -> float:
        """The entries in a second."""
        return self.entries / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The payload bytes in a second, without copies and headers."""
        return self.bytes / self.seconds if self.seconds else 0.0


def bench(client: BookKeeper, plan: BenchPlan, on_done: OnDone | None = None) -> Generator[Measured, None, None]:
    """Yield the phases as they are measured: single adds, many adds, a read of all that was written, single reads. The ledgers are deleted
    at the end, and when the caller stops early or is interrupted. Raises what creating, writing and reading ledgers raises."""
    plan.check()
    tell = on_done or (lambda phase, share: None)
    with _ledger(client, plan) as writer:
        yield _add_latency(writer, plan, partial(tell, ADD_LATENCY))
    with _ledger(client, plan) as writer:
        yield _add_throughput(writer, plan, partial(tell, ADD_THROUGHPUT), client.config.operation_timeout_s)
        writer.close()
        with client.open_ledger(writer.ledger_id) as reader:
            yield _read_throughput(reader, plan, partial(tell, READ_THROUGHPUT))
            yield _read_latency(reader, plan, partial(tell, READ_LATENCY))


@contextmanager
def _ledger(client: BookKeeper, plan: BenchPlan) -> Iterator[WriteHandle]:
    writer = client.create_ledger(
        ensemble_size=plan.ensemble_size,
        write_quorum_size=plan.write_quorum_size,
        ack_quorum_size=plan.ack_quorum_size,
        digest_type=plan.digest_type,
        custom=MARK,
    )
    try:
        yield writer
    finally:
        try:
            writer.close()
        except BkError as error:
            _log.debug("ledger %d of a bench could not be closed: %s", writer.ledger_id, error)
        try:
            client.delete_ledger(writer.ledger_id)
        except NoSuchLedgerError:
            pass
        except BkError as error:
            _log.warning("ledger %d of a bench is left (bk ledger rm %d): %s", writer.ledger_id, writer.ledger_id, error)


class _Until:
    """The end of a phase: after its seconds, or its entries."""

    def __init__(self, plan: BenchPlan, tell: Callable[[float], None]) -> None:
        self._plan, self._tell = plan, tell
        self.begun_ns = time.monotonic_ns()
        self._told_ns = self.begun_ns

    def goes_on(self, entries: int) -> bool:
        now = time.monotonic_ns()
        limit = self._plan.entries
        share = entries / limit if limit is not None else (now - self.begun_ns) / (self._plan.seconds * 1e9)
        if now - self._told_ns > 100_000_000:
            self._told_ns = now
            self._tell(min(1.0, share))
        return share < 1

    @property
    def seconds(self) -> float:
        return (time.monotonic_ns() - self.begun_ns) / 1e9


def _payload(plan: BenchPlan, entries: int) -> bytes:
    return random.Random(1).randbytes(plan.entry_bytes * entries)  # which no disk compresses


def _add_latency(writer: WriteHandle, plan: BenchPlan, tell: Callable[[float], None]) -> Measured:
    payload, times, entries = _payload(plan, 1), Histogram(), 0
    until = _Until(plan, tell)
    while until.goes_on(entries):
        begun = time.monotonic_ns()
        writer.append(payload)
        times.add(time.monotonic_ns() - begun)
        entries += 1
    return Measured(ADD_LATENCY, entries, entries * plan.entry_bytes, until.seconds, times)


def _add_throughput(writer: WriteHandle, plan: BenchPlan, tell: Callable[[float], None], timeout_s: float) -> Measured:
    run = plan.run_entries
    payloads, offsets = _payload(plan, run), array("q", range(0, plan.entry_bytes * run + 1, plan.entry_bytes or 1))
    if not plan.entry_bytes:
        offsets = array("q", [0] * (run + 1))
    times, sent = Histogram(), 0
    waiting: deque[Future[int]] = deque()
    until = _Until(plan, tell)

    def done(begun: int, _: Future[Any]) -> None:
        times.add(time.monotonic_ns() - begun)

    def next_outcome() -> None:
        wait(waiting.popleft(), timeout_s, f"append to ledger {writer.ledger_id}")

    while until.goes_on(sent):
        while len(waiting) * run + run > plan.in_flight:
            next_outcome()
        begun = time.monotonic_ns()
        future = writer.append_run_future(payloads, offsets)
        future.add_done_callback(partial(done, begun))
        waiting.append(future)
        sent += run
    while waiting:
        next_outcome()
    return Measured(ADD_THROUGHPUT, sent, sent * plan.entry_bytes, until.seconds, times)


def _read_throughput(reader: ReadHandle, plan: BenchPlan, tell: Callable[[float], None]) -> Measured:
    """Read all that was written once; it ends with the entries, whatever the plan's seconds."""
    entries, total = 0, max(1, reader.last_add_confirmed + 1)
    begun = time.monotonic_ns()
    while entries < total:
        for run in reader.read_runs(entries, min(entries + _READ_AT_ONCE, total) - 1):
            entries += run.count
        tell(entries / total)
    return Measured(READ_THROUGHPUT, entries, entries * plan.entry_bytes, (time.monotonic_ns() - begun) / 1e9, Histogram())


def _read_latency(reader: ReadHandle, plan: BenchPlan, tell: Callable[[float], None]) -> Measured:
    rng, times, entries = random.Random(2), Histogram(), 0
    until = _Until(plan, tell)
    while until.goes_on(entries):
        entry = rng.randint(0, reader.last_add_confirmed)
        begun = time.monotonic_ns()
        reader.read(entry, entry)
        times.add(time.monotonic_ns() - begun)
        entries += 1
    return Measured(READ_LATENCY, entries, entries * plan.entry_bytes, until.seconds, times)
