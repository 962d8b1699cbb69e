"""A local cluster whose metadata is in etcd: logs, the command `bk`, and servers that go while both are at work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.etcd_process import EtcdCluster, EtcdProcess, EtcdProcessError, find_etcd
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(3, metadata="etcd") as running:
        yield running


def bk(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.run([*arguments, "--uri", cluster.uri]) == status, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_log_is_written_and_read_and_bk_shows_all_of_it(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with bk_core.connect(cluster.uri) as client:
        log = client.create_log("events")
        with log.writer() as writer:
            for number in range(50):
                writer.append(b"%d" % number)
        assert [payload for run in log.reader() for payload in run.payloads()] == [b"%d" % number for number in range(50)]
        assert client.doctor().findings == ()
        (ledger,) = client.ledgers()
        assert abs(ledger.created_at.timestamp() - time.time()) < 3600  # its own metadata tells it
    assert "events" in bk(cluster, capsys, "log", "ls")
    (shown,) = map(json.loads, bk(cluster, capsys, "ledger", "ls", "--json").splitlines())
    assert shown["state"] == "CLOSED" and abs(shown["createdMs"] - time.time() * 1000) < 3_600_000
    listed = bk(cluster, capsys, "bookie", "ls")
    assert all(bookie in listed for bookie in cluster.bookie_ids)
    assert json.loads(bk(cluster, capsys, "cluster", "info", "--json"))["bookies"]
    assert "no cluster" not in bk(cluster, capsys, "cluster", "doctor")
    bk(cluster, capsys, "log", "rm", "events", "--yes")
    assert "events" not in bk(cluster, capsys, "log", "ls")


def test_a_program_that_closes_nothing_ends_at_once_and_without_a_word(cluster: LocalCluster) -> None:
    program = (
        "import sys, bk_core\nclient = bk_core.connect(sys.argv[1])\n"
        "ledger = client.create_ledger()\nledger.append(b'x')\nprint(ledger.ledger_id)\n"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, cluster.uri], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip().isdecimal()
    assert time.monotonic() - begun < 40


FORKED = """
import os, sys, threading, bk_core
from bk_core.errors import ForkedClientError
client = bk_core.connect(sys.argv[1])
stop = threading.Event()
def work():
    while not stop.is_set():
        client.bookies()
        client.store.cluster_id()
worker = threading.Thread(target=work)
worker.start()
for _ in range(8):
    pid = os.fork()
    if not pid:
        told = []
        for call in (client.bookies, lambda: bk_core.connect(sys.argv[1])):
            try:
                call()
            except ForkedClientError as error:
                told.append(str(error))
        client.close()
        os._exit(0 if len(told) == 2 and "forked" in told[1] and "spawn" in told[1] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert client.store.cluster_id()
stop.set()
worker.join()
client.close()
"""


def test_a_forked_child_is_told_and_disturbs_nothing(cluster: LocalCluster) -> None:
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", FORKED, cluster.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_the_same_directory_is_the_same_cluster(tmp_path: Path) -> None:
    with local_cluster(1, tmp_path, metadata="etcd") as first:
        uri = first.uri
        with bk_core.connect(uri) as client, client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
            ledger.append(b"kept")
            ledger_id = ledger.ledger_id
    with pytest.raises(InvalidArgumentError, match="holds a cluster with its metadata in etcd, not in zookeeper"):
        local_cluster(1, tmp_path)
    with local_cluster(1, tmp_path, metadata="etcd") as second, bk_core.connect(second.uri) as client:
        assert second.uri == uri
        with client.open_ledger(ledger_id) as found:
            assert found.read(0, 0) == [b"kept"]


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, told in (
        ({"metadata": "consul"}, "metadata must be one of zookeeper, etcd, not 'consul'"),
        ({"metadata": "etcd", "apache": "4.18.0"}, "Apache's bookies cannot keep their metadata in this etcd"),
        ({"metadata": "etcd", "zookeeper": "etcd://h:1/ledgers"}, "leave metadata='etcd' out"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            local_cluster(1, tmp_path, **settings)  # type: ignore[arg-type]
    monkeypatch.setenv("BK_ETCD", str(tmp_path / "none"))
    with pytest.raises(EtcdProcessError, match="BK_ETCD names .*none', which is no program"):
        local_cluster(1, tmp_path / "a", metadata="etcd")
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho it is broken\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BK_ETCD", str(broken))
    with pytest.raises(EtcdProcessError, match="(?s)etcd did not start on port .*it is broken"):
        EtcdProcess(tmp_path / "b").start()


def test_the_program_is_looked_for_in_the_variable_on_the_path_and_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BK_ETCD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = find_etcd()
    assert wheel.endswith("etcdbin/etcd")
    script = tmp_path / "etcd"
    script.write_text("#!/usr/bin/python\n")  # what pip makes of the wheel
    script.chmod(0o755)
    assert find_etcd() == wheel
    script.write_bytes(b"\x7fELF")
    assert find_etcd() == str(script)


def test_writers_go_on_while_servers_of_etcd_go(tmp_path: Path) -> None:
    """Each server in turn is killed and comes back; a log gets every entry once, and the bookies stay registered."""
    with ExitStack() as stack:
        servers = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        uri = f"etcd://{servers.connect_string}/ledgers"
        with local_cluster(3, tmp_path / "cluster", zookeeper=uri) as cluster:
            with bk_core.connect(uri, metadata_timeout_s=3.0) as client:
                log = client.create_log("events")
                with log.writer() as writer:
                    number = 0
                    for server in servers.servers:
                        server.kill()
                        for _ in range(5):
                            writer.append(b"%d" % number)
                            writer.roll()  # a new segment, which takes the metadata store
                            number += 1
                        server.start()
                assert [payload for run in log.reader() for payload in run.payloads()] == [b"%d" % one for one in range(number)]
                assert set(client.bookies().writable) == set(cluster.bookie_ids)
