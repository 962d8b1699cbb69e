"""The obligations of a bookie (B-1..B-13) as one small decision each. Nothing here reads storage or answers anybody."""

from __future__ import annotations

import hmac
from collections.abc import Hashable
from dataclasses import replace

from bk_core.protocol.bookie.records import Effect, LedgerRecord, ReplyAfterSync
from bk_core.protocol.bookie.runs import AddRunAnswer
from bk_core.protocol.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Response, Status

POLLS_MAX = 20_000  # long polls that wait at a bookie
POLL_MS_MAX = 300_000


class BookieRules:
    """The host sets at any time: ``read_only`` (B-11), ``accept_recovery_adds``, which says that there is reserve space meanwhile, and
    ``fence_unknown``, which says that there is some of the second reserve (BKE-3)."""

    read_only: bool
    accept_recovery_adds: bool
    fence_unknown: bool
    polls_max: int
    poll_ms_max: int

    # --- adds -----------------------------------------------------------------------------------------------------

    def _barred_by_fence(self, record: LedgerRecord, request: AddRequest) -> bool:
        """B-1: no regular add gets past a fence."""
        return record.fenced and not self._passes_fences(request)

    def _passes_fences(self, request: AddRequest) -> bool:
        """B-2: recovery adds do."""
        return request.recovery

    def _confirmation(self, tag: Hashable, response: Response | AddRunAnswer) -> Effect:
        """B-1: OK to an add, an explicit LAC or a force leaves only when what it confirms is durable."""
        return ReplyAfterSync(tag, response)

    def _after_add(self, record: LedgerRecord, key: bytes | None, entry_id: int, lac: int) -> LedgerRecord:
        """B-2, B-8, B-9: an add, whether regular, of recovery or repeated, leaves the fence and limbo marks as they are."""
        return LedgerRecord(  # for every add: dataclasses.replace takes three times as long
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
        """B-9: the LAC of a ledger never decreases."""
        return max(known, arrived)

    def _greater_id(self, known: int, added: int) -> int:
        """B-9: the last entry is the one with the highest id, not the one that came last."""
        return max(known, added)

    def _closed_to(self, request: AddRequest) -> bool:
        """B-11: a read-only bookie takes recovery adds of high priority while it has reserve space, and no other add."""
        return self.read_only and not (request.recovery and request.high_priority and self.accept_recovery_adds)

    # --- fences and keys ------------------------------------------------------------------------------------------

    def _to_be_fenced(self, ledger_id: int, record: LedgerRecord | None) -> LedgerRecord:
        """B-3: a ledger never heard of is fenced as well."""
        return record or LedgerRecord(ledger_id)

    def _may_make_record(self) -> bool:
        """BKE-3: on the last of the disk no record is made for a ledger never heard of; an error is no vote of a fence."""
        return self.fence_unknown

    def _fenced(self, record: LedgerRecord, key: bytes) -> LedgerRecord:
        """B-3, B-13: the mark, and the key pinned if there was none."""
        return record if record.fenced and record.key is not None else replace(record, key=key, fenced=True)

    def _fence_reply(self, tag: Hashable, response: Response) -> Effect:
        """B-4: whatever a fencing request is answered, it waits for the mark, also when an earlier request made it."""
        return ReplyAfterSync(tag, response)

    def _tombstone(self, record: LedgerRecord, now_ms: int) -> LedgerRecord:
        """B-6: what stays of a deleted ledger keeps its old writer out."""
        return LedgerRecord(record.ledger_id, record.key, fenced=True, deleted=True, deleted_at_ms=now_ms)

    def _tombstone_expired(self, record: LedgerRecord, now_ms: int, keep_ms: int) -> bool:
        """B-6: it stays at least as long as an old writer could live."""
        return record.deleted and now_ms - record.deleted_at_ms >= keep_ms

    def _without_entries(self, record: LedgerRecord) -> LedgerRecord:
        """B-6, B-12: a closed ledger that left this bookie keeps its fence; re-replication may bring it back with recovery adds."""
        return LedgerRecord(record.ledger_id, record.key, fenced=True, last_add_confirmed=record.last_add_confirmed)

    def _key_fits(self, record: LedgerRecord, key: bytes) -> bool:
        """B-13: the first key presented for a ledger is its key for ever (wire-protocol.md 8.1)."""
        return record.key is None or hmac.compare_digest(record.key, key)

    def _may_fence(self, request: ReadRequest | BatchReadRequest) -> bool:
        """B-13: not without a key."""
        return bool(request.master_key)

    # --- reads ----------------------------------------------------------------------------------------------------

    def _absent(self, record: LedgerRecord) -> Status:
        """The answer for an entry that the index does not hold (B-7); in limbo nothing is ever denied (B-10, RC-25)."""
        return Status.UNKNOWN_LEDGER_STATE if record.limbo else Status.NO_ENTRY

    def _end_unknown(self, record: LedgerRecord) -> bool:
        """B-10, RC-25: in limbo neither the last entry nor the LAC is known."""
        return record.limbo

    def _unreadable(self) -> Status:
        """B-7: damage is an error, never a negative."""
        return Status.IO_ERROR

    # --- long polls -----------------------------------------------------------------------------------------------

    def _has_place(self, waiting: int) -> bool:
        """BKE-4: a poll too many is answered at once, as when its time is over."""
        return waiting < self.polls_max

    def _longest_wait_ms(self, wanted_ms: int) -> int:
        """BKE-4: a poll may always be answered before its time."""
        return min(wanted_ms, self.poll_ms_max)

    # --- data loss ------------------------------------------------------------------------------------------------

    def _lost(self, record: LedgerRecord) -> LedgerRecord:
        """B-10, RC-26: entries and the fence may both be lost, so both are assumed."""
        return replace(record, fenced=True, limbo=True)
