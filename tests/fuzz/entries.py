"""Entries that are no longer what was written: Arrow messages bent at every byte, played in a process of its own (README.md).

A case is a seed and a number. The first cases bend each byte of each kind of entry, the others several places at once, numbers of the
metadata and of the buffers among them. Each is read between two sound entries, from memory whose surroundings are poisoned:

* it gives the rows that a plain decoding of the same bytes gives (``plain_arrow``), or a LogEntryError that names it;
* nothing else is raised, the process lives, and what the reader hands on can be written by Arrow as Spark does.
"""

from __future__ import annotations

import random
import struct
from array import array
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from bk_core.errors import LogEntryError
from bk_spark.entries.packing import pack_arrow
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.unpacking import arrow_batches
from tests.fuzz.children import play_each, run_cases
from tests.fuzz.plain_arrow import NotSoundError, rows_of

POISON = b"\xa5SECRET\xa5" * 64
ENTRY_BYTES_MAX = 1 << 20  # small, so that a bomb does not take long
ROWS = 5


class Wrong(Exception):
    """Something that must hold does not."""


# --- entries as they should be ---------------------------------------------------------------------------------------------


def _tables() -> list[pa.RecordBatch]:
    required = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
    flat = {
        "id": pa.array(range(ROWS), pa.int64()),
        "text": pa.array(["one", "", None, "dr\u00fcben", "\U0001f600"]),
        "bytes": pa.array([b"a", None, b"", b"\xff" * 9, b"b"]),
        "flag": pa.array([True, None, False, True, True]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-999.99"), Decimal(0), Decimal("0.01")], pa.decimal128(5, 2)),
    }
    numbers = {
        "byte": pa.array([1, 2, None, 4, 5], pa.int8()),
        "short": pa.array(range(ROWS), pa.int16()),
        "float": pa.array([1.5, float("nan"), None, 0.0, -1.0], pa.float32()),
        "double": pa.array([1.5, float("inf"), None, 0.0, -1.0], pa.float64()),
        "day": pa.array([date(2026, 1, 2)] * ROWS),
        "at": pa.array([datetime(2026, 1, 2)] * ROWS, pa.timestamp("us", "UTC")),
        "took": pa.array(range(ROWS), pa.duration("us")),
        "nothing": pa.nulls(ROWS),
    }
    nested = {
        "list": pa.array([[1, 2], None, [], [3, None], [4]], pa.list_(pa.field("element", pa.int32()))),
        "map": pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)], []], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "yy"}, {"a": 3, "b": ""}]),
        "variant": pa.array([{"value": b"v", "metadata": b"m"}, None, *[{"value": b"w", "metadata": b""}] * 3], required),
        "deep": pa.array(
            [[{"x": [["t"]]}], [], None, [{"x": [[], None]}, None], [{"x": None}]],
            pa.list_(pa.struct([("x", pa.list_(pa.list_(pa.string())))])),
        ),
    }
    weightless = {"nothing": pa.nulls(ROWS), "empty": pa.array([{}] * ROWS, pa.struct([]))}
    return [pa.RecordBatch.from_pydict(columns) for columns in (flat, numbers, nested, weightless)]


@dataclass(frozen=True, slots=True)
class Base:
    name: str
    schema: pa.Schema
    entry: bytes


def bases() -> list[Base]:
    found: list[Base] = []
    for batch, shape in zip(_tables(), ("flat", "numbers", "nested", "weightless"), strict=True):
        for compression in ("none", "lz4", "zstd"):
            (run,) = pack_arrow([batch], batch.schema, 1 << 20, compression)
            found.append(Base(f"{shape} {compression}", batch.schema, bytes(run.payloads)))
    return found


BASES = bases()
EACH_BYTE = sum(len(base.entry) for base in BASES)


# --- bends -------------------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, -1, 2, 5, 6, 7, 8, 255, 60_000, 2**31 - 1, 2**31, -(2**31), 400_000_000, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), -5)


def case_of(rng: random.Random, number: int) -> tuple[Base, bytes]:
    if number < EACH_BYTE:
        for base in BASES:
            if number < len(base.entry):
                changed = bytearray(base.entry)
                changed[number] = rng.choice(
                    [value for value in (0, 1, 127, 128, 255, changed[number] ^ 1 << rng.randrange(8)) if value != changed[number]]
                )
                return base, bytes(changed)
            number -= len(base.entry)
    base = rng.choice(BASES)
    changed = bytearray(base.entry)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _bend(rng, changed)
    return base, bytes(changed)


def _bend(rng: random.Random, data: bytearray) -> None:
    if len(data) < 16:
        return
    metadata = 8 + max(0, min(len(data) - 8, int.from_bytes(data[4:8], "little", signed=True)))
    region = rng.choice(((8, metadata), (metadata, len(data)), (0, len(data))))
    at = rng.randrange(region[0], max(region[0] + 1, region[1]))
    match rng.randrange(9):
        case 0:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        case 1 | 2:
            _put(data, at & ~7, "<q", rng)
        case 3 | 4:
            _put(data, at & ~3, "<i", rng)
        case 5:
            _put(data, at & ~1, "<h", rng)
        case 6:
            del data[at : at + rng.choice((1, 8, 64, 1 << 20))]
        case 7:
            data[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        case _:
            other = rng.randrange(len(data))
            size = rng.choice((4, 8, 16, 32))
            data[at : at + size] = data[other : other + size]


def _put(data: bytearray, at: int, form: str, rng: random.Random) -> None:
    size = struct.calcsize(form)
    if at + size <= len(data):
        bits = 8 * size
        value = rng.choice(NUMBERS) if rng.randrange(3) else int.from_bytes(data[at : at + size], "little") + rng.choice((-8, -1, 1, 8))
        struct.pack_into(form, data, at, (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))


# --- one case ----------------------------------------------------------------------------------------------------------------


def play(base: Base, entry: bytes) -> bool:
    """Return True if it was refused. Raises Wrong."""
    refused = _read(base, entry, base.schema)
    for name in base.schema.names:  # some columns are decoded another way
        _read(base, entry, pa.schema([base.schema.field(name)]))
    if refused and entry == base.entry:
        raise Wrong(f"{base.name}: a sound entry was refused")
    return refused


def _read(base: Base, entry: bytes, wanted: pa.Schema) -> bool:
    try:
        expected = rows_of(entry, base.schema, wanted.names)
    except NotSoundError:
        expected = None
    parts = (base.entry, entry, base.entry)
    values = memoryview(bytearray(POISON + b"".join(parts) + POISON))[len(POISON) : -len(POISON)]
    edges = array("q", [0, len(parts[0]), len(parts[0]) + len(entry), len(values)])
    run = SimpleNamespace(first_entry_id=6, count=3, values=values, offsets=memoryview(edges))
    origin = EntryRange(3, 6, 8, len(values), log="flights")
    try:
        found = list(arrow_batches(wanted, [run], stored=base.schema, origin=origin, entry_bytes_max=ENTRY_BYTES_MAX))
    except LogEntryError as error:
        if "entry 7 of ledger 3 of log 'flights'" not in str(error) or error.retriable:
            raise Wrong(f"{base.name}: the error says {error}") from error
        return True
    if expected is None:
        raise Wrong(f"{base.name}: what is no record batch was read")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wanted) as writer:
        for batch in found:
            writer.write_batch(batch)
    sound = rows_of(base.entry, base.schema, wanted.names)
    demanded = [*sound, *expected, *sound]
    got = [row for batch in pa.ipc.open_stream(sink.getvalue()) for row in zip(*map(shown, batch.columns), strict=True)]
    if got != demanded:
        raise Wrong(f"{base.name}: {got} instead of {demanded}"[:2000])
    return False


def shown(column: pa.Array) -> list[Any]:
    """Values as ``plain_arrow`` has them."""
    kind, valid = column.type, column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        parts = [shown(column.field(i)) for i in range(kind.num_fields)]
        values: list[Any] = [tuple(part[row] for part in parts) for row in range(len(column))]
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        edges = column.offsets.to_pylist()
        parts = [shown(part) for part in ((column.keys, column.items) if pa.types.is_map(kind) else (column.values,))]
        child = list(zip(*parts, strict=True)) if pa.types.is_map(kind) else parts[0]
        values = [child[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    elif pa.types.is_decimal(kind):
        values = [None if v is None else int(v.scaleb(kind.scale)) for v in column.to_pylist()]
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        values = column.to_pylist()
    else:
        values = column.view({8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]).to_pylist()
    return [value if ok else None for value, ok in zip(values, valid, strict=True)]


# --- many cases --------------------------------------------------------------------------------------------------------------


def child(seed: int, first: int, last: int | None, seconds: float | None) -> None:
    play_each(lambda number: play(*case_of(random.Random(f"{seed}/{number}"), number)), first, last, seconds)


run = partial(run_cases, "tests.fuzz.entries")
