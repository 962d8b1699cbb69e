"""The bookie stand-in of the benchmark answers as the wire says (wire-protocol.md 4, 5): adds, reads, batch reads, v3."""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bk_core import kernels
from bk_core.bookie.children import Child, accepts_connections, free_port
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import ReadLacRequest, ReadLacResponse
from tests.benchmarks.standins import build

PAYLOADS = b"".join(bytes([65 + i]) * 3000 for i in range(5))
LEDGER = 7


@contextmanager
def standin(tmp_path: Path, *arguments: str) -> Iterator[socket.socket]:
    port = free_port()
    child = Child("stand-in", [str(build()), str(port), *arguments], tmp_path / "log")
    try:
        child.wait_until(lambda: accepts_connections(port), 10.0)
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
            yield connection
    finally:
        child.stop()


def adds() -> tuple[bytes, array[int]]:
    offsets = array("q", range(0, len(PAYLOADS) + 1, 3000))
    frames, starts = kernels.frame_adds(PAYLOADS, offsets, LEDGER, 0, -1, 0, int(DigestType.CRC32C), b"", bytes(20), 0)
    return bytes(frames), array("q", bytes(starts))


def answer(connection: socket.socket) -> bytes:
    size = struct.unpack(">I", receive(connection, 4))[0]
    return receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        assert part, "the stand-in closed the connection"
        found += part
    return found


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def test_a_sink_acknowledges_and_keeps_nothing(tmp_path: Path) -> None:
    frames, _ = adds()
    with standin(tmp_path) as connection:
        connection.sendall(frames[:100])  # cut anywhere
        connection.sendall(frames[100:])
        assert [answer(connection) for _ in range(5)] == [struct.pack(">IIqq", 0x02010000, 0, LEDGER, i) for i in range(5)]
        connection.sendall(frame(struct.pack(">Iqq", 0x02020000, LEDGER, 0)))
        assert answer(connection) == struct.pack(">IIqq", 0x02020000, 1, LEDGER, 0)


def test_a_source_replays_what_was_written(tmp_path: Path) -> None:
    frames, starts = adds()
    bodies = [bytes(frames[starts[i] + 28 : starts[i + 1]]) for i in range(5)]
    with standin(tmp_path, str(1 << 20)) as connection:
        connection.sendall(frames + frames)  # what comes again is taken once
        assert [answer(connection)[4:8] for _ in range(10)] == [bytes(4)] * 10
        for entry, code, body in ((3, 0, bodies[3]), (-1, 0, bodies[4]), (5, 2, b"")):
            connection.sendall(frame(struct.pack(">Iqq", 0x02020000, LEDGER, entry)))
            assert answer(connection) == struct.pack(">IIqq", 0x02020000, code, LEDGER, entry) + body
        room = 36 + 2 * (4 + len(bodies[0]))
        for first, count, size, expected in ((1, 3, 1 << 20, 3), (0, 0, room, 2), (0, 0, room - 1, 1), (3, 9, 1 << 20, 2), (0, 5, 0, 1)):
            connection.sendall(frame(struct.pack(">Iqqqiq", 0x02070000, LEDGER, first, 99, count, size)))
            items = b"".join(frame(body) for body in bodies[first : first + expected])
            assert answer(connection) == struct.pack(">IIqqq", 0x02070000, 0, LEDGER, first, 99) + items


def test_requests_that_wait_for_room_are_answered(tmp_path: Path) -> None:
    """More answers than are ever queued at once, asked for before any is taken."""
    payload, reads = bytes(1 << 20), 40
    offsets = array("q", (0, len(payload)))
    frames, _ = kernels.frame_adds(payload, offsets, LEDGER, 0, -1, 0, int(DigestType.CRC32C), b"", bytes(20), 0)
    with standin(tmp_path, str(1 << 22)) as connection:
        connection.sendall(bytes(frames))
        answer(connection)
        connection.sendall(frame(struct.pack(">Iqq", 0x02020000, LEDGER, 0)) * reads)
        assert sum(len(answer(connection)) for _ in range(reads)) == reads * (24 + 36 + len(payload))


def test_a_source_refuses_what_does_not_fit(tmp_path: Path) -> None:
    frames, _ = adds()
    with standin(tmp_path, "7000") as connection:
        connection.sendall(frames)
        assert [struct.unpack(">I", answer(connection)[4:8])[0] for _ in range(5)] == [0, 0, 101, 101, 101]


def test_v3_adds_and_reads(tmp_path: Path) -> None:
    frames, starts = adds()
    body = bytes(frames[starts[0] + 28 : starts[1]])
    request = pb.Request(header=pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txnId=300))
    request.addRequest.MergeFrom(pb.AddRequest(ledgerId=LEDGER, entryId=0, masterKey=bytes(20), body=body))
    read = pb.Request(header=pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=301))
    read.readRequest.MergeFrom(pb.ReadRequest(ledgerId=LEDGER, entryId=0))
    with standin(tmp_path, str(1 << 20)) as connection:
        connection.sendall(frame(request.SerializeToString()) + frame(read.SerializeToString()))
        added, found = (pb.Response.FromString(answer(connection)) for _ in range(2))
        assert (added.header.txnId, added.status, added.addResponse.status, added.addResponse.entryId) == (300, 0, 0, 0)
        assert (found.header.txnId, found.readResponse.ledgerId, found.readResponse.body) == (301, LEDGER, body)
        read.readRequest.entryId = 1
        connection.sendall(frame(read.SerializeToString()))
        assert pb.Response.FromString(answer(connection)).status == 403


def test_the_last_entry_is_told_where_a_client_looks_for_it(tmp_path: Path) -> None:
    frames, starts = adds()
    with standin(tmp_path, str(1 << 20)) as connection:
        connection.sendall(frames)
        assert [answer(connection)[4:8] for _ in range(5)] == [bytes(4)] * 5
        connection.sendall(encode_request(ReadLacRequest(9, LEDGER), "v3"))
        found = decode_response(answer(connection), "v3")
        assert isinstance(found, ReadLacResponse) and found.lac_body is None
        assert found.last_entry_body == bytes(frames[starts[4] + 28 : starts[5]])
