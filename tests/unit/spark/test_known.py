"""Read tasks go by what the driver has told them, and ask the metadata store themselves only when that does not help (SES-13)."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import ClientClosedError, ClusterChangedError, LogDataLossError, MetadataUnavailableError
from bk_core.metadata import lazy, open_store
from bk_core.metadata.lazy import LazyStore
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.limits import Limits
from bk_spark import clients
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.table import Options
from bk_spark.schemas import arrow_schema
from bk_spark.source.columns import raw_schema
from bk_spark.source.known import Known, Learned
from bk_spark.source.partitions import BookKeeperPartition, partitions_of, read_partition
from tests.integration.patience import until
from tests.spark_clients import close_clients

SCHEMA = arrow_schema(raw_schema(None, False))
QUICK = Limits(explicit_lac_ns=3_600_000_000_000, unreachable_ns=60_000_000_000)


class World:
    def __init__(self, path: Path) -> None:
        self.uri = f"memory://{path.name}-{uuid.uuid4().hex}"
        self.options = Options(self.uri)
        self.store: Any = open_store(self.uri)
        self.store.initialize_cluster()
        self.bookies = [EmbeddedBookie(path / str(i), "127.0.0.1", 0, self.store).start() for i in range(3)]
        self.client = bk_core.connect(self.uri, limits=QUICK)

    def ledger(self, rows: int = 5) -> EntryRange:
        with self.client.create_ledger() as ledger:
            ledger.append_many([b"row %d" % i for i in range(rows)])
        return EntryRange(ledger.ledger_id, 0, rows - 1, 100, rows=rows, rows_per_entry=1, log="flights")

    def task(self, *ranges: EntryRange, learned: Learned | None = None) -> BookKeeperPartition:
        (task,) = partitions_of(self.client, self.options, {}, ranges, learned)
        found: BookKeeperPartition = pickle.loads(pickle.dumps(task))
        return found

    def read(self, task: BookKeeperPartition, options: Options | None = None) -> list[bytes]:
        return [row for batch in read_partition(options or self.options, SCHEMA, True, task) for row in batch.column("value").to_pylist()]

    @property
    def lazy(self) -> LazyStore:
        """The metadata store of this process's read tasks."""
        ((_, store, _),) = clients._readers.values()
        return store


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    close_clients()  # of tests before, in this process
    made = World(tmp_path)
    yield made
    close_clients()
    made.client.close()
    for bookie in made.bookies:
        bookie.close()
    made.store.close()


def misplaced(task: BookKeeperPartition, wrong: dict[str, tuple[str, int]]) -> BookKeeperPartition:
    assert task.known is not None
    task.known = replace(task.known, addresses={**task.known.addresses, **wrong})
    return task


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_a_read_opens_no_session(world: World) -> None:
    """SES-13: several ledgers, read by one task in one go, and by another task of the same process."""
    ledgers = [world.ledger(rows) for rows in (3, 1, 4, 1, 5, 9)]
    expected = [b"row %d" % i for r in ledgers for i in range(r.entries)]
    assert world.read(world.task(*ledgers)) == expected
    assert world.read(world.task(*ledgers[1:])) == expected[3:]
    assert not world.lazy.has_session and not clients._clients


def test_a_bookie_that_is_elsewhere_costs_no_session_while_others_answer(world: World) -> None:
    task = world.task(world.ledger())
    assert task.known is not None
    first = next(iter(task.known.addresses))
    assert len(world.read(misplaced(task, {first: ("127.0.0.1", dead_port())}))) == 5
    assert not world.lazy.has_session


def test_when_no_replica_is_where_it_was_the_store_is_asked(world: World) -> None:
    """SES-13, RD-7, RD-13."""
    task = world.task(world.ledger())
    assert task.known is not None
    port = dead_port()
    assert len(world.read(misplaced(task, {bookie: ("127.0.0.1", port) for bookie in task.known.addresses}))) == 5
    assert world.lazy.has_session


@pytest.mark.parametrize("times", [1, 4])
def test_another_bookie_at_the_old_address_is_no_loss(world: World, times: int) -> None:
    """RD-7, SES-13: it denies the entries, and so it does on the connection that leads to it already. ``times``: ledgers in one task."""
    ranges: list[EntryRange] = []
    for _ in range(times):
        with world.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
            ledger.append_many([b"a", b"b"])
        ranges.append(EntryRange(ledger.ledger_id, 0, 1, 2))
    here = {bookie.bookie_id: world.store.resolve(bookie.bookie_id) for bookie in world.bookies}
    names = list(here)
    elsewhere = {name: here[names[i - 1]] for i, name in enumerate(names)}
    for _ in range(2):  # the second task tells the process the wrong addresses again, and finds connections
        assert world.read(misplaced(world.task(*ranges), elsewhere)) == [b"a", b"b"] * times


def test_entries_are_found_that_moved_since_planning(world: World) -> None:
    """RD-7: the driver was told of a bookie that was replaced since."""
    with world.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
        ledger.append_many([b"a", b"b"])
    task = world.task(EntryRange(ledger.ledger_id, 0, 1, 2))
    assert task.known is not None
    stored = task.known.ledgers[ledger.ledger_id]
    now = metadata_codec.decode(stored.data)
    before = next(bookie for bookie in world.bookies if bookie.bookie_id not in now.fragments[0].ensemble)
    old = metadata_codec.encode(replace(now, fragments=(Fragment(0, (before.bookie_id,)),)))
    told = {before.bookie_id: world.store.resolve(before.bookie_id)}
    before.close()
    task.known = Known(task.known.cluster, {ledger.ledger_id: replace(stored, data=old, version=stored.version - 1)}, told)
    assert world.read(task) == [b"a", b"b"]
    assert world.lazy.has_session


def test_a_ledger_that_was_closed_below_since_planning_is_a_loss(world: World) -> None:
    """OP-6: the driver saw it open. Nothing is handed out as if it were all."""
    r = world.ledger(3)
    task = world.task(r)
    assert task.known is not None
    stored = task.known.ledgers[r.ledger_id]
    closed = metadata_codec.decode(stored.data)
    opened = metadata_codec.encode(replace(closed, state=LedgerState.OPEN, last_entry_id=-1, length=0))
    task.known = replace(task.known, ledgers={r.ledger_id: replace(stored, data=opened, version=stored.version - 1)})
    task.ranges = (replace(r, last=5, rows=6),)
    with pytest.raises(LogDataLossError, match=rf"entries 3..5 of ledger {r.ledger_id} are lost: the ledger was closed at entry 2"):
        world.read(task)


def test_a_ledger_that_is_gone_is_a_loss_or_left_out(world: World) -> None:
    """OP-1: its metadata is not there any more, and no bookie has its entries."""
    there, gone = world.ledger(4), world.ledger(4)
    task = world.task(there)
    assert task.known is not None
    nowhere = replace(gone, ledger_id=gone.ledger_id + 1000)
    stored = task.known.ledgers[there.ledger_id]
    task.known = replace(task.known, ledgers={**task.known.ledgers, nowhere.ledger_id: stored})
    task.ranges = (nowhere, there)
    with pytest.raises(LogDataLossError, match=rf"ledger {nowhere.ledger_id} of log 'flights' are lost: the ledger does not exist"):
        world.read(task)
    assert len(world.read(task, replace(world.options, fail_on_data_loss=False))) == 4


def test_another_cluster_is_told_when_the_store_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-2: as strong as a client's own session; the next task that is told of the new cluster has a new client."""
    r = world.ledger()
    task = world.task(r)
    assert task.known is not None
    port = dead_port()
    world.store._world.instance_id = str(uuid.uuid4())
    monkeypatch.setattr(clients, "LIMITS", replace(clients.LIMITS, unreachable_ns=1_000_000_000))
    with pytest.raises(ClusterChangedError):
        world.read(misplaced(task, {bookie: ("127.0.0.1", port) for bookie in task.known.addresses}))
    assert world.lazy.cluster_has_changed
    task.known = replace(task.known, cluster=world.store._world.instance_id, addresses={})
    assert len(world.read(task)) == 5
    assert not world.lazy.cluster_has_changed


def test_a_stream_asks_about_a_ledger_once_in_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    r, asked = world.ledger(), []
    read = world.store.read_ledger
    monkeypatch.setattr(type(world.store), "read_ledger", lambda store, ledger_id: asked.append(ledger_id) or read(ledger_id))
    learned = Learned()
    for _ in range(3):
        assert world.task(r, learned=learned).known is not None
    assert asked == [r.ledger_id]
    monkeypatch.setattr("bk_spark.source.known.KEPT_S", -1.0)
    world.task(r, learned=learned)
    assert asked == [r.ledger_id] * 2


def test_metadata_is_not_shown(world: World) -> None:
    with world.client.create_ledger(password=b"hush") as ledger:
        ledger.append(b"a")
    world.options = replace(world.options, password=b"hush")
    task = world.task(EntryRange(ledger.ledger_id, 0, 0, 1))
    assert "hush" not in repr(task) + repr(task.known)
    assert world.read(task) == [b"a"]


# --- the store itself --------------------------------------------------------------------------------------------------------


class Opened:
    """The sessions that a LazyStore opens, and the times when they were closed."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.count = 0
        self.closed = threading.Semaphore(0)

    def __call__(self) -> Any:
        store: Any = open_store(self.uri)
        self.count += 1
        opened = self

        class Told:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def close(self) -> None:
                store.close()
                opened.closed.release()

        return Told()


def test_a_session_ends_when_nobody_uses_it_and_not_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SES-13: a watch that somebody keeps is a use."""
    monkeypatch.setattr("bk_core.protocol.session.on_demand.IDLE_NS", 1_000_000)
    opened = Opened(world.uri)
    store = LazyStore(opened, world.store.cluster_id(), world.uri)
    views: list[Any] = []
    watching = store.watch_bookies(views.append)
    assert store.cluster_id() == world.store.cluster_id() and not opened.count and not views
    with pytest.raises(AttributeError):
        store.nothing  # noqa: B018
    ledger_id = world.ledger().ledger_id
    for number in range(1, 4):
        watch = store.watch_ledger(ledger_id, lambda: None)
        assert opened.count == number and views == [world.store.bookies()] * number
        assert store.read_ledger(ledger_id).data and store.cluster_id() == world.store.cluster_id()
        assert opened.count == number and store.has_session and store.is_connected()
        watch.cancel()
        watch.cancel()
        assert opened.closed.acquire(timeout=60)
    watching.cancel()
    store.close()
    store.close()
    with pytest.raises(ClientClosedError):
        store.read_ledger(ledger_id)
    assert opened.count == 3


def test_what_cannot_be_opened_is_tried_again_at_the_next_call(world: World) -> None:
    failures = [MetadataUnavailableError("too many connections")]
    opened = Opened(world.uri)

    def opener() -> Any:
        if failures:
            raise failures.pop()
        return opened()

    store = LazyStore(opener, world.store.cluster_id(), world.uri)
    with pytest.raises(MetadataUnavailableError, match="too many"):
        store.children("logs")
    assert not store.has_session and store.children("logs") == [] and list(store.list_ledgers()) == []
    assert store.log_root == world.store.log_root and opened.count == 1
    store.close()
    assert opened.closed.acquire(timeout=60)


def test_who_waits_for_an_opening_that_fails_does_not_try_again(world: World) -> None:
    """The waits of many threads for a store that is silent would add up; each gets its error after one of them."""
    go_on, tries, told = threading.Event(), [0], []
    inside, count = threading.Event(), 4

    def opener() -> Any:
        tries[0] += 1
        inside.set()
        assert go_on.wait(60)
        raise MetadataUnavailableError("silent")

    store = LazyStore(opener, world.store.cluster_id(), world.uri)

    def ask() -> None:
        try:
            store.instance_id()
        except MetadataUnavailableError as error:
            told.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    threads[0].start()
    assert inside.wait(60)
    for one in threads[1:]:
        one.start()
    until(lambda: all(any("_used" in frame for frame in frames_of(one)) for one in threads[1:]), "they wait")
    go_on.set()
    for one in threads:
        one.join(60)
    assert tries == [1] and len(told) == count and all("silent" in one for one in told)
    with pytest.raises(MetadataUnavailableError):
        store.instance_id()
    assert tries == [2]  # a later call does
    store.close()


def frames_of(thread: threading.Thread) -> list[str]:
    frame = sys._current_frames().get(thread.ident or 0)
    return [] if frame is None else [one.name for one in traceback.extract_stack(frame)]


def test_a_watch_of_bookies_ends_within_a_session(world: World) -> None:
    opened = Opened(world.uri)
    store, views = LazyStore(opened, world.store.cluster_id(), world.uri), []
    before = len(world.store._world.watches.get("bookies", []))
    watching = store.watch_bookies(views.append)
    assert store.instance_id()
    store.watch_ledger(world.ledger().ledger_id, lambda: None)  # keeps the session
    count = len(views)
    watching.cancel()
    watching.cancel()
    world.bookies[0].close()
    assert len(views) == count >= 1 and len(world.store._world.watches.get("bookies", [])) == before
    store.close()


def test_all_of_the_store_is_there() -> None:
    names = [name for name in vars(lazy.MetadataStore) if not name.startswith("_")]
    store = LazyStore(lambda: pytest.fail("asked"), "cluster", "memory://")
    for name in names:
        if name not in ("log_root", "known_cluster", "cluster_has_changed"):
            assert callable(getattr(store, name))
