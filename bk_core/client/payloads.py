"""The payloads that callers append, in one buffer, and the checks that each goes through before anything is done.

Ledgers, logs and their awaited forms have it in common, so that one mistake is one error, whichever of them it is made on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias, overload

from bk_core.arguments import bytes_like, is_items
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.protocol import BytesLike
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES, measured
from bk_core.protocol.limits import Limits

Buffer: TypeAlias = "bytes | bytearray | memoryview | array[int]"
"""Payloads as callers give them: any contiguous buffer."""
_FORMATS_64 = frozenset("qQlLnNbBc")  # of buffers with int64 numbers, or with their bytes


def payload_bytes_max(limits: Limits, digest_type: DigestType | None = None) -> int:
    """Return how many bytes a payload may have, so that its entry fits into one frame. Without ``digest_type`` it fits with any."""
    kinds = tuple(DigestType) if digest_type is None else (digest_type,)
    return limits.frame_bytes_max - ADD_FRAME_PREFIX_BYTES - max(map(layout.body_overhead, kinds))


def limits_of(client: object) -> Limits:
    """Return the limits of a client; those of a client without settings are the defaults."""
    config = getattr(client, "config", None)
    limits: Limits = Limits() if config is None else config.limits
    return limits


class Payloads(Sequence[bytes]):
    """Payloads in one buffer; ``bounds`` are int64, ``entries`` + 1 byte positions in ``data``. A slice shares the buffer. ``size`` is the
    bytes of all of them."""

    __slots__ = ("bounds", "data", "entries", "size")

    def __init__(self, data: BytesLike, bounds: memoryview, entries: int, size: int) -> None:
        self.data = data
        self.bounds = bounds
        self.entries = entries
        self.size = size

    def __len__(self) -> int:
        return self.entries

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Payloads: ...
    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        chosen = range(self.entries)[index]
        if isinstance(chosen, range):
            bounds = self.bounds[chosen.start : chosen.stop + 1]
            return Payloads(self.data, bounds, len(chosen), bounds[-1] - bounds[0])
        return bytes(self.data[self.bounds[chosen] : self.bounds[chosen + 1]])


NO_PAYLOADS = Payloads(b"", memoryview(array("q", (0,))), 0, 0)


class PayloadCheck:
    """Takes what callers append to one ledger or log, which ``target`` names, and refuses what a ledger cannot send.

    A refusal comes before anything is done: later it would end the ledger. ``context`` goes into each error.
    """

    __slots__ = ("_bytes_max", "_context", "_target")

    def __init__(self, target: str, bytes_max: int, **context: Any) -> None:
        self._target = target
        self._bytes_max = bytes_max
        self._context = context

    def one(self, payload: Buffer) -> Payloads:
        """Take a payload for one entry. Raises ArgumentTypeError for what is no buffer, InvalidArgumentError for one that is too large."""
        data = payload if isinstance(payload, bytes) else self._kept("payload", payload)
        size = len(data)
        if size > self._bytes_max:
            self._refuse(size)
        return Payloads(data, memoryview(array("q", (0, size))), 1, size)

    def many(self, payloads: Sequence[Buffer]) -> Payloads:
        """Take payloads, one for each entry. Raises ArgumentTypeError for what is no sequence of buffers, InvalidArgumentError if there
        are none or one is too large."""
        if not is_items(payloads):
            message = f"payloads must be a sequence of bytes, one for each entry, not {type(payloads).__name__}"
            raise ArgumentTypeError(message, **self._context)
        # This makes no call of Python for a payload of bytes, and no name that only a message needs: there may be a thousand payloads.
        parts = [
            payload if isinstance(payload, bytes) else bytes_like(f"payloads[{index}]", payload, **self._context)
            for index, payload in enumerate(payloads)
        ]
        if not parts:
            raise InvalidArgumentError("payloads is empty: give at least one entry", **self._context)
        bounds = memoryview(array("q", accumulate(map(len, parts), initial=0)))
        return self._measured(b"".join(parts), bounds)

    def run(self, payloads: Buffer, offsets: Buffer) -> Payloads:
        """Take the entries ``payloads[offsets[i]:offsets[i + 1]]``. Raises ArgumentTypeError for what is no buffer of bytes, or of int64
        numbers, InvalidArgumentError for offsets that do not rise within the payloads, and for a payload that is too large."""
        data = payloads if isinstance(payloads, bytes) else self._kept("payloads", payloads)
        bounds = self._int64_numbers(offsets)
        if len(bounds) < 2:
            raise InvalidArgumentError("an empty run cannot be appended: offsets must have two numbers at least", **self._context)
        return self._measured(data, bounds)

    def _measured(self, data: BytesLike, bounds: memoryview) -> Payloads:
        entries, size, largest = measured(bounds, len(data), **self._context)
        if largest > self._bytes_max:
            self._refuse(largest)
        return Payloads(data, bounds, entries, size)

    def _kept(self, name: str, payload: Buffer) -> BytesLike:
        """Return bytes that do not change until they are acknowledged. A read-only buffer is taken as it is; the caller leaves it alone
        until then. Others are copied, because they are packaged later, on another thread."""
        view = bytes_like(name, payload, **self._context)
        return view if view.readonly else bytes(view)

    def _int64_numbers(self, offsets: Buffer) -> memoryview:
        """Return a copy of a buffer of int64 numbers, or of their bytes."""
        try:
            view = memoryview(offsets)
            if view.itemsize not in (1, 8) or view.format.lstrip("@=<") not in _FORMATS_64:
                raise TypeError
            return memoryview(view.tobytes()).cast("q")
        except (TypeError, ValueError, BufferError):
            message = f"offsets must be int64 numbers in a buffer, such as array('q', ...), not {type(offsets).__name__}"
            raise ArgumentTypeError(message, **self._context) from None

    def _refuse(self, largest: int) -> NoReturn:
        message = f"a payload of {largest} bytes is too large for {self._target}: at most {self._bytes_max} bytes fit into one frame"
        raise InvalidArgumentError(message, **self._context)
