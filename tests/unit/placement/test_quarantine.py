"""The bookies in quarantine, and their time there (metadata.md 5.6)."""

from __future__ import annotations

import pytest

from bk_core.protocol.ledger.placement import Quarantine, is_bookie_failure
from bk_core.protocol.wire.messages import Status


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


def test_a_failing_bookie_is_in_quarantine_until_its_time_is_over() -> None:
    """CR-2: SM-4: time comes in from outside."""
    clock = Clock()
    quarantine = Quarantine(clock, 100)
    quarantine.failed("b1")
    clock.now += 50
    quarantine.failed("b2")
    assert quarantine.members() == {"b1", "b2"}
    clock.now += 50
    assert quarantine.members() == {"b2"}
    quarantine.failed("b2")
    clock.now += 99
    assert quarantine.members() == {"b2"}
    clock.now += 1
    assert quarantine.members() == frozenset()


def test_it_takes_several_failures_within_the_window() -> None:
    clock = Clock()
    quarantine = Quarantine(clock, 100, errors=3, window_ns=30)
    for clock.now in (1_000, 1_010, 1_030):  # the first is too old when the third comes
        quarantine.failed("b")
        assert quarantine.members() == frozenset()
    clock.now = 1_035
    quarantine.failed("b")
    assert quarantine.members() == {"b"}


def test_a_duration_of_nothing_turns_it_off() -> None:
    quarantine = Quarantine(Clock(), 0)
    quarantine.failed("b")
    assert quarantine.members() == frozenset()


@pytest.mark.parametrize("status", list(Status))
def test_only_failures_of_the_bookie_itself_count(status: Status) -> None:
    """WR-6: a fence, an absence, a refused key say nothing about the health of the bookie."""
    own = {Status.TIMEOUT, Status.UNAVAILABLE, Status.PROTOCOL_ERROR, Status.IO_ERROR, Status.TOO_MANY_REQUESTS}
    assert is_bookie_failure(status) is (status in own | {Status.READ_ONLY, Status.BAD_VERSION, Status.NOT_ADMITTED})
