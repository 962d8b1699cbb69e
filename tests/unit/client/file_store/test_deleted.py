"""A file store whose ledgers others delete, or would write: guards, data ledgers and ledgers of its log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.client.files import works as works_module
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import delete_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.janitor import apply_retention, delete_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.orphans import adopt_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreError,
    InvalidArgumentError,
    LedgerListedError,
    WrongClusterError,
)
from tests.unit.client.file_store.stores import BIG, LOG, eventually, ledgers_of, nodes, small


def test_grd_7_nobody_else_writes_the_log_of_a_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    """GRD-7: nothing is fenced, and the message says what writes it."""
    with pytest.raises(InvalidArgumentError, match=r"FileStore.open\(client, 'a'\)"):
        LogWriter.open(client, LOG)
    for act in (lambda: trim_log(client, LOG, max_bytes=0), lambda: apply_retention(client, LOG), lambda: delete_log(client, LOG)):
        with pytest.raises(InvalidArgumentError, match="Only the owner of the store, .*delete_file_store.*bk checkpoint rm a"):
            act()
    store.put("/x", b"1")


def test_a_store_is_adopted_with_its_data_ledgers(store: FileStore, client: bk_core.BookKeeper) -> None:
    """OWN-4: what lay beside the list of a cluster that got another identity is this cluster's again, and goes when it is to go."""
    store.put("/big", BIG)
    store.close()
    for path in (f"logs/{LOG}", f"files/{LOG}/{nodes(client)[0]}"):
        stored = client.store.read(path)
        client.store.write(path, stored.data.replace(client.store.cluster_id().encode(), b"another"), stored.version)
    with pytest.raises(WrongClusterError):
        FileStore.open(client, "a")
    assert nodes(client) == []
    adopt_log(client, LOG, from_cluster="another")
    with FileStore.open(client, "a") as again:
        assert again.read("/big") == BIG and len(nodes(client)) == 1
        again.delete("/big")
        eventually(lambda: not nodes(client))


def test_grd_7_a_data_ledger_is_deleted_by_its_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    """GRD-7: unless one insists, or the store is gone."""
    store.put("/big", BIG)
    (ledger,) = set(ledgers_of(store, "/big"))
    with pytest.raises(LedgerListedError, match="file store 'a', which may refer to it.*even_if_listed"):
        client.delete_ledger(ledger)
    assert store.read("/big") == BIG
    store.close()
    delete_log(client, LOG, file_entries=True)
    client.delete_ledger(ledger)


def test_data_that_somebody_deleted_is_said_to_be_lost(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "a") as store:
        store.put("/big", BIG)
        (ledger,) = set(ledgers_of(store, "/big"))
    client.delete_ledger(ledger, even_if_listed=True)
    with FileStore.open(client, "a") as store:
        for call in (lambda: store.read("/big"), lambda: list(store.chunks("/big")), lambda: store.read_content(store.content("/big"))):
            with pytest.raises(FileDataLostError, match=f"ledger {ledger}"):
                call()
        store.put("/big", b"new")
        assert store.read("/big") == b"new"


def test_a_file_that_is_replaced_while_it_is_read(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was looked up is dropped before it is read: the file is looked up again, so it is read whole."""
    small(store, ledger=1).put("/big", BIG)

    def replaced(*_: Any) -> Any:
        monkeypatch.undo()
        store.put("/big", BIG[::-1])
        raise FileDataLostError("dropped")

    for read in (store.read, lambda path: b"".join(store.chunks(path))):
        store.put("/big", BIG)
        monkeypatch.setattr(store._reader, "chunks", replaced)
        assert read("/big") == BIG[::-1]


@pytest.mark.parametrize("learns", ["by its watch", "by reading"])
def test_nothing_more_goes_to_a_data_ledger_that_is_gone(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learns: str
) -> None:
    if learns == "by reading":
        monkeypatch.setattr(works_module.FileWorks, "watch_data", lambda *_: SimpleNamespace(cancel=lambda: None))
    with FileStore.open(client, "a") as store:
        store.put("/lost", BIG)
        (gone,) = ledgers_of(store, "/lost")
        staged = store.stage(BIG)
        assert [extent.ledger_id for extent in staged.content.extents] == [gone]
        client.delete_ledger(gone, even_if_listed=True)
        if learns == "by reading":
            with pytest.raises(FileDataLostError):
                store.read("/lost")
        eventually(lambda: gone in store._data._gone)
        with pytest.raises(FileDataLostError, match="write them again") as caught:
            store.put("/staged", staged)
        assert not caught.value.outcome_unknown and not store.exists("/staged")
        staged.release()
        store.put("/new", BIG)
        (other,) = ledgers_of(store, "/new")
        assert other != gone and store.read("/new") == BIG
        store.put("/lost", BIG)
        assert store.read("/lost") == BIG
        eventually(lambda: store.flush() is None and gone not in nodes(client))
        assert len(store._watches) == 3  # of the log's list, of its last ledger, and of the ledger that is being filled
    assert "Traceback" not in caplog.text


def test_only_ledgers_that_a_lease_keeps_are_known_as_gone(client: bk_core.BookKeeper, store: FileStore) -> None:
    """However many are deleted, or read after their file was."""
    staged, gone = [], []
    for number in range(8):
        store.put(f"/{number}", BIG)
        gone += ledgers_of(store, f"/{number}")
        if number % 2:
            staged.append(store.stage(BIG))
        client.delete_ledger(gone[-1], even_if_listed=True)
        eventually(lambda: not store._data._idle)
    assert len(set(gone)) == 8
    for number in range(8):
        with pytest.raises(FileDataLostError):
            store.read(f"/{number}")
    assert set(gone[1::2]) <= store._data._gone
    for one in staged:
        with pytest.raises(FileDataLostError, match="write them again"):
            store.put("/staged", one)
        one.release()
    store.flush()
    eventually(lambda: not store._holds.leases.held())
    store._data.lost(gone[0])
    assert store._data._gone == set()


def test_a_run_to_a_data_ledger_that_goes_meanwhile_is_written_again(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("/first", BIG)
    (gone,) = ledgers_of(store, "/first")
    hold = store._data._hold

    def lose(lease: Any, ledger_id: int) -> None:
        hold(lease, ledger_id)
        if ledger_id == gone:
            store._data.lost(gone)

    monkeypatch.setattr(store._data, "_hold", lose)
    store.put("/second", BIG)
    assert gone not in ledgers_of(store, "/second") and store.read("/second") == BIG
    assert [one.ledger_id for one in store._data._idle] == ledgers_of(store, "/second")


def test_watches_of_data_ledgers_go_with_them(client: bk_core.BookKeeper, store: FileStore) -> None:
    """A change of the metadata that leaves the ledger there changes nothing."""
    small(store, ledger=1)
    for number in range(5):
        store.put(f"/{number}", BIG)
    assert len(store._watches) == 2, "of the log's list and of its last ledger"
    small(store)
    store.put("/x", BIG)
    (ledger_id,) = ledgers_of(store, "/x")
    store._data_changed(ledger_id)
    store.put("/y", BIG)
    assert ledgers_of(store, "/y") == [ledger_id] and len(store._watches) == 3


def test_a_store_ends_when_the_ledger_of_its_log_is_deleted(client: bk_core.BookKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Bookies may go on acknowledging what nobody will read."""
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store.put("/x", b"1")
    last = read_ledger_list(client, LOG).segments[-1].ledger_id
    client.delete_ledger(last, even_if_listed=True)
    eventually(lambda: not store.is_open)
    with pytest.raises(FileStoreError, match=f"ledger {last}, which file store 'a' writes its changes to, was deleted"):
        store.put("/y", b"2")
    store.close()
    assert [type(error) for error in told] == [FileStoreClosedError] and told[0].context["ledger"] == last
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("how", ["collected", "kept", "the whole store"])
def test_a_store_whose_log_was_deleted_says_so_before_its_watch_tells_it(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A bookie that has collected the ledger answers as if another owner had fenced it; one that keeps it goes on until it is closed."""
    for watch in ("watch_data", "watch_list"):
        monkeypatch.setattr(works_module.FileWorks, watch, lambda *_: SimpleNamespace(cancel=lambda: None))
    store = FileStore.open(client, "a")
    store.put("/x", b"1")
    last = read_ledger_list(client, LOG).segments[-1].ledger_id
    told = f"ledger {last}, which file store 'a' writes its changes to, was deleted by somebody else"
    if how == "the whole store":
        delete_file_store(client, "a", even_if_alive=True)
        told = "file store 'a' was deleted while this owner had it"
    else:
        if how == "collected":
            client.recover_ledger(last).close()  # from here on its bookies refuse, as they do for one that they have collected
        client.delete_ledger(last, even_if_listed=True)
    if how != "kept":
        with pytest.raises(FileStoreError, match=told):
            store.put("/y", b"2")
        assert isinstance(store.error, FileStoreError) and told in str(store.error) and store.error.__cause__ is not None
        store.close()
    else:
        store.put("/y", b"2")
        with pytest.raises(FileStoreError, match=told):
            store.close()


def test_a_store_goes_on_when_a_ledger_leaves_its_log(client: bk_core.BookKeeper, store: FileStore) -> None:
    """The watch goes over to the next ledger with each roll; trims delete the former ones."""
    store.put("/x", b"1")
    for _ in range(3):
        before = read_ledger_list(client, LOG).segments[-1].ledger_id
        eventually(lambda before=before: store._last is not None and store._last[0] == before)
        store._writer.roll()
        trim_log(client, LOG, before=store._writer.position, file_entries=True)
        store._last_changed(before)
        store.put("/x", b"2")
    assert store.is_open and len(store._watches) == 2


@pytest.mark.parametrize("how", ["delete", "put", "replace_all"])
def test_fs_22_a_view_sees_the_change_that_let_go_of_a_ledger_before_that_is_deleted(
    uri: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """FS-22: also a view that is opened beside an owner that would die behind the deletion."""
    delete, seen = works_module.delete_data_ledger, []
    with bk_core.connect(uri) as client:  # whose explicit LAC takes its usual time

        def look_and_delete(*asked: Any) -> None:
            with FileStoreView.open(client, "a") as view:
                seen.append({status.path for status, content in view.everything() if content is not None and content.extents})
            delete(*asked)

        monkeypatch.setattr(works_module, "delete_data_ledger", look_and_delete)
        with FileStore.open(client, "a") as store:
            store.put("/big", BIG)
            store.put("/new/small", b"")
            match how:
                case "delete":
                    store.delete("/big")
                case "put":
                    store.put("/big", b"small")
                case _:
                    store.replace_all("/new")
    assert seen == [set()]
