"""Reads entries from other bookies with plain, blocking reads, for a bookie that fetches what it has lost."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import BinaryIO

from bk_core.errors import BkError, RemoteProtocolError
from bk_core.net.blocking_entry import entered
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import ReadRequest, ReadResponse, Status
from bk_core.security import Security

TIMEOUT_S = 5.0
PIPELINE_MAX = 32  # requests on their way at once
FRAME_BYTES_MAX = 64 << 20

Resolve = Callable[[BookieId], tuple[str, int]]


class ReplicaReader:
    """Reads from bookies, for use on one thread. It speaks v3, behind what ``security`` asks for; a connection that fails is opened again
    for the next call."""

    def __init__(self, resolve: Resolve, timeout_s: float = TIMEOUT_S, *, security: Security | None = None) -> None:
        self._security = security
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._connections: dict[BookieId, tuple[socket.socket, BinaryIO]] = {}
        self._next_id = 0

    def read(self, bookie: BookieId, ledger_id: int, entry_ids: Sequence[int]) -> dict[int, bytes]:
        """Return bodies by entry id, unverified. Entries that the bookie does not have, or does not answer for, are left out."""
        bodies: dict[int, bytes] = {}
        try:
            sock, file = self._connection(bookie)
            for start in range(0, len(entry_ids), PIPELINE_MAX):
                self._exchange(sock, file, ledger_id, entry_ids[start : start + PIPELINE_MAX], bodies)
        except (OSError, BkError):
            self._drop(bookie)
        return bodies

    def close(self) -> None:
        for bookie in tuple(self._connections):
            self._drop(bookie)

    def _exchange(self, sock: socket.socket, file: BinaryIO, ledger_id: int, entry_ids: Sequence[int], bodies: dict[int, bytes]) -> None:
        expected: dict[int, int] = {}
        frames = []
        for entry_id in entry_ids:
            self._next_id += 1
            expected[self._next_id] = entry_id
            frames.append(encode_request(ReadRequest(self._next_id, ledger_id, entry_id), "v3"))
        sock.sendall(b"".join(frames))
        while expected:
            response = decode_response(_frame(file), "v3")
            if response.request_id not in expected or not isinstance(response, ReadResponse):
                raise RemoteProtocolError("an answer to nothing that was asked")
            entry_id = expected.pop(response.request_id)
            if response.status is Status.OK and response.body is not None:
                bodies[entry_id] = response.body

    def _connection(self, bookie: BookieId) -> tuple[socket.socket, BinaryIO]:
        known = self._connections.get(bookie)
        if known is None:
            address = self._resolve(bookie)
            plain = socket.create_connection(address, timeout=self._timeout_s)
            try:
                sock = entered(plain, self._security, bookie, address[0])
            except BaseException:
                plain.close()
                raise
            known = self._connections[bookie] = (sock, sock.makefile("rb"))
        return known

    def _drop(self, bookie: BookieId) -> None:
        connection = self._connections.pop(bookie, None)
        if connection is not None:
            connection[1].close()
            connection[0].close()


def _frame(file: BinaryIO) -> bytes:
    """Return the next frame without its length. Raises RemoteProtocolError at the end of the stream."""
    prefix = file.read(4)
    size = int.from_bytes(prefix, "big")
    if len(prefix) < 4 or size > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"the connection ended, or a frame of {size} bytes")
    payload = file.read(size)
    if len(payload) < size:
        raise RemoteProtocolError("the connection ended within a frame")
    return payload
