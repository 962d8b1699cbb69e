"""The one table of options: name, parser, default, aliases, doc. Keys arrive from Spark in lower case.

An option that is not in the table is an error that names the nearest one: no typo is ever ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from bk_core.errors import InvalidArgumentError

URI_ENVIRONMENT = "BOOKKEEPER_METADATA_SERVICE_URI"
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})  # Spark mixes these into a streaming sink's options
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes: ``134217728``, ``128m``, ``1g``."""
    digits = text.strip().lower().rstrip("bkmg")
    unit = text.strip().lower()[len(digits) :]
    if not digits.isdigit() or unit not in _UNITS or int(digits) == 0:
        raise ValueError("expected a size like 262144, 256k or 128m")
    return int(digits) * _UNITS[unit]


def parse_count(text: str) -> int:
    if not text.strip().isdigit() or int(text) == 0:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


def parse_version(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def parse_bool(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.strip().lower() == "true"


def parse_ledgers(text: str) -> tuple[tuple[int, int], ...]:
    """``7,9-12`` to ((7, 7), (9, 12)): inclusive ranges of ledger ids."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last.isdigit() or (not last and "-" not in part)) or int(last or first) < int(first):
            raise ValueError("expected ledger ids like 7,9-12")
        ranges.append((int(first), int(last or first)))
    return tuple(ranges)


def parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError("expected some text")
    return text.strip()


def parse_secret(text: str) -> bytes:
    return text.encode()


def parse_starting(text: str) -> str:
    """``earliest``, ``latest`` or JSON with at least ``seq``; the JSON is what progress and checkpoint show."""
    plain = text.strip()
    if plain.lower() in ("earliest", "latest"):
        return plain.lower()
    try:
        value = json.loads(plain)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("seq"), int):
        raise ValueError('expected earliest, latest or JSON like {"seq":3,"entry":0}')
    return plain


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError(f"expected one of {', '.join(words)}")

    return parse


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
        f"Metadata store of the cluster, e.g. `zk://host:2181/ledgers`. Falls back to the environment variable `{URI_ENVIRONMENT}`.",
        ("metadataServiceUri",),
        "required",
    ),
    Option("bookkeeper.protocol", "protocol", one_of("v2", "v3"), "v2", "Wire protocol of the data path."),
    Option("log", "log", parse_text, None, 'Log to read or write; also `load("name")`.', ("topic", "path"), "`log` or `ledgers`"),
    Option(
        "ledgers",
        "ledgers",
        parse_ledgers,
        None,
        "Batch read of single ledgers as raw entries, e.g. `7,9-12`.",
        ("ledger", "ledgerId"),
        "`log` or `ledgers`",
    ),
    Option(
        "entryFormat",
        "entry_format",
        one_of("arrow", "raw"),
        "arrow",
        "For the write that creates a log: `arrow` packs many rows into an entry, `raw` makes each `value` one entry.",
    ),
    Option("entrySize", "entry_size", parse_size, 262144, "Target payload bytes of an `arrow` entry, before compression."),
    Option("compression", "compression", one_of("none", "zstd", "lz4"), "none", "Compression of `arrow` entries."),
    Option("ensembleSize", "ensemble_size", parse_count, 3, "Bookies per ledger (write that creates a log)."),
    Option("writeQuorumSize", "write_quorum_size", parse_count, 3, "Copies of each entry (write that creates a log)."),
    Option("ackQuorumSize", "ack_quorum_size", parse_count, 2, "Copies that must be durable before an acknowledgement."),
    Option("digestType", "digest_type", one_of("CRC32C", "CRC32", "MAC", "DUMMY"), "CRC32C", "Digest of each entry."),
    Option("password", "password", parse_secret, b"", "Password of the ledgers. Never shown.", shown_default="empty"),
    Option(
        "startingOffsets",
        "starting_offsets",
        parse_starting,
        None,
        'Where to begin: `earliest`, `latest` or JSON like `{"seq":3,"entry":0}`.',
        shown_default="stream `latest`, batch `earliest`",
    ),
    Option(
        "maxRowsPerTrigger",
        "max_rows_per_trigger",
        parse_count,
        None,
        "Most rows in a micro-batch. Exact between segments; within a segment rows are shared out evenly over entries. At least one entry.",
        ("maxOffsetsPerTrigger", "maxEntriesPerTrigger"),
        "none",
    ),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", parse_size, None, "Most payload bytes in a micro-batch.", (), "none"),
    Option("maxBytesPerPartition", "max_bytes_per_partition", parse_size, 128 << 20, "Payload bytes a task reads.", (), "128m"),
    Option("minPartitions", "min_partitions", parse_count, 1, "Least number of tasks, if there are as many entries."),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        parse_bool,
        True,
        "When the log was trimmed behind the stream or recreated: `true` fails, `false` goes on at its first entry.",
        shown_default="true",
    ),
    Option(
        "readerName",
        "reader_name",
        parse_text,
        None,
        "Keeps a stream's first offset in the metadata store, so that a restart before the first commit starts at the same place.",
        (),
        "none",
    ),
    Option(
        "openLedgers",
        "open_ledgers",
        one_of("skip", "lac", "recover"),
        "skip",
        "Batch reads of ledgers still written to: leave out, read up to the last add confirmed, or fence and recover them first.",
    ),
    Option("rollMaxBytes", "roll_max_bytes", parse_size, 256 << 20, "Payload bytes after which a data ledger is rolled.", (), "256m"),
    Option("txnAppId", "txn_app_id", parse_text, None, "With `txnVersion`: makes a batch write idempotent.", (), "none"),
    Option("txnVersion", "txn_version", parse_version, None, "Grows with every batch write of one `txnAppId`.", (), "none"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options. Plain data: pickled with readers and writers. The password never appears in ``repr``."""

    uri: str
    protocol: str = "v2"
    log: str | None = None
    ledgers: tuple[tuple[int, int], ...] | None = None
    entry_format: str = "arrow"
    entry_size: int = 262144
    compression: str = "none"
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: str = "CRC32C"
    password: bytes = field(default=b"", repr=False)
    starting_offsets: str | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_bytes_per_partition: int = 128 << 20
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    reader_name: str | None = None
    open_ledgers: str = "skip"
    roll_max_bytes: int = 256 << 20
    txn_app_id: str | None = None
    txn_version: int | None = None

    def log_name(self) -> str:
        if self.log is None:
            raise InvalidArgumentError('name the log: .option("log", "name"), or WITH (log = \'name\') on a table')
        return self.log


def parse_options(given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Options:
    """InvalidArgumentError for an unknown option, a bad value, an option given under two names, or a missing one."""
    spelled = {spelling.lower(): option for option in OPTIONS for spelling in (option.name, *option.aliases)}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() in SPARKS_OWN:
            continue
        option = spelled.get(key.lower())
        if option is None:
            raise InvalidArgumentError(_unknown(key))
        if option.field in values:
            raise InvalidArgumentError(f"option {option.name} is given twice (also as {', '.join(option.aliases)})")
        values[option.field] = _parse(option, text)
    if "uri" not in values:
        values["uri"] = (os.environ if environment is None else environment).get(URI_ENVIRONMENT)
    if not values["uri"]:
        line = '.option("bookkeeper.metadataServiceUri", "zk://host:2181/ledgers")'
        raise InvalidArgumentError(
            f"name the cluster: {line}; on a table WITH (`bookkeeper.metadataServiceUri` = '...'); or {URI_ENVIRONMENT}"
        )
    _check_together(values)
    return Options(**values)


def _parse(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        shown = "" if option.parse is parse_secret else f", not {text!r}"
        raise InvalidArgumentError(f"option {option.name}: {error}{shown}") from None


def _unknown(key: str) -> str:
    spellings = {spelling.lower(): spelling for option in OPTIONS for spelling in (option.name, *option.aliases)}
    near = get_close_matches(key.lower(), spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {spellings[near[0]]}?" if near else f"; known: {', '.join(option.name for option in OPTIONS)}"
    return f"unknown option {key!r}{hint}"


def _check_together(values: Mapping[str, Any]) -> None:
    if values.get("log") and values.get("ledgers"):
        raise InvalidArgumentError("options log and ledgers exclude each other")
    if (values.get("txn_app_id") is None) != (values.get("txn_version") is None):
        raise InvalidArgumentError("options txnAppId and txnVersion belong together")


def options_table() -> str:
    """The table of README.md."""
    lines = ["| Option | Default | Aliases | Meaning |", "| --- | --- | --- | --- |"]
    for option in OPTIONS:
        default = option.shown_default if option.shown_default is not None else f"`{option.default}`"
        lines.append(f"| `{option.name}` | {default} | {', '.join(f'`{a}`' for a in option.aliases)} | {option.doc} |")
    return "\n".join(lines)
