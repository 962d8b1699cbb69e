"""Traps of Spark's Python data source API, each with the tests that keep us out of it; section and number as in spark-connectors.md 5.

A trap that Spark closes by an error of its own, or that can only be written down, is kept by a test of what is written down.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    SimpleDataSourceStreamReader,
)

from bk_spark.datasource import BookKeeperDataSource
from bk_spark.sink.writer import BookKeeperStreamWriter, BookKeeperWriter
from bk_spark.source.batch import BookKeeperReader
from bk_spark.source.stream import BookKeeperStreamReader
from bk_spark.tables.reader import MetadataReader

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/spark/test_traps.py"
DEPLOYMENTS = "tests/spark/test_deployments.py"
STREAM = "tests/spark/test_stream.py"
STREAM_READER = "tests/spark/test_stream_reader.py"
BATCH = "tests/spark/test_batch.py"
SINK = "tests/spark/test_sink.py"
SQL = "tests/spark/test_sql.py"
TYPES = "tests/spark/test_types.py"
TABLES = "tests/spark/test_metadata_tables.py"
UNIT = "tests/unit/spark"

TRAPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "5.1 a": (
        "planner workers are forked anew after errors, and idle workers die without a word: nothing but caches is kept in them",
        (
            f"{DEPLOYMENTS}::test_nothing_is_lost_doubled_or_left_over",
            f"{SINK}::test_killed_workers_cost_neither_data_nor_ledgers",
            f"{UNIT}/test_sink_ledgers.py::test_a_worker_keeps_its_ledger_across_tasks_writes_and_queries",
        ),
    ),
    "5.1 b": ("stop() is never called", (f"{HERE}::test_nothing_needs_a_goodbye",)),
    "5.2 a": ("the source is pickled after its creation, the reader before partitions()", (f"{HERE}::test_a_source_is_plain_data",)),
    "5.2 b": (
        "an empty list of partitions becomes one InputPartition(None)",
        (f"{UNIT}/test_partitions.py::test_no_plan_is_no_row", f"{BATCH}::test_no_rows_make_no_ledger_and_an_empty_log_no_row"),
    ),
    "5.2 c": ("readers and writers are called by keyword here and by position there", (f"{HERE}::test_parameters_have_sparks_names",)),
    "5.3 a": (
        "only tasks know the query id",
        (f"{UNIT}/test_sink.py::test_a_batch_of_a_stream_is_published_once_however_often_it_is_tried",),
    ),
    "5.3 b": (
        "write() also runs without rows: no ledger before the first one",
        (
            f"{BATCH}::test_no_rows_make_no_ledger_and_an_empty_log_no_row",
            f"{UNIT}/test_sink.py::test_an_empty_batch_is_marked_and_makes_no_ledger",
        ),
    ),
    "5.4 a": (
        "a batch must equal to_arrow_schema: nullable fields, no large types, the same order",
        (
            f"{UNIT}/test_arrow_schemas.py::test_schemas_survive_the_ledger_list",
            f"{UNIT}/test_arrow.py::test_nested_columns_change_only_in_what_may_be_null",
            f"{TYPES}::test_every_type_comes_back",
        ),
    ),
    "5.4 b": ("only the first batch is checked", (f"{UNIT}/test_arrow.py::test_older_entries_have_nulls_in_columns_that_came_later",)),
    "5.5 a": ("partitions() runs once per DataFrame", (f"{HERE}::test_what_only_words_can_keep",)),
    "5.5 b": ("no column pruning", (f"{BATCH}::test_chosen_columns",)),
    "5.5 c": ("pushFilters fails where pushdown is off", (f"{HERE}::test_filters_are_taken_only_where_asked_for",)),
    "5.6 a": (
        "the initial offset is asked again and not stored",
        (
            f"{STREAM_READER}::test_the_first_offset_is_fixed_for_a_run",
            f"{STREAM_READER}::test_a_named_reader_begins_where_it_began",
            f"{STREAM_READER}::test_a_restart_before_batch_0_commits",
            f"{STREAM}::test_a_restart_before_batch_0_commits",
        ),
    ),
    "5.6 b": ("start > end must raise", (f"{STREAM_READER}::test_offsets_never_run_backwards",)),
    "5.6 c": ("offsets are compared as text", (f"{UNIT}/test_offsets.py::test_the_same_place_is_the_same_text",)),
    "5.7 a": ("ReadAllAvailable is obeyed", (f"{STREAM_READER}::test_all_available_is_obeyed",)),
    "5.7 b": (
        "AvailableNow ends where it was prepared, whatever the minimum",
        (
            f"{STREAM_READER}::test_available_now_ends_where_it_was_prepared",
            f"{STREAM_READER}::test_few_rows_wait_for_more_or_for_the_delay",
        ),
    ),
    "5.7 c": ("a latestOffset without parameters gets no admission control", (f"{HERE}::test_the_stream_reader_admits",)),
    "5.8": (
        "columns of a write are not checked by Spark",
        (
            f"{UNIT}/test_sink_logs.py::test_what_does_not_fit_is_refused_before_anything_is_written",
            f"{TYPES}::test_what_cannot_come_back_is_refused_at_planning",
        ),
    ),
    "5.9 a": (
        "commit twice",
        (
            f"{STREAM}::test_a_replayed_batch_is_published_once",
            f"{UNIT}/test_sink.py::test_a_batch_of_a_stream_is_published_once_however_often_it_is_tried",
        ),
    ),
    "5.9 b": (
        "commit then abort",
        (
            f"{SINK}::test_abort_after_a_commit_that_succeeded",
            f"{UNIT}/test_sink.py::test_abort_after_commit_touches_nothing",
            f"{UNIT}/test_sink.py::test_a_commit_whose_answer_is_lost_and_its_abort",
        ),
    ),
    "5.9 c": (
        "abort while others write, and without any name of what they made",
        (
            f"{BATCH}::test_a_failing_write_stays_invisible",
            f"{UNIT}/test_sink_ledgers.py::test_the_intent_comes_before_the_ledger",
            f"{UNIT}/test_sink.py::test_a_failed_write_leaves_nothing_behind",
        ),
    ),
    "5.9 d": (
        "retries and speculation: a full writer whose message is dropped",
        (f"{UNIT}/test_sink.py::test_the_dropped_message_of_a_twin_stays_invisible",),
    ),
    "5.10": ("no continuous and no real-time mode", (f"{HERE}::test_what_only_words_can_keep",)),
    "5.11 a": ("nothing has to be registered", (f"{BATCH}::test_rows_come_back",)),
    "5.11 b": (
        "a module that raises on import breaks all formats",
        ("tests/test_tidy.py::test_the_discovery_module_never_raises_on_import",),
    ),
    "5.12": (
        "options of a catalog table reach only schema()",
        (
            f"{SQL}::test_a_table_remembers_its_options",
            f"{SQL}::test_without_options_the_error_says_what_to_write",
            f"{SQL}::test_options_travel_in_the_first_column_without_secrets",
        ),
    ),
    "5.13 a": (
        "classes of errors do not survive, codes do",
        (f"{BATCH}::test_mistakes_carry_stable_codes", "tests/test_tidy.py::test_every_error_has_a_code_of_its_own"),
    ),
    "5.13 b": ("nothing retries calls on the driver's side", (f"{STREAM_READER}::test_an_idle_trigger_reads_no_list",)),
    "5.14 #1": ("first offset not persisted", (f"{STREAM_READER}::test_a_named_reader_begins_where_it_began",)),
    "5.14 #2": (
        "query id unknown in commit and abort",
        (f"{UNIT}/test_sink.py::test_two_queries_on_one_log_have_marks_of_their_own", f"{STREAM}::test_two_queries_share_a_log"),
    ),
    "5.14 #3": (
        "no abort for killed tasks",
        (f"{SINK}::test_killed_workers_cost_neither_data_nor_ledgers", f"{DEPLOYMENTS}::test_nothing_is_lost_doubled_or_left_over"),
    ),
    "5.14 #4": ("commit replay", (f"{STREAM}::test_a_replayed_batch_is_published_once",)),
    "5.14 #5": (
        "no composite ReadLimit",
        (
            f"{UNIT}/test_admission.py::test_rows_and_bytes_hold_together",
            f"{STREAM_READER}::test_rows_per_trigger_are_exact_inside_entries",
            f"{STREAM_READER}::test_bytes_per_trigger_are_exact",
        ),
    ),
    "5.14 #6": (
        "no column pruning",
        (f"{UNIT}/test_arrow.py::test_a_range_begins_and_ends_inside_entries", f"{BATCH}::test_chosen_columns"),
    ),
    "5.14 #7": (
        "filter pushdown off and an error if overridden",
        (f"{HERE}::test_filters_are_taken_only_where_asked_for", f"{BATCH}::test_pushdown_changes_no_result"),
    ),
    "5.14 #8": ("no limit or aggregate pushdown", (f"{TABLES}::test_counting_reads_no_entry",)),
    "5.14 #9": ("rows inside the JVM: Arrow on both sides", (f"{HERE}::test_batches_go_both_ways",)),
    "5.14 #10": (
        "int32 offsets",
        (f"{UNIT}/test_arrow.py::test_batches_are_bounded_by_bytes", f"{UNIT}/test_arrow.py::test_raw_runs_are_bounded"),
    ),
    "5.14 #11": ("70 ms per task", (f"{UNIT}/test_planning.py::test_large_ranges_are_cut_at_fragments_and_small_ones_packed",)),
    "5.14 #12": ("stop() not called", (f"{HERE}::test_nothing_needs_a_goodbye",)),
    "5.14 #13": (
        "partitions() cached, reader pickled before it",
        (f"{HERE}::test_a_source_is_plain_data", f"{HERE}::test_what_only_words_can_keep"),
    ),
    "5.14 #14": ("no metrics but latestOffset", (f"{STREAM_READER}::test_lag_is_reported",)),
    "5.14 #15": (
        "no preferred locations: replicas take turns",
        (f"{UNIT}/test_partitions.py::test_the_tasks_of_one_ledger_start_at_different_bookies",),
    ),
    "5.14 #16": ("no continuous and no real-time mode", (f"{HERE}::test_what_only_words_can_keep",)),
    "5.14 #17": ("table options lost", (f"{SQL}::test_a_table_remembers_its_options", f"{SQL}::test_inserts_say_where_to")),
    "5.14 #18": ("a broken pyspark_* breaks discovery", ("tests/test_tidy.py::test_the_discovery_module_never_raises_on_import",)),
    "5.14 #19": ("the driver's side has one thread", (f"{STREAM_READER}::test_an_idle_trigger_reads_no_list",)),
    "5.14 #20": ("offsets are rewritten with every batch", (f"{UNIT}/test_offsets.py::test_the_same_place_is_the_same_text",)),
}


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_trap_has_its_tests() -> None:
    asked = {test for _, tests in TRAPS.values() for test in tests}
    there = {path: functions(path) for path in {test.split("::")[0] for test in asked}}
    assert [test for test in sorted(asked) if test.split("::")[1] not in there[test.split("::")[0]]] == []
    assert all(tests for _, tests in TRAPS.values())
    sections = {key.split()[0] for key in TRAPS}
    assert sections == {f"5.{n}" for n in range(1, 15)}
    assert {key for key in TRAPS if "#" in key} == {f"5.14 #{n}" for n in range(1, 21)}


# --- those that need no Spark ---------------------------------------------------------------------------------------


def test_a_source_is_plain_data() -> None:
    """spark-connectors.md 5.2: it opens nothing, and a copy in another process is the same source. Readers say in test_deployments.py that
    they pickle."""
    source = BookKeeperDataSource({"bookkeeper.metadataserviceuri": "zk://nowhere.invalid/ledgers", "log": "a"})
    again = pickle.loads(pickle.dumps(source))
    assert vars(again) == vars(source)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("reader", ["schema"]),
        ("streamReader", ["schema"]),
        ("writer", ["schema", "overwrite"]),
        ("streamWriter", ["schema", "overwrite"]),
    ],
)
def test_parameters_have_sparks_names(method: str, names: list[str]) -> None:
    assert list(inspect.signature(getattr(BookKeeperDataSource, method)).parameters)[1:] == names
    assert list(inspect.signature(getattr(DataSource, method)).parameters)[1 : 1 + len(names)] == names


def test_filters_are_taken_only_where_asked_for() -> None:
    """spark-connectors.md 5.5: Spark refuses to plan a reader that overrides the method while pushdown is off."""
    for ordinary in (BookKeeperReader, MetadataReader):
        assert ordinary.pushFilters is DataSourceReader.pushFilters
        assert any(subclass.pushFilters is not DataSourceReader.pushFilters for subclass in ordinary.__subclasses__())


def test_batches_go_both_ways() -> None:
    assert issubclass(BookKeeperWriter, DataSourceArrowWriter) and issubclass(BookKeeperStreamWriter, DataSourceStreamArrowWriter)
    for reader in (BookKeeperReader, BookKeeperStreamReader):
        assert "RecordBatch" in str(inspect.signature(reader.read).return_annotation)


def test_the_stream_reader_admits() -> None:
    """spark-connectors.md 5.7: the signature decides on admission control; the simple reader would read everything in the driver."""
    assert list(inspect.signature(BookKeeperStreamReader.latestOffset).parameters) == ["self", "start", "limit"]
    assert issubclass(BookKeeperStreamReader, DataSourceStreamReader) and not issubclass(
        BookKeeperStreamReader, SimpleDataSourceStreamReader
    )


def test_nothing_needs_a_goodbye() -> None:
    """spark-connectors.md 5.1: nothing that matters may stand in ``stop``."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(BookKeeperStreamReader.stop))).body
    assert isinstance(function, ast.FunctionDef)
    assert not any(
        isinstance(node, ast.Call) and _name(node) in {"write", "commit", "create", "compare_and_set"} for node in ast.walk(function)
    )


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def words() -> Iterator[str]:
    for path in ("README.md", "bk_spark/README.md"):
        yield " ".join((ROOT / path).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("said", ["taken at the first action", "neither continuous processing nor real-time mode"])
def test_what_only_words_can_keep(said: str) -> None:
    found: list[Any] = [said in text for text in words()]
    assert any(found)
