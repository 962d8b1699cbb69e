"""The kernels in Python for adds and reads of protocol v3 (wire-protocol.md 4); ``native/v3.c`` is the twin. pure.py has the rules for all
kernels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from bk_core.errors import InvalidArgumentError
from bk_core.kernels.pure_arguments import (
    ENTRY_HEADER_BYTES,
    FRAME_MAX,
    INT64_MAX,
    KEY_BYTES,
    check_not_negative,
    check_range,
    flat_bytes,
    int64,
)
from bk_core.kernels.pure_lanes import check_selection, selected
from bk_core.kernels.pure_runs import Item, Known, check_reads, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_ADDS, _READS = 1, 2
_READ, _ADD = 1, 2  # operations
_VERSION, _STEP_MAX = 3, 64
_ADD_PREFIX_BYTES = 8 + KEY_BYTES  # of a v2 add: length, header word, key
_HEADER, _STATUS, _READ_RESPONSE, _ADD_RESPONSE = 1, 2, 100, 101  # fields of a response
_FIELD_OF = {_READ: _READ_RESPONSE, _ADD: _ADD_RESPONSE}
_BYTES = 2  # a wire type; the only other one that is understood is 0, a number
_U32 = struct.Struct(">I")
_RESPONSE_FRAME = struct.Struct(">IIiqq")
_READ_WORD = 0x02020000

_Fields = dict[int, int | memoryview]


# --- requests ---------------------------------------------------------------------------------------------------


def frame_adds_v3(
    frames: Buffer,
    offsets: Buffer,
    start: int,
    first_entry_id: int,
    position: int,
    ensemble_size: int,
    write_quorum_size: int,
    ledger_id: int,
    first_number: int,
    recovery: int,
    deferred_sync: int,
    /,
) -> bytes:
    """Return the framed v2 adds that ``select_frames`` gives, as framed v3 requests with transaction ids from first_number on.

    The bytes equal those of ``codec_v3.encode_request``; the last two arguments are true or false. Adds of a recovery have high priority.
    Raises InvalidArgumentError as select_frames does, and for a negative id, numbers beyond 64 bits, or a frame too short for an add.
    """
    views = flat_bytes(frames), flat_bytes(offsets)
    start, first_entry_id = int64(start, "start"), int64(first_entry_id, "first_entry_id")
    position, ensemble_size = int64(position, "position"), int64(ensemble_size, "ensemble_size")
    write_quorum_size, ledger_id = int64(write_quorum_size, "write_quorum_size"), int64(ledger_id, "ledger_id")
    first_number, recovery = int64(first_number, "first_number"), int64(recovery, "recovery")
    deferred_sync = int64(deferred_sync, "deferred_sync")
    check_selection(views[1], start, first_entry_id, position, ensemble_size, write_quorum_size)
    check_not_negative(ledger_id, "ledger_id")
    check_not_negative(first_number, "first_number")
    count = len(views[1]) // 8 - 1
    if first_number > INT64_MAX - count:
        raise InvalidArgumentError(f"{count} numbers from {first_number} do not fit in 64 bits")
    priority = b"\x20\x64" if recovery else b""
    flags = (b"\x28\x01" if deferred_sync else b"") + (b"\xa0\x06\x01" if recovery else b"")
    parts: list[Buffer] = []
    chosen = selected(*views, start, first_entry_id, position, ensemble_size, write_quorum_size)
    for number, (index, frame) in enumerate(chosen, first_number):
        if len(frame) < _ADD_PREFIX_BYTES:
            raise InvalidArgumentError(f"frame {index} of {len(frame)} bytes is no add")
        key, body = frame[_ADD_PREFIX_BYTES - KEY_BYTES : _ADD_PREFIX_BYTES], frame[_ADD_PREFIX_BYTES:]
        header = b"\x08\x03\x10\x02\x18" + _varint(number) + priority
        add = b"\x08" + _varint(ledger_id) + b"\x10" + _varint(first_entry_id + index) + b"\x1a\x14" + key + b"\x22" + _varint(len(body))
        head = b"\x0a" + _varint(len(header)) + header + b"\xaa\x06" + _varint(len(add) + len(body) + len(flags)) + add
        size = len(head) + len(body) + len(flags)
        if size + 4 > FRAME_MAX:
            raise InvalidArgumentError(f"frame {index} of {len(frame)} bytes does not fit in a frame of v3")
        parts += _U32.pack(size), head, body, flags
    return b"".join(parts)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def frame_reads_v3(ledger_id: int, first_entry_id: int, count: int, step: int, first_number: int, /) -> bytes:
    """Return ``count`` plain v3 read requests as frames, for the entries first_entry_id, first_entry_id + step, ...; transaction ids ascend
    by one.

    The bytes equal those of ``codec_v3.encode_request``. Raises InvalidArgumentError as frame_reads does, and for a negative number or
    numbers beyond 64 bits.
    """
    ledger_id, first_entry_id = int64(ledger_id, "ledger_id"), int64(first_entry_id, "first_entry_id")
    count, step, first_number = int64(count, "count"), int64(step, "step"), int64(first_number, "first_number")
    check_reads(ledger_id, first_entry_id, count, step)
    check_not_negative(first_number, "first_number")
    if first_number > INT64_MAX - count:
        raise InvalidArgumentError(f"{count} numbers from {first_number} do not fit in 64 bits")
    return b"".join(_read_request(ledger_id, first_entry_id + i * step, first_number + i) for i in range(count))


def _read_request(ledger_id: int, entry_id: int, number: int) -> bytes:
    header = bytes((0x08, _VERSION, 0x10, _READ, 0x18)) + _varint(number)
    ids = b"\x08" + _varint(ledger_id) + b"\x10" + _varint(entry_id)
    payload = b"\x0a" + _varint(len(header)) + header + _varint(_READ_RESPONSE << 3 | _BYTES) + _varint(len(ids)) + ids
    return _U32.pack(len(payload)) + payload


# --- responses --------------------------------------------------------------------------------------------------


def scan_responses_v3(data: Buffer, start: int, stop: int, frame_bytes_max: int, /) -> tuple[list[Item], int, int]:
    """Find the runs of v3 responses, as ``scan_responses`` does for v2. begin..end of 1 and 2 are whole frames, ``code`` is the transaction
    id of the first one. The items are:

    1 adds: ``count`` OK answers, transaction ids and entry ids both ascending by one.
    2 reads: the same, with entries of a constant step, 1..64, which ``v3_read_frames(data, begin, end)`` returns.
    0 anything else, one message: this includes a message with an unknown field or with a field twice.
    """
    return scan(data, start, stop, frame_bytes_max, _known, _join)


def v3_read_frames(data: Buffer, start: int, stop: int, /) -> tuple[bytes, int, int | None]:
    """Return (frames, step, highest LAC told or None) of the answers start..stop in an item of reads. The frames are v2 frames of the same
    answers, each an OK with an entry.

    The step is the distance from the first entry to the second, 1 for a single one. Raises InvalidArgumentError if anything else is among
    them, or not 0 <= start <= stop <= size of data.
    """
    view = flat_bytes(data)
    start, stop = int64(start, "start"), int64(stop, "stop")
    check_range(start, stop, len(view))
    parts: list[Buffer] = []
    reads = list(_reads(view[start:stop]))
    for read in reads:
        parts += _RESPONSE_FRAME.pack(_RESPONSE_FRAME.size - 4 + len(read.body), _READ_WORD, 0, read.ledger_id, read.entry_id), read.body
    step = reads[1].entry_id - reads[0].entry_id if len(reads) > 1 else 1
    return b"".join(parts), step, max((read.max_lac for read in reads if read.max_lac is not None), default=None)


class _Response(NamedTuple):
    operation: int
    number: int
    ledger_id: int
    entry_id: int
    body: memoryview
    max_lac: int | None


def _reads(view: memoryview) -> Iterator[_Response]:
    at = count = 0
    while at < len(view):
        size = _U32.unpack_from(view, at)[0] if len(view) - at >= 4 else len(view)
        found = _parse(view[at + 4 : at + 4 + size]) if len(view) - at - 4 >= size else None
        if found is None or found.operation != _READ:
            raise InvalidArgumentError(f"frame {count} is no answer with an entry")
        yield found
        at, count = at + 4 + size, count + 1


def _known(payload: memoryview) -> Known | None:
    found = _parse(payload)
    if found is None:
        return None
    return (_ADDS if found.operation == _ADD else _READS), found.ledger_id, found.entry_id, 1, found.number


def _join(view: memoryview, run: Item, found: Known, at: int) -> Known | None:
    kind, ledger, first, count, number, begin, _ = run
    if found[:2] != (kind, ledger) or found[4] != number + count:
        return None
    ahead, step = found[2] - first, 1
    if kind == _READS and count == 1:
        step = ahead if 1 <= ahead <= _STEP_MAX else 1
    elif kind == _READS:
        step = _second(view, begin) - first
    return (kind, ledger, first, count + 1, number) if ahead == count * step else None


def _second(view: memoryview, begin: int) -> int:
    """Return the entry of the second frame of a run of reads."""
    at = begin + 4 + _U32.unpack_from(view, begin)[0]
    second = _parse(view[at + 4 : at + 4 + _U32.unpack_from(view, at)[0]])
    return -1 if second is None else second.entry_id


def _parse(payload: memoryview) -> _Response | None:
    """Parse an OK answer to an add, or to a read with an entry, in which every field is known and occurs once; return None for
    any other."""
    outer = _fields(payload, {_HEADER: _BYTES, _STATUS: 0, _READ_RESPONSE: _BYTES, _ADD_RESPONSE: _BYTES})
    if outer is None or len(outer) != 3 or outer.get(_STATUS) != 0:
        return None
    header = _fields(outer[_HEADER], {1: 0, 2: 0, 3: 0}) if _HEADER in outer else None
    if header is None or len(header) != 3 or header[1] != _VERSION:
        return None
    operation, number = int(header[2]), _signed(header[3])
    if operation not in _FIELD_OF or _FIELD_OF[operation] not in outer or number < 0:
        return None
    inner = _fields(outer[_FIELD_OF[operation]], {1: 0, 2: 0, 3: 0, 4: _BYTES, 5: 0, 6: 0})
    if inner is None or not {1, 2, 3} <= inner.keys() or inner[1] != 0 or (operation == _ADD) == (len(inner) > 3):
        return None
    body = inner.get(4, memoryview(b""))
    if operation == _READ and (4 not in inner or not isinstance(body, memoryview) or len(body) < ENTRY_HEADER_BYTES):
        return None
    ledger, entry = _signed(inner[2]), _signed(inner[3])
    if ledger < 0 or entry < 0 or not isinstance(body, memoryview):
        return None
    return _Response(operation, number, ledger, entry, body, _signed(inner[5]) if 5 in inner else None)


def _fields(message: int | memoryview, types: dict[int, int]) -> _Fields | None:
    """Return the fields of a message by number, or None if a field is not among ``types``, occurs twice or is cut off."""
    fields: _Fields = {}
    at = 0
    view = memoryview(b"") if isinstance(message, int) else message
    while at < len(view):
        tag, at = _taken(view, at)
        if at < 0 or tag >> 3 in fields or types.get(tag >> 3) != tag & 7:
            return None
        value, at = _taken(view, at)
        if at < 0 or (tag & 7 == _BYTES and value > len(view) - at):
            return None
        fields[tag >> 3] = value if tag & 7 != _BYTES else view[at : at + value]
        at += value if tag & 7 == _BYTES else 0
    return fields


def _taken(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position behind it; the position is -1 if there is no number, or one of more than 64 bits."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(view):
            break
        byte = view[at]
        if shift == 63 and byte > 1:
            break
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    return 0, -1


def _signed(value: int | memoryview) -> int:
    number = 0 if isinstance(value, memoryview) else value
    return number if number <= INT64_MAX else number - (1 << 64)
