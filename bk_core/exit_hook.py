"""Ends clients that are still open when the process ends.

The package imports this module first, because ``atexit`` calls last what was registered first: functions that a program registers after
``import bk_core`` still find its clients open.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("bk_core.exit_hook")


class Endable(Protocol):
    def end(self) -> None: ...


_living: weakref.WeakSet[Endable] = weakref.WeakSet()
_before: list[Callable[[], object]] = []


def end_with_process(client: Endable) -> None:
    """Call ``client.end()`` at the end of the process, unless ``forget`` is called first or nothing refers to the client any more."""
    _living.add(client)


def forget(client: Endable) -> None:
    _living.discard(client)


def before_clients_end(close: Callable[[], object]) -> None:
    """Call ``close()`` at the end of the process, after the functions that the program gave to ``atexit`` and before the clients end. In a
    forked child it is called, too."""
    _before.append(close)


def _end_all() -> None:
    """End all clients after the program's threads and the functions it gave to ``atexit``. No thread of ours then speaks or holds a lock
    while the interpreter is taken down, and nobody waits for one any more. One that fails is logged and keeps none of the others from its
    end."""
    for end in (*_before, *(client.end for client in tuple(_living))):
        try:
            end()
        except BaseException:  # a user's closer may raise SystemExit
            log.exception("closing as the process ends: %r failed", end)


atexit.register(_end_all)
