"""Schemas in a log's list that no sink of ours wrote: refused before Arrow or pyspark do anything with them."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from bk_core.errors import InvalidArgumentError, LogSchemaError, MetadataFormatError
from bk_spark.catalog import for_reading
from bk_spark.entries.stored_schema import COLUMNS_MAX, arrow_schema_of_text, check_arrow_schema
from bk_spark.options.grammar import parse_offsets
from bk_spark.schemas import TABLE_OPTIONS_KEY, schema_of_text, schema_text
from bk_spark.sink.intents import claim
from bk_spark.source.offsets import from_json

SPARK = StructType([StructField("at", T.TimeType(3)), StructField("m", T.MapType(T.StringType("UTF8_LCASE"), T.ArrayType(T.LongType())))])
WITH_JSON = schema_text(SPARK)


def text_of(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def with_json(change: Callable[[Any], Any] | str) -> str:
    stored = arrow_schema_of_text(WITH_JSON)
    (value,) = (stored.metadata or {}).values()
    changed = change if isinstance(change, str) else json.dumps(change(json.loads(value)))
    return text_of(stored.with_metadata({"spark.schema": changed}))


def with_type(kind: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        value["fields"][0]["type"] = kind
        return value

    return change


def test_what_a_sink_writes_is_read() -> None:
    assert schema_of_text(WITH_JSON) == SPARK


def test_a_user_defined_type_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``StructType.fromJson`` imports the module that it names."""
    (tmp_path / "hostile_udt.py").write_text("import sys\nsys.hostile_was_here = True\nclass Udt: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    udt = {"type": "udt", "pyClass": "hostile_udt.Udt", "class": None, "serializedClass": "gASVAAAAAAAAAAA=", "sqlType": "long"}
    for kind in (udt, {"type": "array", "elementType": udt, "containsNull": True}, {**udt, "type": "struct", "fields": []}):
        with pytest.raises(LogSchemaError, match="cannot be read"):
            schema_of_text(with_json(with_type(kind)))
    assert not hasattr(sys, "hostile_was_here") and "hostile_udt" not in sys.modules


FIELD = {"name": "at", "type": "time(3)", "nullable": True, "metadata": {}}
DEEP = json.loads('{"type":"array","containsNull":true,"elementType":' * 70 + '"long"' + "}" * 70)
JSONS: dict[str, Callable[[Any], Any] | str] = {
    "no object": "[]",
    "no JSON": "{",
    "nested without end": '{"type":' * 100_000,
    "a type of Spark that logs do not have": with_type("calendar_interval"),
    "a type that nobody has": with_type("time(3)x"),
    "a type that is a number": with_type(7),
    "a key more": lambda value: {**value, "pyClass": "os.system"},
    "a key less": lambda value: {"type": "struct"},
    "a key twice": json.dumps({"type": "struct", "fields": []})[:-1] + ',"type":"struct"}',
    "a field of another form": lambda value: {**value, "fields": [{**FIELD, "nullable": "yes"}]},
    "a field that is no object": lambda value: {**value, "fields": ["at"]},
    "two columns of one name": lambda value: {**value, "fields": [FIELD, FIELD]},
    "no columns": lambda value: {**value, "fields": []},
    "other columns than Arrow's": lambda value: {**value, "fields": value["fields"][:1]},
    "another type than Arrow's": with_type("long"),
    "a collation that nobody provides": lambda value: {**value, "fields": [{**FIELD, "metadata": {"__COLLATIONS": {"at": "x.y"}}}]},
    "a collation of what is no text": lambda value: {**value, "fields": [{**FIELD, "metadata": {"__COLLATIONS": {"at": "icu.DE"}}}]},
    "nested beyond what Arrow reads": with_type(DEEP),
}


@pytest.mark.parametrize("lie", JSONS)
def test_sparks_json_is_what_a_sink_writes(lie: str) -> None:
    with pytest.raises(LogSchemaError, match="stored with the log|at least one column"):
        schema_of_text(with_json(JSONS[lie]))


def on_earth(metadata: dict[str, str]) -> pa.Schema:
    return pa.schema([("c", pa.struct([("srid", pa.int32()), pa.field("wkb", pa.binary(), metadata=metadata)]))])


ARROWS: dict[str, pa.Schema] = {
    "a dictionary": pa.schema([("c", pa.dictionary(pa.int32(), pa.string()))]),
    "an extension type": pa.schema([pa.field("c", pa.binary(16), metadata={"ARROW:extension:name": "arrow.uuid"})]),
    "an extension of a type of ours": pa.schema([pa.field("c", pa.binary(), metadata={"ARROW:extension:name": "x"})]),
    "large text": pa.schema([("c", pa.large_string())]),
    "a view": pa.schema([("c", pa.string_view())]),
    "a union": pa.schema([("c", pa.sparse_union([pa.field("a", pa.int32())]))]),
    "runs": pa.schema([("c", pa.run_end_encoded(pa.int32(), pa.int64()))]),
    "an unsigned number": pa.schema([("c", pa.uint8())]),
    "half a float": pa.schema([("c", pa.float16())]),
    "a wide decimal": pa.schema([("c", pa.decimal256(50, 1))]),
    "milliseconds": pa.schema([("c", pa.timestamp("ms"))]),
    "another zone": pa.schema([("c", pa.timestamp("us", "Asia/Tokyo"))]),
    "a list of fixed size": pa.schema([("c", pa.list_(pa.int32(), 3))]),
    "two columns of one name": pa.schema([("c", pa.int64()), ("c", pa.int64())]),
    "two fields of one name": pa.schema([("c", pa.struct([("x", pa.int64()), ("x", pa.int64())]))]),
    "metadata that are not ours": pa.schema([("c", pa.int64())], metadata={"pandas": "{}"}),
    "metadata of a column that are not ours": pa.schema([pa.field("c", pa.int64(), metadata={"x": "y"})]),
    "metadata without end": pa.schema([pa.field("c", pa.int64(), metadata={"SPARK::metadata::json": "[" * 100_000})]),
    "metadata that are no object": pa.schema([pa.field("c", pa.int64(), metadata={"SPARK::metadata::json": "[]"})]),
    "a place on Earth without its system": on_earth({"geometry": "true"}),
    "a system that is no number": on_earth({"geometry": "true", "srid": "x"}),
    "no columns": pa.schema([]),
}  # fmt: skip


@pytest.mark.parametrize("lie", ARROWS)
def test_arrows_schema_is_what_a_sink_writes(lie: str) -> None:
    with pytest.raises(LogSchemaError):
        schema_of_text(text_of(ARROWS[lie]))


def test_an_extension_type_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.int64(), "bk.hostile")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: Any) -> Any:
            raise AssertionError("it was asked")

    pa.register_extension_type(Hostile())
    try:
        text = text_of(pa.schema([("c", Hostile())]))
        with pytest.raises(LogSchemaError, match="ARROW:extension"):
            arrow_schema_of_text(text)
    finally:
        pa.unregister_extension_type("bk.hostile")


def test_a_schema_of_a_thousandfold_columns_is_left_alone() -> None:
    """Tables that refer to one another: a few hundred bytes that mean 2 ** 60 columns."""
    levels = 60
    kind: pa.DataType = pa.int64()
    for _ in range(levels):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    data = bytearray(pa.schema([("c", kind)]).serialize().to_pybytes())
    changed = _fold(data)
    assert changed >= levels - 1
    with pytest.raises(LogSchemaError, match=f"more than {COLUMNS_MAX} columns"):
        check_arrow_schema(bytes(data))


def _fold(data: bytearray) -> int:
    """The second child of each struct becomes the first one, under the name of the second: names are read through another reference."""
    count = 0
    for at in range(8, len(data) - 12, 4):
        if struct.unpack_from("<I", data, at)[0] == 2:  # a vector of two references
            first, second = (at + 4 * i + struct.unpack_from("<I", data, at + 4 * i)[0] for i in (1, 2))
            if _name(data, first) == b"a" and _name(data, second) == b"b":
                _point(data, second, first)
                count += 1
    return count


def _slot(data: bytearray, table: int, slot: int) -> int:
    if not 8 <= table <= len(data) - 4:
        return 0
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if not 8 <= vtable <= len(data) - 6 or struct.unpack_from("<H", data, vtable)[0] <= 4 + 2 * slot:
        return 0
    place = struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]
    return table + int(place) if place else 0


def _name(data: bytearray, table: int) -> bytes:
    at = _slot(data, table, 0)
    if not 8 <= at <= len(data) - 4:
        return b""
    text = at + int(struct.unpack_from("<I", data, at)[0])
    return bytes(data[text + 4 : text + 5]) if text < len(data) else b""


def _point(data: bytearray, second: int, first: int) -> None:
    """Type and children of ``second`` are those of ``first``."""
    children = _slot(data, second, 5), _slot(data, first, 5)
    target = children[1] + struct.unpack_from("<I", data, children[1])[0]
    if target > children[0]:
        struct.pack_into("<I", data, children[0], target - children[0])
        kind = _slot(data, second, 2), _slot(data, first, 2)
        data[kind[0]] = data[kind[1]]


@pytest.mark.parametrize("text", ["!", "", "aGVsbG8=", "A" * (5 << 20), WITH_JSON[:-4], WITH_JSON + "AAAA", " " + WITH_JSON])
def test_texts_that_are_no_schema(text: str) -> None:
    with pytest.raises(LogSchemaError, match="cannot be read"):
        arrow_schema_of_text(text)


def test_a_log_says_no_options_of_a_table() -> None:
    """Else whoever writes the list of a log would choose the cluster that its readers connect to."""
    kept = json.dumps({"metadataServiceUri": "zk://elsewhere/ledgers"})
    stored = schema_text(StructType([StructField("a", T.LongType(), True, {TABLE_OPTIONS_KEY: kept, "comment": "c"})]))
    schema = schema_of_text(stored)
    assert schema.fields[0].metadata == {"comment": "c"}
    with pytest.raises(InvalidArgumentError):
        for_reading({}, schema)


def test_a_schema_that_no_reader_would_take_is_not_written() -> None:
    kind: T.DataType = T.LongType()
    for _ in range(70):
        kind = T.ArrayType(kind)
    with pytest.raises(LogSchemaError, match="64 deep"):
        schema_text(StructType([StructField("a", kind)]))


# --- what else is stored -----------------------------------------------------------------------------------------------------

OFFSET = {"logId": "f0", "seq": 1, "entry": 2, "row": 3, "rows": 4, "bytes": 5}


@pytest.mark.parametrize("key", [*OFFSET, None])
@pytest.mark.parametrize("value", [-1, 1.5, True, None, "1", [], {}, 1 << 63, float("inf")])
def test_an_offset_that_somebody_edited(key: str | None, value: Any) -> None:
    assert from_json({"a": OFFSET})["a"].rows == 4
    if key == "logId" and isinstance(value, str):
        return
    changed = {"a": value} if key is None else {"a": {**OFFSET, key: value}}
    with pytest.raises(InvalidArgumentError, match="was written by another source, such as Kafka.s, or edited"):
        from_json(changed)


def test_numbers_of_an_option_are_those_of_a_ledger() -> None:
    for text in ('{"seq":9223372036854775808}', '{"ledgerId":1,"entryId":1e999}', "[" * 100_000, '{"a":{"seq":NaN}}'):
        with pytest.raises(ValueError, match="expected"):
            parse_offsets(text)


def test_an_intent_that_is_none_is_named(world: Any) -> None:
    for data in (b"[", b"[]", b"{}", b"[" * 100_000):
        world.store.create("intents/a/7", data)
        with pytest.raises(MetadataFormatError, match="intents/a/7"):
            claim(world.client, "a", 7, "q")
        world.store.delete("intents/a/7", world.store.read("intents/a/7").version)
