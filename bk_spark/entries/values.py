"""Checks all values of a decoded record batch before any is used, by Arrow's own kernels, column by column.

``validate(full=True)`` reads every offset, text, decimal and null once. What it omits is checked here: fields that a schema declares as
never null (the keys of a map, the parts of a variant), which Spark reads without asking; and -2^127, the one decimal whose magnitude Arrow
cannot compute, and which it therefore accepts as one of any precision.
"""

from __future__ import annotations

import pyarrow as pa

from bk_spark.entries.check import BadEntryError

_LEAST_DECIMAL = (-(2**127)).to_bytes(16, "little", signed=True)


class ValueCheck:
    """Checks batches of some or all columns of ``schema``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._demanding = {field.name: field for field in schema if _demands(field)}
        self._with_decimals = [field.name for field in schema if _has_decimals(field)]

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise pyarrow.ArrowInvalid or BadEntryError unless each value of each column is one of its type."""
        batch.validate(full=True)
        for name, field in self._demanding.items():
            at = batch.schema.get_field_index(name)
            if at >= 0:
                _check_required(name, field, batch.column(at), None)
        for name in self._with_decimals:
            at = batch.schema.get_field_index(name)
            if at >= 0:
                _check_decimals(name, batch.column(at))


def _demands(field: pa.Field) -> bool:
    """Return True if anything in the field is never null."""
    return not field.nullable or any(map(_demands, _children(field.type)))


def _has_decimals(field: pa.Field) -> bool:
    return bool(pa.types.is_decimal128(field.type)) or any(map(_has_decimals, _children(field.type)))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind):
        return [kind.value_field]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def _check_required(path: str, field: pa.Field, column: pa.Array, there: pa.Array | None) -> None:
    """Check the fields that are never null. ``there`` has the rows in which the struct around the field is not null itself;
    None means all."""
    if not field.nullable and column.null_count and _any(_both(column.is_null(), there)):
        raise BadEntryError(f"column {path} has a null, and never has one")
    within = _both(column.is_valid(), there) if pa.types.is_struct(field.type) else None
    for child, part in zip(_children(field.type), _parts(column), strict=True):
        if _demands(child):
            _check_required(f"{path}.{child.name}", child, part, within)


def _check_decimals(path: str, column: pa.Array) -> None:
    import pyarrow.compute as pc

    if pa.types.is_decimal128(column.type):
        validity, values = column.buffers()
        plain = pa.Array.from_buffers(pa.binary(16), len(column), [validity, values], offset=column.offset)
        if _any(pc.equal(plain, pa.scalar(_LEAST_DECIMAL, plain.type))):
            raise BadEntryError(f"column {path} has a decimal of more digits than {column.type}")
    for child, part in zip(_children(column.type), _parts(column), strict=True):
        if _has_decimals(child):
            _check_decimals(f"{path}.{child.name}", part)


def _parts(column: pa.Array) -> list[pa.Array]:
    """Return the arrays of ``_children``."""
    if pa.types.is_struct(column.type):
        return [column.field(i) for i in range(column.type.num_fields)]
    return [column.keys, column.items] if pa.types.is_map(column.type) else [column.values] if pa.types.is_list(column.type) else []


def _both(one: pa.Array, other: pa.Array | None) -> pa.Array:
    import pyarrow.compute as pc

    return one if other is None else pc.and_(one, other)


def _any(flags: pa.Array) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(flags).as_py())
