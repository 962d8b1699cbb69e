"""Events that can happen to a ledger machine. Each is one input step (SM-1): its state effects are complete before any output leaves.

``now_ns`` is monotonic time in nanoseconds, handed in by the world (SM-4). ``request`` numbers are chosen by the machine and are
unique within it (SM-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.wire.messages import Response, Status


class Outcome(Enum):
    """Outcomes of a metadata request (META-12). REFUSED is definite: not applied and never will be."""

    OK = auto()
    CONFLICT = auto()
    NO_SUCH_LEDGER = auto()
    UNKNOWN = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class AddReply:
    """One bookie answered the adds from ``first_entry_id`` to ``first_entry_id + count - 1`` with ``status``.

    ``entries`` is the set of those that it answered, bit i for entry first_entry_id + i; None stands for all. Only an OK comes for a set of
    entries.
    """

    bookie: BookieId
    first_entry_id: int
    count: int
    status: Status
    entries: int | None = None

    def entry_ids(self) -> Iterator[int]:
        """Yield the entries that were answered, in order."""
        for index in range(self.count):
            if self.entries is None or self.entries >> index & 1:
                yield self.first_entry_id + index


@dataclass(frozen=True, slots=True)
class BookieLost:
    """Everything outstanding to this bookie is lost: connection refused, reset or closed. Nothing was necessarily undone."""

    bookie: BookieId
    status: Status = Status.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class ReadReply:
    """The one answer to one SendRead; ``response`` is None when there was none (timeout, lost connection)."""

    request: int
    bookie: BookieId
    status: Status
    response: Response | None = None


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """Answers a ReadLedger. ``moved`` is True if one of the bookies that it named is reached at another address than a moment ago."""

    request: int
    outcome: Outcome
    metadata: LedgerMetadata | None = None
    version: int = -1
    error: Exception | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class LedgerWritten:
    """Answers a WriteLedger."""

    request: int
    outcome: Outcome
    version: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: str


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A watch saw a newer version of the metadata (OP-6)."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """Bookies registered or left; those that ``came`` registered as writable since the last event, perhaps anew. A ledger that waits for a
    replacement then looks again (G-10)."""

    came: frozenset[BookieId] = frozenset()


@dataclass(frozen=True, slots=True)
class BookiesLookedFor:
    """Answers a LookForBookies. The placement knows the bookies that were registered a moment ago, and a BookiesChanged has told of those
    that came. If the outcome is not OK, nobody could look, and the placement knows what it knew."""

    request: int
    outcome: Outcome = Outcome.OK


@dataclass(frozen=True, slots=True)
class ReadsMoving:
    """These requests are not late now: bytes come on their connections, or their turn has not come. All other outstanding requests stand
    still (LINK-1, LINK-2). Requests to the bookies that are ``away`` wait for a connection, which may never be made."""

    requests: frozenset[int]
    away: frozenset[BookieId] = frozenset()


@dataclass(frozen=True, slots=True)
class BytesDrained:
    """Bytes for this bookie that had been waiting to be sent still went on at ``at_ns`` (LINK-1)."""

    bookie: BookieId
    at_ns: int


Event = (
    AddReply
    | BookieLost
    | ReadReply
    | LedgerRead
    | LedgerWritten
    | TimerFired
    | MetadataChanged
    | BookiesChanged
    | BookiesLookedFor
    | ReadsMoving
    | BytesDrained
)
