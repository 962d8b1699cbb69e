"""The defects that bookies have had before (replication-protocol.md 14) and the bookie's half of the fault scenarios (13.3)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie import storage as lmdb_storage
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.protocol.bookie import BookieMachine, LedgerRecord, Persist, Reply
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.unit.bookie.host import KEY, Bookie, L, add, body, fence, poll, read, write_lac

# --- replication-protocol.md 14.1 -------------------------------------------------------------------------------------


def test_14_1_3_no_negative_answer_outlives_its_fence(bookie: Bookie) -> None:
    """B-4 (replication-protocol.md 14.1 item 3; scenarios 5 and 6): either the negative answer has left and the mark is there, or
    neither."""
    bookie.ask(add(0))
    asked = bookie.send(fence(1))
    bookie.crash()
    assert asked not in bookie.sent  # the client times out, nothing was promised
    assert bookie.status(add(1)) is Status.OK
    asked = bookie.send(fence(2))
    bookie.sync()
    assert bookie.sent[asked].status is Status.NO_ENTRY
    bookie.crash()
    assert bookie.status(add(2)) is Status.FENCED


# --- replication-protocol.md 14.2 -------------------------------------------------------------------------------------


def test_r19_a_fenced_bookie_takes_copies(bookie: Bookie) -> None:
    """R19, B-2, B-11: re-replication and recovery write with the recovery flag, to fenced and to read-only bookies."""
    bookie.ask(fence())
    assert bookie.status(add(0)) is Status.FENCED
    assert bookie.status(add(0, recovery=True)) is Status.OK
    bookie.machine.read_only = True
    assert bookie.status(add(1, recovery=True, high_priority=True)) is Status.OK
    bookie.crash()
    assert [bookie.ask(read(entry_id)).body for entry_id in (0, 1)] == [body(0), body(1)]


def test_r20_fences_survive_restart_and_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R20, B-6: a fence is not something that a cache may forget, with entries or without, committed by another batch or not."""
    monkeypatch.setattr(lmdb_storage, "RECORD_CACHE_MAX", 2)
    storage = LmdbBookieStorage(tmp_path)
    bookie = Bookie(storage)  # type: ignore[arg-type]
    for ledger_id in range(20):
        if ledger_id % 2:
            bookie.ask(add(0, ledger_id=ledger_id))
        bookie.ask(fence(ledger_id=ledger_id))
    assert {bookie.status(add(1, ledger_id=ledger_id)) for ledger_id in range(20)} == {Status.FENCED}
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    bookie = Bookie(storage)  # type: ignore[arg-type]
    assert {bookie.status(add(1, ledger_id=ledger_id)) for ledger_id in range(20)} == {Status.FENCED}
    storage.close()


def test_r21_fences_on_a_full_or_read_only_bookie(bookie: Bookie) -> None:
    """R21, B-3, B-4: never refused, and of two concurrent ones the second waits for the mark of the first."""
    bookie.machine.read_only, bookie.machine.accept_recovery_adds = True, False
    first, second = bookie.send(fence()), bookie.send(fence(0))
    assert not {first, second} & bookie.sent.keys()
    bookie.sync()
    assert {bookie.sent[first].status, bookie.sent[second].status} == {Status.NO_ENTRY}
    bookie.machine.read_only = False
    bookie.crash()
    assert bookie.status(add(0)) is Status.FENCED


@pytest.mark.parametrize("fenced_before", [True, False])
def test_r22_a_deleted_ledger_takes_no_writes(bookie: Bookie, fenced_before: bool) -> None:
    """R22, B-6 (scenario 40): a late add of any kind finds a fence, after a restart as well. A fence of it gets a lasting negative."""
    bookie.ask(add(0))
    if fenced_before:
        bookie.ask(fence())
    bookie.collect()
    bookie.crash()
    assert {bookie.status(add(0)), bookie.status(add(1)), bookie.status(add(2, recovery=True))} == {Status.FENCED}
    tag = bookie.send(fence())
    bookie.sync()
    assert bookie.sent[tag].status is Status.NO_LEDGER
    assert bookie.storage.entry_ids(L) == []


def test_r23_unreadable_is_not_absent(bookie: Bookie) -> None:
    """R23, B-7 (scenario 36): recovery that asks for a damaged entry hears of an error; storing the entry again repairs it."""
    for entry_id in range(2):
        bookie.ask(add(entry_id))
    bookie.storage.damage(L, 1)
    assert bookie.status(fence()) is Status.IO_ERROR
    assert bookie.status(fence(1)) is Status.IO_ERROR
    assert bookie.status(fence(2)) is Status.NO_ENTRY  # the index is sound
    assert bookie.status(add(2)) is Status.FENCED
    assert bookie.status(add(1, recovery=True)) is Status.OK
    assert bookie.ask(read(1)).body == body(1)


def test_r24_back_without_its_data(bookie: Bookie) -> None:
    """R24, B-10 (scenarios 7 and 10): the writer is stopped, the recoverer hears "unknown" and never "no"."""
    for entry_id in range(3):
        bookie.ask(add(entry_id))
    bookie.lose_everything(L)
    assert bookie.status(add(3)) is Status.FENCED
    assert {bookie.status(fence(entry_id)) for entry_id in (-1, 0, 1, 2, 3)} == {Status.UNKNOWN_LEDGER_STATE}
    bookie.ask(add(1, recovery=True))
    assert bookie.ask(fence(1)).body == body(1)
    bookie.crash()
    assert bookie.status(fence(2)) is Status.UNKNOWN_LEDGER_STATE


def test_r24_what_limbo_and_the_fence_on_boot_are_for(bookie: Bookie) -> None:
    """R24, B-10 (scenarios 8 and 9): without limbo the acked entry is denied; without the fence a late add is taken after a denial."""
    bookie.ask(add(0))
    bookie.lose_everything()
    assert bookie.status(read(0)) is Status.NO_LEDGER
    bookie = Bookie()
    assert bookie.status(fence()) is Status.NO_ENTRY  # part of a verdict that entry 0 does not exist
    bookie.lose_everything()
    assert bookie.status(add(0)) is Status.OK


def test_r30_a_fenced_ledger_does_not_make_polls_spin(bookie: Bookie) -> None:
    """R30, LC-5: the fence ends a wait once, when it is set; polls that come later wait for their time or for the LAC."""
    bookie.ask(add(0))
    waiting = bookie.send(poll(0))
    bookie.send(fence())
    assert bookie.sent[waiting].status is Status.OK
    for _ in range(3):
        later = bookie.send(poll(0, 500))
        bookie.ask(fence())
        assert later not in bookie.sent
        bookie.now += 500
        bookie.perform(bookie.machine.wake(bookie.now))
        assert bookie.sent[later].max_lac == -1
    last = bookie.send(poll(0))
    bookie.ask(add(2, lac=1, recovery=True))
    assert bookie.sent[last].max_lac == 1


# --- replication-protocol.md 13.3 -------------------------------------------------------------------------------------


def test_scenario_4_crash_in_mid_write(bookie: Bookie) -> None:
    """B-1, B-6: an acknowledged add and the fence survive; what was not acknowledged may or may not be there."""
    for entry_id in range(4):
        bookie.ask(add(entry_id))
    bookie.send(add(4))
    bookie.send(add(5))
    bookie.storage.sync(1)
    bookie.crash()
    assert bookie.storage.entry_ids(L) == [0, 1, 2, 3, 4]
    assert bookie.status(add(5)) is Status.OK


# --- limbo, in detail ---------------------------------------------------------------------------------------------


def test_limbo_and_polls(bookie: Bookie) -> None:
    """B-10, RC-25: no poll waits for a LAC that is unknown; the next entry is given if it is here."""
    bookie.lose_everything(L)
    assert bookie.sent[bookie.send(poll(-1))].status is Status.UNKNOWN_LEDGER_STATE
    assert bookie.sent[bookie.send(poll(-1, piggyback=False))].status is Status.UNKNOWN_LEDGER_STATE
    bookie.ask(add(0, recovery=True))
    bookie.ask(add(1, lac=0, recovery=True))
    assert bookie.sent[bookie.send(poll(-1))] == m.ReadResponse(1, Status.OK, L, 0, body(0), 0)
    assert bookie.sent[bookie.send(poll(0))].status is Status.UNKNOWN_LEDGER_STATE
    assert bookie.sent[bookie.send(poll(-1, piggyback=False))].status is Status.UNKNOWN_LEDGER_STATE


def test_limbo_keeps_keys_and_tombstones(bookie: Bookie) -> None:
    """B-10, B-13, B-6: marks are added to what is known; the key of a ledger of which nothing is known is pinned by the next request."""
    bookie.ask(add(0))
    bookie.ask(add(0, ledger_id=8))
    bookie.collect(8)
    bookie.perform(bookie.machine.enter_limbo([L, 8, 9, 10], {L: b"not asked for", 10: KEY}))
    bookie.sync()
    assert bookie.machine.enter_limbo([L, 8, 9, 10]) == []
    assert bookie.storage.limbo_ids() == [L, 9, 10]
    assert bookie.status(fence(ledger_id=10, key=b"x" * 20)) is Status.UNAUTHORIZED
    assert bookie.status(fence(key=b"x" * 20)) is Status.UNAUTHORIZED
    assert bookie.status(fence(ledger_id=9)) is Status.UNKNOWN_LEDGER_STATE
    assert bookie.status(fence(ledger_id=9, key=b"x" * 20)) is Status.UNAUTHORIZED
    assert bookie.machine.leave_limbo(8) == [] and bookie.machine.leave_limbo(99) == []


def test_closed_ledgers_are_fenced_after_a_loss(bookie: Bookie) -> None:
    """B-10: a verdict of the closed ledger may rest on a fence that was lost, so a late regular add must not be taken."""
    bookie.collect(8)
    bookie.ask(add(0, ledger_id=8))
    bookie.collect(8)
    bookie.perform(bookie.machine.fence_closed([L, 8]))
    bookie.sync()
    assert bookie.machine.fence_closed([L, 8]) == []
    assert bookie.status(add(0)) is Status.FENCED
    assert bookie.status(read(0)) is Status.NO_ENTRY
    assert bookie.status(add(0, recovery=True)) is Status.OK


def test_rc27_missing_and_restored_entries(bookie: Bookie) -> None:
    """RC-27, B-2, B-13: what is absent or damaged is missing; what is restored keeps marks and key; deleted ledgers stay deleted."""
    bookie.ask(add(0))
    bookie.ask(add(1))
    bookie.storage.damage(L, 1)
    bookie.perform(bookie.machine.enter_limbo([L]))
    assert bookie.machine.missing(L, range(4)) == [1, 2, 3]
    assert bookie.machine.missing(8, range(2)) == [0, 1]
    for entry_id in (1, 2):
        bookie.perform(bookie.machine.restore(L, entry_id, body(entry_id, lac=entry_id - 1), b"another key"))
    bookie.perform(bookie.machine.restore(8, 0, body(0, ledger_id=8), KEY))
    bookie.sync()
    assert bookie.machine.missing(L, range(4)) == [3]
    assert bookie.storage.ledger(L) == LedgerRecord(L, KEY, True, True, False, 1, 2)
    assert bookie.storage.ledger(8) == LedgerRecord(8, KEY, last_entry_id=0)
    bookie.collect(8)
    assert bookie.machine.missing(8, range(2)) == []
    assert bookie.machine.restore(8, 0, body(0, ledger_id=8), KEY) == []


def test_a_damaged_record_is_among_the_losses(tmp_path: Path) -> None:
    """B-7, B-10: errors until the loss is accepted, then limbo like the rest."""

    class Damaged(lmdb_storage.LmdbBookieStorage):
        broken = True

        def ledger(self, ledger_id: int) -> LedgerRecord | None:
            if self.broken:
                raise lmdb_storage.BookieIOError("damaged ledger record")
            return super().ledger(ledger_id)

    storage = Damaged(tmp_path)
    storage.apply(Persist(LedgerRecord(L, KEY, last_entry_id=2), 2, body(2)))
    bookie = Bookie(storage)  # type: ignore[arg-type]
    assert {bookie.status(add(0)), bookie.status(fence()), bookie.status(write_lac(0)), bookie.status(poll(0))} == {Status.IO_ERROR}
    bookie.perform(bookie.machine.enter_limbo([L]))
    bookie.perform(bookie.machine.fence_closed([8]))
    storage.broken = False
    bookie.sync()
    assert bookie.status(read(0)) is Status.UNKNOWN_LEDGER_STATE
    assert bookie.ask(read(2)).body == body(2)
    assert bookie.machine.missing(L, range(4)) == [0, 1, 3]
    assert bookie.status(add(0, ledger_id=8)) is Status.FENCED
    storage.close()


# --- collection ---------------------------------------------------------------------------------------------------


def test_collecting_what_moved_away(bookie: Bookie) -> None:
    """B-12, B-6: entries and limbo go, the fence stays or is set, the ledger may come back with recovery adds."""
    bookie.ask(add(0))
    bookie.perform(bookie.machine.enter_limbo([L]))
    assert bookie.machine.holds_moved(L)
    bookie.perform(bookie.machine.collect_moved(L))
    bookie.sync()
    assert bookie.machine.collect_moved(L) == [] and bookie.machine.collect_moved(99) == []
    assert not bookie.machine.holds_moved(L) and not bookie.machine.holds_moved(99)
    assert bookie.status(read(0)) is Status.NO_ENTRY
    assert bookie.status(add(1)) is Status.FENCED
    assert bookie.status(add(1, recovery=True)) is Status.OK
    bookie.perform(bookie.machine.collect_moved(L))
    bookie.collect()
    assert bookie.machine.collect_moved(L) == []


def test_collection_ends_polls(bookie: Bookie) -> None:
    bookie.ask(add(0))
    waiting = bookie.send(poll(5))
    bookie.perform(bookie.machine.collect_moved(L))
    assert bookie.sent[waiting].status is Status.NO_LEDGER


# --- polls and damage ---------------------------------------------------------------------------------------------


def test_polls_whose_answer_cannot_be_read(bookie: Bookie) -> None:
    """B-7 for an answer that was waited for."""
    bookie.ask(add(0))
    waiting = bookie.send(poll(-1))
    bookie.storage.damage(L, 0)
    bookie.ask(write_lac(0))
    assert bookie.sent[waiting].status is Status.IO_ERROR


def test_a_poll_of_a_ledger_that_was_forgotten(bookie: Bookie) -> None:
    bookie.ask(add(0))
    waiting = bookie.send(poll(5, 10))
    bookie.storage.apply(Persist(LedgerRecord(L), drop_entries=True, forget=True))
    bookie.now += 10
    bookie.perform(bookie.machine.wake(bookie.now))
    assert bookie.sent[waiting].status is Status.NO_LEDGER


def test_a_batch_read_ends_before_damage_and_begins_with_its_error(bookie: Bookie) -> None:
    """B-7; wire-protocol.md 8.5."""
    for entry_id in range(3):
        bookie.ask(add(entry_id))
    bookie.storage.damage(L, 1)
    assert len(bookie.ask(m.BatchReadRequest(1, L, 0, 0, 1 << 20)).bodies) == 4 + len(body(0))
    assert bookie.status(m.BatchReadRequest(1, L, 1, 0, 1 << 20)) is Status.IO_ERROR
    assert bookie.status(m.BatchReadRequest(1, L, 1, 0, 1 << 20, fence=True, master_key=KEY)) is Status.IO_ERROR


def test_explicit_lac_on_a_fenced_ledger_keeps_the_fence(bookie: Bookie) -> None:
    """B-6, B-9."""
    bookie.ask(fence())
    assert bookie.status(write_lac(4)) is Status.OK
    assert bookie.status(add(0)) is Status.FENCED


@pytest.mark.parametrize(
    "request_",
    [
        m.AuthRequest(1, "x", b""),
        m.BookieInfoRequest(1),
        m.EntryListRequest(1, L),
        m.StartTlsRequest(1),
        m.ForceLedgerRequest(1, L),
        m.ReadLacRequest(1, L),
        m.UnservedRequest(1, 4, 3, Status.BAD_REQUEST),
    ],
)
def test_every_request_has_a_refusal(monkeypatch: pytest.MonkeyPatch, bookie: Bookie, request_: Any) -> None:
    """B-7: whatever was asked, trouble with the storage is answered and is no negative."""

    def fail(*_: Any) -> Any:
        raise lmdb_storage.BookieIOError("no disk")

    monkeypatch.setattr(BookieMachine, "_handle", fail)
    (effect,) = bookie.machine.handle("tag", request_, 0)
    assert isinstance(effect, Reply)
    assert effect.response.status is Status.IO_ERROR and effect.response.request_id == 1


def test_memory_storage_disk(bookie: Bookie) -> None:
    bookie.ask(add(0))
    assert bookie.ask(m.BookieInfoRequest(1, 2)).free_disk_bytes == (1 << 30) - len(body(0))
    assert replace(LedgerRecord(L), last_entry_id=0).has_entries


def test_a_poll_is_given_an_entry_of_the_very_add_that_woke_it(bookie: Bookie) -> None:
    """wire-protocol.md 8.7: entry p + 1 may arrive with a LAC that covers it, when a recoverer writes it back."""
    bookie.ask(add(0))
    waiting = bookie.send(poll(0))
    bookie.send(add(1, lac=3, recovery=True))
    assert bookie.sent[waiting] == m.ReadResponse(1, Status.OK, L, 1, body(1, lac=3), 3, bookie.now)
