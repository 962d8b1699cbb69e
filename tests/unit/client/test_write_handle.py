"""The answers of a write handle, and the effect of each way of writing, against bookies on sockets in this process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bk_core
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.errors import ClientClosedError, InternalError, InvalidArgumentError, LedgerClosedError, OperationTimeoutError
from bk_core.net.link import BookieLink
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.wire.messages import ForceLedgerRequest

TIMEOUT_S = 0.5


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as bk:
        yield bk


@pytest.fixture
def impatient(client: bk_core.BookKeeper) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(client.config.uri, operation_timeout_s=TIMEOUT_S) as bk:
        yield bk


# --- settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ensemble_change": "now"}, "ensemble_change must be one of immediate, delayed, disabled, not 'now'"),
        ({"ensemble_change": None}, "ensemble_change must be text, not None"),
        ({"operation_timeout_s": 0}, "operation_timeout_s must be a finite number of seconds above 0 and at most 1000000000, not 0"),
        ({"limits": {}}, r"limits must be Limits\(...\)"),
        ({"reads": "fast"}, r"reads must be ReadOptions\(...\), not 'fast'"),
        ({"ensemble_changes": "delayed"}, "there is no client setting 'ensemble_changes'; did you mean 'ensemble_change'"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        bk_core.connect("memory://nobody", **settings)


def test_modes_that_exclude_each_other_say_why(client: bk_core.BookKeeper) -> None:
    """WR-17, G-6: one of them needs what the other forbids."""
    with pytest.raises(InvalidArgumentError, match="deferred_sync allows no ensemble change, which guaranteed_write_quorum needs"):
        client.create_ledger(guaranteed_write_quorum=True, deferred_sync=True)


# --- what is appended ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.append("text"),
        lambda ledger: ledger.append(5),
        lambda ledger: ledger.append(None),
        lambda ledger: ledger.append_many_future(["text"]),
        lambda ledger: ledger.append_many_future(b"bytes are numbers"),
        lambda ledger: ledger.append_many_future([]),
        lambda ledger: ledger.append_run_future("text", array("q", (0, 4))),
        lambda ledger: ledger.append_run_future(b"text", [0, 4]),
        lambda ledger: ledger.append_run_future(b"text", array("i", (0, 4))),
        lambda ledger: ledger.append_run_future(b"text", b"123"),
        lambda ledger: ledger.append(b"text", entry_id=0),
    ],
)
def test_what_cannot_be_appended_is_refused_and_costs_no_id(client: bk_core.BookKeeper, call: Callable[[WriteHandle], object]) -> None:
    with client.create_ledger() as ledger:
        with pytest.raises(InvalidArgumentError, match="payload|offsets|empty run|numbers its entries itself"):
            call(ledger)
        assert ledger.append(b"fine") == 0


def test_any_buffer_is_a_payload(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append(bytearray(b"one"))
        ledger.append_many_future([memoryview(b"two"), array("B", b"three")])
        ledger.append(array("q", [1]))
    with client.open_ledger(ledger.ledger_id) as reader:
        assert reader.read(0, 3) == [b"one", b"two", b"three", (1).to_bytes(8, "little")]


# --- ids of the caller's ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry_id", [-1, "3", 1.5, 2**63 - 1, 2**63])
def test_what_can_be_no_entry_id_is_refused_before_anything_is_sent(client: bk_core.BookKeeper, entry_id: Any) -> None:
    """WR-2."""
    with client.create_ledger(caller_ids=True) as ledger:
        with pytest.raises(InvalidArgumentError, match=r"entry_id must be a whole number within 0\.\."):
            ledger.append_future(b"x", entry_id=entry_id)
        with pytest.raises(InvalidArgumentError, match="needs entry_id: it was created with caller_ids"):
            ledger.append_future(b"x")
        assert ledger.append(b"x", entry_id=0) == 0


def test_who_waits_behind_a_gap_is_told_about_it(impatient: bk_core.BookKeeper) -> None:
    """WR-2: by the append and by the close; giving up closes the ledger below the gap (G-11)."""
    ledger = impatient.create_ledger(caller_ids=True)
    ledger.append(b"x", entry_id=0)
    with pytest.raises(OperationTimeoutError, match=r"append of entry 5 to ledger \d+ \(acknowledged once all lower ids are\)"):
        ledger.append(b"x", entry_id=5)
    with pytest.raises(OperationTimeoutError, match="no entry is acknowledged before entry 1"):
        ledger.close()
    assert ledger.close(forced=True).last_entry_id == 0


# --- force ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guaranteed", [False, True])
def test_a_force_that_is_not_needed_sends_nothing_and_tells_the_lac(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, guaranteed: bool
) -> None:
    """WR-17: without deferred sync, what is acknowledged is durable."""
    sent: list[object] = []
    request = BookieLink.request
    monkeypatch.setattr(BookieLink, "request", lambda self, message, *rest: (sent.append(message), request(self, message, *rest))[1])
    with client.create_ledger(guaranteed_write_quorum=guaranteed) as ledger:
        assert ledger.force() == -1
        ledger.append_many([b"a", b"b"])
        assert ledger.force() == 1 == ledger.last_add_confirmed
    assert not any(isinstance(message, ForceLedgerRequest) for message in sent)


# --- the end ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{}, {"guaranteed_write_quorum": True}, {"caller_ids": True}])
def test_a_forced_close_keeps_what_is_acknowledged(client: bk_core.BookKeeper, mode: dict[str, bool]) -> None:
    """G-11, CL-5: and a second close tells the same."""
    ledger = client.create_ledger(**mode)
    chosen = {"entry_id": 0} if "caller_ids" in mode else {}
    ledger.append_many([b"a", b"b"], **chosen)
    for _ in range(2):
        closed = ledger.close(forced=True)
        assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 1, 2)


def test_a_forced_close_gives_up_what_was_not_forced(client: bk_core.BookKeeper) -> None:
    """WR-17: acknowledged before durable is not confirmed; a plain close forces it."""
    ledger = client.create_ledger(deferred_sync=True)
    ledger.append(b"durable")
    ledger.force()
    ledger.append(b"acknowledged")
    closed = ledger.close(forced=True)
    assert (closed.last_entry_id, closed.length) == (0, 7)


def test_after_the_end_every_call_says_who_ended_it(client: bk_core.BookKeeper) -> None:
    """CL-5, G-10."""
    closed, abandoned = client.create_ledger(), client.create_ledger()
    closed.close()
    abandoned.append(b"x")
    abandoned.abandon()
    for ledger in (closed, abandoned):
        for call in (lambda ledger=ledger: ledger.append(b"late"), ledger.force):
            with pytest.raises(ClientClosedError, match=f"ledger {ledger.ledger_id} was closed by this program"):
                call()
    with pytest.raises(LedgerClosedError, match="abandoned by its writer"):
        abandoned.close()


# --- when code of our own is wrong -------------------------------------------------------------------------------------------


def test_an_error_of_our_own_is_told_to_everybody_who_waits(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """SM-1: nothing waits for ever for what raised, and what was acknowledged before is there after a recovery."""
    ledger = client.create_ledger()
    ledger.append(b"there")

    def wrong(*_: Any) -> None:
        raise KeyError("wrong")

    with monkeypatch.context() as patch:
        patch.setattr(client._session, "link", wrong)
        for future in [ledger.append_future(b"lost") for _ in range(3)]:
            with pytest.raises(InternalError, match=f"ledger {ledger.ledger_id} .KeyError: 'wrong'"):
                future.result(60.0)
        with pytest.raises(InternalError):
            ledger.close()
        with pytest.raises(InternalError, match="this handle does nothing more"):
            client.open_ledger(ledger.ledger_id).read_last_add_confirmed()
    with client.recover_ledger(ledger.ledger_id) as read:
        assert read.last_add_confirmed == 0
