"""The rows of an Arrow record batch message, told without pyarrow, as pyarrow tells them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bk_core.protocol.log.record_batches import rows_of

CODECS = st.sampled_from([None, "zstd", "lz4"])


def message(rows: int, columns: int, codec: str | None) -> bytes:
    batch = pa.record_batch({f"c{i}": pa.array([f"{i} {row}" for row in range(rows)], pa.string()) for i in range(columns)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_batch(batch)
    _, written = pa.ipc.MessageReader.open_stream(sink.getvalue())
    payload: bytes = written.serialize().to_pybytes()
    return payload


@given(rows=st.integers(0, 300), columns=st.integers(1, 5), codec=CODECS)
def test_rows_are_those_of_arrow(rows: int, columns: int, codec: str | None) -> None:
    payload = message(rows, columns, codec)
    assert rows_of(payload) == rows_of(memoryview(bytearray(payload))) == rows


@given(cut=st.integers(0, 400), at=st.integers(0, 400), value=st.integers(0, 255))
def test_no_bytes_are_an_error(cut: int, at: int, value: int) -> None:
    payload = bytearray(message(3, 2, None))
    payload[at % len(payload)] = value
    for bad in (bytes(payload), bytes(payload[:cut]), bytes(payload[cut:])):
        found = rows_of(bad)
        assert found is None or isinstance(found, int)


def test_what_is_no_record_batch_has_no_rows() -> None:
    schema = pa.schema([("a", pa.int64())]).serialize().to_pybytes()
    assert [rows_of(bad) for bad in (b"", b"hello", b"\xff" * 64, schema, schema[:20])] == [None] * 5
    backwards = b"\xff\xff\xff\xff\x10\0\0\0" + b"\x04\0\0\0" + b"\xff\xff\xff\x7f" + b"\0" * 8  # a table before the metadata
    assert rows_of(backwards) is None
