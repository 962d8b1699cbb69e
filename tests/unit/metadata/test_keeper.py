"""The thread that looks after watches and registrations."""

from __future__ import annotations

import threading
import time

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.tree import watches
from bk_core.metadata.tree.watches import Keeper

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
