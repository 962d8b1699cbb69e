"""Changes of the metadata store that are repeated: until their outcome is definite, and until they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import bk_core
from bk_core.client.log import janitor
from bk_core.client.log.orphans import adopt_log
from bk_core.client.repeating import compare_and_set, create_once, until_definite, while_it_may_pass
from bk_core.errors import BkError, MetadataOutcomeUnknownError, MetadataUnavailableError, OperationTimeoutError, VersionConflictError
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.log.position import Position

LONG_S = 30.0
SHORT_S = 0.5


class Cell:
    """A value with a version. ``others`` are written by others, each right before a write of ours; ``problems`` come before a read."""

    def __init__(self, value: str = "", others: tuple[str, ...] = (), problems: tuple[Exception, ...] = ()) -> None:
        self.value, self.version, self.writes = value, 0, 0
        self._others, self._problems = list(others), list(problems)

    def read(self) -> tuple[str, int]:
        if self._problems:
            raise self._problems.pop(0)
        return self.value, self.version

    def write(self, value: str, version: int) -> None:
        self.writes += 1
        if self._others:
            self.value, self.version = self._others.pop(0), self.version + 1
        if version != self.version:
            raise VersionConflictError("it has another version")
        self.value, self.version = value, version + 1


def changed(cell: Cell, within_s: float = LONG_S) -> str:
    def change(value: str) -> str:
        return value if value.endswith("mine") else value + "mine"

    return compare_and_set(cell.read, change, cell.write, time.monotonic() + within_s, "changing the cell")


def test_a_change_is_made_on_what_others_have_written_meanwhile() -> None:
    cell = Cell("a ", others=("b ", "c "))
    assert changed(cell) == cell.value == "c mine" and cell.writes == 3


def test_what_is_changed_already_is_left_alone() -> None:
    """An earlier try whose answer was lost shows as a conflict."""
    cell = Cell("a ", others=("a mine",))
    assert changed(cell) == "a mine" and (cell.writes, cell.version) == (1, 1)


def test_a_read_without_an_answer_is_repeated() -> None:
    cell = Cell(problems=(MetadataUnavailableError("it is away"), MetadataOutcomeUnknownError("lost")))
    assert changed(cell) == "mine"


def test_a_change_that_others_are_always_ahead_of_ends_in_time() -> None:
    cell = Cell(others=("x",) * 10_000)
    with pytest.raises(OperationTimeoutError, match=r"changing the cell did not succeed in 0 s: others were faster \d+ times") as late:
        changed(cell, within_s=0.1)
    assert cell.writes > 1 and not late.value.outcome_unknown


def test_after_a_lost_answer_no_error_says_that_nothing_was_changed() -> None:
    """META-12: whatever fails behind it, the change may have been made."""

    class Lossy(Cell):
        def write(self, value: str, version: int) -> None:
            self._problems = [MetadataUnavailableError("it is away")] * 1000
            conflict = VersionConflictError("it has another version")
            conflict.outcome_unknown = True
            raise conflict

    with pytest.raises(MetadataOutcomeUnknownError, match=r"it is away.*an earlier try, whose answer was lost, may have made the change"):
        changed(Lossy(), within_s=0.1)
    outcomes = iter([MetadataOutcomeUnknownError("lost")])

    def request() -> None:
        raise next(outcomes, MetadataUnavailableError("it is away"))

    with pytest.raises(MetadataOutcomeUnknownError, match="it is away"):
        until_definite(request, time.monotonic() + 0.1)
    with pytest.raises(MetadataUnavailableError):
        until_definite(request, time.monotonic() + 0.1)


# --- calls that may pass -------------------------------------------------------------------------------------------------------


def failing(*errors: BkError) -> Iterator[BkError | int]:
    yield from errors
    yield 7


def answer(outcomes: Iterator[BkError | int]) -> int:
    outcome = next(outcomes)
    if isinstance(outcome, BkError):
        raise outcome
    return outcome


def test_a_call_is_made_again_while_its_error_may_pass() -> None:
    first, second, told = MetadataUnavailableError("first"), MetadataUnavailableError("second"), list[BkError]()
    outcomes = failing(first, second)
    begun = time.monotonic()
    got = while_it_may_pass(lambda: answer(outcomes), _retriable, time.monotonic() + LONG_S, told=told.append, pause_s=0.05)
    assert got == 7 and told == [first, second] and time.monotonic() - begun >= 0.05 + 0.1


def test_another_error_ends_it_at_once() -> None:
    for_good, told = VersionConflictError("for good"), list[BkError]()
    outcomes = failing(for_good)
    with pytest.raises(VersionConflictError, match="for good"):
        while_it_may_pass(lambda: answer(outcomes), _retriable, time.monotonic() + LONG_S, told=told.append)
    assert not told


def test_the_last_error_is_raised_before_the_deadline_is_over() -> None:
    outcomes = failing(*(MetadataUnavailableError(f"try {number}") for number in range(100)))
    begun = time.monotonic()
    with pytest.raises(MetadataUnavailableError, match="try [1-9]"):
        while_it_may_pass(lambda: answer(outcomes), _retriable, begun + 0.2, pause_s=0.01, pause_max_s=0.02)
    assert time.monotonic() - begun > 0.1


def _retriable(error: BkError) -> bool:
    return error.retriable


# --- nodes that are created once --------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with closing(open_store(f"memory://{tmp_path.name}")) as store:
        store.initialize_cluster()
        yield store


class LosingStore:
    """Does what it is asked for and loses the first answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store, self._lost = store, False

    def create(self, path: str, data: bytes) -> None:
        self._store.create(path, data)
        if not self._lost:
            self._lost = True
            raise MetadataOutcomeUnknownError("lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_node_is_ours_also_if_the_answer_was_lost(store: MetadataStore) -> None:
    losing: Any = LosingStore(store)
    assert create_once(losing, "intents/a/1", b"ours", time.monotonic() + LONG_S) is True
    assert create_once(store, "intents/a/1", b"another", time.monotonic() + LONG_S) is False
    assert store.read("intents/a/1").data == b"ours"


def test_a_node_that_was_there_and_is_gone_is_neither(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("intents/a/1", b"another")
    read = store.read

    def read_late(path: str) -> Any:
        store.delete(path)
        return read(path)

    monkeypatch.setattr(type(store), "read", lambda _, path: read_late(path))
    assert create_once(store, "intents/a/1", b"ours", time.monotonic() + LONG_S) is None


# --- logs ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as client:
        yield client


def test_deleting_a_log_that_changes_all_the_time_ends_in_time(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_log("a")
    monkeypatch.setattr(janitor, "update_timeout_s", lambda _client: 0.2)

    def changed_again(*_: object) -> None:
        raise VersionConflictError("log 'a' has another version")

    monkeypatch.setattr(janitor, "delete_list", changed_again)
    with pytest.raises(OperationTimeoutError, match="timed out: deleting log 'a'"):
        client.log("a").delete()
    assert client.logs() == ["a"]


class Losing:
    """A store that loses the answer of the first change of log ``a``, and changes nothing after that.

    ``stays_away``: the change is made, and the store answers nothing any more. Else the change is not made, reads are answered, and each
    later change fails so late that the time of the call is over.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: type[MetadataStore], method: str, *, stays_away: bool) -> None:
        self._set, self._store, self._real = monkeypatch.setattr, store, getattr(store, method)
        self._stays_away, self._begun = stays_away, time.monotonic()
        self.fails = 0
        self._set(store, method, lambda *asked: self.lose(*asked))

    def lose(self, store: MetadataStore, path: str, *more: Any) -> Any:
        if path != "logs/a" or self._stays_away:
            answer = self._real(store, path, *more)
        if path != "logs/a":
            return answer
        for name in ("write", "delete", "create", *(["read"] if self._stays_away else ())):
            self._set(self._store, name, lambda *_, **__: self.fail())
        raise MetadataOutcomeUnknownError("the answer was lost")

    def fail(self) -> None:
        self.fails += 1
        if not self._stays_away:
            time.sleep(max(0.0, self._begun + SHORT_S + 0.1 - time.monotonic()))
        raise MetadataUnavailableError("it is away")


@pytest.mark.parametrize("stays_away", [True, False], ids=["stays away", "writes nothing"])
@pytest.mark.parametrize("call", ["set", "delete", "trim", "writer"])
def test_a_log_whose_change_lost_its_answer_may_be_changed(
    uri: str, monkeypatch: pytest.MonkeyPatch, call: str, *, stays_away: bool
) -> None:
    """The store loses the answer of a change, and nothing shows within ``operation_timeout_s`` if it was made: the error says that it may
    have been."""
    with bk_core.connect(uri) as patient, patient.create_log("a").writer() as writer:
        writer.append(b"x")
    with bk_core.connect(uri, operation_timeout_s=SHORT_S) as client:
        log = client.log("a")
        calls = {
            "set": lambda: log.set(retention=77),
            "delete": log.delete,
            "trim": lambda: log.trim(before=Position(1)),
            "writer": log.writer,
        }
        begun = time.monotonic()
        losing = Losing(monkeypatch, type(client.store), "delete" if call == "delete" else "write", stays_away=stays_away)
        with pytest.raises(BkError) as failed:
            calls[call]()
        monkeypatch.undo()
        assert failed.value.outcome_unknown and losing.fails, failed.value
        assert any(text in str(failed.value) for text in ("it is away", "the answer was lost")), failed.value
        assert time.monotonic() - begun < 20


def test_a_write_whose_store_goes_away_takes_its_time_once(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own, and then a janitor, tidies up."""
    timeout_s = 5.0
    with bk_core.connect(uri, operation_timeout_s=timeout_s) as client:
        log, store = client.create_log("a"), type(client.store)
        real, rows = store.write, pyarrow.table({"value": [b"x"]})

        def away(*_: Any, **__: Any) -> Any:
            raise MetadataUnavailableError("it is away")

        def write(self: Any, path: str, *more: Any) -> Any:
            if path != "logs/a":
                return real(self, path, *more)
            for name in ("read", "write", "delete", "create"):
                monkeypatch.setattr(store, name, away)
            return away()

        monkeypatch.setattr(store, "write", write)
        begun = time.monotonic()
        with pytest.raises(MetadataUnavailableError, match="it is away"):
            log.write(rows)
        took_s = time.monotonic() - begun
        monkeypatch.undo()
    assert timeout_s <= took_s < 1.6 * timeout_s


def test_adopting_a_log_outlasts_a_pause_of_the_store(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_log("a")
    read, away = type(client.store).read, [MetadataUnavailableError("it is away")]

    def read_late(store: Any, path: str) -> Any:
        if away and path == "logs/a":
            raise away.pop()
        return read(store, path)

    monkeypatch.setattr(type(client.store), "read", read_late)
    assert adopt_log(client, "a").cluster == client.store.cluster_id() and not away
