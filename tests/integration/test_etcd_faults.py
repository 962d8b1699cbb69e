"""etcd under faults: servers that are killed, frozen, restarted or lose the lead. What is told of each request is true."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from bk_core.bookie.etcd_process import EtcdCluster, EtcdProcess
from bk_core.client.repeating import until_definite
from bk_core.errors import (
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata import open_store
from bk_core.metadata import underreplication as layout
from bk_core.metadata.etcd.store import EtcdStore
from tests.etcd_control import Control
from tests.network.stopping import stop_process

_NUMBERS = itertools.count()


def eventually(condition: Callable[[], bool], wait_s: float = 60.0) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd-cluster")) as servers:
        yield servers


def opened(hosts: str, *, timeout_s: float = 10.0, session_ms: int = 5000) -> EtcdStore:
    store = open_store(f"etcd://{hosts}/f{next(_NUMBERS)}/ledgers?session_timeout_ms={session_ms}", timeout_s=timeout_s)
    assert isinstance(store, EtcdStore)
    store.initialize_cluster()
    return store


def failures_of(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Make the calls at once, because each of them waits for its whole timeout; return what each raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.exception() for future in [threads.submit(call) for call in calls]]


def server_of(store: EtcdStore, cluster: EtcdCluster) -> EtcdProcess:
    eventually(store.is_connected)
    port = store._link.server[1]
    return next(server for server in cluster.servers if server.port == port)


def counted_up(store: EtcdStore, ledger_id: int, times: int, wait_s: float = 60.0) -> tuple[int, int]:
    """Count a ledger's number up by compare-and-set, as writers do (META-12). Return the number and the version."""
    for _ in range(times):
        found = until_definite(lambda: store.read_ledger(ledger_id), time.monotonic() + wait_s)
        data = b"%d" % (int(found.data) + 1)
        try:
            until_definite(lambda: store.write_ledger(ledger_id, data, found.version), time.monotonic() + wait_s)  # noqa: B023
        except VersionConflictError:  # our own earlier try, as nobody else writes
            assert store.read_ledger(ledger_id).data == data
    found = store.read_ledger(ledger_id)
    return int(found.data), found.version


def test_one_server_of_three_is_enough_to_know(cluster: EtcdCluster) -> None:
    """The first address that is tried may be of a server that is down."""
    dead = cluster.servers[0]
    dead.kill()
    try:
        for _ in range(6):  # they are tried in an order by chance
            with closing(opened(cluster.connect_string)) as store:
                assert store.new_ledger_id() == 0
    finally:
        dead.start()


@pytest.mark.parametrize("how", ["kill", "leader", *(pytest.param(how, marks=pytest.mark.deep) for how in ("stop", "freeze"))])
def test_nothing_is_lost_or_doubled_while_a_server_goes(cluster: EtcdCluster, how: str) -> None:
    """META-12: a writer that repeats until it knows counts every number once; watches, locks and registrations go on at another server."""
    control = Control(cluster.connect_string)
    with closing(opened(cluster.connect_string, timeout_s=3.0)) as store, closing(opened(cluster.connect_string)) as other:
        store.create_ledger(1, b"0")
        store.register_bookie("bk", "127.0.0.1", 3181)
        lock = store.underreplication().lock(5, "here")
        assert lock is not None
        changes: list[int] = []
        watch = store.watch_ledger(1, lambda: changes.append(1))
        assert counted_up(store, 1, 20) == (20, 20)
        server = server_of(store, cluster)
        assert server.pid is not None
        pid = server.pid
        done: list[tuple[int, int]] = []
        writer = threading.Thread(target=lambda: done.append(counted_up(store, 1, 300)))
        writer.start()
        eventually(lambda: store.read_ledger(1).version > 40)
        if how == "kill":
            server.kill()
        elif how == "stop":
            server.stop()
        elif how == "freeze":
            stop_process(pid)
        else:
            for _ in range(3):
                control.move_leader()
        try:
            writer.join(120)
            assert done == [(320, 320)]
            assert lock.is_held() and "bk" in store.bookies().writable
            seen = len(changes)
            store.write_ledger(1, b"end", 320)
            eventually(lambda: len(changes) > seen)
        finally:
            if how == "freeze":
                os.kill(pid, signal.SIGCONT)
            elif how != "leader":
                server.start()
        watch.cancel()
        assert other.is_connected()


def test_without_a_quorum_nothing_is_told_that_is_not_so(tmp_path: Path) -> None:
    """A server that is alone answers no read and takes no write; with a second one back all goes on."""
    with EtcdCluster(tmp_path) as servers:
        with closing(opened(servers.connect_string, timeout_s=2.0)) as store:
            store.create_ledger(1, b"0")
            kept = server_of(store, servers)
            others = [server for server in servers.servers if server is not kept]
            for server in others:
                server.kill()
            *changes, read, connected = failures_of(
                lambda: store.write_ledger(1, b"1", 0),
                lambda: store.delete_ledger(2),
                lambda: store.read_ledger(1),
                lambda: open_store(f"etcd://{kept.connect_string}/ledgers", timeout_s=4.0),
            )
            assert [error for error in changes if not isinstance(error, MetadataOutcomeUnknownError | MetadataUnavailableError)] == []
            assert isinstance(read, MetadataUnavailableError) and re.search("no connection to etcd|did not answer", str(read)), read
            assert isinstance(connected, MetadataUnavailableError), connected
            assert "does not serve: it may lack its quorum" in str(connected)
            others[0].start()
            found = until_definite(lambda: store.read_ledger(1), time.monotonic() + 60)
            assert (found.data, found.version) in ((b"0", 0), (b"1", 1))  # the write of which nobody knew


def test_a_server_alone_is_killed_during_writes(tmp_path: Path) -> None:
    """Each write ends in success, "unavailable" or "unknown"; with the server back, repeating the last one settles it (META-12)."""
    with EtcdProcess(tmp_path) as process:
        store = opened(process.connect_string, timeout_s=3.0, session_ms=30000)
        store.create_ledger(1, b"0")
        calls: list[int] = []
        store.watch_ledger(1, lambda: calls.append(1))
        version = 0
        threading.Timer(0.3, process.kill).start()
        with pytest.raises((MetadataOutcomeUnknownError, MetadataUnavailableError)) as failure:
            while True:
                version = store.write_ledger(1, b"%d" % (version + 1), version)
        assert failure.value.retriable
        started = time.monotonic()
        for error in failures_of(lambda: store.read_ledger(1), store.bookies, store.new_ledger_id, lambda: store.delete_ledger(1)):
            assert isinstance(error, MetadataUnavailableError), error
            assert re.search("refuses connections: nothing listens there|did not answer", str(error)), error
        assert time.monotonic() - started < 20
        seen = len(calls)
        port = process.port
        process.start()
        assert process.port == port
        try:
            version = until_definite(lambda: store.write_ledger(1, b"%d" % (version + 1), version), time.monotonic() + 60)
        except VersionConflictError:
            version = store.read_ledger(1).version  # the lost answer was a yes
        assert store.read_ledger(1).data == b"%d" % version
        eventually(lambda: len(calls) > seen)
        store.close()


def test_a_frozen_server_leaves_a_write_open(tmp_path: Path) -> None:
    """The request is on its way when the server stops answering: nobody can know whether it will be applied."""
    with EtcdProcess(tmp_path) as process:
        store = opened(process.connect_string, timeout_s=1.0, session_ms=30000)
        store.create_ledger(1, b"0")
        assert process.pid is not None
        stop_process(process.pid)
        try:
            with pytest.raises(MetadataOutcomeUnknownError):
                store.write_ledger(1, b"1", 0)
            with pytest.raises(MetadataUnavailableError):
                store.read_ledger(1)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        found = until_definite(lambda: store.read_ledger(1), time.monotonic() + 60)
        version = found.version
        if version == 0:
            store.write_ledger(1, b"1", 0)
        with pytest.raises(VersionConflictError):
            store.write_ledger(1, b"1", 0)
        store.close()


def test_a_session_that_ends_while_its_client_is_away_is_begun_anew(tmp_path: Path) -> None:
    """The lease runs out while the client stands still; what it held is held by the next session, or by somebody else."""
    with EtcdProcess(tmp_path) as process:
        with closing(opened(process.connect_string, session_ms=2000)) as store:
            store.register_bookie("bk", "127.0.0.1", 3181)
            lock = store.underreplication().lock(5, "here")
            assert lock is not None
            session = store._nodes.session_id()
            loop = store._lease._loop
            assert loop is not None
            loop.stop()  # no keep-alive is sent any more, as by a process that stands still
            control = Control(process.connect_string)
            eventually(lambda: session not in control.leases())
            assert not lock.is_held()
            eventually(lambda: store.bookies().writable == ("bk",))  # the watch of its own key told of it
            assert store._nodes.session_id() not in (None, session)


def test_what_somebody_else_holds_by_now_is_not_given_back(alone: EtcdProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ends between the look at a lock and its release, as in a process that stands still there."""
    with closing(opened(alone.connect_string)) as store:
        lock = store.underreplication().lock(5, "here")
        assert lock is not None
        session, look = store._nodes.session_id(), store._nodes.stat
        assert session is not None
        with closing(open_store(f"etcd://{alone.connect_string}{store._root}")) as other:
            taken = []

            def looked(path: str, watch: object = None) -> object:
                found = look(path)
                if not taken and path.endswith(layout.lock_path(5)):
                    Control(alone.connect_string).revoke(session)
                    taken.append(other.underreplication().lock(5, "there"))
                return found

            monkeypatch.setattr(store._nodes, "stat", looked)
            lock.release()
            assert taken[0] is not None and taken[0].is_held()


def test_a_bookie_that_starts_again_waits_for_what_a_new_leader_keeps(cluster: EtcdCluster) -> None:
    """The leader changes while the lease of the dead one runs out, and gives it its whole time again."""
    with closing(opened(cluster.connect_string, session_ms=3000)) as dead:
        dead.register_bookie("bk", "127.0.0.1", 3181)
        loop = dead._lease._loop
        assert loop is not None
        loop.stop()
        dead._keeper.close()
        change = threading.Timer(2.0, Control(cluster.connect_string).move_leader)
        change.start()
        root = dead._root
        with closing(open_store(f"etcd://{cluster.connect_string}{root}?session_timeout_ms=3000")) as store:
            store.register_bookie("bk", "127.0.0.1", 3182)
            assert store.resolve("bk") == ("127.0.0.1", 3182)
        change.join()


def test_without_a_server_nothing_hangs() -> None:
    started = time.monotonic()
    with pytest.raises(MetadataUnavailableError, match="no connection to etcd at 127.0.0.1:1 .*refuses connections"):
        open_store("etcd://127.0.0.1:1/ledgers", timeout_s=60)
    assert time.monotonic() - started < 40


def test_what_is_no_etcd_is_named(tmp_path: Path) -> None:
    import http.server

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(MetadataUnavailableError, match="something answers that is not etcd"):
            open_store(f"etcd://127.0.0.1:{other.server_port}/ledgers", timeout_s=4)
        other.shutdown()


def test_a_client_that_is_closed_ends_what_waits(tmp_path: Path) -> None:
    from bk_core.errors import ClientClosedError

    with EtcdProcess(tmp_path) as process:
        store = opened(process.connect_string)
        assert process.pid is not None
        stop_process(process.pid)
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                store.read_ledger(1)
            except BaseException as error:
                failures.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.5)
        begun = time.monotonic()
        store.close()
        waiter.join(20)
        os.kill(process.pid, signal.SIGCONT)
        assert time.monotonic() - begun < 10 and isinstance(failures[0], ClientClosedError)


# the fault table: each kind of request, and each fault while it is under way ------------------------------------------


REQUESTS: dict[str, tuple[Callable[[EtcdStore], object], tuple[type[Exception], ...]]] = {
    "create_ledger": (lambda store: store.create_ledger(7, b"new"), (NodeExistsError,)),
    "write_ledger": (lambda store: store.write_ledger(1, b"new", 0), (VersionConflictError,)),
    "delete_ledger": (lambda store: store.delete_ledger(1), ()),
    "read_ledger": (lambda store: store.read_ledger(1), (NoNodeError,)),
    "list_ledgers": (lambda store: list(store.list_ledgers()), ()),
    "new_ledger_id": (lambda store: store.new_ledger_id(), ()),
    "create": (lambda store: store.create("logs/b", b"new"), (NodeExistsError,)),
    "write": (lambda store: store.write("logs/a", b"new", 0), (VersionConflictError,)),
    "delete": (lambda store: store.delete("logs/a", 0), (VersionConflictError,)),
    "read_here": (lambda store: store.read_here("logs/a"), (NoNodeError,)),
    "children": (lambda store: store.children("logs"), ()),
    "write_cookie": (lambda store: store.write_cookie("bk:1", b"5", None), (NodeExistsError,)),
    "lock": (lambda store: store.underreplication().lock(9, "x"), ()),
    "mark": (lambda store: store.underreplication().mark(9, ["bk:1"], 1), ()),
    "bookies": (lambda store: store.bookies(), ()),
}


def _after(store: EtcdStore, request: str) -> bool:
    """True if what the request asks for is there."""
    ledgers, logs = set(store.list_ledgers()), set(store.children("logs"))
    return {
        "create_ledger": 7 in ledgers,
        "write_ledger": 1 in ledgers and store.read_ledger(1).data == b"new",
        "delete_ledger": 1 not in ledgers,
        "create": "b" in logs,
        "write": "a" in logs and store.read("logs/a").data == b"new",
        "delete": "a" not in logs,
        "write_cookie": store.cookies() == ["bk:1"],
        "mark": store.underreplication().mark_of(9) is not None,
    }.get(request, True)


@pytest.mark.parametrize(
    "fault", ["killed", "connection", *(pytest.param(fault, marks=pytest.mark.deep) for fault in ("frozen", "session"))]
)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_each_request_is_definite_or_says_that_it_is_not(alone: EtcdProcess, request_name: str, fault: str) -> None:
    """META-12, META-13: success means done, "unavailable" means not done, "unknown" is settled by the same request again."""
    send, answers = REQUESTS[request_name]
    with closing(opened(alone.connect_string, timeout_s=1.0)) as store, closing(opened(alone.connect_string)) as control_store:
        store.create_ledger(1, b"0")
        store.create("logs/a", b"0")
        store.underreplication().lock(1, "held")
        assert alone.pid is not None
        _strike(alone, store, fault)
        told: BaseException | None = None
        try:
            send(store)
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            told = error
        _heal(alone, fault)
        if isinstance(told, MetadataUnavailableError) and request_name not in ("mark", "lock"):
            changed = until_definite(lambda: _after(store, request_name), time.monotonic() + 60)
            reads = ("read_ledger", "list_ledgers", "new_ledger_id", "read_here", "children", "bookies")
            assert not changed or request_name in reads
        try:
            until_definite(lambda: send(store), time.monotonic() + 60)
        except answers:
            pass  # an earlier try of our own was applied
        assert until_definite(lambda: _after(store, request_name), time.monotonic() + 60)
        assert control_store.is_connected() or until_definite(control_store.bookies, time.monotonic() + 60) is not None


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd-alone")) as process:
        yield process


def _strike(process: EtcdProcess, store: EtcdStore, fault: str) -> None:
    assert process.pid is not None
    if fault == "killed":
        process.kill()
    elif fault == "frozen":
        stop_process(process.pid)
    elif fault == "connection":
        connection = store._link.connection
        assert connection is not None
        connection.close()  # behind the store's back
    else:
        session = store._nodes.session_id()
        assert session is not None
        Control(process.connect_string).revoke(session)


def _heal(process: EtcdProcess, fault: str) -> None:
    if fault == "killed":
        process.start()
    elif fault == "frozen":
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)


def test_a_change_that_fills_the_database_may_be_made_although_etcd_refuses_it(tmp_path: Path) -> None:
    """etcd looks at the room before a change and once more when it makes it, and then it makes it and says that there is no room. Changes
    that come together bring that about."""
    with EtcdProcess(tmp_path, arguments=["--quota-backend-bytes", str(16 << 20)]) as process:
        with closing(opened(process.connect_string, timeout_s=3.0)) as store:
            told: dict[int, BaseException] = {}

            def make(ledger_id: int) -> None:
                try:
                    store.create_ledger(ledger_id, bytes(900_000))
                except MetadataError as error:
                    told[ledger_id] = error

            makers = [threading.Thread(target=make, args=(ledger_id,)) for ledger_id in range(64)]
            for maker in makers:
                maker.start()
            for maker in makers:
                maker.join(60)
            keys = Control(process.connect_string).keys(store._root)
            there = {ledger_id for ledger_id in range(64) if f"{store._root}/00/0000/L{ledger_id:04d}" in keys}
            assert told and there
            assert {type(error) for error in told.values()} == {MetadataOutcomeUnknownError}
            assert all("disarm the alarm NOSPACE" in str(error) for error in told.values())
            with pytest.raises(MetadataUnavailableError, match="etcd has no room .*/idgen was asked for"):
                store._nodes.count_up(f"{store._root}/idgen", store._root)
            assert store.is_connected()
