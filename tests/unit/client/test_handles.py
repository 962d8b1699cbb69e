"""The promises of a write handle about buffers, order and bad input, against bookies on sockets in this process."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.ledger.add_window import PIECE_ENTRIES_MAX
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.errors import (
    BkError,
    BlockingCallError,
    ClientClosedError,
    DuplicateEntryIdError,
    InvalidArgumentError,
    LeftOpenError,
    NotEnoughBookiesError,
)
from bk_core.metadata import open_store
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[EmbeddedBookie]]]:
    address = f"memory://{tmp_path.name}"
    store = open_store(address)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    yield address, list(bookies)
    for bookie in bookies:
        bookie.close()
    store.close()


@pytest.fixture
def uri(cluster: tuple[str, list[EmbeddedBookie]]) -> str:
    return cluster[0]


def test_flush_waits_for_empty_payloads_too(uri: str) -> None:
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        pending = [ledger.append_future(b"") for _ in range(200)]
        ledger.flush()
        assert all(f.done() for f in pending)
        assert ledger.last_add_confirmed == 199


@pytest.mark.parametrize("ending", ["acknowledged", "failed"])
def test_a_flush_returns_when_all_futures_are_done(
    cluster: tuple[str, list[EmbeddedBookie]], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the reactor is held up right behind what lets the flush go."""
    release = WriteHandle._release

    def slowly(handle: WriteHandle, *what: Any) -> None:
        release(handle, *what)
        threading.Event().wait(0.05)

    monkeypatch.setattr(WriteHandle, "_release", slowly)
    uri, bookies = cluster
    with bk_core.connect(uri) as bk:
        ledger = bk.create_ledger()
        if ending == "failed":
            for bookie in bookies:
                bookie.close()
        pending = [ledger.append_future(b"x") for _ in range(3)]
        with suppress(BkError):
            ledger.flush()
        assert [future.done() for future in pending] == [True] * 3
        ledger.abandon()


def test_a_callback_of_the_last_append_may_flush(uri: str) -> None:
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        flushed: Future[None] = Future()
        ledger.append_future(b"x").add_done_callback(lambda _: flushed.set_result(ledger.flush()))
        assert flushed.result(30) is None


def test_a_buffer_may_be_reused_as_soon_as_append_returns(uri: str) -> None:
    with bk_core.connect(uri) as bk:
        with bk.create_ledger() as ledger:
            buffer, offsets = bytearray(b"first"), array("q", (0, 5))
            done = ledger.append_run_future(buffer, offsets)
            buffer[:], offsets[1] = b"wrong", 1
            done.result(30)
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"first"]


@pytest.mark.parametrize("offsets", [(0,), (0, 3, 2), (-1, 3), (0, 9)])
def test_offsets_that_make_no_sense_are_refused_before_anything_is_sent(uri: str, offsets: tuple[int, ...]) -> None:
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        with pytest.raises(InvalidArgumentError):
            ledger.append_run_future(b"abcdef", array("q", offsets))
        assert ledger.append(b"fine") == 0


def test_runs_of_several_threads_stay_whole_under_back_pressure(uri: str) -> None:
    """A run longer than what may be in flight goes in pieces; nobody else's entries come between them."""
    count = 3000
    with bk_core.connect(uri, limits=Limits(unretired_entries_max=1500)) as bk:
        with bk.create_ledger() as ledger, ThreadPoolExecutor(4) as threads:

            def run(letter: bytes) -> int:
                return ledger.append_run(letter * count, array("q", range(count + 1)))

            ends = sorted(threads.map(run, (b"a", b"b", b"c", b"d")))
        assert ends == [count * (i + 1) - 1 for i in range(4)]
        with bk.open_ledger(ledger.ledger_id) as reader:
            written = b"".join(reader.read(0, ends[-1]))
    assert sorted({written[i : i + count] for i in range(0, 4 * count, count)}) == [c * count for c in (b"a", b"b", b"c", b"d")]


def test_an_append_to_a_closed_handle_says_so(uri: str) -> None:
    with bk_core.connect(uri) as bk:
        ledger = bk.create_ledger()
        ledger.close()
        with pytest.raises(ClientClosedError):
            ledger.append(b"late")


def test_a_future_cannot_be_cancelled_under_the_writer(uri: str) -> None:
    """I-14: the entry is on its way whatever its caller wants now, and those behind it get their answers."""
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        pending = [ledger.append_future(b"x") for _ in range(20)]
        assert not any(future.cancel() for future in pending)
        assert [future.result(30) for future in pending] == list(range(20))


def test_a_completion_callback_cannot_wait_for_a_future(uri: str) -> None:
    """It runs on the thread that takes in the answers, which would stand still for good."""
    seen: Future[list[type[BaseException]]] = Future()

    def callback(_done: Future[int]) -> None:
        pending, errors = other.append_future(b"audit"), []
        for wait in (lambda: pending.result(60), lambda: pending.exception(60), lambda: pending.result(0)):
            try:
                wait()
            except (BlockingCallError, FutureTimeoutError) as error:
                errors.append(type(error))
        seen.set_result(errors)

    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger, bk.create_ledger() as other:
        release = threading.Event()
        bk._session.reactor.post(lambda: release.wait(30))  # the answer comes when the callback is there
        future = ledger.append_future(b"x")
        future.add_done_callback(callback)
        release.set()
        assert seen.result(30) == [BlockingCallError, BlockingCallError, FutureTimeoutError]
        assert other.append(b"y") == 1


@contextmanager
def without_bookies(cluster: tuple[str, list[EmbeddedBookie]]) -> Iterator[WriteHandle]:
    """A writer whose next append fails: two of its three bookies are gone."""
    address, bookies = cluster
    with bk_core.connect(address) as bk, bk.create_ledger() as ledger:
        ledger.append(b"x")
        for bookie in bookies[:2]:
            bookie.close()
        yield ledger


@pytest.mark.parametrize("known", [True, False])
def test_leaving_the_block_tells_that_an_append_failed(cluster: tuple[str, list[EmbeddedBookie]], known: bool) -> None:
    """It fails before the end of the block, or while the ledger is being closed."""
    failed = threading.Event()
    with pytest.raises(NotEnoughBookiesError), without_bookies(cluster) as ledger:
        ledger.append_future(b"lost").add_done_callback(lambda _: failed.set())
        assert not known or failed.wait(30)


@pytest.mark.parametrize(
    "told",
    [
        lambda ledger: ledger.append(b"lost"),
        lambda ledger: ledger.append_future(b"lost").result(30),
        lambda ledger: [ledger.append_future(b"lost") for _ in range(9)][4].result(30),
        lambda ledger: (ledger.append_future(b"lost"), ledger.flush()),
    ],
)
def test_leaving_the_block_tells_nothing_twice(cluster: tuple[str, list[EmbeddedBookie]], told: Callable[[WriteHandle], object]) -> None:
    with without_bookies(cluster) as ledger, pytest.raises(NotEnoughBookiesError):
        told(ledger)


@pytest.mark.parametrize("known", [True, False])
def test_closing_tells_once_that_an_append_failed(cluster: tuple[str, list[EmbeddedBookie]], known: bool) -> None:
    """And closes the ledger all the same."""
    with without_bookies(cluster) as ledger:
        failed = threading.Event()
        ledger.append_future(b"lost").add_done_callback(lambda _: failed.set())
        assert not known or failed.wait(30)
        with pytest.raises(NotEnoughBookiesError):
            ledger.close()
        metadata = ledger.close()
        assert metadata == ledger.metadata and (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)


@pytest.mark.parametrize(
    "look",
    [
        lambda future: future.exception(30),
        lambda future: future.add_done_callback(lambda done: done.exception()),
    ],
)
def test_closing_tells_nothing_that_a_future_has_told(cluster: tuple[str, list[EmbeddedBookie]], look: Callable[[Any], object]) -> None:
    with without_bookies(cluster) as ledger:
        future, failed = ledger.append_future(b"lost"), threading.Event()
        look(future)
        future.add_done_callback(lambda _: failed.set())
        assert failed.wait(30)
        assert ledger.close().last_entry_id == 0


def test_giving_up_is_no_loss(cluster: tuple[str, list[EmbeddedBookie]]) -> None:
    with without_bookies(cluster) as ledger:
        ledger.append_future(b"lost")
        assert ledger.close(forced=True).last_entry_id == 0
        ledger.close()


def test_a_long_run_is_not_acknowledged_when_a_piece_of_it_was_refused(uri: str) -> None:
    """WR-2, I-5: the first ids are taken, the last are not; an OK would claim entries that are another's."""
    with bk_core.connect(uri) as bk, bk.create_ledger(caller_ids=True) as ledger:
        first = ledger.append_many_future([b"old"] * PIECE_ENTRIES_MAX, entry_id=0)
        second = ledger.append_many_future([b"new"] * (PIECE_ENTRIES_MAX + 5), entry_id=0)
        assert first.result(30) == PIECE_ENTRIES_MAX - 1
        with pytest.raises(DuplicateEntryIdError):
            second.result(30)


def test_who_fills_the_gap_does_not_queue_behind_those_who_wait_for_it(uri: str) -> None:
    """WR-15, WR-2: entries 1 to 10 are all that may be unacknowledged; only entry 0 makes room for entry 11."""
    with bk_core.connect(uri, operation_timeout_s=60, limits=Limits(unretired_entries_max=10)) as bk:
        with bk.create_ledger(caller_ids=True) as ledger, ThreadPoolExecutor(1) as threads:
            for entry_id in range(1, 11):
                ledger.append_future(b"x", entry_id=entry_id)
            waits = threading.Event()
            room = ledger._wait_for_room

            def observed(*arguments: Any) -> None:
                waits.set()
                room(*arguments)

            ledger._wait_for_room = observed  # type: ignore[method-assign]
            behind = threads.submit(lambda: ledger.append(b"x", entry_id=11))
            assert waits.wait(30)
            assert ledger.append(b"gap", entry_id=0) == 0
            assert behind.result(10) == 11


def test_a_closed_handle_may_be_closed_again_after_its_client(uri: str) -> None:
    with bk_core.connect(uri) as client:
        ledger = client.create_ledger()
        ledger.append(b"x")
        closed = ledger.close()
        open_still = client.create_ledger()
    assert ledger.close() == ledger.close(forced=True) == closed
    with pytest.raises(LeftOpenError, match=r"ledger \d+, which stays open: what was acknowledged is safe, and recover_ledger\(\d+\)"):
        open_still.close()


def test_closing_the_client_leaves_the_ledger_as_it_is(uri: str) -> None:
    """WR-6: what is in flight fails; connections that the client itself closes are no failure of bookies, and no metadata is written."""
    store = open_store(uri)
    bk = bk_core.connect(uri)
    ledger = bk.create_ledger()
    ledger.append(b"one")
    before = store.read_ledger(ledger.ledger_id)
    busy, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        busy.set()
        go_on.wait(30)

    bk._session.reactor.post(occupy)
    assert busy.wait(30)
    pending = ledger.append_future(b"two")
    closing = threading.Thread(target=bk.close)
    closing.start()
    go_on.set()
    closing.join()
    assert isinstance(pending.exception(30), BkError)
    assert store.read_ledger(ledger.ledger_id) == before
    store.close()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_belongs_to_the_process_is_neither_copied_nor_pickled(uri: str, again: Callable[[object], object]) -> None:
    """A copy that was dropped closed the client, and abandoned the ledger, of its original."""
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        log = bk.create_log("events")
        with log.writer() as writer, log.reader() as reader, bk.open_ledger(ledger.ledger_id) as opened:
            for one in (bk, ledger, log, writer, reader, opened):
                with pytest.raises(TypeError, match=f"a {type(one).__name__} belongs to the process that made it"):
                    again(one)
            gc.collect()
            writer.append(b"x")
            ledger.append(b"y")
