"""Guaranteed write quorum on Apache's bookies (G-20): after failures every entry of every sealed ledger is on all of its bookies.

``pytest -s`` prints the figures; ``BK_LEDGERS`` and ``BK_SEED`` make it longer or repeat its choices. With ``BK_LEDGERS`` the same work is
done without the guarantee as well, to see that the failures matter.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.errors import BkError, BookieUnavailableError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.limits import Limits
from tests import quick_java
from tests.integration.replicas import missing_replicas
from tests.network.stopping import stop_process

APACHE_VERSION = os.environ.get("BK_TEST_APACHE_VERSION", apache.DEFAULT_VERSION)
LEDGERS = int(os.environ.get("BK_LEDGERS", "2"))
SEED = int(os.environ.get("BK_SEED") or random.SystemRandom().randrange(1 << 32))
QUICK = Limits(add_timeout_ns=1_000_000_000, read_timeout_ns=2_000_000_000)
ENTRIES = 400

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies of this file's own, because they are killed and stopped all the time."""
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with quick_java.apache_cluster(5, tmp_path_factory.mktemp("guaranteed"), APACHE_VERSION) as cluster:
        yield cluster


def payload(entry_id: int) -> bytes:
    return b"entry %d;" % entry_id * (1 + entry_id % 9)


class Trouble:
    """One bookie of the ensemble at a time says nothing for a moment or dies, chosen from the seed."""

    def __init__(self, cluster: LocalCluster, rng: random.Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.counts = {"killed": 0, "stopped": 0}
        self._threads: dict[int, threading.Thread] = {}  # by bookie

    def strike(self, metadata: LedgerMetadata) -> None:
        while sum(thread.is_alive() for thread in self._threads.values()) >= 2:  # the two spare bookies have to be there
            next(thread for thread in self._threads.values() if thread.is_alive()).join()
        self._threads = {index: thread for index, thread in self._threads.items() if thread.is_alive()}
        ensemble = metadata.last_fragment.ensemble
        victims = [i for i, b in enumerate(self.cluster.bookie_ids) if b in ensemble and i not in self._threads]
        index = victims[self.rng.randrange(len(victims))]
        if self.rng.random() < 0.5:
            self._start(self._stop_for, index, 0.3 + 1.5 * self.rng.random())
        elif sum(map(self.cluster.is_running, range(5))) == 5:
            self.counts["killed"] += 1
            self.cluster.kill(index)
            self._start(self._restart, index)

    def _start(self, function: Callable[..., None], index: int, *arguments: object) -> None:
        self._threads[index] = threading.Thread(target=function, args=(index, *arguments))
        self._threads[index].start()

    def _stop_for(self, index: int, seconds: float) -> None:
        pid = self.cluster.pid(index)
        if pid is not None:
            self.counts["stopped"] += 1
            stop_process(pid)
            threading.Event().wait(seconds)
            os.kill(pid, signal.SIGCONT)

    def _restart(self, index: int) -> None:
        self.cluster.restart(index)

    def join(self) -> None:
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()


def write_ledger(bk: bk_core.BookKeeper, trouble: Trouble, *, guaranteed: bool, crash: bool) -> tuple[int, int]:
    """(ledger, last acknowledged entry). The last trouble comes just before the end, when nothing follows that would mend it."""
    ledger = bk.create_ledger(guaranteed_write_quorum=guaranteed)
    strikes = {ENTRIES // 4, ENTRIES // 2, ENTRIES - 40}
    acknowledged = -1
    pending: list[Future[int]] = []
    for first in range(0, ENTRIES, 10):
        if first in strikes:
            trouble.strike(ledger.metadata)
        pending.append(ledger.append_many_future([payload(e) for e in range(first, first + 10)]))
        time.sleep(0.002)
    for future in pending:
        acknowledged = future.result(timeout=60)
    if crash:
        ledger.abandon()
    else:
        ledger.close()
    return ledger.ledger_id, acknowledged


def run(cluster: LocalCluster, rng: random.Random, *, guaranteed: bool) -> tuple[dict[str, int], int]:
    """(what was done, entries below Qw copies), once all bookies are back."""
    trouble = Trouble(cluster, rng)
    done = {"ledgers": 0, "closed": 0, "recovered": 0, "fragments": 0, "entries": 0}
    below: set[tuple[int, int]] = set()
    ledgers: list[int] = []
    with bk_core.connect(cluster.uri, limits=QUICK) as bk:
        for number in range(LEDGERS):
            ledger_id, acknowledged = write_ledger(bk, trouble, guaranteed=guaranteed, crash=number % 2 == 1)
            trouble.join()
            metadata = bk.ledger_metadata(ledger_id)
            if metadata.state is not LedgerState.CLOSED:
                recovered = bk.recover_ledger(ledger_id)
                metadata = recovered.metadata
                recovered.close()
                done["recovered"] += 1
            else:
                done["closed"] += 1
            assert metadata.last_entry_id >= acknowledged
            assert metadata.sealed is guaranteed
            done["ledgers"] += 1
            done["fragments"] += len(metadata.fragments)
            done["entries"] += metadata.last_entry_id + 1
            ledgers.append(ledger_id)
        for ledger_id in ledgers:
            for entry_id, _, _ in missing_replicas(ledger_id, bk.ledger_metadata(ledger_id), payload):
                below.add((ledger_id, entry_id))
    return {**done, **trouble.counts}, len(below)


@pytest.mark.deep
def test_every_entry_of_a_sealed_ledger_is_on_its_whole_write_set(bookies: LocalCluster) -> None:
    """G-1, G-11, G-13 (I-G1, I-G2) on unmodified bookies (G-20), each replica read from its bookie alone."""
    with_it, below = run(bookies, random.Random(SEED), guaranteed=True)
    print(f"\nseed {SEED}\nguaranteed: {with_it}, entries below Qw: {below}")
    assert below == 0
    if "BK_LEDGERS" in os.environ:
        without, below_without = run(bookies, random.Random(SEED), guaranteed=False)
        print(f"plain:      {without}, entries below Qw: {below_without}")


def test_a_plain_client_recovers_a_guaranteed_ledger_and_repair_seals_it(bookies: LocalCluster, request: pytest.FixtureRequest) -> None:
    """G-25: Apache's client recovers it, nothing acknowledged is lost, no seal. G-27: repair fills the tail up and seals."""
    java = request.getfixturevalue("java_client")
    with bk_core.connect(bookies.uri, limits=QUICK) as bk:
        ledger = bk.create_ledger(guaranteed_write_quorum=True, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        ledger.append_many([payload(e) for e in range(200)])
        lagging = bookies.bookie_ids.index(ledger.metadata.last_fragment.ensemble[2])
        pid = bookies.pid(lagging)
        assert pid is not None
        stop_process(pid)
        try:
            assert ledger.append_many([payload(e) for e in range(200, 300)]) == 299
            assert ledger.last_add_fully_replicated < 299
            ledger.abandon()
            seen = java.recover(bookies, ledger.ledger_id)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert seen.last_entry_id >= 299
        assert seen.payloads[:300] == tuple(payload(e) for e in range(300))
        closed = bk.ledger_metadata(ledger.ledger_id)
        assert (closed.state, closed.guaranteed, closed.sealed) == (LedgerState.CLOSED, True, False)
        bk.repair_ledger(ledger.ledger_id)
        sealed = bk.ledger_metadata(ledger.ledger_id)
        assert sealed.sealed
        assert not list(missing_replicas(ledger.ledger_id, sealed, payload))


@pytest.mark.deep
def test_a_guaranteed_ledger_without_spare_waits_and_is_left_to_recovery(tmp_path: Path) -> None:
    """G-10, G-11: three bookies, one dead: acknowledging goes on, close waits, ``abandon`` leaves it OPEN (49)."""
    with local_cluster(3, tmp_path) as cluster:
        with bk_core.connect(cluster.uri, limits=QUICK, operation_timeout_s=5.0) as bk:
            ledger = bk.create_ledger(guaranteed_write_quorum=True)
            ledger.append(payload(0))
            cluster.kill(1)
            assert ledger.append_many([payload(e) for e in range(1, 50)]) == 49
            with pytest.raises(BkError, match="did not finish within"):
                ledger.close()
            ledger.abandon()
            assert bk.ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN
        cluster.restart(1)
        with bk_core.connect(cluster.uri, limits=QUICK) as bk, bk.recover_ledger(ledger.ledger_id) as reader:
            assert reader.metadata.sealed
            assert reader.read(0, 49) == [payload(e) for e in range(50)]
            assert not list(missing_replicas(ledger.ledger_id, reader.metadata, payload))
