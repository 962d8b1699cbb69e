"""The files of a door as they were read last: they are read again when they change, and not for each connection."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from bk_core.bookie.door import Door, users_of
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.bookie.gate import Gate

REPLACED_S = 10.0  # a certificate and its key are two files, and one is replaced after the other
KEPT_S = 600.0  # sessions that a client may resume are those of a context, and end with it
SETTLED_NS = 2_000_000_000  # a file may change again within one tick of its clock, and look the same
UNSETTLED_S = 0.2

T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int, int] | None, ...]


class Kept(Generic[T]):
    """The outcome of reading some files. When they change they are read again; while what stands there then cannot be used, the outcome
    before it is good for ``REPLACED_S``, and each failure is told."""

    def __init__(
        self, paths: list[str], read: Callable[[], T], tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths = paths
        self._read = read
        self._tell = tell
        self._clock = clock
        self._stamp: _Stamp | None = None
        self._settled = False
        self._read_at = 0.0
        self._good: T | None = None
        self._good_at = 0.0  # when it was last known to be what stands there
        self._problem: InvalidArgumentError | None = None

    def get(self) -> T:
        """Return what the files say. Raises InvalidArgumentError if they cannot be used."""
        now, stamp = self._clock(), _stamp_of(self._paths)
        waited_s = now - self._read_at
        if stamp != self._stamp or waited_s >= KEPT_S or (not self._settled and waited_s >= UNSETTLED_S):
            self._read_again(stamp, now)
        if self._problem is None:
            self._good_at = now
        elif self._good is None or now - self._good_at >= REPLACED_S:
            raise InvalidArgumentError(self._problem.args[0])
        assert self._good is not None
        return self._good

    def _read_again(self, stamp: _Stamp, now: float) -> None:
        self._stamp, self._read_at = stamp, now
        self._settled = all(one is not None and time.time_ns() - one[0] >= SETTLED_NS for one in stamp)
        try:
            self._good, self._problem = self._read(), None
        except InvalidArgumentError as error:
            self._problem = error
            if self._good is not None and now - self._good_at < REPLACED_S:
                self._tell(f"{error.args[0]}; what it was before is good for {REPLACED_S:g} s, because it may be being replaced")


class DoorFiles:
    """The gates and the TLS context of a door. For one thread. ``tell`` writes a line to the log."""

    def __init__(self, door: Door, tell: Callable[[str], None]) -> None:
        self._door = door
        files = [path for path in (door.cert, door.key, door.client_ca) if path is not None]
        self._context = Kept(files, self._make_context, tell)
        self._users: Kept[Mapping[str, str]] | None = None
        if (path := door.users_file) is not None:
            self._users = Kept([path], lambda: users_of(path), tell)

    def gate(self) -> Gate:
        """Return a new gate for one connection. Raises InvalidArgumentError for users that cannot be read."""
        return self._door.gate(None if self._users is None else self._users.get())

    def context(self) -> ssl.SSLContext:
        """Return the context for new connections. Raises InvalidArgumentError that names the file that cannot be used."""
        return self._context.get()

    def _make_context(self) -> ssl.SSLContext:
        made = self._door.context()
        made.num_tickets = 0  # whoever comes again shows the certificate again
        return made


def _stamp_of(paths: list[str]) -> _Stamp:
    return tuple(map(_stamp, paths))


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        seen = os.stat(path)
    except (OSError, ValueError):
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino, seen.st_dev
