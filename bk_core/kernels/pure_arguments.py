"""Converts the arguments of the kernels in Python, and words the errors for those that they refuse."""

from __future__ import annotations

import operator

from bk_core.errors import InvalidArgumentError, RemoteProtocolError

INT64_MAX = (1 << 63) - 1
FRAME_MAX = 0x7FFFFFFF  # Apache peers read the length as a signed 32-bit number
KEY_BYTES = 20  # HMAC key and master key are SHA-1 values (wire-protocol.md 7.5)
ENTRY_HEADER_BYTES = 32  # i64 ledger, i64 entry, i64 last add confirmed, i64 length


def flat_bytes(data: object) -> memoryview:
    """Return a flat view of unsigned bytes over any contiguous buffer."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not '{type(data).__name__}'") from None
    if not view.c_contiguous:
        raise InvalidArgumentError("a buffer must be C-contiguous")
    if view.nbytes == 0:
        return memoryview(b"")  # cast refuses an empty view of wider items
    try:
        return view.cast("B")
    except TypeError:
        return memoryview(view.tobytes())  # cast knows native formats only; ctypes arrays name their byte order


def writable_bytes(data: object) -> memoryview:
    """Return the same over a buffer to write to."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not '{type(data).__name__}'") from None
    if view.readonly or not view.c_contiguous:
        raise InvalidArgumentError("a buffer to write to must be writable and C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def int64(value: int, name: str) -> int:
    value = operator.index(value)
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise InvalidArgumentError(f"{name} must fit in 64 bits")
    return value


def check_not_negative(value: int, name: str) -> None:
    if value < 0:
        raise InvalidArgumentError(f"{name} must not be negative: {value}")


def check_range(start: int, stop: int, size: int) -> None:
    if not 0 <= start <= size:
        raise InvalidArgumentError(f"start must be 0..{size}: {start}")
    if not start <= stop <= size:
        raise InvalidArgumentError(f"stop must be {start}..{size}: {stop}")


def check_frame_limit(frame_bytes_max: int) -> None:
    if not 5 <= frame_bytes_max <= FRAME_MAX:
        raise InvalidArgumentError(f"frame_bytes_max must be 5..2147483647: {frame_bytes_max}")


def check_ids_fit(count: int, first_entry_id: int, step: int = 1) -> None:
    if count and first_entry_id > INT64_MAX - (count - 1) * step:
        raise InvalidArgumentError(f"{count} entries from {first_entry_id} do not fit in 64 bits")


def check_frame_length(payload_bytes: int, frame_bytes_max: int) -> None:
    """Raise RemoteProtocolError for a length that no frame may have (wire-protocol.md 2.1)."""
    if payload_bytes == 0:
        raise RemoteProtocolError("a frame without payload")
    if payload_bytes + 4 > frame_bytes_max:
        raise RemoteProtocolError(f"a frame of {payload_bytes + 4} bytes, length included, is over the limit of {frame_bytes_max}")
