"""The checkpoint gateway by HTTP, over a file store in memory: operations, secrets, hostile requests, connections that hang or break."""

from __future__ import annotations

import json
import logging
import pickle
import select
import socket
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.client.files import data
from bk_core.client.files.opening import ended_by
from bk_core.errors import (
    FileDataLostError,
    FileStoreClosedError,
    FileStoreTakenOverError,
    LogTakenOverError,
    NoSuchPathError,
    OperationTimeoutError,
    PathExistsError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content, FileStatus
from bk_spark.checkpoint import gateway as gateways
from bk_spark.checkpoint import http_parts, listings, operations, staging, temporaries, uploads
from bk_spark.checkpoint.gateway import CONNECTIONS_MAX, Gateway
from bk_spark.checkpoint.http_parts import PeerGone
from bk_spark.checkpoint.secret import PY4J_LOGGERS, Secret, keep_out_of_logs, let_go
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, raw, temporary, token
from tests.unit.spark.memory_files import MemoryFiles

LARGE = bytes(range(256)) * 5000  # beyond what a record takes along


@pytest.fixture
def store() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def gateway(store: MemoryFiles) -> Iterator[Gateway]:
    gateway = Gateway()
    gateway.files["x"] = CheckpointFiles(store, 10)
    yield gateway
    gateway.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(gateway)
    yield client
    client.close()


# --- files and directories -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"v1\n{}", LARGE], ids=["empty", "small", "large"])
def test_a_file_is_read_as_it_was_written(client: Client, body: bytes) -> None:
    client.create("/a/b", [body[:7], body[7:]] if body else [])
    assert client.read("/a/b") == body
    status = client.status("/a/b")
    assert (status["type"], status["length"], status["pathSuffix"]) == ("FILE", len(body), "")
    assert client.status("/a")["type"] == "DIRECTORY"
    assert client.names("/a") == ["b"] and client.names("/a/b") == [""]


def test_a_part_of_a_file(client: Client) -> None:
    client.create("/f", LARGE)
    assert client.read("/f", 1_200_000, 100) == LARGE[1_200_000:1_200_100]
    assert client.read("/f", len(LARGE)) == b""
    with pytest.raises(JavaError) as caught:
        client.read("/f", len(LARGE) + 1)
    assert caught.value.java_class == "java.io.EOFException"
    assert client.exists("/f")  # the connection goes on


def test_names_of_any_letters(client: Client) -> None:
    for name in ("a b", "ü€😀", "50%", "a+b", "a&op=DELETE", "x?y#z"):
        client.create(f"/d/{name}", name.encode())
        assert client.read(f"/d/{name}") == name.encode()
        assert client.rename(f"/d/{name}", f"/d/{name}2", None)
    assert sorted(client.names("/d")) == sorted(f"{name}2" for name in ("a b", "ü€😀", "50%", "a+b", "a&op=DELETE", "x?y#z"))


def test_a_rename_replaces_only_what_is_of_its_kind(client: Client) -> None:
    """As Hadoop's contract has it; the store says so of its files (FS-19). The root of a checkpoint stays where it is."""
    client.mkdirs("/d")
    client.create("/f", b"1")
    for src, dst in (("/d", "/f"), ("/f", "/d"), ("/", "/x")):
        with pytest.raises(JavaError):
            client.rename(src, dst, "OVERWRITE")
    assert not client.rename("/", "/x", None) and sorted(client.names("/")) == ["d", "f"]


def test_a_rename_to_a_temporary_file_replaces_it_or_is_refused(client: Client, store: MemoryFiles) -> None:
    """The store does not know that it is there."""
    there = temporary("/0")
    client.create(there, b"waits")
    client.create("/f", b"1")
    client.mkdirs("/d")
    for src, options, told in (("/f", "NONE", "FileAlreadyExists"), ("/d", "OVERWRITE", "is a file, so the directory /d cannot")):
        with pytest.raises(JavaError, match=told):
            client.rename(src, there, options)
    assert client.read(there) == b"waits" and store.staged
    client.rename("/f", there, "OVERWRITE")
    assert client.read(there) == b"1" and not store.staged


def test_hadoop_sends_utf_8_as_it_is(client: Client, gateway: Gateway) -> None:
    """Its client leaves what is no ASCII unquoted in the request line, and follows the redirect as it is told."""
    secret = f"Authorization: Bearer {gateway.access.reveal()}\r\n".encode()
    line = "PUT /webhdfs/v1/x/prüf/日本?op=MKDIRS HTTP/1.1\r\n".encode()
    assert raw(gateway, line, secret, b"Content-Length: 0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert client.names("/prüf") == ["日本"]
    line = "PUT /webhdfs/v1/x/prüf/é?op=CREATE HTTP/1.1\r\n".encode()
    told = raw(gateway, line, secret, b"Content-Length: 0\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 307") and b"/x/pr%C3%BCf/%C3%A9?op=CREATE&" in told
    assert raw(gateway, b"GET /webhdfs/v1/x/\xff?op=GETFILESTATUS HTTP/1.1\r\n", secret, b"\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("path", ["/a//b", "/a/../b", "/./a", "/" + "n" * 256])
def test_a_path_that_is_none_is_an_illegal_argument(client: Client, path: str) -> None:
    with pytest.raises(JavaError) as caught:
        client.status(path)
    assert (caught.value.status, caught.value.java_class) == (400, "java.lang.IllegalArgumentException")


def test_java_is_told_what_happened(client: Client) -> None:
    client.mkdirs("/d/e")
    client.create("/f", b"1")
    expected = {
        "java.io.FileNotFoundException": [lambda: client.status("/no"), lambda: client.names("/no"), lambda: client.read("/no"),
                                          lambda: client.read("/d"), lambda: client.rename("/no", "/d/x"),
                                          lambda: client.rename("/f", "/no/x"), lambda: client.json("PUT", "SETTIMES", "/no"),
                                          lambda: client.create("/no/g", b"", createflag="CREATE", createparent="false")],
        "org.apache.hadoop.fs.FileAlreadyExistsException": [lambda: client.create("/f", b"2", overwrite=False),
                                                            lambda: client.create("/d", b""),
                                                            lambda: client.mkdirs("/f"), lambda: client.rename("/f", "/d"),
                                                            lambda: client.rename("/f", "/f", "OVERWRITE")],
        "org.apache.hadoop.fs.ParentNotDirectoryException": [lambda: client.create("/f/g", b""), lambda: client.mkdirs("/f/g"),
                                                             lambda: client.rename("/d/e", "/f/e")],
        "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException": [lambda: client.delete("/d")],
        "java.lang.UnsupportedOperationException": [lambda: client.json("GET", "GETFILECHECKSUM", "/f"),
                                                    lambda: client.json("POST", "CONCAT", "/f"),
                                                    lambda: client.json("POST", "APPEND", "/f"),
                                                    lambda: client.json("GET", "", "/f"), lambda: client.json("GET", "DELETE", "/f"),
                                                    lambda: client.create("/f", b"", createflag="APPEND")],
        "java.lang.IllegalArgumentException": [lambda: client.json("DELETE", "DELETE", "/f", recursive="perhaps"),
                                               lambda: client.json("GET", "OPEN", "/f", bkstep="2", offset="-1")],
        "java.io.IOException": [lambda: client.rename("/f", "/"), lambda: client.json("PUT", "RENAME", "/f", destination="/y/f")],
    }  # fmt: skip
    for java_class, calls in expected.items():
        for number, call in enumerate(calls):
            with pytest.raises(JavaError) as caught:
                call()
            assert caught.value.java_class == java_class, (java_class, number, str(caught.value))
    assert client.read("/f") == b"1" and client.names("/d") == ["e"]


def test_the_old_rename_answers_with_a_boolean(client: Client) -> None:
    client.mkdirs("/d/e")
    client.create("/f", b"1")
    client.create("/g", b"2")
    assert client.rename("/f", "/d", None) and client.read("/d/f") == b"1"
    assert not client.rename("/g", "/d/f", None)
    assert not client.rename("/no", "/x", None)
    assert not client.rename("/g", "/no/x", None)
    assert not client.rename("/d", "/d/e/d", None)
    assert client.rename("/g", "/g", None) and not client.rename("/d", "/d", None)
    assert client.rename("/d", "/h", None) and client.read("/h/f") == b"1"


def test_other_operations_of_spark_and_hadoop(client: Client, store: MemoryFiles) -> None:
    client.create("/a/b", b"123")
    client.create("/a/c/d", b"4567")
    assert client.json("GET", "GETHOMEDIRECTORY", "")["Path"] == "/"
    assert client.json("GET", "GETTRASHROOT", "/a")["Path"] == "/x/.Trash"
    assert client.json("GET", "GETSERVERDEFAULTS", "")["FsServerDefaults"]["replication"] == 1
    found = client.json("GET", "GETCONTENTSUMMARY", "/a")["ContentSummary"]
    assert (found["length"], found["fileCount"], found["directoryCount"]) == (7, 2, 2)
    assert client.json("GET", "GETCONTENTSUMMARY", "/a/b")["ContentSummary"]["fileCount"] == 1
    before = list(store.changes)
    for op in ("SETPERMISSION", "SETOWNER", "SETTIMES"):
        assert client.json("PUT", op, "/a/b") is None
    assert client.json("GET", "CHECKACCESS", "/a/b", fsaction="r--") is None
    assert store.changes == before
    (block,) = client.json("GET", "GETFILEBLOCKLOCATIONS", "/a/b", offset="1", length="10")["BlockLocations"]["BlockLocation"]
    assert (block["offset"], block["length"], block["hosts"]) == (1, 2, ["127.0.0.1"])


def test_a_long_directory_comes_in_parts(client: Client, store: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.checkpoint.operations.LIST_MAX", 3)
    for name in "abcdefgh":
        store.put(f"/d/{name}", b"")
    found, after = [], ""
    while True:
        part = client.json("GET", "LISTSTATUS_BATCH", "/d", startAfter=after)["DirectoryListing"]
        found += [status["pathSuffix"] for status in part["partialListing"]["FileStatuses"]["FileStatus"]]
        after = found[-1]
        if not part["remainingEntries"]:
            break
    assert found == list("abcdefgh")


def test_a_long_directory_is_looked_at_once_for_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    for number in range(10):
        store.put(f"/d/{number}", b"")
    looked: list[str] = []
    listing = store.listing
    monkeypatch.setattr(store, "listing", lambda path: looked.append(path) or listing(path))

    def names(after: str) -> tuple[list[str], int]:
        found, left = files.listing_part("/d", after, 4)
        return [status.name for status in found], left

    assert [names(""), names("3"), names("7")] == [(list("0123"), 6), (list("4567"), 2), (["8", "9"], 0)]
    assert looked == ["/d"]
    assert names("7") == (["8", "9"], 0) and len(looked) == 2  # nothing is kept behind the last part
    names("")
    store.delete("/d/9", recursive=False, timeout_s=1)
    assert names("") == (list("0123"), 5) and len(looked) == 4  # who begins sees what is there now
    now[0] = listings.KEPT_S
    files.tend()
    assert names("7") == (["8"], 0) and len(looked) == 5  # it was dropped meanwhile
    names("")
    store.take_over()
    with pytest.raises(FileStoreTakenOverError):
        names("3")


def test_a_listing_that_began_earlier_takes_no_later_ones_place() -> None:
    kept = listings.Listings(lambda: 0.0)
    old, new = ([FileStatus(f"/{name}", False, 0, 0, 0) for name in text] for text in ("abc", "abcx"))

    def slow() -> list[FileStatus]:
        kept.part("/", "", 1, lambda: new)  # somebody else asks meanwhile
        return old

    kept.part("/", "", 1, slow)
    assert kept.part("/", "a", 9, lambda: pytest.fail("it is kept"))[0] == new[1:]
    for number in range(listings.KEPT_MAX + 1):
        kept.part(f"/{number}", "", 1, lambda: new)
    assert len(kept) == listings.KEPT_MAX


def test_questions_about_temporary_files_do_not_look_at_all_of_them() -> None:
    class Counted(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all of them were looked at")

        items = values = __iter__  # type: ignore[assignment]

    files = CheckpointFiles(MemoryFiles(), 10)
    for number in range(3):
        files.create(temporary(f"/d/{number}"), [b"x" * 10], True, True)
    table = files._temporary
    table._by_path = Counted(table._by_path)
    files.create(temporary("/d/3"), [b"x" * 10], True, True)
    assert [status.name for status in files.listing("/d")] == sorted(temporary(f"/d/{number}")[3:] for number in range(4))
    files.rename(temporary("/d/0"), "/d/0", overwrite=False)
    files.create(temporary("/d/0", 2), [b"y"], True, True)
    assert files.delete("/d/0", recursive=False) and files.delete(temporary("/d/1"), recursive=False)
    assert not files.delete("/e", recursive=False)
    with pytest.raises(PathNotDirectoryError):
        files.mkdirs(temporary("/d/2") + "/x")
    assert table._held_bytes == 21 and sorted(table._awaited) == ["/d/0", "/d/2", "/d/3"] and table.below("/d") == table.below("/")
    files.delete("/d", recursive=True)
    assert (table._held_bytes, len(dict.keys(table._by_path)), table._names, table._awaited) == (0, 0, {}, {})


def test_the_root_holds_the_open_checkpoints(gateway: Gateway, client: Client) -> None:
    gateway.files["y"] = CheckpointFiles(MemoryFiles(), 10)
    top = Client(gateway, "")
    assert top.names("") == ["x", "y"] and top.status("")["type"] == "DIRECTORY"
    client.create("/f", b"")
    with pytest.raises(JavaError, match="two checkpoints"):
        client.json("PUT", "RENAME", "/f", destination="/y/f", renameoptions="NONE")
    with pytest.raises(JavaError, match="only they can be changed"):
        top.delete("", recursive=True)
    unknown = Client(gateway, "unknown")
    for call in (lambda: unknown.status(""), lambda: unknown.exists("/f"), lambda: unknown.names("/"), lambda: unknown.read("/f")):
        with pytest.raises(JavaError, match=r"open it with bk_spark.checkpoint_location\(spark, 'unknown', ...\)") as caught:
            call()
        assert (caught.value.status, caught.value.java_class) == (403, "java.io.IOException")
    gateway.close_files("x")
    with pytest.raises(JavaError, match="no checkpoint 'x' is open in this driver"):
        client.exists("/f")
    for used in (top, unknown):
        used.close()


def test_deleting_the_root_empties_it(client: Client, store: MemoryFiles) -> None:
    client.create("/a/b", b"")
    client.create(temporary("/c"), b"")
    with pytest.raises(JavaError, match="PathIsNotEmptyDirectory"):
        client.delete("/")
    before = len(store.changes)
    assert client.delete("/", recursive=True) and store.changes[before:] == [("delete", "/")]  # a crash leaves all of it, or nothing
    assert client.names("/") == [] and list(store.nodes) == ["/"] and not store.staged and client.delete("/", recursive=True)


# --- one change for each file of a checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"v1", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("task", ["", ".TID17"])
def test_a_temporary_file_is_no_change_until_its_rename(client: Client, store: MemoryFiles, body: bytes, task: str) -> None:
    client.mkdirs("/offsets")
    there = temporary("/offsets/0", task=task)
    client.create(there, body)
    assert client.read(there) == body and client.read(there, 1, 1) == body[1:2]
    assert client.status(there)["length"] == len(body) and client.names("/offsets") == [there.rpartition("/")[2]]
    assert client.json("GET", "GETCONTENTSUMMARY", "/offsets")["ContentSummary"]["length"] == len(body)
    assert store.changes == [("mkdirs", "/offsets")]
    client.rename(there, "/offsets/0")
    assert store.changes[1:] == [("put", "/offsets/0")] and not store.staged
    assert client.names("/offsets") == ["0"] and client.read("/offsets/0") == body


def test_replacing_a_file_is_one_change(client: Client, store: MemoryFiles) -> None:
    client.write_atomic("/state/1.delta", b"old") if client.mkdirs("/state") else None
    before = len(store.changes)
    there = temporary("/state/1.delta", 2)
    client.create(there, b"new")
    assert client.delete("/state/1.delta")
    assert not client.exists("/state/1.delta") and client.names("/state") == [there.rpartition("/")[2]]
    with pytest.raises(JavaError, match="FileNotFound"):
        client.read("/state/1.delta")
    assert store.read_content(store.nodes["/state/1.delta"][1]) == b"old"  # if the driver died now
    client.rename(there, "/state/1.delta")
    assert store.changes[before:] == [("put", "/state/1.delta")] and client.read("/state/1.delta") == b"new"


def test_who_may_not_replace_a_file_does_not(client: Client, store: MemoryFiles) -> None:
    client.create("/0", b"theirs")
    there = temporary("/0")
    client.create(there, b"ours")
    with pytest.raises(JavaError, match="FileAlreadyExists"):
        client.rename(there, "/0")
    assert client.read("/0") == b"theirs" and client.exists(there)
    assert client.delete(there, recursive=True) and client.names("/") == ["0"] and not store.staged
    client.create(there, b"ours")
    client.rename(there, "/0", "OVERWRITE")
    assert client.read("/0") == b"ours"


def test_a_delete_that_was_kept_back_is_carried_out_when_the_temporary_file_goes(client: Client, store: MemoryFiles) -> None:
    client.create("/0", b"old")
    client.create(temporary("/0"), b"new")
    assert client.delete("/0") and not client.exists("/0") and "/0" in store.nodes
    assert client.delete(temporary("/0"), recursive=True)
    assert "/0" not in store.nodes and client.names("/") == []


@pytest.mark.parametrize("touch", ["create", "mkdirs", "rename from", "rename to", "delete", "delete above", "close"])
def test_a_delete_that_was_kept_back_is_carried_out_when_something_else_touches_the_name(
    gateway: Gateway, client: Client, store: MemoryFiles, touch: str
) -> None:
    client.create("/d/0", b"old")
    client.create("/d/1", b"other")
    client.create(temporary("/d/0"), b"new")
    assert client.delete("/d/0") and ("delete", "/d/0") not in store.changes
    if touch == "create":
        client.create("/d/0", b"third", overwrite=False)
        assert client.read("/d/0") == b"third"
    elif touch == "mkdirs":
        assert client.mkdirs("/d/0") and client.status("/d/0")["type"] == "DIRECTORY"
    elif touch == "rename from":
        with pytest.raises(JavaError, match="FileNotFound"):
            client.rename("/d/0", "/d/2")
    elif touch == "rename to":
        client.rename("/d/1", "/d/0")
        assert client.read("/d/0") == b"other"
    elif touch == "delete":
        assert not client.delete("/d/0", recursive=True)
    elif touch == "delete above":
        assert client.delete("/d", recursive=True) and list(store.nodes) == ["/"] and not store.staged
    else:
        gateway.close_files("x")
        assert store.is_closed and not store.staged
    assert ("delete", "/d/0") in store.changes


def test_a_delete_that_was_kept_back_is_carried_out_in_time() -> None:
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"new"], True, True)
    assert files.delete("/0", recursive=False)
    now[0] = staging.KEPT_BACK_S - 0.1
    files.tend()
    assert "/0" in store.nodes
    now[0] += 0.2
    store.before = lambda operation, path: (_ for _ in ()).throw(OperationTimeoutError("no bookie answers"))
    files.tend()
    assert "/0" in store.nodes and not [status for status in files.listing("/") if status.path == "/0"]
    store.before = lambda operation, path: None
    now[0] += staging.KEPT_BACK_S
    files.tend()
    assert "/0" not in store.nodes
    files.rename(temporary("/0"), "/0", overwrite=False)
    assert store.read_content(store.nodes["/0"][1]) == b"new"


def test_a_delete_that_was_kept_back_is_never_that_of_a_later_file(store: MemoryFiles) -> None:
    """It was asked for while the new contents were under way: their file was acknowledged, so it stays."""
    now = [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"theirs"], True, True)

    def deleted_meanwhile() -> Iterator[bytes]:
        assert files.delete("/0", recursive=False)
        yield b"new"

    files.create("/0", deleted_meanwhile(), True, True)
    assert files.status("/0").size == 3
    now[0] += staging.KEPT_BACK_S + 1
    files.tend()
    assert store.read_content(store.nodes["/0"][1]) == b"new"


@pytest.mark.parametrize("how", ["create", "rename"])
def test_a_delete_waits_for_a_change_of_the_same_name(store: MemoryFiles, how: str) -> None:
    files = CheckpointFiles(store, 10)
    files.create("/0", [b"old"], True, True)
    files.create("/1", [b"new"], True, True)
    files.create(temporary("/0"), [b"theirs"], True, True)
    asked = threading.Thread(target=lambda: files.delete("/0", recursive=False))
    waited: list[bool] = []

    def before(operation: str, path: str) -> None:
        asked.start()
        asked.join(0.2)
        waited.append(asked.is_alive())

    store.before = before
    if how == "create":
        files.create("/0", [b"new"], True, True)
    else:
        files.rename("/1", "/0", overwrite=True)
    asked.join(10)
    assert waited == [True]


def test_a_delete_that_is_kept_back_hides_only_the_file_that_it_is_of(store: MemoryFiles) -> None:
    now = [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"theirs"], True, True)
    assert files.delete("/0", recursive=False)
    with pytest.raises(NoSuchPathError):
        files.listing("/0")
    store.put("/0", b"another")  # beside the gateway, and so without its claims
    assert files.status("/0").size == 7 and [status.size for status in files.listing("/0")] == [7]
    with pytest.raises(PathExistsError):
        files.rename(temporary("/0"), "/0", overwrite=False)
    now[0] += staging.KEPT_BACK_S + 1
    files.tend()
    assert files.status("/0").size == 7 and ("delete", "/0") not in store.changes


def test_a_delete_that_is_repeated_stays_kept_back(client: Client, store: MemoryFiles) -> None:
    """Java sends it again if its answer was lost; and two attempts of a task may replace the same file."""
    client.create("/0", b"old")
    client.create(temporary("/0", 1), b"new")
    client.create(temporary("/0", 2), b"newer")
    assert client.delete("/0") and client.delete("/0") and not client.exists("/0")
    assert client.delete(temporary("/0", 1), recursive=True) and not client.exists("/0")  # the other one still waits
    assert store.read_content(store.nodes["/0"][1]) == b"old"  # if the driver died now
    client.rename(temporary("/0", 2), "/0")
    assert client.read("/0") == b"newer" and not [change for change in store.changes if change[0] == "delete"]


def test_a_delete_that_comes_while_the_checkpoint_closes_is_made(store: MemoryFiles) -> None:
    files = CheckpointFiles(store, 10)
    for name in ("/0", "/1"):
        files.create(name, [b"old"], True, True)
        files.create(temporary(name), [b"new"], True, True)
    assert files.delete("/0", recursive=False)

    def another(operation: str, path: str) -> None:
        store.before = lambda operation, path: None
        assert files.delete("/1", recursive=False)

    store.before = another
    files.close()
    assert store.is_closed and list(store.nodes) == ["/"] and not store.staged


def test_a_delete_that_comes_too_late_for_closing_is_not_acknowledged(store: MemoryFiles) -> None:
    files = CheckpointFiles(store, 10)
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"new"], True, True)
    status = store.status

    def closed_then(path: str) -> FileStatus:
        found = status(path)
        store.status = status  # type: ignore[method-assign]
        files.close()
        return found

    store.status = closed_then  # type: ignore[method-assign]
    with pytest.raises(FileStoreClosedError):
        files.delete("/0", recursive=False)


def test_a_temporary_file_stays_where_its_directory_could_not_be_renamed(client: Client, store: MemoryFiles) -> None:
    client.create("/a/0", b"")
    client.create("/b/0", b"")
    client.create(temporary("/a/1"), b"new")
    with pytest.raises(JavaError):
        client.rename("/a", "/b", "OVERWRITE")
    client.rename(temporary("/a/1"), "/a/1")
    client.create(temporary("/a/2"), b"new")
    client.rename("/a", "/c")
    assert not store.staged
    with pytest.raises(JavaError, match="FileNotFound"):
        client.rename(temporary("/a/2"), "/a/2")
    assert client.names("/c") == ["0", "1"]


def test_there_is_no_temporary_file_below_a_file(client: Client, store: MemoryFiles) -> None:
    client.create("/f", b"")
    with pytest.raises(JavaError, match="ParentNotDirectory"):
        client.create(temporary("/f/0"), b"x")
    assert not store.staged


def test_a_delete_with_recursive_and_one_without_a_successor_are_done_at_once(client: Client, store: MemoryFiles) -> None:
    for path in ("/0", "/1", "/2"):
        client.create(path, b"")
    client.create(temporary("/0"), b"")
    client.create(temporary("/11"), b"")
    assert client.delete("/0", recursive=True) and client.delete("/1") and client.delete("/2") and not client.delete("/2")
    assert sorted(store.nodes) == ["/"]


def test_a_rename_that_is_repeated_is_told_as_the_first_one(client: Client, store: MemoryFiles) -> None:
    client.create(temporary("/0"), b"1")
    client.rename(temporary("/0"), "/0")
    client.rename(temporary("/0"), "/0")
    assert client.rename(temporary("/0"), "/0", None)
    with pytest.raises(JavaError, match="FileNotFound"):
        client.rename(temporary("/0"), "/1")
    with pytest.raises(JavaError, match="FileNotFound"):
        client.rename(temporary("/0", 2), "/0")
    assert store.changes == [("put", "/0")]


def test_a_rename_that_is_repeated_while_the_first_is_under_way_waits_for_it(gateway: Gateway, store: MemoryFiles) -> None:
    first, second = Client(gateway), Client(gateway)
    first.create(temporary("/0"), b"1")
    begun, go_on = threading.Event(), threading.Event()

    def wait(operation: str, path: str) -> None:
        begun.set()
        assert go_on.wait(10)

    store.before = wait
    outcomes: list[object] = []
    threads = [threading.Thread(target=lambda: outcomes.append(first.rename(temporary("/0"), "/0")))]
    threads[0].start()
    assert begun.wait(10)
    threads.append(threading.Thread(target=lambda: outcomes.append(second.rename(temporary("/0"), "/0"))))
    threads[1].start()
    third = Client(gateway)
    assert third.exists(temporary("/0")) and not third.exists("/0")
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert outcomes == [None, None] and store.changes == [("put", "/0")]
    for used in (first, second, third):
        used.close()


def test_a_rename_of_unknown_outcome_deletes_nothing(client: Client, store: MemoryFiles) -> None:
    client.create("/0", b"old")
    client.create(temporary("/0"), b"new")
    client.delete("/0")
    store.before = lambda operation, path: (_ for _ in ()).throw(OperationTimeoutError("no bookie answers"))
    with pytest.raises(JavaError, match=r"IOException: \[BK-TIMEOUT\] no bookie answers"):
        client.rename(temporary("/0"), "/0")
    store.before = lambda operation, path: None
    assert client.delete(temporary("/0"), recursive=True)
    assert client.read("/0") == b"old"


def test_temporary_files_that_nobody_renames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    monkeypatch.setattr(temporaries, "TEMPORARY_BYTES_MAX", 100)
    files.create(temporary("/0", 1), [b"1" * 60], True, True)
    with pytest.raises(Exception, match="1 temporary files with 60 bytes in memory wait"):
        files.create(temporary("/0", 2), [b"1" * 60], True, True)
    assert len(store.staged) == 1
    now[0] = staging.TEMPORARY_S + 1
    files.tend()
    assert not store.staged and files.listing("/") == []


def test_a_temporary_file_is_no_directory(client: Client) -> None:
    client.create(temporary("/0"), b"")
    for call in (lambda: client.create(temporary("/0") + "/x", b""), lambda: client.mkdirs(temporary("/0") + "/x")):
        with pytest.raises(JavaError, match="ParentNotDirectory"):
            call()
    with pytest.raises(JavaError, match="FileAlreadyExists"):
        client.mkdirs(temporary("/0"))
    with pytest.raises(JavaError, match="FileAlreadyExists"):
        client.create(temporary("/0"), b"", overwrite=False)


# --- another driver, outages, defects -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_taken_over_says_so(client: Client, store: MemoryFiles) -> None:
    client.create(temporary("/0"), b"1")
    store.take_over()
    for call in (lambda: client.rename(temporary("/0"), "/0"), lambda: client.status("/"), lambda: client.create("/1", b"")):
        with pytest.raises(JavaError) as caught:
            call()
        assert caught.value.java_class == "java.io.IOException"
        assert caught.value.message.startswith("[BK-FILES-TAKEN-OVER] another driver opened the checkpoint 'x'")


def test_a_checkpoint_that_was_deleted_says_so(client: Client, store: MemoryFiles) -> None:
    client.create("/0", b"")
    store.error = ended_by(LogTakenOverError("the log 'files.x' was deleted", log="files.x", deleted=True), "x")
    with pytest.raises(JavaError, match="the checkpoint 'x' was deleted while this driver used it") as caught:
        client.status("/0")
    assert "another driver" not in str(caught.value) and "files." not in str(caught.value)


def test_a_failure_is_told_once_in_the_drivers_log(gateway: Gateway, client: Client, store: MemoryFiles, caplog: Any) -> None:
    """Spark's CANNOT_WRITE_STATE_STORE, for one, does not show its cause."""
    with caplog.at_level(logging.WARNING, "bk_spark.checkpoint"):
        with pytest.raises(JavaError, match="FileNotFound"):  # an answer, and no failure
            client.status("/state/0")
        client.create(temporary("/state/0"), b"1")
        store.before = lambda operation, path: (_ for _ in ()).throw(OperationTimeoutError("no bookie answers"))
        for _ in range(3):
            with pytest.raises(JavaError, match=r"no bookie answers .checkpoint 'x'."):
                client.rename(temporary("/state/0"), "/state/0")
        with pytest.raises(JavaError, match="no checkpoint 'xx' is open in this driver: open it with .*; did you mean 'x'"):
            Client(gateway, "xx").status("/0")
    told = [record.getMessage() for record in caplog.records]
    again_when = "If ZooKeeper or bookies are away, start the query again when they are back: no committed batch is lost"
    failed = f"[BK-TIMEOUT] no bookie answers (checkpoint 'x'). {again_when}"
    assert told[0] == f"checkpoint 'x': RENAME of /x{temporary('/state/0')} failed: {failed}"
    assert len(told) == 2 and told[1].startswith("checkpoint 'xx': GETFILESTATUS of /xx/0 failed: no checkpoint 'xx' is open")


def test_the_failures_that_were_told_are_forgotten_in_the_end(
    client: Client, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operations, "WARNED_MAX", 3)
    with caplog.at_level(logging.WARNING, "bk_spark.checkpoint"):
        for number in (0, 1, 2, 3, 4, 3, 4, 0):
            client.name = f"other{number}"
            with pytest.raises(JavaError, match="is open in this driver"):
                client.status("/0")
    assert [record.getMessage().split("'")[1] for record in caplog.records] == [f"other{number}" for number in (0, 1, 2, 3, 4, 0)]
    assert len(gateway.operations._warned) == 3


def test_a_defect_is_an_io_exception_without_details(client: Client, store: MemoryFiles, caplog: pytest.LogCaptureFixture) -> None:
    store.before = lambda operation, path: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(JavaError) as caught:
        client.mkdirs("/a")
    assert caught.value.java_class == "java.io.IOException" and "ZeroDivision" not in caught.value.message
    assert "ZeroDivisionError" in caplog.text
    store.before = lambda operation, path: None
    assert client.mkdirs("/a")


def test_a_file_that_cannot_be_read_to_its_end_ends_the_connection(client: Client, store: MemoryFiles) -> None:
    store.put("/f", bytes(staging.CHUNK + 1))
    target = client.target("OPEN", "/f", bkstep="2")
    read = store.read_content

    def broken(content: Content, offset: int = 0, length: int | None = None) -> bytes:
        if offset:
            raise OperationTimeoutError("no bookie answers")
        return read(content, offset, length)

    store.read_content = broken  # type: ignore[method-assign]
    with pytest.raises(Exception, match="IncompleteRead"):
        client.ask("GET", target)


def test_a_file_that_is_replaced_while_it_is_opened_is_read_whole(store: MemoryFiles) -> None:
    """Either version, as many bytes as were promised; also if the old one's ledger is gone before its first byte was read."""
    files = CheckpointFiles(store, 10)
    store.put("/f", b"old")
    content, read = store.content, store.read_content

    def replaced(path: str) -> Content:
        store.content = content  # type: ignore[method-assign]
        store.put(path, b"a newer, longer content")
        return content(path)

    store.content = replaced  # type: ignore[method-assign]
    size, chunks = files.open("/f", 0, None)
    assert (size, b"".join(chunks)) == (23, b"a newer, longer content")

    def gone(content: Content, offset: int = 0, length: int | None = None) -> bytes:
        store.read_content = read  # type: ignore[method-assign]
        store.put("/f", b"newest")
        raise FileDataLostError("its ledger is gone")

    store.read_content = gone  # type: ignore[method-assign]
    size, chunks = files.open("/f", 2, 3)
    assert (size, b"".join(chunks)) == (3, b"wes")

    def lost(content: Content, offset: int = 0, length: int | None = None) -> bytes:
        raise FileDataLostError("its ledger is gone")

    store.read_content = lost  # type: ignore[method-assign]
    with pytest.raises(FileDataLostError):
        files.open("/f", 0, None)


def test_no_client_is_closed_under_a_store_that_is_closing(store: MemoryFiles) -> None:
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()
    gateway = Gateway(on_close=lambda: order.append("clients"))
    files = gateway.files["x"] = CheckpointFiles(store, 10)

    def close() -> None:
        begun.set()
        assert go_on.wait(30)
        order.append("store")

    files.close = close  # type: ignore[method-assign]
    closing = threading.Thread(target=gateway.close_files, args=("x",))
    closing.start()
    assert begun.wait(30)
    others = [threading.Thread(target=gateway.close), threading.Thread(target=gateway.if_idle, args=(lambda: order.append("idle"),))]
    for other in others:
        other.start()
    others[0].join(0.2)
    assert order == [] and all(other.is_alive() for other in others)
    go_on.set()
    for thread in (closing, *others):
        thread.join(30)
    assert order[0] == "store" and sorted(order[1:]) == ["clients", "idle"]


def test_all_uploads_that_a_gateway_serves_can_be_staged() -> None:
    assert data.STAGING_BYTES // (2 * data.PIECE_BYTES) >= CONNECTIONS_MAX
    assert uploads.LARGE_BYTES == 2 * data.RUN_PIECES * data.PIECE_BYTES
    assert uploads.Uploads().places * uploads.LARGE_BYTES == data.STAGING_BYTES


# --- secrets ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic {}", "Bearer {}x", "{}", "Bearer {} {}"])
def test_without_the_secret_nothing_is_told(gateway: Gateway, store: MemoryFiles, given: str | None) -> None:
    store.put("/f", b"1")
    client = Client(gateway)
    secret = gateway.access.reveal()
    headers = {} if given is None else {"Authorization": given.replace("{}", secret)}
    for target in ("GETFILESTATUS", "OPEN", "NOSUCHOP"):
        status, found, text = client.ask("GET", client.target(target, "/f"), headers=headers)
        assert (status, text) == (401, b"") and set(found) == {"Content-Length", "Connection"}
    status, _, text = client.ask("PUT", client.target("CREATE", "/g", bkstep="2"), iter([b"1"]), headers)
    assert (status, text, store.changes) == (401, b"", [("put", "/f")])
    client.close()


def test_the_refresh_token_is_another_secret(gateway: Gateway) -> None:
    status, text = token(gateway, gateway.refresh.reveal())
    told = json.loads(text)
    assert status == 200 and told["access_token"] == gateway.access.reveal() and told["expires_in"] > 86400
    for wrong in ("", "x", gateway.access.reveal(), gateway.refresh.reveal() + "x"):
        assert token(gateway, wrong) == (401, b"")
    assert token(gateway, gateway.refresh.reveal(), "client_credentials") == (401, b"")
    assert raw(gateway, b"POST /token HTTP/1.1\r\nContent-Length: 5000\r\n\r\n", b"x" * 5000).startswith(b"HTTP/1.1 400 ")


def test_secrets_are_shown_nowhere(gateway: Gateway, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    kept = [gateway.access, gateway.refresh]
    before = {name: list(logging.getLogger(name).filters) for name in PY4J_LOGGERS}  # of an application that is open in this process
    with caplog.at_level(logging.DEBUG):
        client.create("/f", b"1")
        with pytest.raises(JavaError):
            client.read("/no")
        silenced = keep_out_of_logs(kept)
        for name in PY4J_LOGGERS:
            logging.getLogger(name).debug("Command to send: %s", f"set\nrefresh.token\n{gateway.refresh.reveal()}")
            logging.getLogger(name).debug("Command to send: something else")
        let_go(silenced)
        request = http_parts._parsed(b"GET / HTTP/1.1\r\nAuthorization: Bearer " + gateway.access.reveal().encode())
        told = f"{request!r} {gateway!r} {vars(gateway)!r} {kept!r} {vars(gateway.operations)!r} {caplog.text}"
    assert request.authorization == gateway.access.reveal()
    assert "CREATE /webhdfs/v1/x/f: 201" in caplog.text and "something else" in caplog.text
    assert not any(secret.reveal() in told for secret in kept)
    assert before == {name: logging.getLogger(name).filters for name in PY4J_LOGGERS}
    for secret in kept:
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(secret)


def test_secrets_are_compared_in_constant_time_and_take_any_text() -> None:
    secret = Secret()
    assert secret.matches(secret.reveal()) and len(secret.reveal()) >= 43
    assert not secret.matches("é\udc80") and not secret.matches("") and Secret().reveal() != secret.reveal()


# --- hostile requests -----------------------------------------------------------------------------------------------------------


HOSTILE = {
    "nothing of HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "an endless line": b"GET /" + b"a" * 100_000,
    "many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n",
    "a verb of small letters": b"get / HTTP/1.1\r\n\r\n",
    "a verb that is answered without a body": b"HEAD / HTTP/1.1\r\n\r\n",
    "no path": b"GET webhdfs HTTP/1.1\r\n\r\n",
    "another address": b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
    "a line feed alone": b"GET / HTTP/1.1\r\nA: b\nAuthorization: c\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nAuthorization : c\r\n\r\n",
    "a NUL": b"GET /\x00 HTTP/1.1\r\n\r\n",
    "a bad percent sign": b"GET /%zz HTTP/1.1\r\n\r\n",
    "no UTF-8": b"GET /%ff HTTP/1.1\r\n\r\n",
    "a parameter twice": b"GET /?op=OPEN&op=DELETE HTTP/1.1\r\n\r\n",
    "two authorizations": b"GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
    "two lengths": b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "an old version": b"GET / HTTP/1.0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_request_that_is_none_is_refused_at_once(gateway: Gateway, client: Client, what: str) -> None:
    found = raw(gateway, HOSTILE[what])
    assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")) and found.endswith(b"Connection: close\r\n\r\n"), found
    assert client.exists("/")


BODIES = {
    "a length and chunks": (b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
    "an unknown coding": (b"Transfer-Encoding: gzip, chunked", b""),
    "a negative length": (b"Content-Length: -1", b""),
    "a length with a sign": (b"Content-Length: +3", b"abc"),
    "an endless length": (b"Content-Length: 99999999999999999999", b""),
    "a chunk without a number": (b"Transfer-Encoding: chunked", b"xyz\r\n"),
    "a negative chunk": (b"Transfer-Encoding: chunked", b"-1\r\n"),
    "a chunk of many digits": (b"Transfer-Encoding: chunked", b"000000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a chunk that is longer than it says": (b"Transfer-Encoding: chunked", b"3\r\nabcd\r\n0\r\n\r\n"),
    "a chunk's endless line": (b"Transfer-Encoding: chunked", b"3;" + b"a" * 10_000),
    "endless trailers": (b"Transfer-Encoding: chunked", b"0\r\n" + b"A: b\r\n" * 100),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_is_none_leaves_nothing(gateway: Gateway, client: Client, store: MemoryFiles, what: str) -> None:
    header, body = BODIES[what]
    for path in ("/f", temporary("/f")):
        head = f"PUT {client.target('CREATE', path, bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
        found = raw(gateway, head.encode() + header + b"\r\n\r\n" + body)
        assert found.startswith(b"HTTP/1.1 400 "), found
    assert client.names("/") == [] and not store.staged and store.changes == []


@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"PUT /webhdfs/v1/x/f?op=CREATE HTTP/1.1\r\n"]))
def test_any_bytes_are_answered_or_refused(data: bytes, before: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(before + data + b"\r\n\r\n")
        here.shutdown(socket.SHUT_WR)
        wire = http_parts.Wire(there)
        try:
            request = wire.head()
            assert request.path.startswith("/")
            http_parts.Body(wire, request, 5).skip()
        except (http_parts.BadRequest, http_parts.PeerGone):
            pass


def test_a_request_behind_a_body_is_the_next_one(gateway: Gateway, client: Client) -> None:
    """Pipelined, with an answer each; a body that an operation does not take is none of the next request."""
    authorised = f"HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n".encode()
    first = b"GET " + client.target("GETFILESTATUS", "/no").encode() + b" " + authorised + b"Content-Length: 30\r\n\r\n"
    second = b"PUT " + client.target("MKDIRS", "/d").encode() + b" " + authorised + b"Connection: close\r\n\r\n"
    found = raw(gateway, first + b"DELETE /webhdfs/v1/x HTTP/1.1\r\n"[:30] + second, half_close=False)
    assert found.count(b"HTTP/1.1 ") == 2 and b"404 Not Found" in found and b'{"boolean":true}' in found


def test_a_client_that_waits_to_be_told_to_go_on(gateway: Gateway, client: Client) -> None:
    head = f"PUT {client.target('CREATE', '/f', bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
    found = raw(
        gateway, head.encode() + b"Expect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", b"abc", half_close=False
    )
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n") and client.read("/f") == b"abc"


# --- connections -----------------------------------------------------------------------------------------------------------------


def _upload(gateway: Gateway, client: Client, path: str, body: bytes) -> socket.socket:
    connection = socket.create_connection((gateway.host, gateway.port), timeout=20)
    head = f"PUT {client.target('CREATE', path, bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
    connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    return connection


def test_an_upload_that_breaks_leaves_nothing(gateway: Gateway, client: Client, store: MemoryFiles) -> None:
    for path in ("/f", temporary("/f")):
        for body in (b"5\r\nab", b"5\r\nabcde\r\n", b""):
            with _upload(gateway, client, path, body) as connection:
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1000) == b""
    assert client.names("/") == [] and not store.staged and store.changes == []


def test_large_uploads_wait_for_a_place() -> None:
    bounded = uploads.Uploads(uploads.LARGE_BYTES)
    piece = bytes(uploads.SMALL_BYTES)
    with bounded.admitted([piece, b"1"], 10) as first:
        assert list(first) == [piece, b"1"]
        with bounded.admitted([piece], 10) as small:
            assert list(small) == [piece]
        with pytest.raises(OperationTimeoutError, match="1 other uploads"), bounded.admitted([piece, b"1"], 0) as second:
            list(second)
    with pytest.raises(PeerGone), bounded.admitted(chain([piece, b"1"], broken()), 0) as third:
        list(third)
    with bounded.admitted([piece, b"1"], 0) as again:
        assert len(list(again)) == 2


def broken() -> Iterator[bytes]:
    raise PeerGone("it ended")
    yield b""


def test_an_upload_that_hangs_is_given_up(store: MemoryFiles) -> None:
    gateway = Gateway(upload_idle_s=0.2)
    gateway.files["x"] = CheckpointFiles(store, 10)
    client = Client(gateway)
    with _upload(gateway, client, "/f", b"5\r\nab") as connection:
        assert connection.recv(1000) == b""
    assert client.names("/") == [] and store.changes == []
    client.close()
    gateway.close()


def test_who_shows_no_secret_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    monkeypatch.setattr(http_parts, "HEAD_S", 0.2)
    assert raw(gateway, b"GET / HTTP/1.1\r\nA: ", half_close=False) == b""
    monkeypatch.setattr(gateways, "TOKEN_WAIT_S", 0.2)
    assert raw(gateway, half_close=False) == b""


def test_a_form_that_trickles_in_is_cut_off(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    """Who has shown no secret has one time for the whole form, not one for each byte of it."""
    monkeypatch.setattr(gateways, "TOKEN_WAIT_S", 0.5)
    with socket.create_connection((gateway.host, gateway.port), timeout=20) as connection:
        connection.sendall(b"POST /token HTTP/1.1\r\nContent-Length: 4096\r\n\r\n")
        connection.settimeout(0.1)
        began = time.monotonic()
        while time.monotonic() < began + 20:
            try:
                connection.sendall(b"a")
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("it is still connected")


def test_at_the_most_connections_one_that_idles_goes(store: MemoryFiles) -> None:
    gateway = Gateway(connections_max=3)
    gateway.files["x"] = CheckpointFiles(store, 10)
    clients = [Client(gateway) for _ in range(3)]
    for client in clients:
        assert client.mkdirs("/d")
    late = Client(gateway)
    assert late.exists("/d")
    (ended,), _, _ = select.select([client.connection.sock for client in clients], [], [], 20)
    assert ended.recv(10) == b""
    assert all(client.exists("/d") for client in clients if client.connection.sock is not ended)
    for client in (*clients, late):
        client.close()
    gateway.close()


@pytest.mark.parametrize("sent", [b"", b"G", b"POST /token HTTP/1.1\r\nContent-Length: 100\r\n\r\ngrant_type"])
def test_who_shows_no_secret_holds_up_nobody_who_does(store: MemoryFiles, sent: bytes) -> None:
    gateway = Gateway(connections_max=16)
    gateway.files["x"] = CheckpointFiles(store, 10)
    known = Client(gateway)
    assert known.mkdirs("/d")
    others = []
    for _ in range(40):
        others.append(socket.create_connection((gateway.host, gateway.port), timeout=20))
        others[-1].sendall(sent)
    begun = time.monotonic()
    late = Client(gateway)
    assert late.exists("/d") and known.exists("/d")  # the one that idles has shown the secret, so others go before it
    assert time.monotonic() - begun < 5 < gateways.HEAD_S  # a second, where the machine has nothing else to do
    for client in (late, known, *others):
        client.close()
    gateway.close()


def test_a_connection_that_makes_room_begins_nothing_more(store: MemoryFiles) -> None:
    gateway = Gateway()
    here, there = socket.socketpair()
    with here, there:
        connection = gateways._Connection(there)
        gateway._begin(connection)
        assert connection.is_known and connection.since is None
        connection.is_ended = True
        with pytest.raises(gateways.PeerGone):
            gateway._begin(connection)
    gateway.close()


def test_a_query_whose_checkpoint_the_program_has_closed_is_told_so(gateway: Gateway, client: Client) -> None:
    gateway.close_files("x", is_asked=True)
    gateway.close_files("never", is_asked=True)
    told = r"checkpoint 'x' was closed in this driver by bk_spark.checkpoint.close.*open it again with bk_spark.checkpoint_location"
    with pytest.raises(JavaError, match=told) as caught:
        client.exists("/f")
    assert (caught.value.status, caught.value.java_class) == (403, "java.io.IOException")
    with pytest.raises(JavaError, match="no checkpoint 'never' is open in this driver"):
        Client(gateway, "never").exists("/f")
    assert gateway.add("x", CheckpointFiles(MemoryFiles(), 10)) and not client.exists("/f")
    gateway.close_files("x")
    with pytest.raises(JavaError, match="no checkpoint 'x' is open in this driver"):
        client.exists("/f")


def test_many_at_once(gateway: Gateway, store: MemoryFiles) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        client = Client(gateway)
        try:
            for batch in range(5):
                client.write_atomic(f"/{number}-{batch}", f"{number} {batch}".encode())
                client.write_atomic(f"/{number}-{batch}", b"again", overwrite=True, number=2)
                assert client.read(f"/{number}-{batch}") == b"again"
        except BaseException as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and len(store.nodes) == 41 and len(store.changes) == 80 and not store.staged


def test_a_store_that_stands_still_does_not_keep_the_gateway_open(store: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "TEND_S", 0.01)
    ended, told, tending, go_on = [False], threading.Event(), threading.Event(), threading.Event()
    gateway = Gateway(ended=lambda: ended[0], on_close=told.set)
    files = CheckpointFiles(store, 10)

    def stand_still() -> None:
        tending.set()
        go_on.wait(20)

    files.tend = stand_still  # type: ignore[method-assign]
    gateway.files["x"] = files
    assert tending.wait(10)
    monkeypatch.setattr(gateways, "JOIN_S", 0.1)
    ended[0] = True
    assert told.wait(10)
    go_on.set()
    gateway.close()


def test_tending_waits_for_nobody(store: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"new"], True, True)
    files.delete("/0", recursive=False)
    now[0] = staging.TEMPORARY_S + 1
    waits: list[float] = []
    with files._claims("/"), monkeypatch.context() as patched:
        patched.setattr(files._all_claims._lock, "until", lambda condition, wait_s: waits.append(wait_s) or condition())
        files.tend()
    assert not waits and "/0" in store.nodes and store.staged
    allowed: list[float | None] = []
    delete = store.delete
    store.delete = lambda path, **options: allowed.append(options["timeout_s"]) or delete(path, **options)  # type: ignore[method-assign]
    files.tend()
    assert allowed == [staging.TEND_CALL_S] and list(store.nodes) == ["/"] and not store.staged


def test_a_change_is_done_or_refused_within_its_time(store: MemoryFiles) -> None:
    files = CheckpointFiles(store, 0.1)
    files.create("/0", [b""], True, True)
    with files._claims("/0"), pytest.raises(OperationTimeoutError, match="another request about /0/1 takes longer than 0.1 s"):
        files.mkdirs("/0/1")
    now, allowed = [0.0], []
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    for name in ("/d/0", "/d/1"):
        files.create(name, [b""], True, True)
        files.create(temporary(name), [b""], True, True)
        files.delete(name, recursive=False)
    delete = store.delete

    def slow(path: str, **options: Any) -> bool:
        allowed.append(options["timeout_s"])
        now[0] += 8
        return delete(path, **options)

    store.delete = slow  # type: ignore[method-assign]
    assert files.delete("/d", recursive=True) and allowed == [10, 10, 4]


def test_a_connection_whose_thread_did_not_start_yet_does_not_keep_the_gateway_open() -> None:
    gateway = Gateway()
    here, there = socket.socketpair()
    with here, there:
        gateway._connections.add(gateways._Connection(there, thread=threading.Thread(target=lambda: None)))
        gateway.close()
        assert gateway._closed.is_set()


def test_closing_ends_everything(store: MemoryFiles) -> None:
    ended, told = [False], threading.Event()
    gateway = Gateway(ended=lambda: ended[0], on_close=told.set)
    gateway.files["x"] = CheckpointFiles(store, 10)
    client = Client(gateway)
    client.create("/0", b"")
    client.create(temporary("/0"), b"")
    client.delete("/0")
    ended[0] = True
    assert told.wait(10) and store.is_closed and store.changes[-1] == ("delete", "/0")
    assert client.connection.sock.recv(10) == b""
    with pytest.raises(OSError):
        socket.create_connection((gateway.host, gateway.port), timeout=5)
    gateway.close()
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bk-checkpoint") and thread in gateway._threads]


def test_the_port_can_be_chosen(gateway: Gateway) -> None:
    with pytest.raises(OSError):
        Gateway(port=gateway.port)
    gateway.close()
    again = Gateway(port=gateway.port)
    assert again.port == gateway.port and again.address == f"127.0.0.1:{gateway.port}"
    again.close()
