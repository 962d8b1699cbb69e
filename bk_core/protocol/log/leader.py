"""The exclusive writer of a log: take it over, write, roll (replication-protocol.md 10.1, 10.2).

The log is the list item of section 10: a tuple of ledger ids and the version it was read with. A *round* of taking over is: read the
list, recover its last two ledgers, create a ledger, put it behind them by compare-and-set. Only the compare-and-set and the fences make
it safe (LOG-4); an election merely spares rounds. From then on there is a *current* ledger that entries go to. A *roll* lists the
*following* ledger while entries still go to the current one, lets that drain and closes it, and only then writes to the new one.

What became of the current ledger:

    HEALTHY ──drained, close──► CLOSING ──closed──► ENDED
       │                           │ refused          ▲
       └──an append failed──► RECOVERING ──recovered──┘

Its end is known in ENDED alone, and nothing goes to another ledger before (LOG-8). An entry that was outstanding when the ledger failed is
acknowledged if it lies at or below the recovered end, else written again. A fence or a foreign close is not a failure: somebody has taken
the log over, and this leader abdicates.

The production form of the list is ``LedgerList`` (ledger_list.py): its segments carry the same ids in the same order plus cached ends,
which are never authoritative. ``ReadList`` stands for reading it and taking the ids of its segments, ``WriteList`` for
``add_live_segment`` (here always an append) under compare-and-set at that version; a log that was deleted and created again is, by its
log id, one that does not exist. ``bk_core/client/log/writer.py`` drives this machine against a client, the simulator against its world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bk_core.errors import BkError, LogDataLossError, LogError, LogTakenOverError, NoSuchLogError
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    CheckLeadership,
    CheckLedger,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    LeadershipChecked,
    LedgerChecked,
    LedgerCreated,
    LedgerEnded,
    ListRead,
    ListWritten,
    LogEffect,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.leader_state import Health, LeaderOptions, LeaderState, PendingAppend, Roll, Span
from bk_core.protocol.log.machine import LogMachine
from bk_core.protocol.states import Transitions

APPLICATION = b"bk_core"


class LogLeader(LogMachine):
    """One leader of the log ``name``. A run is never restarted; a new attempt is a new machine. ``random`` returns 0.0 <= x <
    1.0 (SM-4)."""

    state = Transitions(
        LeaderState.IDLE,
        {
            LeaderState.IDLE: (LeaderState.TAKING_OVER,),
            LeaderState.TAKING_OVER: (LeaderState.SERVING, LeaderState.ABDICATED, LeaderState.FAILED),
            LeaderState.SERVING: (LeaderState.CLOSED, LeaderState.ABDICATED, LeaderState.FAILED),
        },
    )

    def __init__(self, name: str, random: Callable[[], float], options: LeaderOptions | None = None) -> None:
        super().__init__()
        self.name = name
        self.state = LeaderState.IDLE
        self.ledgers: tuple[int, ...] = ()
        self.version = -1
        self._next_seq = -1  # of the list that was read or written last
        self.current: int | None = None
        self.following: int | None = None
        self.health = Health.HEALTHY
        self.rolling = Roll.NONE
        self.error: Exception | None = None
        self._random = random
        self._options = options or LeaderOptions()
        self._rounds = 0
        self._to_recover: deque[int] = deque()
        self._unclosed: set[int] = set()  # listed, and not known CLOSED
        self._outstanding: deque[PendingAppend] = deque()  # sent to the current ledger, in order
        self._queue: deque[PendingAppend] = deque()
        self._next_entry_id = 0
        self._ambiguous = False  # an attempt to list the following ledger may still be applied
        self._perhaps_listed = False  # such an attempt may have been applied, and nobody has seen the list since
        self._open_tokens: list[Any] = []
        self._roll_tokens: list[Any] = []
        self._close_tokens: list[Any] = []

    # --- calls of the application ----------------------------------------------------------------------------------

    def open(self, token: Any, now_ns: int) -> list[LogEffect]:
        """Take the log over (LOG-1); completes with the id of the new ledger.

        Fails with LogTakenOverError (others won, or the election is lost), LogDataLossError (LOG-5), NoSuchLogError, or the error with
        which a ledger operation was refused.
        """
        assert self.state is LeaderState.IDLE, "a leader is opened once"
        self.state = LeaderState.TAKING_OVER
        self._open_tokens.append(token)
        self._start_round()
        return self._finish_step()

    def append(self, payloads: Sequence[Any], token: Any, now_ns: int) -> list[LogEffect]:
        """Append entries in order; completes with their ``Span``s: one, or more if ledgers failed in between.

        ``payloads`` is kept as it is, and sliced when a ledger fails, unless it is a list, which its caller may change.
        After LogTakenOverError the entries may or may not be in the log (WR-13).
        """
        if self.state not in (LeaderState.TAKING_OVER, LeaderState.SERVING) or self._close_tokens or not payloads:
            self._effects.append(Fail(token, self._refusal("append needs payloads" if not payloads else "append")))
        else:
            self._queue.append(PendingAppend(token, tuple(payloads) if isinstance(payloads, list) else payloads))
        return self._finish_step()

    def roll(self, token: Any, now_ns: int) -> list[LogEffect]:
        """Go on in a new ledger (LOG-6); completes with its id once the old one is CLOSED. Raises LogError while the last roll is
        unfinished."""
        if self.state is not LeaderState.SERVING or self._close_tokens or not self._may_roll():
            self._effects.append(Fail(token, self._refusal("roll")))
        else:
            self._roll_tokens.append(token)
            self._start_roll()
        return self._finish_step()

    def close(self, token: Any, now_ns: int) -> list[LogEffect]:
        """Write what was appended, close the current ledger, and stop."""
        if self.state not in (LeaderState.TAKING_OVER, LeaderState.SERVING):
            self._effects.append(Fail(token, self._refusal("close")))
        else:
            self._close_tokens.append(token)
        return self._finish_step()

    def abandon(self, error: Exception, now_ns: int) -> list[LogEffect]:
        """Give up: every call fails with ``error``, and nothing more is asked for. It has no effect once the leader has stopped.

        The ledgers stay as they are. One that is made but perhaps not listed stays too, because an attempt to list it may yet be applied
        (META-13).
        """
        if self.state in (LeaderState.TAKING_OVER, LeaderState.SERVING):
            self._fail(error, "")
        return self._finish_step()

    def _refusal(self, what: str) -> Exception:
        if self.error is not None:
            return self.error
        return LogError(f"log {self.name!r}: {what} is not possible now (leader {self.state.name}, roll {self.rolling.name})")

    # --- taking over -----------------------------------------------------------------------------------------------

    def _start_round(self) -> None:
        """Begin a round by reading the list (LOG-1 (1))."""
        self._rounds += 1
        self._ask(ReadList, self._on_list)

    def _on_list(self, event: ListRead) -> None:
        if not self._list_is_there(event, self._on_list):
            return
        self._know(event)
        self._to_recover = deque(self._ledgers_to_recover(event.ledgers))
        self._recover_next()

    def _ledgers_to_recover(self, ledgers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the last two ledgers, penultimate first, because a roll lists the next ledger before it closes the one in use (LOG-1 (2),
        LOG-2)."""
        return ledgers[-2:]

    def _recover_next(self) -> None:
        if self._to_recover:
            ledger_id = self._to_recover[0]
            self._ask(lambda request: RecoverLedger(request, ledger_id), self._on_recovered)
        else:
            self._create()

    def _on_recovered(self, event: LedgerEnded) -> None:
        match event.outcome:
            case Outcome.OK:
                self._to_recover.popleft()
                self._recover_next()
            case Outcome.NO_SUCH_LEDGER:
                self._ask(ReadList, self._on_list_without_ledger)
            case Outcome.UNKNOWN:  # LOG-3: stay here, because nothing is appended past a ledger whose end nobody knows
                self._after("recover", self._options.retry_ns, self._recover_next)
            case _:
                self._fail(event.error, f"ledger {self._to_recover[0]} cannot be recovered")

    def _on_list_without_ledger(self, event: ListRead) -> None:
        """Handle a ledger that was deleted during the take-over (LOG-5). If it is unlisted by now, a trim removed it and there is nothing
        to recover any more (LOG-14); start over."""
        if not self._list_is_there(event, self._on_list_without_ledger):
            return
        missing = self._to_recover[0]
        if self._is_data_loss(missing, event.ledgers):
            message = f"log {self.name!r} lists ledger {missing} among its last two, but it does not exist; bk log repair writes it off"
            self._fail(LogDataLossError(message, log=self.name, ledger=missing), "")
        elif missing in event.ledgers[-2:]:
            self._to_recover.popleft()
            self._recover_next()
        else:
            self._on_list(event)

    def _is_data_loss(self, missing: int, ledgers: tuple[int, ...]) -> bool:
        if missing in ledgers[-1:]:
            return True
        return missing in ledgers[-2:] and not self._options.missing_penultimate_is_closed

    def _start_over(self) -> None:
        """Start the next round after a randomised back-off and a look at the election (LOG-4)."""
        if self._rounds >= self._options.rounds_max:
            self._abdicate(f"other leaders won {self._rounds} rounds in a row")
            return
        longest = min(self._options.backoff_ns << (self._rounds - 1), self._options.backoff_max_ns)
        pause = int(longest * (0.5 + self._random() / 2))
        self._after("round", pause, lambda: self._ask(CheckLeadership, self._on_leadership))

    def _on_leadership(self, event: LeadershipChecked) -> None:
        if event.leading:
            self._start_round()
        else:
            self._abdicate("the election was lost")

    def _serve(self) -> None:
        """Begin to serve, because the compare-and-set is definitely OK (LOG-1 (5))."""
        self.state = LeaderState.SERVING
        self._complete(self._open_tokens, self.current)

    # --- a new ledger on the list: the end of a round, and of a roll --------------------------------------------------

    def _create(self) -> None:
        """Create the next ledger (LOG-1 (3), LOG-6 (1)). Its tags tell a janitor its writer if it never gets listed (LOG-9)."""
        tags = {"application": APPLICATION, "log": self.name.encode(), "epoch": b"%d" % self.version}
        self._ask(lambda request: CreateLedger(request, tags), self._on_created)

    def _on_created(self, event: LedgerCreated) -> None:
        match event.outcome:
            case Outcome.OK:
                self.following, self._perhaps_listed = event.ledger_id, False
                if self.state is LeaderState.SERVING:
                    self.rolling = Roll.LISTING
                self._write_list()
            case Outcome.UNKNOWN:  # what may have been made is an orphan (LOG-9)
                self._after("create", self._options.retry_ns, self._create)
            case _:
                self._cannot_list(event.error, "no ledger could be created")

    def _write_list(self) -> None:
        """Write the list with the next ledger (LOG-1 (4), LOG-6 (2)). After an unknown outcome this makes the identical request again
        (META-12)."""
        assert self.following is not None
        ledgers, version = (*self.ledgers, self.following), self.version
        self._ask(lambda request: WriteList(request, ledgers, version), self._on_list_written)

    def _on_list_written(self, event: ListWritten) -> None:
        match event.outcome:
            case Outcome.OK:
                assert self.following is not None
                self._listed((*self.ledgers, self.following), event.version, self._next_seq + 1)
            case Outcome.UNKNOWN:
                self._ambiguous = self._perhaps_listed = True
                self._after("list", self._options.retry_ns, self._write_list)
            case Outcome.CONFLICT:  # META-13: no earlier attempt can apply any more; META-14: look, then decide
                self._ambiguous = False
                self._ask(ReadList, self._on_list_after_conflict)
            case Outcome.NO_SUCH_LEDGER:
                self._discard_following()
                self._list_is_gone(event.outcome, event.error)
            case _ if self._ambiguous:  # refused now, but an earlier attempt may yet list the ledger: it must stay (META-13)
                self._fail(event.error, "the ledger list cannot be changed")
            case _:
                self._discard_following()
                self._cannot_list(event.error, "the ledger list cannot be changed")

    def _cannot_list(self, error: Exception | None, what: str) -> None:
        """Give the roll up, because nothing has changed. A leader without a ledger to write to stops."""
        if self.state is LeaderState.SERVING and self.health is not Health.ENDED:
            self.rolling = Roll.NONE
            failed = [Fail(token, error or BkError(f"log {self.name!r}: {what}")) for token in self._roll_tokens]
            self._roll_tokens.clear()
            self._effects.extend(failed)
        else:
            self._fail(error, what)

    def _on_list_after_conflict(self, event: ListRead) -> None:
        if not self._list_is_there(event, self._on_list_after_conflict):
            return
        if event.version <= self.version:  # a stale answer must not decide whether our ledger is listed (META-11)
            self._after("list", self._options.retry_ns, lambda: self._ask(ReadList, self._on_list_after_conflict))
        elif self._is_ours(event.ledgers):
            self._listed(event.ledgers, event.version, event.next_seq)
        elif self.state is LeaderState.SERVING and self._is_behind_nobody(event):  # only a prefix went (LOG-11): roll on
            self._know(event)
            if self._was_condemned(event):
                self._following_is_gone()
            else:
                self._check_following()
        else:
            if self._is_never_listed(event.ledgers):
                self._discard_following()
            self.following = None
            if self.state is LeaderState.SERVING:
                self._abdicate("another leader has put a ledger on the list")
            else:
                self._start_over()

    def _know(self, event: ListRead) -> None:
        self.ledgers, self.version, self._next_seq = event.ledgers, event.version, event.next_seq

    def _is_behind_nobody(self, event: ListRead) -> bool:
        """Return True if nobody has listed a ledger behind ours, which ends the list, or was trimmed once we had closed it."""
        return event.ledgers[-1:] == (self.current,) or (self.health is Health.ENDED and event.next_seq == self._next_seq)

    def _is_never_listed(self, ledgers: tuple[int, ...]) -> bool:
        """Return True if our ledger is certainly not listed. An attempt whose answer was lost may have listed it, with others behind it,
        and those that are in the tail of the list now may have pushed it into the history since. It stays then, and a janitor, who looks
        there, finds it by its intent (LOG-9)."""
        return self.following not in ledgers and not self._perhaps_listed

    def _was_condemned(self, event: ListRead) -> bool:
        return self.following in event.condemned

    def _check_following(self) -> None:
        """Check that the following ledger exists. Condemning changes the list, so a ledger that exists after this list was read stays until
        the compare-and-set with it (LOG-18).

        The first attempt needs no check, because its list was read before the ledger was made.
        """
        assert self.following is not None
        ledger_id = self.following
        self._ask(lambda request: CheckLedger(request, ledger_id), self._on_following_checked)

    def _on_following_checked(self, event: LedgerChecked) -> None:
        match event.outcome:
            case Outcome.OK:
                self._write_list()
            case Outcome.NO_SUCH_LEDGER:
                self._following_is_gone()
            case Outcome.UNKNOWN:
                self._after("list", self._options.retry_ns, self._check_following)
            case _:
                self._discard_following()
                self._cannot_list(event.error, "the next ledger cannot be looked at")

    def _following_is_gone(self) -> None:
        """Make another ledger. A janitor took this one before it was listed, as it takes any that nothing lists; nobody wrote to it
        (LOG-9)."""
        self._discard_following()
        self.rolling = Roll.CREATING
        self._create()

    def _is_ours(self, ledgers: tuple[int, ...]) -> bool:
        """Return True if our ledger is the last element: then an attempt of unknown outcome was applied (LOG-3)."""
        return ledgers[-1:] == (self.following,)

    def _listed(self, ledgers: tuple[int, ...], version: int, next_seq: int) -> None:
        self.ledgers, self.version, self._next_seq, self._ambiguous = ledgers, version, next_seq, False
        self._unclosed.add(ledgers[-1])
        if self.state is LeaderState.SERVING:
            self.rolling = Roll.DRAINING
        else:
            self._switch()
            self._serve()

    def _discard_following(self) -> None:
        """Delete the following ledger as far as possible. Nobody waits for the answer, and a ledger that stays is an orphan (LOG-9). It was
        never listed, so nobody wrote to it (LOG-12)."""
        assert self.following is not None
        self._effects.append(DeleteLedger(-1, self.following))
        self.following = None

    def _list_is_there(self, event: ListRead, again: Callable[[ListRead], None]) -> bool:
        if event.outcome is Outcome.OK:
            return True
        if event.outcome is Outcome.UNKNOWN:
            self._after("list", self._options.retry_ns, lambda: self._ask(ReadList, again))
        else:
            self._list_is_gone(event.outcome, event.error)
        return False

    def _list_is_gone(self, outcome: Outcome, error: Exception | None) -> None:
        if outcome is Outcome.NO_SUCH_LEDGER and not isinstance(error, NoSuchLogError):
            error = NoSuchLogError(f"log {self.name!r} does not exist", log=self.name)
        self._fail(error, "the ledger list cannot be used")

    # --- serving ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.state is not LeaderState.SERVING:
            return
        if self.rolling is Roll.DRAINING and self._old_is_settled():
            self._switch()
            self._complete(self._roll_tokens, self.current)
        while self._queue and self._admits():
            self._send(self._queue.popleft())
        if self.health is Health.ENDED and self._queue and self.rolling is Roll.NONE:
            self._start_roll()
        drained = not self._outstanding and self.health is Health.HEALTHY
        if drained and (self.rolling is Roll.DRAINING or self._may_finish()):
            self._close_current()
        if self.health is Health.ENDED and self._may_finish():
            self.state = LeaderState.CLOSED
            self._complete(self._close_tokens, None)

    def _admits(self) -> bool:
        """Return True if entries go to the current ledger, which they do until the following one is listed; then they wait until it is
        closed (LOG-6)."""
        return self.health is Health.HEALTHY and self.rolling is not Roll.DRAINING

    def _may_finish(self) -> bool:
        return bool(self._close_tokens) and not self._queue and self.rolling is Roll.NONE

    def _old_is_settled(self) -> bool:
        """Return True if the current ledger is CLOSED and every entry sent to it has found its place (LOG-6 (3), LOG-8)."""
        return self.health is Health.ENDED

    def _switch(self) -> None:
        """Go on with the following ledger, which is listed (LOG-6 (4))."""
        self.current, self.following = self.following, None
        self.health, self.rolling = Health.HEALTHY, Roll.NONE
        self._next_entry_id = 0

    def _send(self, run: PendingAppend) -> None:
        assert self.current is not None
        ledger_id, first = self.current, self._next_entry_id
        run.place(first)
        self._next_entry_id = run.last_entry_id + 1
        self._outstanding.append(run)
        self._ask(lambda request: AppendTo(request, ledger_id, first, run.payloads), lambda event: self._on_appended(ledger_id, run, event))

    def _on_appended(self, ledger_id: int, run: PendingAppend, event: Appended) -> None:
        if ledger_id != self.current:
            return  # its end has told about this entry already, and the failure of an ended ledger is none of this one's (SM-3)
        match event.outcome:
            case Outcome.OK:
                run.acked = True
                while self._outstanding and self._outstanding[0].acked:
                    self._finish_run(self._outstanding.popleft())
            case _ if self.health is not Health.HEALTHY:
                return  # our own recovery fences our own writer, and its result tells about this entry
            case Outcome.CONFLICT:
                self._abdicate(f"ledger {self.current} was fenced or closed by another leader")
            case _:  # LOG-8: its end must be known before it is decided what to write again
                self._recover_current()

    def _finish_run(self, run: PendingAppend) -> None:
        assert self.current is not None
        spans = (*run.spans, Span(self.current, run.first_entry_id, run.last_entry_id))
        self._effects.append(Complete(run.token, spans))

    # --- rolling ---------------------------------------------------------------------------------------------------

    def _may_roll(self) -> bool:
        """Return True if a roll may begin. A take-over fences two ledgers, so no third may be writable (LOG-7)."""
        return self.rolling is Roll.NONE and self._unclosed <= {self.current}

    def _start_roll(self) -> None:
        self.rolling = Roll.CREATING
        self._create()

    def _close_current(self) -> None:
        assert self.current is not None
        ledger_id = self.current
        self.health = Health.CLOSING
        self._ask(lambda request: CloseLedger(request, ledger_id), self._on_closed)

    def _on_closed(self, event: LedgerEnded) -> None:
        match event.outcome:
            case Outcome.OK:
                self._ended(event.last_entry_id)
            case Outcome.UNKNOWN:
                self._after("close", self._options.retry_ns, self._close_current)
            case Outcome.CONFLICT:
                self._abdicate(f"ledger {self.current} was fenced or closed by another leader")
            case Outcome.NO_SUCH_LEDGER:
                self._lost_current()
            case _:
                self._recover_current()

    def _recover_current(self) -> None:
        assert self.current is not None
        ledger_id = self.current
        self.health = Health.RECOVERING
        self._ask(lambda request: RecoverLedger(request, ledger_id), self._on_current_recovered)

    def _on_current_recovered(self, event: LedgerEnded) -> None:
        match event.outcome:
            case Outcome.OK:
                self._ended(event.last_entry_id)
            case Outcome.UNKNOWN:
                self._after("recover", self._options.retry_ns, self._recover_current)
            case Outcome.NO_SUCH_LEDGER:
                self._lost_current()
            case _:
                self._fail(event.error, f"ledger {self.current} cannot be recovered")

    def _lost_current(self) -> None:
        """Stop, because the ledger in use was deleted, which must not happen (LOG-5, LOG-12)."""
        message = f"ledger {self.current} of log {self.name!r} was deleted while it was written"
        self._fail(LogDataLossError(message, log=self.name, ledger=self.current), "")

    def _ended(self, last_entry_id: int) -> None:
        """Take the end of the current ledger, which is CLOSED. Entries above its end are not in the log and are written first into the next
        ledger, in order."""
        assert self.current is not None
        self.health = Health.ENDED
        self._unclosed.discard(self.current)
        again: list[PendingAppend] = []
        while self._outstanding:
            run = self._outstanding.popleft()
            if run.last_entry_id <= last_entry_id:
                self._finish_run(run)
            else:
                again.append(self._rest_of(run, last_entry_id))
        self._queue.extendleft(reversed(again))

    def _rest_of(self, run: PendingAppend, last_entry_id: int) -> PendingAppend:
        assert self.current is not None
        kept = max(0, last_entry_id - run.first_entry_id + 1)
        if not kept:
            return PendingAppend(run.token, run.payloads, run.spans)
        return PendingAppend(run.token, run.payloads[kept:], (*run.spans, Span(self.current, run.first_entry_id, last_entry_id)))

    # --- the end ---------------------------------------------------------------------------------------------------

    def _abdicate(self, why: str) -> None:
        """Stop writing everywhere, because another leader has the log (LOG-20)."""
        self._stop(LeaderState.ABDICATED, LogTakenOverError(f"log {self.name!r}: {why}", log=self.name))

    def _fail(self, error: Exception | None, what: str) -> None:
        self._stop(LeaderState.FAILED, error or BkError(f"log {self.name!r}: {what}"))

    def _stop(self, state: LeaderState, error: Exception) -> None:
        """Fail every call, in order. A ledger that is being created meanwhile is deleted when it is there, because nothing will list it."""
        self.state, self.error = state, error
        self._timers.clear()
        creating = [request for request, then in self._waiting.items() if then == self._on_created]
        self._waiting = dict.fromkeys(creating, self._delete_created)
        runs = [run.token for run in (*self._outstanding, *self._queue)]
        for token in (*self._open_tokens, *runs, *self._roll_tokens, *self._close_tokens):
            self._effects.append(Fail(token, error))
        for pending in (self._outstanding, self._queue, self._open_tokens, self._roll_tokens, self._close_tokens):
            pending.clear()

    def _delete_created(self, event: LedgerCreated) -> None:
        if event.outcome is Outcome.OK:
            self.following = event.ledger_id
            self._discard_following()

    def _complete(self, tokens: list[Any], value: Any) -> None:
        self._effects.extend(Complete(token, value) for token in tokens)
        tokens.clear()
