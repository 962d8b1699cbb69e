"""Re-replication by itself: a bookie dies for good, and copies of all that it had come to be on others (RR-16 to RR-18)."""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bk_core
from bk_core import AutoRecoveryOptions, BookKeeper, RecoveryEvent
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.errors import LedgerFencedError
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.dead_bookies import die, revive
from tests.integration.patience import PATIENT, until

BOOKIES = 4
QUICK = AutoRecoveryOptions(look_s=0.2, grace_s=1.0, check_s=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(BOOKIES, tmp_path_factory.mktemp("autorecovery")) as running:
        yield running


@pytest.fixture
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    """A client; afterwards all bookies are up, and nothing is left of the test's ledgers."""
    with bk_core.connect(f"{cluster.uri}?session_timeout_ms=2000", limits=PATIENT) as client:
        yield client
        for index in range(BOOKIES):
            if not cluster.is_running(index):
                revive(cluster, index)
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id)


def written(bk: BookKeeper, ledgers: int = 8) -> list[int]:
    made = []
    for _ in range(ledgers):
        with bk.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2) as writer:
            writer.append_many([b"%d" % n for n in range(30)])
        made.append(writer.ledger_id)
    return made


def named(bk: BookKeeper, bookie: str) -> list[int]:
    return [one for one in bk.list_ledgers() if any(bookie in fragment.ensemble for fragment in bk.ledger_metadata(one).fragments)]


def marked(bk: BookKeeper) -> list[int]:
    return list(bk.store.underreplication().marked_ledgers())


def has_every_copy(bk: BookKeeper, ledger_id: int) -> bool:
    return bk.check_ledger(ledger_id, full=True).is_good


def awaited(condition: Callable[[], bool]) -> None:
    until(condition, "auto-recovery")


def events_of(kind: str, events: list[RecoveryEvent]) -> list[RecoveryEvent]:
    return [event for event in events if event.kind == kind]


def test_what_a_dead_bookie_had_is_copied_to_others(cluster: LocalCluster, bk: BookKeeper) -> None:
    ledgers, events = written(bk), []
    with bk.auto_recovery(QUICK, on_event=events.append):
        dead = die(cluster, 0)
        awaited(lambda: not named(bk, dead) and not marked(bk))
    assert all(has_every_copy(bk, ledger_id) for ledger_id in ledgers)
    assert {event.ledger_id for event in events_of("repaired", events)} <= set(ledgers)
    assert events_of("elected", events) and events_of("lost", events)[0].bookies == (dead,)
    assert bk.store.underreplication().auditor() is None, "the vote was taken back"


def test_a_bookie_that_goes_is_looked_at_at_once(cluster: LocalCluster, bk: BookKeeper) -> None:
    """Nobody waits for the next look, which would come too late here."""
    ledgers = written(bk)
    with bk.auto_recovery(replace(QUICK, look_s=900.0)):
        awaited(lambda: bk.store.underreplication().auditor() is not None)
        dead = die(cluster, 0)
        awaited(lambda: not named(bk, dead) and not marked(bk))
    assert all(has_every_copy(bk, ledger_id) for ledger_id in ledgers)


def test_the_writer_of_an_open_ledger_gets_its_time(cluster: LocalCluster, bk: BookKeeper) -> None:
    """One that replaces the bookie goes on. One that cannot is ended by a recovery after the grace period."""
    mends = bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    events: list[RecoveryEvent] = []
    with bk_core.connect(cluster.uri, ensemble_change="disabled", limits=PATIENT) as other:
        stays = other.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        index = next(at for at, bookie in enumerate(cluster.bookie_ids) if bookie in stays.metadata.last_fragment.ensemble)
        for writer in (mends, stays):
            writer.append(b"before")
        dead = die(cluster, index)

        def replaced() -> bool:
            """Two bookies may acknowledge an entry before the failure of the third one is known: then the next entry replaces it."""
            mends.append(b"during")
            return dead not in bk.ledger_metadata(mends.ledger_id).last_fragment.ensemble

        awaited(replaced)
        with bk.auto_recovery(QUICK, on_event=events.append):
            awaited(lambda: bk.ledger_metadata(stays.ledger_id).state is LedgerState.CLOSED)
            awaited(lambda: not named(bk, dead) and not marked(bk))
        with pytest.raises(LedgerFencedError):
            stays.append(b"after")
        stays.abandon()
    last = mends.append(b"after")
    mends.close()
    assert bk.ledger_metadata(mends.ledger_id).last_entry_id == last
    assert [event.ledger_id for event in events_of("recovered", events)] == [stays.ledger_id]
    assert stays.ledger_id in [event.ledger_id for event in events_of("waits", events)]
    assert bk.ledger_metadata(stays.ledger_id).last_entry_id == 0
    assert has_every_copy(bk, stays.ledger_id) and has_every_copy(bk, mends.ledger_id)


def test_one_of_two_audits_and_the_other_follows(cluster: LocalCluster, bk: BookKeeper) -> None:
    ledgers = written(bk)
    first_events, events = [], []
    first_client = bk_core.connect(f"{cluster.uri}?session_timeout_ms=2000", limits=PATIENT)
    first = first_client.auto_recovery(QUICK, on_event=first_events.append).start()
    awaited(lambda: bool(events_of("elected", first_events)))
    with bk.auto_recovery(QUICK, on_event=events.append):
        awaited(lambda: len(bk.store.underreplication().votes()) == 2)  # type: ignore[attr-defined]
        assert not events_of("elected", events)
        first_client.close()  # its vote goes with its session, and its threads end
        awaited(lambda: not any(thread.is_alive() for thread in first._threads))
        awaited(lambda: bool(events_of("elected", events)))
        dead = die(cluster, 1)
        awaited(lambda: not named(bk, dead) and not marked(bk))
    first.close()
    assert all(has_every_copy(bk, ledger_id) for ledger_id in ledgers)


def test_it_stands_still_while_it_is_switched_off(cluster: LocalCluster, bk: BookKeeper) -> None:
    written(bk, 3)
    switch = bk.store.underreplication()
    switch.set_disabled(True)
    told: queue.SimpleQueue[RecoveryEvent] = queue.SimpleQueue()
    with bk.auto_recovery(QUICK, on_event=told.put):
        assert {told.get(timeout=30).kind, told.get(timeout=30).kind} == {"elected", "off"}
        dead = die(cluster, 2)
        before = named(bk, dead)
        assert before and not marked(bk) and told.empty()
        switch.set_disabled(False)
        awaited(lambda: not named(bk, dead) and not marked(bk))


def test_all_ledgers_are_looked_at_now_and_then(cluster: LocalCluster, bk: BookKeeper, tmp_path: Path) -> None:
    """A copy that is missing on a bookie that runs is found by the check alone. The time of the check is kept."""
    (ledger_id,) = written(bk, 1)
    bookie = bk.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    index = cluster.bookie_ids.index(bookie)
    cluster.stop_bookie(index)
    shutil.rmtree(cluster.directory / f"bookie-{index}" / "data")
    bk.delete_cookie(bookie)
    cluster.restart(index)
    awaited(lambda: bookie in bk.bookies().writable)
    assert not has_every_copy(bk, ledger_id)
    events: list[RecoveryEvent] = []
    checking = AutoRecoveryOptions(look_s=0.2, grace_s=1.0, check_s=3600.0)
    with bk.auto_recovery(checking, on_event=events.append):
        awaited(lambda: has_every_copy(bk, ledger_id) and not marked(bk))
        awaited(lambda: bool(events_of("checked", events)))
    assert bk.store.underreplication().checked_ms() is not None
    with bk.auto_recovery(checking, on_event=events.append):
        awaited(lambda: len(events_of("elected", events)) == 2)
    assert len(events_of("checked", events)) == 1, "it was looked at a moment ago"


def test_the_command_tells_what_it_does_and_ends_when_it_is_told_to(cluster: LocalCluster, bk: BookKeeper) -> None:
    written(bk, 3)
    command = [sys.executable, "-m", "bk_core.cli", "autorecovery", "--uri", cluster.uri, "--look-every", "0.2", "--grace", "1"]
    with subprocess.Popen(
        [*command, "--check-every", "0s", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        events = map(json.loads, running.stdout)
        assert next(events)["event"] == "elected"
        dead = die(cluster, 3)
        _until_repaired(events, lambda: not named(bk, dead) and not marked(bk))
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 143
        assert running.stderr is not None and "Traceback" not in running.stderr.read()
    assert bk.store.underreplication().auditor() is None


def _until_repaired(events: Iterator[dict[str, object]], done: Callable[[], bool]) -> None:
    """Read the events until each kind of them was told and the work is done. It may be done before its events are read."""
    kinds = set()
    for event in events:
        kinds.add(event["event"])
        if kinds >= {"lost", "marked", "repaired"} and done():
            return
    raise AssertionError(kinds)
