"""The kernels in Python for runs: v2 messages of one kind for consecutive entries of one ledger (wire-protocol.md 5).

``native/runs.c`` is the twin. pure.py has the rules for all kernels.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from bk_core.errors import InvalidArgumentError
from bk_core.kernels.pure_arguments import (
    ENTRY_HEADER_BYTES,
    FRAME_MAX,
    KEY_BYTES,
    check_frame_length,
    check_frame_limit,
    check_ids_fit,
    check_not_negative,
    check_range,
    flat_bytes,
    int64,
)

Item = tuple[int, int, int, int, int, int, int]
Known = tuple[int, int, int, int, int]  # kind, ledger, entry, count, code or flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    Join = Callable[[memoryview, Item, Known, int], Known | None]  # extends the run by the frame at a position, or returns None

_OTHER, _ADDS, _READS, _BATCH, _SPARSE_ADDS = 0, 1, 2, 3, 4
_STEP_MAX, _SPAN_MAX = 64, 0x10000
_ADD_WORD, _READ_WORD, _BATCH_WORD = 0x02010000, 0x02020000, 0x02070000  # protocol version 2, opcode, flags 0 (wire-protocol.md 5.1)
_FLAG_FENCE = 0x0001
_COUNT_MAX = 1 << 20

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_IDS = struct.Struct(">qq")
_READ_FRAME = struct.Struct(">IIqq")
_RESPONSE = struct.Struct(">Iiqq")
_RESPONSE_FRAME = struct.Struct(">IIiqq")
_ADD_HEAD_BYTES = 4 + KEY_BYTES
_BATCH_RESPONSE_BYTES = 32
_READ_REQUEST_BYTES = 20


def scan_responses(data: Buffer, start: int, stop: int, frame_bytes_max: int, /) -> tuple[list[Item], int, int]:
    """Find the runs of v2 responses in the bytes [start, stop) of a client's receive buffer (wire-protocol.md 2.1, 5.3).

    Returns ``(items, consumed, wanted)``: ``consumed`` is the position after the last complete frame; ``wanted`` is the size of the
    incomplete frame there, length prefix included, or 0 while its length is not known. An item is ``(kind, ledger_id, entry_id, count,
    code, begin, end)`` with positions in ``data``; code is 0 except for reads:

    1 adds: ``count`` OK answers for entry_id and those that follow. begin..end are their frames, length prefixes included.
    2 reads: ``count`` OK answers for entry_id, entry_id + code, entry_id + 2 * code, ...; the step is 1..64, and 1 for a single one.
      ``unpack_entries(data[begin:end], 24, ...)`` takes the frames as they are.
    3 batch read: one OK answer; ``count`` is its request id, begin..end its bodies.
    4 sparse adds: OK answers with ascending ids that have gaps, as in a striped ledger; ``count`` is last - first + 1, at most 65536.
      ``entry_bits(data[begin:end], entry_id, count)`` tells which. Dense ones are kind 1, in any number.
    0 anything else, one frame: ids are -1, count is 0, begin..end is its payload without length prefix. These are other versions,
      operations and flags, codes other than 0, negative ids, and answers too short for their kind (a read needs an entry header).

    Raises RemoteProtocolError for a frame of no bytes or over the limit; then nothing of the buffer is delivered (as scan_frames). Raises
    InvalidArgumentError if not 0 <= start <= stop <= size of data, or the limit is not in 5..2**31-1.
    """
    return scan(data, start, stop, frame_bytes_max, _known_response, _join_response)


def scan_requests(data: Buffer, start: int, stop: int, frame_bytes_max: int, /) -> tuple[list[Item], int, int]:
    """Find the runs of v2 requests in a bookie's receive buffer in the same way (wire-protocol.md 5.2). The items are:

    1 adds of the same ledger, flags and master key; code is the flags. The key is ``data[begin + 8:begin + 28]``.
    2 reads without the fencing flag, of the same ledger and flags; code is the flags. They may be longer than they need be.
    0 anything else, one frame, as above; adds too short for an entry header are among it.
    """
    return scan(data, start, stop, frame_bytes_max, _known_request, _join_request)


def measure_run(offsets: Buffer, /) -> tuple[int, int, int, int]:
    """Return ``(entries, first offset, last offset, bytes of the largest entry)`` of native int64 offsets, one more than there are entries.

    Raises InvalidArgumentError if there is no entry, or an offset is below 0 or below the one before it; the text names its index.
    """
    view = flat_bytes(offsets)
    if len(view) < 16 or len(view) % 8 != 0:
        raise InvalidArgumentError(f"offsets must be two or more native int64: {len(view)} bytes given")
    marks = array("q", bytes(view))
    if marks[0] < 0:
        raise InvalidArgumentError(f"offset 0 is {marks[0]}, below 0")
    largest = 0
    for i in range(1, len(marks)):
        if marks[i] < marks[i - 1]:
            raise InvalidArgumentError(f"offset {i} is {marks[i]}, below the one before it")
        largest = max(largest, marks[i] - marks[i - 1])
    return len(marks) - 1, marks[0], marks[-1], largest


def frame_reads(ledger_id: int, first_entry_id: int, count: int, step: int = 1, flags: int = 0, /) -> bytes:
    """Return ``count`` plain v2 read requests as frames, for the entries first_entry_id, first_entry_id + step, ... (wire-protocol.md 5.2).

    Raises InvalidArgumentError for a negative id, ids beyond 64 bits, a count not in 0..2**20, a step not in 1..2**31-1, flags beyond 16
    bits or with fencing, which needs a key.
    """
    ledger_id, first_entry_id = int64(ledger_id, "ledger_id"), int64(first_entry_id, "first_entry_id")
    count, step, flags = int64(count, "count"), int64(step, "step"), int64(flags, "flags")
    _check_step(ledger_id, first_entry_id, count, step)
    if not 0 <= flags <= 0xFFFF or flags & _FLAG_FENCE:
        raise InvalidArgumentError(f"flags must be 0..65535 without fencing: {flags}")
    check_ids_fit(count, first_entry_id, step)
    pack, word = _READ_FRAME.pack, _READ_WORD | flags
    return b"".join(pack(_READ_REQUEST_BYTES, word, ledger_id, first_entry_id + i * step) for i in range(count))


def check_reads(ledger_id: int, first_entry_id: int, count: int, step: int) -> None:
    """Raise InvalidArgumentError if there can be no such read requests in any protocol."""
    _check_step(ledger_id, first_entry_id, count, step)
    check_ids_fit(count, first_entry_id, step)


def _check_step(ledger_id: int, first_entry_id: int, count: int, step: int) -> None:
    _check_numbers(ledger_id, first_entry_id, count)
    if not 1 <= step <= 0x7FFFFFFF:
        raise InvalidArgumentError(f"step must be 1..2147483647: {step}")


def frame_add_responses(ledger_id: int, first_entry_id: int, count: int, code: int, /) -> bytes:
    """Return ``count`` v2 add responses with the same code for consecutive entries, as frames (wire-protocol.md 5.3).

    Raises InvalidArgumentError for a negative id, ids beyond 64 bits, a count not in 0..2**20, or a code beyond 32 bits.
    """
    ledger_id, first_entry_id = int64(ledger_id, "ledger_id"), int64(first_entry_id, "first_entry_id")
    count, code = int64(count, "count"), int64(code, "code")
    _check_numbers(ledger_id, first_entry_id, count)
    if not -0x80000000 <= code <= 0x7FFFFFFF:
        raise InvalidArgumentError(f"code must fit in 32 bits: {code}")
    check_ids_fit(count, first_entry_id)
    pack = _RESPONSE_FRAME.pack
    return b"".join(pack(_RESPONSE.size, _ADD_WORD, code, ledger_id, first_entry_id + i) for i in range(count))


def entry_bits(frames: Buffer, first_entry_id: int, span: int, /) -> bytes:
    """Return the set of entries that v2 add responses answer: bit i of the little-endian number, ceil(span / 8) bytes, is entry
    first_entry_id + i.

    Raises InvalidArgumentError for bytes that are not a whole number of frames of 28 bytes, a negative id, ids beyond 64 bits, a span not
    in 0..2**20, or an entry outside the span. Nothing else of the frames is checked.
    """
    view = flat_bytes(frames)
    first_entry_id, span = int64(first_entry_id, "first_entry_id"), int64(span, "span")
    if len(view) % _RESPONSE_FRAME.size != 0:
        raise InvalidArgumentError(f"frames must be add responses of {_RESPONSE_FRAME.size} bytes: {len(view)} bytes given")
    check_not_negative(first_entry_id, "first_entry_id")
    if not 0 <= span <= _COUNT_MAX:
        raise InvalidArgumentError(f"span must be 0..{_COUNT_MAX}: {span}")
    check_ids_fit(span, first_entry_id)
    bits = 0
    for at in range(0, len(view), _RESPONSE_FRAME.size):
        entry_id = _RESPONSE_FRAME.unpack_from(view, at)[4]
        if not 0 <= entry_id - first_entry_id < span:
            raise InvalidArgumentError(f"entry {entry_id} is none of {span} entries from {first_entry_id}")
        bits |= 1 << entry_id - first_entry_id
    return bits.to_bytes((span + 7) // 8, "little")


def frame_read_responses(ledger_id: int, first_entry_id: int, bodies: Sequence[Buffer] | Buffer, /) -> bytes:
    """Return OK v2 read responses for consecutive entries, as frames; each body is copied once (wire-protocol.md 5.3).

    ``bodies`` is a list or a tuple of them, or one buffer ``(u32 length, body)*`` as in a batch read answer. Raises InvalidArgumentError
    for a negative id, ids beyond 64 bits, or a body that is cut off or too large for a frame.
    """
    ledger_id, first_entry_id = int64(ledger_id, "ledger_id"), int64(first_entry_id, "first_entry_id")
    joined = None if isinstance(bodies, list | tuple) else flat_bytes(bodies)
    views = [flat_bytes(body) for body in bodies] if isinstance(bodies, list | tuple) else []
    check_not_negative(ledger_id, "ledger_id")
    check_not_negative(first_entry_id, "first_entry_id")
    if joined is not None:
        views = _split_bodies(joined)
    for i, view in enumerate(views):
        if len(view) > FRAME_MAX - _RESPONSE_FRAME.size:
            raise InvalidArgumentError(f"body {i} of {len(view)} bytes does not fit in a frame")
    check_ids_fit(len(views), first_entry_id)
    parts: list[Buffer] = []
    for i, view in enumerate(views):
        parts += _RESPONSE_FRAME.pack(_RESPONSE.size + len(view), _READ_WORD, 0, ledger_id, first_entry_id + i), view
    return b"".join(parts)


def _check_numbers(ledger_id: int, first_entry_id: int, count: int) -> None:
    check_not_negative(ledger_id, "ledger_id")
    check_not_negative(first_entry_id, "first_entry_id")
    if not 0 <= count <= _COUNT_MAX:
        raise InvalidArgumentError(f"count must be 0..{_COUNT_MAX}: {count}")


def _split_bodies(data: memoryview) -> list[memoryview]:
    bodies: list[memoryview] = []
    at = 0
    while at < len(data):
        end = at + 4 + (_U32.unpack_from(data, at)[0] if len(data) - at >= 4 else len(data))
        if end > len(data):
            raise InvalidArgumentError(f"body {len(bodies)} is cut off")
        bodies.append(data[at + 4 : end])
        at = end
    return bodies


def take_bodies(data: Buffer, start: int, stop: int, /) -> tuple[bytes, int]:
    """Return the bodies in ``data[start:stop]``, an item "adds" of ``scan_requests``, as ``((u32 length, body)*, greatest last add
    confirmed)``.

    Raises InvalidArgumentError if not 0 <= start <= stop <= size of data, or the bytes are not one or more frames of adds.
    """
    view = flat_bytes(data)
    start, stop = int64(start, "start"), int64(stop, "stop")
    check_range(start, stop, len(view))
    parts: list[Buffer] = []
    lacs: list[int] = []
    at = start
    while at < stop or not lacs:
        size = _U32.unpack_from(view, at)[0] if stop - at >= 4 else 0
        body = at + 4 + _ADD_HEAD_BYTES
        at += 4 + size
        if at > stop or size < _ADD_HEAD_BYTES + ENTRY_HEADER_BYTES:
            raise InvalidArgumentError(f"frame {len(lacs)} is no whole add request")
        parts += _U32.pack(at - body), view[body:at]
        lacs.append(_I64.unpack_from(view, body + 16)[0])
    return b"".join(parts), max(lacs)


# --- scanning ---------------------------------------------------------------------------------------------------


def scan(
    data: Buffer, start: int, stop: int, frame_bytes_max: int, known: Callable[[memoryview], Known | None], join: Join, /
) -> tuple[list[Item], int, int]:
    view = flat_bytes(data)
    start, stop = int64(start, "start"), int64(stop, "stop")
    frame_bytes_max = int64(frame_bytes_max, "frame_bytes_max")
    check_range(start, stop, len(view))
    check_frame_limit(frame_bytes_max)
    items: list[Item] = []
    at = start
    while stop - at >= 4:
        (payload_bytes,) = _U32.unpack_from(view, at)
        check_frame_length(payload_bytes, frame_bytes_max)
        end = at + 4 + payload_bytes
        if end > stop:
            return items, at, end - at
        found = known(view[at + 4 : end])
        if found is None or found[1] < 0 or found[2] < 0:
            items.append((_OTHER, -1, -1, 0, 0, at + 4, end))
        elif found[0] == _BATCH:
            items.append((*found, at + 4 + _BATCH_RESPONSE_BYTES, end))
        elif items and (joined := join(view, items[-1], found, at)) is not None:
            items[-1] = *joined, items[-1][5], end
        else:
            items.append((*found, at, end))
        at = end
    return items, at, 0


def _join_request(view: memoryview, run: Item, found: Known, at: int) -> Known | None:
    kind, ledger, first, count, code, begin, _ = run
    if found != (kind, ledger, first + count, 1, code) or (kind == _ADDS and _key(view, begin) != _key(view, at)):
        return None
    return kind, ledger, first, count + 1, code


def _join_response(view: memoryview, run: Item, found: Known, at: int) -> Known | None:
    kind, ledger, first, count, code = run[:5]
    ahead = found[2] - first
    if found[1] != ledger:
        return None
    if kind == found[0] == _READS:
        step = ahead if count == 1 and 1 <= ahead <= _STEP_MAX else code
        return (_READS, ledger, first, count + 1, step) if ahead == count * step else None
    if found[0] != _ADDS or kind not in (_ADDS, _SPARSE_ADDS):
        return None
    if kind == _ADDS and ahead == count:
        return _ADDS, ledger, first, count + 1, 0
    return (_SPARSE_ADDS, ledger, first, ahead + 1, 0) if count <= ahead < _SPAN_MAX else None


def _key(view: memoryview, at: int) -> memoryview:
    """Return the master key of the add frame that begins at ``at``."""
    return view[at + 8 : at + 8 + KEY_BYTES]


def _known_response(payload: memoryview) -> Known | None:
    size = len(payload)
    if size < _RESPONSE.size:
        return None
    word, code, ledger, entry = _RESPONSE.unpack_from(payload)
    if code != 0:
        return None
    if word == _ADD_WORD and size == _RESPONSE.size:
        return _ADDS, ledger, entry, 1, 0
    if word == _READ_WORD and size >= _RESPONSE.size + ENTRY_HEADER_BYTES:
        return _READS, ledger, entry, 1, 1
    if word == _BATCH_WORD and size >= _BATCH_RESPONSE_BYTES:
        return _BATCH, ledger, entry, _I64.unpack_from(payload, _RESPONSE.size)[0], 0
    return None


def _known_request(payload: memoryview) -> Known | None:
    size = len(payload)
    if size < _READ_REQUEST_BYTES:
        return None
    (word,) = _U32.unpack_from(payload)
    flags = word & 0xFFFF
    if word - flags == _ADD_WORD and size >= _ADD_HEAD_BYTES + ENTRY_HEADER_BYTES:
        return _ADDS, *_IDS.unpack_from(payload, _ADD_HEAD_BYTES), 1, flags
    if word - flags == _READ_WORD and not flags & _FLAG_FENCE:
        return _READS, *_IDS.unpack_from(payload, 4), 1, flags
    return None
