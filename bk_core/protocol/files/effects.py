"""Effects that the machine of a file store asks of its world, and events that can happen to it.

They stand one level above those of a log: appending to the store's log, rolling it, trimming it and deleting a data ledger are whole
operations. Every request has a number of its own and gets exactly one answer with that number (SM-3). ``SetTimer``, ``Complete`` and
``Fail`` are the ones all machines use. Of the outcomes ``Outcome.OK`` alone means done; every other one means that it is not known to
be done.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.position import Position

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append one entry per record to the store's log, behind all that was asked for before and in this order, without anything in
    between. Answered by RecordsAppended once all of them are acknowledged."""

    request: int
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RollLog:
    """Go on in a new ledger of the log, so that what is before it can be trimmed. Answered by LogRolled."""

    request: int


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Drop the segments of the log that lie wholly before ``before``. Answered by LogTrimmed."""

    request: int
    before: Position


@dataclass(frozen=True, slots=True)
class DropData:
    """Delete a data ledger, for good; absent is success. Answered by DataDropped."""

    request: int
    ledger_id: int


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsAppended:
    """OK: every record is acknowledged, the first one at ``first_position``. Else nobody knows which of them are in the log."""

    request: int
    outcome: Outcome
    error: Exception | None = None
    first_position: Position | None = None


@dataclass(frozen=True, slots=True)
class LogRolled:
    request: int
    outcome: Outcome
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LogTrimmed:
    """OK: also if there was nothing to drop."""

    request: int
    outcome: Outcome
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class DataDropped:
    request: int
    outcome: Outcome
    error: Exception | None = None


FileEffect = AppendRecords | RollLog | TrimLog | DropData | SetTimer | Complete | Fail
FileEvent = RecordsAppended | LogRolled | LogTrimmed | DataDropped | TimerFired
