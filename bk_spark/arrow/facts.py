"""Facts about a cluster, such as its ledgers, as record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bk_spark.arrow.ddl import columns_of_ddl
from bk_spark.needs import check_pandas


def fact_batches(columns: Mapping[str, str], together: Iterable[Sequence[Mapping[str, Any]]]) -> pa.RecordBatchReader:
    """Return a reader of rows. ``columns`` are names with types as DDL; ``together`` yields some rows at a time, each by these names."""
    schema = columns_of_ddl(", ".join(f"{name} {kind}" for name, kind in columns.items()))

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in together:
            yield pa.RecordBatch.from_pylist(list(rows), schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def facts_to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rows as a DataFrame. Numbers and flags have pandas' types with ``NA``, so that ids stay whole numbers where some are
    not known. MissingPackageError where there is no pandas."""
    check_pandas("to_pandas")
    import pandas as pd

    types = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return reader.read_all().to_pandas(types_mapper=types.get)
