"""Helpers for tests of the embedded bookie in this process, with a metadata store in memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.entry.digests import master_key
from bk_core.protocol.entry.layout import encode_body
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec import encode
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import Status

PASSWORD = b"secret"
KEY = master_key(PASSWORD)
NEVER = CollectorOptions(interval_s=3600.0)


def body(ledger_id: int, entry_id: int, payload: bytes = b"payload") -> bytes:
    return encode_body(ledger_id, entry_id, entry_id - 1, len(payload) * (entry_id + 1), payload, DigestType.CRC32C)


class Peer:
    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.file = self.sock.makefile("rb")

    def ask(self, request: m.Request) -> m.Response:
        self.sock.sendall(encode_request(request, "v3"))
        return decode_response(self.file.read(int.from_bytes(self.file.read(4), "big")), "v3")

    def status(self, request: m.Request) -> Status:
        return self.ask(request).status

    def close(self) -> None:
        self.file.close()
        self.sock.close()


@contextmanager
def peer_of(bookie: EmbeddedBookie) -> Iterator[Peer]:
    peer = Peer(bookie.port)
    try:
        yield peer
    finally:
        peer.close()


def add(ledger_id: int, entry_id: int, *, recovery: bool = False, high_priority: bool = False) -> m.AddRequest:
    return m.AddRequest(1, ledger_id, entry_id, KEY, body(ledger_id, entry_id), recovery, high_priority)


def read(ledger_id: int, entry_id: int) -> m.ReadRequest:
    return m.ReadRequest(1, ledger_id, entry_id)


def fence(ledger_id: int) -> m.ReadRequest:
    return m.ReadRequest(1, ledger_id, -1, fence=True, master_key=KEY)


def fill(bookie: EmbeddedBookie, ledger_id: int, entry_ids: Iterable[int]) -> None:
    with peer_of(bookie) as peer:
        for entry_id in entry_ids:
            assert peer.status(add(ledger_id, entry_id)) is Status.OK


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def metadata(*ensembles: tuple[int, tuple[str, ...]], quorum: int | None = None) -> LedgerMetadata:
    size = len(ensembles[0][1])
    fragments = tuple(Fragment(first, ensemble) for first, ensemble in ensembles)
    return LedgerMetadata(size, quorum or size, 1, LedgerState.OPEN, fragments, password=PASSWORD)


def change(store: MemoryStore, ledger_id: int, new: LedgerMetadata) -> None:
    store.write_ledger(ledger_id, encode(new), store.read_ledger(ledger_id).version)


REFILL = BookieOptions(accept_data_loss=True, collector=NEVER, refill_interval_s=0.05)
