"""A local cluster: what survives a stop, what dies with a kill, and that Apache's client is served by both kinds of bookies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bk_core.bookie.apache import find_java, resolve
from bk_core.bookie.children import Child, accepts_connections, free_port
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.local_cluster import local_cluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.cli.local import started_at_usual
from bk_core.errors import BookieUnavailableError, InvalidArgumentError, ZooKeeperProcessError

if TYPE_CHECKING:
    from conftest import JavaClient

    from bk_core.bookie.local_cluster import LocalCluster

PAYLOADS = [b"", b"one", bytes(range(256)), b"x" * 100_000] + [b"%d" % i for i in range(40)]


@pytest.mark.apache
@pytest.mark.parametrize("cluster", ["embedded"], indirect=True)  # Apache's own bookies: test_java.py
@pytest.mark.parametrize(
    ("digest", "protocol"),
    [
        ("CRC32C", "v2"),
        pytest.param("MAC", "v2", marks=pytest.mark.deep),
        pytest.param("CRC32", "v3", marks=pytest.mark.deep),
        ("DUMMY", "v3"),
    ],
)
def test_java_client_writes_and_reads(cluster: LocalCluster, java_client: JavaClient, digest: str, protocol: str) -> None:
    written = java_client.write(cluster, PAYLOADS, digest=digest, protocol=protocol, password="secret")
    read = java_client.read(cluster, written.ledger_id, digest=digest, protocol=protocol, password="secret")
    assert written.closed
    assert read.closed
    assert list(read.payloads) == PAYLOADS
    assert read.length == written.length == sum(map(len, PAYLOADS))


@pytest.mark.parametrize("cluster", ["embedded", pytest.param("apache", marks=pytest.mark.deep)], indirect=True)
@pytest.mark.apache
def test_java_client_recovers_what_a_crashed_writer_left(cluster: LocalCluster, java_client: JavaClient) -> None:
    crashed = java_client.write(cluster, PAYLOADS, crash=True)
    seen = java_client.read(cluster, crashed.ledger_id)
    assert not seen.closed
    assert seen.last_entry_id in (len(PAYLOADS) - 2, len(PAYLOADS) - 1)  # the last add's own confirmation was never written
    recovered = java_client.recover(cluster, crashed.ledger_id)
    assert recovered.closed
    assert list(recovered.payloads) == PAYLOADS
    java_client.delete(cluster, crashed.ledger_id)
    assert crashed.ledger_id not in java_client.list(cluster)


@pytest.mark.parametrize("cluster", ["embedded", pytest.param("apache", marks=pytest.mark.deep)], indirect=True)
@pytest.mark.apache
@pytest.mark.deep
def test_java_client_reads_after_a_bookie_was_killed_and_came_back(cluster: LocalCluster, java_client: JavaClient) -> None:
    written = java_client.write(cluster, PAYLOADS, quorums=(3, 3, 3))
    cluster.kill(0)
    assert not cluster.is_running(0)
    assert list(java_client.read(cluster, written.ledger_id).payloads) == PAYLOADS
    cluster.restart(0)
    cluster.kill(1)
    cluster.kill(2)
    assert list(java_client.read(cluster, written.ledger_id).payloads) == PAYLOADS


def test_data_ports_and_ids_are_found_again(tmp_path: Path) -> None:
    with local_cluster(2, tmp_path) as cluster:
        uri, ids = cluster.uri, cluster.bookie_ids
        assert cluster.add_bookie() == 2
        ids = cluster.bookie_ids
        with pytest.raises(InvalidArgumentError, match="already running"):
            local_cluster(1, tmp_path)
    assert not any(accepts_connections(int(bookie.rpartition(":")[2])) for bookie in ids)
    with local_cluster(1, tmp_path) as cluster:
        assert (cluster.uri, cluster.bookie_ids) == (uri, ids)
        assert all(cluster.is_running(index) for index in range(3))


def test_a_port_is_asked_for_and_kept(tmp_path: Path) -> None:
    port = free_port()
    with local_cluster(1, tmp_path / "a", port=port) as cluster:
        assert cluster.uri == f"zk://127.0.0.1:{port}/ledgers"
        with pytest.raises(InvalidArgumentError, match=f"port {port} is taken on 127.0.0.1; end the program .*--port"):
            local_cluster(1, tmp_path / "b", port=port)
    with local_cluster(1, tmp_path / "a") as cluster:
        assert cluster.uri == f"zk://127.0.0.1:{port}/ledgers"
    with local_cluster(1, tmp_path / "a", port=0) as cluster:
        assert cluster.uri != f"zk://127.0.0.1:{port}/ledgers"
    with pytest.raises(InvalidArgumentError, match="leave one of them out"):
        local_cluster(1, port=port, zookeeper="127.0.0.1:1")


def test_a_kept_port_that_another_program_took_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.bookie.ports._PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "cluster.json").write_text(f'{{"kind": "embedded", "zookeeper_port": {port}, "bookie_ports": []}}')
        with pytest.raises(InvalidArgumentError, match=f"port {port}, which {tmp_path} keeps, is taken"):
            local_cluster(1, tmp_path)


def test_a_zookeeper_is_not_mistaken_for_another_on_its_port(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path / "a") as first, pytest.raises(ZooKeeperProcessError, match=f"did not start on port {first.port}"):
        ZooKeeperProcess(tmp_path / "b", first.port).start()


def test_bk_local_is_where_it_was_asked_to_be(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "bk_core.cli", "local", "--bookies", "1", "--port", str(port), "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as local:
        assert local.stdout is not None
        lines = iter(local.stdout.readline, "")
        exported = next(line for line in lines if "export " in line)
        local.terminate()
    assert exported.strip() == f"export BOOKKEEPER_METADATA_SERVICE_URI='zk://127.0.0.1:{port}/ledgers'"


def test_temporary_directory_is_removed() -> None:
    with local_cluster(1) as cluster:
        directory = cluster.directory
        assert (directory / "cluster.json").exists()
        cluster.stop_bookie(0)
        cluster.wait_unregistered(0)
        with pytest.raises(InvalidArgumentError, match="no bookie 1"):
            cluster.kill(1)
        assert not cluster.is_closed
    assert not directory.exists() and cluster.is_closed
    cluster.close()


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from bk_core.bookie.local_cluster import local_cluster\n"
        f"cluster = local_cluster(1, {str(tmp_path)!r}); print(cluster.pid(0), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        bookie = int(parent.stdout.readline())
        os.kill(bookie, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{bookie}").exists() and "Z" not in Path(f"/proc/{bookie}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < deadline, "the bookie outlived its parent"
        time.sleep(0.05)


@pytest.mark.parametrize("group", [False, True], ids=["the process", "its group, as Jupyter does"])
def test_a_temporary_directory_goes_with_a_killed_parent(group: bool) -> None:
    program = (
        "import time; from bk_core.bookie.local_cluster import local_cluster\n"
        "cluster = local_cluster(1); print(cluster.directory, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        assert (directory / "cluster.json").exists()
        (os.killpg if group else os.kill)(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while directory.exists():
        assert time.monotonic() < deadline, "the directory outlived the parent"
        time.sleep(0.05)


def test_an_interrupt_while_it_closes_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C kills what has not stopped yet, and whoever goes on in the same process may start a cluster there again."""
    program = (
        "from bk_core.bookie.local_cluster import local_cluster\n"
        f"cluster = local_cluster(3, {str(tmp_path)!r}); print(*map(cluster.pid, range(3)), flush=True); input()\n"
        "try:\n    cluster.close()\nexcept KeyboardInterrupt:\n    cluster.close(); print('interrupted', flush=True)\n"
        f"with local_cluster(3, {str(tmp_path)!r}) as cluster: print(*map(cluster.pid, range(3)), flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        bookies = [int(pid) for pid in parent.stdout.readline().split()]
        os.kill(bookies[0], signal.SIGSTOP)
        status = Path(f"/proc/{bookies[0]}/status")
        deadline = time.monotonic() + 20
        while "State:\tT" not in status.read_text():  # of two signals that are pending, the kernel would deliver SIGTERM first
            assert time.monotonic() < deadline, "the bookie was not stopped"
            time.sleep(0.01)
        parent.stdin.write("\n")
        parent.stdin.flush()
        while not int(status.read_text().split("ShdPnd:")[1].split()[0], 16) >> signal.SIGTERM - 1 & 1:
            assert time.monotonic() < deadline, "the bookie was not asked to stop"
            time.sleep(0.01)
        parent.send_signal(signal.SIGINT)
        assert parent.stdout.readline() == "interrupted\n"
        assert not any(Path(f"/proc/{pid}").exists() for pid in bookies)
        assert len(parent.stdout.readline().split()) == 3
    assert parent.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "silent"])
def test_it_ends_soon_without_its_metadata_store(tmp_path: Path, number: signal.Signals) -> None:
    """Nobody waits for a store that does not answer: registrations lapse with their sessions. The bookies end by themselves."""
    with local_cluster(2, tmp_path) as cluster:
        zookeeper = cluster._keeper
        assert isinstance(zookeeper, ZooKeeperProcess) and zookeeper.pid is not None
        os.kill(zookeeper.pid, number)
        processes = [one._child for one in cluster._bookies if isinstance(one, EmbeddedBookieProcess)]
        begun = time.monotonic()
        cluster._stop_bookies()
        assert time.monotonic() - begun < 9
        if number == signal.SIGSTOP:
            os.kill(zookeeper.pid, signal.SIGCONT)  # to end it, too
    for at, process in enumerate(processes):
        assert process is not None and process._process.returncode == 0, "it was not killed"
        log = (tmp_path / f"bookie-{at}" / "bookie.log").read_text()
        assert log.count("its registration lapses with its session") == 1, log


def test_child_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    child = Child("bookie x", [sys.executable, "-c", "raise SystemExit('no such cluster')"], tmp_path / "bookie.log")
    with pytest.raises(BookieUnavailableError, match=r"(?s)bookie x ended with status 1.*no such cluster"):
        child.wait_until(lambda: False, 30)


def test_data_of_another_kind_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"kind": "apache 4.18.0", "zookeeper_port": 1, "bookie_ports": [2]}')
    with pytest.raises(InvalidArgumentError, match="kind 'apache 4.18.0', not 'embedded'"):
        local_cluster(1, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "lock"]


def test_bad_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match=r"within 1\.\.64"):
        local_cluster(0)
    with pytest.raises(InvalidArgumentError, match="no version"):
        resolve("latest")


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BookieUnavailableError, match="no Java 17 or newer"):
        find_java()


@pytest.mark.apache
def test_missing_maven_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = Path(find_java()).resolve()
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BK_CACHE", str(tmp_path))
    with pytest.raises(BookieUnavailableError, match="Maven"):
        resolve("4.18.0")


def test_the_usual_port_that_another_program_takes_meanwhile_is_left_to_it() -> None:
    """Two `bk local` that begin together find it free, both of them. Another failure is told as it is."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with started_at_usual(partial(local_cluster, 1), taken) as cluster:
            assert cluster.uri != f"zk://127.0.0.1:{taken}/ledgers" and cluster.is_running(0)
    with pytest.raises(InvalidArgumentError, match="bookies must be"):
        started_at_usual(partial(local_cluster, 0), taken)


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
def test_zookeeper_keeps_its_data_where_it_was_told(tmp_path: Path, locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the name of the directory is: its file of settings is one of Java's properties. And nobody else may read what is there."""
    monkeypatch.setenv("LC_ALL", locale)
    directory = tmp_path / "ünï 日本 😀" / "a\\tb=c #d"
    with ZooKeeperProcess(directory) as keeper:
        assert keeper.running
        assert (directory / "data" / "version-2").is_dir()
    assert sorted(path.name for path in directory.iterdir()) == ["data", "port", "zoo.cfg", "zookeeper.log"]
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert [path.name for path in tmp_path.iterdir()] == [directory.parent.name]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory, directory / "data"))
