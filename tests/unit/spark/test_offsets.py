"""Stream offsets: text equality, lag, data loss; first offsets in a metadata store; where reading begins and ends."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, LogDataLossError, NodeExistsError, NoNodeError, NoSuchLogError
from bk_core.metadata.store import Versioned
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.offset import KEYS, LogOffset, to_json
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import SegmentRange
from bk_core.protocol.log.view import LogView
from bk_spark.options.grammar import parse_offsets, parse_times
from bk_spark.options.table import Options
from bk_spark.source.first_offset import durable, reader_path
from bk_spark.source.following import Snapshot
from bk_spark.source.measuring import Measured
from bk_spark.source.offsets import check_there, from_json
from bk_spark.source.starting import check_offsets_name, depends_on_now, ending_position, source_logs, starting_position


def grown(batches: int, log_id: str = "a", trim: int = 0) -> LogView:
    """Batch b: entries 10..19 of ledger b with ten rows each, committed at b seconds."""
    listed = LedgerList(log_id=log_id)
    for batch in range(batches):
        listed = listed.append_segments([SegmentRange(batch, 10, 19, 100, 1000, 10)], batch * 1000, "q", batch)
    return LogView(listed.trim(trim)[0])


class NoLengths:
    def up_to(self, ledger_id: int, entry: int) -> int | None:
        return None


def snapshot(view: LogView, end: Position | None = None) -> Snapshot:
    return Snapshot("log", view, end or view.end_position, Measured(view, NoLengths()))


# --- offsets ------------------------------------------------------------------------------------------------------------


def test_the_same_place_is_the_same_text() -> None:
    seen = snapshot(grown(2))
    places = (Position(1), Position(0, 20), Position(1, 3), Position(0, 19, 10))
    texts = {json.dumps(to_json({"log": seen.offset_at(seen.spelled(p))})) for p in places}
    assert len(texts) == 1
    value = json.loads(texts.pop())
    assert tuple(value["log"]) == KEYS and to_json(from_json(value)) == value
    assert list(to_json({"b": LogOffset("x", Position(0), 0, 0), "a": LogOffset("x", Position(0), 0, 0)})) == ["a", "b"]


def test_the_end_of_a_live_segment_is_not_the_start_of_the_next() -> None:
    live = LedgerList(log_id="a").add_live_segment(7, 0)
    seen = snapshot(LogView(live.close_live(7, 4, 50, 0)), Position(0, 5))
    assert seen.spelled(Position(0, 5)) == Position(0, 5) == seen.spelled(Position(1))
    assert seen.offset_at(seen.end).json() == {"logId": "a", "seq": 0, "entry": 5, "row": 0, "rows": 5, "bytes": 50}


def test_growth_and_trimming_leave_counts_alone() -> None:
    before = snapshot(grown(3)).offset_at(Position(2))
    assert before.rows == 200 and before.bytes == 2000
    assert snapshot(grown(5)).offset_at(Position(2)) == before == snapshot(grown(5, trim=1)).offset_at(Position(2))


def test_loss_is_noticed_and_measured() -> None:
    offset = snapshot(grown(3)).offset_at(Position(0, 15, 5))
    check_there("log", grown(9), offset)
    with pytest.raises(LogDataLossError, match=r"145 rows \(1,450 bytes\) from segment 0, entry 15 up to segment 2") as lost:
        check_there("log", grown(9, trim=2), offset)
    assert lost.value.context["rows"] == 145
    with pytest.raises(LogDataLossError, match="after row 55"):
        check_there("log", grown(3, "b"), offset)
    # spelled as the end of what was trimmed: nothing is lost, so nothing is said
    check_there("log", grown(3, trim=1), LogOffset("a", Position(0, 20), 100, 1000))


@pytest.mark.parametrize(
    "value",
    [{"offset": 3}, {"flights": {"0": 23}}, {"log": {"seq": 1}}, {"log": 3}, {"log": {"logId": "a", "seq": -1, "entry": 0, "row": 0}}],
)
def test_what_is_no_offset(value: dict[str, Any]) -> None:
    words = "checkpoint was written by another source, such as Kafka's, or edited: .* Begin a new checkpoint, .* startingTimestamp"
    with pytest.raises(InvalidArgumentError, match=words):
        from_json(value)


# --- where reading begins and ends ---------------------------------------------------------------------------------------


def options(**values: Any) -> Options:
    return Options("zk://h/ledgers", **values)


def begin(view: LogView, text: str | None = None, **values: Any) -> Position:
    offsets = None if text is None else parse_offsets(text)
    return starting_position(view, "log", options(starting_offsets=offsets, **values), "latest")


def test_starting_positions() -> None:
    view = grown(3)
    assert begin(view) == begin(view, "latest") == begin(view, '{"log":-1}') == Position(3)
    assert begin(view, "Earliest") == begin(view, '{"log":-2}') == Position(0, 10)
    assert begin(view, '{"seq":1,"entry":12,"row":3}') == Position(1, 12, 3)
    assert begin(view, '{"log":{"seq":1,"entry":12}}') == Position(1, 12)
    assert begin(view, '{"ledgerId":2,"entryId":15}') == Position(2, 15)
    with pytest.raises(InvalidArgumentError, match="beyond the end"):
        begin(view, '{"seq":9}')


def test_a_place_that_is_lost() -> None:
    trimmed = grown(3, trim=1)
    for text in ('{"seq":0}', '{"logId":"b","seq":2}', '{"ledgerId":0,"entryId":12}'):
        with pytest.raises(LogDataLossError):
            begin(trimmed, text)
        assert begin(trimmed, text, fail_on_data_loss=False) == Position(1, 10)


def test_times() -> None:
    view = grown(3)
    assert begin(view, "earliest", starting_timestamp=1001) == Position(2, 10)  # the time goes before the offsets
    assert begin(view, starting_offsets_by_timestamp=(("log", 1000),)) == Position(1, 10)
    assert begin(view, starting_timestamp=0, starting_offsets_by_timestamp=(("log", 1000),)) == Position(0, 10)
    with pytest.raises(InvalidArgumentError, match=r"no commit at or after 2001 \(startingTimestamp\)"):
        begin(view, starting_timestamp=2001)
    with pytest.raises(InvalidArgumentError, match=r"after 2001-01-01T00:00:00Z \(startingOffsetsByTimestamp\)"):
        begin(view, starting_offsets_by_timestamp=pickle.loads(pickle.dumps(parse_times('{"log":"2001-01-01T00:00:00Z"}'))))
    assert begin(view, starting_timestamp=2001, starting_offsets_by_timestamp_strategy="latest") == Position(3)


def test_ending_positions() -> None:
    view = grown(3)
    assert ending_position(view, "log", options()) == Position(3)
    assert ending_position(view, "log", options(ending_offsets=parse_offsets('{"seq":1,"entry":15}'))) == Position(1, 15)
    assert ending_position(view, "log", options(ending_timestamp=1000, ending_offsets=parse_offsets("latest"))) == Position(1, 10)
    assert ending_position(view, "log", options(ending_timestamp=9000)) == Position(3)
    assert ending_position(view, "log", options(ending_offsets_by_timestamp=(("log", 2000),))) == Position(2, 10)


def test_what_depends_on_now() -> None:
    assert depends_on_now(options(), "log", "latest") and not depends_on_now(options(), "log", "earliest")
    by_log = options(starting_offsets=parse_offsets('{"log":-1,"other":-2}'))
    assert depends_on_now(by_log, "log", "earliest") and not depends_on_now(by_log, "other", "latest")
    timed = options(starting_timestamp=5)
    assert not depends_on_now(timed, "log", "latest")
    assert depends_on_now(replace(timed, starting_offsets_by_timestamp_strategy="latest"), "log", "latest")


class Store:
    """``children`` and single nodes, as much as logs need."""

    def __init__(self, logs: tuple[str, ...] = ()) -> None:
        self.logs = logs
        self.nodes: dict[str, bytes] = {}

    def cluster_id(self) -> str:
        return "here"

    def children(self, path: str) -> list[str]:
        return sorted(self.logs)

    def read(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(self.nodes[path], 0)

    def create(self, path: str, data: bytes) -> int:
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = data
        return 0


class Client:
    def __init__(self, *logs: str) -> None:
        self.store = Store(logs)


def test_logs_of_file_stores_are_read_only_by_their_prefix() -> None:
    client = Client("files.flights", "flights", "filesx")
    assert source_logs(options(log_pattern=".*flights"), client) == ("flights",)
    assert source_logs(options(log_pattern="file.*"), client) == ("filesx",)
    assert source_logs(options(log_pattern=r"files\..*"), client) == ("files.flights",)
    assert source_logs(options(log_pattern="files.flights"), client) == ("files.flights",)
    with pytest.raises(NoSuchLogError, match="matches no log; there are filesx, flights$"):
        source_logs(options(log_pattern="light"), client)


def test_names_of_logs() -> None:
    client = Client("flights", "flights-eu", "ships")
    assert source_logs(options(log="flights"), client) == ("flights",)
    assert source_logs(options(logs=("flights", "ships")), client) == ("flights", "ships")
    assert source_logs(options(log_pattern="flights.*"), client) == ("flights", "flights-eu")
    with pytest.raises(NoSuchLogError, match="light"):
        source_logs(options(log_pattern="light"), client)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"starting_offsets": parse_offsets('{"seq":1}')}, "a place in one log"),
        ({"starting_offsets": parse_offsets('{"a":-2}')}, "leaves out 'b'; the source reads 'a', 'b'"),
        ({"ending_offsets": parse_offsets('{"a":-2,"b":-1,"c":-1}')}, "names 'c', which is not read; the source reads 'a', 'b'"),
        ({"starting_offsets_by_timestamp": (("a", 1),)}, "leaves out 'b'; the source reads 'a', 'b'"),
        (
            {"ending_offsets_by_timestamp": (("a", 1), ("c", 1))},
            "endingOffsetsByTimestamp names 'c', which is not read, and leaves out 'b'$",
        ),
    ],
)
def test_offsets_by_log_name_each_log(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_offsets_name(options(**values), ("a", "b"))
    check_offsets_name(options(starting_offsets=parse_offsets("latest")), ("a", "b"))


# --- first offsets --------------------------------------------------------------------------------------------------------


def first(rows: int, *names: str) -> dict[str, LogOffset]:
    return {name: LogOffset("id", Position(rows), rows, rows) for name in names}


def test_whoever_comes_first_decides() -> None:
    store: Any = Store()
    assert durable(store, "me", ("a", "b"), lambda: first(1, "a", "b")) == (first(1, "a", "b"), False)
    assert sorted(store.nodes) == ["readers/a/me", "readers/b/me"]
    assert durable(store, "me", ("b", "c"), lambda: first(2, "b", "c")) == (first(1, "a", "b"), True)  # though a is gone
    assert durable(store, "you", ("a", "b"), lambda: first(3, "a", "b")) == (first(3, "a", "b"), False)


def test_a_race_has_one_winner() -> None:
    store: Any = Store()

    def beaten() -> dict[str, LogOffset]:
        assert durable(store, "me", ("a", "b"), lambda: first(1, "a", "b"))[1] is False
        return first(2, "a", "b")

    assert durable(store, "me", ("a", "b"), beaten) == (first(1, "a", "b"), True)
    assert len(set(store.nodes.values())) == 1


def test_names_of_readers() -> None:
    assert reader_path("log", "etl-1_a.b") == "readers/log/etl-1_a.b"
    for bad in ("a/b", "..", "a b", "é"):
        with pytest.raises(InvalidArgumentError, match="readerName"):
            reader_path("log", bad)
    store: Any = Store()
    store.nodes["readers/log/me"] = b"junk"
    with pytest.raises(InvalidArgumentError, match="holds no first offset"):
        durable(store, "me", ("log",), lambda: first(1, "log"))
