"""What all handles of a client share, when several threads come at once."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Iterator

import pytest

import bk_core
from bk_core.client.session import Closable


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


@pytest.fixture
def client() -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(f"memory://{uuid.uuid4().hex}") as bk:
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
