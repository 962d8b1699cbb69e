"""The recovery machine up to the end verdict, one rule at a time: mark, fence, read forward. Everything is written down, nothing timed."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest

from bk_core.errors import (
    MetadataError,
    MetadataFormatError,
    NoSuchLedgerError,
    OperationTimeoutError,
    RecoveryFailedError,
    UnauthorizedError,
)
from bk_core.protocol.entry import digests
from bk_core.protocol.events import LedgerRead, LedgerWritten, MetadataChanged, Outcome, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import FIRST_WINDOW_ENTRIES, RecoveryState
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadRequest, Status
from tests.unit.ledger.recovery_script import LEDGER, NO, PASSWORD, Script, body, ledger, spoiled

DENIALS = (Status.NO_ENTRY, Status.NO_LEDGER)
UNKNOWN = [s for s in Status if s not in (Status.OK, *DENIALS, Status.UNAUTHORIZED)]
KEEP_BASE = RecoveryOptions(reread_last_fragment=False)


# --- marking -----------------------------------------------------------------------------------------------------


def test_a_closed_ledger_is_done_and_nobody_is_fenced() -> None:
    """RC-1, OP-4."""
    script = Script(marked=False)
    closed = ledger().closed(3, 20)
    script.found(closed, 9)
    assert script.result == closed
    assert not script.sent and not script.written


def test_nothing_is_sent_to_a_bookie_before_the_mark_is_definite() -> None:
    """RC-1, META-12: the state only; the identical request at the same version until the outcome is known."""
    script = Script(marked=False)
    script.found(ledger((0, "abc"), (5, "abd")), 4)
    (write,) = script.written
    assert write.metadata == ledger((0, "abc"), (5, "abd"), state=LedgerState.IN_RECOVERY)
    assert write.version == 4
    script.outcome(Outcome.UNKNOWN)
    assert script.timers["recovery-metadata"] == script.limits.metadata_retry_ns
    script.timer("recovery-metadata")
    assert script.written == [write, write]
    assert not script.sent
    script.outcome(Outcome.OK)
    assert len(script.sent) == 3


def test_a_lost_mark_starts_over_with_what_is_stored_now() -> None:
    """RC-1, META-14: new content, new version; an ensemble that the writer changed meanwhile is the one that is fenced (RC-2)."""
    script = Script(marked=False)
    script.found(ledger(), 4)
    script.outcome(Outcome.CONFLICT)
    script.found(ledger((0, "abc"), (2, "dbc")), 5)
    assert script.written[-1].version == 5
    script.outcome(Outcome.OK)
    assert script.waiting() == ["d", "b", "c"]


def test_a_stale_answer_after_a_conflict_is_no_answer() -> None:
    """META-11, scenario 46: a follower shows the version that has just lost."""
    script = Script(marked=False)
    script.found(ledger(), 4)
    script.outcome(Outcome.CONFLICT)
    script.found(ledger(), 4)
    assert len(script.written) == 1
    script.timer("recovery-metadata")
    script.found(ledger().closed(-1, 0), 5)
    assert script.result.state is LedgerState.CLOSED


def test_a_ledger_in_recovery_is_not_written_again() -> None:
    """D3, RC-1: another recoverer was here; the outcome of its mark is all that is needed."""
    script = Script(ledger(state=LedgerState.IN_RECOVERY))
    assert not script.written
    assert script.waiting() == ["a", "b", "c"]


def test_the_other_choice_bumps_the_version() -> None:
    """D3: the same content under a new version, so that the earlier recoverer has to look again."""
    stored = ledger(state=LedgerState.IN_RECOVERY)
    script = Script(stored, options=RecoveryOptions(bump_version=True))
    assert [w.metadata for w in script.written] == [stored]
    assert not script.sent
    script.outcome(Outcome.OK)
    assert script.waiting() == ["a", "b", "c"]


@pytest.mark.parametrize("outcome", [Outcome.NO_SUCH_LEDGER, Outcome.REFUSED])
def test_a_mark_that_the_store_refuses_ends_recovery(outcome: Outcome) -> None:
    script = Script(marked=False)
    script.found(ledger(), 4)
    script.outcome(outcome, RuntimeError("disk"))
    assert type(script.result) is (NoSuchLedgerError if outcome is Outcome.NO_SUCH_LEDGER else MetadataError)


@pytest.mark.parametrize(
    ("outcome", "error", "kind"),
    [
        (Outcome.NO_SUCH_LEDGER, None, NoSuchLedgerError),
        (Outcome.REFUSED, MetadataFormatError("strange bytes"), MetadataFormatError),
        (Outcome.REFUSED, None, MetadataError),
    ],
)
def test_metadata_that_cannot_be_read_ends_recovery(outcome: Outcome, error: Exception | None, kind: type) -> None:
    script = Script(marked=False)
    script.feed(LedgerRead(script.asked_store[-1].request, outcome, error=error))
    assert type(script.result) is kind


def test_the_store_may_be_away_for_a_while() -> None:
    """Scenario 45."""
    script = Script(marked=False)
    script.feed(LedgerRead(script.asked_store[-1].request, Outcome.UNKNOWN))
    script.timer("recovery-metadata")
    assert script.asked_store[0] == script.asked_store[1]
    script.mark()
    assert script.waiting() == ["a", "b", "c"]


def test_answers_to_other_requests_are_ignored() -> None:
    """SM-3."""
    script = Script(marked=False)
    script.feed(LedgerRead(99, Outcome.OK, ledger(), 4))
    script.feed(LedgerWritten(99, Outcome.OK, 5))
    script.feed(MetadataChanged(ledger().closed(0, 5), 9))
    script.timer("recovery-retry")
    script.timer("recovery-lafr")
    assert script.machine.state is RecoveryState.MARKING
    assert not script.written and not script.sent


# --- fencing -----------------------------------------------------------------------------------------------------


def test_all_of_the_last_ensemble_is_fenced_and_nobody_else() -> None:
    """RC-4, RC-3: the last entry, with the fence flag and the key; bookies of earlier fragments have nothing to decide."""
    script = Script(ledger((0, "abc"), (10, "dbe")))
    assert script.waiting() == ["d", "b", "e"]
    for read in script.sent:
        message = read.message
        assert isinstance(message, ReadRequest)
        assert (message.ledger_id, message.entry_id, message.fence) == (LEDGER, LAST_ENTRY, True)
        assert message.master_key == digests.master_key(PASSWORD)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2), (5, 3, 2), (6, 3, 2), (5, 3, 3), (3, 2, 1)], ids=str)
def test_reading_begins_exactly_when_every_write_set_is_covered(shape: tuple[int, int, int]) -> None:
    """RC-5, Q-4, Q-7, D4: for every set of bookies that answer, in particular where a plain count would say otherwise (Q-8)."""
    letters = "abcdefghi"[: shape[0]]
    distribution = Distribution(*shape)
    for count in range(shape[0] + 1):
        for positions in combinations(range(shape[0]), count):
            script = Script(ledger(shape=shape), recovery_retries_max=0)
            script.fence("".join(letters[p] for p in positions))
            assert (script.machine.state is RecoveryState.READING) is distribution.covered(positions)


def test_two_bookies_of_six_may_be_down_but_not_two_neighbours() -> None:
    """Q-6, Q-5, Q-3, scenarios 31 and 32: 6/3/2 with 0 and 3 down is recovered although EC = E - Qa + 1 = 5 never answer."""
    apart, near = Script(ledger(shape=(6, 3, 2))), Script(ledger(shape=(6, 3, 2)), recovery_retries_max=0, unreachable_ns=0)
    apart.fence("bcef")
    assert apart.machine.state is RecoveryState.READING
    near.fence("ac", Status.UNAVAILABLE)
    near.fence("bdef")
    assert isinstance(near.result, RecoveryFailedError)
    assert "a (UNAVAILABLE), c (UNAVAILABLE)" in str(near.result)


@pytest.mark.parametrize("status", UNKNOWN, ids=lambda s: s.name)
def test_only_an_answer_about_the_entry_proves_a_fence(status: Status) -> None:
    """RC-4, RC-5, scenario 30: everything else is not heard; after the budget recovery stops and writes nothing more."""
    script = Script(recovery_retries_max=0, unreachable_ns=0)
    script.fence("ab", status)
    assert script.machine.state is RecoveryState.FENCING
    script.fence("c")
    assert isinstance(script.result, RecoveryFailedError)
    assert isinstance(script.result, OperationTimeoutError) is (status is Status.TIMEOUT)  # RC-21: timeouts keep their code
    assert script.stored.state is LedgerState.IN_RECOVERY
    assert len(script.written) == 1


def test_a_bookie_that_could_not_be_fenced_is_asked_again_while_another_hangs() -> None:
    """RC-5: the budget is counted per bookie."""
    script = Script(recovery_retries_max=2)
    script.fence("a", Status.UNAVAILABLE)
    assert script.timers == {"recovery-retry": script.limits.recovery_retry_ns}
    script.fence("b")
    script.timer("recovery-retry")
    assert script.waiting() == ["c", "a"]
    script.fence("a")
    assert script.machine.state is RecoveryState.READING


def test_the_budget_for_fencing_ends() -> None:
    """RC-5, RC-21."""
    script = Script(recovery_retries_max=2)
    script.fence("abc", Status.TIMEOUT)
    for _ in range(2):
        assert not script.results
        script.timer("recovery-retry")
        script.fence("abc", Status.TIMEOUT)
    assert isinstance(script.result, OperationTimeoutError)
    assert script.machine.state is RecoveryState.ABORTED


def test_a_refused_key_ends_recovery_at_once() -> None:
    """RC-5, RC-21: the code is kept, the password is not shown."""
    script = Script()
    script.fence("a", Status.UNAUTHORIZED)
    assert isinstance(script.result, UnauthorizedError)
    assert "secret" not in str(script.result)


def test_a_late_answer_to_the_fence_changes_nothing() -> None:
    """RC-5: neither its LAC nor its error."""
    for late in (body(9, lac=8), Status.UNAUTHORIZED, Status.TIMEOUT):
        script = Script()
        script.fence("ab")
        assert script.machine.state is RecoveryState.READING
        assert not script.fence("c", late)
        assert (script.machine.base, script.machine.state) == (-1, RecoveryState.READING)


def test_a_bookie_in_limbo_counts_as_fenced_if_so_chosen_and_never_denies() -> None:
    """RC-5, RC-25: limbo implies a fence only where bookies fence on boot; what is missing in limbo is unknown either way."""
    plain = Script(recovery_retries_max=0)
    plain.fence("ab", Status.UNKNOWN_LEDGER_STATE)
    plain.fence("c")
    assert isinstance(plain.result, RecoveryFailedError)
    script = Script(options=RecoveryOptions(limbo_counts_as_fenced=True), recovery_retries_max=0)
    script.fence("ab", Status.UNKNOWN_LEDGER_STATE)
    assert script.machine.state is RecoveryState.READING
    script.answer("ab", 0, Status.UNKNOWN_LEDGER_STATE)
    script.answer("c", 0, NO)
    assert isinstance(script.result, RecoveryFailedError)
    assert not script.is_closing


def test_a_bookie_in_limbo_may_still_have_the_entry() -> None:
    """RC-25: what it has it serves, and one verified copy is enough (D2)."""
    script = Script(recovery_retries_max=0)
    script.fence("ac")
    script.answer("ac", 0, Status.UNKNOWN_LEDGER_STATE)
    script.answer("b", 0, body(0))
    assert {a.bookie for a in script.added} == {"a", "b", "c"}


# --- the base ----------------------------------------------------------------------------------------------------


def test_reading_starts_after_the_highest_lac_heard() -> None:
    """RC-6: of the answers before coverage; a denial counts as -1."""
    script = Script(ledger(shape=(3, 3, 3)))
    script.fence("a", body(12, lac=8))
    assert script.machine.base == 8
    four = Script(ledger(shape=(4, 2, 2)))
    four.fence("a", body(12, lac=8))
    four.fence("c", body(13, lac=11))
    assert (four.machine.base, four.machine.frozen) == (11, 11)
    assert "12" not in four.waiting(11) and four.waiting(12) == ["a", "b"]


@pytest.mark.parametrize("answer", [NO, body(3, lac=2)], ids=["nothing", "old entry"])
def test_reading_never_starts_below_the_last_fragment(answer: bytes | Status) -> None:
    """RC-6, D5, R2, scenario 2: entries before it are committed, and this ensemble never had them."""
    script = Script(ledger((0, "abc"), (1000, "def"), (2000, "ghi")))
    script.fence("gh", answer)
    assert script.machine.base == 1999
    assert min(r.message.entry_id for r in script.sent if r.message.entry_id >= 0) == 2000  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", [spoiled(body(5, lac=4)), body(5, lac=4, ledger_id=8), b"short"], ids=["digest", "ledger", "size"])
def test_an_unverified_lac_is_no_base(bad: bytes) -> None:
    """RC-4, RC-6, scenario 35: the answer proves the fence; a number that nobody vouches for might lie above what was acknowledged."""
    script = Script()
    script.fence("a", bad)
    script.fence("b")
    assert (script.machine.state, script.machine.base, script.machine.frozen) == (RecoveryState.READING, -1, -1)


def test_a_good_answer_without_a_body_is_a_fence_without_a_lac() -> None:
    script = Script()
    script.fence("a", Status.OK)
    script.fence("b", body(3, lac=1))
    assert script.machine.base == 1


def test_after_another_recoverer_the_last_fragment_is_read_again() -> None:
    """RC-7 (b), open question 3: the LAC heard may be another recoverer's own; base and stamp fall back to K - 1."""
    stored = ledger((0, "abc"), (3, "abd"), state=LedgerState.IN_RECOVERY)
    script, trusting = Script(stored), Script(stored, options=KEEP_BASE)
    for each in (script, trusting):
        each.fence("a", body(9, lac=8))
        each.fence("b")
    assert (script.machine.base, script.machine.frozen) == (2, 2)
    assert (trusting.machine.base, trusting.machine.frozen) == (8, 8)


# --- reading forward ---------------------------------------------------------------------------------------------


def reading(shape: tuple[int, int, int] = (3, 3, 2), options: RecoveryOptions | None = None, **limits: int) -> Script:
    """A recovery that has fenced everybody and heard nothing."""
    script = Script(ledger(shape=shape), options=options, **limits)  # type: ignore[arg-type]
    for letter in "abcdefghi"[: shape[0]]:
        script.fence(letter)
    return script


def test_entries_are_read_from_their_whole_write_set_with_the_fence_flag() -> None:
    """RC-8, RC-9: fence, key, high priority; a window of them at once."""
    script = reading((4, 2, 2), recovery_window_entries=3)
    asked = [r for r in script.sent if r.message.entry_id >= 0]  # type: ignore[union-attr]
    assert [(r.message.entry_id, r.bookie) for r in asked] == [  # type: ignore[union-attr]
        *[(0, "a"), (0, "b")],
        *[(1, "b"), (1, "c")],
        *[(2, "c"), (2, "d")],
    ]
    for read in asked:
        message = read.message
        assert isinstance(message, ReadRequest)
        assert message.fence and message.high_priority
        assert message.master_key == digests.master_key(PASSWORD)


def test_the_window_moves_with_the_decisions() -> None:
    """RC-8: answers to later entries wait for the earlier ones."""
    script = reading(recovery_window_entries=2)
    script.answer("a", 1, body(1))
    assert not script.added and not script.waiting(2)
    script.answer("a", 0, body(0))
    assert [a.entry.entry_id for a in script.added] == [0, 0, 0, 1, 1, 1]
    assert len(script.waiting(2)) == len(script.waiting(3)) == 3


def test_one_replica_after_the_other() -> None:
    """RC-8: how they are asked is a matter of performance, what the answers mean is not."""
    script = reading(options=RecoveryOptions(sequential_reads=True), recovery_window_entries=1)
    assert script.waiting(0) == ["a"]
    script.answer("a", 0, NO)
    assert script.waiting(0) == ["b"]
    script.answer("b", 0, body(0))
    assert not script.waiting(0)
    assert script.waiting(1) == ["b"]
    script.answer("b", 1, Status.TIMEOUT)
    script.answer("c", 1, NO)
    script.answer("a", 1, NO)
    script.stored_by("ab", 0)
    assert script.end == (0, 5)


OK, DENIED, SILENT = "ok", "no", "?"
VERDICTS = {
    (3, 3, 2): lambda oks, nos: "read" if oks else "end" if nos >= 2 else "stop",
    (3, 3, 3): lambda oks, nos: "read" if oks else "end" if nos >= 1 else "stop",
    (3, 3, 1): lambda oks, nos: "read" if oks else "end" if nos >= 3 else "stop",
}


@pytest.mark.parametrize("shape", VERDICTS, ids=str)
def test_the_verdict_on_an_entry(shape: tuple[int, int, int]) -> None:
    """RC-10, RC-11, Q-2, D2: the whole table, in every order of arrival; where both verdicts are possible the first one stands."""
    for answers in product(range(3), repeat=3):
        for order in permutations(range(3)):
            script = reading(shape, recovery_window_entries=1, recovery_retries_max=0)
            oks = nos = 0
            expected = ""
            for position in order:
                kind = (OK, DENIED, SILENT)[answers[position]]
                oks, nos = oks + (kind == OK), nos + (kind == DENIED)
                what = body(0) if kind == OK else NO if kind == DENIED else Status.TIMEOUT
                if script.machine.state is RecoveryState.READING and not script.added:
                    script.answer("abc"[position], 0, what)
                    verdict = VERDICTS[shape](oks, nos)
                    expected = expected or ("" if verdict == "stop" and position != order[-1] else verdict)
            got = "read" if script.added else "end" if script.is_closing else "stop"
            assert got == expected, (answers, order)


@pytest.mark.parametrize("status", [*UNKNOWN, Status.UNAUTHORIZED], ids=lambda s: s.name)
def test_what_is_no_denial_never_ends_a_ledger(status: Status) -> None:
    """RC-11, RC-12, scenario 36: errors of any kind, after all patience, leave the ledger IN_RECOVERY."""
    script = reading(recovery_retries_max=0, unreachable_ns=0)
    script.answer("a", 0, NO)
    script.answer("bc", 0, status)
    assert not script.is_closing
    assert isinstance(script.result, UnauthorizedError if status is Status.UNAUTHORIZED else RecoveryFailedError)


@pytest.mark.parametrize("denial", DENIALS, ids=lambda s: s.name)
def test_both_definite_negatives_deny(denial: Status) -> None:
    """RC-10: "no such ledger" is as definite as "no such entry"."""
    script = reading()
    script.answer("ab", 0, denial)
    assert script.end == (-1, 0)


def test_a_hanging_bookie_is_not_waited_for() -> None:
    """RC-11, R13, scenarios 38 and 39: QC denials are the end, the third answer is never needed. The empty ledger closes at -1 (RC-20)."""
    script = Script()
    script.fence("ab")
    script.answer("ab", 0, NO)
    assert script.end == (-1, 0)


def test_a_corrupt_copy_is_unknown() -> None:
    """RC-12, scenarios 33 and 34: one bad copy is written over, only bad copies stop recovery; the entry is never skipped."""
    script = reading(recovery_retries_max=0)
    script.answer("a", 0, spoiled(body(0)))
    script.answer("b", 0, body(0))
    assert {a.bookie for a in script.added} == {"a", "b", "c"}
    worst = reading(recovery_retries_max=0)
    worst.answer("abc", 0, spoiled(body(0)))
    assert isinstance(worst.result, RecoveryFailedError)
    assert not worst.added and not worst.is_closing


def test_the_body_of_another_entry_is_no_copy_of_this_one() -> None:
    """RD-8, RC-12."""
    script = reading(recovery_retries_max=0)
    script.answer("abc", 0, body(1))
    assert isinstance(script.result, RecoveryFailedError)


def test_unknown_replicas_are_asked_again_within_a_budget() -> None:
    """RC-10: also while another one hangs; then the verdict may still come."""
    script = reading(recovery_retries_max=1)
    script.answer("a", 0, NO)
    script.answer("b", 0, Status.TOO_MANY_REQUESTS)
    assert "recovery-retry" in script.timers
    script.timer("recovery-retry")
    assert script.waiting(0) == ["c", "b"]
    script.answer("b", 0, NO)
    assert script.end == (-1, 0)


def test_the_budget_for_reading_ends() -> None:
    """RC-10, RC-21: undecidable; a retry timer that fires later finds nobody."""
    script = reading(recovery_retries_max=1)
    script.answer("a", 0, NO)
    for _ in range(2):
        assert not script.results
        script.answer("bc", 0, Status.IO_ERROR)
        script.timer("recovery-retry")
    assert isinstance(script.result, RecoveryFailedError)
    assert "entry 0" in str(script.result) and "b (IO_ERROR)" in str(script.result)


def test_a_retry_timer_without_an_open_question_does_nothing() -> None:
    script = reading(recovery_window_entries=1, unretired_bytes_max=1)
    script.answer("a", 0, Status.IO_ERROR)
    script.answer("b", 0, body(0))
    assert not script.timer("recovery-retry")


def test_nothing_beyond_the_end_matters() -> None:
    """RC-8, replication-protocol.md 14.1 item 13: an error, a refusal or an entry beyond the first missing one neither fails nor prolongs
    recovery."""
    for beyond in (Status.TIMEOUT, Status.UNAUTHORIZED, body(1)):
        script = reading(recovery_window_entries=3, recovery_retries_max=0)
        script.answer("abc", 1, beyond)
        assert not script.results and not script.added
        script.answer("ab", 0, NO)
        assert script.end == (-1, 0)
        assert not script.answer("abc", 2, Status.IO_ERROR)
        script.outcome(Outcome.OK)
        assert script.result.last_entry_id == -1


def test_what_was_read_does_not_pile_up_before_slow_bookies() -> None:
    """WR-15, RC-13: with enough entries unstored no further one is asked for; an acknowledgement lets reading go on."""
    script = reading(recovery_window_entries=2, unretired_bytes_max=10)
    for entry_id in (0, 1):
        script.answer("a", entry_id, body(entry_id))
    assert not script.waiting(3)
    script.stored_by("abc", 0)
    assert len(script.waiting(3)) == 3


def test_large_entries_are_read_fewer_at_a_time() -> None:
    """RC-8: three copies of ten bytes and a bound of sixty: two entries in flight, however many the window would allow."""
    script = reading(recovery_window_entries=256, read_window_bytes=60)
    assert script.waiting(FIRST_WINDOW_ENTRIES - 1) and not script.waiting(FIRST_WINDOW_ENTRIES)  # nobody knows how large they are
    for entry_id in range(FIRST_WINDOW_ENTRIES - 1):
        script.answer("a", entry_id, body(entry_id, length=10 * (entry_id + 1), payload=b"0123456789"))
    assert script.waiting(FIRST_WINDOW_ENTRIES) and not script.waiting(FIRST_WINDOW_ENTRIES + 1)


def test_small_entries_are_read_many_at_a_time() -> None:
    """RC-8: once the first one tells how large they are."""
    script = reading(recovery_window_entries=256)
    script.answer("a", 0, body(0))
    assert script.waiting(256) and not script.waiting(257)


def test_progress_tells_what_is_going_on_and_never_goes_back() -> None:
    """RC-21: whoever waits can tell a long recovery from one that stands still."""
    script = Script()
    told = [str(script.machine.progress)]
    script.fence("abc")
    script.answer("a", 0, body(0))
    told.append(str(script.machine.progress))
    script.stored_by("ab", 0)
    told.append(str(script.machine.progress))
    script.answer("a", 1, body(1))
    script.answer("ab", 2, NO)
    told.append(str(script.machine.progress))
    script.stored_by("ab", 1)
    told.append(str(script.machine.progress))
    assert told == [
        "fencing",
        "reading entry 1, written back up to entry -1",
        "reading entry 1, written back up to entry 0",
        "writing back entry 1, the ledger ends before entry 2",
        "closing",
    ]


def test_reading_does_not_wait_for_a_bookie_that_nobody_needs() -> None:
    """WR-15, RC-11, R13: everything is committed without the hanging one."""
    script = reading(recovery_window_entries=1, unretired_bytes_max=1)
    script.answer("a", 0, body(0))
    assert not script.waiting(1)
    script.stored_by("ab", 0)
    assert len(script.waiting(1)) == 3


def test_events_of_no_concern_pass() -> None:
    script = Script(marked=False)
    assert not script.feed(TimerFired("tick"))
    script.mark()
    assert not script.lost("a")
