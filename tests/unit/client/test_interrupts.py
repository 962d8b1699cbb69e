"""Ctrl-C at every point of every blocking call, one after the other.

CPython raises KeyboardInterrupt where a Python function begins and where a function written in C has returned (and where a loop turns). A
profile function is called at just these points, so it can raise it at each in turn. After each the handle works on, nothing is counted
that is not there, and what was acknowledged is there whole and once. Real signals, which strike waits too: integration/test_interrupts.py.

Long calls are struck at each n-th point only. Each run begins elsewhere, so that all are met over time: a failure shows its seed, and
BK_SEED plays it again.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import bk_core
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.store import FileStore
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogEntries, LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BkError, DuplicateEntryIdError, LogExistsError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties

SEED = int(os.environ.get("BK_SEED") or random.SystemRandom().randrange(1_000_000))
PATIENT = Limits(explicit_lac_ns=5_000_000, add_timeout_ns=120_000_000_000, read_timeout_ns=120_000_000_000)
"""No request is given up because the machine is busy; and none that an interrupt has lost is made good by its timeout."""
POINTS_MAX = 20_000  # of one call; more than there can be


class Struck(KeyboardInterrupt):
    """Told apart from somebody's real one."""


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=PATIENT, operation_timeout_s=60) as bk:
        yield bk


def struck(point: int, call: Callable[[], object], within: tuple[str, ...] = ("",)) -> bool:
    """``call`` with an interrupt at its ``point``-th point in files whose names end so; False if it ended before.

    Where something goes (in a destructor, in the callback of a weak reference) Python prints what is raised and drops it.
    """
    left, struck_ = point, False

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, struck_
        if event not in ("call", "c_return") or struck_ or not frame.f_code.co_filename.endswith(within):
            return
        if not left:
            struck_ = True
            raise Struck
        left -= 1

    def dropped(what: Any) -> None:
        if not isinstance(what.exc_value, Struck):
            told(what)

    before, told = sys.getprofile(), sys.unraisablehook
    sys.unraisablehook = dropped
    sys.setprofile(look)
    try:
        call()
    except Struck:
        pass
    finally:
        sys.setprofile(before)
        sys.unraisablehook = told
    return struck_


def everywhere(
    call: Callable[[int], object],
    after: Callable[[int], object] = lambda point: None,
    step: int = 1,
    within: tuple[str, ...] = ("",),
) -> int:
    """``call`` once for each point in it (or each ``step``-th, from one of the first ``step``); how many there were."""
    first = random.Random(f"{SEED} {step}").randrange(step)
    print(f"each {step}. point from {first}: BK_SEED={SEED}")
    for point in range(first, POINTS_MAX, step):
        again = struck(point, lambda: call(point), within)  # noqa: B023
        after(point)
        if not again:
            return point
    raise AssertionError("it never ends")


def numbered(found: list[bytes], acknowledged: list[bytes]) -> None:
    """Acknowledged ones in order and once; of others each once at most."""
    assert len(set(found)) == len(found)
    known = set(acknowledged)
    assert [payload for payload in found if payload in known] == acknowledged


def run_of(prefix: str, count: int) -> tuple[bytes, array[int], list[bytes]]:
    payloads = [f"{prefix}.{i}".encode() for i in range(count)]
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return b"".join(payloads), offsets, payloads


# --- ledgers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["own", "caller's"])
def test_an_append_is_there_or_not(client: bk_core.BookKeeper, ids: str) -> None:
    ledger = client.create_ledger(caller_ids=ids != "own")
    acknowledged: list[bytes] = []
    next_id = 0

    def append(payload: bytes) -> None:
        nonlocal next_id
        if ids == "own":
            ledger.append(payload)
        while ids != "own":
            try:
                next_id = ledger.append(payload, entry_id=next_id) + 1
                break
            except DuplicateEntryIdError:  # what was interrupted had been handed in
                next_id += 1
        acknowledged.append(payload)

    def after(point: int) -> None:
        append(b"after %d" % point)
        ledger.flush()
        assert (ledger._share.runs, ledger._share.bytes) == (0, 0)

    assert everywhere(lambda point: append(b"struck %d" % point), after) > 20
    ledger.close()
    assert client._session.adds._total == 0 and client._session.adds._ledgers == 0
    with client.open_ledger(ledger.ledger_id) as reader:
        numbered(reader.read(0, reader.last_add_confirmed), acknowledged)


def test_a_long_run_is_there_up_to_a_piece(client: bk_core.BookKeeper) -> None:
    ledger = client.create_ledger()
    acknowledged: list[bytes] = []

    def append(name: str) -> None:
        data, offsets, payloads = run_of(name, 2100)
        future = ledger.append_run_future(data, offsets)
        future.result(20)
        acknowledged.extend(payloads)

    everywhere(lambda point: append(f"struck {point}"), lambda point: append(f"after {point}"), step=97)
    ledger.close()
    assert ledger._share.runs == ledger._share.bytes == ledger._share.entries == 0
    with client.open_ledger(ledger.ledger_id) as reader:
        numbered(reader.read(0, reader.last_add_confirmed), acknowledged)


@pytest.mark.parametrize("what", ["flush", "force", "close"])
def test_a_ledger_can_be_closed_after_an_interrupt(client: bk_core.BookKeeper, what: str) -> None:
    """``close`` itself too: it goes on, and a later one waits for it."""
    ledgers: list[Any] = []

    def call(point: int) -> None:
        ledgers.append(client.create_ledger(deferred_sync=what == "force"))
        ledgers[-1].append(b"x")
        getattr(ledgers[-1], what)()

    def after(point: int) -> None:
        if ledgers:
            assert ledgers.pop().close().last_entry_id in (-1, 0)

    assert everywhere(call, after, step=3) > 20
    assert client._session.adds._total == 0


def test_reads_can_be_repeated(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"%d" % n for n in range(50)])
    with client.open_ledger(ledger.ledger_id) as reader:
        expected = [b"%d" % n for n in range(50)]
        calls: list[Callable[[int], object]] = [
            lambda point: reader.read(0, 49),
            lambda point: list(reader.tail()),
            lambda point: reader.read_last_add_confirmed(),
        ]
        for call in calls:
            assert everywhere(call) > 3
            assert reader.read(0, 49) == expected
        deadline = time.monotonic() + 20
        while not all(stream._driver._closed for stream in reader._streams):  # a struck one ends when its last answer has come
            assert time.monotonic() < deadline
            gc.collect()  # a struck one may be left in a cycle, and goes only then
            passed = threading.Event()
            client._session.reactor.post(passed.set)
            assert passed.wait(20)


def test_waiting_for_an_entry_can_be_repeated(client: bk_core.BookKeeper) -> None:
    ledger = client.create_ledger()
    with client.open_ledger(ledger.ledger_id) as reader:
        waits = [
            lambda point: reader.wait_for(point, 0.001),
            lambda point: reader.try_read_last_add_confirmed(),
            lambda point: reader.read_last_add_confirmed(),
            lambda point: reader.refresh(),
        ]
        for wait in waits:
            everywhere(wait)
        ledger.append(b"x")
        assert reader.wait_for(0, 20) and reader.read(0, 0) == [b"x"]
    ledger.close()


def test_the_life_of_a_ledger(client: bk_core.BookKeeper) -> None:
    """Creating, opening, recovering, deleting."""
    known: set[int] = set()

    def life(point: int) -> None:
        ledger = client.create_ledger()
        known.add(ledger.ledger_id)
        ledger.append(b"x")
        ledger.abandon()
        with client.recover_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"x"]
        client.open_ledger(ledger.ledger_id).close()
        client.delete_ledger(ledger.ledger_id)

    def after(point: int) -> None:
        for ledger_id in list(client.list_ledgers()):
            client.recover_ledger(ledger_id).close()
            assert client.ledger_metadata(ledger_id).state is LedgerState.CLOSED
            client.delete_ledger(ledger_id)

    assert everywhere(life, after, step=97) > 100
    for ledger_id in known:
        with pytest.raises(NoSuchLedgerError):
            client.open_ledger(ledger_id)


def test_connecting_and_closing(uri: str) -> None:
    """``close`` finishes what an interrupted one has left."""
    clients: list[bk_core.BookKeeper] = []

    def call(point: int) -> None:
        clients.append(bk_core.connect(uri))
        assert not clients[-1].is_closed
        clients[-1].close()

    def after(point: int) -> None:
        if clients:
            bk = clients.pop()
            bk.close()
            assert bk.is_closed
            assert not bk._shared.reactor._thread.is_alive()
            assert not any(thread.is_alive() for thread in bk._shared._metadata._threads)

    assert everywhere(call, after) > 50


@pytest.mark.parametrize("dropped", [False, True])
def test_an_interrupted_close_goes_on(uri: str, dropped: bool) -> None:
    """Nobody calls ``close`` again who left a ``with`` block by Ctrl-C. A client whose close did not begin ends when it is dropped."""
    clients: list[bk_core.BookKeeper] = []

    def call(point: int) -> None:
        clients[-1].close()

    def after(point: int) -> None:
        bk = clients.pop()
        session, threads = bk._shared, (bk._shared.reactor._thread, *bk._shared._metadata._threads)
        assert bk.is_closed or not session._closed, point
        if dropped or not session._closed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del bk
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), (point, thread.name)
        clients.append(bk_core.connect(uri))

    clients.append(bk_core.connect(uri))
    points = everywhere(call, after)
    clients.pop().close()
    assert points > 20


# --- logs ---------------------------------------------------------------------------------------------------------------


def contents(client: bk_core.BookKeeper, name: str = "a") -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def test_an_append_to_a_log_is_there_or_not(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    acknowledged: list[bytes] = []
    with LogWriter.open(client, "a", roll_max_entries=40) as writer:

        def append(payload: bytes) -> None:
            writer.append(payload)
            acknowledged.append(payload)

        assert everywhere(lambda point: append(b"struck %d" % point), lambda point: append(b"after %d" % point)) > 20
        with writer._lock:
            assert writer._lock.wait_for(lambda: not writer._window.bytes, 20)
    numbered(contents(client), acknowledged)


def test_a_run_of_a_log_is_there_whole_or_not(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    acknowledged: list[bytes] = []
    names: list[str] = []
    with LogWriter.open(client, "a") as writer:

        def append(name: str) -> None:
            names.append(name)
            data, offsets, payloads = run_of(name, 30)
            writer.append_run(data, offsets)
            acknowledged.extend(payloads)

        everywhere(lambda point: append(f"struck {point}"), lambda point: append(f"after {point}"), step=3)
    found = contents(client)
    numbered(found, acknowledged)
    for name in names:
        assert sum(payload.startswith(name.encode() + b".") for payload in found) in (0, 30), name


def test_a_roll_is_done_or_not(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    acknowledged: list[bytes] = []
    with LogWriter.open(client, "a") as writer:

        def after(point: int) -> None:
            writer.append(b"%d" % point)
            acknowledged.append(b"%d" % point)

        assert everywhere(lambda point: writer.roll(), after) > 10
        writer.roll()
    listed = read_ledger_list(client, "a")
    assert not listed.live_segments
    assert contents(client) == acknowledged


def test_opening_and_closing_a_log(client: bk_core.BookKeeper) -> None:
    """Whatever an interrupt has left, the next writer takes over, and ``close`` finishes."""
    create_log(client, "a", LogProperties(entry_format="raw"))
    writers: list[LogWriter] = []
    acknowledged: list[bytes] = []

    def call(point: int) -> None:
        writers.append(LogWriter.open(client, "a"))
        writers[-1].append(b"%d" % point)
        acknowledged.append(b"%d" % point)
        writers[-1].close()

    def after(point: int) -> None:
        for writer in writers:
            writer.close()
            for thread in (writer._worker._thread, *writer._own._threads):
                thread.join(20)
                assert not thread.is_alive()
        writers.clear()

    assert everywhere(call, after, step=9) > 20
    LogWriter.open(client, "a").close()
    numbered(contents(client), acknowledged)


def test_reading_a_log_can_be_repeated(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    expected = [b"%d" % n for n in range(20)]
    with LogWriter.open(client, "a") as writer:
        for payload in expected:
            writer.append(payload)

        def look(point: int) -> None:
            with LogReader(client, "a") as reader:
                list(reader.read())
                reader.wait(0.001)

        assert everywhere(look, step=19) > 20
        assert contents(client) == expected


OF_READERS = ("/client/log/reader.py", "/log/reader_order.py", "/log/list_machine.py", "/protocol/requests.py", "resuming.py", "<string>")
"""These files hold the code that a reader's loop runs on the user's thread. A dataclass is made in <string>."""


@pytest.mark.parametrize("follows", [False, True])
def test_an_iteration_over_a_log_goes_on_where_it_was(client: bk_core.BookKeeper, follows: bool) -> None:
    """LOG-21: no run is skipped and none comes twice, and the reader is as good as before at once."""
    create_log(client, "a", LogProperties(entry_format="raw"))
    expected = [b"%d" % number for number in range(6)]
    with LogWriter.open(client, "a") as writer:
        for number, payload in enumerate(expected):
            writer.append(payload)
            if number % 2:
                writer.roll()
    reader, got = LogReader(client, "a"), list[LogEntries]()

    def read(point: int) -> None:
        for run in reader.follow() if follows else reader.read():
            got.append(run)
            if follows and len(got) == 3:
                return
        reader.wait(0.001)

    def after(point: int) -> None:
        nonlocal reader
        for run in reader.read():
            got.append(run)
        assert [payload for run in got for payload in run.payloads()] == expected, point
        reader.close()
        reader = LogReader(client, "a")
        got.clear()

    assert everywhere(read, after, within=OF_READERS) > 100


def test_the_life_of_a_log(client: bk_core.BookKeeper) -> None:
    def life(point: int) -> None:
        create_log(client, "b", LogProperties(entry_format="raw"))
        with LogWriter.open(client, "b") as writer:
            writer.append(b"x")
        delete_log(client, "b")

    def after(point: int) -> None:
        try:
            create_log(client, "b", LogProperties(entry_format="raw"))
        except LogExistsError:
            pass
        except BkError as error:
            raise AssertionError(point) from error
        try:
            delete_log(client, "b")
        except NoSuchLogError:
            pass

    assert everywhere(life, after, step=79) > 50
    with pytest.raises(NoSuchLogError):
        read_ledger_list(client, "b")


# --- file stores --------------------------------------------------------------------------------------------------------


def test_a_change_of_a_file_store_is_made_or_not(client: bk_core.BookKeeper) -> None:
    """Inline and by a data ledger. What an interrupt has left keeps no data ledger for ever, and the next change is made."""
    with FileStore.open(client, "a", inline_max=10) as store:
        store._data._ledger_bytes = 1  # each content has a ledger of its own
        for size in (5, 100):
            acknowledged = 0

            def put(number: int, size: int = size) -> None:
                store.put("/file", b"%d" % (number % 10) * size)  # noqa: B023

            def after(point: int, size: int = size) -> None:
                nonlocal acknowledged
                assert store.exists("/file") is False or len(set(store.read("/file"))) == 1  # noqa: B023
                put(point + 1, size)
                acknowledged += 1
                assert store.read("/file") == b"%d" % ((point + 1) % 10) * size  # noqa: B023

            assert everywhere(put, after, step=5 if size == 5 else 17) > 20
            assert acknowledged > 10
        everywhere(lambda point: store.rename("/file", "/other"), lambda point: store.put("/file", b"") and store.delete("/other"), step=7)
        everywhere(lambda point: store.delete("/file"), lambda point: store.put("/file", b""), step=7)
        everywhere(lambda point: store.flush())
        everywhere(lambda point: (store.status("/"), store.listing("/"), store.read("/file"), store.exists("/none")))
        store.delete("/", recursive=True)
        gc.collect()
        deadline = time.monotonic() + 20
        while data_nodes(client, "files.a"):
            store.flush()
            assert time.monotonic() < deadline


def test_opening_and_closing_a_file_store(client: bk_core.BookKeeper) -> None:
    """Whatever an interrupt has left, the next owner takes over, and ``close`` finishes."""
    stores: list[FileStore] = []
    acknowledged: set[int] = set()

    def call(point: int) -> None:
        stores.append(FileStore.open(client, f"s{point}", inline_max=10))
        stores[-1].put("/file", bytes(point % 20))
        acknowledged.add(point)
        stores[-1].close()

    def after(point: int) -> None:
        for store in stores:
            store.close()
            for thread in (store._worker._thread, *store._own._threads, *store._data.pool._threads):
                thread.join(20)
                assert not thread.is_alive()
        stores.clear()
        with FileStore.open(client, f"s{point}") as store:
            assert store.exists("/file") or point not in acknowledged
            if store.exists("/file"):
                assert store.read("/file") == bytes(point % 20)

    assert everywhere(call, after, step=97) > 200
    assert acknowledged
