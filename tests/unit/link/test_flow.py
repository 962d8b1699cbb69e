"""The bytes that one connection is asked for at once, and the turns on it: a link of a given speed, in steps of time."""

from __future__ import annotations

import heapq

import pytest

from bk_core.protocol.link import FIRST_WINDOW_BYTES, PIECE_BYTES_MIN, WINDOW_BYTES_MAX, EntrySizes, FlowWindow, Turns
from bk_core.protocol.link.flow import ENTRY_BYTES_UNKNOWN, LEDGERS_MAX

S = 1_000_000_000
CHUNK = 5 << 20


def play(flow: FlowWindow, bytes_per_s: float, delay_s: float, seconds: float, wanted: int = CHUNK, at_ns: int = 0) -> tuple[int, int, int]:
    """A reader that always wants more, over a link: (bytes that came, the longest time for which one answer was waited, end)."""
    now, link_free, came, longest = at_ns, at_ns, 0, 0
    under_way: list[tuple[int, int, int]] = []  # (due, size, sent)
    while now < at_ns + seconds * S:
        size = flow.piece(wanted, 6)
        while flow.admits(size):
            flow.sent(size)
            link_free = max(link_free, now + int(delay_s * S)) + int(size / bytes_per_s * S)
            heapq.heappush(under_way, (link_free + int(delay_s * S), size, now))
            size = flow.piece(wanted, 6)
        now, size, sent = heapq.heappop(under_way)
        flow.released(size)
        flow.took(sent, now)
        came, longest = came + size, max(longest, now - sent)
    flow.released(flow.in_flight)
    return came, longest, now


@pytest.mark.parametrize("megabytes_per_s", [0.1, 1, 5, 50, 1000])
@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_a_link_is_used_and_not_flooded(megabytes_per_s: float, delay_s: float) -> None:
    """LINK-5: most of the bandwidth, and no answer takes much longer than the second that the window is for."""
    flow, rate = FlowWindow(), megabytes_per_s * 1e6
    play(flow, rate, delay_s, 5)
    came, longest, _ = play(FlowWindow(), rate, delay_s, 30)
    assert came > 0.7 * min(rate, WINDOW_BYTES_MAX / (2 * delay_s) if delay_s else rate) * 30
    first_s = FIRST_WINDOW_BYTES / rate + 2 * delay_s
    assert longest < 2 * (first_s + 1) * S
    assert PIECE_BYTES_MIN <= flow.window <= WINDOW_BYTES_MAX


def test_a_fast_link_is_asked_for_whole_chunks_soon() -> None:
    """LINK-5: a window doubles in each round."""
    flow = FlowWindow()
    play(flow, 1e9, 0.0001, 0.2)
    assert flow.piece(CHUNK, 6) == CHUNK and flow.window == WINDOW_BYTES_MAX


def test_a_link_that_becomes_slow_is_asked_for_less() -> None:
    """LINK-5."""
    flow = FlowWindow()
    _, _, end = play(flow, 50e6, 0.0, 5)
    wide = flow.window
    play(flow, 0.5e6, 0.0, 200, at_ns=end)
    assert flow.window < 2e6 < wide


def test_who_asks_for_little_does_not_widen_the_window() -> None:
    """LINK-5: nothing was learnt about the link."""
    flow = FlowWindow()
    for at in range(0, 100 * S, S):
        assert flow.admits(1000)
        flow.sent(1000)
        flow.released(1000)
        flow.took(at, at + 1000)
    assert flow.window == FIRST_WINDOW_BYTES


def test_a_small_answer_that_comes_alone_does_not_widen_the_window() -> None:
    """LINK-5: a quarter of a window in two thirds of a second is a thin link, however soon it came."""
    flow, now = FlowWindow(), 0
    for _ in range(20):
        size = flow.piece(CHUNK, 1)
        flow.sent(size)
        under_way = flow.in_flight
        flow.released(size)
        flow.took(now, now + size * S // 100_000, under_way)
        now += size * S // 100_000
    assert flow.window <= 2 * FIRST_WINDOW_BYTES


def test_something_always_may_be_under_way() -> None:
    """LINK-5: an entry larger than the window is read all the same."""
    flow = FlowWindow()
    assert flow.admits(100 << 20)
    flow.sent(100 << 20)
    assert not flow.admits(1)
    flow.released(100 << 20)
    assert flow.admits(100 << 20)


def test_another_connection_begins_anew() -> None:
    """LINK-5."""
    flow = FlowWindow()
    play(flow, 1e9, 0.0, 1)
    flow.sent(100)
    flow.connected()
    assert (flow.window, flow.in_flight) == (FIRST_WINDOW_BYTES, 0)


def test_what_entries_take() -> None:
    """LINK-5: of a ledger that was never read a guess, then what came; not for ever more ledgers."""
    sizes = EntrySizes()
    assert sizes.of(7) == ENTRY_BYTES_UNKNOWN
    sizes.told(7, 1000, 10)
    assert sizes.of(7) == 100
    sizes.told(7, 300, 1)
    sizes.told(7, 300, 0)
    assert sizes.of(7) == 200
    for ledger in range(8, 8 + LEDGERS_MAX):
        sizes.told(ledger, 1, 1)
    assert sizes.of(7) == ENTRY_BYTES_UNKNOWN and sizes.of(8) == 1


def test_readers_in_turn_and_of_each_the_lowest_entry() -> None:
    """LINK-6."""
    turns: Turns[str] = Turns()
    for reader, entry in [("a", 30), ("a", 10), ("a", 20), ("b", 5), ("c", 99), ("b", 5)]:
        turns.push(reader, entry, f"{reader}{entry}")
    assert (turns.size, turns.readers, turns.peek()) == (6, 3, "a10")
    assert [turns.pop(), turns.pop(), turns.pop(), turns.pop()] == ["a10", "b5", "c99", "a20"]
    turns.push("a", 1, "a1")
    assert turns.pop() == "b5" and turns.peek() == "a1"
    assert turns.drop("a") == ["a1", "a30"] and turns.drop("a") == [] and turns.size == 0
    turns.push("d", 1, "d1")
    assert turns.clear() == ["d1"] and turns.size == turns.readers == 0
