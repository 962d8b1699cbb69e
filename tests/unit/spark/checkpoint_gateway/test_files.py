"""Files and directories through the checkpoint gateway, as Hadoop's client sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.errors import (
    FileStoreTakenOverError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import FileStatus
from bk_spark.checkpoint import http_parts, listings
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, raw, temporary
from tests.unit.spark.checkpoint_gateway.gateways import LARGE
from tests.unit.spark.memory_files import MemoryFiles


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
                                                    lambda: client.json("GET", "LISTſTATUS", "/d"),
                                                    lambda: client.json("GET", "liststatuſ", "/d"),
                                                    lambda: client.json("GET", "lıststatus", "/d"),
                                                    lambda: client.json("GET", "", "/f"), lambda: client.json("GET", "DELETE", "/f"),
                                                    lambda: client.create("/f", b"", createflag="APPEND")],
        "java.lang.IllegalArgumentException": [lambda: client.json("DELETE", "DELETE", "/f", recursive="perhaps"),
                                               lambda: client.json("GET", "OPEN", "/f", bkstep="2", offset="-1"),
                                               lambda: client.json("PUT", "RENAME", "/f"),
                                               lambda: client.json("PUT", "RENAME", "/f", destination="")],
        "java.io.IOException": [lambda: client.rename("/f", "/"), lambda: client.json("PUT", "RENAME", "/f", destination="/y/f")],
    }  # fmt: skip
    with pytest.raises(JavaError, match="destination"):
        client.json("PUT", "RENAME", "/f")
    for java_class, calls in expected.items():
        for number, call in enumerate(calls):
            with pytest.raises(JavaError) as caught:
                call()
            assert caught.value.java_class == java_class, (java_class, number, str(caught.value))
    assert client.read("/f") == b"1" and client.names("/d") == ["e"]


def test_names_of_parameters_are_folded_as_ascii_alone() -> None:
    assert http_parts.pairs("BKstep=1&b%E2%84%AAstep=2") == {"bkstep": "1", "b\N{KELVIN SIGN}step": "2"}


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
