"""Requests to the metadata store that are repeated until their outcome is definite (META-12), and changes by compare-and-set that are
repeated until they hold."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from bk_core.display.words import counted
from bk_core.errors import (
    BkError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from bk_core.metadata.store import MetadataStore

T = TypeVar("T")
FIRST_PAUSE_S = 0.01


def until_definite(request: Callable[[], T], deadline: float, *, pause_s: float | None = None) -> T:
    """Repeat the identical request while its outcome is unknown or the store is away, and return its result. ``deadline`` is on the
    monotonic clock. Pauses are ``pause_s`` long; without it they double, up to a second.

    Raises, after the deadline, the error of the last try. Its outcome is unknown if that of any try was (META-12, META-13).
    """
    pause, begun, is_open = FIRST_PAUSE_S, time.monotonic(), False
    while True:
        try:
            return request()
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            is_open = is_open or error.outcome_unknown
            if time.monotonic() >= deadline:
                raise given_up(still_open(error) if is_open else error, begun) from error
            if pause_s is not None:
                time.sleep(pause_s)
            else:
                pause = back_off(pause, deadline, str(error))


def still_open(error: BkError) -> BkError:
    """Return an error that says that the change may have been made: by an earlier try, whose answer was lost."""
    if error.outcome_unknown:
        return error
    return MetadataOutcomeUnknownError(f"{error.args[0]}; an earlier try, whose answer was lost, may have made the change", **error.context)


@contextmanager
def after_a_try(is_open: bool) -> Iterator[None]:
    """Have the error of a look at the store that fails say that the change may have been made, if ``is_open``."""
    try:
        yield
    except MetadataUnavailableError as error:
        if not is_open:
            raise
        raise still_open(error) from error


def _in_silence(error: BkError) -> None:
    """Tell nobody of an error."""


def while_it_may_pass(
    call: Callable[[], T],
    may_pass: Callable[[BkError], bool],
    deadline: float,
    *,
    told: Callable[[BkError], object] = _in_silence,
    pause_s: float = 0.05,
    pause_max_s: float = 2.0,
) -> T:
    """Call again while it fails with an error that ``may_pass``, and return its result. ``told`` gets each error that is not the last one.
    Pauses double from ``pause_s`` to ``pause_max_s``.

    Raises the last error if the deadline, on the monotonic clock, would be over after the next pause.
    """
    while True:
        try:
            return call()
        except BkError as error:
            if not may_pass(error) or time.monotonic() + pause_s >= deadline:
                raise
            told(error)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, pause_max_s)


def compare_and_set(
    read: Callable[[], tuple[T, int]], change: Callable[[T], T], write: Callable[[T, int], object], deadline: float, what: str
) -> T:
    """Read a value with its version, change it and write it, until nobody else has written in between. Return the value that holds.

    ``write`` makes its outcome definite by itself; a VersionConflictError of unknown outcome may be its own success. ``change`` may run
    several times, and returns the very value that it was given if there is nothing to change.

    OperationTimeoutError names ``what`` after the deadline, which is on the monotonic clock. Its outcome is known, and nothing was changed,
    unless an answer was lost.
    """
    pause, is_open, tries, begun = FIRST_PAUSE_S, False, 0, time.monotonic()
    while True:
        with after_a_try(is_open):
            value, version = until_definite(read, deadline)
        changed = change(value)
        if changed is value:
            return value
        try:
            write(changed, version)
            return changed
        except VersionConflictError as conflict:
            is_open, tries = is_open or conflict.outcome_unknown, tries + 1
        if time.monotonic() >= deadline:
            text = f"{what} did not succeed in {time.monotonic() - begun:.0f} s: others were faster {counted(tries, 'time')}"
            error = OperationTimeoutError(f"{text}; repeat it when fewer of them write")
            raise error if is_open else error.nothing_done()
        pause = back_off(pause, deadline, what)


def create_once(store: MetadataStore, path: str, data: bytes, deadline: float) -> bool | None:
    """Create a node under a name that is never given twice. True if it has this very data, which may be our own first try (META-12); False
    if it has other data; None if there was one, and it is gone."""
    try:
        until_definite(lambda: store.create(path, data), deadline)
        return True
    except NodeExistsError:
        pass
    try:
        with after_a_try(True):
            return until_definite(lambda: store.read(path), deadline).data == data
    except NoNodeError:
        return None


def back_off(pause: float, deadline: float, what: str) -> float:
    """Wait for a part of ``pause`` seconds, and return the next pause. Raises OperationTimeoutError after the deadline."""
    if time.monotonic() >= deadline:
        raise OperationTimeoutError(f"timed out: {what}")
    time.sleep(pause * random.uniform(0.5, 1.0))
    return min(pause * 2, 1.0)


def given_up(error: BkError, begun: float) -> BkError:
    """Return the error of the last of many tries, with the time since ``begun`` on the monotonic clock added to it."""
    return error.retold(f"{error.args[0]}; tried again and again for {time.monotonic() - begun:.0f} s")
