"""Each copy of each entry, read from its bookie alone over a socket of the test's own: no client, no failover, no fence."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing

from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.frames import FrameReader
from bk_core.protocol.wire.messages import AddRequest, ReadRequest, ReadResponse, Response, Status


class Direct:
    """One bookie (its id is host:port), asked over v2."""

    def __init__(self, bookie: str) -> None:
        host, port = bookie.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._reader = FrameReader()

    def close(self) -> None:
        self._socket.close()

    def _ask(self, request: AddRequest | ReadRequest) -> Response:
        self._socket.sendall(connection.encode_request(request, "v2"))
        while not (frames := self._reader.feed(self._socket.recv(1 << 16))):
            pass
        return connection.decode_response(frames[0], "v2")

    def read(self, ledger_id: int, entry_id: int) -> tuple[Status, bytes | None]:
        response = self._ask(ReadRequest(0, ledger_id, entry_id))
        assert isinstance(response, ReadResponse)
        return response.status, response.body

    def add(self, request: AddRequest) -> Status:
        return self._ask(request).status


def missing_replicas(ledger_id: int, closed: LedgerMetadata, payload: Callable[[int], bytes]) -> Iterator[tuple[int, str, str]]:
    """(entry, bookie, what is wrong) for every position of a CLOSED ledger whose copy is absent or not what was written."""
    distribution = Distribution(closed.ensemble_size, closed.write_quorum_size, closed.ack_quorum_size)
    ends = [f.first_entry_id - 1 for f in closed.fragments[1:]] + [closed.last_entry_id]
    for fragment, end in zip(closed.fragments, ends, strict=True):
        for position, bookie in enumerate(fragment.ensemble):
            with closing(Direct(bookie)) as direct:
                for entry_id in range(fragment.first_entry_id, min(end, closed.last_entry_id) + 1):
                    if not distribution.holds(position, entry_id):
                        continue
                    status, body = direct.read(ledger_id, entry_id)
                    if body is None:
                        yield entry_id, bookie, status.name
                    elif layout.decode_body(body, ledger_id, entry_id, closed.digest_type).payload != payload(entry_id):
                        yield entry_id, bookie, "another payload"
