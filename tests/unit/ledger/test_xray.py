"""The parts of an x-ray that need no bookie: stretches of states, lists of entries, and a replica's scan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from bk_core.errors import RemoteProtocolError
from bk_core.protocol.bookie.listing import EntryListEncoder
from bk_core.protocol.effects import Complete, Effect, SendRead, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import ReadReply, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.xray import EntryState, LedgerXray, Stretch, Stretches, XrayResult, scan
from bk_core.protocol.ledger.xray.listed import EntryList
from bk_core.protocol.ledger.xray.stretches import Stripe
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    EntryListRequest,
    EntryListResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    ReadRunRequest,
    ReadRunResponse,
    Request,
    Response,
    Status,
)
from bk_core.protocol.wire.read_run import RunAnswers

QUORUMS = [(3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2), (1, 1, 1)]
G, L, M, C = EntryState.GOOD, EntryState.LISTED, EntryState.MISSING, EntryState.CORRUPT


@pytest.mark.parametrize("quorums", QUORUMS)
def test_stretches_say_of_each_entry_what_its_byte_said(quorums: tuple[int, int, int]) -> None:
    distribution = Distribution(*quorums)
    dice = random.Random(7)
    for position in range(quorums[0]):
        for first in (0, 1, 17):
            states = bytearray()
            while len(states) < 10_000:
                states += bytes([dice.choice([G, M, C])]) * dice.choice([1, 2, 3, 50, 5000])
            stretches = Stretches()
            cut = dice.randrange(1, len(states))
            stretches.add_states(Stripe(distribution, position, first), states[:cut])
            stretches.add_states(Stripe(distribution, position, first + cut), states[cut:])
            held = [first + at for at in range(len(states)) if distribution.holds(position, first + at)]
            told = {
                entry: one.state for one in stretches for entry in range(one.first, one.last + 1) if distribution.holds(position, entry)
            }
            assert told == {entry: states[entry - first] for entry in held}
            assert sum(one.count for one in stretches) == sum(stretches.counts.values()) == len(held)
            parts = list(stretches)
            assert all(before.state != after.state for before, after in zip(parts, parts[1:], strict=False))


def listed(ids: set[int]) -> bytes:
    encoder = EntryListEncoder()
    encoder.add((entry, 1) for entry in sorted(ids))
    return encoder.blob()


@pytest.mark.parametrize("period", [0, 1])
def test_a_list_is_read_as_the_bookie_wrote_it(period: int) -> None:
    dice = random.Random(period)
    for _ in range(200):
        ids = {entry for entry in range(300) if entry % 3 == 0} if period else set()
        ids |= {dice.randrange(300) for _ in range(dice.choice([0, 1, 5, 100]))}
        found = EntryList(listed(ids))
        first = dice.randrange(300)
        last = dice.randrange(first, 320)
        assert [at + first for at, state in enumerate(found.states(first, last)) if state == L] == [
            entry for entry in range(first, last + 1) if entry in ids
        ]
        assert found.last == max(ids, default=None)


@pytest.mark.parametrize("blob", [b"", b"\0" * 63, b"\0\0\0\1" + b"\0" * 60, b"\0\0\0\0\0\0\0\1" + b"\0" * 56])
def test_what_is_no_list_is_refused(blob: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        EntryList(blob)


# --- a machine with bookies that are dictionaries -------------------------------------------------------------------------


class Bookies:
    """Bookies by name: what each has, by entry. ``mute`` ones do not answer, and those in ``no_list`` never to the question for a list."""

    def __init__(self, metadata: LedgerMetadata, batch: bool) -> None:
        self.metadata = metadata
        self.batch = batch
        self.bodies: dict[str, dict[int, bytes]] = {bookie: {} for one in metadata.fragments for bookie in one.ensemble}
        self.mute: set[str] = set()
        self.no_list: set[str] = set()
        self.busy = 0
        self.asked: list[Request] = []

    def fill(self, last: int) -> None:
        distribution = Distribution(self.metadata.ensemble_size, self.metadata.write_quorum_size, self.metadata.ack_quorum_size)
        for entry in range(last + 1):
            ensemble = self.metadata.fragment_of(entry).ensemble
            body = layout.encode_body(9, entry, entry - 1, 3 * (entry + 1), b"abc", self.metadata.digest_type)
            for position in distribution.write_set(entry):
                self.bodies[ensemble[position]][entry] = body

    def corrupt(self, bookie: str, entry: int) -> None:
        self.bodies[bookie][entry] = self.bodies[bookie][entry][:-1] + b"?"

    def answer(self, bookie: str, message: Request) -> tuple[Status, Response | None]:
        self.asked.append(message)
        has = self.bodies[bookie]
        if bookie in self.mute or (bookie in self.no_list and isinstance(message, EntryListRequest)):
            return Status.TIMEOUT, None
        match message:
            case ReadLacRequest():
                last = max(has, default=None)
                return Status.OK, ReadLacResponse(0, Status.OK, 9, None, None if last is None else has[last])
            case EntryListRequest():
                return Status.OK, EntryListResponse(0, Status.OK, 9, listed(set(has)))
            case ReadRequest(entry_id=entry):
                if self.busy:
                    self.busy -= 1
                    return Status.TOO_MANY_REQUESTS, None
                status = Status.OK if entry in has else Status.NO_ENTRY
                return status, ReadResponse(0, status, 9, entry, has.get(entry))
            case BatchReadRequest(entry_id=entry, entries_max=count):
                if not self.batch:
                    return Status.BAD_REQUEST, None
                items = b"".join(len(body).to_bytes(4, "big") + body for body in prefix(has, range(entry, entry + min(count, 100))))
                status = Status.OK if items else Status.NO_ENTRY
                return status, BatchReadResponse(0, status, 9, entry, items)
            case ReadRunRequest(entry_id=entry, count=count, step=step):
                run = RunAnswers(message)
                for one in range(entry, entry + count * step, step):
                    if not run.done:
                        run.take(ReadResponse(0, Status.OK if one in has else Status.NO_ENTRY, 9, one, has.get(one)))
                response: ReadRunResponse = run.response(Status.TIMEOUT)
                return response.status, response
        raise AssertionError(message)

    def run(self, machine: LedgerXray) -> XrayResult:
        waiting: list[Effect] = machine.start(0)
        now = 0
        while waiting:
            effect = waiting.pop(0)
            match effect:
                case SendRead(request, bookie, message):
                    status, response = self.answer(bookie, message)
                    waiting += machine.handle(ReadReply(request, bookie, status, response), now)
                case SetTimer(key, after):
                    now += after
                    waiting += machine.handle(TimerFired(key), now)
                case Complete(value=XrayResult() as result):
                    assert not [one for one in waiting if isinstance(one, SendRead)]
                    return result
        raise AssertionError("it came to no end")


def prefix(has: dict[int, bytes], ids: range) -> Iterator[bytes]:
    for entry in ids:
        if entry not in has:
            return
        yield has[entry]


def world(quorums: tuple[int, int, int], last: int, *, batch: bool = True, closed: bool = True) -> Bookies:
    names = "abcde"[: quorums[0]]
    other = tuple("vwxyz"[: quorums[0]])
    metadata = LedgerMetadata(*quorums, LedgerState.OPEN, (Fragment(0, tuple(names)), Fragment(5000, other)), digest_type=DigestType.CRC32C)
    bookies = Bookies(metadata.closed(last, 3 * (last + 1)) if closed else metadata, batch)
    bookies.fill(last)
    return bookies


def states(result: XrayResult) -> dict[tuple[str, int], EntryState]:
    size = len({replica.position for replica in result.replicas})
    found = {}
    for replica in result.replicas:
        for stretch in replica.stretches:
            ids = [n for n in range(stretch.first, stretch.last + 1) if (replica.position - n) % size < QUORUM_OF[size]]
            assert len(ids) == stretch.count
            found.update({(replica.bookie, entry): stretch.state for entry in ids})
    return found


QUORUM_OF = {3: 3, 4: 2, 1: 1, 5: 3}


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2), (5, 3, 2)])
def test_every_copy_is_told_as_it_is(quorums: tuple[int, int, int], full: bool, batch: bool) -> None:
    bookies = world(quorums, 9000, batch=batch)
    everything = {(name, entry) for name, has in bookies.bodies.items() for entry in has}
    dice = random.Random(3)
    lost = {*dice.sample(sorted(everything), 60), *((n, e) for n, e in everything if n == "b" and 300 <= e < 700)}
    for name, entry in lost:
        del bookies.bodies[name][entry]
    wrong = set(dice.sample(sorted(everything - lost), 40))
    for name, entry in wrong:
        bookies.corrupt(name, entry)
    bookies.no_list = {"b"}
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, full=full))
    found = states(result)
    assert set(found) == everything
    assert {place for place, state in found.items() if state is M} == lost
    told = {place for place, state in found.items() if state is C}
    assert told == wrong if full else told >= {place for place in wrong if place[0] == "b"} and told <= wrong
    assert {state for (name, _), state in found.items() if name == "b"} >= {G, M}
    assert (L in found.values()) is not full
    assert not any(isinstance(one, ReadRequest | BatchReadRequest) and one.fence for one in bookies.asked)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("quorums", [(2, 1, 1), (3, 1, 1), (3, 2, 2), (4, 2, 2), (5, 3, 2)])
def test_a_bookie_that_holds_nothing_of_a_short_stretch_ends_nothing(
    quorums: tuple[int, int, int], full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A striped ledger with few entries, a fragment with few, and the rest behind whole blocks."""
    monkeypatch.setattr(scan, "BLOCK_ENTRIES", 4)
    places = [(first, last) for last in (*range(8), 4 * quorums[0], 8 * quorums[0] + 1) for first in {0, max(0, last - 1)}]
    for first, last in (*places, (4998, 5000), (4990, 5001)):
        bookies = world(quorums, last)
        bookies.no_list = set(bookies.bodies)
        result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, first=first, full=full))
        assert sum(one.stretches.counts.get(G, 0) for one in result.replicas) == quorums[1] * (last - first + 1)


def test_entries_of_a_part_of_the_ledger_are_looked_at() -> None:
    bookies = world((3, 3, 2), 9000)
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, first=4990, last=5010, full=True))
    assert (result.first, result.last, result.lac) == (4990, 5010, 9000)
    assert [list(one.stretches) for one in result.replicas] == [[Stretch(4990, 4999, 10, G)]] * 3 + [[Stretch(5000, 5010, 11, G)]] * 3
    beyond = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, first=9001))
    assert (beyond.last, beyond.replicas) == (9000, ())


def test_bookies_that_never_answer_about_lists_are_learnt_and_not_asked_again() -> None:
    """One that answers nothing at all is not among them."""
    bookies = world((3, 3, 2), 9000)
    bookies.no_list, bookies.mute = {"a", "v"}, {"b"}
    machine = LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies)
    first = bookies.run(machine)
    assert machine.unlisting == {"a", "v"}
    bookies.asked.clear()
    again = LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, unlisting=machine.unlisting)
    assert states(bookies.run(again)) == states(first) and again.unlisting == {"a", "v"}
    assert sum(isinstance(one, EntryListRequest) for one in bookies.asked) == 4


def test_who_is_gone_and_who_is_silent_is_told_apart_and_ends() -> None:
    bookies = world((3, 3, 2), 9000)
    bookies.mute = {"a"}
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=set(bookies.bodies) - {"v"}, full=True))
    by_name = {one.bookie: [(part.state, part.count) for part in one.stretches] for one in result.replicas}
    assert by_name["a"] == [(EntryState.SILENT, 5000)]
    assert by_name["v"] == [(EntryState.UNASKED, 4001)]
    assert by_name["b"] == [(G, 5000)]
    assert {one.bookie: one.silent for one in result.bookies if one.silent is not None} == {"a": Status.TIMEOUT}


@pytest.mark.parametrize("full", [True, False])
def test_a_bookie_that_does_not_admit_this_client_says_nothing(full: bool) -> None:
    """RR-19: it is asked no more after its first refusal."""
    bookies = world((3, 2, 2), 200)
    answer, asked = bookies.answer, Counter[str]()

    def refuses(bookie: str, message: Request) -> tuple[Status, Response | None]:
        asked[bookie] += 1
        return (Status.UNAUTHORIZED, None) if bookie == "a" else answer(bookie, message)

    bookies.answer = refuses  # type: ignore[method-assign]
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=set(bookies.bodies), full=full))
    by_name = {one.bookie: {part.state for part in one.stretches} for one in result.replicas}
    assert by_name["a"] == {EntryState.SILENT} and not by_name["b"] & {EntryState.SILENT, EntryState.UNREADABLE}
    assert {one.bookie: one.silent for one in result.bookies if one.silent is not None} == {"a": Status.NOT_ADMITTED}
    assert asked["a"] == (1 if full else 2)  # for its last entry, and for its list


@pytest.mark.parametrize("full", [True, False])
def test_a_bookie_that_falls_silent_on_the_way_leaves_what_was_seen(full: bool) -> None:
    bookies = world((3, 3, 2), 9000)
    answer, seen = bookies.answer, [0]

    def stops(bookie: str, message: Request) -> tuple[Status, Response | None]:
        if bookie == "a" and not isinstance(message, ReadLacRequest | EntryListRequest):
            seen[0] += 1
            if seen[0] > 20 or not full:
                return Status.UNAVAILABLE, None
        return answer(bookie, message)

    bookies.answer = stops  # type: ignore[method-assign]
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, full=full, limits=Limits(replication_retries_max=2)))
    parts = {one.bookie: list(one.stretches) for one in result.replicas}["a"]
    if full:
        counts = {state: sum(one.count for one in parts if one.state is state) for state in (G, EntryState.SILENT)}
        assert counts[G] >= 100
        assert counts[EntryState.SILENT] >= 100
        assert sum(counts.values()) == 5000
    else:  # what it lists is there; its two ends could not be read
        assert [(one.state, one.count) for one in parts] == [(EntryState.SILENT, 1), (L, 4998), (EntryState.SILENT, 1)]


def test_a_busy_bookie_is_asked_again() -> None:
    bookies = world((3, 3, 2), 50)
    bookies.no_list = set(bookies.bodies)
    del bookies.bodies["a"][10]
    bookies.busy = 5
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies))
    assert {place for place, state in states(result).items() if state is not G} == {("a", 10)}


def test_an_open_ledger_is_looked_at_up_to_the_last_entry_that_is_proven() -> None:
    bookies = world((3, 3, 2), 6000, closed=False)
    del bookies.bodies["v"][6000]
    forged = layout.encode_body(9, 10**15, 10**15, 3, b"abc", DigestType.CRC32C)[:-1] + b"?"
    bookies.bodies["w"][10**15] = forged
    result = bookies.run(LedgerXray(9, bookies.metadata, 1, registered=bookies.bodies, full=True))
    assert (result.last, result.lac) == (6000, 5999)
    undecided = [one for one in result.replicas if not one.decided]
    assert [one.first_entry_id for one in undecided] == [5000] * 3
    missing = [part for one in undecided for part in one.stretches if part.state is M]
    assert missing == [Stretch(6000, 6000, 1, M)]
    assert not any(one.is_problem(M) for one in undecided)
    assert all(one.is_problem(C) for one in undecided)


def test_an_empty_ledger_has_no_copies() -> None:
    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")),)).closed(-1, 0)
    bookies = Bookies(metadata, True)
    result = bookies.run(LedgerXray(9, metadata, 1, registered=bookies.bodies))
    assert (result.last, result.lac, result.replicas) == (-1, -1, ())
