"""The batches that segments came from: which query of Spark committed which, as spans of segments.

A span is about segments by their numbers, which never change and are never used again. So a list that an older program changed, which
carries spans without knowing them, tells nothing wrong: segments that it added have no span, and those that it trimmed are no more asked
for. Spans move with their segments into the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPANS_MAX = 1024
"""The number of spans that a list keeps at most, the newest ones. Sealing takes them out of it long before."""


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Segments ``first_seq`` to ``after_seq`` - 1 were committed by batch ``batch_id`` of query ``query_id``, or of a write that was no
    query's."""

    first_seq: int
    count: int
    query_id: str
    batch_id: int

    @property
    def after_seq(self) -> int:
        return self.first_seq + self.count

    def holds(self, seq: int) -> bool:
        """Return True if segment ``seq`` is of this batch."""
        return self.first_seq <= seq < self.after_seq


def with_span(spans: Sequence[BatchSpan], span: BatchSpan, trimmed_seq: int) -> tuple[BatchSpan, ...]:
    """Return the spans with one more behind them, without those of segments that were trimmed, and at most SPANS_MAX."""
    kept = [one for one in spans if one.after_seq > trimmed_seq]
    return tuple([*kept, span][-SPANS_MAX:]) if span.count else tuple(kept)


def within(spans: Iterable[BatchSpan], first_seq: int, after_seq: int) -> tuple[BatchSpan, ...]:
    """Return the spans that have a segment of ``first_seq`` to ``after_seq`` - 1."""
    return tuple(one for one in spans if one.first_seq < after_seq and one.after_seq > first_seq)


def span_of(spans: Iterable[BatchSpan], seq: int) -> BatchSpan | None:
    """Return the span of a segment, None if its batch is not known."""
    return next((one for one in spans if one.holds(seq)), None)


def encode_spans(spans: Iterable[BatchSpan]) -> dict[str, list[list[int]]]:
    """Return spans by query: ``[first segment, count, batch]`` each (FORMAT.md)."""
    found: dict[str, list[list[int]]] = {}
    for one in spans:
        found.setdefault(one.query_id, []).append([one.first_seq, one.count, one.batch_id])
    return {query_id: sorted(rows) for query_id, rows in sorted(found.items())}


def decode_spans(value: Mapping[str, Any]) -> tuple[BatchSpan, ...]:
    """Return the spans in the order of their segments. Raises ValueError for what is none."""
    spans = []
    for query_id, rows in value.items():
        for first, count, batch_id in rows:
            if int(first) < 0 or int(count) < 1:
                raise ValueError(f"a span of segments of a batch is [{first!r}, {count!r}, {batch_id!r}]")
            spans.append(BatchSpan(int(first), int(count), str(query_id), int(batch_id)))
    return tuple(sorted(spans, key=lambda one: (one.first_seq, one.query_id, one.batch_id)))
