"""Writing in other ways than the plain one, on both kinds of bookies: caller's ids, deferred sync, delayed change, quorum timeout."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import (
    AddQuorumTimeoutError,
    BlockingCallError,
    DuplicateEntryIdError,
    InvalidArgumentError,
    LedgerFencedError,
    NotEnoughBookiesError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from tests.integration.patience import PATIENT
from tests.network.stopping import stop_process

QUICK = Limits(add_timeout_ns=1_500_000_000, read_timeout_ns=2_000_000_000)  # a busy machine must stay below it


@contextmanager
def stopped(cluster: LocalCluster, index: int) -> Iterator[None]:
    """The bookie is there and says nothing (SIGSTOP)."""
    pid = cluster.pid(index)
    assert pid is not None
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def all_bookies(bk: bk_core.BookKeeper, cluster: LocalCluster) -> int:
    """Return the number of bookies, once each is registered: other tests kill, restart and add some."""
    deadline = time.monotonic() + 60
    while len(bk.bookies().writable) < len(cluster.bookie_ids):
        assert time.monotonic() < deadline, bk.bookies()
        threading.Event().wait(0.1)
    return len(cluster.bookie_ids)


def test_ids_chosen_by_the_caller(cluster: LocalCluster) -> None:
    """WR-2: any order, each id once, acknowledged in order."""
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger = bk.create_ledger(caller_ids=True)
        last, first = ledger.append_future(b"two", entry_id=2), ledger.append_many_future([b"zero", b"one"], entry_id=0)
        assert (first.result(timeout=20), last.result(timeout=20)) == (1, 2)
        with pytest.raises(DuplicateEntryIdError):
            ledger.append(b"two again", entry_id=2)
        with pytest.raises(InvalidArgumentError, match="needs entry_id"):
            ledger.append(b"no id")
        assert ledger.close().last_entry_id == 2
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 2) == [b"zero", b"one", b"two"]
        plain = bk.create_ledger()
        with pytest.raises(InvalidArgumentError, match="numbers its entries itself"):
            plain.append(b"x", entry_id=0)
        plain.close()


def test_many_threads_append_to_one_ledger(cluster: LocalCluster) -> None:
    """SM-1, WR-8, R35: one thread alone looks at answers: every append completes, ids rise per thread."""
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk, bk.create_ledger() as ledger:

        def append(thread: int) -> list[int]:
            futures = [ledger.append_future(b"%d:%d" % (thread, n)) for n in range(300)]
            return [future.result(timeout=30) for future in futures]

        with ThreadPoolExecutor(8) as threads:
            ids = list(threads.map(append, range(8)))
        assert all(mine == sorted(mine) for mine in ids)
        assert sorted(entry for mine in ids for entry in mine) == list(range(2400))


def test_a_callback_that_would_wait_for_itself_is_told_so(cluster: LocalCluster) -> None:
    """SM-1: callbacks run on the thread that takes in the answers; one that waits there would stop every ledger."""
    errors: list[BaseException] = []
    done = threading.Event()
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk, bk.create_ledger() as ledger:

        def called(future: Future[int]) -> None:
            for wrong in (lambda: ledger.append(b"and wait"), lambda: ledger.close(), lambda: bk.recover_ledger(ledger.ledger_id)):
                try:
                    wrong()
                except BaseException as error:
                    errors.append(error)
            done.set()

        ledger.append_future(b"first").add_done_callback(called)
        assert done.wait(timeout=30)
        assert [type(error) for error in errors] == [BlockingCallError] * 3
        assert ledger.append(b"life goes on") == 1


def test_deferred_sync_moves_the_lac_by_force_only(cluster: LocalCluster) -> None:
    """WR-17: acknowledged is not yet confirmed; ``force`` confirms, ``close`` forces what is left."""
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger = bk.create_ledger(deferred_sync=True)
        assert ledger.append_many([b"entry %d" % n for n in range(50)]) == 49
        assert ledger.last_add_confirmed == -1
        assert ledger.force() == 49 == ledger.last_add_confirmed
        assert ledger.append(b"after the force") == 50
        assert ledger.last_add_confirmed == 49
        closed = ledger.close()
        assert (closed.last_entry_id, closed.length) == (50, sum(len(b"entry %d" % n) for n in range(50)) + 15)
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(49, 50) == [b"entry 49", b"after the force"]


def test_delayed_change_writes_on_with_one_bookie_silent_and_no_spare(cluster: LocalCluster) -> None:
    """EC-3: Qa of Qw suffice. The plain mode ends the ledger at its last acknowledged entry (EC-6, WR-12)."""
    with bk_core.connect(cluster.uri, ensemble_change="delayed", limits=QUICK) as bk:
        size = all_bookies(bk, cluster)
        ledger = bk.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size - 1)
        ledger.append(b"all of them")
        with stopped(cluster, 1):
            assert ledger.append_many([b"all but one"] * 200) == 200
            closed = ledger.close()
        assert (closed.last_entry_id, len(closed.fragments)) == (200, 1)
    with bk_core.connect(cluster.uri, limits=QUICK) as bk:
        ledger = bk.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size - 1)
        ledger.append(b"all of them")
        deadline = time.monotonic() + 20
        with stopped(cluster, 1):
            with pytest.raises(NotEnoughBookiesError):
                while time.monotonic() < deadline:
                    ledger.append(b"until the timeout is noticed")
            closed = ledger.close()  # CL-5: the result of the close that the failure began
            assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, ledger.last_add_confirmed)


def test_recovery_with_delayed_change_needs_no_spare(cluster: LocalCluster) -> None:
    """RC-13, RC-14: the tail is written back to Qa bookies without the dead one; plain recovery gives up, nothing is lost (RC-21)."""
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk, bk_core.connect(cluster.uri, ensemble_change="delayed") as delayed:
        size = all_bookies(bk, cluster)
        ledger = bk.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size - 1)
        ledger.append_many([b"acknowledged"] * 100)
        ledger.abandon()
        cluster.kill(2)
        with pytest.raises(NotEnoughBookiesError):
            bk.recover_ledger(ledger.ledger_id)
        assert bk.ledger_metadata(ledger.ledger_id).state is LedgerState.IN_RECOVERY
        with delayed.recover_ledger(ledger.ledger_id) as reader:
            assert reader.last_add_confirmed == 99
            assert reader.read(0, 99) == [b"acknowledged"] * 100


def test_an_entry_without_its_quorum_ends_the_ledger_after_the_quorum_timeout(cluster: LocalCluster) -> None:
    """WR-14, WR-12: here no bookie is ever replaced, so that only this timeout can end it."""
    with bk_core.connect(cluster.uri, ensemble_change="disabled", add_quorum_timeout_s=1.0, limits=QUICK) as bk:
        size = all_bookies(bk, cluster)
        ledger = bk.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size)
        ledger.append(b"all of them")
        with stopped(cluster, 0), pytest.raises(AddQuorumTimeoutError):
            ledger.append(b"all but one")
        closed = ledger.close()
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 0)


def test_a_fenced_writer_closes_only_if_told_to(cluster: LocalCluster) -> None:
    """D1 both ways is in the machine's tests; here a recovery that ended first decides, whatever the option says."""
    with bk_core.connect(cluster.uri, close_in_recovery=True) as bk, bk_core.connect(cluster.uri) as other:
        ledger = bk.create_ledger()
        ledger.append(b"one")
        other.recover_ledger(ledger.ledger_id).close()
        with pytest.raises(LedgerFencedError):
            ledger.append(b"two")
        closed = other.ledger_metadata(ledger.ledger_id)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 0)
