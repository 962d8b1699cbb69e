"""Errors of ``Log.write`` and ``Log.to_batches`` name arguments of Python. Spark's names of the same things are for Spark's users."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.errors import EntryTooLargeError, LogEntryError, NullValueError
from bk_spark.arrow import reading, writing
from bk_spark.entries import check, packing, unpacking
from bk_spark.entries.packing import pack_arrow, pack_raw
from tests.unit.spark.conftest import World

LARGE = 6 << 20
OF_SPARK = re.compile(r"the task|option|DataFrame|entrySize|maxBytesPerEntry|Offsets|mergeSchema|failOnDataLoss|df\.|takeOver")


@pytest.fixture
def client(world: World) -> bk_core.BookKeeper:
    found: bk_core.BookKeeper = world.client
    return found


def one_row(size: int) -> pa.Table:
    return pa.table({"text": ["x" * size]})


@pytest.mark.parametrize(
    ("entry_format", "rows", "settings", "error", "said"),
    [
        ("arrow", one_row(LARGE), {}, EntryTooLargeError, r'row 0 of the data would be .*compression="zstd".* entry_size does not help'),
        ("arrow", one_row(LARGE), {"compression": "zstd"}, EntryTooLargeError, "row 0 of the data has .* reads take at most 5,000,000"),
        ("raw", pa.table({"value": [b"", b"x" * LARGE]}), {}, EntryTooLargeError, "row 1 of the data would be an entry of 6291456 bytes"),
        ("raw", pa.table({"value": [b"", None]}), {}, NullValueError, "row 1 of the data has a null value"),
    ],
    ids=["large", "wide", "raw", "null"],
)
def test_rows_that_cannot_be_written_are_told_in_pythons_words(
    client: bk_core.BookKeeper,
    monkeypatch: pytest.MonkeyPatch,
    entry_format: Any,
    rows: pa.Table,
    settings: dict[str, Any],
    error: type[bk_core.BkError],
    said: str,
) -> None:
    if settings:  # a row of 256 MiB would do
        bounded: Callable[..., Any] = lambda *given, **words: pack_arrow(*given, entry_bytes_max=5_000_000, **words)  # noqa: E731
        monkeypatch.setattr(writing, "pack_arrow", bounded)
    log = client.create_log("log", entry_format=entry_format)
    with pytest.raises(error, match=said) as told:
        log.write(rows, **settings)
    assert not OF_SPARK.search(str(told.value)), told.value
    with pytest.raises(error) as by_spark:  # the same rows by Spark's sink
        packed = pack_raw(rows.to_batches()) if entry_format == "raw" else pack_arrow(rows.to_batches(), rows.schema, 1 << 18)
        assert list(packed)
    assert "of the task" in str(by_spark.value) and "of the data" not in str(by_spark.value)


@pytest.mark.parametrize("wide", [False, True])
def test_entries_that_cannot_be_read_are_told_in_pythons_words(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    log = client.create_log("log", schema="text STRING")
    if wide:
        log.write(one_row(10_000))
        monkeypatch.setattr(reading, "BYTES_PER_ENTRY_MAX", 5_000)
    else:
        with log.writer(arrow_entries=True) as writer:
            writer.append(pa.record_batch({"a": [1], "b": [1]}).serialize().to_pybytes())
    with pytest.raises(LogEntryError, match="start and end of the read leave it out, client.open_ledger gives its bytes") as told:
        log.to_arrow()
    assert not OF_SPARK.search(str(told.value)), told.value
    assert not wide or "reads take at most 5,000" in str(told.value)


def test_no_word_of_the_shared_code_is_left_without_a_choice() -> None:
    """A new message of the shared code has to be told in both vocabularies."""
    for module in (packing, unpacking, check):
        with open(module.__file__ or "", encoding="utf-8") as file:
            code = re.sub(r'"""(?s:.*?)"""', "", file.read())
        texts = re.findall(r'f?"[^"\n]*"', re.sub(r"#.*", "", code))
        assert texts and not [text for text in texts if OF_SPARK.search(text)]
