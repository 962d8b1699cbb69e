"""Durations, sizes and numbers as people write them."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import click

from bk_core.arguments import brief
from bk_core.display.words import DURATIONS_MS, POWERS

_NEVER = ("none", "never", "forever")
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"


class Number(click.FloatRange):
    """A finite number within bounds. Click takes nan for one that is within any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{brief(value)} is no finite number", param, ctx)
        return found


class _Amount(click.ParamType[int]):
    """A whole number of units from a text; with ``optional`` also "none", which is -1."""

    examples = ""

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self._optional and str(value).lower() in _NEVER:
            return -1
        amount = self._parsed(str(value).strip())
        if amount is None:
            self.fail(f"{brief(value)} is no {self.name} such as {self.examples}" + (", or none" if self._optional else ""), param, ctx)
        return amount

    def _parsed(self, text: str) -> int | None:
        """Return the amount, or None if the text is none of this kind."""
        raise AssertionError


class Duration(_Amount):
    """Milliseconds from a text such as 90s, 12h or 7d."""

    name = "duration"
    examples = "90s, 30m, 12h, 7d"

    def _parsed(self, text: str) -> int | None:
        found = re.fullmatch(rf"{_NUMBER}\s*(ms|s|m|h|d|w)", text.lower())
        return None if found is None else int(Fraction(found[1]) * DURATIONS_MS[found[2]])


class Size(_Amount):
    """Bytes from a text such as 500MB (powers of 1000) or 10GiB (of 1024)."""

    name = "size"
    examples = "500MB, 10GiB or 123456"

    def _parsed(self, text: str) -> int | None:
        found = re.fullmatch(rf"{_NUMBER}\s*([KMGTP]?)(I?)B?", text.upper())
        if found is None or (found[3] and not found[2]):
            return None
        return int(Fraction(found[1]) * (1024 if found[3] else 1000) ** POWERS[found[2]])
