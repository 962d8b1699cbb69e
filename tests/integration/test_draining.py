"""Bookies that turn read-only, are emptied and go, in clusters where each asks for a certificate and a password: embedded bookies and
Apache's, with the commands that an operator has."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookKeeper, cli
from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.children import accepts_connections
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client.doctor.http import http_address, service_info
from bk_core.errors import BookieUnavailableError
from bk_core.metadata import open_store
from bk_core.protocol.ledger.metadata import LedgerState
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.integration.dead_bookies import die, revive
from tests.integration.http_bookies import http_cluster
from tests.integration.patience import PATIENT, until
from tests.integration.secured_bookies import BOOKIE_USERS, HERE, sasl_settings, tls_lines
from tests.integration.secured_zookeeper import Authority
from tests.soak.cluster import ThroughProxy

pytestmark = pytest.mark.slow
BOOKIES = 5
NO_COOKIE = re.compile(rb"InvalidCookieException|the metadata store has no cookie of it")
"""The reason in the log of a bookie, Apache's or an embedded one, that was forgotten and finds its old data."""
SIZES: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
USER = "bookkeeper-ann"


class Secured:
    """A cluster, and the URI with which a client comes in."""

    def __init__(self, cluster: LocalCluster, uri: str) -> None:
        self.cluster, self.uri = cluster, uri

    @property
    def bare_uri(self) -> str:
        """The URI of a client that has neither certificate nor password."""
        return self.uri.partition("?")[0]

    def connect(self, **settings: Any) -> BookKeeper:
        return bk_core.connect(self.uri, limits=PATIENT, **settings)

    def index(self, bookie: str) -> int:
        return self.cluster.bookie_ids.index(bookie)

    def ended(self, bookie: str) -> None:
        """Kill a bookie; nothing is registered by its name any more, read-only or not."""
        die(self.cluster, self.index(bookie))
        with self.connect() as client:
            assert bookie not in registered(client)


def registered(client: BookKeeper) -> set[str]:
    view = client.store.bookies()
    return {*view.writable, *view.readonly}


def _with_passwords(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    ca = Authority.made(directory / "ca", "ca")
    certificate, key = ca.signed("client")
    lines, java = sasl_settings(directory / "sasl")
    all_lines = {**lines, **tls_lines(ca, ca.signed("bookie", HERE), mutual=True)}
    settings = ApacheSettings(lines=all_lines, java=(*quick_java.OPTIONS, *java))
    password = directory / "password"
    password.write_text(BOOKIE_USERS[USER])
    options = f"bookie_ca_file={ca.certificate}&bookie_cert_file={certificate}&bookie_key_file={key}"
    with http_cluster(BOOKIES, directory / "bookies", monkeypatch, settings) as cluster:
        secured = Secured(cluster, f"{cluster.uri}?{options}&bookie_user={USER}&bookie_password_file={password}")
        with secured.connect() as client:
            for bookie in cluster.bookie_ids:
                address = http_address(service_info(client, bookie))
                assert address is not None
                port = int(address.rpartition(":")[2])
                until(lambda port=port: accepts_connections(port), "an HTTP server")  # it begins behind the registration
        yield secured


@pytest.fixture(scope="module", params=[pytest.param("embedded", marks=pytest.mark.deep), pytest.param("apache", marks=pytest.mark.apache)])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("draining")
    try:
        apache.resolve(APACHE_VERSION) if request.param == "apache" else apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    if request.param == "apache":
        with pytest.MonkeyPatch.context() as monkeypatch:
            yield from _with_passwords(directory, monkeypatch)
        return
    with local_cluster(BOOKIES, directory, tls=True, sasl=True) as cluster:
        yield Secured(cluster, cluster.uri)


@pytest.fixture
def bk(secured: Secured) -> Iterator[BookKeeper]:
    """A client of a cluster in which all bookies run and can be written to; afterwards no ledger of the test is left."""
    with secured.connect() as client:
        for index, bookie in enumerate(secured.cluster.bookie_ids):
            if not secured.cluster.is_running(index):
                if bookie not in client.store.cookies():
                    continue  # forgotten for good
                revive(secured.cluster, index)
            if bookie in client.store.bookies().readonly:
                turned(secured, bookie, "off")
        yield client
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id)


def run(secured: Secured, *arguments: str, uri: str | None = None) -> int:
    return cli.run([*arguments, "--uri", uri or secured.uri])


def turned(secured: Secured, bookie: str, to: str) -> None:
    assert run(secured, "bookie", "read-only", bookie, to) == 0


def said(secured: Secured, capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert run(secured, *arguments, "--json") == status
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@contextmanager
def only_at(secured: Secured, bookie: str) -> Iterator[BookKeeper]:
    """A client that can ask this bookie alone: where the others should be, nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = taken.getsockname()
        store: Any = ThroughProxy(open_store(secured.uri), lambda one, *address: address if one == bookie else nobody)
        with secured.connect(store=store) as client:
            yield client


def has_all(bk: BookKeeper, ledger_id: int, count: int) -> bool:
    with bk.open_ledger(ledger_id) as reader:
        return reader.read(0, count - 1) == [b"%d" % n for n in range(count)]


# --- a bookie that turns read-only ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["immediate", "delayed"])
def test_a_writer_at_work_leaves_a_bookie_that_turns_read_only(
    secured: Secured, bk: BookKeeper, capfd: pytest.CaptureFixture[str], change: Any
) -> None:
    """It is replaced at once, readers go on reading from it, new ledgers avoid it, and every command says what it is."""
    with secured.connect(ensemble_change=change) as writing:
        ledger = writing.create_ledger(**SIZES)
        for n in range(20):
            ledger.append(b"%d" % n)
        bookie = ledger.metadata.last_fragment.ensemble[0]
        turned(secured, bookie, "on")
        count = 20

        def replaced() -> bool:
            """Two bookies may acknowledge an entry before the refusal of the third one is known."""
            nonlocal count
            ledger.append(b"%d" % count)
            count += 1
            return bookie not in ledger.metadata.last_fragment.ensemble

        until(replaced, "the read-only bookie is not replaced")
        assert len(ledger.metadata.fragments) == 2 and bookie in ledger.metadata.fragments[0].ensemble
        assert bookie not in writing._session.unanswering(0.0)
        for _ in range(8):
            with writing.create_ledger(**SIZES) as other:
                assert bookie not in other.metadata.last_fragment.ensemble
        ledger.close()
        assert has_all(bk, ledger.ledger_id, count)
        report = bk.check_ledger(ledger.ledger_id, full=True)
        replicas = [replica for fragment in report.fragments for replica in fragment.replicas]
        assert not any(
            entry in replica.damaged for entry in range(20) for replica in replicas
        )  # one that was refused may lie on the others
        (found,) = [one for one in said(secured, capfd, "bookie", "ls") if one["bookie"] == bookie]
        assert found["state"] == "read-only"
        assert said(secured, capfd, "bookie", "show", bookie, "--no-ledgers")[0]["state"] == "read-only"
        assert {one["bookie"]: (one["state"], one["answer"]) for one in said(secured, capfd, "bookie", "health")}[bookie] == (
            "read-only",
            "answers",
        )
        codes = {(one["code"], *one["bookies"]) for one in said(secured, capfd, "cluster", "doctor", status=1) if "code" in one}
        assert ("bookie-read-only", bookie) in codes
        with only_at(secured, bookie) as client:
            assert has_all(client, ledger.ledger_id, 20)


def test_a_recovery_writes_to_members_that_are_read_only(secured: Secured, bk: BookKeeper) -> None:
    """It may have to bring the last entries to bookies that take no others (B-11)."""
    with secured.connect() as writing:
        ledger = writing.create_ledger(**SIZES)
        for n in range(20):
            ledger.append(b"%d" % n)
        members = ledger.metadata.last_fragment.ensemble
        for bookie in members:
            turned(secured, bookie, "on")
        ledger.abandon()
    with bk.recover_ledger(ledger.ledger_id) as recovered:
        assert recovered.last_add_confirmed == 19
    closed = bk.ledger_metadata(ledger.ledger_id)
    assert closed.state is LedgerState.CLOSED and has_all(bk, ledger.ledger_id, 20)
    for bookie in members:
        turned(secured, bookie, "off")
    assert bk.check_ledger(ledger.ledger_id, full=True).is_good


# --- a bookie that goes -----------------------------------------------------------------------------------------------------


def written(bk: BookKeeper, count: int = 4) -> list[int]:
    made = []
    for _ in range(count):
        with bk.create_ledger(**SIZES) as ledger:
            ledger.append_many([b"%d" % n for n in range(30)])
        made.append(ledger.ledger_id)
    return made


def holder(bk: BookKeeper, ledgers: list[int]) -> str:
    """The bookie that most ledgers name."""
    named = [bookie for one in ledgers for bookie in bk.ledger_metadata(one).last_fragment.ensemble]
    return max(set(named), key=named.count)


def is_whole_without(bk: BookKeeper, ledgers: list[int], bookie: str) -> bool:
    return all(
        bookie not in bk.ledger_metadata(one).last_fragment.ensemble and bk.check_ledger(one, full=True).is_good and has_all(bk, one, 30)
        for one in ledgers
    )


def test_a_client_that_bookies_do_not_admit_moves_nothing(secured: Secured, bk: BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a copy nor a cookie: it ends with status 1, and says what is missing."""
    ledgers = written(bk)
    bookie = holder(bk, ledgers)
    before = [bk.ledger_metadata(one) for one in ledgers]
    secured.ended(bookie)
    capfd.readouterr()
    assert run(secured, "bookie", "decommission", bookie, "--delete-cookie", "--yes", uri=secured.bare_uri) == 1
    shown = capfd.readouterr()
    assert "not admitted" in shown.out and bookie in shown.out
    assert [bk.ledger_metadata(one) for one in ledgers] == before and bookie in bk.store.cookies()


def test_auto_recovery_comes_in_with_a_certificate_and_a_password(secured: Secured, bk: BookKeeper) -> None:
    ledgers = written(bk)
    bookie = holder(bk, ledgers)
    command = [sys.executable, "-m", "bk_core.cli", "autorecovery", "--look-every", "0.5", "--check-every", "0s", "--json"]
    environment = {**os.environ, "BOOKKEEPER_METADATA_SERVICE_URI": secured.uri}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until(lambda: bk.store.underreplication().auditor() is not None, "no auditor")
        secured.ended(bookie)
        until(lambda: not list(bk.store.underreplication().marked_ledgers()) and is_whole_without(bk, ledgers, bookie), "no copies")
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=60)
    events = [json.loads(line) for line in out.splitlines()]
    assert {one["event"] for one in events} >= {"elected", "lost", "marked", "repaired"}
    assert not [one for one in events if one["event"] in ("failed", "trouble")]


def test_a_bookie_is_emptied_while_it_runs_and_forgotten_when_it_stops(secured: Secured, capfd: pytest.CaptureFixture[str]) -> None:
    """One command makes it read-only, moves its copies, waits until it is stopped, and deletes its cookie. A writer at work goes on."""
    with secured.connect() as bk:
        for index in range(BOOKIES):
            if not secured.cluster.is_running(index):
                revive(secured.cluster, index)
        ledgers = written(bk)
        bookie = holder(bk, ledgers)
        writer = None
        while writer is None or bookie not in writer.metadata.last_fragment.ensemble:
            writer = bk.create_ledger(**SIZES)
            writer.append(b"0")
        done, count = threading.Event(), 1

        def goes_on() -> None:
            nonlocal count
            while not done.wait(0.05):
                writer.append(b"%d" % count)
                count += 1

        working = threading.Thread(target=goes_on)
        working.start()
        command = [sys.executable, "-m", "bk_core.cli", "bookie", "decommission", bookie, "--read-only", "--delete-cookie", "--yes"]
        environment = {**os.environ, "BOOKKEEPER_METADATA_SERVICE_URI": secured.uri}
        process = subprocess.Popen(
            [*command, "--wait", "120", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert process.stderr is not None and process.stdout is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "stop it now" in line:
                    break
            else:
                raise AssertionError("".join(lines) + process.stdout.read())
            assert bookie in bk.store.bookies().readonly and bookie in bk.store.cookies()
            assert is_whole_without(bk, ledgers, bookie) and bookie not in bk.ledger_metadata(writer.ledger_id).last_fragment.ensemble
            secured.cluster.stop_bookie(secured.index(bookie))
            out, _ = process.communicate(timeout=60)
        finally:
            done.set()
            working.join(60)
            process.kill()
            process.wait()
        end = json.loads(out.splitlines()[-1])
        assert process.returncode == 0 and end["complete"] and end["cookieDeleted"] and not end["registered"]
        assert bookie not in bk.store.cookies()
        writer.close()
        assert has_all(bk, writer.ledger_id, count)
        for ledger_id in bk.list_ledgers():
            bk.delete_ledger(ledger_id)
    assert run(secured, "bookie", "decommission", bookie) == 1, "nobody knows it any more"
    log = secured.cluster.directory / f"bookie-{secured.index(bookie)}" / "bookie.log"
    before = log.stat().st_size
    with pytest.raises(BookieUnavailableError, match="ended with status"):
        secured.cluster.restart(secured.index(bookie))  # on its old data
    assert NO_COOKIE.search(log.read_bytes()[before:]), f"it ended for another reason: see {log}"


def test_a_dead_bookie_is_replaced_everywhere_and_forgotten(secured: Secured, bk: BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    ledgers = written(bk)
    bookie = holder(bk, ledgers)
    secured.ended(bookie)
    end = said(secured, capfd, "bookie", "decommission", bookie, "--delete-cookie", "--yes")[-1]
    assert end["complete"] and end["cookieDeleted"] and bookie not in bk.store.cookies()
    assert is_whole_without(bk, ledgers, bookie)
