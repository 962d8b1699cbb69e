"""Tests of the judges that look for leftovers of checkpoints in ledgers."""

from __future__ import annotations

import pytest

from bk_core.client.files.upkeep import FileGcReport
from bk_core.errors import NotEnoughBookiesError
from tests.faults.stores import COLLECTIONS_MAX, finished

FAILED = FileGcReport(failed=((7, "no bookie answers"),))


def test_what_slow_bookies_held_up_is_no_leftover() -> None:
    reports = iter([FAILED, FAILED, FileGcReport(deleted=(7,))])
    assert finished(lambda: next(reports)).deleted == (7,)


def test_a_collection_that_no_bookie_answered_is_made_again() -> None:
    asked: list[int] = []

    def collect() -> FileGcReport:
        asked.append(1)
        if len(asked) == 1:
            raise NotEnoughBookiesError("none answers")
        return FileGcReport()

    assert finished(collect) == FileGcReport() and len(asked) == 2


def test_what_fails_each_time_is_told() -> None:
    reports = iter([FAILED] * COLLECTIONS_MAX)
    assert finished(lambda: next(reports)) == FAILED
    assert next(reports, None) is None


def test_no_bookie_at_any_time_is_an_error() -> None:
    def collect() -> FileGcReport:
        raise NotEnoughBookiesError("none answers")

    with pytest.raises(NotEnoughBookiesError):
        finished(collect)
