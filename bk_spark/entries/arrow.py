"""Between entries and Arrow record batches, in both directions: what the other modules use of it."""

from __future__ import annotations

from bk_spark.entries.packing import PackedRun, conform, pack_arrow, pack_raw
from bk_spark.entries.schemas import all_nullable, arrow_schema, arrow_schema_of_text, check_schema, schema_of_text, schema_text
from bk_spark.entries.unpacking import Run, arrow_batches, value_array
from bk_spark.options.grammar import ENTRY_BYTES_MAX

__all__ = [
    "ENTRY_BYTES_MAX",
    "PackedRun",
    "Run",
    "all_nullable",
    "arrow_batches",
    "arrow_schema",
    "arrow_schema_of_text",
    "check_schema",
    "conform",
    "pack_arrow",
    "pack_raw",
    "schema_of_text",
    "schema_text",
    "value_array",
]
