"""Some hundred entries that are no longer what was written (README.md), and planted defects that they must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from bk_spark.entries.check import EntryCheck
from bk_spark.entries.unpacking import _Decoder
from bk_spark.entries.values import ValueCheck
from tests.fuzz import children, entries

SEED = 20262


def test_bent_entries_do_no_harm() -> None:
    """The rows that the bytes mean or one error, no crash, no foreign memory."""
    result = entries.run(seed=SEED, first=entries.EACH_BYTE, cases=400)
    assert result.cases == 400 and result.refused > 200
    assert not result.crashes, "\n".join(result.crashes)


def test_each_byte_of_some_entries() -> None:
    """All of them are some ten thousand; each run of the tests takes every 25th."""
    refused = 0
    for number in range(SEED % 25, entries.EACH_BYTE, 25):
        refused += entries.play(*entries.case_of(random.Random(f"{SEED}/{number}"), number))
    assert refused > entries.EACH_BYTE // 50


def test_bits_that_nobody_reads_need_not_be_any() -> None:
    """A column that says it has no nulls, before a validity buffer that cannot be decompressed: Arrow does not look at it."""
    entries.play(*entries.case_of(random.Random("208080350/19089"), 19089))


def test_a_process_that_dies_is_a_crash_of_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    result = children.run_cases("tests.fuzz.dying", seed=7, cases=5, say=told.append)
    assert result.cases == 5 and result.refused == 4 and len(result.crashes) == 1
    assert told == result.crashes and "seed 7 case 2: the process ended with -" in told[0]


def _without_full_validation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ValueCheck, "check", lambda self, batch: batch.validate())


def _with_rows_of_another_entry(patch: pytest.MonkeyPatch) -> None:
    real = _Decoder._whole

    def turned(self: _Decoder, run: Any) -> Iterator[pa.RecordBatch]:
        first, *others = real(self, run)
        yield from (*others, first)

    patch.setattr(_Decoder, "_whole", turned)


def _with_a_surprise(patch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw, of a lie that is seldom told."""
    real = EntryCheck._check_lengths

    def check(self: EntryCheck, rows: int, lengths: tuple[int, ...], nulls: tuple[int, ...]) -> None:
        if rows < -1:
            raise ZeroDivisionError("a number")
        real(self, rows, lengths, nulls)

    patch.setattr(EntryCheck, "_check_lengths", check)


@pytest.mark.parametrize(
    "plant", [_without_full_validation, _with_rows_of_another_entry, _with_a_surprise], ids=lambda plant: plant.__name__
)
def test_planted_defects_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what is planted here does not crash."""
    plant(monkeypatch)
    for number in range(entries.EACH_BYTE, entries.EACH_BYTE + 2000):
        try:
            entries.play(*entries.case_of(random.Random(f"{SEED}/{number}"), number))
        except (entries.Wrong, pa.ArrowException, ValueError, ArithmeticError):
            return
    raise AssertionError("2000 cases did not notice it")
