"""A CLOSED ledger whose metadata names an end that it cannot have: nobody looks for its entries one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import bk_core
from bk_core.client.log.verify import verify_log
from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.plausible import EMPTY_MAX, check_plausible

FAR = 1 << 62
REFUSED = r"ledger \d+ cannot have entries up to 4611686018427387904: by its metadata it has 300 bytes.*The metadata is damaged"


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as client:
        client.await_bookies(3, 3)
        yield client


def damage(client: bk_core.BookKeeper, ledger_id: int) -> LedgerMetadata:
    stored = client.store.read_ledger(ledger_id)
    metadata = replace(metadata_codec.decode(stored.data), last_entry_id=FAR)
    client.store.write_ledger(ledger_id, metadata_codec.encode(metadata), stored.version)
    return metadata


def test_what_looks_at_every_entry_is_refused_at_once(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"x" * 100] * 3)
    damage(client, ledger.ledger_id)
    with pytest.raises(MetadataFormatError, match=REFUSED):
        client.check_ledger(ledger.ledger_id, full=True)
    with pytest.raises(MetadataFormatError, match=REFUSED):
        client.xray(ledger.ledger_id, full=True)
    (problem,) = client.repair_ledger(ledger.ledger_id).problems
    assert "cannot have entries up to" in problem
    assert not client.check_ledger(ledger.ledger_id).is_good, "the last entry is on no bookie"
    assert client.xray(ledger.ledger_id, full=True, last=2).is_good, "a part of it can be looked at"


def test_so_it_is_of_a_log(client: bk_core.BookKeeper) -> None:
    log = client.create_log("a")
    with log.writer() as writer:
        writer.append_many([b"x" * 100] * 3)
    (segment,) = log.segments()
    damage(client, segment.ledger_id)
    assert verify_log(client, "a").copies == 9, "the list tells where it ends"


def test_many_empty_entries_are_no_damage(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b""] * 1000)
    metadata = client.ledger_metadata(ledger.ledger_id)
    assert client.check_ledger(ledger.ledger_id, full=True).is_good
    check_plausible(1, replace(metadata, last_entry_id=EMPTY_MAX - 1))
    with pytest.raises(MetadataFormatError):
        check_plausible(1, replace(metadata, last_entry_id=EMPTY_MAX))
    check_plausible(1, replace(metadata, last_entry_id=FAR), first=FAR - 5)
