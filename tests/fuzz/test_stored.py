"""Some hundred texts that somebody edited (README.md), and planted defects that they must find."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from bk_core.protocol.log import codec
from bk_spark import schemas
from tests.fuzz import stored

SEED = 20263


def test_edited_texts_do_no_harm() -> None:
    """An error of ours, or what is stored again as it is; no crash."""
    result = stored.run(seed=SEED, cases=600)
    assert result.cases == 600 and result.refused > 200
    assert not result.crashes, "\n".join(result.crashes)


def _that_follows_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "loads", json.loads)


def _that_asks_arrow_first(patch: pytest.MonkeyPatch) -> None:
    def check(data: bytes) -> None:
        if len(data) % 8 == 0 and data[8] > 64:
            raise ZeroDivisionError("a number")

    patch.setattr(schemas.stored_schema, "check_arrow_schema", check)


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("plant", [_that_follows_without_end, _that_asks_arrow_first], ids=lambda plant: plant.__name__)
def test_planted_defects_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for number in range(40_000):
        try:
            stored.play(random.Random(f"{SEED}/{number}"))
        except (stored.Wrong, RecursionError, ArithmeticError, TypeError):
            return
    raise AssertionError("40,000 cases did not notice it")
