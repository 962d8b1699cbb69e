"""Bookies restart one after the other under a writer and a reader that follows: nothing is lost, and with a delayed change of the ensemble
or a delay of auto-recovery nothing is copied either."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import AutoRecoveryOptions, BookKeeper, RecoveryEvent, cli
from bk_core.bookie import apache
from bk_core.bookie.children import free_port
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.errors import BookieUnavailableError, NotEnoughBookiesError
from bk_core.metadata.tree.watches import BookiesWatch
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENT, until

pytestmark = pytest.mark.slow
SIZES: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
PAUSE_S = 0.005
KINDS = ["embedded", pytest.param("apache", marks=pytest.mark.apache)]
CHANGES = [(4, "immediate"), (4, "delayed"), (3, "delayed")]
# What the client and its auditor do is the same with either kind: `make test` plays it with Apache's bookies, which are longer away.
OURS_ARE_DEEP = pytest.mark.parametrize("started", [pytest.param("embedded", marks=pytest.mark.deep), KINDS[1]], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], LocalCluster]]:
    """Clusters of one kind by their number of bookies, started when first wanted."""
    try:
        apache.resolve(APACHE_VERSION) if request.param == "apache" else apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    running: dict[int, LocalCluster] = {}

    def of(bookies: int) -> LocalCluster:
        if bookies not in running:
            place = tmp_path_factory.mktemp(f"rolling-{bookies}")
            make = local_cluster if request.param == "embedded" else quick_java.apache_cluster
            running[bookies] = make(bookies, place)
        for index in range(bookies):
            if not running[bookies].is_running(index):  # as a test that failed has left it
                running[bookies].restart(index)
        return running[bookies]

    yield of
    for cluster in running.values():
        cluster.close()


class Traffic:
    """A ledger that is written to all the while, and a reader that follows it."""

    def __init__(self, client: BookKeeper) -> None:
        self.ledger = client.create_ledger(**SIZES)
        self._client = client
        self._over = threading.Event()
        self.written = 0
        self.error: Exception | None = None
        self.seen: list[bytes] = []
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._follow)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _write(self) -> None:
        try:
            while not self._over.wait(PAUSE_S):
                self.ledger.append(b"%d" % self.written)
                self.written += 1
            self.ledger.close()
        except Exception as error:
            self.error = error
            self.ledger.abandon()

    def _follow(self) -> None:
        with self._client.open_ledger(self.ledger.ledger_id) as reader:
            for run in reader.tail(0):
                self.seen.extend(bytes(one) for one in run.payloads())
                if self.error is not None:
                    return

    def goes_on(self, entries: int = 20) -> None:
        """Wait until more has been written and seen."""
        wanted = self.written + entries
        until(lambda: self.error is not None or (self.written >= wanted and len(self.seen) >= wanted - entries), "the writer stands still")
        assert self.error is None, self.error


@pytest.mark.parametrize(
    ("started", "bookies", "change"),
    [
        ("embedded", *CHANGES[0]),
        *(pytest.param("embedded", *change, marks=pytest.mark.deep) for change in CHANGES[1:]),
        *(pytest.param("apache", *change, marks=pytest.mark.apache) for change in CHANGES),
    ],
    indirect=["started"],
)
def test_a_rolling_restart_loses_nothing(started: Callable[[int], LocalCluster], bookies: int, change: Any) -> None:
    """Immediate, each restart of a member leads to one change; delayed, there is none. Without a spare bookie only delayed goes on, also
    over the moment in which an Apache bookie is registered and hangs up on what it is asked."""
    cluster = started(bookies)
    with bk_core.connect(cluster.uri, limits=PATIENT, ensemble_change=change, quarantine_s=1.0) as client, Traffic(client) as traffic:
        traffic.goes_on()
        members = 0
        for index in range(bookies):
            members += cluster.bookie_ids[index] in traffic.ledger.metadata.last_fragment.ensemble
            cluster.stop_bookie(index)
            traffic.goes_on()
            cluster.restart(index)
            traffic.goes_on()
    fragments = traffic.ledger.metadata.fragments
    assert traffic.error is None
    assert traffic.seen == [b"%d" % n for n in range(traffic.written)]
    with bk_core.connect(cluster.uri, limits=PATIENT) as other, other.open_ledger(traffic.ledger.ledger_id) as reader:
        assert reader.last_add_confirmed == traffic.written - 1
        assert reader.read(0, traffic.written - 1) == traffic.seen
    if change == "delayed":
        assert len(fragments) == 1
    else:
        assert members >= len(fragments) - 1 >= 3


@pytest.mark.parametrize("started", ["embedded"], indirect=True)
def test_a_bookie_that_is_back_is_found_before_the_watch_has_told_of_it(
    started: Callable[[int], LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC-6: the next one dies a moment after it has registered, and it is the only one that can take that one's place."""
    cluster, telling, look = started(4), threading.Event(), BookiesWatch.look

    def late(watch: BookiesWatch) -> None:
        telling.wait(60)
        look(watch)

    telling.set()
    monkeypatch.setattr(BookiesWatch, "look", late)
    with bk_core.connect(cluster.uri, limits=PATIENT) as client, Traffic(client) as traffic:
        try:
            traffic.goes_on()
            first, second, _ = (cluster.bookie_ids.index(one) for one in traffic.ledger.metadata.last_fragment.ensemble)
            back = cluster.bookie_ids[first]
            cluster.stop_bookie(first)
            traffic.goes_on()
            until(lambda: back not in client._session.bookies().writable, "the watch does not tell of what is gone")
            telling.clear()
            cluster.restart(first)
            assert back not in client._session.bookies().writable
            cluster.kill(second)
            traffic.goes_on()
        finally:
            telling.set()
    ensemble = traffic.ledger.metadata.last_fragment.ensemble
    assert traffic.error is None and back in ensemble and cluster.bookie_ids[second] not in ensemble
    assert traffic.seen == [b"%d" % n for n in range(traffic.written)]


@OURS_ARE_DEEP
def test_without_a_spare_bookie_an_immediate_change_ends_the_ledger(started: Callable[[int], LocalCluster]) -> None:
    """As with Java's client."""
    cluster = started(3)
    with bk_core.connect(cluster.uri, limits=PATIENT) as client, Traffic(client) as traffic:
        traffic.goes_on()
        cluster.stop_bookie(0)
        until(lambda: traffic.error is not None, "the writer goes on")
        assert isinstance(traffic.error, NotEnoughBookiesError)
        cluster.restart(0)
    with bk_core.connect(cluster.uri, limits=PATIENT) as client, client.recover_ledger(traffic.ledger.ledger_id) as recovered:
        assert recovered.last_add_confirmed >= traffic.written - 1


@OURS_ARE_DEEP
def test_a_bookie_that_comes_back_within_the_delay_makes_no_copies(started: Callable[[int], LocalCluster]) -> None:
    """Neither does one while auto-recovery is switched off. One that stays away longer than the delay does."""
    cluster = started(4)
    events: list[RecoveryEvent] = []
    with bk_core.connect(f"{cluster.uri}?session_timeout_ms=2000", limits=PATIENT) as client:
        ledgers = []
        for _ in range(6):
            with client.create_ledger(**SIZES) as ledger:
                ledger.append_many([b"x"] * 20)
            ledgers.append(ledger.ledger_id)
        before = [client.ledger_metadata(one).fragments for one in ledgers]
        marks = client.store.underreplication()
        options = AutoRecoveryOptions(look_s=0.2, grace_s=1.0, check_s=0, delay_s=600.0)
        with client.auto_recovery(options, on_event=events.append):
            until(lambda: marks.auditor() is not None, "no auditor")
            for index in range(4):
                cluster.stop_bookie(index)
                until(lambda index=index: cluster.bookie_ids[index] not in client.store.bookies().writable, "it is registered")
                cluster.restart(index)
        assert not [event for event in events if event.kind in ("lost", "marked", "repaired")]
        marks.set_disabled(True)
        with client.auto_recovery(AutoRecoveryOptions(look_s=0.2, grace_s=1.0, check_s=0), on_event=events.append):
            until(lambda: any(event.kind == "off" for event in events), "it does not see the switch")
            cluster.restart(0)
            assert not [event for event in events if event.kind in ("lost", "marked", "repaired")]
            assert [client.ledger_metadata(one).fragments for one in ledgers] == before
            cluster.stop_bookie(1)
            marks.set_disabled(False)
            until(lambda: any(event.kind == "repaired" for event in events), "nothing is repaired")
        cluster.restart(1)


@pytest.fixture
def apaches_auto_recovery(started: Callable[[int], LocalCluster], tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of Apache's bookies beside which their auto-recovery runs; the delay is stored before it begins."""
    cluster = started(4)
    assert cli.run(["cluster", "autorecovery", "--delay", "600", "--uri", cluster.uri]) == 0
    configuration = tmp_path / "autorecovery.conf"
    configuration.write_text(
        f"metadataServiceUri={cluster.uri.replace('zk://', 'zk+hierarchical://', 1)}\nallowLoopback=true\nhttpServerEnabled=false\n"
        f"bookiePort={free_port()}\njournalDirectory={tmp_path}/none\nledgerDirectories={tmp_path}/none\n"
        "auditorPeriodicCheckInterval=0\n"  # the look at all ledgers, which it begins with, knows no delay
    )
    apache.write_logging(tmp_path / "logging")
    main, arguments = "org.apache.bookkeeper.replication.AutoRecoveryMain", ["--conf", str(configuration)]
    options = quick_java.java_options(APACHE_VERSION)
    command = apache.java_command(apache.resolve(APACHE_VERSION), tmp_path / "logging", main, arguments, options=options)
    with (tmp_path / "autorecovery.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield cluster
        finally:
            process.terminate()


@pytest.mark.parametrize("started", KINDS[1:], indirect=True)
def test_apaches_auditor_keeps_to_the_delay_that_is_stored(apaches_auto_recovery: LocalCluster, tmp_path: Path) -> None:
    """A bookie that restarts costs nothing; when the delay is taken away, what one that is away had is copied."""
    cluster = apaches_auto_recovery
    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        marks = client.store.underreplication()
        until(lambda: "Completed auditBookies" in (tmp_path / "autorecovery.log").read_text(), "no auditor")
        with client.create_ledger(**SIZES) as ledger:
            ledger.append_many([b"x"] * 20)
        before = ledger.metadata.fragments
        index = cluster.bookie_ids.index(before[0].ensemble[0])
        cluster.stop_bookie(index)
        cluster.wait_unregistered(index)
        cluster.restart(index)  # this takes seconds, in which it would have been marked
        assert client.ledger_metadata(ledger.ledger_id).fragments == before and not list(marks.marked_ledgers())
        cluster.stop_bookie(index)
        cluster.wait_unregistered(index)
        assert cli.run(["cluster", "autorecovery", "--delay", "0", "--uri", cluster.uri]) == 0
        until(lambda: client.ledger_metadata(ledger.ledger_id).fragments != before, "Apache's auditor does nothing")
        cluster.restart(index)
