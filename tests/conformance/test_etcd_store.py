"""The store in etcd against the store contract, and what only a real etcd can show."""

from __future__ import annotations

import importlib.util
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.errors import (
    InvalidArgumentError,
    LayoutMismatchError,
    MetadataError,
    NodeExistsError,
)
from bk_core.metadata import BookieView, ZooKeeperAuth, open_store
from bk_core.metadata.etcd.store import EtcdStore
from tests.etcd_control import Control

_NUMBERS = itertools.count()


def _contract() -> ModuleType:
    """The neighbour file; tests folders are no packages."""
    path = Path(__file__).with_name("metadata_store.py")
    spec = importlib.util.spec_from_file_location("conformance_metadata_store_of_etcd", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


contract = _contract()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture
def root() -> str:
    return f"/cluster{next(_NUMBERS)}/ledgers"


def _open(etcd: EtcdProcess, root: str, *, layout: str = "", timeout_s: float = 10.0, session_ms: int = 4000) -> EtcdStore:
    store = open_store(f"etcd{layout}://{etcd.connect_string}{root}?session_timeout_ms={session_ms}", timeout_s=timeout_s)
    assert isinstance(store, EtcdStore)
    return store


@pytest.mark.parametrize("layout", ["", "+null", "+hierarchical", "+longhierarchical", "+flat"])
def test_etcd_store_keeps_the_contract(etcd: EtcdProcess, root: str, layout: str) -> None:
    contract.check_metadata_store(lambda: _open(etcd, root, layout=layout), dated=False)


def test_a_new_cluster_holds_exactly_the_specified_keys(etcd: EtcdProcess, root: str) -> None:
    """metadata.md 6: the paths of ZooKeeper, no key for a directory, and nothing of ours below the ledgers root."""
    control = Control(etcd.connect_string)
    store = _open(etcd, root)
    store.initialize_cluster()
    assert control.keys(root) == [f"{root}{name}" for name in ("", "/INSTANCEID", "/LAYOUT", "/available", "/available/readonly")]
    assert control.get(f"{root}/LAYOUT") == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert [store.new_ledger_id() for _ in range(3)] == [0, 1, 2]
    store.create_ledger(0, b"x")
    store.create_ledger(2**31 - 1, b"y")
    assert control.get(f"{root}/00/0000/L0000") == b"x" and control.get(f"{root}/000/0000/0021/4748/L3647") == b"y"
    assert list(store.list_ledgers()) == [0, 2**31 - 1]
    store.delete_ledger(0)
    store.delete_ledger(2**31 - 1)
    store.create("logs/one", b"value")
    assert {key for key in control.keys(root) if key.startswith(f"{root}/")} == {
        f"{root}{name}" for name in ("/INSTANCEID", "/LAYOUT", "/available", "/available/readonly", "/idgen")
    }
    stored = control.get(f"{root}-logs/logs/one")
    assert stored is not None and stored.endswith(b"value") and len(stored) == 25
    store.close()


def test_a_cluster_that_pulsar_made_is_read_and_written(etcd: EtcdProcess, root: str) -> None:
    """metadata.md 6: no LAYOUT, versions from 0, numbers counted by the key idgen, keys written by others as they are."""
    control = Control(etcd.connect_string)
    control.put(f"{root}/INSTANCEID", b"8a5c1e90-0000-4000-8000-000000000001")
    for name in ("", "/available", "/available/readonly"):
        control.put(f"{root}{name}")
    for _ in range(3):
        control.put(f"{root}/idgen")  # as Pulsar draws three numbers
    control.put(f"{root}/00/0000/L0001", b"theirs")
    store = _open(etcd, root)
    assert store.cluster_id() == "8a5c1e90-0000-4000-8000-000000000001" and store.layout() is None
    assert store.new_ledger_id() == 3
    assert list(store.list_ledgers()) == [1]
    found = store.read_ledger(1)
    assert (found.data, found.version, found.created_ms) == (b"theirs", 0, None)
    assert store.write_ledger(1, b"ours", 0) == 1
    control.put(f"{root}/00/0000/L0001", b"theirs again")
    assert store.read_ledger(1).version == 2
    store.register_bookie("bk", "127.0.0.1", 3181)
    payload = control.get(f"{root}/available/bk")
    assert payload is not None and b"bookie-rpc" in payload
    store.close()
    assert control.get(f"{root}/available/bk") is None


def test_a_cluster_of_apaches_own_driver_is_refused(etcd: EtcdProcess, root: str) -> None:
    Control(etcd.connect_string).put(f"{root}/layout", b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0")
    with pytest.raises(LayoutMismatchError, match="Apache BookKeeper's own etcd driver"):
        _open(etcd, root)


def test_many_ledgers_are_listed_in_order(etcd: EtcdProcess, root: str) -> None:
    """More than one page, both trees, and what lies beside them is skipped."""
    store = _open(etcd, root)
    store.initialize_cluster()
    ids = [*range(1500), 10**8, 3 * 10**8, 2**31 - 2, 2**31 - 1, 2**40, 10**18]
    for ledger_id in ids:
        store.create_ledger(ledger_id, b"")
    for number in range(30):
        store.write_cookie(f"bk{number}:3181", b"", None)
    assert list(store.list_ledgers()) == ids
    assert store.cookies() == sorted(f"bk{number}:3181" for number in range(30))
    assert sorted(store._nodes.children(root)) == sorted(
        {"INSTANCEID", "LAYOUT", "available", "cookies", "00", "01", "03", "21", "000", "100"}
    )
    store.close()


def test_chroot_and_log_root(etcd: EtcdProcess) -> None:
    uri = f"etcd://{etcd.connect_string};{etcd.connect_string}/ledgers?chroot=/deep/down"
    store = open_store(uri, log_root="/elsewhere")
    store.initialize_cluster()
    assert store.other_log_roots() == ()
    store.create("a", b"")
    assert store.other_log_roots() is None
    store.close()
    store = _open(etcd, "/deep/down/ledgers")
    assert store.instance_id() is not None
    assert Control(etcd.connect_string).get("/deep/down/elsewhere/a") is not None
    store.close()


def test_another_layout_is_refused(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root, layout="+longhierarchical")
    store.initialize_cluster()
    store.close()
    with pytest.raises(LayoutMismatchError):
        _open(etcd, root, layout="+hierarchical")
    store = _open(etcd, root)
    assert store.layout() == "longhierarchical"
    store.close()


def test_long_ids_follow_when_short_ones_are_forced_out(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root)
    store.initialize_cluster()
    Control(etcd.connect_string).put(f"{root}/idgen-long")
    found = [store.new_ledger_id() for _ in range(3)]
    assert [one >> 32 for one in found] == [1, 1, 1] and len(set(found)) == 3
    store.close()


def test_what_has_keys_below_it_is_not_deleted(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root)
    store.initialize_cluster()
    store.create("logs/a", b"")
    store.create("logs/a/b", b"")
    store.create("logs/a-c", b"")
    with pytest.raises(MetadataError, match="has children"):
        store.delete("logs/a")
    with pytest.raises(MetadataError, match="has children"):
        store.delete("logs/a", 0)
    store.delete("logs/a/b")
    store.delete("logs/a", 0)
    assert store.children("logs") == ["a-c"]
    store.close()


def test_registration_waits_for_the_key_of_an_earlier_session(etcd: EtcdProcess, root: str) -> None:
    one, two = _open(etcd, root), _open(etcd, root, session_ms=2000)
    one.initialize_cluster()
    one.register_bookie("bk", "127.0.0.1", 1)
    with pytest.raises(NodeExistsError):
        two.register_bookie("bk", "127.0.0.1", 2)
    threading.Timer(0.5, one.close).start()
    two.register_bookie("bk", "127.0.0.1", 2)
    assert two.resolve("bk") == ("127.0.0.1", 2)
    two.close()


def test_unregistered_cluster_refuses_bookies(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root)
    with pytest.raises(MetadataError, match="not initialised"):
        store.register_bookie("bk", "127.0.0.1", 1)
    store.close()


def test_a_session_is_kept_alive_for_longer_than_its_time(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root, session_ms=2000)
    store.initialize_cluster()
    lock = store.underreplication().lock(1, "host-1")
    assert lock is not None
    threading.Event().wait(5.0)
    assert lock.is_held()
    store.close()


def test_a_session_that_the_servers_have_ended_is_noticed(etcd: EtcdProcess, root: str) -> None:
    """The next keep-alive notices it, although nothing else is asked: a lock alone is watched by nobody."""
    store = _open(etcd, root, session_ms=2000)
    store.initialize_cluster()
    lock = store.underreplication().lock(1, "host-1")
    session = store._nodes.session_id()
    assert lock is not None and session is not None
    Control(etcd.connect_string).revoke(session)
    contract.eventually(lambda: store._nodes.session_id() is None)
    assert not lock.is_held()
    lock.release()
    assert store.underreplication().lock(1, "host-1") is not None
    store.close()


def test_registrations_locks_and_watches_outlive_a_lost_session(etcd: EtcdProcess, root: str) -> None:
    control = Control(etcd.connect_string)
    bookie, other = _open(etcd, root), _open(etcd, root)
    bookie.initialize_cluster()
    before = set(control.leases())
    bookie.register_bookie("bk", "127.0.0.1", 3181)
    lock = bookie.underreplication().lock(7, "host-1")
    assert lock is not None and lock.is_held()
    bookie.create_ledger(1, b"")
    calls: list[int] = []
    views: list[BookieView] = []
    bookie.watch_ledger(1, lambda: calls.append(1))
    bookie.watch_bookies(views.append)
    session = bookie._nodes.session_id()
    assert {session} == set(control.leases()) - before
    assert session is not None
    control.revoke(session)
    contract.eventually(lambda: bookie._nodes.session_id() not in (None, session))
    contract.eventually(lambda: other.bookies() == BookieView(("bk",), ()))
    assert not lock.is_held()
    lock.release()
    other.write_ledger(1, b"changed", 0)
    contract.eventually(lambda: len(calls) == 1)
    other.register_bookie("bk2", "127.0.0.1", 3182)
    contract.eventually(lambda: views[-1].writable == ("bk", "bk2"))
    bookie.close()
    other.close()


def test_watches_survive_compaction(etcd: EtcdProcess, root: str) -> None:
    """A watch that asks for a revision which is gone is told of, and watches on from what is there."""
    control = Control(etcd.connect_string)
    one, two = _open(etcd, root), _open(etcd, root)
    one.initialize_cluster()
    one.create_ledger(1, b"")
    calls: list[int] = []
    one.watch_ledger(1, lambda: calls.append(1))
    for version in range(5):
        two.write_ledger(1, b"x", version)
        control.compact()
        contract.eventually(lambda: len(calls) >= version + 1)  # noqa: B023
    connection = one._link.connection
    fired: list[object] = []
    one._watching.arm((f"{root}/LAYOUT".encode(), b""), "old", 1, fired.append)  # a revision that was compacted away long ago
    contract.eventually(lambda: len(fired) == 1)
    two.write_ledger(1, b"y", 5)
    contract.eventually(lambda: len(calls) >= 6)
    assert one._link.connection is connection
    one.close()
    two.close()


def test_a_listing_whose_revision_is_compacted_away_begins_again(etcd: EtcdProcess, root: str) -> None:
    control = Control(etcd.connect_string)
    store = _open(etcd, root)
    store.initialize_cluster()
    for number in range(1200):
        store.write_cookie(f"bk{number:04}:3181", b"", None)
    call, pages = store._link.call, []

    def compacting(method: str, request: object, timeout_s: float, path: str = "", **named: bool) -> object:
        answer = call(method, request, timeout_s, path, **named)
        if path.endswith("/cookies"):
            pages.append(path)
            if len(pages) == 1:
                store.create("logs/later", b"")
                control.compact()
        return answer

    store._link.call = compacting  # type: ignore[method-assign]
    assert len(store.cookies()) == 1200 and len(pages) == 4 - 1
    store.close()


def test_the_identity_of_another_store_is_refused(etcd: EtcdProcess) -> None:
    with pytest.raises(InvalidArgumentError, match="identity of the class EtcdAuth, not ZooKeeperAuth"):
        open_store(f"etcd://{etcd.connect_string}/ledgers", auth=ZooKeeperAuth("sasl", "a", "b"))


def test_a_key_that_is_no_text_below_the_root_is_passed_over(etcd: EtcdProcess, root: str) -> None:
    store = _open(etcd, root)
    store.initialize_cluster()
    store.create_ledger(7, b"x")
    for name in ("\udcff", "\udcf0\udcff/below", "\udc80"):
        Control(etcd.connect_string).put(f"{root}/{name}")
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(store.list_ledgers()), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [7] and not thread.is_alive()
    store.close()


def test_the_clock_is_asked_at_each_address_of_a_name(etcd: EtcdProcess, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On most hosts localhost is ::1 first, where an etcd that listens on 127.0.0.1 is not; grpc tries all of them."""
    found = socket.getaddrinfo

    def both(host: str, port: int, *arguments: Any, **named: Any) -> list[Any]:
        ours = found(host, port, *arguments, **named)
        nobody = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
        return [nobody, *ours] if host == "localhost" else ours

    with closing(open_store(f"etcd://localhost:{etcd.port}{root}")) as store:
        monkeypatch.setattr(socket, "getaddrinfo", both)
        assert abs(store.clock_ms() - time.time() * 1000) < 60_000
