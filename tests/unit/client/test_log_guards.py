"""Calls that are refused unless one insists: a log of queries written exclusively, a listed ledger deleted; who writes a live segment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import bk_core
from bk_core.client.log.check import release_log
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.intents import DATA, Intent, intent_here, record_intent
from bk_core.client.log.janitor import delete_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.live_writers import ALIVE, GONE, UNKNOWN, LiveWriter, foremost, live_writers, writer_of, writer_told
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    InvalidArgumentError,
    LedgerListedError,
    LogFormatError,
    LogHistoryError,
    LogOfQueriesError,
    LogWriterAliveError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    WrongPasswordError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.exclusive import Insisted, check_exclusive, queries_of
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.password import ASKED_MAX, check_told, witnesses
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, Mark, Segment

RAW = LogProperties(entry_format="raw")


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as bk:
        create_log(bk, "a", RAW)
        yield bk


def untouched(client: bk_core.BookKeeper) -> bool:
    return list(client.list_ledgers()) == [] and read_ledger_list(client, "a").segments == ()


# --- GRD-1 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "writing", "queries"),
    [
        ({}, (), ()),
        ({"write:1": 0}, ("",), ()),  # a one-shot write is over when it is marked; "": an exclusive writer's intent
        ({"q": 3, "write:1": 0}, (), ("q",)),
        ({"txn": 3}, ("q", "write:2"), ("q", "txn", "write:2")),
    ],
)
def test_a_log_belongs_to_the_queries_of_its_marks_and_intents(marks: dict[str, int], writing: Any, queries: Any) -> None:
    """GRD-1."""
    listed = LedgerList("id", RAW, committed={name: Mark(batch) for name, batch in marks.items()})
    assert queries_of(listed, writing) == queries
    if queries:
        with pytest.raises(LogOfQueriesError, match=queries[0]):
            check_exclusive("a", listed, writing, Insisted(), (), "")
    else:
        check_exclusive("a", listed, writing, Insisted(), (), "")
    check_exclusive("a", listed, writing, Insisted(take_over_queries=True), (), "")


def test_a_long_list_of_queries_is_cut() -> None:
    listed = LedgerList("id", RAW, committed={f"q{n}": Mark(0) for n in range(5)})
    with pytest.raises(LogOfQueriesError, match=r"\(q0, q1, q2 and 2 more\)"):
        check_exclusive("a", listed, (), Insisted(), (), "")


@pytest.mark.parametrize("why", ["mark", "intent"])
def test_a_log_of_queries_is_not_taken_over_by_the_way(client: bk_core.BookKeeper, why: str) -> None:
    """GRD-1: nothing is fenced, made or left."""
    if why == "mark":
        update_ledger_list(client, "a", lambda listed: listed.mark_committed("query", 7, 1))
    else:
        record_intent(client, "a", intent_here(77, "query"))
    with pytest.raises(LogOfQueriesError, match="take_over_queries=True"):
        LogWriter.open(client, "a")
    assert untouched(client)
    with LogWriter.open(client, "a", take_over_queries=True) as writer:
        writer.append(b"x")
        writer.roll()  # the guard asks once
        writer.append(b"y")


def test_a_query_that_is_known_to_be_gone_does_not_hold_a_log(client: bk_core.BookKeeper) -> None:
    here = intent_here(77, "query")
    record_intent(client, "a", Intent(77, "query", here.host, here.pid, here.created_ms, here.started + 1, here.boot, DATA))
    LogWriter.open(client, "a").close()


def test_a_query_that_commits_during_a_take_over_keeps_the_log(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRD-1, META-14: the look is at the list that the compare-and-set names."""
    made = client.create_ledger

    def create(**settings: Any) -> Any:
        update_ledger_list(client, "a", lambda listed: listed.mark_committed("query", 7, 1))
        return made(**settings)

    monkeypatch.setattr(client, "create_ledger", create)
    with pytest.raises(LogOfQueriesError):
        LogWriter.open(client, "a")
    assert read_ledger_list(client, "a").segments == ()


def test_other_bytes_do_not_get_into_a_log_of_arrow_entries(client: bk_core.BookKeeper) -> None:
    """GRD-1."""
    create_log(client, "arrow", LogProperties(entry_format="arrow"))
    for words in ({}, {"take_over_queries": True}):
        with pytest.raises(
            LogFormatError, match="'arrow' is for Arrow record batches.* entry_format='raw', or say arrow_entries=True"
        ) as told:
            LogWriter.open(client, "arrow", **words)
        assert told.value.code == "BK-LOG-FORMAT" and isinstance(told.value, LogOfQueriesError)
    LogWriter.open(client, "arrow", arrow_entries=True).close()


def test_a_writer_is_fenced_only_if_that_is_wanted(client: bk_core.BookKeeper) -> None:
    """GRD-1, GRD-3: and the refusal says who it is."""
    with LogWriter.open(client, "a") as writer:
        with pytest.raises(
            LogWriterAliveError,
            match=rf"'a' is being written .*process {os.getpid()} on host .*, since 20.* ledger {writer.ledger_id}",
        ):
            LogWriter.open(client, "a", take_over=False)
        writer.append(b"still mine")
    LogWriter.open(client, "a", take_over=False).close()


def test_the_ledger_of_a_live_segment_says_who_writes_it(client: bk_core.BookKeeper) -> None:
    """GRD-3."""
    with LogWriter.open(client, "a") as writer:
        found = writer_of(client, writer.ledger_id)
        here = intent_here(0, "")
        seen = live_writers(client, [writer.ledger_id])[writer.ledger_id]
        assert seen.is_own and seen.told.startswith("this program, process ") and seen.ending() == "close that writer of this program"
        assert replace(seen, is_own=False).told.startswith("process ") and replace(seen, is_own=False).ending() == "stop that process"
        assert found is not None and (found.host, found.pid, found.started, found.boot) == (here.host, here.pid, here.started, here.boot)
        assert abs(found.created_ms - here.created_ms) < 60_000
    with client.create_ledger(custom={"writer": b"[]"}) as other:
        assert writer_of(client, other.ledger_id) is None
    assert writer_of(client, 987_654) is None
    assert writer_told(client, [other.ledger_id, 987_654]) == "a process that is not named"


def test_of_several_writers_the_one_that_may_live_stands_for_all() -> None:
    """GRD-4: one is gone for certain only if every one is."""
    dead, here, nobody = LiveWriter("h", 1, 5, GONE), LiveWriter("h", 2, 5, ALIVE), LiveWriter("", 0, 0, UNKNOWN)
    away = replace(dead, state=UNKNOWN)
    assert foremost({}) is None and foremost({1: dead, 2: replace(dead, pid=9)}) == replace(dead, pid=9)
    assert foremost({1: here, 2: dead, 3: nobody}) is here
    assert foremost({1: nobody, 2: dead}) is nobody
    assert foremost({1: away, 2: nobody, 3: dead}) is away


def test_an_outage_is_no_ledger_that_does_not_tell(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_ledger_id: int) -> Any:
        raise MetadataUnavailableError("away")

    with LogWriter.open(client, "a") as writer:
        with monkeypatch.context() as patched:
            patched.setattr(client, "ledger_metadata", away)
            for look in (writer_of, lambda client, ledger_id: live_writers(client, [ledger_id])):
                with pytest.raises(MetadataUnavailableError):
                    look(client, writer.ledger_id)


# --- GRD-2 -----------------------------------------------------------------------------------------------------------------


def test_a_listed_ledger_is_not_deleted_by_the_way(client: bk_core.BookKeeper) -> None:
    """GRD-2: closed or live, and whatever the list says of it later."""
    with LogWriter.open(client, "a") as writer:
        first = writer.ledger_id
        writer.append(b"x")
        writer.roll()
        live = writer.ledger_id
        writer.append(b"y")
        for ledger_id in (first, live):
            with pytest.raises(LedgerListedError, match="part of log 'a'"):
                client.delete_ledger(ledger_id)
            assert client.ledger_metadata(ledger_id).state in (LedgerState.CLOSED, LedgerState.OPEN)
    assert trim_log(client, "a", before=Position(1)) == (first,)  # the janitor needs no word
    client.delete_ledger(live, even_if_listed=True)
    assert list(client.list_ledgers()) == []


def test_ledgers_that_no_log_lists_are_deleted_as_ever(client: bk_core.BookKeeper) -> None:
    for custom in ({}, {"log": b"a"}, {"log": b"no such log"}, {"log": b"/"}, {"log": b"\xff"}):
        with client.create_ledger(custom=custom) as ledger:
            ledger.append(b"x")
        client.delete_ledger(ledger.ledger_id)
    with LogWriter.open(client, "a") as writer:
        listed = writer.ledger_id
    delete_log(client, "a")
    assert listed not in set(client.list_ledgers())


def test_a_ledger_that_is_open_is_deleted_too(client: bk_core.BookKeeper) -> None:
    """Apache's client does it as well; logs delete CLOSED ones only (LOG-12), and see to that themselves."""
    ledger = client.create_ledger()
    ledger.append(b"x")
    client.delete_ledger(ledger.ledger_id)
    assert ledger.append(b"acknowledged, and lost") == 1
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(ledger.ledger_id)
    ledger.abandon()


def test_a_log_that_cannot_tell_what_it_lists_keeps_its_ledgers(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise LogHistoryError("broken")

    with client.create_ledger(custom={"log": b"a"}) as ledger:
        ledger.append(b"x")
    with monkeypatch.context() as patch, pytest.raises(LedgerListedError, match="does not tell"):
        patch.setattr("bk_core.client.deleting.read_log", broken)
        client.delete_ledger(ledger.ledger_id)


# --- GRD-6 -----------------------------------------------------------------------------------------------------------------


def test_a_log_has_one_password(client: bk_core.BookKeeper) -> None:
    """GRD-6: also where nothing has to be fenced, and of an older list, which says nothing about passwords."""
    with LogWriter.open(client, "a", password=b"right") as writer:
        writer.append(b"x")
    before, ledgers = read_ledger_list(client, "a"), list(client.list_ledgers())
    for given, told in ((b"wrong", "with a password .* another one was given"), (b"", "with a password .* none was given")):
        with pytest.raises(WrongPasswordError, match=told) as refused:
            LogWriter.open(client, "a", password=given)
        assert "right" not in str(refused.value) and "wrong" not in str(refused.value)
    assert read_ledger_list(client, "a") == before and list(client.list_ledgers()) == ledgers
    LogWriter.open(client, "a", password=b"right").close()


def test_a_log_without_a_password_takes_none(client: bk_core.BookKeeper) -> None:
    """GRD-6: a live writer is not fenced by who cannot go on."""
    with LogWriter.open(client, "a") as writer:
        with pytest.raises(WrongPasswordError, match="without a password .* one was given"):
            LogWriter.open(client, "a", password=b"new")
        writer.append(b"x")


def test_a_password_that_comes_in_between_is_seen(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRD-6, META-14: of two first writers one is told, and nothing of it is listed."""
    made = client.create_ledger

    def create(**settings: Any) -> Any:
        monkeypatch.undo()
        with LogWriter.open(client, "a", password=b"first") as writer:
            writer.append(b"x")
        return made(**settings)

    monkeypatch.setattr(client, "create_ledger", create)
    with pytest.raises(WrongPasswordError):
        LogWriter.open(client, "a", password=b"second")
    (segment,) = [segment for segment in read_ledger_list(client, "a").segments if segment.entries]
    client.open_ledger(segment.ledger_id, password=b"first").close()


def test_who_is_asked_for_the_password() -> None:
    """GRD-6: the oldest and the newest first, and a bounded number; ledgers of many segments once."""
    ids = [7, 7, 3, 9, 11, 12, 5, 5]
    listed = LedgerList("id", RAW, segments=tuple(Segment(i, ledger, i, i, 1, 1) for i, ledger in enumerate(ids)))
    assert witnesses(listed) == (7, 5, 3, 9) and len(witnesses(listed)) == ASKED_MAX
    assert witnesses(LedgerList("id", RAW)) == ()
    check_told("a", [], b"any")
    check_told("a", [(7, b"a"), (5, b"b")], b"b")  # damaged before anybody looked: neither of the two is locked out
    with pytest.raises(WrongPasswordError):
        check_told("a", [(7, b"a"), (5, b"b")], b"c")


def test_ledgers_that_are_gone_tell_no_password(client: bk_core.BookKeeper) -> None:
    """GRD-6."""
    for payload in (b"x", b"y"):
        with LogWriter.open(client, "a", password=b"right") as writer:
            writer.append(payload)
    first, *_ = [segment.ledger_id for segment in read_ledger_list(client, "a").segments]
    client.delete_ledger(first, even_if_listed=True)
    with pytest.raises(WrongPasswordError):
        LogWriter.open(client, "a", password=b"wrong")


def test_a_log_that_python_creates_is_one_for_its_writer(client: bk_core.BookKeeper) -> None:
    create_log(client, "plain")
    with LogWriter.open(client, "plain") as writer:
        writer.append(b"x")
    assert read_ledger_list(client, "plain").properties.entry_format == "raw"


@pytest.mark.parametrize("flag", ["take_over", "take_over_queries", "arrow_entries"])
def test_a_flag_is_true_or_false(client: bk_core.BookKeeper, flag: str) -> None:
    """ "no" is true to Python: it would fence the writer that it was to spare."""
    with LogWriter.open(client, "a") as writer:
        for wrong in ("no", "", 0, 1, None):
            with pytest.raises(InvalidArgumentError, match=f"{flag} must be True or False, not"):
                LogWriter.open(client, "a", **{flag: wrong})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="even_if_alive must be True or False"):
            release_log(client, "a", even_if_alive="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="even_if_listed must be True or False"):
            client.delete_ledger(writer.ledger_id, even_if_listed="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="exist_ok must be True or False"):
            create_log(client, "a", exist_ok="no")  # type: ignore[arg-type]
        writer.append(b"goes on")
