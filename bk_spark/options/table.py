"""The one table of options: name, parser, default, aliases, doc. Keys arrive from Spark in lower case.

An option that is not in the table is an error that names the nearest one: no typo is ever ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bk_core.config import WireProtocol
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.segments import EntryFormat
from bk_core.secrets import SecretFile
from bk_spark.options.grammar import (
    Offsets,
    one_of,
    parse_age,
    parse_bool,
    parse_columns,
    parse_count,
    parse_duration,
    parse_entry_size,
    parse_ledgers,
    parse_log,
    parse_metadata,
    parse_names,
    parse_offsets,
    parse_pattern,
    parse_secret,
    parse_size,
    parse_text,
    parse_times,
    parse_version,
    parse_when,
)
from bk_spark.options.help import unknown
from bk_spark.options.scopes import SPARKS_OWN, WHICH_LEDGERS, Scope, out_of_place

URI_ENVIRONMENT = "BOOKKEEPER_METADATA_SERVICE_URI"


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    field: str
    parse: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    shown_default: str | None = None


OPTIONS: tuple[Option, ...] = (
    Option(
        "bookkeeper.metadataServiceUri",
        "uri",
        parse_text,
        None,
        f"Metadata store of the cluster, e.g. `zk://host:2181/ledgers`. Falls back to the environment variable `{URI_ENVIRONMENT}`. One "
        "that refuses connections, or whose name is not known, is waited for for 10 s, because it may be starting.",
        ("metadataServiceUri", "uri"),
        "required",
    ),
    Option("bookkeeper.protocol", "protocol", one_of("v2", "v3"), "v2", "Wire protocol of the data path."),
    Option("log", "log", parse_log, None, 'Log to read or write; also `load("name")`.', ("topic", "path"), "one of these four"),
    Option("logs", "logs", parse_names, None, "Logs to read together, e.g. `flights,ships`.", ("subscribe", "topics"), "one of these four"),
    Option(
        "logPattern",
        "log_pattern",
        parse_pattern,
        None,
        "Logs to read whose whole name matches a regular expression. A stream looks for new ones every second and reads those from their "
        "first entry; one that is gone is a loss (`failOnDataLoss`).",
        ("subscribePattern", "topicsPattern"),
        "one of these four",
    ),
    Option(
        "ledgers",
        "ledgers",
        parse_ledgers,
        None,
        "Batch read of single ledgers as raw entries, e.g. `7,9-12`.",
        ("ledger", "ledgerId", "assign"),
        "one of these four",
    ),
    Option(
        "entryFormat",
        "entry_format",
        one_of("arrow", "raw"),
        "arrow",
        "For the write that creates a log: `arrow` packs many rows into an entry, `raw` makes each `value` one entry.",
    ),
    Option(
        "entrySize",
        "entry_size",
        parse_entry_size,
        262144,
        "Target payload bytes of an `arrow` entry, before compression: at most 5241856, because bookies take no larger entry.",
    ),
    Option("compression", "compression", one_of("none", "zstd", "lz4"), "none", "Compression of `arrow` entries."),
    Option("ensembleSize", "ensemble_size", parse_count, 3, "Bookies per ledger (write that creates a log)."),
    Option("writeQuorumSize", "write_quorum_size", parse_count, 3, "Copies of each entry (write that creates a log)."),
    Option("ackQuorumSize", "ack_quorum_size", parse_count, 2, "Copies that must be durable before an acknowledgement."),
    Option("digestType", "digest_type", one_of("CRC32C", "CRC32", "MAC", "DUMMY"), "CRC32C", "Digest of each entry."),
    Option(
        "password",
        "password",
        parse_secret,
        b"",
        "Password of the ledgers; a log has one, and a write with another is refused. Never shown.",
        shown_default="empty",
    ),
    Option(
        "passwordFile",
        "password_file",
        parse_text,
        None,
        "File with that password. Driver and executors read it, each on its own host, whenever they need it: the password is in no plan.",
        (),
        "none",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        parse_offsets,
        None,
        'Where to begin: `earliest`, `latest`, JSON like `{"seq":3,"entry":0}` or `{"ledgerId":7,"entryId":0}`, or a place for each log: '
        '`{"flights":{"seq":3},"ships":-2}` (-2 is earliest, -1 latest). What progress shows is accepted as it is.',
        shown_default="stream `latest`, batch `earliest`",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        parse_when,
        None,
        "Begin at the first commit at or after this time: milliseconds since 1970, or ISO 8601 (UTC without a zone). Goes before "
        "`startingOffsetsByTimestamp`, and that before `startingOffsets`. The resolution is a commit, that is a segment: rows of one "
        "segment are never told apart by time.",
        ("startingTime",),
        "none",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "starting_offsets_by_timestamp",
        parse_times,
        None,
        'The same for each log: `{"flights":1763640000000,"ships":"2026-11-20T12:00:00Z"}`.',
        (),
        "none",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "starting_offsets_by_timestamp_strategy",
        one_of("error", "latest"),
        "error",
        "With a time to begin at: when no commit is that young, fail or begin at the end.",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        parse_offsets,
        None,
        "Batch: where to end, written like `startingOffsets`; the row named is the first that is not read.",
        shown_default="`latest`",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        parse_when,
        None,
        "Batch: end before the first commit at or after this time. Goes before `endingOffsets`.",
        ("endingTime",),
        "none",
    ),
    Option("endingOffsetsByTimestamp", "ending_offsets_by_timestamp", parse_times, None, "Batch: the same for each log.", (), "none"),
    Option(
        "maxRowsPerTrigger",
        "max_rows_per_trigger",
        parse_count,
        None,
        "Most rows in a micro-batch, exactly: it ends inside an entry if need be. Several logs share it in proportion to what waits.",
        ("maxOffsetsPerTrigger", "maxEntriesPerTrigger", "maxRecordsPerTrigger", "maxEventsPerTrigger"),
        "none",
    ),
    Option(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        parse_size,
        None,
        "Most payload bytes in a micro-batch, exactly, by whole entries; one entry that is larger is read all the same.",
        (),
        "none",
    ),
    Option(
        "minOffsetsPerTrigger",
        "min_rows_per_trigger",
        parse_count,
        None,
        "Rows that a micro-batch waits for, for at most `maxTriggerDelay`; not the first of a run, nor with `availableNow` or `once`.",
        ("minRowsPerTrigger",),
        "none",
    ),
    Option(
        "maxTriggerDelay",
        "max_trigger_delay_ms",
        parse_duration,
        900_000,
        "With `minOffsetsPerTrigger`: time since the last micro-batch after which fewer rows are read, e.g. `30s`.",
        shown_default="`15m`",
    ),
    Option("maxBytesPerPartition", "max_bytes_per_partition", parse_size, 128 << 20, "Payload bytes a task reads.", (), "128m"),
    Option(
        "maxRecordsPerPartition",
        "max_records_per_partition",
        parse_count,
        None,
        "Most rows a task reads, exactly: several tasks share an entry if need be.",
        (),
        "none",
    ),
    Option("minPartitions", "min_partitions", parse_count, 1, "Least number of tasks, if there are as many rows."),
    Option(
        "maxBytesPerEntry",
        "max_bytes_per_entry",
        parse_size,
        256 << 20,
        "Most bytes that the columns of one `arrow` entry may have, decompressed: a read refuses a larger entry (BK-LOG-ENTRY) before it "
        "decompresses it, a write refuses a row that would make one.",
        shown_default="256m",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        parse_bool,
        True,
        "When a log was trimmed past the reader, deleted or recreated: `true` fails and says what is lost, `false` warns and goes on at "
        "the first entry there is. Sink of a stream: the same for a log that lacks the batches before this one.",
        shown_default="true",
    ),
    Option(
        "failOnNewColumns",
        "fail_on_new_columns",
        parse_bool,
        True,
        "Stream: when a log gets columns that the DataFrame does not have: `true` ends the query before the first row written with them, "
        "`false` warns and goes on without them. Not where `columns` or a schema asks for some only.",
        shown_default="true",
    ),
    Option(
        "waitForLog",
        "wait_for_log",
        parse_bool,
        False,
        "Stream with `.schema(...)`: logs that do not exist yet are waited for, and read from their first entry; else BK-NO-LOG. Their "
        "entries must be `arrow`. A log that exists and has no columns yet is waited for in any case.",
        shown_default="false",
    ),
    Option(
        "readerName",
        "reader_name",
        parse_text,
        None,
        "Keeps a stream's first offset in the metadata store, so that a restart before the first commit starts at the same place.",
        ("predefinedSubscription",),
        "none",
    ),
    Option(
        "openLedgers",
        "open_ledgers",
        one_of("skip", "lac", "recover"),
        "skip",
        "Ledgers still written to: leave out until they are closed, read up to the last add confirmed (a stream follows it), or fence and "
        "recover them first, which stops their writer. A batch read that leaves one out unasked warns (BK-READ-OPEN).",
    ),
    Option(
        "columns",
        "columns",
        parse_columns,
        None,
        "Columns to read, in this order, e.g. `id,_offset`; case counts only where names differ in nothing else. Only they are decoded: "
        "Spark tells no Python source which ones a query uses.",
        (),
        "all",
    ),
    Option(
        "includeMetadata",
        "include_metadata",
        parse_metadata,
        None,
        "Whether rows say where they come from. `arrow` logs: `_log`, `_ledgerId`, `_entryId`, `_offset`, `_timestamp` after their own "
        "columns. Raw entries: `false` leaves `value` alone. `kafka`: the columns of Kafka's source, of raw entries and of logs with a "
        "`value` and perhaps `key` and `headers`: `key`, `value`, `topic`, `partition` (0), `offset`, `timestamp`, `timestampType` (0).",
        shown_default="raw `true`, arrow `false`",
    ),
    Option(
        "includeHeaders",
        "include_headers",
        parse_bool,
        False,
        "Raw entries, and `includeMetadata=kafka`: a column `headers` as Kafka's source has it. It is null where none were written; raw "
        "entries have no room for them.",
        shown_default="false",
    ),
    Option(
        "pushdown",
        "pushdown",
        parse_bool,
        False,
        "Batch: let filters on ledger, entry, offset and time choose what is read. Needs `spark.sql.python.filterPushdown.enabled=true`, "
        "or Spark refuses to plan.",
        shown_default="false",
    ),
    Option(
        "metadata",
        "metadata",
        one_of("ledgers", "fragments", "bookies", "logs", "segments", "entries"),
        None,
        "Batch: read a table about the cluster instead of rows. `log`, `logs`, `logPattern` or `ledgers` narrow it down.",
        (),
        "none",
    ),
    Option(
        "guaranteedWriteQuorum",
        "guaranteed_write_quorum",
        parse_bool,
        False,
        "Write that creates a log: acknowledge at `ackQuorumSize`, and guarantee that every entry reaches all `writeQuorumSize` bookies.",
        shown_default="false",
    ),
    Option("rollMaxBytes", "roll_max_bytes", parse_size, 256 << 20, "Payload bytes after which a data ledger is rolled.", (), "256m"),
    Option("rollMaxEntries", "roll_max_entries", parse_count, None, "Entries after which a data ledger is rolled, exactly.", (), "none"),
    Option("rollMaxTime", "roll_max_time_ms", parse_age, 3_600_000, "Age at which a data ledger is rolled: `10m`, at most `3h`.", (), "1h"),
    Option("maxOpenLedgers", "max_open_ledgers", parse_count, 32, "Data ledgers a worker process keeps open; the longest unused one goes."),
    Option(
        "maxInFlightBytes",
        "max_in_flight_bytes",
        parse_size,
        32 << 20,
        "Payload bytes a write task has unacknowledged before it waits: its memory, and the back-pressure Spark feels.",
        (),
        "32m",
    ),
    Option(
        "createLogs",
        "create_logs",
        parse_bool,
        True,
        "Whether a write creates a log that does not exist, with its first commit; else BK-NO-LOG.",
        shown_default="true",
    ),
    Option(
        "mergeSchema",
        "merge_schema",
        parse_bool,
        False,
        "Whether a write adds its new columns to the end of the log's; else they are an error.",
        shown_default="false",
    ),
    Option(
        "overwriteSchema",
        "overwrite_schema",
        parse_bool,
        False,
        "Whether an overwrite (mode `overwrite`, output mode `complete`) replaces the log's columns, too; else they stay.",
        shown_default="false",
    ),
    Option(
        "takeOver",
        "take_over",
        parse_bool,
        False,
        "Whether a commit fences and closes the live segments of an exclusive writer; else a log with one refuses it.",
        shown_default="false",
    ),
    Option(
        "exactlyOnce",
        "exactly_once",
        parse_bool,
        True,
        "`false` keeps no mark of batches: whatever Spark repeats is appended again.",
        ("exactly_once",),
        "true",
    ),
    Option(
        "failOnDifferentReplay",
        "fail_on_different_replay",
        parse_bool,
        False,
        "Stream: a batch that the log has comes again with other rows or bytes, or later ones are there (a checkpoint was rolled back, or "
        "copied): `false` warns with both counts, `true` fails. Bytes differ too if `entrySize` or `compression` changed.",
        shown_default="false",
    ),
    Option("txnAppId", "txn_app_id", parse_text, None, "With `txnVersion`: makes a batch write idempotent.", (), "none"),
    Option("txnVersion", "txn_version", parse_version, None, "Grows with every batch write of one `txnAppId`.", (), "none"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options. Plain data: pickled with readers and writers. The password never appears in ``repr``."""

    uri: str
    protocol: WireProtocol = "v2"
    log: str | None = None
    logs: tuple[str, ...] | None = None
    log_pattern: str | None = None
    ledgers: tuple[tuple[int, int], ...] | None = None
    entry_format: EntryFormat = "arrow"
    entry_size: int = 262144
    compression: str = "none"
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: str = "CRC32C"
    password: bytes = field(default=b"", repr=False)
    password_file: str | None = None
    starting_offsets: Offsets | None = None
    starting_timestamp: int | None = None
    starting_offsets_by_timestamp: tuple[tuple[str, int], ...] | None = None
    starting_offsets_by_timestamp_strategy: str = "error"
    ending_offsets: Offsets | None = None
    ending_timestamp: int | None = None
    ending_offsets_by_timestamp: tuple[tuple[str, int], ...] | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    max_bytes_per_partition: int = 128 << 20
    max_records_per_partition: int | None = None
    min_partitions: int = 1
    max_bytes_per_entry: int = 256 << 20
    fail_on_data_loss: bool = True
    fail_on_new_columns: bool = True
    wait_for_log: bool = False
    reader_name: str | None = None
    open_ledgers: str = "skip"
    columns: tuple[str, ...] | None = None
    include_metadata: bool | str | None = None
    include_headers: bool = False
    pushdown: bool = False
    metadata: str | None = None
    guaranteed_write_quorum: bool = False
    roll_max_bytes: int = 256 << 20
    roll_max_entries: int | None = None
    roll_max_time_ms: int = 3_600_000
    max_open_ledgers: int = 32
    max_in_flight_bytes: int = 32 << 20
    create_logs: bool = True
    merge_schema: bool = False
    overwrite_schema: bool = False
    take_over: bool = False
    exactly_once: bool = True
    fail_on_different_replay: bool = False
    txn_app_id: str | None = None
    txn_version: int | None = None
    given: frozenset[str] = field(default=frozenset(), repr=False)  # what was set, not defaulted: fields, and SPARKS_OWN
    spelled: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # field and alias, of those given by one

    @property
    def secret(self) -> bytes:
        """The password of the ledgers, which may be in a file of this host. Raises SecretUnavailableError."""
        return self.password if self.password_file is None else SecretFile(self.password_file)()

    @property
    def names_logs(self) -> bool:
        return self.log is not None or self.logs is not None or self.log_pattern is not None

    def log_name(self) -> str:
        """The one log, where there must be one."""
        if self.log is None:
            raise InvalidArgumentError(
                'name the log to read: .option("log", "name") or load("name"), or WITH (log = \'name\') on a table; for several: option '
                "logs or logPattern"
            )
        return self.log

    def log_names(self) -> tuple[str, ...]:
        """The names in ``log`` or ``logs``, sorted; ``starting.source_logs`` resolves a pattern."""
        return (self.log_name(),) if self.logs is None else self.logs


def parse_options(given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Options:
    """Parse options. Raises InvalidArgumentError for an unknown option, a bad value, an option given under two names, or a missing one."""
    spelled = {spelling.lower(): (option, spelling) for option in OPTIONS for spelling in (option.name, *option.aliases)}
    values: dict[str, Any] = {}
    names: dict[str, str] = {}  # as they were given, for messages, by field
    sparks = {key.lower() for key in given} & SPARKS_OWN.keys()
    for key, text in given.items():
        if key.lower() in sparks:
            continue
        if key.lower() not in spelled:
            raise InvalidArgumentError(unknown(key, OPTIONS))
        option, name = spelled[key.lower()]
        if option.field in values:
            twice = f"as {names[option.field]} and as {name}, which are names of one option"
            raise InvalidArgumentError(f"option {option.name} is given twice: {twice}")
        names[option.field] = name
        values[option.field] = _parse(option, name, text)
    if "uri" not in values:
        values["uri"] = (os.environ if environment is None else environment).get(URI_ENVIRONMENT)
    if not values["uri"]:
        line = '.option("bookkeeper.metadataServiceUri", "zk://host:2181/ledgers")'
        raise InvalidArgumentError(
            f"name the cluster: {line}; on a table WITH (`bookkeeper.metadataServiceUri` = '...'); or {URI_ENVIRONMENT}"
        )
    _check_together(values, names)
    others = tuple((option.field, names[option.field]) for option in OPTIONS if names.get(option.field, option.name) != option.name)
    return Options(**values, given=frozenset(values) | sparks, spelled=others)


def refuse_others(options: Options, scope: Scope) -> None:
    """Raise InvalidArgumentError for an option that would have no effect in ``scope``; the message says where it belongs, and what does
    its work there."""
    idle = options.given - scope.takes
    if idle:
        names = {**SPARKS_OWN, **{option.field: option.name for option in OPTIONS}, **dict(options.spelled)}
        raise InvalidArgumentError(out_of_place({names[field]: field for field in idle}, scope))
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise InvalidArgumentError("options txnAppId and txnVersion belong together")


def _parse(option: Option, name: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        shown = "" if option.parse is parse_secret else f", not {text[:500]!r}"
        raise InvalidArgumentError(f"option {name}: {error}{shown}") from None


def _check_together(values: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError for options that contradict one another, or that have no effect without another. ``names`` are those by
    which they were given."""
    named = [names[option.field] for option in OPTIONS if option.field in WHICH_LEDGERS and values.get(option.field)]
    if len(named) > 1:
        raise InvalidArgumentError(f"options {' and '.join(named)} exclude each other")
    if "password" in values and "password_file" in values:
        raise InvalidArgumentError(f"options {names['password']} and {names['password_file']} exclude each other")
    least, most = values.get("min_rows_per_trigger"), values.get("max_rows_per_trigger")
    if least is not None and most is not None and least > most:
        raise InvalidArgumentError(f"{names['min_rows_per_trigger']} {least} is more than {names['max_rows_per_trigger']} {most}")
    if "max_trigger_delay_ms" in values and least is None:
        raise InvalidArgumentError(f"{names['max_trigger_delay_ms']} does nothing without minOffsetsPerTrigger")
    packing = [names[field] for field in ("entry_size", "compression") if field in values]
    if packing and values.get("entry_format") == "raw":
        raw = f"{names['entry_format']}=raw"
        raise InvalidArgumentError(f"option {packing[0]} does nothing with {raw}, which makes each value an entry as it is")
    if values.get("merge_schema") and values.get("overwrite_schema"):
        both = f"{names['merge_schema']} and {names['overwrite_schema']}"
        raise InvalidArgumentError(f"options {both} exclude each other: one keeps the log's columns, one does not")
