"""The streams of a reader's handle, for callers that wait in another way than on a thread."""

from __future__ import annotations

from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.ledger.read_stream import RunStream


def check_range(handle: ReadHandle, first: int, last: int, unchecked_bound: bool) -> None:
    """Raise InvalidArgumentError for a range that ``ReadHandle.read_runs`` refuses (RD-1)."""
    handle._session.check()
    handle._check_range(first, last, unchecked_bound)


def check_tail(handle: ReadHandle, first: int) -> None:
    """Raise InvalidArgumentError for a first entry that ``ReadHandle.tail`` refuses, because the ledger is CLOSED below it."""
    handle._check_tail(first)


def range_stream(handle: ReadHandle, first: int, last: int, *, unconfirmed: bool = False) -> RunStream:
    """Return a stream of the entries first..last, which ends with None. ``start`` it, and give it to ``end_stream``."""
    handle._session.check()
    return handle._range(first, last, unconfirmed)[0]


def tail_stream(handle: ReadHandle, first: int, *, deliver: bool) -> RunStream:
    """Return a stream of the entries from ``first`` on as they are confirmed (LC-8); without ``deliver`` it ends once ``first`` is."""
    return handle._tail(first, deliver=deliver)


def end_stream(handle: ReadHandle, stream: RunStream) -> None:
    """End a stream."""
    handle._end(stream)
