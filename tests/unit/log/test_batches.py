"""The batches of a query in a log, and the form of their marks."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from bk_core.protocol.log.batches import Standing, standing_of
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import Mark

FIVE = Mark(5, 1, 100, 999)


@pytest.mark.parametrize(
    ("mark", "batch_id", "rows", "size", "standing"),
    [
        (None, 0, 1, 1, Standing.NEXT),
        (None, 1, 1, 1, Standing.BEHIND_LOSS),
        (FIVE, 6, 1, 1, Standing.NEXT),
        (FIVE, 7, 1, 1, Standing.BEHIND_LOSS),
        (FIVE, 5, 100, 999, Standing.SAME),
        (FIVE, 5, 99, 999, Standing.DIFFERENT),
        (FIVE, 5, 100, 998, Standing.DIFFERENT),
        (FIVE, 4, 100, 999, Standing.EARLIER),
        (FIVE, 0, 0, 0, Standing.EARLIER),
        (Mark(5, 1), 5, 7, 7, Standing.SAME),
        (Mark(5, 1, 0, 0), 5, 7, 7, Standing.DIFFERENT),
    ],
)
def test_what_a_batch_is_to_a_log(mark: Mark | None, batch_id: int, rows: int, size: int, standing: Standing) -> None:
    """BAT-1, BAT-2."""
    assert standing_of(mark, batch_id, rows, size) is standing


def test_marks_as_they_are_stored() -> None:
    """BAT-2: earlier programs read two numbers of a mark, and write two."""
    marks = {"new": Mark(1, 2, 3, 4), "none": Mark(1, 2, 0, 0), "old": Mark(5, 6)}
    listed = LedgerList("id", committed=MappingProxyType(marks))
    stored = json.loads(encode(listed))
    assert stored["committed"] == {"new": [1, 2, 3, 4], "none": [1, 2, 0, 0], "old": [5, 6]}
    assert decode(encode(listed)).committed == marks
    longer = decode(json.dumps({**stored, "committed": {"q": [1, 2, 3, 4, 5]}}).encode())  # of a later program
    assert longer.committed == {"q": Mark(1, 2, 3, 4)}
    assert LedgerList("id").mark_committed("q", 1, 2, 3, 4).committed == {"q": Mark(1, 2, 3, 4)}
