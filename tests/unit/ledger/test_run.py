"""A run of packaged adds: what is cut out of it for one bookie."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES, EntryRun, PackedAdds, measured
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire.messages import AddRequest

PREFIX = b"p" * ADD_FRAME_PREFIX_BYTES


def run_of(first_entry_id: int, bodies: list[bytes]) -> PackedAdds:
    offsets = array("q", [0])
    for body in bodies:
        offsets.append(offsets[-1] + len(PREFIX) + len(body))
    return PackedAdds(7, first_entry_id, len(bodies), b"".join(PREFIX + body for body in bodies), memoryview(offsets))


def numbered(first_entry_id: int, count: int) -> PackedAdds:
    return run_of(first_entry_id, [b"<%d>" % (first_entry_id + i) for i in range(count)])


def sent(run: PackedAdds, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> list[bytes]:
    return [bytes(part) for part in run.frames_for(position, start, ensemble_size, write_quorum_size)]


def test_without_striping_a_bookie_is_sent_the_rest_of_the_run_in_one_piece() -> None:
    run = numbered(10, 3)
    assert sent(run, 1, 0, 3, 3) == [run.frames]
    assert sent(run, 1, 2, 3, 3) == [PREFIX + b"<12>"]


def test_with_striping_neighbours_travel_together_and_gaps_are_left_out() -> None:
    """Entries 8..15 over five bookies, two copies each: position 0 holds every entry that is 4 or 0 modulo 5."""
    run = numbered(8, 8)
    assert sent(run, 0, 0, 5, 2) == [PREFIX + b"<9>" + PREFIX + b"<10>" + PREFIX + b"<14>" + PREFIX + b"<15>"]
    assert sent(run, 0, 2, 5, 2) == [PREFIX + b"<10>" + PREFIX + b"<14>" + PREFIX + b"<15>"]


@pytest.mark.parametrize(("first_entry_id", "position"), [(10, 3), (11, 0)])
def test_a_bookie_outside_the_write_set_is_sent_nothing(first_entry_id: int, position: int) -> None:
    assert sent(numbered(first_entry_id, 1), position, 0, 4, 1) == []


@given(st.integers(0, 2**40), st.lists(st.binary(max_size=4), min_size=1, max_size=12), st.integers(1, 6), st.data())
def test_every_bookie_is_sent_exactly_the_entries_it_must_hold(
    first_entry_id: int, bodies: list[bytes], size: int, data: st.DataObject
) -> None:
    write = data.draw(st.integers(1, size))
    position, start = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, len(bodies) - 1))
    run, layout = run_of(first_entry_id, bodies), Distribution(size, write, 1)
    held = [i for i in range(start, len(bodies)) if position in layout.write_set(first_entry_id + i)]
    assert list(run.indices(position, start, size, write)) == held
    parts = sent(run, position, start, size, write)
    assert b"".join(parts) == b"".join(PREFIX + bodies[i] for i in held)
    assert len(parts) == (1 if held else 0)
    assert run.count_for(position, start, size, write) == len(held)
    v3 = b"".join(
        codec_v2.frame(codec_v3.encode_request(AddRequest(9 + k, 7, first_entry_id + i, PREFIX[8:], bodies[i]))) for k, i in enumerate(held)
    )
    assert run.frames_v3_for(position, start, size, write, 9) == v3


def test_the_body_of_an_entry_is_its_frame_without_length_header_and_key() -> None:
    run = numbered(10, 3)
    assert [bytes(run.body(i)) for i in range(3)] == [b"<10>", b"<11>", b"<12>"]
    assert run.last_entry_id == 12


def test_payloads_of_a_read_run_are_cut_at_its_offsets_even_when_empty() -> None:
    run = EntryRun(5, 3, b"abcd", memoryview(array("q", [0, 3, 3, 4])))
    assert (run.payloads(), run.last_entry_id) == ([b"abc", b"", b"d"], 7)


@pytest.mark.parametrize(("offsets", "why"), [([0, 2], "end at 2"), ([0, 1, 0], "offset 2"), ([-1, 0], "offset 0"), ([0], "two or more")])
def test_offsets_that_do_not_rise_within_the_payloads(offsets: list[int], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"must rise within the 1 bytes.*{why}"):
        measured(memoryview(array("q", offsets)).cast("B"), 1)


def test_the_entries_of_a_run_its_bytes_and_the_largest_one() -> None:
    assert measured(memoryview(array("q", [1, 1, 4, 6])).cast("B"), 6) == (3, 5, 3)
