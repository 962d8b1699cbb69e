"""Runs of requests are what their single requests are: the same answers in the same order, the same storage, the same rules."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BookieIOError, InvalidArgumentError, RemoteProtocolError
from bk_core.protocol.bookie import BookieMachine, MemoryBookieStorage, Persist, PersistMany, Reply, ReplyAfterSync, io_error
from bk_core.protocol.bookie.runs import AddsAnswer, ReadsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import RequestStream
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import ReplyTo, ServerProtocol, encode_request
from tests.unit.bookie.host import KEY, OTHER, Bookie, L, body, fence, poll

V2 = ReplyTo("v2", 2)


def adds(first: int, count: int, *, ledger_id: int = L, key: bytes = KEY, lac: int = -1, **flags: bool) -> list[m.Request]:
    return [
        m.AddRequest(0, ledger_id, entry, key, body(entry, lac, b"x" * (entry % 5), ledger_id), **flags)
        for entry in range(first, first + count)
    ]


def reads(first: int, count: int, ledger_id: int = L) -> list[m.Request]:
    return [m.ReadRequest(0, ledger_id, entry) for entry in range(first, first + count)]


class Host:
    """A connection to a bookie in memory: bytes in, bytes out. Every answer that waits leaves with ``sync``."""

    def __init__(self, in_runs: bool, bytes_max: int = 1 << 20) -> None:
        self.in_runs = in_runs
        self.bytes_max = bytes_max
        self.storage = MemoryBookieStorage()
        self.machine = BookieMachine(self.storage)
        self.stream = RequestStream()
        self.sent = bytearray()
        self.waiting: list[Any] = []
        self.runs = 0

    def receive(self, data: bytes) -> None:
        if not self.in_runs:
            for request, context in self.stream.feed(data):
                self.perform(self.machine.handle(object(), request, 0), context)
            return
        units, consumed = self.stream.units(data, len(data))
        assert consumed == len(data)
        for unit, context in units:
            self.take(unit, context)

    def take(self, unit: Any, context: ReplyTo) -> None:
        if isinstance(unit, RequestedAdds):
            effects = self.machine.handle_adds(object(), unit)
            self.runs += effects is not None
            if effects is None:
                for request in unit.requests():
                    self.take(request, context)
                return
        elif isinstance(unit, RequestedReads):
            rest: RequestedReads | None = unit
            while rest is not None:
                effects, rest = self.machine.handle_reads(object(), rest, self.bytes_max)
                self.perform(effects, context)
            return
        else:
            effects = self.machine.handle(object(), unit, 0)
        self.perform(effects, context)

    def perform(self, effects: Iterable[Any], context: ReplyTo) -> None:
        for effect in effects:
            match effect:
                case Persist() | PersistMany():
                    self.storage.apply(effect)
                case Reply(response=response):
                    self.answer(response, context)
                case ReplyAfterSync(response=response):
                    self.waiting.append((response, context))

    def answer(self, response: Any, context: ReplyTo) -> None:
        for part in self.stream.encode_parts(response, context):
            self.sent += part

    def sync(self, fails: bool = False) -> None:
        if not fails:
            self.storage.sync()
        for response, context in self.waiting:
            self.answer(io_error(response) if fails else response, context)
        self.waiting.clear()


requests = st.one_of(
    st.builds(
        adds,
        st.integers(-2, 12),
        st.integers(1, 6),
        ledger_id=st.sampled_from((L, 9, -3)),
        key=st.sampled_from((KEY, KEY, KEY, OTHER)),
        lac=st.integers(-1, 3),
        recovery=st.booleans(),
        high_priority=st.booleans(),
    ),
    st.builds(reads, st.integers(-2, 12), st.integers(1, 6), st.sampled_from((L, 9, 10))),
    st.builds(lambda entry: [fence(entry)], st.integers(-1, 4)),
    st.builds(
        lambda first, count, size: [m.BatchReadRequest(0, L, first, count, size)],
        st.integers(-1, 9),
        st.integers(0, 9),
        st.integers(0, 300),
    ),
    st.just([m.AddRequest(0, L, 3, KEY, body(3)[:20]), *adds(4, 2)]),
)
steps = st.lists(
    st.one_of(
        st.lists(requests, min_size=1, max_size=4).map(lambda groups: [request for group in groups for request in group]),
        st.sampled_from(["sync", "fail", "crash", "read-only", "writable", "damage", "lose"]),
    ),
    max_size=12,
)


def do(host: Host, step: Any) -> None:
    match step:
        case "sync" | "fail":
            host.sync(fails=step == "fail")
        case "crash":
            host.sync()
            host.storage.crash()
        case "read-only" | "writable":
            host.machine.read_only = step == "read-only"
        case "damage":
            host.storage.damage(L, 2)
        case "lose":
            for effect in host.machine.enter_limbo([9]):
                host.storage.apply(effect)
        case _:
            host.receive(b"".join(encode_request(request, "v2") for request in step))


@given(steps, st.integers(0, 200))
def test_b1_b2_b3_b5_b7_b9_b11_b13_runs_are_their_single_requests(script: list[Any], bytes_max: int) -> None:
    """B-1, B-2, B-3, B-5, B-7, B-9, B-10, B-11, B-13: byte for byte, whatever is between the runs."""
    one, other = Host(False), Host(True, bytes_max)
    for step in script:
        for host in (one, other):
            do(host, step)
        assert bytes(one.sent) == bytes(other.sent)
        for ledger_id in (L, 9, 10):
            assert one.storage.ledger(ledger_id) == other.storage.ledger(ledger_id)
            assert one.storage.entry_ids(ledger_id) == other.storage.entry_ids(ledger_id)


def test_b1_a_run_is_one_change_and_one_answer_after_its_sync() -> None:
    host = Host(True)
    host.receive(b"".join(encode_request(request, "v2") for request in adds(0, 100, lac=4)))
    assert host.runs == 1 and host.storage.position == 1 and not host.sent
    host.sync()
    assert len(host.sent) == 28 * 100
    record = host.storage.ledger(L)
    assert record is not None and (record.last_entry_id, record.last_add_confirmed) == (99, 4)


def test_b9_the_lac_of_a_run_is_its_greatest() -> None:
    host = Host(True)
    requests = [m.AddRequest(0, L, entry, KEY, body(entry, lac)) for entry, lac in enumerate((3, 7, -1))]
    host.receive(b"".join(encode_request(request, "v2") for request in requests))
    record = host.storage.ledger(L)
    assert host.runs == 1 and record is not None and record.last_add_confirmed == 7


def test_a_run_is_lost_as_a_whole() -> None:
    host = Host(True)
    host.receive(b"".join(encode_request(request, "v2") for request in adds(0, 3)))
    host.storage.crash()
    assert host.storage.entry_ids(L) == [] and host.storage.ledger(L) is None


def test_a_run_heals_damage() -> None:
    host = Host(True)
    frames = b"".join(encode_request(request, "v2") for request in adds(0, 4))
    host.receive(frames)
    host.storage.damage(L, 2)
    host.receive(frames)
    assert host.storage.entry(L, 2) is not None


def test_a_run_that_ends_a_wait_is_taken_entry_by_entry() -> None:
    bookie = Bookie()
    bookie.ask(m.AddRequest(1, L, 0, KEY, body(0)))
    tag = bookie.send(poll(-1))
    run = RequestedAdds(L, 1, 2, KEY, codec_v2.join_bodies([body(1, 0), body(2, 1)]), 1)
    assert bookie.machine.handle_adds("run", run) is None
    for request in run.requests():
        bookie.ask(request)
    assert bookie.sent[tag].max_lac == 0


class _Unreadable(MemoryBookieStorage):
    def ledger(self, ledger_id: int) -> Any:
        raise BookieIOError("damaged ledger record", ledger_id=ledger_id)


def test_b7_runs_of_a_ledger_whose_record_is_damaged() -> None:
    """B-7."""
    machine = BookieMachine(_Unreadable())
    assert machine.handle_adds("run", RequestedAdds(L, 0, 2, KEY, codec_v2.join_bodies([body(0), body(1)]), -1)) is None
    effects, rest = machine.handle_reads("run", RequestedReads(L, 0, 2), 100)
    assert effects == [Reply("run", m.ReadResponse(0, m.Status.IO_ERROR, L, 0))] and rest == RequestedReads(L, 1, 1)


# --- the stream ---------------------------------------------------------------------------------------------------


def test_units_and_single_requests_are_the_same() -> None:
    wire = b"".join(encode_request(request, "v2") for request in adds(0, 3) + reads(5, 2))
    found = RequestStream().units(wire, len(wire))[0]
    assert [type(unit) for unit, _ in found] == [RequestedAdds, RequestedReads] and {context for _, context in found} == {V2}


@given(st.lists(requests, min_size=1, max_size=5), st.data())
def test_units_do_not_depend_on_how_the_bytes_come(groups: list[list[m.Request]], data: st.DataObject) -> None:
    wire = b"".join(encode_request(request, "v2") for group in groups for request in group)
    wanted = ServerProtocol().feed(wire)
    stream, found, rest, at = RequestStream(), list[Any](), b"", 0
    while at < len(wire):
        size = data.draw(st.integers(1, len(wire) - at))
        rest += wire[at : at + size]
        at += size
        units, consumed = stream.units(bytearray(rest), len(rest))
        rest = rest[consumed:]
        for unit, context in units:
            match unit:
                case RequestedAdds():
                    found += [(request, context) for request in unit.requests()]
                case RequestedReads():
                    found += [(m.ReadRequest(0, unit.ledger_id, unit.first_entry_id + n), context) for n in range(unit.count)]
                case _:
                    found.append((unit, context))
    assert not rest and found == wanted


def test_v3_until_the_first_v2_frame_and_never_again() -> None:
    """wire-protocol.md 2.2."""
    stream = RequestStream()
    v3 = encode_request(m.ReadLacRequest(7, L), "v3")
    wire = v3 + b"".join(encode_request(request, "v2") for request in adds(0, 2))
    (first, _), (second, _) = stream.units(wire, len(wire))[0]
    assert first == m.ReadLacRequest(7, L) and isinstance(second, RequestedAdds) and stream.protocol == "v2"
    with pytest.raises(RemoteProtocolError):
        stream.units(v3, len(v3))


@pytest.mark.parametrize("frame", [struct.pack(">I", 0), struct.pack(">I", 100_000), codec_v2.frame(struct.pack(">I", 0x02090000))])
def test_malformed_input(frame: bytes) -> None:
    wire = encode_request(m.ReadRequest(0, L, 0), "v2") + frame
    with pytest.raises(RemoteProtocolError):
        RequestStream(4096).units(wire, len(wire))


def test_answers_in_runs_are_the_single_answers() -> None:
    stream = RequestStream()
    single = b"".join(stream.encode(m.AddResponse(0, m.Status.FENCED, L, entry), V2) for entry in range(3, 6))
    assert b"".join(stream.encode_parts(AddsAnswer(L, 3, 3, m.Status.FENCED), V2)) == single
    single = b"".join(stream.encode(m.ReadResponse(0, m.Status.OK, L, entry, body(entry)), V2) for entry in range(2))
    assert b"".join(stream.encode_parts(ReadsAnswer(L, 0, 2, codec_v2.join_bodies([body(0), body(1)])), V2)) == single
    for status in (m.Status.OK, m.Status.NO_ENTRY):
        batch = m.BatchReadResponse(5, status, L, 0, codec_v2.join_bodies([body(0)]))
        assert b"".join(stream.encode_parts(batch, V2)) == stream.encode(batch, V2)
    with pytest.raises(InvalidArgumentError):
        stream.encode_parts(m.BatchReadResponse(5, m.Status.OK, L, 0), ReplyTo("v3", 3))
