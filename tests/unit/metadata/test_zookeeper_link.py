"""The thread that speaks to ZooKeeper, with kazoo as it is and no server: how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bk_core.metadata.zookeeper.link import Link

PORT = 1  # nobody listens there, and nobody is asked


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link(f"127.0.0.1:{PORT}", 1.0, lambda connected: None)
    yield link
    link.close(1.0)


def thread_of(link: Link) -> threading.Thread:
    (thread,) = link._speaker._threads
    assert thread.name == "bk-zookeeper-0"
    return thread


def test_closing_waits_for_the_thread(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is slow to end: whoever counts threads after that finds none."""
    thread, take = thread_of(link), link._speaker._next

    def slowly() -> Callable[[], None] | None:
        found = take()
        if found is None:
            time.sleep(0.3)
        return found

    monkeypatch.setattr(link._speaker, "_next", slowly)
    link.close(60.0)
    assert not thread.is_alive()
    link.close(60.0)


def test_closing_on_the_thread_itself_waits_for_nothing(link: Link) -> None:
    thread = thread_of(link)
    link._speaker.call(lambda: link.close(600.0)).result(60.0)
    thread.join(60.0)
    assert not thread.is_alive()
