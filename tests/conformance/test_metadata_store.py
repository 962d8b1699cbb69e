"""The stores against the store contract, and what only a real ZooKeeper can show."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import (
    LayoutMismatchError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    VersionConflictError,
)
from bk_core.metadata import BookieView, open_store
from bk_core.metadata.zookeeper.store import ZooKeeperStore
from tests.network.stopping import stop_process

_NUMBERS = itertools.count()


def _contract() -> ModuleType:
    """The neighbour file; tests folders are no packages."""
    path = Path(__file__).with_name("metadata_store.py")
    spec = importlib.util.spec_from_file_location("conformance_metadata_store", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract = _contract()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture
def root() -> str:
    return f"/cluster{next(_NUMBERS)}/ledgers"


def _open(zookeeper: ZooKeeperProcess, root: str, *, layout: str = "", timeout_s: float = 10.0, session_ms: int = 4000) -> ZooKeeperStore:
    store = open_store(f"zk{layout}://{zookeeper.connect_string}{root}?session_timeout_ms={session_ms}", timeout_s=timeout_s)
    assert isinstance(store, ZooKeeperStore)
    return store


def test_memory_store_keeps_the_contract() -> None:
    contract.check_metadata_store(lambda: open_store("memory://contract"))


@pytest.mark.parametrize("layout", ["", "+null", "+hierarchical", "+longhierarchical", "+flat"])
def test_zookeeper_store_keeps_the_contract(zookeeper: ZooKeeperProcess, root: str, layout: str) -> None:
    contract.check_metadata_store(lambda: _open(zookeeper, root, layout=layout))


def test_bookies_that_are_gone_do_not_ask_about_each_other(zookeeper: ZooKeeperProcess, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of bookies may be older than their registrations."""
    with closing(_open(zookeeper, root)) as store:
        store.initialize_cluster()
        monkeypatch.setattr(ZooKeeperStore, "_listed", lambda *_: BookieView(("10.0.0.1:3181", "10.0.0.2:3181"), ()))
        assert store.resolve("10.0.0.1:3181") == ("10.0.0.1", 3181)


def test_a_new_cluster_holds_exactly_the_specified_nodes(zookeeper: ZooKeeperProcess, root: str) -> None:
    store = _open(zookeeper, root)
    store.initialize_cluster()
    client = store._link.client
    assert sorted(client.get_children(root)) == ["INSTANCEID", "LAYOUT", "available"]
    assert client.get_children(f"{root}/available") == ["readonly"]
    assert client.get(f"{root}/LAYOUT")[0] == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert store.new_ledger_id() == 0
    store.create_ledger(0, b"x")
    store.create_ledger(2**31 - 1, b"y")
    assert client.exists(f"{root}/00/0000/L0000") and client.exists(f"{root}/000/0000/0021/4748/L3647")
    assert list(store.list_ledgers()) == [0, 2**31 - 1]
    store.delete_ledger(0)
    store.delete_ledger(2**31 - 1)
    assert sorted(client.get_children(root)) == ["INSTANCEID", "LAYOUT", "available", "idgen"]
    store.create("logs/one", b"")
    assert client.exists(f"{root.rpartition('/')[0]}/{root.rpartition('/')[2]}-logs/logs/one")
    store.close()


def test_underreplication_nodes_are_apaches(zookeeper: ZooKeeperProcess, root: str) -> None:
    """metadata.md 1.4, and RR-11: an ephemeral lock, empty directories pruned, auto-recovery's switch seen, a lost session noticed."""
    store = _open(zookeeper, root)
    store.initialize_cluster()
    marks, client = store.underreplication(), store._link.client
    base = f"{root}/underreplication"
    marks.mark(0xDEADBEEF, ["bk1:3181"], 5)
    path = f"{base}/ledgers/0000/0000/dead/beef/urL3735928559"
    assert client.get(path)[0] == b'replica: "bk1:3181"\nctime: 5\n'
    mark = marks.mark_of(0xDEADBEEF)
    assert mark is not None and marks.unmark(mark)
    assert client.get_children(f"{base}/ledgers") == []
    lock = marks.lock(12, "host-1")
    assert lock is not None
    data, stat = client.get(f"{base}/locks/urL0000000012")
    assert data == b'bookieId: "host-1"\n' and stat.ephemeralOwner == store._nodes.session_id()
    session = store._nodes.session_id()
    _expire(store, zookeeper)
    contract.eventually(lambda: store._nodes.session_id() not in (None, 0, session))
    assert not lock.is_held()
    lock.release()
    other = _open(zookeeper, root)
    assert other.underreplication().lock(12, "host-2") is not None
    assert marks.lock(12, "host-1") is None and marks.lock_holder(12) == "host-2"
    other.close()
    assert not marks.is_disabled()
    client.create(f"{base}/disable", b"")
    assert marks.is_disabled() and marks.set_disabled(False) and not client.exists(f"{base}/disable")
    assert marks.set_disabled(True) and client.get(f"{base}/disable")[0] == b""
    for name in ("b2", "b1"):  # the first vote counts, as long as it is there
        client.create(f"{base}/auditorelection/V_", f'bookieId: "{name}:3181"\n'.encode(), ephemeral=True, sequence=True, makepath=True)
    assert marks.auditor() == "b2:3181"
    client.delete(f"{base}/auditorelection/V_0000000000")
    assert marks.auditor() == "b1:3181"
    client.create(f"{base}/lostBookieRecoveryDelay", b"300")
    assert marks.recovery_delay_s() == 300
    marks.set_recovery_delay(45)
    assert client.get(f"{base}/lostBookieRecoveryDelay")[0] == b"45"
    assert store.layout() == "hierarchical"
    client.delete(f"{root}/LAYOUT")
    assert store.layout() is None
    store.close()


def test_chroot_and_log_root(zookeeper: ZooKeeperProcess) -> None:
    uri = f"zk://{zookeeper.connect_string};{zookeeper.connect_string}/ledgers?chroot=/deep/down"
    store = open_store(uri, log_root="/elsewhere")
    store.initialize_cluster()
    store.create("a", b"")
    store.close()
    store = _open(zookeeper, "/deep/down/ledgers")
    assert store.instance_id() is not None
    assert store._link.client.exists("/deep/down/elsewhere/a")
    store.close()


def test_another_layout_is_refused(zookeeper: ZooKeeperProcess, root: str) -> None:
    store = _open(zookeeper, root, layout="+longhierarchical")
    store.initialize_cluster()
    store.close()
    with pytest.raises(LayoutMismatchError):
        _open(zookeeper, root, layout="+hierarchical")
    store = _open(zookeeper, root)
    assert store._manager() == "longhierarchical"
    store.close()


def test_long_ids_follow_when_short_ones_are_forced_out(zookeeper: ZooKeeperProcess, root: str) -> None:
    store = _open(zookeeper, root)
    store.initialize_cluster()
    store._link.client.create(f"{root}/idgen-long", b"")
    assert [store.new_ledger_id() for _ in range(3)] == [2**32, 2**32 + 1, 2**32 + 2]
    store.close()


def test_registration_waits_for_the_node_of_an_earlier_session(zookeeper: ZooKeeperProcess, root: str) -> None:
    one, two = _open(zookeeper, root), _open(zookeeper, root, session_ms=2000)
    one.initialize_cluster()
    one.register_bookie("bk", "127.0.0.1", 1)
    with pytest.raises(NodeExistsError):
        two.register_bookie("bk", "127.0.0.1", 2)
    threading.Timer(0.5, one.close).start()
    two.register_bookie("bk", "127.0.0.1", 2)
    assert two.resolve("bk") == ("127.0.0.1", 2)
    two.close()


class _SlowReads:
    """Reads of a store, on one thread, whose answers are held up until ``may_end``."""

    def __init__(self, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read, self.began, self.may_end = store._base.get, threading.Event(), threading.Event()
        self.found: list[tuple[str, int]] = []
        self.thread = threading.Thread(target=lambda: self.found.append(store.resolve("shelf-1")))
        monkeypatch.setattr(store._base, "get", self._read)
        self.thread.start()
        assert self.began.wait(20)

    def _read(self, *arguments: Any) -> Any:
        found = self.read(*arguments)
        if threading.current_thread() is self.thread:
            self.began.set()
            assert self.may_end.wait(20)
        return found

    def end(self) -> list[tuple[str, int]]:
        self.may_end.set()
        self.thread.join(20)
        return self.found


def test_nobody_gets_an_old_address_while_a_new_one_is_read(
    zookeeper: ZooKeeperProcess, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SES-5: neither who asks meanwhile, nor who asks when an answer of before has come behind a newer one."""
    one, two = _open(zookeeper, root), _open(zookeeper, root)
    one.initialize_cluster()
    first = one.register_bookie("shelf-1", "127.0.0.1", 1)
    assert two.resolve("shelf-1") == ("127.0.0.1", 1)
    first.close()
    second = one.register_bookie("shelf-1", "127.0.0.2", 2)
    contract.eventually(lambda: two._whereabouts.changes_of("shelf-1") == 1)
    with monkeypatch.context() as patched:
        slow = _SlowReads(two, patched)
        assert two.resolve("shelf-1") == ("127.0.0.2", 2)
        assert slow.end() == [("127.0.0.2", 2)]
    two._whereabouts.on_event(SimpleNamespace(path=None))  # the connection was lost for a moment
    with monkeypatch.context() as patched:
        slow = _SlowReads(two, patched)
        second.close()
        one.register_bookie("shelf-1", "127.0.0.3", 3)
        contract.eventually(lambda: two._whereabouts.changes_of("shelf-1") == 2)
        assert two.resolve("shelf-1") == ("127.0.0.3", 3)
        assert slow.end() == [("127.0.0.2", 2)]
    assert two.resolve("shelf-1") == ("127.0.0.3", 3)
    one.close()
    two.close()


def test_unregistered_cluster_refuses_bookies(zookeeper: ZooKeeperProcess, root: str) -> None:
    store = _open(zookeeper, root)
    with pytest.raises(MetadataError):
        store.register_bookie("bk", "127.0.0.1", 1)
    store.close()


def _expire(store: ZooKeeperStore, zookeeper: ZooKeeperProcess) -> None:
    """Ends the session behind the store's back: a second client takes it over and closes it."""
    from kazoo.client import KazooClient

    thief = KazooClient(hosts=zookeeper.connect_string, client_id=store._link.client.client_id)
    thief.start()
    thief.stop()
    thief.close()


def test_registrations_and_watches_survive_a_lost_session(zookeeper: ZooKeeperProcess, root: str) -> None:
    bookie, other = _open(zookeeper, root), _open(zookeeper, root)
    bookie.initialize_cluster()
    bookie.register_bookie("bk", "127.0.0.1", 3181)
    bookie.create_ledger(1, b"")
    calls: list[int] = []
    views: list[BookieView] = []
    bookie.watch_ledger(1, lambda: calls.append(1))
    bookie.watch_bookies(views.append)
    session = bookie._nodes.session_id()
    _expire(bookie, zookeeper)
    contract.eventually(lambda: bookie._nodes.session_id() not in (None, 0, session))
    contract.eventually(lambda: other.bookies() == BookieView(("bk",), ()))
    other.write_ledger(1, b"changed", 0)
    contract.eventually(lambda: len(calls) == 1)
    other.register_bookie("bk2", "127.0.0.1", 3182)
    contract.eventually(lambda: views[-1].writable == ("bk", "bk2"))
    bookie.close()
    other.close()


def test_a_list_of_ledgers_agrees_anew_in_each_session(zookeeper: ZooKeeperProcess, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BKE-10, metadata.md 2.3: a session that begins in the midst of the list may be at a server that is behind, which misses ledgers."""
    store = _open(zookeeper, root)
    store.initialize_cluster()
    ledger_ids = [1, 20_000, 20_001, 2**31 - 1]
    for ledger_id in ledger_ids:
        store.create_ledger(ledger_id, b"")
    agreed: list[object] = []
    sync = store._nodes.sync

    def noted(path: str) -> None:
        sync(path)
        agreed.append(store._nodes.session_id())

    monkeypatch.setattr(store._nodes, "sync", noted)
    listed = store.list_ledgers()
    first = next(listed)
    session = store._nodes.session_id()
    assert agreed == [session]
    _expire(store, zookeeper)
    contract.eventually(lambda: store._nodes.session_id() not in (None, 0, session))
    assert [first, *listed] == ledger_ids
    assert agreed == [session, store._nodes.session_id()]
    assert store.gone_ledgers([1, 2]) == [2] and len(agreed) == 3
    store.close()


def test_without_a_server_nothing_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(MetadataUnavailableError):
        open_store("zk://127.0.0.1:1/ledgers", timeout_s=0.5)
    assert time.monotonic() - started < 20


def test_a_server_killed_during_writes(tmp_path: Path) -> None:
    """Each write ends in success, "unavailable" or "unknown"; with the server back, repeating the last one settles it (META-12)."""
    with ZooKeeperProcess(tmp_path) as process:
        store = _open(process, "/ledgers", timeout_s=3.0, session_ms=30000)
        store.initialize_cluster()
        store.create_ledger(1, b"0")
        calls: list[int] = []
        store.watch_ledger(1, lambda: calls.append(1))
        version = 0
        threading.Timer(0.3, process._process.kill).start()  # type: ignore[union-attr]
        with pytest.raises((MetadataOutcomeUnknownError, MetadataUnavailableError)) as failure:
            while True:
                version = store.write_ledger(1, b"%d" % (version + 1), version)
        assert failure.value.retriable
        started = time.monotonic()
        asked = (lambda: store.read_ledger(1), store.bookies, store.new_ledger_id, lambda: store.delete_ledger(1))
        with ThreadPoolExecutor(len(asked)) as threads:  # at once, because each waits for the whole timeout
            for call in [threads.submit(one) for one in asked]:
                with pytest.raises(MetadataUnavailableError):
                    call.result()
        assert time.monotonic() - started < 20
        seen = len(calls)
        port = process.port
        process.kill()
        process.start()
        assert process.port == port
        contract.eventually(lambda: _answers(store))
        try:
            version = store.write_ledger(1, b"%d" % (version + 1), version)
        except VersionConflictError:
            version = store.read_ledger(1).version  # the lost answer was a yes
        assert store.read_ledger(1).data == b"%d" % version
        contract.eventually(lambda: len(calls) > seen)
        store.close()


def _answers(store: ZooKeeperStore) -> bool:
    try:
        store.read_ledger(1)
    except MetadataUnavailableError:
        return False
    return True


def test_a_frozen_server_leaves_a_write_open(tmp_path: Path) -> None:
    """The request is on its way when the server stops answering: nobody can know whether it will be applied."""
    import os
    import signal

    with ZooKeeperProcess(tmp_path) as process:
        store = _open(process, "/ledgers", timeout_s=1.0, session_ms=30000)
        store.initialize_cluster()
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
        contract.eventually(lambda: _answers(store))
        with pytest.raises(VersionConflictError):  # it was applied after all
            store.write_ledger(1, b"1", 0)
        store.close()
