"""Reading and following logs, against bookies on sockets in this process."""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.client import resuming
from bk_core.client.log import reader as log_reader
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.janitor import delete_log, trim_log
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import ArgumentTypeError, InvalidArgumentError, LogDataLossError, NoSuchLogError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.ledger_list import LogProperties, SegmentRange
from bk_core.protocol.log.position import Position
from bk_core.protocol.wire.messages import ReadRequest

LIMITS = Limits(explicit_lac_ns=5_000_000)


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        create_log(bk, "a", LogProperties(entry_format="raw"))
        yield bk


def payloads(reader: LogReader) -> list[bytes]:
    return [payload for run in reader.read() for payload in run.payloads()]


def listed_beyond_its_end(client: bk_core.BookKeeper) -> int:
    """A ledger of nine entries of which the list says that there are ten."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"%d" % n for n in range(9)])
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(ledger.ledger_id, 0, 9, 10, 10)], 1))
    return ledger.ledger_id


def test_a_ledger_closed_below_what_the_list_says_is_a_loss(client: bk_core.BookKeeper) -> None:
    """RD-1, LOG-13: what is there is read, then the error says what is not; it does not blame the caller's argument."""
    ledger_id = listed_beyond_its_end(client)
    with LogReader(client, "a") as reader:
        seen: list[bytes] = []
        for _ in range(2):
            with pytest.raises(LogDataLossError, match=rf"log 'a': entries 9..9 of ledger {ledger_id} .* closed at entry 8") as raised:
                for run in reader.read():
                    seen += run.payloads()
            assert seen == [b"%d" % n for n in range(9)]
        assert (raised.value.context["first_entry_id"], raised.value.context["last_entry_id"]) == (9, 9)


def test_a_ledger_closed_too_low_under_the_reader_is_a_loss(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-6: the list was right when the read began."""
    ledger = client.create_ledger()
    ledger.append_many([b"%d" % n for n in range(10)])
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(ledger.ledger_id, 0, 9, 10, 10)], 1))
    opened = client.open_ledger

    def open_ledger(ledger_id: int, **settings: Any) -> bk_core.ReadHandle:
        handle = opened(ledger_id, **settings)
        stored = client.store.read_ledger(ledger_id)
        cut = metadata_codec.decode(stored.data).closed(4, 5)
        client.store.write_ledger(ledger_id, metadata_codec.encode(cut), stored.version)
        handle.refresh()
        return handle

    monkeypatch.setattr(client, "open_ledger", open_ledger)
    with LogReader(client, "a") as reader, pytest.raises(LogDataLossError, match=r"entries 5\.\.9"):
        payloads(reader)
    ledger.abandon()


def test_a_listed_ledger_that_does_not_exist_is_a_loss(client: bk_core.BookKeeper) -> None:
    """LOG-13: nothing is trimmed in that order."""
    client.delete_ledger(listed_beyond_its_end(client))
    with LogReader(client, "a") as reader, pytest.raises(LogDataLossError, match="does not exist; its entries are lost"):
        payloads(reader)


def test_ranges_of_a_list_are_read_whatever_the_lac(client: bk_core.BookKeeper) -> None:
    """LC-2, RD-1: the last entry of an idle writer is in no LAC of the bookies'; the list knows that it was acknowledged."""
    with bk_core.connect(client.config.uri, limits=Limits(explicit_lac_ns=3_600_000_000_000)) as quiet:
        ledger = quiet.create_ledger()
        last = ledger.append(b"only")
        update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(ledger.ledger_id, 0, last, 1, 4)], 1))
        with client.open_ledger(ledger.ledger_id) as handle:
            assert handle.last_add_confirmed == -1
        assert payloads(LogReader(client, "a")) == [b"only"]
        assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN
        ledger.close()


# --- following -----------------------------------------------------------------------------------------------------------


def test_a_follower_sees_every_entry_across_rolls_and_asks_for_nothing_meanwhile(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LC-5, LC-7, LOG-15, LOG-16: by long polls and watches; silence costs no reading of the list."""
    writer = LogWriter.open(client, "a")
    reads: list[str] = []
    monkeypatch.setattr(log_reader, "read_log", lambda bk, name: (reads.append(name), read_log(bk, name))[1])
    done = threading.Event()

    def follow() -> list[bytes]:
        seen: list[bytes] = []
        with LogReader(client, "a") as reader:
            while len(seen) < 30:
                assert reader.wait(30)
                seen += payloads(reader)
                done.set()
        return seen

    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(follow)
        for n in range(30):
            writer.append(b"%d" % n)
            if n % 10 == 9:
                writer.roll()
            if n == 0:
                assert done.wait(20)
                before = len(reads)
                time.sleep(1)
                assert len(reads) - before <= 2
        assert seen.result(60) == [b"%d" % n for n in range(30)]
    writer.close()


def test_an_entry_wakes_who_waits(client: bk_core.BookKeeper) -> None:
    """LC-5: what ``wait`` saw, the next ``read`` reads, whatever another quorum of bookies would say (LC-2)."""
    writer = LogWriter.open(client, "a")
    with LogReader(client, "a") as reader, ThreadPoolExecutor(1) as threads:
        for n in range(20):
            waiting = threads.submit(reader.wait, 30)
            writer.append(b"%d" % n)
            assert waiting.result(40)
            assert payloads(reader) == [b"%d" % n]
        assert not reader.wait(0.05)
    writer.close()


def test_who_waits_at_the_end_is_woken_by_the_list(client: bk_core.BookKeeper) -> None:
    """LOG-16: a new segment, and the deletion of the log; nothing stays behind."""
    with LogReader(client, "a") as reader, ThreadPoolExecutor(1) as threads:
        assert not reader.wait(0)
        waiting = threads.submit(reader.wait, 30)
        with client.create_ledger() as ledger:
            last = ledger.append(b"x")
        update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(ledger.ledger_id, 0, last, 1, 1)], 1))
        assert waiting.result(40) and payloads(reader) == [b"x"]
        waiting = threads.submit(reader.wait, 30)
        delete_log(client, "a")
        with pytest.raises(NoSuchLogError):
            waiting.result(40)


def test_who_follows_a_live_segment_learns_that_the_log_is_gone(client: bk_core.BookKeeper) -> None:
    """LOG-13."""
    writer = LogWriter.open(client, "a")
    writer.append(b"x")
    reader = LogReader(client, "a")
    assert reader.wait(30) and payloads(reader) == [b"x"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: [reader.wait(30) and payloads(reader) for _ in range(3)])
        delete_log(client, "a")
        with pytest.raises((NoSuchLogError, LogDataLossError)):
            waiting.result(60)
    reader.close()


# --- follow --------------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """The requests of a client. ``polling`` is set when a bookie has been asked to answer once there is more (LC-5)."""

    lists: int = 0
    opens: int = 0
    polls: int = 0
    requests: int = 0
    polling: threading.Event = field(default_factory=threading.Event)

    def heard(self, message: Any) -> None:
        self.requests += 1
        if isinstance(message, ReadRequest) and message.previous_lac is not None:
            self.polls += 1
            self.polling.set()


@pytest.fixture
def follower(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[bk_core.BookKeeper, Traffic]]:
    """A client of its own whose traffic is counted. No pause of a reader is short enough to end within the test."""
    monkeypatch.setattr(log_reader, "WAIT_S", 3600.0)
    traffic = Traffic()
    with bk_core.connect(client.config.uri, limits=LIMITS) as bk:
        session, opened, listed = bk._session, bk.open_ledger, log_reader.read_log
        link = session.link

        def counted(bookie: Any, kind: str, ledger_id: int = 0) -> Any:
            real = link(bookie, kind, ledger_id)

            def request(message: Any, *rest: Any) -> Any:
                traffic.heard(message)
                return real.request(message, *rest)

            return SimpleNamespace(request=request, listen=real.listen, unlisten=real.unlisten, forget=real.forget)

        def open_ledger(*ids: Any, **settings: Any) -> Any:
            traffic.opens += 1
            return opened(*ids, **settings)

        def read_log(*names: Any) -> Any:
            traffic.lists += 1
            return listed(*names)

        monkeypatch.setattr(session, "link", counted)
        monkeypatch.setattr(bk, "open_ledger", open_ledger)
        monkeypatch.setattr(log_reader, "read_log", read_log)
        yield bk, traffic


def test_a_wait_ends_with_the_one_entry_that_it_waits_for(client: bk_core.BookKeeper, follower: tuple[bk_core.BookKeeper, Traffic]) -> None:
    """LC-5: one long-poll round trip after its acknowledgement; no interval is involved, and hardly anything is asked."""
    reading, traffic = follower
    with LogWriter.open(client, "a") as writer, LogReader(reading, "a") as reader, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reader.wait, 3600)
        assert traffic.polling.wait(30)
        writer.append(b"one")
        assert waiting.result(30)
        assert payloads(reader) == [b"one"]
    assert traffic.polls <= 20 and traffic.requests <= 80, traffic  # a busy machine may take some polls of two seconds


def test_a_follower_gets_each_entry_as_it_is_acknowledged(client: bk_core.BookKeeper, follower: tuple[bk_core.BookKeeper, Traffic]) -> None:
    """LC-5, LOG-15: the live ledger is opened once, the list is read when it changes; entry by entry, across a roll."""
    reading, traffic = follower
    came = queue.SimpleQueue[bytes]()

    def follow() -> None:
        for run in LogReader(reading, "a").follow():
            for payload in run.payloads():
                came.put(payload)
            if payload == b"last":
                return

    with LogWriter.open(client, "a") as writer, ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        for n in range(40):
            writer.append(b"%d" % n)
            assert came.get(timeout=30) == b"%d" % n
        opened, listed, per_entry = traffic.opens, traffic.lists, traffic.requests / 40
        writer.roll()
        writer.append(b"last")
        assert came.get(timeout=30) == b"last"
        following.result(30)
    assert came.empty()
    assert (opened, traffic.opens) == (1, 2) and listed <= 2 and traffic.lists <= 6, (opened, listed, traffic)
    assert per_entry < 12, traffic


def test_follow_ends_when_it_is_told_to(client: bk_core.BookKeeper) -> None:
    """While nothing comes at all; at the end of the log, and in a live segment. What it held open is closed."""
    for live in (False, True):
        writer = LogWriter.open(client, "a") if live else None
        stop = threading.Event()
        with LogReader(client, "a") as reader, ThreadPoolExecutor(1) as threads:
            following = threads.submit(lambda reader=reader, stop=stop: list(reader.follow(stop)))
            stop.set()
            assert following.result(30) == [] and reader._handle is None
        if writer is not None:
            writer.close()


@pytest.mark.parametrize("live", [False, True])
def test_who_looks_at_an_event_asks_nobody_anything(
    client: bk_core.BookKeeper, follower: tuple[bk_core.BookKeeper, Traffic], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LC-5: one long poll lasts, however often the event is looked at. It ends when the event is set, and so does the thread that looks."""
    monkeypatch.setattr(resuming, "STOP_LOOK_S", 0.01)
    looked = threading.Semaphore(0)

    class Event(threading.Event):
        def is_set(self) -> bool:
            looked.release()
            return super().is_set()

    reading, traffic = follower
    writer, stop, came = LogWriter.open(client, "a"), Event(), queue.SimpleQueue[bytes]()
    writer.append(b"one")
    if not live:
        writer.close()

    def follow() -> None:
        with LogReader(reading, "a") as reader:
            for run in reader.follow(stop):
                for payload in run.payloads():
                    came.put(payload)

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        if live:
            writer.append(b"confirms the first one")
        assert came.get(timeout=30) == b"one"
        deadline, before = time.monotonic() + 60, (-1, -1)
        while before != (before := (traffic.requests, traffic.lists)):  # it begins to wait when it comes to that
            assert time.monotonic() < deadline, before
            for _ in range(50):
                assert looked.acquire(timeout=30)
        stop.set()
        following.result(30)
    if live:
        writer.close()
    for thread in threading.enumerate():
        if thread.name == "bk-stops":
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("live", [False, True])
def test_a_follower_that_another_thread_closes_ends_at_once(
    client: bk_core.BookKeeper, follower: tuple[bk_core.BookKeeper, Traffic], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits at the end of the log, or in a live segment; none of its pauses ends within the test. The reader goes on where it was,
    and what is closed twice, or has ended, stays so."""
    reading, traffic = follower
    writer = LogWriter.open(client, "a")
    writer.append(b"one")
    if not live:
        writer.close()
    waits = threading.Event()
    with LogReader(reading, "a") as reader, ThreadPoolExecutor(1) as threads:
        runs = reader.follow()
        assert [next(runs).payloads()] == [[b"one"]]
        waiting = reader._changed.wait
        monkeypatch.setattr(reader._changed, "wait", lambda timeout: waits.set() or waiting(timeout))
        traffic.polling.clear()
        ended = threads.submit(lambda: list(runs))
        assert (traffic.polling if live else waits).wait(30)
        runs.close()
        assert ended.result(30) == [] and reader._handle is None
        runs.close()
        assert list(runs) == []
        if live:
            writer.append(b"two")
            writer.close()
            assert payloads(reader) == [b"two"]
        began = reader.follow()
        began.close()
        assert list(began) == []


def test_what_a_recreated_or_trimmed_log_has_lost_is_said(client: bk_core.BookKeeper) -> None:
    """LOG-13."""
    with LogWriter.open(client, "a") as writer:
        for _ in range(4):
            writer.append(b"x")
            writer.roll()
    behind = LogReader(client, "a", start=Position(1))
    trim_log(client, "a", before=Position(3))
    message = (
        r"log 'a': segments 1\.\.2 were trimmed before this reader had read them \(it was at entry 0 of segment 1\).* starts at segment 3"
    )
    for ask in (lambda: payloads(behind), lambda: behind.wait(1), lambda: next(behind.follow())):
        with pytest.raises(LogDataLossError, match=message):
            ask()
    reader = LogReader(client, "a")
    delete_log(client, "a")
    create_log(client, "a", LogProperties(entry_format="raw"))
    with pytest.raises(LogDataLossError, match=r"created again: what this reader had not read .* from segment 3 entry 0 on, is lost"):
        next(reader.follow())


def test_a_name_is_no_property_of_a_log(client: bk_core.BookKeeper) -> None:
    with pytest.raises(InvalidArgumentError, match="a log has no property 'name'"):
        set_properties(client, "a", name="b")


def test_a_position_is_set_within_the_log(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a") as writer:
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
    reader = LogReader(client, "a")
    assert payloads(reader) == [b"a", b"b"]
    for wrong, told in ((Position(99), "beyond the end of log 'a'"), (Position(0, 5), "beyond the end of segment 0")):
        with pytest.raises(InvalidArgumentError, match=told):
            reader.position = wrong
    with pytest.raises(ArgumentTypeError, match="position must be a Position, not 1"):
        reader.position = 1  # type: ignore[assignment]
    assert payloads(reader) == []
    reader.position = Position(1)
    assert payloads(reader) == [b"b"]


def in_segments(client: bk_core.BookKeeper, count: int) -> list[bytes]:
    for number in range(count):
        with LogWriter.open(client, "a") as writer:
            writer.append(b"%d" % number)
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("follows", [False, True])
def test_a_position_that_is_set_in_the_midst_holds(client: bk_core.BookKeeper, follows: bool) -> None:
    written = in_segments(client, 4)
    with LogReader(client, "a") as reader:
        seen: list[bytes] = []
        for run in reader.follow() if follows else reader.read():
            seen += run.payloads()
            if len(seen) == 1:
                reader.position = Position(2)  # forwards
            elif len(seen) == 3:
                reader.position = Position(0)  # and back
            if len(seen) == 7:
                break
    assert seen == [written[0], *written[2:], *written]


def test_iterations_of_one_reader_share_its_position(client: bk_core.BookKeeper) -> None:
    """Whatever is asked of the reader in the midst of an iteration, no run is lost and none comes twice."""
    written = in_segments(client, 6)
    with LogReader(client, "a") as reader:
        one, other = reader.read(), reader.read()
        seen = [payload for parts in (one, other, one) for payload in next(parts).payloads()]
        assert reader.wait(1)
        seen += next(other).payloads()
        seen += payloads(reader)
        assert seen == written
        assert next(one, None) is None and next(other, None) is None and not reader.wait(0)


def test_the_row_of_a_position_in_a_raw_log_passes_its_entry_by(client: bk_core.BookKeeper) -> None:
    """In a live segment and in a closed one, where a reader starts and where its position is set."""
    with LogWriter.open(client, "a") as writer:
        for payload in (b"a", b"b", b"c"):
            writer.append(payload)
        with LogReader(client, "a", start=Position(0, 1, row=1)) as live:
            assert live.position == Position(0, 2) and live.wait(30) and payloads(live) == [b"c"]
    with LogReader(client, "a", start=Position(0, 0, row=1)) as reader:
        assert payloads(reader) == [b"b", b"c"]
        reader.position = Position(0, 1, row=1)
        assert payloads(reader) == [b"c"]


def test_a_live_segment_that_was_read_to_its_end_may_be_trimmed(client: bk_core.BookKeeper) -> None:
    """LOG-13: nothing is lost to who has read it all; one entry less, and it is."""
    with LogWriter.open(client, "a") as writer:
        writer.append_run(b"ab", array("q", [0, 1, 2]))
        reader, late = LogReader(client, "a"), LogReader(client, "a")
        while reader.position != Position(0, 2):
            assert reader.wait(30)
            for run in reader.read():
                if late.position == Position(0):
                    late.position = Position(0, 1)
                    assert late.wait(30)
                assert run.end_position == reader.position
        writer.append(b"c")
        assert reader.wait(30) and payloads(reader) == [b"c"]
        writer.roll()
        writer.append(b"d")
        trim_log(client, "a", before=Position(1))
        assert reader.wait(30) and payloads(reader) == [b"d"]
        with pytest.raises(LogDataLossError, match="it was at entry 1 of segment 0"):
            payloads(late)
    reader.close()
