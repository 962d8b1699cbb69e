"""Counts what a log takes with all its copies. Reads the list, its history, and the metadata of its ledgers; asks no bookie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bk_core.client.inspect import found_ledgers
from bk_core.protocol.entry.layout import body_overhead
from bk_core.protocol.log.view import LogView

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper


def log_stored_bytes(
    client: BookKeeper, view: LogView, *, most: int | None = None, progress: Callable[[Sequence[int]], Iterable[int]] = iter
) -> int | None:
    """Return the bytes that all copies of the listed entries take on bookies, each with its header and checksum.

    Each segment counts with the write quorum of its own ledger. Live segments count nothing, as in all sizes of logs; a ledger that is gone
    takes nothing. None for a log of more than ``most`` ledgers.
    """
    payload: dict[int, int] = {}
    entries: dict[int, int] = {}
    for segment in view.segments():
        payload[segment.ledger_id] = payload.get(segment.ledger_id, 0) + segment.bytes
        entries[segment.ledger_id] = entries.get(segment.ledger_id, 0) + segment.entries
        if most is not None and len(payload) > most:
            return None
    total = 0
    for found in found_ledgers(client, progress(list(payload))):
        if found.metadata is not None:
            size = payload[found.ledger_id] + entries[found.ledger_id] * body_overhead(found.metadata.digest_type)
            total += found.metadata.write_quorum_size * size
    return total
