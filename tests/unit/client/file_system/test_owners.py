"""The owner of a file store that instances of fsspec write: one owner for a process, told of others, given up with its instances."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import fsspec
import fsspec.core
import pytest

import bk_core
from bk_core.client.files import connections, upkeep
from bk_core.client.files.fs import BookKeeperFileSystem
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import file_stores
from bk_core.client.log import live_writers
from bk_core.errors import (
    BkError,
    BlockingCallError,
    FileStoreTakenOverError,
    LogWriterAliveError,
    WrongPasswordError,
)
from tests.unit.client.forked import in_a_forked_child

LARGE = bytes(range(256)) * (10 << 10)  # 2.5 MiB


def test_instances_of_all_threads_share_one_owner(uri: str, fs: BookKeeperFileSystem) -> None:
    def write(number: int) -> None:
        fsspec.filesystem("bk", uri=uri, store="s", mode="rw").pipe(f"/{number}", b"x")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(8)))
    assert len(fs.ls("/")) == 8
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.ls("/") == fs.ls("/")
    fs.close()
    fs.close()
    assert len(copy.ls("/")) == 8  # opened again


def test_an_owner_that_lives_is_ended_only_by_who_insists(uri: str) -> None:
    with bk_core.connect(uri) as client, FileStore.open(client, "s") as store:
        store.put("/a", b"a")
        with pytest.raises(LogWriterAliveError, match="fence it: take_over=True$"):
            BookKeeperFileSystem(uri=uri, store="s", mode="rw").ls("/")
        other = BookKeeperFileSystem(uri=uri, store="s", mode="rw", take_over=True)
        assert other.cat("/a") == b"a"
        with pytest.raises(BkError):
            for _ in range(3):
                store.put("/late", b"late")
        store.abandon()
        assert file_stores(client) == ["s"]


@pytest.mark.parametrize("seen", ["at once", "a moment later"])
def test_a_refusal_names_the_argument_that_there_is_here(uri: str, owner: FileStore, monkeypatch: pytest.MonkeyPatch, seen: str) -> None:
    """Whichever part of the upkeep refuses."""
    if seen != "at once":
        monkeypatch.setattr(upkeep, "_refuse_owned", lambda *_asked: None)
    with pytest.raises(LogWriterAliveError, match="or fence it: take_over=True$") as told:
        BookKeeperFileSystem(uri=uri, store="s", mode="rw").ls("/")
    assert "alive=" not in str(told.value) and told.value.context


@pytest.mark.parametrize("is_left_open", [False, True])
def test_an_owner_that_comes_in_between_is_not_fenced(uri: str, monkeypatch: pytest.MonkeyPatch, is_left_open: bool) -> None:
    """Between the look at a store that was closed, or whose owner is dead, and its opening."""
    with bk_core.connect(uri) as client:
        dead = FileStore.open(client, "s")
        dead.put("/a", b"a")
        if is_left_open:
            dead.abandon()
        else:
            dead.close()
        monkeypatch.setattr(live_writers, "lives_here", lambda _writer: False)
        monkeypatch.setattr(live_writers, "abandoned", lambda _writer: True)
        refuse = upkeep._refuse_owned
        others: list[FileStore] = []

        def came_in_between(*asked: Any) -> None:
            refuse(*asked)
            others.append(FileStore.open(client, "s"))

        with monkeypatch.context() as patched:
            patched.setattr(upkeep, "_refuse_owned", came_in_between)
            with pytest.raises(LogWriterAliveError if is_left_open else FileStoreTakenOverError):
                BookKeeperFileSystem(uri=uri, store="s", mode="rw").ls("/")
        with others[0] as other:
            other.put("/b", b"b")
        other = FileStore.open(client, "s")
        other.abandon()
        fs = BookKeeperFileSystem(uri=uri, store="s", mode="rw")  # nobody comes in between
        assert fs.ls("/", detail=False) == ["/a", "/b"]


def test_the_password_comes_from_options_or_the_environment(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BookKeeperFileSystem(uri=uri, store="s", mode="rw", password="right")
    made.pipe("/a", LARGE)
    made.close()
    with pytest.raises(WrongPasswordError, match="password given is not that of file store 's'"):
        BookKeeperFileSystem(uri=uri, store="s", password="wrong").cat("/a")
    monkeypatch.setenv(connections.PASSWORD_VARIABLE, "")
    with pytest.raises(WrongPasswordError, match=r"file store 's' has a password, and none was given: storage_options=.\"password\": ...}"):
        BookKeeperFileSystem(uri=uri, store="s", skip_instance_cache=True).cat("/a")
    assert BookKeeperFileSystem(uri=uri, store="s", password=b"right").cat("/a") == LARGE
    monkeypatch.setenv(connections.PASSWORD_VARIABLE, "right")
    assert BookKeeperFileSystem(uri=uri, store="s").cat("/a") == LARGE
    assert "right" not in repr(BookKeeperFileSystem(uri=uri, store="s"))


def test_an_owner_that_has_ended_tells_how_to_go_on(uri: str) -> None:
    fs = BookKeeperFileSystem(uri=uri, store="s", mode="rw")
    fs.pipe_file("/a", b"1")
    owner = fs._owner()
    with bk_core.connect(uri) as client:
        upkeep.delete_file_store(client, "s", even_if_alive=True)
        for told in (
            r"was deleted.*call close\(\).*opens the store again, with no file in it$",
            r"another owner.*take_over=True it ends that one$",
        ):
            with pytest.raises(FileStoreTakenOverError):
                owner.put("/b", b"2")
            for call in (lambda: fs.cat("/a"), lambda: fs.pipe_file("/a", b"2"), lambda: fs.open("/a", "wb")):
                with pytest.raises(FileStoreTakenOverError, match=told):
                    call()
            fs.close()
            fs.pipe_file("/a", b"1")
            owner = fs._owner()
            if "deleted" in told:
                FileStore.open(client, "s").close()


def test_an_instance_that_is_dropped_leaves_its_store_to_the_next(uri: str) -> None:
    """Also in the middle of a file that is read or written, which keeps the connection."""
    for number in range(3):
        fs = BookKeeperFileSystem(uri, "s", mode="rw", take_over=number == 1, skip_instance_cache=True)
        fs.pipe_file(f"/{number}", b"x")
        file = fs.open(f"/written{number}", "wb")
        read = fs.open("/0")
        del fs
        gc.collect()
        file.write(b"y")
        file.close()
        assert read.read() == b"x"
        del file, read
        gc.collect()
    fs = fsspec.filesystem("bk", uri=uri, store="s", mode="rw")
    assert fs.ls("/", detail=False) == ["/0", "/1", "/2", "/written0", "/written1", "/written2"]
    assert not connections._leaving


def test_an_instance_goes_with_its_last_reference(uri: str) -> None:
    """And gives its store up then, and not when the collector of cycles comes by."""
    gc.collect()
    gc.disable()
    try:
        fs = BookKeeperFileSystem(uri, "s", mode="rw", skip_instance_cache=True)
        fs.pipe_file("/x", b"x")
        assert fs.ls("bk://s/", detail=False) == ["/x"]
        gone = weakref.ref(fs)
        del fs
        assert gone() is None and not connections._connections
    finally:
        gc.enable()
    assert BookKeeperFileSystem(uri, "s", mode="rw").cat("/x") == b"x"


def test_the_end_of_the_process_closes_what_it_owns(uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each store, and those of instances that were dropped; one that cannot be closed is waited for so long and named."""
    for name in ("a", "b", "c"):
        BookKeeperFileSystem(uri, name, mode="rw").pipe_file("/x", b"x")
    BookKeeperFileSystem(uri, "d", mode="rw", skip_instance_cache=True).pipe_file("/x", b"x")
    gc.collect()
    assert len(connections._connections) == 3
    monkeypatch.setattr(connections, "ENDING_S", 2.0)
    stuck = connections._connections[(uri, "b", None)].files
    assert isinstance(stuck, FileStore)
    go_on = threading.Event()
    stuck._worker.submit(lambda: go_on.wait(60))
    assert in_a_forked_child({"end": connections._close_owners}) == {"end": ""}
    with bk_core.connect(uri) as client:
        assert upkeep.file_store_owner(client, "a") is not None  # the child did nothing
        connections._close_owners()
        assert [name for name in ("a", "b", "c", "d") if upkeep.file_store_owner(client, name) is not None] == ["b"]
    assert "file store b was not closed when the process ended: [BK-TIMEOUT]" in caplog.text
    go_on.set()


def test_a_handler_that_strikes_while_another_call_connects_is_told_to_wait_elsewhere(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[BaseException] = []
    connect = connections.connect

    def struck(where: str) -> bk_core.BookKeeper:
        if not said:
            try:
                BookKeeperFileSystem(uri, "s", mode="rw", skip_instance_cache=True).ls("/")
            except BaseException as error:
                said.append(error)
        return connect(where)

    monkeypatch.setattr(connections, "connect", struck)
    fs = BookKeeperFileSystem(uri, "s", mode="rw", skip_instance_cache=True)
    assert fs.ls("/") == []
    assert [type(error) for error in said] == [BlockingCallError]


@pytest.mark.parametrize("how", ["opens", "leaves"])
def test_a_store_waits_for_no_other_one(uri: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Neither while that one is connected to, nor while its former owner leaves."""
    begun, go_on = threading.Event(), threading.Event()
    fs = BookKeeperFileSystem(uri, "s", mode="rw", skip_instance_cache=True)
    reader = BookKeeperFileSystem(uri, "s", skip_instance_cache=True)
    slow = BookKeeperFileSystem(uri, "slow", mode="rw", skip_instance_cache=True)
    if how == "opens":
        own = connections.own_file_store

        def held(client: Any, name: str, **options: Any) -> FileStore:
            if name == "slow":
                begun.set()
                assert go_on.wait(60)
            return own(client, name, **options)

        monkeypatch.setattr(connections, "own_file_store", held)
    else:
        slow.pipe_file("/x", b"1")
        close = FileStore.close
        monkeypatch.setattr(FileStore, "close", lambda store: (begun.set(), go_on.wait(60), close(store))[2])
        slow = BookKeeperFileSystem(uri, "slow", mode="rw", skip_instance_cache=True)
        gc.collect()
        assert begun.wait(30)
    with ThreadPoolExecutor(2) as threads:
        opening = threads.submit(slow.ls, "/", detail=False)
        try:
            assert begun.wait(30)
            threads.submit(fs.pipe_file, "/y", b"2").result(30)
            assert threads.submit(reader.cat_file, "/y").result(30) == b"2"
            assert not opening.done()
        finally:
            go_on.set()
        assert opening.result(60) == ([] if how == "opens" else ["/x"])


def test_a_process_has_one_owner_of_a_store_whatever_its_instances_were_made_with(uri: str) -> None:
    def instance(**options: Any) -> BookKeeperFileSystem:
        return BookKeeperFileSystem(uri, "s", mode="rw", skip_instance_cache=True, **options)

    first, second, third = instance(password="p"), instance(password=b"p", take_over=True), instance(password="p")
    for number, fs in enumerate((first, second, third, first)):
        fs.pipe_file(f"/{number}", b"x")
    for take_over in (False, True):
        with pytest.raises(WrongPasswordError, match="owns file store 's' with another password than the one given; nothing was done"):
            instance(password="q", take_over=take_over).ls("/")
    assert first.ls("/", detail=False) == second.ls("/", detail=False) == ["/0", "/1", "/2", "/3"]
    with bk_core.connect(uri) as client, FileStore.open(client, "s", password=b"p"):
        for fs in (first, second, instance(password="p")):
            with pytest.raises(FileStoreTakenOverError):
                fs.pipe_file("/late", b"")
    again = instance(password="p", take_over=True)  # no owner of this process any more
    again.pipe_file("/4", b"x")
    assert instance(password="p").ls("/", detail=False)[-1] == "/4"
    with bk_core.connect(uri) as client, FileStore.open(client, "s", password=b"p"):
        with pytest.raises(FileStoreTakenOverError):
            again.pipe_file("/late", b"")
        with pytest.raises(FileStoreTakenOverError):  # two that insist would take the store from one another for ever
            instance(password="p", take_over=True).pipe_file("/late", b"")
    again.close()
    assert instance(password="p").cat("/4") == b"x"


@pytest.mark.parametrize("point", range(8))
def test_an_interrupt_while_a_store_is_connected_to_refuses_no_later_call(uri: str, monkeypatch: pytest.MonkeyPatch, point: int) -> None:
    """A store that this thread connects to is refused to handlers of signals. Wherever a Ctrl-C strikes, it is not connected to any more
    afterwards. CPython raises where a function written in C has returned, which a profile function is told."""
    left = point

    def struck(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event == "c_return" and frame.f_code is connections.shared_connection.__code__:
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

    def connected(_: connections.Wish) -> Any:
        raise LookupError("this is no handler of a signal")

    monkeypatch.setattr(connections, "_connected", connected)
    wish, before = connections.Wish(uri, "s", b"", "rw", False), sys.getprofile()
    try:
        sys.setprofile(struck)
        with pytest.raises((KeyboardInterrupt, LookupError)):
            connections.shared_connection(wish)
    finally:
        sys.setprofile(before)
    with pytest.raises(LookupError):
        connections.shared_connection(wish)
