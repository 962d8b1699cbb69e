"""The exit statuses of ``bk``, in one table, and what becomes of output that nobody reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

DONE, FAILED, USAGE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
STATUSES: Mapping[int, str] = MappingProxyType(
    {
        DONE: "done",
        FAILED: "an error, which standard error tells in one line; a check that found problems; a question that was not answered with yes",
        USAGE: "a wrong command line; nothing was done",
        INTERRUPTED: "Ctrl-C",
        UNREAD: "nobody reads the output any more, as in `bk log tail NAME | head -1`: what SIGPIPE makes of other programs",
    }
)
"""Each status with its meaning."""


def told() -> str:
    """Return the table as one sentence."""
    return f"Exit status {'; '.join(f'{status}: {meaning}' for status, meaning in STATUSES.items())}."


def flushed(status: int) -> int:
    """Write out what is buffered and return ``status``, or UNREAD if nobody reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return unread()
    return status


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
