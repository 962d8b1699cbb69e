"""``bk://`` through fsspec, and through what stands on it: pyarrow and pandas."""

from __future__ import annotations

import gzip
import io
import pickle
import tomllib
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

from bk_core.client.files import connections, store
from bk_core.client.files import fs as module
from bk_core.client.files.fs import BookKeeperFileSystem
from bk_core.client.files.store import FileStore
from bk_core.errors import (
    ArgumentTypeError,
    DirectoryNotEmptyError,
    FileDataLostError,
    FileStoreClosedError,
    InvalidArgumentError,
    NoSuchFileStoreError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files import machine
from tests.unit.client.forked import in_a_forked_child

LARGE = bytes(range(256)) * (10 << 10)  # 2.5 MiB
ROOT = Path(__file__).resolve().parents[4]


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


def test_of_two_lists_each_file_goes_to_its_own_place(fs: BookKeeperFileSystem) -> None:
    fs.pipe({"/a": b"a", "/b": b"b", "/x[1]": b"x"})
    with pytest.raises(InvalidArgumentError, match="2 files cannot be moved to 1 paths"):
        fs.mv(["/b", "/a"], ["/c"])
    fs.mv(["/b", f"bk://{fs.store}/a", "/x[1]"], ["/to b", "/to a", "/to x"])
    assert {path: fs.cat(path) for path in fs.find("/")} == {"/to a": b"a", "/to b": b"b", "/to x": b"x"}
    fs.mv(["/to a", "/to b"], ["/to b", "/to a"])  # one after the other
    assert {path: fs.cat(path) for path in fs.find("/")} == {"/to a": b"a", "/to x": b"x"}


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
