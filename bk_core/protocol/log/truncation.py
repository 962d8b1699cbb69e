"""Cutting the front off a log (replication-protocol.md 10.3). It needs no leadership: its compare-and-set only removes a prefix."""

from __future__ import annotations

from typing import Any

from bk_core.errors import BkError, InvalidArgumentError, NoSuchLogError
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import (
    DeleteLedger,
    LedgerDeleted,
    LedgerOpened,
    ListRead,
    ListWritten,
    LogEffect,
    OpenLedger,
    ReadList,
    WriteList,
)
from bk_core.protocol.log.machine import LogMachine


class LogTruncation(LogMachine):
    """Remove every ledger before ``keep_from``: unlist, then delete, oldest first (LOG-11).

    Only CLOSED ledgers go: bookies take entries of a writer whose ledger has no metadata any more (LOG-12). It stops before the first
    ledger that is not CLOSED, never removes the last one, and the last but one only if the last is CLOSED too. A crash between unlisting
    and deleting leaves unlisted ledgers to a janitor. Completes with the ids that are gone, perhaps none.
    """

    def __init__(self, keep_from: int, retry_ns: int = 200_000_000) -> None:
        super().__init__()
        self._keep_from = keep_from
        self._retry_ns = retry_ns
        self._token: Any = None
        self._ledgers: tuple[int, ...] = ()
        self._version = -1
        self._to_check: list[int] = []
        self._closed: list[int] = []  # found CLOSED, in list order; for good, because CLOSED is final
        self._doomed: tuple[int, ...] = ()
        self._to_delete: list[int] = []

    def start(self, token: Any, now_ns: int) -> list[LogEffect]:
        """Fails with InvalidArgumentError if ``keep_from`` is not listed, NoSuchLogError, or what the store refused with."""
        self._token = token
        self._ask(ReadList, self._on_list)
        return self._finish_step()

    def _on_list(self, event: ListRead) -> None:
        if not self._is_there(event.outcome, event.error, lambda: self._ask(ReadList, self._on_list)):
            return
        self._ledgers, self._version = event.ledgers, event.version
        if self._doomed and not set(self._doomed) & set(event.ledgers):
            self._delete(self._doomed)  # unlisted by an attempt of ours of unknown outcome, or by somebody who deletes them as well
        elif self._keep_from not in event.ledgers:
            self._fail(InvalidArgumentError(f"ledger {self._keep_from} is not listed: nothing says where to cut"))
        else:
            self._to_check = list(self._candidates(event.ledgers))
            self._closed = []
            self._check_next()

    def _candidates(self, ledgers: tuple[int, ...]) -> tuple[int, ...]:
        """What must be CLOSED: all before the cut, and the last ledger if the cut reaches the last but one (LOG-11)."""
        count = ledgers.index(self._keep_from)
        return ledgers if count and count == len(ledgers) - 1 else ledgers[:count]

    def _check_next(self) -> None:
        if self._to_check:
            ledger_id = self._to_check[0]
            self._ask(lambda request: OpenLedger(request, ledger_id), self._on_opened)
        else:
            self._unlist(self._removable())

    def _on_opened(self, event: LedgerOpened) -> None:
        """A ledger that is gone already was CLOSED when somebody deleted it (LOG-12)."""
        match event.outcome:
            case Outcome.UNKNOWN:
                self._after("check", self._retry_ns, self._check_next)
            case Outcome.NO_SUCH_LEDGER:
                self._found(closed=True)
            case Outcome.OK:
                self._found(closed=event.closed)
            case _:
                self._fail(event.error or BkError(f"ledger {self._to_check[0]} cannot be looked at"))

    def _found(self, *, closed: bool) -> None:
        if closed:
            self._closed.append(self._to_check.pop(0))
        else:
            self._to_check.clear()
        self._check_next()

    def _removable(self) -> tuple[int, ...]:
        """LOG-11: the longest prefix of CLOSED ledgers before the cut; without the last but one unless the last is CLOSED."""
        count = min(len(self._closed), self._ledgers.index(self._keep_from))
        if count == len(self._ledgers) - 1 and len(self._closed) < len(self._ledgers):
            count = max(0, count - 1)
        return self._ledgers[:count]

    def _unlist(self, doomed: tuple[int, ...]) -> None:
        self._doomed = doomed
        if doomed:
            kept, version = self._ledgers[len(doomed) :], self._version
            self._ask(lambda request: WriteList(request, kept, version), self._on_written)
        else:
            self._effects.append(Complete(self._token, ()))

    def _on_written(self, event: ListWritten) -> None:
        match event.outcome:
            case Outcome.OK:
                self._delete(self._doomed)
            case Outcome.UNKNOWN:  # META-12: the identical request
                self._after("list", self._retry_ns, lambda: self._unlist(self._doomed))
            case Outcome.CONFLICT:  # META-14: decide again on what is stored now
                self._ask(ReadList, self._on_list)
            case _:
                self._is_there(event.outcome, event.error, lambda: None)

    def _delete(self, ledgers: tuple[int, ...]) -> None:
        self._doomed = ledgers
        self._to_delete = list(ledgers)
        self._delete_next()

    def _delete_next(self) -> None:
        if self._to_delete:
            ledger_id = self._to_delete[0]
            self._ask(lambda request: DeleteLedger(request, ledger_id), self._on_deleted)
        else:
            self._effects.append(Complete(self._token, self._doomed))

    def _on_deleted(self, event: LedgerDeleted) -> None:
        match event.outcome:
            case Outcome.OK:
                self._to_delete.pop(0)
                self._delete_next()
            case Outcome.UNKNOWN:
                self._after("delete", self._retry_ns, self._delete_next)
            case _:
                self._fail(event.error or BkError(f"ledger {self._to_delete[0]} is unlisted, but cannot be deleted"))

    def _is_there(self, outcome: Outcome, error: Exception | None, again: Any) -> bool:
        if outcome is Outcome.UNKNOWN:
            self._after("list", self._retry_ns, again)
        elif outcome is Outcome.NO_SUCH_LEDGER:
            self._fail(NoSuchLogError("the log does not exist"))
        elif outcome is not Outcome.OK:
            self._fail(error or BkError("the ledger list cannot be used"))
        return outcome is Outcome.OK

    def _fail(self, error: Exception) -> None:
        self._effects.append(Fail(self._token, error))
