"""Divides rows among logs: without option ``log`` a string column ``log`` (or ``topic``, as with Kafka) names the log of each row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from bk_core.client.log.list_store import log_path
from bk_core.errors import InvalidArgumentError, LogSchemaError

ROUTE_COLUMNS = ("log", "topic")


def route_column(schema: StructType) -> str:
    """Return the column that names the log of each row. Raises InvalidArgumentError if there is none, LogSchemaError if it is no string."""
    for name in ROUTE_COLUMNS:
        found = [f for f in schema.fields if f.name.casefold() == name]
        if found:
            if not isinstance(found[0].dataType, StringType):
                raise LogSchemaError(_routed(found[0].name, f"it must be a string, not {found[0].dataType.simpleString()}"))
            return found[0].name
    raise InvalidArgumentError(
        'name the log to write: .option("log", "name") or save("name"), or WITH (log = \'name\') on a table; or give each row a string '
        'column "log" that names its log'
    )


def _routed(column: str, wrong: str) -> str:
    return f'option log is not given, so column {column!r} names the log of each row: {wrong}. For one log: .option("log", "name")'


def without_route(schema: StructType, column: str) -> StructType:
    """Return the stored schema of a routed row: all fields but ``column``."""
    return StructType([f for f in schema.fields if f.name != column])


def split_by_log(batch: pa.RecordBatch, column: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (log name, its rows without ``column``), with rows in their order. Nothing is given out before every name of the batch was
    checked.

    Raises LogSchemaError for a null, InvalidArgumentError for what cannot be a log's name.
    """
    index = batch.schema.get_field_index(column)
    names = batch.column(index)
    if names.null_count:
        raise LogSchemaError(_routed(column, f"{names.null_count} rows have null there"))
    others = [i for i in range(batch.num_columns) if i != index]
    rest = pa.RecordBatch.from_arrays([batch.column(i) for i in others], schema=pa.schema([batch.schema.field(i) for i in others]))
    encoded = names.dictionary_encode()
    logs = encoded.dictionary.to_pylist()
    for log in logs:
        try:
            log_path(log)
        except InvalidArgumentError as error:
            raise error.retold(_routed(column, str(error.args[0]))) from None
    if len(logs) == 1:
        yield logs[0], rest
        return
    import pyarrow.compute as pc  # it takes half as long to import as the rest of this package

    order = pc.array_sort_indices(encoded.indices)  # stable, so rows stay in their order
    first = 0
    for log, count in zip(logs, pc.value_counts(encoded.indices).field("counts").to_pylist(), strict=True):
        yield log, rest.take(order.slice(first, count))  # copied, so that rows of one log do not hold those of all
        first += count
