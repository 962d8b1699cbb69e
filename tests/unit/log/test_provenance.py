"""The batches that segments came from: kept in the list, moved into the history, and left alone by older programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bk_core.errors import MetadataFormatError
from bk_core.protocol.log.codec import decode, decode_batches, decode_chunk, encode, encode_chunk
from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.provenance import SPANS_MAX, BatchSpan, decode_spans, encode_spans, span_of, with_span, within
from bk_core.protocol.log.sealing import SealLimits, next_chunk, ref_to, seal

LIMITS = SealLimits(tail_max=6, chunk=4, fan_out=2)


def committed(batches: int, per_batch: int = 2, query: str = "q") -> LedgerList:
    listed = LedgerList(log_id="f00d", cluster="c")
    for batch in range(batches):
        first = listed.next_seq
        ranges = [SegmentRange(100 + batch, 10 * i, 10 * i + 4, 5, 50) for i in range(per_batch)]
        listed = listed.append_segments(ranges, 1000 + batch).note_batch(query, batch, first).mark_committed(query, batch, 1000 + batch)
    return listed


def test_each_segment_is_told_its_batch() -> None:
    listed = committed(3)
    assert listed.batches == (BatchSpan(0, 2, "q", 0), BatchSpan(2, 2, "q", 1), BatchSpan(4, 2, "q", 2))
    assert [span_of(listed.batches, seq) for seq in (1, 2, 6)] == [listed.batches[0], listed.batches[1], None]
    assert within(listed.batches, 1, 3) == listed.batches[:2]
    assert listed.note_batch("q", 9, listed.next_seq) is listed  # a batch without rows


def test_the_stored_form_and_back() -> None:
    listed = committed(2).note_batch("q", 7, 3)
    stored = json.loads(encode(listed))
    assert stored["batches"] == {"q": [[0, 2, 0], [2, 2, 1], [3, 1, 7]]}
    assert decode(encode(listed)) == listed
    assert encode(decode(encode(listed))) == encode(listed)
    assert "batches" not in json.loads(encode(LedgerList(log_id="f00d", cluster="c")))
    with pytest.raises(MetadataFormatError):
        decode(json.dumps({**stored, "batches": {"q": [[0, 0, 0]]}}).encode())
    spans = [BatchSpan(4, 1, "b", 0), BatchSpan(0, 4, "a", 3)]
    assert encode_spans(spans) == {"a": [[0, 4, 3]], "b": [[4, 1, 0]]}
    assert decode_spans(encode_spans(spans)) == (spans[1], spans[0])


def test_an_older_program_carries_the_field_and_makes_nothing_of_it() -> None:
    """It keeps unknown fields as they are, and adds and trims segments beside them."""
    value = json.loads(encode(committed(3)))
    value["segments"] = value["segments"][2:] + [[900, 0, 4, 5, 50, 1100]]
    value["trimmed"] = [2, 10, 100, 10, 100]
    listed = decode(json.dumps(value).encode())
    assert span_of(listed.batches, 6) is None
    assert span_of(listed.batches, 2) == BatchSpan(2, 2, "q", 1)
    first = listed.next_seq
    later = listed.append_segments([SegmentRange(901, 0, 4, 5, 50)], 1200).note_batch("q", 3, first)
    assert later.batches == (*listed.batches[1:], BatchSpan(first, 1, "q", 3))  # what was trimmed is forgotten


def test_spans_move_into_the_history_with_their_segments() -> None:
    listed = committed(4)
    chunk = next_chunk(listed, LIMITS)
    assert len(chunk) == 6
    data = encode_chunk("f00d", chunk, listed.batches)
    assert decode_batches(data) == listed.batches[:3]
    assert decode_chunk(data, "f00d", ref_to(chunk, 77)) == chunk
    sealed = seal(listed, [(chunk, ref_to(chunk, 77))])
    assert sealed is not None
    assert sealed.batches == listed.batches[3:]
    assert decode_batches(encode_chunk("f00d", chunk)) == ()
    refs = (sealed.history[0], replace(sealed.history[0], first_seq=6))
    assert "batches" not in json.loads(encode_chunk("f00d", refs, listed.batches))


def test_a_span_that_is_cut_by_a_chunk_is_in_both() -> None:
    listed = committed(3, per_batch=3)
    chunk = listed.segments[:4]
    sealed = seal(listed, [(chunk, ref_to(chunk, 77))])
    assert sealed is not None
    assert sealed.batches == listed.batches[1:]
    assert decode_batches(encode_chunk("f00d", chunk, listed.batches)) == listed.batches[:2]


def test_a_list_keeps_so_many_spans() -> None:
    spans: tuple[BatchSpan, ...] = ()
    for batch in range(SPANS_MAX + 5):
        spans = with_span(spans, BatchSpan(batch, 1, "q", batch), 0)
    assert len(spans) == SPANS_MAX
    assert spans[-1].batch_id == SPANS_MAX + 4
