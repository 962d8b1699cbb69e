"""Entries that pass their digest and are not what they say: each kind of lie is one clear error, before anything touches it."""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from bk_core.errors import EntryTooLargeError, LogEntryError
from bk_spark.entries.check import BadEntryError, EntryCheck
from bk_spark.entries.flatbuffer import FlatBuffer
from bk_spark.entries.packing import pack_arrow
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.unpacking import arrow_batches

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
BATCH = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), pa.array(["abcdef", "ghijkl", None])], schema=SCHEMA)
SECRET = b"\xa5SECRET" * 200_000
Bend = Callable[[bytearray, "Places"], None]


class Places:
    """The places of the numbers of an entry."""

    def __init__(self, entry: bytes) -> None:
        metadata = struct.unpack_from("<i", entry, 4)[0]
        message = FlatBuffer(entry[8 : 8 + metadata]).root()
        batch = message.table(2)
        assert batch is not None
        self.metadata, self.body = 8, 8 + metadata
        self.rows, self.body_length = (8 + (at or 0) for at in (batch.place(0, 8), message.place(3, 8)))
        self.version = 8 + (message.place(0, 2) or 0)
        self.nodes, self.buffers = (8 + batch.items(slot, 16)[0] for slot in (1, 2))

    def buffer(self, entry: bytes, number: int) -> int:
        """Return the place in the entry where its bytes begin."""
        return self.body + int(struct.unpack_from("<q", entry, self.buffers + 16 * number)[0])


def entry_of(batch: pa.RecordBatch = BATCH, compression: str = "none") -> bytes:
    (run,) = pack_arrow([batch], batch.schema, 1 << 20, compression)
    return bytes(run.payloads)


def bent(change: Bend, batch: pa.RecordBatch = BATCH, compression: str = "none") -> bytes:
    entry = bytearray(entry_of(batch, compression))
    change(entry, Places(bytes(entry)))
    return bytes(entry)


def read(
    *entries: bytes, schema: pa.Schema = SCHEMA, wanted: pa.Schema | None = None, origin: EntryRange | None = None, **more: Any
) -> Any:
    """From memory with a secret behind it."""
    edges = array("q", [0])
    for entry in entries:
        edges.append(edges[-1] + len(entry))
    values = memoryview(bytearray(b"".join(entries) + SECRET))[: edges[-1]]
    run = SimpleNamespace(first_entry_id=7, count=len(entries), values=values, offsets=memoryview(edges))
    target = schema if wanted is None else wanted
    return pa.Table.from_batches(arrow_batches(target, [run], stored=schema, origin=origin, **more), schema=target)


def put(form: str, at: str, value: int, shift: int = 0) -> Bend:
    return lambda entry, places: struct.pack_into(form, entry, getattr(places, at) + shift, value)


def offsets(*values: int) -> Bend:
    """Bend the offsets of column ``text``."""
    return lambda entry, places: struct.pack_into(f"<{len(values)}i", entry, places.buffer(entry, 3), *values)


def text(value: bytes) -> Bend:
    def change(entry: bytearray, places: Places) -> None:
        at = places.buffer(entry, 4)
        entry[at : at + len(value)] = value

    return change


def cut(size: int) -> Bend:
    def change(entry: bytearray, places: Places) -> None:
        del entry[size:]

    return change


def longer(entry: bytearray, places: Places) -> None:
    entry += bytes(8)


LIES: dict[str, Bend] = {
    "an offset behind the values": offsets(0, 6, 60_000, 12),
    "an offset far behind the values": offsets(0, 6, 400_000_000, 12),
    "a negative offset": offsets(0, 6, 12, -5),
    "offsets that fall": offsets(0, 9, 6, 12),
    "offsets that begin below 0": offsets(-4, 6, 12, 12),
    "offsets that begin far behind": offsets(60_000, 60_006, 60_012, 60_012),
    "a text that is not UTF-8": text(b"\xff\xfe"),
    "a character cut in two": text(b"abcde\xc3"),
    "more rows": put("<q", "rows", 4),
    "many rows": put("<q", "rows", 1 << 40),
    "fewer rows than none": put("<q", "rows", -1),
    "a longer column": put("<q", "nodes", 1 << 20),
    "a column of more than 32 bits": put("<q", "nodes", 1 << 33),
    "more nulls than values": put("<q", "nodes", 9, 24),
    "nulls that nobody counted": put("<q", "nodes", -1, 24),
    "nulls without a bitmap": put("<q", "nodes", 1, 8),
    "a wrong number of nulls": put("<q", "nodes", 3, 24),
    "a buffer behind the body": put("<q", "buffers", 1 << 16, 16),
    "a buffer before the body": put("<q", "buffers", -8, 16),
    "a buffer of negative length": put("<q", "buffers", -8, 24),
    "a buffer longer than the body": put("<q", "buffers", 1 << 20, 24),
    "a buffer too short": put("<q", "buffers", 8, 24),
    "two columns in one buffer": put("<q", "buffers", 0, 48),
    "a longer body": put("<q", "body_length", 1 << 20),
    "a body of negative length": put("<q", "body_length", -8),
    "longer metadata": put("<i", "metadata", 1 << 20, -4),
    "metadata of negative length": put("<i", "metadata", -8, -4),
    "no metadata, which ends a stream": put("<i", "metadata", 0, -4),
    "no mark": put("<i", "metadata", 0, -8),
    "another version, in which compression is told elsewhere": put("<h", "version", 3),
    "a version of the future": put("<h", "version", 5),
    "metadata that point out": put("<I", "metadata", 1 << 20),
    "metadata that point to themselves": put("<I", "metadata", 0),
    "an entry cut in its metadata": cut(40),
    "an entry cut in its body": cut(-8),
    "an entry of a few bytes": cut(5),
    "no bytes": cut(0),
    "bytes behind the body": longer,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("wanted", [SCHEMA, pa.schema([SCHEMA.field("text")])], ids=["all", "one"])
def test_each_lie_is_an_error_that_names_the_entry(lie: str, wanted: pa.Schema) -> None:
    origin = EntryRange(42, 7, 9, 0, log="flights")
    with pytest.raises(LogEntryError, match="entry 8 of ledger 42 of log 'flights'") as caught:
        read(entry_of(), bent(LIES[lie]), entry_of(), wanted=wanted, origin=origin)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.context == {"entry": 8, "ledger": 42, "log": "flights"} and not error.retriable and "SECRET" not in str(error)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("lie", [lie for lie, change in LIES.items() if change.__qualname__.split(".")[0] not in ("offsets", "text")])
def test_compressed_entries_lie_in_vain_too(lie: str, codec: str) -> None:
    with pytest.raises(LogEntryError, match="entry 8"):
        read(entry_of(compression=codec), bent(LIES[lie], compression=codec))


def test_a_schema_message_is_no_entry() -> None:
    for other in (SCHEMA.serialize().to_pybytes(), entry_of(BATCH.select(["id"]))):
        with pytest.raises(LogEntryError, match="entry 8"):
            read(entry_of(), other)


def test_what_is_sound_is_read() -> None:
    got = read(entry_of(), entry_of(compression="zstd"), entry_of(BATCH.slice(1)), entry_of(compression="lz4"))
    assert got.equals(pa.Table.from_batches([BATCH, BATCH, BATCH.slice(1), BATCH]))


# --- other types -------------------------------------------------------------------------------------------------------------


def one(array_: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array_], ["c"])


def values_of(number: int, form: str, *values: int) -> Bend:
    return lambda entry, places: struct.pack_into(f"<{len(values)}{form}", entry, places.buffer(entry, number), *values)


def null_of(node: int, buffer: int, before: int) -> Bend:
    """The first value of a child without nulls becomes null: its node says so, and the bitmap takes the place of the ``before`` buffer."""

    def change(entry: bytearray, places: Places) -> None:
        struct.pack_into("<q", entry, places.nodes + 16 * node + 8, 1)
        begin, _ = struct.unpack_from("<qq", entry, places.buffers + 16 * buffer)
        assert begin % 8 == 0 and before == buffer
        entry[places.body + begin : places.body + begin] = b"\xfe" + bytes(7)
        struct.pack_into("<q", entry, places.buffers + 16 * buffer + 8, 8)
        later = range(buffer + 1, struct.unpack_from("<I", entry, places.buffers - 4)[0])
        for number in later:
            at = places.buffers + 16 * number
            struct.pack_into("<q", entry, at, struct.unpack_from("<q", entry, at)[0] + 8)
        struct.pack_into("<q", entry, places.body_length, struct.unpack_from("<q", entry, places.body_length)[0] + 8)

    return change


VARIANT = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
TYPED: dict[str, tuple[pa.Array, Bend]] = {
    "a list beyond its elements": (pa.array([[1], [2, 3]]), values_of(1, "i", 0, 1, 4000)),
    "a list that ends before it begins": (pa.array([[1], [2, 3]]), values_of(1, "i", 0, 3, 1)),
    "fewer elements than a list has": (pa.array([[1], [2, 3]]), put("<q", "nodes", 2, 16)),
    "a map beyond its entries": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), values_of(1, "i", 0, 1, 77)),
    "a key that is null": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), null_of(2, 3, 3)),
    "a variant without its value": (pa.array([{"value": b"v", "metadata": b"m"}] * 2, VARIANT), null_of(1, 1, 1)),
    "a field longer than its struct": (pa.array([{"a": 1}, {"a": 2}]), put("<q", "nodes", 3, 16)),
    "a field shorter than its struct": (pa.array([{"a": 1}, {"a": 2}]), put("<q", "nodes", 1, 16)),
    "a decimal of too many digits": (
        pa.array([1, 2]).cast(pa.decimal128(20, 0)).cast(pa.decimal128(5, 0)),
        values_of(1, "q", 100_000, 0, 1, 0),
    ),
    "the least decimal, whose magnitude overflows": (
        pa.array([1, 2]).cast(pa.decimal128(20, 0)).cast(pa.decimal128(5, 0)),
        values_of(1, "q", 0, -(2**63), 1, 0),
    ),
    "the least decimal within a list": (
        pa.array([[Decimal("1.5")], [None]], pa.list_(pa.decimal128(5, 1))),
        values_of(3, "q", 0, -(2**63)),
    ),
    "the least decimal within a struct": (
        pa.array([{"a": Decimal("1.5")}, {"a": None}], pa.struct([("a", pa.decimal128(5, 1))])),
        values_of(2, "q", 0, -(2**63)),
    ),
    "a time beyond the day": (pa.array([1, 2], pa.time64("ns")), values_of(1, "q", 86_400_000_000_000, 1)),
    "a time before the day": (pa.array([1, 2], pa.time64("ns")), values_of(1, "q", -1, 1)),
    "flags without a byte": (pa.array([True] * 9), put("<q", "buffers", 1, 24)),
}


@pytest.mark.parametrize("lie", TYPED)
def test_typed_values_are_looked_at(lie: str) -> None:
    column, change = TYPED[lie]
    batch = one(column)
    assert read(entry_of(batch), schema=batch.schema).num_rows == len(column)
    with pytest.raises(LogEntryError, match="entry 8"):
        read(entry_of(batch), bent(change, batch), schema=batch.schema)


def test_a_null_over_the_least_decimal_is_sound() -> None:
    batch = one(pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)))
    hidden = bent(lambda entry, places: struct.pack_into("<qq", entry, places.buffer(entry, 1) + 16, 0, -(2**63)), batch)
    assert read(hidden, schema=batch.schema).column("c").to_pylist() == [Decimal("1.5"), None]


def test_a_null_variant_is_sound() -> None:
    batch = one(pa.array([{"value": b"v", "metadata": b"m"}, None], VARIANT))
    assert read(entry_of(batch), schema=batch.schema).column("c").to_pylist() == [{"value": b"v", "metadata": b"m"}, None]


# --- rows --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "rows", "sound"),
    [
        (EntryRange(1, 7, 8, 0, rows=5, rows_per_entry=3), (3, 2), True),
        (EntryRange(1, 7, 8, 0, rows=6, rows_per_entry=3), (3, 2), False),
        (EntryRange(1, 7, 8, 0, rows=5, rows_per_entry=3), (2, 3), False),
        (EntryRange(1, 7, 8, 0, rows=4, rows_per_entry=3, skip_rows=1), (3, 2), True),
        (EntryRange(1, 7, 8, 0, rows=4, rows_per_entry=3, last_rows=1), (3, 2), True),
        (EntryRange(1, 7, 8, 0, rows=6, rows_per_entry=3, last_rows=3), (3, 2), False),
        (EntryRange(1, 7, 8, 0, rows_per_entry=3), (3, 1), True),
        (EntryRange(1, 7, 8, 0, rows_per_entry=2), (2, 3), False),
        (EntryRange(1, 7, 8, 0), (1, 3), True),
    ],
)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_entry_has_the_rows_that_the_list_says(origin: EntryRange, rows: tuple[int, ...], sound: bool, codec: str) -> None:
    entries = [entry_of(BATCH.slice(0, count), codec) for count in rows]
    if sound:
        assert read(*entries, origin=origin).num_rows == sum(rows)
    else:
        with pytest.raises(LogEntryError, match="rows, and the log's list says"):
            read(*entries, origin=origin)


# --- size --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_is_decompressed(codec: str) -> None:
    batch = one(pa.array([b"\0" * (64 << 20)], pa.binary()))
    entry = entry_of(batch, codec)
    assert len(entry) < 300_000
    before = pa.total_allocated_bytes()
    pa.default_memory_pool().release_unused()
    for more in ({"entry_bytes_max": 1 << 20}, {"entry_bytes_max": (64 << 20) - 1}):
        with pytest.raises(LogEntryError, match="maxBytesPerEntry"):
            read(entry, schema=batch.schema, **more)
    assert pa.total_allocated_bytes() == before
    assert read(entry, schema=batch.schema).num_rows == 1


def test_rows_that_weigh_nothing_are_no_way_around() -> None:
    for column in (pa.nulls(1000), pa.array([{}] * 1000, pa.struct([]))):
        entry = entry_of(one(column))
        with pytest.raises(LogEntryError, match="maxBytesPerEntry"):
            read(entry, schema=one(column).schema, entry_bytes_max=999)
    inner = one(pa.array([[None] * 9], pa.list_(pa.null())))

    def many(data: bytearray, places: Places) -> None:
        struct.pack_into("<q", data, places.nodes + 16, 1 << 30)
        struct.pack_into("<q", data, places.nodes + 24, 1 << 30)
        struct.pack_into("<i", data, places.buffer(data, 1) + 4, 1 << 30)

    with pytest.raises(LogEntryError, match="maxBytesPerEntry"):
        read(bent(many, inner), schema=inner.schema)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("declared", [1, 8, 23_999, 24_001, 40_000, 1 << 60, 0, -1, -2, -(1 << 63)])
def test_a_wrong_declared_size_is_an_error(codec: str, declared: int) -> None:
    """24,000 bytes of numbers. -1 says that they are as they are, which makes them too few."""
    batch = one(pa.array([1] * 3000, pa.int64()))
    entry = bytearray(entry_of(batch, codec))
    at = Places(bytes(entry)).buffer(entry, 1)
    assert struct.unpack_from("<q", entry, at) == (24_000,)
    struct.pack_into("<q", entry, at, declared)
    with pytest.raises(LogEntryError):
        read(bytes(entry), schema=batch.schema)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_row_that_no_read_would_take_is_not_written(codec: str) -> None:
    """Rows of 1,000 bytes where an entry may have 2,500: two share an entry, and none that is larger gets into one."""
    batch = one(pa.array([b"x" * 1000] * 6, pa.binary()))
    runs = list(pack_arrow([batch], batch.schema, 1 << 20, codec, entry_bytes_max=2500))
    assert sum(run.rows for run in runs) == 6 and max(run.rows_per_entry for run in runs) == 2
    for run in runs:
        found = SimpleNamespace(first_entry_id=0, count=run.count, values=bytes(run.payloads), offsets=memoryview(run.offsets))
        assert sum(b.num_rows for b in arrow_batches(batch.schema, [found], entry_bytes_max=2500)) == run.rows
    wide = one(pa.array([b"x", b"x" * 5000], pa.binary()))
    with pytest.raises(EntryTooLargeError, match=r"row 1 of the task has 5,0.. bytes, and maxBytesPerEntry is 2,500"):
        list(pack_arrow([wide], wide.schema, 1 << 20, codec, entry_bytes_max=2500))


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_the_bytes_of_an_entry_are_those_that_arrow_adds_up(codec: str) -> None:
    """The sizes of all columns, of some, and of nested ones decide how much is joined to one batch."""
    table = pa.record_batch(
        {
            "id": pa.array(range(640), pa.int64()),
            "text": [f"text {i}" for i in range(640)],
            "some": [None if i % 3 else i for i in range(640)],
            "list": pa.array([[i] * (i % 4) for i in range(640)], pa.list_(pa.field("element", pa.int64()))),
            "box": pa.array([{"a": i % 100, "b": "x" * (i % 5)} for i in range(640)], pa.struct([("a", pa.int8()), ("b", pa.string())])),
        }
    )
    (run,) = pack_arrow([table], table.schema, 1 << 20, codec)
    payload = bytes(run.payloads)
    for wanted in (None, [0], [1], [3, 4], [0, 1, 2, 3, 4]):
        part = table if wanted is None else table.select(wanted)
        assert EntryCheck(table.schema, 1 << 20, wanted=wanted).shape(payload, 0, len(payload)).bytes == pytest.approx(
            part.nbytes, rel=0.01
        )


# --- the reader of metadata --------------------------------------------------------------------------------------------------


def test_metadata_of_one_form_are_parsed_once_and_only_then() -> None:
    """The parts that differ from entry to entry are checked in each; where the form itself differs, it is read anew."""
    check = EntryCheck(SCHEMA, 1 << 20)
    for rows in (3, 2, 1, 3):
        assert check.shape(entry_of(BATCH.slice(0, rows)), 0, len(entry_of(BATCH.slice(0, rows)))).rows == rows
    assert check.shape(entry_of(compression="zstd"), 0, len(entry_of(compression="zstd"))).compressed
    for lie in LIES.values():
        entry = bent(lie)
        try:
            check.shape(entry, 0, len(entry))
        except BadEntryError:
            pass
        assert check.shape(entry_of(), 0, len(entry_of())).rows == 3


def test_a_table_that_shares_bytes_with_what_changes_is_refused() -> None:
    """Else what one entry says of its form would be taken for that of another."""
    entry = bytearray(entry_of())
    places = Places(bytes(entry))
    (nodes,) = struct.unpack_from("<I", entry, places.nodes - 4)
    assert nodes == 2
    batch = FlatBuffer(bytes(entry[8 : places.body])).root().table(2)
    assert batch is not None
    vector = 8 + (batch.place(1, 4) or 0)
    struct.pack_into("<I", entry, vector, places.rows - vector)  # the vector of nodes begins where the number of rows is
    struct.pack_into("<I", entry, places.rows, 2)
    with pytest.raises(LogEntryError):
        read(bytes(entry))
