"""Both kernels against known bytes: wire-protocol.md section 13 and the published CRC-32C values."""

from __future__ import annotations

import mmap
from array import array
from types import ModuleType

import pytest

from bk_core.errors import DigestError, InvalidArgumentError, RemoteProtocolError
from bk_core.kernels import _native, pure

CRC32, HMAC, CRC32C, DUMMY = 1, 2, 3, 4
MASTER_KEY = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
HMAC_KEY = bytes.fromhex("190c685bae851574f5ab47c960a00c0466f96603")
HEADER = "0000000000001234 0000000000000007 0000000000000006 00000000000003ed"
PAYLOAD = b"hello, bookkeeper"
DIGESTS = {CRC32: "00000000ad79439c", HMAC: "6c881f5147162fc7412db09af6709d905c2112e9", CRC32C: "0321c545", DUMMY: ""}
EMPTY_DIGESTS = {CRC32: "0000000022f8ebc9", HMAC: "e2dbcdcc631f1f9f7810c6b02dbc59c9f5f845c0", CRC32C: "ed6f18c2"}
B3_ITEMS = bytes.fromhex(
    "00000035 0000000000001234 0000000000000007 0000000000000006 00000000000003ed 0321c545 68656c6c6f2c20626f6f6b6b6565706572"
    "00000026 0000000000001234 0000000000000008 0000000000000007 00000000000003ef 41a61489 6869"
)
INTERLEAVE_SIZES = [
    0,
    1,
    7,
    8,
    9,
    47,
    48,
    71,
    72,
    127,
    128,
    129,
    191,
    192,
    255,
    511,
    512,
    513,
    767,
    768,
    769,
    775,
    1535,
    1536,
    1537,
    12287,
    12288,
    12289,
    13055,
    13056,
    13064,
    24577,
]

both = pytest.mark.parametrize("kernels", [pure, _native], ids=["pure", "native"])


def int64s(buffer: bytes) -> list[int]:
    return array("q", buffer).tolist()


def add(kernels: ModuleType, payload: bytes, entry: int, lac: int, before: int, digest_type: int, flags: int = 0) -> tuple[bytes, bytes]:
    offsets = array("q", [0, len(payload)])
    framed: tuple[bytes, bytes] = kernels.frame_adds(payload, offsets, 0x1234, entry, lac, before, digest_type, HMAC_KEY, MASTER_KEY, flags)
    return framed


@both
def test_crc32c_check_values(kernels: ModuleType) -> None:
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(b"") == 0
    assert kernels.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720 B.4, also the next three
    assert kernels.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert kernels.crc32c(bytes(range(32))) == 0x46DD794E
    assert kernels.crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C


@pytest.mark.parametrize("size", INTERLEAVE_SIZES)
def test_crc32c_around_the_interleave_lengths(size: int) -> None:
    data = bytes(i * 31 % 251 for i in range(size + 9))
    for start in (0, 1, 7):
        assert _native.crc32c(data[start : start + size]) == pure.crc32c(data[start : start + size])


@both
@pytest.mark.parametrize("cut", [0, 1, 8, 255, 768, 769, 1000])
def test_crc32c_resumes(kernels: ModuleType, cut: int) -> None:
    data = bytes(i * 7 % 256 for i in range(1000))
    assert kernels.crc32c(data[cut:], kernels.crc32c(data[:cut])) == kernels.crc32c(data)


def test_big_inputs_without_the_gil() -> None:
    data = bytes(i * 11 % 256 for i in range(100_000))
    assert _native.crc32c(data) == pure.crc32c(data)
    offsets = array("q", range(0, len(data) + 1, 1000))
    arguments = (data, offsets, 1, 0, -1, 0, CRC32C, b"", MASTER_KEY, 0)
    frames, frame_offsets = pure.frame_adds(*arguments)
    assert _native.frame_adds(*arguments) == (frames, frame_offsets)
    assert _native.scan_frames(frames, 5000) == pure.scan_frames(frames, 5000)
    assert _native.unpack_entries(frames, 24, 1, CRC32C, b"") == pure.unpack_entries(frames, 24, 1, CRC32C, b"")


@both
def test_a1_add_frame(kernels: ModuleType) -> None:
    frame, offsets = add(kernels, PAYLOAD, 7, 6, 1005 - 17, CRC32C)
    assert frame == bytes.fromhex("0000004d 02010000") + MASTER_KEY + bytes.fromhex(HEADER + DIGESTS[CRC32C]) + PAYLOAD
    assert int64s(offsets) == [0, len(frame)]


@both
def test_a2_recovery_add_frame(kernels: ModuleType) -> None:
    frame, _ = add(kernels, PAYLOAD, 7, 6, 1005 - 17, CRC32C, flags=6)
    assert frame[:8] == bytes.fromhex("0000004d 02010006")


@both
@pytest.mark.parametrize("digest_type", list(DIGESTS))
def test_e1_to_e4_bodies(kernels: ModuleType, digest_type: int) -> None:
    body = bytes.fromhex(HEADER + DIGESTS[digest_type]) + PAYLOAD
    frame, offsets = add(kernels, PAYLOAD, 7, 6, 1005 - 17, digest_type)
    assert frame[28 : int64s(offsets)[1]] == body
    unpacked = kernels.unpack_entries(len(body).to_bytes(4, "big") + body, 0, 0x1234, digest_type, HMAC_KEY)
    assert [int64s(unpacked[0]), int64s(unpacked[1]), unpacked[2], int64s(unpacked[3])] == [[7], [0, 17], PAYLOAD, [6, 1005]]


@both
@pytest.mark.parametrize("digest_type", list(EMPTY_DIGESTS))
def test_e5_to_e7_empty_payload(kernels: ModuleType, digest_type: int) -> None:
    frame, _ = add(kernels, b"", 0, -1, 0, digest_type)
    assert frame[28 + 32 :] == bytes.fromhex(EMPTY_DIGESTS[digest_type])
    assert kernels.unpack_entries(frame, 24, 0x1234, digest_type, HMAC_KEY)[2] == b""


@both
def test_b3_batch_items(kernels: ModuleType) -> None:
    entry_ids, offsets, values, lacs_and_lengths = kernels.unpack_entries(B3_ITEMS, 0, 0x1234, CRC32C, b"")
    assert (int64s(entry_ids), int64s(offsets), values) == ([7, 8], [0, 17, 19], PAYLOAD + b"hi")
    assert int64s(lacs_and_lengths) == [6, 1005, 7, 1007]


@both
def test_a_run_of_adds_continues_ids_and_lengths(kernels: ModuleType) -> None:
    """Offsets may begin inside the payloads, as those of an Arrow slice do."""
    frames, frame_offsets = kernels.frame_adds(b"..abbccc", array("q", [2, 3, 5, 5, 8]), 9, 100, 50, 1000, HMAC, HMAC_KEY, MASTER_KEY, 0)
    bounds, consumed = kernels.scan_frames(frames, 1 << 20)
    starts = int64s(frame_offsets)
    assert int64s(bounds) == [at for start, end in zip(starts, starts[1:], strict=False) for at in (start + 4, end)]
    assert consumed == len(frames) == starts[-1]
    entry_ids, offsets, values, lacs_and_lengths = kernels.unpack_entries(frames, 24, 9, HMAC, HMAC_KEY)
    assert (int64s(entry_ids), int64s(offsets), values) == ([100, 101, 102, 103], [0, 1, 3, 3, 6], b"abbccc")
    assert int64s(lacs_and_lengths) == [50, 1001, 50, 1003, 50, 1003, 50, 1006]


@both
def test_nothing_in_nothing_out(kernels: ModuleType) -> None:
    assert kernels.scan_frames(b"", 100) == (b"", 0)
    assert kernels.frame_adds(b"", array("q", [0]), 0, 0, -1, 0, DUMMY, b"", MASTER_KEY, 0) == (b"", bytes(8))
    assert kernels.unpack_entries(b"", 0, 0, DUMMY, b"") == (b"", bytes(8), b"", b"")


@both
def test_scan_whole_bytewise_and_with_more_behind(kernels: ModuleType) -> None:
    frames = [bytes([i]) * size for i, size in enumerate([1, 5, 96, 2, 40])]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    bounds, consumed = kernels.scan_frames(stream, 100)
    pairs = int64s(bounds)
    assert [stream[start:end] for start, end in zip(pairs[::2], pairs[1::2], strict=True)] == frames
    assert consumed == len(stream)
    for rest in (b"\0", b"\0\0\0\x60", b"\0\0\0\x60abc"):
        assert kernels.scan_frames(stream + rest, 100) == (bounds, consumed)
    for cut in range(len(stream)):
        complete, used = kernels.scan_frames(stream[:cut], 100)
        assert bounds.startswith(complete) and used <= cut
        following, used_later = kernels.scan_frames(stream[used:], 100)
        assert int64s(complete) + [at + used for at in int64s(following)] == pairs and used + used_later == consumed
    found, buffer = [], b""
    for byte in stream:
        buffer += bytes([byte])
        complete, used = kernels.scan_frames(buffer, 100)
        if complete:
            start, end = int64s(complete)
            found.append(buffer[start:end])
        buffer = buffer[used:]
    assert found == frames and buffer == b""


@both
def test_a_bad_length_is_known_from_four_bytes(kernels: ModuleType) -> None:
    """The default limit of Apache peers: 0x004ffffc is the largest length, 0x004ffffd is refused (wire-protocol.md 2.1)."""
    assert kernels.scan_frames(bytes.fromhex("004ffffc"), 5242880) == (b"", 0)
    for head, text in [
        ("004ffffd", "a frame of 5242881 bytes"),
        ("ffffffff", "a frame of 4294967299 bytes"),
        ("00000000", "without payload"),
    ]:
        with pytest.raises(RemoteProtocolError, match=text):
            kernels.scan_frames(bytes.fromhex("00000001ff" + head), 5242880)
        assert kernels.scan_frames(bytes.fromhex("00000001ff" + head)[:-1], 5242880)[1] == 5


@both
def test_a_damaged_entry_is_named(kernels: ModuleType) -> None:
    for position in range(4, 4 + 53):
        damaged = bytearray(B3_ITEMS)
        damaged[position] ^= 0x10
        with pytest.raises(DigestError, match="item 0: wrong digest"):
            kernels.unpack_entries(damaged, 0, 0x1234, CRC32C, b"")
    damaged = bytearray(B3_ITEMS)
    damaged[-1] ^= 1
    with pytest.raises(DigestError) as caught:
        kernels.unpack_entries(damaged, 0, 0x1234, CRC32C, b"")
    assert caught.value.context == {"item": 1, "ledger": 0x1234, "entry": 8}
    with pytest.raises(DigestError, match="item 0: ledger 4660, entry 7 where ledger 4661 was expected"):
        kernels.unpack_entries(B3_ITEMS, 0, 0x1235, CRC32C, b"")


@both
def test_every_cut_of_a_batch_is_refused(kernels: ModuleType) -> None:
    for cut in range(1, len(B3_ITEMS)):
        if cut != 4 + 53:
            with pytest.raises(RemoteProtocolError, match="is cut off"):
                kernels.unpack_entries(B3_ITEMS[:cut], 0, 0x1234, CRC32C, b"")
    with pytest.raises(RemoteProtocolError, match="item 0 has 53 bytes and needs at least 60"):
        kernels.unpack_entries(B3_ITEMS, 24, 0x1234, CRC32C, b"")


@both
def test_a_payload_no_frame_can_carry(kernels: ModuleType) -> None:
    size = 0x7FFFFFFF - 64 + 1  # its pages are never touched
    with mmap.mmap(-1, size) as payload, pytest.raises(InvalidArgumentError, match=f"payload 0 of {size} bytes does not fit"):
        kernels.frame_adds(payload, array("q", [0, size]), 1, 0, -1, 0, CRC32C, b"", MASTER_KEY, 0)


@both
def test_keys_are_not_in_messages(kernels: ModuleType) -> None:
    secret = b"geheimgeheim"
    for hmac_key, master_key in [(secret, MASTER_KEY), (HMAC_KEY, secret)]:
        with pytest.raises(InvalidArgumentError) as caught:
            kernels.frame_adds(b"", array("q", [0]), 1, 0, -1, 0, HMAC, hmac_key, master_key, 0)
        assert "geheim" not in str(caught.value)
