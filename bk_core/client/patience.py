"""A shorter time than the client's ``operation_timeout_s`` for the upkeep on one thread that other work waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LEAST_S = 1.0
"""The time that even an operation gets which begins when the time is nearly over."""
_until_s: ContextVar[float | None] = ContextVar("until_s", default=None)


@contextmanager
def patient_until(deadline: float) -> Iterator[None]:
    """Have each operation that this thread begins in the block give up at ``deadline``, on the monotonic clock, or after LEAST_S if that
    is later; after ``operation_timeout_s`` if that is earlier. One that tells its progress has that time without progress."""
    before = _until_s.set(deadline)
    try:
        yield
    finally:
        _until_s.reset(before)


def patience_s(timeout_s: float) -> float:
    """Return how long an operation that begins now on this thread may take, which has ``timeout_s`` where nobody hurries it."""
    deadline = _until_s.get()
    return timeout_s if deadline is None else min(timeout_s, max(LEAST_S, deadline - time.monotonic()))
