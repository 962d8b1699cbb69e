"""Positions in a log: the next entry to read, as (segment sequence number, entry id).

A position is totally ordered and stays valid while ledgers close, because segments never change their sequence number (LOG-10).
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next entry to read: ``entry`` is an entry id in the ledger of segment ``seq``. Entry 0 means the segment's first entry."""

    seq: int
    entry: int = 0

    def __post_init__(self) -> None:
        if self.seq < 0 or self.entry < 0:
            raise InvalidArgumentError(f"a log position needs seq and entry of at least 0, not ({self.seq}, {self.entry})")
