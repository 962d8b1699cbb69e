"""A second cluster in one ZooKeeper, made by ``bk cluster init``: what is refused, and that Apache's shell and bookies accept it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.apache import ApacheBookie, java_command, resolve
from bk_core.bookie.children import free_port
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.zookeeper_process import ZooKeeperProcess, find_java
from bk_core.errors import BookieUnavailableError, NotEnoughBookiesError, ZooKeeperProcessError
from bk_core.metadata import open_store
from tests import quick_java
from tests.integration.patience import PATIENT

SHELL = "org.apache.bookkeeper.bookie.BookieShell"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    try:
        find_java()
    except ZooKeeperProcessError as error:
        pytest.skip(str(error))
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), free_port())
    process.start()
    yield process
    process.stop()


def init(uri: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert cli.run(["cluster", "init", uri, *(["--json"] if status == 0 else [])]) == status
    out, err = capsys.readouterr()
    return err if status else str(json.loads(out)["cluster"])


def test_places_that_are_taken_are_refused(zookeeper: ZooKeeperProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-13."""
    host = f"zk://127.0.0.1:{zookeeper.port}"
    first = init(f"{host}/one/ledgers", capsys)
    assert first in init(f"{host}/one/ledgers", capsys, 1)
    for inside in ("/one/ledgers/two", "/one/ledgers/two/three", "/one/ledgers-logs", "/one/ledgers-logs/two"):
        text = init(host + inside, capsys, 1)
        assert f"{inside} would lie within the cluster {first} at /one/ledgers" in text and "choose a path beside it" in text
    assert "/one exists already: it is no cluster" in init(f"{host}/one", capsys, 1)
    second = init(f"{host}/one/second", capsys)
    store = open_store(f"{host}/one/second")
    assert store.cluster_id() == second != first
    store.check_cluster()
    store.close()
    third = init(f"{host}/ledgers?chroot=/deep/down", capsys)
    assert third in init(f"{host}/deep/down/ledgers", capsys, 1)
    with pytest.raises(NotEnoughBookiesError, match="none is registered in this cluster"), bk_core.connect(f"{host}/one/second") as bk:
        bk.create_ledger()


def test_two_clusters_side_by_side_keep_their_ledgers_apart(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uris = [f"zk://127.0.0.1:{zookeeper.port}/side/{name}" for name in ("a", "b")]
    with ExitStack() as stack:
        for number, uri in enumerate(uris):
            init(uri, capsys)
            bookie = EmbeddedBookieProcess(tmp_path / str(number), uri, free_port())
            stack.callback(bookie.stop)
            bookie.start()
            bookie.wait_ready()
        for number, uri in enumerate(uris):
            with bk_core.connect(uri) as bk:
                with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                    ledger.append(uri.encode())
                assert list(bk.list_ledgers()) == [ledger.ledger_id]
            assert cli.run(["bookie", "ls", "--uri", uri, "--json"]) == 0
            (listed,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert (listed["state"], listed["address"], listed["cookie"]) == ("writable", listed["bookie"], True), number


@pytest.mark.apache
@pytest.mark.parametrize("scheme", ["zk", pytest.param("zk+longhierarchical", marks=pytest.mark.deep)])
def test_an_apache_bookie_serves_a_cluster_made_here(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    try:
        libraries = resolve("4.18.0")
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    uri = f"{scheme}://127.0.0.1:{zookeeper.port}/{scheme.replace('+', '-')}/ledgers"
    made = init(uri, capsys)
    store = open_store(uri)
    bookie = ApacheBookie(
        libraries, tmp_path / "bookie", uri, free_port(), lambda one: one in store.bookies().writable, quick_java.bookies()
    )
    with ExitStack() as stack:
        stack.callback(store.close)
        asked = ["-conf", str(bookie._conf), "whatisinstanceid"]
        command = java_command(libraries, bookie._configuration, SHELL, asked, options=bookie._options)
        shell = subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
        assert shell.returncode == 0, shell.stdout + shell.stderr
        with pytest.raises(BookieUnavailableError, match="initnewcluster ended with status"):  # Apache's own sees that there is one
            bookie.init_new_cluster()
        stack.callback(bookie.stop)
        bookie.start()
        bookie.wait_ready()
        assert made.encode() in store.read_cookie(bookie.bookie_id).data
        bk = stack.enter_context(bk_core.connect(uri, limits=PATIENT))
        with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
            ledger.append(b"one")
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"one"]
