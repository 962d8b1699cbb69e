"""The exclusive writer of a log against real ZooKeeper and bookies.

Whatever happens to writers, links and bookies, every acknowledged entry is in the log, where its writer was told, in order, and none is
there twice.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import intent_path, intents_of
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogSpan, LogWriter
from bk_core.errors import BkError, LogDataLossError, LogTakenOverError, MetadataOutcomeUnknownError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.leader_state import Health
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties
from tests.integration.dead_bookies import revive
from tests.integration.embedded import eventually
from tests.network.proxy import IN, OUT, Proxy

LIMITS = Limits(explicit_lac_ns=50_000_000)
RAW = LogProperties(entry_format="raw")
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def embedded(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("embedded")


@pytest.fixture
def client(embedded: LocalCluster) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(embedded.uri, limits=LIMITS) as bk:
        yield bk


@pytest.fixture
def log(request: pytest.FixtureRequest, client: bk_core.BookKeeper) -> str:
    name = request.node.originalname.removeprefix("test_")[:60] + "".join(c for c in request.node.name[-8:] if c.isalnum())
    create_log(client, name, RAW)
    return name


@dataclass
class Story:
    """The answers that writers got. ``sent`` in the order of the calls of one writer."""

    acked: dict[bytes, Position] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    many: threading.Event = field(default_factory=threading.Event)
    enough: int = 1 << 60

    def write(self, writer: LogWriter, payloads: list[bytes]) -> Future[tuple[LogSpan, ...]]:
        offsets = array("q", [0])
        for payload in payloads:
            offsets.append(offsets[-1] + len(payload))
        self.sent += payloads
        future = writer.append_run_future(b"".join(payloads), offsets)
        future.add_done_callback(lambda done: self._heard(payloads, done))
        return future

    def _heard(self, payloads: list[bytes], done: Future[tuple[LogSpan, ...]]) -> None:
        error = done.exception()
        if error is not None:
            self.errors.append(error)
            return
        where = [Position(span.seq, entry) for span in done.result() for entry in range(span.first_entry_id, span.last_entry_id + 1)]
        self.acked.update(zip(payloads, where, strict=True))
        if len(self.acked) >= self.enough:
            self.many.set()


def the_log(client: bk_core.BookKeeper, name: str) -> dict[bytes, Position]:
    """Everything in it by payload; nothing may be there twice."""
    found: dict[bytes, Position] = {}
    with LogReader(client, name) as reader:
        for run in reader.read():
            for index, payload in enumerate(run.payloads()):
                assert payload not in found, f"{payload!r} is there twice"
                found[payload] = Position(run.segment.seq, run.first_entry_id + index)
    return found


def check(client: bk_core.BookKeeper, name: str, *stories: Story) -> dict[bytes, Position]:
    found = the_log(client, name)
    for story in stories:
        assert {payload: found.get(payload) for payload in story.acked} == story.acked
        there = [found[payload] for payload in story.sent if payload in found]
        assert there == sorted(there), "a writer's entries are out of order"
    assert set(found) <= {payload for story in stories for payload in story.sent}
    return found


def check_nothing_is_left_over(client: bk_core.BookKeeper, name: str) -> None:
    """LOG-9: no ledger of this log that the list does not name, and no intent. Who was taken over deletes its last ledger, and then the
    intent, in the background."""
    for ledger_id in intents_of(client, name):
        gone = threading.Event()
        watch = client.store.watch(intent_path(name, ledger_id), gone.set)
        try:
            assert ledger_id not in intents_of(client, name) or gone.wait(PATIENCE_S)
        finally:
            watch.cancel()
    listed = {segment.ledger_id for segment in read_log(client, name).segments()}
    tagged = {i for i in client.list_ledgers() if client.ledger_metadata(i).custom.get("log") == name.encode()}
    assert tagged == listed and intents_of(client, name) == {}


def write_until_taken_over(writer: LogWriter, story: Story, who: str, runs_max: int = 1 << 30) -> None:
    try:
        for n in range(runs_max):
            story.write(writer, [b"%s %d.%d" % (who.encode(), n, i) for i in range(10)])
    except LogTakenOverError as error:
        story.errors.append(error)


# --- other writers -------------------------------------------------------------------------------------------------------


def test_a_take_over_while_entries_are_on_their_way(embedded: LocalCluster, client: bk_core.BookKeeper, log: str) -> None:
    """LOG-1, LOG-20, WR-13. The list has two ledgers of the old writer. It does not roll while it is taken over: one that rolls all the
    time may win every round of a busy machine's take-over (the duel below), for which this one would have to be lucky."""
    first, second = Story(enough=300), Story()
    with bk_core.connect(embedded.uri, limits=LIMITS) as other, ThreadPoolExecutor(1) as threads:
        old = LogWriter.open(client, log, outstanding_bytes_max=5000)
        first.write(old, [b"before the roll"]).result(PATIENCE_S)
        old.roll()
        writing = threads.submit(write_until_taken_over, old, first, "first")
        assert first.many.wait(PATIENCE_S)
        with LogWriter.open(other, log) as new:
            write_until_taken_over(new, second, "second", 20)
            writing.result(PATIENCE_S)
    assert first.errors and all(isinstance(error, LogTakenOverError) for error in first.errors)
    assert "may or may not be in the log" in str(first.errors[0]) or "nothing was written" in str(first.errors[0])
    assert not second.errors and len(second.acked) == 200
    found = check(client, log, first, second)
    assert max(found[p] for p in first.sent if p in found) < min(second.acked.values())
    check_nothing_is_left_over(client, log)


_WRITER = """
import sys
import bk_core
from bk_core.client.log.writer import LogWriter
with bk_core.connect(sys.argv[1]) as bk:
    writer = LogWriter.open(bk, sys.argv[2], roll_max_entries=50)
    for n in range(1_000_000):
        position = writer.append(b"%d" % n)
        print(n, position.seq, position.entry, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_was_told(embedded: LocalCluster, client: bk_core.BookKeeper, log: str) -> None:
    told: dict[bytes, Position] = {}
    with subprocess.Popen([sys.executable, "-c", _WRITER, embedded.uri, log], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while len(told) < 120:
            number, seq, entry = map(int, process.stdout.readline().split())
            told[b"%d" % number] = Position(seq, entry)
        process.kill()
    with LogWriter.open(client, log) as writer:
        writer.append(b"next")
    found = the_log(client, log)
    assert {payload: found.get(payload) for payload in told} == told
    *entries, last = sorted(found, key=lambda payload: found[payload])
    assert (entries, last) == ([b"%d" % n for n in range(len(entries))], b"next")
    gc_log(client, log)  # it may have died between creating a ledger and listing it
    check_nothing_is_left_over(client, log)


@pytest.mark.apache
def test_two_leaders_that_duel_lose_nothing(apache_cluster: LocalCluster) -> None:
    """LOG-4: each fences the other again and again."""
    name = "duel"
    stories = [Story(), Story()]

    def fight(me: int) -> int:
        reigns = 0
        with bk_core.connect(apache_cluster.uri, limits=LIMITS) as bk:
            for attempt in range(5):
                try:
                    writer = LogWriter.open(bk, name, roll_max_entries=100, attempts=20)
                except LogTakenOverError:
                    continue
                reigns += 1
                write_until_taken_over(writer, stories[me], f"{me} {attempt}", 30)
                try:
                    writer.close()
                except LogTakenOverError:
                    continue
        return reigns

    with bk_core.connect(apache_cluster.uri, limits=LIMITS) as bk:
        create_log(bk, name, RAW, exist_ok=True)
        with ThreadPoolExecutor(2) as threads:
            reigns = list(threads.map(fight, range(2)))
        with LogWriter.open(bk, name) as writer:
            story = Story()
            story.write(writer, [b"the end"]).result(PATIENCE_S)
        assert sum(reigns) >= 2
        assert all(isinstance(error, LogTakenOverError) for s in stories for error in s.errors)
        found = check(bk, name, *stories, story)
        assert max(found, key=lambda payload: found[payload]) == b"the end"
        check_nothing_is_left_over(bk, name)


# --- links and bookies ---------------------------------------------------------------------------------------------------


class Store:
    """A store with another ``write``."""

    def __init__(self, store: Any, write: Callable[[str, bytes, int], int]) -> None:
        self._store = store
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_the_connection_to_zookeeper_is_lost_in_the_compare_and_set(
    embedded: LocalCluster, client: bk_core.BookKeeper, log: str, lost: str
) -> None:
    """META-12, LOG-3: taking over and rolling; entries go on meanwhile, and a ledger is listed once."""
    proxy = Proxy()
    link = proxy.link("writer", "zookeeper", "127.0.0.1", int(embedded.uri.split(":")[2].split("/")[0]))
    unknown: list[BaseException] = []
    try:
        with bk_core.connect(f"zk://127.0.0.1:{link.listen_port}/ledgers", limits=LIMITS, metadata_timeout_s=1.0) as bk:
            honest = bk.store
            requests: list[tuple[bytes, int]] = []

            def write(path: str, data: bytes, version: int) -> int:
                requests.append((data, version))
                if requests.count(requests[-1]) > 1:
                    return honest.write(path, data, version)
                proxy.silence(link, IN if lost == "answer" else OUT)
                try:
                    return honest.write(path, data, version)
                except MetadataOutcomeUnknownError as error:
                    unknown.append(error)
                    raise
                finally:
                    proxy.heal(link, cut=True)

            bk.store = Store(honest, write)
            story = Story()
            with LogWriter.open(bk, log) as writer:
                with ThreadPoolExecutor(1) as threads:
                    rolling = threads.submit(writer.roll)
                    write_until_taken_over(writer, story, "one", 20)
                    rolling.result(PATIENCE_S)
                write_until_taken_over(writer, story, "two", 1)
            bk.store = honest
    finally:
        proxy.close()
    assert len(unknown) >= 2 and not story.errors and len(story.acked) == 210
    check(client, log, story)
    assert [segment.live for segment in read_log(client, log).segments()] == [False, False]
    check_nothing_is_left_over(client, log)


@pytest.mark.parametrize("when", ["condemned", "deleted"])
def test_a_janitor_between_the_creation_and_the_listing_of_a_ledger(
    embedded: LocalCluster, client: bk_core.BookKeeper, log: str, when: str
) -> None:
    """LOG-18: a collection that takes every ledger that nothing lists, however young, costs a roll another ledger and the log nothing."""
    with bk_core.connect(embedded.uri, limits=LIMITS) as bk, LogWriter.open(bk, log) as writer:
        honest, taken = bk.store, []

        def write(path: str, data: bytes, version: int) -> int:
            if path == f"logs/{log}" and not taken:
                taken.extend(ledger_id for ledger_id in intents_of(client, log) if ledger_id != writer.ledger_id)
                if when == "condemned":
                    update_ledger_list(client, log, lambda listed: listed.condemn(taken))
                else:
                    assert gc_log(client, log, min_age_s=0).deleted == tuple(taken)
            return honest.write(path, data, version)

        story = Story()
        write_until_taken_over(writer, story, "one", 5)
        bk.store = Store(honest, write)
        writer.roll()
        bk.store = honest
        assert len(taken) == 1 and writer.ledger_id not in taken
        write_until_taken_over(writer, story, "two", 5)
    gc_log(client, log, min_age_s=0)
    check(client, log, story)
    listed = {segment.ledger_id for segment in read_log(client, log).segments()}
    assert listed <= set(client.list_ledgers()) and not listed & set(taken)
    LogWriter.open(client, log).close()
    check_nothing_is_left_over(client, log)


def test_a_ledger_fails_with_entries_on_their_way(embedded: LocalCluster, client: bk_core.BookKeeper, log: str) -> None:
    """LOG-8: its end is learned first; what is not in it goes into the next one, in order, and nothing twice."""
    story = Story(enough=100)
    with LogWriter.open(client, log) as writer:
        first = writer.ledger_id
        write_until_taken_over(writer, story, "before", 10)
        assert story.many.wait(PATIENCE_S)
        others = range(1, len(embedded.bookie_ids))  # with one left no ledger goes on, however many there were
        try:
            for index in others:
                embedded.kill(index)
            futures = [story.write(writer, [b"during %d.%d" % (n, i) for i in range(10)]) for n in range(30)]
            # A bookie that is back soon enough would save the ledger.
            assert eventually(lambda: writer._machine.health is not Health.HEALTHY, PATIENCE_S)
        finally:
            for index in others:
                revive(embedded, index)
        for future in futures:
            future.result(PATIENCE_S)
        assert writer.ledger_id != first
        story.write(writer, [b"after"]).result(PATIENCE_S)
    assert not story.errors and len(check(client, log, story)) == 401
    assert client.ledger_metadata(first).state is LedgerState.CLOSED
    check_nothing_is_left_over(client, log)


# --- readers and trims ----------------------------------------------------------------------------------------------


def test_a_trim_beside_a_writer_and_a_follower(embedded: LocalCluster, client: bk_core.BookKeeper, log: str) -> None:
    """LOG-11, LOG-13: what the follower has read goes; it sees every entry once, in order, and nobody is disturbed."""
    stop, seen, trims = threading.Event(), [], 0
    story = Story()
    with bk_core.connect(embedded.uri, limits=LIMITS) as other, ThreadPoolExecutor(1) as threads:
        reader = LogReader(other, log)

        def follow() -> None:
            for run in reader.follow(stop):
                seen.extend(run.payloads())
                if len(seen) == 1200:
                    return

        following = threads.submit(follow)
        try:
            with LogWriter.open(client, log, roll_max_entries=100) as writer:
                for n in range(12):
                    story.write(writer, [b"%d.%d" % (n, i) for i in range(100)]).result(PATIENCE_S)
                    trims += len(trim_log(client, log, before=reader.position))
                following.result(PATIENCE_S)
                writer.roll()
                trims += len(trim_log(client, log, before=writer.position))
        finally:
            stop.set()
    assert seen == story.sent and trims >= 2
    view = read_log(client, log)
    assert view.listed.trimmed_rows == 1200 and view.listed.condemned == ()
    with pytest.raises(LogDataLossError, match="trimmed"):
        LogReader(client, log, start=Position(0))
    check_nothing_is_left_over(client, log)


@pytest.mark.parametrize("unread", [0, 7])
def test_a_trim_while_the_list_is_behind_the_ledgers(client: bk_core.BookKeeper, log: str, unread: int) -> None:
    """LOG-13, LOG-15: a live segment is passed whose end only its ledger knows; both are trimmed before the reader looks again."""
    first, second = (client.create_ledger(custom={"log": log.encode()}) for _ in range(2))
    first.append_many([b"%d" % i for i in range(100)])
    first.close()
    second.append_many([b"%d" % i for i in range(50)])
    for ledger in (first, second):
        update_ledger_list(client, log, lambda listed, ledger=ledger: listed.add_live_segment(ledger.ledger_id, 0))
    with LogReader(client, log) as reader:
        assert reader.wait(PATIENCE_S)
        seen = 0
        while seen < 150:
            seen += sum(run.count for run in reader.read())
        assert reader.position == Position(1, 50)
        if unread:
            second.append_many([b"unread"] * unread)
        second.close()
        for ledger, count in ((first, 100), (second, 50 + unread)):
            update_ledger_list(
                client, log, lambda listed, ledger=ledger, count=count: listed.close_live(ledger.ledger_id, count - 1, count, 0)
            )
        assert len(trim_log(client, log, before=Position(2))) == 2
        if unread:
            with pytest.raises(LogDataLossError, match="entry 50 of segment 1"):
                list(reader.read())
        else:
            assert list(reader.read()) == [] and reader.position == Position(2)


def test_several_readers_and_writers_one_after_the_other(client: bk_core.BookKeeper, log: str) -> None:
    """LOG-15: all readers see the same sequence, whenever they start, across three leaders."""
    sequences: list[list[bytes]] = [[], [], []]
    errors: list[BkError] = []
    stop = threading.Event()

    def follow(mine: list[bytes]) -> None:
        try:
            with LogReader(client, log) as reader:
                for run in reader.follow(stop):
                    mine += run.payloads()
                    if mine[-1] == b"end":
                        return
        except BkError as error:
            errors.append(error)

    stories = [Story(), Story(), Story()]
    with ThreadPoolExecutor(3) as threads:
        following = [threads.submit(follow, mine) for mine in sequences]
        try:
            for who, story in enumerate(stories):
                writer = LogWriter.open(client, log, roll_max_entries=50)
                write_until_taken_over(writer, story, f"leader{who}", 10)
                if who == 2:
                    story.write(writer, [b"end"]).result(PATIENCE_S)
                    writer.close()
            for future in following:
                future.result(PATIENCE_S)
        finally:
            stop.set()
    assert not errors
    found = check(client, log, *stories)
    assert sequences == [sorted(found, key=lambda payload: found[payload])] * 3
