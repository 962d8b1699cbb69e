"""Opening a file store: what a dead owner left, logs that are none, bookies that are away, and stores that are opened often."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.creation import Creation
from bk_core.client.files import nodes as nodes_module
from bk_core.client.files import owner as owner_module
from bk_core.client.files import store as store_module
from bk_core.client.files import view as view_module
from bk_core.client.files import works as works_module
from bk_core.client.files.nodes import create_data_ledger, data_ledgers, delete_data_ledger, read_node
from bk_core.client.files.opening import log_records
from bk_core.client.files.owner_parts import Retries
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import file_stores, own_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.log import janitor, list_store, live_writers
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import create_intended, forget_intent
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    ClientClosedError,
    FileStoreClosedError,
    FileStoreFormatError,
    FileStoreTakenOverError,
    ForeignLedgerError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchFileStoreError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    WrongPasswordError,
)
from bk_core.metadata import open_store
from bk_core.near import meant
from bk_core.protocol.files.records import Mkdirs, encode
from bk_core.protocol.files.state import FileLimits
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties
from tests.unit.client.file_store.stores import BIG, LIMITS, LOG, Failing, eventually, ledgers_of, names, nodes, small, threads


def test_everything_is_there_again(client: bk_core.BookKeeper) -> None:
    """After a close all ledgers are CLOSED, and there is no thread and no node too many."""
    with FileStore.open(client, "a", password=b"secret", write_quorum_size=2, digest_type="CRC32") as store:
        store.put("/a/small", b"x")
        store.put("/a/big", BIG)
        store.put("/gone", BIG)
        store.delete("/gone")
        listing = store.listing("/a")
    eventually(lambda: not threads())
    metadata = client.ledger_metadata(*nodes(client))
    assert metadata.state is LedgerState.CLOSED and (metadata.write_quorum_size, metadata.digest_type.name) == (2, "CRC32")
    assert not read_ledger_list(client, LOG).live_segments
    assert set(client.list_ledgers()) == {*nodes(client), *(one.ledger_id for one in read_log(client, LOG).segments())}
    with pytest.raises(WrongPasswordError):
        FileStore.open(client, "a")
    with FileStore.open(client, "a", password=b"secret", create=False, take_over=False) as store:
        assert store.listing("/a") == listing and store.read("/a/big") == BIG and store.read("/a/small") == b"x"
        assert store.status("/a/big").file_id < store.put("/new", b"").file_id


def test_a_large_history_is_short_to_read(store: FileStore, client: bk_core.BookKeeper) -> None:
    """FS-11, FS-12: the log is compacted on the way, so opening costs what there is, not what there was."""
    with ThreadPoolExecutor(16) as pool:
        for _ in range(4):
            list(pool.map(lambda n: store.put(f"/{n}", bytes(30_000)), range(30)))
    expected = store.listing("/")
    eventually(lambda: read_log(client, LOG).first_position.seq > 0)
    store.close()
    size = sum(len(record) for record, _ in log_records(client, LOG, b""))
    assert size < 3_500_000
    with FileStore.open(client, "a") as again:
        assert again.listing("/") == expected


def test_what_a_dead_owner_left(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers that files refer to are closed, the others deleted; those of others are not touched."""
    store = FileStore.open(client, "a")
    store.put("/kept", BIG)
    staged = store.stage(BIG[::-1] * 4)
    log_id = read_ledger_list(client, LOG).log_id
    store._data._ledger_bytes = 1  # the next one goes to a ledger of its own
    store._data._idle.clear()
    lost = store.stage(BIG)
    (kept,), (unknown,) = set(ledgers_of(store, "/kept")), {extent.ledger_id for extent in lost.content.extents}
    store.abandon()
    foreign = create_data_ledger(client, LOG, "another log", LogProperties(), b"")
    client.store.create(f"files/{LOG}/4711", b'{"cluster": "another", "logId": "%s"}' % log_id.encode())
    here = rf"this program, process {os.getpid()} on host .* UTC"
    with pytest.raises(FileStoreTakenOverError, match=f"'a' was not opened: {here}, has it open. Close it there, .* take_over=True$"):
        FileStore.open(client, "a", take_over=False)
    with monkeypatch.context() as patched:
        patched.setattr(live_writers, "lives_here", lambda _writer: False)
        here = here.removeprefix("this program, ")
        with pytest.raises(FileStoreTakenOverError, match=f"{here}, has it open, or died .* If it is gone, .*loses nothing$"):
            FileStore.open(client, "a", take_over=False)
        patched.setattr(live_writers, "abandoned", lambda _writer: True)
        with pytest.raises(FileStoreTakenOverError, match=f"{here}, had it open and died without closing it. take_over=True opens it"):
            FileStore.open(client, "a", take_over=False)
    with FileStore.open(client, "a") as again:
        eventually(lambda: unknown not in nodes(client))
        eventually(lambda: client.ledger_metadata(kept).state is LedgerState.CLOSED)
        assert again.read("/kept") == BIG
    assert nodes(client) == sorted([kept, foreign.ledger_id]) and data_ledgers(client, LOG) == sorted([kept, foreign.ledger_id, 4711])
    assert client.ledger_metadata(foreign.ledger_id).state is LedgerState.OPEN
    assert client.store.children(f"files/{LOG}") == sorted(map(str, [kept, foreign.ledger_id, 4711]))
    for ledger_id in (foreign.ledger_id, 4711):
        with pytest.raises(ForeignLedgerError, match="It was left alone"):
            delete_data_ledger(client, LOG, log_id, ledger_id, b"")
    foreign.close()
    staged.release()


def test_fs_16_a_ledger_of_a_later_owner_is_left_alone(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-16: it is made after this owner took the store over, and before it serves. What a dead owner left is dropped all the same."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)

    def made() -> int:
        with create_data_ledger(client, LOG, listed.log_id, listed.properties, b"") as ledger:
            return int(ledger.ledger_id)

    earlier, later, real = made(), [], store_module.open_log

    def open_log(*arguments: Any, **options: Any) -> Any:
        opened = real(*arguments, **options)
        later.append(made())
        return opened

    monkeypatch.setattr(store_module, "open_log", open_log)
    with FileStore.open(client, "a"):
        eventually(lambda: earlier not in nodes(client))
    assert nodes(client) == later


def test_a_data_ledger_whose_node_goes_while_it_is_made(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner deletes the node before the ledger is there, or between the look of its maker and its own: no ledger is left."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)
    before = set(client.list_ledgers())

    def go(ledger_id: int) -> None:
        delete_data_ledger(client, LOG, listed.log_id, ledger_id, b"")

    with monkeypatch.context() as patched:
        create = client.create_ledger
        patched.setattr(client, "create_ledger", lambda **options: (go(options["ledger_id"]), create(**options))[1])
        with pytest.raises(FileStoreClosedError, match="has deleted the node of ledger"):
            create_data_ledger(client, LOG, listed.log_id, listed.properties, b"")
    assert set(client.list_ledgers()) == before and nodes(client) == []

    with monkeypatch.context() as patched:

        def away(*_: Any, **__: Any) -> None:
            raise MetadataUnavailableError("store away")

        create = client.create_ledger
        patched.setattr(client, "create_ledger", lambda **options: (go(options["ledger_id"]), create(**options))[1])
        patched.setattr(client, "delete_ledger", away)
        with pytest.raises(FileStoreClosedError, match="has deleted the node of ledger"):
            create_data_ledger(client, LOG, listed.log_id, listed.properties, b"")
    left = set(client.list_ledgers()) - before
    assert left and set(nodes(client)) == left, "the next owner finds what its maker could not delete"
    for ledger_id in left:
        go(ledger_id)

    with monkeypatch.context() as patched:
        handles, forget = [], nodes_module._forget

        def late(*arguments: Any) -> None:
            patched.setattr(nodes_module, "_forget", forget)
            handles.append(client.create_ledger(ledger_id=arguments[2], custom=custom))
            forget(*arguments)

        number = client.store.new_ledger_id()
        custom = {"log": LOG.encode(), "logId": listed.log_id.encode()}
        whose = {"cluster": client.store.cluster_id(), "logId": listed.log_id}
        client.store.create(f"files/{LOG}/{number}", json.dumps(whose).encode())
        patched.setattr(nodes_module, "_forget", late)
        go(number)
        assert handles
    assert set(client.list_ledgers()) == before and nodes(client) == []


def test_a_node_that_is_another_cluster_s_by_then_stays(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-5: another owner was faster, and a cluster at the same log root has come to the number since."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)
    ledger = create_data_ledger(client, LOG, listed.log_id, listed.properties, b"")
    ledger.close()
    path, delete_ledger = f"files/{LOG}/{ledger.ledger_id}", client.delete_ledger

    def delete(*arguments: Any, **options: Any) -> None:
        delete_ledger(*arguments, **options)
        client.store.delete(path)
        client.store.create(path, b'{"cluster": "another", "logId": "%s"}' % listed.log_id.encode())

    monkeypatch.setattr(client, "delete_ledger", delete)
    assert delete_data_ledger(client, LOG, listed.log_id, ledger.ledger_id, b"")
    assert b"another" in client.store.read(path).data


def test_a_data_ledger_of_another_log_is_not_deleted(client: bk_core.BookKeeper) -> None:
    """OWN-6: the ledger itself says so, whatever its node says."""
    store = FileStore.open(client, "a")
    log_id = read_ledger_list(client, LOG).log_id
    ledger = client.create_ledger(custom={"log": b"other"})
    client.store.create(
        f"files/{LOG}/{ledger.ledger_id}", b'{"cluster": "%s", "logId": "%s"}' % (client.store.cluster_id().encode(), log_id.encode())
    )
    store.close()
    with FileStore.open(client, "a"):
        pass
    assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN and nodes(client) == [ledger.ledger_id]
    ledger.close()


def test_a_node_that_is_none(store: FileStore, client: bk_core.BookKeeper) -> None:
    """It keeps nobody from opening the store."""
    store.close()
    client.store.create(f"files/{LOG}/7", b"[]")
    with pytest.raises(MetadataFormatError, match="no node of a data ledger"):
        read_node(client, LOG, "7")
    assert read_node(client, LOG, "8") is None
    client.store.create(f"files/{LOG}/none", b"")
    with FileStore.open(client, "a") as again:
        again.put("/big", BIG)
        assert again.read("/big") == BIG


def test_a_log_that_is_no_store_is_not_opened(client: bk_core.BookKeeper) -> None:
    """Its writer is closed again, so that it is not left behind as one that somebody writes."""
    create_log(client, LOG, LogProperties(entry_format="raw"), file_entries=True)
    with LogWriter.open(client, LOG, file_entries=True) as writer:
        writer.append(b"something else")
    told = r"file store 'a', segment 0, entry 0: the entry .*no record of a store.*delete_file_store\(client, 'a'\)"
    for opening in (FileStore.open, FileStoreView.open):
        with pytest.raises(FileStoreFormatError, match=told):
            opening(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    eventually(lambda: not threads())


def test_a_log_without_its_beginning_is_not_opened(client: bk_core.BookKeeper) -> None:
    """The store finds that when it begins to serve. Its log is closed again, as after every open that fails."""
    create_log(client, LOG, LogProperties(entry_format="raw"), file_entries=True)
    with LogWriter.open(client, LOG, file_entries=True) as writer:
        writer.append(encode(Mkdirs("/d", 0, 2, 1)))
    for _ in range(2):
        with pytest.raises(FileStoreFormatError, match="its beginning is lost"):
            own_file_store(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    eventually(lambda: not threads())


def test_a_store_whose_first_base_comes_too_late_can_be_opened_again(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by whoever refuses to take a store over."""

    def too_late(*_: Any) -> None:
        raise OperationTimeoutError("too late")

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "wait", too_late)
        with pytest.raises(OperationTimeoutError, match="too late"):
            FileStore.open(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    with own_file_store(client, "a") as store:
        store.put("/x", b"1")


def test_a_store_that_ends_while_it_is_opened_abandons_its_log(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its open has all that it waits for, and succeeds."""
    opened = FileStore._opened

    def late(store: FileStore) -> None:
        store._end(FileStoreClosedError("ended"))
        eventually(lambda: store._stopped)
        opened(store)

    monkeypatch.setattr(FileStore, "_opened", late)
    store = FileStore.open(client, "a")
    assert store._writer._stopped and not store.is_open
    store.close()


def test_what_a_dead_owner_took_off_the_list_is_deleted_by_the_next_one(client: bk_core.BookKeeper) -> None:
    """FS-12: it died between the two steps of its trim, after the list had condemned the ledger."""
    with FileStore.open(client, "a") as store:
        store.put("/a", b"a")
    listed = read_ledger_list(client, LOG)
    left = create_intended(client, LOG, listed.properties, log_id=listed.log_id)
    left.close()
    forget_intent(client, LOG, left.ledger_id)
    update_ledger_list(client, LOG, lambda current: current.condemn([left.ledger_id]))
    with FileStore.open(client, "a") as store:
        eventually(lambda: not read_ledger_list(client, LOG).has_put_aside)
        assert left.ledger_id not in client.list_ledgers() and store.read("/a") == b"a"


@pytest.mark.parametrize("dead", [True, False])
def test_what_a_dead_owner_had_not_yet_listed_is_deleted_by_the_next_one(
    client: bk_core.BookKeeper, dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAN-5: it died between the creation of the log's next ledger and its place on the list. Beside a process that lives it stays. A
    metadata store that is away at first is asked again."""
    with FileStore.open(client, "a") as store:
        store.put("/a", b"a")
    listed = read_ledger_list(client, LOG)
    left = create_intended(client, LOG, listed.properties, log_id=listed.log_id)
    left.abandon()
    monkeypatch.setattr(janitor, "abandoned", lambda intent: dead and intent.ledger_id == left.ledger_id)
    cleaned, away = threading.Event(), [MetadataUnavailableError("away")]
    clean = works_module.FileWorks.clean_log

    def noted(works: works_module.FileWorks) -> None:
        if away:
            raise away.pop()
        clean(works)
        cleaned.set()

    monkeypatch.setattr(works_module.FileWorks, "clean_log", noted)
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    with FileStore.open(client, "a") as store:
        assert cleaned.wait(30)
        assert (left.ledger_id in client.list_ledgers()) is not dead and store.read("/a") == b"a"
        assert client.store.children(f"intents/{LOG}").count(str(left.ledger_id)) == (not dead)


def test_bookies_that_go_in_the_middle_of_a_take_over_are_waited_for(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the metadata store their sessions end, and they register again. The former owner is fenced by then."""
    with bk_core.connect(client.config.uri, limits=LIMITS) as other:
        former = FileStore.open(other, "a")
        former.put("/a", b"a")
        create, refused = client.create_ledger, []

        def away(**options: Any) -> Any:
            if len(refused) < 2:
                refused.append(1)
                raise NotEnoughBookiesError("needs 3 writable bookies, 2 are registered")
            return create(**options)

        monkeypatch.setattr(client, "create_ledger", away)
        with FileStore.open(client, "a") as store:
            assert len(refused) == 2 and store.read("/a") == b"a"
            store.put("/b", b"b")
        with pytest.raises(FileStoreTakenOverError):
            former.put("/late", b"late")
        former.abandon()


def test_opening_goes_on_where_a_former_owner_still_trims(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    from bk_core.client.files import opening
    from bk_core.errors import LogDataLossError

    FileStore.open(client, "a").close()
    records, times = opening.log_records, []

    def trimmed(*arguments: Any) -> Iterator[Any]:
        times.append(1)
        yield from list(records(*arguments))[: len(times) - 1]
        if len(times) < 3:
            raise LogDataLossError("trimmed")

    monkeypatch.setattr(opening, "log_records", trimmed)
    with FileStore.open(client, "a") as store:
        store.put("/x", b"")
    assert len(times) == 3


def test_what_is_done_beside_is_tried_again(
    store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FS-15: a roll, a trim, a drop, and the closing of a data ledger. Each is told once, however often it fails."""
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(store._machine, "_limits", FileLimits(compact_bytes=1000, retry_ns=10_000_000))
    works = store._works
    failing = [Failing(works.close_data, 2), Failing(store._writer.roll, 2), Failing(works_module.trim_log, 2)]
    monkeypatch.setattr(works, "close_data", failing[0])
    monkeypatch.setattr(store._writer, "roll", failing[1])
    monkeypatch.setattr(works_module, "trim_log", failing[2])
    failing.append(Failing(works_module.delete_data_ledger, 2))
    monkeypatch.setattr(works_module, "delete_data_ledger", failing[3])
    with caplog.at_level(logging.WARNING, "bk_core.client.files"):
        small(store, ledger=1).put("/big", BIG)
        (ledger,) = nodes(client)
        eventually(lambda: client.ledger_metadata(ledger).state is LedgerState.CLOSED)
        for _ in range(20):
            store.put("/big", bytes(200))
        eventually(lambda: not nodes(client) and read_log(client, LOG).first_position.seq > 0)
    assert [one.left for one in failing] == [0, 0, 0, 0]
    for what in ("RollLog", "TrimLog", f"dropping data ledger {ledger}"):
        assert caplog.text.count(f"{what} is tried again later") == 1
    assert caplog.text.count("cannot be closed now") == 1
    assert store._works._told == {} and store._retries._failing == {}


def test_what_a_dead_owner_left_open_is_closed_in_the_end(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    store = FileStore.open(client, "a")
    store.put("/big", BIG)
    store.abandon()
    (ledger,) = nodes(client)
    failing = Failing(works_module.close_own, 2)
    monkeypatch.setattr(works_module, "close_own", failing)
    with FileStore.open(client, "a") as store:
        assert store.read("/big") == BIG
        eventually(lambda: client.ledger_metadata(ledger).state is LedgerState.CLOSED)
    assert not failing.left


def test_what_fails_for_ever_is_told_once_and_tried_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    worker: Any = SimpleNamespace(later=lambda key, after_s, task: pauses.append(after_s))
    retries = Retries(worker, "a")
    for number in range(6):
        retries.failed("close 7", "data ledger 7 cannot be closed", WrongPasswordError(f"not this one, {number}"), 5.0, lambda: None)
    retries.failed("close 8", "data ledger 8 cannot be closed", WrongPasswordError("not this one"), 5.0, lambda: None)
    assert pauses == [5, 10, 20, 40, 60, 60, 5]
    retries.failed("close 7", "data ledger 7 cannot be closed", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert [caplog.text.count(f"data ledger {number} cannot be closed now") for number in (7, 8)] == [2, 1]
    retries.done("close 7")
    retries.failed("close 7", "data ledger 7 cannot be closed", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert pauses[-1] == 5 and caplog.text.count("nobody answers") == 2
    retries.failed("list", "its list cannot be read", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert len(pauses) == 10 and caplog.text.count("nobody answers") == 2, "SES-8: one outage fails all that is asked"
    retries.failed("watch", "its list cannot be watched", ClientClosedError("closed by this program"), 5.0, lambda: None)
    assert len(pauses) == 10 and "closed by this program" not in caplog.text


def test_a_data_ledger_that_is_another_s_is_not_closed_and_told_once(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files name it all the same; asking again would not make it this store's."""
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    store = FileStore.open(client, "a")
    store.put("/big", BIG)
    store.abandon()
    asked: list[int] = []

    def foreign(*_: Any) -> None:
        asked.append(1)
        raise ForeignLedgerError("it is of another log. It was left alone")

    monkeypatch.setattr(works_module, "close_own", foreign)
    with FileStore.open(client, "a") as store:
        eventually(lambda: bool(asked))
        done = threading.Event()
        store._worker.later("test", 0.1, done.set)
        assert done.wait(30)
    assert asked == [1] and caplog.text.count("It was left alone") == 1


def test_an_open_that_wants_more_bookies_than_the_cluster_has_is_refused_at_once_and_leaves_nothing(uri: str) -> None:
    with bk_core.connect(uri, operation_timeout_s=10) as client:
        wanted = "5 writable bookies, and this cluster has 3 bookies, including any that are away; start more bookies, or lower"
        with pytest.raises(NotEnoughBookiesError, match=wanted) as caught:
            FileStore.open(client, "a", ensemble_size=5, write_quorum_size=5, ack_quorum_size=3)
        assert not caught.value.outcome_unknown
        assert file_stores(client, remains=True) == []
        with pytest.raises(InvalidArgumentError):
            FileStore.open(client, "a", ensemble_size=2, write_quorum_size=3)
        assert file_stores(client, remains=True) == []
    with bk_core.connect(uri) as client, FileStore.open(client, "a") as store:
        store.put("/x", b"")
        FileStore.open(client, "a", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).close()  # as it was made
        assert read_ledger_list(client, LOG).properties == LogProperties()


@pytest.mark.parametrize("opens", [FileStore.open, own_file_store])
def test_only_an_open_that_makes_nothing_looks_for_similar_names(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, opens: Any
) -> None:
    """Comparing costs more with each store that there is."""
    compared: list[str] = []
    for module in (list_store, view_module):
        monkeypatch.setattr(module, "meant", lambda name, *known: compared.append(name) or meant(name, *known))
    opens(client, "orders").close()
    assert compared == []
    with pytest.raises(NoSuchFileStoreError, match="there is no file store 'oders'; did you mean 'orders'"):
        opens(client, "oders", create=False)
    assert "oders" in compared and file_stores(client) == ["orders"]


def test_bookies_that_are_away_count_as_long_as_they_could_come_back(tmp_path: Path) -> None:
    metadata = f"memory://{tmp_path.name}"
    with closing(open_store(metadata)) as keeper:
        keeper.initialize_cluster()
        with bk_core.connect(metadata, operation_timeout_s=10) as client:
            with pytest.raises(NotEnoughBookiesError, match="this cluster has never had one; start bookies"):
                FileStore.open(client, "a")
        EmbeddedBookie(tmp_path / "0", "127.0.0.1", 0, keeper).start().close()
        with bk_core.connect(metadata, operation_timeout_s=10, opportunistic_striping=True) as client:
            with pytest.raises(NotEnoughBookiesError, match="needs 3 writable bookies, and this cluster has 1 bookie, including"):
                FileStore.open(client, "a", write_quorum_size=2)
        EmbeddedBookie(tmp_path / "1", "127.0.0.1", 0, keeper).start().close()
        with bk_core.connect(metadata, operation_timeout_s=0.2, opportunistic_striping=True) as client:
            with pytest.raises(NotEnoughBookiesError, match=r"none is registered in this cluster.* s$") as caught:
                FileStore.open(client, "a", write_quorum_size=2)
        assert not caught.value.outcome_unknown


def test_a_log_that_no_owner_could_ever_write_takes_the_next_ones_settings(client: bk_core.BookKeeper) -> None:
    """The remains of an open that ended between making the log and its first ledger."""
    create_log(client, LOG, LogProperties(ensemble_size=5, write_quorum_size=5, ack_quorum_size=3, digest_type="MAC"), file_entries=True)
    with FileStore.open(client, "a", ensemble_size=2, write_quorum_size=2) as store:
        store.put("/x", BIG)
        assert read_ledger_list(client, LOG).properties == LogProperties(ensemble_size=2, write_quorum_size=2)
        assert client.ledger_metadata(ledgers_of(store, "/x")[0]).ensemble_size == 2


def test_an_open_waits_for_bookies_that_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of all bookies: neither a new store nor one with files has to be opened twice. Nobody is fenced while they are away."""
    metadata = f"memory://{tmp_path.name}"

    def bookies() -> ExitStack:
        there = ExitStack()
        for number in range(3):
            there.enter_context(closing(EmbeddedBookie(tmp_path / str(number), "127.0.0.1", 0, keeper).start()))
        return there

    with closing(open_store(metadata)) as keeper, ExitStack() as closed:
        keeper.initialize_cluster()
        with bookies(), bk_core.connect(metadata) as client:
            owner = FileStore.open(client, "a")
            owner.put("/x", BIG)
            owner.close()
        client = closed.enter_context(bk_core.connect(metadata))
        executor = closed.enter_context(ThreadPoolExecutor(2))
        asked, ensemble = threading.Semaphore(0), Creation.new_ensemble

        def ask(known: Creation, *sizes: int) -> tuple[str, ...]:
            asked.release()
            return ensemble(known, *sizes)

        monkeypatch.setattr(Creation, "new_ensemble", ask)
        opening = [executor.submit(FileStore.open, client, name) for name in "ab"]
        assert all(asked.acquire(timeout=30) for _ in range(6))  # again and again
        assert not any(future.done() for future in opening)
        assert file_stores(client) == ["a"] and not read_ledger_list(client, LOG).live_segments
        with bookies():
            for future in opening:
                with future.result(60) as store:
                    store.put("/y", b"")
                    assert not store.exists("/x") or store.read("/x") == BIG
            client.close()


def test_fs_18_the_list_of_a_store_that_is_opened_often_stays_short(uri: str) -> None:
    """FS-18: whether its owners write or not, close or die."""
    limit = FileLimits().segments_max
    longest = 0
    with bk_core.connect(uri, limits=LIMITS) as client:
        for opened in range(3 * limit):
            store = FileStore.open(client, "a")
            if opened % 3:
                store.put(f"/{opened % 7}", b"%d" % opened)
            store.close() if opened % 10 else store.abandon()
            longest = max(longest, len(read_ledger_list(client, LOG).items))
        assert limit < longest <= limit + 4  # what closes at once may leave the trim to the next
        assert len([one for one in client.list_ledgers()]) <= limit + 6
        with FileStore.open(client, "a") as store:
            assert {path: int(store.read(f"/{path}")) % 7 for path in names(store)} == {str(number): number for number in range(7)}
