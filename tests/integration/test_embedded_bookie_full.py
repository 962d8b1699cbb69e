"""The embedded bookie on a file system that is really full: filled by itself, by other files, and killed there."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.journal import NAMES
from bk_core.errors import BookieIOError
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import decode_response, encode_request
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import KEY, Peer, add, body, eventually, fence, peer_of, read
from tests.integration.small_disk import fill_with, free_bytes, small_disk

DISK_MIB = 128
RESERVE = 16 << 20
OPTIONS = BookieOptions(disk_reserve_bytes=RESERVE)
LEDGERS = (1, 2, 3)
PATIENCE_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MIB) as directory:
        yield directory


class Outcome:
    """The answers to the adds of one ledger."""

    def __init__(self, ledger_id: int, size: int) -> None:
        self.ledger_id = ledger_id
        self.size = size
        self.taken: list[int] = []
        self.refused: list[Status] = []
        self._sent = 0

    def body(self, entry_id: int) -> bytes:
        return body(self.ledger_id, entry_id, random.Random(f"{self.ledger_id} {entry_id}").randbytes(self.size))

    def flood(self, port: int, entries_max: int = 1 << 40) -> None:
        """Adds on one connection, none of which waits for an answer, until one is refused."""
        with socket.create_connection(("127.0.0.1", port)) as sock, sock.makefile("rb") as file:
            answers = threading.Thread(target=self._count, args=(file,))
            answers.start()
            while not self.refused and self._sent < entries_max:
                request = m.AddRequest(1, self.ledger_id, self._sent, KEY, self.body(self._sent))
                self._sent += 1
                sock.sendall(encode_request(request, "v3"))
            sock.sendall(encode_request(read(self.ledger_id, 0), "v3"))  # so that an answer comes after the last add was counted
            answers.join()

    def _count(self, file: Any) -> None:
        last = False
        while not last or len(self.taken) + len(self.refused) < self._sent:
            response = decode_response(file.read(int.from_bytes(file.read(4), "big")), "v3")
            if not isinstance(response, m.AddResponse):
                last = True
            elif response.status is Status.OK:
                self.taken.append(response.entry_id)
            else:
                self.refused.append(response.status)

    def require_readable(self, peer: Peer) -> None:
        for entry_id in self.taken:
            assert peer.ask(read(self.ledger_id, entry_id)).body == self.body(entry_id)  # type: ignore[union-attr]


def _flood_all(port: int, size: int) -> list[Outcome]:
    outcomes = [Outcome(ledger_id, size) for ledger_id in LEDGERS]
    threads = [threading.Thread(target=outcome.flood, args=(port,)) for outcome in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


_CHILD = f"""
import sys, time
from pathlib import Path
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
bookie = EmbeddedBookie(Path(sys.argv[1]), options=BookieOptions(disk_reserve_bytes={RESERVE})).start()
print(bookie.port, flush=True)
time.sleep(3600)
"""


class Killed:
    """A bookie in a process of its own that ends by SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _CHILD, str(directory)], stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL
        assert self._process.stdout is not None
        self._process.stdout.close()


def _collect(bookie: EmbeddedBookie, ledger_id: int) -> None:
    server = bookie._server
    assert server is not None
    bookie._on_loop(lambda: server.change(server.machine.collect(ledger_id, server.now_ms())))


def _is_writable(bookie: EmbeddedBookie) -> bool:
    server = bookie._server
    assert server is not None
    return bookie._on_loop(lambda: not server.machine.read_only)


def _free_inside(bookie: EmbeddedBookie) -> int:
    assert bookie._server is not None
    return bookie._server.storage.free_inside_bytes()


@pytest.mark.parametrize("size", [pytest.param(5_000, marks=pytest.mark.deep), 100_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_b11_bke_8_it_takes_nothing_that_it_cannot_write(disk: Path, size: int) -> None:
    """B-11, BKE-8: it ends read-only with room left, and not one add was taken and then failed for want of room. All are there after a
    kill. Deleted ledgers make it writable again (BKE-9)."""
    with Killed(disk / "data") as port:
        outcomes = _flood_all(port, size)
        assert {status for outcome in outcomes for status in outcome.refused} == {Status.READ_ONLY}
        assert sum(len(outcome.taken) * size for outcome in outcomes) > 20 << 20
        assert free_bytes(disk) > RESERVE // 8
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        for outcome in outcomes:
            outcome.require_readable(peer)
        for outcome in outcomes[:2]:
            _collect(bookie, outcome.ledger_id)
        assert eventually(lambda: _is_writable(bookie), PATIENCE_S)
        again = Outcome(4, size)
        again.flood(bookie.port, 4_000_000 // size)
        assert len(again.taken) == 4_000_000 // size
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        outcomes[2].require_readable(peer)
        again.require_readable(peer)


def _flood_while_others_fill(disk: Path) -> list[Outcome]:
    """Adds go on while the disk is filled; then the bookie is killed."""
    with Killed(disk / "data") as port:
        outcomes = [Outcome(ledger_id, 30_000) for ledger_id in LEDGERS]
        threads = [threading.Thread(target=one.flood, args=(port,)) for one in outcomes]
        for thread in threads:
            thread.start()
        assert eventually(lambda: all(len(one.taken) > 50 for one in outcomes), PATIENCE_S)
        fill_with(disk / "others")
        for thread in threads:
            thread.join()
        assert {status for one in outcomes for status in one.refused} <= {Status.READ_ONLY, Status.IO_ERROR}
    return outcomes


def _flood_and_stop(disk: Path) -> list[Outcome]:
    """All that was taken is in the database, which has nothing free."""
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie:
        outcomes = [Outcome(ledger_id, 30_000) for ledger_id in LEDGERS]
        for one in outcomes:
            one.flood(bookie.port, 200)
    return outcomes


@pytest.mark.parametrize("before", [_flood_while_others_fill, _flood_and_stop])
def test_b3_b11_bke_9_a_disk_that_others_filled_to_the_last_byte(disk: Path, before: Callable[[Path], list[Outcome]]) -> None:
    """B-3, B-11, BKE-9: whatever hits the full disk is not confirmed, what was confirmed is there after a kill, and it starts there: it
    reads, fences what it knows, drops deleted ledgers, and is writable again once the other files have gone."""
    outcomes = before(disk)
    fill_with(disk / "others")
    assert free_bytes(disk) == 0
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        for outcome in outcomes:
            outcome.require_readable(peer)
        fill_with(disk / "others")  # what the journal has given back: more than the reserve if the bookie was killed early
        assert eventually(lambda: not _is_writable(bookie), PATIENCE_S)
        assert peer.status(add(9, 0)) is Status.READ_ONLY
        _collect(bookie, 1)
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_LEDGER, PATIENCE_S)
        assert peer.status(fence(2)) is Status.OK
        if before is _flood_and_stop:
            assert eventually(lambda: _free_inside(bookie) > 5_000_000, PATIENCE_S)
        (disk / "others").unlink()
        assert eventually(lambda: _is_writable(bookie), PATIENCE_S)
        assert peer.status(add(9, 0)) is Status.OK
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        for outcome in outcomes[1:]:
            outcome.require_readable(peer)
        assert peer.status(read(1, 0)) is Status.NO_LEDGER
        assert peer.status(add(2, 1_000_000)) is Status.FENCED
        assert peer.status(read(9, 0)) is Status.OK


def test_bke_9_a_journal_as_long_as_the_disk_makes_room(disk: Path) -> None:
    """BKE-9: a bookie that left its disk full starts with what its journal gives back, and takes new ledgers for deleted ones although the
    other files stay."""
    outcome = Outcome(1, 100_000)
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie:
        outcome.flood(bookie.port, 200)
    for name in NAMES:
        with open(disk / "data" / "current" / name, "ab") as file:  # as long as an earlier bookie's
            os.posix_fallocate(file.fileno(), 0, 32 << 20)
    fill_with(disk / "others")
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        outcome.require_readable(peer)
        assert eventually(lambda: _is_writable(bookie), PATIENCE_S)
        assert peer.status(add(2, 0)) is Status.OK


def test_a_new_bookie_on_a_full_disk_says_so_in_one_line(disk: Path) -> None:
    (disk / "data").mkdir()
    fill_with(disk / "others")
    with pytest.raises(BookieIOError, match=r"No space left on device.*make room") as raised:
        EmbeddedBookie(disk / "data", options=OPTIONS).start()
    assert "\n" not in str(raised.value) and str(disk) in str(raised.value)
    (disk / "others").unlink()
    with EmbeddedBookie(disk / "data", options=OPTIONS) as bookie, peer_of(bookie) as peer:
        assert peer.status(add(1, 0)) is Status.OK
