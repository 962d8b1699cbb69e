"""The rules of one bookie (B-1..B-13), free of sockets, files and clocks."""

from __future__ import annotations

from bk_core.protocol.bookie.machine import (
    BookieMachine,
    BookieStorageView,
    Effect,
    LedgerRecord,
    Persist,
    Reply,
    ReplyAfterSync,
    WakeLater,
    io_error,
)
from bk_core.protocol.bookie.memory import MemoryBookieStorage

__all__ = [
    "BookieMachine",
    "BookieStorageView",
    "Effect",
    "LedgerRecord",
    "MemoryBookieStorage",
    "Persist",
    "Reply",
    "ReplyAfterSync",
    "WakeLater",
    "io_error",
]
