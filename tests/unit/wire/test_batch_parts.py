"""A batch answer taken in parts says what the same answer says as a whole, to the reader too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.answers import Wanted, entry_run
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.wire import codec_v2, connection
from bk_core.protocol.wire.batch_parts import BatchParts, BodyCheck
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadResponse, Response, Status
from tests.unit.ledger.reader_world import LEDGER, batch, body, reader

CHECK = BodyCheck(int(DigestType.CRC32C))


def parts_of(bodies: bytes, rng: random.Random, *, first: int = 0, entries_max: int = 10) -> BatchParts:
    """Cut anywhere; what is not done with comes again with more behind it, as much as is asked for at least."""
    parts = BatchParts(CHECK, LEDGER, first, entries_max, len(bodies))
    start, wanted = 0, 0
    while start < len(bodies):
        stop = min(len(bodies), start + max(wanted, rng.choice((1, 5, 100, 1000))))
        done, wanted = parts.take(memoryview(bodies)[start:stop], len(bodies) - start)
        start += done
        assert wanted <= len(bodies) - start and (not wanted or wanted > stop - start)
    return parts


def whole(bodies: bytes, last: int = 9) -> tuple[list[bytes], type[Exception] | None]:
    try:
        run, problem = entry_run(bodies, 0, Wanted(LEDGER, 0, last, 1, DigestType.CRC32C, b""))
    except (DigestError, RemoteProtocolError) as error:
        return [], type(error)
    return [] if run is None else run.payloads(), None if problem is None else type(problem)


GOOD = [body(e) for e in range(10)]
CASES: dict[str, Sequence[bytes]] = {
    "good": GOOD,
    "one": GOOD[:1],
    "a prefix": GOOD[:4],
    "a bad one": [*GOOD[:5], body(5, corrupt=True), *GOOD[6:]],
    "the first is bad": [body(0, corrupt=True), *GOOD[1:]],
    "the last is bad": [*GOOD[:9], body(9, corrupt=True)],
    "another ledger's": [*GOOD[:3], body(3, ledger_id=LEDGER + 1), *GOOD[4:]],
    "a gap": [*GOOD[:3], *GOOD[4:]],
    "too many": [*GOOD, body(10)],
    "too many, and bad": [*GOOD, body(10, corrupt=True)],
    "too short for an entry": [*GOOD[:3], b"123", *GOOD[4:]],
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", CASES)
def test_the_parts_say_what_the_whole_says(name: str, seed: int) -> None:
    """RD-8, RD-10."""
    bodies = codec_v2.join_bodies(CASES[name])
    parts = parts_of(bodies, random.Random(seed))
    payloads = [bytes(parts.values[parts.offsets[i] : parts.offsets[i + 1]]) for i in range(parts.count)]
    assert (payloads, None if parts.problem is None else type(parts.problem)) == whole(bodies)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 30])
def test_an_answer_that_ends_inside_of_an_entry_is_none(cut: int, seed: int) -> None:
    bodies = codec_v2.join_bodies(GOOD)[:-cut]
    parts = parts_of(bodies, random.Random(seed))
    assert parts.count == 0 and isinstance(parts.problem, RemoteProtocolError)
    assert whole(bodies) == ([], RemoteProtocolError)


def test_a_length_beyond_the_frame_is_not_waited_for() -> None:
    """A bookie must not make a client wait, or take memory, for what cannot come."""
    bodies = codec_v2.join_bodies(GOOD[:2]) + b"\x7f\xff\xff\xff" + bytes(500)
    parts = BatchParts(CHECK, LEDGER, 0, 10, len(bodies))
    assert parts.take(memoryview(bodies)[:-400], len(bodies)) == (len(bodies) - 400, 0)
    assert isinstance(parts.problem, RemoteProtocolError) and "cut off" in str(parts.problem)
    assert parts.take(memoryview(bytes(400)), 400) == (400, 0)


def test_what_is_handed_out_cannot_be_written_to() -> None:
    parts = parts_of(codec_v2.join_bodies(GOOD), random.Random(0))
    assert memoryview(parts.values).readonly and parts.offsets.readonly
    assert len(parts.values) == sum(len(layout.decode_body(b, LEDGER, None, DigestType.CRC32C, b"").payload) for b in GOOD)


@pytest.mark.parametrize("name", CASES)
def test_the_reader_takes_both_alike(name: str) -> None:
    """RD-3, RD-8, RD-10: the same runs, the same bookies asked next."""
    seen = []
    for in_parts in (False, True):
        world = reader()
        (ask,) = world.asks
        assert (
            isinstance(ask.message, BatchReadRequest)
            and ask.message.check is not None
            and ask.message.check.digest_type == CHECK.digest_type
        )
        answer = batch(0, CASES[name])
        if in_parts:
            answer = replace(answer, bodies=b"", parts=parts_of(bytes(answer.bodies), random.Random(1)))
        world.answer("a", answer)
        seen.append((world.entries, world.bookies, len(world.logs)))
    assert seen[0] == seen[1]


def test_an_answer_of_the_wrong_kind_is_none() -> None:
    """RD-8: parts without a batch read, a batch that brought nothing."""
    world = reader(batch=False)
    world.answer("a", BatchReadResponse(0, Status.OK, LEDGER, 0, parts=parts_of(codec_v2.join_bodies(GOOD), random.Random(0))))
    assert world.runs == [] and world.bookies == ["b"]


@pytest.mark.parametrize("size", [1, 30, 1000])
def test_who_keeps_payloads_keeps_little_else(size: int) -> None:
    """Limits.read_ahead_bytes counts payloads."""
    bodies = codec_v2.join_bodies([layout.encode_body(LEDGER, e, e - 1, e + 1, bytes(size), DigestType.CRC32C, b"") for e in range(10)])
    values = parts_of(bodies, random.Random(0)).values
    kept = values.obj if isinstance(values, memoryview) else values
    assert len(values) == 10 * size and len(memoryview(kept)) <= 20 * size


@pytest.mark.parametrize(
    "response, head",
    [
        (BatchReadResponse(42, Status.OK, 5, 7, bytes(40)), (42, 5, 7)),
        (BatchReadResponse(42, Status.NO_ENTRY, 5, 7), None),
        (ReadResponse(0, Status.OK, 5, 7, bytes(40)), None),
    ],
)
def test_only_a_good_answer_has_bodies_to_take(response: Response, head: tuple[int, int, int] | None) -> None:
    """wire-protocol.md 5.3: a long frame may be the answer to a single read just as well."""
    frame = connection.ServerProtocol().encode(response, connection.ReplyTo("v2", 2))
    assert connection.batch_head(bytes(3) + frame, 3) == head


def test_the_key_of_a_digest_is_not_shown() -> None:
    assert "hush" not in repr(Wanted(LEDGER, 0, 1, 1, DigestType.MAC, b"hush"))
