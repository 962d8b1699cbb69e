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
    """Adds from ``first_entry_id`` to ``first_entry_id + count - 1`` were answered with ``status`` by one bookie.

    ``entries``: which of them, bit i for entry first_entry_id + i; None: all. Only an OK is told of a set of entries.
    """

    bookie: BookieId
    first_entry_id: int
    count: int
    status: Status
    entries: int | None = None

    def entry_ids(self) -> Iterator[int]:
        """Those that were answered, in order."""
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
    """Answer to ReadLedger. ``moved``: one of the bookies that it named is reached at another address than a moment ago."""

    request: int
    outcome: Outcome
    metadata: LedgerMetadata | None = None
    version: int = -1
    error: Exception | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class LedgerWritten:
    """Answer to WriteLedger."""

    request: int
    outcome: Outcome
    version: int = -1
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: str


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A newer version was seen by a watch (OP-6)."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """Bookies registered or left. A ledger that waits for a replacement looks again (G-10)."""


@dataclass(frozen=True, slots=True)
class ReadsMoving:
    """As of now these requests are not late: bytes come on their connections, or their turn has not come (LINK-1, LINK-2). Everything else
    that is outstanding stands still."""

    requests: frozenset[int]


@dataclass(frozen=True, slots=True)
class BytesDrained:
    """At ``at_ns`` bytes for this bookie still went on that had been waiting for the way there (LINK-1)."""

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
    | ReadsMoving
    | BytesDrained
)
