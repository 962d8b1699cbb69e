"""Logs over a memory store and in-memory ledgers: the compare-and-set loop, exclusive writing, reading, the janitor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bk_core.client.log.check import check_log, forget_marks, release_log, repair_log
from bk_core.client.log.history import read_log, seal_log, update_ledger_list
from bk_core.client.log.intents import Intent, create_intended, record_intent
from bk_core.client.log.janitor import apply_retention, check_listable, delete_log, gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs, set_properties
from bk_core.client.log.orphans import adopt_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    LogExistsError,
    LogTakenOverError,
    MetadataOutcomeUnknownError,
    NoSuchLogError,
)
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, SegmentRange

RAW = LogProperties(entry_format="raw")


class LostAnswers:
    """A store whose next ``lost`` answers to writes are lost; ``applied`` says whether the write happened all the same."""

    def __init__(self, store: Any, lost: int, applied: bool) -> None:
        self._store, self.lost, self._applied = store, lost, applied
        self.requests: list[tuple[str, bytes, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, path: str, data: bytes, version: int) -> int:
        self.requests.append((path, data, version))
        if self.lost > 0:
            self.lost -= 1
            if self._applied:
                self._store.write(path, data, version)
            raise MetadataOutcomeUnknownError("connection lost")
        return int(self._store.write(path, data, version))


def payloads(reader: LogReader) -> list[bytes]:
    return [payload for run in reader.read() for payload in run.payloads()]


def test_create_list_delete(client: Any) -> None:
    create_log(client, "a", RAW)
    with pytest.raises(LogExistsError):
        create_log(client, "a", RAW)
    assert create_log(client, "a", exist_ok=True).properties == RAW
    assert list_logs(client) == ["a"]
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
    delete_log(client, "a")
    assert list_logs(client) == [] and client.ledgers == {}
    with pytest.raises(NoSuchLogError):
        read_ledger_list(client, "a")
    with pytest.raises(InvalidArgumentError):
        create_log(client, "a/b")


@pytest.mark.parametrize("applied", [True, False])
def test_unknown_outcome_repeats_the_identical_request(client: Any, applied: bool) -> None:
    """META-12: byte-identical at the same version, unless a look shows that it was applied; then it is not applied twice."""
    create_log(client, "a", RAW)
    client.store = store = LostAnswers(client.store, 1, applied)
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(1, 0, 1, 2, 1)], 1, "q", 0))
    assert len(store.requests) == (1 if applied else 2) and len(set(store.requests)) == 1
    assert len(read_ledger_list(client, "a").segments) == 1


def test_writer_serves_reader_across_rolls(client: Any) -> None:
    create_log(client, "a", RAW)
    writer = LogWriter.open(client, "a", roll_max_bytes=4)
    reader = LogReader(client, "a")
    for i in range(6):
        writer.append(b"%04d" % i)
    assert payloads(reader) == [b"%04d" % i for i in range(6)]  # the last ledger is live: up to its LAC, without fencing
    assert client.recovered == []
    writer.roll()  # joins the one that the last entry began
    assert payloads(reader) == []
    assert not reader.wait(0.01)
    writer.append(b"more")
    assert reader.wait(0.01) and payloads(reader) == [b"more"]
    writer.close()
    listed = read_ledger_list(client, "a")
    assert not listed.live_segments and (listed.total_rows, listed.total_bytes) == (7, 28)


def test_second_leader_fences_the_first(client: Any) -> None:
    create_log(client, "a", RAW)
    first = LogWriter.open(client, "a")
    first.append(b"one")
    second = LogWriter.open(client, "a")
    assert first.ledger_id in client.recovered
    for _ in range(2):
        with pytest.raises(LogTakenOverError):
            first.append(b"lost")
    with pytest.raises(LogTakenOverError):
        first.roll()
    second.append(b"two")
    first.close()
    assert payloads(LogReader(client, "a")) == [b"one", b"two"]


def test_the_last_two_are_recovered(client: Any) -> None:
    """A leader that died in the middle of a roll leaves two writable ledgers (LOG-2)."""
    create_log(client, "a", RAW)
    first = LogWriter.open(client, "a")
    first.append(b"one")
    following = client.create_ledger().ledger_id
    update_ledger_list(client, "a", lambda listed: listed.add_live_segment(following, 0))
    LogWriter.open(client, "a")
    assert client.recovered == [first.ledger_id, following]


def test_a_missing_ledger_is_an_alarm(client: Any) -> None:
    create_log(client, "a", RAW)
    client.delete_ledger(LogWriter.open(client, "a").ledger_id)
    with pytest.raises(LogDataLossError):
        LogWriter.open(client, "a")


def test_trim_by_another_is_no_takeover(client: Any) -> None:
    create_log(client, "a", RAW)
    writer = LogWriter.open(client, "a")
    writer.append(b"one")
    writer.roll()
    gone = trim_log(client, "a", before=Position(2))
    assert len(gone) == 1 and gone[0] not in client.ledgers
    writer.append(b"two")
    writer.roll()
    assert payloads(LogReader(client, "a")) == [b"two"]
    assert read_ledger_list(client, "a").condemned == ()
    with pytest.raises(LogDataLossError):
        LogReader(client, "a", start=Position(0))


def test_recreated_log_is_noticed(client: Any) -> None:
    create_log(client, "a", RAW)
    reader = LogReader(client, "a")
    delete_log(client, "a")
    create_log(client, "a", RAW)
    with pytest.raises(LogDataLossError):
        payloads(reader)


def test_janitor_deletes_orphans_and_closes_listed_ones(client: Any) -> None:
    create_log(client, "a", RAW)
    orphan, listed_one, young = (client.create_ledger().ledger_id for _ in range(3))
    for ledger_id, born in ((orphan, 0), (listed_one, 0), (young, 10_000_000)):
        record_intent(client, "a", Intent(ledger_id, "q", "host", 1, born))
    update_ledger_list(client, "a", lambda listed: listed.append_segments([SegmentRange(listed_one, 0, 1, 2, 1)], 1))
    report = gc_log(client, "a", min_age_s=1000, at_ms=10_000_000)
    assert report.deleted == (orphan,) and report.closed == (listed_one,)
    assert set(client.ledgers) == {listed_one, young} and client.store.children("intents/a") == [str(young)]
    with pytest.raises(LogError, match="deleted by a janitor"):
        check_listable(client, "a", "", [orphan])


def test_a_commit_racing_with_the_janitor_fails(client: Any) -> None:
    create_log(client, "a", RAW)
    orphan = client.create_ledger().ledger_id
    update_ledger_list(client, "a", lambda listed: listed.condemn([orphan]))

    def commit(listed: LedgerList) -> LedgerList:
        return listed.append_segments([SegmentRange(orphan, 0, 0, 1, 1)], 1, "q", 0)

    with pytest.raises(LogError, match="condemned"):
        update_ledger_list(client, "a", commit)
    assert gc_log(client, "a").deleted == (orphan,)


MISSING: dict[str, Callable[[Any], Any]] = {
    "gc": lambda client: gc_log(client, "flihgts"),
    "trim": lambda client: trim_log(client, "flihgts", max_bytes=1),
    "trim by age": lambda client: trim_log(client, "flihgts", before_ms=1),
    "seal": lambda client: seal_log(client, "flihgts"),
    "retention": lambda client: apply_retention(client, "flihgts"),
    "properties": lambda client: set_properties(client, "flihgts", retention_ms=1),
    "release": lambda client: release_log(client, "flihgts"),
    "check": lambda client: check_log(client, "flihgts"),
    "repair": lambda client: repair_log(client, "flihgts"),
    "marks": lambda client: forget_marks(client, "flihgts", older_than_ms=1),
    "adopt": lambda client: adopt_log(client, "flihgts"),
    "delete": lambda client: delete_log(client, "flihgts"),
    "read": lambda client: read_log(client, "flihgts"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_log_that_is_not_there_is_said_with_the_name_that_was_meant(client: Any, what: str) -> None:
    """And nothing is made of it."""
    for name in ("flights", "web"):
        create_log(client, name, RAW)
    before = {place: client.store.children(place) for place in ("", "logs", "intents", "deleted")}
    with pytest.raises(NoSuchLogError, match="there is no log 'flihgts'; did you mean 'flights'\\?"):
        MISSING[what](client)
    assert {place: client.store.children(place) for place in before} == before


def test_what_is_left_of_a_log_is_collected_though_its_list_is_gone(client: Any) -> None:
    create_log(client, "a", RAW)
    dead = create_intended(client, "a", RAW)
    client.store.delete("logs/a")
    assert gc_log(client, "a", min_age_s=0).deleted == (dead.ledger_id,)
    with pytest.raises(NoSuchLogError):
        gc_log(client, "a", min_age_s=0)
