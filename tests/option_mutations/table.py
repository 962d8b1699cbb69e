"""Each option with the tests that fail when it is ignored. Tests of what parsing returns do not count: an option that is parsed and then
used nowhere passes them. Tests without a JVM come first; those below ``tests/spark`` that end in a comment run in Spark's own processes.
"""

from __future__ import annotations

BATCH = "tests/spark/test_batch.py"
SINK = "tests/spark/test_sink.py"
STREAM = "tests/spark/test_stream.py"
STREAM_READER = "tests/spark/test_stream_reader.py"
STREAM_COLUMNS = "tests/spark/test_stream_columns.py"
STREAM_LOGS = "tests/spark/test_stream_logs.py"
TABLES = "tests/spark/test_metadata_tables.py"
UNIT = "tests/unit/spark"
EFFECTS = f"{UNIT}/test_option_effects.py"
LEDGERS = f"{UNIT}/test_sink_ledgers.py"
LOGS = f"{UNIT}/test_sink_logs.py"
ONCE = f"{UNIT}/test_sink.py"
ORDER = f"{UNIT}/test_batch_order.py"

OPTION_TESTS: dict[str, tuple[str, ...]] = {
    "bookkeeper.metadataServiceUri": (f"{EFFECTS}::test_the_cluster_is_the_one_named_and_not_that_of_the_environment",),
    "bookkeeper.protocol": (f"{EFFECTS}::test_bookies_hear_the_protocol_that_was_asked_for",),
    "log": (f"{LOGS}::test_with_a_log_the_column_is_data",),
    "logs": (f"{STREAM_READER}::test_logs_share_a_limit",),
    "logPattern": (f"{STREAM_READER}::test_a_pattern_finds_new_logs",),
    "ledgers": (f"{TABLES}::test_ledgers_and_fragments", f"{BATCH}::test_open_ledgers_of_a_log"),
    "entryFormat": (f"{LOGS}::test_a_raw_log_loses_no_column",),
    "entrySize": (f"{LEDGERS}::test_compression_and_entry_size",),
    "compression": (f"{LEDGERS}::test_compression_and_entry_size",),
    "ensembleSize": (f"{EFFECTS}::test_a_ledger_has_as_many_bookies_as_asked_for",),
    "writeQuorumSize": (f"{LEDGERS}::test_guaranteed_ledgers_and_other_properties",),
    "ackQuorumSize": (f"{LEDGERS}::test_guaranteed_ledgers_and_other_properties",),
    "digestType": (f"{LEDGERS}::test_guaranteed_ledgers_and_other_properties",),
    "password": (f"{LEDGERS}::test_the_password_is_the_ledgers", f"{STREAM_READER}::test_a_password_opens_what_is_followed"),
    "passwordFile": (
        f"{LEDGERS}::test_a_password_in_a_file_is_the_ledgers_and_in_no_pickle",
        f"{STREAM_READER}::test_a_password_in_a_file_opens_what_is_followed",
    ),
    "startingOffsets": (f"{STREAM_READER}::test_offsets_by_position_and_ledger", f"{EFFECTS}::test_where_a_batch_read_begins_and_ends"),
    "startingTimestamp": (f"{STREAM_READER}::test_offsets_by_time", f"{EFFECTS}::test_where_a_batch_read_begins_and_ends"),
    "startingOffsetsByTimestamp": (f"{STREAM_READER}::test_offsets_by_time", f"{EFFECTS}::test_where_a_batch_read_begins_and_ends"),
    "startingOffsetsByTimestampStrategy": (f"{STREAM_READER}::test_offsets_by_time", f"{EFFECTS}::test_where_a_batch_read_begins_and_ends"),
    "endingOffsets": (f"{EFFECTS}::test_where_a_batch_read_begins_and_ends",),
    "endingTimestamp": (f"{EFFECTS}::test_where_a_batch_read_begins_and_ends",),
    "endingOffsetsByTimestamp": (f"{EFFECTS}::test_where_a_batch_read_begins_and_ends",),
    "maxRowsPerTrigger": (
        f"{STREAM_READER}::test_rows_per_trigger_are_exact_inside_entries",
        f"{STREAM}::test_a_copy_is_complete_and_goes_on",  # planned by a stream's source runner
    ),
    "maxBytesPerTrigger": (f"{STREAM_READER}::test_bytes_per_trigger_are_exact",),
    "minOffsetsPerTrigger": (f"{STREAM_READER}::test_few_rows_wait_for_more_or_for_the_delay",),
    "maxTriggerDelay": (f"{STREAM_READER}::test_few_rows_wait_for_more_or_for_the_delay",),
    "maxBytesPerPartition": (f"{EFFECTS}::test_how_a_batch_read_is_divided",),
    "maxRecordsPerPartition": (f"{EFFECTS}::test_how_a_batch_read_is_divided",),
    "minPartitions": (f"{EFFECTS}::test_how_a_batch_read_is_divided",),
    "maxBytesPerEntry": (
        f"{EFFECTS}::test_an_entry_that_takes_too_much_is_not_read",
        f"{EFFECTS}::test_a_row_that_takes_too_much_is_not_written",
    ),
    "failOnDataLoss": (
        f"{ORDER}::test_going_on_behind_a_loss",
        f"{STREAM_READER}::test_a_recreated_log",
        f"{BATCH}::test_loss_is_said_or_jumped_over",
    ),
    "failOnNewColumns": (f"{STREAM_COLUMNS}::test_going_on_without_a_new_column",),
    "waitForLog": (f"{STREAM_LOGS}::test_a_log_that_is_missing_is_waited_for",),
    "readerName": (f"{STREAM_READER}::test_a_named_reader_begins_where_it_began",),
    "openLedgers": (f"{STREAM_READER}::test_a_planned_batch_of_a_live_segment_is_replayed", f"{BATCH}::test_open_ledgers_of_a_log"),
    "columns": (f"{EFFECTS}::test_which_columns_a_batch_read_has",),
    "includeMetadata": (f"{EFFECTS}::test_which_columns_a_batch_read_has", f"{EFFECTS}::test_kafkas_columns"),
    "includeHeaders": (
        f"{EFFECTS}::test_which_columns_a_batch_read_has",
        f"{BATCH}::test_raw_and_ledgers",  # planned by a read's planner
    ),
    "pushdown": (f"{EFFECTS}::test_filters_that_are_pushed_down_spare_entries",),
    "metadata": (f"{TABLES}::test_bookies",),
    "guaranteedWriteQuorum": (f"{LEDGERS}::test_guaranteed_ledgers_and_other_properties",),
    "rollMaxBytes": (f"{LEDGERS}::test_rolls[rollMaxBytes-1]",),
    "rollMaxEntries": (f"{LEDGERS}::test_roll_by_entries_is_exact_inside_a_run",),
    "rollMaxTime": (f"{LEDGERS}::test_rolls[rollMaxTime-1ms]",),
    "maxOpenLedgers": (f"{LOGS}::test_open_ledgers_are_bounded",),
    "maxInFlightBytes": (f"{LEDGERS}::test_memory_of_a_task_is_bounded_by_what_is_unacknowledged",),
    "createLogs": (f"{LOGS}::test_missing_logs_without_create_logs",),
    "mergeSchema": (
        f"{LOGS}::test_evolution_adds_columns_in_the_same_compare_and_set",
        f"{SINK}::test_columns_by_name_and_evolution",  # planned by a write's planner
    ),
    "overwriteSchema": (f"{LOGS}::test_an_overwrite_may_replace_the_columns",),
    "takeOver": (f"{LOGS}::test_take_over_fences_an_exclusive_writer",),
    "exactlyOnce": (f"{ONCE}::test_exactly_once_false_appends_whatever_is_repeated",),
    "failOnDifferentReplay": (f"{ORDER}::test_a_replay_that_differs_is_an_error_if_asked_for",),
    "txnAppId": (f"{ONCE}::test_transactions_are_written_once_per_version",),
    "txnVersion": (f"{ONCE}::test_transactions_are_written_once_per_version",),
}
