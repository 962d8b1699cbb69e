"""The words of the checkpoint gateway about another driver, of outages and of its own defects."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from bk_core.client.files import data
from bk_core.client.files.opening import ended_by
from bk_core.errors import (
    FileDataLostError,
    LogTakenOverError,
    OperationTimeoutError,
)
from bk_core.protocol.files.content import Content
from bk_spark.checkpoint import operations, staging, uploads
from bk_spark.checkpoint.gateway import CONNECTIONS_MAX, Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, temporary
from tests.unit.spark.memory_files import MemoryFiles


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


def test_a_checkpoint_that_was_fenced_and_has_no_owner_says_so(client: Client, store: MemoryFiles) -> None:
    client.create("/0", b"")
    store.error = ended_by(LogTakenOverError("the log 'files.x' is fenced", log="files.x"), "x", has_owner=False)
    with pytest.raises(
        JavaError, match=r"BK-FILES-TAKEN-OVER\] the checkpoint 'x' was taken .* no other one has it so far: `bk checkpoint gc"
    ):
        client.status("/0")


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
