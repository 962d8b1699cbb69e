"""The last calls to a metadata store, which may be away: what ends does not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError

from bk_core.background import WorkerPool
from bk_core.errors import BkError

AWAY_S = 1.5
"""The seconds for which something that ends waits for the metadata store: one that is there answers in a fraction of them."""


def left_undone(call: Callable[[], object]) -> str:
    """Make a call on a thread of its own, and wait for it for a moment. Return why it was not done by then, or "" if it was. A call that is
    late goes on by itself."""
    try:
        pool = WorkerPool("bookie-leaving")
    except RuntimeError as error:  # no more threads can be started
        return str(error)
    try:
        pool.call(call).result(AWAY_S)
    except FutureTimeoutError:
        return f"the metadata store did not answer within {AWAY_S:g} s"
    except BkError as error:
        return str(error)
    finally:
        pool.close(0.0)
    return ""
