"""The world below a file store, as its machine sees it: one log that one owner at a time appends to, and ledgers of data.

An entry is in the log only if all before it are. What its writer was not told of may be in it or not, until the next owner takes the log
over: that decides how much of it there is for good. Rolls begin segments, trims take whole ones off the front. A data ledger has a node
that is made before it and taken away behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bk_core.protocol.log.position import Position
from tests.simulation.files_truth import State


@dataclass(slots=True, eq=False)
class Entry:
    """``state``: what the store is by the model when everything up to this entry counts. ``kind``: "change", "begin", "part" or "end"."""

    record: bytes
    kind: str
    state: State
    owner: str
    position: Position


@dataclass(slots=True, eq=False)
class Appending:
    """One request of an owner's machine. ``end``: behind its last entry, counted from the very beginning of the log; None if it was asked
    by who was taken over, so that nothing got there. ``count``: changes."""

    request: int
    end: int | None
    count: int
    position: Position
    is_stored: bool = False
    is_answered: bool = False


class FilesLog:
    """``entries`` are all that ever were, those before ``begin`` are trimmed; those from ``confirmed`` on are not decided yet."""

    def __init__(self, random: Callable[[], float], entries_a_segment: int) -> None:
        self.entries: list[Entry] = []
        self.starts: list[int] = [0]  # of segments, by their number
        self.first_segment = 0
        self.confirmed = 0
        self.writer = ""
        self.is_failed = False  # its writer's appends: nothing is added until somebody takes it over
        self.on_confirmed: Callable[[], None] = lambda: None
        self._kept: dict[str, int] = {}  # of each that was taken over: how many entries there were behind it
        self._random = random
        self._entries_a_segment = entries_a_segment

    @property
    def begin(self) -> int:
        """The first entry left."""
        return self.starts[self.first_segment]

    def is_writer(self, owner: str) -> bool:
        return self.writer == owner and not self.is_failed

    # --- the writer ------------------------------------------------------------------------------------------------------

    def add(self, record: bytes, kind: str, state: State, owner: str) -> Position:
        """Submitted, and on its way. Of who is no writer any more nothing gets there."""
        if not self.is_writer(owner):
            return Position(len(self.starts) - 1, len(self.entries) - self.starts[-1])
        if self._entries_a_segment and len(self.entries) - self.starts[-1] >= self._entries_a_segment:
            self._new_segment()
        position = Position(len(self.starts) - 1, len(self.entries) - self.starts[-1])
        self.entries.append(Entry(record, kind, state, owner, position))
        return position

    def confirm(self, end: int) -> None:
        """Everything before ``end`` is in the log for good."""
        if end > self.confirmed:
            self.confirmed = end
            self.on_confirmed()

    def roll(self, owner: str) -> None:
        if self.is_writer(owner) and len(self.entries) > self.starts[-1]:
            self._new_segment()

    def _new_segment(self) -> None:
        self.starts.append(len(self.entries))

    def take_over(self, owner: str) -> tuple[int, int]:
        """Fence whoever writes: of what was on its way a beginning stays. How much that was, and how much of it stayed."""
        under_way = len(self.entries) - self.confirmed
        kept = self.confirmed + int(self._random() * (under_way + 1))
        del self.entries[kept:]
        self.starts = [min(start, kept) for start in self.starts]
        self._new_segment()
        self._kept[self.writer] = kept
        stayed = kept - self.confirmed
        self.writer, self.is_failed = owner, False
        self.confirm(kept)
        return under_way, stayed

    def kept_of(self, owner: str) -> int:
        return self._kept[owner]

    # --- its front -------------------------------------------------------------------------------------------------------

    def trim(self, before: Position) -> bool:
        """Drop segments all of whose entries lie before that; whether there were any."""
        found = min(before.seq, len(self.starts) - 1)
        if found <= self.first_segment:
            return False
        self.first_segment = found
        return True

    def boundaries(self) -> list[int]:
        """Return the starts of the segments that are left."""
        return sorted(set(self.starts[self.first_segment :]))

    def possible_states(self) -> Sequence[State]:
        """Return the states of which one is what the next owner reads, depending on what of the entries under way stays."""
        last = self.entries[self.confirmed - 1 : self.confirmed]
        return [entry.state for entry in (*last, *self.entries[self.confirmed :])]


@dataclass(slots=True)
class DataLedgers:
    """Numbers of ledgers and of nodes. ``made_by``: of all that ever were. ``orphans`` were made by who was taken over, when a later owner
    had taken their node away already: no owner finds them."""

    ledgers: dict[int, None] = field(default_factory=dict)
    nodes: dict[int, None] = field(default_factory=dict)
    orphans: dict[int, None] = field(default_factory=dict)
    made_by: dict[int, str] = field(default_factory=dict)

    def make_node(self, owner: str) -> int:
        ledger_id = len(self.made_by) + 1
        self.made_by[ledger_id] = owner
        self.nodes[ledger_id] = None
        return ledger_id

    def make_ledger(self, ledger_id: int) -> None:
        (self.ledgers if ledger_id in self.nodes else self.orphans)[ledger_id] = None

    def forget(self, ledger_id: int) -> None:
        """Take the node away; who was about to make the ledger may have done so since it was found to be gone."""
        self.nodes.pop(ledger_id, None)
        if self.ledgers.pop(ledger_id, 0) is None:
            self.orphans[ledger_id] = None
