"""The ends of commands: the table of the exit statuses of ``bk``, output that nobody reads any more, and commands that ``kill`` ends in
good order."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, MappingProxyType
from typing import NoReturn

DONE, FAILED, USAGE, INTERRUPTED, UNREAD, TERMINATED = 0, 1, 2, 130, 141, 143
_FULL = (errno.ENOSPC, errno.EDQUOT)
STATUSES: Mapping[int, str] = MappingProxyType(
    {
        DONE: "done",
        FAILED: (
            "an error, of which standard error has one line, such as a thing that the cluster does not have; a check that found problems; "
            "a question that was not answered with yes"
        ),
        USAGE: "a wrong command line: words, names, numbers and sizes that cannot work in any cluster; nothing was done",
        INTERRUPTED: "Ctrl-C",
        UNREAD: "nobody reads the output any more, as in `bk log tail NAME | head -1`: what SIGPIPE makes of other programs",
        TERMINATED: (
            "SIGTERM (`kill`), which ends `bk bench`, `bk autorecovery`, exports, imports and copies as Ctrl-C does: nothing half-finished "
            "is left"
        ),
    }
)
"""Each status with its meaning."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM ended a command, as an interrupt does."""


@contextmanager
def terminated_in_order() -> Iterator[None]:
    """Have SIGTERM end what runs meanwhile as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError


def told() -> str:
    """Return the table as one sentence."""
    return f"Exit status {'; '.join(f'{status}: {meaning}' for status, meaning in STATUSES.items())}."


def has_outputs() -> bool:
    """Return False if there is no standard output (``>&-``), and say so: nothing is begun whose outcome could not be printed. Without
    standard error what is printed there goes nowhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- for as long as the process runs
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 -- nobody answers a question
    if sys.stdout is None:
        told = "standard output is closed, so what bk finds cannot be printed. Nothing was done; > /dev/null throws the output away"
        print(f"error: {told}", file=sys.stderr)
    return sys.stdout is not None


def flushed(status: int) -> int:
    """Write out what is buffered and return ``status``, or UNREAD if nobody reads it. Output that cannot be written is an error on standard
    error, and FAILED."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return unread()
    except OSError as error:
        if status == DONE:
            print(f"error: {problem_of(error)}", file=sys.stderr)
        _to_nowhere(sys.stdout)
        return status or FAILED
    return status


def problem_of(error: OSError) -> str:
    """Return what is the matter with a file, or with the output, in words."""
    if error.errno not in _FULL:
        return str(error)
    return f"the disk is full ({error.strerror}): {error.filename or 'what this command printed last'} is not written; make room there"


def unread() -> int:
    """Return UNREAD. What is still buffered for a closed pipe goes nowhere: else Python would complain about it as the process ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            _to_nowhere(stream)
    return UNREAD


def _to_nowhere(stream: object) -> None:
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
    except (OSError, ValueError):  # it is no file, such as in a test, or closed
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
