"""Names for what a client counts, and the counts of a client that may be another kind of object."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bk_core.metrics.client import ClientCounts
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.wire import messages as m

_NOBODYS = ClientCounts("nobody")  # of clients that count nothing, which stand in for one in tests
_OPERATIONS: dict[type[m.Request], str] = {
    m.BatchReadRequest: "read",
    m.ReadRunRequest: "read",
    m.ReadLacRequest: "read_lac",
    m.WriteLacRequest: "write_lac",
    m.ForceLedgerRequest: "force",
    m.BookieInfoRequest: "info",
    m.EntryListRequest: "list",
}


def operation_of(message: m.Request) -> str:
    """Return the name under which a request is counted."""
    if not isinstance(message, m.ReadRequest):
        return _OPERATIONS.get(type(message), "other")
    if message.fence:
        return "fence"
    if message.previous_lac is not None:
        return "long_poll"
    return "read" if message.entry_id >= 0 else "read_last"


def counts_of(client: Any) -> ClientCounts:
    """Return the counts of a client."""
    found = getattr(client, "counts", None)
    return found if isinstance(found, ClientCounts) else _NOBODYS


@contextmanager
def recovery_counted(counts: ClientCounts) -> Iterator[None]:
    """Count the recovery that is done inside."""
    begun = time.monotonic_ns()
    try:
        yield
    except BaseException:
        counts.recoveries_failed.value += 1
        raise
    counts.recover_seconds.observe(time.monotonic_ns() - begun)


def replaced_by(before: LedgerMetadata, after: LedgerMetadata) -> frozenset[str]:
    """Return the bookies that had entries of a fragment, or were to get the next ones, by ``before`` and not by ``after``."""
    now = {fragment.first_entry_id: fragment.ensemble for fragment in after.fragments}
    gone = {bookie for one in before.fragments for bookie in one.ensemble if bookie not in now.get(one.first_entry_id, one.ensemble)}
    return frozenset(gone) | (frozenset(before.last_fragment.ensemble) - frozenset(after.last_fragment.ensemble))
