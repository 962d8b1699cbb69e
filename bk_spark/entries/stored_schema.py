"""Checks the schema that a log's list keeps before Arrow or pyspark parse it, and accepts only schemas that ``schema_text`` writes.

Both would do more with a schema than read it: pyspark imports the module that a user-defined type names (and older ones unpickle it), Arrow
hands extension types to whoever registered them, and a schema whose tables refer to one another in a circle or a thousandfold keeps either
busy for good. So this walks over the flatbuffer, and over Spark's JSON in it, accepts the types of a log and refuses all others.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from bk_core.errors import LogSchemaError
from bk_core.protocol.log.stored_json import loads
from bk_spark.entries.flatbuffer import FlatBuffer, Table
from bk_spark.needs import check_version

check_version("pyarrow", pa.__version__)

TEXT_MAX = 4 << 20
"""The limit in characters; metadata stores take about 1 MiB as one value."""
COLUMNS_MAX = 1 << 15
DEPTH_MAX = 64
"""Arrow reads no deeper schema."""
_PREFIX = struct.Struct("<Ii")
_MARK, _SCHEMA = 0xFFFFFFFF, 1
_VERSIONS = (3, 4)  # V4 and V5
_NAME, _NULLABLE, _KIND, _TYPE, _DICTIONARY, _CHILDREN, _METADATA = range(7)
_LIST, _STRUCT, _MAP = 12, 13, 17
SPARK_SCHEMA_KEY = "spark.schema"
_SPARK_METADATA = "SPARK::metadata::json"
_MARKS = frozenset({"variant", "geometry", "geography", "srid"})
COLUMN_METADATA = _MARKS | {_SPARK_METADATA}
"""The keys of metadata that a column of a log may have."""

_ATOMIC = frozenset(
    ["boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz", "void"]
    + ["variant", "geometry", "geography"]
)
_PARAMETERS = re.compile(
    r"decimal\([0-9]{1,2},-?[0-9]{1,2}\)|time\([0-9]\)|interval (day|hour|minute|second)( to (hour|minute|second))?"
    r"|(geometry|geography)\([A-Za-z0-9:, _-]{1,64}\)|string collate \w{1,64}",
    re.ASCII,
)
_COLLATIONS = "__COLLATIONS"


def arrow_schema_of_text(text: str) -> pa.Schema:
    """Return the schema with which entries of the log are decoded. Raises LogSchemaError if the text is damaged, or no sink of ours can
    have written it."""
    if len(text) > TEXT_MAX:
        raise LogSchemaError(f"the schema stored with the log cannot be read: it has {len(text):,} characters")
    try:
        data = base64.b64decode(text, validate=True)
        check_arrow_schema(data)
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise LogSchemaError(f"the schema stored with the log cannot be read: {error}") from error


def check_arrow_schema(data: bytes) -> None:
    """Raise LogSchemaError unless ``data`` is an IPC message of a schema as ``schema_text`` writes it."""
    try:
        _check_message(data)
    except (ValueError, struct.error) as error:
        raise LogSchemaError(f"the schema stored with the log cannot be read: {error}") from None


def check_spark_schema(value: Any) -> None:
    """Raise LogSchemaError unless ``value``, parsed JSON, is a struct of the types that logs have."""
    try:
        _Walk().spark(value, 0, struct_only=True)
    except ValueError as error:
        raise LogSchemaError(f"the Spark schema stored with the log cannot be read: {error}") from None


# --- Arrow's ----------------------------------------------------------------------------------------------------------------


def _check_message(data: bytes) -> None:
    if len(data) < _PREFIX.size:
        raise ValueError("it is too short")
    mark, length = _PREFIX.unpack_from(data)
    if mark != _MARK or length != len(data) - _PREFIX.size:
        raise ValueError("it is no Arrow message")
    message = FlatBuffer(data[_PREFIX.size :]).root()
    schema = message.table(2)
    if message.number(0, "h", 0) not in _VERSIONS or message.number(1, "B", 0) != _SCHEMA or schema is None:
        raise ValueError("it is another Arrow message")
    if message.number(3, "q", 0) or schema.number(0, "h", 0) or schema.items(3, 8)[1]:
        raise ValueError("it has a body, another byte order or features")
    unknown = [key for key, _ in _pairs(schema, 2) if key != SPARK_SCHEMA_KEY]
    if unknown:
        raise ValueError(f"it has metadata {unknown[0]!r}, which logs do not have")
    walk = _Walk()
    walk.arrow(schema.tables(1), 0)


def _pairs(table: Table, slot: int) -> Iterator[tuple[str, str]]:
    return ((pair.text(0), pair.text(1)) for pair in table.tables(slot))


def _integer(kind: Table) -> bool:
    return kind.number(0, "i", 0) in (8, 16, 32, 64) and kind.number(1, "B", 0) == 1


def _float(kind: Table) -> bool:
    return kind.number(0, "h", 0) in (1, 2)


def _decimal(kind: Table) -> bool:
    return 1 <= kind.number(0, "i", 0) <= 38 and abs(kind.number(1, "i", 0)) <= 38 and kind.number(2, "i", 128) == 128


def _timestamp(kind: Table) -> bool:
    return kind.number(0, "h", 0) == 2 and kind.text(1) in ("", "UTC")


def _any(kind: Table) -> bool:
    return True


_LEAVES: dict[int, Callable[[Table], bool]] = {
    1: _any,  # Null
    2: _integer,
    3: _float,
    4: _any,  # Binary
    5: _any,  # Utf8
    6: _any,  # Bool
    7: _decimal,
    8: lambda kind: kind.number(0, "h", 1) == 0,  # Date of days
    9: lambda kind: kind.number(0, "h", 1) == 3 and kind.number(1, "i", 32) == 64,  # Time of nanoseconds
    10: _timestamp,  # of microseconds
    18: lambda kind: kind.number(0, "h", 1) == 2,  # Duration of microseconds
}


class _Walk:
    """Counts columns, because many places may refer to one table, and a walk meets it as many times."""

    def __init__(self) -> None:
        self._columns = 0

    def _enter(self, depth: int) -> None:
        self._columns += 1
        if depth > DEPTH_MAX or self._columns > COLUMNS_MAX:
            raise ValueError(f"it has more than {COLUMNS_MAX} columns, or columns nested more than {DEPTH_MAX} deep")

    def arrow(self, fields: list[Table], depth: int) -> None:
        names = set[str]()
        for field in fields:
            self._enter(depth)
            name = field.text(_NAME)
            if name in names:
                raise ValueError(f"two columns are named {name!r}")
            names.add(name)
            self._arrow_field(name, field, depth)

    def _arrow_field(self, name: str, field: Table, depth: int) -> None:
        number, kind, children = field.number(_KIND, "B", 0), field.table(_TYPE), field.tables(_CHILDREN)
        if kind is None or field.table(_DICTIONARY) is not None:
            raise ValueError(f"column {name!r} has no type, or a dictionary")
        for key, value in _pairs(field, _METADATA):
            _check_metadata(name, key, value)
        if number in (_LIST, _STRUCT, _MAP):
            if number == _MAP and [(c.number(_KIND, "B", 0), len(c.tables(_CHILDREN))) for c in children] != [(_STRUCT, 2)]:
                raise ValueError(f"column {name!r} is no sound map")
            if number == _LIST and len(children) != 1:
                raise ValueError(f"column {name!r} is no sound list")
            self.arrow(children, depth + 1)
        elif children or number not in _LEAVES or not _LEAVES[number](kind):
            raise ValueError(f"column {name!r} has a type that logs do not have")

    # --- Spark's ------------------------------------------------------------------------------------------------------------

    def spark(self, value: Any, depth: int, *, struct_only: bool = False) -> None:
        self._enter(depth)
        if isinstance(value, str) and not struct_only:
            if value not in _ATOMIC and not _PARAMETERS.fullmatch(value):
                raise ValueError(f"logs have no type {value[:60]!r}")
            return
        match value.get("type") if isinstance(value, dict) else None:
            case "struct":
                self._struct(value, depth)
            case "array" if not struct_only and _has(value, type=str, elementType=(str, dict), containsNull=bool):
                self.spark(value["elementType"], depth + 1)
            case "map" if not struct_only and _has(value, type=str, keyType=(str, dict), valueType=(str, dict), valueContainsNull=bool):
                self.spark(value["keyType"], depth + 1)
                self.spark(value["valueType"], depth + 1)
            case other:
                raise ValueError(f"logs have no type {str(other)[:60]!r}")

    def _struct(self, value: dict[str, Any], depth: int) -> None:
        if not _has(value, type=str, fields=list):
            raise ValueError("it has a struct of another form")
        names = set[str]()
        for field in value["fields"]:
            if not (isinstance(field, dict) and _has(field, name=str, type=(str, dict), nullable=bool, metadata=dict)):
                raise ValueError("it has a column of another form")
            if field["name"] in names:
                raise ValueError(f"two columns are named {field['name'][:60]!r}")
            names.add(field["name"])
            _check_collations(field["metadata"].get(_COLLATIONS, {}))
            self.spark(field["type"], depth + 1)


def _has(value: dict[str, Any], **wanted: Any) -> bool:
    """Return True if there are these keys of these types and no others."""
    return value.keys() == wanted.keys() and all(isinstance(value[key], kind) for key, kind in wanted.items())


def _check_metadata(name: str, key: str, value: str) -> None:
    if key == _SPARK_METADATA:
        if not isinstance(loads(value, unique=True), dict):
            raise ValueError(f"column {name!r} has metadata that are no object")
    elif key not in _MARKS or (key == "srid" and not re.fullmatch(r"-?[0-9]{1,9}", value, re.ASCII)):
        raise ValueError(f"column {name!r} has metadata {key[:60]!r}, which logs do not have")


def _check_collations(value: Any) -> None:
    sound = isinstance(value, dict) and all(
        isinstance(name, str) and re.fullmatch(r"(spark|icu)\.\w{1,64}", name, re.ASCII) for name in value.values()
    )
    if not sound:
        raise ValueError("it has collations of another form")
