"""Requests to the metadata store that are repeated until their outcome is definite (META-12)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from bk_core.errors import BkError, MetadataOutcomeUnknownError, MetadataUnavailableError, OperationTimeoutError

T = TypeVar("T")


def until_definite(request: Callable[[], T], deadline: float, *, pause_s: float | None = None) -> T:
    """Repeat the identical request while its outcome is unknown or the store is away, and return its result. ``deadline`` is on the
    monotonic clock. Pauses are ``pause_s`` long; without it they double, up to a second.

    Raises, after the deadline, the error of the last try: it tells if the outcome is still open (META-12, META-13).
    """
    pause, begun = 0.01, time.monotonic()
    while True:
        try:
            return request()
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            if time.monotonic() >= deadline:
                raise given_up(error, begun) from error
            if pause_s is not None:
                time.sleep(pause_s)
            else:
                pause = back_off(pause, deadline, str(error))


def back_off(pause: float, deadline: float, what: str) -> float:
    """Wait for a part of ``pause`` seconds, and return the next pause. Raises OperationTimeoutError after the deadline."""
    if time.monotonic() >= deadline:
        raise OperationTimeoutError(f"timed out: {what}")
    time.sleep(pause * random.uniform(0.5, 1.0))
    return min(pause * 2, 1.0)


def given_up(error: BkError, begun: float) -> BkError:
    """Return the error of the last of many tries, with the time since ``begun`` on the monotonic clock added to it."""
    return error.retold(f"{error.args[0]}; tried again and again for {time.monotonic() - begun:.0f} s")
