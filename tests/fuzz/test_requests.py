"""Some hundred cases of bent requests, each kind of request with each byte bent, and planted defects that they must find."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from bk_core.bookie import loop
from bk_core.protocol.bookie.machine import BookieMachine
from tests.fuzz import requests

SEED = 20261


def test_bent_requests_do_no_harm() -> None:
    """SM-1, B-5: no crash, no hang; the same whether it comes whole or in pieces; honest peers are served."""
    result = requests.run(seed=SEED, cases=400)
    assert result.cases == 400 and not result.crashes, "\n".join(result.crashes)


def test_each_byte_of_each_request() -> None:
    rng = random.Random(SEED)
    with requests.world() as world:
        for number, frame in enumerate(requests.every_byte(7)):
            world.play(frame, rng, number)


def _that_dies(patch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw, of a number that is seldom seen."""
    real = BookieMachine.handle

    def handle(self: BookieMachine, tag: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(request, "entry_id", 0) == 2**63 - 1:
            raise ZeroDivisionError("a number")
        return real(self, tag, request, *arguments, **options)

    patch.setattr(BookieMachine, "handle", handle)


def _that_loses_a_byte(patch: pytest.MonkeyPatch) -> None:
    """A frame that came in pieces is put together wrongly."""
    real = loop.rest_of_frame

    def rest(buffer: bytearray, start: int, stop: int) -> bytearray:
        kept = real(buffer, start, stop)
        if stop - start > 30:
            kept[30] ^= 1
        return kept

    patch.setattr(loop, "rest_of_frame", rest)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("plant", [_that_dies, _that_loses_a_byte], ids=lambda plant: plant.__name__)
def test_planted_defects_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(requests, "ANSWER_S", 3.0)
    assert requests.run(seed=SEED, cases=60, crashes_max=1).crashes
