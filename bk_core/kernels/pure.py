"""The kernels in Python: the reference for ``native/*.c``, and the replacement where no extension can be loaded.

Both twins return equal values for equal arguments, and raise the same class with the same text and context. They check arguments in this
order: types and 64-bit range from left to right, then values from left to right, then the bytes. No function keeps state. "Native int64" is
the machine's own byte order, because such buffers go on to NumPy and Arrow; the wire itself is big-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from array import array
from typing import TYPE_CHECKING

from bk_core.errors import DigestError, InvalidArgumentError, RemoteProtocolError
from bk_core.kernels.pure_arguments import (
    FRAME_MAX,
    INT64_MAX,
    KEY_BYTES,
    check_frame_length,
    check_frame_limit,
    check_ids_fit,
    check_not_negative,
    flat_bytes,
    int64,
    writable_bytes,
)
from bk_core.kernels.pure_lanes import interleave, select_frames, skip_frames
from bk_core.kernels.pure_runs import (
    entry_bits,
    frame_add_responses,
    frame_read_responses,
    frame_reads,
    measure_run,
    scan_requests,
    scan_responses,
    take_bodies,
)
from bk_core.kernels.pure_v3 import frame_adds_v3, frame_reads_v3, scan_responses_v3, v3_read_frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "CRC32C_KERNEL", "crc32c", "entry_bits", "frame_add_responses", "frame_adds", "frame_adds_v3", "frame_read_responses", "frame_reads",
    "frame_reads_v3", "interleave", "measure_run", "new_block", "scan_frames", "scan_requests", "scan_responses", "scan_responses_v3",
    "select_frames", "skip_frames", "take_bodies", "unpack_entries", "unpack_part", "v3_read_frames",
]  # fmt: skip

CRC32C_KERNEL = "python"

Column = bytes | memoryview
"""Bytes. For large results the extension returns a read-only view of memory instead, which it uses again once nobody refers to it
(native/block.h)."""

_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">qqqq")
_NATIVE = struct.Struct("=q")
_ADD_WORD = 0x02010000  # protocol version 2, ADDENTRY (wire-protocol.md 5.1)
_ADD_PREFIX_BYTES = 4 + 4 + KEY_BYTES

_CRC32, _HMAC, _CRC32C, _DUMMY = 1, 2, 3, 4
_DIGEST_BYTES = {_CRC32: 8, _HMAC: 20, _CRC32C: 4, _DUMMY: 0}


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
        table.append(state)
    return tuple(table)


_TABLE = _crc32c_table()


def crc32c(data: Buffer, value: int = 0, /) -> int:
    """Return the CRC-32C of ``data``; with ``value``, the CRC of earlier bytes, that of those bytes and ``data`` together (wire-protocol.md
    7.2).

    Raises InvalidArgumentError if ``value`` is not an unsigned 32-bit number or ``data`` is not contiguous, and TypeError if an argument is
    no buffer or no int.
    """
    view = flat_bytes(data)
    value = int64(value, "value")
    if not 0 <= value <= 0xFFFFFFFF:
        raise InvalidArgumentError(f"value must be 0..4294967295: {value}")
    return _crc32c(view, value)


def scan_frames(data: Buffer, frame_bytes_max: int, /) -> tuple[bytes, int]:
    """Find the complete frames ``u32 N | N payload bytes`` at the start of a receive buffer (wire-protocol.md 2.1).

    Returns ``(bounds, consumed)``: native int64 pairs (payload start, payload end), and the offset after the last complete frame.

    Raises RemoteProtocolError for ``N == 0`` or ``N + 4 > frame_bytes_max`` as soon as the four bytes are there, as a bookie does; then no
    frame of this buffer is delivered. Raises InvalidArgumentError if the limit is not in 5..2**31-1 (a larger ``N`` is negative to an
    Apache peer).
    """
    view = flat_bytes(data)
    frame_bytes_max = int64(frame_bytes_max, "frame_bytes_max")
    check_frame_limit(frame_bytes_max)
    bounds = array("q")
    consumed = 0
    while len(view) - consumed >= 4:
        (payload_bytes,) = _LENGTH.unpack_from(view, consumed)
        check_frame_length(payload_bytes, frame_bytes_max)
        end = consumed + 4 + payload_bytes
        if end > len(view):
            break
        bounds.extend((consumed + 4, end))
        consumed = end
    return bounds.tobytes(), consumed


def frame_adds(
    payloads: Buffer,
    offsets: Buffer,
    ledger_id: int,
    first_entry_id: int,
    last_add_confirmed: int,
    length_before: int,
    digest_type: int,
    hmac_key: bytes,
    master_key: bytes,
    flags: int,
    /,
) -> tuple[bytes | memoryview, bytes]:
    """Frame consecutive entries as v2 ADD requests (wire-protocol.md 5.2 and 7.1).

    Payload i is ``payloads[offsets[i]:offsets[i + 1]]``; ``offsets`` are native int64, one more than there are entries, and need not start
    at 0. ``length_before`` is the ledger's payload bytes before the first entry. ``hmac_key`` is used by HMAC only; keys are 20 bytes.
    Returns ``(frames, frame_offsets)``: all frames with their length prefix, and native int64 offsets, one more than there are frames.
    The body of frame i, without length, header word and key, is ``frames[frame_offsets[i] + 28:frame_offsets[i + 1]]``.
    InvalidArgumentError: a number out of range, a key of another size, offsets that decrease or leave the payloads.
    """
    payload_view, offsets_view = flat_bytes(payloads), flat_bytes(offsets)
    ledger_id = int64(ledger_id, "ledger_id")
    first_entry_id = int64(first_entry_id, "first_entry_id")
    last_add_confirmed = int64(last_add_confirmed, "last_add_confirmed")
    length_before = int64(length_before, "length_before")
    digest_type = int64(digest_type, "digest_type")
    hmac_view, master_view = flat_bytes(hmac_key), flat_bytes(master_key)
    flags = int64(flags, "flags")
    if not offsets_view or len(offsets_view) % 8 != 0:
        raise InvalidArgumentError(f"offsets must be one or more native int64: {len(offsets_view)} bytes given")
    check_not_negative(ledger_id, "ledger_id")
    check_not_negative(first_entry_id, "first_entry_id")
    if last_add_confirmed < -1:
        raise InvalidArgumentError(f"last_add_confirmed must be -1 or more: {last_add_confirmed}")
    check_not_negative(length_before, "length_before")
    _check_digest(digest_type, hmac_view)
    if len(master_view) != KEY_BYTES:
        raise InvalidArgumentError(f"master_key must be 20 bytes: {len(master_view)} given")
    if not 0 <= flags <= 0xFFFF:
        raise InvalidArgumentError(f"flags must be 0..65535: {flags}")
    bounds = _checked_offsets(offsets_view, len(payload_view), _ADD_PREFIX_BYTES + _HEADER.size + _DIGEST_BYTES[digest_type])
    count, total = len(bounds) - 1, bounds[-1] - bounds[0]
    check_ids_fit(count, first_entry_id)
    if total > INT64_MAX - length_before:
        raise InvalidArgumentError(f"{total} payload bytes after {length_before} do not fit in 64 bits")

    frames, frame_offsets, length = bytearray(), array("q", [0]), length_before
    word_and_key = _LENGTH.pack(_ADD_WORD | flags) + bytes(master_view)
    for i in range(count):
        payload = payload_view[bounds[i] : bounds[i + 1]]
        length += len(payload)
        header = _HEADER.pack(ledger_id, first_entry_id + i, last_add_confirmed, length)
        digest = _digest(digest_type, hmac_view, header, payload)
        frames += _LENGTH.pack(len(word_and_key) + len(header) + len(digest) + len(payload))
        frames += word_and_key + header + digest
        frames += payload
        frame_offsets.append(len(frames))
    return bytes(frames), frame_offsets.tobytes()


def unpack_entries(
    data: Buffer, header_bytes: int, ledger_id: int, digest_type: int, hmac_key: bytes, first_entry_id: int = -1, step: int = 1, /
) -> tuple[Column, Column, Column, Column]:
    """Turn many entry bodies into columns, and check each digest and its ids (wire-protocol.md 5.3, 7.1 - 7.3).

    ``data`` is a sequence of items ``u32 length | header_bytes ignored bytes | body``, where length counts the ignored bytes and the body.
    There are 0 ignored bytes for the bodies of a batch read answer, and 24 for whole v2 read answers. With a ``first_entry_id`` of 0 or
    more, the entry ids must be that, that + ``step``, ...; with -1 the caller compares the ids with those it asked for.

    Returns ``(entry_ids, offsets, values, lacs_and_lengths)``: native int64 ids, native int64 offsets into values (one more than entries),
    the payloads end to end, and native int64 pairs (last add confirmed field, length field).

    Raises RemoteProtocolError if an item is cut off or too short. Raises DigestError for a wrong digest, then for a wrong ledger id, then
    for a wrong entry id (the order of wire-protocol.md 7.3); its context has ``item``, and ``ledger`` and ``entry`` as the body has them.
    The structure of all items is checked before the first digest. Raises InvalidArgumentError for a bad number.
    """
    view = flat_bytes(data)
    header_bytes = int64(header_bytes, "header_bytes")
    ledger_id = int64(ledger_id, "ledger_id")
    digest_type = int64(digest_type, "digest_type")
    hmac_view = flat_bytes(hmac_key)
    first_entry_id, step = int64(first_entry_id, "first_entry_id"), int64(step, "step")
    if not 0 <= header_bytes <= 0x7FFFFFFF:
        raise InvalidArgumentError(f"header_bytes must be 0..2147483647: {header_bytes}")
    check_not_negative(ledger_id, "ledger_id")
    _check_digest(digest_type, hmac_view)
    if first_entry_id < -1:
        raise InvalidArgumentError(f"first_entry_id must be -1 or more: {first_entry_id}")
    if not 1 <= step <= 0x7FFFFFFF:
        raise InvalidArgumentError(f"step must be 1..2147483647: {step}")
    bodies = _bodies(view, header_bytes, _HEADER.size + _DIGEST_BYTES[digest_type])
    if first_entry_id >= 0:
        check_ids_fit(len(bodies), first_entry_id, step)

    entry_ids, offsets, values, lacs_and_lengths = array("q"), array("q", [0]), bytearray(), array("q")
    for item, body in enumerate(bodies):
        entry_id, lac, length, payload = _checked_body(item, body, ledger_id, digest_type, hmac_view)
        expected = first_entry_id + item * step
        if first_entry_id >= 0 and entry_id != expected:
            raise _wrong_entry(item, ledger_id, entry_id, expected)
        entry_ids.append(entry_id)
        values += payload
        offsets.append(len(values))
        lacs_and_lengths.extend((lac, length))
    return entry_ids.tobytes(), offsets.tobytes(), bytes(values), lacs_and_lengths.tobytes()


def unpack_part(
    data: Buffer,
    ledger_id: int,
    digest_type: int,
    hmac_key: bytes,
    first_entry_id: int,
    values: Buffer,
    offsets: Buffer,
    taken: int,
    /,
) -> tuple[int, int, int]:
    """Do the same for an answer that arrives in parts: ``data`` holds the next of its items ``u32 length | body``, and may end inside an
    item.

    ``taken`` entries are in ``values`` and ``offsets`` already, so the next payload goes to ``offsets[taken]``. ``first_entry_id`` is the
    id of the answer's first entry; ids ascend by one. ``offsets`` are native int64, one more than the most entries that may come.

    Returns ``(consumed, taken, next)``: the bytes of the items that are finished, the number of entries so far, and the size of the item
    behind them, its length included. That size is 4 while the length is not complete, and 0 if no byte of the item is there. The item is
    incomplete, or ``offsets`` have no place for it.

    Raises what ``unpack_entries`` raises, but a bad digest is reported even if the structure behind it is bad. Items are numbered from the
    answer's first entry. The entries before the bad one are in place; the contents of ``values`` behind them are undefined. Raises
    InvalidArgumentError for a bad number, or payloads that do not fit in ``values``.
    """
    view = flat_bytes(data)
    ledger_id, digest_type = int64(ledger_id, "ledger_id"), int64(digest_type, "digest_type")
    hmac_view = flat_bytes(hmac_key)
    first_entry_id = int64(first_entry_id, "first_entry_id")
    value_view, offset_view = writable_bytes(values), writable_bytes(offsets)
    taken = int64(taken, "taken")
    check_not_negative(ledger_id, "ledger_id")
    _check_digest(digest_type, hmac_view)
    check_not_negative(first_entry_id, "first_entry_id")
    if len(offset_view) < 8 or len(offset_view) % 8 != 0:
        raise InvalidArgumentError(f"offsets must be one or more native int64: {len(offset_view)} bytes given")
    most = len(offset_view) // 8 - 1
    if not 0 <= taken <= most:
        raise InvalidArgumentError(f"taken must be 0..{most}: {taken}")
    check_ids_fit(most, first_entry_id)
    (end,) = _NATIVE.unpack_from(offset_view, 8 * taken)
    if not 0 <= end <= len(value_view):
        raise InvalidArgumentError(f"entry {taken} does not fit in the values")
    at, wanted = 0, _HEADER.size + _DIGEST_BYTES[digest_type]
    while len(view) - at >= 4:
        (item_bytes,) = _LENGTH.unpack_from(view, at)
        if item_bytes < wanted:
            raise RemoteProtocolError(f"item {taken} has {item_bytes} bytes and needs at least {wanted}")
        body = view[at + 4 : at + 4 + item_bytes]
        if len(body) < item_bytes or taken == most:
            return at, taken, 4 + item_bytes
        if item_bytes - wanted > len(value_view) - end:
            raise InvalidArgumentError(f"entry {taken} does not fit in the values")
        entry_id, _, _, payload = _checked_body(taken, body, ledger_id, digest_type, hmac_view)
        if entry_id != first_entry_id + taken:
            raise _wrong_entry(taken, ledger_id, entry_id, first_entry_id + taken)
        value_view[end : end + len(payload)] = payload
        end, taken, at = end + len(payload), taken + 1, at + 4 + item_bytes
        _NATIVE.pack_into(offset_view, 8 * taken, end)
    return at, taken, 4 if at < len(view) else 0


def new_block(size: int, /) -> memoryview:
    """Return memory to write to, with undefined contents. It may be used again once nobody has a view of it any more.

    Raises InvalidArgumentError if the size is not in 0..2**31-1.
    """
    size = int64(size, "size")
    if not 0 <= size <= FRAME_MAX:
        raise InvalidArgumentError(f"size must be 0..2147483647: {size}")
    return memoryview(bytearray(size))


# --- arguments --------------------------------------------------------------------------------------------------


def _check_digest(digest_type: int, hmac_key: memoryview) -> None:
    if digest_type not in _DIGEST_BYTES:
        raise InvalidArgumentError(f"digest_type must be 1 (CRC32), 2 (HMAC), 3 (CRC32C) or 4 (DUMMY): {digest_type}")
    if digest_type == _HMAC and len(hmac_key) != KEY_BYTES:
        raise InvalidArgumentError(f"hmac_key must be 20 bytes for HMAC: {len(hmac_key)} given")


def _checked_offsets(offsets: memoryview, payloads_size: int, overhead: int) -> array[int]:
    bounds = array("q", bytes(offsets))
    before = 0
    for i, offset in enumerate(bounds):
        if not 0 <= offset <= payloads_size:
            raise InvalidArgumentError(f"offset {i} is {offset}, outside the {payloads_size} bytes of payloads")
        if offset < before:
            raise InvalidArgumentError(f"offset {i} is {offset}, below the one before it")
        if i > 0 and offset - before > FRAME_MAX - overhead:
            raise InvalidArgumentError(f"payload {i - 1} of {offset - before} bytes does not fit in a frame")
        before = offset
    return bounds


# --- digests and bodies -----------------------------------------------------------------------------------------


def _crc32c(data: Buffer, value: int) -> int:
    state = value ^ 0xFFFFFFFF
    for byte in memoryview(data):
        state = (state >> 8) ^ _TABLE[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


def _digest(digest_type: int, hmac_key: memoryview, header: bytes, payload: memoryview) -> bytes:
    """Return the digest of header and payload, as it is stored between them (wire-protocol.md 7.2 and 7.3)."""
    if digest_type == _CRC32:
        return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")
    if digest_type == _CRC32C:
        return _crc32c(payload, _crc32c(header, 0)).to_bytes(4, "big")
    if digest_type == _HMAC:
        mac = hmac.new(bytes(hmac_key), header, hashlib.sha1)
        mac.update(payload)
        return mac.digest()
    return b""


def _bodies(data: memoryview, header_bytes: int, body_bytes_min: int) -> list[memoryview]:
    """Return the bodies of all items, each of at least ``body_bytes_min`` bytes. RemoteProtocolError: see unpack_entries."""
    bodies: list[memoryview] = []
    at, wanted = 0, header_bytes + body_bytes_min
    while at < len(data):
        item, rest = len(bodies), len(data) - at
        if rest < 4:
            raise RemoteProtocolError(f"item {item} is cut off: {rest} of 4 length bytes")
        (item_bytes,) = _LENGTH.unpack_from(data, at)
        if item_bytes < wanted:
            raise RemoteProtocolError(f"item {item} has {item_bytes} bytes and needs at least {wanted}")
        if rest - 4 < item_bytes:
            raise RemoteProtocolError(f"item {item} is cut off: {rest - 4} of {item_bytes} bytes")
        bodies.append(data[at + 4 + header_bytes : at + 4 + item_bytes])
        at += 4 + item_bytes
    return bodies


def _checked_body(item: int, body: memoryview, ledger_id: int, digest_type: int, hmac_key: memoryview) -> tuple[int, int, int, memoryview]:
    """Return (entry id, last add confirmed, length, payload) of one body. DigestError: see unpack_entries."""
    header, payload_start = bytes(body[: _HEADER.size]), _HEADER.size + _DIGEST_BYTES[digest_type]
    ledger, entry, lac, length = _HEADER.unpack(header)
    payload = body[payload_start:]
    if not hmac.compare_digest(_digest(digest_type, hmac_key, header, payload), body[_HEADER.size : payload_start]):
        message = f"item {item}: wrong digest (its header says ledger {ledger}, entry {entry})"
        raise DigestError(message, item=item, ledger=ledger, entry=entry)
    if ledger != ledger_id:
        message = f"item {item}: ledger {ledger}, entry {entry} where ledger {ledger_id} was expected"
        raise DigestError(message, item=item, ledger=ledger, entry=entry)
    return entry, lac, length, payload


def _wrong_entry(item: int, ledger: int, entry: int, expected: int) -> DigestError:
    message = f"item {item}: ledger {ledger}, entry {entry} where entry {expected} was expected"
    return DigestError(message, item=item, ledger=ledger, entry=entry)
