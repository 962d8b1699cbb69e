"""Logs and ledgers of another cluster (OWN-3 .. OWN-7, OWN-9, OWN-11, OWN-12, OWN-14): left alone, found, adopted, forgotten.

ZooKeeper and the bookies are real; each cluster has one bookie, in this process.
"""

from __future__ import annotations

import json

import pytest

from bk_core.client.log.check import check_log, release_log
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import create_intended
from bk_core.client.log.janitor import delete_log, gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.orphans import adopt_log, delete_orphan, find_orphans, forget_log, unnamed_ledgers
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    InvalidArgumentError,
    NoClusterError,
    WrongClusterError,
)
from bk_core.metadata import open_store
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import SegmentRange
from bk_spark.source.first_offset import durable
from tests.integration.identity.clusters import (
    ACTIONS,
    COMMANDS,
    ONE,
    RAW,
    World,
    as_before,
    bk,
    check_strangers,
    entries_of,
    strangers,
    written,
)

# --- logs of another cluster -------------------------------------------------------------------------------------------


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
    assert f"ledger {stranger.ledger_id} carries no log's name" in bk(capsys, uri, "log", "adopt", "web")[1]
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
    assert status == 0 and f"ledger {first} of log web, which is gone: left; bk log gc --delete-orphans known deletes it\n" in out
    assert f"ledger {unknown.ledger_id} of log old, which is gone from this log root (the ledger names none): left" in out
    status, out, _ = bk(capsys, uri, "log", "gc", "--delete-orphans", "known", "--json")
    said = [json.loads(line) for line in out.splitlines()]
    assert [(line["orphan"], line["deleted"]) for line in said if "orphan" in line] == [
        *((i, True) for i in lost),
        (unknown.ledger_id, False),
    ]
    assert bk(capsys, uri, "log", "gc", "web", "--delete-orphans", "all")[0] == 2
    status, out, _ = bk(capsys, uri, "log", "gc", "--delete-orphans", "all")
    assert status == 0 and "(the ledger names none): deleted" in out and list(client.list_ledgers()) == []


def test_what_adopt_says(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cluster("ledgers")
    written(world.connect("ledgers"), "web")
    before = world.connect("ledgers").store.cluster_id()
    world.kazoo.set(f"{world.parent}/ledgers/INSTANCEID", b"restored")
    uri = world.uri("ledgers")
    assert "names cluster" in bk(capsys, uri, "log", "adopt", "web")[2]
    assert bk(capsys, uri, "log", "adopt", "web", "--from", before)[1] == "log web is of cluster restored from now on\n"
    assert json.loads(bk(capsys, uri, "log", "adopt", "web", "--json")[1])["cluster"] == "restored"
