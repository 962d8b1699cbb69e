"""A copy that went bad on real bookies: reads go round it and say so; when all are bad the error names ledger, entry and bookies."""

from __future__ import annotations

import logging
import socket
from array import array

import pytest

import bk_core
from bk_core import kernels
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.inspect import intact_header
from bk_core.errors import ReadError
from bk_core.protocol.entry import digests
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.frames import FrameReader
from bk_core.protocol.wire.messages import AddResponse, Status
from tests.integration.patience import PATIENT

PAYLOAD = b"the bytes that were written"


def add(bookie: str, ledger_id: int, *, corrupt: bool) -> None:
    """Bookies do not check digests (wire-protocol.md 7.1), so a bad copy can simply be sent to one."""
    offsets = array("q", (0, len(PAYLOAD)))
    frames, _ = kernels.frame_adds(PAYLOAD, offsets, ledger_id, 0, -1, 0, int(DigestType.CRC32C), b"", digests.master_key(b""), 0)
    if corrupt:
        frames = frames[:-1] + b"?"
    host, port = bookie.rsplit(":", 1)
    reader = FrameReader()
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(frames)
        while not (payloads := reader.feed(sock.recv(4096))):
            pass
    response = connection.decode_response(payloads[0], "v2")
    assert isinstance(response, AddResponse)
    assert response.status is Status.OK


def ledger_with_bad_copies(bk: bk_core.BookKeeper, bookies: list[str], bad: int) -> int:
    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, tuple(bookies)),)).closed(0, len(PAYLOAD))
    ledger_id = bk.store.new_ledger_id()
    bk.store.create_ledger(ledger_id, metadata_codec.encode(metadata))
    for index, bookie in enumerate(bookies):
        add(bookie, ledger_id, corrupt=index < bad)
    return ledger_id


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_bad_copies_are_passed_over(cluster: LocalCluster, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with bk_core.connect(cluster.uri, protocol=protocol, limits=PATIENT) as bk:
        ledger_id = ledger_with_bad_copies(bk, sorted(cluster.bookie_ids)[:3], bad=2)
        with caplog.at_level(logging.WARNING, logger="bk_core.client"):
            for first in range(3):  # whichever replica is asked first
                with bk.open_ledger(ledger_id, options=ReadOptions(rotation=first)) as reader:
                    assert reader.read(0, 0) == [PAYLOAD]
        assert any("corrupt copy" in line and f"ledger {ledger_id} entry 0" in line for line in caplog.messages)


def test_when_no_copy_is_good_the_error_says_where(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        bookies = sorted(cluster.bookie_ids)[:3]
        ledger_id = ledger_with_bad_copies(bk, bookies, bad=3)
        with bk.open_ledger(ledger_id) as reader, pytest.raises(ReadError) as caught:
            reader.read(0, 0)
    message = str(caught.value)
    assert f"entry 0 of ledger {ledger_id}" in message
    for bookie in bookies:
        assert f"{bookie}: corrupt copy" in message


def test_the_header_of_an_entry_is_that_of_the_first_good_copy(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        bookies = sorted(cluster.bookie_ids)[:3]
        good = ledger_with_bad_copies(bk, bookies, bad=0)
        for first in range(4):
            header = intact_header(bk, good, bk.ledger_metadata(good), 0, rotation=first)
            assert header is not None
            assert (header.bookie, header.length) == (bookies[first % 3], len(PAYLOAD))
        mixed = ledger_with_bad_copies(bk, bookies, bad=2)
        for first in range(3):
            header = intact_header(bk, mixed, bk.ledger_metadata(mixed), 0, rotation=first)
            assert header is not None
            assert (header.bookie, header.length) == (bookies[2], len(PAYLOAD))
        bad = ledger_with_bad_copies(bk, bookies, bad=3)
        assert intact_header(bk, bad, bk.ledger_metadata(bad), 0, rotation=0) is None
        assert intact_header(bk, good, bk.ledger_metadata(good), 1, rotation=0) is None  # nobody has it
