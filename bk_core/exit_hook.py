"""Ends clients that are still open when the process ends.

The package imports it first, because ``atexit`` calls last what was registered first: whatever a program registers after
``import bk_core`` still has its clients.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Endable(Protocol):
    def end(self) -> None: ...


_living: weakref.WeakSet[Endable] = weakref.WeakSet()


def end_with_process(client: Endable) -> None:
    """Have ``client.end()`` called at the end of the process, unless ``forget`` comes first or nobody knows the client any more."""
    _living.add(client)


def forget(client: Endable) -> None:
    _living.discard(client)


def _end_all() -> None:
    """After the program's threads and what it has given to ``atexit``: no thread of ours speaks or holds a lock while the interpreter is
    taken down, and nobody waits for one any more."""
    for client in tuple(_living):
        client.end()


atexit.register(_end_all)
