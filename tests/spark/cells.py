"""Values of Spark, polars, DuckDB and pyarrow in one spelling, by their Arrow type, so that cells can be compared as text.

``python -m tests.spark.cells LIBRARY URI LOG`` prints the rows of a log as that library reads them, a line each, in a process in which
pyspark cannot be imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

_WIDE = Context(prec=60)
LIBRARIES = ("pyarrow", "polars", "duckdb")


class NoSpark:
    """Keeps pyspark from being imported, as if it were not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lines(rows: Iterable[Iterable[Any]], schema: pa.Schema) -> Iterator[str]:
    for row in rows:
        yield json.dumps([plain(value, field.type) for value, field in zip(row, schema, strict=True)])


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as JSON takes it, which says all of it."""
    if value is None:
        return None
    if types.is_map(kind):
        return sorted(([plain(k, kind.key_type), plain(v, kind.item_type)] for k, v in _pairs(value)), key=repr)
    if types.is_list(kind):
        return [plain(one, kind.value_type) for one in value]
    if types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in (kind.field(i) for i in range(kind.num_fields))}
    if types.is_binary(kind):
        return bytes(value).hex()
    if types.is_decimal(kind):
        return str(Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=_WIDE))
    if types.is_timestamp(kind):
        assert isinstance(value, datetime)
        return (value if kind.tz is None else value.astimezone(UTC)).isoformat()  # Spark's have no zone, and mean the local one
    if types.is_date(kind):
        return value.isoformat()
    if types.is_floating(kind):
        return repr(value)
    assert types.is_boolean(kind) or types.is_integer(kind) or types.is_string(kind), kind
    return value


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """The entries of a map: Spark has a dict, Arrow pairs, and polars, which has no maps, a list of structs."""
    if isinstance(value, dict):
        return value.items()
    return ((one["key"], one["value"]) if isinstance(one, dict) else one for one in value)


def rows_of(library: str, log: Any) -> Iterable[Iterable[Any]]:
    match library:
        case "pyarrow":
            return (row.values() for batch in log.to_batches() for row in batch.to_pylist())
        case "polars":
            import polars

            found: Iterable[Iterable[Any]] = polars.DataFrame(log).rows()
            return found
        case "duckdb":
            import duckdb

            with duckdb.connect() as database:
                database.execute("SET TimeZone = 'UTC'")
                batches = log.to_batches()  # DuckDB finds it by the name of the variable
                table = database.sql("SELECT * FROM batches").to_arrow_table()
            del batches
            return (row.values() for row in table.to_pylist())
    raise AssertionError(library)


def main(library: str, uri: str, name: str) -> None:
    sys.meta_path.insert(0, NoSpark())
    import bk_core

    with bk_core.connect(uri) as client:
        log = client.log(name)
        for line in lines(rows_of(library, log), log.arrow_schema()):
            print(line)
    assert "pyspark" not in sys.modules and "py4j" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
