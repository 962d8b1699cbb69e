"""The store in etcd in the layout of Apache's own driver, against the store contract and against what that driver writes (metadata.md 6.2).

The driver itself is asked in ``tests/integration/apache_etcd.py``.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.errors import (
    ClusterExistsError,
    InvalidArgumentError,
    LayoutMismatchError,
    MetadataFormatError,
    NoAutoRecoveryError,
    NoClusterError,
    NotEnoughBookiesError,
    VersionConflictError,
)
from bk_core.metadata import BookieView, open_store
from bk_core.metadata.etcd.apache import UNLISTED_ID, ApacheEtcdStore, ledger_name
from tests.etcd_control import Control

_NUMBERS = itertools.count()
LAYOUT = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
MARKERS = ("", "/bookies", "/bookies/readonly", "/bookies/writable", "/buckets", "/cookies", "/ledgers", "/underreplication")


def _contract() -> ModuleType:
    """The neighbour file; tests folders are no packages."""
    path = Path(__file__).with_name("metadata_store.py")
    spec = importlib.util.spec_from_file_location("conformance_metadata_store_of_apache_etcd", path)
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
def scope() -> str:
    return f"/bk{next(_NUMBERS)}/c1"


@pytest.fixture
def control(etcd: EtcdProcess) -> Control:
    return Control(etcd.connect_string)


def _open(etcd: EtcdProcess, scope: str, options: str = "session_timeout_ms=4000", driver: str = "etcd+apache") -> ApacheEtcdStore:
    store = open_store(f"{driver}://{etcd.connect_string}{scope}?{options}")
    assert isinstance(store, ApacheEtcdStore)
    return store


def _made_by_apache(control: Control, scope: str) -> None:
    """The keys that ``initnewcluster`` of 4.17.3 makes."""
    for name in MARKERS:
        control.put(f"{scope}{name}")
    control.put(f"{scope}/layout", LAYOUT)
    control.put(f"{scope}/instanceid", b"69f61968-0000-4000-8000-000000000001")


def test_the_store_keeps_the_contract(etcd: EtcdProcess, scope: str) -> None:
    contract.check_metadata_store(lambda: _open(etcd, scope), dated=False)


def test_a_new_cluster_holds_exactly_the_keys_of_apaches(etcd: EtcdProcess, scope: str, control: Control) -> None:
    """And nothing of ours lies in it afterwards but what Apache's driver would have there as well."""
    with closing(_open(etcd, scope)) as store:
        assert store.layout() is None
        made = store.initialize_cluster(new=True)
        assert control.keys(scope) == sorted(f"{scope}{name}" for name in (*MARKERS, "/layout", "/instanceid"))
        assert (control.get(f"{scope}/layout"), control.get(f"{scope}/instanceid")) == (LAYOUT, made.encode())
        assert store.layout() == "apache" and store.cluster_id() == made
        before = set(control.keys(f"{scope}/"))
        ledger_id = store.new_ledger_id()
        store.create_ledger(ledger_id, b"x")
        store.create("logs/one", b"value")
        assert set(control.keys(f"{scope}/")) - before == {
            f"{scope}/buckets/{ledger_id >> 56:03d}",
            f"{scope}/ledgers/{ledger_name(ledger_id)}",
        }
        stored = control.get(f"{scope}-logs/logs/one")
        assert stored is not None and stored.endswith(b"value")
        with pytest.raises(ClusterExistsError):
            store.initialize_cluster(new=True)


def test_ids_are_those_of_the_driver(etcd: EtcdProcess, scope: str, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket in the upper 8 bits, in turn, and below it how often its key was written; another client's writes count."""
    with closing(_open(etcd, scope)) as store:
        with pytest.raises(NoClusterError):
            store.new_ledger_id()
        store.initialize_cluster()
        found = [store.new_ledger_id() for _ in range(130)]
        buckets = [one >> 56 for one in found]
        assert buckets == [(buckets[0] + turn) % 128 for turn in range(130)]
        assert [one & (1 << 56) - 1 for one in found] == [1] * 128 + [2, 2]
        control.put(f"{scope}/buckets/{(buckets[-1] + 1) % 128:03d}")  # Java draws one, too
        assert store.new_ledger_id() == ((buckets[-1] + 1) % 128) << 56 | 3
        monkeypatch.setattr(store._nodes, "count_up", lambda path, _root: (1 << 56) - 2 if path.endswith("127") else (1 << 56) - 1)
        monkeypatch.setattr(store, "_buckets", iter([126, 127, 128, *range(200)]))
        with pytest.raises(bk_core.errors.MetadataError, match="no ledger ids left"):
            store.new_ledger_id()


def test_the_id_that_bookies_would_collect_is_refused(etcd: EtcdProcess, scope: str, control: Control) -> None:
    with closing(_open(etcd, scope)) as store:
        store.initialize_cluster()
        before = control.keys(scope)
        with pytest.raises(InvalidArgumentError, match="collect the ledger as garbage"):
            store.create_ledger(UNLISTED_ID, b"")
        assert control.keys(scope) == before
        store.create_ledger(UNLISTED_ID - 1, b"")
        assert list(store.list_ledgers()) == [UNLISTED_ID - 1]


def test_ledgers_are_listed_in_order_and_foreign_keys_passed_over(etcd: EtcdProcess, scope: str, control: Control) -> None:
    ids = [0, 1, 255, 2**31, 12345678901, 10**18, *(5 << 56 | number for number in range(1, 1201)), 127 << 56 | 9]
    assert ledger_name(12345678901) == "00000000-0000-0000-0000-0002dfdc1c35"
    assert ledger_name(10**18) == "00000000-0000-0000-0de0-b6b3a7640000"
    with closing(_open(etcd, scope)) as store:
        store.initialize_cluster()
        for ledger_id in ids:
            store.create_ledger(ledger_id, b"")
        for name in ("note", "00000000-0000-0001-0000-000000000001", "00000000-0000-0000-8000-000000000000", f"{ledger_name(3)}/below"):
            control.put(f"{scope}/ledgers/{name}")
        assert list(store.list_ledgers()) == sorted(ids)


def test_what_apaches_driver_made_is_read_and_written(etcd: EtcdProcess, scope: str, control: Control) -> None:
    """Empty registrations, and changes from both sides: a put of either makes the other's compare-and-set fail."""
    _made_by_apache(control, scope)
    control.put(f"{scope}/bookies/writable/127.0.0.1:3181")
    control.put(f"{scope}/bookies/readonly/127.0.0.1:3182")
    control.put(f"{scope}/cookies/127.0.0.1:3183", b"4\nbookieHost: 127.0.0.1:3183\n")
    key = f"{scope}/ledgers/{ledger_name(51 << 56 | 1)}"
    control.put(key, b"theirs")
    with closing(_open(etcd, scope)) as store:
        assert store.cluster_id() == "69f61968-0000-4000-8000-000000000001"
        assert store.bookies() == BookieView(("127.0.0.1:3181",), ("127.0.0.1:3182",))
        assert store.cookies() == ["127.0.0.1:3183"]
        for bookie in (3181, 3182, 3183):  # registered, read-only, not at all
            assert store.resolve(f"127.0.0.1:{bookie}") == ("127.0.0.1", bookie)
        registered = store.registration("127.0.0.1:3181")
        assert registered is not None and registered.data == b"" and store.registration("127.0.0.1:3183") is None
        assert list(store.list_ledgers()) == [51 << 56 | 1]
        found = store.read_ledger(51 << 56 | 1)
        assert found.data == b"theirs"
        revision = control.json("get", key)["kvs"][0]["mod_revision"]
        newer = store.write_ledger(51 << 56 | 1, b"ours", found.version)
        assert control.json("get", key)["kvs"][0]["mod_revision"] > revision
        control.put(key, b"theirs again")
        with pytest.raises(VersionConflictError):
            store.write_ledger(51 << 56 | 1, b"late", newer)
        store.delete_ledger(51 << 56 | 1)
        assert control.get(key) is None


def test_each_layout_refuses_clusters_of_the_other(etcd: EtcdProcess, scope: str, control: Control) -> None:
    with closing(_open(etcd, scope)) as store:
        made = store.initialize_cluster()
    with pytest.raises(LayoutMismatchError, match=r"write etcd\+apache://"):
        open_store(f"etcd://{etcd.connect_string}{scope}")
    with closing(open_store(f"etcd://{etcd.connect_string}{scope}/within")) as pulsars:  # OWN-13 looks at both kinds
        with pytest.raises(ClusterExistsError, match=made):
            pulsars.initialize_cluster(new=True)
        with pytest.raises(NoClusterError, match=f"There is one at {scope}"):
            pulsars.cluster_id()
        assert pulsars.cluster_near(made) == scope
    other = f"{scope}-other/ledgers"
    with closing(open_store(f"etcd://{etcd.connect_string}{other}")) as pulsars:
        pulsars.initialize_cluster()
    before = control.keys(other)
    with pytest.raises(LayoutMismatchError, match="write etcd:// for it"):
        _open(etcd, other)
    assert control.keys(other) == before
    control.put(f"{scope}/layout", b"2\norg.example.Other:7")
    with pytest.raises(MetadataFormatError, match="not the layout of Apache's driver"):
        _open(etcd, scope)


def test_bookies_count_as_writable_by_their_cookie_or_by_name(etcd: EtcdProcess, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are registered as read-only do not, nor does an id without an address in it."""
    with closing(_open(etcd, scope)) as plain, closing(_open(etcd, scope, "bookies=cookies")) as by_cookie:
        plain.initialize_cluster()
        views: list[BookieView] = []
        by_cookie.watch_bookies(views.append)
        for bookie in ("h1:3181", "h2:3181", "name"):
            plain.write_cookie(bookie, b"4\n", None)
        contract.eventually(lambda: views[-1] == BookieView(("h1:3181", "h2:3181"), ()))
        assert plain.bookies() == BookieView((), ())
        plain.register_bookie("h2:3181", "h2", 3181, readonly=True)
        plain.register_bookie("h3:3181", "h3", 3181)
        contract.eventually(lambda: views[-1] == BookieView(("h1:3181", "h3:3181"), ("h2:3181",)))
        with closing(_open(etcd, scope, "bookies=h9:3181;h2:3181,h3:3181")) as named:
            assert named.bookies() == BookieView(("h3:3181", "h9:3181"), ("h2:3181",))
            assert named.resolve("h9:3181") == ("h9", 3181)
        plain.write_cookie("h4:3181", b"4\n", None)
        contract.eventually(lambda: "h4:3181" in views[-1].writable)
        assert by_cookie.resolve("h1:3181") == ("h1", 3181)
        asked: list[str] = []
        read = by_cookie._base.get
        with monkeypatch.context() as counting:
            counting.setattr(by_cookie._base, "get", lambda *told: asked.append(told[0].rpartition("/")[2]) or read(*told))
            assert by_cookie.resolve("h1:3181") == ("h1", 3181)
        assert asked == ["h1:3181", "h1:3181"]  # and not after the others that have no registration


@pytest.fixture
def three(etcd: EtcdProcess, scope: str, tmp_path: Path) -> Iterator[list[EmbeddedBookie]]:
    """Bookies that serve and have lost their registration, which has the same effect as Apache's driver: no key."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(_open(etcd, scope)))
        store.initialize_cluster()
        bookies = [stack.enter_context(EmbeddedBookie(tmp_path / f"b{number}", store=store)) for number in range(3)]
        for bookie in bookies:
            assert bookie._registration is not None
            bookie._registration.close()
        assert store.bookies() == BookieView((), ())
        yield bookies


def test_bookies_without_a_registration_are_not_lost(etcd: EtcdProcess, scope: str, control: Control, three: list[EmbeddedBookie]) -> None:
    uri = f"etcd+apache://{etcd.connect_string}{scope}"
    with bk_core.connect(uri, operation_timeout_s=1.5) as client:
        before = control.keys(f"{scope}/ledgers/")
        with pytest.raises(NotEnoughBookiesError, match=r"lose their registration.*\?bookies=cookies"):
            client.create_ledger()
        assert control.keys(f"{scope}/ledgers/") == before
        with bk_core.connect(f"{uri}?bookies=cookies") as writing, writing.create_ledger(ack_quorum_size=3) as ledger:
            ledger.append_many([b"one", b"two"])
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 1) == [b"one", b"two"]
        metadata = client.ledger_metadata(ledger.ledger_id)
        report = client.repair_ledger(ledger.ledger_id)
        assert report.is_complete and not report.problems and client.check_ledger(ledger.ledger_id).is_good
        assert client.ledger_metadata(ledger.ledger_id) == metadata
        found = client.doctor()
        assert {one.code for one in found.findings} & {"bookie-down", "under-replicated", "no-live-copy"} == set()
        assert [one.bookies for one in found.findings if one.code == "bookie-unregistered"] == [tuple(sorted(b.bookie_id for b in three))]
        three[0].close()
        down = [one for one in client.doctor().findings if one.code == "bookie-down"]
        assert [one.bookies for one in down] == [(three[0].bookie_id,)] and "--delete-cookie" not in down[0].command
        with pytest.raises(InvalidArgumentError, match="cannot be told whether"):
            client.decommission_bookie(three[0].bookie_id, delete_cookie=True)


@pytest.mark.usefixtures("three")
def test_there_is_no_auto_recovery(etcd: EtcdProcess, scope: str, control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-16: it would take bookies that serve for lost; nothing is written before that is said."""
    uri = f"etcd+apache://{etcd.connect_string}{scope}"
    before = control.revision()
    with bk_core.connect(uri) as client, pytest.raises(NoAutoRecoveryError, match="no auto-recovery in this cluster"):
        client.auto_recovery().start()
    for arguments in (["cluster", "autorecovery", "off"], ["cluster", "autorecovery"], ["autorecovery", "--look-every", "1"]):
        assert cli.run([*arguments, "--uri", uri]) != 0
        assert "BK-NO-AUTO-RECOVERY" in capsys.readouterr().err
    assert control.revision() == before
