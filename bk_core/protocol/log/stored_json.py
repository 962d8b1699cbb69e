"""Reads JSON that somebody else may have written: in a metadata store, a checkpoint, an option. There is one kind of error, whatever it
holds."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(data: str | bytes, *, unique: bool = False) -> Any:
    """Return the value of a JSON text. Raises ValueError for other text, for nesting beyond what Python follows, and for numbers that are
    none (NaN, 1e999).

    With ``unique`` it also raises for an object that has a key twice, because another reader may take the other value.
    """
    try:
        return json.loads(data, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once if unique else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if abs(value) != float("inf") else _no_number(text[:40])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found
