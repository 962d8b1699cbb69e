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
from bk_core.protocol.ledger.xray import EntryState

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


def test_a_length_that_fits_the_end_does_not_make_it_possible(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"x" * 100)
    stored = client.store.read_ledger(ledger.ledger_id)
    metadata = replace(metadata_codec.decode(stored.data), last_entry_id=2**63 - 1, length=2**63 - 1)
    client.store.write_ledger(ledger.ledger_id, metadata_codec.encode(metadata), stored.version)
    for full in (False, True):
        with pytest.raises(MetadataFormatError, match="it takes weeks to write more than 1,099,511,627,776"):
            client.xray(ledger.ledger_id, full=full)


@pytest.mark.parametrize("copies", [2, 3])
def test_what_bookies_do_not_list_behind_the_end_is_not_gone_through(client: bk_core.BookKeeper, copies: int) -> None:
    """The reactor would be at it for minutes, and all other ledgers of the client would wait."""
    far = 1 << 39
    with client.create_ledger(ensemble_size=3, write_quorum_size=copies) as ledger:
        ledger.append_many([b"x" * 100] * 3)
    stored = client.store.read_ledger(ledger.ledger_id)
    metadata = replace(metadata_codec.decode(stored.data), last_entry_id=far, length=1 << 50)
    client.store.write_ledger(ledger.ledger_id, metadata_codec.encode(metadata), stored.version)
    found = client.xray(ledger.ledger_id)
    missing = [problem.stretch for problem in found.problems]
    assert found.last == far and {stretch.state for stretch in missing} == {EntryState.MISSING}
    assert sum(stretch.count for stretch in missing) == copies * (far - 2)
    assert min(stretch.first for stretch in missing) == 3 and max(stretch.last for stretch in missing) == far


def test_verifying_a_log_goes_on_behind_a_ledger_that_nobody_understands(client: bk_core.BookKeeper) -> None:
    log = client.create_log("two")
    for _ in range(2):
        with log.writer() as writer:
            writer.append_many([b"x" * 100] * 3)
    first, _ = log.segments()
    client.store.write_ledger(first.ledger_id, b"garbage", client.store.read_ledger(first.ledger_id).version)
    found = verify_log(client, "two")
    assert found.copies == 9 and [(one.kind, one.ledger_id) for one in found.check.problems] == [("unreadable", first.ledger_id)]
    with pytest.raises(MetadataFormatError, match=f"^.*ledger {first.ledger_id}: ledger metadata does not start with"):
        client.ledger_metadata(first.ledger_id)


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
