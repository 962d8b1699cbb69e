"""A client over time: bookies that restart below it, ZooKeeper that goes away and comes back, handles by the thousand."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.cli.terminal import telling_of_waits
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BkError, BookieUnavailableError, MetadataUnavailableError, ReadError
from bk_core.metadata import open_store
from bk_core.protocol.log.segments import LogProperties
from tests.integration.patience import PATIENCE_S, until
from tests.network.proxy import Proxy
from tests.network.stopping import stop_process
from tests.soak.cluster import ThroughProxy

T = TypeVar("T")


def again(make: Callable[[], T]) -> T:
    """Return what ``make`` makes, when it can be made. Bookies whose sessions ended with ZooKeeper come back one by one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return make()
        except BkError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# --- suspects --------------------------------------------------------------------------------------------------------


def spread(bk: bk_core.BookKeeper, ledgers: int) -> Counter[str]:
    """Return the number of times that each bookie was chosen for new ledgers of two bookies."""
    chosen: Counter[str] = Counter()
    for _ in range(ledgers):
        with bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as ledger:
            chosen.update(ledger.metadata.last_fragment.ensemble)
    return chosen


@contextmanager
def load(bk: bk_core.BookKeeper) -> Iterator[None]:
    """A writer that never stops: ledger after ledger, the next one when one failed."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            try:
                with bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=1) as ledger:
                    ledger.append_many([b"x" * 1000] * 20)
            except BkError:
                stop.wait(0.05)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            yield
        finally:
            stop.set()
            writing.result(PATIENCE_S)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_after_a_rolling_restart_all_bookies_are_chosen_alike(
    cluster: LocalCluster, protocol: str, record_property: Callable[[str, object], None]
) -> None:
    """SES-2, SES-3: a suspect got no traffic, and so never cleared itself."""
    with bk_core.connect(cluster.uri, protocol=protocol, quarantine_s=2.0) as bk:
        before = spread(bk, 60)
        with load(bk):
            for index in range(3):
                cluster.stop_bookie(index)
                cluster.restart(index)
            back = time.monotonic()
            until(lambda: not bk._session._avoided(), "a bookie that is back is still avoided")
            took = time.monotonic() - back
        after = spread(bk, 60)
    record_property("spread", f"{sorted(before.values())} -> {sorted(after.values())}, {took:.1f} s after the last restart")
    print(f"{cluster.kind} {protocol}: {sorted(before.values())} -> {sorted(after.values())}, trusted {took:.1f} s after the last restart")
    # 60 ledgers choose 2 of 4 bookies: 30 each, with a standard deviation of 3.9. 10 is five deviations away.
    assert set(after) == set(cluster.bookie_ids) and min(after.values()) >= 10, after


# --- ZooKeeper goes away ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    try:
        apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(scope="module")
def embedded(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(3, tmp_path_factory.mktemp("cluster"), zookeeper=zookeeper.connect_string) as cluster:
        yield cluster


@contextmanager
def stopped(zookeeper: ZooKeeperProcess) -> Iterator[None]:
    """Connections stay and nothing is answered."""
    assert zookeeper.pid is not None
    stop_process(zookeeper.pid)
    try:
        yield
    finally:
        os.kill(zookeeper.pid, signal.SIGCONT)


class Terminal(io.StringIO):
    """Somebody's terminal, who has a process go on when told that a command waits for it."""

    def __init__(self, pid: int | None) -> None:
        super().__init__()
        self._pid = pid

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "waiting" in text and self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)
        return super().write(text)


def test_a_command_at_a_terminal_tells_what_it_waits_for(
    zookeeper: ZooKeeperProcess, embedded: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is a connection, and in the middle of a command; once a silence, however many requests wait in it."""
    assert zookeeper.pid is not None
    line = f"waiting for the metadata service at {zookeeper.connect_string}, which does not answer ..."
    with bk_core.connect(embedded.uri) as bk, bk.create_ledger() as ledger:
        pass
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's; a program that configures logging shows the lines itself
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(zookeeper.pid))
    with stopped(zookeeper):
        assert cli.run(["--verbose", "ledger", "show", str(ledger.ledger_id), "--uri", embedded.uri, "--json"]) == 0
    assert {one for one in terminal.getvalue().splitlines() if "waiting" in one} == {line}
    assert json.loads(capsys.readouterr().out)["ledger"] == ledger.ledger_id
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(None))
    with bk_core.connect(embedded.uri, metadata_timeout_s=2.1, operation_timeout_s=2.5) as bk, telling_of_waits(), stopped(zookeeper):
        with pytest.raises(BkError):  # after two requests
            bk.ledger_metadata(ledger.ledger_id)
    assert terminal.getvalue().count("waiting") == 1 and terminal.getvalue().count(line) == 1


@contextmanager
def killed(zookeeper: ZooKeeperProcess) -> Iterator[None]:
    zookeeper.kill()
    try:
        yield
    finally:
        zookeeper.start()


AWAY = pytest.mark.parametrize("away", [stopped, killed])
Away = Callable[[ZooKeeperProcess], "contextmanager[None]"]


def short(cluster: LocalCluster) -> str:
    """A ZooKeeper client that notices soon that there is nobody."""
    return f"{cluster.uri}?session_timeout_ms=2000"


def lost(bk: bk_core.BookKeeper) -> bool:
    return not bk.store.is_connected()


@AWAY
def test_connections_are_made_again_while_zookeeper_is_away(zookeeper: ZooKeeperProcess, embedded: LocalCluster, away: Away) -> None:
    """SES-5: three healthy bookies whose addresses are known are enough. With a store that is asked first nothing is read here until
    ZooKeeper is back: each look-up takes its whole timeout, and the connection's is shorter."""
    proxy = Proxy()

    def detour(bookie: str, host: str, port: int) -> tuple[str, int]:
        return "127.0.0.1", proxy.link("test", bookie, host, port).listen_port

    uri = short(embedded)
    try:
        with bk_core.connect(uri, store=ThroughProxy(open_store(uri, timeout_s=60.0), detour)) as bk:  # type: ignore[arg-type]
            with again(bk.create_ledger) as ledger:
                ledger.append_many([b"%d" % n for n in range(100)])
            reader = bk.open_ledger(ledger.ledger_id)
            assert len(reader.read(0, 99)) == 100
            with away(zookeeper):
                until(lambda: lost(bk), "the client does not notice that ZooKeeper is away")
                for link in proxy.links:
                    proxy.cut(link)
                assert _read_until_it_works(reader, 20.0) == [b"%d" % n for n in range(100)]
                assert lost(bk)
            until(lambda: not lost(bk), "no connection to ZooKeeper")
    finally:
        proxy.close()


def _read_until_it_works(reader: bk_core.ReadHandle, timeout_s: float) -> list[bytes]:
    """A link that has just broken may refuse for a moment; what is on trial here takes as long as ZooKeeper is away."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return reader.read(0, 99)
        except ReadError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@AWAY
def test_followers_outlive_an_outage_of_zookeeper(
    zookeeper: ZooKeeperProcess, embedded: LocalCluster, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    """SES-7, SES-8: one that waits in vain, one that begins to wait during the outage, and one in a live segment that goes on reading."""
    name = f"outage-{away.__name__}"
    came: list[bytes] = []
    stop = threading.Event()
    with (
        bk_core.connect(short(embedded)) as writing,
        bk_core.connect(short(embedded).replace("127.0.0.1", "localhost"), metadata_timeout_s=1.0) as bk,
        ThreadPoolExecutor(2) as threads,
    ):
        create_log(writing, name, LogProperties(entry_format="raw"))
        late = LogReader(bk, name)
        writer = again(lambda: LogWriter.open(writing, name))
        writer.append(b"before")
        with LogReader(bk, name) as reader:

            def follow() -> None:
                for run in reader.follow(stop):
                    came.extend(run.payloads())

            following = threads.submit(follow)
            until(lambda: b"before" in came, "the follower reads nothing")
            caplog.clear()
            with away(zookeeper):
                until(lambda: lost(bk) and lost(writing), "the clients do not notice that ZooKeeper is away")
                assert not late.wait(0.5)  # asks the store, and has to do without an answer
                writer.append(b"during")  # neither writer nor follower of a live segment needs ZooKeeper
                until(lambda: b"during" in came, "the follower of a live segment has stopped")
                begun = threads.submit(late.wait, PATIENCE_S)
                assert not following.done()
            assert begun.result(PATIENCE_S)
            assert [payload for run in late.read() for payload in run.payloads()] == [b"before", b"during"]
            again(writer.roll)
            writer.append(b"after")
            until(lambda: b"after" in came, "the follower does not go on behind the outage")
            stop.set()
            following.result(PATIENCE_S)
        late.close()
        writer.close()
    assert came == [b"before", b"during", b"after"]
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    said = [record.getMessage() for record in told if "localhost" in record.getMessage()]  # others of this process have their own
    # one line when a session is away, one when it is back; a busy machine may lose it once more
    went, came_back = said[::2], said[1::2]
    assert len(went) == len(came_back) in (1, 2, 3), said
    assert all(line.startswith("no connection to ZooKeeper") for line in went), said
    assert all(line.startswith("connected to ZooKeeper") for line in came_back), said
    assert not [record.getMessage() for record in told if "kazoo" in record.name]


def test_a_follower_that_gave_up_goes_on_when_it_is_asked_again(zookeeper: ZooKeeperProcess, embedded: LocalCluster) -> None:
    """SES-7: a generator that raised is over; ``follow`` is not, and loses nothing."""
    with (
        bk_core.connect(embedded.uri) as writing,
        bk_core.connect(short(embedded), metadata_timeout_s=0.3, operation_timeout_s=1.0) as bk,
    ):
        create_log(writing, "patience", LogProperties(entry_format="raw"))
        with again(lambda: LogWriter.open(writing, "patience")) as writer:
            writer.append(b"one")
        with LogReader(bk, "patience") as reader:
            assert [run.payloads() for run in reader.read()] == [[b"one"]]
            following = reader.follow()
            with killed(zookeeper):
                until(lambda: lost(bk), "the client does not notice that ZooKeeper is away")
                with pytest.raises(MetadataUnavailableError):
                    next(following)  # nothing is watched yet: it has to ask
                with pytest.raises(MetadataUnavailableError):
                    next(following)
            until(lambda: not lost(bk), "no connection to ZooKeeper")
            with again(lambda: LogWriter.open(writing, "patience")) as writer:
                writer.append(b"two")
                assert next(following).payloads() == [b"two"]
            following.close()


@contextmanager
def forgetful(zookeeper: ZooKeeperProcess) -> Iterator[int]:
    """Port of a ZooKeeper that takes the first connection, and whatever is sent on it, without ever answering."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            sockets.append(server.accept()[0])
            while True:
                near, far = server.accept()[0], socket.create_connection(("127.0.0.1", zookeeper.port))
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in sockets:
                one.close()


def test_a_forgotten_request_for_a_session_costs_a_second_and_not_the_session(zookeeper: ZooKeeperProcess) -> None:
    """SES-12: a ZooKeeper that has begun to listen, but does not serve yet, sometimes forgets the first request of a connection."""
    with forgetful(zookeeper) as port:
        store = open_store(f"zk://127.0.0.1:{port}/ledgers?session_timeout_ms=120000", timeout_s=60.0)
        try:
            assert store.is_connected()
        finally:
            store.close()


_HOLDER = """
import sys, bk_core
bk = bk_core.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
import os; os._exit(0)
"""


def test_who_still_holds_a_client_is_quiet_when_the_cluster_is_gone(tmp_path: Path) -> None:
    """SES-8: kazoo warned about every attempt, for as long as the process lived. Attempts are counted at the port of the server."""
    try:
        apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with local_cluster(1, tmp_path / "gone") as cluster:
        port = int(cluster.uri.partition("://")[2].partition("/")[0].rpartition(":")[2])
        source = str(Path(bk_core.__file__).resolve().parents[1])
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, cluster.uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"connected\n"
    try:
        listener = _listen(port)
        with listener:
            listener.settimeout(PATIENCE_S)
            for _ in range(5):
                listener.accept()[0].close()
        _, said = holder.communicate(b"", timeout=PATIENCE_S)
    finally:
        holder.kill()
        holder.wait()
    lines = said.decode().splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"no connection to ZooKeeper at 127.0.0.1:{port}"), said.decode()


def _listen(port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline, f"port {port} is not free"
            time.sleep(0.1)


# --- what stays behind -----------------------------------------------------------------------------------------------


def test_handles_that_were_closed_are_forgotten(embedded: LocalCluster) -> None:
    """ZooKeeper's client keeps a watch until the node changes, which that of a quiet open ledger may never do."""
    with bk_core.connect(embedded.uri) as bk, again(bk.create_ledger) as quiet:
        create_log(bk, "quiet", LogProperties(entry_format="raw"))
        quiet.append(b"x")
        handles: list[weakref.ref[object]] = []
        for _ in range(200):
            with bk.open_ledger(quiet.ledger_id) as handle:
                handles.append(weakref.ref(handle))
            reader = LogReader(bk, "quiet")
            assert not reader.wait(0)
            handles.append(weakref.ref(reader))
        del handle, reader

        def left() -> int:
            gc.collect()
            return sum(ref() is not None for ref in handles)

        until(lambda: left() == 0, "handles stay behind", 20)
        watched = bk.store._link.client._data_watchers  # type: ignore[attr-defined]
        assert max(map(len, watched.values())) <= 2, "one function per node, however often it is watched"
        with bk.open_ledger(quiet.ledger_id) as reopened, LogReader(bk, "quiet") as follower, ThreadPoolExecutor(1) as threads:
            assert not reopened.is_closed
            waiting = threads.submit(follower.wait, PATIENCE_S)
            quiet.close()
            until(lambda: reopened.is_closed, "a watch that takes the place of cancelled ones hears nothing")
            with again(lambda: LogWriter.open(bk, "quiet")) as writer:
                writer.append(b"y")
                assert waiting.result(PATIENCE_S)


def _breaks_at_once(server: int, listener: socket.socket, begun: list[float]) -> None:
    """Carry the request for a session and its answer, and end each connection then."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        begun.append(time.monotonic())
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", server), 5.0) as zookeeper:
            client.settimeout(5.0)
            zookeeper.sendall(client.recv(4096))
            client.sendall(zookeeper.recv(4096))


def test_a_link_that_breaks_at_once_is_remade_ever_less_often(tmp_path: Path) -> None:
    """As behind a proxy whose server is away. It was remade ten times a second."""
    begun: list[float] = []
    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper, socket.create_server(("127.0.0.1", 0)) as listener:
        relay = threading.Thread(target=_breaks_at_once, args=(zookeeper.port, listener, begun), daemon=True)
        relay.start()
        with pytest.raises(BkError):
            open_store(f"zk://127.0.0.1:{listener.getsockname()[1]}/ledgers", timeout_s=8.0).bookies()
        listener.shutdown(socket.SHUT_RDWR)
    relay.join(10.0)
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert 4 <= len(begun) <= 20 and max(pauses[3:]) > 0.6, pauses
