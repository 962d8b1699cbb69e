"""What a read task gets and does. Everything it needs is in the pickled partition and reader (spark-connectors.md 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import LogDataLossError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_spark.arrow import BATCH_BYTES, arrow_batches, raw_batches
from bk_spark.clients import client_for
from bk_spark.options import Options
from bk_spark.planning import Boundaries, EntryRange


class BookKeeperPartition(InputPartition):
    """Ranges of entries that one task reads, in order."""

    def __init__(self, ranges: Sequence[EntryRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"BookKeeperPartition({', '.join(f'{r.ledger_id}:{r.first}-{r.last}' for r in self.ranges)})"


def read_partition(options: Options, schema: pa.Schema, raw: bool, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Record batches of ``schema``. Spark turns an empty plan into one partition of None: it has no rows."""
    if not isinstance(partition, BookKeeperPartition):
        return
    client = client_for(options.uri, options.protocol)
    for r in partition.ranges:
        with client.open_ledger(r.ledger_id, password=options.password) as ledger:
            if ledger.is_closed and ledger.last_add_confirmed < r.last:
                raise _cut_off(r, ledger.last_add_confirmed)
            # The driver learned that these entries are acknowledged, from a ledger list or a LAC; this handle's LAC may be lower (RD-1).
            runs = ledger.read_runs(r.first, r.last, bytes_max=BATCH_BYTES, unchecked_bound=r.acknowledged)
            yield from raw_batches(options.log, r.ledger_id, runs) if raw else arrow_batches(schema, runs)


def _cut_off(r: EntryRange, end: int) -> LogDataLossError:
    message = f"entries {max(r.first, end + 1)}..{r.last} of ledger {r.ledger_id} are lost: the ledger was closed at entry {end}"
    return LogDataLossError(message, ledger=r.ledger_id, first_entry=max(r.first, end + 1), last_entry=r.last)


def fragment_boundaries(client: Any) -> Boundaries:
    def boundaries(ledger_id: int) -> list[int]:
        return [fragment.first_entry_id for fragment in client.ledger_metadata(ledger_id).fragments]

    return boundaries


def ledger_range(client: Any, options: Options, ledger_id: int) -> EntryRange | None:
    """All entries of one ledger, as ``openLedgers`` says; None if there are none. Never fences unless the word is ``recover``."""
    metadata = client.ledger_metadata(ledger_id)
    if metadata.state is not LedgerState.CLOSED and options.open_ledgers == "skip":
        return None
    if metadata.state is LedgerState.CLOSED:
        last, size = metadata.last_entry_id, metadata.length
    elif options.open_ledgers == "recover":
        with client.recover_ledger(ledger_id, password=options.password) as ledger:
            last, size = ledger.last_add_confirmed, ledger.length
    else:
        with client.open_ledger(ledger_id, password=options.password) as ledger:
            last = ledger.read_last_add_confirmed()
            size = ledger.length
    return EntryRange(ledger_id, 0, last, size) if last >= 0 else None
