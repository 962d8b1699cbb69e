"""Positions in a log: the next row to read, as (segment sequence number, entry id, row of that entry).

A position is totally ordered and stays valid while ledgers close and segments move into the history, because segments never change their
sequence number (LOG-10).
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.arguments import COUNT


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next row to read: ``entry`` is an entry id in the ledger of segment ``seq``, of which ``row`` rows have been consumed already.

    Entry 0 means the segment's first entry. ``row`` is 0 in logs whose entries hold one row each.
    """

    seq: int
    entry: int = 0
    row: int = 0

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import table

        return table.html(table.Table(["#segment", "#entry", "#row"], [(str(self.seq), str(self.entry), self.row)]))

    def __post_init__(self) -> None:
        if type(self.seq) is type(self.entry) is type(self.row) is int and self.seq >= 0 <= self.entry and self.row >= 0:
            return  # a fast path, because there are many
        for name in ("seq", "entry", "row"):
            COUNT(name, getattr(self, name))
