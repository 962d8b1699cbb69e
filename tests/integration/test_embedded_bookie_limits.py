"""The embedded bookie and peers that want more than their share: memory, descriptors, time, waits, disk."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import KEY, Peer, add, body, eventually, fill, peer_of, read

FRAME_BYTES = 5 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

CHILD = """
import logging, os, resource, sys, time
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
from bk_core.bookie.server import EmbeddedBookie, die_with_parent
die_with_parent()
bookie = EmbeddedBookie(sys.argv[1]).start()
print(bookie.port, flush=True)
held = []
for line in sys.stdin:
    if line.startswith("exhaust"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
    if line.startswith("release"):
        for descriptor in held:
            os.close(descriptor)
    print(time.process_time(), flush=True)
"""


class Child:
    """A bookie in a process of its own, whose memory, time and log can be looked at."""

    def __init__(self, directory: Path) -> None:
        environment = dict(os.environ, BK_DIE_WITH_PARENT="1")
        command = [sys.executable, "-c", CHILD, str(directory / "data")]
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def tell(self, word: str) -> float:
        """Seconds of processor time it has used."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def resident_bytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path)
    with child.process:
        yield child
        child.process.kill()


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[EmbeddedBookie]:
    with EmbeddedBookie(tmp_path / "bookie") as bookie:
        yield bookie


def _limited(tmp_path: Path, **limits: Any) -> EmbeddedBookie:
    return EmbeddedBookie(tmp_path / "limited", options=BookieOptions(limits=ConnectionLimits(**limits)))


def _ended(sock: socket.socket) -> bool:
    """The bookie has closed it."""
    if not select.select([sock], [], [], 0)[0]:
        return False
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


# --- memory follows what has come ---------------------------------------------------------------------------------------


@LINUX
def test_an_announced_frame_costs_nothing(child: Child) -> None:
    """150 connections that announce the greatest frame took 780 MB with four bytes each. They may still send it."""
    big = encode_request(m.AddRequest(1, 1, 0, KEY, body(1, 0, bytes(FRAME_BYTES - 400))), "v2")
    assert FRAME_BYTES - 500 < len(big) <= FRAME_BYTES
    with ExitStack() as stack:
        before = child.resident_bytes()
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", child.port), timeout=30)) for _ in range(150)]
        for sock in socks:
            sock.sendall(big[:4])
        probe = Peer(child.port)
        stack.callback(probe.close)
        assert probe.status(read(1, 0)) is Status.NO_LEDGER  # what came before has been received
        assert child.resident_bytes() - before < 100 << 20
        for sock in socks[:30]:
            sock.sendall(big[4:100_000])
        assert probe.status(read(1, 0)) is Status.NO_LEDGER
        assert child.resident_bytes() - before < 100 << 20
        socks[0].sendall(big[100_000:])
        assert socks[0].recv(28, socket.MSG_WAITALL) == bytes.fromhex("000000180201000000000000") + struct.pack(">qq", 1, 0)


def test_large_frames_in_pieces_of_any_size(bookie: EmbeddedBookie) -> None:
    sizes = (1, 3, 60_000, 70_000, 64, 1_200_000, 5)
    payload = bytes(range(256)) * 12_000
    with peer_of(bookie) as peer:
        frames = b"".join(encode_request(m.AddRequest(n, 1, n, KEY, body(1, n, payload)), "v3") for n in range(3))
        at, turn = 0, 0
        while at < len(frames):
            peer.sock.sendall(frames[at : at + sizes[turn % len(sizes)]])
            at, turn = at + sizes[turn % len(sizes)], turn + 1
        for _ in range(3):
            peer.file.read(int.from_bytes(peer.file.read(4), "big"))
        for n in range(3):
            assert peer.ask(read(1, n)).body == body(1, n, payload)  # type: ignore[union-attr]


# --- connections --------------------------------------------------------------------------------------------------------


@LINUX
def test_without_descriptors_it_waits_and_says_so_once(child: Child) -> None:
    """A listener that is always ready was asked 40,000 times a second, with a line in the log each time."""
    early = Peer(child.port)
    assert early.status(read(1, 0)) is Status.NO_LEDGER
    child.tell("exhaust")
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", child.port), timeout=30)) for _ in range(5)]
        assert eventually(lambda: "no connection can be accepted" in child.log.read_text())
        used = child.tell("time")
        threading.Event().wait(1.5)  # a window in which a busy loop would show; nothing happens in it that could be awaited
        assert child.tell("time") - used < 0.25
        assert early.status(read(1, 0)) is Status.NO_LEDGER  # those that are there are served
        assert child.log.read_text().count("no connection can be accepted") == 1
        child.tell("release")
        socks[-1].sendall(encode_request(read(1, 0), "v3"))
        assert socks[-1].recv(4)
    early.close()


def test_bke_6_idle_connections_make_room(tmp_path: Path) -> None:
    with _limited(tmp_path, connections=3, spare_s=0.0) as bookie, ExitStack() as stack:
        peers = [Peer(bookie.port) for _ in range(3)]
        for peer in peers:
            stack.callback(peer.close)
            assert peer.status(read(1, 0)) is Status.NO_LEDGER
        assert peers[0].status(read(1, 0)) is Status.NO_LEDGER  # so the second one was silent longest
        with peer_of(bookie) as late:
            assert late.status(read(1, 0)) is Status.NO_LEDGER
            assert eventually(lambda: _ended(peers[1].sock))
            assert [peers[index].status(read(1, 0)) for index in (0, 2)] == [Status.NO_LEDGER] * 2


def test_bke_6_a_new_connection_is_refused_when_all_others_work(tmp_path: Path) -> None:
    with _limited(tmp_path, connections=2, spare_s=3600.0) as bookie, peer_of(bookie) as one, peer_of(bookie) as two:
        assert {one.status(read(1, 0)), two.status(read(1, 0))} == {Status.NO_LEDGER}
        with socket.create_connection(("127.0.0.1", bookie.port), timeout=10) as late:
            assert eventually(lambda: _ended(late))
        assert {one.status(read(1, 0)), two.status(read(1, 0))} == {Status.NO_LEDGER}


def test_bke_5_half_a_request_ends_and_silence_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    frame = encode_request(add(1, 0), "v3")
    with _limited(tmp_path, stalled_s=1.5) as bookie, peer_of(bookie) as half, peer_of(bookie) as idle, peer_of(bookie) as slow:
        half.sock.sendall(frame[:10])
        assert idle.status(read(1, 0)) is Status.NO_LEDGER
        for at in range(len(frame)):  # slower as a whole than any bound, and always going on
            slow.sock.sendall(frame[at : at + 1])
            threading.Event().wait(0.02)
        assert slow.file.read(int.from_bytes(slow.file.read(4), "big"))
        assert eventually(lambda: _ended(half.sock))
        assert "nothing more of a request" in caplog.text
        assert idle.status(read(1, 0)) is Status.OK


def test_bke_5_idle_connections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    with _limited(tmp_path, idle_s=0.2) as bookie, peer_of(bookie) as polling, peer_of(bookie) as idle:
        fill(bookie, 1, [0])
        wait = m.ReadRequest(1, 1, -1, previous_lac=5, timeout_ms=60_000, piggyback=True)
        polling.sock.sendall(encode_request(wait, "v3"))
        assert eventually(lambda: _ended(idle.sock))
        assert not _ended(polling.sock)


def test_bke_5_a_deaf_peer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    with _limited(tmp_path, stalled_s=0.5) as bookie, peer_of(bookie) as peer, peer_of(bookie) as deaf:
        big = m.AddRequest(1, 1, 0, KEY, body(1, 0, bytes(4 << 20)))
        assert peer.status(big) is Status.OK
        deaf.sock.sendall(encode_request(m.ReadRequest(0, 1, 0), "v2") * 50)
        assert eventually(lambda: "no answer was taken" in caplog.text)
        assert peer.status(read(1, 0)) is Status.OK


# --- waits --------------------------------------------------------------------------------------------------------------


def test_bke_4_long_polls_are_bounded_in_number(tmp_path: Path) -> None:
    """One more than may wait on a connection is answered at once; the others wait, however long they asked for."""
    with _limited(tmp_path, polls_per_connection=3) as bookie, peer_of(bookie) as peer, peer_of(bookie) as other:
        fill(bookie, 1, [0])
        for number in range(1, 1001):
            request = m.ReadRequest(number, 1, -1, previous_lac=5, timeout_ms=(1 << 63) - 1, piggyback=True)
            peer.sock.sendall(encode_request(request, "v3"))
        for _ in range(997):
            assert peer.file.read(int.from_bytes(peer.file.read(4), "big"))
        server = bookie._server
        assert server is not None
        assert server.call(lambda: len(server.machine._polls)).result(10) == 3
        assert other.status(read(1, 0)) is Status.OK


def test_force_waits_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is slow, requests beyond the bound stay with the peer; all are answered in the end."""
    disk = threading.Event()
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        disk.wait(60)
        sync(descriptor)

    with _limited(tmp_path, waits_per_connection=50) as bookie, peer_of(bookie) as peer, peer_of(bookie) as other:
        monkeypatch.setattr("bk_core.bookie.journal.os.fdatasync", slow)
        server = bookie._server
        assert server is not None
        frames = encode_request(add(1, 0), "v3") + b"".join(encode_request(m.ForceLedgerRequest(n, 1), "v3") for n in range(5000))
        sender = threading.Thread(target=peer.sock.sendall, args=(frames,))
        sender.start()
        assert eventually(lambda: server.call(lambda: len(server._waiting)).result(10) == 50)
        assert other.status(read(1, 0)) is Status.OK
        assert server.call(lambda: len(server._waiting)).result(10) == 50
        disk.set()
        for _ in range(5001):
            assert peer.file.read(int.from_bytes(peer.file.read(4), "big"))
        sender.join()


# --- lists --------------------------------------------------------------------------------------------------------------


def test_bke_7_others_are_served_while_a_list_is_made(bookie: EmbeddedBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """BKE-7. A list of 2,000,000 entries stopped everybody for six seconds. Here another request comes in the middle."""
    monkeypatch.setattr("bk_core.protocol.bookie.reads.LIST_ROWS", 10)
    fill(bookie, 1, range(0, 400, 2))
    server = bookie._server
    assert server is not None
    with peer_of(bookie) as lister, peer_of(bookie) as other:
        assert other.status(read(1, 0)) is Status.OK
        seen: list[str] = []
        list_piece, handle = server.machine.handle_list, server.machine.handle

        def piece(*arguments: Any) -> Any:
            seen.append("piece")
            if len(seen) == 3:
                other.sock.sendall(encode_request(read(1, 2), "v3"))
            return list_piece(*arguments)

        def one(*arguments: Any, **options: Any) -> Any:
            seen.append("read")
            return handle(*arguments, **options)

        monkeypatch.setattr(server.machine, "handle_list", piece)
        monkeypatch.setattr(server.machine, "handle", one)
        listed = lister.ask(m.EntryListRequest(1, 1))
        assert other.file.read(int.from_bytes(other.file.read(4), "big"))
    assert isinstance(listed, m.EntryListResponse) and listed.entries is not None
    assert listed.entries[64:] == struct.pack(">qqii", 0, 398, 1, 2)
    assert seen[:4] == ["piece", "piece", "piece", "read"] and seen.count("piece") >= 20


def test_bke_7_a_ledger_that_goes_while_it_is_listed(bookie: EmbeddedBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.protocol.bookie.reads.LIST_ROWS", 10)
    fill(bookie, 1, range(0, 100, 2))
    server = bookie._server
    assert server is not None
    list_piece, pieces = server.machine.handle_list, []

    def piece(*arguments: Any) -> Any:
        pieces.append(1)
        if len(pieces) == 3:
            server.change(server.machine.collect(1, server.now_ms()))
        return list_piece(*arguments)

    monkeypatch.setattr(server.machine, "handle_list", piece)
    with peer_of(bookie) as peer:
        assert peer.status(m.EntryListRequest(1, 1)) is Status.NO_LEDGER


def test_requests_behind_a_list_are_answered_behind_it(bookie: EmbeddedBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.protocol.bookie.reads.LIST_ROWS", 2)
    fill(bookie, 1, range(50))
    with peer_of(bookie) as peer:
        peer.sock.sendall(
            b"".join(encode_request(r, "v3") for r in (m.EntryListRequest(7, 1), m.ReadRequest(8, 1, 3), m.EntryListRequest(9, 2)))
        )
        answers = [decode_response(peer.file.read(int.from_bytes(peer.file.read(4), "big")), "v3") for _ in range(3)]
    assert [(answer.request_id, answer.status) for answer in answers] == [(7, Status.OK), (8, Status.OK), (9, Status.NO_LEDGER)]
