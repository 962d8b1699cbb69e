"""The tables ``ledgers``, ``fragments`` and ``bookies``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bk_core.client.inspect import FoundLedger, bookie_spaces, found_ledgers
from bk_core.client.log.history import read_log
from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_spark.options.table import Options
from bk_spark.source.bounds import LEDGER, Bounds
from bk_spark.source.starting import source_logs
from bk_spark.tables.table import Row, Table, chunks, moment

LEDGERS_PER_TASK = 2000  # about a second of metadata reads

_LEDGERS_SCHEMA = StructType(
    [
        StructField("ledgerId", LongType()),
        StructField("state", StringType()),
        StructField("ensembleSize", IntegerType()),
        StructField("writeQuorumSize", IntegerType()),
        StructField("ackQuorumSize", IntegerType()),
        StructField("digestType", StringType()),
        StructField("passwordProtected", BooleanType()),
        StructField("guaranteed", BooleanType()),
        StructField("lastEntryId", LongType()),
        StructField("length", LongType()),
        StructField("fragments", IntegerType()),
        StructField("createdAt", TimestampType()),
        StructField("log", StringType()),
        StructField("custom", MapType(StringType(), BinaryType())),
    ]
)
_FRAGMENTS_SCHEMA = StructType(
    [
        StructField("ledgerId", LongType()),
        StructField("fragment", IntegerType()),
        StructField("firstEntryId", LongType()),
        StructField("lastEntryId", LongType()),
        StructField("position", IntegerType()),
        StructField("bookie", StringType()),
    ]
)
_BOOKIES_SCHEMA = StructType(
    [
        StructField("bookie", StringType()),
        StructField("host", StringType()),
        StructField("port", IntegerType()),
        StructField("mode", StringType()),
        StructField("totalBytes", LongType()),
        StructField("freeBytes", LongType()),
        StructField("ledgers", LongType()),
        StructField("fragments", LongType()),
    ]
)


def ledger_ids(client: Any, options: Options, bounds: Bounds) -> list[int]:
    """Return the ledgers of a table: those of ``ledgers``, of the logs that are named, or all."""
    if options.ledgers is not None:
        ids: Iterable[int] = dict.fromkeys(i for first, last in options.ledgers for i in range(first, last + 1))
    elif options.names_logs:
        views = [read_log(client, name) for name in source_logs(options, client)]
        ids = sorted({segment.ledger_id for view in views for segment in view.segments()})
    else:
        ids = client.list_ledgers()
    wanted = bounds.interval(LEDGER)
    return [i for i in ids if wanted.meets(i, i)]


def _plan_ledgers(client: Any, options: Options, bounds: Bounds) -> list[tuple[int, ...]]:
    return chunks(ledger_ids(client, options, bounds), LEDGERS_PER_TASK)


def _ensembles(found: FoundLedger) -> list[tuple[str, ...]]:
    return [] if found.metadata is None else [fragment.ensemble for fragment in found.metadata.fragments]


def _ledger_rows(client: Any, options: Options, ids: tuple[int, ...], columns: Collection[str]) -> Iterator[Row]:
    for found in found_ledgers(client, ids):
        ledger_id, metadata = found.ledger_id, found.metadata
        if metadata is None:
            yield {"ledgerId": ledger_id, "state": found.state, "createdAt": moment(found.created_ms)}
            continue
        closed = metadata.state is LedgerState.CLOSED
        last = metadata.last_entry_id if closed else None
        if not closed and options.open_ledgers == "lac" and "lastEntryId" in columns:
            last = _last_add_confirmed(client, options, ledger_id)
        log = metadata.custom.get("log")
        yield {
            "ledgerId": ledger_id,
            "state": found.state,
            "ensembleSize": metadata.ensemble_size,
            "writeQuorumSize": metadata.write_quorum_size,
            "ackQuorumSize": metadata.ack_quorum_size,
            "digestType": metadata.digest_type.name if metadata.has_digest else None,
            "passwordProtected": metadata.has_password,
            "guaranteed": metadata.guaranteed,
            "lastEntryId": last,
            "length": metadata.length if closed else None,
            "fragments": len(metadata.fragments),
            "createdAt": moment(found.created_ms),
            "log": None if log is None else log.decode(errors="replace"),
            "custom": dict(metadata.custom),
        }


def _last_add_confirmed(client: Any, options: Options, ledger_id: int) -> int | None:
    """Return the LAC, or None where the bookies or the password do not allow to know it, because one bad ledger must not spoil a table of
    all."""
    try:
        with client.open_ledger(ledger_id, password=options.secret) as handle:
            return int(handle.last_add_confirmed)
    except BkError:
        return None


def _fragment_rows(client: Any, options: Options, ids: tuple[int, ...], columns: Collection[str]) -> Iterator[Row]:
    for found in found_ledgers(client, ids):
        ledger_id, metadata = found.ledger_id, found.metadata
        if metadata is None:
            continue
        ends: list[int | None] = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
        ends.append(metadata.last_entry_id if metadata.state is LedgerState.CLOSED else None)
        for index, (fragment, end) in enumerate(zip(metadata.fragments, ends, strict=True)):
            for position, bookie in enumerate(fragment.ensemble):
                yield {
                    "ledgerId": ledger_id,
                    "fragment": index,
                    "firstEntryId": fragment.first_entry_id,
                    "lastEntryId": end,
                    "position": position,
                    "bookie": bookie,
                }


def _plan_bookies(client: Any, options: Options, bounds: Bounds) -> list[str]:
    return ["all"]


def _bookie_rows(client: Any, options: Options, unit: str, columns: Collection[str]) -> Iterator[Row]:
    """Yield the registered bookies, and with the columns ``ledgers`` or ``fragments`` also those that only ledgers name (mode DOWN)."""
    view = client.bookies()
    modes = {bookie: "READ_ONLY" for bookie in view.readonly} | {bookie: "WRITABLE" for bookie in view.writable}
    ledgers: Counter[str] = Counter()
    fragments: Counter[str] = Counter()
    if "ledgers" in columns or "fragments" in columns:
        for found in found_ledgers(client, client.list_ledgers()):
            fragments.update(bookie for ensemble in _ensembles(found) for bookie in set(ensemble))
            ledgers.update({bookie for ensemble in _ensembles(found) for bookie in ensemble})
    spaces = bookie_spaces(client, list(modes)) if "totalBytes" in columns or "freeBytes" in columns else {}
    for bookie in sorted({*modes, *fragments}):
        space = spaces.get(bookie)
        host, port = _address(client, bookie)
        yield {
            "bookie": bookie,
            "host": host,
            "port": port,
            "mode": modes.get(bookie, "DOWN"),
            "totalBytes": space.total_bytes if space else None,
            "freeBytes": space.free_bytes if space else None,
            "ledgers": ledgers[bookie],
            "fragments": fragments[bookie],
        }


def _address(client: Any, bookie: str) -> tuple[str | None, int | None]:
    try:
        host, port = client.store.resolve(bookie)
    except BkError:
        return None, None
    return host, port


LEDGERS = Table(_LEDGERS_SCHEMA, _plan_ledgers, _ledger_rows, {"ledgerId": LEDGER})
FRAGMENTS = Table(_FRAGMENTS_SCHEMA, _plan_ledgers, _fragment_rows, {"ledgerId": LEDGER})
BOOKIES = Table(_BOOKIES_SCHEMA, _plan_bookies, _bookie_rows, {})
