"""The writer of one ledger, and the write-back half of a recovery.

Theory of operation. Entries arrive in runs and get consecutive ids (WR-1). A run is packaged once (WR-3) and sent to the bookies of its
write sets. Acknowledgements are kept run by run (``pending``). The prefix of entries with Qa acknowledgements is committed, in order
(WR-8). A failed bookie is replaced by a new fragment that starts at LAC + 1 (replication-protocol.md 4). Until the compare-and-set that
records it is definite, nothing is committed, or only what the remaining bookies have (EC-8). Then the acknowledgements of the positions
that changed are taken back, missing entries are sent, and only then more of the prefix is committed (EC-10).

A run is kept after its commit until every position answered or failed, so that late failures are still noticed (WR-9, WR-10). In a ledger
with guaranteed write quorum it is kept until it is on its whole write set, and so are the promises about closing (replication-protocol.md
9).

In recovery (``frozen_lac`` given) adds carry the recovery flag and the frozen LAC (D6, RC-13), and ensemble changes stay private to this
run of recovery: they are kept in ``private_changes`` and no metadata is written (RC-15).

The parts are classes, each of which inherits from the one before: ``base`` state, ``acks`` counting, ``guarantee``
guaranteed write quorum, ``failures`` what bookies refuse, ``ensemble_change`` new fragments, ``close`` ends, ``lac``
explicit LAC and force.
"""

from __future__ import annotations

from typing import Any

from bk_core import kernels
from bk_core.errors import BkError, DuplicateEntryIdError, InvalidArgumentError
from bk_core.protocol.effects import Effect, Fail, ReadLedger, WriteLedger
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BookiesChanged,
    BookiesLookedFor,
    BytesDrained,
    Event,
    LedgerRead,
    LedgerWritten,
    ReadReply,
    TimerFired,
)
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.placement import Placement
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.ledger.write.base import WriterState
from bk_core.protocol.ledger.write.lac import ConfirmingWriter
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.ledger.write.pending import AckSet, PendingAdds
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

__all__ = ["ChangeWindow", "EnsembleChangeMode", "LedgerWriter", "WriterOptions", "WriterState"]

RECOVERY_FLAGS = 0x0006  # recovery add, high priority (wire-protocol.md 3.4)
ENTRY_ID_MAX = (1 << 63) - 2  # a run ends before the last number of 64 bits


class LedgerWriter(ConfirmingWriter):
    """Machine: adds entries to one open ledger. Its outputs are lists of effects; see the module text.

    Tokens given to ``append`` complete with the id of the run's last entry. After any error it is unknown whether pending entries are part
    of the ledger, until the ledger is closed (WR-13).
    """

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
        super().__init__(ledger_id, metadata, version, placement, limits, options=options, frozen_lac=frozen_lac, base=base)
        self._close_tokens = []
        self._closing = None
        self._forces = {}
        self._forced_length = 0

    # --- application calls -------------------------------------------------------------------------------------------

    def append(
        self,
        payloads: Any,
        offsets: Any,
        token: Any,
        now_ns: int,
        *,
        length_before: int | None = None,
        first_entry_id: int | None = None,
    ) -> list[Effect]:
        """Admit a run (WR-1). ``offsets`` are count + 1 int64 byte positions. A recovery gives the stored running length.

        ``first_entry_id`` needs ``options.caller_ids`` (WR-2): ids may then come in any order, and acknowledgements wait for all lower
        ones.
        """
        bounds = memoryview(bytes(memoryview(offsets).cast("B"))).cast("q")
        count = len(bounds) - 1
        first = self.last_add_pushed + 1 if first_entry_id is None else first_entry_id
        refusal = self._admission(first, count, first_entry_id is not None)
        if refusal is not None:
            return [Fail(token, refusal)]
        if length_before is not None:
            self.length = length_before
        pending = self._package(payloads, offsets, bounds, first, token, now_ns)
        self.last_add_pushed = max(self.last_add_pushed, pending.last)
        self.length += pending.payload_bytes
        self.pending_bytes += pending.payload_bytes
        self._pending.add(pending)
        effects: list[Effect] = []
        if self._failures and self._change is None:
            effects += self._reconsider(now_ns) if self._pins() else self._start_change(now_ns)  # WR-4
        if self.state is WriterState.OPEN:
            self._send_first(pending, now_ns, effects)
        return effects

    def _admission(self, first: int, count: int, chosen: bool) -> BkError | None:
        """Return the reason why a run may not enter, or None. A run that may not enter takes no id (WR-1, WR-2)."""
        if self.state is not WriterState.OPEN or self._draining:
            return self._refusal()
        if not chosen:
            return None
        if not self.options.caller_ids or not 0 <= first <= ENTRY_ID_MAX + 1 - count:
            return InvalidArgumentError(f"ledger {self.ledger_id} takes no entry id {first} from its caller", ledger=self.ledger_id)
        if self._is_taken(first, count):
            message = f"ledger {self.ledger_id} already has entries among {first}..{first + count - 1}"
            return DuplicateEntryIdError(message, ledger=self.ledger_id, entry=first)
        return None

    def _is_taken(self, first: int, count: int) -> bool:
        """Return True if an id is used already: by an acknowledged entry, of which there may be some above the LAC with deferred sync, or
        by one in the queue (WR-2)."""
        return first <= self.acknowledged_head or any(True for _ in self._pending.overlapping(first, count))

    def _package(self, payloads: Any, offsets: Any, bounds: memoryview, first: int, token: Any, now_ns: int) -> PendingAdds:
        """Package a run once, with the LAC of this moment; the same bytes are sent again if need be (WR-3)."""
        lac = self.last_add_confirmed if self._frozen_lac is None else self._frozen_lac
        flags = RECOVERY_FLAGS if self.recovering else 0
        digest = int(self.metadata.digest_type)
        frames, frame_offsets = kernels.frame_adds(
            payloads, offsets, self.ledger_id, first, lac, self.length, digest, self._hmac_key, self._master_key, flags
        )
        if not self._guaranteed:
            self._told_lac = max(self._told_lac, lac)
        count = len(bounds) - 1
        run = PackedAdds(self.ledger_id, first, count, frames, memoryview(frame_offsets).cast("q"), self.recovering, self._deferred)
        return PendingAdds(run, AckSet(self._distribution.write_sets(first, count)), bounds, token, now_ns)

    def _send_first(self, pending: PendingAdds, now_ns: int, effects: list[Effect]) -> None:
        """Send a run to every position of the write sets (WR-5), and to candidates that are being prepared (G-7)."""
        for position in range(len(self._ensemble)):
            self._send_missing(pending, position, now_ns, effects)
        self._send_to_staged(pending, self._staging, effects)
        if self._tick_at is None:
            self._arm_tick(now_ns, self._next_tick(now_ns), effects)

    # --- input ---------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take one input (SM-1, SM-2). An input after the end, or about something that was superseded, changes nothing (SM-3)."""
        match event:
            case AddReply(bookie, first, count, Status.OK, entries):
                return self._acknowledged(bookie, first, count, entries, now_ns)
            case AddReply(bookie, first, count, status):
                return self._refused(bookie, first, count, status, now_ns)
            case BookieLost(bookie, status):
                return self._lost(bookie, status, now_ns)
            case LedgerWritten():
                return self._written(event, now_ns)
            case LedgerRead():
                return self._reread(event, now_ns)
            case ReadReply():
                return self._force_answered(event)
            case TimerFired("tick"):
                return self._tick(now_ns)
            case TimerFired("explicit-lac"):
                return self._explicit_lac()
            case TimerFired("metadata"):
                return self._repeat_metadata()
            case BytesDrained(bookie, at_ns):
                self._moved_out[bookie] = at_ns
                return []
            case BookiesChanged(came):
                self._forgive(came)
                return self._look_again(now_ns)
            case BookiesLookedFor(request):
                return self._looked_for(request, now_ns)
            case _:
                return []

    def _written(self, event: LedgerWritten, now_ns: int) -> list[Effect]:
        closing, change = self._closing, self._change
        if self.state is WriterState.CLOSING and closing is not None:
            return self._close_written(closing, event) if event.request == closing.request and not closing.reading else []
        if change is None or event.request != change.request or change.reading:
            return []
        return self._change_written(change, event, now_ns)

    def _reread(self, event: LedgerRead, now_ns: int) -> list[Effect]:
        """Take the stored metadata after a conflict (EC-9, CL-4)."""
        closing, change = self._closing, self._change
        if self.state is WriterState.CLOSING and closing is not None:
            return self._close_reread(closing, event) if event.request == closing.request and closing.reading else []
        if change is None or event.request != change.request or not change.reading:
            return []
        return self._change_reread(change, event, now_ns)

    def _repeat_metadata(self) -> list[Effect]:
        """Send the byte-identical request at the same version again, until the outcome is definite; a read is simply asked
        again (META-12)."""
        waiting = self._closing if self.state is WriterState.CLOSING else self._change
        if waiting is None:
            return []
        return [ReadLedger(waiting.request) if waiting.reading else WriteLedger(waiting.request, waiting.wanted, self.version)]
