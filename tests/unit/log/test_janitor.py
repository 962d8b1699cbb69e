"""The writers that are gone, and what may be deleted when: the janitor, trimming, retention and deletion over a memory store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.client import repeating
from bk_core.client.log import intents, janitor
from bk_core.client.log import works as list_works
from bk_core.client.log.history import ChunkCache, history_of, read_log, update_ledger_list
from bk_core.client.log.intents import Intent, abandoned, create_intended, forget_intent, intent_here, intents_of, record_intent
from bk_core.client.log.janitor import GcReport, apply_retention, check_listable, delete_log, gc_log, gc_quietly, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.writer import LogWriter
from bk_core.client.patience import patience_s
from bk_core.client.processes import place_here, start_of_this
from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import HistoryRef, LogProperties, SegmentRange
from bk_core.protocol.log.vanished import COMMIT_GRACE_MS

RAW = LogProperties(entry_format="raw")
SMALL = SealLimits(tail_max=5, chunk=3, fan_out=2)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "_cleaned_at", {})


def grow(client: Any, count: int) -> list[int]:
    """One closed ledger per segment of ten rows and a hundred bytes, committed at 1000, 1001, ..."""
    create_log(client, "a", RAW)
    data = []
    for batch in range(count):
        handle = client.create_ledger()
        handle.close()
        wanted = [SegmentRange(handle.ledger_id, 0, 9, 10, 100)]
        update_ledger_list(client, "a", lambda current, w=wanted, b=batch: current.append_segments(w, 1000 + b, "q", b), limits=SMALL)
        data.append(int(handle.ledger_id))
    return data


def left(client: Any) -> list[int]:
    return [segment.seq for segment in read_log(client, "a").segments()]


def dead(client: Any, query_id: str = "", listed: bool = False) -> int:
    """A ledger whose writer, on this host, is gone: one that lists its ledgers itself, or a worker of query ``query_id``."""
    handle = client.create_ledger()
    intent = intent_here(handle.ledger_id, query_id)
    record_intent(client, "a", replace(intent, started=intent.started + 1))
    if listed:
        wanted = [SegmentRange(handle.ledger_id, 0, 0, 1, 1)]
        update_ledger_list(client, "a", lambda current: current.append_segments(wanted, 1, f"mark-{handle.ledger_id}", 0))
    return int(handle.ledger_id)


class Overlaid:
    """An object with some of its methods replaced."""

    def __init__(self, base: Any, **methods: Any) -> None:
        self._base = base
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


# --- who is gone -----------------------------------------------------------------------------------------------------------


def test_only_a_process_that_is_certainly_gone_is_abandoned() -> None:
    mine = intent_here(1, "q")
    assert mine.pid == os.getpid() and mine.started > 0 and mine.boot
    assert not abandoned(mine)
    assert abandoned(replace(mine, started=mine.started + 1)), "the number was given to another process since"
    assert not abandoned(replace(mine, boot="another boot, or another container", started=1))
    assert not abandoned(Intent(1, "q", mine.host, 1, 0)), "an intent of an older program says too little"


def test_a_process_that_has_ended_is_gone_reaped_or_not() -> None:
    script = "from bk_core.client.log.intents import intent_here as h; i = h(1, 'q'); print(i.pid, i.started, i.boot)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, started, boot = child.stdout.read().split(" ", 2)
        intent = Intent(1, "q", socket.gethostname(), int(pid), 0, int(started), boot.strip())
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert abandoned(intent)
    assert abandoned(intent)


def test_a_host_without_proc_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", missing)
    assert place_here().boot == "" and start_of_this() == 0 and not abandoned(intent_here(1, "q"))


def test_an_intent_is_there_before_its_ledger_and_goes_with_a_refusal(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[int, Intent]] = []
    create = client.create_ledger
    errors = [NotEnoughBookiesError("none"), MetadataOutcomeUnknownError("lost")]

    def refuse(**settings: Any) -> Any:
        seen.append(intents_of(client, "a"))
        raise errors.pop(0)

    monkeypatch.setattr(client, "create_ledger", refuse)
    with pytest.raises(NotEnoughBookiesError):
        create_intended(client, "a", RAW)
    assert len(seen[0]) == 1 and intents_of(client, "a") == {}
    with pytest.raises(MetadataOutcomeUnknownError):
        create_intended(client, "a", RAW)
    assert len(intents_of(client, "a")) == 1, "the ledger may come to be"
    monkeypatch.setattr(client, "create_ledger", create)
    create_log(client, "a", RAW)
    gc_log(client, "a", min_age_s=0)
    assert intents_of(client, "a") == {}
    handle = create_intended(client, "a", replace(RAW, guaranteed_write_quorum=True), query_id="q", custom={"application": b"test"})
    intent = intents_of(client, "a")[handle.ledger_id]
    record_intent(client, "a", intent)  # again, as after a lost answer
    assert intent.query_id == "q"
    forget_intent(client, "a", handle.ledger_id)
    forget_intent(client, "a", handle.ledger_id)
    assert intents_of(client, "a") == {}


def test_a_ledger_that_is_made_behind_a_janitor_keeps_its_intent(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-9: the janitor finds no ledger and forgets the intent before the ledger is there; its maker dies before it lists it."""
    create_log(client, "a", RAW)
    create, reports = client.create_ledger, list[GcReport]()

    def late(**settings: Any) -> Any:
        reports.append(gc_log(client, "a", min_age_s=0))
        return create(**settings)

    monkeypatch.setattr(client, "create_ledger", late)
    for purpose in (intents.DATA, intents.HISTORY):
        made = create_intended(client, "a", RAW, purpose=purpose).ledger_id
        assert reports.pop() == GcReport(forgotten=(made,))
        assert gc_log(client, "a", min_age_s=0) == GcReport((made,))
        assert made not in client.ledgers and intents_of(client, "a") == {}


def test_a_ledger_that_comes_between_the_looks_of_a_janitor_keeps_its_intent(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-9: it was missing when the janitor wanted to close it, and is there when the intent is forgotten. Its maker saw the intent."""
    create_log(client, "a", RAW)
    record_intent(client, "a", replace(intent_here(7, ""), started=1))
    forget = janitor.forget_intent

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(janitor, "forget_intent", forget)
        client.create_ledger(ledger_id=7)
        forget(*arguments)

    monkeypatch.setattr(janitor, "forget_intent", late)
    assert gc_log(client, "a") == GcReport()
    assert set(intents_of(client, "a")) == {7} and read_ledger_list(client, "a").condemned == ()
    assert gc_log(client, "a") == GcReport((7,))
    assert client.ledgers == {} and intents_of(client, "a") == {}


def test_an_intent_that_vanishes_while_it_is_read_is_none(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert intents.read_intent(client, "a", "5") is None
    client.store.create("intents/a/6", b'{"query":"q","host":"h","pid":1,"createdMs":5}')
    born = client.store.read("intents/a/6").created_ms
    assert intents_of(client, "a") == {6: Intent(6, "q", "h", 1, born)}  # JAN-1: whatever its writer's clock said
    children = client.store.children
    with monkeypatch.context() as patch:
        patch.setattr(client, "store", Overlaid(client.store, children=lambda path: [*children(path), "7"]))
        assert set(intents_of(client, "a")) == {6}


# --- the janitor -----------------------------------------------------------------------------------------------------------


def test_ledgers_of_dead_writers_go_at_once_and_listed_ones_are_closed(client: Any) -> None:
    create_log(client, "a", RAW)
    orphan, committed = dead(client), dead(client, listed=True)
    alive = create_intended(client, "a", RAW).ledger_id
    assert gc_log(client, "a") == GcReport((orphan,), (committed,))
    assert set(client.ledgers) == {committed, alive} and set(intents_of(client, "a")) == {alive}
    assert client.ledgers[committed].state is LedgerState.CLOSED and client.ledgers[alive].state is LedgerState.OPEN


def test_a_batch_whose_worker_has_just_ended_is_committed_in_spite_of_a_janitor(client: Any) -> None:
    """JAN-8: Spark ends its workers when it likes, and the commit comes from another process. What no commit can name goes at once."""
    create_log(client, "a", RAW)
    born_ms = client.store.clock_ms()
    written, other = dead(client, "q"), dead(client, "q")
    history = create_intended(client, "a", RAW, purpose=intents.HISTORY, query_id="q").ledger_id
    intent = intents_of(client, "a")[history]
    forget_intent(client, "a", history, intents.HISTORY)
    record_intent(client, "a", replace(intent, started=intent.started + 1))
    assert gc_log(client, "a", at_ms=born_ms) == GcReport((history,))
    check_listable(client, "a", "", [written])
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(written, 0, 0, 1, 1)], 1, "q", 0))
    a_minute_later = client.store.clock_ms() + COMMIT_GRACE_MS
    assert gc_log(client, "a", at_ms=a_minute_later) == GcReport((other,), (written,))
    assert set(client.ledgers) == {written} and intents_of(client, "a") == {}


def test_who_gives_an_age_means_it_for_dead_workers_as_well(client: Any) -> None:
    """JAN-8."""
    create_log(client, "a", RAW)
    born_ms, orphan = client.store.clock_ms(), dead(client, "q")
    assert gc_log(client, "a", min_age_s=30.0, at_ms=born_ms) == GcReport()
    assert gc_log(client, "a", min_age_s=30.0, at_ms=client.store.clock_ms() + 30_000).deleted == (orphan,)
    orphan = dead(client, "q")
    assert gc_log(client, "a", min_age_s=0).deleted == (orphan,)


def test_without_the_log_there_is_nothing_to_condemn(client: Any) -> None:
    orphan = dead(client)
    assert gc_log(client, "a").deleted == (orphan,)
    assert client.ledgers == {}


def test_what_cannot_be_deleted_now_is_said_and_done_later(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create_log(client, "a", RAW)
    orphan, listed, other = dead(client), dead(client, listed=True), dead(client)
    recover = client.recover_ledger

    def stuck(ledger_id: int, **options: Any) -> Any:
        if ledger_id in (orphan, listed):
            raise NotEnoughBookiesError("recovery is not possible now")
        return recover(ledger_id, **options)

    monkeypatch.setattr(client, "recover_ledger", stuck)
    report = gc_log(client, "a")
    assert report.deleted == (other,) and [ledger_id for ledger_id, _ in report.failed] == [orphan, listed]
    assert "recovery is not possible now" in report.failed[0][1]
    assert read_ledger_list(client, "a").condemned == (orphan,)
    monkeypatch.setattr(client, "recover_ledger", recover)
    assert gc_log(client, "a") == GcReport((orphan,), (listed,))


def test_a_committer_cleans_up_after_its_own_query_at_once_and_after_others_later(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another query's batch may be just before its commit, with its workers killed for idleness (spark-connectors.md 5.3)."""
    create_log(client, "a", RAW)
    mine, foreign = dead(client, "mine"), dead(client, "foreign")
    report = gc_quietly(client, "a", query_id="mine")
    assert report is not None and report.deleted == (mine,) and foreign in client.ledgers
    assert gc_quietly(client, "a", query_id="mine") is None, "not with every commit"
    monkeypatch.setattr(janitor, "GC_PERIOD_S", 0.0)
    assert gc_quietly(client, "a") == GcReport()
    monkeypatch.setattr(janitor, "INTENT_AGE_S", 0.0)
    report = gc_quietly(client, "a")
    assert report is not None and report.deleted == (foreign,)
    monkeypatch.setattr(janitor, "INTENT_AGE_S", 3600.0)
    old = client.create_ledger().ledger_id
    record_intent(client, "a", Intent(old, "q", "elsewhere", 1, 0))
    report = gc_quietly(client, "a")
    assert report is not None and report.deleted == (old,)


def test_a_committer_asks_the_store_nothing_before_it_is_time(client: Any) -> None:
    """A micro-batch a second would else pay for the list and the cluster's identity each time."""
    create_log(client, "a", RAW)
    create_log(client, "b", RAW)
    assert gc_quietly(client, "a") == GcReport()
    honest, asked = client.store, list[str]()

    class Asked:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(honest, name)

    client.store = Asked()
    assert gc_quietly(client, "a") is None and asked == []
    assert gc_quietly(client, "b") == GcReport() and asked


def test_a_committer_is_not_bothered_by_a_janitor_that_fails(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create_log(client, "a", RAW)

    def away(*_: Any) -> list[str]:
        raise MetadataUnavailableError("the store is away")

    monkeypatch.setattr(janitor, "intents_of", away)
    assert gc_quietly(client, "a") is None
    assert "the store is away" in caplog.text
    assert gc_quietly(client, "no-such-log") is None


def test_a_committer_stops_when_its_time_is_over(client: Any) -> None:
    data = grow(client, 20)
    orphan = dead(client, "q")
    listed = dead(client, "q", listed=True)
    update_ledger_list(client, "a", lambda current: current.trim(20, read_log(client, "a").load)[0])
    assert gc_quietly(client, "a", budget_s=0.0, query_id="q") == GcReport()
    assert orphan in client.ledgers and read_ledger_list(client, "a").condemned
    janitor._cleaned_at.clear()
    report = gc_quietly(client, "a", query_id="q")
    assert report is not None and {orphan, *data} <= set(report.deleted) and report.closed == (listed,)
    assert set(client.ledgers) == {listed}


def test_a_committer_does_not_wait_for_bookies_that_are_away(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a ledger takes no longer than the time of the pass; ``gc_log`` waits as long as any call."""
    create_log(client, "a", RAW)
    given: list[float] = []

    def stalls(ledger_id: int, *, password: bytes = b"") -> Any:
        given.append(patience_s(60.0))
        raise OperationTimeoutError("made no progress")

    monkeypatch.setattr(client, "recover_ledger", stalls)
    left_open = dead(client, "q")
    report = gc_quietly(client, "a", query_id="q", budget_s=9.0)
    assert report is not None and dict(report.failed) == {left_open: "[BK-TIMEOUT] made no progress"}
    assert gc_log(client, "a", min_age_s=0).failed == report.failed
    assert 1.0 <= given[0] <= 9.0 and given[1:] == [60.0]


def test_a_ledger_that_takes_long_leaves_its_time_to_the_list(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a change of the list begins with that change. Else one ledger whose bookies are away, and a commit meanwhile, end each
    pass before it has done anything, and nobody is told which ledger it was."""
    create_log(client, "a", RAW)
    stalled, orphan = dead(client), dead(client)
    update_ledger_list(client, "a", lambda current: current.condemn([stalled, orphan]))
    recover, late_s = client.recover_ledger, [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + late_s[0], monotonic_ns=lambda: time.monotonic_ns() + int(late_s[0] * 1e9), sleep=time.sleep
    )

    def stalls(ledger_id: int, *, password: bytes = b"") -> Any:
        if ledger_id != stalled:
            return recover(ledger_id, password=password)
        late_s[0] += 3600.0
        handle = client.create_ledger()
        handle.close()
        update_ledger_list(client, "a", lambda current: current.append_segments([SegmentRange(handle.ledger_id, 0, 0, 1, 1)], 1))
        raise OperationTimeoutError("made no progress")

    monkeypatch.setattr(client, "recover_ledger", stalls)
    monkeypatch.setattr(list_works, "time", clock)
    monkeypatch.setattr(repeating, "time", clock)
    report = gc_log(client, "a", min_age_s=0)
    assert dict(report.failed) == {stalled: "[BK-TIMEOUT] made no progress"} and report.deleted == (orphan,)
    assert read_ledger_list(client, "a").condemned == (stalled,)


def test_a_committer_applies_the_retention(client: Any) -> None:
    data = grow(client, 12)
    set_properties(client, "a", retention_bytes=300)
    report = gc_quietly(client, "a")
    assert report is not None and set(data[:9]) <= set(report.deleted) and left(client) == [9, 10, 11]


# --- trimming and retention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "first"),
    [
        ({"before": Position(7)}, 7),
        ({"before": Position(7, 5)}, 7),
        ({"before": Position(7, 10)}, 8),
        ({"before": Position(20)}, 20),
        ({"before_ms": 1011}, 11),
        ({"before_ms": 0}, 0),
        ({"before_ms": 5000}, 20),
        ({"max_bytes": 500}, 15),
        ({"max_bytes": 501}, 14),
        ({"max_bytes": 599}, 14),
        ({"max_bytes": 0}, 20),
        ({"max_bytes": 5000}, 0),
        ({"max_bytes": 500, "before": Position(17)}, 17),
        ({"max_bytes": 500, "before_ms": 1003}, 15),
    ],
)
def test_where_a_trim_cuts(client: Any, bounds: dict[str, Any], first: int) -> None:
    """Whole segments only; at least ``max_bytes`` are kept; of several bounds the farthest holds."""
    data = grow(client, 20)
    gone = trim_log(client, "a", **bounds)
    assert left(client) == list(range(first, 20))
    assert {i for i in gone if i in data} == set(data[:first])
    assert trim_log(client, "a", before=Position(0)) == ()


def test_one_row_segments_are_kept_to_the_byte(client: Any) -> None:
    create_log(client, "a", RAW)
    for batch in range(4):
        handle = client.create_ledger()
        handle.close()
        wanted = [SegmentRange(handle.ledger_id, 0, 0, 1, 100)]
        update_ledger_list(client, "a", lambda current, w=wanted, b=batch: current.append_segments(w, 1, "q", b))
    trim_log(client, "a", max_bytes=350)
    assert left(client) == [0, 1, 2, 3]
    trim_log(client, "a", max_bytes=299)
    assert left(client) == [1, 2, 3]


def test_a_trim_needs_a_bound(client: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="before_ms or max_bytes"):
        trim_log(client, "a")


def test_a_trim_stops_before_what_is_still_written(client: Any) -> None:
    """LOG-11: neither a live segment nor an open ledger that nobody watches is cut off; one with an intent is left to the janitor."""
    create_log(client, "a", RAW)
    watched, open_one = create_intended(client, "a", RAW).ledger_id, client.create_ledger().ledger_id
    for batch, ledger_id in enumerate((watched, open_one)):
        wanted = [SegmentRange(ledger_id, 0, 0, 1, 1)]
        update_ledger_list(client, "a", lambda current, w=wanted, b=batch: current.append_segments(w, 1, "q", b))
    assert trim_log(client, "a", before=Position(2)) == () and left(client) == [1]
    assert watched in client.ledgers and read_ledger_list(client, "a").condemned == ()
    client.ledgers[open_one].state = LedgerState.CLOSED
    with LogWriter.open(client, "a", take_over_queries=True) as writer:
        writer.append(b"x")
        assert trim_log(client, "a", before=Position(3)) == (open_one,)
        assert left(client) == [2]
    assert gc_log(client, "a", min_age_s=0).deleted == (watched,)


def test_retention_by_age_and_bytes(client: Any) -> None:
    data = grow(client, 20)
    assert apply_retention(client, "a") == ()
    set_properties(client, "a", retention_ms=10)
    assert set(apply_retention(client, "a", at_ms=1015)) >= set(data[:5]) and left(client) == list(range(5, 20))
    set_properties(client, "a", retention_ms=None, retention_bytes=300)
    apply_retention(client, "a")
    assert left(client) == [17, 18, 19]
    apply_retention(client, "a")
    assert left(client) == [17, 18, 19]
    delete_log(client, "a")
    with pytest.raises(NoSuchLogError):
        apply_retention(client, "a")


def test_a_log_recreated_in_the_middle_of_a_trim_is_left_alone(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(client, 6)
    read = list_works.read_versioned

    def meanwhile(*arguments: Any) -> Any:
        found = read(*arguments)
        monkeypatch.setattr(list_works, "read_versioned", read)
        delete_log(client, "a")
        grow(client, 3)
        return found

    monkeypatch.setattr(list_works, "read_versioned", meanwhile)
    assert trim_log(client, "a", before=Position(6)) == ()
    assert left(client) == [0, 1, 2]


def test_history_that_is_lost_stops_the_deletion_of_nothing_else(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 30)
    view = read_log(client, "a")
    update_ledger_list(client, "a", lambda current: current.trim(30, view.load)[0])
    lost = read_ledger_list(client, "a").dropped[0]

    monkeypatch.setattr(list_works, "history_of", lambda c, n, i: history_of(c, n, i, ChunkCache()))
    del client.ledgers[lost.ledger_id]
    report = gc_log(client, "a")
    assert [ledger_id for ledger_id, _ in report.failed] == [lost.ledger_id] and "does not exist" in report.failed[0][1]
    assert set(data[lost.after_seq :]) <= set(report.deleted)
    assert read_ledger_list(client, "a").dropped == (lost,)


def test_two_passes_at_once_do_not_disturb_each_other(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has swept the reference just before: its chunk is gone, and that is no failure."""
    grow(client, 30)
    view = read_log(client, "a")
    update_ledger_list(client, "a", lambda current: current.trim(30, view.load)[0])

    def overtaken(_client: Any, name: str, log_id: str) -> Any:
        monkeypatch.setattr(list_works, "history_of", history_of)
        gc_log(client, "a")

        def load(ref: HistoryRef) -> Any:
            raise LogDataLossError("trimmed meanwhile")

        return load

    monkeypatch.setattr(list_works, "history_of", overtaken)
    assert gc_log(client, "a").failed == ()
    assert client.ledgers == {} and read_ledger_list(client, "a").dropped == ()


def test_a_log_deleted_in_the_middle_of_a_pass_is_the_end_of_it(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(client, 30)
    view = read_log(client, "a")
    update_ledger_list(client, "a", lambda current: current.trim(30, view.load)[0])
    read = list_works.read_versioned

    def meanwhile(*arguments: Any) -> Any:
        found = read(*arguments)
        monkeypatch.setattr(list_works, "read_versioned", read)
        delete_log(client, "a")
        return found

    monkeypatch.setattr(list_works, "read_versioned", meanwhile)
    assert gc_log(client, "a").failed == () and client.ledgers == {}


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_data_ledger_that_lost_its_last_segment_while_it_had_an_intent_is_not_forgotten(client: Any, forgotten: bool) -> None:
    """In dropped history and in the tail, whether its intent is forgotten before or after: unlisted, it stays known until it is deleted."""
    data = grow(client, 20)
    for ledger_id in (data[0], data[19]):
        intent = intent_here(ledger_id, "q")
        record_intent(client, "a", replace(intent, started=intent.started + 1))
    update_ledger_list(client, "a", lambda current: current.trim(20, read_log(client, "a").load, intents_of(client, "a"))[0])
    if forgotten:
        forget_intent(client, "a", data[0])
        forget_intent(client, "a", data[19])
    trim_log(client, "a", before=Position(20))
    gc_log(client, "a", at_ms=client.store.clock_ms() + COMMIT_GRACE_MS)
    assert client.ledgers == {} and read_ledger_list(client, "a").released == () and intents_of(client, "a") == {}


# --- deletion --------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


def crash_after(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[int] = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise Crash
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("steps", [0, 1, 7, 20, 40])
def test_a_deletion_that_crashed_is_finished_by_gc(client: Any, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    grow(client, 30)
    dead(client)
    client.store.create("readers/a/r", b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(janitor, "delete_own", crash_after(steps, janitor.delete_own))
        with pytest.raises(Crash):
            delete_log(client, "a")
    with pytest.raises(NoSuchLogError):
        read_ledger_list(client, "a")
    monkeypatch.setattr(janitor, "history_of", lambda c, n, i: history_of(c, n, i, ChunkCache()))
    gc_log(client, "a")
    assert client.ledgers == {} and client.store.children("deleted/a") == [] and client.store.children("intents/a") == []


def test_a_deletion_that_crashed_before_it_began_deletes_nothing(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 3)
    tombstone = janitor._store_tombstone

    def crash(*arguments: Any) -> None:
        tombstone(*arguments)
        raise Crash

    monkeypatch.setattr(janitor, "_store_tombstone", crash)
    with pytest.raises(Crash):
        delete_log(client, "a")
    assert gc_log(client, "a") == GcReport() and set(client.ledgers) == set(data) and left(client) == [0, 1, 2]
    monkeypatch.setattr(janitor, "_store_tombstone", tombstone)
    delete_log(client, "a")
    assert client.ledgers == {} and client.store.children("deleted/a") == []


def test_a_commit_during_the_deletion_is_deleted_too(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(client, 3)
    tombstone = janitor._store_tombstone
    late = client.create_ledger().ledger_id

    def meanwhile(*arguments: Any) -> None:
        tombstone(*arguments)
        wanted = [SegmentRange(late, 0, 0, 1, 1)]
        update_ledger_list(client, "a", lambda current: current.append_segments(wanted, 1, "late", 0))

    monkeypatch.setattr(janitor, "_store_tombstone", meanwhile)
    delete_log(client, "a")
    assert client.ledgers == {} and client.store.children("deleted/a") == []


def test_two_that_finish_a_deletion_do_not_disturb_each_other(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = client.store
    client.store = Overlaid(store, children=lambda path: ["gone"] if path == "deleted/a" else store.children(path))
    assert gc_log(client, "a") == GcReport()


def test_a_deletion_says_what_it_could_not_delete(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 3)
    client.store.create("readers/a/r", b"{}")
    delete = client.delete_ledger

    def stuck(ledger_id: int, **_options: bool) -> None:
        if ledger_id == data[1]:
            raise MetadataUnavailableError("away")
        delete(ledger_id)

    monkeypatch.setattr(client, "delete_ledger", stuck)
    with pytest.raises(LogError, match=rf"not its ledgers {data[1]} .*gc_log finishes it"):
        delete_log(client, "a")
    assert set(client.ledgers) == {data[1]} and client.store.children("readers/a") == []
    monkeypatch.setattr(client, "delete_ledger", delete)
    create_log(client, "a", RAW)  # a new log of the name does not hide the old one's ledgers
    assert gc_log(client, "a").deleted == (data[1],) and client.store.children("deleted/a") == []


def test_history_that_cannot_be_read_keeps_the_tombstone(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(client, 20)
    ref = read_ledger_list(client, "a").history[-1]
    entries = client.ledgers[ref.ledger_id].entries[:]
    client.ledgers[ref.ledger_id].entries[:] = [b"damaged"]

    monkeypatch.setattr(janitor, "history_of", lambda c, n, i: history_of(c, n, i, ChunkCache()))
    with pytest.raises(LogError, match=f"not its ledgers {ref.ledger_id} "):
        delete_log(client, "a")
    assert ref.ledger_id in client.ledgers and client.store.children("deleted/a") != []
    client.ledgers[ref.ledger_id].entries[:] = entries
    gc_log(client, "a")
    assert client.ledgers == {} and client.store.children("deleted/a") == []


@pytest.mark.parametrize("bound", [{"max_bytes": -1}, {"max_bytes": False}, {"before_ms": -1}, {"max_bytes": "5"}])
def test_a_bound_that_is_none_trims_nothing(client: Any, bound: dict[str, Any]) -> None:
    """-1 means "no limit" elsewhere; here it would cut off the whole log."""
    create_log(client, "bounds")
    with pytest.raises(InvalidArgumentError, match="must be a whole number"):
        trim_log(client, "bounds", **bound)
