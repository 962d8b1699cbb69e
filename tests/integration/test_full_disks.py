"""A local cluster on a full disk, and a bookie's process whose output, descriptors or directory fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.local_cluster import local_cluster
from bk_core.bookie.watch import ClusterWatch
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import DiskFullError
from tests.integration.small_disk import fill_with, free_bytes, small_disk

_SERVER = """
import os, sys, threading
from bk_core.bookie import server
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.metadata import open_store

store = open_store("memory://full")
store.initialize_cluster()
start = EmbeddedBookie.start

def started(bookie):
    start(bookie)
    os.write(int(sys.argv[2]), b"%d\\n" % bookie.port)
    return bookie

EmbeddedBookie.start = started
raise SystemExit(server.main(["--uri", "memory://full", "--directory", sys.argv[1]]))
"""


def test_a_local_cluster_on_a_full_disk_says_where_and_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        with pytest.raises(DiskFullError, match=r"MiB free, and a local cluster needs \d+: make room there") as raised:
            local_cluster(1, disk / "cluster")
        assert str(disk / "cluster") in str(raised.value) and "\n" not in str(raised.value)
        fill_with(disk / "others")
        with pytest.raises(DiskFullError):
            local_cluster(1, disk / "other")
        done = subprocess.run(
            [sys.executable, "-m", "bk_core.cli", "local", "--port", "0", "--dir", str(disk / "cluster")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "BK-DISK-FULL" in done.stderr


def test_a_cluster_whose_disk_gets_full_is_watched_and_its_bookies_come_back(tmp_path: Path) -> None:
    """ZooKeeper has another disk, as it ends on a full one. The bookie's process starts where not one byte is free."""
    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper, small_disk(tmp_path / "disk", 160) as disk:
        with local_cluster(1, disk / "cluster", zookeeper=zookeeper.connect_string) as cluster, bk_core.connect(cluster.uri) as bk:
            watch = ClusterWatch(cluster)
            assert watch.news() == []
            with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                for number in range(50):
                    ledger.append(b"%d" % number)
            fill_with(disk / "others")
            (line,) = watch.news()
            assert str(disk) in line and "nearly full" in line and watch.news() == []
            cluster.kill(0)
            (line,) = watch.news()
            assert cluster.bookie_ids[0] in line and line.endswith("has ended")
            fill_with(disk / "others")
            assert free_bytes(disk) == 0
            cluster.restart(0)
            with bk.open_ledger(ledger.ledger_id) as reader:
                assert reader.read(0, 49) == [b"%d" % number for number in range(50)]
            (disk / "others").unlink()
            assert watch.news() == [f"the disk of {cluster.directory} has room again"]


def test_output_onto_a_full_disk_does_not_end_a_bookie(tmp_path: Path) -> None:
    """Neither the line that says that it is ready, nor a line of its log. It ends well, too."""
    reading, writing = os.pipe()
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", _SERVER, str(tmp_path), str(writing)]
        process = subprocess.Popen(command, stdout=full, stderr=full, pass_fds=(writing,))
    os.close(writing)
    with open(reading, "rb") as ready:
        assert int(ready.readline()) > 0
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0


def _lines(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    return [line for line in done.stderr.splitlines() if " INFO " not in line]


def test_a_bookie_that_cannot_open_more_files_says_so_in_one_line(tmp_path: Path) -> None:
    """And a storage that it could not look at for that reason is not called lost."""
    server = [sys.executable, "-m", "bk_core.bookie.server", "--uri", "memory://x", "--directory"]
    (line,) = _lines(["sh", "-c", 'ulimit -n 6; exec "$@"', "sh", *server, str(tmp_path)])
    assert line.startswith("bookie cannot run: ") and "Too many open files" in line


def test_a_directory_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=60)
        server = [sys.executable, "-m", "bk_core.bookie.server", "--uri", "memory://x", "--directory"]
        (line,) = _lines([*server, str(disk / "data")])
        assert line.startswith("bookie cannot run: ") and "Read-only file system" in line and str(disk / "data") in line
