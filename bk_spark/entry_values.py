"""The values of a decoded record batch, all of them, checked before anybody touches one. By Arrow's own kernels, column by column.

``validate(full=True)`` reads every offset, text, decimal and null once. What it does not look at is checked here: fields that a schema says
are never null (the keys of a map, the parts of a variant), which Spark reads without asking.
"""

from __future__ import annotations

import pyarrow as pa

from bk_spark.entry_check import BadEntryError


class ValueCheck:
    """For batches of some or all columns of ``schema``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._demanding = {field.name: field for field in schema if _demands(field)}

    def check(self, batch: pa.RecordBatch) -> None:
        """pyarrow.ArrowInvalid or BadEntryError unless each value of each column is one of its type."""
        batch.validate(full=True)
        for name, field in self._demanding.items():
            at = batch.schema.get_field_index(name)
            if at >= 0:
                _check_required(name, field, batch.column(at), None)


def _demands(field: pa.Field) -> bool:
    """Whether anything in the field is never null."""
    return not field.nullable or any(map(_demands, _children(field.type)))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind):
        return [kind.value_field]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def _check_required(path: str, field: pa.Field, column: pa.Array, there: pa.Array | None) -> None:
    """``there``: rows in which the struct around the field is not null itself; None is all."""
    if not field.nullable and column.null_count and _any(_both(column.is_null(), there)):
        raise BadEntryError(f"column {path} has a null, and never has one")
    kind = field.type
    if pa.types.is_struct(kind):
        within = _both(column.is_valid(), there)
        parts = [column.field(i) for i in range(kind.num_fields)]
    else:
        within = None
        parts = [column.keys, column.items] if pa.types.is_map(kind) else [column.values] if pa.types.is_list(kind) else []
    for child, part in zip(_children(kind), parts, strict=True):
        if _demands(child):
            _check_required(f"{path}.{child.name}", child, part, within)


def _both(one: pa.Array, other: pa.Array | None) -> pa.Array:
    import pyarrow.compute as pc

    return one if other is None else pc.and_(one, other)


def _any(flags: pa.Array) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(flags).as_py())
