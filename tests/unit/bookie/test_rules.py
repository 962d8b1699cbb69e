"""The promises of a bookie, one check per rule (replication-protocol.md 0.5), and that each check notices when its rule is broken.

These are the methods that break a rule when they are replaced; simulations use the same ones. They belong to BookieMachine unless said
otherwise (S: MemoryBookieStorage; F: a function of bk_core.protocol.bookie.loss).

    B-1     _barred_by_fence, _confirmation
    B-2     _passes_fences, _after_add
    B-3     _to_be_fenced, _fenced
    B-4     _fence_reply
    B-5     S._visible
    B-6     S._after_crash, _tombstone, _tombstone_expired, _without_entries
    B-7     _unreadable, S._read_body
    B-8     _refuse_add
    B-9     _greater_lac, _greater_id
    B-10    _absent, _end_unknown, _lost; F.after_loss
    B-11    _closed_to
    B-12    F.may_delete, F.is_member
    B-13    _key_fits, _may_fence
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bk_core.protocol.bookie import AfterLoss, BookieMachine, LedgerRecord, MemoryBookieStorage, Reply, ReplyAfterSync, loss
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.unit.bookie.host import KEY, OTHER, Bookie, L, add, body, fence, read, write_lac

Check = Callable[[Bookie], None]


def notices(monkeypatch: pytest.MonkeyPatch, check: Check, owner: Any, name: str, broken: Any) -> None:
    """``check`` passes as things are, and fails once ``name`` does what ``broken`` does."""
    check(Bookie())
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        check(Bookie())


# --- B-1 ----------------------------------------------------------------------------------------------------------


def check_b1(bookie: Bookie) -> None:
    """B-1: stored and confirmed only once durable; refused and not stored when fenced."""
    tag = bookie.send(add(0))
    assert tag not in bookie.sent
    bookie.sync()
    assert bookie.sent[tag].status is Status.OK
    bookie.crash()
    assert bookie.status(read(0)) is Status.OK
    bookie.ask(fence())
    assert bookie.status(add(1)) is Status.FENCED
    assert bookie.status(read(1)) is Status.NO_ENTRY


def test_b1(bookie: Bookie) -> None:
    """B-1."""
    check_b1(bookie)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_barred_by_fence", lambda self, record, request: False),
        ("_confirmation", lambda self, tag, response: Reply(tag, response)),
    ],
)
def test_breaking_b1_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    """B-1."""
    notices(monkeypatch, check_b1, BookieMachine, name, broken)


# --- B-2 ----------------------------------------------------------------------------------------------------------


def check_b2(bookie: Bookie) -> None:
    """B-2: recovery adds are stored whether fenced or not, and neither set nor clear the fence."""
    assert bookie.status(add(0, recovery=True)) is Status.OK
    assert bookie.status(add(1)) is Status.OK
    bookie.ask(fence())
    assert bookie.status(add(2, recovery=True)) is Status.OK
    assert bookie.ask(read(2)).body == body(2)
    assert bookie.status(add(3)) is Status.FENCED


def test_b2(bookie: Bookie) -> None:
    """B-2."""
    check_b2(bookie)


_after_add = BookieMachine._after_add


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_passes_fences", lambda self, request: False),
        ("_after_add", lambda self, *args: replace(_after_add(self, *args), fenced=False)),
        ("_after_add", lambda self, *args: replace(_after_add(self, *args), fenced=True)),
    ],
)
def test_breaking_b2_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    """B-2."""
    notices(monkeypatch, check_b2, BookieMachine, name, broken)


# --- B-3, B-4 -----------------------------------------------------------------------------------------------------


def check_b3(bookie: Bookie) -> None:
    """B-3: a ledger never heard of is fenced too, also by a read-only bookie."""
    bookie.machine.read_only, bookie.machine.accept_recovery_adds = True, False
    assert bookie.status(fence()) is Status.NO_ENTRY
    bookie.machine.read_only = False
    bookie.crash()
    assert bookie.status(add(0)) is Status.FENCED


def test_b3(bookie: Bookie) -> None:
    """B-3."""
    check_b3(bookie)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_to_be_fenced", lambda self, ledger_id, record: record or LedgerRecord(ledger_id, KEY, deleted=True)),
        ("_fenced", lambda self, record, key: replace(record, key=key, fenced=record.has_entries)),
    ],
)
def test_breaking_b3_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    """B-3."""
    notices(monkeypatch, check_b3, BookieMachine, name, broken)


def check_b4(bookie: Bookie) -> None:
    """B-4: no answer to a fencing request, positive or negative, first or second, before the mark is durable."""
    bookie.ask(add(0))
    tags = {bookie.send(fence(entry_id)) for entry_id in (-1, 0, 1, 0)}
    tags.add(bookie.send(fence(ledger_id=99)))
    tags.add(bookie.send(m.BatchReadRequest(1, L, 0, 9, 9, fence=True, master_key=KEY)))
    assert not tags & bookie.sent.keys()
    bookie.sync()
    assert tags <= bookie.sent.keys()


def test_b4(bookie: Bookie) -> None:
    """B-4."""
    check_b4(bookie)


def _negatives_at_once(self: BookieMachine, tag: Any, response: m.Response) -> Any:
    return ReplyAfterSync(tag, response) if response.status is Status.OK else Reply(tag, response)


def _positives_at_once(self: BookieMachine, tag: Any, response: m.Response) -> Any:
    return Reply(tag, response) if response.status is Status.OK else ReplyAfterSync(tag, response)


@pytest.mark.parametrize("broken", [_negatives_at_once, _positives_at_once])
def test_breaking_b4_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    """B-4."""
    notices(monkeypatch, check_b4, BookieMachine, "_fence_reply", broken)


# --- B-5 ----------------------------------------------------------------------------------------------------------


def check_b5(bookie: Bookie) -> None:
    """B-5: an add admitted before the fence is seen by the fence read, though neither is durable; one after it is not admitted."""
    added, fenced, late = bookie.send(add(0)), bookie.send(fence()), bookie.send(add(1))
    bookie.sync()
    assert bookie.sent[added].status is Status.OK
    assert bookie.sent[fenced] == m.ReadResponse(1, Status.OK, L, -1, body(0))
    assert bookie.sent[late].status is Status.FENCED


def test_b5(bookie: Bookie) -> None:
    """B-5."""
    check_b5(bookie)


def test_breaking_b5_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-5."""
    notices(monkeypatch, check_b5, MemoryBookieStorage, "_visible", lambda self: self._durable)


# --- B-6 ----------------------------------------------------------------------------------------------------------


def check_b6(bookie: Bookie) -> None:
    """B-6: a fence survives restart, garbage collection of either kind, and deletion for as long as tombstones are kept."""
    for ledger_id in (L, 8):
        bookie.ask(add(0, ledger_id=ledger_id))
        bookie.ask(fence(ledger_id=ledger_id))
    bookie.crash()
    assert bookie.status(add(1)) is Status.FENCED
    bookie.perform(bookie.machine.collect_moved(8))
    bookie.collect()
    bookie.crash()
    for ledger_id in (L, 8):
        assert bookie.status(add(1, ledger_id=ledger_id)) is Status.FENCED
    bookie.now += 999
    bookie.perform(bookie.machine.forget_tombstone(L, bookie.now, 1000))
    assert bookie.status(add(1)) is Status.FENCED


def test_b6(bookie: Bookie) -> None:
    """B-6."""
    check_b6(bookie)


def _without_fences(self: MemoryBookieStorage, durable: Any) -> Any:
    durable.records = {ledger_id: replace(record, fenced=False) for ledger_id, record in durable.records.items()}
    return durable


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (MemoryBookieStorage, "_after_crash", _without_fences),
        (BookieMachine, "_tombstone", lambda self, record, now_ms: LedgerRecord(record.ledger_id, record.key)),
        (BookieMachine, "_without_entries", lambda self, record: LedgerRecord(record.ledger_id, record.key)),
        (BookieMachine, "_tombstone_expired", lambda self, record, now_ms, keep_ms: record.deleted),
    ],
)
def test_breaking_b6_is_noticed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any) -> None:
    """B-6."""
    notices(monkeypatch, check_b6, owner, name, broken)


def test_losing_fences_is_noticed(bookie: Bookie) -> None:
    """B-6: what ``lose_fences`` takes is what the rule keeps."""
    bookie.ask(fence())
    bookie.storage.lose_fences()
    assert bookie.status(add(0)) is Status.OK


def test_tombstones_do_not_stay_for_ever(bookie: Bookie) -> None:
    """B-6 asks for a time, not for eternity."""
    bookie.ask(add(0))
    assert bookie.machine.forget_tombstone(L, bookie.now + 10_000, 1000) == []  # not deleted at all
    bookie.collect()
    assert bookie.storage.tombstone_ids() == [L]
    bookie.now += 1000
    bookie.perform(bookie.machine.forget_tombstone(L, bookie.now, 1000))
    bookie.sync()
    bookie.crash()
    assert bookie.storage.tombstone_ids() == [] and bookie.storage.ledger(L) is None
    assert bookie.machine.forget_tombstone(L, bookie.now, 1000) == []


# --- B-7 ----------------------------------------------------------------------------------------------------------


def check_b7(bookie: Bookie) -> None:
    """B-7: an entry that the index holds and that cannot be read is never denied; one it does not hold is."""
    for entry_id in range(3):
        bookie.ask(add(entry_id))
    bookie.storage.damage(L, 2)
    requests = (read(2), read(-1), fence(2), fence(), m.ReadLacRequest(1, L), m.BatchReadRequest(1, L, 2, 9, 9))
    assert {bookie.status(request) for request in requests} == {Status.IO_ERROR}
    assert len(bookie.ask(m.BatchReadRequest(1, L, 0, 9, 1 << 20)).bodies) == 2 * (4 + len(body(0)))  # ends before the damage
    assert {bookie.status(read(3)), bookie.status(fence(3))} == {Status.NO_ENTRY}


def test_b7(bookie: Bookie) -> None:
    """B-7."""
    check_b7(bookie)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (BookieMachine, "_unreadable", lambda self: Status.NO_ENTRY),
        (MemoryBookieStorage, "_read_body", lambda self, ledger_id, entry_id, body: None),
    ],
)
def test_breaking_b7_is_noticed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any) -> None:
    """B-7."""
    notices(monkeypatch, check_b7, owner, name, broken)


# --- B-8, B-9 -----------------------------------------------------------------------------------------------------


def check_b8(bookie: Bookie) -> None:
    """B-8: an id may be added again, with another LAC in its header, before and after a restart."""
    assert bookie.status(add(0)) is Status.OK
    assert bookie.status(add(0, lac=5)) is Status.OK
    bookie.crash()
    assert bookie.status(add(0)) is Status.OK
    assert bookie.status(read(0)) is Status.OK
    assert bookie.storage.entry_ids(L) == [0]


def test_b8(bookie: Bookie) -> None:
    """B-8."""
    check_b8(bookie)


_refuse_add = BookieMachine._refuse_add


def _refuse_known_ids(self: BookieMachine, request: m.AddRequest, record: LedgerRecord | None) -> Status | None:
    known = record is not None and self._storage.entry(request.ledger_id, request.entry_id) is not None
    return Status.BAD_REQUEST if known else _refuse_add(self, request, record)


def test_breaking_b8_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-8."""
    notices(monkeypatch, check_b8, BookieMachine, "_refuse_add", _refuse_known_ids)


def check_b9(bookie: Bookie) -> None:
    """B-9: the LAC is the greatest ever seen in an add or explicit LAC, and the last entry the one with the highest id."""
    bookie.ask(add(9, lac=8))
    bookie.ask(add(3, lac=1))
    bookie.ask(write_lac(2))
    assert (bookie.ask(read(-1)).body, bookie.ask(read(3)).max_lac) == (body(9, 8), 8)
    bookie.ask(write_lac(12))
    bookie.ask(add(10, lac=9))
    bookie.crash()
    assert (bookie.ask(read(-1)).body, bookie.ask(read(3)).max_lac) == (body(10, 9), 12)
    assert bookie.ask(m.ReadLacRequest(1, L)).last_entry_body == body(10, 9)


def test_b9(bookie: Bookie) -> None:
    """B-9."""
    check_b9(bookie)


@pytest.mark.parametrize("name", ["_greater_lac", "_greater_id"])
def test_breaking_b9_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """B-9."""
    notices(monkeypatch, check_b9, BookieMachine, name, lambda self, known, arrived: arrived)


# --- B-10 ---------------------------------------------------------------------------------------------------------

OPEN = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d"))))
CLOSED = OPEN.closed(8, 800)


def check_b10(bookie: Bookie) -> None:
    """B-10, RC-25: after a loss nothing absent is denied, the end is unknown, what is here is served, and the fence is set."""
    bookie.ask(add(0))
    bookie.lose_everything(L, 8)
    assert bookie.status(add(1)) is Status.FENCED
    assert bookie.status(add(1, recovery=True)) is Status.OK
    assert bookie.ask(read(1)).body == body(1)
    batch = m.BatchReadRequest(1, L, 0, 9, 9)
    unknown = [read(0), read(2), read(-1), fence(), fence(0), fence(ledger_id=8), m.ReadLacRequest(1, L), m.EntryListRequest(1, L), batch]
    for request in unknown:
        assert bookie.status(request) is Status.UNKNOWN_LEDGER_STATE
    bookie.perform(bookie.machine.leave_limbo(L))
    bookie.sync()
    bookie.crash()
    assert bookie.status(read(0)) is Status.NO_ENTRY
    assert bookie.status(add(2)) is Status.FENCED
    assert bookie.storage.limbo_ids() == [8]


def check_rc26(_bookie: Bookie) -> None:
    """B-10, RC-26: limbo for every ledger that is not CLOSED and whose last fragment names the bookie; the fence for closed ones too."""
    assert [loss.after_loss(OPEN, bookie) for bookie in "abcd"] == [
        AfterLoss.LIMBO,
        AfterLoss.LIMBO,
        AfterLoss.NOTHING,
        AfterLoss.LIMBO,
    ]
    assert loss.after_loss(OPEN.in_recovery(), "d") is AfterLoss.LIMBO
    assert [loss.after_loss(CLOSED, bookie) for bookie in "cdx"] == [AfterLoss.FENCE] * 3  # a recovery may have replaced x
    assert loss.after_loss(None, "x") is AfterLoss.LIMBO


@pytest.mark.parametrize("check", [check_b10, check_rc26])
def test_b10(bookie: Bookie, check: Check) -> None:
    """B-10, RC-25, RC-26."""
    check(bookie)


@pytest.mark.parametrize(
    ("check", "owner", "name", "broken"),
    [
        (check_b10, BookieMachine, "_absent", lambda self, record: Status.NO_ENTRY),
        (check_b10, BookieMachine, "_end_unknown", lambda self, record: False),
        (check_b10, BookieMachine, "_lost", lambda self, record: replace(record, fenced=True)),
        (check_b10, BookieMachine, "_lost", lambda self, record: replace(record, limbo=True)),
        (check_rc26, loss, "after_loss", lambda metadata, bookie: AfterLoss.FENCE),
        (check_rc26, loss, "after_loss", lambda metadata, bookie: AfterLoss.LIMBO),
    ],
)
def test_breaking_b10_is_noticed(monkeypatch: pytest.MonkeyPatch, check: Check, owner: Any, name: str, broken: Any) -> None:
    """B-10, RC-25, RC-26."""
    notices(monkeypatch, check, owner, name, broken)


# --- B-11, B-12, B-13 ---------------------------------------------------------------------------------------------


def check_b11(bookie: Bookie) -> None:
    """B-11: read-only refuses regular adds, and takes recovery adds of high priority while there is reserve space."""
    bookie.machine.read_only = True
    refused = (add(0), add(0, high_priority=True), add(0, recovery=True))
    assert {bookie.status(request) for request in refused} == {Status.READ_ONLY}
    assert bookie.status(add(0, recovery=True, high_priority=True)) is Status.OK
    bookie.machine.accept_recovery_adds = False
    assert bookie.status(add(1, recovery=True, high_priority=True)) is Status.READ_ONLY
    assert bookie.status(read(0)) is Status.OK


def test_b11(bookie: Bookie) -> None:
    """B-11."""
    check_b11(bookie)


@pytest.mark.parametrize("broken", [lambda self, request: False, lambda self, request: self.read_only])
def test_breaking_b11_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    """B-11."""
    notices(monkeypatch, check_b11, BookieMachine, "_closed_to", broken)


def check_b12(_bookie: Bookie) -> None:
    """B-12: deleted ledgers; closed ones elsewhere, under the replication lock; never one that is not closed."""
    assert loss.may_delete(None, "x", lock_held=False)
    assert loss.may_delete(CLOSED, "x", lock_held=True)
    assert not loss.may_delete(CLOSED, "x", lock_held=False)
    assert not any(loss.may_delete(metadata, "x", lock_held=True) for metadata in (OPEN, OPEN.in_recovery()))
    assert not any(loss.may_delete(CLOSED, bookie, lock_held=True) for bookie in "abcd")


def test_b12(bookie: Bookie) -> None:
    """B-12."""
    check_b12(bookie)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("is_member", lambda metadata, bookie: bookie in metadata.last_fragment.ensemble),
        ("may_delete", lambda metadata, bookie, lock_held: metadata is None or not loss.is_member(metadata, bookie)),
        ("may_delete", lambda metadata, bookie, lock_held: metadata is None or metadata.state is LedgerState.CLOSED),
    ],
)
def test_breaking_b12_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    """B-12."""
    notices(monkeypatch, check_b12, loss, name, broken)


def check_b13(bookie: Bookie) -> None:
    """B-13: adds, recovery adds and fences need the ledger's key; a fence needs one even for an unknown ledger."""
    assert bookie.status(fence(key=b"")) is Status.UNAUTHORIZED
    assert bookie.status(read(0)) is Status.NO_LEDGER
    bookie.ask(add(0))
    bookie.crash()
    wrong = (add(1, key=OTHER), add(1, key=OTHER, recovery=True), fence(key=OTHER), write_lac(0, OTHER))
    assert {bookie.status(request) for request in wrong} == {Status.UNAUTHORIZED}
    assert bookie.status(add(1)) is Status.OK  # none of them fenced


def test_b13(bookie: Bookie) -> None:
    """B-13."""
    check_b13(bookie)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_key_fits", lambda self, record, key: True),
        ("_may_fence", lambda self, request: True),
    ],
)
def test_breaking_b13_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    """B-13."""
    notices(monkeypatch, check_b13, BookieMachine, name, broken)
