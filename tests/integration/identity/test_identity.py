"""The cluster at a root, and the place of its logs: an empty place, a mistyped root, an old cluster (OWN-1 .. OWN-4, OWN-8).

ZooKeeper and the bookies are real; each cluster has one bookie, in this process.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from kazoo.security import make_acl, make_digest_acl
from pyspark.sql.types import LongType, StructField, StructType

import bk_core
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.client.log.check import check_log
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import delete_log, trim_log
from bk_core.client.log.lists import create_log, list_logs
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    LogExistsError,
    MetadataDeniedError,
    NoClusterError,
    NoSuchLogError,
)
from bk_core.metadata import open_store
from bk_core.metadata.zookeeper import store as zookeeper
from bk_spark.options.table import parse_options
from bk_spark.sink import commit, data_ledgers, sweep
from bk_spark.sink import task as sink
from bk_spark.sink.writer import BookKeeperStreamWriter
from tests.integration.identity.clusters import (
    ACTIONS,
    COMMANDS,
    RAW,
    World,
    as_before,
    bk,
    entries_of,
    written,
)

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
    """In the driver, once its log is there: the list with its cluster for plan and commit, whose the data ledger is, the list
    once more right before it is written over (OWN-7), the change.

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
            assert told == [(1, 2), (1, 1), (4, 5)]
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
