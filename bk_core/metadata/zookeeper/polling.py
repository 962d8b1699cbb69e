"""Waiting for connections, in place of kazoo's way, which makes a selector and ends it four times for each request."""

from __future__ import annotations

import select
from collections.abc import Sequence
from math import ceil
from typing import Any

_FAILED = select.POLLERR | select.POLLHUP  # the next read or write tells what it is
_READABLE, _WRITABLE = select.POLLIN | select.POLLPRI | _FAILED, select.POLLOUT | _FAILED


def ready(readers: Sequence[Any], writers: Sequence[Any], timeout_s: float | None) -> tuple[list[Any], list[Any], list[Any]]:
    """Return those of the files that can be read, and those that can be written, once there is one or the time is over.

    The third list is empty; ``select.select`` has one, and kazoo looks for it. Raises ValueError and TypeError for a file that is closed,
    as kazoo's own does.
    """
    wanted: dict[int, int] = {}
    for files, events in ((readers, select.POLLIN), (writers, select.POLLOUT)):
        for file in files:
            number = _number(file)
            wanted[number] = wanted.get(number, 0) | events
    poll = select.poll()
    for number, events in wanted.items():
        poll.register(number, events)
    found = dict(poll.poll(None if timeout_s is None else ceil(timeout_s * 1000)))
    for number, events in found.items():
        if events & select.POLLNVAL:
            raise ValueError(f"the file {number} is closed")
    return (
        [file for file in readers if found.get(_number(file), 0) & _READABLE],
        [file for file in writers if found.get(_number(file), 0) & _WRITABLE],
        [],
    )


def _number(file: Any) -> int:
    number = file if isinstance(file, int) else file.fileno()
    if number < 0:
        raise TypeError(f"{file!r} is closed")
    return int(number)
