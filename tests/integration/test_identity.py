"""Logs and their clusters: two clusters in one ZooKeeper, one initialised anew, an empty ZooKeeper, a mistyped root (OWN-1 .. OWN-12).

ZooKeeper and the bookies are real; each cluster has one bookie, in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl
from pyspark.sql.types import LongType, StructField, StructType

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.cli import run
from bk_core.client.log.check import check_log, release_log
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import create_intended
from bk_core.client.log.janitor import delete_log, gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.orphans import adopt_log, delete_orphan, find_orphans, forget_log, unnamed_ledgers
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    InvalidArgumentError,
    LogExistsError,
    MetadataDeniedError,
    NoClusterError,
    NoSuchLogError,
    WrongClusterError,
)
from bk_core.metadata import open_store
from bk_core.metadata.zookeeper import store as zookeeper
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from bk_spark.options.table import parse_options
from bk_spark.sink import commit, data_ledgers, sweep
from bk_spark.sink import task as sink
from bk_spark.sink.writer import BookKeeperStreamWriter
from bk_spark.source.first_offset import durable
from tests.integration.patience import PATIENT

_NUMBERS = itertools.count()
ONE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
RAW = LogProperties(entry_format="raw", **ONE)


class World:
    """A place in one ZooKeeper for clusters side by side."""

    def __init__(self, zookeeper: ZooKeeperProcess, directory: Path) -> None:
        self.address = zookeeper.connect_string
        self.parent = f"/world{next(_NUMBERS)}"
        self.kazoo = KazooClient(hosts=self.address)
        self.kazoo.start(timeout=30)
        self._directory = directory
        self._opened: list[Any] = []

    def uri(self, name: str) -> str:
        return f"zk://{self.address}{self.parent}/{name}"

    def cluster(self, name: str) -> EmbeddedBookie:
        """Initialise it and start its bookie."""
        store = self.opened(open_store(self.uri(name)))
        store.initialize_cluster()
        bookie: EmbeddedBookie = EmbeddedBookie(self._directory / f"{name}-{next(_NUMBERS)}", "127.0.0.1", 0, store).start()
        return self.opened(bookie)

    def connect(self, name: str, **settings: Any) -> bk_core.BookKeeper:
        client: bk_core.BookKeeper = self.opened(bk_core.connect(self.uri(name), limits=PATIENT, **settings))
        return client

    def opened(self, thing: Any) -> Any:
        self._opened.append(thing)
        return thing

    def stop(self) -> None:
        """Bookies and clients, the newest first."""
        while self._opened:
            self._opened.pop().close()

    def wipe(self, *names: str) -> None:
        for name in names:
            self.kazoo.delete(f"{self.parent}/{name}", recursive=True)

    def close(self) -> None:
        self.stop()
        self.kazoo.stop()
        self.kazoo.close()


@pytest.fixture(scope="module", name="zookeeper")
def a_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture
def world(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[World]:
    made = World(zookeeper, tmp_path)
    yield made
    made.close()


def written(client: bk_core.BookKeeper, name: str, entries: int = 3) -> list[int]:
    """A log of so many segments of one entry; its ledgers."""
    create_log(client, name, RAW, exist_ok=True)
    with LogWriter.open(client, name) as writer:
        for i in range(entries):
            writer.append(b"%d" % i)
            writer.roll()
    return [segment.ledger_id for segment in read_ledger_list(client, name).segments]


def strangers(client: bk_core.BookKeeper, count: int) -> list[Any]:
    """Ledgers of nobody's log that are being written."""
    writers = [client.create_ledger(**ONE) for _ in range(count)]
    for writer in writers:
        writer.append(b"of a stranger")
    return writers


def check_strangers(client: bk_core.BookKeeper, writers: list[Any]) -> None:
    """None was lost, fenced or deleted."""
    for writer in writers:
        writer.append(b"goes on")
        assert client.ledger_metadata(writer.ledger_id).state is LedgerState.OPEN
        assert writer.last_add_confirmed >= 1


def entries_of(client: bk_core.BookKeeper, name: str) -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


# --- is there a cluster ------------------------------------------------------------------------------------------------


def test_a_mistyped_root_is_refused_and_the_right_one_named(world: World) -> None:
    """OWN-1"""
    world.cluster("ledgers")
    root = f"{world.parent}/ledgerz"
    with pytest.raises(NoClusterError, match=rf"BK-NO-CLUSTER\] there is no cluster at {root}.*There is one at {world.parent}/ledgers:"):
        bk_core.connect(world.uri("ledgerz"))
    with pytest.raises(NoClusterError, match=rf"There is one at {world.parent}/ledgers:"):
        bk_core.connect(world.uri("ledgers/deeper/down"))
    with pytest.raises(NoClusterError, match=rf"There is one at {world.parent}/ledgers:"):
        bk_core.connect(f"zk://{world.address}{world.parent}")
    assert world.kazoo.get_children(world.parent) == ["ledgers"]  # asking made nothing


def test_an_empty_place_is_no_cluster(world: World, zookeeper: ZooKeeperProcess) -> None:
    """OWN-1: a root that exists but holds neither LAYOUT nor INSTANCEID is none either, and may be initialised by nobody but the user."""
    world.kazoo.create(f"{world.parent}/ledgers/available/readonly", makepath=True)
    with pytest.raises(NoClusterError, match="exists, but has neither LAYOUT nor INSTANCEID"):
        bk_core.connect(world.uri("ledgers"))


def test_an_old_cluster_without_instance_id_is_one(world: World) -> None:
    """OWN-1: where only a LAYOUT is, the identity is when the root was made."""
    world.cluster("ledgers")
    world.stop()
    world.wipe("ledgers/INSTANCEID")
    with open_opened(world, "ledgers") as store:
        before = store.cluster_id()
        assert before.startswith("root-") and store.cluster_id() == before
        world.wipe("ledgers")
        with pytest.raises(NoClusterError, match=f"it was cluster {before} before: the metadata store was emptied"):
            store.cluster_id()
        with pytest.raises(NoClusterError):
            list(store.list_ledgers())
        world.kazoo.create(f"{world.parent}/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1", makepath=True)
        with pytest.raises(ClusterChangedError, match=f"it was cluster {before} when this client connected"):
            store.cluster_id()
        assert store.cluster_has_changed
    with open_opened(world, "ledgers") as store:
        assert store.cluster_id() != before and not store.cluster_has_changed


def open_opened(world: World, name: str) -> Any:
    return contextlib.closing(open_store(world.uri(name)))


def test_a_cluster_that_lost_its_layout_lists_no_ledgers(world: World) -> None:
    """OWN-2"""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    assert list(client.list_ledgers()) == []
    world.wipe("ledgers/LAYOUT")
    with pytest.raises(NoClusterError, match="has lost its LAYOUT"):
        list(client.list_ledgers())


# --- what it costs -----------------------------------------------------------------------------------------------------


class Trips:
    """Round trips to ZooKeeper that this thread makes, and requests in them."""

    def __init__(self, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trips, self.requests = 0, 0
        link: Any = client.store._link  # type: ignore[attr-defined]
        call_all, me = link.call_all, threading.get_ident()

        def counted(asked: Any, timeout_s: float) -> Any:
            if threading.get_ident() == me:
                self.trips, self.requests = self.trips + 1, self.requests + len(asked)
            return call_all(asked, timeout_s)

        monkeypatch.setattr(link, "call_all", counted)

    def of(self, action: Callable[[], Any]) -> tuple[int, int]:
        self.trips = self.requests = 0
        action()
        return self.trips, self.requests


def test_a_list_and_its_cluster_are_read_in_one_round_trip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-3: also where the identity takes several requests, because there is no INSTANCEID (OWN-1)."""
    for requests in (2, 4):
        world.cluster("ledgers")
        if requests == 4:
            world.wipe("ledgers/INSTANCEID")
        client = world.connect("ledgers")
        written(client, "web")
        trips = Trips(client, monkeypatch)
        assert trips.of(lambda client=client: read_log(client, "web")) == (1, requests)
        with pytest.raises(NoSuchLogError):
            read_log(client, "none")
        world.wipe("ledgers/LAYOUT", *(["ledgers/INSTANCEID"] if requests == 2 else []))
        with pytest.raises(NoClusterError):
            read_log(client, "web")
        world.stop()
        world.wipe("ledgers", "ledgers-logs")


def test_what_a_micro_batch_of_the_sink_asks_the_metadata_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver, once its log is there: the list with its cluster for plan and commit, whose the data ledger is, the change.

    And the task, which goes on with its ledger: the intent.
    """
    world.cluster("ledgers")
    client = world.connect("ledgers")
    for module in (sink, commit, data_ledgers):
        monkeypatch.setattr(module, "client_for", lambda *_: client)
    monkeypatch.setattr(sink, "task_identity", lambda: ("query", 0, 0))
    monkeypatch.setattr(zookeeper, "CLOCK_KEPT_S", 1e9)
    monkeypatch.setattr(sweep, "_last", {})
    monkeypatch.setattr(sweep, "PAUSE_S", 1e9)
    one = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
    options = parse_options({"metadataServiceUri": world.uri("ledgers"), "log": "web", **one})
    schema = StructType([StructField("id", LongType())])
    trips = Trips(client, monkeypatch)
    batches = []

    def plan() -> None:
        batches.append(BookKeeperStreamWriter(options, schema, False))

    def task() -> None:
        messages.append(batches[-1].write(iter([pa.RecordBatch.from_pydict({"id": [len(batches)]})])))

    messages: list[Any] = []
    for batch_id in range(4):
        told = [trips.of(plan), trips.of(task), trips.of(lambda: batches[-1].commit(messages[-1:], len(batches) - 1))]
        if batch_id >= 2:  # the first makes the log, the second its ledger under the log's id
            assert told == [(1, 2), (1, 1), (3, 4)]
    assert read_log(client, "web").listed.total_rows == 4
    data_ledgers._kept.clear()


# --- where logs lie ----------------------------------------------------------------------------------------------------


def test_each_cluster_has_its_own_log_root(world: World) -> None:
    """OWN-8: the same name in two clusters is two logs; a root given by hand, or in the URI, overrides."""
    for name in ("ledgers-a", "ledgers-b"):
        world.cluster(name)
    a, b = world.connect("ledgers-a"), world.connect("ledgers-b")
    assert (a.store.log_root, b.store.log_root) == (f"{world.parent}/ledgers-a-logs", f"{world.parent}/ledgers-b-logs")
    assert list_logs(a) == [] and not world.kazoo.exists(a.store.log_root)  # looking makes nothing
    ledgers = {name: written(client, "web") for name, client in (("a", a), ("b", b))}
    delete_log(b, "web")
    assert entries_of(a, "web") == [b"0", b"1", b"2"] and set(ledgers["a"]) <= set(a.list_ledgers())
    assert list_logs(b) == [] and list(b.list_ledgers()) == []
    root = f"{world.parent}/other"
    create_log(world.connect("ledgers-b", log_root=root), "mine", RAW)
    there = bk_core.connect(f"{world.uri('ledgers-b')}?log_root={root}")
    assert list_logs(world.opened(there)) == ["mine"] and list_logs(b) == []


def as_before(world: World, name: str, log: str) -> None:
    """Store a log's list at the old root, in format 2, as earlier programs did."""
    old = f"{world.parent}/bk-logs"
    for kind in ("logs", "intents"):
        world.kazoo.ensure_path(f"{old}/{kind}")
    value = json.loads(world.kazoo.get(f"{world.parent}/{name}-logs/logs/{log}")[0])
    del value["cluster"]
    world.kazoo.create(f"{old}/logs/{log}", json.dumps({**value, "format": 2}).encode())
    world.kazoo.delete(f"{world.parent}/{name}-logs", recursive=True)


def test_logs_at_the_old_root_are_found_and_stay_there(world: World) -> None:
    """OWN-8, OWN-4: the decision is written down, so that new logs go to the same place for ever; a second cluster goes its own way."""
    for name in ("ledgers-a", "ledgers-b"):
        world.cluster(name)
    written(world.connect("ledgers-a"), "web")
    as_before(world, "ledgers-a", "web")
    a, b = world.connect("ledgers-a"), world.connect("ledgers-b")
    assert a.store.log_root == f"{world.parent}/bk-logs" and entries_of(a, "web") == [b"0", b"1", b"2"]
    assert world.kazoo.exists(f"{world.parent}/ledgers-a-logs") is None
    written(a, "new")
    assert json.loads(world.kazoo.get(f"{world.parent}/ledgers-a-logs")[0]) == {"logRoot": f"{world.parent}/bk-logs"}
    assert list_logs(a) == ["new", "web"]
    assert b.store.log_root == f"{world.parent}/ledgers-b-logs" and list_logs(b) == []
    delete_log(a, "web")
    delete_log(a, "new")
    assert list(a.list_ledgers()) == [] and world.connect("ledgers-a").store.log_root == f"{world.parent}/bk-logs"


def test_a_log_that_an_older_program_makes_at_the_old_root_is_told(world: World) -> None:
    """OWN-8: never split in silence."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    create_log(client, "first", RAW)
    create_log(world.connect("ledgers", log_root=f"{world.parent}/bk-logs"), "late", RAW)
    with pytest.raises(NoSuchLogError, match=rf"an older program keeps one at {world.parent}/bk-logs \(log_root="):
        read_log(client, "late")
    with pytest.raises(LogExistsError, match=f"keeps a log 'late' at {world.parent}/bk-logs"):
        create_log(client, "late", RAW)
    assert list_logs(client) == ["first"]


def test_a_log_root_that_does_not_exist_is_told_with_those_that_do(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-8: a letter off, every log seemed to be gone."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    assert list_logs(client) == []  # nobody said where they were
    written(client, "web")
    create_log(world.connect("ledgers", log_root=f"{world.parent}/other"), "mine", RAW)
    wrong = world.connect("ledgers", log_root=f"{world.parent}/othre")
    roots = f"there are {world.parent}/ledgers-logs, {world.parent}/other: look at log_root"
    for action in (list_logs, *ACTIONS.values()):
        with pytest.raises(BkError, match=rf"\[BK-NO-LOG-ROOT\] there is no log root {world.parent}/othre, .*; {roots}"):
            action(wrong)
    uri = f"{world.uri('ledgers')}?log_root={world.parent}/othre"
    for command in (*COMMANDS, ("log", "check", "--all"), ("log", "gc", "--delete-orphans", "all")):
        status, out, err = bk(capsys, uri, *command)
        assert status == 1 and not out and roots in err, command
    assert not world.kazoo.exists(f"{world.parent}/othre")
    create_log(wrong, "first", RAW)  # the way to make one
    assert list_logs(wrong) == ["first"] and entries_of(client, "web") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("clock", [True, False], ids=["a clock", "no clock yet"])
def test_who_may_only_read_the_metadata_store_reads_logs(world: World, capsys: pytest.CaptureFixture[str], clock: bool) -> None:
    """JAN-1: the store's clock is told by a write. Only what goes by age needs it, and says so."""
    world.cluster("ledgers")
    written(world.connect("ledgers"), "web")
    if not clock:
        world.wipe("ledgers-logs/clock")
    read_only = [make_acl("world", "anyone", read=True), make_digest_acl("keeper", "secret", all=True)]
    nodes = [f"{world.parent}/ledgers-logs"]
    while nodes:
        path = nodes.pop()
        nodes += [f"{path}/{child}" for child in world.kazoo.get_children(path)]
        world.kazoo.set_acls(path, read_only)
    client = world.connect("ledgers")
    assert entries_of(client, "web") == [b"0", b"1", b"2"] and check_log(client, "web").is_good and list_logs(client) == ["web"]
    uri = world.uri("ledgers")
    for command in (("ls",), ("show", "web"), ("segments", "web"), ("tail", "web"), ("check", "--all"), ("marks", "web")):
        assert bk(capsys, uri, "log", *command)[::2] == (0, ""), command
    for bound in (("--before-seq", "1"), ("--keep-bytes", "1")):
        assert bk(capsys, uri, "log", "trim", "web", "--dry-run", *bound)[::2] == (0, "")
    status, _, err = bk(capsys, uri, "log", "trim", "web", "--dry-run", "--older-than", "1d")
    assert status == 1 and "[BK-METADATA-DENIED] the metadata store tells its time by a write to" in err and "ledgers-logs/clock" in err
    with pytest.raises(MetadataDeniedError, match="What goes by age or time needs it; name segments or bytes instead"):
        trim_log(client, "web", before_ms=1)
    with pytest.raises(MetadataDeniedError, match="access control does not let this client do that with .*; nothing was changed"):
        create_log(client, "new", RAW)


# --- logs of another cluster -------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[bk_core.BookKeeper], Any]] = {
    "read": lambda client: entries_of(client, "web"),
    "open a writer": lambda client: LogWriter.open(client, "web"),
    "collect": lambda client: gc_log(client, "web", min_age_s=0),
    "delete": lambda client: delete_log(client, "web"),
}


def test_two_clusters_that_share_a_log_root_leave_each_others_logs_alone(world: World) -> None:
    """OWN-3"""
    for name in ("ledgers-a", "ledgers-b"):
        world.cluster(name)
    shared = f"{world.parent}/shared"
    a, b = (world.connect(name, log_root=shared) for name in ("ledgers-a", "ledgers-b"))
    ledgers = written(a, "web")
    writers = strangers(b, max(ledgers) + 1)
    before = world.kazoo.get(f"{shared}/logs/web")[0]
    for action in ACTIONS.values():
        with pytest.raises(BkError, match=f"BK-WRONG-CLUSTER.* belongs to cluster {a.store.cluster_id()}; this client is connected to"):
            action(b)
    check_strangers(b, writers)
    assert world.kazoo.get(f"{shared}/logs/web")[0] == before and entries_of(a, "web") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("tied", [True, False], ids=["format 3", "format 2"])
def test_a_cluster_initialised_anew_leaves_the_ledgers_of_others_alone(world: World, tied: bool) -> None:
    """OWN-3, OWN-4: ids begin at 0 again, so the lists that survived name ledgers of others, who are writing. OWN-14: before these numbers
    were given, a person cannot adopt the list either."""
    world.cluster("ledgers")
    old = world.connect("ledgers")
    before = old.store.cluster_id() if tied else None
    ledgers = written(old, "web")
    if not tied:
        as_before(world, "ledgers", "web")
    world.stop()
    world.wipe("ledgers")
    world.cluster("ledgers")
    client = world.connect("ledgers", log_root=None if tied else f"{world.parent}/bk-logs")
    with pytest.raises(BkError, match=f"BK-WRONG-CLUSTER.*'web' names ledger {ledgers[1]} and .* more that this cluster has yet to make"):
        adopt_log(client, "web", from_cluster=before)
    writers = strangers(client, max(ledgers) + 1)
    for action in ACTIONS.values():
        with pytest.raises(BkError, match="BK-WRONG-CLUSTER"):
            action(client)
    check_strangers(client, writers)


def test_a_running_client_notices_a_cluster_initialised_anew(world: World) -> None:
    """OWN-2"""
    bookie = world.cluster("ledgers")
    client = world.connect("ledgers")
    ledgers = written(client, "web")
    bookie.close()
    world.wipe("ledgers")
    for action in (lambda: read_log(client, "web"), lambda: list(client.list_ledgers()), lambda: client.decommission_bookie("x:1")):
        with pytest.raises(NoClusterError, match="the metadata store was emptied, or is another one"):
            action()
    with pytest.raises(NoClusterError):
        gc_log(client, "web", min_age_s=0)
    again = world.opened(open_store(world.uri("ledgers")))
    again.initialize_cluster()
    for action in (*ACTIONS.values(), lambda bk: bk.decommission_bookie("x:1"), lambda bk: bk.repair_ledger(ledgers[0])):
        with pytest.raises(BkError, match="BK-CLUSTER-CHANGED"):
            action(client)


def test_handles_of_a_cluster_that_was_replaced_leave_the_new_ledgers_alone(world: World) -> None:
    """OWN-10: ids and versions begin anew. An old close, deletion or recovery by id would hit the ledgers of others."""
    bookie = world.cluster("ledgers")
    old = world.connect("ledgers")
    begun = [old.create_ledger(**ONE) for _ in range(3)]
    for writer in begun:
        writer.append(b"old")
    bookie.close()  # it would register again while the tree is deleted
    world.wipe("ledgers")
    world.cluster("ledgers")
    new = world.connect("ledgers")
    theirs = [new.create_ledger(**ONE) for _ in range(4)]
    assert {writer.ledger_id for writer in begun} <= {writer.ledger_id for writer in theirs}
    for writer in theirs:
        writer.append_many([b"precious"] * 10)
    theirs[3].close()
    before = [new.ledger_metadata(writer.ledger_id) for writer in theirs]
    actions = [begun[0].close, begun[1].close, lambda: old.delete_ledger(theirs[3].ledger_id)]
    actions += [lambda: old.recover_ledger(theirs[2].ledger_id), lambda: old.create_ledger(**ONE)]
    for action in actions:
        with pytest.raises(BkError, match="BK-CLUSTER-CHANGED"):
            action()
    assert [new.ledger_metadata(writer.ledger_id) for writer in theirs] == before
    for writer in theirs[:3]:
        writer.append(b"goes on")
        writer.close()
        with new.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 10) == [b"precious"] * 10 + [b"goes on"]


# --- ledgers whose log is gone -----------------------------------------------------------------------------------------


def test_ledgers_whose_list_is_gone_are_found_and_deleted_only_on_request(world: World) -> None:
    """OWN-9: not those of a log that is there, of one at another log root, or of a writer that has only just begun."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    lost = written(client, "lost")
    kept = written(client, "kept")
    other = world.connect("ledgers", log_root=f"{world.parent}/other")
    elsewhere = written(other, "elsewhere")
    begun = create_intended(client, "unborn", RAW)
    writers = strangers(client, 2)
    world.wipe("ledgers-logs/logs/lost")
    orphans = list(find_orphans(client))
    assert [orphan.ledger_id for orphan in orphans] == lost
    assert {(orphan.log, orphan.log_root) for orphan in orphans} == {("lost", client.store.log_root)} and orphans[0].log_id
    assert list(find_orphans(other)) == []
    assert set(lost) <= set(client.list_ledgers())  # finding deletes nothing
    assert delete_orphan(client, orphans[0]) and not delete_orphan(client, orphans[0])
    create_log(client, "lost", RAW)  # another log of that name
    assert [orphan.ledger_id for orphan in find_orphans(client)] == lost[1:]
    assert all(delete_orphan(client, orphan) for orphan in orphans[1:])
    assert list(find_orphans(client)) == []
    left = {*kept, *elsewhere, begun.ledger_id, *(writer.ledger_id for writer in writers)}
    assert set(client.list_ledgers()) == left
    check_strangers(client, writers)


# --- what a person may say ---------------------------------------------------------------------------------------------


def test_a_log_of_a_restored_cluster_is_adopted(world: World) -> None:
    """OWN-4: the ledgers are the same, the INSTANCEID is not."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    written(client, "web")
    before = client.store.cluster_id()
    world.kazoo.set(f"{world.parent}/ledgers/INSTANCEID", b"restored")
    client = world.connect("ledgers")
    with pytest.raises(WrongClusterError, match=f"belongs to cluster {before}"):
        read_log(client, "web")
    for wrong in (None, "another"):
        with pytest.raises(WrongClusterError, match=f"the list of log 'web' names cluster {before}, not"):
            adopt_log(client, "web", from_cluster=wrong)
    assert adopt_log(client, "web", from_cluster=before).cluster == "restored" == adopt_log(client, "web").cluster
    assert entries_of(client, "web") == [b"0", b"1", b"2"]
    written(client, "web")


def test_adopting_and_deleting_a_strange_log_touches_no_ledger_of_others(world: World) -> None:
    """OWN-6: even a person who is wrong destroys nothing."""
    world.cluster("ledgers")
    ledgers = written(world.connect("ledgers"), "web")
    as_before(world, "ledgers", "web")
    world.stop()
    world.wipe("ledgers")
    world.cluster("ledgers")
    client = world.connect("ledgers", log_root=f"{world.parent}/bk-logs")
    writers = strangers(client, max(ledgers) + 1)
    adopt_log(client, "web")
    with pytest.raises(BkError):
        LogWriter.open(client, "web", attempts=1).append(b"x")
    delete_log(client, "web")
    assert list_logs(client) == []
    check_strangers(client, writers)


def test_ledgers_without_a_name_are_a_logs_only_if_its_adoption_said_so(world: World) -> None:
    """OWN-11: a log of ledgers that somebody put on its list by hand. The one that carries another log's name is never touched."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    create_log(client, "web", RAW)
    other = client.create_ledger(custom={"log": b"other"}, **ONE)
    unnamed = [client.create_ledger(**ONE) for _ in range(3)]
    for writer in (other, *unnamed):
        writer.append(b"x")
    ranges = [SegmentRange(writer.ledger_id, 0, 0, 1, 1) for writer in (*unnamed[:1], other, *unnamed[1:2])]
    update_ledger_list(client, "web", lambda listed: listed.append_segments(ranges, 1))
    update_ledger_list(client, "web", lambda listed: listed.add_live_segment(unnamed[2].ledger_id, 2))
    ids = [writer.ledger_id for writer in unnamed]
    assert unnamed_ledgers(client, "web") == tuple(ids)

    for action in (lambda: LogWriter.open(client, "web"), lambda: release_log(client, "web", even_if_alive=True)):
        with pytest.raises(BkError, match="carries no log's name. If it is this log's all the same, `bk log adopt web --unnamed` says so"):
            action()
    adopt_log(client, "web")
    assert [problem.kind for problem in check_log(client, "web").problems] == ["foreign"] * 4
    check_strangers(client, [other, *unnamed])

    assert adopt_log(client, "web", unnamed=True).adopted == set(ids) == read_ledger_list(client, "web").adopted
    assert adopt_log(client, "web", unnamed=True).adopted == set(ids) and unnamed_ledgers(client, "web") == ()
    (problem,) = check_log(client, "web").problems
    assert (problem.kind, problem.ledger_id) == ("foreign", other.ledger_id) and "log=other" in problem.what
    assert entries_of(client, "web")[:3] == [b"x", b"x", b"x"]
    with LogWriter.open(client, "web") as taken:  # fences the live one, as its own
        taken.append(b"next")
    assert entries_of(client, "web")[-1] == b"next" and client.ledger_metadata(ids[2]).state is LedgerState.CLOSED
    unnamed[0].close()
    assert trim_log(client, "web", before=Position(1)) == (ids[0],) and read_ledger_list(client, "web").adopted == set(ids[1:])
    delete_log(client, "web")
    assert list(client.list_ledgers()) == [other.ledger_id]
    check_strangers(client, [other])


def test_what_lies_beside_a_list_is_adopted_with_it(world: World) -> None:
    """OWN-12: intents, first offsets and tombstones name the cluster too; else ledgers stay for ever, and streams stop."""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    written(client, "web")
    before = client.store.cluster_id()
    dead = create_intended(client, "web", RAW, log_id=read_ledger_list(client, "web").log_id)
    durable(client.store, "r", ["web"], dict)
    tombstone = json.loads(client.store.read("logs/web").data)
    client.store.create("deleted/web/earlier", json.dumps({**tombstone, "logId": "earlier", "segments": []}).encode())
    world.kazoo.set(f"{world.parent}/ledgers/INSTANCEID", b"restored")
    client = world.connect("ledgers")
    adopt_log(client, "web", from_cluster=before)
    assert adopt_log(client, "web", from_cluster=before).adopted_from == (before,)
    with pytest.raises(WrongClusterError, match=f"names this cluster, restored, and it was adopted from {before}, not another; nothing"):
        adopt_log(client, "web", from_cluster="another")
    assert durable(client.store, "r", ["web"], dict) == ({}, True)
    assert gc_log(client, "web", min_age_s=0).deleted == (dead.ledger_id,) and client.store.children("deleted/web") == []


def test_a_cluster_that_gets_an_instance_id_later_is_adopted_by_one_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-1, OWN-12: what was written before names the transaction that made the root. Nothing is touched before a person has spoken."""
    bookie = world.cluster("ledgers")
    world.wipe("ledgers/INSTANCEID")
    old = world.connect("ledgers")
    before = old.store.cluster_id()
    assert before.startswith("root-")
    ledgers = {name: written(old, name) for name in ("web", "shop")}
    world.kazoo.create(f"{world.parent}/ledgers/INSTANCEID", b"at-last")
    for action in ACTIONS.values():
        with pytest.raises(BkError, match="BK-CLUSTER-CHANGED.*It got an INSTANCEID since, was initialised anew"):
            action(old)
    client = world.connect("ledgers")
    for action in ACTIONS.values():
        with pytest.raises(BkError, match=f"BK-WRONG-CLUSTER.*got an INSTANCEID since.*`bk log adopt web --from {before}` says so"):
            action(client)
    create_log(client, "new", RAW)
    uri = world.uri("ledgers")
    assert bk(capsys, uri, "log", "adopt", "--all")[0] == bk(capsys, uri, "log", "adopt")[0] == 2
    status, out, _ = bk(capsys, uri, "log", "adopt", "--all", "--from", before)
    assert status == 0 and out == "".join(f"log {name} is of cluster at-last from now on\n" for name in ("shop", "web"))
    for name, there in ledgers.items():
        assert set(there) < {*written(client, name)} and entries_of(client, name)[:3] == [b"0", b"1", b"2"]
    bookie.close()


def test_what_adopt_says_of_ledgers_without_a_name(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-11"""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    create_log(client, "web", RAW)
    (stranger,) = strangers(client, 1)
    ranges = [SegmentRange(stranger.ledger_id, 0, 0, 1, 1)]
    update_ledger_list(client, "web", lambda listed: listed.append_segments(ranges, 1))
    uri = world.uri("ledgers")
    assert f"ledgers {stranger.ledger_id} carry no log's name" in bk(capsys, uri, "log", "adopt", "web")[1]
    assert json.loads(bk(capsys, uri, "log", "adopt", "web", "--json")[1])["unnamed"] == [stranger.ledger_id]
    assert "--unnamed" in bk(capsys, uri, "log", "check", "web")[1]
    assert bk(capsys, uri, "log", "adopt", "web", "--unnamed")[0] != 0 and not read_ledger_list(client, "web").adopted  # nobody answers
    assert bk(capsys, uri, "log", "adopt", "web", "--unnamed", "--yes")[0] == 0
    assert read_ledger_list(client, "web").adopted == {stranger.ledger_id} and bk(capsys, uri, "log", "check", "web")[0] == 0


def test_a_log_of_a_cluster_that_is_gone_is_forgotten_and_its_name_free(world: World) -> None:
    """OWN-3: not while that cluster is there, and not a log of one's own."""
    for name in ("ledgers-a", "ledgers-b"):
        world.cluster(name)
    shared = f"{world.parent}/shared"
    a, b = (world.connect(name, log_root=shared) for name in ("ledgers-a", "ledgers-b"))
    written(a, "web")
    gone = a.store.cluster_id()
    with pytest.raises(WrongClusterError, match=f"is not gone, it lies at {world.parent}/ledgers-a"):
        forget_log(b, "web", cluster=gone)
    with pytest.raises(WrongClusterError, match=f"is not gone, it lies at {world.parent}/ledgers-a"):
        adopt_log(b, "web", from_cluster=gone)
    with pytest.raises(InvalidArgumentError, match="of this cluster"):
        forget_log(a, "web", cluster=gone)
    with pytest.raises(WrongClusterError, match=f"names cluster {gone}, not x"):
        forget_log(b, "web", cluster="x")
    world.kazoo.set(f"{world.parent}/ledgers-a/INSTANCEID", b"another")
    forget_log(b, "web", cluster=gone)
    assert list_logs(b) == [] and written(b, "web")


# --- the command line --------------------------------------------------------------------------------------------------


def bk(capsys: pytest.CaptureFixture[str], uri: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    status = run([*arguments, "--uri", uri])
    said = capsys.readouterr()
    return status, said.out, said.err


COMMANDS = [
    ("log", "ls"),
    ("log", "show", "web"),
    ("log", "tail", "web"),
    ("log", "trim", "web", "--keep-bytes", "1"),
    ("log", "gc"),
    ("log", "rm", "web", "--yes"),
]


def test_what_commands_say_of_a_mistyped_root(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-1"""
    world.cluster("ledgers")
    written(world.connect("ledgers"), "web")
    for command in [
        *COMMANDS,
        ("ledger", "ls"),
        ("ledger", "check", "--all"),
        ("bookie", "decommission", "x:1"),
    ]:
        status, out, err = bk(capsys, world.uri("ledgerz"), *command)
        assert status != 0 and not out and "[BK-NO-CLUSTER]" in err and f"There is one at {world.parent}/ledgers" in err, command
    assert entries_of(world.connect("ledgers"), "web") == [b"0", b"1", b"2"]


def test_what_commands_say_of_a_cluster_initialised_anew(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-3"""
    world.cluster("ledgers")
    old = world.connect("ledgers")
    ledgers, gone = written(old, "web"), old.store.cluster_id()
    world.stop()
    world.wipe("ledgers")
    world.cluster("ledgers")
    client = world.connect("ledgers")
    writers = strangers(client, max(ledgers) + 1)
    for command in COMMANDS:
        status, _, err = bk(capsys, world.uri("ledgers"), *command)
        assert "[BK-WRONG-CLUSTER]" in err and f"belongs to cluster {gone}" in err and (status != 0 or command[1] == "ls"), command
    check_strangers(client, writers)
    status, out, _ = bk(capsys, world.uri("ledgers"), "log", "forget", "web", "--cluster", gone)
    assert status == 0 and out == f"log web of cluster {gone} is forgotten\n"
    assert bk(capsys, world.uri("ledgers"), "log", "ls")[1].endswith("0 logs\n")


def test_what_gc_says_of_orphans(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-9"""
    world.cluster("ledgers")
    client = world.connect("ledgers")
    first, *_ = lost = written(client, "web")
    with client.create_ledger(custom={"log": b"old"}, **ONE) as unknown:
        pass
    world.wipe("ledgers-logs/logs/web")
    uri = world.uri("ledgers")
    status, out, _ = bk(capsys, uri, "log", "gc")
    assert status == 0 and f"ledger {first} of log web, which is gone: left; --delete-orphans deletes it\n" in out
    assert f"ledger {unknown.ledger_id} of log old, which is gone from this log root (the ledger tells none): left" in out
    status, out, _ = bk(capsys, uri, "log", "gc", "--delete-orphans", "known", "--json")
    said = [json.loads(line) for line in out.splitlines()]
    assert [(line["orphan"], line["deleted"]) for line in said if "orphan" in line] == [
        *((i, True) for i in lost),
        (unknown.ledger_id, False),
    ]
    assert bk(capsys, uri, "log", "gc", "web", "--delete-orphans", "all")[0] == 2
    status, out, _ = bk(capsys, uri, "log", "gc", "--delete-orphans", "all")
    assert status == 0 and "(the ledger tells none): deleted" in out and list(client.list_ledgers()) == []


def test_what_adopt_says(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cluster("ledgers")
    written(world.connect("ledgers"), "web")
    before = world.connect("ledgers").store.cluster_id()
    world.kazoo.set(f"{world.parent}/ledgers/INSTANCEID", b"restored")
    uri = world.uri("ledgers")
    assert "names cluster" in bk(capsys, uri, "log", "adopt", "web")[2]
    assert bk(capsys, uri, "log", "adopt", "web", "--from", before)[1] == "log web is of cluster restored from now on\n"
    assert json.loads(bk(capsys, uri, "log", "adopt", "web", "--json")[1])["cluster"] == "restored"
