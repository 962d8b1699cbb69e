"""Logs as Arrow tables, without Spark: what ``Log.to_batches``, ``Log.write`` and ``create_log(schema=...)`` of bk_core call.

It needs pyarrow, and no pyspark. ``bk_core.client.log.tables`` imports it by its name.
"""

from __future__ import annotations

from typing import Any

from bk_spark.needs import check_for_tables

check_for_tables()

_HOMES = {
    "arrow_schema": "bk_spark.arrow.reading",
    "open_batches": "bk_spark.arrow.reading",
    "follow_batches": "bk_spark.arrow.reading",
    "to_pandas": "bk_spark.arrow.reading",
    "fact_batches": "bk_spark.arrow.facts",
    "facts_to_pandas": "bk_spark.arrow.facts",
    "write_rows": "bk_spark.arrow.writing",
    "export_rows": "bk_spark.arrow.files",
    "open_rows": "bk_spark.arrow.files",
    "is_raw_table": "bk_spark.arrow.files",
    "counted": "bk_spark.arrow.files",
    "value_batches": "bk_spark.arrow.files",
    "same_rows": "bk_spark.arrow.files",
    "schema_text": "bk_spark.arrow.schemas",
    "told_columns": "bk_spark.arrow.schemas",
}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
