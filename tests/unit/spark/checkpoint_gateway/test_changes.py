"""One change for each file of a checkpoint: temporary files, renames, and deletes that are kept back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bk_core.errors import (
    FileStoreClosedError,
    NoSuchPathError,
    OperationTimeoutError,
    PathExistsError,
)
from bk_core.protocol.files.content import FileStatus
from bk_spark.checkpoint import staging, temporaries
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, temporary
from tests.unit.spark.checkpoint_gateway.gateways import LARGE
from tests.unit.spark.memory_files import MemoryFiles


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
