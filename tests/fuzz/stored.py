"""Stored texts that somebody edited: schemas, ledger lists, offsets, rack maps, options; in a process of its own (README.md).

A case bends the text of one of them: bytes, numbers, parts of JSON put elsewhere, the flatbuffer within a schema's text. Reading it gives
an error of this project, or something that is written and read again as the same.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from bk_core.errors import BkError
from bk_core.metadata.racks import parse_rack_map
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.offset import to_json
from bk_spark.catalog import _remembered
from bk_spark.options.table import OPTIONS, parse_options
from bk_spark.schemas import TABLE_OPTIONS_KEY, schema_of_text, schema_text
from bk_spark.source.offsets import from_json
from tests.fuzz.children import play_each, run_cases
from tests.fuzz.entries import NUMBERS, Wrong

SCHEMAS = [
    schema_text(StructType([StructField("a", T.LongType(), True, {"comment": "c"}), StructField("b", T.ArrayType(T.StringType()))])),
    schema_text(StructType([StructField("t", T.TimeType(3)), StructField("m", T.MapType(T.StringType("UTF8_LCASE"), T.VariantType()))])),
]
LIST = (
    '{"format":3,"cluster":"c1","logId":"f00d","properties":{"entryFormat":"arrow","ensembleSize":3,"writeQuorumSize":3,"ackQuorumSize":2,'
    '"digestType":"CRC32C","retentionMs":86400000},"trimmed":[4,50,500,40,400],"history":[[0,21,0,3,3,30,300,5,7,1000,1002]],"dropped":[],'
    '"segments":[[7,12,14,25,999,1003,10]],"committed":{"q":[9,1003]},"condemned":[4],"released":[],"opened":[],"schemas":["c2NoZW1h"]}'
)
OFFSETS = (
    '{"flights":{"logId":"9f","seq":12,"entry":0,"row":0,"rows":345678,"bytes":9876543},'
    '"ships":{"logId":"a","seq":0,"entry":1,"row":2,"rows":3,"bytes":4}}'
)
ANYTHING = "7"
PIECES = (
    *map(str, NUMBERS),
    *("1e999", "NaN", "null", "true", '""', "[]", "{}", '"x"', "-", "9" * 5000, "a{99999999999}", '{"type":"udt","pyClass":"os.system"}'),
    *("[" * 100_000, "(" * 100_000, '{"a":' * 50_000),
    *("", "\x00", "\ud800", "\u202e", ",", ":", "}", "]", '"'),
)
GIVEN = {
    "startingOffsets": '{"flights":{"seq":3,"entry":5},"ships":-2}',
    "startingOffsetsByTimestamp": '{"flights":1763640000000,"ships":"2026-11-20T12:00:00Z"}',
    "ledgers": "7,9-12",
    "logPattern": "fl.*",
    "maxBytesPerTrigger": "12m",
    "maxTriggerDelay": "30s",
}


def _schema(text: str) -> None:
    found = schema_of_text(text)
    if schema_of_text(schema_text(found)) != found:
        raise Wrong(f"{found} is not stored as it is")


def _list(text: str) -> None:
    found = decode(text.encode("utf-8", "surrogatepass"))
    if decode(encode(found)) != found:
        raise Wrong(f"{found} is not stored as it is")


def _offsets(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return  # Spark reads this one, and passes on what it read
    found = from_json(value)
    if from_json(json.loads(json.dumps(to_json(found)))) != found:
        raise Wrong(f"{found} is not stored as it is")


def _option(name: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        more = {"minOffsetsPerTrigger": "1"} if name == "maxTriggerDelay" else {}
        hash(parse_options({"metadataServiceUri": "memory://x", name: text, **more}))

    return read


def _table(text: str) -> None:
    _remembered(StructType([StructField("a", T.LongType(), True, {TABLE_OPTIONS_KEY: text})]))


TARGETS: list[tuple[str, str, Callable[[str], None]]] = [
    *(("schema", text, _schema) for text in SCHEMAS * 3),
    ("list", LIST, _list),
    ("list", LIST, _list),
    ("offsets", OFFSETS, _offsets),
    ("offsets", OFFSETS, _offsets),
    ("table", '{"log":"a","password":"b"}', _table),
    ("racks", '{"g":{"b:3181":{"rack":"/r","hostname":"h"}}}', lambda text: void(parse_rack_map(text.encode("utf-8", "surrogatepass")))),
    *((option.name, GIVEN.get(option.name, ANYTHING), _option(option.name)) for option in OPTIONS if option.field != "uri"),
]


def void(_: Any) -> None:
    return None


def bent(rng: random.Random, text: str) -> str:
    if text in SCHEMAS and rng.randrange(4):
        data = bytearray(base64.b64decode(text))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data)) & ~rng.choice((0, 1, 3))
            width = rng.choice((1, 2, 4))
            near = int.from_bytes(data[at : at + width], "little") + rng.choice((-4, -1, 1, 4, 8))
            value = rng.choice((near, rng.choice(NUMBERS)))
            data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        return base64.b64encode(data).decode()
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at, size = rng.randrange(len(text) + 1), rng.choice((0, 0, 1, 2, 8))
        if rng.randrange(3) == 0:
            digits = [i for i, letter in enumerate(text) if letter.isdigit()] or [at]
            at, size = rng.choice(digits), 1
        new = rng.choice((*PIECES, text[at : at + 40]))
        text = text[:at] + new + text[at + size :]
    return text


def play(rng: random.Random) -> bool:
    """Return True if it was refused. Raises Wrong."""
    name, text, read = rng.choice(TARGETS)
    changed = bent(rng, text)
    try:
        read(changed)
    except BkError as error:
        if changed == text and text != ANYTHING:
            raise Wrong(f"{name}: {text} was refused: {error}") from error
        if len(str(error)) > 20_000:
            raise Wrong(f"{name}: an error of {len(str(error))} characters") from error
        return True
    return False


def child(seed: int, first: int, last: int | None, seconds: float | None) -> None:
    play_each(lambda number: play(random.Random(f"{seed}/{number}")), first, last, seconds)


run = partial(run_cases, "tests.fuzz.stored")
