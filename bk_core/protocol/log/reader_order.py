"""The order in which a plain reader goes through a log (replication-protocol.md 10.4). It fences nothing and writes nothing (LOG-17).

``LogReader`` (client/log/reader.py) drives it in production, ``LogTail`` (tests/simulation/logs.py) in the simulator.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from bk_core.errors import BkError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log import reading
from bk_core.protocol.log.effects import AwaitLedger, AwaitList, Deliver, Delivered, LedgerOpened, LogEffect, OpenLedger
from bk_core.protocol.log.history import Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.list_machine import ListMachine
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView


class OnTrimmed(Enum):
    """The reaction when segments were trimmed that the reader had not read: go on with the first that is left, or fail (LOG-13)."""

    JUMP = auto()
    FAIL = auto()


class LogReaderOrder(ListMachine):
    """Machine: names the entries that come next, for ever, as ``Deliver`` effects with consecutive ranges in the order of the log (LOG-21).

    ``position`` is the next entry to deliver (LOG-10); None is the start of the log. One request is outstanding at a time. The machine
    rests in AwaitLedger, AwaitList, and after a Fail: LogDataLossError, NoSuchLogError, or a refusal of its world. ``look`` makes it decide
    again.
    """

    def __init__(
        self,
        name: str = "",
        *,
        position: Position | None = None,
        log_id: str = "",
        on_trimmed: OnTrimmed = OnTrimmed.FAIL,
        retry_ns: int = 200_000_000,
    ) -> None:
        super().__init__(name, retry_ns)
        self.position = position
        self.log_id = log_id
        self._on_trimmed = on_trimmed
        self._rows: tuple[int, int] | None = None  # a live segment, or the end of the log, and the rows of the log before it
        self._repairs = 0  # of the list in which these rows were counted
        self._told: tuple[int, int] | None = None  # a segment, and its last entry that was said to be there and was not

    # --- calls of the world ---------------------------------------------------------------------------------------------

    def start(self, token: Any, now_ns: int) -> list[LogEffect]:
        self._token = token
        return self.look(now_ns)

    def look(self, now_ns: int, *, list_changed: bool = True) -> list[LogEffect]:
        """Decide again what comes at the position. The outstanding request is forgotten (SM-3), also where an interrupt of the thread that
        drives this machine has left it behind in a step that did not end; the list is read again if it may have changed."""
        self._effects = []
        self._waiting.clear()
        self._timers.clear()
        if list_changed or self.listed is None:
            self._read_again()
        else:
            self._go_on()
        return self._finish_step()

    def passed(self, entry_id: int) -> None:
        """Move the position behind ``entry_id``: the entries of the current range up to it have been handed on."""
        assert self.position is not None
        self.position = Position(self.position.seq, entry_id + 1)

    def go_to(self, position: Position) -> None:
        """Go on at ``position`` at the next ``look``."""
        self.position, self._rows = position, None

    # --- the position ---------------------------------------------------------------------------------------------------

    def _read_again(self) -> None:
        self._read_list(self._adopt)

    def _adopt(self) -> None:
        """Take a new list. A log that was deleted and created again is another log (LOG-13)."""
        assert self.listed is not None
        if self.log_id not in ("", self.listed.log_id):
            self._fail(reading.recreated_loss(self.name, self.position))
            return
        self.log_id = self.listed.log_id
        if self._repairs != self.listed.repairs:  # rows were written off, and counts from before say nothing any more (LOG-13)
            self._rows, self._repairs = None, self.listed.repairs
        self._go_on()

    def _go_on(self) -> None:
        self._find(self._place, self._stand_at, self._adopt)

    def _place(self, listed: LedgerList, load: Load) -> tuple[Position, Segment | None, int | None]:
        """Return the position in the current list; the segment there, None at the end of the log; and the rows before it if they are
        needed."""
        view = LogView(listed, load)
        position = self._place_in(view)
        if position.seq >= view.next_seq:
            return position, None, None if listed.live_segments else listed.total_rows
        segment = view.segment(position.seq)
        return position, segment, self._rows_before(view, segment)

    def _place_in(self, view: LogView) -> Position:
        if self.position is None:
            return view.first_position
        if not reading.is_trimmed(view.listed, self.position):
            return view.normal(self.position)
        if self._on_trimmed is OnTrimmed.JUMP or self._has_read_all_before(view.listed, self.position):
            return view.first_position
        raise reading.trimmed_loss(self.name, view.listed, self.position)

    def _has_read_all_before(self, listed: LedgerList, position: Position) -> bool:
        """Return True if a live segment was read to its end. It may be closed and trimmed before this reader looks again, and then nothing
        is lost (LOG-13)."""
        read = self._rows[1] + position.entry if self._rows is not None and self._rows[0] == position.seq else None
        return reading.rows_lost(listed.trimmed_rows, read) == 0

    def _rows_before(self, view: LogView, segment: Segment) -> int | None:
        """Return the rows before a live segment. A live one before it has no rows in the list yet, so only a reader that has read it knows
        them."""
        if not segment.live or (self._rows is not None and self._rows[0] == segment.seq):
            return None
        before = any(one.seq < segment.seq for one in view.live_segments)
        return None if before else view.counts_before(segment.first_position())[0]

    def _stand_at(self, place: tuple[Position, Segment | None, int | None]) -> None:
        self.position, segment, rows = place
        if segment is not None and not segment.live:
            self._rows = None
        elif rows is not None:
            self._rows = (self.position.seq, rows)
        if segment is None:
            self._await_list()
        else:
            self._open(segment)

    def _await_list(self) -> None:
        """Wait for the list: everything that is listed was delivered, and the last ledger is CLOSED (LOG-16)."""
        version = self.version
        self._ask(lambda request: AwaitList(request, version), lambda _changed: self._read_again())

    # --- one segment ----------------------------------------------------------------------------------------------------

    def _open(self, segment: Segment) -> None:
        assert self.position is not None
        wanted = self.position.entry if segment.live else None
        self._ask(lambda request: OpenLedger(request, segment.ledger_id, wanted), lambda event: self._on_opened(event, segment))

    def _on_opened(self, event: LedgerOpened, segment: Segment) -> None:
        assert self.position is not None
        match event.outcome:
            case Outcome.OK:
                first = self.position.entry
                last = reading.readable_end(segment, closed=event.closed, last_add_confirmed=event.last_entry_id)
                if first <= last:
                    self._ask(
                        lambda request: Deliver(request, segment, first, last),
                        lambda done: self._on_delivered(done, event, segment, last),
                    )
                else:
                    self._read_up_to(event, segment, last)
            case Outcome.NO_SUCH_LEDGER:
                self._read_list(lambda: self._without_ledger(segment))
            case Outcome.UNKNOWN:
                self._after("open", self._retry_ns, self._go_on)
            case _:
                self._fail(event.error or BkError(f"ledger {segment.ledger_id} cannot be opened"))

    def _on_delivered(self, done: Delivered, event: LedgerOpened, segment: Segment, last: int) -> None:
        if done.outcome is Outcome.OK:
            self.passed(last)
            self._read_up_to(event, segment, last)
        else:  # it was trimmed, or closed below what was asked for: the list and the ledger tell which
            self._told = (segment.seq, last)
            self.passed(done.next_entry_id - 1)
            self._read_again()

    def _read_up_to(self, event: LedgerOpened, segment: Segment, last: int) -> None:
        """Go on after everything of the segment that may be read now was delivered."""
        assert self.position is not None
        acknowledged = self._last_acknowledged(segment)
        if event.closed and max(event.last_entry_id, self.position.entry - 1) < acknowledged:
            self._fail(reading.cut_off_loss(self.name, segment, self.position.entry, acknowledged, event.last_entry_id))
        elif reading.may_move_on(segment, closed=event.closed):
            self._pass(segment, last)
        else:
            self._await_ledger(segment)

    def _last_acknowledged(self, segment: Segment) -> int:
        """Return the last entry that the list, or the ledger's earlier answer, tells to be acknowledged."""
        told = self._told[1] if self._told is not None and self._told[0] == segment.seq else -1
        return max(told, -1 if segment.last_entry_id is None else segment.last_entry_id)

    def _pass(self, segment: Segment, last: int) -> None:
        """Go on behind a segment, whatever the list tells later about its end."""
        if self._rows is not None and self._rows[0] == segment.seq:
            self._rows = (segment.seq + 1, self._rows[1] + last + 1)
        self.position = Position(segment.seq + 1)
        self._go_on()

    def _await_ledger(self, segment: Segment) -> None:
        """Wait for a change of the ledger: more entries (LC-5), or its close if it is not the last one."""
        assert self.position is not None
        last = self.position.entry - 1
        self._ask(lambda request: AwaitLedger(request, segment.ledger_id, last), lambda _changed: self._open(segment))

    def _without_ledger(self, segment: Segment) -> None:
        """Handle a ledger that does not exist although the list, read again, still names it. No trim does it in that order (LOG-11,
        LOG-13)."""
        assert self.listed is not None
        if self.log_id == self.listed.log_id and not reading.is_trimmed(self.listed, Position(segment.seq)):
            self._fail(reading.missing_loss(self.name, segment))
        else:
            self._adopt()
