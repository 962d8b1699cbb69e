"""The kernels in Python for runs of single reads and for striping; ``native/lanes.c`` is the twin. pure.py has the rules for
all kernels."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.kernels.pure_arguments import check_ids_fit, check_not_negative, check_range, flat_bytes, int64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

_LENGTH = struct.Struct(">I")


def skip_frames(data: Buffer, start: int, stop: int, count: int, /) -> int:
    """Return the position behind ``count`` items ``(u32 length, bytes)`` from ``start`` on, none of which reaches beyond ``stop``.

    Raises RemoteProtocolError if there are fewer items, and InvalidArgumentError if not 0 <= start <= stop <= size of data or the count is
    negative.
    """
    view = flat_bytes(data)
    start, stop, count = int64(start, "start"), int64(stop, "stop"), int64(count, "count")
    check_range(start, stop, len(view))
    check_not_negative(count, "count")
    position = start
    for _ in range(count):
        if stop - position < _LENGTH.size:
            raise RemoteProtocolError(f"there are fewer than {count} items")
        position += _LENGTH.size + _LENGTH.unpack_from(view, position)[0]
        if position > stop:
            raise RemoteProtocolError(f"there are fewer than {count} items")
    return position


def interleave(lanes: Sequence[Sequence[tuple[Buffer, Buffer]]], /) -> tuple[bytes, bytes]:
    """Return (offsets, values) of the entries of all lanes in turn: the first entry of each lane, then the second of each, and so on.

    A lane is a sequence of parts, each (values, native int64 offsets, one more than entries). Each lane has as many entries as the one
    before it, except that from one lane on there may be one less. Raises InvalidArgumentError if that is not so, or an offset is outside
    its values.
    """
    columns = [[piece for part in lane for piece in _pieces(*part)] for lane in _views(lanes)]
    sizes = [len(column) for column in columns]
    if not sizes or sizes != sorted(sizes, reverse=True) or sizes[0] - sizes[-1] > 1:
        raise InvalidArgumentError(f"lanes of {sizes} entries cannot be merged")
    pieces = [columns[i % len(columns)][i // len(columns)] for i in range(sum(sizes))]
    offsets = array("q", (0,))
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return offsets.tobytes(), b"".join(pieces)


def select_frames(
    frames: Buffer,
    offsets: Buffer,
    start: int,
    first_entry_id: int,
    position: int,
    ensemble_size: int,
    write_quorum_size: int,
    /,
) -> bytes:
    """Return the framed entries from index ``start`` on whose write set has ``position``, end to end (WR-5).

    Frame i is ``frames[offsets[i]:offsets[i + 1]]`` and holds entry first_entry_id + i; offsets are native int64, one more than there are
    frames. The write set of an entry is write_quorum_size positions, beginning at entry mod ensemble_size.

    Raises InvalidArgumentError if a number is out of range, or an offset of these frames is outside or below the one before it.
    """
    views = flat_bytes(frames), flat_bytes(offsets)
    start, first_entry_id = int64(start, "start"), int64(first_entry_id, "first_entry_id")
    position, ensemble_size = int64(position, "position"), int64(ensemble_size, "ensemble_size")
    write_quorum_size = int64(write_quorum_size, "write_quorum_size")
    check_selection(views[1], start, first_entry_id, position, ensemble_size, write_quorum_size)
    return b"".join(frame for _, frame in selected(*views, start, first_entry_id, position, ensemble_size, write_quorum_size))


def check_selection(
    offsets: memoryview, start: int, first_entry_id: int, position: int, ensemble_size: int, write_quorum_size: int
) -> None:
    _check_offsets_size(offsets)
    count = len(offsets) // 8 - 1
    if not 0 <= start <= count:
        raise InvalidArgumentError(f"start must be 0..{count}: {start}")
    check_not_negative(first_entry_id, "first_entry_id")
    if not 1 <= ensemble_size <= 0x7FFFFFFF:
        raise InvalidArgumentError(f"ensemble_size must be 1..2147483647: {ensemble_size}")
    if not 0 <= position < ensemble_size:
        raise InvalidArgumentError(f"position must be 0..{ensemble_size - 1}: {position}")
    if not 1 <= write_quorum_size <= ensemble_size:
        raise InvalidArgumentError(f"write_quorum_size must be 1..{ensemble_size}: {write_quorum_size}")
    check_ids_fit(count, first_entry_id)


def selected(
    frames: memoryview, offsets: memoryview, start: int, first_entry_id: int, position: int, ensemble_size: int, write_quorum_size: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield (index, frame) of the frames that were asked for."""
    bounds = array("q", bytes(offsets))
    for i in range(start, len(bounds) - 1):
        if (position - first_entry_id - i) % ensemble_size < write_quorum_size:
            _check_bounds(bounds[i], bounds[i + 1], len(frames))
            yield i, frames[bounds[i] : bounds[i + 1]]


def _views(lanes: object) -> list[list[tuple[memoryview, memoryview]]]:
    if not isinstance(lanes, list | tuple):
        raise TypeError("lanes must be a list or a tuple")
    for lane in lanes:
        if not isinstance(lane, list | tuple):
            raise TypeError("a lane must be a list or a tuple")
        if not all(isinstance(part, tuple) and len(part) == 2 for part in lane):
            raise TypeError("a part must be a tuple of values and offsets")
    return [[(flat_bytes(values), flat_bytes(offsets)) for values, offsets in lane] for lane in lanes]


def _pieces(values: memoryview, offsets: memoryview) -> list[memoryview]:
    _check_offsets_size(offsets)
    bounds = array("q", bytes(offsets))
    for i in range(len(bounds) - 1):
        _check_bounds(bounds[i], bounds[i + 1], len(values))
    return [values[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


def _check_offsets_size(offsets: memoryview) -> None:
    if not offsets or len(offsets) % 8 != 0:
        raise InvalidArgumentError(f"offsets must be one or more native int64: {len(offsets)} bytes given")


def _check_bounds(first: int, second: int, size: int) -> None:
    if not 0 <= first <= second <= size:
        raise InvalidArgumentError(f"offsets {first} and {second} are no part of {size} bytes")
