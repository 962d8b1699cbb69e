"""The rules of one bookie (B-1..B-13), free of sockets, files and clocks.

rules.py      each obligation as one small decision
reads.py      answers that change nothing
machine.py    requests in, effects out; data loss and garbage collection
polls.py      long polls that wait
loss.py       decisions about each ledger after a loss of data, or a look at the metadata
runs.py       consecutive requests that are one unit
chunks.py     runs in their stored form
stream.py     a connection's bytes as such units
listing.py    lists of entries, in pieces
suspicion.py  the decision to believe that a ledger is gone
room.py       how much may be accepted, from the space that is left on the disk
admission.py  connections that are given up
records.py    the record of a ledger, and the effects
answers.py    refusals
memory.py     a storage that can crash
"""

from __future__ import annotations

from bk_core.protocol.bookie.answers import io_error
from bk_core.protocol.bookie.loss import AfterLoss, after_loss, decided_entries, may_delete, may_leave_limbo
from bk_core.protocol.bookie.machine import BookieMachine
from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.bookie.records import (
    BookieStorageView,
    Change,
    Effect,
    LedgerRecord,
    Persist,
    PersistMany,
    Reply,
    ReplyAfterSync,
    WakeLater,
)

__all__ = [
    "AfterLoss",
    "BookieMachine",
    "BookieStorageView",
    "Change",
    "Effect",
    "LedgerRecord",
    "MemoryBookieStorage",
    "Persist",
    "PersistMany",
    "Reply",
    "ReplyAfterSync",
    "WakeLater",
    "after_loss",
    "decided_entries",
    "io_error",
    "may_delete",
    "may_leave_limbo",
]
