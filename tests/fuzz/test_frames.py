"""Some hundred cases of bent answers (README.md), and planted defects that they must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bk_core import kernels
from bk_core.net.link import BookieLink
from bk_core.protocol.entry import layout
from tests.fuzz import frames

SEED = 20260


def test_bent_answers_do_no_harm() -> None:
    """RD-8, SM-3: no crash, no hang, no wrong data; honest replicas are used."""
    result = frames.run(seed=SEED, cases=25)
    assert result.cases == 25 and result.inputs > 120
    assert not result.crashes, "\n".join(result.crashes)


def _without_digests(patch: pytest.MonkeyPatch) -> None:
    """Bodies are taken as they are."""

    def decode_body(body: Any, ledger_id: int, entry_id: int | None, digest_type: Any, key: bytes = b"") -> layout.Entry:
        payload = bytes(body)[layout.body_overhead(digest_type) :]
        return layout.Entry(ledger_id, entry_id or 0, -1, 0, payload)

    patch.setattr(layout, "decode_body", decode_body)


def _without_end(patch: pytest.MonkeyPatch) -> None:
    """A link that goes on whatever it was sent."""
    real: Callable[..., None] = BookieLink._drop

    def drop(self: BookieLink, status: Any, why: str, **options: Any) -> None:
        if self._closed:
            real(self, status, why, **options)

    patch.setattr(BookieLink, "_drop", drop)


def _with_a_surprise(patch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw, of numbers that are seldom seen."""
    real = kernels.scan_responses

    def scan(buffer: Any, start: int, stop: int, limit: int) -> Any:
        found = real(buffer, start, stop, limit)
        if any(item[2] < -1 or item[2] > 2**31 for item in found[0]):
            raise ZeroDivisionError("a number")
        return found

    patch.setattr(kernels, "scan_responses", scan)


@pytest.mark.parametrize(
    "plant", [_without_digests, pytest.param(_without_end, marks=pytest.mark.deep), _with_a_surprise], ids=lambda plant: plant.__name__
)
def test_planted_defects_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds each defect that is planted; otherwise it would prove nothing."""
    plant(monkeypatch)
    monkeypatch.setattr(frames, "BOUND_S", 3.0)  # a case that hangs is one that was found
    assert frames.run(seed=SEED, cases=400, crashes_max=1).crashes, "400 cases did not notice it"
