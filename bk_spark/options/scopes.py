"""Tells which options, by field, have an effect in which reads and writes. One that would have none is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping

WHICH_LOGS = frozenset({"log", "logs", "log_pattern"})
WHICH_LEDGERS = WHICH_LOGS | {"ledgers"}
ENDINGS = frozenset({"ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp"})
BEGINNINGS = frozenset(
    {"starting_offsets", "starting_timestamp", "starting_offsets_by_timestamp", "starting_offsets_by_timestamp_strategy"}
)
PLACES = BEGINNINGS | ENDINGS
"""The options that are places in logs."""
_ALWAYS = frozenset({"uri", "protocol", "metadata", "columns", "pushdown"})
_ROWS = (
    WHICH_LEDGERS
    | PLACES
    | _ALWAYS
    | {"password", "password_file", "open_ledgers", "fail_on_data_loss", "include_metadata", "include_headers"}
)
BATCH_OPTIONS = _ROWS | {"max_bytes_per_partition", "max_records_per_partition", "min_partitions", "max_bytes_per_entry"}
"""The options that have an effect on a batch read of rows."""
BATCH_ONLY = ENDINGS | {"ledgers", "metadata", "pushdown"}
"""The options of a batch read that a stream refuses, each with a message of its own."""
_TRIGGERS = {"max_rows_per_trigger", "max_bytes_per_trigger", "min_rows_per_trigger", "max_trigger_delay_ms"}
STREAM_OPTIONS = BATCH_OPTIONS | _TRIGGERS | {"reader_name", "fail_on_new_columns", "wait_for_log"}
"""The options that have an effect on a stream, and those of BATCH_ONLY."""
STREAMED = STREAM_OPTIONS - BATCH_ONLY
TABLE_OPTIONS: Mapping[str, frozenset[str]] = {
    "ledgers": _ALWAYS | WHICH_LEDGERS | {"open_ledgers", "password", "password_file"},
    "fragments": _ALWAYS | WHICH_LEDGERS,
    "bookies": _ALWAYS,
    "logs": _ALWAYS | WHICH_LOGS,
    "segments": _ALWAYS | WHICH_LOGS,
    "entries": _ALWAYS | WHICH_LEDGERS | PLACES | {"open_ledgers", "password", "password_file", "fail_on_data_loss", "min_partitions"},
}
"""The options that have an effect on each metadata table."""
_LEDGERS = {"ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type", "password", "password_file", "guaranteed_write_quorum"}
_PACKING = {"entry_format", "entry_size", "compression", "max_bytes_per_entry"}
_ROLLS = {"roll_max_bytes", "roll_max_entries", "roll_max_time_ms", "max_open_ledgers", "max_in_flight_bytes"}
_COMMITS = {"create_logs", "merge_schema", "overwrite_schema", "take_over", "exactly_once"}
_TRANSACTIONS = {"txn_app_id", "txn_version"}
SINK_OPTIONS = frozenset({"uri", "protocol", "log"} | _LEDGERS | _PACKING | _ROLLS | _COMMITS | _TRANSACTIONS)
"""The options that have an effect on a batch write."""
STREAM_SINK_OPTIONS = (SINK_OPTIONS - _TRANSACTIONS) | {"fail_on_data_loss", "fail_on_different_replay"}
"""The options that have an effect on the sink of a stream. Some are for streams alone: a batch write has no checkpoint that may not fit the
log."""


def out_of_place(idle: Mapping[str, str], what: str) -> str:
    """Return the text of the error for options (fields by name) that have no effect in ``what``."""
    homes: dict[str, list[str]] = {}
    for name, field in sorted(idle.items()):
        homes.setdefault(home(field), []).append(name)
    told = ", ".join(f"{', '.join(names)} to {home}" if len(homes) > 1 else home for home, names in homes.items())
    one = len(idle) == 1
    belong = "belong: " if len(homes) > 1 else f"{'it belongs' if one else 'they belong'} to "
    return f"option{'' if one else 's'} {', '.join(sorted(idle))} {'does' if one else 'do'} nothing in {what}: {belong}{told}"


def home(field: str) -> str:
    """Return the reads and writes in which an option has an effect, by its field."""
    batch, stream = field in BATCH_OPTIONS, field in STREAMED
    tables = [name for name, takes in TABLE_OPTIONS.items() if field in takes - _ALWAYS]
    places = [
        *(["batch and streaming reads of rows"] if batch and stream else []),
        *(["batch reads of rows"] if batch and not stream else []),
        *(["streaming reads (readStream)"] if stream and not batch else []),
        *([f"metadata={', '.join(tables)}"] if tables else []),
        *(["writes"] if field in SINK_OPTIONS & STREAM_SINK_OPTIONS else []),
        *(["batch writes"] if field in SINK_OPTIONS - STREAM_SINK_OPTIONS else []),
        *(["streaming writes (writeStream)"] if field in STREAM_SINK_OPTIONS - SINK_OPTIONS else []),
    ]
    return f"{', '.join(places[:-1])} and {places[-1]}" if len(places) > 1 else places[0]
