"""An Apache bookie on two disks for ledgers, with two directories for journals: what the commands say while one disk is full, both are,
or one is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieUnavailableError
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENT, until
from tests.integration.small_disk import fill_with, small_disk

pytestmark = [pytest.mark.apache, pytest.mark.slow, pytest.mark.usefixtures("limits_of_disks")]
MIB = 1 << 20
DISK_MIB = 96
ONE: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


@pytest.fixture(scope="module", params=[True, False], ids=["any full disk", "all disks full"])
def stops_at_one(request: pytest.FixtureRequest) -> bool:
    """True for a bookie as it is by default, which is read-only when any of its disks is full."""
    return bool(request.param)


@pytest.fixture(scope="module")
def disks(stops_at_one: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    place = tmp_path_factory.mktemp("disks")
    with small_disk(place / "first", DISK_MIB) as first, small_disk(place / "second", DISK_MIB) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def cluster(stops_at_one: bool, disks: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    journals = tmp_path_factory.mktemp("journals")
    ledgers = ",".join(f"{disk}/ledgers" for disk in disks)
    lines = {
        "ledgerDirectories": ledgers,
        "indexDirectories": ledgers,
        "journalDirectories": f"{journals}/one,{journals}/two",
        "diskCheckInterval": 500,
        "entryLogSizeLimit": 4 * MIB,
        "diskUsageThreshold": "0.95",
        "diskUsageWarnThreshold": "0.90",
        "diskUsageLwmThreshold": "0.90",
        "readOnlyModeOnAnyDiskFullEnabled": None if stops_at_one else "false",
    }
    settings = ApacheSettings(lines=lines, java=quick_java.java_options(APACHE_VERSION))
    with quick_java.apache_cluster(1, tmp_path_factory.mktemp("cluster"), APACHE_VERSION, settings) as running:
        yield running


def said(cluster: LocalCluster, capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capfd.readouterr()
    cli.run([*arguments, "--uri", cluster.uri, "--json"])
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def shown(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (found,) = said(cluster, capfd, "bookie", "show", cluster.bookie_ids[0], "--no-ledgers")
    return found


def codes(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The findings about bookies and disks, with their words."""
    found = said(cluster, capfd, "cluster", "doctor")
    return {one["code"]: one["what"] for one in found if "code" in one and one["bookies"]}


def writes(client: bk_core.BookKeeper) -> None:
    with client.create_ledger(**ONE) as ledger:
        ledger.append_many([b"x" * 1000] * 100)
    with client.open_ledger(ledger.ledger_id) as reader:
        assert reader.read(0, 99) == [b"x" * 1000] * 100


def fills(disk: Path) -> None:
    fill_with(disk / "other")


def test_one_disk_that_is_full_stops_a_bookie_unless_it_is_told_to_go_on(
    cluster: LocalCluster, disks: list[Path], stops_at_one: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """It tells of all disks together, of which nearly half is free."""
    found = shown(cluster, capfd)
    assert len(found["cookie"]["ledgerDirs"]) == len(found["cookie"]["journalDirs"]) == 2
    assert found["probe"]["totalBytes"] == 2 * DISK_MIB * MIB and codes(cluster, capfd) == {}
    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        writes(client)
        fills(disks[0])
        log = cluster.directory / "bookie-0" / "bookie.log"
        until(lambda: "Adding it to filled dirs list" in log.read_text(), "the bookie does not see it")
        free = shown(cluster, capfd)["probe"]["freeBytes"]
        assert 0.3 * DISK_MIB * MIB < free < DISK_MIB * MIB
        if stops_at_one:
            until(lambda: shown(cluster, capfd)["state"] == "read-only", "it is not read-only")
            told = codes(cluster, capfd)
            assert told.keys() == {"bookie-read-only"} and "of its disks are used" in told["bookie-read-only"]
            assert "one of its 2 ledger directories is full" in advice(cluster, capfd)
        else:
            writes(client)
            assert shown(cluster, capfd)["state"] == "writable" and codes(cluster, capfd) == {}


def advice(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> str:
    (found,) = [one for one in said(cluster, capfd, "cluster", "doctor") if one.get("code") == "bookie-read-only"]
    assert found["command"] == f"bk bookie show {cluster.bookie_ids[0]}"
    return str(found["advice"])


def test_with_both_full_it_is_read_only_until_there_is_room(
    cluster: LocalCluster, disks: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        for disk in disks:
            fills(disk)
        until(lambda: shown(cluster, capfd)["state"] == "read-only", "it is not read-only")
        until(lambda: "disk-full" in codes(cluster, capfd), "its disks are not full")
        assert "% of its disks are used" in codes(cluster, capfd)["bookie-read-only"]
        (health,) = said(cluster, capfd, "bookie", "health")
        assert (health["state"], health["answer"]) == ("read-only", "answers") and health["freeBytes"] < 0.05 * health["totalBytes"]
        for disk in disks:
            (disk / "other").unlink()
        until(lambda: shown(cluster, capfd)["state"] == "writable", "it stays read-only")
        assert codes(cluster, capfd) == {}
        until(lambda: bool(client.bookies().writable), "the client does not see it")
        writes(client)


def test_without_one_of_its_disks_a_bookie_does_not_start(
    cluster: LocalCluster, disks: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """Ledgers of it are gone, and its cookie tells that a directory is missing."""
    cluster.stop_bookie(0)
    lost = disks[1] / "ledgers"
    lost.rename(disks[1] / "away")
    with pytest.raises(BookieUnavailableError):
        cluster.restart(0)
    assert shown(cluster, capfd)["state"] == "down" and "bookie-down" in codes(cluster, capfd)
    shutil.rmtree(lost, ignore_errors=True)  # the bookie may have made an empty one
    (disks[1] / "away").rename(lost)
    cluster.restart(0)
    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        writes(client)
