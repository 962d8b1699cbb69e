"""The times of nodes, which etcd does not keep, and the servers' clock.

A value of ours carries both times in front: when it was made and when it was written last. Values below the ledgers root and the rack map
carry none, because others read them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from threading import RLock

from bk_core.metadata.store import Versioned
from bk_core.metadata.tree.clock import since_boot_s

_MAGIC = b"\x00bk1"
_TIMES = struct.Struct(">4sQQ")  # magic, created_ms, modified_ms; 0 stands for a time that is not known
_KEPT_S = 5.0
_TICK_MS = 1000  # HTTP tells whole seconds


def stamped(data: bytes, created_ms: int, modified_ms: int) -> bytes:
    """Return a value with its times in front."""
    return _TIMES.pack(_MAGIC, created_ms, modified_ms) + data


def versioned(value: bytes, version: int) -> Versioned:
    """Return a node by its stored value, whether that has times or not."""
    if not value.startswith(_MAGIC) or len(value) < _TIMES.size:
        return Versioned(value, version)
    _, created_ms, modified_ms = _TIMES.unpack_from(value)
    return Versioned(value[_TIMES.size :], version, created_ms or None, modified_ms or None)


class ServerClock:
    """The servers' clock. ``told`` asks a server for its time, in whole seconds as milliseconds since 1970; this host counts on from there
    for a few seconds, and never back."""

    def __init__(self, told: Callable[[], int], since_boot_s: Callable[[], float] = since_boot_s) -> None:
        self._told, self._since_boot_s = told, since_boot_s
        self._lock = RLock()
        self._asked_s = 0.0
        self._offset_ms: float | None = None  # of the servers' time and the time since boot

    def now_ms(self) -> int:
        """Return the servers' time, at most a second less. Raises what ``told`` does."""
        with self._lock:
            known, here_s = self._offset_ms, self._since_boot_s()
            if known is None or not 0 <= here_s - self._asked_s < _KEPT_S:
                known = self._ask(known)
            return int(self._since_boot_s() * 1000 + known)

    def _ask(self, known: float | None) -> float:
        """Return the offset after asking. A server's second has begun when it tells it, and is not over: what we know from before stays if
        it lies within."""
        sent_ms = self._since_boot_s() * 1000
        told_ms = self._told()
        came_s = self._since_boot_s()
        least, most = told_ms - came_s * 1000, told_ms + _TICK_MS - sent_ms
        self._offset_ms = least if known is None or not least <= known <= most else known
        self._asked_s = came_s
        return self._offset_ms
