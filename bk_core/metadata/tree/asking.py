"""Asks a function of the program, which may take for ever, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from bk_core.background import OwnThread
from bk_core.errors import SecretUnavailableError
from bk_core.threads import SafeFuture

T = TypeVar("T")


class AskedAside(Generic[T]):
    """One function, asked on a thread of its own; those that need its answer meanwhile wait for the same call, so one that hangs keeps a
    single thread, and no lock. ``name`` is the thread's; ``what`` is the function, for messages."""

    def __init__(self, name: str, what: str, function: Callable[[], T]) -> None:
        self._name, self._what, self._function = name, what, function
        self._lock = threading.Lock()
        self._under_way: SafeFuture[T] | None = None

    def answer(self, deadline: float) -> T:
        """Return what the function returns, by the ``deadline`` on the monotonic clock. Raises what the function raises, and
        SecretUnavailableError if it has not answered by then; it is not called again before it has."""
        begun: SafeFuture[T] | None = None
        with self._lock:
            found = self._under_way
            if found is None:
                found = self._under_way = begun = SafeFuture()
        if begun is not None:
            self._start(begun)
        try:
            return found.result(max(0.001, deadline - time.monotonic()))
        except TimeoutError:
            if found.done():
                raise
        raise SecretUnavailableError(f"{self._what} has not answered in time, and it is asked no second time meanwhile")

    def _start(self, begun: SafeFuture[T]) -> None:
        tasks = [lambda: self._ask(begun)]
        try:
            OwnThread(self._name, lambda: tasks.pop() if tasks else None).start()
        except RuntimeError as error:  # no more threads can be started
            with self._lock:
                self._under_way = None
            begun.set_exception(SecretUnavailableError(f"{self._what} cannot be asked: {error}"))

    def _ask(self, begun: SafeFuture[T]) -> None:
        try:
            found = self._function()
        except BaseException as error:  # those who wait are told whatever it is
            self._over()
            begun.set_exception(error)
        else:
            self._over()
            begun.set_result(found)

    def _over(self) -> None:
        with self._lock:
            self._under_way = None
