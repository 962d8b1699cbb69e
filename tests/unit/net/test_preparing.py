"""Files and secrets that hang for one bookie: others have theirs, their number is bounded, and nobody waits for them at the end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

import bk_core
from bk_core import Security
from bk_core.errors import BkError, BookieSecurityError
from bk_core.metadata import open_store
from bk_core.net import connecting
from bk_core.net.preparing import AT_ONCE, Preparations

PATIENCE_S = 30.0
Outcome = tuple[str, BookieSecurityError | None]


class Exchanges:
    """A program's own way in, whose calls for the host "hangs" do so until ``go_on``."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go_on = threading.Event()

    def exchange(self, host: str) -> Any:
        self.began.put(host)
        if host == "exits":
            raise SystemExit("moss-3310")
        if host == "hangs":
            self.go_on.wait(PATIENCE_S)
        return self


@pytest.fixture
def exchanges() -> Iterator[Exchanges]:
    made = Exchanges()
    yield made
    made.go_on.set()


def begun(preparations: Preparations, told: queue.SimpleQueue[Outcome]) -> Callable[[str, str], Any]:
    return lambda bookie, host: preparations.begin(bookie, host, lambda made, error: told.put((bookie, error)))


def test_readings_that_hang_cost_their_own_bookie_alone(exchanges: Exchanges) -> None:
    told: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    with closing(Preparations(Security(auth=exchanges), lambda call: call())) as preparations:
        begin = begun(preparations, told)
        turns = [begin("a", "hangs") for _ in range(AT_ONCE + 3)]
        assert [exchanges.began.get(timeout=PATIENCE_S) for _ in range(AT_ONCE)] == ["hangs"] * AT_ONCE
        for bookie in "bcdefg":
            begin(bookie, "h")
            assert told.get(timeout=PATIENCE_S) == (bookie, None) and exchanges.began.get() == "h"
        assert [turn.has_begun for turn in turns] == [True] * AT_ONCE + [False] * 3 and exchanges.began.empty()
        turns[0].is_over = turns[AT_ONCE].is_over = True  # their connections were given up
        exchanges.go_on.set()
        assert [told.get(timeout=PATIENCE_S) for _ in range(AT_ONCE + 1)] == [("a", None)] * (AT_ONCE + 1)
        assert not turns[AT_ONCE].has_begun and turns[-1].has_begun


def test_what_ends_a_thread_is_told_at_once(exchanges: Exchanges) -> None:
    told: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    with closing(Preparations(Security(auth=exchanges), lambda call: call())) as preparations:
        begun(preparations, told)("a", "exits")
        bookie, error = told.get(timeout=PATIENCE_S)
    assert bookie == "a" and "(SystemExit)" in str(error) and "moss" not in str(error)


def test_without_a_thread_the_cause_is_told(exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(Preparations(Security(auth=exchanges), lambda call: call())) as preparations:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            begun(preparations, told)("a", "h")
        assert "can't start new thread" in str(told.get(timeout=PATIENCE_S)[1])
        begun(preparations, told)("a", "h")
        assert told.get(timeout=PATIENCE_S) == ("a", None)


def test_a_closed_client_waits_for_none_and_begins_none(exchanges: Exchanges) -> None:
    told: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    preparations = Preparations(Security(auth=exchanges), lambda call: call())
    begin = begun(preparations, told)
    turns = [begin("a", "hangs") for _ in range(AT_ONCE + 1)]
    assert [exchanges.began.get(timeout=PATIENCE_S) for _ in range(AT_ONCE)] == ["hangs"] * AT_ONCE
    preparations.close()
    begin("b", "h")
    assert "closed" in str(told.get(timeout=PATIENCE_S)[1])
    exchanges.go_on.set()
    assert [told.get(timeout=PATIENCE_S) for _ in range(AT_ONCE)] == [("a", None)] * AT_ONCE
    assert not turns[-1].has_begun and exchanges.began.empty()


class Vault:
    """A program's own way in, whose server is silent; it answers while the client is being connected."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go_on = threading.Event()

    def exchange(self, host: str) -> Any:
        if host:
            self.began.put(host)
            self.go_on.wait(PATIENCE_S)


def test_each_bookie_of_a_client_is_asked_for_though_all_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "PREPARE_TIMEOUT_NS", 500_000_000)
    hosts = {f"127.0.0.{n}" for n in range(1, 7)}
    store, vault = open_store("memory://readings-that-hang"), Vault()
    store.initialize_cluster()
    held = [store.register_bookie(f"{host}:4001", host, 4001) for host in hosts]
    try:
        client = bk_core.connect("memory://readings-that-hang", security=Security(auth=vault), operation_timeout_s=5)
        with pytest.raises(BkError, match=r"the files and secrets for bookie \S+ were not read within 0.5 s") as told:
            for _ in range(2):
                with suppress(TimeoutError):
                    client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3).append(b"x")
        assert "had no turn" not in str(told.value)
        assert {vault.began.get(timeout=PATIENCE_S) for _ in range(6)} == hosts
        begun_s = time.monotonic()
        client.close()
        assert time.monotonic() - begun_s < PATIENCE_S
    finally:
        vault.go_on.set()
        for one in held:
            one.close()
