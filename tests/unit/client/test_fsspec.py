"""``bk://`` through fsspec, and through what stands on it: pyarrow and pandas."""

from __future__ import annotations

import gc
import gzip
import io
import pickle
import threading
import tomllib
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import fsspec.core
import pandas
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
from fsspec.spec import AbstractFileSystem

import bk_core
from bk_core.client.files import connections, store, upkeep
from bk_core.client.files import fs as module
from bk_core.client.files.fs import BookKeeperFileSystem
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import file_stores
from bk_core.client.log import live_writers
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    BlockingCallError,
    DirectoryNotEmptyError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreTakenOverError,
    InvalidArgumentError,
    LogWriterAliveError,
    NoSuchFileStoreError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
    WrongPasswordError,
)
from bk_core.protocol.files import machine
from tests.unit.client.forked import in_a_forked_child

LARGE = bytes(range(256)) * (10 << 10)  # 2.5 MiB
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """fsspec keeps instances for the life of the process; the clusters of tests live shorter."""
    monkeypatch.delenv(module.URI_VARIABLE, raising=False)
    monkeypatch.delenv(connections.PASSWORD_VARIABLE, raising=False)
    yield
    for connection in list(connections._connections.values()):
        connection.close()
    BookKeeperFileSystem.clear_instance_cache()


@pytest.fixture
def fs(uri: str) -> BookKeeperFileSystem:
    return fsspec.filesystem("bk", uri=uri, store="s", mode="rw")


@pytest.fixture
def owner(uri: str) -> Iterator[FileStore]:
    """Not of fsspec's, as if it were in another process."""
    with bk_core.connect(uri) as client, FileStore.open(client, "s") as store:
        store.put("/there", b"")
        yield store


@pytest.fixture
def reader(uri: str, owner: FileStore) -> BookKeeperFileSystem:
    return fsspec.filesystem("bk", uri=uri, store="s")


def seen(reader: BookKeeperFileSystem, path: str) -> None:
    """A view sees what was acknowledged once it is confirmed."""
    while not reader.exists(path):
        reader._connection.view.wait(30)


def test_files_are_written_listed_and_read(fs: BookKeeperFileSystem) -> None:
    with fs.open("/a/b/text", "w") as text:
        text.write("one\ntwo\n")
    fs.pipe("/a/large", LARGE)
    fs.pipe_file("/a/small", b"small")
    assert fs.ls("/a", detail=False) == ["/a/b", "/a/large", "/a/small"]
    assert fs.find("/") == ["/a/b/text", "/a/large", "/a/small"]
    assert fs.glob("/a/*l") == ["/a/small"] and fs.glob("/a/?mall") == ["/a/small"] and fs.glob("*/b/*") == ["/a/b/text"]
    info = fs.info("/a/large")
    assert (info["size"], info["type"], fs.info("/a")["type"], fs.size("a/large")) == (len(LARGE), "file", "directory", len(LARGE))
    assert fs.isfile("/a/large") and fs.isdir("/a") and not fs.isfile("/a") and not fs.isdir("/z") and not fs.exists("/z")
    assert abs((datetime.now(UTC) - fs.modified("/a/large")).total_seconds()) < 600
    with fs.open("/a/b/text") as text:
        assert text.readline() == b"one\n" and text.read() == b"two\n"
    with fs.open("/a/large", block_size=1000) as file:
        file.seek(-3, 2)
        assert file.read() == LARGE[-3:]
        file.seek(1 << 20)
        assert file.read(10) == LARGE[1 << 20 : (1 << 20) + 10]
    assert fs.cat("/a/large") == LARGE and fs.cat_file("/a/large", 5, 9) == LARGE[5:9] and fs.cat_file("/a/large", -4) == LARGE[-4:]
    assert fs.cat_file("/a/large", 9, 5) == b"" and fs.du("/a") == len(LARGE) + 5 + 8
    assert fs.cat(["/a/small", "/a/b/text"]) == {"/a/small": b"small", "/a/b/text": b"one\ntwo\n"}
    assert [names for _, _, names in fs.walk("/a")] == [["large", "small"], ["text"]]


def test_what_is_not_there_or_of_another_kind(fs: BookKeeperFileSystem) -> None:
    fs.pipe("/d/f", b"x")
    for call in (fs.ls, fs.info, fs.open, fs.rm, fs.rmdir, fs.cat_file, fs.modified):
        with pytest.raises(FileNotFoundError):
            call("/z")
    with pytest.raises(PathIsDirectoryError):
        fs.open("/d")
    with pytest.raises(PathIsDirectoryError):
        fs.rm("/d")
    with pytest.raises(DirectoryNotEmptyError):
        fs.rmdir("/d")
    with pytest.raises(PathNotDirectoryError):
        fs.rmdir("/d/f")
    for call in (fs.makedirs, fs.mkdir):
        with pytest.raises(PathExistsError):
            call("/d")
    fs.makedirs("/d", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/new/below", create_parents=False)
    with pytest.raises(PathNotDirectoryError):
        fs.mkdir("/d/f/below", create_parents=False)
    for mode in ("ab", "r+b"):
        with pytest.raises(InvalidArgumentError, match="each as a whole"):
            fs.open("/d/f", mode)
    with pytest.raises(PathExistsError):
        fs.open("/d/f", "xb")
    with pytest.raises(PathExistsError):
        fs.pipe_file("/d/f", b"y", mode="create")
    assert fs.cat("/d/f") == b"x"


def test_files_are_moved_copied_and_deleted(fs: BookKeeperFileSystem, tmp_path: Path) -> None:
    fs.pipe({"/a/1": b"1", "/a/2": b"2", "/a/b/3": b"3"})
    fs.mv("/a/1", "/a/2")
    assert fs.cat("/a/2") == b"1" and not fs.exists("/a/1")
    fs.mkdir("/to")
    fs.mv("/a/2", "/to")
    fs.mv("/a/b", "/to/", recursive=True)
    assert fs.find("/") == ["/to/2", "/to/b/3"]
    fs.pipe({"/x1": b"", "/x2": b""})
    with pytest.raises(PathNotDirectoryError):
        fs.mv("/x*", "/y")
    fs.mv("/x*", "/to")
    fs.mv(["/to/x1", "/to/x2"], ["/y1", "/y2"])
    fs.copy("/to", "/copy", recursive=True)
    assert fs.find("/copy") == ["/copy/2", "/copy/b/3"] and fs.cat("/copy/b/3") == b"3"
    fs.get("/copy", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out" / "b" / "3").read_bytes() == b"3"
    fs.put(str(tmp_path / "out"), "/back", recursive=True)
    assert fs.cat("/back/b/3") == b"3"
    fs.touch("/back/2", truncate=False)
    assert fs.cat("/back/2") == b"1"
    fs.touch("/back/2")
    assert fs.cat("/back/2") == b""
    fs.rm("/copy", recursive=True)
    fs.rm(["/y1", "/y2"])
    fs.rm("/back", recursive=True, maxdepth=1)
    assert fs.find("/", withdirs=True) == ["/", "/a", "/back", "/back/b", "/back/b/3", "/to", "/to/2", "/to/b", "/to/b/3"]
    fs.rm("/to/b/*")
    fs.rmdir("/to/b")
    fs.rm_file("/to/2")
    assert fs.ls("/to") == []


def test_a_file_appears_whole_when_it_is_closed(fs: BookKeeperFileSystem) -> None:
    with fs.open("/f", "wb") as file:
        file.write(memoryview(LARGE))
        assert not fs.exists("/f") and file.tell() == len(LARGE) and file.writable() and not file.readable()
    assert fs.cat("/f") == LARGE
    with pytest.raises(ZeroDivisionError), fs.open("/f", "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    dropped = fs.open("/f", "wb")
    dropped.write(b"half")
    del dropped
    assert fs.cat("/f") == LARGE
    with pytest.raises(FileStoreClosedError):
        file.write(b"late")
    file.close()
    with fs.open("/f") as before:
        fs.pipe("/f", b"other")
        try:
            assert before.read() == LARGE
        except FileDataLostError:  # its bytes may be deleted by now, but they are never mixed with others
            pass
    exclusive = fs.open("/new", "xb")
    fs.pipe("/new", b"first")
    with pytest.raises(PathExistsError):
        exclusive.close()
    assert fs.cat("/new") == b"first"


def test_transactions(fs: BookKeeperFileSystem) -> None:
    with fs.transaction:
        with fs.open("/a", "wb") as file:
            file.write(b"a")
        with fs.open("/b", "wb") as file:
            file.write(b"b")
        assert not fs.exists("/a")
    assert fs.cat(["/a", "/b"]) == {"/a": b"a", "/b": b"b"}
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("/a", "wb") as file:
            file.write(b"c")
        raise ZeroDivisionError
    assert fs.cat("/a") == b"a"


def test_reading_beside_the_owner(owner: FileStore, reader: BookKeeperFileSystem) -> None:
    owner.put("/a/b", LARGE)
    seen(reader, "/a/b")
    with reader.open("/a/b") as file:
        assert file.read() == LARGE
    assert reader.cat_file("/a/b", 3, 6) == LARGE[3:6] and "/a/b" in reader.find("/")
    for change in (lambda: reader.pipe("/x", b""), lambda: reader.rm("/a/b"), lambda: reader.mkdir("/d"), lambda: reader.open("/x", "wb")):
        with pytest.raises(InvalidArgumentError, match="mode='rw'"):
            change()
    assert owner.exists("/a/b")


def test_a_process_reads_what_it_has_just_written(uri: str, fs: BookKeeperFileSystem) -> None:
    """A view would be a moment behind: the old rows, or none, without an error."""
    reader = fsspec.filesystem("bk", uri=uri, store="s")
    for number in range(20):
        fs.pipe("/a", b"%d" % number)
        assert reader.cat("/a") == b"%d" % number
    fs.rm("/a")
    assert not reader.exists("/a")
    fs.pipe("/b", b"b")
    fs.close()
    assert reader.cat("/b") == b"b"


def test_urls(uri: str, fs: BookKeeperFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.pipe({"/a b/c?d": b"1", "/e": b"2"})
    strip, kwargs = BookKeeperFileSystem._strip_protocol, BookKeeperFileSystem._get_kwargs_from_urls
    assert (
        strip("bk://s/a b/c?d") == "/a b/c?d"
        and strip("bk://s") == "/"
        and strip("a/b/") == "/a/b"
        and strip("bk://s/x?uri=zk://h/l") == "/x"
    )
    assert strip(["bk://s/x", "/y"]) == ["/x", "/y"]
    assert kwargs("bk://s/x?uri=zk://h/l&mode=rw") == {"store": "s", "uri": "zk://h/l", "mode": "rw"} and kwargs("/x") == {}
    for url, told in (
        ("bk://s/x?foo=1", "not 'foo'.*by its path"),
        ("bk://s/x?mdoe=rw", r"did you mean 'mode'\?"),
        ("bk://s/x?foo=", "'foo'"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            kwargs(url)
    fs.pipe_file("/q?y=z", b"odd")
    assert fs.cat("/q?y=z") == b"odd"
    for url in ("bk://s/x?take_over=secret&mode=rw", "bk://s/x?password=secret", "bk://s/x?uri=a&password=secret"):
        with pytest.raises(InvalidArgumentError) as raised:
            kwargs(url)
        assert "secret" not in str(raised.value)
    assert fs.unstrip_protocol("/e") == "bk://s/e"
    with fsspec.open(f"bk://s/e?uri={uri}&mode=rw", "rb") as file:
        assert file.read() == b"2"
    monkeypatch.setenv(module.URI_VARIABLE, uri)
    with fsspec.open("bk://s/a b/c?d", "rb") as file:
        assert file.read() == b"1"
    found, path = fsspec.core.url_to_fs("bk://s/e")
    assert (found.store, path) == ("s", "/e")


def test_wrong_arguments(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="metadata service"):
        BookKeeperFileSystem(store="s")
    with pytest.raises(InvalidArgumentError, match="name of a file store"):
        BookKeeperFileSystem(uri=uri)
    with pytest.raises(ArgumentTypeError, match="is text or bytes, not int"):
        BookKeeperFileSystem(uri=uri, store="s", password=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="mode must be one of r, rw, not 'w'"):
        BookKeeperFileSystem(uri=uri, store="s", mode="w")
    with pytest.raises(InvalidArgumentError, match="no option 'even_if_alive'; it takes uri.*take_over"):
        BookKeeperFileSystem(uri=uri, store="s", even_if_alive=True)
    for path in ("bk://other/x", ["/a", "bk://other/x"]):
        with pytest.raises(InvalidArgumentError, match="is of file store 'other'; these are the files of 's'"):
            BookKeeperFileSystem(uri=uri, store="s", mode="rw").rm(path)
    with pytest.raises(NoSuchFileStoreError):
        BookKeeperFileSystem(uri=uri, store="s").ls("/")


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


@pytest.mark.parametrize("truncate", [False, True])
def test_a_touch_empties_no_file_that_another_thread_puts_meanwhile(
    fs: BookKeeperFileSystem, monkeypatch: pytest.MonkeyPatch, truncate: bool
) -> None:
    """Unless it was asked to."""
    put = FileStore.put

    def late(owner: FileStore, path: str, data: bytes, **options: Any) -> Any:
        put(owner, path, b"another thread's")
        return put(owner, path, data, **options)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "put", late)
        fs.touch("/x", truncate=truncate)
    assert fs.cat("/x") == (b"" if truncate else b"another thread's")
    fs.mkdir("/d")
    fs.touch("/d", truncate=False)
    fs.touch("/new", truncate=False)
    assert fs.cat("/new") == b"" and fs.isdir("/d")


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


def test_pandas(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.URI_VARIABLE, uri)
    frame = pandas.DataFrame({"n": [1, 2, 3], "t": ["a", "b", None]})
    frame.to_csv("bk://s/d/frame.csv?mode=rw", index=False)
    frame.to_parquet("bk://s/d/frame.parquet?mode=rw")
    pandas.testing.assert_frame_equal(pandas.read_parquet("bk://s/d/frame.parquet"), frame)
    for connection in list(connections._connections.values()):
        connection.close()
    pandas.testing.assert_frame_equal(pandas.read_csv("bk://s/d/frame.csv"), frame)
    pandas.testing.assert_frame_equal(pandas.read_parquet("bk://s/d/frame.parquet", storage_options={"uri": uri}), frame)


def test_storage_options_own_a_store_with_pandas_and_pyarrow_alike(uri: str) -> None:
    frame = pandas.DataFrame({"n": [1, 2, 3], "t": ["a", "b", "c"]})
    options = {"uri": uri, "access": "rw", "password": "secret"}
    frame.to_csv("bk://s/a.csv.gz", index=False, storage_options=options)
    frame.to_json("bk://s/a.json.bz2", storage_options=options)
    frame.to_parquet("bk://s/a.parquet", storage_options=options)
    frame.to_parquet("bk://s/set", partition_cols=["t"], storage_options=options)
    frame.to_pickle("bk://s/a.pickle.xz", storage_options=options)
    written = fsspec.open_files("bk://s/part-*.txt", "wb", num=2, **options)
    for number, part in enumerate(written):
        with part as file:
            file.write(str(number).encode())
    fs = fsspec.filesystem("bk", store="s", **options)
    assert gzip.decompress(fs.cat("/a.csv.gz")) == b"n,t\n1,a\n2,b\n3,c\n"
    assert (fs.cat("/a.json.bz2")[:3], fs.cat("/a.pickle.xz")[:6]) == (b"BZh", b"\xfd7zXZ\x00")
    table = pyarrow.parquet.read_table("/set", filesystem=fs)
    pyarrow.parquet.write_table(table, "/b.parquet", filesystem=fs)
    fs.close()
    reading = {**options, "access": "r"}
    for found in (
        pandas.read_csv("bk://s/a.csv.gz", storage_options=reading),
        pandas.read_json("bk://s/a.json.bz2", storage_options=reading),
        pandas.read_parquet("bk://s/a.parquet", storage_options=reading),
        pandas.read_pickle("bk://s/a.pickle.xz", storage_options=reading),
    ):
        pandas.testing.assert_frame_equal(found, frame)
    parts = []
    for part in fsspec.open_files("bk://s/part-*.txt", **reading):
        with part as file:
            parts.append(file.read())
    assert parts == [b"0", b"1"]


def test_a_url_whose_query_hides_a_compression_is_refused(uri: str) -> None:
    frame = pandas.DataFrame({"n": [1]})
    for end in (".gz", ".BZ2", ".tar.xz"):
        with pytest.raises(InvalidArgumentError, match=r"would not compress: give storage_options=.\"access\": \"rw\"}"):
            frame.to_csv(f"bk://s/a.csv{end}?mode=rw&uri={uri}")
    with pytest.raises(NoSuchFileStoreError):
        fsspec.filesystem("bk", uri=uri, store="s").ls("/")
    with pytest.raises(InvalidArgumentError, match="two names of one option"):
        BookKeeperFileSystem(uri=uri, store="s", mode="r", access="rw")
    with pytest.raises(InvalidArgumentError, match="access must be one of r, rw, not 'w'"):
        BookKeeperFileSystem(uri=uri, store="s", access="w")
    BookKeeperFileSystem(uri=uri, store="s", mode="rw").touch("/there")
    BookKeeperFileSystem(uri=uri, store="s", mode="rw").close()
    with pytest.raises(InvalidArgumentError, match="to write, own it: storage_options=.'access': 'rw'}"):
        fsspec.open("bk://s/x", "wb", uri=uri).open()


def test_what_tells_of_an_instance_elsewhere_does_not_tell_its_password(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = [
        BookKeeperFileSystem(uri, "s", "s3cret", mode="rw"),
        fsspec.filesystem("bk", uri=uri, store="s", password=b"s3cret", access="rw"),
    ]
    for fs in instances:
        fs.pipe_file("/a", b"1")
        told = [fs.to_json(), fs.to_json(include_password=True), repr(fs.to_dict()), repr(fs), repr(pickle.dumps(fs))]
        assert not [one for one in told if "s3cret" in one]
        made = [AbstractFileSystem.from_json(told[0]), AbstractFileSystem.from_dict(fs.to_dict()), pickle.loads(pickle.dumps(fs))]
        assert [one.cat("/a") for one in made] == [b"1"] * 3
        made += [AbstractFileSystem.from_json(made[0].to_json())]
        assert made[-1].mode == "rw" and "s3cret" not in made[-1].to_json()
        for make in (lambda told=told: AbstractFileSystem.from_json(told[0]), lambda fs=fs: pickle.loads(pickle.dumps(fs))):
            BookKeeperFileSystem.clear_instance_cache()
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(connections, "_passwords", {})  # as in another process
                with pytest.raises(InvalidArgumentError, match="file store 's' is missing: .* Set BOOKKEEPER_LEDGER_PASSWORD"):
                    make()
                elsewhere.setenv(connections.PASSWORD_VARIABLE, "s3cret")
                assert make().cat("/a") == b"1"
    without = BookKeeperFileSystem(uri=uri, store="t", password="", mode="rw")
    monkeypatch.setenv(connections.PASSWORD_VARIABLE, "s3cret")
    pickle.loads(pickle.dumps(without)).pipe_file("/a", b"1")
    monkeypatch.delenv(connections.PASSWORD_VARIABLE)
    without.close()
    assert BookKeeperFileSystem(uri=uri, store="t").cat("/a") == b"1"


def test_errors_about_paths_name_the_store(uri: str, fs: BookKeeperFileSystem) -> None:
    fs.pipe_file("/d/a", b"1")
    for call, of in (
        (lambda: fs.cat("/x"), FileNotFoundError),
        (lambda: fs.cat_file("/x"), FileNotFoundError),
        (lambda: fs.open("/x"), FileNotFoundError),
        (lambda: fs.info("/x"), FileNotFoundError),
        (lambda: fs.ls("/x"), FileNotFoundError),
        (lambda: fs.rm("/x"), FileNotFoundError),
        (lambda: fs.modified("/x"), FileNotFoundError),
        (lambda: fs.mv("/x*", "/y"), FileNotFoundError),
        (lambda: fs.cp_file("/x", "/y"), FileNotFoundError),
        (lambda: fs.pipe_file("/d/a/b", b""), NotADirectoryError),
        (lambda: fs.open("/d/a", "xb"), FileExistsError),
        (lambda: fs.makedirs("/d"), FileExistsError),
        (lambda: fs.rm("/d"), IsADirectoryError),
        (lambda: fs.rmdir("/d"), OSError),
        (lambda: fs.touch("/d"), IsADirectoryError),
    ):
        with pytest.raises(of) as raised:
            call()
        assert str(raised.value).count("file store 's'") == 1 and raised.value.context["store"] == "s"  # type: ignore[attr-defined]
    with pytest.raises(IsADirectoryError, match="file store 's'"), fs.open("/d", "wb") as file:
        file.write(b"1")
    with pytest.raises(FileNotFoundError, match="file store 's'"):
        pandas.read_csv("bk://s/nothing.csv", storage_options={"uri": uri})


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


def test_pyarrow(fs: BookKeeperFileSystem) -> None:
    files = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    table = pa.table({"n": list(range(1000)), "k": [n % 3 for n in range(1000)]})
    pyarrow.parquet.write_to_dataset(table, "/set", partition_cols=["k"], filesystem=files)
    found = pyarrow.parquet.read_table("/set", filesystem=files, filters=[("k", "=", 1)])
    assert sorted(found["n"].to_pylist()) == list(range(1, 1000, 3))
    selected = files.get_file_info(pyarrow.fs.FileSelector("/set", recursive=True))
    assert sum(info.type == pyarrow.fs.FileType.Directory for info in selected) == 3
    files.create_dir("/new", recursive=True)
    files.move("/set", "/moved")
    assert files.get_file_info("/set").type == pyarrow.fs.FileType.NotFound
    with files.open_output_stream("/new/f") as stream:
        stream.write(b"abc")
    with files.open_input_file("/new/f") as stream:
        assert stream.read_at(2, 1) == b"bc"
    files.delete_dir("/moved")
    files.delete_file("/new/f")
    with pytest.raises(FileNotFoundError):
        files.open_input_stream("/new/f")


def test_csv_by_lines_of_text(fs: BookKeeperFileSystem) -> None:
    with fs.open("/t", "w", encoding="utf-8", newline="") as text:
        assert isinstance(text, io.TextIOWrapper)
        text.writelines(f"Zeile {n}\u00e4\n" for n in range(3))
    with fs.open("/t", "r", encoding="utf-8") as text:
        assert list(text) == [f"Zeile {n}\u00e4\n" for n in range(3)]


def test_the_entry_point_names_the_class() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    where, _, name = project["entry-points"]["fsspec.specs"]["bk"].partition(":")
    assert getattr(import_module(where), name).protocol == "bk"


def test_a_forked_child_is_refused_the_file_system_of_its_parent(fs: BookKeeperFileSystem, uri: str) -> None:
    """And files of it that are open; an instance that it makes itself connects anew."""
    fs.pipe_file("/large", LARGE)
    begun, written = fs.open("/large", block_size=1 << 16), fs.open("/new", "wb")
    assert begun.read(1)
    written.write(b"x")

    def anew() -> None:
        mine = fsspec.filesystem("bk", uri=uri, store="s", mode="rw")
        assert mine is not fs and mine._connection is None and not connections._doors

    calls = {
        "info": lambda: fs.info("/large"),
        "ls": lambda: fs.ls("/"),
        "exists": lambda: fs.exists("/large"),
        "isfile": lambda: fs.isfile("/large"),
        "find": lambda: fs.find("/"),
        "cat": lambda: fs.cat_file("/large"),
        "open": lambda: fs.open("/large"),
        "read": lambda: begun.read(),
        "close": lambda: written.close(),
        "pipe": lambda: fs.pipe_file("/x", b""),
        "cp": lambda: fs.cp_file("/large", "/x"),
        "mv": lambda: fs.mv("/large", "/x"),
        "rm": lambda: fs.rm("/large"),
        "mkdir": lambda: fs.mkdir("/d"),
        "rmdir": lambda: fs.rmdir("/d"),
        "touch": lambda: fs.touch("/t"),
        "modified": lambda: fs.modified("/large"),
    }
    with connections._doors[(uri, "s")]:  # as if another thread were connecting
        assert in_a_forked_child(calls) == dict.fromkeys(calls, "BK-FORKED")
        assert in_a_forked_child({"anew": anew}) == {"anew": ""}
    written.close()
    assert fs.cat_file("/new") == b"x"


LAST = datetime.max.replace(tzinfo=UTC, microsecond=999_000)
FIRST = datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(("told", "shown"), [(10**18, LAST), (-(10**18), FIRST)])
def test_a_time_that_no_calendar_has_is_shown_as_the_nearest(
    fs: BookKeeperFileSystem, monkeypatch: pytest.MonkeyPatch, told: int, shown: datetime
) -> None:
    """Other programs may write any time into a record."""
    monkeypatch.setattr(machine.FileMachine, "_time", lambda self, ms: ms)
    monkeypatch.setattr(store, "now_ms", lambda: told)
    fs.pipe_file("/d/x", b"1")
    assert fs._owner().status("/d/x").modified_ms == told
    assert fs.info("/d/x")["mtime"] == fs.modified("/d/x") == shown
    assert [one["mtime"] for one in fs.ls("/d")] == [shown]


def test_an_open_file_is_pickled_with_what_it_reads(fs: BookKeeperFileSystem) -> None:
    fs.pipe_file("/large", LARGE)
    with fs.open("/large", "rb", block_size=1 << 16, cache_type="bytes") as file:
        assert file.read(10) == LARGE[:10]
        copy = pickle.loads(pickle.dumps(file))
        fs.mv("/large", "/moved")
        assert (copy.tell(), copy.size, copy.blocksize, copy.cache.name) == (10, len(LARGE), 1 << 16, "bytes")
        assert copy.read() == file.read() == LARGE[10:]
        copy.close()
    with fs.open("/new", "wb") as written, pytest.raises(TypeError):
        pickle.dumps(written)


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


def test_a_name_with_the_characters_of_a_pattern_is_a_name_where_there_is_one(fs: BookKeeperFileSystem) -> None:
    odd = ["/odd/[x]", "/odd/*", "/odd/a?"]
    for path in [*odd, "/odd/x", "/odd/ab", "/odd/[d]/deep/[x]", "/odd/d/y"]:
        fs.pipe_file(path, path.encode())
    assert fs.expand_path("/odd/[x]") == ["/odd/[x]"]
    assert fs.expand_path("/odd/[d]", recursive=True) == ["/odd/[d]", "/odd/[d]/deep", "/odd/[d]/deep/[x]"]
    assert fs.expand_path(["/odd/a?", "/odd/[a-b]b"]) == ["/odd/a?", "/odd/ab"]
    assert fs.cat("/odd/*") == b"/odd/*" and fs.cat(odd) == {path: path.encode() for path in odd}
    fs.rm("/odd/[x]")
    fs.mv("/odd/a?", "/odd/b?")
    fs.cp_file("/odd/*", "/odd/[e]")
    fs.rm("/odd/*")
    fs.rm("/odd/[d]", recursive=True)
    assert fs.find("/odd") == ["/odd/[e]", "/odd/ab", "/odd/b?", "/odd/d/y", "/odd/x"]
    fs.rm("/odd/[x]")  # a pattern now
    assert not fs.exists("/odd/x")
    with pytest.raises(FileNotFoundError):
        fs.rm("/odd/[x]")


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
