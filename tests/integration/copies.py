"""Ledgers whose copies are made one by one, so that some are missing and some are wrong: on any bookie, over sockets of the test's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

import bk_core
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.wire.messages import AddRequest, Status
from tests.integration.replicas import Direct

NOBODY = "127.0.0.1:1"
"""A bookie that metadata names and that is dead."""


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * (1 + entry_id % 5)


def length_of(entry_id: int) -> int:
    """The payload bytes of a ledger up to and with this entry."""
    return sum(len(payload(n)) for n in range(entry_id + 1))


def made_by_hand(
    bk: bk_core.BookKeeper,
    fragments: Sequence[tuple[int, Sequence[str]]],
    entries: int,
    *,
    quorums: tuple[int, int, int] = (3, 3, 2),
    missing: Mapping[str, Collection[int]] | None = None,
    corrupt: Mapping[str, Collection[int]] | None = None,
    closed: bool = True,
) -> int:
    """Make a ledger, and give each bookie of it that lives its copies but ``missing`` ones, and ``corrupt`` ones with another last byte."""
    missing, corrupt = missing or {}, corrupt or {}
    metadata = LedgerMetadata(*quorums, LedgerState.OPEN, tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments))
    if closed:
        metadata = metadata.closed(entries - 1, length_of(entries - 1))
    ledger_id = bk.store.new_ledger_id()
    bk.store.create_ledger(ledger_id, metadata_codec.encode(metadata))
    distribution = Distribution(*quorums)
    ends = [first for first, _ in fragments[1:]] + [entries]
    for (first, bookies), end in zip(fragments, ends, strict=True):
        for position, bookie in enumerate(bookies):
            if bookie == NOBODY:
                continue
            with closing(Direct(bookie)) as direct:
                for entry_id in range(first, end):
                    if not distribution.holds(position, entry_id) or entry_id in missing.get(bookie, ()):
                        continue
                    body = layout.encode_body(
                        ledger_id, entry_id, entry_id - 1, length_of(entry_id), payload(entry_id), metadata.digest_type
                    )
                    if entry_id in corrupt.get(bookie, ()):
                        body = body[:-1] + b"?"
                    assert direct.add(AddRequest(0, ledger_id, entry_id, digests.master_key(b""), body)) is Status.OK
    return ledger_id
