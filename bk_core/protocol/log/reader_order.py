"""In which order a plain reader goes through a log (replication-protocol.md 10.4). It fences nobody and writes nothing (LOG-17)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from bk_core.errors import BkError, LogDataLossError, NoSuchLogError
from bk_core.protocol.effects import Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import AwaitLedger, AwaitList, Changed, Deliver, LedgerOpened, ListRead, LogEffect, OpenLedger, ReadList
from bk_core.protocol.log.machine import LogMachine


class OnTruncated(Enum):
    """LOG-13: what to do when the reader's own ledger has been truncated: go on with the first that is left, or fail."""

    JUMP = auto()
    FAIL = auto()


class LogReaderOrder(LogMachine):
    """Tells which entries come next, for ever: ``Deliver`` effects name consecutive ranges in the order of the log (LOG-8).

    ``ledger_id`` and ``entry_id`` are the next entry to deliver; ``ledger_id`` None is the start of the log. A position means something
    only together with its ledger (LOG-10). Ends only by ``Fail``: LogDataLossError, NoSuchLogError, or what the store refused with.
    """

    def __init__(
        self, *, ledger_id: int | None = None, entry_id: int = 0, on_truncated: OnTruncated = OnTruncated.FAIL, retry_ns: int = 200_000_000
    ) -> None:
        super().__init__()
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self._on_truncated = on_truncated
        self._retry_ns = retry_ns
        self._token: Any = None
        self._ledgers: tuple[int, ...] = ()
        self._version = -1
        self._at_end = False  # everything up to the end of a CLOSED ledger was delivered

    def start(self, token: Any, now_ns: int) -> list[LogEffect]:
        self._token = token
        self._read_list()
        return self._finish_step()

    def _read_list(self) -> None:
        self._ask(ReadList, self._on_list)

    def _on_list(self, event: ListRead) -> None:
        match event.outcome:
            case Outcome.OK if event.version < self._version:  # a stale answer (META-11)
                self._after("list", self._retry_ns, self._read_list)
            case Outcome.OK:
                before, self._ledgers, self._version = self._ledgers, event.ledgers, event.version
                self._find_place(before)
            case Outcome.UNKNOWN:
                self._after("list", self._retry_ns, self._read_list)
            case Outcome.NO_SUCH_LEDGER:
                self._fail(NoSuchLogError("the log does not exist"))
            case _:
                self._fail(event.error or BkError("the ledger list cannot be used"))

    def _find_place(self, before: tuple[int, ...]) -> None:
        """``before`` is the list as it was known so far."""
        if self.ledger_id is None:
            self._go_to_first()
        elif self.ledger_id not in self._ledgers:  # lists lose prefixes only (LOG-I5): what is left comes after this position
            self._truncated(before)
        elif self._at_end:
            self._go_to_next()
        else:
            self._open()

    def _go_to_first(self) -> None:
        if self._ledgers:
            self._go_to(self._ledgers[0])
        else:
            self._await_list()

    def _go_to_next(self) -> None:
        """LOG-15, LOG-16: the successor in the list, or wait for one."""
        assert self.ledger_id is not None
        index = self._ledgers.index(self.ledger_id) + 1
        if index < len(self._ledgers):
            self._go_to(self._ledgers[index])
        else:
            self._await_list()

    def _go_to(self, ledger_id: int) -> None:
        self.ledger_id, self.entry_id, self._at_end = ledger_id, 0, False
        self._open()

    def _truncated(self, before: tuple[int, ...]) -> None:
        """LOG-13. Nothing is lost if all of the ledger was delivered and the one that followed it is now the first."""
        following = before[before.index(self.ledger_id) + 1 :][:1] if self.ledger_id in before else ()
        if self._on_truncated is OnTruncated.JUMP or (self._at_end and following and following == self._ledgers[:1]):
            self._go_to_first()
        else:
            self._fail(LogDataLossError(f"ledger {self.ledger_id} was truncated behind this reader", ledger=self.ledger_id))

    def _open(self) -> None:
        ledger_id = self.ledger_id
        assert ledger_id is not None
        self._ask(lambda request: OpenLedger(request, ledger_id), self._on_opened)

    def _on_opened(self, event: LedgerOpened) -> None:
        match event.outcome:
            case Outcome.OK:
                self._deliver_up_to(event.last_entry_id)
                if self._may_move_on(event.closed):
                    self._at_end = True
                    self._read_list()
                else:
                    self._await_ledger(event.last_entry_id)
            case Outcome.NO_SUCH_LEDGER:
                self._ask(ReadList, self._on_list_without_ledger)
            case Outcome.UNKNOWN:
                self._after("open", self._retry_ns, self._open)
            case _:
                self._fail(event.error or BkError(f"ledger {self.ledger_id} cannot be opened"))

    def _may_move_on(self, closed: bool) -> bool:
        """LOG-15: only CLOSED says where a ledger ends; that another one is listed behind it says nothing."""
        return closed

    def _deliver_up_to(self, last_entry_id: int) -> None:
        if last_entry_id >= self.entry_id:
            assert self.ledger_id is not None
            self._effects.append(Deliver(self.ledger_id, self.entry_id, last_entry_id))
            self.entry_id = last_entry_id + 1

    def _await_ledger(self, last_entry_id: int) -> None:
        """Tailing (LC-5), and waiting for a ledger that is not the last to be CLOSED: either way look again when it has changed."""
        ledger_id = self.ledger_id
        assert ledger_id is not None
        self._ask(lambda request: AwaitLedger(request, ledger_id, last_entry_id), self._on_ledger_changed)

    def _on_ledger_changed(self, event: Changed) -> None:
        self._open()

    def _await_list(self) -> None:
        """LOG-16."""
        version = self._version
        self._ask(lambda request: AwaitList(request, version), self._on_list_changed)

    def _on_list_changed(self, event: Changed) -> None:
        self._read_list()

    def _on_list_without_ledger(self, event: ListRead) -> None:
        """LOG-13: NoSuchLedger, so look at the list again. Still listed: nobody truncates that way round (LOG-11)."""
        if event.outcome is Outcome.OK and event.version >= self._version and self.ledger_id in event.ledgers:
            self._fail(LogDataLossError(f"ledger {self.ledger_id} is listed but does not exist", ledger=self.ledger_id))
        else:
            self._on_list(event)

    def _fail(self, error: Exception) -> None:
        self._effects.append(Fail(self._token, error))
