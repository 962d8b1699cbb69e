"""The time for which a call waits for the reactor thread: long for what gets on, not for ever for what does not."""

from __future__ import annotations

import socket
import time
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from itertools import count

import pytest

import bk_core
from bk_core.client.operations import run_machine, wait_and_tell
from bk_core.client.patience import patience_s, patient_until
from bk_core.errors import MetadataUnavailableError, OperationTimeoutError
from bk_core.net.link import BookieLink
from bk_core.net.outstanding import Answer, Waiting
from bk_core.protocol.effects import Complete, Effect, SetTimer
from bk_core.protocol.events import BookiesChanged, TimerFired
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.wire.messages import Request

STEP_NS = 50_000_000


class Steps:
    """A machine that takes ``count`` steps of 50 ms each and says so, or with ``told`` False always says the same."""

    def __init__(self, count: int, *, told: bool) -> None:
        self._left, self._told = count, told

    @property
    def progress(self) -> str:
        return f"{self._left} steps to go" if self._told else "turning in circles"

    def start(self) -> list[Effect]:
        return [SetTimer("step", STEP_NS)]

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        self._left -= 1
        return self.start() if self._left else [Complete(None, "done")]


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, operation_timeout_s=2.0) as bk:
        yield bk


def test_what_gets_on_may_take_longer_than_one_operation(client: bk_core.BookKeeper) -> None:
    """A guaranteed ledger's recovery reads the whole last fragment (G-12); sixty seconds in all would be an arbitrary end."""
    machine = Steps(50, told=True)
    started = time.monotonic()
    assert run_machine(client._session, 1, machine, machine.start) == "done"
    assert time.monotonic() - started > 2.2


@pytest.mark.parametrize("places", [True, False])
def test_who_places_entries_is_told_which_bookies_come(client: bk_core.BookKeeper, places: bool) -> None:
    """EC-6, RC-15: a recovery may take one that failed a moment ago and has registered anew. Nothing is told once it is over."""
    session, heard = client._session, list[object]()

    class Waiting(Steps):
        def start(self) -> list[Effect]:
            client.store.register_bookie("10.0.0.1:1", "10.0.0.1", 1)
            return super().start()

        def handle(self, event: object, now_ns: int) -> list[Effect]:
            heard.append(event)
            return [Complete(None, "done")] if isinstance(event, TimerFired) else []

    machine = Waiting(1, told=True)
    assert run_machine(session, 1, machine, machine.start, places_entries=places) == "done"
    assert (BookiesChanged(frozenset({"10.0.0.1:1"})) in heard) is places
    over: Future[bool] = Future()
    session.reactor.post(lambda: over.set_result(not session._on_bookies))
    assert over.result(30)


def test_what_stands_still_ends_and_says_where(client: bk_core.BookKeeper) -> None:
    """However busy it is."""
    machine = Steps(10_000, told=False)
    with pytest.raises(OperationTimeoutError, match="recovering ledger 1 made no progress for 2 s .turning in circles."):
        run_machine(client._session, 1, machine, machine.start, what="recovering")


def test_a_recovery_whose_bookies_never_answer_ends(client: bk_core.BookKeeper) -> None:
    """RC-21: the ledger stays IN_RECOVERY; L-11: nothing hangs for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bookie = f"127.0.0.1:{silent.getsockname()[1]}"
        metadata = LedgerMetadata(1, 1, 1, LedgerState.OPEN, (Fragment(0, (bookie,)),))
        client.store.create_ledger(77, metadata_codec.encode(metadata))
        with pytest.raises(OperationTimeoutError, match="recovering ledger 77 made no progress for 2 s .fencing."):
            client.recover_ledger(77)
    assert client.ledger_metadata(77).state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("ahead_s", [-60.0, 1.5])
def test_an_impatient_thread_gives_up_earlier(client: bk_core.BookKeeper, ahead_s: float) -> None:
    """Upkeep for which a committer waits: it has what is left of its time, and a second at least; later calls have all theirs."""
    machine = Steps(10_000, told=False)
    with patient_until(time.monotonic() + ahead_s), pytest.raises(OperationTimeoutError, match=r"made no progress for 1(\.\d+)? s"):
        run_machine(client._session, 1, machine, machine.start, what="recovering")

    def away() -> None:
        raise MetadataUnavailableError("store away")

    started = time.monotonic()
    with patient_until(started + ahead_s), pytest.raises(MetadataUnavailableError):
        client._session.definite(away)
    assert time.monotonic() - started < 2.0
    assert patience_s(2.0) == 2.0


def test_a_recovery_longer_than_one_operation(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-12, ``reread_last_fragment``: every entry of the last fragment again, with a bookie that takes its time for each."""
    ledger = client.create_ledger(guaranteed_write_quorum=True)
    ledger.append_many([b"x"] * 40)
    ledger.abandon()
    client.store.write_ledger(
        ledger.ledger_id, metadata_codec.encode(ledger.metadata.in_recovery()), client.store.read_ledger(ledger.ledger_id).version
    )
    slow_down(client, monkeypatch)
    started = time.monotonic()
    with client.recover_ledger(ledger.ledger_id) as reader:
        assert reader.last_add_confirmed == 39
    assert time.monotonic() - started > 2.0


def slow_down(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every link answers reads 60 ms later, and only one entry is asked for at a time."""
    request = BookieLink.request

    def later(self: BookieLink, message: Request, timeout_ns: int, answer: Answer, reader: Hashable = None) -> Waiting:
        reactor = client._session.reactor
        return request(self, message, timeout_ns, lambda *reply: reactor.call_later(60_000_000, lambda: answer(*reply)), reader)

    monkeypatch.setattr(BookieLink, "request", later)
    monkeypatch.setattr("bk_core.protocol.ledger.recover.recovery.LedgerRecovery._window_entries", lambda self: 1)


def test_who_tells_of_progress_waits_as_long_as_there_is_some() -> None:
    future: Future[str] = Future()
    told: list[int] = []

    def tell(at: int) -> None:
        told.append(at)
        if len(told) == 8:  # longer than the timeout in all
            future.set_result("done")

    assert wait_and_tell(future, count().__next__, tell, 0.4, "nothing moved") == "done" and told == list(range(1, 9))
    with pytest.raises(OperationTimeoutError, match=r"nothing moved for 0\.3 s"):
        wait_and_tell(Future(), lambda: 7, told.append, 0.3, "nothing moved")
    assert told[-1] == 7
