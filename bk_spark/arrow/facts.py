"""Facts about a cluster, such as its ledgers, as record batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bk_spark.arrow.ddl import columns_of_ddl
from bk_spark.needs import check_pandas


def fact_batches(columns: Mapping[str, str], together: Iterable[Sequence[Mapping[str, Any]]]) -> pa.RecordBatchReader:
    """Return a reader of rows. ``columns`` are names with types as DDL; ``together`` yields some rows at a time, each by these names."""
    schema = columns_of_ddl(", ".join(f"{name} {kind}" for name, kind in columns.items()))

    return pa.RecordBatchReader.from_batches(schema, (fact_batch(rows, schema) for rows in together))


def fact_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch. A number that its column cannot hold is null: the metadata of one damaged ledger may give one, and
    must not keep the rows of all others from being read."""
    try:
        return pa.RecordBatch.from_pylist(list(rows), schema=schema)
    except (OverflowError, pa.ArrowInvalid):
        bits = {field.name: field.type.bit_width for field in schema if pa.types.is_signed_integer(field.type)}
        held = [{name: _held(value, bits.get(name, 0)) for name, value in row.items()} for row in rows]
        return pa.RecordBatch.from_pylist(held, schema=schema)


def _held(value: Any, bits: int) -> Any:
    return None if bits and isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits - 1 else value


def facts_to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rows as a DataFrame. Numbers and flags have pandas' types with ``NA``, so that ids stay whole numbers where some are
    not known. MissingPackageError where there is no pandas."""
    check_pandas("to_pandas")
    import pandas as pd

    types = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return reader.read_all().to_pandas(types_mapper=types.get)
