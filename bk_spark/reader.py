"""Batch reads: a snapshot of a log's committed segments, or single ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bk_core.client.logs import read_ledger_list
from bk_core.errors import LogSchemaError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_spark.arrow import RAW_SCHEMA, arrow_schema, schema_of_text
from bk_spark.clients import client_for
from bk_spark.offsets import starting_position
from bk_spark.options import Options
from bk_spark.partitions import BookKeeperPartition, fragment_boundaries, ledger_range, read_partition
from bk_spark.planning import EntryRange, committed_ranges, plan


def schema_of(options: Options) -> StructType:
    """Raw columns for ledgers and raw logs, else the schema that the first write stored. LogSchemaError if there was no write yet."""
    if options.ledgers is not None:
        return RAW_SCHEMA
    name = options.log_name()
    return list_schema(name, read_ledger_list(client_for(options.uri, options.protocol), name))


def list_schema(name: str, listed: LedgerList) -> StructType:
    if listed.properties.entry_format == "raw":
        return RAW_SCHEMA
    if not listed.properties.schema:
        raise LogSchemaError(f"log {name!r} has no schema yet: its first write gives it", log=name)
    return schema_of_text(listed.properties.schema)


def is_raw(options: Options, name: str, listed: LedgerList, schema: StructType) -> bool:
    """LogSchemaError if ``schema`` (a user's, or one from planning) is not the log's."""
    if arrow_schema(schema) != arrow_schema(list_schema(name, listed)):
        raise LogSchemaError(f"the given schema is not the one of log {name!r}; leave .schema(...) out", log=name)
    return listed.properties.entry_format == "raw"


class BookKeeperReader(DataSourceReader):
    """The snapshot is taken by ``partitions``, once per DataFrame (spark-connectors.md 5.5)."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        if options.ledgers is not None:
            if self._schema != arrow_schema(RAW_SCHEMA):
                raise LogSchemaError("ledgers are read with the columns log, ledgerId, entryId, value; leave .schema(...) out")
            self._raw = True
        else:
            name = options.log_name()
            self._raw = is_raw(options, name, read_ledger_list(client_for(options.uri, options.protocol), name), schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        client = client_for(options.uri, options.protocol)
        ranges = self._ledger_ranges() if options.ledgers is not None else self._log_ranges()
        tasks = plan(ranges, options.max_bytes_per_partition, options.min_partitions, fragment_boundaries(client))
        return [BookKeeperPartition(task) for task in tasks]

    def _ledger_ranges(self) -> list[EntryRange]:
        client = client_for(self._options.uri, self._options.protocol)
        ids = dict.fromkeys(i for first, last in self._options.ledgers or () for i in range(first, last + 1))
        found = (ledger_range(client, self._options, ledger_id) for ledger_id in ids)
        return [r for r in found if r is not None]

    def _log_ranges(self) -> list[EntryRange]:
        options, name = self._options, self._options.log_name()
        client = client_for(options.uri, options.protocol)
        listed = read_ledger_list(client, name)
        start = starting_position(listed, options.starting_offsets or "earliest", name, options.fail_on_data_loss)
        ranges = committed_ranges(listed, start, listed.end_position)
        for segment in listed.live_segments:
            live = ledger_range(client, options, segment.ledger_id) if options.open_ledgers != "skip" else None
            if live is not None:
                ranges.append(live)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, self._raw, partition)
