"""Effects that the machines of a log ask of their world, and events that can happen to them (replication-protocol.md section 10).

These stand one level above the effects of a ledger: creating, recovering, closing a ledger and appending to it are whole operations
here, each run by a ledger machine of its own. Every request has a number of its own and gets exactly one answer with that number (SM-3),
possibly after the machine has lost interest. ``SetTimer``, ``Complete`` and ``Fail`` are the ones all machines use.

What the outcomes of an answer mean (META-12):

=================  ==============================================================================================================
OK                 done
CONFLICT           the list: another version is stored; a ledger: somebody else fenced or closed it
NO_SUCH_LEDGER     the list, or the ledger, does not exist
UNKNOWN            the list: may be applied now, later or never; recovering: not decidable now; closing, creating: not known to be done;
                   appending: the ledger failed, and nobody knows which of the entries are in it
REFUSED            definitely not done, and asking again would not help
=================  ==============================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.history import Chunk
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import HistoryRef, Segment

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadList:
    """Read the newest list there is: with a store whose reads may lag behind, synchronise first. Answered by ListRead."""

    request: int


@dataclass(frozen=True, slots=True)
class WriteList:
    """Compare-and-set of the whole list against ``version``. Answered by ListWritten."""

    request: int
    ledgers: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class ChangeList:
    """Compare-and-set of the whole list against ``version``. Answered by ListWritten."""

    request: int
    listed: LedgerList
    version: int


@dataclass(frozen=True, slots=True)
class LookAtLedger:
    """Read a ledger's metadata to see if it is CLOSED. Answered by LedgerOpened."""

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ForgetIntent:
    """Forget the intent of this ledger, so that no janitor cleans up after it. This is not answered: the next janitor finds an intent that
    stays."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """Read one chunk of the history of the log. Answered by ChunkLoaded."""

    request: int
    ref: HistoryRef


@dataclass(frozen=True, slots=True)
class CheckLeadership:
    """Ask the election, if there is one, if this process still leads. Answered by LeadershipChecked."""

    request: int


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Create an OPEN ledger that no list names yet, with ``tags`` as custom metadata (LOG-9). Answered by LedgerCreated."""

    request: int
    tags: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Open a ledger with recovery: fence, recover, close. Answered by LedgerEnded."""

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close a ledger as its writer. Answered by LedgerEnded."""

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Delete a ledger's metadata; an absent one is a success. Answered by LedgerDeleted, which nobody waits for if ``request``
    is negative."""

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class AppendTo:
    """Append ``payloads`` as entries ``first_entry_id`` and following, as the ledger's writer. Answered by Appended."""

    request: int
    ledger_id: int
    first_entry_id: int
    payloads: Sequence[Any]


@dataclass(frozen=True, slots=True)
class CheckLedger:
    """Look if the ledger still exists, after a list was read and before it is written over (LOG-18). Answered by LedgerChecked."""

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """Open a ledger for reading without recovery, because a plain reader never fences (LOG-17, OP-5). Answered by LedgerOpened.

    ``wanted`` is the entry to be read next if only the LAC can tell how far the ledger may be read. It is None if the list tells it, so
    that no bookie has to be asked.
    """

    request: int
    ledger_id: int
    wanted: int | None = None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Read the entries ``first_entry_id .. last_entry_id`` (inclusive) of ``segment``, which are next in the log, and hand them on in this
    order.

    Answered by Delivered.
    """

    request: int
    segment: Segment
    first_entry_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class AwaitLedger:
    """Wait until the ledger is CLOSED or gone, or its LAC is above ``last_entry_id`` (LC-5: watch and long poll). Answered by Changed."""

    request: int
    ledger_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class AwaitList:
    """Wait until the list has another version than ``version`` (LOG-16). Answered by Changed."""

    request: int
    version: int


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListRead:
    """Answers ReadList. ``ledgers``, ``condemned``, ``listed``, ``next_seq`` and ``version`` were read together (META-11). ``ledgers`` are
    those of the tail of ``listed``.

    A janitor is about to delete the ``condemned`` ledgers. ``next_seq`` is the number of the ledger that is listed next, which no trim
    changes. A leader needs no more than these; readers and trimmers need the list.
    """

    request: int
    outcome: Outcome
    ledgers: tuple[int, ...] = ()
    version: int = -1
    error: Exception | None = None
    condemned: tuple[int, ...] = ()
    listed: LedgerList | None = None
    next_seq: int = -1


@dataclass(frozen=True, slots=True)
class ChunkLoaded:
    """Answers LoadChunk. NO_SUCH_LEDGER: the history ledger does not exist (any more)."""

    request: int
    outcome: Outcome
    chunk: Chunk = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ListWritten:
    request: int
    outcome: Outcome
    version: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LeadershipChecked:
    request: int
    leading: bool


@dataclass(frozen=True, slots=True)
class LedgerCreated:
    request: int
    outcome: Outcome
    ledger_id: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LedgerEnded:
    """Answers RecoverLedger and CloseLedger. OK: the ledger is CLOSED at ``last_entry_id`` (-1: empty)."""

    request: int
    outcome: Outcome
    last_entry_id: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LedgerDeleted:
    request: int
    outcome: Outcome
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LedgerChecked:
    """Answers CheckLedger. OK: it exists. NO_SUCH_LEDGER: it does not."""

    request: int
    outcome: Outcome
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """Answers AppendTo. OK: all entries of the request are acknowledged."""

    request: int
    outcome: Outcome
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LedgerOpened:
    """Answers OpenLedger and LookAtLedger. OK: ``last_entry_id`` is the end if ``closed``, else the LAC, floored as every
    reader floors it."""

    request: int
    outcome: Outcome
    closed: bool = False
    last_entry_id: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Answers Deliver. OK: all entries were handed on. CONFLICT: those from ``next_entry_id`` on are not there, so the ledger
    has changed."""

    request: int
    outcome: Outcome
    next_entry_id: int = -1


@dataclass(frozen=True, slots=True)
class Changed:
    request: int


LogEffect = (
    ReadList
    | WriteList
    | ChangeList
    | LoadChunk
    | LookAtLedger
    | ForgetIntent
    | CheckLeadership
    | CreateLedger
    | RecoverLedger
    | CloseLedger
    | DeleteLedger
    | AppendTo
    | CheckLedger
    | OpenLedger
    | Deliver
    | AwaitLedger
    | AwaitList
    | SetTimer
    | Complete
    | Fail
)
LogAnswer = (
    ListRead
    | ListWritten
    | ChunkLoaded
    | LeadershipChecked
    | LedgerCreated
    | LedgerEnded
    | LedgerDeleted
    | LedgerChecked
    | Appended
    | LedgerOpened
    | Delivered
    | Changed
)
LogEvent = LogAnswer | TimerFired
