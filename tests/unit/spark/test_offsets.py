"""Stream offsets: text equality, lag, data loss."""

from __future__ import annotations

import json

import pytest

from bk_core.errors import InvalidArgumentError, LogDataLossError
from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.position import Position
from bk_spark.offsets import KEYS, locate, offset_at, starting_position


def grown(batches: int, log_id: str = "a") -> LedgerList:
    listed = LedgerList(log_id=log_id)
    for batch in range(batches):
        listed = listed.append_segments([SegmentRange(batch, 10, 19, 100, 1000)], 1, "q", batch)
    return listed


def test_the_same_place_is_the_same_text() -> None:
    listed = grown(2)
    texts = {json.dumps(offset_at("log", listed, p)) for p in (Position(1), Position(0, 20), Position(1, 3))}
    assert len(texts) == 1 and tuple(json.loads(texts.pop())) == KEYS


def test_growth_and_trimming_leave_counts_alone() -> None:
    before = offset_at("log", grown(3), Position(2))
    assert before["rows"] == 200 and before["bytes"] == 2000
    assert offset_at("log", grown(5), Position(2)) == before == offset_at("log", grown(5).trim(1)[0], Position(2))


def test_loss_is_noticed_or_jumped_over() -> None:
    offset = offset_at("log", grown(3), Position(0))
    for changed in (grown(3).trim(1)[0], grown(3, "b")):
        with pytest.raises(LogDataLossError):
            locate("log", changed, offset, True)
        assert locate("log", changed, offset, False) == changed.first_position
    with pytest.raises(InvalidArgumentError):
        locate("log", grown(1), {"offset": 3}, True)


def test_starting_positions() -> None:
    listed = grown(3)
    assert starting_position(listed, "earliest", "log", True) == Position(0, 10)
    assert starting_position(listed, "latest", "log", True) == Position(3)
    assert starting_position(listed, '{"seq":1,"entry":12}', "log", True) == Position(1, 12)
    with pytest.raises(InvalidArgumentError):
        starting_position(listed, '{"seq":9}', "log", True)
