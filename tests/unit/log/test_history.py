"""The history of a log in ledgers, over a memory store: sealing, loading, the cache, and what a crash or a rival leaves."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.client.log import history, list_store
from bk_core.client.log.history import ChunkCache, history_of, read_log, seal_log, update_ledger_list
from bk_core.client.log.intents import HISTORY, create_intended, intended_ledgers, intent_here, intents_of, record_intent
from bk_core.client.log.janitor import delete_log, gc_log, trim_log
from bk_core.client.log.list_store import change_ledger_list, read_ledger_list
from bk_core.client.log.lists import create_log, set_properties
from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogHistoryError,
    MetadataOutcomeUnknownError,
    NotEnoughBookiesError,
    ReadError,
    VersionConflictError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import LogProperties, Segment, SegmentRange

RAW = LogProperties(entry_format="raw")
SMALL = SealLimits(tail_max=5, chunk=3, fan_out=2)


class LostAnswer:
    """A store whose next answer to a write is lost, after the write or instead of it."""

    def __init__(self, store: Any, applied: bool) -> None:
        self._store, self._applied, self._lost = store, applied, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, path: str, data: bytes, version: int) -> int:
        if not self._lost:
            self._lost = True
            if self._applied:
                self._store.write(path, data, version)
            raise MetadataOutcomeUnknownError("connection lost")
        return int(self._store.write(path, data, version))


def commit(client: Any, batch: int, limits: SealLimits = SMALL) -> int:
    """One segment in a ledger of its own. Returns the ledger."""
    handle = client.create_ledger()
    handle.close()
    wanted = [SegmentRange(handle.ledger_id, 0, 9, 10, 100)]
    update_ledger_list(client, "a", lambda listed: listed.append_segments(wanted, 1000 + batch, "q", batch), limits=limits)
    return int(handle.ledger_id)


def grow(client: Any, count: int, limits: SealLimits = SMALL) -> list[int]:
    create_log(client, "a", RAW)
    return [commit(client, batch, limits) for batch in range(count)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_retry_at", {})


def test_commits_cross_levels_and_everything_is_read_back(client: Any) -> None:
    data = grow(client, 40)
    listed = read_ledger_list(client, "a")
    assert len(listed.segments) <= 5 and listed.history[0].level >= 2
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data
    assert intents_of(client, "a") == {}
    assert all(client.ledgers[ref.ledger_id].state is LedgerState.CLOSED for ref in listed.history)


def test_trimming_and_deleting_leave_no_ledger(client: Any) -> None:
    data = grow(client, 40)
    gone = trim_log(client, "a", before=Position(30))
    view = read_log(client, "a")
    assert set(data[:30]) <= set(gone) and not set(data[30:]) & set(gone)
    assert [segment.seq for segment in view.segments()] == list(range(30, 40))
    assert view.counts_before(Position(30)) == (300, 3000)
    assert view.listed.dropped == () == view.listed.condemned
    delete_log(client, "a")
    assert client.ledgers == {} and client.store.children("deleted/a") == []


def test_a_chunk_is_read_once(client: Any) -> None:
    grow(client, 12)
    listed = read_ledger_list(client, "a")
    cache = ChunkCache()
    load = history_of(client, "a", listed.log_id, cache)
    first = load(listed.history[0])
    client.ledgers[listed.history[0].ledger_id].entries.clear()
    assert load(listed.history[0]) is first and len(cache) == 1


def test_the_cache_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    """The bound counts segments, because chunks differ in size."""
    cache = ChunkCache(items_max=7)
    three = tuple(Segment(i, 1, i, i, 1, 1) for i in range(3))
    for number in (1, 2, 2):
        cache.put(("a", number, 0), three)
    assert cache.get(("a", 1, 0)) == three and len(cache) == 2
    cache.put(("a", 3, 0), three)
    assert cache.get(("a", 2, 0)) is None and cache.get(("a", 1, 0)) == three and len(cache) == 2
    cache.put(("a", 4, 0), (*three, *three, *three))
    assert len(cache) == 0, "what is larger than the cache is not kept"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (b"nonsense", "not a chunk of history"),
        (b'{"format":9}', "a chunk of format 9; this program reads format 1"),
        (b'{"format":1,"logId":"other"}', "a chunk of another log"),
        (None, "is not there; the ledger was not closed"),
    ],
)
def test_a_damaged_chunk_is_said_with_its_place(client: Any, entry: bytes | None, said: str) -> None:
    grow(client, 12)
    ref = read_ledger_list(client, "a").history[-1]
    client.ledgers[ref.ledger_id].entries[:] = [] if entry is None else [entry]
    with pytest.raises(LogHistoryError, match=said) as failure:
        history_of(client, "a", read_ledger_list(client, "a").log_id, ChunkCache())(ref)
    assert f"history ledger {ref.ledger_id}" in str(failure.value) and failure.value.context["log"] == "a"


def test_a_chunk_of_other_segments_is_refused(client: Any) -> None:
    """Its own checks: level, first segment, count, sums; so a reference that was mixed up cannot be believed."""
    grow(client, 12, SealLimits(5, 3, 9))
    listed = read_ledger_list(client, "a")
    one, two = listed.history[:2]
    client.ledgers[one.ledger_id].entries[:] = client.ledgers[two.ledger_id].entries
    with pytest.raises(LogHistoryError, match="not the one referred to"):
        history_of(client, "a", listed.log_id, ChunkCache())(one)


def test_a_missing_chunk_is_loss_only_if_it_was_trimmed(client: Any) -> None:
    grow(client, 20)
    listed = read_ledger_list(client, "a")
    ref = listed.history[-1]
    entries = client.ledgers.pop(ref.ledger_id)
    with pytest.raises(LogHistoryError, match="does not exist"):
        history_of(client, "a", listed.log_id, ChunkCache())(ref)
    client.ledgers[ref.ledger_id] = entries
    trim_log(client, "a", before=Position(20))
    with pytest.raises(LogDataLossError, match="trimmed meanwhile"):
        history_of(client, "a", listed.log_id, ChunkCache())(ref)


def test_a_recreated_log_is_noticed(client: Any) -> None:
    grow(client, 3)
    before = read_log(client, "a").log_id
    assert read_log(client, "a", log_id=before).next_seq == 3
    delete_log(client, "a")
    create_log(client, "a", RAW)
    with pytest.raises(LogDataLossError, match="deleted and created again"):
        read_log(client, "a", log_id=before)


# --- failures -----------------------------------------------------------------------------------------------------------------


def test_a_commit_succeeds_though_its_history_cannot_be_written(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list stays longer for a while; no try is made with every commit, and nothing is left behind."""
    create_log(client, "a", RAW)
    tries: list[int] = []
    create = client.create_ledger

    def refuse(**settings: Any) -> Any:
        if settings.get("ledger_id") is None:
            return create(**settings)
        tries.append(1)
        raise NotEnoughBookiesError("no bookies")

    monkeypatch.setattr(client, "create_ledger", refuse)
    for batch in range(9):
        commit(client, batch)
    assert len(read_ledger_list(client, "a").segments) == 9 and len(tries) == 1
    monkeypatch.setattr(client, "create_ledger", create)
    monkeypatch.setattr(history, "_retry_at", {})
    commit(client, 9)
    assert len(read_ledger_list(client, "a").segments) <= 5 and len(read_log(client, "a").listed.history) > 0
    gc_log(client, "a", min_age_s=0)
    assert client.store.children("intents/a") == []


def test_a_crash_before_the_list_names_it_leaves_nothing_after_gc(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        """The process is gone: nothing of it runs any more."""

    data = grow(client, 5)
    commit_nothing = SealLimits(4, 2, 2)

    def crash(*_: Any) -> bool:
        raise Crash

    monkeypatch.setattr(history, "_list_steps", crash)
    monkeypatch.setattr(history, "_discard", lambda *_: None)
    with pytest.raises(Crash):
        seal_log(client, "a", limits=commit_nothing)
    monkeypatch.undo()
    (orphan,) = set(client.ledgers) - set(data)
    assert intents_of(client, "a")[orphan].purpose == HISTORY
    assert gc_log(client, "a").deleted == ()  # its process runs
    assert gc_log(client, "a", min_age_s=0).deleted == (orphan,)
    assert set(client.ledgers) == set(data) and client.store.children("intents/a") == []


def test_a_crash_after_the_list_names_it_loses_nothing_to_gc(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its intent is still there, also when the chunk has been merged out of sight: the janitor forgets it and deletes nothing."""
    create_log(client, "a", RAW)
    monkeypatch.setattr(history, "forget_intent", lambda *_: None)
    monkeypatch.setattr(history, "intended_ledgers", lambda *_, **__: [])
    data = [commit(client, batch) for batch in range(40)]
    before = set(client.ledgers)
    assert len(client.store.children("intents/a")) > 10
    report = gc_log(client, "a", min_age_s=0)
    assert report.deleted == () and report.failed == () and set(client.ledgers) == before
    assert client.store.children("intents/a") == []
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data


@pytest.mark.parametrize(("cluster", "waits"), [("", True), ("here", True), ("another", False)])
def test_only_who_seals_in_this_cluster_is_waited_for(client: Any, cluster: str, waits: bool) -> None:
    """OWN-5: an intent of another cluster says nothing about this log, whose root both have used."""
    grow(client, 5)
    whose = client.store.cluster_id() if cluster == "here" else cluster
    record_intent(client, "a", intent_here(7_000_000, "q", HISTORY, cluster=whose))
    assert intended_ledgers(client, "a", HISTORY) == ([7_000_000] if waits else [])
    commit(client, 5)
    assert bool(read_ledger_list(client, "a").history) is not waits


def test_a_rival_that_was_faster_wins_and_the_slower_cleans_up(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 5)
    limits = SealLimits(4, 2, 2)
    write = history.write_chunk

    def overtaken(*arguments: Any) -> int:
        written = write(*arguments)
        monkeypatch.setattr(history, "write_chunk", write)
        assert seal_log(client, "a", limits=limits) == 1
        return written

    monkeypatch.setattr(history, "write_chunk", overtaken)
    assert seal_log(client, "a", limits=limits) == 0
    assert len(client.ledgers) == len(data) + 1 and intents_of(client, "a") == {}
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data


def test_who_finds_a_rival_at_work_leaves_it_to_him(client: Any) -> None:
    create_log(client, "a", RAW)
    create_intended(client, "a", RAW, purpose=HISTORY)
    for batch in range(6):
        commit(client, batch)
    assert read_ledger_list(client, "a").history == ()
    for batch in range(6, 22):  # unless it takes too long
        commit(client, batch)
    assert read_ledger_list(client, "a").history != ()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_to_the_sealing_is_told_from_a_lost_race(client: Any, applied: bool) -> None:
    data = grow(client, 5)
    client.store = LostAnswer(client.store, applied)
    assert seal_log(client, "a", limits=SealLimits(4, 2, 2)) == 1
    assert len(client.ledgers) == 6 and intents_of(client, "a") == {}
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data


def test_a_log_recreated_while_its_history_was_written_is_left_alone(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(client, 5)
    write = history.write_chunk

    def meanwhile(*arguments: Any) -> int:
        written = write(*arguments)
        delete_log(client, "a")
        create_log(client, "a", RAW)
        return written

    monkeypatch.setattr(history, "write_chunk", meanwhile)
    assert seal_log(client, "a", limits=SealLimits(4, 2, 2)) == 0
    assert read_ledger_list(client, "a").next_seq == 0 and client.ledgers == {}


def test_a_history_ledger_whose_bookies_fail_is_abandoned_and_deleted(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 5)
    create = client.create_ledger

    def broken(**settings: Any) -> Any:
        handle = create(**settings)
        handle.append_run_future = lambda *_: (_ for _ in ()).throw(ReadError("bookies are away"))
        return handle

    monkeypatch.setattr(client, "create_ledger", broken)
    with pytest.raises(ReadError):
        seal_log(client, "a", limits=SealLimits(4, 2, 2))
    assert set(client.ledgers) == set(data) and intents_of(client, "a") == {}


def test_a_history_ledger_that_a_janitor_took_away_is_not_listed(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process looked dead or too old; condemned, deleted and absolved again before it is listed."""
    data = grow(client, 5)
    write = history.write_chunk

    def meanwhile(*arguments: Any) -> int:
        written = write(*arguments)
        assert gc_log(client, "a", min_age_s=0).deleted == (written,)
        return written

    monkeypatch.setattr(history, "write_chunk", meanwhile)
    assert seal_log(client, "a", limits=SealLimits(4, 2, 2)) == 0
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data and set(client.ledgers) == set(data)


def test_what_cannot_be_discarded_is_left_to_the_janitor(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grow(client, 5)
    delete = client.delete_ledger
    monkeypatch.setattr(history, "_list_steps", lambda *_: False)

    def away(_ledger_id: int, **_options: bool) -> None:
        raise NotEnoughBookiesError("away")

    monkeypatch.setattr(client, "delete_ledger", away)
    assert seal_log(client, "a", limits=SealLimits(4, 2, 2)) == 0
    monkeypatch.setattr(client, "delete_ledger", delete)
    assert len(gc_log(client, "a", min_age_s=0).deleted) == 1 and set(client.ledgers) == set(data)


def test_what_was_listed_after_all_is_not_discarded(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our change was made, its answer was lost, and others have sealed so much since that our reference is out of sight."""
    data = grow(client, 5)
    listing = history._list_steps
    monkeypatch.setattr(history, "_list_steps", lambda *arguments: listing(*arguments) and False)
    assert seal_log(client, "a", limits=SealLimits(4, 2, 2)) == 0
    assert [segment.ledger_id for segment in read_log(client, "a").segments()] == data and intents_of(client, "a") == {}
    assert set(client.ledgers) > set(data)


@pytest.mark.parametrize("applied", ["never", "at once", "late"])
def test_sealing_with_an_answer_that_stays_away(client: Any, monkeypatch: pytest.MonkeyPatch, applied: str) -> None:
    """META-13, LOG-18: the minute is over and nobody knows if the history ledgers are listed; whatever becomes of the request, none that
    is listed is deleted."""
    data = grow(client, 5)
    write, held = client.store.write, []

    def away(path: str, value: bytes, version: int) -> int:
        if path == "logs/a" and b'"history":[[' in value and not held:
            held.append((path, value, version))
            if applied == "at once":
                write(path, value, version)
            raise MetadataOutcomeUnknownError("the answer was lost")
        return int(write(path, value, version))

    monkeypatch.setattr(list_store, "update_timeout_s", lambda _client: 0.0)
    monkeypatch.setattr(client.store.__class__, "write", lambda _, *request: away(*request))
    with pytest.raises(MetadataOutcomeUnknownError):
        seal_log(client, "a", limits=SealLimits(4, 2, 2))
    monkeypatch.undo()
    (request,) = held
    if applied == "late":
        with pytest.raises(VersionConflictError):
            client.store.write(*request)
    view = read_log(client, "a")
    assert [segment.ledger_id for segment in view.segments()] == data and bool(view.listed.history) == (applied == "at once")
    gc_log(client, "a", min_age_s=0)
    assert read_log(client, "a").mentioned(client.ledgers) == set(client.ledgers)


# --- properties ---------------------------------------------------------------------------------------------------------------


def test_properties_change_for_what_is_written_from_now_on(client: Any) -> None:
    create_log(client, "a", RAW)
    assert set_properties(client, "a", retention_ms=5, guaranteed_write_quorum=True).properties.guaranteed_write_quorum
    stored = read_ledger_list(client, "a").properties
    assert (stored.retention_ms, stored.guaranteed_write_quorum, stored.entry_format) == (5, True, "raw")
    for wrong in ({"colour": 1}, {"entry_format": "arrow"}, {"schema": "x"}, {"retention_bytes": 0}, {"ack_quorum_size": 9}):
        with pytest.raises(InvalidArgumentError):
            set_properties(client, "a", **wrong)
    assert change_ledger_list(client, "a", lambda listed: listed).properties == stored
