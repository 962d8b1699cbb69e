"""The states of a file store's owner, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FileState(Enum):
    REPLAYING = auto()
    STARTING = auto()  # a new store: its first base is not yet acknowledged
    SERVING = auto()
    CLOSING = auto()  # nothing more is taken
    CLOSED = auto()
    FAILED = auto()


class Compaction(Enum):
    NONE = auto()
    ROLLING = auto()
    WRITING = auto()  # a base is appended and not yet acknowledged
    TRIMMING = auto()


@dataclass(frozen=True, slots=True)
class FileLimits:
    """A base is due behind ``compact_bytes`` of records, or ``compact_factor`` times the bytes of the last base if that is more. It is due,
    too, for who opens the store and finds more than ``segments_max`` segments from the last base on.
    ``part_bytes``: of nodes in one record of a base. ``retry_ns``: the pause before something that failed is asked for again; it doubles
    with each failure in a row, up to ``retry_ns_max``.
    ``drops_at_once``: deletions of data ledgers under way at the same time."""

    compact_bytes: int = 1 << 20
    compact_factor: int = 4
    segments_max: int = 16
    part_bytes: int = 500 << 10
    retry_ns: int = 1_000_000_000
    retry_ns_max: int = 60_000_000_000
    drops_at_once: int = 4
