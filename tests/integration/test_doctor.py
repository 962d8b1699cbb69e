"""``bk cluster doctor`` on clusters of real processes that are broken as operators meet it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.metadata import open_store
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.dead_bookies import unregister
from tests.integration.patience import PATIENT
from tests.integration.small_disk import fill_with, small_disk


def doctor(cluster: LocalCluster, capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The findings of the command line, but for those about the disk of the machine that tests run on."""
    capfd.readouterr()
    status = cli.run(["cluster", "doctor", "--uri", cluster.uri, "--json", "--timeout", "10", *arguments])
    out = capfd.readouterr().out
    *findings, summary = [json.loads(line) for line in out.splitlines()]
    assert status == (0 if summary["good"] else 1), out
    return [one for one in findings if not one["code"].startswith("disk")]


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        for log in client.logs():  # of the tests before
            client.log(log).delete()
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id, even_if_listed=True)
        yield client
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id, even_if_listed=True)


def ledger_on_all(client: bk_core.BookKeeper) -> int:
    with client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3) as ledger:
        ledger.append_many([b"x"] * 20)
    return int(ledger.ledger_id)


MARKED = ("marked", "marked-unattended", "marked-stuck", "autorecovery-absent")


def unmarked(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings without the marks of Apache's auditor, which may be as fast as a test, and stay longer than what they are about."""
    return [one for one in found if one["code"] not in MARKED]


def test_a_bookie_dies_and_comes_back(cluster: LocalCluster, client: bk_core.BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    everywhere = len(cluster.bookie_ids)  # a test before may have added a bookie
    with client.create_ledger(ensemble_size=everywhere, write_quorum_size=everywhere, ack_quorum_size=everywhere) as ledger:
        ledger.append_many([b"x"] * 20)
    ledger_id = ledger.ledger_id
    assert unmarked(doctor(cluster, capfd)) == []
    bookie = cluster.bookie_ids[1]
    cluster.kill(1)
    now = unmarked(doctor(cluster, capfd))  # its registration stays for a while, and it refuses
    assert {one["code"] for one in now} <= {"bookie-unreachable", "under-replicated", "bookie-down"} and all(
        one["bookies"] == [bookie] for one in now
    )
    unregister(cluster, 1)
    down, *short = doctor(cluster, capfd)
    assert (down["code"], down["bookies"]) == ("bookie-down", [bookie])
    told = {one["code"] for one in short if ledger_id in one["ledgers"]}
    assert {one["code"] for one in short} <= {"under-replicated", *MARKED}
    assert told & {"under-replicated", *MARKED} if cluster.kind.startswith("apache") else told == {"under-replicated"}
    cluster.restart(1)
    assert unmarked(doctor(cluster, capfd)) == []


def test_a_bookie_that_stands_still(cluster: LocalCluster, client: bk_core.BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    pid = cluster.pid(2)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        capfd.readouterr()
        assert cli.run(["cluster", "doctor", "--uri", cluster.uri, "--json", "--timeout", "1"]) == 1
        codes = {json.loads(line).get("code") for line in capfd.readouterr().out.splitlines()}
    finally:
        os.kill(pid, signal.SIGCONT)
    # its session may end on a slow machine while it stands
    assert codes & {"bookie-unreachable", "bookie-down"}
    cluster.restart(2)


def test_a_recovery_that_cannot_end(cluster: LocalCluster, client: bk_core.BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    ledger.append(b"x")
    metadata, version = client._load(ledger.ledger_id)
    client.store.write_ledger(ledger.ledger_id, metadata_codec.encode(metadata.in_recovery()), version)
    (stuck,) = doctor(cluster, capfd, "--stuck-after", "0ms")
    assert (stuck["code"], stuck["ledgers"]) == ("recovery-stuck", [ledger.ledger_id])
    assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.IN_RECOVERY  # looking has not ended it
    assert cli.run([*stuck["command"].split()[1:], "--uri", cluster.uri]) == 0
    assert doctor(cluster, capfd, "--stuck-after", "0ms") == []


def test_a_cookie_and_a_ledger_of_a_log_are_deleted(
    cluster: LocalCluster, client: bk_core.BookKeeper, capfd: pytest.CaptureFixture[str]
) -> None:
    log = client.create_log("events", entry_format="raw")
    with log.writer() as writer:
        writer.append(b"row")
    (segment,) = log.segments()
    client.store.delete_ledger(segment.ledger_id)
    bookie = cluster.bookie_ids[0]
    cookie = client.store.read_cookie(bookie)
    client.store.delete_cookie(bookie, cookie.version)
    try:
        found = doctor(cluster, capfd)
    finally:
        client.store.write_cookie(bookie, cookie.data, None)
        log.delete()
    assert [(one["code"], one["bookies"], one["ledgers"], one["logs"]) for one in found] == [
        ("log-ledgers-missing", [], [segment.ledger_id], ["events"]),
        ("cookie-missing", [bookie], [], []),
    ]


@pytest.mark.usefixtures("limits_of_disks")
def test_a_full_disk(running_clusters: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cluster = running_clusters("embedded")
    with small_disk(tmp_path / "disk", 128) as disk, closing(open_store(cluster.uri)) as store:
        bookie = EmbeddedBookie(disk / "bookie", store=store).start()
        try:
            fill_with(disk / "other")
            capfd.readouterr()
            for _ in range(200):  # the bookie looks at its disk once a second
                cli.run(["cluster", "doctor", "--uri", cluster.uri, "--json"])
                *found, _ = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
                mine = {one["code"] for one in found if bookie.bookie_id in one["bookies"]}
                if "bookie-read-only" in mine:
                    break
            assert mine == {"disk-full", "bookie-read-only"}
        finally:
            bookie.close()
            store.delete_cookie(bookie.bookie_id, store.read_cookie(bookie.bookie_id).version)
