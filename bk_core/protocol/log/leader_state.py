"""The states of a leader of a log (leader.py), its options, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


@dataclass(frozen=True, slots=True)
class LeaderOptions:
    """``rounds_max`` is the number of rounds of one take-over before it gives up. ``missing_penultimate_is_closed`` is LOG-5's explicit
    configuration."""

    rounds_max: int = 8
    backoff_ns: int = 50_000_000
    backoff_max_ns: int = 2_000_000_000
    retry_ns: int = 200_000_000
    missing_penultimate_is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Entries of one ledger, both ends inclusive. Entry ids say nothing without the ledger (LOG-10)."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


class LeaderState(Enum):
    IDLE = auto()
    TAKING_OVER = auto()
    SERVING = auto()
    CLOSED = auto()
    ABDICATED = auto()
    FAILED = auto()


class Health(Enum):
    """The condition of the current ledger; leader.py has the drawing."""

    HEALTHY = auto()
    CLOSING = auto()
    RECOVERING = auto()
    ENDED = auto()


class Roll(Enum):
    NONE = auto()
    CREATING = auto()
    LISTING = auto()
    DRAINING = auto()


@dataclass(slots=True, eq=False)
class PendingAppend:
    """The payloads of one append that are not yet known to be in the log, and the places of those that are in an earlier ledger."""

    token: Any
    payloads: Sequence[Any]
    spans: tuple[Span, ...] = ()
    first_entry_id: int = -1
    acked: bool = False
    last_entry_id: int = field(init=False, default=-1)

    def place(self, first_entry_id: int) -> None:
        self.first_entry_id, self.last_entry_id = first_entry_id, first_entry_id + len(self.payloads) - 1
