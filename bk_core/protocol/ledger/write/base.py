"""The base of the parts of the writer: its state, and the decisions that more than one part needs. ``writer`` has the theory of
operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from bk_core.errors import BkError, LedgerClosedError, MetadataError, NoSuchLedgerError
from bk_core.protocol.effects import Effect, Fail, SendAdds, SetTimer
from bk_core.protocol.entry import digests
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.placement import Placement
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.ledger.write.pending import PendingAdds, PendingWindow
from bk_core.protocol.limits import Limits
from bk_core.protocol.states import Transitions

Hits = Sequence[tuple[PendingAdds, int]]  # runs, each with the set of its entries that are concerned


class WriterState(Enum):
    """The states of a writer (SM-6)."""

    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()
    CLOSE_FAILED = auto()
    FENCED = auto()
    FAILED = auto()


@dataclass(slots=True)
class Change:
    """One ensemble change in flight: the failures it was decided on, the bookies it removes, and the metadata to store (EC-6, EC-7)."""

    round: dict[int, BookieId]
    removed: dict[int, BookieId]
    ensemble: tuple[BookieId, ...]
    first_entry_id: int
    wanted: LedgerMetadata
    request: int
    reading: bool = False  # True after a conflict, while the stored metadata is being read


@dataclass(slots=True)
class Retry:
    """Entries that are to be sent again to the bookie of a position, with a growing pause (WR-6, EC-3, G-7)."""

    delay_ns: int
    due_ns: int | None = None  # None: they were sent and not refused yet
    tries: int = 0


@dataclass(slots=True)
class Staging:
    """A candidate that gets copies before the metadata names it. ``acked`` has, per run, the entries that it has acknowledged (G-7)."""

    candidate: BookieId
    departing: BookieId
    progress_ns: int
    acked: dict[int, int] = field(default_factory=dict)


class WriterBase(ABC):
    """The state of one writer. The abstract methods are the calls between the parts.

    ``acknowledged_head`` is the last entry acknowledged to the application. ``last_add_confirmed`` is the same except with deferred sync,
    where it moves by force (WR-17). ``last_add_fully_replicated`` (LAFR) is kept for guaranteed ledgers only (G-1).
    """

    state = Transitions(
        WriterState.OPEN,
        {
            WriterState.OPEN: (WriterState.CLOSING, WriterState.FENCED, WriterState.FAILED),
            WriterState.CLOSING: (WriterState.CLOSED, WriterState.CLOSE_FAILED),
        },
    )

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        placement: Placement,
        limits: Limits | None = None,
        *,
        options: WriterOptions | None = None,
        frozen_lac: int | None = None,
        base: int = -1,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.options = options or WriterOptions()
        self.state = WriterState.OPEN
        self.error: BkError | None = None
        self.last_add_pushed = base
        self.acknowledged_head = base
        self.last_add_confirmed = base
        self.last_add_fully_replicated = base
        self.length = 0
        self.pending_bytes = 0
        self.private_changes: dict[int, tuple[BookieId, ...]] = {}
        self._placement = placement
        self._limits = limits or Limits()
        self._frozen_lac = frozen_lac
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._master_key = digests.master_key(metadata.password)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._guaranteed = metadata.guaranteed
        self._deferred = self.options.deferred_sync and frozen_lac is None
        self._while_changing = self.options.window or (ChangeWindow.SURVIVORS if self._guaranteed else ChangeWindow.BLOCK)
        self._ensemble: list[BookieId] = []
        self._position: dict[BookieId, int] = {}
        self._set_ensemble(metadata.last_fragment.ensemble)
        self._pending = PendingWindow()
        self._progress: dict[int, tuple[int, int]] = {}  # position -> (last entry acknowledged, when)
        self._moved_out: dict[BookieId, int] = {}  # the time at which bytes for the bookie still went on (LINK-1)
        self._failures: dict[int, BookieId] = {}
        self._failed_at: dict[BookieId, int] = {}
        self._retries: dict[int, Retry] = {}
        self._staging: dict[int, Staging] = {}
        self._look_again_ns: int | None = None  # the time to look again after no bookie could be found (G-10)
        self._look: int | None = None  # the request by which bookies are looked for, before a shortage ends the writer (EC-6)
        self._change: Change | None = None
        self._changes = 0
        self._requests = 0
        self._draining = False
        self._cut = False
        self._told_lac = base
        self._tick_at: int | None = None
        self._explicit_set = False

    # --- what callers may read ----------------------------------------------------------------------------------

    @property
    def recovering(self) -> bool:
        return self._frozen_lac is not None

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(self._ensemble)

    @property
    def idle(self) -> bool:
        """True if no entry is left to commit (G-2: to replicate fully), no change is in flight and none waits for a look (EC-6)."""
        done = self.last_add_fully_replicated if self._guaranteed else self.acknowledged_head
        return done == self.last_add_pushed and self._change is None and self._look is None

    @property
    def unretired_bytes(self) -> int:
        """The payload bytes held for bookies to which they may still be sent (WR-15, G-16)."""
        return self._pending.payload_bytes

    @property
    def unretired_entries(self) -> int:
        return self._pending.entries

    # --- shared decisions ------------------------------------------------------------------------------------------

    def _positions_to_exclude(self) -> Collection[int]:
        """Return the positions of departing bookies, which do not count inside the window (EC-8 b, G-6)."""
        return self._change.removed if self._change is not None else ()

    def _window_blocks(self) -> bool:
        """Return True if nothing may be committed while a change is in flight (EC-8 a)."""
        return self._change is not None and self._while_changing is ChangeWindow.BLOCK

    def _first_entry_of_change(self) -> int:
        """Return the entry at which a new fragment begins. Everything above the LAC is still in the queue, and so can be sent to the new
        ensemble (EC-13). In a guaranteed ledger the queue begins above the LAFR (G-3)."""
        return (self.last_add_fully_replicated if self._guaranteed else self.last_add_confirmed) + 1

    def _is_delayed(self) -> bool:
        """True if a replacement waits until it is needed (EC-3). With guaranteed write quorum the whole write set is needed, so nothing
        waits."""
        return self.options.ensemble_change is EnsembleChangeMode.DELAYED and not self._guaranteed

    @property
    def _replaces_lazily(self) -> bool:
        """True if a failed bookie may keep its position for good (EC-3, delayed and disabled); with guaranteed write quorum none does."""
        return self.options.ensemble_change is not EnsembleChangeMode.IMMEDIATE and not self._guaranteed

    def _failures_clear(self) -> bool:
        """True if a later OK takes a failure back (EC-3, G-8). Where a failed bookie is replaced at once, its failure stands."""
        return self._guaranteed or self._is_delayed()

    def _next_round(self) -> dict[int, BookieId]:
        """Return the recorded failures that are still valid (EC-1), in the order they came: R of EC-6."""
        valid = {p: bookie for p, bookie in self._failures.items() if self._ensemble[p] == bookie}
        if not self._failures_clear():
            return valid
        return {p: bookie for p, bookie in valid.items() if any(pending.acks.failed[p] for pending in self._pending)}

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _set_ensemble(self, ensemble: Iterable[BookieId]) -> None:
        self._ensemble = list(ensemble)
        self._position = {bookie: position for position, bookie in enumerate(self._ensemble)}

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _send_missing(self, pending: PendingAdds, position: int, now_ns: int, effects: list[Effect]) -> None:
        """Send what the position lacks and is not on its way to it, in one send from the first such entry on (EC-11)."""
        unsent = pending.acks.unsent(position)
        if unsent:
            start = (unsent & -unsent).bit_length() - 1
            pending.acks.outstanding[position] |= pending.acks.missing(position) >> start << start
            pending.sent_ns[position] = now_ns
            effects.append(SendAdds(self._ensemble[position], position, pending.run, start))

    def _arm_tick(self, now_ns: int, at_ns: int, effects: list[Effect]) -> None:
        """Set one timer for everything that waits (bookies, entries, pauses), at the earliest time."""
        if self._tick_at is None or at_ns < self._tick_at:
            self._tick_at = at_ns
            effects.append(SetTimer("tick", max(1, at_ns - now_ns)))

    def _fail_waiting(self, runs: Iterable[PendingAdds], error: BkError) -> list[Effect]:
        """Fail the adds that wait. Each add completes exactly once, in the order of ids."""
        effects: list[Effect] = []
        for pending in runs:
            if pending.waiting:
                pending.waiting = False
                effects.append(Fail(pending.token, error))
        return effects

    def _refusal(self) -> BkError:
        if self.error is not None:
            return self.error
        state = "being closed" if self._draining else self.state.name.lower()
        return LedgerClosedError(f"ledger {self.ledger_id} is {state}: no more entries", ledger=self.ledger_id)

    def _deleted(self) -> BkError:
        return NoSuchLedgerError(f"ledger {self.ledger_id} was deleted while being written", ledger=self.ledger_id)

    def _store_error(self, error: Exception | None) -> BkError:
        if isinstance(error, BkError):
            return error
        return MetadataError(f"the metadata of ledger {self.ledger_id} could not be written: {error}", ledger=self.ledger_id)

    # --- calls between the parts -----------------------------------------------------------------------------------------

    @abstractmethod
    def _advance(self) -> list[Effect]:
        """Commit what can be committed (WR-8), then move the end of full replication (G-1)."""

    @abstractmethod
    def _retire(self) -> None:
        """Forget runs for which no answer is awaited (WR-9, G-2)."""

    @abstractmethod
    def _start_change(self, now_ns: int) -> list[Effect]:
        """Decide an ensemble change from the recorded failures (EC-6); nothing if there are none."""

    @abstractmethod
    def _reconsider(self, now_ns: int) -> list[Effect]:
        """Replace pinned bookies that may go now; with guaranteed write quorum only (G-7)."""

    @abstractmethod
    def _schedule_resend(self, position: int, now_ns: int) -> list[Effect]:
        """Send again what the position lacks, after a pause that grows."""

    @abstractmethod
    def _arm_explicit_lac(self, effects: list[Effect]) -> None:
        """Set the timer for the explicit LAC (WR-16, G-22)."""

    @abstractmethod
    def _fenced(self) -> list[Effect]:
        """End the writer because the ledger is fenced (WR-11)."""

    @abstractmethod
    def _fatal(self, error: BkError) -> list[Effect]:
        """End the writer after a failure that it cannot survive (WR-12)."""

    @abstractmethod
    def _stop(self, state: WriterState, error: BkError) -> list[Effect]:
        """Fail everything that waits, and write no metadata."""

    @abstractmethod
    def _close_if_drained(self) -> list[Effect]:
        """Go on with the close once every entry is fully replicated (G-11)."""
