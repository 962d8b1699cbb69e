"""Each obligation of a bookie (B-1..B-13) as one small decision. Nothing here reads storage or sends answers."""

from __future__ import annotations

import hmac
from collections.abc import Hashable
from dataclasses import replace

from bk_core.protocol.bookie.records import Effect, LedgerRecord, ReplyAfterSync
from bk_core.protocol.bookie.runs import AddsAnswer
from bk_core.protocol.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Response, Status

POLLS_MAX = 20_000  # long polls that wait at a bookie
POLL_MS_MAX = 300_000


class BookieRules:
    """The decisions. The host may set these fields at any time: ``read_only`` (B-11); ``accept_recovery_adds``, while there is reserve
    space; and ``fence_unknown``, while there is some of the second reserve (BKE-3)."""

    read_only: bool
    accept_recovery_adds: bool
    fence_unknown: bool
    polls_max: int
    poll_ms_max: int

    # --- adds -----------------------------------------------------------------------------------------------------

    def _barred_by_fence(self, record: LedgerRecord, request: AddRequest) -> bool:
        """Return True if a fence bars the add: no regular add is admitted after a fence (B-1)."""
        return record.fenced and not self._passes_fences(request)

    def _passes_fences(self, request: AddRequest) -> bool:
        """Return True for recovery adds, which are admitted after a fence (B-2)."""
        return request.recovery

    def _confirmation(self, tag: Hashable, response: Response | AddsAnswer) -> Effect:
        """Return the reply to an add, an explicit LAC or a force. An OK is sent only when what it confirms is durable (B-1)."""
        return ReplyAfterSync(tag, response)

    def _after_add(self, record: LedgerRecord, key: bytes | None, entry_id: int, lac: int) -> LedgerRecord:
        """Return the record after an add. A regular, a recovery and a repeated add all leave the fence and limbo marks as they are (B-2,
        B-8, B-9)."""
        return LedgerRecord(  # every add comes here, and dataclasses.replace takes three times as long
            record.ledger_id,
            key,
            record.fenced,
            record.limbo,
            record.deleted,
            self._greater_lac(record.last_add_confirmed, lac),
            self._greater_id(record.last_entry_id, entry_id),
            record.explicit_lac,
        )

    def _greater_lac(self, known: int, arrived: int) -> int:
        """Return the greater LAC, because the LAC of a ledger never decreases (B-9)."""
        return max(known, arrived)

    def _greater_id(self, known: int, added: int) -> int:
        """Return the greater id: the last entry is the one with the highest id, not the one that came last (B-9)."""
        return max(known, added)

    def _closed_to(self, request: AddRequest) -> bool:
        """Return True if the bookie is closed to an add. A read-only bookie takes recovery adds of high priority while it has reserve
        space, and no other add (B-11)."""
        return self.read_only and not (request.recovery and request.high_priority and self.accept_recovery_adds)

    # --- fences and keys ------------------------------------------------------------------------------------------

    def _to_be_fenced(self, ledger_id: int, record: LedgerRecord | None) -> LedgerRecord:
        """Return the record to fence; a ledger that the bookie never heard of is fenced as well (B-3)."""
        return record or LedgerRecord(ledger_id)

    def _may_make_record(self) -> bool:
        """Return True if a record may be made for a ledger that the bookie never heard of. With little room on the disk it may not; the
        error counts as no vote of a fence (BKE-3)."""
        return self.fence_unknown

    def _fenced(self, record: LedgerRecord, key: bytes) -> LedgerRecord:
        """Return the record with the fence mark, and with the key pinned if there was none (B-3, B-13)."""
        return record if record.fenced and record.key is not None else replace(record, key=key, fenced=True)

    def _fence_reply(self, tag: Hashable, response: Response) -> Effect:
        """Return the reply to a fencing request. Any answer waits for the mark, even if an earlier request set it (B-4)."""
        return ReplyAfterSync(tag, response)

    def _tombstone(self, record: LedgerRecord, now_ms: int) -> LedgerRecord:
        """Return the record that stays of a deleted ledger and locks its old writer out (B-6)."""
        return LedgerRecord(record.ledger_id, record.key, fenced=True, deleted=True, deleted_at_ms=now_ms)

    def _tombstone_expired(self, record: LedgerRecord, now_ms: int, keep_ms: int) -> bool:
        """Return True if the tombstone may go. It stays at least as long as an old writer could live (B-6)."""
        return record.deleted and now_ms - record.deleted_at_ms >= keep_ms

    def _without_entries(self, record: LedgerRecord) -> LedgerRecord:
        """Return the record of a closed ledger that left this bookie. It keeps its fence; re-replication may bring the ledger back with
        recovery adds (B-6, B-12)."""
        return LedgerRecord(record.ledger_id, record.key, fenced=True, last_add_confirmed=record.last_add_confirmed)

    def _key_fits(self, record: LedgerRecord, key: bytes) -> bool:
        """Return True if the key fits. The first key presented for a ledger is its key for ever (B-13; wire-protocol.md 8.1)."""
        return record.key is None or hmac.compare_digest(record.key, key)

    def _may_fence(self, request: ReadRequest | BatchReadRequest) -> bool:
        """Return True if the request may fence, which needs a key (B-13)."""
        return bool(request.master_key)

    # --- reads ----------------------------------------------------------------------------------------------------

    def _absent(self, record: LedgerRecord) -> Status:
        """Return the status for an entry that the index does not hold (B-7). In limbo nothing is ever denied (B-10, RC-25)."""
        return Status.UNKNOWN_LEDGER_STATE if record.limbo else Status.NO_ENTRY

    def _end_unknown(self, record: LedgerRecord) -> bool:
        """Return True if the ledger is in limbo, where neither the last entry nor the LAC is known (B-10, RC-25)."""
        return record.limbo

    def _unreadable(self) -> Status:
        """Return the status for damage, which is an error and never a denial (B-7)."""
        return Status.IO_ERROR

    # --- long polls -----------------------------------------------------------------------------------------------

    def _has_place(self, waiting: int) -> bool:
        """Return True if there is a place for one more poll. A poll too many is answered at once, as if its time were over (BKE-4)."""
        return waiting < self.polls_max

    def _longest_wait_ms(self, wanted_ms: int) -> int:
        """Return the longest wait of a poll. A poll may always be answered before its time (BKE-4)."""
        return min(wanted_ms, self.poll_ms_max)

    # --- data loss ------------------------------------------------------------------------------------------------

    def _lost(self, record: LedgerRecord) -> LedgerRecord:
        """Return the record after a loss. Entries and the fence may both be lost, so both are assumed to be (B-10, RC-26)."""
        return replace(record, fenced=True, limbo=True)
