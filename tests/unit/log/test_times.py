"""The times of a log: the store's clock at both ends, in order, and nothing absurd is believed (JAN-1 .. JAN-4)."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import pytest

from bk_core.client.log import list_store
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.janitor import apply_retention, gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list, store_now_ms
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.writer import LogWriter
from bk_core.errors import LogClockError
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from bk_core.protocol.log.times import SKEW_MS, commit_time, is_ahead, is_skewed

RAW = LogProperties(entry_format="raw")
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


class StoreClock:
    """The store's clock, and this host's, as tests set them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS
        self.host_ahead_ms = 0
        monkeypatch.setattr(MemoryStore, "clock_ms", lambda _: self.now_ms)
        monkeypatch.setattr(time, "time", lambda: (self.now_ms + self.host_ahead_ms) / 1000)
        monkeypatch.setattr(list_store, "_warned_s", None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    return StoreClock(monkeypatch)


def commit(client: Any, clock: StoreClock, host_ahead_ms: int = 0) -> int:
    """Commit as a committer does on a host with that clock, and return the ledger."""
    clock.host_ahead_ms = host_ahead_ms
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        ledger_id = writer.ledger_id
    clock.host_ahead_ms = 0
    return ledger_id


@pytest.mark.parametrize("committer", [-65 * 60_000, 0, 2 * HOUR_MS])
@pytest.mark.parametrize("janitor", [-2 * HOUR_MS, 0, 2 * HOUR_MS])
def test_no_clock_of_a_host_makes_a_commit_old(client: Any, clock: StoreClock, committer: int, janitor: int) -> None:
    """JAN-1: a committer 65 minutes behind, or a janitor two hours ahead, deleted at once what was to be kept for an hour."""
    create_log(client, "a", LogProperties(entry_format="raw", retention_ms=HOUR_MS))
    first = commit(client, clock, committer)
    clock.now_ms += HOUR_MS // 2
    second = commit(client, clock, committer)
    clock.host_ahead_ms = janitor
    assert apply_retention(client, "a") == ()
    clock.now_ms += HOUR_MS // 2 + 1
    assert apply_retention(client, "a") == (first,)
    clock.now_ms += HOUR_MS
    assert apply_retention(client, "a") == (second,)


@pytest.mark.parametrize("host", [-65 * 60_000, 7 * HOUR_MS])
def test_no_clock_of_a_host_makes_an_intent_old(client: Any, clock: StoreClock, host: int) -> None:
    """JAN-1: neither that of who recorded it, nor that of who collects."""
    create_log(client, "a", RAW)
    clock.host_ahead_ms = host
    young = client.store.new_ledger_id()
    client.store.create(f"intents/a/{young}", b'{"query":"q","host":"elsewhere","pid":1,"createdMs":%d}' % list_store.now_ms())
    clock.host_ahead_ms = -host
    assert gc_log(client, "a").deleted == () and client.store.children("intents/a") == [str(young)]
    clock.now_ms += 6 * HOUR_MS
    gc_log(client, "a")
    assert client.store.children("intents/a") == []


def test_commit_times_never_go_back(client: Any, clock: StoreClock) -> None:
    """JAN-2: the store's own clock may, when another server leads."""
    create_log(client, "a", RAW)
    commit(client, clock)
    clock.now_ms -= HOUR_MS // 20
    commit(client, clock)
    clock.now_ms += HOUR_MS
    commit(client, clock)
    times = [segment.committed_at_ms for segment in read_log(client, "a").segments()]
    assert times == [NOW_MS, NOW_MS, NOW_MS + HOUR_MS - HOUR_MS // 20]


@pytest.mark.parametrize(
    ("now", "before", "after", "at"),
    [
        (100, 0, None, 100),
        (100, 90, None, 100),
        (100, 100 + SKEW_MS, None, 100 + SKEW_MS),
        (100, 101 + SKEW_MS, None, 100),  # cannot be: it is not handed on
        (100, 0, 50, 50),
        (100, 60, 70, 70),
        (100, 60, 160, 100),
    ],
)
def test_the_time_of_a_commit(now: int, before: int, after: int | None, at: int) -> None:
    """JAN-2, JAN-3."""
    assert commit_time(now, before, after) == at


def test_times_of_live_segments_stay_in_order_whichever_is_closed_first() -> None:
    """JAN-2."""
    for seed in range(50):
        rng = random.Random(seed)
        listed = LedgerList("a", RAW).append_segments([SegmentRange(1, 0, 0, 1, 1)], 1000)
        listed = listed.add_live_segment(2, rng.randint(900, 1100)).add_live_segment(3, rng.randint(900, 1100))
        for ledger_id in rng.sample((2, 3), 2):
            listed = listed.close_live(ledger_id, 0, 1, rng.randint(900, 1300))
            times = [segment.committed_at_ms for segment in listed.segments]
            assert times == sorted(times), f"seed {seed}"


def test_a_bound_beyond_the_clock_is_refused(client: Any, clock: StoreClock) -> None:
    """JAN-3: before anything is trimmed or collected."""
    create_log(client, "a", replace_retention(HOUR_MS))
    commit(client, clock)
    ahead = clock.now_ms + 2 * HOUR_MS
    for call in (
        lambda: trim_log(client, "a", before_ms=ahead),
        lambda: apply_retention(client, "a", at_ms=ahead),
        lambda: gc_log(client, "a", at_ms=ahead),
    ):
        with pytest.raises(LogClockError, match="120 minutes ahead of the metadata store's clock"):
            call()
    assert read_ledger_list(client, "a").trimmed_seq == 0
    assert trim_log(client, "a", before_ms=clock.now_ms + 1) != ()


def replace_retention(retention_ms: int) -> LogProperties:
    return LogProperties(entry_format="raw", retention_ms=retention_ms)


def test_a_commit_time_that_cannot_be_is_said_and_not_handed_on(client: Any, clock: StoreClock, caplog: pytest.LogCaptureFixture) -> None:
    """JAN-3: as an older program on a host with a wrong clock has left it."""
    create_log(client, "a", replace_retention(HOUR_MS))
    first = commit(client, clock)
    ahead = client.create_ledger()
    ahead.close()
    wrong = clock.now_ms + 24 * HOUR_MS
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(ahead.ledger_id, 0, 0, 1, 1)], wrong))
    commit(client, clock)
    assert [is_ahead(s.committed_at_ms, clock.now_ms) for s in read_log(client, "a").segments()] == [False, True, False]
    clock.now_ms += 2 * HOUR_MS
    with caplog.at_level(logging.WARNING):
        assert apply_retention(client, "a") == (first,)
    assert "segment 1 says it was committed at" in caplog.text


def test_a_host_with_a_wrong_clock_is_warned_about(client: Any, clock: StoreClock, caplog: pytest.LogCaptureFixture) -> None:
    """JAN-4: once, and nothing else comes of it."""
    for ahead in (0, SKEW_MS, -SKEW_MS):
        clock.host_ahead_ms = ahead
        assert store_now_ms(client) == clock.now_ms
    assert caplog.text == ""
    clock.host_ahead_ms = -65 * 60_000
    for _ in range(3):
        assert store_now_ms(client) == clock.now_ms
    assert caplog.text.count("this host's clock is 65 minutes behind the metadata store's") == 1
    assert is_skewed(0, SKEW_MS + 1) and not is_skewed(0, SKEW_MS)


def test_marks_of_queries_are_as_old_as_the_store_says(client: Any, clock: StoreClock) -> None:
    """JAN-1: see the sink's commit; here what it hands in."""
    create_log(client, "a", RAW)
    set_properties(client, "a", committed_retention_ms=HOUR_MS)
    update_ledger_list(client, "a", lambda listed: listed.mark_committed("old", 1, store_now_ms(client)))
    clock.host_ahead_ms = 9 * HOUR_MS
    update_ledger_list(client, "a", lambda listed: listed.mark_committed("new", 1, store_now_ms(client)))
    assert set(read_ledger_list(client, "a").committed) == {"old", "new"}
