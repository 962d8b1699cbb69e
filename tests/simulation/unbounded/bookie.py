"""A bookie of unbounded ledgers: a term instead of a fence (replication-protocol.md 11, U-2, U-3, U-5). One ledger, always durable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class What(Enum):
    FENCE = auto()  # adopt the term; answer LAC and LAFR
    READ = auto()  # recovery read of one entry
    ADD = auto()
    JOIN = auto()  # take the term before being named in an ensemble


class Answer(Enum):
    OK = auto()
    NO_ENTRY = auto()
    INVALID_TERM = auto()


@dataclass(frozen=True, slots=True)
class Ask:
    """``truncate``: the no-op that begins a term; what older terms left above it goes. JOIN does the same at ``entry_id``."""

    what: What
    term: int
    entry_id: int = -1
    value: str = ""
    lac: int = -1
    lafr: int = -1
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """``term`` is the request's, not the bookie's (U-2)."""

    term: int
    answer: Answer
    value: str = ""
    lac: int = -1
    lafr: int = -1


@dataclass(frozen=True, slots=True)
class Copy:
    term: int
    value: str


class UnboundedBookie:
    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self.entries: dict[int, Copy] = {}
        self.lac = -1
        self.lafr = -1

    def handle(self, ask: Ask) -> Reply:
        if not self._accepts(ask.term):
            return Reply(ask.term, Answer.INVALID_TERM)
        self.term = max(self.term, ask.term)
        match ask.what:
            case What.ADD:
                self._add(ask)
            case What.JOIN:
                self._truncate(ask)
            case What.READ:
                copy = self.entries.get(ask.entry_id)
                return Reply(ask.term, Answer.NO_ENTRY) if copy is None else Reply(ask.term, Answer.OK, copy.value)
            case What.FENCE:
                return Reply(ask.term, Answer.OK, lac=self.lac, lafr=self.lafr)
        return Reply(ask.term, Answer.OK)

    def _accepts(self, term: int) -> bool:
        """U-2: a lower term is refused, an equal or higher one adopted."""
        return term >= self.term

    def _add(self, ask: Ask) -> None:
        """U-5: whatever was under the id is overwritten."""
        self.entries[ask.entry_id] = Copy(ask.term, ask.value)
        self.lac, self.lafr = max(self.lac, ask.lac), max(self.lafr, ask.lafr)
        if ask.truncate:
            self._truncate(ask)

    def _truncate(self, ask: Ask) -> None:
        """U-3. Only older terms' entries: a second delivery of the no-op must not take what its own term has written since."""
        for entry_id in [e for e, copy in self.entries.items() if e > ask.entry_id and self._is_left_over(copy, ask)]:
            del self.entries[entry_id]

    def _is_left_over(self, copy: Copy, ask: Ask) -> bool:
        return copy.term < ask.term
