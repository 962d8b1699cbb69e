"""Operations that wait for bookies when their client is closed: each ends at once with ClientClosedError, whether its requests were sent
before that, or are handed to a session that has ended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import bk_core
from bk_core.client import inspect, operations
from bk_core.client.driver import Driver
from bk_core.errors import ClientClosedError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from tests.unit.aio.loops import PATIENCE_S

LEDGER = 77
CALLS: dict[str, Callable[[bk_core.BookKeeper], object]] = {
    "open_ledger": lambda client: client.open_ledger(LEDGER),
    "recover_ledger": lambda client: client.recover_ledger(LEDGER),
    "read_last_add_confirmed": lambda client: client.open_ledger(LEDGER, lac=False).read_last_add_confirmed(),
    "try_read_last_add_confirmed": lambda client: client.open_ledger(LEDGER, lac=False).try_read_last_add_confirmed(),
    "disk space": lambda client: inspect.bookie_spaces(client, client.ledger_metadata(LEDGER).last_fragment.ensemble),
}


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    """A client with a ledger whose bookie never answers. Its timeouts are longer than the tests' patience."""
    with socket.create_server(("127.0.0.1", 0)) as silent, bk_core.connect(uri, operation_timeout_s=4 * PATIENCE_S) as bk:
        metadata = LedgerMetadata(1, 1, 1, LedgerState.OPEN, (Fragment(0, (f"127.0.0.1:{silent.getsockname()[1]}",)),))
        bk.store.create_ledger(LEDGER, metadata_codec.encode(metadata))
        yield bk


def begun(call: Callable[[], object]) -> Future[Any]:
    """Begin the call on a thread and return its outcome."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


@pytest.mark.parametrize("what", CALLS)
def test_what_waits_for_bookies_ends_with_its_client(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    sent = threading.Event()
    link = client._session.link

    def asked(*key: Any) -> Any:
        sent.set()
        return link(*key)

    monkeypatch.setattr(client._session, "link", asked)
    outcome = begun(lambda: CALLS[what](client))
    assert sent.wait(PATIENCE_S)
    client.close()
    with pytest.raises(ClientClosedError, match="this client was closed, by this program"):
        outcome.result(PATIENCE_S)


@pytest.mark.parametrize("what", [what for what in CALLS if what != "disk space"])
def test_what_comes_to_a_session_that_has_ended_is_refused(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The client is closed after the call has looked if it is, and before its machine begins."""
    comes, closed = threading.Event(), threading.Event()

    class Late(Driver):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            comes.set()
            assert closed.wait(PATIENCE_S)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(operations, "Driver", Late)
    outcome = begun(lambda: CALLS[what](client))
    assert comes.wait(PATIENCE_S)
    client.close()
    closed.set()
    with pytest.raises(ClientClosedError, match="this client was closed, by this program"):
        outcome.result(PATIENCE_S)
