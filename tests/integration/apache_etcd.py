"""A cluster of Apache's bookies on Apache's own driver for etcd, with Java's client of the same driver beside ours (metadata.md 6).

``make apache-etcd`` runs it. It needs Java, Maven for the driver, javac for the judge, and an etcd. The gate plays the layout without
Apache (tests/conformance/test_etcd_apache_layout.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.errors import BookieUnavailableError, LedgerFencedError, NoSuchLedgerError
from bk_core.metadata import BookieView, open_store
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.wire.messages import Status
from tests.etcd_control import Control
from tests.integration.conftest import JavaClient, JavaClientError
from tests.integration.etcd_driver import DRIVERS, Cluster, World
from tests.integration.patience import PATIENT
from tests.integration.replicas import Direct
from tests.quick_java import OPTIONS

pytestmark = [pytest.mark.apache, pytest.mark.timeout(1200)]  # the first of them waits for Maven
PAYLOADS = [b"", b"one", bytes(range(256)), b"x" * 100_000] + [b"%d" % i for i in range(40)]
DIGESTS = ("CRC32", "MAC", "CRC32C", "DUMMY")
NO_SUCH_LEDGER = -7
PASSWORD = "secret"
AWAY_S = 25.0
"""More than twice the time of a bookie's lease, in which it would have registered again."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        made = World(tmp_path_factory.mktemp("apache-etcd"))
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def cluster(world: World) -> Any:
    return Cluster(world.uri)


@pytest.fixture
def java(java_client: JavaClient, world: World) -> JavaClient:
    return replace(java_client, libraries=world.libraries, java=DRIVERS, quick=OPTIONS)


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest, world: World) -> Iterator[bk_core.BookKeeper]:
    """Bookies count by their cookies: how long they keep their registration is the driver's secret."""
    with bk_core.connect(f"{world.uri}?bookies=cookies", protocol=request.param, limits=PATIENT) as opened:
        yield opened


@pytest.fixture
def one(world: World) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(f"{world.uri}?bookies=cookies", limits=PATIENT) as opened:
        yield opened


def _eventually(condition: Callable[[], bool], wait_s: float = 120.0) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.2)


@pytest.fixture
def registered(world: World) -> None:
    """Java places nothing where nobody is registered, so bookies that have lost their registration are started again."""
    for bookie in world.bookies:
        if bookie.bookie_id not in world.store.bookies().writable:
            bookie.kill()
            bookie.start()
    for bookie in world.bookies:
        bookie.wait_ready()


@pytest.mark.usefixtures("registered")
def test_java_writes_and_we_read_and_recover(client: bk_core.BookKeeper, cluster: Any, java: JavaClient) -> None:
    """One ledger for each digest, closed, and as many whose writer died."""
    options: dict[str, Any] = {"password": PASSWORD, "protocol": client.config.protocol, "quorums": (3, 2, 2)}
    for crash in (False, True):
        for each in java.write_each(cluster, PAYLOADS, DIGESTS, crash=crash, **options):
            assert each.ledger_id >> 56 < 128 and each.ledger_id & (1 << 56) - 1 > 0
            if crash:
                with client.open_ledger(each.ledger_id, password=PASSWORD.encode()) as reader:
                    assert not reader.is_closed and reader.read(0, 1) == PAYLOADS[:2]
                client.recover_ledger(each.ledger_id, password=PASSWORD.encode()).close()
                assert java.read(cluster, each.ledger_id, digest=_digest(client, each.ledger_id), password=PASSWORD).closed
            with client.open_ledger(each.ledger_id, password=PASSWORD.encode()) as reader:
                assert reader.is_closed and reader.read(0, reader.last_add_confirmed) == PAYLOADS
            assert each.ledger_id in list(client.list_ledgers())


def _digest(client: bk_core.BookKeeper, ledger_id: int) -> str:
    found = client.ledger_metadata(ledger_id).digest_type
    assert found is not None
    return {"HMAC": "MAC"}.get(found.name, found.name)


def test_we_write_and_java_reads_and_recovers(client: bk_core.BookKeeper, cluster: Any, java: JavaClient) -> None:
    """Java also fences: a writer of ours that is alive is told so."""
    for command in ("read", "recover"):
        ledgers: dict[int, str] = {}
        for digest in DIGESTS:
            writer = client.create_ledger(write_quorum_size=2, ack_quorum_size=2, digest_type=digest, password=PASSWORD.encode())
            writer.append_many(PAYLOADS)
            ledgers[writer.ledger_id] = digest
            if command == "read":
                writer.close()
        for each in java.read_each(cluster, command, ledgers, password=PASSWORD, protocol=client.config.protocol):
            assert each.closed and list(each.payloads) == PAYLOADS
            assert client.ledger_metadata(each.ledger_id).state is LedgerState.CLOSED
    with pytest.raises(LedgerFencedError):
        writer.append(b"late")
    writer.abandon()


@pytest.mark.usefixtures("registered")
def test_both_list_and_delete_the_same_ledgers(one: bk_core.BookKeeper, cluster: Any, java: JavaClient) -> None:
    theirs = [java.write(cluster, [b"theirs"]).ledger_id for _ in range(2)]
    ours = []
    for _ in range(2):
        with one.create_ledger() as ledger:
            ledger.append(b"ours")
        ours.append(ledger.ledger_id)
    assert sorted(java.list(cluster)) == list(one.list_ledgers()) and {*ours, *theirs} <= set(one.list_ledgers())
    one.delete_ledger(theirs[0])
    java.delete(cluster, ours[0])
    assert sorted(java.list(cluster)) == list(one.list_ledgers())
    with pytest.raises(JavaClientError) as failed:
        java.read(cluster, theirs[0])
    assert failed.value.code == NO_SUCH_LEDGER
    with pytest.raises(NoSuchLedgerError):
        one.open_ledger(ours[0])


def _has(bookie: str, ledger_id: int) -> bool:
    with closing(Direct(bookie)) as direct:
        return direct.read(ledger_id, 0)[0] is Status.OK


def test_bookies_collect_what_we_deleted_and_nothing_else(world: World, one: bk_core.BookKeeper) -> None:
    """With all our own nodes there: a log, a mark, a lock, a registration that is not empty."""
    kept, dropped = (one.create_ledger(ack_quorum_size=3) for _ in range(2))
    log = one.create_log("collected")
    with log.writer() as writer:
        writer.append(b"entry")
    marks = world.store.underreplication()
    marks.mark(kept.ledger_id, [world.bookies[0].bookie_id], 1)
    lock = marks.lock(kept.ledger_id, "here")
    for ledger in (kept, dropped):
        ledger.append(b"entry")
        ledger.close()
    listed = [segment.ledger_id for segment in log.segments()]
    bookies = [bookie.bookie_id for bookie in world.bookies]
    for _ in range(2):  # the second shows that a whole collection has passed since the first
        one.delete_ledger(dropped.ledger_id)
        _eventually(lambda: not any(_has(bookie, dropped.ledger_id) for bookie in bookies))
        with one.create_ledger(ack_quorum_size=3) as dropped:
            dropped.append(b"entry")
    for ledger_id in (kept.ledger_id, *listed):
        named = one.ledger_metadata(ledger_id).fragments[0].ensemble
        assert all(_has(bookie, ledger_id) for bookie in named)
    assert [payload for run in log.reader() for payload in run.payloads()] == [b"entry"]
    mark = marks.mark_of(kept.ledger_id)
    assert lock is not None and mark is not None and marks.unmark(mark)
    lock.release()


@pytest.mark.usefixtures("registered")
def test_a_bookie_of_ours_is_seen_by_java(world: World, one: bk_core.BookKeeper, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its registration holds an address, which Java passes over, and lasts."""
    with EmbeddedBookie(tmp_path_factory.mktemp("ours"), store=world.store) as bookie:
        told = world.shell("listbookies", "-rw")
        assert all(name in told for name in (bookie.bookie_id, *(each.bookie_id for each in world.bookies)))
        assert bookie.bookie_id in one.bookies().writable
        with one.create_ledger(ensemble_size=4, write_quorum_size=4, ack_quorum_size=4) as ledger:
            ledger.append(b"on all four")
        assert _has(bookie.bookie_id, ledger.ledger_id)
        assert "on all four" in world.shell("readledger", "-l", str(ledger.ledger_id), "-m")
    one.delete_ledger(ledger.ledger_id)
    one.delete_cookie(bookie.bookie_id)


def test_a_cluster_that_we_made_is_apaches(world: World, cluster: Any, java: JavaClient, capsys: pytest.CaptureFixture[str]) -> None:
    uri = world.uri_of("/bk/c2")
    assert cli.run(["cluster", "init", uri, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["cluster"]
    control = Control(world.etcd.connect_string)
    assert {key.removeprefix("/bk/c2") for key in control.keys("/bk/c2")} <= {key.removeprefix("/bk/c1") for key in control.keys("/bk/c1")}
    with closing(open_store(uri)) as store:
        bookie = world.bookie("of-c2", uri, [store])
        bookie.start()
        bookie.wait_ready()
        assert made in store.read_cookie(bookie.bookie_id).data.decode()
        written = java.run(Cluster(uri), "write", "v3", b"b25l\n", e=1, w=1, a=1)[0]["ledger"]  # type: ignore[arg-type]
        with bk_core.connect(uri) as client, client.open_ledger(written) as reader:
            assert reader.read(0, 0) == [b"one"]
        bookie.stop()


def test_bookies_lose_their_registration_and_serve_on(
    world: World, cluster: Any, java: JavaClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the servers have ended their leases, and never again. What is written by their cookies then, Java reads; nothing is repaired."""
    control = Control(world.etcd.connect_string)
    for bookie in world.bookies:
        found = control.json("get", f"{world.scope}/bookies/writable/{bookie.bookie_id}").get("kvs")
        if found:  # else it has lost it by itself
            control.revoke(found[0]["lease"])
    _eventually(lambda: not world.store.bookies().writable)
    views: list[BookieView] = []
    with closing(open_store(world.uri)) as watching:
        watching.watch_bookies(views.append)
        time.sleep(AWAY_S)
    assert views == [BookieView((), ())]
    assert all(bookie.running for bookie in world.bookies)
    assert cli.run(["bookie", "ls", "--uri", world.uri, "--json"]) == 0
    states = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert {one["state"] for one in states} == {"down"}
    with bk_core.connect(f"{world.uri}?bookies=cookies", limits=PATIENT) as client:
        with client.create_ledger(ack_quorum_size=3) as ledger:
            ledger.append_many(PAYLOADS)
        metadata = client.ledger_metadata(ledger.ledger_id)
    assert list(java.read(cluster, ledger.ledger_id).payloads) == PAYLOADS
    with bk_core.connect(world.uri, limits=PATIENT) as client:
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, reader.last_add_confirmed) == PAYLOADS
        report = client.repair_ledger(ledger.ledger_id)
        assert report.is_complete and client.ledger_metadata(ledger.ledger_id) == metadata
        found = {one.code for one in client.doctor().findings}
        assert "bookie-unregistered" in found and not found & {"bookie-down", "no-live-copy", "under-replicated"}
