"""Every metric in one table: its name, kind, unit, labels and meaning, and the name that Apache's client or bookie has for it.

The exporters, the page of the documentation and the tests are made from it, so a name exists here or nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
_CLIENT = "bookkeeper_client_"
_BOOKIE = "bookkeeper_bookie_"
_SPARK = "bookkeeper_spark_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``labels`` are names of labels in their order. ``apache`` is Apache's name for the same or the nearest thing, "" for what
    Apache does not count. Counters only grow; a histogram has times in seconds."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    apache: str = ""
    labels: tuple[str, ...] = ()


def _of(prefix: str, *rows: tuple[str, Kind, str, str, str] | tuple[str, Kind, str, str, str, tuple[str, ...]]) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + name, kind, unit, meaning, apache, *labels) for name, kind, unit, meaning, apache, *labels in rows)


CLIENT = _of(
    _CLIENT,
    # --- adds
    ("add_entry_total", "counter", "entries", "Entries that were acknowledged to the program.", "ADD_ENTRY, success"),
    ("add_entry_bytes_total", "counter", "bytes", "Payload of these entries.", ""),
    ("add_entry_failed_total", "counter", "entries", "Entries whose append ended with an error.", "ADD_ENTRY, failure"),
    ("add_run_total", "counter", "runs", "Runs and pieces of long runs that were handed to a ledger. Entries by run show how well "
     "a program batches.", ""),
    ("add_entry_seconds", "histogram", "seconds", "Time from handing an entry to its ledger to its acknowledgement, which needs the ack "
     "quorum and all entries before it.", "ADD_ENTRY, latency"),
    ("pending_add", "gauge", "entries", "Entries under way: handed in, and not yet on all bookies of their write set.", "NUM_PENDING_ADD"),
    ("pending_add_bytes", "gauge", "bytes", "Payload that was handed in and is not acknowledged.", ""),
    ("add_waiting", "gauge", "appends", "Appends that wait for room in the window now.", ""),
    ("add_wait_seconds", "histogram", "seconds", "Time that appends had to wait for room, or for their turn after a long run; only those "
     "that waited.", "CLIENT_CHANNEL_WRITE_WAIT"),
    # --- reads
    ("read_entry_total", "counter", "entries", "Entries that were read, checked and handed to the program.", "READ_ENTRY, success"),
    ("read_entry_bytes_total", "counter", "bytes", "Payload of these entries.", ""),
    ("read_failed_total", "counter", "reads", "Reads of ranges, and followed ledgers, that ended with an error.", "READ_ENTRY, failure"),
    ("speculative_read_total", "counter", "requests", "Reads that were sent to another replica because the first took long.",
     "SPECULATIVE_READ_COUNT"),
    ("read_retry_total", "counter", "requests", "Reads that were sent to another replica, or again, because an answer was an error.", ""),
    # --- ledgers
    ("ledger_create_total", "counter", "ledgers", "Ledgers that were created.", "LEDGER_CREATE"),
    ("ledger_open_total", "counter", "ledgers", "Ledgers that were opened for reading.", "LEDGER_OPEN"),
    ("ledger_delete_total", "counter", "ledgers", "Ledgers that were deleted.", "LEDGER_DELETE"),
    ("ledger_recover_seconds", "histogram", "seconds", "Time of recoveries that closed their ledger.", "LEDGER_RECOVER"),
    ("ledger_recover_failed_total", "counter", "recoveries", "Recoveries that failed.", "LEDGER_RECOVER, failure"),
    ("fence_total", "counter", "ledgers", "Ledgers that recoveries of this client have begun to fence.", ""),
    ("fenced_total", "counter", "ledgers", "Writers of this client that were fenced by somebody else.", ""),
    ("ensemble_change_total", "counter", "changes", "Replacements of bookies in the ensemble of a ledger that were recorded.",
     "NUM_ENSEMBLE_CHANGE"),
    ("bookie_replaced_total", "counter", "changes", "Times that this bookie was taken out of an ensemble.", "", ("bookie",)),
    # --- each bookie
    ("bookie_add_seconds", "histogram", "seconds", "Time from sending an add to this bookie to its answer.",
     "per_channel_bookie_client ADD_ENTRY", ("bookie",)),
    ("bookie_request_seconds", "histogram", "seconds", "Time from asking this bookie to its answer, or to the end of waiting for one. "
     "Operations are read, read_last, read_lac, long_poll, fence, write_lac, force, info and list.",
     "per_channel_bookie_client READ_ENTRY, READ_LAC, WRITE_LAC, FORCE, ...", ("bookie", "operation")),
    ("bookie_request_failed_total", "counter", "requests", "Answers of this bookie other than OK, by status; an add counts for each of its "
     "entries. TIMEOUT and UNAVAILABLE are the client's own words for no answer.", "the same, failure", ("bookie", "operation", "status")),
    ("bookie_timeout_total", "counter", "timeouts", "Times that this bookie was given up: a connection that was silent for a whole timeout "
     "(cause silent), or one request that others overtook (cause late).", "TIMEOUT_ADD_ENTRY, TIMEOUT_READ_ENTRY, ...",
     ("bookie", "cause")),
    ("bookie_sent_bytes_total", "counter", "bytes", "Bytes that were sent to this bookie.", "", ("bookie",)),
    ("bookie_received_bytes_total", "counter", "bytes", "Bytes that came from this bookie.", "", ("bookie",)),
    ("bookie_connections", "gauge", "connections", "Connections to this bookie that are open.", "ACTIVE_NON_TLS_CHANNEL_COUNTER",
     ("bookie",)),
    ("bookie_connected_total", "counter", "connections", "Connections to this bookie that were made.", "CLIENT_CONNECT_TIMER, success",
     ("bookie",)),
    ("bookie_connection_lost_total", "counter", "connections", "Connections to this bookie that broke, or were given up.",
     "NETTY_EXCEPTION_CNT", ("bookie",)),
    ("bookie_connect_failed_total", "counter", "attempts", "Attempts to connect to this bookie that failed.", "FAILED_CONNECTION_COUNTER",
     ("bookie",)),
    # --- the metadata store
    ("metadata_request_seconds", "histogram", "seconds", "Time of requests to the metadata store, by operation, with and without "
     "success.", "", ("operation",)),
    ("metadata_conflict_total", "counter", "requests", "Writes that found another version than the one that they named.", "",
     ("operation",)),
    ("metadata_unanswered_total", "counter", "requests", "Requests of which no answer came: a lost connection, or the time limit. What a "
     "write did is then unknown, and it is repeated.", "", ("operation",)),
    ("metadata_outage_total", "counter", "outages", "Times that the connection to the metadata store was lost.", ""),
    ("metadata_connected", "gauge", "yes or no", "1 while there is a connection to the metadata store, else 0.", ""),
    # --- logs
    ("log_take_over_total", "counter", "times", "Logs that a writer of this client has taken over.", ""),
    ("log_roll_total", "counter", "ledgers", "Further ledgers that writers of logs have begun: the one before was full or had "
     "failed.", ""),
    ("log_commit_total", "counter", "commits", "Changes of a log's list that were stored: commits of batches, ends of ledgers, trims, "
     "schemas.", ""),
    ("log_commit_conflict_total", "counter", "conflicts", "Changes of a log's list that had to be made again, because somebody else had "
     "changed it meanwhile.", ""),
    ("log_trim_total", "counter", "trims", "Passes that have cut entries off the beginning of a log.", ""),
    ("log_deleted_ledger_total", "counter", "ledgers", "Ledgers that trims, retention, garbage collection and deletions of logs have "
     "deleted.", ""),
    ("log_reader_lag_entries", "gauge", "entries", "Entries between the position of a reader of this log and the end that it knows; the "
     "reader that is furthest behind.", "", ("log",)),
    # --- file stores
    ("file_store_change_total", "counter", "changes", "Changes of file stores that were acknowledged.", ""),
    ("file_store_bytes_total", "counter", "bytes", "Content that was written to file stores.", ""),
    ("file_store_compaction_total", "counter", "times", "Times that the records of a file store were written anew and old ones "
     "trimmed.", ""),
)  # fmt: skip
"""The metrics of a client (``BookKeeper.metrics``)."""

BOOKIE = _of(
    _BOOKIE,
    ("add_entry_total", "counter", "entries", "Entries that were stored and acknowledged after a sync.", "bookkeeper_server_ADD_ENTRY"),
    ("add_entry_bytes_total", "counter", "bytes", "Bytes of entries that came to be stored, with their headers and digests.",
     "bookie_WRITE_BYTES"),
    ("add_failed_total", "counter", "entries", "Adds that were refused, by status.", "bookkeeper_server_ADD_ENTRY, failure", ("status",)),
    ("read_entry_total", "counter", "entries", "Entries that were read.", "bookkeeper_server_READ_ENTRY"),
    ("read_entry_bytes_total", "counter", "bytes", "Bytes of these entries.", "bookie_READ_BYTES"),
    ("read_failed_total", "counter", "requests", "Reads without an entry in the answer, by status; NO_SUCH_ENTRY is a usual answer to "
     "those who follow a ledger.", "bookkeeper_server_READ_ENTRY, failure", ("status",)),
    ("request_total", "counter", "requests", "Requests that are neither adds nor reads, by kind.", "bookkeeper_server_..._REQUEST",
     ("kind",)),
    ("fence_total", "counter", "ledgers", "Ledgers that were fenced here and were not before.", "READ_ENTRY_FENCE_REQUEST"),
    ("journal_sync_seconds", "histogram", "seconds", "Time of writing and syncing one record of the journal.",
     "bookie_journal_JOURNAL_SYNC"),
    ("journal_bytes_total", "counter", "bytes", "Bytes that were written to the journal.", "JOURNAL_FORCE_WRITE_BATCH_BYTES"),
    ("store_seconds", "histogram", "seconds", "Time of moving a batch from the journal to the database.", "bookie_flush"),
    ("write_failed_total", "counter", "times", "Writes of the journal or the database that failed, by file.", "", ("file",)),
    ("collected_ledger_total", "counter", "ledgers", "Ledgers whose entries were dropped, because they were deleted or live elsewhere.",
     "ACTIVE_LEDGER_COUNT, DELETED_LEDGER_COUNT"),
    ("collection_refused_total", "counter", "rounds", "Rounds of collection that were refused, because they would drop too much or the "
     "metadata store is not believed.", ""),
    ("uncommitted_bytes", "gauge", "bytes", "Bytes that wait in memory for the journal or the database.", ""),
    ("waiting_answers", "gauge", "answers", "Answers that wait for a sync.", "JOURNAL_QUEUE_SIZE"),
    ("connections", "gauge", "connections", "Connections that are open.", "CONNECTED_CLIENT"),
    ("refused_total", "counter", "times", "Times that a peer was not admitted: a wrong password, a role that is not admitted (role), a "
     "handshake that failed (tls), requests before it was admitted (unauthorized), rubbish (malformed), too slow (late), certificates or "
     "users that cannot be read (files), no room for all (full).", "bookkeeper_server_..._AUTH, failure", ("why",)),
    ("free_disk_bytes", "gauge", "bytes", "Bytes that are free on the disk of the bookie.", "bookie_ledger_dir_..._usage"),
    ("read_only", "gauge", "yes or no", "1 while the bookie accepts no new entries, else 0.", "bookie_SERVER_STATUS"),
)  # fmt: skip
"""The metrics of an embedded bookie."""

SPARK = _of(
    _SPARK,
    ("source_rows_total", "counter", "rows", "Rows that the query has read from this log since it began.", "", ("query", "log")),
    ("source_bytes_total", "counter", "bytes", "Payload of these rows.", "", ("query", "log")),
    ("source_lag_rows", "gauge", "rows", "Rows of this log that were committed and not read when the last batch was planned.", "",
     ("query", "log")),
    ("source_lag_bytes", "gauge", "bytes", "Payload of these rows.", "", ("query", "log")),
    ("batch_total", "counter", "batches", "Micro-batches that the query has finished.", "", ("query",)),
    ("batch_rows_total", "counter", "rows", "Rows that went into these batches, of all sources.", "", ("query",)),
    ("batch_phase_seconds", "histogram", "seconds", "Time of a batch, by phase of Spark's: triggerExecution is all of it, addBatch the "
     "reading and writing, queryPlanning, latestOffset, walCommit, commitOffsets the rest.", "", ("query", "phase")),
    ("query_failed_total", "counter", "queries", "Queries that ended with an error.", "", ()),
)  # fmt: skip
"""The metrics of the streaming queries of a driver (``bk_spark.QueryMetrics``)."""

ALL: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in (*CLIENT, *BOOKIE, *SPARK)})
"""Every metric by its name."""
