"""Durations and sizes as people write them."""

from __future__ import annotations

import re

import click

_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NEVER = ("none", "never", "forever")


class Duration(click.ParamType[int]):
    """Milliseconds from a text such as 90s, 12h or 7d; with ``optional`` also "none", which is -1."""

    name = "duration"

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self._optional and str(value).lower() in _NEVER:
            return -1
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is no duration such as 90s, 30m, 12h, 7d" + (", or none" if self._optional else ""), param, ctx)
        return int(float(found[1]) * _DURATIONS_MS[found[2]])


class Size(click.ParamType[int]):
    """Bytes from a text such as 500MB (powers of 1000) or 10GiB (of 1024); with ``optional`` also "none", which is -1."""

    name = "size"

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self._optional and str(value).lower() in _NEVER:
            return -1
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?)B?", str(value).strip().upper())
        if found is None or (found[3] and not found[2]):
            self.fail(f"{value!r} is no size such as 500MB, 10GiB or 123456" + (", or none" if self._optional else ""), param, ctx)
        return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2]])
