"""The things that all handles of a client share, when several threads come at once."""

from __future__ import annotations

import queue
import threading
import uuid
import weakref
from collections.abc import Iterator

import pytest

import bk_core
from bk_core.client.session import Closable
from bk_core.config import ClientConfig
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import open_store


class Handle:
    closed = False

    def close(self) -> None:
        self.closed = True


class Crowded(weakref.WeakSet[Closable]):
    """A set into which another thread puts something while it is gone through."""

    def __init__(self, arrive: threading.Thread) -> None:
        super().__init__()
        self._arrive = arrive

    def __iter__(self) -> Iterator[Closable]:
        for item in super().__iter__():
            self._arrive.start()
            self._arrive.join(0.2)
            yield item


def new_cluster() -> str:
    uri = f"memory://{uuid.uuid4().hex}"
    open_store(uri).initialize_cluster()
    return uri


@pytest.fixture
def client() -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(new_cluster()) as bk:
        yield bk


def test_a_handle_may_be_opened_while_the_client_is_closed(client: bk_core.BookKeeper) -> None:
    """L-11: both are closed, the one that came too late at once."""
    session, early, late = client._session, Handle(), Handle()
    arrive = threading.Thread(target=session.close_with, args=(late,))
    session._closables = Crowded(arrive)
    session.close_with(early)
    client.close()
    arrive.join(10)
    assert early.closed and late.closed


def test_ledgers_are_spread_over_the_connections_that_were_asked_for() -> None:
    """Adds and reads of one ledger share a connection; what is about the ledger's state has one for all."""
    with bk_core.connect(new_cluster(), connections_per_bookie=3) as bk:
        links: queue.SimpleQueue[list[object]] = queue.SimpleQueue()

        def look() -> None:
            kinds = [("data", ledger) for ledger in (0, 1, 2, 3)] + [("batch", 4), ("batch", 1), ("control", 1), ("control", 2)]
            links.put([bk._session.link("b", kind, ledger) for kind, ledger in kinds])

        bk._session.reactor.post(look)
        zero, one, two, three, four, batch_one, control, same = links.get(timeout=10)
        assert len({id(link) for link in (zero, one, two, four)}) == 4
        assert three is zero and four is batch_one and control is same


def test_one_connection_is_the_rule() -> None:
    with pytest.raises(InvalidArgumentError, match=r"1\.\.64"):
        bk_core.connect("memory://nobody", connections_per_bookie=0)
    assert ClientConfig("memory://nobody").connections_per_bookie == 1
