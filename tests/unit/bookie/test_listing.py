"""Lists of a ledger's entries that are made in pieces (BKE-7)."""

from __future__ import annotations

import struct

from bk_core.protocol.bookie import Reply
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.unit.bookie.host import Bookie, L, add


def begun(bookie: Bookie, entries: int = 10) -> EntryListing:
    """A list of which the first piece is made: the storage in memory gives four rows at once."""
    for entry_id in range(0, 2 * entries, 2):
        bookie.ask(add(entry_id))
    effects, rest = bookie.machine.handle_list("t", EntryListing(m.EntryListRequest(1, L)))
    assert effects == [] and rest is not None and 0 < rest.next_id < 2 * entries
    return rest


def ended(bookie: Bookie, listing: EntryListing) -> m.EntryListResponse:
    """The answer after all pieces that are left."""
    rest: EntryListing | None = listing
    while rest is not None:
        effects, rest = bookie.machine.handle_list("t", rest)
    (effect,) = effects
    assert isinstance(effect, Reply) and isinstance(effect.response, m.EntryListResponse)
    return effect.response


def told(answer: m.EntryListResponse) -> list[int]:
    found: list[int] = []
    assert answer.entries is not None
    for first, last, size, period in struct.iter_unpack(">qqii", answer.entries[64:]):
        for start in range(first, last + 1, period or 1):
            found += range(start, start + size)
    return found


def test_bke_7_others_are_served_between_the_pieces() -> None:
    """BKE-7: what was there all along is named; what comes meanwhile may be, behind where the list is."""
    bookie = Bookie()
    listing = begun(bookie)
    assert bookie.ask(add(1)).status is Status.OK and bookie.ask(add(40)).status is Status.OK
    answer = ended(bookie, listing)
    assert answer.status is Status.OK and told(answer) == [*range(0, 20, 2), 40]


def test_bke_7_a_ledger_that_is_gone_by_the_end_has_no_list() -> None:
    """BKE-7: what is absent from half a list would be taken for missing."""
    bookie = Bookie()
    listing = begun(bookie)
    bookie.collect()
    assert ended(bookie, listing).status is Status.NO_LEDGER
