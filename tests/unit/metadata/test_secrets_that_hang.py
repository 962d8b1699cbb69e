"""A program's function for the password hangs after the servers refused this client: each call on the store still ends in its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core.errors import MetadataAuthError, MetadataUnavailableError, SecretUnavailableError
from bk_core.metadata.access import EtcdAuth, ZooKeeperAuth
from bk_core.metadata.etcd import link as etcd_link
from bk_core.metadata.etcd.connection import Failure
from bk_core.metadata.etcd.link import Link as EtcdLink
from bk_core.metadata.tree.asking import AskedAside
from bk_core.metadata.zookeeper import link as zookeeper_link
from bk_core.metadata.zookeeper.link import Link as ZooKeeperLink

NOBODY = "127.0.0.1:1"
PATIENCE_S = 30.0


class Hanging:
    """A function for a password that answers once; later calls wait until ``go_on``."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = threading.Event()
        self.secret = b"moss-3310"

    def __call__(self) -> bytes:
        self.calls += 1
        if self.calls > 1:
            self.go_on.wait(PATIENCE_S)
        return self.secret


@pytest.fixture
def password() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()


def zookeeper(password: Hanging) -> Any:
    link = ZooKeeperLink(NOBODY, 1.0, lambda connected: None, auth=ZooKeeperAuth("digest", "ann", password))
    link._shown = b"moss-3310"
    link._note_refusal()
    return link


def etcd(password: Hanging) -> Any:
    link = EtcdLink(NOBODY, 1.0, lambda connected: None, auth=EtcdAuth("ann", password))
    link._shown = password()
    link._refuse(Failure("INVALID_ARGUMENT", "authentication failed"))
    return link


@pytest.mark.parametrize("made", [zookeeper, etcd])
def test_calls_end_in_time_and_ask_once(made: Callable[[Hanging], Any], password: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (zookeeper_link, etcd_link):
        monkeypatch.setattr(module, "_REFUSED_AGAIN_S", 1000.0)
    link = made(password)
    try:
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(MetadataAuthError, match="the function of the password of .* has not answered in time") as told:
                link._await_connection(0.3)
            assert time.monotonic() - begun < PATIENCE_S and "moss" not in str(told.value)
        assert password.calls == 2
        password.go_on.set()
        with pytest.raises(MetadataAuthError, match="the user or the password is wrong there"):  # it gives the same one
            link._await_connection(PATIENCE_S)
        password.secret = b"fern-1200"
        with pytest.raises(MetadataUnavailableError):  # it gives another, and nobody listens there
            link._await_connection(2.0)
    finally:
        password.go_on.set()
        link.close(5.0)


def test_a_reconnect_to_zookeeper_says_that_the_function_hangs(password: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_link, "_SECRET_S", 0.3)
    link = zookeeper(password)
    try:
        with pytest.raises(OSError, match="a secret could not be read"):
            link._prepare()
        assert "has not answered in time" in str(link._trouble)
        password.go_on.set()
        link._prepare()
        assert link._trouble is None
    finally:
        link.close(5.0)


def test_those_that_ask_at_once_share_one_call() -> None:
    asked, go_on, found = [0], threading.Event(), list[int]()

    def function() -> int:
        asked[0] += 1
        go_on.wait(PATIENCE_S)
        return asked[0]

    aside = AskedAside("bk-test", "the function", function)
    with pytest.raises(SecretUnavailableError, match="the function has not answered in time"):
        aside.answer(time.monotonic() + 0.1)
    threads = [threading.Thread(target=lambda: found.append(aside.answer(time.monotonic() + PATIENCE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join(0.1)
    assert asked == [1] and not found
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(found) == 3 and aside.answer(time.monotonic() + PATIENCE_S) == asked[0] >= 2


def test_what_the_function_raises_is_told_and_it_is_asked_again() -> None:
    def function() -> int:
        raise SecretUnavailableError("away")

    aside = AskedAside("bk-test", "the function", function)
    for _ in range(2):
        with pytest.raises(SecretUnavailableError, match="away"):
            aside.answer(time.monotonic() + PATIENCE_S)
