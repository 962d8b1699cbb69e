"""RR-16 to RR-19: which bookies are lost, which marked ledgers are tried when, and how long the writer of an open one has."""

from __future__ import annotations

from bk_core.protocol.ledger.replication import Audit, Ended, LostBookies, RepairQueue, check_due, check_pause_ns, may_begin

S = 1_000_000_000
DELAY, AGAIN, GRACE = 60 * S, 3600 * S, 30 * S


def lost(*bookies: str, look: int | None = None) -> Audit:
    return Audit(frozenset(bookies), look)


def test_a_bookie_is_lost_after_the_delay_and_its_ledgers_are_marked_once() -> None:
    """RR-16."""
    bookies = LostBookies(AGAIN)
    assert bookies.look("abc", "abc", DELAY, 0) == lost()
    assert bookies.look("abc", "ab", DELAY, 5 * S) == lost(look=65 * S)
    assert bookies.look("abc", "ab", DELAY, 64 * S) == lost(look=65 * S)
    assert bookies.look("abc", "ab", DELAY, 65 * S) == lost("c")
    assert bookies.look("abc", "ab", DELAY, 66 * S) == lost("c"), "nobody said that the ledgers are marked"
    bookies.marked("c", 66 * S)
    bookies.marked("c", 66 * S)
    assert bookies.look("abc", "ab", DELAY, 67 * S) == lost(look=66 * S + AGAIN)
    assert bookies.look("abc", "ab", DELAY, 66 * S + AGAIN) == lost("c")


def test_ledgers_that_were_created_on_a_lost_bookie_are_marked_soon() -> None:
    """RR-16: a client that learned late that it was gone, and closed its ledger before it missed it, is seen a minute later."""
    bookies = LostBookies(AGAIN)
    for lost_at in (0, 1000 * S):
        assert bookies.look("abc", "ab", 0, lost_at) == lost("c")
        bookies.marked("c", lost_at)
        assert bookies.look("abc", "ab", 0, lost_at + 59 * S) == lost(look=lost_at + 60 * S)
        assert bookies.look("abc", "ab", 0, lost_at + 60 * S) == lost("c")
        bookies.marked("c", lost_at + 60 * S)
        assert bookies.look("abc", "ab", 0, lost_at + 61 * S) == lost(look=lost_at + 60 * S + AGAIN)
        assert bookies.look("abc", "abc", 0, lost_at + 62 * S) == lost(), "back, and what was marked is forgotten"
    often = LostBookies(2 * S)
    often.look("ab", "a", 0, 0)
    often.marked("b", 0)
    assert often.look("ab", "a", 0, 2 * S) == lost("b"), "no later than any other time"


def test_one_that_comes_back_begins_anew() -> None:
    bookies = LostBookies(AGAIN)
    bookies.look("abc", "ab", DELAY, 0)
    assert bookies.look("abc", "abc", DELAY, 59 * S) == lost()
    assert bookies.look("abc", "ab", DELAY, 60 * S) == lost(look=120 * S)
    bookies.look("abc", "ab", DELAY, 120 * S)
    bookies.marked("c", 120 * S)
    bookies.look("abc", "abc", DELAY, 121 * S)
    assert bookies.look("abc", "ab", DELAY, 122 * S) == lost(look=182 * S), "what was marked before says nothing of the new loss"


def test_two_that_are_away_are_lost_at_once() -> None:
    bookies = LostBookies(AGAIN)
    assert bookies.look("abcd", "abc", DELAY, 0) == lost(look=DELAY)
    assert bookies.look("abcd", "ab", DELAY, 1 * S) == lost("c", "d")
    bookies.marked("cd", 1 * S)
    assert bookies.look("abcd", "ab", DELAY * 100, 60 * S) == lost(look=61 * S), "again a minute later, whatever the delay"
    assert bookies.look("abcd", "ab", DELAY * 100, 61 * S) == lost("c", "d")


def test_a_dead_bookie_takes_no_other_ones_time() -> None:
    """RR-16: one that was marked and keeps its cookie says nothing about the next one, which may only restart. Apache's auditor forgets a
    bookie once it has audited it, too."""
    bookies = LostBookies(AGAIN)
    bookies.look("abc", "bc", 0, 0)
    bookies.marked("a", 0)
    bookies.look("abc", "bc", 0, 60 * S)
    bookies.marked("a", 60 * S)
    assert bookies.look("abc", "c", DELAY, 100 * S) == lost(look=100 * S + DELAY)
    assert bookies.look("abc", "bc", DELAY, 130 * S) == lost(look=60 * S + AGAIN), "it is back"
    assert bookies.look("abc", "c", DELAY, 200 * S) == lost(look=200 * S + DELAY)
    assert bookies.look("abcd", "c", DELAY, 201 * S) == lost("b", "d", look=60 * S + AGAIN), "two that were not marked"


def test_without_a_cookie_a_bookie_is_not_known() -> None:
    assert LostBookies(AGAIN).look("ab", "ab", 0, 0) == lost()
    assert LostBookies(AGAIN).look("b", "b", 0, 0) == lost()


def test_an_outage_marks_nothing() -> None:
    bookies = LostBookies(AGAIN)
    assert bookies.look("abc", "", 0, 0) == lost()
    assert bookies.look("abc", "c", 0, 1 * S) == lost("a", "b")


def test_a_bookie_that_answers_has_a_minute_once() -> None:
    """RR-16: after an outage bookies register one after the other, and all of them ran all the while."""
    bookies = LostBookies(AGAIN)
    assert bookies.look("abcd", "a", DELAY, 0) == lost("b", "c", "d")
    assert bookies.to_ask("bcd") == ["b", "c", "d"]
    bookies.answered("bc", 0)
    assert bookies.to_ask("bcd") == ["d"]
    bookies.marked("d", 0)
    assert bookies.look("abcd", "a", 0, 59 * S) == lost(look=60 * S)
    assert bookies.look("abcd", "ac", 0, 60 * S) == lost("b", "d") and bookies.to_ask("bd") == [], "it has had its minute"
    assert bookies.look("abcd", "a", 0, 61 * S) == lost("b", "c", "d") and bookies.to_ask("c") == ["c"], "it is away anew"


def test_who_takes_over_marks_once_more_what_was_marked() -> None:
    """RR-16: the auditor before may have ended in the middle of its look at all ledgers, and others only take it that it has marked."""
    bookies = LostBookies(AGAIN)
    assert bookies.look("abc", "bc", 0, 0) == lost("a")
    for at in (0, 60 * S):
        bookies.marked("a", at)
    bookies.took_over()
    assert bookies.look("abc", "bc", 0, 61 * S) == lost(look=120 * S)
    assert bookies.look("abc", "bc", 0, 120 * S) == lost("a") and bookies.to_ask("a") == []
    bookies.marked("a", 120 * S)
    assert bookies.look("abc", "bc", 0, 181 * S) == lost(look=120 * S + AGAIN)


def test_a_look_that_was_noted_in_the_future_says_nothing() -> None:
    """RR-4: one look by a host with a wrong clock would end them for all hosts until then."""
    assert check_due(None, 5, 10) and check_due(90, 100, 10) and check_due(101, 100, 10)
    assert not check_due(91, 100, 10) and not check_due(100, 100, 10)


def test_failures_are_tried_again_after_pauses_that_double() -> None:
    """RR-17."""
    queue, now = RepairQueue(GRACE), 0
    pauses = []
    for _ in range(9):
        assert queue.ready([7], now) == [7]
        queue.ended(7, Ended.FAILED, now)
        began = now
        while not queue.ready([7], now):
            now += S
        pauses.append((now - began) // S)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    queue.ended(7, Ended.DONE, now)
    queue.ended(7, Ended.FAILED, now)
    assert queue.ready([7], now + 5 * S) == [7], "it was repaired in between"


def test_a_held_ledger_is_looked_at_soon_and_counts_as_no_failure() -> None:
    queue = RepairQueue(GRACE)
    for n in range(5):
        queue.ended(7, Ended.HELD, n * 5 * S)
        assert queue.ready([7, 8], n * 5 * S + 1) == [8]
    assert queue.ready([7, 8], 25 * S) == [7, 8]


def test_the_writer_of_an_open_ledger_has_its_time_once() -> None:
    """RR-18."""
    queue = RepairQueue(GRACE)
    assert not queue.recovers(7, 0)
    queue.ended(7, Ended.TAIL, 0)
    assert queue.ready([7], GRACE - 1) == [] and not queue.recovers(7, GRACE - 1)
    assert queue.ready([7], GRACE) == [7] and queue.recovers(7, GRACE)
    queue.ended(7, Ended.TAIL, GRACE)  # it could not be recovered
    assert queue.ready([7], GRACE + 4 * S) == [] and queue.ready([7], GRACE + 5 * S) == [7] and queue.recovers(7, GRACE + 5 * S)


def test_what_is_not_marked_any_more_is_forgotten() -> None:
    queue = RepairQueue(GRACE)
    queue.ended(7, Ended.TAIL, 0)
    queue.ended(8, Ended.FAILED, 0)
    assert queue.ready([8], 1) == []
    assert queue.ready([7, 8], 2) == [7] and not queue.recovers(7, GRACE + 2)


def test_a_client_that_all_refuse_does_not_begin() -> None:
    """RR-19. Bookies that give no answer do not count: they may be starting."""
    assert not may_begin(admitting=0, refusing=3)
    assert may_begin(admitting=1, refusing=2) and may_begin(admitting=0, refusing=0)


def test_a_look_at_all_ledgers_that_bookies_refuse_is_taken_again_ever_more_seldom() -> None:
    """RR-19: a refusal that lasts must not make the look run without an end."""
    week = 7 * 86_400 * S
    pauses = [check_pause_ns(refused, week) for refused in range(1, 2000)]
    assert pauses[:4] == [300 * S, 600 * S, 1200 * S, 2400 * S]
    assert all(after == min(2 * before, week) for before, after in zip(pauses, pauses[1:], strict=False)) and pauses[-1] == week
    assert check_pause_ns(1, 60 * S) == 60 * S, "no later than any other look"
