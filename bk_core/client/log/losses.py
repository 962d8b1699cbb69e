"""Remembers the appends of one writer that failed, until somebody is told."""

from __future__ import annotations

import threading
from functools import partial

from bk_core.threads import SafeFuture


class Losses:
    """Holds the error of appends that failed until somebody is told: by a future that was asked, or by a call that raised it. Any thread
    may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untold: Exception | None = None
        self._told: Exception | None = None

    def lost(self, future: SafeFuture[object], error: Exception) -> None:
        """Note that ``future`` is about to fail. ``error`` is the same object for all that fail of the same cause."""
        future.when_told = partial(self.told, error)
        with self._lock:
            if self._untold is None and error is not self._told:
                self._untold = error

    def told(self, error: Exception | None) -> None:
        with self._lock:
            self._told = error
            if self._untold is error:
                self._untold = None

    def forgive(self) -> None:
        """Forget the error of appends that their writer gave up on purpose."""
        with self._lock:
            self._untold = None

    def take(self) -> Exception | None:
        """Return the error that nobody was told, for a caller who raises it now."""
        with self._lock:
            error, self._untold = self._untold, None
            return error
