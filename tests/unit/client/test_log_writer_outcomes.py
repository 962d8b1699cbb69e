"""A writer of a log, and the outcomes of its requests: another writer takes over, ledgers fail, answers are lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.client.log import leadership
from bk_core.client.log.driver import LeaderWorks, append_outcome
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.intents import intent_here, intents_of, record_intent
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    ClientClosedError,
    ClusterChangedError,
    LedgerFencedError,
    LogDataLossError,
    LogTakenOverError,
    MetadataConflictError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoClusterError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    RecoveryFailedError,
    VersionConflictError,
    WriteFailedError,
    WrongPasswordError,
)
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import CheckLedger, CloseLedger, CreateLedger, DeleteLedger, ReadList, RecoverLedger, WriteList
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from tests.unit.client.raw_log import LIMITS, RAW, contents, run_of, segments


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        create_log(bk, "a", RAW)
        yield bk


class Store:
    """A store with another ``read`` or ``write``; tests put it between a client's logs and its store."""

    def __init__(self, store: Any, **methods: Any) -> None:
        self._store = store
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# --- taken over ----------------------------------------------------------------------------------------------------------


def test_a_writer_that_was_taken_over_says_so_on_every_call(client: bk_core.BookKeeper) -> None:
    """LOG-20, WR-13."""
    first = LogWriter.open(client, "a")
    first.append(b"one")
    second = LogWriter.open(client, "a")
    with pytest.raises(LogTakenOverError, match="may or may not be in the log"):
        first.append(b"lost")
    for call in (lambda: first.append(b"x"), first.roll, lambda: first.append_run_future(*run_of(b"x"))):
        with pytest.raises(LogTakenOverError, match="nothing was written"):
            call()
    first.close()
    second.append(b"two")
    second.close()
    assert contents(client) == [b"one", b"two"]


@pytest.mark.parametrize("known", [True, False])
def test_leaving_the_block_tells_that_an_append_failed(client: bk_core.BookKeeper, known: bool) -> None:
    """It fails before the end of the block, or while the writer is being closed."""
    failed = threading.Event()
    with pytest.raises(LogTakenOverError), LogWriter.open(client, "a") as first:
        first.append(b"one")
        second = LogWriter.open(client, "a")
        second.append(b"two")
        first.append_future(b"lost").add_done_callback(lambda _: failed.set())
        assert not known or failed.wait(30)
    second.close()
    assert contents(client) == [b"one", b"two"]


@pytest.mark.parametrize(
    "told", [lambda writer: writer.append(b"lost"), lambda writer: [writer.append_future(b"lost") for _ in range(9)][4].result(30)]
)
def test_leaving_the_block_tells_nothing_twice(client: bk_core.BookKeeper, told: Callable[[LogWriter], object]) -> None:
    with LogWriter.open(client, "a") as first:
        first.append(b"one")
        with LogWriter.open(client, "a") as second:
            second.append(b"two")
        with pytest.raises(LogTakenOverError):
            told(first)


def test_closing_tells_once_that_an_append_failed(client: bk_core.BookKeeper) -> None:
    first = LogWriter.open(client, "a")
    first.append(b"one")
    with LogWriter.open(client, "a") as second:
        second.append(b"two")
    failed = threading.Event()
    first.append_future(b"lost").add_done_callback(lambda _: failed.set())
    assert failed.wait(30)
    with pytest.raises(LogTakenOverError):
        first.close()
    first.close()
    assert contents(client) == [b"one", b"two"]


def test_what_is_abandoned_on_purpose_is_no_loss(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a") as writer:
        writer.append_future(b"x")
        writer.abandon()


def test_a_take_over_shows_when_an_idle_writer_rolls(client: bk_core.BookKeeper) -> None:
    """LOG-20: by the conflict of the list."""
    first = LogWriter.open(client, "a")
    with LogWriter.open(client, "a"):
        with pytest.raises(LogTakenOverError, match="another leader has put a ledger on the list"):
            first.roll()
        with pytest.raises(LogTakenOverError, match="nothing was written"):
            first.append(b"x")


def test_a_recreated_log_is_another_log(client: bk_core.BookKeeper) -> None:
    """Even if the versions of both are the same: the old writer must not overwrite the new list."""
    writer = LogWriter.open(client, "a")
    delete_log(client, "a")
    create_log(client, "a", RAW)
    with LogWriter.open(client, "a") as newer:
        newer.append(b"new")
        with pytest.raises(NoSuchLogError):
            writer.roll()
    assert contents(client) == [b"new"]


def test_who_trims_does_not_take_over(client: bk_core.BookKeeper) -> None:
    from bk_core.client.log.janitor import trim_log

    with LogWriter.open(client, "a") as writer:
        writer.append(b"one")
        writer.roll()
        assert len(trim_log(client, "a", before=Position(1))) == 1
        writer.append(b"two")
        writer.roll()
    assert contents(client) == [b"two"]


def test_the_election_is_asked_between_rounds(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-4: others win every round; when the election is lost the attempt ends, and so it does when it cannot be asked."""
    rival = _others_win(client, monkeypatch)
    asked: list[bool] = []

    def leading() -> bool:
        asked.append(len(asked) < 1)
        return asked[-1]

    with pytest.raises(LogTakenOverError, match="the election was lost"):
        LogWriter.open(client, "a", still_leading=leading)
    assert asked == [True, False]

    def broken() -> bool:
        raise OSError("unreachable")

    with pytest.raises(LogTakenOverError, match="the election was lost"):
        LogWriter.open(client, "a", still_leading=broken)
    with pytest.raises(LogTakenOverError, match="other leaders won 2 rounds in a row"):
        LogWriter.open(client, "a", attempts=2)
    assert len(read_ledger_list(client, "a").segments) == 5 and intents_of(client, "a") == {}
    rival.close()


def _others_win(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> bk_core.BookKeeper:
    """Somebody else lists a closed ledger before every compare-and-set of a leader. Its client is returned, to be closed."""
    honest = client.store
    rival = bk_core.BookKeeper(client.config, honest)

    def race(path: str, data: bytes, version: int) -> int:
        with rival.create_ledger(custom={"log": b"a"}) as other:
            update_ledger_list(rival, "a", lambda listed: listed.add_live_segment(other.ledger_id, 1))
        update_ledger_list(rival, "a", lambda listed: listed.close_live(other.ledger_id, -1, 0, 1))
        return honest.write(path, data, version)

    monkeypatch.setattr(client, "store", Store(honest, write=race))
    return rival


# --- outcomes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_asked_for_again_with_the_identical_bytes(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """META-12, LOG-3: taking over and rolling; our ledger is listed once, whether or not the lost request was applied."""
    write = client.store.write
    requests: list[tuple[bytes, int]] = []

    def lossy(path: str, data: bytes, version: int) -> int:
        first = (data, version) not in requests
        requests.append((data, version))
        if first:
            if applied:
                write(path, data, version)
            raise MetadataOutcomeUnknownError("connection lost")
        return write(path, data, version)

    monkeypatch.setattr(client, "store", Store(client.store, write=lossy))
    writer = LogWriter.open(client, "a")
    assert requests[0] == requests[1]
    writer.append(b"one")
    writer.roll()
    writer.append(b"two")
    writer.close()
    assert segments(client) == [0, 0] and contents(client) == [b"one", b"two"]
    assert len(list(client.list_ledgers())) == 2


def test_after_a_take_over_whose_answer_was_lost_nobody_is_asked_for_admission_again(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRD-1, LOG-3: once our ledger is the last one of the list no query commits any more, so one that begins does not stop a roll."""
    write = client.store.write
    lost: list[int] = []

    def lossy(path: str, data: bytes, version: int) -> int:
        done = write(path, data, version)
        if not lost:
            lost.append(done)
            raise MetadataOutcomeUnknownError("connection lost")
        return done

    monkeypatch.setattr(client, "store", Store(client.store, write=lossy))
    with LogWriter.open(client, "a") as writer:
        assert lost
        record_intent(client, "a", intent_here(client.store.new_ledger_id(), "query-1", log_id=read_ledger_list(client, "a").log_id))
        writer.append(b"one")
        writer.roll()
        writer.append(b"two")
    assert contents(client) == [b"one", b"two"]


def test_a_missing_ledger_is_an_alarm(client: bk_core.BookKeeper) -> None:
    """LOG-5."""
    client.delete_ledger(LogWriter.open(client, "a").ledger_id, even_if_listed=True)
    with pytest.raises(LogDataLossError, match="does not exist"):
        LogWriter.open(client, "a")


def test_a_wrong_password_is_told_at_once(client: bk_core.BookKeeper) -> None:
    LogWriter.open(client, "a", password=b"right").abandon()
    with pytest.raises(WrongPasswordError):
        LogWriter.open(client, "a", password=b"wrong")
    LogWriter.open(client, "a", password=b"right").close()


def test_too_few_bookies_are_told_at_once(uri: str, client: bk_core.BookKeeper) -> None:
    """Nothing stays: neither a ledger, nor an intent."""
    create_log(client, "wide", replace(RAW, ensemble_size=5, write_quorum_size=3))
    with pytest.raises(NotEnoughBookiesError):
        LogWriter.open(client, "wide")
    assert intents_of(client, "wide") == {} and list(client.list_ledgers()) == []


def test_a_take_over_that_gets_nowhere_says_why(uri: str, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with bk_core.connect(uri, limits=LIMITS, operation_timeout_s=0.5) as impatient:

        def away(path: str) -> Any:
            raise MetadataUnavailableError("no connection")

        monkeypatch.setattr(impatient, "store", Store(impatient.store, read_here=away))
        with pytest.raises(OperationTimeoutError, match=r"taking over log 'a' did not finish within 0.5 s: .*no connection"):
            LogWriter.open(impatient, "a")


def test_a_roll_without_bookies_changes_nothing(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-6: entries go on to the ledger in use."""
    with LogWriter.open(client, "a", roll_max_entries=1) as writer:

        def too_few(**_settings: Any) -> Any:
            raise NotEnoughBookiesError("only 2 bookies")

        with monkeypatch.context() as patch:
            patch.setattr(client, "create_ledger", too_few)
            writer.append(b"one")  # and a roll that does not come off
            with pytest.raises(NotEnoughBookiesError):
                writer.roll()
            assert writer.append(b"two") == Position(0, 1)
        writer.roll()
        assert writer.append(b"three") == Position(1, 0)


def test_a_writer_without_bookies_for_too_long_ends_and_says_so_on_every_call(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookies are back when it is called again: an ended writer says that it does not go on, and another one does."""

    def dead(*_run: Any) -> Any:
        raise NotEnoughBookiesError("dead")

    def too_few(**_settings: Any) -> Any:
        raise NotEnoughBookiesError("only 2 bookies")

    with bk_core.connect(uri, limits=LIMITS, operation_timeout_s=0.5) as bk:
        create_log(bk, "a", RAW)
        writer = LogWriter.open(bk, "a")
        with monkeypatch.context() as patch:
            patch.setattr(writer._works.handles[writer.ledger_id], "append_run_future", dead)
            patch.setattr(bk, "create_ledger", too_few)
            with pytest.raises(NotEnoughBookiesError, match="only 2 bookies"):
                writer.append_future(b"one").result(30)
        with pytest.raises(NotEnoughBookiesError, match="only 2 bookies.*; nothing was written. .* ended this writer for good") as caught:
            writer.append(b"two")
        assert not caught.value.outcome_unknown
        writer.close()  # the failure has been told
        with LogWriter.open(bk, "a") as another:
            another.append(b"three")
        assert contents(bk) == [b"three"]


def test_a_run_that_a_ledger_did_not_take_leaves_its_ids_to_nobody(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-8: what follows a refused run must not be taken for it; all goes into the next ledger, in order."""
    with LogWriter.open(client, "a") as writer:
        handle = writer._works.handles[writer.ledger_id]
        writer.append(b"zero")
        taken = handle.append_run_future
        calls: list[int] = []

        def refuse_first(*run: Any) -> Future[int]:
            calls.append(1)
            if len(calls) == 1:
                raise OperationTimeoutError("no room")
            return taken(*run)

        monkeypatch.setattr(handle, "append_run_future", refuse_first)
        futures = [writer.append_future(b"%d" % n) for n in range(5)]
        positions = [future.result(30) for future in futures]
    assert contents(client) == [b"zero", b"0", b"1", b"2", b"3", b"4"]
    assert positions == sorted(positions) and positions[0].seq == 1


def test_ledgers_that_fail_empty_are_followed_by_pauses(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies that are dead and still registered: the list must not fill with empty segments as fast as ledgers can be made."""
    created, made = client.create_ledger, []

    def create(**settings: Any) -> Any:
        handle = created(**settings)
        made.append(handle.ledger_id)
        if len(made) < 4:
            monkeypatch.setattr(handle, "append_run_future", lambda *_: (_ for _ in ()).throw(NotEnoughBookiesError("dead")))
        return handle

    monkeypatch.setattr(client, "create_ledger", create)
    with LogWriter.open(client, "a") as writer:
        pauses, later = [], writer._worker.later

        def noted(key: str, after_s: float, task: Callable[[], None]) -> None:
            pauses.append((key, after_s))
            later(key, after_s / 100, task)

        monkeypatch.setattr(writer._worker, "later", noted)
        assert writer.append(b"x") == Position(3, 0)
        assert pauses == [("create again", 0.1), ("create again", 0.2), ("create again", 0.4)]
    assert segments(client) == [-1, -1, -1, 0] and contents(client) == [b"x"]


WORKS: list[tuple[Any, BaseException, Outcome]] = [
    (ReadList(1), NoNodeError("x"), Outcome.NO_SUCH_LEDGER),
    (ReadList(1), MetadataUnavailableError("x"), Outcome.UNKNOWN),
    (ReadList(1), ClientClosedError("x"), Outcome.REFUSED),
    (WriteList(1, (1,), 0), VersionConflictError("x"), Outcome.CONFLICT),
    (WriteList(1, (1,), 0), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
    (CreateLedger(1, {}), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
    (CreateLedger(1, {}), NotEnoughBookiesError("x"), Outcome.REFUSED),
    (RecoverLedger(1, 2), NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
    (RecoverLedger(1, 2), RecoveryFailedError("x"), Outcome.UNKNOWN),
    (RecoverLedger(1, 2), NotEnoughBookiesError("x"), Outcome.UNKNOWN),
    (RecoverLedger(1, 2), WrongPasswordError("x"), Outcome.REFUSED),
    (CloseLedger(1, 2), LedgerFencedError("x"), Outcome.CONFLICT),
    (CloseLedger(1, 2), MetadataConflictError("x"), Outcome.CONFLICT),
    (CloseLedger(1, 2), NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
    (CloseLedger(1, 2), OperationTimeoutError("x"), Outcome.UNKNOWN),
    (CloseLedger(1, 2), WriteFailedError("x"), Outcome.REFUSED),
    (DeleteLedger(1, 2), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("work", "error", "outcome"), WORKS)
def test_outcomes_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch, work: Any, error: BaseException, outcome: Outcome) -> None:
    """The table at the top of protocol/log/effects.py."""
    client: Any = SimpleNamespace(store=SimpleNamespace(check_cluster=lambda: None))
    works = LeaderWorks(client, "a", b"", 60.0)

    def fail(_work: Any) -> Any:
        raise error

    monkeypatch.setattr(works, "_perform", fail)
    answer = works.answer(work)
    assert (answer.request, answer.outcome, answer.error, works.problem) == (1, outcome, error, error)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ClusterChangedError("x"), Outcome.REFUSED), (NoClusterError("x"), Outcome.REFUSED), (MetadataUnavailableError("x"), Outcome.UNKNOWN)],
)
@pytest.mark.parametrize("work", [RecoverLedger(1, 2), CheckLedger(1, 2)])
def test_a_missing_ledger_is_believed_only_of_the_same_cluster(work: Any, error: BkError, outcome: Outcome) -> None:
    """OWN-2: a cluster that was made anew knows none of the ledgers, and none of them is gone."""

    def fail(*_: Any) -> Any:
        raise error

    def missing(*_: Any) -> Any:
        raise NoSuchLedgerError("ledger 2 does not exist")

    client: Any = SimpleNamespace(store=SimpleNamespace(check_cluster=fail), ledger_metadata=missing)
    works = LeaderWorks(client, "a", b"", 60.0)
    answer = works.answer(work)
    assert (answer.outcome, answer.error, works.problem) == (outcome, error, error)


def test_bookies_are_waited_for_only_where_nothing_else_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """CreateLedger in the place of a ledger that has failed: UNKNOWN within the patience, then REFUSED."""
    client: Any = object()
    for patience_s, outcome in ((60.0, Outcome.UNKNOWN), (0.0, Outcome.REFUSED)):
        works = LeaderWorks(client, "a", b"", patience_s)
        monkeypatch.setattr(works, "_perform", lambda _work: (_ for _ in ()).throw(NotEnoughBookiesError("x")))
        assert works.answer(CreateLedger(1, {}), needed=True).outcome is outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (LedgerFencedError("x"), Outcome.CONFLICT),
        (MetadataConflictError("x"), Outcome.CONFLICT),
        (NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
        (NotEnoughBookiesError("x"), Outcome.UNKNOWN),
        (OperationTimeoutError("x"), Outcome.UNKNOWN),
    ],
)
def test_outcomes_of_appends(error: BkError | None, outcome: Outcome) -> None:
    assert append_outcome(error) is outcome


def test_an_intent_that_could_not_be_forgotten_is_forgotten_soon(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAN-5: a janitor takes the writer of a listed ledger for gone when its intent is old, and fences one that lives. An idle writer
    reads its list no more, so it tries again by itself."""
    delete, tries, forgotten = client.store.delete, itertools.count(), threading.Event()

    def away_twice(path: str, version: int | None = None) -> None:
        if path.startswith("intents/"):
            if next(tries) < 2:
                raise MetadataUnavailableError("store away")
            delete(path, version)
            forgotten.set()
            return
        delete(path, version)

    monkeypatch.setattr(leadership, "FORGET_AGAIN_S", 0.01)
    monkeypatch.setattr(client, "store", Store(client.store, delete=away_twice))
    with LogWriter.open(client, "a") as writer:
        assert forgotten.wait(30)
        assert intents_of(client, "a") == {}
        assert gc_log(client, "a", min_age_s=0).closed == ()
        writer.append(b"x")
    assert contents(client) == [b"x"]


def test_an_end_that_cannot_be_told_is_told_later(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached end is worth no failure of a roll that nobody asked for; the next change of the list has it."""
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> LedgerList:
                raise OperationTimeoutError("store away")

            patch.setattr(writer._works, "tell_end", fail)
            with pytest.raises(OperationTimeoutError, match="store away"):
                writer.roll()
        assert len(read_ledger_list(client, "a").live_segments) == 2
        writer.append(b"y")
        writer.roll()
    assert segments(client) == [0, 0, -1]


def test_a_roll_by_itself_that_could_not_tell_is_nobodys_error(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    with LogWriter.open(client, "a", roll_max_entries=1) as writer:
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> LedgerList:
                failed.set()
                raise OperationTimeoutError("store away")

            patch.setattr(writer._works, "tell_end", fail)
            writer.append(b"x")
            assert failed.wait(30)
        writer.roll()
    assert segments(client) == [0, -1, -1]


@pytest.mark.parametrize("how", ["roll", "close"])
def test_an_end_that_fails_in_an_unforeseen_way_is_told_to_who_waits(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The caller need not wait for the end of its time to hear less."""
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> LedgerList:
                raise ValueError("nobody expects this")

            patch.setattr(writer._works, "tell_end", fail)
            with pytest.raises(BkError, match="unexpected error: ValueError.'nobody expects this'"):
                getattr(writer, how)()
