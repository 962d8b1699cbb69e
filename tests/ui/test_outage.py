"""The page while its cluster changes, falls silent, and comes back; and the command that serves it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.client import BookKeeper
from bk_core.client.log.check import repair_log
from bk_core.errors import BkError
from bk_core.protocol.limits import Limits
from tests.integration.dead_bookies import die, revive, unregister
from tests.integration.patience import until
from tests.ui.conftest import need_java, served

SILENT = "The cluster has not answered since"
PATIENCE_S = 60
SOON_S = 0.2  # between two looks of the page
IMPATIENT = Limits(unreachable_ns=0, recovery_retries_max=0)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    need_java()
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def shared(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(4, tmp_path_factory.mktemp("cluster"), zookeeper=zookeeper.connect_string) as found:
        yield found


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    """The module's cluster with all bookies up, whatever the test before has done."""
    for index in range(len(shared.bookie_ids)):
        if not shared.is_running(index):
            revive(shared, index)
    with bk_core.connect(shared.uri) as client:
        until(lambda: len(client.bookies().writable) == len(shared.bookie_ids), "a bookie is not registered")
    return shared


@contextmanager
def stopped(server: ZooKeeperProcess) -> Iterator[None]:
    """The server is there meanwhile, and says nothing."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def killed(server: ZooKeeperProcess) -> Iterator[None]:
    """The server is gone meanwhile."""
    server.kill()
    try:
        yield
    finally:
        server.start()


def written(client: BookKeeper) -> int:
    with client.create_ledger() as ledger:
        for number in range(10):
            ledger.append(b"entry %d" % number)
    return ledger.ledger_id


@pytest.mark.slow
def test_what_happens_is_told(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri) as writer, bk_core.connect(cluster.uri) as client, served(client, look_s=SOON_S) as (_, visitor):
        visitor.until("/", lambda got: "4 writable" in got.text and "0 since this page began" in got.text)
        closed = written(writer)
        visitor.until(
            "/events", lambda got: f"ledger {closed} was created" in got.text and f"ledger {closed} was closed at entry 9" in got.text
        )
        ledger = writer.create_ledger()
        ledger.append(b"first")
        visitor.until("/ledgers?state=OPEN", lambda got: f'data-key="{ledger.ledger_id}"' in got.body)
        gone = ledger.metadata.fragments[0].ensemble[0]
        cluster.kill(cluster.bookie_ids.index(gone))
        last = ledger.append(b"second")
        while len(ledger.metadata.fragments) == 1:  # an entry that two others had before the failure was known changes nothing (WR-10)
            last = ledger.append(b"one more")
        visitor.until(f"/ledgers/{ledger.ledger_id}", lambda got: "Fragments (2)" in got.text and f"in place of {gone}" in got.text)
        unregister(cluster, cluster.bookie_ids.index(gone))
        visitor.until("/events?kind=bookie", lambda got: f"bookie {gone} is down" in got.text)
        overview = visitor.until("/", lambda got: "1 bookie is down" in got.text)
        assert f"{gone} down" in overview.text
        others = [cluster.bookie_ids.index(one) for one in writer.ledger_metadata(ledger.ledger_id).last_fragment.ensemble[:2]]
        for index in others:  # a recovery goes no further than to say that it has begun
            cluster.stop_bookie(index)
        with bk_core.connect(cluster.uri, limits=IMPATIENT) as recoverer, pytest.raises(BkError):
            recoverer.recover_ledger(ledger.ledger_id)
        visitor.until("/events?kind=recovery", lambda got: f"ledger {ledger.ledger_id} is fenced and being recovered" in got.text)
        for index in others:
            cluster.restart(index)
        writer.recover_ledger(ledger.ledger_id).close()
        recovered = visitor.until("/events?kind=recovery", lambda got: f"{ledger.ledger_id} was closed at entry {last}" in got.text)
        assert "after its recovery" in recovered.text
        writer.delete_ledger(closed)
        visitor.until("/events", lambda got: f"ledger {closed} was deleted" in got.text)
        assert visitor.settled(f"/ledgers/{closed}").status == 404
        with writer.create_log("news").writer() as log:
            log.append(b"row")
        visitor.until("/events?kind=log", lambda got: "log news was created" in got.text)
        with writer.log("news").writer() as log:
            log.append_many([b"row"] * 7)
        # a look may have come between creation and the first row, and then tells of both writes at once
        visitor.until("/events?kind=log", lambda got: any(f" {count} rows more" in got.text for count in (7, 8)))
        assert "0 segments" not in visitor.get("/events?kind=log").text
        writer.delete_ledger(list(writer.log("news").segments())[-1].ledger_id, even_if_listed=True)
        repair_log(writer, "news")
        visitor.until("/events?kind=log", lambda got: "log news: 7 rows written off, whose ledgers do not exist any more" in got.text)


@pytest.mark.slow
def test_a_cluster_that_dies_and_comes_back(cluster: LocalCluster, zookeeper: ZooKeeperProcess) -> None:
    with bk_core.connect(cluster.uri) as writer, bk_core.connect(cluster.uri) as client, served(client, look_s=SOON_S) as (site, visitor):
        ledger_id = written(writer)
        other = written(writer)
        writer.create_log("events")
        visitor.until("/ledgers", lambda got: f'data-key="{other}"' in got.body)
        visitor.until("/logs", lambda got: "events" in got.text)
        for path in ("/ledgers", f"/ledgers/{ledger_id}", "/logs", "/queries", "/"):
            visitor.settled(path)
        visitor.until("/ledgers", lambda got: site.world.watcher.index.known == len(site.world.watcher.index))
        for times, silence in enumerate((killed(zookeeper), stopped(zookeeper)), 1):
            with silence:
                visitor.until("/events", lambda got: SILENT in got.text)
                for path in (
                    "/",
                    "/ledgers",
                    f"/ledgers/{ledger_id}",
                    "/logs",
                    "/logs/events",
                    "/queries",
                    "/events",
                    "/ledgers?state=OPEN",
                ):
                    got = visitor.settled(path)
                    assert got.status == 200 and SILENT in got.text, path
                    assert 'http-equiv="refresh"' in got.body  # without JavaScript it asks again
                assert f'data-key="{ledger_id}"' in visitor.get("/ledgers").body  # what was seen last
                known = visitor.get(f"/ledgers?id={ledger_id}")  # nobody has asked for this part before
                assert f'data-key="{ledger_id}"' in known.body and f"{ledger_id} CLOSED" in known.text
                overview = visitor.get("/")
                assert "error the cluster does not answer since" in overview.text and "is wrong" not in overview.text
                assert "else is listed here was so" in overview.text
                assert 'class="badge">writable' in overview.body  # nobody knows that it is good
                assert "entry 9" in visitor.get(f"/ledgers/{ledger_id}").text
                assert "BK-" in visitor.settled(f"/ledgers/{other}").text or "not answer" in visitor.settled(f"/ledgers/{other}").text
            visitor.until("/", lambda got: SILENT not in got.text)
            visitor.until("/events?kind=cluster", lambda got, times=times: got.text.count("the cluster answers again") == times)
        fresh = written(writer)
        visitor.until("/ledgers", lambda got: f'data-key="{fresh}"' in got.body)
        assert site.world.watcher.health.answers


def test_a_bookie_that_does_not_answer_shows_in_the_replicas(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri) as writer, bk_core.connect(cluster.uri) as client, served(client, look_s=SOON_S) as (_, visitor):
        ledger_id = written(writer)
        gone = writer.ledger_metadata(ledger_id).fragments[0].ensemble[0]
        cluster.kill(cluster.bookie_ids.index(gone))
        got = visitor.until(f"/ledgers/{ledger_id}", lambda got: 'class="dot silent" title="' in got.body)
        assert got.body.count('class="dot silent" title="') == got.body.count('class="dot ok" title="') / 2 == 10
        assert f"{gone} : unavailable, 10 of these entries" in got.text or f"{gone} : timeout, 10 of these entries" in got.text
        assert "entry 9" in got.text  # another replica has it
        xray = visitor.until(f"/ledgers/{ledger_id}/xray", lambda got: "in need of repair" in got.text)
        assert "10 in need of repair" in xray.text
        doctor = visitor.until("/doctor", lambda got: "data-pending" not in got.body)
        assert gone in doctor.text and ("bookie-down" in doctor.text or "bookie-unreachable" in doctor.text)


def test_entries_that_can_be_read_are_shown_behind_one_that_cannot(cluster: LocalCluster) -> None:
    """One is gone of the two bookies that have every second entry of a ledger each."""
    with (
        bk_core.connect(cluster.uri) as writer,
        bk_core.connect(cluster.uri, operation_timeout_s=10.0) as client,  # for which the page asks for an entry that nobody has
        served(client, look_s=SOON_S) as (_, visitor),
    ):
        with writer.create_ledger(ensemble_size=2, write_quorum_size=1, ack_quorum_size=1) as ledger:
            for number in range(6):
                ledger.append(b"entry %d" % number)
        gone, there = writer.ledger_metadata(ledger.ledger_id).fragments[0].ensemble
        die(cluster, cluster.bookie_ids.index(gone))
        got = visitor.until(f"/ledgers/{ledger.ledger_id}", lambda got: "entry 1" in got.text and 'class="dot ok" title="' in got.body)
        assert all(f"entry {number}" in got.text for number in (1, 3, 5)) and "entry 2" not in got.text
        assert got.text.count(f"no good copy now: {gone} ") == 2  # entries 2 and 4; entry 0 has the error of its read
        overview = visitor.until("/", lambda got: "of which no running bookie has a copy" in got.text)
        assert re.search(rf"error \d ledgers? with entries of which no .* a copy \(ledgers? [^)]*{ledger.ledger_id}", overview.text)
        assert "warning 1 bookie is down" in overview.text
        doctor = visitor.until("/doctor", lambda got: "no-live-copy" in got.text)
        assert f'href="/ledgers/{ledger.ledger_id}"' in doctor.body
        assert f'<a href="/ledgers?bookie={quote(gone, safe="")}"' in doctor.body
        writer.delete_ledger(ledger.ledger_id)


# --- the command -----------------------------------------------------------------------------------------------------------


def bk_ui(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bk_core.cli", "ui", "--no-open", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}, preexec_fn=_take_interrupts
    )


def _take_interrupts() -> None:
    """A test runner in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def page_of(told: dict[str, object]) -> str:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(str(told["url"]), timeout=PATIENCE_S) as answer:
        assert "token" not in answer.geturl()
        text: str = answer.read().decode()
        return text


def test_the_command_serves_until_it_is_interrupted(shared: LocalCluster, zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    kept = tmp_path / "token"
    urls = []
    for how in (signal.SIGINT, signal.SIGTERM):
        process = bk_ui("--json", "--token-file", str(kept), BOOKKEEPER_METADATA_SERVICE_URI=shared.uri)
        try:
            assert process.stdout is not None and process.stderr is not None
            told = json.loads(process.stdout.readline())
            assert told["host"] == "127.0.0.1" and "<h1>Overview</h1>" in page_of(told)
            urls.append(told["url"].partition("token=")[2])
            process.send_signal(how)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == "ended\n"
        finally:
            process.kill()
            process.communicate()
    assert urls[0] == urls[1] == kept.read_text().strip()


def test_the_command_ends_while_its_cluster_is_silent(shared: LocalCluster, zookeeper: ZooKeeperProcess) -> None:
    process = bk_ui("--uri", shared.uri)
    try:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().removeprefix("the live page: ").strip()
        assert process.stdout.readline() == "Ctrl-C ends it.\n"
        page_of({"url": url})
        with stopped(zookeeper):
            page_of({"url": url})
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_command_says_what_is_wrong(shared: LocalCluster, tmp_path: Path) -> None:
    readable = tmp_path / "token"
    readable.write_text("x" * 40)
    readable.chmod(0o644)
    with bk_core.connect(shared.uri) as client, served(client, look_s=SOON_S) as (_, visitor):
        cases = (
            (["--port", str(visitor.server.port)], r"error: \[BK-LIVE-PAGE\].*Choose another --port"),
            (["--host", "192.0.2.1"], r"error: \[BK-LIVE-PAGE\].*192\.0\.2\.1"),
            (["--token-file", str(readable)], r"error: \[BK-ARGUMENT\] others may read"),
            (["--token-file", str(tmp_path / "no" / "token")], r"error: \[BK-ARGUMENT\] the token file .* cannot be made"),
        )
        processes = [bk_ui("--uri", shared.uri, *arguments) for arguments, _ in cases]  # at once: each takes a second to begin
        try:
            for process, (_, said) in zip(processes, cases, strict=True):
                out, err = process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 1 and out == "" and re.match(said, err), err
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def test_an_address_beyond_this_machine_is_warned_of(shared: LocalCluster) -> None:
    process = bk_ui("--uri", shared.uri, "--host", "0.0.0.0", "--json")
    try:
        assert process.stdout is not None and process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["url"].startswith("http://127.0.0.1:") and "<h1>Overview</h1>" in page_of(told)
        assert "there is no TLS" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
