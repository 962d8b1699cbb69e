"""Connections of the checkpoint gateway: uploads that break, clients that idle, its tending and its closing."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

from bk_core.errors import (
    OperationTimeoutError,
)
from bk_spark.checkpoint import gateway as gateways
from bk_spark.checkpoint import http_parts, lobby, staging, uploads
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.http_parts import PeerGone
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, raw, temporary
from tests.unit.spark.checkpoint_gateway.gateways import broken
from tests.unit.spark.memory_files import MemoryFiles


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
    monkeypatch.setattr(http_parts, "HEAD_S", 30)
    monkeypatch.setattr(lobby, "FIRST_BYTE_S", 0.2)
    assert raw(gateway, half_close=False) == b""
    monkeypatch.setattr(lobby, "FIRST_BYTE_S", 30)
    assert raw(gateway, b"GET / HTTP/1.1\r\nA: ") == b""  # it ends in the head


def test_who_sends_no_whole_head_has_no_thread(store: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections come faster than threads for them begin. Where too many wait, the oldest goes."""
    monkeypatch.setattr(gateways, "LOBBY_MAX", 4)
    gateway = Gateway()
    gateway.files["x"] = CheckpointFiles(store, 10)
    others = []
    for sent in (b"", b"GET /", b"GET / HTTP/1.1\r\nA: b\r\n") * 3:
        others.append(socket.create_connection((gateway.host, gateway.port), timeout=20))
        others[-1].sendall(sent)
    late = Client(gateway)
    assert late.mkdirs("/d")  # all others were accepted before
    assert len(gateway._connections) == 1
    for ended in others[:6]:  # of nine, four may wait; and one more went when the client came
        with suppress(ConnectionResetError):
            assert ended.recv(1) == b""
    assert not select.select(others[6:], [], [], 0)[0]
    others[8].sendall(b"\r\n")  # the rest of a head, which has no secret
    assert others[8].recv(12) == b"HTTP/1.1 401"
    gateway.close()
    assert all(left.recv(1) == b"" for left in others[6:8])
    for client in (late, *others):
        client.close()


@pytest.mark.parametrize("size", [1, 7, 70_000])
def test_a_head_may_come_in_pieces(gateway: Gateway, client: Client, size: int) -> None:
    """Also with the request that follows it, and one that is longer than any may be."""
    asked = f"GET {client.target('GETFILESTATUS', '/')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
    twice = f"{asked}\r\n{asked}Connection: close\r\n\r\n".encode()
    answered = raw(gateway, *(twice[at : at + size] for at in range(0, len(twice), size)), half_close=False)
    assert answered.count(b"HTTP/1.1 200") == 2
    assert raw(gateway, asked.encode(), b"A: " + b"a" * size, b"\r\n\r\n").startswith(
        b"HTTP/1.1 400" if size > 64 << 10 else b"HTTP/1.1 200"
    )


def test_a_form_that_trickles_in_is_cut_off(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    """A peer that has shown no secret has one time for the whole form, not one for each byte of it."""
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
    assert not any(loop._thread.is_alive() for loop in gateway._loops)


def test_the_port_can_be_chosen(gateway: Gateway) -> None:
    with pytest.raises(OSError):
        Gateway(port=gateway.port)
    gateway.close()
    again = Gateway(port=gateway.port)
    assert again.port == gateway.port and again.address == f"127.0.0.1:{gateway.port}"
    again.close()
