"""``kill -9`` of bookies while a client writes: whatever was acknowledged stays readable.

``BK_KILLS`` sets how often (default 5; ``make kill-test`` 50), ``BK_SEED`` repeats the choices of an earlier run; timing is not repeated.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.children import free_port, spawn
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.bookie.zookeeper_process import MAIN_CLASS, find_jars
from bk_core.errors import BkError, BookieUnavailableError
from bk_core.metadata import open_store
from tests import quick_java

KILLS = int(os.environ.get("BK_KILLS", "5"))
SEED = int(os.environ.get("BK_SEED") or random.SystemRandom().randrange(1 << 32))
RUN_ENTRIES = 25
RUNS_IN_FLIGHT = 8
LEDGER_ENTRIES_MAX = 10_000
STALL_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four embedded bookies on a ZooKeeper that grants sessions of two seconds, so that a killed bookie may come back soon."""
    try:
        java = apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    port = free_port()
    configuration = tmp_path / "zoo.cfg"
    configuration.write_text(
        f"dataDir={tmp_path / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "tickTime=500\nminSessionTimeout=1000\nmaxSessionTimeout=2000\nadmin.enableServer=false\n"
    )
    with ExitStack() as resources:
        log = resources.enter_context((tmp_path / "zookeeper.log").open("wb"))
        command = [
            java,
            "-Xmx256m",
            *quick_java.OPTIONS,
            *quick_java.zookeeper_options(),
            "-cp",
            find_jars(),
            MAIN_CLASS,
            str(configuration),
        ]
        process = spawn(command, stdout=log, stderr=log)
        resources.callback(_stop, process)
        open_store(f"zk://127.0.0.1:{port}/ledgers", timeout_s=60.0, patient=True).close()  # it listens
        yield resources.enter_context(local_cluster(4, tmp_path / "cluster", zookeeper=f"127.0.0.1:{port}"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Tells its place, and is of many lengths."""
    return b"%d:%d;" % (ledger_id, entry_id) * (1 + entry_id % 40)


@dataclass
class Writer:
    """Appends until told to stop. A ledger is left when it fails or is full; full ones are closed and abandoned in turn."""

    client: bk_core.BookKeeper
    acknowledged: dict[int, int] = field(default_factory=dict)  # last acknowledged entry by ledger
    closed: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    crash: BaseException | None = None
    stopping: bool = False

    @property
    def count(self) -> int:
        return sum(last + 1 for last in list(self.acknowledged.values()))

    def run(self) -> None:
        try:
            while not self.stopping:
                self._write_ledger()
        except BaseException as error:
            self.crash = error

    def _write_ledger(self) -> None:
        try:
            handle = self.client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        except BkError as error:
            self.failures.append(f"creating: {error}")
            time.sleep(0.1)
            return
        self.acknowledged[handle.ledger_id] = -1
        try:
            in_flight = self._fill(handle)
            if len(self.acknowledged) % 2:
                for future in in_flight:
                    future.result(timeout=STALL_S)
                handle.close()
                self.closed.add(handle.ledger_id)
        except BkError as error:
            self.failures.append(f"ledger {handle.ledger_id}: {error}")
        finally:
            handle.abandon()

    def _fill(self, handle: bk_core.WriteHandle) -> deque[Future[int]]:
        """Append, and return what is still in flight; it stays so if the ledger is abandoned now."""
        in_flight: deque[Future[int]] = deque()
        for first in range(0, LEDGER_ENTRIES_MAX, RUN_ENTRIES):
            future = handle.append_many_future([payload(handle.ledger_id, entry) for entry in range(first, first + RUN_ENTRIES)])
            future.add_done_callback(partial(self._take, handle.ledger_id, first + RUN_ENTRIES - 1))
            in_flight.append(future)
            while len(in_flight) >= RUNS_IN_FLIGHT:
                in_flight.popleft().result(timeout=STALL_S)
            if self.stopping:
                break
            time.sleep(0.005)  # leaves processor time for bookies that start
        return in_flight

    def _take(self, ledger_id: int, expected: int, future: Future[int]) -> None:
        if future.exception() is not None:
            return
        if not future.result() == expected > self.acknowledged[ledger_id]:  # a callback's own exception would only be logged
            self.crash = AssertionError(f"ledger {ledger_id}: {future.result()} was acknowledged where {expected} was due")
        self.acknowledged[ledger_id] = expected


def wait_for_progress(writer: Writer, beyond: int) -> None:
    deadline = time.monotonic() + STALL_S
    while writer.count <= beyond:
        if writer.crash is not None:
            raise writer.crash
        assert time.monotonic() < deadline, f"nothing was acknowledged for {STALL_S:.0f} s; failures so far: {writer.failures[-5:]}"
        time.sleep(0.01)


def unreadable(client: bk_core.BookKeeper, ledger_id: int, last: int) -> tuple[int, str]:
    """Return the number of entries up to ``last`` that are not read as they were written, and why. Later ones may be missing, not wrong."""
    following = 0
    try:
        with client.recover_ledger(ledger_id) as handle:
            end = handle.last_add_confirmed
            if end >= 0:
                for run in handle.read_runs(0, end):
                    assert run.first_entry_id == following
                    for found in run.payloads():
                        if found != payload(ledger_id, following):
                            return max(1, last + 1 - following), f"entry {following} is {found[:40]!r}"
                        following += 1
            return max(0, last - end), f"the ledger ends at {end}, but {last} was acknowledged"
    except BkError as error:
        return max(1, last + 1 - following), str(error)


@pytest.mark.slow
@pytest.mark.timeout(240 + 30 * KILLS)
def test_every_acknowledged_entry_survives_kills(cluster: LocalCluster) -> None:
    rng = random.Random(SEED)
    print(f"\nseed {SEED} (BK_SEED repeats its choices)", flush=True)
    started = time.monotonic()
    with bk_core.connect(cluster.uri) as client:
        writer = Writer(client)
        thread = threading.Thread(target=writer.run, name="writer")
        thread.start()
        try:
            for number in range(1, KILLS + 1):
                wait_for_progress(writer, writer.count)
                time.sleep(rng.uniform(0, 0.5))
                victim, before = rng.randrange(4), writer.count
                cluster.kill(victim)
                time.sleep(rng.uniform(0, 1.0))
                cluster.restart(victim)
                wait_for_progress(writer, before)
                print(f"kill {number} of bookie {victim}: {writer.count} entries acknowledged", flush=True)
        finally:
            writer.stopping = True
            thread.join()
        if writer.crash is not None:
            raise writer.crash
        written = time.monotonic()
        results = {ledger_id: unreadable(client, ledger_id, last) for ledger_id, last in writer.acknowledged.items()}
        lost = {ledger_id: result for ledger_id, result in results.items() if result[0]}
        fragments = sum(len(client.ledger_metadata(ledger_id).fragments) for ledger_id in results)
    print(
        f"{KILLS} kills, {len(results)} ledgers ({len(writer.closed)} closed by the writer, the others recovered), {fragments} fragments, "
        f"{len(writer.failures)} writer failures\n{writer.count} acknowledged entries, unreadable {sum(n for n, _ in lost.values())}, "
        f"{written - started:.0f} s of writing, {time.monotonic() - written:.0f} s of reading",
        flush=True,
    )
    assert not lost
    assert writer.count > 0
