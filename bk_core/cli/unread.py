"""Commands that wait for more to print end when nobody reads what they print: ``bk checkpoint tail NAME | head -1``.

A program learns at its next write that the reader of its output has gone, and a command that follows may not write for hours. So a thread
asks the system about standard output meanwhile, and signals the main thread until what runs there has ended: Python drops an error that is
raised while a generator is thrown away, or in another finalizer, so one signal may be lost.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from bk_core.threads import start_aside

_AGAIN_S = 0.2  # a signal that comes just before a wait begins does not end it; the next one does
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL


class _UnreadError(KeyboardInterrupt):
    """Nobody reads the output any more. It ends what waits as an interrupt does."""


@contextmanager
def ended_unread() -> Iterator[None]:
    """End what runs meanwhile, wherever it waits, when the reader of standard output has gone: by BrokenPipeError, as a write would.

    A file has no reader, and a terminal ends its programs itself: for these nothing is done, and neither outside of the main thread, which
    alone gets signals. Use it as a decorator of a command, below all others.

    >>> @click.command("tail")
    ... @ended_unread()
    ... def tail() -> None:
    ...     ...
    """
    watched = _pipe_of_output()
    if watched is None:
        yield
        return
    stop_reading, stop = os.pipe()
    watch = _Watch(watched, stop_reading, sys.unraisablehook)
    before = signal.signal(signal.SIGPIPE, watch.on_signal)
    sys.unraisablehook = watch.on_dropped
    try:
        start_aside(watch.run, "bk-unread")
        yield
    except _UnreadError:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        watch.is_told = True  # from here on no signal ends anything
        os.close(stop)  # the thread closes the rest
        signal.signal(signal.SIGPIPE, before)
        sys.unraisablehook = watch.tell_dropped


def _pipe_of_output() -> int | None:
    """Return a descriptor of standard output that stays its own, or None if there is no reader to watch."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGPIPE) is None:
        return None
    try:
        number = sys.stdout.fileno()
        return None if os.isatty(number) or stat.S_ISREG(os.fstat(number).st_mode) else os.dup(number)
    except (OSError, ValueError):  # no file at all, as in a test
        return None


class _Watch:
    """Watches the output, and signals the main thread until it is stopped. ``tell_dropped`` is told of what others drop."""

    def __init__(self, watched: int, stop: int, tell_dropped: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self.is_told = False
        self.tell_dropped = tell_dropped
        self._is_gone = self._was_dropped = False
        self._watched, self._stop = watched, stop
        self._main = main_thread().ident

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._watched, 0)  # what is asked for are errors alone, which are always told
        poll.register(self._stop, select.POLLIN)
        try:
            while self._main is not None:
                found = dict(poll.poll(_AGAIN_S * 1000 if self._is_gone else None))
                if self._stop in found:
                    return
                if found.get(self._watched, 0) & _GONE:
                    self._is_gone = True
                    poll.unregister(self._watched)
                if self._is_gone:
                    if self._was_dropped:
                        self._was_dropped = self.is_told = False
                    signal.pthread_kill(self._main, signal.SIGPIPE)
        finally:
            os.close(self._watched)
            os.close(self._stop)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Raise on the main thread, once unless that was dropped. Writes to other pipes and sockets send this signal as well; those raise
        their own error."""
        if self._is_gone and not self.is_told:
            self.is_told = True
            raise _UnreadError

    def on_dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Take note of an error that Python dropped. If it is ours, the next signal raises it again, and nobody is told. A signal that is
        late on a busy machine comes in here, where Python would drop its error as well: so the thread allows the next one, not this."""
        try:
            if isinstance(dropped.exc_value, _UnreadError):
                self._was_dropped = True
            else:
                self.tell_dropped(dropped)
        except _UnreadError:
            self._was_dropped = True
