"""The golden vectors of wire-protocol.md 13: keys, bodies, LAC packets and frames of both protocols, read and written."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from bk_core import kernels
from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.kernels import crc32c
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.wire import codec_v2, codec_v3, connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.frames import FrameReader
from bk_core.protocol.wire.messages import Status

LEDGER, ENTRY, LAC, LENGTH = 0x1234, 7, 6, 1005
PAYLOAD, PASSWORD = b"hello, bookkeeper", b"secret"


def unhex(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


K1 = unhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
K2 = unhex("e793cbc379107648537183605cd361d3bb789a39")
K3 = unhex("190c685bae851574f5ab47c960a00c0466f96603")
H = unhex("0000000000001234 0000000000000007 0000000000000006 00000000000003ed")
E1 = H + unhex("0321c545") + PAYLOAD
BODIES = {
    DigestType.CRC32C: E1,
    DigestType.CRC32: H + unhex("00000000ad79439c") + PAYLOAD,
    DigestType.MAC: H + unhex("6c881f5147162fc7412db09af6709d905c2112e9") + PAYLOAD,
    DigestType.DUMMY: H + PAYLOAD,
}
H0 = unhex("0000000000001234 0000000000000000 ffffffffffffffff 0000000000000000")
EMPTY_BODIES = {
    DigestType.CRC32C: H0 + unhex("ed6f18c2"),
    DigestType.CRC32: H0 + unhex("0000000022f8ebc9"),
    DigestType.MAC: H0 + unhex("e2dbcdcc631f1f9f7810c6b02dbc59c9f5f845c0"),
}
L1 = unhex("0000000000001234 0000000000000006 3bf75cf7")
LAC_PACKETS = {
    DigestType.CRC32C: L1,
    DigestType.CRC32: unhex("0000000000001234 0000000000000006 00000000555e2e6b"),
    DigestType.MAC: unhex("0000000000001234 0000000000000006 67980c45384cf24ea2beef5cdebebdc2a96cd451"),
    DigestType.DUMMY: unhex("0000000000001234 0000000000000006"),
}
E8 = unhex("0000000000001234 0000000000000008 0000000000000007 00000000000003ef 41a61489 6869")


# --- keys, bodies, packets --------------------------------------------------------------------------------------


def test_keys() -> None:
    assert digests.master_key(b"") == K1
    assert digests.master_key(PASSWORD) == K2
    assert digests.hmac_key(PASSWORD) == K3


def test_crc_check_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert digests.DIGESTS[DigestType.CRC32].compute(b"", b"12345", b"6789") == unhex("00000000cbf43926")
    assert digests.DIGESTS[DigestType.CRC32C].compute(b"", b"1234", b"56789") == unhex("e3069283")


@pytest.mark.parametrize("kind", BODIES)
def test_entry_bodies(kind: DigestType) -> None:
    assert layout.encode_body(LEDGER, ENTRY, LAC, LENGTH, PAYLOAD, kind, K3) == BODIES[kind]
    expected = layout.Entry(LEDGER, ENTRY, LAC, LENGTH, PAYLOAD)
    assert layout.decode_body(BODIES[kind], LEDGER, ENTRY, kind, K3) == expected
    assert layout.decode_body(memoryview(BODIES[kind]), LEDGER, None, kind, K3) == expected
    assert len(BODIES[kind]) == layout.body_overhead(kind) + len(PAYLOAD)


@pytest.mark.parametrize("kind", EMPTY_BODIES)
def test_first_entry_with_empty_payload(kind: DigestType) -> None:
    assert layout.encode_body(LEDGER, 0, -1, 0, b"", kind, K3) == EMPTY_BODIES[kind]
    assert layout.decode_body(EMPTY_BODIES[kind], LEDGER, 0, kind, K3) == layout.Entry(LEDGER, 0, -1, 0, b"")


@pytest.mark.parametrize("kind", LAC_PACKETS)
def test_explicit_lac_packets(kind: DigestType) -> None:
    assert layout.encode_lac_packet(LEDGER, LAC, kind, K3) == LAC_PACKETS[kind]
    assert layout.decode_lac_packet(LAC_PACKETS[kind], LEDGER, kind, K3) == LAC


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.CRC32C, DigestType.MAC])
def test_every_flipped_bit_is_a_digest_error(kind: DigestType) -> None:
    for data, decode in (
        (BODIES[kind], lambda b: layout.decode_body(b, LEDGER, ENTRY, kind, K3)),
        (LAC_PACKETS[kind], lambda b: layout.decode_lac_packet(b, LEDGER, kind, K3)),
    ):
        for bit in range(len(data) * 8):
            wrong = bytearray(data)
            wrong[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DigestError):
                decode(wrong)


# --- frames -----------------------------------------------------------------------------------------------------

V2_REQUESTS: dict[str, tuple[str, m.Request]] = {
    "A1": (f"0000004d 02010000 {K2.hex()} {E1.hex()}", m.AddRequest(0, LEDGER, ENTRY, K2, E1)),
    "A2": (
        f"0000004d 02010006 {K2.hex()} {E1.hex()}",
        m.AddRequest(0, LEDGER, ENTRY, K2, E1, recovery=True, high_priority=True),
    ),
    "A2 replication": (f"0000004d 02010002 {K2.hex()} {E1.hex()}", m.AddRequest(0, LEDGER, ENTRY, K2, E1, recovery=True)),
    "R1": ("00000014 02020000 0000000000001234 0000000000000007", m.ReadRequest(0, LEDGER, ENTRY)),
    "R2": (
        f"00000028 02020001 0000000000001234 ffffffffffffffff {K2.hex()}",
        m.ReadRequest(0, LEDGER, -1, fence=True, master_key=K2),
    ),
    "R3": (
        f"00000028 02020005 0000000000001234 0000000000000007 {K2.hex()}",
        m.ReadRequest(0, LEDGER, ENTRY, fence=True, high_priority=True, master_key=K2),
    ),
    "B1": (
        "00000028 02070000 0000000000001234 0000000000000007 000000000000002a 0000000a 0000000000500000",
        m.BatchReadRequest(42, LEDGER, ENTRY, 10, 5242880),
    ),
    "B2": (
        f"0000003c 02070005 0000000000001234 0000000000000007 000000000000002a 0000000a 0000000000500000 {K2.hex()}",
        m.BatchReadRequest(42, LEDGER, ENTRY, 10, 5242880, fence=True, high_priority=True, master_key=K2),
    ),
    "U1": (
        "0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200",
        m.AuthRequest(0, "AuthDisabledPlugin", b""),
    ),
}

V2_RESPONSES: dict[str, tuple[str, m.Response]] = {
    "A3": ("00000018 02010000 00000000 0000000000001234 0000000000000007", m.AddResponse(0, Status.OK, LEDGER, ENTRY)),
    "A4": ("00000018 02010000 00000068 0000000000001234 0000000000000007", m.AddResponse(0, Status.FENCED, LEDGER, ENTRY)),
    "R4": (
        f"0000004d 02020000 00000000 0000000000001234 0000000000000007 {E1.hex()}",
        m.ReadResponse(0, Status.OK, LEDGER, ENTRY, E1),
    ),
    "R5": ("00000018 02020000 00000002 0000000000001234 0000000000000007", m.ReadResponse(0, Status.NO_ENTRY, LEDGER, ENTRY)),
    "B3": (
        f"00000083 02070000 00000000 0000000000001234 0000000000000007 000000000000002a00000035 {E1.hex()} 00000026 {E8.hex()}",
        m.BatchReadResponse(42, Status.OK, LEDGER, ENTRY, codec_v2.join_bodies([E1, E8])),
    ),
    "B4": (
        "00000020 02070000 00000002 0000000000001234 0000000000000007 000000000000002a",
        m.BatchReadResponse(42, Status.NO_ENTRY, LEDGER, ENTRY),
    ),
    "U1": (
        "0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200",
        m.AuthResponse(0, Status.OK, "AuthDisabledPlugin", b""),
    ),
}

MINUS_ONE = "ffffffffffffffffff01"
V3_REQUESTS: dict[str, tuple[str, m.Request]] = {
    "V1": (
        f"0000005d 0a06 0803 1002 1801 aa0652 08b424 1007 1a14 {K2.hex()} 2235 {E1.hex()}",
        m.AddRequest(1, LEDGER, ENTRY, K2, E1),
    ),
    "V2": (
        f"0000005f 0a06 0803 1002 1803 aa0654 08b424 1007 1a14 {K2.hex()} 2235 {E1.hex()} 2801",
        m.AddRequest(3, LEDGER, ENTRY, K2, E1, deferred_sync=True),
    ),
    "V4": ("00000010 0a06 0803 1001 1806 a20605 08b424 1007", m.ReadRequest(6, LEDGER, ENTRY)),
    "V6": (
        f"0000003c 0a06 0803 1006 1807 ba0631 08b424 1006 1a14 {K2.hex()} 2214 {L1.hex()}",
        m.WriteLacRequest(7, LEDGER, LAC, K2, L1),
    ),
    "V7": ("0000000b 0a06 0803 1009 1808 d20600", m.StartTlsRequest(8)),
    "V8": ("0000000e 0a06 0803 1007 1809 c20603 08b424", m.ReadLacRequest(9, LEDGER)),
    "V9": ("0000000e 0a06 0803 100a 180a da0603 08b424", m.ForceLedgerRequest(10, LEDGER)),
    "V10": ("0000000d 0a06 0803 1008 180b ca0602 0803", m.BookieInfoRequest(11, 3)),
    "V11": (
        "00000021 0a06 0803 1005 180c b20616 0a12 4175746844697361626c6564506c7567696e 1200",
        m.AuthRequest(12, "AuthDisabledPlugin", b""),
    ),
    "V13": (
        f"00000032 0a06 0803 1001 1804 a20627 08b424 10{MINUS_ONE} 1a14 {K2.hex()} a00601",
        m.ReadRequest(4, LEDGER, -1, fence=True, master_key=K2),
    ),
    "V14": (
        f"00000021 0a06 0803 1001 1805 a20616 08b424 10{MINUS_ONE} 2006 28e807 a00602",
        m.ReadRequest(5, LEDGER, -1, previous_lac=6, timeout_ms=1000, piggyback=True),
    ),
    "V15": (
        f"00000062 0a08 0803 1002 1802 2064 aa0655 08b424 1007 1a14 {K2.hex()} 2235 {E1.hex()} a00601",
        m.AddRequest(2, LEDGER, ENTRY, K2, E1, recovery=True, high_priority=True),
    ),
}
# The order in which 4.18 writes the fields; read, never written.
V3_REQUESTS_4_18: dict[str, tuple[str, m.Request]] = {
    "V13": (f"00000032 0a06 0803 1001 1804 a20627 a00601 08b424 10{MINUS_ONE} 1a14 {K2.hex()}", V3_REQUESTS["V13"][1]),
    "V14": (f"00000021 0a06 0803 1001 1805 a20616 a00602 08b424 10{MINUS_ONE} 2006 28e807", V3_REQUESTS["V14"][1]),
    "V15": (
        f"00000062 0a08 0803 1002 1802 2064 aa0655 a00601 08b424 1007 1a14 {K2.hex()} 2235 {E1.hex()}",
        V3_REQUESTS["V15"][1],
    ),
}
V3_RESPONSES: dict[str, tuple[str, m.Response]] = {
    "V3": ("00000014 0a06 0803 1002 1801 1000 aa0607 0800 10b424 1807", m.AddResponse(1, Status.OK, LEDGER, ENTRY)),
    "V5": (
        f"0000004d 0a06 0803 1001 1806 1000 a20640 0800 10b424 1807 2235 {E1.hex()} 2806",
        m.ReadResponse(6, Status.OK, LEDGER, ENTRY, E1, max_lac=6),
    ),
}
V12 = unhex("0a06 0803 1002 1801 10f603")


def all_ways(frames: bytes) -> list[list[bytes]]:
    """Payloads of a stream fed whole, byte by byte, and with an incomplete frame behind it."""
    behind = FrameReader()
    with_more = [bytes(p) for p in behind.feed(frames + frames[:7])]
    assert behind.pending_bytes == 7
    single = FrameReader()
    bytewise = [bytes(p) for i in range(len(frames)) for p in single.feed(frames[i : i + 1])]
    return [[bytes(p) for p in FrameReader().feed(frames)], bytewise, with_more]


def check_read(text: str, decode: Callable[[bytes], object], expected: object) -> None:
    for payloads in all_ways(unhex(text) * 2):
        assert [decode(payload) for payload in payloads] == [expected, expected]


@pytest.mark.parametrize("name", V2_REQUESTS)
def test_v2_requests(name: str) -> None:
    text, request = V2_REQUESTS[name]
    assert connection.encode_request(request, "v2") == unhex(text)
    check_read(text, codec_v2.decode_request, request)


@pytest.mark.parametrize("name", V2_RESPONSES)
def test_v2_responses(name: str) -> None:
    text, response = V2_RESPONSES[name]
    assert connection.ServerProtocol().encode(response, connection.ReplyTo("v2", 2)) == unhex(text)
    check_read(text, codec_v2.decode_response, response)


def test_v2_batch_bodies_are_the_entries() -> None:
    response = codec_v2.decode_response(unhex(V2_RESPONSES["B3"][0])[4:])
    assert isinstance(response, m.BatchReadResponse)
    first, second = codec_v2.split_bodies(response.bodies)
    assert layout.decode_body(first, LEDGER, 7, DigestType.CRC32C).payload == PAYLOAD
    assert layout.decode_body(second, LEDGER, 8, DigestType.CRC32C) == layout.Entry(LEDGER, 8, 7, 1007, b"hi")


@pytest.mark.parametrize("name", V3_REQUESTS)
def test_v3_requests(name: str) -> None:
    text, request = V3_REQUESTS[name]
    assert connection.encode_request(request, "v3") == unhex(text)
    check_read(text, codec_v3.decode_request, request)


@pytest.mark.parametrize("name", V3_REQUESTS_4_18)
def test_v3_requests_in_the_field_order_of_4_18(name: str) -> None:
    text, request = V3_REQUESTS_4_18[name]
    check_read(text, codec_v3.decode_request, request)


@pytest.mark.parametrize("name", V3_RESPONSES)
def test_v3_responses(name: str) -> None:
    text, response = V3_RESPONSES[name]
    assert connection.ServerProtocol().encode(response, connection.ReplyTo("v3", 3)) == unhex(text)
    check_read(text, codec_v3.decode_response, response)


def test_v3_refusal_without_inner_message() -> None:
    assert codec_v3.decode_response(V12) == m.AddResponse(1, Status.UNAUTHORIZED, 0, 0)


@pytest.mark.parametrize("requests", [V2_REQUESTS, {**V3_REQUESTS, **V3_REQUESTS_4_18}], ids=["v2", "v3"])
def test_a_server_reads_them_all_on_one_connection(requests: dict[str, tuple[str, m.Request]]) -> None:
    stream = b"".join(unhex(text) for text, _ in requests.values())
    expected = [request for _, request in requests.values()]
    whole = connection.ServerProtocol()
    assert [request for request, _ in whole.feed(stream)] == expected
    bytewise = connection.ServerProtocol()
    assert [request for i in range(len(stream)) for request, _ in bytewise.feed(stream[i : i + 1])] == expected


# --- wire-protocol.md 13.7: what the bookie's decoder does with other payloads -------------------------------------


def serve(payload: str) -> m.Request:
    [(request, _)] = connection.ServerProtocol().feed(codec_v2.frame(unhex(payload)))
    return request


def test_v3_operation_12_is_refused_not_misread() -> None:
    assert serve("0a06 0803 100c 1801") == m.UnservedRequest(1, 12, 3, Status.BAD_REQUEST)


@pytest.mark.parametrize("payload", ["0a06 0803 100d 1801", "0a06 0809 1001 1801", "a20605 08b424 1007"])
def test_unknown_operation_unknown_version_and_missing_header_close(payload: str) -> None:
    assert codec_v3.parse_request(unhex(payload)) is None
    with pytest.raises(RemoteProtocolError):
        serve(payload)


def test_v3_header_version_2() -> None:
    assert serve("0a06 0802 1001 1806 a20605 08b424 1007") == m.UnservedRequest(6, 1, 2, Status.BAD_VERSION, LEDGER, ENTRY)


def test_v2_version_3_read() -> None:
    server = connection.ServerProtocol()
    [(request, reply_to)] = server.feed(unhex("00000014 03020000 0000000000001234 0000000000000007"))
    assert request == m.UnservedRequest(0, 2, 3, Status.BAD_VERSION, LEDGER, ENTRY)
    response = m.UnservedResponse(0, Status.BAD_VERSION, 2, 3, LEDGER, ENTRY)
    assert server.encode(response, reply_to) == unhex("00000018 03020000 00000067 0000000000001234 0000000000000007")


def test_legacy_word() -> None:
    server = connection.ServerProtocol()
    [(request, reply_to)] = server.feed(unhex("00000014 00000002 0000000000001234 0000000000000007"))
    assert request == m.ReadRequest(0, LEDGER, ENTRY)
    assert server.encode(m.ReadResponse(0, Status.NO_ENTRY, LEDGER, ENTRY), reply_to)[4:8] == unhex("00000002")


@pytest.mark.parametrize(
    "payload",
    [
        "02040000 0000000000001234 0000000000000007",
        "02020001 0000000000001234 0000000000000007 e793cbc3",
        f"02010000 {K2.hex()} 0000000000001234 000000000000",
        "02030000 0a12 41",
    ],
    ids=["opcode 4", "fence without key", "truncated add", "bad auth"],
)
def test_v2_payloads_that_close(payload: str) -> None:
    with pytest.raises(RemoteProtocolError):
        serve(payload)


def test_a_v3_frame_after_the_downgrade_is_misread_as_v2() -> None:
    server = connection.ServerProtocol()
    server.feed(unhex(V2_REQUESTS["R1"][0]))
    assert server.protocol == "v2"
    with pytest.raises(RemoteProtocolError):
        server.feed(unhex(V3_REQUESTS["V4"][0]))
    # Header length 7 looks like a batch read of version 10 (wire-protocol.md 2.2).
    again = connection.ServerProtocol()
    again.feed(unhex(V2_REQUESTS["R1"][0]))
    long_txn = m.AddRequest(200, LEDGER, ENTRY, K2, E1)
    [(request, _)] = again.feed(connection.encode_request(long_txn, "v3"))
    assert isinstance(request, m.UnservedRequest)
    assert (request.operation, request.version, request.status) == (7, 10, Status.BAD_VERSION)


@pytest.mark.parametrize("length", ["00000000", "004ffffd", "ffffffff"])
def test_frame_lengths_that_close(length: str) -> None:
    with pytest.raises(RemoteProtocolError):
        connection.ServerProtocol().feed(unhex(length))


def test_largest_legal_frame_length_is_waited_for() -> None:
    assert connection.ServerProtocol().feed(unhex("004ffffc")) == []


# --- the kernels' fast paths give the same bytes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", BODIES)
def test_frame_adds_writes_the_golden_bodies(kind: DigestType) -> None:
    before = LENGTH - len(PAYLOAD)
    frames, offsets = kernels.frame_adds(PAYLOAD, array("q", [0, len(PAYLOAD)]), LEDGER, ENTRY, LAC, before, int(kind), K3, K2, 6)
    assert list(memoryview(offsets).cast("q")) == [0, len(frames)]
    assert frames == connection.encode_request(m.AddRequest(0, LEDGER, ENTRY, K2, BODIES[kind], True, True), "v2")


def test_unpack_entries_reads_the_golden_responses() -> None:
    for data, header_bytes in ((unhex(V2_RESPONSES["R4"][0]), 24), (codec_v2.join_bodies([E1]), 0)):
        ids, offsets, values, lacs = kernels.unpack_entries(data, header_bytes, LEDGER, int(DigestType.CRC32C), b"")
        assert values == PAYLOAD
        assert [list(memoryview(x).cast("q")) for x in (ids, offsets, lacs)] == [[ENTRY], [0, len(PAYLOAD)], [LAC, LENGTH]]
