"""Both protocols on arbitrary messages (round trips), on arbitrary bytes (fuzz), and the rules that no golden vector shows."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core import kernels
from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.protocol.wire import codec_v2, codec_v3, connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import (
    ADDS,
    BATCH,
    OTHER,
    READS,
    SPARSE_ADDS,
    Item,
    ReplyTo,
    ServerProtocol,
    decode_response,
    scan_v2,
    scan_v3,
)  # fmt: skip
from bk_core.protocol.wire.frames import FrameReader
from bk_core.protocol.wire.messages import Status
from bk_core.protocol.wire.status import ERRORS, V2_NUMBERS, status_from_v2, status_from_v3, v2_number, v3_number

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TXN = st.integers(0, 2**64 - 1)
ZERO = st.just(0)
KEY = st.binary(min_size=20, max_size=20)
BYTES = st.binary(max_size=80)
WIRE_STATUS = st.sampled_from(sorted(V2_NUMBERS))
FAILURES = st.sampled_from([status for status in sorted(V2_NUMBERS) if status is not Status.OK])
FLAG = st.booleans()


def add_v2(ledger_id: int, entry_id: int, key: bytes, rest: bytes, recovery: bool, high: bool) -> m.AddRequest:
    return m.AddRequest(0, ledger_id, entry_id, key, struct.pack(">qq", ledger_id, entry_id) + rest, recovery, high)


def with_key(fence: bool, key: bytes) -> bytes:
    return key if fence else b""


V2_REQUESTS = st.one_of(
    st.builds(add_v2, I64, I64, KEY, BYTES, FLAG, FLAG),
    st.builds(lambda i, e, f, h, k: m.ReadRequest(0, i, e, f, h, with_key(f, k)), I64, I64, FLAG, FLAG, KEY),
    st.builds(
        lambda r, i, e, n, b, f, h, k: m.BatchReadRequest(r, i, e, n, b, f, h, with_key(f, k)),
        I64, I64, I64, I32, I64, FLAG, FLAG, KEY,
    ),
    st.builds(m.AuthRequest, ZERO, st.text(max_size=20), BYTES),
)  # fmt: skip
V2_RESPONSES = st.one_of(
    st.builds(m.AddResponse, ZERO, WIRE_STATUS, I64, I64),
    st.builds(m.ReadResponse, ZERO, st.just(Status.OK), I64, I64, BYTES),
    st.builds(m.ReadResponse, ZERO, FAILURES, I64, I64),
    st.builds(m.BatchReadResponse, I64, st.just(Status.OK), I64, I64, st.lists(BYTES, max_size=4).map(codec_v2.join_bodies)),
    st.builds(m.BatchReadResponse, I64, FAILURES, I64, I64),
    st.builds(m.AuthResponse, ZERO, st.just(Status.OK), st.text(max_size=20), BYTES),
)
OPTIONAL_I64 = st.none() | I64
OPTIONAL_BYTES = st.none() | BYTES
V3_REQUESTS = st.one_of(
    st.builds(m.AddRequest, TXN, I64, I64, BYTES, BYTES, FLAG, FLAG, FLAG),
    st.builds(m.ReadRequest, TXN, I64, I64, FLAG, FLAG, BYTES, OPTIONAL_I64, OPTIONAL_I64),
    st.builds(lambda t, i, e, p, w: m.ReadRequest(t, i, e, previous_lac=p, timeout_ms=w, piggyback=True), TXN, I64, I64, I64, I64),
    st.builds(m.AuthRequest, TXN, st.text(max_size=20), BYTES),
    st.builds(m.WriteLacRequest, TXN, I64, I64, BYTES, BYTES),
    st.builds(m.ReadLacRequest, TXN, I64),
    st.builds(m.ForceLedgerRequest, TXN, I64),
    st.builds(m.BookieInfoRequest, TXN, I64),
    st.builds(m.EntryListRequest, TXN, I64),
    st.builds(m.StartTlsRequest, TXN),
)
V3_RESPONSES = st.one_of(
    st.builds(m.AddResponse, TXN, WIRE_STATUS, I64, I64),
    st.builds(m.ReadResponse, TXN, WIRE_STATUS, I64, I64, OPTIONAL_BYTES, OPTIONAL_I64, OPTIONAL_I64),
    st.builds(m.AuthResponse, TXN, st.just(Status.OK), st.text(max_size=20), BYTES),
    st.builds(m.AuthResponse, TXN, FAILURES),
    st.builds(m.WriteLacResponse, TXN, WIRE_STATUS, I64),
    st.builds(m.ReadLacResponse, TXN, WIRE_STATUS, I64, OPTIONAL_BYTES, OPTIONAL_BYTES),
    st.builds(m.ForceLedgerResponse, TXN, WIRE_STATUS, I64),
    st.builds(m.BookieInfoResponse, TXN, WIRE_STATUS, OPTIONAL_I64, OPTIONAL_I64),
    st.builds(m.EntryListResponse, TXN, WIRE_STATUS, I64, OPTIONAL_BYTES),
    st.builds(m.StartTlsResponse, TXN, WIRE_STATUS),
    st.builds(lambda t, o: m.UnservedResponse(t, Status.BAD_REQUEST, o), TXN, st.sampled_from([3, 4, 12])),
)


# --- round trips ------------------------------------------------------------------------------------------------


@given(V2_REQUESTS)
def test_v2_requests_survive(request: m.Request) -> None:
    payload = codec_v2.encode_request(request)
    assert codec_v2.decode_request(payload) == request
    assert codec_v2.decode_request(memoryview(bytearray(payload))) == request


@given(V2_RESPONSES, st.integers(0, 2))
def test_v2_responses_survive(response: m.Response, version: int) -> None:
    found = codec_v2.decode_response(codec_v2.encode_response(response, version))
    if getattr(response, "status", None) is Status.UNKNOWN_LEDGER_STATE:
        assert found.status is Status.IO_ERROR  # a Java v2 client would drop the connection on 107
    else:
        assert found == response


@given(V3_REQUESTS)
def test_v3_requests_survive(request: m.Request) -> None:
    payload = codec_v3.encode_request(request)
    assert codec_v3.decode_request(payload) == request
    assert codec_v3.decode_request(memoryview(payload)) == request


@given(V3_RESPONSES)
def test_v3_responses_survive(response: m.Response) -> None:
    assert codec_v3.decode_response(codec_v3.encode_response(response)) == response


@given(st.lists(V2_REQUESTS | V3_REQUESTS, max_size=6), st.lists(st.integers(1, 60), max_size=30))
def test_a_server_reads_the_same_requests_whatever_the_chunks(requests: list[m.Request], sizes: list[int]) -> None:
    v3 = [r for r in requests if _fits(r, "v3")]
    v2 = [r for r in requests if r not in v3]
    stream = b"".join([connection.encode_request(r, "v3") for r in v3] + [connection.encode_request(r, "v2") for r in v2])
    server, found, position = ServerProtocol(), [], 0
    for size in [*sizes, len(stream) + 1]:
        found += server.feed(stream[position : position + size])
        position += size
    assert [request for request, _ in found] == v3 + v2
    assert [reply.protocol for _, reply in found] == ["v3"] * len(v3) + ["v2"] * len(v2)


def _fits(request: m.Request, protocol: connection.Protocol) -> bool:
    try:
        connection.encode_request(request, protocol)
    except InvalidArgumentError:
        return False
    return True


# --- fuzz -------------------------------------------------------------------------------------------------------

VALID = [
    *(
        codec_v2.encode_request(r)
        for r in (add_v2(1, 2, bytes(20), b"x" * 30, True, False), m.ReadRequest(0, 1, -1, True, False, bytes(20)))
    ),
    codec_v2.encode_request(m.BatchReadRequest(3, 1, 2, 10, 1000)),
    codec_v2.encode_request(m.AuthRequest(0, "sasl", b"t")),
    codec_v2.encode_response(m.BatchReadResponse(3, Status.OK, 1, 2, codec_v2.join_bodies([b"abc", b""]))),
    codec_v2.encode_response(m.ReadResponse(0, Status.OK, 1, 2, b"abc")),
    codec_v3.encode_request(m.AddRequest(1, 2, 3, b"k", b"body", True, True, True)),
    codec_v3.encode_request(m.ReadRequest(1, 2, -1, previous_lac=3, timeout_ms=4, piggyback=True)),
    codec_v3.encode_request(m.AuthRequest(1, "sasl", b"t")),
    codec_v3.encode_response(m.ReadResponse(1, Status.OK, 2, 3, b"abc", 3, 4)),
    codec_v3.encode_response(m.AuthResponse(1, Status.OK, "sasl", b"t")),
    codec_v3.encode_response(m.ReadLacResponse(1, Status.IO_ERROR, 2, b"lac")),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid payload with some bytes replaced, removed or added."""
    payload = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, len(payload)))
        payload[position : position + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(payload[: draw(st.integers(0, len(payload)))]) if draw(FLAG) else bytes(payload)


ANY_BYTES = st.binary(max_size=120) | damaged()
DECODERS = [codec_v2.decode_request, codec_v2.decode_response, codec_v3.decode_request, codec_v3.decode_response, codec_v2.split_bodies]


@pytest.mark.parametrize("decode", DECODERS, ids=["v2 request", "v2 response", "v3 request", "v3 response", "bodies"])
@settings(max_examples=400)
@given(payload=ANY_BYTES)
def test_bytes_are_understood_or_refused_as_protocol_error(decode: object, payload: bytes) -> None:
    try:
        message = decode(payload)  # type: ignore[operator]
    except RemoteProtocolError:
        return
    assert message is not None


@settings(max_examples=400)
@given(st.lists(ANY_BYTES, max_size=4), FLAG)
def test_a_server_fed_anything_raises_only_protocol_errors(payloads: list[bytes], framed: bool) -> None:
    server = ServerProtocol(4096)
    try:
        for payload in payloads:
            for request, reply_to in server.feed(codec_v2.frame(payload) if framed else payload):
                _answer(server, request, reply_to)
    except RemoteProtocolError:
        pass


def _answer(server: ServerProtocol, request: m.Request, reply_to: ReplyTo) -> None:
    """Check that everything that was read can be answered in the protocol it came in."""
    match request:
        case m.UnservedRequest():
            response: m.Response = m.UnservedResponse(
                request.request_id, request.status, request.operation, request.version, request.ledger_id, request.entry_id
            )
        case m.AddRequest():
            response = m.AddResponse(request.request_id, Status.OK, request.ledger_id, request.entry_id)
        case m.ReadRequest():
            response = m.ReadResponse(request.request_id, Status.NO_ENTRY, request.ledger_id, request.entry_id)
        case m.BatchReadRequest():
            response = m.BatchReadResponse(request.request_id, Status.NO_ENTRY, request.ledger_id, request.entry_id)
        case _:
            response = m.AuthResponse(request.request_id, Status.OK, "AuthDisabledPlugin")
    assert server.encode(response, reply_to)


@settings(max_examples=200)
@given(st.lists(ANY_BYTES.filter(bool), max_size=5))
def test_a_client_fed_anything_raises_only_protocol_errors(payloads: list[bytes]) -> None:
    try:
        scanned(payloads)
    except RemoteProtocolError:
        pass


# --- what a client receives, joined -----------------------------------------------------------------------------


def scanned(payloads: list[bytes]) -> list[m.Response | tuple[int, ...]]:
    """Items of a buffer with these messages, as (kind, ledger, first entry, count); other ones are decoded."""
    buffer = b"".join(codec_v2.frame(payload) for payload in payloads)
    items, consumed, wanted = scan_v2(b"??" + buffer + b"?", 2, 2 + len(buffer), 1 << 20)
    assert (consumed, wanted) == (2 + len(buffer), 0)
    return [decode_response((b"??" + buffer)[item[5] : item[6]], "v2") if item[0] == OTHER else item[:4] for item in items]


def single_responses(items: list[Item], buffer: bytes) -> list[m.Response]:
    """Each answer by itself."""
    found: list[m.Response] = []
    for kind, ledger, first, count, _, begin, end in items:
        if kind == ADDS:
            found += [m.AddResponse(0, Status.OK, ledger, first + i) for i in range(count)]
        elif kind == SPARSE_ADDS:
            there = int.from_bytes(kernels.entry_bits(buffer[begin:end], first, count), "little")
            found += [m.AddResponse(0, Status.OK, ledger, first + i) for i in range(count) if there >> i & 1]
        elif kind == READS:
            found += [decode_response(payload, "v2") for payload in FrameReader(1 << 20).feed(buffer[begin:end])]
        elif kind == BATCH:
            found.append(m.BatchReadResponse(count, Status.OK, ledger, first, buffer[begin:end]))
        else:
            found.append(decode_response(buffer[begin:end], "v2"))
    return found


SMALL = st.integers(0, 3)
ADD_ANSWERS = st.builds(m.AddResponse, ZERO, st.sampled_from([Status.OK, Status.OK, Status.OK, Status.FENCED]), SMALL, SMALL)
READ_ANSWERS = st.builds(m.ReadResponse, ZERO, st.just(Status.OK), SMALL, SMALL, BYTES)


@given(st.lists(ADD_ANSWERS | READ_ANSWERS, max_size=30))
def test_joined_answers_are_the_single_ones(responses: list[m.AddResponse | m.ReadResponse]) -> None:
    buffer = b"".join(codec_v2.frame(codec_v2.encode_response(r)) for r in responses)
    items, consumed, wanted = scan_v2(buffer, 0, len(buffer), 1 << 20)
    assert (consumed, wanted) == (len(buffer), 0)
    assert single_responses(items, buffer) == responses
    for left, right in zip(items, items[1:], strict=False):  # nothing that could be joined was left apart
        if left[0] in (ADDS, SPARSE_ADDS) and right[0] in (ADDS, SPARSE_ADDS):
            assert left[1] != right[1] or left[2] + left[3] > right[2]
        if left[0] == right[0] == READS:
            assert (left[1], left[2] + left[3] * left[4]) != (right[1], right[2])


@given(st.lists(ADD_ANSWERS | READ_ANSWERS, min_size=1, max_size=5), st.data())
def test_a_buffer_that_ends_anywhere(responses: list[m.AddResponse | m.ReadResponse], data: st.DataObject) -> None:
    """wire-protocol.md 2.1: whole frames are used; of the rest the size is known as soon as its four bytes are there. The same for v3."""
    for scan, encode in ((scan_v2, codec_v2.encode_response), (scan_v3, codec_v3.encode_response)):
        frames = [codec_v2.frame(encode(r)) for r in responses]
        buffer = b"".join(frames)
        stop = data.draw(st.integers(0, len(buffer)))
        ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
        whole = sum(end <= stop for end in ends)
        consumed = ends[whole - 1] if whole else 0
        wanted = len(frames[whole]) if stop - consumed >= 4 else 0
        assert scan(buffer, 0, stop, 1 << 20)[1:] == (consumed, wanted)


def test_a_run_of_answers_is_one_item() -> None:
    run = [codec_v2.encode_response(m.AddResponse(0, Status.OK, 5, entry)) for entry in range(100, 1100)]
    fenced = m.AddResponse(0, Status.FENCED, 5, 1100)
    assert scanned([*run, *[codec_v2.encode_response(fenced)] * 2]) == [(ADDS, 5, 100, 1000), fenced, fenced]


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [3, 4, 12])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_unserved_operations_echo_the_header_and_have_no_inner_message(operation: int, version: int) -> None:
    server = ServerProtocol()
    payload = bytes((0x0A, 8, 0x08, version, 0x10, operation, 0x18, 9, 0x20, 100))
    [(request, reply_to)] = server.feed(codec_v2.frame(payload))
    assert request == m.UnservedRequest(9, operation, version, Status.BAD_REQUEST)
    answer = server.encode(m.UnservedResponse(9, Status.BAD_REQUEST, operation, version), reply_to)
    assert answer[4:] == payload + bytes.fromhex("109403")


@pytest.mark.parametrize(
    "request_",
    [
        m.AddRequest(9, 5, 6, b"k", b"b"),
        m.ReadRequest(9, 5, 6),
        m.WriteLacRequest(9, 5, 6, b"k", b"b"),
        m.ReadLacRequest(9, 5),
        m.ForceLedgerRequest(9, 5),
        m.BookieInfoRequest(9, 3),
        m.EntryListRequest(9, 5),
    ],
    ids=lambda request: type(request).__name__,
)
def test_old_versions_are_refused_with_inner_message(request_: m.Request) -> None:
    payload = bytearray(codec_v3.encode_request(request_))
    payload[3] = 2
    server = ServerProtocol()
    [(request, reply_to)] = server.feed(codec_v2.frame(payload))
    assert isinstance(request, m.UnservedRequest)
    assert (request.status, request.version, request.request_id) == (Status.BAD_VERSION, 2, 9)
    refusal = m.UnservedResponse(9, request.status, request.operation, request.version, request.ledger_id, request.entry_id)
    message = codec_v3.parse_response(server.encode(refusal, reply_to)[4:])
    assert message is not None
    assert (message.header.version, message.status) == (3, 503)
    [(_, inner)] = [(f, v) for f, v in message.ListFields() if f.name not in ("header", "status")]
    assert inner.status == 503
    assert getattr(inner, "ledgerId", 5) == 5
    assert getattr(inner, "entryId", 6) == 6


@pytest.mark.parametrize("request_", [m.AuthRequest(9, "sasl", b""), m.StartTlsRequest(9)])
def test_auth_and_start_tls_do_not_check_the_version(request_: m.Request) -> None:
    payload = bytearray(codec_v3.encode_request(request_))
    payload[3] = 2
    server = ServerProtocol()
    [(request, reply_to)] = server.feed(codec_v2.frame(payload))
    assert (request, reply_to) == (request_, ReplyTo("v3", 2))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(8, m.BookieInfoRequest(1, 0)), (5, m.AuthRequest(1, "", b"")), (9, m.StartTlsRequest(1))],
)
def test_operations_that_need_no_sub_message(operation: int, expected: m.Request) -> None:
    assert codec_v3.decode_request(bytes((0x0A, 6, 8, 3, 0x10, operation, 0x18, 1))) == expected


@pytest.mark.parametrize("operation", [1, 2, 6, 7, 10, 11])
def test_other_operations_without_sub_message_close_and_are_not_taken_for_v2(operation: int) -> None:
    server = ServerProtocol()
    with pytest.raises(RemoteProtocolError):
        server.feed(codec_v2.frame(bytes((0x0A, 6, 8, 3, 0x10, operation, 0x18, 1))))
    assert server.protocol == "v3"


def test_unknown_flag_and_unknown_fields_are_ignored() -> None:
    head = bytes.fromhex("0a0608031001180608ff01")[:8]
    read = bytes.fromhex("08b4241007a0060708ac02")  # flag 7; ledger id again, the last one counts
    payload = head + b"\xa2\x06" + bytes((len(read),)) + read + bytes.fromhex("f83f01")
    assert codec_v3.decode_request(payload) == m.ReadRequest(6, 300, 7)


def test_header_may_come_last() -> None:
    payload = bytes.fromhex("a2060508b4241007" + "0a06080310011806")
    assert codec_v3.decode_request(payload) == m.ReadRequest(6, 0x1234, 7)


def test_v1_fence_read_has_no_key() -> None:
    payload = bytes.fromhex("01020001") + struct.pack(">qq", 5, 6)
    assert codec_v2.decode_request(payload) == m.ReadRequest(0, 5, 6, fence=True)


@pytest.mark.parametrize(
    "request_",
    [
        m.ReadRequest(0, 1, -1, previous_lac=3),
        m.AddRequest(0, 1, 2, bytes(20), struct.pack(">qq", 1, 2), deferred_sync=True),
        m.AddRequest(0, 1, 2, bytes(19), struct.pack(">qq", 1, 2)),
        m.AddRequest(0, 1, 2, bytes(20), struct.pack(">qq", 1, 3)),
        m.ReadRequest(0, 1, -1, fence=True),
        m.ReadRequest(0, 2**63, 0),
        m.ReadLacRequest(1, 1),
        m.StartTlsRequest(1),
    ],
)
def test_v2_refuses_to_write_what_it_cannot_carry(request_: m.Request) -> None:
    with pytest.raises(InvalidArgumentError):
        codec_v2.encode_request(request_)


@pytest.mark.parametrize("request_", [m.BatchReadRequest(1, 2, 3, 4, 5), m.ReadRequest(1, 2**63, 0), m.ReadRequest(-1, 2, 0)])
def test_v3_refuses_to_write_what_it_cannot_carry(request_: m.Request) -> None:
    with pytest.raises(InvalidArgumentError):
        codec_v3.encode_request(request_)


@pytest.mark.parametrize(
    "response",
    [m.AuthResponse(0, Status.UNAUTHORIZED), m.ForceLedgerResponse(0, Status.OK, 1), m.AddResponse(0, Status.TIMEOUT, 1, 2)],
)
def test_v2_has_no_such_response(response: m.Response) -> None:
    with pytest.raises(InvalidArgumentError):
        codec_v2.encode_response(response)


V3_ANSWERS = [
    m.AddResponse(9, Status.FENCED, 5, 6),
    m.ReadResponse(9, Status.OK, 5, 6, b"body", 7, 8),
    m.ReadResponse(9, Status.NO_ENTRY, 5, 6),
    m.AuthResponse(9, Status.OK, "sasl", b"token"),
    m.AuthResponse(9, Status.UNAUTHORIZED),
    m.WriteLacResponse(9, Status.OK, 5),
    m.ForceLedgerResponse(9, Status.OK, 5),
    m.ReadLacResponse(9, Status.OK, 5, b"explicit", b"last"),
    m.ReadLacResponse(9, Status.IO_ERROR, 5, b"explicit"),
    m.ReadLacResponse(9, Status.NO_LEDGER, 5),
    m.EntryListResponse(9, Status.OK, 5, b"list"),
    m.EntryListResponse(9, Status.NO_LEDGER, 5),
    m.BookieInfoResponse(9, Status.OK, 100, 50),
    m.BookieInfoResponse(9, Status.OK),
    m.StartTlsResponse(9, Status.OK),
    m.StartTlsResponse(9, Status.BAD_REQUEST),
    m.UnservedResponse(9, Status.BAD_REQUEST, 12),
]


@pytest.mark.parametrize("response", V3_ANSWERS, ids=repr)
def test_every_v3_answer_reaches_the_client_whole(response: m.Response) -> None:
    """A field that a bookie leaves out stays out: no body is not an empty body, an unknown LAC is not LAC 0."""
    [payload] = FrameReader().feed(ServerProtocol().encode(response, ReplyTo("v3", 3)))
    assert connection.decode_response(payload, "v3") == response


@pytest.mark.parametrize("request_", [m.AddRequest(9, 5, 6, b"k", b"b", deferred_sync=True), m.EntryListRequest(9, 5)], ids=repr)
def test_a_v3_bookie_gets_the_request_whole(request_: m.Request) -> None:
    [(found, reply_to)] = ServerProtocol().feed(connection.encode_request(request_, "v3"))
    assert (found, reply_to) == (request_, ReplyTo("v3", 3))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", bytes(3), bytes.fromhex("0a0608031001"), bytes.fromhex("0a06080310011801")],
    ids=["empty", "no tag", "zeros", "cut off", "without status"],
)
def test_bytes_that_are_no_v3_response_end_the_connection(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no v3 response"):
        codec_v3.decode_response(payload)
    with pytest.raises(RemoteProtocolError, match="no v3 request"):
        codec_v3.decode_request(b"\xff" + payload)


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_success_of_an_operation_that_nobody_asks_for_is_refused(operation: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"success of operation {operation}"):
        codec_v3.decode_response(bytes((0x0A, 6, 8, 3, 0x10, operation, 0x18, 1, 0x10, 0)))


def test_a_plugin_name_that_is_no_text_is_refused_in_both_protocols() -> None:
    """Nothing of it may end up as a name in a log line or be compared with one."""
    auth = bytes.fromhex("0a01ff1200")  # AuthMessage: name b"\xff", empty payload
    v3 = bytes.fromhex("0a06080310051801" + "b20605") + auth
    with pytest.raises(RemoteProtocolError, match="not UTF-8|no v3"):
        codec_v3.decode_request(v3)
    with pytest.raises(RemoteProtocolError, match="not UTF-8|no v3"):
        codec_v3.decode_response(bytes.fromhex("0a06080310051801" + "1000" + "b20605") + auth)
    for decode in (codec_v2.decode_request, codec_v2.decode_response):
        with pytest.raises(RemoteProtocolError):
            decode(bytes.fromhex("02030000") + auth)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x02\x01\x00",  # no header word
        bytes.fromhex("02090000"),  # opcode 9
        bytes.fromhex("02010000") + bytes(35), bytes.fromhex("02020000") + bytes(15), bytes.fromhex("02070000") + bytes(35),
        bytes.fromhex("02020001") + bytes(16 + 19), bytes.fromhex("02070001") + bytes(36 + 19),  # fence reads with half a key
        bytes.fromhex("02030000"), bytes.fromhex("02030000") + b"\x0a\x04sasl", bytes.fromhex("02030000ff"),  # AUTH without its parts
    ],
    ids=bytes.hex,
)  # fmt: skip
def test_a_malformed_v2_request_ends_the_connection(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec_v2.decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x02\x01\x00",
        struct.pack(">Iiqq", 0x02090000, 0, 1, 2),  # opcode 9
        struct.pack(">Iiqq", 0x02010000, 0, 1, 2)[:-1],
        struct.pack(">Iiqq", 0x02010000, 0, 1, 2) + b"x",  # an add has nothing behind its ids
        struct.pack(">Iiqq", 0x02020000, 2, 1, 2) + b"x",  # nor has a failed read
        struct.pack(">Iiqq", 0x02070000, 0, 1, 2),  # a batch without its request id
        struct.pack(">Iiqqq", 0x02070000, 2, 1, 2, 3) + b"x",
    ],
    ids=bytes.hex,
)  # fmt: skip
def test_a_malformed_v2_response_is_not_taken_for_an_answer(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec_v2.decode_response(payload)


@pytest.mark.parametrize("damaged_", [b"\x00\x00\x00", b"\x00\x00\x00\x02a", b"\x00\x00\x00\x01a\x00", b"\xff\xff\xff\xffa"], ids=bytes.hex)
def test_bodies_of_a_batch_that_do_not_fill_it_are_refused(damaged_: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="batch response ends inside"):
        codec_v2.split_bodies(damaged_)
    assert [bytes(part) for part in codec_v2.split_bodies(codec_v2.join_bodies([b"a", b"", b"bc"]))] == [b"a", b"", b"bc"]


def test_the_answer_to_a_batch_read_ends_the_acks_before_it() -> None:
    """A buffer of acks and one batch answer gives both, in order, and nothing is joined across."""
    batch = m.BatchReadResponse(3, Status.OK, 5, 2, codec_v2.join_bodies([b"abc"]))
    acks = [codec_v2.encode_response(m.AddResponse(0, Status.OK, 5, entry)) for entry in (0, 1, 2)]
    found = scanned([*acks[:2], codec_v2.encode_response(batch), acks[2]])
    assert found == [(ADDS, 5, 0, 2), (BATCH, 5, 2, 3), (ADDS, 5, 2, 1)]


def test_acks_of_another_ledger_begin_a_new_item() -> None:
    acks = [m.AddResponse(0, Status.OK, 5, 0), m.AddResponse(0, Status.OK, 6, 1), m.AddResponse(0, Status.OK, 6, 3)]
    found = scanned([codec_v2.encode_response(ack) for ack in acks])
    assert found == [(ADDS, 5, 0, 1), (SPARSE_ADDS, 6, 1, 3)]


@pytest.mark.parametrize(
    ("request_", "operation"),
    [
        (add_v2(5, 6, bytes(20), b"rest", False, False), 1),
        (m.ReadRequest(0, 5, 6), 2),
        (m.ReadRequest(0, 5, 6, fence=True, master_key=bytes(20)), 2),
        (m.BatchReadRequest(8, 5, 6, 10, 1000), 7),
    ],
    ids=repr,
)
def test_a_client_of_a_later_v2_is_told_so_and_can_match_the_answer(request_: m.Request, operation: int) -> None:
    """A header version above 2 gets BAD_VERSION with the ids of the request, in the word it was asked with."""
    payload = bytearray(codec_v2.encode_request(request_))
    payload[0] = 4
    server = ServerProtocol()
    [(request, reply_to)] = server.feed(codec_v2.frame(payload))
    number = getattr(request_, "request_id", 0)
    assert request == m.UnservedRequest(number, operation, 4, Status.BAD_VERSION, 5, 6)
    answer = server.encode(m.UnservedResponse(number, Status.BAD_VERSION, operation, 4, 5, 6), reply_to)
    assert answer[4] == 4
    found = codec_v2.decode_response(answer[4:])
    assert (found.request_id, found.status, getattr(found, "ledger_id", None)) == (number, Status.BAD_VERSION, 5)


@pytest.mark.parametrize(
    "request_",
    [m.AuthRequest(1, "\ud800", b""), m.AuthRequest(1, "sasl", None), m.AuthRequest(1, None, b"")],  # type: ignore[arg-type]
)
def test_credentials_that_are_no_text_and_bytes_are_refused_before_anything_is_sent(request_: m.AuthRequest) -> None:
    """A plugin of the user's making may return anything."""
    for protocol in ("v2", "v3"):
        with pytest.raises(InvalidArgumentError) as failure:
            connection.encode_request(request_, protocol)
        assert failure.value.__cause__ is not None


def test_a_read_cannot_fence_and_piggyback_at_once() -> None:
    """v3 has one flag for both; dropping either without a word would be a missed fence or a missed entry."""
    with pytest.raises(InvalidArgumentError, match="either fences or piggybacks"):
        codec_v3.encode_request(m.ReadRequest(1, 2, -1, fence=True, master_key=b"k", previous_lac=3, piggyback=True))


@pytest.mark.parametrize("response", [m.AddResponse(0, Status.OK, 2**63, 2), m.BatchReadResponse(2**63, Status.OK, 1, 2)])
def test_a_bookie_does_not_answer_with_numbers_that_do_not_fit(response: m.Response) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        codec_v2.encode_response(response)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (m.BatchReadResponse(1, Status.OK, 1, 2), "does not exist in protocol v3"),
        (m.AddResponse(1, Status.TIMEOUT, 1, 2), "never sent"),
        (m.AddResponse(1, Status.OK, 2**63, 2), "does not fit its type"),
        (m.AddResponse(-1, Status.OK, 1, 2), "does not fit its type"),
    ],
)
def test_v3_has_no_such_response(response: m.Response, why: str) -> None:
    """A batch is of v2 alone, a timeout is the client's own conclusion, and 64 bits are 64 bits."""
    with pytest.raises(InvalidArgumentError, match=why):
        codec_v3.encode_response(response)


# --- status -----------------------------------------------------------------------------------------------------


def test_status_numbers_of_both_protocols() -> None:
    assert [(int(s), V2_NUMBERS[s]) for s in sorted(V2_NUMBERS)] == [
        (0, 0), (402, 1), (403, 2), (404, 100), (501, 101), (502, 102), (503, 103), (504, 104), (505, 105), (506, 106), (507, 107),
    ]  # fmt: skip
    for status, number in V2_NUMBERS.items():
        assert status_from_v2(number) is status
        assert status_from_v3(v3_number(status)) is status
    assert v2_number(Status.UNKNOWN_LEDGER_STATE) == 101


@pytest.mark.parametrize("number", [-1, -2, 3, 108, 508, 2**31 - 1])
def test_unknown_numbers_are_a_generic_failure(number: int) -> None:
    assert status_from_v2(number) is Status.IO_ERROR
    assert status_from_v3(number) is Status.IO_ERROR
    payload = struct.pack(">Iiqq", 0x02010000, number, 1, 2)
    assert codec_v2.decode_response(payload) == m.AddResponse(0, Status.IO_ERROR, 1, 2)


@pytest.mark.parametrize("status", [status for status in Status if status < 0])
def test_what_only_the_client_concludes_has_no_number_on_the_wire(status: Status) -> None:
    for number in (v2_number, v3_number):
        with pytest.raises(InvalidArgumentError, match="never sent"):
            number(status)


def test_unknown_v3_status_and_inner_status() -> None:
    unknown = bytes.fromhex("0a06080310021801" + "10cf0f")  # 1999
    assert codec_v3.decode_response(unknown) == m.AddResponse(1, Status.IO_ERROR, 0, 0)
    inner_only = bytes.fromhex("0a06080310021801" + "1000" + "aa0608" + "08f803" + "10b424" + "1807")
    assert codec_v3.decode_response(inner_only) == m.AddResponse(1, Status.FENCED, 0x1234, 7)


def test_success_without_inner_message_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        codec_v3.decode_response(bytes.fromhex("0a06080310021801" + "1000"))
    assert codec_v3.decode_response(bytes.fromhex("0a06080310091801" + "1000")) == m.StartTlsResponse(1, Status.OK)


def test_every_failure_has_its_error() -> None:
    assert set(ERRORS) == set(Status) - {Status.OK}


def test_keys_stay_out_of_repr() -> None:
    assert "key-material" not in repr(m.AddRequest(0, 1, 2, b"key-material", b"key-material"))
