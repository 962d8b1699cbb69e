"""Rules of one bookie, one by one (replication-protocol.md 0.5, wire-protocol.md 8)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie import LedgerRecord, MemoryBookieStorage, Persist, io_error
from bk_core.protocol.bookie.listing import EntryListEncoder
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.unit.bookie.host import KEY, OTHER, Bookie, L, add, body, fence, lac_packet, poll, read, write_lac

# --- adds ---------------------------------------------------------------------------------------------------------


def test_b1_add_is_answered_only_once_durable(bookie: Bookie) -> None:
    tag = bookie.send(add(0))
    assert tag not in bookie.sent
    assert bookie.ask(read(0)).status is Status.OK
    assert bookie.sent[tag] == m.AddResponse(1, Status.OK, L, 0)
    bookie.crash()
    assert bookie.ask(read(0)).body == body(0)


def test_b1_unsynced_add_is_lost_and_never_answered(bookie: Bookie) -> None:
    tag = bookie.send(add(0))
    bookie.crash()
    bookie.sync()
    assert tag not in bookie.sent
    assert bookie.ask(read(0)).status is Status.NO_LEDGER


def test_b1_plain_add_on_fenced_ledger(bookie: Bookie) -> None:
    bookie.ask(add(0))
    bookie.ask(fence())
    assert bookie.ask(add(0)).status is Status.FENCED
    assert bookie.ask(add(1)).status is Status.FENCED
    assert bookie.ask(read(1)).status is Status.NO_ENTRY


def test_b2_recovery_add_passes_and_keeps_the_flag(bookie: Bookie) -> None:
    assert bookie.ask(add(0, recovery=True)).status is Status.OK
    assert bookie.ask(add(1)).status is Status.OK
    bookie.ask(fence())
    assert bookie.ask(add(2, recovery=True)).status is Status.OK
    assert bookie.ask(add(3)).status is Status.FENCED


def test_b8_readd_and_gaps(bookie: Bookie) -> None:
    for entry_id in (5, 2, 5):
        assert bookie.ask(add(entry_id)).status is Status.OK
    assert bookie.ask(read(3)).status is Status.NO_ENTRY
    assert bookie.ask(read(-1)).body == body(5)


def test_b9_lac_never_decreases_and_minus_one_is_the_highest(bookie: Bookie) -> None:
    bookie.ask(add(9, lac=8))
    bookie.ask(add(3, lac=1))
    answer = bookie.ask(read(-1))
    assert (answer.entry_id, answer.body, answer.max_lac) == (-1, body(9, 8), 8)
    bookie.ask(write_lac(2))
    assert bookie.ask(read(3)).max_lac == 8
    bookie.crash()
    assert bookie.ask(read(3)).max_lac == 8


@pytest.mark.parametrize(
    "request_",
    [
        add(0, ledger_id=-1),
        add(-1),
        add(-0x1000),
        add(0, data=b"x" * 23),
        add(0, data=body(1)),
        add(0, data=body(0, ledger_id=8)),
        fence(ledger_id=-1),
        m.WriteLacRequest(1, -1, 0, KEY, lac_packet(0, -1)),
        m.WriteLacRequest(1, L, 0, KEY, b"x" * 15),
        m.WriteLacRequest(1, L, 0, KEY, lac_packet(0, 8)),
    ],
)
def test_bad_requests_change_nothing(bookie: Bookie, request_: m.Request) -> None:
    assert bookie.ask(request_).status is Status.BAD_REQUEST
    assert bookie.storage.position == 0


def test_shortest_body_is_stored(bookie: Bookie) -> None:
    assert bookie.ask(add(0, data=body(0)[:24])).status is Status.OK
    assert bookie.ask(read(0)).body == body(0)[:24]


def test_b11_read_only(bookie: Bookie) -> None:
    bookie.machine.read_only = True
    assert bookie.ask(add(0)).status is Status.READ_ONLY
    assert bookie.ask(add(0, high_priority=True)).status is Status.READ_ONLY
    assert bookie.ask(add(0, recovery=True)).status is Status.READ_ONLY
    assert bookie.ask(write_lac(0)).status is Status.READ_ONLY
    assert bookie.ask(add(0, recovery=True, high_priority=True)).status is Status.OK
    bookie.machine.accept_recovery_adds = False
    assert bookie.ask(add(1, recovery=True, high_priority=True)).status is Status.READ_ONLY
    assert bookie.ask(fence(ledger_id=99)).status is Status.NO_ENTRY  # B-3
    assert bookie.ask(m.ForceLedgerRequest(1, L)).status is Status.OK


# --- fences and keys ------------------------------------------------------------------------------------------------


def test_b3_fence_of_unknown_ledger_creates_it(bookie: Bookie) -> None:
    assert bookie.ask(fence(ledger_id=1)).status is Status.NO_ENTRY
    assert bookie.ask(read(0, ledger_id=1)).status is Status.NO_ENTRY
    bookie.crash()
    assert bookie.ask(add(0, ledger_id=1)).status is Status.FENCED
    assert bookie.ask(add(0, ledger_id=1, key=OTHER)).status is Status.UNAUTHORIZED


@pytest.mark.parametrize("entry_id", [-1, 0, 5, -2])
def test_b4_every_fence_answer_waits(bookie: Bookie, entry_id: int) -> None:
    bookie.ask(add(0))
    first, second = bookie.send(fence(entry_id)), bookie.send(fence(entry_id))
    unknown = bookie.send(fence(entry_id, ledger_id=99))
    assert not {first, second, unknown} & bookie.sent.keys()
    assert bookie.ask(add(1)).status is Status.FENCED  # in memory at once
    assert {first, second, unknown} <= bookie.sent.keys()


def test_b4_batch_fence_waits(bookie: Bookie) -> None:
    request = m.BatchReadRequest(3, L, 0, 10, 1000, fence=True, master_key=KEY)
    tag = bookie.send(request)
    assert tag not in bookie.sent
    bookie.sync()
    assert bookie.sent[tag] == m.BatchReadResponse(3, Status.NO_ENTRY, L, 0)
    assert bookie.ask(add(0)).status is Status.FENCED


def test_b4_failed_sync_takes_everything_back() -> None:
    answer = m.ReadResponse(1, Status.OK, L, 0, b"body", 3)
    assert io_error(answer) == m.ReadResponse(1, Status.IO_ERROR, L, 0)
    assert io_error(m.BatchReadResponse(1, Status.OK, L, 0, b"x")) == m.BatchReadResponse(1, Status.IO_ERROR, L, 0)
    assert io_error(m.AddResponse(1, Status.OK, L, 0)) == m.AddResponse(1, Status.IO_ERROR, L, 0)


def test_b5_fence_sees_adds_that_are_not_durable_yet(bookie: Bookie) -> None:
    added = bookie.send(add(0))
    fenced = bookie.send(fence())
    bookie.sync()
    assert bookie.sent[added].status is Status.OK
    assert bookie.sent[fenced] == m.ReadResponse(1, Status.OK, L, -1, body(0))  # and no max_lac


def test_b6_fence_survives_restart_and_collection(bookie: Bookie) -> None:
    bookie.ask(add(0))
    bookie.ask(fence())
    bookie.crash()
    assert bookie.ask(add(1)).status is Status.FENCED
    bookie.perform(bookie.machine.collect(L, bookie.now))
    bookie.sync()
    bookie.crash()
    assert bookie.ask(add(1)).status is Status.FENCED
    assert bookie.ask(add(1, recovery=True)).status is Status.FENCED
    assert bookie.ask(fence()).status is Status.NO_LEDGER
    assert bookie.ask(read(0)).status is Status.NO_LEDGER
    assert bookie.ask(write_lac(0)).status is Status.NO_LEDGER
    assert bookie.ask(m.ReadLacRequest(1, L)).status is Status.NO_ENTRY
    assert bookie.ask(m.EntryListRequest(1, L)).status is Status.NO_LEDGER
    assert bookie.storage.entry(L, 0) is None
    assert bookie.machine.collect(L, bookie.now) == []
    assert bookie.storage.ledger_ids() == []


def test_b13_keys(bookie: Bookie) -> None:
    bookie.ask(add(0))
    bookie.crash()
    position = bookie.storage.position
    for request in (add(1, key=OTHER), add(1, key=OTHER, recovery=True), fence(key=OTHER), fence(key=b""), write_lac(0, OTHER)):
        assert bookie.ask(request).status is Status.UNAUTHORIZED
    assert bookie.storage.position == position
    bookie.ask(fence())
    assert bookie.ask(add(1, key=OTHER)).status is Status.UNAUTHORIZED  # key before fence
    assert bookie.ask(read(0)).status is Status.OK  # plain reads need none


def test_b13_fence_without_key_creates_nothing(bookie: Bookie) -> None:
    assert bookie.ask(fence(key=b"")).status is Status.UNAUTHORIZED
    assert bookie.ask(read(0)).status is Status.NO_LEDGER


def test_secrets_stay_out_of_reprs() -> None:
    record = LedgerRecord(L, b"the-master-key-bytes")
    assert "master-key" not in repr(record) + repr(Persist(record, 0, b"the-master-key-bytes"))


def test_b10_limbo(bookie: Bookie) -> None:
    bookie.ask(add(0))
    bookie.perform(bookie.machine.enter_limbo([L, 8]))
    bookie.sync()
    bookie.crash()
    assert bookie.ask(read(0)).status is Status.OK
    for request in (read(1), read(-1), fence(), fence(1), fence(ledger_id=8), m.ReadLacRequest(1, L), m.EntryListRequest(1, L)):
        assert bookie.ask(request).status is Status.UNKNOWN_LEDGER_STATE
    assert bookie.ask(add(1)).status is Status.FENCED
    assert bookie.ask(add(1, recovery=True)).status is Status.OK
    bookie.perform(bookie.machine.leave_limbo(L))
    assert bookie.ask(read(2)).status is Status.NO_ENTRY
    assert bookie.ask(add(2)).status is Status.FENCED


# --- reads ----------------------------------------------------------------------------------------------------------


def test_read_negatives(bookie: Bookie) -> None:
    assert bookie.ask(read(0)) == m.ReadResponse(1, Status.NO_LEDGER, L, 0)
    bookie.ask(add(0))
    for entry_id in (1, -2, 2**62):
        assert bookie.ask(read(entry_id)) == m.ReadResponse(1, Status.NO_ENTRY, L, entry_id)
    assert bookie.ask(read(0, ledger_id=-5)).status is Status.NO_LEDGER


def test_b7_damage_is_an_error_not_a_negative() -> None:
    class Damaged(MemoryBookieStorage):
        def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
            raise BookieIOError("damaged entry")

    bookie = Bookie(Damaged())
    bookie.ask(add(0))
    for request in (read(0), read(-1), m.ReadLacRequest(1, L), fence(0), fence(), m.BatchReadRequest(1, L, 0, 1, 100)):
        assert bookie.ask(request).status is Status.IO_ERROR
    assert bookie.ask(add(1)).status is Status.FENCED  # the failed fence read fenced all the same


def test_b7_missing_last_entry_is_an_error() -> None:
    bookie = Bookie()
    bookie.storage.apply(Persist(LedgerRecord(L, KEY, last_entry_id=4)))
    assert bookie.ask(read(-1)).status is Status.IO_ERROR


def batch(count: int, size: int, first: int = 0) -> m.BatchReadRequest:
    return m.BatchReadRequest(9, L, first, count, size)


def test_batch_read_limits_are_exact(bookie: Bookie) -> None:
    bodies = [body(i, payload=b"x" * i) for i in range(5)]
    for i, data in enumerate(bodies):
        bookie.ask(add(i, data=data))
    wire = [struct.pack(">I", len(data)) + data for data in bodies]
    frame = 36 + len(wire[0]) + len(wire[1])
    assert bookie.ask(batch(0, 1 << 20)).bodies == b"".join(wire)
    assert bookie.ask(batch(3, 1 << 20)).bodies == b"".join(wire[:3])
    assert bookie.ask(batch(9, frame)).bodies == b"".join(wire[:2])
    assert bookie.ask(batch(9, frame - 1)).bodies == wire[0]
    assert bookie.ask(batch(9, 0)).bodies == wire[0]
    assert bookie.ask(batch(9, -1)).bodies == wire[0]
    assert bookie.ask(batch(9, 1 << 20, first=4)).bodies == wire[4]
    assert bookie.ask(batch(3, 1 << 20, first=-1)).bodies == wire[4] + wire[0] + wire[1]
    assert bookie.ask(batch(9, 1 << 20, first=5)) == m.BatchReadResponse(9, Status.NO_ENTRY, L, 5)


def test_batch_read_stops_at_the_first_gap(bookie: Bookie) -> None:
    for entry_id in (0, 1, 3):
        bookie.ask(add(entry_id))
    assert len(bookie.ask(batch(0, 1 << 20)).bodies) == 2 * (4 + len(body(0)))
    assert bookie.ask(m.BatchReadRequest(9, 8, 0, 1, 1)).status is Status.NO_LEDGER


# --- LACs -----------------------------------------------------------------------------------------------------------


def test_read_lac_table(bookie: Bookie) -> None:
    ask = m.ReadLacRequest(1, L)
    assert bookie.ask(ask) == m.ReadLacResponse(1, Status.NO_ENTRY, L)
    tag = bookie.send(write_lac(3))
    assert tag not in bookie.sent
    assert bookie.ask(ask) == m.ReadLacResponse(1, Status.IO_ERROR, L, lac_packet(3))
    bookie.crash()
    assert bookie.ask(ask) == m.ReadLacResponse(1, Status.IO_ERROR, L, lac_packet(3))  # no entries, and yet it survives
    bookie.ask(add(0))
    assert bookie.ask(ask) == m.ReadLacResponse(1, Status.OK, L, lac_packet(3), body(0))
    bookie.ask(fence())
    assert bookie.ask(write_lac(1)).status is Status.OK
    assert bookie.ask(ask).lac_body == lac_packet(1)
    assert bookie.ask(read(0)).max_lac == 3


def test_read_lac_without_explicit_lac(bookie: Bookie) -> None:
    bookie.ask(add(0))
    assert bookie.ask(m.ReadLacRequest(1, L)) == m.ReadLacResponse(1, Status.OK, L, None, body(0))


def test_poll_answers_at_once_when_the_lac_is_ahead(bookie: Bookie) -> None:
    bookie.ask(add(0))
    bookie.ask(add(1, lac=0))
    bookie.crash()
    assert bookie.sent[bookie.send(poll(-1))] == m.ReadResponse(1, Status.OK, L, 0, body(0), 0)
    assert bookie.sent[bookie.send(poll(5, timeout_ms=None))] == m.ReadResponse(1, Status.OK, L, -1, None, 0)
    assert bookie.sent[bookie.send(poll(-1, entry_id=0))].status is Status.BAD_REQUEST
    assert bookie.sent[bookie.send(poll(-1, piggyback=False))].body == body(1, 0)


def test_poll_wakes_on_add_explicit_lac_and_fence(bookie: Bookie) -> None:
    bookie.ask(add(0))
    first = bookie.send(poll(-1))
    bookie.now += 5
    bookie.send(add(1, lac=0))
    assert bookie.sent[first] == m.ReadResponse(1, Status.OK, L, 0, body(0), 0, bookie.now)
    plain = bookie.send(poll(0, piggyback=False))
    bookie.send(add(2, lac=1))
    assert bookie.sent[plain] == m.ReadResponse(1, Status.OK, L, -1, body(2, 1), 1, bookie.now)
    second = bookie.send(poll(1))
    bookie.send(write_lac(2))
    assert bookie.sent[second] == m.ReadResponse(1, Status.OK, L, 2, body(2, 1), 2, bookie.now)
    striped = bookie.send(poll(2))
    bookie.send(write_lac(3))
    assert bookie.sent[striped] == m.ReadResponse(1, Status.OK, L, -1, None, 3, bookie.now)
    third = bookie.send(poll(3))
    bookie.send(fence())
    assert bookie.sent[third] == m.ReadResponse(1, Status.OK, L, -1, None, 3)
    assert bookie.send(poll(3)) not in bookie.sent  # an old fence does not shorten the wait


def test_poll_times_out(bookie: Bookie) -> None:
    bookie.ask(add(0))
    late, early = bookie.send(poll(0, 50)), bookie.send(poll(0, 20))
    assert bookie.machine.next_wake_ms() == bookie.now + 20
    bookie.now += 20
    bookie.perform(bookie.machine.wake(bookie.now))
    assert bookie.sent[early] == m.ReadResponse(1, Status.OK, L, -1, None, -1) and late not in bookie.sent
    bookie.machine.cancel(late)
    bookie.machine.cancel(late)
    assert bookie.machine.next_wake_ms() is None
    assert bookie.machine.wake(bookie.now + 100) == []


def test_poll_of_unknown_empty_and_collected_ledgers(bookie: Bookie) -> None:
    assert bookie.sent[bookie.send(poll(-1))].status is Status.NO_LEDGER
    bookie.ask(fence())
    empty = bookie.send(poll(-1, 10))
    bookie.now += 10
    bookie.perform(bookie.machine.wake(bookie.now))
    assert bookie.sent[empty].status is Status.NO_ENTRY
    gone = bookie.send(poll(-1))
    bookie.perform(bookie.machine.collect(L, bookie.now))
    assert bookie.sent[gone].status is Status.NO_LEDGER


def test_fencing_read_is_never_a_poll(bookie: Bookie) -> None:
    bookie.ask(add(0))
    assert bookie.ask(m.ReadRequest(1, L, 0, fence=True, master_key=KEY, previous_lac=9, timeout_ms=1000)).body == body(0)


def test_many_answered_polls_leave_nothing_behind(bookie: Bookie) -> None:
    bookie.ask(add(0))
    for lac in range(300):
        bookie.send(poll(lac - 1, 10**9))
        bookie.send(write_lac(lac))
    assert len(bookie.machine._polls._deadlines) < 100
    assert bookie.machine.next_wake_ms() is None


# --- the rest -------------------------------------------------------------------------------------------------------


def test_force_of_unknown_ledger_waits_and_creates_nothing(bookie: Bookie) -> None:
    tag = bookie.send(m.ForceLedgerRequest(1, 99))
    assert tag not in bookie.sent
    bookie.sync()
    assert bookie.sent[tag] == m.ForceLedgerResponse(1, Status.OK, 99)
    assert bookie.ask(read(0, ledger_id=99)).status is Status.NO_LEDGER


def test_info_auth_tls_and_unserved(bookie: Bookie) -> None:
    assert bookie.ask(m.BookieInfoRequest(1, 0)) == m.BookieInfoResponse(1, Status.OK)
    assert bookie.ask(m.BookieInfoRequest(1, 1)) == m.BookieInfoResponse(1, Status.OK, 1 << 30)
    assert bookie.ask(m.BookieInfoRequest(1, 3)) == m.BookieInfoResponse(1, Status.OK, 1 << 30, 1 << 30)
    assert bookie.ask(m.AuthRequest(1, "sasl", b"x")) == m.AuthResponse(1, Status.OK, "AuthDisabledPlugin")
    assert bookie.ask(m.StartTlsRequest(1)) == m.StartTlsResponse(1, Status.BAD_REQUEST)
    unserved = m.UnservedRequest(4, 12, 3, Status.BAD_REQUEST, 5, 6)
    assert bookie.ask(unserved) == m.UnservedResponse(4, Status.BAD_REQUEST, 12, 3, 5, 6)


def test_entry_list_blob(bookie: Bookie) -> None:
    assert bookie.ask(m.EntryListRequest(1, L)).status is Status.NO_LEDGER
    for entry_id in (0, 1, 2, 3):
        bookie.ask(add(entry_id))
    expected = struct.pack(">ii56x", 0, 1) + bytes.fromhex("0000000000000000 0000000000000000 00000004 00000000")
    assert bookie.ask(m.EntryListRequest(1, L)).entries == expected
    assert encoded([]) == bytes(64)
    gapped = encoded([1, 2, 9])
    assert gapped[64:] == struct.pack(">qqiiqqii", 1, 1, 2, 0, 9, 9, 1, 0)


def encoded(entry_ids: list[int]) -> bytes:
    encoder = EntryListEncoder()
    encoder.add((entry_id, 1) for entry_id in entry_ids)
    return encoder.blob()


def test_entry_list_of_a_striped_ledger_is_one_group() -> None:
    striped = encoded([entry_id for entry_id in range(3000) if entry_id % 3 != 2])
    assert striped[64:] == struct.pack(">qqii", 0, 2997, 2, 3)
    assert encoded([1, 5])[64:] == struct.pack(">qqiiqqii", 1, 1, 1, 0, 5, 5, 1, 0)  # two are no pattern yet
    assert encoded([1, 3, 5, 8, 9])[64:] == struct.pack(">qqiiqqii", 1, 5, 1, 2, 8, 8, 2, 0)


@given(st.sets(st.integers(0, 60)))
def test_entry_list_says_what_is_there(entry_ids: set[int]) -> None:
    blob = encoded(sorted(entry_ids))
    told: list[int] = []
    assert struct.unpack_from(">ii", blob) == (0, (len(blob) - 64) // 24)
    for first, last, size, period in struct.iter_unpack(">qqii", blob[64:]):
        for start in range(first, last + 1, period or 1):
            told += range(start, start + size)
    assert told == sorted(entry_ids)


def test_memory_storage_syncs_a_prefix() -> None:
    storage = MemoryBookieStorage()
    for entry_id in range(3):
        storage.apply(Persist(LedgerRecord(L, KEY, last_entry_id=entry_id), entry_id, body(entry_id)))
    assert storage.sync(2) == 2
    storage.crash()
    assert storage.entry_ids(L) == [0, 1] and storage.position == 2
    storage.wipe()
    assert storage.ledger(L) is None
