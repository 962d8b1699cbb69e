"""Follows a ledger that is being written (LC-5..LC-8).

Theory of operation. The machine always does one of four things: it reads what is known to be confirmed, polls for more, pauses, or waits
for a recovery to end. Whatever the bookies say or do not say, only CLOSED metadata ends it (LC-8). The world feeds it ``MetadataChanged``
from a watch (LC-7), and where a watch could have been missed it reads the metadata itself.
"""

from __future__ import annotations

from bk_core.errors import NoSuchLedgerError, UnauthorizedError
from bk_core.protocol.effects import Complete, Effect, Fail, ReadLedger, SetTimer
from bk_core.protocol.events import LedgerRead, MetadataChanged, Outcome, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.read.chunks import EntrySizes, ReadAhead
from bk_core.protocol.ledger.read.long_poll import LongPoll, PollResult
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.view import LedgerView
from bk_core.protocol.limits import Limits

PAUSE = "tail-pause"
LOOK = "tail-look"
UNCONSUMED_MAX = 256  # runs that were handed out and not taken


class Tail:
    """Machine: hands out the entries from ``first`` on, as they are confirmed, until the ledger is CLOSED and all are handed out.

    Its effects for the world are those of RangeReader: ``Complete("run", EntryRun)`` in order, ``Complete("heard", lac)``,
    ``Complete("metadata", (metadata, version))``. The end is ``Complete("end")`` or ``Fail("end", error)``, where the error is that of
    reading a confirmed entry, UnauthorizedError or NoSuchLedgerError. With ``deliver`` False it reads nothing, and only tells the LAC once
    it has reached ``first``. ``known`` is the LAC to start from.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        first: int,
        *,
        known: int = -1,
        batch: bool = False,
        deliver: bool = True,
        limits: Limits | None = None,
        options: ReadOptions | None = None,
        order: ReplicaOrder | None = None,
        sizes: EntrySizes | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._options = options or ReadOptions()
        distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._order = order or ReplicaOrder(distribution)
        self._view = LedgerView(ledger_id, metadata, version, hold_back=self._options.hold_back_in_recovery)
        self._known(known)
        self._next = first
        self._batch = batch
        self._deliver = deliver
        self._reader: RangeReader | None = None
        self._poll: LongPoll | None = None
        self._primed: set[BookieId] = set()
        self._next_request = 1
        self._look: int | None = None
        self._looked_lately = False
        self._pausing = False  # True until the pause since the last poll is over
        self._ahead = ReadAhead(self._limits, metadata.ensemble_size if distribution.striped else 1, sizes or EntrySizes(metadata))
        self._finished = False

    def _known(self, lac: int) -> None:
        """Take in what the handle learned before; this counts even during a recovery."""
        if not self._view.is_closed:
            self._view.last_add_confirmed = max(self._view.last_add_confirmed, lac)

    @property
    def last_add_confirmed(self) -> int:
        return self._view.last_add_confirmed

    # --- calls of the world --------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        return self._step()

    def consumed(self) -> list[Effect]:
        """Note that the caller took one run."""
        if self._reader is not None:
            return self._take(self._reader.consumed())
        self._ahead.consumed()
        return self._step()

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if self._finished:
            return []
        match event:
            case MetadataChanged(metadata=metadata, version=version):
                return self._on_metadata(metadata, version, event, now_ns)
            case LedgerRead(request=request) if request == self._look:
                return self._on_look(event, now_ns)
            case TimerFired(key=key) if key == PAUSE:
                self._pausing = False
                return self._step()
            case TimerFired(key=key) if key == LOOK:
                self._looked_lately = False
                return self._step()
        if self._poll is not None:
            return self._take(self._poll.handle(event, now_ns))
        if self._reader is not None:
            return self._take(self._reader.handle(event, now_ns))
        return []

    # --- the next step -------------------------------------------------------------------------------------------------

    def _step(self) -> list[Effect]:
        if self._finished or self._reader is not None or self._poll is not None:
            return []
        crowded = self._ahead.unconsumed >= UNCONSUMED_MAX
        if self._next <= self._view.last_add_confirmed:
            return self._finish() if not self._deliver else [] if crowded else self._read()
        if self._view.is_closed:
            return self._finish()
        if self._view.held_back:
            return self._look_again()
        if self._pausing or crowded or not self._ahead.has_room(0):
            return []
        return self._ask()

    def _finish(self) -> list[Effect]:
        """End if the ledger is CLOSED and its last entry was handed out; without delivery, end at the entry waited for (LC-8)."""
        self._finished = True
        return [Complete("end")]

    def _read(self) -> list[Effect]:
        view = self._view
        self._reader = RangeReader(
            view.ledger_id,
            view.metadata,
            self._next,
            view.last_add_confirmed,
            batch=self._batch,
            limits=self._limits,
            order=self._order,
            options=self._options,
            version=view.version,
            first_request=self._next_request,
            ahead=self._ahead,
        )
        return self._take(self._reader.start())

    def _ask(self) -> list[Effect]:
        """Read, poll or pause. Polls that bring nothing come at most once a pause, whatever makes bookies answer at once (LC-5, R30)."""
        view = self._view
        self._poll = LongPoll(
            view.ledger_id,
            view.metadata,
            self._polled_from(),
            "poll",
            limits=self._limits,
            options=self._options,
            order=self._order,
            primed=self._primed,
            first_request=self._next_request,
        )
        self._pausing = True
        return [SetTimer(PAUSE, self._limits.tail_pause_ns), *self._take(self._poll.start())]

    def _polled_from(self) -> int:
        """The LAC, even if an entry further ahead is wanted. An Apache bookie drops a waiting poll at the first advance of the LAC, even if
        that does not reach what the poll waits for, and then answers only when the time is up (LC-5)."""
        return self._view.last_add_confirmed

    # --- answers -----------------------------------------------------------------------------------------------------

    def _take(self, effects: list[Effect]) -> list[Effect]:
        """Take the effects of the poll or reader at work: handle those meant for this machine and pass the others on."""
        out: list[Effect] = []
        for effect in effects:
            match effect:
                case Complete(token="poll", value=result):
                    out += self._on_poll(result)
                case Fail(token="poll", error=error):
                    out += self._on_poll_failed(error)
                case Complete(token="run", value=run):
                    self._next = run.last_entry_id + 1
                    out.append(effect)
                case Complete(token="heard", value=lac):
                    out += [effect] if self._view.heard(lac) else []
                case Complete(token="metadata", value=(metadata, version)):
                    out += [effect, *self._view.adopt(metadata, version)]
                case Complete(token="end"):
                    out += self._on_read()
                case Fail() if self._is_past_the_end():
                    out += self._on_read()
                case Fail():
                    self._finished = True
                    out.append(effect)
                case _:
                    out.append(effect)
        return out

    def _is_past_the_end(self) -> bool:
        """Return True if the close of the ledger cut off entries that could not be read; the alarm has been raised (OP-6)."""
        return self._view.is_closed and self._next > self._view.last_add_confirmed

    def _on_read(self) -> list[Effect]:
        assert self._reader is not None
        self._batch = self._batch and not self._reader.batch_refused
        self._next_request = self._reader.next_request
        self._reader = None
        return self._step()

    def _drop_poll(self) -> None:
        """Forget the poll, so that its answers are ignored (LC-7)."""
        if self._poll is not None:
            self._next_request = self._poll.next_request
            self._poll = None

    def _on_poll(self, result: PollResult) -> list[Effect]:
        """Take the result of a poll. A piggybacked entry is as good as one that was read (LC-6)."""
        self._drop_poll()
        effects: list[Effect] = []
        if result.lac is not None and self._view.heard(result.lac):
            self._pausing = False
            effects.append(Complete("heard", result.lac))
        run = result.run
        if run is not None and self._deliver and run.first_entry_id == self._next <= self._view.last_add_confirmed:
            self._next += 1
            self._ahead.arrived(run)
            self._ahead.delivered(run)
            effects.append(Complete("run", run))
        return effects + self._step()

    def _on_poll_failed(self, error: Exception) -> list[Effect]:
        """Go on after a failed poll. Bookies that fail or deny do not end the ledger (LC-8); they may have left the ensemble, so the
        metadata is read again (R29)."""
        self._drop_poll()
        if isinstance(error, UnauthorizedError):
            self._finished = True
            return [Fail("end", error)]
        return self._look_again() + self._step()

    # --- metadata ----------------------------------------------------------------------------------------------------

    def _look_again(self) -> list[Effect]:
        """Read the metadata, but not more often than every ``tail_look_ns``."""
        if self._looked_lately:
            return []
        self._looked_lately = True
        self._look, self._next_request = self._next_request, self._next_request + 1
        return [ReadLedger(self._look), SetTimer(LOOK, self._limits.tail_look_ns)]

    def _on_look(self, read: LedgerRead, now_ns: int) -> list[Effect]:
        self._look = None
        if read.outcome is Outcome.NO_SUCH_LEDGER:
            self._finished = True
            error = NoSuchLedgerError(f"ledger {self._view.ledger_id} was deleted", ledger=self._view.ledger_id)
            return [Fail("end", error)]
        if read.outcome is not Outcome.OK or read.metadata is None or read.version <= self._view.version:
            return []
        changed = MetadataChanged(read.metadata, read.version)
        return [Complete("metadata", (read.metadata, read.version)), *self._on_metadata(read.metadata, read.version, changed, now_ns)]

    def _on_metadata(self, metadata: LedgerMetadata, version: int, event: MetadataChanged, now_ns: int) -> list[Effect]:
        """Take newer metadata, and drop the poll, which is bound to the ensemble and the state it was sent under (OP-6, LC-7)."""
        if version <= self._view.version:
            return []
        effects: list[Effect] = [*self._view.adopt(metadata, version)]
        self._drop_poll()
        self._pausing = False
        if self._reader is not None:
            effects += self._take(self._reader.handle(event, now_ns))
        return effects + self._step()
