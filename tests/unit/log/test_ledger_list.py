"""The ledger list: changes, positions, codec."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, LogDataLossError, LogError, LogSchemaError, LogTakenOverError, MetadataFormatError
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties, SegmentRange, decode, encode, position_at_rows
from bk_core.protocol.log.position import Position


def grown(*sizes: int) -> LedgerList:
    """One segment per size, each in a ledger of its own, ten rows and a hundred bytes per entry."""
    listed = LedgerList(log_id="a")
    for i, size in enumerate(sizes):
        listed = listed.append_segments([SegmentRange(i, 5, 4 + size, 10 * size, 100 * size)], 1, "q", i)
    return listed


def test_append_publishes_and_marks_once() -> None:
    first = LedgerList(log_id="a").append_segments([SegmentRange(7, 0, 9, 100, 1000)], 1, "q", 0)
    assert first.committed == {"q": 0} and first.next_seq == 1
    assert first.append_segments([SegmentRange(8, 0, 9, 100, 1000)], 2, "q", 0) is first  # replay with other ledgers
    assert first.append_segments([SegmentRange(7, 0, 9, 100, 1000)], 2) is first  # a lost answer of an unmarked write


def test_overlap_condemned_and_live_are_refused() -> None:
    listed = LedgerList(log_id="a").append_segments([SegmentRange(7, 0, 9, 1, 1)], 1).condemn([8])
    with pytest.raises(LogError, match="listed already"):
        listed.append_segments([SegmentRange(7, 9, 12, 1, 1)], 1, "q", 0)
    with pytest.raises(LogError, match="condemned"):
        listed.append_segments([SegmentRange(8, 0, 1, 1, 1)], 1, "q", 0)
    with pytest.raises(LogTakenOverError):
        listed.add_live_segment(9, 1).append_segments([SegmentRange(7, 10, 12, 1, 1)], 1, "q", 0)
    assert listed.condemn([7]) is listed


def test_live_segments_close_and_never_exceed_two() -> None:
    listed = LedgerList(log_id="a").add_live_segment(1, 0)
    assert listed.add_live_segment(1, 0) is listed
    two = listed.add_live_segment(2, 0)
    with pytest.raises(LogError):
        two.add_live_segment(3, 0)
    closed = two.close_live(1, 4, 50, 9)
    assert closed.segments[0].rows == 5 and closed.close_live(1, 4, 50, 9) is closed
    assert closed.end_position == Position(1, 0)
    assert closed.close_live(2, -1, 0, 9).end_position == Position(2)


def test_trim_keeps_counts_and_shared_ledgers() -> None:
    listed = LedgerList(log_id="a")
    for batch, (ledger, first) in enumerate([(1, 0), (2, 0), (1, 10)]):
        listed = listed.append_segments([SegmentRange(ledger, first, first + 9, 100, 1000)], 1, "q", batch)
    trimmed, free = listed.trim(2)
    assert free == (2,) and trimmed.condemned == (2,) and trimmed.trimmed_rows == 200
    assert trimmed.counts_before(Position(3)) == listed.counts_before(Position(3)) == (300, 3000)
    assert trimmed.first_position == Position(2, 10)
    assert trimmed.absolve([2]).condemned == ()
    with pytest.raises(LogDataLossError):
        trimmed.normal(Position(1))
    with pytest.raises(InvalidArgumentError):
        LedgerList(log_id="a").add_live_segment(1, 0).trim(1)


def test_positions_have_one_spelling() -> None:
    listed = grown(10, 10)
    assert listed.normal(Position(0, 15)) == listed.normal(Position(1)) == Position(1, 5)
    assert listed.normal(Position(1, 15)) == Position(2) == listed.end_position
    with pytest.raises(InvalidArgumentError):
        Position(-1)


def test_limits_hold_together_and_one_entry_always_passes() -> None:
    listed = grown(10, 10)
    start = listed.first_position
    assert position_at_rows(listed, start, None, None) == listed.end_position
    assert position_at_rows(listed, start, 120, None) == Position(1, 7)
    assert position_at_rows(listed, start, 120, 300) == Position(0, 8)
    assert position_at_rows(listed, start, 1, None) == Position(0, 6)


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(1, 500), st.integers(1, 5000))
def test_admission_reaches_the_end_without_overshooting(sizes: list[int], rows: int, size: int) -> None:
    listed = grown(*sizes)
    position = listed.first_position
    while position < listed.end_position:
        after = position_at_rows(listed, position, rows, size)
        (r0, b0), (r1, b1) = listed.counts_before(position), listed.counts_before(after)
        assert after > position
        assert (r1 - r0 <= rows and b1 - b0 <= size) or r1 - r0 == 10  # or exactly one entry
        position = after


def test_schema_is_set_once() -> None:
    listed = LedgerList(log_id="a").set_schema("x")
    assert listed.set_schema("x") is listed
    with pytest.raises(LogSchemaError):
        listed.set_schema("y")


def test_codec_round_trip_carries_unknown_fields() -> None:
    listed = grown(3, 4).trim(1)[0].add_live_segment(9, 5).condemn([77])
    assert decode(encode(listed)) == listed
    value = json.loads(encode(listed))
    value["retention"] = {"days": 3}
    value["properties"]["colour"] = "blue"
    again = json.loads(encode(decode(json.dumps(value).encode()).condemn([78])))
    assert again["retention"] == {"days": 3} and again["properties"]["colour"] == "blue"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format":2}', b'{"format":1,"logId":"a","trimmed":[0]}'])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode(data)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        (LogProperties(entry_format="avro"), "entryFormat must be one of arrow, raw"),
        (LogProperties(ensemble_size=2), "2/3/2"),
        (LogProperties(write_quorum_size=1), "3/1/2"),
        (LogProperties(ack_quorum_size=0), "3/3/0"),
    ],
)
def test_a_log_that_could_not_be_written_is_refused_at_its_creation(properties: LogProperties, named: str) -> None:
    """CR-1, and an entry format that no reader would know; the message names what was asked for."""
    with pytest.raises(InvalidArgumentError, match=named):
        properties.check()


def test_properties_at_the_edge_are_accepted() -> None:
    LogProperties().check()
    LogProperties(entry_format="raw", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).check()


def test_a_segment_that_is_gone_and_one_that_is_yet_to_come_are_told_apart() -> None:
    """A reader with a position before the trim lost data; one with a segment from the future holds a wrong offset."""
    trimmed, _ = grown(10, 10, 10).trim(1)
    assert trimmed.segment(1).ledger_id == 1
    with pytest.raises(LogDataLossError, match="now starts at segment 1"):
        trimmed.segment(0)
    with pytest.raises(InvalidArgumentError, match="ends before segment 3"):
        trimmed.segment(3)


def test_counts_before_a_position_inside_a_segment_are_shared_out_evenly() -> None:
    listed = grown(10, 10)
    assert listed.counts_before(Position(1, 8)) == (130, 1300)
    assert listed.counts_before(Position(0, 5)) == (0, 0)


def test_entries_of_a_live_segment_count_nothing_yet() -> None:
    """Rows and bytes become known when its ledger is closed; until then a metric must not invent any."""
    listed = grown(10).add_live_segment(9, 1)
    assert listed.counts_before(Position(1, 4)) == listed.counts_before(Position(1)) == (100, 1000)


def test_a_batch_is_marked_once_and_its_mark_never_goes_back() -> None:
    marked = grown(1).mark_committed("q", 7)
    assert marked.is_committed("q", 7) and not marked.is_committed("q", 8)
    assert marked.mark_committed("q", 7) is marked
    assert marked.mark_committed("q", 3) is marked


def test_trimming_what_is_trimmed_already_changes_nothing() -> None:
    """META-14: the change may run again on a newer list, where another janitor has done it."""
    trimmed, _ = grown(10, 10).trim(1)
    assert trimmed.trim(1) == (trimmed, ())
    assert trimmed.trim(0) == (trimmed, ())
    assert LedgerList(log_id="a").trim(5) == (LedgerList(log_id="a"), ())


def test_absolving_a_ledger_that_is_not_condemned_changes_nothing() -> None:
    """META-14: another janitor has deleted and absolved it."""
    listed = grown(1).condemn([8, 9])
    assert listed.absolve([7]) is listed
    assert listed.absolve([7, 8]).condemned == (9,)


@pytest.mark.parametrize(("first_entry", "last_entry"), [(-1, 3), (4, 3), (0, -1)])
def test_a_commit_of_an_impossible_range_is_refused_whole(first_entry: int, last_entry: int) -> None:
    """Nothing of it is listed and the batch is not marked, so the writer may come again with the right numbers."""
    listed = grown(10)
    with pytest.raises(InvalidArgumentError, match="bad entry range"):
        listed.append_segments([SegmentRange(8, 0, 1, 1, 1), SegmentRange(9, first_entry, last_entry, 1, 1)], 1, "q", 1)
    assert len(listed.segments) == 1 and not listed.is_committed("q", 1)
