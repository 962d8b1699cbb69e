"""Silent connections and late requests on them: tables of what happened when, in seconds."""

from __future__ import annotations

import pytest

from bk_core.protocol.link import Attempts, LinkHealth, Patience
from bk_core.protocol.link.health import MARK_NS

S = 1_000_000_000


def link(timeout_s: float = 5.0, connected_s: float = 0.0) -> LinkHealth:
    health = LinkHealth(int(timeout_s * S))
    health.connected(int(connected_s * S))
    return health


@pytest.mark.parametrize(
    "moved_s, now_s, late",
    [
        ([], 4.9, False),
        ([], 5.0, True),
        ([4.0], 8.9, False),  # a byte starts it anew, whosever it was
        ([4.0], 9.0, True),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 14, False),
        ([0.5], 5.0, True),  # but one from before it was sent does not
    ],
)
@pytest.mark.parametrize("way", ["heard", "drained"])
def test_silence_is_what_times_out(moved_s: list[float], now_s: float, late: bool, way: str) -> None:
    """LINK-1."""
    health = link()
    sent = Patience(5 * S, 0 if moved_s != [0.5] else S // 2)
    for moved in moved_s:
        getattr(health, way)(int(moved * S) - (moved_s == [0.5]))
    if moved_s == [0.5]:
        now_s += 0.5
    assert health.is_silent(sent, int(now_s * S)) is late
    assert health.is_late(sent, int(now_s * S)) is late


def test_what_waits_for_its_turn_is_never_late() -> None:
    """LINK-1: the bookie does not know of it yet."""
    assert not link().is_late(Patience(5 * S), 1000 * S) and not link().is_silent(Patience(5 * S), 1000 * S)


@pytest.mark.parametrize(
    "answered_s, late",
    [([], False), ([1.0, 4.9], False), ([5.0], True), ([100.0, 3.0], True)],
)
def test_a_request_that_is_passed_over(answered_s: list[float], late: bool) -> None:
    """LINK-2: bytes come all the time, for others. Times are those at which the answered ones were sent."""
    health = link()
    for sent_s in answered_s:
        health.answered(int(sent_s * S))
    health.heard(200 * S)
    assert health.is_late(Patience(5 * S, 0), 200 * S) is late
    assert not health.is_silent(Patience(5 * S, 0), 200 * S)


def test_another_patience_than_its_own() -> None:
    """RD-4, LINK-1: whoever thinks of asking elsewhere asks with less patience."""
    health, one = link(), Patience(5 * S, 0)
    assert health.is_late(one, 2 * S, 2 * S) and not health.is_late(one, 2 * S)


def test_adds_are_outstanding_as_well() -> None:
    """LINK-3."""
    health = link()
    assert not health.adds_are_silent(100 * S)
    health.adds_sent(3, 100 * S)
    assert not health.adds_are_silent(105 * S - 1) and health.adds_are_silent(105 * S)
    health.heard(104 * S)
    health.adds_answered(2)
    assert not health.adds_are_silent(109 * S - 1) and health.adds_are_silent(109 * S)
    health.adds_answered(1)
    assert not health.adds_are_silent(1000 * S)
    health.adds_sent(1, 2000 * S)  # its own silence, not that of the hours before
    assert not health.adds_are_silent(2001 * S)
    health.connected(2002 * S)
    assert health.adds_unanswered == 0


def test_more_answers_than_adds_end_nothing() -> None:
    """LINK-3: a bookie that answers twice owes the next answer all the same."""
    health = link()
    health.adds_sent(1, 0)
    health.adds_answered(5)
    health.adds_sent(1, S)
    assert health.adds_unanswered == 1


def test_answers_to_adds_pass_a_read_over() -> None:
    """LINK-2, LINK-3: more answers than there were adds before a time, so one of those after it was answered."""
    health, read = link(), Patience(5 * S, 0)
    now = 0
    for _ in range(40):
        now += MARK_NS
        health.adds_sent(10, now)
        health.adds_answered(10)
        health.heard(now)
        assert health.is_late(read, now) is (now >= 5 * S)


def test_an_add_that_is_never_answered_hides_one_answer_only() -> None:
    """LINK-3."""
    health, read = link(), Patience(5 * S, 0)
    health.adds_sent(1, 0)
    for second in range(1, 8):
        health.adds_sent(2, second * S)
        health.adds_answered(2)
        health.heard(second * S)
    assert health.is_late(read, 7 * S)


def test_other_connections_are_in_doubt() -> None:
    """LINK-4: those that heard nothing since the silence began, and that no writer needs (WR-17)."""
    health = link()
    health.heard(10 * S)
    assert health.is_doubtful(11 * S) and not health.is_doubtful(10 * S) and not health.is_doubtful(9 * S)
    assert not health.is_doubtful(11 * S, needed=True)


def test_a_silence_begins_when_something_moved_last() -> None:
    """LINK-4: a request that was sent long before that does not make the silence older."""
    health = link()
    health.connected(0)
    health.adds_sent(1, 12 * S)
    assert health.silence_of([Patience(5 * S, 3 * S), Patience(5 * S, 2 * S), Patience(5 * S)]) == 2 * S
    health.heard(10 * S)
    assert health.silence_of([Patience(5 * S, 3 * S)]) == 10 * S == health.silence_of([Patience(5 * S, 11 * S), Patience(5 * S, 9 * S)])
    assert health.silence_of([]) == 12 * S


def test_adds_under_way_have_a_timeout_of_their_own() -> None:
    """LINK-4: another connection says nothing about them; LINK-3 does when their time is over."""
    health = link()
    health.connected(0)
    health.adds_sent(2, 9 * S)
    health.adds_answered(1)
    assert not health.is_doubtful(4 * S)
    health.adds_answered(1)
    assert health.is_doubtful(4 * S)


def test_each_address_gets_its_share_of_the_time() -> None:
    """LINK-8."""
    attempts = Attempts(3, 6 * S)
    assert attempts.next(0) == 2 * S
    assert attempts.next(1 * S) == 5 * S // 2  # refused at once: the others have more
    assert attempts.next(3 * S) == 3 * S
    assert attempts.next(4 * S) is None
    assert Attempts(3, 6 * S).next(6 * S) is None
    assert Attempts(0, 6 * S).next(0) is None
