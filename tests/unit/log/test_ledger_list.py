"""The ledger list: changes, positions, codec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, LogDataLossError, LogError, LogSchemaError, LogTakenOverError, MetadataFormatError
from bk_core.protocol.log.codec import decode, decode_chunk, encode, encode_chunk, encode_ref
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import ref_to
from bk_core.protocol.log.segments import HistoryRef, LogProperties, Mark, Segment, SegmentRange, unchecked_properties
from bk_core.protocol.log.view import LogView


def grown(*sizes: int) -> LedgerList:
    """One segment per size, each in a ledger of its own, ten rows and a hundred bytes per entry."""
    listed = LedgerList(log_id="a")
    for i, size in enumerate(sizes):
        listed = listed.append_segments([SegmentRange(i, 5, 4 + size, 10 * size, 100 * size, 10)], 1, "q", i)
    return listed


def test_append_publishes_and_marks_once() -> None:
    first = LedgerList(log_id="a").append_segments([SegmentRange(7, 0, 9, 100, 1000, 10)], 1, "q", 0)
    assert first.committed == {"q": Mark(0, 1, 100, 1000)} and first.next_seq == 1
    assert first.append_segments([SegmentRange(8, 0, 9, 100, 1000, 10)], 2, "q", 0) is first  # replay with other ledgers
    assert first.append_segments([SegmentRange(7, 0, 9, 100, 1000, 10)], 2) is first  # a lost answer of an unmarked write


def test_overlap_condemned_and_live_are_refused() -> None:
    listed = LedgerList(log_id="a").append_segments([SegmentRange(7, 0, 9, 10, 1)], 1).condemn([8])
    with pytest.raises(LogError, match="listed already"):
        listed.append_segments([SegmentRange(7, 9, 12, 4, 1)], 1, "q", 0)
    with pytest.raises(LogError, match="condemned"):
        listed.append_segments([SegmentRange(8, 0, 1, 2, 1)], 1, "q", 0)
    with pytest.raises(LogTakenOverError):
        listed.add_live_segment(9, 1).append_segments([SegmentRange(7, 10, 12, 3, 1)], 1, "q", 0)
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
        listed = listed.append_segments([SegmentRange(ledger, first, first + 9, 100, 1000, 10)], 1, "q", batch)
    trimmed, free = listed.trim(2)
    assert free == (2,) and trimmed.condemned == (2,) and trimmed.trimmed_rows == 200
    assert LogView(trimmed).counts_before(Position(3)) == LogView(listed).counts_before(Position(3)) == (300, 3000)
    assert LogView(trimmed).first_position == Position(2, 10)
    assert trimmed.absolve([2]).condemned == ()
    with pytest.raises(LogDataLossError):
        LogView(trimmed).normal(Position(1))
    with pytest.raises(InvalidArgumentError):
        LedgerList(log_id="a").add_live_segment(1, 0).trim(1)


def test_positions_have_one_spelling() -> None:
    listed = LogView(grown(10, 10))
    assert listed.normal(Position(0, 15)) == listed.normal(Position(1)) == Position(1, 5)
    assert listed.normal(Position(1, 15)) == Position(2) == listed.end_position
    with pytest.raises(InvalidArgumentError):
        Position(-1)


def test_limits_hold_together_and_one_row_always_passes() -> None:
    listed = LogView(grown(10, 10))
    start = listed.first_position
    assert listed.position_at_rows(start, None, None) == listed.end_position
    assert listed.position_at_rows(start, 120, None) == Position(1, 7)
    assert listed.position_at_rows(start, 120, 300) == Position(0, 8)
    assert listed.position_at_rows(start, None, 0) == Position(0, 5, 1)
    assert listed.position_at_rows(start, 17, None) == Position(0, 6, 7)
    with pytest.raises(InvalidArgumentError, match="negative"):
        listed.position_at_rows(start, -1, None)
    assert listed.position_at_rows(start, 1, None) == Position(0, 5, 1)


@given(st.lists(st.integers(1, 6), max_size=5), st.integers(1, 200), st.integers(1, 2000))
def test_admission_reaches_the_end_without_overshooting(sizes: list[int], rows: int, size: int) -> None:
    listed = LogView(grown(*sizes))
    position = listed.first_position
    while position < listed.end_position:
        after = listed.position_at_rows(position, rows, size)
        (r0, b0), (r1, b1) = listed.counts_before(position), listed.counts_before(after)
        assert after > position
        assert (r1 - r0 <= rows and b1 - b0 <= size) or r1 - r0 == 1  # or exactly one row
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


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format":3}', b'{"format":2}', b'{"format":1,"logId":"a","trimmed":[0]}'])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode(data)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        (unchecked_properties(entry_format="avro"), "entryFormat must be one of arrow, raw"),
        (unchecked_properties(ensemble_size=2), "writeQuorumSize 3 is above ensembleSize 2: "),
        (unchecked_properties(write_quorum_size=1), "ackQuorumSize 2 is above writeQuorumSize 1: "),
        (unchecked_properties(ack_quorum_size=0), "ackQuorumSize must be at least 1, not 0"),
    ],
)
def test_a_log_that_could_not_be_written_is_refused_at_its_creation(properties: LogProperties, named: str) -> None:
    """CR-1, and an entry format that no reader would know; the message names what was asked for."""
    with pytest.raises(InvalidArgumentError, match=named):
        properties.check()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"entry_format": "rwa"}, "entry_format must be one of arrow, raw, not 'rwa'"),
        ({"digest_type": "MD5"}, "digest_type must be one of .*CRC32C.*, not 'MD5'"),
        ({"ensemble_size": "3"}, "ensemble_size must be a whole number, not '3'"),
        ({"write_quorum_size": 2, "ack_quorum_size": 3}, "ack_quorum_size 3 is above write_quorum_size 2: "),
        ({"retention_ms": 0}, "retention_ms must be positive"),
        ({"guaranteed_write_quorum": "no"}, "guaranteed_write_quorum must be True or False, not 'no'"),
    ],
)
def test_wrong_properties_are_refused_when_they_are_made(given: dict[str, Any], told: str) -> None:
    """As other settings are; also by ``replace``."""
    with pytest.raises(InvalidArgumentError, match=told):
        LogProperties(**given)
    with pytest.raises(InvalidArgumentError, match=told):
        replace(LogProperties(), **given)


def test_words_of_a_later_release_are_read_and_kept() -> None:
    """They are refused where they are used (``check``), and not where a list is read, changed or stored."""
    value = json.loads(encode(LedgerList(log_id="a")))
    value["properties"] |= {"entryFormat": "avro", "digestType": "BLAKE3", "ensembleSize": 2}
    listed = decode(json.dumps(value).encode())
    assert (listed.properties.entry_format, listed.properties.digest_type, listed.properties.ensemble_size) == ("avro", "BLAKE3", 2)
    again = decode(encode(listed.condemn([78])))
    assert again.properties == listed.properties
    assert listed.set_schema("x").properties.digest_type == "BLAKE3"
    with pytest.raises(InvalidArgumentError, match="digestType must be one of"):
        listed.properties.check()


def test_properties_at_the_edge_are_accepted() -> None:
    LogProperties().check()
    LogProperties(entry_format="raw", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).check()


def test_a_segment_that_is_gone_and_one_that_is_yet_to_come_are_told_apart() -> None:
    """A reader with a position before the trim lost data; one with a segment from the future holds a wrong offset."""
    trimmed, _ = grown(10, 10, 10).trim(1)
    view = LogView(trimmed)
    assert view.segment(1).ledger_id == 1
    with pytest.raises(LogDataLossError, match="now starts at segment 1"):
        view.segment(0)
    with pytest.raises(InvalidArgumentError, match="ends before segment 3"):
        view.segment(3)


def test_counts_before_a_position_inside_a_segment_are_shared_out_evenly() -> None:
    listed = LogView(grown(10, 10))
    assert listed.counts_before(Position(1, 8)) == (130, 1300)
    assert listed.counts_before(Position(0, 5)) == (0, 0)


def test_entries_of_a_live_segment_count_nothing_yet() -> None:
    """Rows and bytes become known when its ledger is closed; until then a metric must not invent any."""
    listed = LogView(grown(10).add_live_segment(9, 1))
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


@pytest.mark.parametrize(("first_entry_id", "last_entry_id"), [(-1, 3), (4, 3), (0, -1)])
def test_a_commit_of_an_impossible_range_is_refused_whole(first_entry_id: int, last_entry_id: int) -> None:
    """Nothing of it is listed and the batch is not marked, so the writer may come again with the right numbers."""
    listed = grown(10)
    with pytest.raises(InvalidArgumentError, match="bad entry range"):
        listed.append_segments([SegmentRange(8, 0, 1, 2, 1), SegmentRange(9, first_entry_id, last_entry_id, 1, 1)], 1, "q", 1)
    assert len(listed.segments) == 1 and not listed.is_committed("q", 1)


# --- ranges, marks, schemas, properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "per_entry"), [(0, 1), (9, 1), (11, 1), (27, 3), (31, 3), (-1, 0), (5, -1)])
def test_rows_that_cannot_be_in_their_entries_are_refused(rows: int, per_entry: int) -> None:
    """Ten entries: every one but the last is full, and the last is not empty. Otherwise no position would have exact counts."""
    with pytest.raises(InvalidArgumentError, match=r"entries 0..9 of ledger 1 cannot hold"):
        LedgerList("a").append_segments([SegmentRange(1, 0, 9, rows, 1, per_entry)], 1)


@pytest.mark.parametrize(("rows", "per_entry"), [(10, 1), (28, 3), (30, 3), (123, 0), (0, 0)])
def test_rows_that_fit_are_taken(rows: int, per_entry: int) -> None:
    listed = LedgerList("a").append_segments([SegmentRange(1, 0, 9, rows, 1, per_entry)], 1)
    assert listed.total_rows == rows and decode(encode(listed)) == listed


def test_an_empty_segment_counts_nothing() -> None:
    closed = LedgerList("a").add_live_segment(7, 1).close_live(7, -1, 0, 2)
    assert closed.segments[0].counts_of(0) == (0, 0) and closed.segments[0].after_seq == 1
    assert LogView(closed).live_segments == () and LogView(closed).first_position == Position(1)


def test_marks_of_one_shot_writes_are_forgotten_after_a_day_and_no_others() -> None:
    day = 24 * 3600 * 1000
    listed = LedgerList("a").mark_committed("write:1", 0, 1).mark_committed("q", 5, 1).mark_committed("txn:x", 2, 1)
    assert set(listed.mark_committed("other", 0, day).committed) == {"write:1", "q", "txn:x", "other"}
    assert set(listed.mark_committed("other", 0, day + 2).committed) == {"q", "txn:x", "other"}
    unknown_age = LedgerList("a").mark_committed("write:1", 0)
    assert unknown_age.mark_committed("q", 0, 10 * day).is_committed("write:1", 0)


def test_marks_of_queries_are_forgotten_if_the_log_says_so() -> None:
    listed = LedgerList("a", LogProperties(committed_retention_ms=100)).mark_committed("q", 5, 1).mark_committed("r", 1, 50)
    assert set(listed.mark_committed("s", 0, 120).committed) == {"r", "s"}
    assert listed.mark_committed("q", 6, 500).committed == {"q": Mark(6, 500)}


def test_schemas_evolve_and_segments_say_which_they_were_written_with() -> None:
    listed = LedgerList("a", LogProperties(schema="one"))
    assert listed.schemas == ("one",)
    listed = listed.append_segments([SegmentRange(1, 0, 0, 1, 1)], 1, "q", 0)
    wider = listed.evolve_schema("two")
    assert wider.evolve_schema("two") is wider and wider.properties.schema == "two"
    wider = wider.append_segments([SegmentRange(1, 1, 1, 1, 1)], 1, "q", 1)
    wider = wider.append_segments([SegmentRange(1, 2, 2, 1, 1)], 1, "q", 2, schema="one")  # of a writer that knew the old one only
    assert [segment.schema_id for segment in wider.segments] == [0, 1, 0]
    assert decode(encode(wider)) == wider
    with pytest.raises(LogSchemaError, match="another writer has added columns"):
        wider.evolve_schema("one")
    with pytest.raises(LogSchemaError, match="does not have"):
        wider.append_segments([SegmentRange(1, 3, 3, 1, 1)], 1, "q", 3, schema="three")
    for number in range(62):
        wider = wider.evolve_schema(f"s{number}")
    with pytest.raises(LogSchemaError, match="64 schemas"):
        wider.evolve_schema("one too many")


def test_a_schema_is_replaced_only_with_all_rows() -> None:
    """LOG-19."""
    listed = LedgerList("a", LogProperties(schema="one")).append_segments([SegmentRange(1, 0, 0, 1, 1)], 1, "q", 0).evolve_schema("two")
    assert listed.replace_schema("two") is listed
    with pytest.raises(LogSchemaError, match="together with all its rows"):
        listed.replace_schema("three")
    emptied, _ = listed.trim(listed.next_seq)
    other = emptied.replace_schema("one").append_segments([SegmentRange(2, 0, 0, 1, 1)], 2, "q", 1)
    assert other.schemas == ("one",) and [segment.schema_id for segment in other.segments] == [0]
    assert decode(encode(other)) == other and other.total_rows == 2


@pytest.mark.parametrize("name", ["retentionMs", "retentionBytes", "committedRetentionMs"])
@pytest.mark.parametrize("bound", [0, -1, 0.0, 1.5, True, "1"])
def test_a_stored_retention_of_nothing_is_no_list(name: str, bound: object) -> None:
    """A retention that somebody edited so would trim everything."""
    value = json.loads(encode(LedgerList("a", LogProperties(), cluster="c")))
    value["properties"][name] = bound
    with pytest.raises(MetadataFormatError, match=f"{name} is"):
        decode(json.dumps(value).encode())


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes", "committed_retention_ms"])
def test_a_retention_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be positive, or absent"):
        replace(LogProperties(), **{name: 0}).check()


def test_properties_are_stored_and_changed_but_for_what_entries_are_made_of() -> None:
    kept = LogProperties(retention_ms=1, retention_bytes=2, guaranteed_write_quorum=True, committed_retention_ms=3)
    listed = LedgerList("a").set_properties(kept)
    assert decode(encode(listed)).properties == kept
    assert listed.set_properties(kept) is listed
    for wrong in (LogProperties(entry_format="arrow"), LogProperties(schema="x"), unchecked_properties(ensemble_size=0)):
        with pytest.raises(InvalidArgumentError):
            listed.set_properties(wrong)


# --- stored forms -------------------------------------------------------------------------------------------------------------

_V1 = (
    b'{"format":1,"logId":"a","properties":{"entryFormat":"arrow","schema":"x","ensembleSize":3,"writeQuorumSize":3,"ackQuorumSize":2,'
    b'"digestType":"CRC32C"},"trimmed":[4,40,400],"segments":[[7,0,9,10,100,5],[7,10,11,30,20,6],[8,0,null,0,0,7]],'
    b'"committed":{"q":3},"condemned":[9],"new":1}'
)


def test_a_list_of_format_1_is_read_and_written_as_format_2() -> None:
    listed = decode(_V1)
    assert [segment.rows_per_entry for segment in listed.segments] == [1, 0, 1]
    assert listed.committed == {"q": Mark(3)} and listed.schemas == ("x",) and listed.condemned == (9,)
    assert LogView(listed).counts_before(Position(5, 11)) == (65, 510)
    stored = json.loads(encode(listed))
    assert stored["format"] == 2 and stored["new"] == 1 and stored["segments"][1] == [7, 10, 11, 30, 20, 6, 0]
    assert decode(encode(listed)) == listed


def test_the_stored_form_byte_for_byte() -> None:
    """FORMAT.md shows this list; the same list is always stored as the same bytes."""
    ref = HistoryRef(0, 21, 0, 3, 3, 30, 300, 5, 7, 1000, 1002)
    listed = LedgerList(
        "f00d",
        LogProperties("arrow", schema="c2NoZW1h", retention_ms=86400000),
        trimmed_seq=4,
        trimmed_rows=50,
        trimmed_bytes=500,
        head_rows=40,
        head_bytes=400,
        history=(ref,),
        condemned=(4,),
    )
    listed = listed.append_segments([SegmentRange(7, 12, 14, 25, 999, 10)], 1003, "q", 9)
    tied = replace(listed, cluster="3f2c")
    assert encode(tied) == encode(listed).replace(b'{"format":2,', b'{"format":3,"cluster":"3f2c",') and decode(encode(tied)) == tied
    assert encode(listed) == (
        b'{"format":2,"logId":"f00d","properties":{"entryFormat":"arrow","ensembleSize":3,"writeQuorumSize":3,"ackQuorumSize":2,'
        b'"digestType":"CRC32C","retentionMs":86400000},"trimmed":[4,50,500,40,400],'
        b'"history":[[0,21,0,3,3,30,300,5,7,1000,1002]],"dropped":[],"segments":[[7,12,14,25,999,1003,10]],'
        b'"committed":{"q":[9,1003,25,999]},"condemned":[4],"released":[],"opened":[],"schemas":["c2NoZW1h"]}'
    )
    chunk = tuple(Segment(3 + i, 5 + i, 0, 9, 10, 100, 1000 + i) for i in range(3))
    assert encode_chunk("f00d", chunk) == (
        b'{"format":1,"logId":"f00d","level":0,"firstSeq":3,"count":3,'
        b'"items":[[5,0,9,10,100,1000],[6,0,9,10,100,1001],[7,0,9,10,100,1002]]}'
    )
    assert decode_chunk(encode_chunk("f00d", chunk), "f00d", ref) == chunk


@pytest.mark.parametrize("row", [[6, 4, 0, 5, 25, 1], [6, -1, 0, 2, 2, 1], [-6, 0, 0, 1, 1, 1], [6, 0, -2, 0, 0, 1]])
@pytest.mark.parametrize("stored_format", [1, 2])
def test_a_segment_that_is_no_stretch_of_a_ledger_is_refused(row: list[int], stored_format: int) -> None:
    """Nothing of it would be read, and nobody told."""
    value = json.loads(encode(grown(1)))
    value["segments"] = [row]
    if stored_format == 1:
        value |= {"format": 1, "trimmed": value["trimmed"][:3], "properties": {**value["properties"], "schema": ""}, "committed": {}}
    with pytest.raises(MetadataFormatError, match=f"segment 0 is entries {row[1]} to {row[2]} of ledger {row[0]}"):
        decode(json.dumps(value).encode())


@pytest.mark.parametrize("row", [[1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 1, 1, 0, 0], [1, None, 0, 1, 1, 1], ["x", 0, 0, 1, 1, 1]])
def test_a_segment_of_an_unknown_shape_is_refused(row: list[object]) -> None:
    value = json.loads(encode(grown(1)))
    value["segments"] = [row]
    with pytest.raises(MetadataFormatError, match="not a ledger list"):
        decode(json.dumps(value).encode())


def test_references_that_leave_a_gap_are_refused() -> None:
    low = [HistoryRef(0, 20 + i, 0, 3 * i, 3, 30, 300, 1, 2, 5, 6) for i in range(3)]
    whole = encode_chunk("a", tuple(low))
    ref = ref_to(tuple(low), 50)
    assert decode_chunk(whole, "a", ref) == tuple(low)
    for damaged in ([low[0], low[2]], [low[0], replace(low[1], level=1), low[2]], []):
        value = {**json.loads(whole), "items": [encode_ref(item) for item in damaged]}
        with pytest.raises(MetadataFormatError, match="not a chunk of history"):
            decode_chunk(json.dumps(value).encode(), "a", ref)
