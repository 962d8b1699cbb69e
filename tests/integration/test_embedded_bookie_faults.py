"""The embedded bookie when its disk, its metadata store or the other replicas fail."""

from __future__ import annotations

import errno
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie import standby
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.identity import loss_file, version_file
from bk_core.bookie.refill import is_sound
from bk_core.bookie.replicas import ReplicaReader
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BookieIOError, BookieUnavailableError, MetadataUnavailableError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import Versioned
from bk_core.protocol.bookie import LedgerRecord
from bk_core.protocol.ledger.metadata_codec import encode
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import REFILL, add, body, change, eventually, fence, fill, metadata, peer_of, read


class FaultyStore(MemoryStore):
    """A metadata store that fails while ``down`` is set, and lists ledgers that are gone."""

    down = False
    refused = 0
    ghosts: tuple[int, ...] = ()

    def list_ledgers(self) -> Iterator[int]:
        self._check_up()
        return iter(sorted({*super().list_ledgers(), *self.ghosts}))

    def read_ledger(self, ledger_id: int) -> Versioned:
        self._check_up()
        return super().read_ledger(ledger_id)

    def _check_up(self) -> None:
        if self.down:
            self.refused += 1
            raise MetadataUnavailableError("the store is down")


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    store = FaultyStore(uuid.uuid4().hex)
    store.initialize_cluster()
    yield store
    store.close()


# --- the disk -----------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_and_recovers(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-1, B-4, B-7, B-11: nothing is confirmed or denied that is not on disk; a fence that could not be kept yet holds all the same."""
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    with EmbeddedBookie(tmp_path, store=store) as bookie, peer_of(bookie) as peer:
        assert bookie._server is not None
        storage = bookie._server.storage
        commit = storage._commit

        def fail(batch: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(storage, "_commit", fail)
        assert peer.status(add(1, 0)) is Status.IO_ERROR
        assert peer.status(fence(1)) is Status.IO_ERROR
        assert peer.status(fence(2)) is Status.IO_ERROR
        assert eventually(lambda: store.bookies().readonly == (bookie.bookie_id,))
        assert peer.status(add(1, 1, recovery=True, high_priority=True)) is Status.READ_ONLY
        monkeypatch.setattr(storage, "_commit", commit)
        assert eventually(lambda: store.bookies().writable == (bookie.bookie_id,))
        assert {peer.status(add(ledger_id, 1)) for ledger_id in (1, 2)} == {Status.FENCED}
    with EmbeddedBookie(tmp_path, store=store) as bookie, peer_of(bookie) as peer:
        assert {peer.status(add(ledger_id, 1)) for ledger_id in (1, 2)} == {Status.FENCED}


def test_a_file_system_that_cannot_be_asked_counts_as_full(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-11."""

    def fail(_path: object) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("bk_core.bookie.directory.os.statvfs", fail)
    with EmbeddedBookie(tmp_path, store=store) as bookie, peer_of(bookie) as peer:
        assert store.bookies().readonly == (bookie.bookie_id,)
        assert peer.status(m.BookieInfoRequest(1)) is Status.IO_ERROR
        assert peer.status(add(1, 0)) is Status.READ_ONLY


def test_a_ledger_that_cannot_be_read_stops_neither_collection_nor_refill(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B-7, B-12, RC-27: the others are seen to; it is tried again."""
    options = replace(REFILL, collector=CollectorOptions(interval_s=0.02, moved_interval_s=0.0))
    with EmbeddedBookie(tmp_path / "b", store=store) as other:
        with EmbeddedBookie(tmp_path / "a", store=store) as bookie:
            pair = metadata((0, (bookie.bookie_id, other.bookie_id)))
            for ledger_id in (1, 2):
                store.create_ledger(ledger_id, encode(pair))
                fill(other, ledger_id, [0])
        shutil.rmtree(tmp_path / "a" / "current")
        with EmbeddedBookie(tmp_path / "a", store=store, options=options) as bookie, peer_of(bookie) as peer:
            for ledger_id in (3, 4):
                fill(bookie, ledger_id, [0])
            bad = {1, 3}
            ledger = LmdbBookieStorage.ledger

            def damaged(self: LmdbBookieStorage, ledger_id: int) -> LedgerRecord | None:
                if ledger_id in bad and self is server.storage:
                    raise BookieIOError("damaged ledger record", ledger_id=ledger_id)
                return ledger(self, ledger_id)

            server = bookie._server
            assert server is not None
            monkeypatch.setattr(LmdbBookieStorage, "ledger", damaged)
            for ledger_id in (1, 2):
                change(store, ledger_id, pair.closed(0, 7))
            assert eventually(lambda: peer.status(read(4, 0)) is Status.NO_LEDGER)
            assert eventually(lambda: peer.status(read(2, 1)) is Status.NO_ENTRY)
            assert {peer.status(read(ledger_id, 0)) for ledger_id in (1, 3)} == {Status.IO_ERROR}
            bad.clear()
            assert eventually(lambda: peer.status(read(3, 0)) is Status.NO_LEDGER)
            assert eventually(lambda: peer.status(read(1, 0)) is Status.OK)
            assert eventually(lambda: not loss_file(tmp_path / "a").exists())


class HeldStore(MemoryStore):
    """A store in which the metadata of a ledger is not answered until ``free`` is set. ``asked`` is set when somebody waits."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked, self.free = threading.Event(), threading.Event()
        self.free.set()

    def read_ledger(self, ledger_id: int) -> Versioned:
        if not self.free.is_set():
            self.asked.set()
            assert self.free.wait(20)
        return super().read_ledger(ledger_id)


def test_b11_a_refill_does_not_keep_back_that_the_bookie_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-11: a refill may go on for hours, and fill the disk."""
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    store = HeldStore(uuid.uuid4().hex)
    store.initialize_cluster()
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        store.create_ledger(1, encode(metadata((0, (bookie.bookie_id, "127.0.0.1:1")))))
    shutil.rmtree(tmp_path / "current")
    with EmbeddedBookie(tmp_path, store=store, options=REFILL) as bookie:
        store.free.clear()
        try:
            assert store.asked.wait(20)
            standby.tell(tmp_path, True)
            assert eventually(lambda: store.bookies().readonly == (bookie.bookie_id,))
            standby.tell(tmp_path, False)
            assert eventually(lambda: store.bookies().writable == (bookie.bookie_id,))
        finally:
            store.free.set()
    store.close()


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before the loop", "start of the loop", "start of the storage", "start of the worker"])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_start_that_fails_before_its_loop_runs_is_undone(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    """The caller is told why, and port, storage and lock are free again."""
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        port = bookie.port
    failing = {"start of the storage": "bookie-store", "start of the worker": "bookie-metadata"}.get(where, "bookie-loop")
    start, make = threading.Thread.start, threading.Thread.__init__

    def no_start(thread: threading.Thread) -> None:
        if thread.name == failing:
            raise error
        start(thread)

    def no_thread(thread: threading.Thread, *args: Any, **options: Any) -> None:
        if options.get("name") == failing:
            raise error
        make(thread, *args, **options)

    bookie = EmbeddedBookie(tmp_path, store=store)
    with monkeypatch.context() as patch, pytest.raises(type(error)) as raised:
        if where == "before the loop":
            patch.setattr(threading.Thread, "__init__", no_thread)
        else:
            patch.setattr(threading.Thread, "start", no_start)
        bookie.start()
    assert raised.value is error
    bookie.close()
    assert not store.bookies().writable
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bookie-")]
    with socket.socket() as probe:
        assert probe.connect_ex((bookie.host, port)) != 0
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        fill(bookie, 1, [0])


def test_a_start_that_is_undone_ends_a_loop_that_comes_late(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may strike while the thread begins."""
    start, late = threading.Thread.start, threading.Event()
    bookie = EmbeddedBookie(tmp_path, store=store)
    serve, undone = bookie._serve, bookie.failed.set

    def wait_and_serve(*args: Any) -> None:
        assert late.wait(10)
        serve(*args)

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "bookie-loop":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bookie, "_serve", wait_and_serve)
        patch.setattr(bookie.failed, "set", lambda: (undone(), late.set()))
        patch.setattr(threading.Thread, "start", interrupted)
        bookie.start()
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        fill(bookie, 1, [0])


# --- the metadata store -------------------------------------------------------------------------------------------


def test_a_loss_cannot_be_accepted_without_the_metadata_store(store: FaultyStore, tmp_path: Path) -> None:
    """B-10, RC-26: nothing is served before every ledger is marked, and a start that fails half-way is seen as a loss again."""
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        store.create_ledger(1, encode(metadata((0, (bookie.bookie_id,)))))
        fill(bookie, 1, [0])
    shutil.rmtree(tmp_path / "current")
    store.down = True
    with pytest.raises(MetadataUnavailableError):
        EmbeddedBookie(tmp_path, store=store, options=REFILL).start()
    assert not version_file(tmp_path).exists()
    with socket.socket() as probe:
        assert probe.connect_ex((bookie.host, bookie.port)) != 0
    store.down, store.ghosts = False, (9,)
    with EmbeddedBookie(tmp_path, store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
        assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE
        assert peer.status(read(9, 0)) is Status.NO_LEDGER
        store.down, store.refused = True, 0
        assert eventually(lambda: store.refused > 2)
        store.down = False
        change(store, 1, metadata((0, (bookie.bookie_id,))).closed(-1, 0))
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_ENTRY)


def test_the_metadata_thread_outlives_errors_of_the_store(store: FaultyStore, tmp_path: Path) -> None:
    """B-12: a store that does not answer is no proof that a ledger is gone."""
    often = BookieOptions(collector=CollectorOptions(interval_s=0.02))
    with EmbeddedBookie(tmp_path, store=store, options=often) as bookie, peer_of(bookie) as peer:
        store.down = True
        fill(bookie, 1, [0])
        assert eventually(lambda: store.refused > 2)
        assert peer.status(read(1, 0)) is Status.OK
        store.down = False
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_LEDGER)


# --- other replicas -----------------------------------------------------------------------------------------------


class Impostor:
    """Answers every connection with the same bytes and closes it."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, args=(answer,))
        self._thread.start()

    def _serve(self, answer: bytes) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                if not connection.recv(1 << 16):
                    return
                connection.sendall(answer)

    def close(self) -> None:
        with socket.create_connection(self.address):
            pass
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x00",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x20short",
        b"\x00\x00\x00\x03\xff\xff\xff",
        bytes.fromhex("0000000b0a0608031009180810 9403".replace(" ", "")),  # START_TLS of request 8
    ],
)
def test_replicas_that_answer_nonsense_are_passed_over(answer: bytes) -> None:
    """RC-27: whatever another bookie sends, it is no entry and no end."""
    impostor = Impostor(answer)
    reader = ReplicaReader(lambda bookie: impostor.address, timeout_s=5.0)
    assert [reader.read("x", 1, [0, 1]) for _ in range(2)] == [{}, {}]
    reader.close()
    impostor.close()


def test_replicas_that_cannot_be_reached() -> None:
    def unknown(bookie: str) -> tuple[str, int]:
        raise BookieUnavailableError(f"no address is known for {bookie}")

    assert ReplicaReader(unknown).read("x", 1, [0]) == {}
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    assert ReplicaReader(lambda bookie: address).read("x", 1, [0]) == {}


def test_a_connection_is_opened_again(tmp_path: Path) -> None:
    with EmbeddedBookie(tmp_path) as bookie:
        fill(bookie, 1, range(100))
        reader = ReplicaReader(lambda name: (bookie.host, bookie.port))
        assert reader.read("x", 1, range(120)) == {entry_id: body(1, entry_id) for entry_id in range(100)}
    assert reader.read("x", 1, [0]) == {}
    with EmbeddedBookie(tmp_path):
        assert list(reader.read("x", 1, [0])) == [0]
        reader.close()


def test_copies_are_checked_before_they_are_multiplied() -> None:
    """RC-27, RD-8."""
    ledger = metadata((0, ("a", "b")))
    sound = body(1, 3)
    assert is_sound(sound, 1, 3, ledger)
    for wrong in (sound[:-1] + b"?", body(1, 4), body(2, 3), b""):
        assert not is_sound(wrong, 1, 3, ledger)
    assert is_sound(sound, 1, 3, replace(ledger, stores_password=False)) and not is_sound(
        wrong, 1, 3, replace(ledger, stores_password=False)
    )
    old = replace(ledger, password=b"", stores_password=False, has_digest=False)  # META-15: only the ids can be compared
    assert is_sound(sound[:-1] + b"?", 1, 3, old)
    assert not is_sound(body(1, 4), 1, 3, old) and not is_sound(b"", 1, 3, old)
