"""A client of unbounded ledgers: takes a term, recovers, opens the ledger again, writes (replication-protocol.md 11, U-1..U-7, U-9).

The same rules as in the product where they are the same: quorum coverage and denials (Q-2, Q-4), base and frozen LAC of a guaranteed
ledger (G-12), private changes in recovery (RC-15), LAFR + 1 and pinning in a writer's change (G-3, G-5), identical repeats of an unknown
compare-and-set (META-12). ``handle_*`` return what is to be done; the world does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from tests.simulation.unbounded.bookie import Answer, Ask, Reply, What

NO_OP = "no-op"
TICK_NS = 20_000_000
FAILURES_MAX = 2  # so many ticks without an answer, and the bookie of a position is to be replaced


@dataclass(frozen=True, slots=True)
class Stored:
    """Metadata of an unbounded ledger. ``start`` is the no-op of the last term that was opened (U-1, U-3)."""

    ledger: LedgerMetadata
    term: int = 1
    start: int = -1


@dataclass(frozen=True, slots=True)
class Send:
    bookie: BookieId
    ask: Ask


@dataclass(frozen=True, slots=True)
class Load:
    pass


@dataclass(frozen=True, slots=True)
class Store:
    wanted: Stored
    version: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    entry_id: int
    value: str


Todo = Send | Load | Store | Acknowledged


class Phase(Enum):
    IDLE = auto()
    TAKING = auto()
    FENCING = auto()
    READING = auto()
    TRUNCATING = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    DONE = auto()


@dataclass(slots=True)
class Op:
    """An entry above the LAFR, and the positions whose present bookies have it."""

    value: str
    truncate: bool = False
    acked: set[int] = field(default_factory=set)


class UnboundedClient:
    """``start`` begins a term; after a lost one (U-2) it may be called again."""

    def __init__(self, name: str, placement: RandomPlacement) -> None:
        self.name = name
        self.phase = Phase.IDLE
        self.stored = Stored(LedgerMetadata(1, 1, 1, LedgerState.OPEN, ()))
        self.version = -1
        self.term = 0
        self._placement = placement
        self._wanted: Stored | None = None
        self._forget()

    def _forget(self) -> None:
        self.lac = self.lafr = self.last_add_pushed = -1
        self.ensemble: tuple[BookieId, ...] = ()
        self.private: dict[int, tuple[BookieId, ...]] = {}
        self._frozen = self._start_of_run = -1
        self._heard: dict[int, Reply] = {}
        self._read_from: tuple[BookieId, ...] = ()
        self._answers: dict[int, Answer] = {}
        self._asked_entry = -1
        self._ops: dict[int, Op] = {}
        self._silent: dict[int, int] = {}
        self._removing: frozenset[int] = frozenset()
        self._joining: dict[int, BookieId] = {}
        self._joined: set[BookieId] = set()

    # --- application ---------------------------------------------------------------------------------------------

    def start(self) -> list[Todo]:
        self._forget()
        self._wanted = None
        self.phase = Phase.TAKING
        return [Load()]

    def append(self, value: str) -> list[Todo]:
        return self._push(value) if self.phase is Phase.OPEN else []

    def close(self) -> list[Todo]:
        """U-6: by the writer of the current term, with an empty queue; else it is simply not done now (U-7)."""
        if self.phase is not Phase.OPEN or not self._may_close():
            return []
        self.phase = Phase.CLOSING
        return self._store(replace(self.stored, ledger=self.stored.ledger.closed(self.last_add_pushed, 0)))

    def _may_close(self) -> bool:
        return not self._ops and self._wanted is None

    # --- metadata ------------------------------------------------------------------------------------------------

    def _store(self, wanted: Stored) -> list[Todo]:
        self._wanted = wanted
        return [Store(wanted, self.version)]

    def handle_loaded(self, stored: Stored, version: int) -> list[Todo]:
        if self.phase is not Phase.TAKING or self._wanted is not None:
            return []
        self.stored, self.version = stored, version
        if stored.ledger.state is LedgerState.CLOSED:
            self.phase = Phase.DONE
            return []
        return self._store(replace(stored, ledger=stored.ledger.in_recovery(), term=stored.term + 1))  # U-1

    def handle_stored(self, store: Store, outcome: Outcome) -> list[Todo]:
        if store.wanted is not self._wanted:
            return []
        if outcome is Outcome.UNKNOWN:
            return [store]  # META-12
        self._wanted = None
        if outcome is not Outcome.OK:
            return self.start() if self.phase is Phase.TAKING else self._withdraw()
        self.stored, self.version = store.wanted, store.version + 1
        match self.phase:
            case Phase.TAKING:
                return self._fence()
            case Phase.OPENING:
                self.phase = Phase.OPEN
                return self._moved()
            case Phase.OPEN:
                return self._changed()
            case _:
                self.phase = Phase.DONE
                return []

    def _withdraw(self) -> list[Todo]:
        """U-2: somebody has a higher term."""
        self._forget()
        self._wanted = None
        self.phase = Phase.IDLE
        return []

    # --- answers -------------------------------------------------------------------------------------------------

    def handle_reply(self, bookie: BookieId, ask: Ask, reply: Reply) -> list[Todo]:
        if not self._is_mine(reply):
            return []
        if reply.answer is Answer.INVALID_TERM:
            return self._withdraw()
        match ask.what:
            case What.FENCE:
                return self._fenced(bookie, reply)
            case What.READ:
                return self._read(bookie, ask.entry_id, reply)
            case What.ADD:
                return self._added(bookie, ask.entry_id)
            case What.JOIN:
                self._joined.add(bookie)
                return self._maybe_change()

    def _is_mine(self, reply: Reply) -> bool:
        """U-2: replies of other terms are dropped."""
        return reply.term == self.term

    def tick(self) -> list[Todo]:
        """Ask again whoever is silent; silence for long is a failure."""
        match self.phase:
            case Phase.FENCING:
                return self._ask_fence([p for p in range(len(self._read_from)) if p not in self._heard])
            case Phase.READING:
                return self._ask_entry([p for p in range(len(self._read_from)) if p not in self._answers]) + self._resend()
            case Phase.TRUNCATING | Phase.OPEN:
                return self._resend()
            case _:
                return []

    # --- recovery (G-12, G-13, U-3) ------------------------------------------------------------------------------

    def _fence(self) -> list[Todo]:
        self.phase = Phase.FENCING
        self.term = self.stored.term
        self._read_from = self.ensemble = self.stored.ledger.last_fragment.ensemble
        ledger = self.stored.ledger
        self._distribution = Distribution(ledger.ensemble_size, ledger.write_quorum_size, ledger.ack_quorum_size)
        return self._ask_fence(range(len(self._read_from)))

    def _ask_fence(self, positions: Sequence[int]) -> list[Todo]:
        return [Send(self._read_from[p], Ask(What.FENCE, self.term)) for p in positions]

    def _fenced(self, bookie: BookieId, reply: Reply) -> list[Todo]:
        if self.phase is not Phase.FENCING:
            return []
        self._heard[self._read_from.index(bookie)] = reply
        if not self._distribution.covered(self._heard):
            return []
        self.lafr = self.lac = self.last_add_pushed = self._start_of_run = self._base()
        self._frozen = max(self.lafr, *(r.lac for r in self._heard.values()))
        self.phase = Phase.READING
        return self._next_entry()

    def _base(self) -> int:
        """G-12: LAFR heard, at least K - 1."""
        return max(self.stored.ledger.last_fragment.first_entry_id - 1, *(r.lafr for r in self._heard.values()))

    def _next_entry(self) -> list[Todo]:
        self._asked_entry, self._answers = self.last_add_pushed + 1, {}
        return self._ask_entry(range(len(self._read_from)))

    def _ask_entry(self, positions: Sequence[int]) -> list[Todo]:
        return [Send(self._read_from[p], Ask(What.READ, self.term, self._asked_entry)) for p in positions]

    def _read(self, bookie: BookieId, entry_id: int, reply: Reply) -> list[Todo]:
        """RC-10: one copy is written back, QC denials end the ledger, and then the term's no-op truncates what lies above (U-3)."""
        if self.phase is not Phase.READING or entry_id != self._asked_entry:
            return []
        self._answers[self._read_from.index(bookie)] = reply.answer
        if reply.answer is Answer.OK:
            return self._push(reply.value) + self._next_entry()
        if list(self._answers.values()).count(Answer.NO_ENTRY) < self._distribution.denials_needed:
            return []
        self.phase = Phase.TRUNCATING
        return self._push(NO_OP, truncate=True)

    def _maybe_open(self) -> list[Todo]:
        """U-4: nothing is opened before write-backs and no-op are on their whole write sets."""
        if self.phase is not Phase.TRUNCATING or not self._may_open():
            return []
        self.phase = Phase.OPENING
        ledger = self.stored.ledger
        for first, ensemble in sorted(self.private.items()):
            ledger = ledger.with_ensemble(first, ensemble)
        self.lac = self.last_add_pushed
        return self._store(replace(self.stored, ledger=replace(ledger, state=LedgerState.OPEN), start=self.last_add_pushed))

    def _may_open(self) -> bool:
        return self.lafr == self.last_add_pushed

    # --- adding --------------------------------------------------------------------------------------------------

    def _push(self, value: str, *, truncate: bool = False) -> list[Todo]:
        self.last_add_pushed += 1
        self._ops[self.last_add_pushed] = Op(value, truncate)
        return [self._add(self.last_add_pushed, position) for position in range(len(self.ensemble))]

    def _add(self, entry_id: int, position: int) -> Send:
        op = self._ops[entry_id]
        lac, lafr = self._stamps()
        return Send(self.ensemble[position], Ask(What.ADD, self.term, entry_id, op.value, lac, lafr, op.truncate))

    def _stamps(self) -> tuple[int, int]:
        """D6, and the same for the LAFR: what a recovery has replicated may be where only its private changes say, and may yet be left
        out by whoever opens the ledger. Until then its adds claim no more than was heard at the start."""
        return (self.lac, self.lafr) if self.phase is Phase.OPEN else (self._frozen, self._start_of_run)

    def _added(self, bookie: BookieId, entry_id: int) -> list[Todo]:
        op = self._ops.get(entry_id)
        if bookie not in self.ensemble or op is None:
            return []
        op.acked.add(self.ensemble.index(bookie))
        self._silent.pop(self.ensemble.index(bookie), None)
        return self._moved()

    def _moved(self) -> list[Todo]:
        """WR-8 for the LAC, G-2 for the queue. G-6: positions on their way out do not count."""
        done: list[Todo] = []
        if self.phase is Phase.OPEN:
            while (op := self._ops.get(self.lac + 1)) is not None and self._enough(op):
                self.lac += 1
                done.append(Acknowledged(self.lac, op.value))
        self._advance_lafr()
        return done + self._maybe_open() + self._maybe_change()

    def _enough(self, op: Op) -> bool:
        return len(op.acked - self._removing) >= self._distribution.ack_quorum_size

    def _advance_lafr(self) -> None:
        """U-9: from its own base, not from the LAC."""
        while (op := self._ops.get(self.lafr + 1)) is not None and len(op.acked - self._removing) == len(self.ensemble):
            self.lafr += 1
            del self._ops[self.lafr]

    def _resend(self) -> list[Todo]:
        again: list[Todo] = []
        silent: dict[int, None] = {}
        for entry_id, op in self._ops.items():
            for position in range(len(self.ensemble)):
                if position not in op.acked:
                    silent[position] = None
                    again.append(self._add(entry_id, position))
        for position in silent:
            self._silent[position] = self._silent.get(position, 0) + 1
        failed = [p for p, ticks in self._silent.items() if ticks > FAILURES_MAX]
        return again + (self._change(failed) if failed else [])

    # --- ensemble change -----------------------------------------------------------------------------------------

    def _change(self, failed: list[int]) -> list[Todo]:
        if self._wanted is not None:
            return []
        recovering = self.phase is not Phase.OPEN
        positions = failed if recovering else [p for p in failed if self._removable(p)]
        chosen = self._placement.replace(self.ensemble, positions)
        if recovering:  # RC-15; F is the run's LAFR + 1 (G-13)
            return self._install(tuple(chosen.get(p, b) for p, b in enumerate(self.ensemble)), private=True) if chosen else []
        self._joining, self._joined = chosen, set()
        return self._ask_to_join()

    def _removable(self, position: int) -> bool:
        """G-5, for one position at a time: no committed entry above the LAFR may lose its ack quorum."""
        others = self._removing | {position}
        return all(len(op.acked - others) >= self._distribution.ack_quorum_size for e, op in self._ops.items() if e <= self.lac)

    def _ask_to_join(self) -> list[Todo]:
        """A newcomer may have been left behind by an older term: it takes the term and drops those entries before it is named. Otherwise
        a reader or a recoverer could take them for this term's (U-8); the no-op reaches only who was there at the start."""
        return [Send(b, Ask(What.JOIN, self.term, self.stored.start)) for b in self._joining.values()] + self._maybe_change()

    def _maybe_change(self) -> list[Todo]:
        if self.phase is not Phase.OPEN or self._wanted is not None:
            return []
        ready: dict[int, BookieId] = {}
        self._removing = frozenset()
        for position, bookie in self._joining.items():
            if self._has_joined(bookie) and self._removable(position):
                ready[position] = bookie
                self._removing |= {position}
        if not ready:
            return []
        ensemble = tuple(ready.get(p, b) for p, b in enumerate(self.ensemble))
        self._joining = {}
        return self._store(replace(self.stored, ledger=self.stored.ledger.with_ensemble(self.lafr + 1, ensemble)))

    def _has_joined(self, bookie: BookieId) -> bool:
        return bookie in self._joined

    def _changed(self) -> list[Todo]:
        self._removing = frozenset()
        return self._install(self.stored.ledger.last_fragment.ensemble) + self._moved()

    def _install(self, ensemble: tuple[BookieId, ...], *, private: bool = False) -> list[Todo]:
        """G-9, EC-10, EC-11: everything in the queue is carried into the new fragment."""
        if private:
            self.private[self.lafr + 1] = ensemble
        changed = {p for p, b in enumerate(ensemble) if b != self.ensemble[p]}
        self.ensemble = ensemble
        for op in self._ops.values():
            op.acked -= changed
        for position in changed:
            self._silent.pop(position, None)
        return [self._add(entry_id, p) for entry_id in self._ops for p in changed]
