"""The embedded bookie over real sockets: golden frames of both protocols, bad input, slow readers, kill -9."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import Status
from tests.network.stopping import stop_process

K2 = "e793cbc379107648537183605cd361d3bb789a39"
H = "0000000000001234 0000000000000007 0000000000000006 00000000000003ed"
P = "68656c6c6f2c20626f6f6b6b6565706572"
E1 = f"{H} 0321c545 {P}"
A1 = f"0000004d 02010000 {K2} {E1}"
A2 = f"0000004d 02010006 {K2} {E1}"
A3 = "00000018 02010000 00000000 0000000000001234 0000000000000007"
A4 = "00000018 02010000 00000068 0000000000001234 0000000000000007"
R1 = "00000014 02020000 0000000000001234 0000000000000007"
R2 = f"00000028 02020001 0000000000001234 ffffffffffffffff {K2}"
R4 = f"0000004d 02020000 00000000 0000000000001234 0000000000000007 {E1}"
B1 = "00000028 02070000 0000000000001234 0000000000000007 000000000000002a 0000000a 0000000000500000"
E8 = "0000000000001234 0000000000000008 0000000000000007 00000000000003ef 41a61489 6869"
B3 = f"00000083 02070000 00000000 0000000000001234 0000000000000007 000000000000002a 00000035 {E1} 00000026 {E8}"
B4 = "00000020 02070000 00000002 0000000000001234 0000000000000007 000000000000002a"
U1 = "0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200"
L1 = "0000000000001234 0000000000000006 3bf75cf7"
V1 = f"0000005d 0a06 0803 1002 1801 aa0652 08b424 1007 1a14 {K2} 2235 {E1}"
V3 = "00000014 0a06 0803 1002 1801 1000 aa0607 0800 10b424 1807"
V4 = "00000010 0a06 0803 1001 1806 a20605 08b424 1007"
V5 = f"0000004d 0a06 0803 1001 1806 1000 a20640 0800 10b424 1807 2235 {E1} 2806"
V6 = f"0000003c 0a06 0803 1006 1807 ba0631 08b424 1006 1a14 {K2} 2214 {L1}"
V7 = "0000000b 0a06 0803 1009 1808 d20600"
V8 = "0000000e 0a06 0803 1007 1809 c20603 08b424"
V9 = "0000000e 0a06 0803 100a 180a da0603 08b424"
V11 = "00000021 0a06 0803 1005 180c b20616 0a12 4175746844697361626c6564506c7567696e 1200"
V13 = f"00000032 0a06 0803 1001 1804 a20627 08b424 10ffffffffffffffffff01 1a14 {K2} a00601"
V13_DECLARED = f"00000032 0a06 0803 1001 1804 a20627 a00601 08b424 10ffffffffffffffffff01 1a14 {K2}"
V14 = "00000021 0a06 0803 1001 1805 a20616 08b424 10ffffffffffffffffff01 2006 28e807 a00602"
V15 = f"00000062 0a08 0803 1002 1802 2064 aa0655 08b424 1007 1a14 {K2} 2235 {E1} a00601"

KEY = bytes.fromhex(K2)


class Peer:
    """A raw client: sends bytes, reads frames."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.file = self.sock.makefile("rb")

    def send(self, *frames: str) -> None:
        self.sock.sendall(b"".join(bytes.fromhex(text) for text in frames))

    def frame(self) -> bytes:
        """The next whole frame; b"" when the bookie has closed."""
        prefix = self.file.read(4)
        return prefix + self.file.read(int.from_bytes(prefix, "big")) if prefix else b""

    def ask(self, text: str) -> str:
        self.send(text)
        return self.frame().hex()

    def request(self, request: m.Request, protocol: str = "v3") -> m.Response:
        self.sock.sendall(encode_request(request, protocol))  # type: ignore[arg-type]
        return decode_response(self.frame()[4:], protocol)  # type: ignore[arg-type]

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[EmbeddedBookie]:
    with EmbeddedBookie(tmp_path / "bookie") as bookie:
        yield bookie


@pytest.fixture
def peer(bookie: EmbeddedBookie) -> Iterator[Peer]:
    peer = Peer(bookie.port)
    yield peer
    peer.close()


def bare(text: str) -> str:
    return text.replace(" ", "")


def body(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">qqqqI", ledger_id, entry_id, entry_id - 1, 0, 0) + payload


def test_v2_vectors(peer: Peer) -> None:
    assert peer.ask(B1) == bare(B4).replace("00000002", "00000001", 1)  # ledger unknown
    assert peer.ask(A1) == bare(A3)
    assert peer.ask(A1) == bare(A3)
    assert peer.ask(R1) == bare(R4)
    assert peer.ask(f"0000003e 02010000 {K2} {E8}") == bare(A3)[:-1] + "8"
    assert peer.ask(B1) == bare(B3)
    assert peer.ask(U1) == bare(U1)
    last = bytes.fromhex(peer.ask(R2))
    assert last[4:28].hex() == bare("02020000 00000000 0000000000001234 ffffffffffffffff") and last[28:].hex() == bare(E8)
    assert peer.ask(A1) == bare(A4)
    assert peer.ask(A2) == bare(A3)
    assert peer.ask(R1.replace("0007", "0009")) == bare("00000018 02020000 00000002 0000000000001234 0000000000000009")
    assert peer.ask("00000014 00000002 0000000000001234 0000000000000007") == bare(R4).replace("02020000", "00000002", 1)
    assert peer.ask(R1.replace("02020000", "03020000"))[16:24] == "00000067"


def test_v3_vectors(peer: Peer) -> None:
    assert peer.ask(V1) == bare(V3)
    assert peer.ask(V4) == bare(V5)
    assert peer.request(m.ReadLacRequest(9, 0x1234)) == m.ReadLacResponse(9, Status.OK, 0x1234, None, bytes.fromhex(E1))
    assert decode_response(bytes.fromhex(peer.ask(V6))[4:], "v3") == m.WriteLacResponse(7, Status.OK, 0x1234)
    lac = decode_response(bytes.fromhex(peer.ask(V8))[4:], "v3")
    assert isinstance(lac, m.ReadLacResponse) and lac.lac_body == bytes.fromhex(L1)
    assert peer.ask(V7) == bare("0000000b 0a06 0803 1009 1808 109403")
    assert decode_response(bytes.fromhex(peer.ask(V9))[4:], "v3") == m.ForceLedgerResponse(10, Status.OK, 0x1234)
    info = peer.request(m.BookieInfoRequest(11))
    assert isinstance(info, m.BookieInfoResponse) and (info.total_disk_bytes or 0) >= (info.free_disk_bytes or 0) > 0
    auth = decode_response(bytes.fromhex(peer.ask(V11))[4:], "v3")
    assert auth == m.AuthResponse(12, Status.OK, "AuthDisabledPlugin")
    listed = peer.request(m.EntryListRequest(13, 0x1234))
    assert isinstance(listed, m.EntryListResponse) and (listed.entries or b"")[64:] == struct.pack(">qqii", 7, 7, 1, 0)
    for vector in (V13, V13_DECLARED):
        fenced = decode_response(bytes.fromhex(peer.ask(vector))[4:], "v3")
        assert fenced == m.ReadResponse(4, Status.OK, 0x1234, -1, bytes.fromhex(E1))
    assert decode_response(bytes.fromhex(peer.ask(V1))[4:], "v3") == m.AddResponse(1, Status.FENCED, 0x1234, 7)
    assert decode_response(bytes.fromhex(peer.ask(V15))[4:], "v3") == m.AddResponse(2, Status.OK, 0x1234, 7)


def test_long_poll_times_out_and_wakes(bookie: EmbeddedBookie, peer: Peer) -> None:
    peer.ask(V1)
    started = time.monotonic()
    answer = decode_response(bytes.fromhex(peer.ask(V14))[4:], "v3")
    assert answer == m.ReadResponse(5, Status.OK, 0x1234, -1, None, 6)
    assert time.monotonic() - started > 0.95
    peer.send(V14.replace("28e807", "28e05d"))  # 12 s, which an add does not wait for
    other = Peer(bookie.port)
    started = time.monotonic()
    assert other.request(m.AddRequest(1, 0x1234, 8, KEY, bytes.fromhex(E8))).status is Status.OK
    woken = decode_response(peer.frame()[4:], "v3")
    assert isinstance(woken, m.ReadResponse) and time.monotonic() - started < 11
    assert (woken.entry_id, woken.body, woken.max_lac) == (-1, None, 7) or woken.entry_id == 7
    assert abs((woken.lac_update_timestamp_ms or 0) - time.time() * 1000) < 10_000
    other.close()


def test_start_tls_is_refused_and_v2_follows(peer: Peer) -> None:
    peer.send(V7, V4, R1)
    assert peer.frame().hex() == bare("0000000b 0a06 0803 1009 1808 109403")
    assert decode_response(peer.frame()[4:], "v3").status is Status.NO_LEDGER
    assert peer.frame()[8:12] == b"\0\0\0\1"


@pytest.mark.parametrize("garbage", ["00000000", "004ffffd", "ffffffff", "00000004 02040000", "00000004 02020000", "00000002 ffff"])
def test_malformed_input_closes_that_connection_only(bookie: EmbeddedBookie, peer: Peer, garbage: str) -> None:
    bad = Peer(bookie.port)
    bad.send(garbage)
    assert bad.frame() == b""
    bad.close()
    assert peer.ask(A1) == bare(A3)


def test_slow_reader_is_bounded_and_disturbs_nobody(bookie: EmbeddedBookie, peer: Peer) -> None:
    big = body(1, 0, bytes(1 << 20))
    assert peer.request(m.AddRequest(0, 1, 0, KEY, big), "v2").status is Status.OK
    slow = Peer(bookie.port)
    frames = encode_request(m.ReadRequest(0, 1, 0), "v2") * 200
    slow.sock.sendall(frames)
    time.sleep(0.3)
    assert bookie._server is not None
    assert max(c.unsent_bytes for c in bookie._server._connections) < 12 << 20
    assert peer.request(m.ReadRequest(0, 1, 5), "v2").status is Status.NO_ENTRY
    for _ in range(200):
        assert len(slow.frame()) == 4 + 24 + len(big)
    slow.close()


def test_a_peer_that_reads_at_once_gets_all_it_asked_for(bookie: EmbeddedBookie, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait while many bytes are unsent; once they are sent, in whatever moment, the next request is served at once."""
    assert peer.request(m.AddRequest(0, 1, 0, KEY, body(1, 0, bytes(500))), "v2").status is Status.OK
    monkeypatch.setattr("bk_core.bookie.loop.UNSENT_BYTES_MAX", 1000)
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 3600.0)
    assert peer.request(m.ReadRequest(0, 1, 5), "v2").status is Status.NO_ENTRY  # a turn that begins with the new bounds
    peer.sock.sendall(b"".join(encode_request(m.BatchReadRequest(i, 1, 0, 1, 5000), "v2") for i in range(100)))
    for i in range(100):
        response = decode_response(peer.frame()[4:], "v2")
        assert (response.request_id, response.status) == (i, Status.OK)


def test_pipelined_adds_are_acknowledged_in_order(peer: Peer) -> None:
    count = 2000
    frames = b"".join(encode_request(m.AddRequest(0, 5, i, KEY, body(5, i, b"x" * 100)), "v2") for i in range(count))
    threading.Thread(target=peer.sock.sendall, args=(frames,), daemon=True).start()
    for i in range(count):
        assert decode_response(peer.frame()[4:], "v2") == m.AddResponse(0, Status.OK, 5, i)


def frames_of(entries: dict[int, bytes]) -> bytes:
    return b"".join(encode_request(m.AddRequest(0, 9, entry, KEY, data), "v2") for entry, data in entries.items())


def test_runs_in_pieces_of_any_size(bookie: EmbeddedBookie) -> None:
    """Small entries and one that is larger than the buffer of the loop, cut anywhere, are acknowledged in order and read back."""
    sizes = [40, 500, 3 << 20, 10, 0, 700_000, 1] + [100] * 3000
    entries = {entry: struct.pack(">qqqq", 9, entry, entry - 1, 0) + bytes((entry % 251,)) * size for entry, size in enumerate(sizes)}
    wire, acknowledged, count = frames_of(entries), bytearray(), len(sizes)
    with socket.create_connection(("127.0.0.1", bookie.port), timeout=20) as sock:

        def send() -> None:
            at, step = 0, 7
            while at < len(wire):
                sock.sendall(wire[at : at + step])
                at, step = at + step, min(step * 3, 300_000)

        sender = threading.Thread(target=send)
        sender.start()
        while len(acknowledged) < 28 * count:
            acknowledged += sock.recv(1 << 20)
        sender.join()
        assert bytes(acknowledged) == b"".join(struct.pack(">IIiqq", 24, 0x02010000, 0, 9, entry) for entry in entries)
        file = sock.makefile("rb")
        sock.sendall(b"".join(encode_request(m.ReadRequest(0, 9, entry), "v2") for entry in range(count + 1)))
        for entry in range(count + 1):
            answer = decode_response(file.read(int.from_bytes(file.read(4), "big")), "v2")
            wanted = (
                m.ReadResponse(0, Status.OK, 9, entry, entries[entry]) if entry < count else m.ReadResponse(0, Status.NO_ENTRY, 9, entry)
            )
            assert answer == wanted
        found: list[bytes] = []
        while len(found) < count:
            sock.sendall(encode_request(m.BatchReadRequest(1, 9, len(found), 0, 200_000), "v2"))
            batch = decode_response(file.read(int.from_bytes(file.read(4), "big")), "v2")
            assert isinstance(batch, m.BatchReadResponse) and batch.status is Status.OK
            found += map(bytes, codec_v2.split_bodies(batch.bodies))
        assert found == list(entries.values())
        file.close()


def test_restart_keeps_port_key_fence_and_lac(tmp_path: Path) -> None:
    with EmbeddedBookie(tmp_path) as first:
        peer = Peer(first.port)
        assert peer.ask(A1) == bare(A3)
        peer.ask(R2.replace("1234", "9999"))
        peer.close()
        with pytest.raises(InvalidArgumentError, match="another bookie runs"):
            EmbeddedBookie(tmp_path).start()
    with EmbeddedBookie(tmp_path) as second:
        assert second.bookie_id == first.bookie_id
        peer = Peer(second.port)
        assert peer.ask(R1) == bare(R4)
        assert peer.ask(A1.replace(K2, "00" * 20))[16:24] == "00000066"
        assert peer.ask(A1.replace("1234", "9999"))[16:24] == "00000068"
        peer.close()
    with pytest.raises(InvalidArgumentError, match="is 127.0.0.1"):
        EmbeddedBookie(tmp_path, port=1).start()


CHILD = """
import sys, time
from bk_core.bookie.server import EmbeddedBookie, die_with_parent
die_with_parent()
bookie = EmbeddedBookie(sys.argv[1]).start()
print(bookie.port, flush=True)
time.sleep(600)
"""


def spawn(directory: Path, program: str = CHILD) -> tuple[subprocess.Popen[str], int]:
    environment = dict(os.environ, BK_DIE_WITH_PARENT="1")
    child = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    with child.stdout:
        return child, int(child.stdout.readline())


def stream_until_closed(port: int, ledger_id: int) -> int:
    """Pipeline adds until the connection breaks. Returns how many were acknowledged (in order)."""
    peer, acknowledged = Peer(port), 0

    def send() -> None:
        try:
            for entry_id in range(1_000_000):
                request = m.AddRequest(0, ledger_id, entry_id, KEY, body(ledger_id, entry_id, b"%d" % entry_id * 20))
                peer.sock.sendall(encode_request(request, "v2"))
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()
    try:
        while len(frame := peer.frame()) == 28:
            assert decode_response(frame[4:], "v2") == m.AddResponse(0, Status.OK, ledger_id, acknowledged)
            acknowledged += 1
    except OSError:
        pass
    peer.close()
    return acknowledged


def test_kill_9_keeps_everything_acknowledged(tmp_path: Path) -> None:
    acknowledged: dict[int, int] = {}
    for ledger_id, pause_s in enumerate((0.05, 0.3, 0.6)):
        child, port = spawn(tmp_path)
        peer = Peer(port)
        fenced = peer.request(m.ReadRequest(0, 100 + ledger_id, -1, fence=True, master_key=KEY), "v2")
        assert fenced.status is Status.NO_ENTRY
        threading.Timer(pause_s, os.kill, (child.pid, signal.SIGKILL)).start()
        acknowledged[ledger_id] = stream_until_closed(port, ledger_id)
        child.wait()
    assert sum(acknowledged.values()) > 0
    child, port = spawn(tmp_path)
    peer = Peer(port)
    for ledger_id, count in acknowledged.items():
        for entry_id in range(count):
            answer = peer.request(m.ReadRequest(0, ledger_id, entry_id), "v2")
            assert isinstance(answer, m.ReadResponse) and answer.body == body(ledger_id, entry_id, b"%d" % entry_id * 20)
        fenced_add = m.AddRequest(0, 100 + ledger_id, 0, KEY, body(100 + ledger_id, 0))
        assert peer.request(fenced_add, "v2").status is Status.FENCED
        wrong_key = m.AddRequest(0, 100 + ledger_id, 0, bytes(20), body(100 + ledger_id, 0), recovery=True)
        assert peer.request(wrong_key, "v2").status is Status.UNAUTHORIZED
    peer.close()
    child.kill()
    child.wait()


SMALL_STORES = f"""
import bk_core.bookie.journal as journal, bk_core.bookie.storage as storage
journal.FILE_BYTES, storage.STORE_BYTES, storage.STORE_AFTER_S = 300_000, 100_000, 0.01  # they take turns all the time
{CHILD}"""


def write_runs_until_closed(port: int, ledger_id: int, sizes: range) -> int:
    """Entries acknowledged, in order, before the connection broke."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:

        def send() -> None:
            entry = 0
            try:
                while True:
                    entries = [(number, body(ledger_id, number, bytes(sizes[number % len(sizes)]))) for number in range(entry, entry + 40)]
                    sock.sendall(b"".join(encode_request(m.AddRequest(0, ledger_id, number, KEY, data), "v2") for number, data in entries))
                    entry += 40
            except OSError:
                pass

        sender = threading.Thread(target=send)
        sender.start()
        got = bytearray()
        try:
            while data := sock.recv(1 << 16):
                got += data
        except OSError:
            pass
        sender.join()
    count = len(got) // 28
    assert got[: 28 * count] == b"".join(struct.pack(">IIiqq", 24, 0x02010000, 0, ledger_id, entry) for entry in range(count))
    return count


def test_kill_9_keeps_every_run_acknowledged(tmp_path: Path) -> None:
    """B-1, B-6: wherever it strikes between journal, database and the turn of the journal's files."""
    sizes = range(10, 4000, 37)
    acknowledged: dict[int, int] = {}
    for ledger_id, pause_s in enumerate((0.1, 0.3, 0.5, 0.2, 0.7)):
        child, port = spawn(tmp_path, SMALL_STORES)
        threading.Timer(pause_s, os.kill, (child.pid, signal.SIGKILL)).start()
        acknowledged[ledger_id] = write_runs_until_closed(port, ledger_id, sizes)
        child.wait()
    assert sum(acknowledged.values()) > 100
    with EmbeddedBookie(tmp_path) as bookie:
        peer = Peer(bookie.port)
        for ledger_id, count in acknowledged.items():
            entry = 0
            while entry < count:
                answer = peer.request(m.BatchReadRequest(1, ledger_id, entry, 0, 1 << 20), "v2")
                assert isinstance(answer, m.BatchReadResponse) and answer.status is Status.OK
                for found in codec_v2.split_bodies(answer.bodies):
                    assert bytes(found) == body(ledger_id, entry, bytes(sizes[entry % len(sizes)]))
                    entry += 1
        peer.close()


def test_kill_9_keeps_fences_that_answers_relied_on(tmp_path: Path) -> None:
    """B-3, B-4, B-6 (R20, R21, R22; replication-protocol.md 14.1 item 3): once a fence read is answered, positive or negative, no restart
    opens the ledger."""
    child, port = spawn(tmp_path)
    peer = Peer(port)
    assert peer.request(m.AddRequest(1, 1, 0, KEY, body(1, 0))).status is Status.OK
    answers = [peer.request(m.ReadRequest(2, ledger_id, -1, fence=True, master_key=KEY)).status for ledger_id in (1, 2, 2)]
    assert answers == [Status.OK, Status.NO_ENTRY, Status.NO_ENTRY]
    child.kill()
    child.wait()
    peer.close()
    for _ in range(2):
        child, port = spawn(tmp_path)
        peer = Peer(port)
        for ledger_id in (1, 2):
            assert peer.request(m.AddRequest(1, ledger_id, 1, KEY, body(ledger_id, 1))).status is Status.FENCED
            assert peer.request(m.ReadRequest(2, ledger_id, 1)).status is Status.NO_ENTRY
        child.kill()
        child.wait()
        peer.close()


COLLECTING_CHILD = """
import sys, time
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.server import die_with_parent
from bk_core.metadata.memory import MemoryStore
die_with_parent()
store = MemoryStore("here")
store.initialize_cluster()
bookie = EmbeddedBookie(sys.argv[1], store=store, options=BookieOptions(accept_data_loss=True, collector=CollectorOptions(interval_s=0.05)))
print(bookie.start().port, flush=True)
time.sleep(600)
"""


def test_kill_9_keeps_tombstones(tmp_path: Path) -> None:
    """B-6 (R22): a ledger without metadata is collected; what is left of it refuses every add after a kill, once anybody has seen it."""
    child, port = spawn(tmp_path, COLLECTING_CHILD)
    peer = Peer(port)
    peer.request(m.AddRequest(1, 1, 0, KEY, body(1, 0)))
    deadline = time.monotonic() + 10
    while peer.request(m.ReadRequest(2, 1, 0)).status is not Status.NO_LEDGER:
        assert time.monotonic() < deadline
    assert peer.request(m.ReadRequest(3, 1, -1, fence=True, master_key=KEY)).status is Status.NO_LEDGER
    child.kill()
    child.wait()
    peer.close()
    child, port = spawn(tmp_path)
    peer = Peer(port)
    for recovery in (False, True):
        assert peer.request(m.AddRequest(1, 1, 1, KEY, body(1, 1), recovery)).status is Status.FENCED
    child.kill()
    child.wait()
    peer.close()


def test_a_frozen_bookie_goes_on(tmp_path: Path) -> None:
    """B-1: requests that arrive while the process is stopped are answered when it goes on, in order."""
    child, port = spawn(tmp_path)
    peer = Peer(port)
    assert peer.request(m.AddRequest(1, 1, 0, KEY, body(1, 0))).status is Status.OK
    stop_process(child.pid)
    frames = [encode_request(m.AddRequest(2, 1, 1, KEY, body(1, 1)), "v3")]
    frames.append(encode_request(m.ReadRequest(3, 1, -1, fence=True, master_key=KEY), "v3"))
    peer.sock.sendall(b"".join(frames))
    os.kill(child.pid, signal.SIGCONT)
    assert decode_response(peer.frame()[4:], "v3") == m.AddResponse(2, Status.OK, 1, 1)
    assert decode_response(peer.frame()[4:], "v3") == m.ReadResponse(3, Status.OK, 1, -1, body(1, 1))
    child.kill()
    child.wait()
    peer.close()
