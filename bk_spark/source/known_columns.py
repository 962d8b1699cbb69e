"""Compares the columns of logs with those of a DataFrame that reads them: decides what may be read, and before which row a stream has to
end. Pure.

The columns of a DataFrame are fixed when it is made; logs get new ones at any time, and new logs come with columns of their own. Columns
that do not fit are found by segment, in the ledger list, before an entry of it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from bk_core.errors import LogSchemaError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.schemas import arrow_schema, spark_type

Field = tuple[str, pa.DataType]
"""A name and an Arrow type."""


class KnownColumns:
    """The columns of a DataFrame. ``given`` are its own; ``own`` are those of its logs, together, when the reader was made.

    ``all_asked``: the DataFrame was made to have all columns, so that new ones must not be left out in silence. ``refuse_new``: the option
    ``failOnNewColumns``.
    """

    def __init__(self, given: StructType, own: StructType, all_asked: bool = False, refuse_new: bool = False) -> None:
        self._given = {field.name: field.type for field in arrow_schema(given)}
        self._own: list[Field] = [(field.name, field.type) for field in arrow_schema(own)]
        self._all_asked = all_asked
        self._refuse_new = refuse_new
        self._reasons: dict[str, str] = {}
        self._new: dict[str, tuple[str, ...]] = {}

    def check(self, log: str, schema: str) -> None:
        """Raise LogSchemaError if rows of ``log`` that were written with this stored schema must not be read."""
        reason = self._reason(schema)
        if reason:
            raise LogSchemaError(f"log {log!r} {reason}", log=log)

    def check_ranges(self, views: Mapping[str, LogView], ranges: Iterable[EntryRange]) -> None:
        """Check the rows that are about to be read; ``views`` are by log."""
        for log, schema_id in sorted({(r.log, r.schema_id) for r in ranges if r.log is not None}):
            schemas = views[log].listed.schemas
            if schema_id < len(schemas):
                self.check(log, schemas[schema_id])

    def until(self, log: str, view: LogView, start: Position, end: Position) -> Position:
        """Return the end of the part of ``start <= p < end`` that may be read, which is the first row that must not be. Raises
        LogSchemaError if that is ``start``."""
        if start >= end or not any(self._reason(schema) for schema in view.listed.schemas):
            return end
        for position, schema in _written_with(view, start, end):
            if self._reason(schema):
                if position <= start:
                    self.check(log, schema)
                return position
        return end

    def left_out(self, schemas: Sequence[str]) -> tuple[str, ...]:
        """Return the new columns of a log with these schemas that the stream leaves out."""
        if not self._all_asked or self._refuse_new:
            return ()
        return tuple(dict.fromkeys(name for schema in schemas for name in self._new_ones(schema)))

    def _reason(self, schema: str) -> str:
        """Return the reason why rows of that schema must not be read; "" if they may."""
        if schema not in self._reasons:
            self._reasons[schema] = self._judged(schema) if schema else ""
        return self._reasons[schema]

    def _judged(self, schema: str) -> str:
        fields = [(field.name, field.type) for field in arrow_schema_of_text(schema)]
        for name, kind in fields:
            if name in self._given and self._given[name] != kind:
                read = f"this read has {name!r} as {spark_type(self._given[name])}"
                return (
                    f"has a column {name!r} of type {spark_type(kind)}, and {read}. None of these rows was read; make the DataFrame anew "
                    "if the columns were replaced since, else leave the log out, or read it in a query of its own"
                )
        if not self._all_asked:
            return ""
        for (name, kind), (other, its_kind) in zip(fields, self._own, strict=False):
            if (name, kind) != (other, its_kind):
                others = f"others of this read have {other!r} {spark_type(its_kind)}"
                return (
                    f"has column {name!r} {spark_type(kind)} where {others}: logs are read together if the columns of one "
                    "are the first of the other's. None of these rows was read; leave the log out, or read it in a query of its own"
                )
        new = self._new_ones(schema)
        if new and self._refuse_new:
            return (
                f"has rows with new columns since the DataFrame of this query was made: {', '.join(map(repr, new))}. The query ends before "
                "the first of these rows. Make the DataFrame anew (load() finds the new columns) and start it with the same checkpoint: "
                "nothing is lost. failOnNewColumns=false goes on without them; option columns, or .schema(...), asks for some only"
            )
        return ""

    def _new_ones(self, schema: str) -> tuple[str, ...]:
        if schema not in self._new:
            self._new[schema] = tuple(name for name in arrow_schema_of_text(schema).names if name not in self._given) if schema else ()
        return self._new[schema]


def _written_with(view: LogView, start: Position, end: Position) -> Iterator[tuple[Position, str]]:
    """Yield the first position of each segment that has entries between ``start`` and ``end``, with its schema."""
    schemas = view.listed.schemas
    for segment in view.segments(start.seq, end.seq):
        first = Position(segment.seq, segment.first_entry_id)
        if first < end and segment.entries and segment.schema_id < len(schemas):
            yield first, schemas[segment.schema_id]
