"""Deletes what a log has put aside, in an order in which a crash does no harm. Trimmers and janitors share this. Pure.

The list always comes first: a ledger is deleted only after the list has condemned it, so that no commit can name it any more (LOG-11), and
is closed before it is deleted (LOG-12). It is taken off the list of condemned ledgers once it is gone, and its intent is forgotten then. A
reference of dropped history is replaced by its children before its own ledger is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from bk_core.errors import BkError, NoSuchLogError
from bk_core.protocol.effects import Complete
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import (
    ChangeList,
    DeleteLedger,
    ForgetIntent,
    LedgerDeleted,
    LedgerEnded,
    ListWritten,
    LogEffect,
    RecoverLedger,
)
from bk_core.protocol.log.history import Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.list_machine import ListMachine


class ListClearing(ListMachine):
    """``deleted``: ledgers that existed and are gone; ``closed``: listed ones that were closed; ``failed``: ledgers that could not be
    treated, with the reason.

    ``intents``: ledgers that somebody is entitled to write, or that a janitor watches. Completes with ``deleted``.
    """

    def __init__(self, name: str, intents: Collection[int] = (), retry_ns: int = 200_000_000) -> None:
        super().__init__(name, retry_ns)
        self.deleted: list[int] = []
        self.closed: list[int] = []
        self.failed: dict[int, Exception] = {}
        self._intents = dict.fromkeys(intents)
        self._log_id = ""
        self._stopped = False

    def start(self, token: Any, now_ns: int) -> list[LogEffect]:
        """Begin. The work fails with NoSuchLogError, or with the store's refusal."""
        self._token = token
        self._read_list(self._begin)
        return self._finish_step()

    def stop(self) -> None:
        """Begin no further deletion, because the time is over. The next pass finds the rest."""
        self._stopped = True

    def _begin(self) -> None:
        assert self.listed is not None
        self._log_id = self.listed.log_id
        self._clear(self._done)

    def _is_another_log(self) -> bool:
        """Return True if the log was deleted and created again in the meantime, so that this work does not concern it."""
        return self.listed is not None and self.listed.log_id != self._log_id

    def _done(self) -> None:
        self._effects.append(Complete(self._token, tuple(self.deleted)))

    # --- the list -----------------------------------------------------------------------------------------------------

    def _change(
        self, change: Callable[[LedgerList, Load], LedgerList], then: Callable[[], None], failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Change the list until it holds. ``change`` must leave a list unchanged that it has already changed (META-14)."""
        if self._is_another_log():
            self._done()
            return

        def again() -> None:
            self._change(change, then, failed)

        self._find(change, lambda changed: self._write(changed, then, again), again, failed)

    def _write(self, changed: LedgerList, then: Callable[[], None], again: Callable[[], None]) -> None:
        if changed is self.listed:
            then()
            return
        version = self.version

        def written(event: ListWritten) -> None:
            match event.outcome:
                case Outcome.OK:
                    self.listed, self.version = changed, event.version
                    then()
                case Outcome.UNKNOWN:  # META-12: the list shows if it was applied, and the change may be made twice
                    self._after("list", self._retry_ns, lambda: self._read_list(again))
                case Outcome.CONFLICT:
                    self._read_list(again)
                case Outcome.NO_SUCH_LEDGER:
                    self._without_log(event.error or NoSuchLogError(f"log {self.name!r} was deleted", log=self.name))
                case _:
                    self._fail(event.error or BkError(f"the ledger list of log {self.name!r} cannot be changed"))

        self._ask(lambda request: ChangeList(request, changed, version), written)

    # --- ledgers that were put aside -------------------------------------------------------------------------------------

    def _clear(self, then: Callable[[], None]) -> None:
        """Delete released ledgers that nobody owns any more, condemned ones, and what a trim has dropped, one reference at a time."""
        self._change(lambda listed, load: listed.settle(self._intents, load) if listed.released else listed, lambda: self._settled(then))

    def _settled(self, then: Callable[[], None]) -> None:
        self._clear_condemned(lambda: self._sweep(0, then))

    def _clear_condemned(self, then: Callable[[], None]) -> None:
        assert self.listed is not None
        doomed = [ledger_id for ledger_id in self.listed.condemned if ledger_id not in self.failed]
        self._delete(doomed, lambda gone: self._change(lambda listed, load: listed.absolve(gone), then))

    def _sweep(self, index: int, then: Callable[[], None]) -> None:
        """Replace the dropped reference at ``index`` by its children; those before it cannot be read now."""
        assert self.listed is not None
        if index >= len(self.listed.dropped) or self._stopped or self._is_another_log():
            then()
            return
        ref = self.listed.dropped[index]

        def change(listed: LedgerList, load: Load) -> LedgerList:
            return listed.sweep(load, self._intents, listed.dropped.index(ref))[0] if ref in listed.dropped else listed

        def failed(error: Exception) -> None:
            assert self.listed is not None
            if ref in self.listed.dropped:  # otherwise another pass was faster
                self.failed[ref.ledger_id] = error
                self._sweep(self.listed.dropped.index(ref) + 1, then)
            else:
                self._sweep(index, then)

        self._change(change, lambda: self._clear_condemned(lambda: self._sweep(index, then)), failed)

    # --- ledgers --------------------------------------------------------------------------------------------------------

    def _delete(self, ledger_ids: list[int], then: Callable[[list[int]], None]) -> None:
        """Close, delete and forget ledgers, one after the other (LOG-12). ``then`` gets those that are gone now."""
        gone: list[int] = []
        waiting = list(ledger_ids)

        def following() -> None:
            if not waiting or self._stopped:
                then(gone)
                return
            self._close_ledger(waiting[0], close, lambda: done(existed=False))

        def close() -> None:
            self._delete_ledger(waiting[0], lambda: done(existed=True))

        def done(*, existed: bool) -> None:
            ledger_id = waiting.pop(0)
            if ledger_id not in self.failed:
                gone.append(ledger_id)
                if existed:
                    self.deleted.append(ledger_id)
                self._forget(ledger_id)
            following()

        following()

    def _close_ledger(self, ledger_id: int, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Close a ledger. ``otherwise`` is called if it does not exist, or cannot be closed now (then it is in ``failed``)."""

        def ended(event: LedgerEnded) -> None:
            if event.outcome is Outcome.OK:
                then()
                return
            if event.outcome is not Outcome.NO_SUCH_LEDGER:
                self.failed[ledger_id] = event.error or BkError(f"ledger {ledger_id} cannot be closed now")
            otherwise()

        self._ask(lambda request: RecoverLedger(request, ledger_id), ended)

    def _delete_ledger(self, ledger_id: int, then: Callable[[], None]) -> None:
        def deleted(event: LedgerDeleted) -> None:
            if event.outcome is Outcome.UNKNOWN and event.error is None:
                self._after("delete", self._retry_ns, lambda: self._delete_ledger(ledger_id, then))
                return
            if event.outcome not in (Outcome.OK, Outcome.NO_SUCH_LEDGER):
                self.failed[ledger_id] = event.error or BkError(f"ledger {ledger_id} cannot be deleted now")
            then()

        self._ask(lambda request: DeleteLedger(request, ledger_id), deleted)

    def _forget(self, ledger_id: int) -> None:
        if ledger_id in self._intents:
            del self._intents[ledger_id]
            self._effects.append(ForgetIntent(ledger_id))
