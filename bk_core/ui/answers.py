"""Answers of the cluster, asked for on threads of our own and kept: no page waits longer than a moment, and the last answer stays.

Many browsers that look at one page make one request of it: the same question is asked once at a time, and not again before its answer is
``fresh_s`` old.
"""

from __future__ import annotations

import logging
import time
from _thread import RLock
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from bk_core.background import WorkerPool
from bk_core.errors import BkError, ClientClosedError
from bk_core.threads import SafeFuture, wait_done

log = logging.getLogger("bk_core.ui")

T = TypeVar("T")
THREADS = 8
KEPT_MAX = 128
PENDING_MAX = 64
WAIT_S = 1.5
WAIT_AGAIN_S = 0.4  # where there is an older answer to show


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The last answer to a question: ``value`` with its age, None before the first. ``problem`` says why there is no newer one, and
    ``is_pending`` that one is on its way."""

    value: T | None
    age_s: float | None
    problem: str | None
    is_pending: bool


@dataclass(slots=True)
class _Kept:
    value: Any = None
    at_s: float | None = None  # of the value
    asked_s: float | None = None  # when the last question ended
    problem: str | None = None
    pending: SafeFuture[None] | None = field(default=None, repr=False)


class Answers:
    """The answers of one cluster. Any thread may ask.

    ``can_ask`` is False while it is known that nobody would answer: nothing is asked then, and the last answer is shown at once.
    """

    def __init__(self, can_ask: Callable[[], str | None] = lambda: None) -> None:
        self._can_ask = can_ask
        self._pool = WorkerPool("bk-ui-ask", THREADS)
        self._lock = RLock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def close(self) -> None:
        """Ask no more. Threads that wait for the cluster are not waited for."""
        self._pool.close(0.0)

    def get(self, key: Hashable, ask: Callable[[], T], *, fresh_s: float = 1.5, wait_s: float = WAIT_S) -> Answer[T]:
        """Return what ``ask`` returned not longer than ``fresh_s`` ago, or the last that it returned if there is no answer within a moment.
        ``wait_s`` is the longest wait for a first one."""
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            now = time.monotonic()
            is_fresh = kept.asked_s is not None and now - kept.asked_s < fresh_s
            if kept.pending is None and not is_fresh:
                self._begin(kept, ask)
            self._drop_old()
            pending = kept.pending
        if pending is not None:
            wait_done(pending, wait_s if kept.at_s is None else min(wait_s, WAIT_AGAIN_S))
        with self._lock:
            age_s = None if kept.at_s is None else time.monotonic() - kept.at_s
            return Answer(cast("T | None", kept.value), age_s, kept.problem, kept.pending is not None)

    def _begin(self, kept: _Kept, ask: Callable[[], Any]) -> None:
        problem = self._can_ask()
        if problem is None and sum(one.pending is not None for one in self._kept.values()) >= PENDING_MAX:
            problem = "too much is being asked at the moment; the page asks again"
        if problem is not None:
            kept.problem = problem
            return
        done: SafeFuture[None] = SafeFuture()
        kept.pending = done

        def run() -> None:
            try:
                value, problem = ask(), None
            except (BkError, OSError, TimeoutError) as error:
                value, problem = None, str(error)
            except Exception as error:  # a fault of ours; the page says so, and the log has the rest
                log.exception("a question to the cluster failed")
                value, problem = None, f"this part of the page failed: {type(error).__name__}"
            with self._lock:
                kept.asked_s = time.monotonic()
                kept.pending = None
                kept.problem = problem
                if problem is None:
                    kept.value, kept.at_s = value, kept.asked_s
            done.set_result(None)

        try:
            self._pool.submit(run)
        except ClientClosedError:
            kept.pending, kept.problem = None, "the page ends"

    def _drop_old(self) -> None:
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
