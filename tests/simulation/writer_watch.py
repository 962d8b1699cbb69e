"""Rare states of a writer, counted as probes; nothing here influences a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bk_core.errors import AddQuorumTimeoutError, DuplicateEntryIdError
from bk_core.protocol.events import AddReply, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.wire.messages import Status


class WriterWatch:
    def __init__(self, probes: Counter[str], options: WriterOptions) -> None:
        self._probes = probes
        self._options = options
        self._turned_away: dict[tuple[str, int], None] = {}  # (bookie, entry) answered TOO_MANY_REQUESTS
        self._held_back: dict[int, None] = {}  # entries that have an ack quorum in too few domains

    def error(self, error: Exception) -> None:
        if isinstance(error, DuplicateEntryIdError):
            self._probes["an id that was taken was refused"] += 1
        elif isinstance(error, AddQuorumTimeoutError):
            self._probes["an entry was not acknowledged in time"] += 1

    def reply(self, event: AddReply) -> None:
        """WR-6."""
        if event.status is not Status.TOO_MANY_REQUESTS and not self._turned_away:
            return
        key = (event.bookie, event.first_entry_id)
        if event.status is Status.TOO_MANY_REQUESTS:
            self._turned_away[key] = None
        elif key in self._turned_away and event.status is Status.OK and self._options.busy_resends_max:
            del self._turned_away[key]
            self._probes["a busy bookie took an entry that it was sent again"] += 1

    def domains(self, machine: Any) -> None:
        """WR-7: enough bookies have the next entry, but in too few domains."""
        head = machine.acknowledged_head
        if head + 1 in self._held_back:
            return
        for pending in machine._pending.after(head):
            next_entry = pending.between(head + 1, head + 1)
            enough = pending.acks.in_quorum(machine._distribution.ack_quorum_size, ()) & next_entry
            if enough and not machine._quorum_complete(pending, ()) & next_entry:
                self._held_back[head + 1] = None
                self._probes["a missing domain held an acknowledgement back"] += 1
            break

    def change(self, machine: Any, metadata: LedgerMetadata, event: Any) -> None:
        """``event`` is what the change was decided on."""
        if isinstance(event, LedgerWritten) and event.outcome is Outcome.OK:
            self._probes["a window closed with more failures"] += 1
        old = machine.metadata.last_fragment.ensemble
        if sum(a != b for a, b in zip(old, metadata.last_fragment.ensemble, strict=True)) > 1:
            self._probes["two bookies were replaced at once"] += 1

    def close(self, machine: Any, metadata: LedgerMetadata) -> None:
        if metadata.last_fragment.first_entry_id > metadata.last_entry_id:
            self._probes["closed with an empty last fragment"] += 1
        if machine.acknowledged_head > metadata.last_entry_id:
            self._probes["closed over entries that were acknowledged and not forced"] += 1
