"""Tells which options, by field, have an effect in which reads and writes. One that would have none is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WHICH_LOGS = frozenset({"log", "logs", "log_pattern"})
WHICH_LEDGERS = WHICH_LOGS | {"ledgers"}
ENDINGS = frozenset({"ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp"})
BEGINNINGS = frozenset(
    {"starting_offsets", "starting_timestamp", "starting_offsets_by_timestamp", "starting_offsets_by_timestamp_strategy"}
)
PLACES = BEGINNINGS | ENDINGS
"""The options that are places in logs."""
SPARKS_OWN: Mapping[str, str] = {"checkpointlocation": "checkpointLocation", "queryname": "queryName", "outputmode": "outputMode"}
"""Options that Spark mixes into those of a streaming sink. They have no field of their own: their names in lower case stand for it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One kind of read or write: its name in messages, and the options that have an effect in it.

    ``instead`` tells, by field, what does the work of an option that has none here.
    """

    name: str
    takes: frozenset[str]
    instead: Mapping[str, str] = field(default_factory=dict)


_ALWAYS = frozenset({"uri", "protocol", "columns"})
_BATCH_READS = _ALWAYS | {"metadata", "pushdown"}
_ROWS = (
    WHICH_LOGS
    | BEGINNINGS
    | _ALWAYS
    | {"password", "password_file", "open_ledgers", "fail_on_data_loss", "include_metadata", "include_headers"}
    | {"max_bytes_per_partition", "max_records_per_partition", "min_partitions", "max_bytes_per_entry"}
)
_TRIGGERS = frozenset({"max_rows_per_trigger", "max_bytes_per_trigger", "min_rows_per_trigger", "max_trigger_delay_ms"})
_BY_RANGE = "endingOffsets or endingTimestamp bounds a batch read, maxBytesPerPartition and maxRecordsPerPartition its tasks"
_BY_LOG = 'a write takes .option("log", "name"), or a column log that names the log of each row'
_BY_QUERY = "with the checkpoint a stream writes each batch once"
_BY_BATCH = "txnAppId and txnVersion make a batch write once"

BATCH_READ = Scope(
    "a batch read of rows",
    _ROWS | ENDINGS | _BATCH_READS | {"ledgers"},
    {
        **dict.fromkeys(_TRIGGERS, _BY_RANGE),
        "reader_name": "startingOffsets says where a batch read begins",
        "fail_on_new_columns": "option columns, or .schema(...), keeps the columns of a batch read as they are",
        "wait_for_log": "a batch read needs logs that exist; bk log create makes one",
    },
)
STREAM_READ = Scope(
    "a stream",
    _ROWS | _TRIGGERS | {"reader_name", "fail_on_new_columns", "wait_for_log"},
    {
        **dict.fromkeys(ENDINGS, "a stream has no end; with .trigger(availableNow=True) it stops at what is there now"),
        "ledgers": "log, logs or logPattern names what a stream reads",
        "metadata": "log, logs or logPattern names what a stream reads",
        "pushdown": "Spark applies the filters of a stream without it",
    },
)
ANY_READ = Scope("a read", BATCH_READ.takes | STREAM_READ.takes)
"""A batch or a stream: Spark asks for the columns before it says which."""
TABLES: Mapping[str, Scope] = {
    name: Scope(f"metadata={name}", takes | _BATCH_READS)
    for name, takes in {
        "ledgers": WHICH_LEDGERS | {"open_ledgers", "password", "password_file"},
        "fragments": WHICH_LEDGERS,
        "bookies": frozenset(),
        "logs": WHICH_LOGS,
        "segments": WHICH_LOGS,
        "entries": WHICH_LEDGERS | PLACES | {"open_ledgers", "password", "password_file", "fail_on_data_loss", "min_partitions"},
    }.items()
}
"""The reads of metadata tables."""
_LEDGERS = {"ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type", "password", "password_file", "guaranteed_write_quorum"}
_PACKING = {"entry_format", "entry_size", "compression", "max_bytes_per_entry"}
_ROLLS = {"roll_max_bytes", "roll_max_entries", "roll_max_time_ms", "max_open_ledgers", "max_in_flight_bytes"}
_COMMITS = {"create_logs", "merge_schema", "overwrite_schema", "take_over", "exactly_once"}
_TRANSACTIONS = {"txn_app_id", "txn_version"}
_WRITES = frozenset({"uri", "protocol", "log"} | _LEDGERS | _PACKING | _ROLLS | _COMMITS)
_LOG_INSTEAD = dict.fromkeys(("logs", "log_pattern", "ledgers"), _BY_LOG)
BATCH_WRITE = Scope(
    "a batch write",
    _WRITES | _TRANSACTIONS,
    {**_LOG_INSTEAD, **dict.fromkeys(("checkpointlocation", "fail_on_different_replay"), _BY_BATCH)},
)
STREAM_WRITE = Scope(
    "the sink of a stream",
    _WRITES | {"fail_on_data_loss", "fail_on_different_replay"} | SPARKS_OWN.keys(),
    {**_LOG_INSTEAD, **dict.fromkeys(_TRANSACTIONS, _BY_QUERY)},
)
"""Batch writes have no checkpoint that could fit a log or not."""


def out_of_place(idle: Mapping[str, str], scope: Scope) -> str:
    """Return the text of the error for options (fields by name) that have no effect in ``scope``."""
    homes: dict[str, list[str]] = {}
    for name, of_option in sorted(idle.items()):
        homes.setdefault(home(of_option), []).append(name)
    told = ", ".join(f"{', '.join(names)} to {home}" if len(homes) > 1 else home for home, names in homes.items())
    one = len(idle) == 1
    belong = "belong: " if len(homes) > 1 else f"{'it belongs' if one else 'they belong'} to "
    instead = dict.fromkeys(scope.instead[of_option] for _, of_option in sorted(idle.items()) if of_option in scope.instead)
    text = f"option{'' if one else 's'} {', '.join(sorted(idle))} {'does' if one else 'do'} nothing in {scope.name}: {belong}{told}"
    return "; ".join([text, *instead])


def home(of_option: str) -> str:
    """Return the reads and writes in which an option has an effect, by its field."""
    batch, stream = of_option in BATCH_READ.takes, of_option in STREAM_READ.takes
    everywhere = all(of_option in table.takes for table in TABLES.values())
    tables = [] if everywhere else [name for name, table in TABLES.items() if of_option in table.takes]
    in_batches, in_streams = of_option in BATCH_WRITE.takes, of_option in STREAM_WRITE.takes
    places = [
        *(["reads" if everywhere else "batch and streaming reads of rows"] if batch and stream else []),
        *(["batch reads (spark.read)" if everywhere else "batch reads of rows"] if batch and not stream else []),
        *(["streaming reads (readStream)"] if stream and not batch else []),
        *([f"metadata={', '.join(tables)}"] if tables else []),
        *(["writes"] if in_batches and in_streams else []),
        *(["batch writes"] if in_batches and not in_streams else []),
        *(["streaming writes (writeStream)"] if in_streams and not in_batches else []),
    ]
    return f"{', '.join(places[:-1])} and {places[-1]}" if len(places) > 1 else places[0]
