"""Finds the known names that a user may have meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import SequenceMatcher, get_close_matches
from os.path import commonprefix

from bk_core.errors import InvalidArgumentError

NEAR_MAX = 3
_TYPO = 2  # the letters that may be wrong in front of the same end
_ALIKE = 0.5  # the part of the letters in front of the same end that may be wrong, if more


def near_names(name: str, known: Iterable[str], most: int = NEAR_MAX) -> list[str]:
    """The known names that look like ``name``, at most ``most``, the nearest first; case does not count. The same end alone makes none
    near: many names of a kind have it."""
    by_letters: dict[str, list[str]] = {}
    for one in known:
        by_letters.setdefault(one.casefold(), []).append(one)
    letters = name.casefold()
    close = get_close_matches(letters, by_letters, max(1, len(by_letters)))
    return [one for found in close if _is_alike(letters, found) for one in by_letters[found]][:most]


def meant(name: str, known: Iterable[str], most: int = NEAR_MAX) -> str:
    """``did you mean 'this' or 'that'?``, or nothing."""
    near = near_names(name, known, most)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def meant_option(name: str, prefix: str, known: Sequence[str]) -> str:
    """The option of a URI that is like ``name``, or all of its kind. The prefix that all of a kind have makes none like another."""
    near = near_names(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known], 1)
    return f"did you mean '{prefix}{near[0]}'?" if near else f"there are {', '.join(known)}"


def _is_alike(one: str, other: str) -> bool:
    same = len(commonprefix([one[::-1], other[::-1]]))
    heads = one[: len(one) - same], other[: len(other) - same]
    return max(map(len, heads)) <= _TYPO or SequenceMatcher(None, *heads).ratio() >= _ALIKE


def check_names(given: Iterable[str], kind: type, what: str) -> None:
    """Raise InvalidArgumentError for names that are no fields of a dataclass, with what may have been meant."""
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            hint = meant(name, known, 1) or f"there are {', '.join(known)}"
            raise InvalidArgumentError(f"there is no {what} {name!r}; {hint}")
