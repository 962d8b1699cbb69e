"""The thread that looks after watches and registrations."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.tree import watches
from bk_core.metadata.tree.names import ZOOKEEPER
from bk_core.metadata.tree.nodes import Stat
from bk_core.metadata.tree.watches import Keeper, NodeRegistration

PATIENCE_S = 60.0


class Failing:
    """Its first look fails."""

    def __init__(self) -> None:
        self.looks = 0
        self.done = threading.Event()

    def look(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise MetadataUnavailableError("no answer in time")
        self.done.set()


class Busy:
    """It is looked at again and again."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def look(self) -> None:
        time.sleep(0.001)  # else the queue is all that the machine does
        self.keeper.look_at(self)


def test_a_look_that_failed_is_taken_again_whatever_else_there_is_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_KEEPER_RETRY_S", 0.05)
    keeper = Keeper()
    failing, busy = Failing(), Busy(keeper)
    try:
        for charge in (failing, busy):
            keeper.add(charge)
            keeper.look_at(charge)
        assert failing.done.wait(PATIENCE_S) and failing.looks == 2
    finally:
        keeper.close()
        keeper.join()


class Nodes:
    """The nodes of a registry, all of one session."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def session_id(self) -> int:
        return 7

    def stat(self, path: str, watch: Any) -> Stat | None:
        return Stat(1, 1, 0, 7) if path in self.there else None

    def create(self, path: str, data: bytes, *, ephemeral: bool, under: str) -> None:
        self.there.add(path)

    def remove_own(self, path: str) -> None:
        self.there.discard(path)


def test_a_registration_that_was_taken_away_does_not_come_back_as_read_only() -> None:
    """The bookie may be told to be read-only while it stops. Nobody would look after that node, nor remove it."""
    nodes: Any = Nodes()
    keeper = Keeper()
    closed: list[NodeRegistration] = []
    registration = NodeRegistration(nodes, keeper, "/l", ZOOKEEPER, "a:1", b"", False, held_s=1, on_close=closed.append)
    try:
        registration.start()
        registration.set_readonly(True)
        assert nodes.there == {ZOOKEEPER.registration("/l", "a:1", True)}
        registration.close()
        for readonly in (True, False):
            registration.set_readonly(readonly)
            assert not nodes.there and closed == [registration]
    finally:
        keeper.close()
        keeper.join()


class Refused:
    """Each of its looks fails, after a moment."""

    def look(self) -> None:
        time.sleep(0.005)
        raise MetadataUnavailableError("no answer in time")


def test_looks_that_go_on_failing_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are so many that one is due at any time."""
    monkeypatch.setattr(watches, "_KEEPER_RETRY_S", 0.05)
    keeper = Keeper()
    refused = [Refused() for _ in range(20)]
    try:
        for charge in refused:
            keeper.add(charge)
            keeper.look_at(charge)
        for _ in range(5):
            well = Failing()
            well.looks = 1
            keeper.add(well)
            keeper.look_at(well)
            assert well.done.wait(PATIENCE_S)
    finally:
        keeper.close()
        keeper.join()
