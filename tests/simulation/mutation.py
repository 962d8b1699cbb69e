"""Defines a mutation and puts it in force. The table is in mutations.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

NEAR = {
    "B-3": 17,
    "B-4": 12,
    "B-6 (restart)": 20,
    "B-7": 39,
    "B-10 (limbo)": 43,
    "B-10 (fence)": 118,
    "META-12": 19,
    "WR-7": 108,
    "WR-7 (domains)": 3,
    "WR-17 (restart)": 9,
    "EC-7 (too high)": 3,
    "EC-8": 8,
    "EC-10 (order)": 138,
    "EC-10 (no un-ack)": 9,
    "EC-11": 4,
    "CL-4": 15,
    "RC-6 (floor)": 30,
    "RC-6 (digest)": 39,
    "RC-8": 78,
    "RC-11": 56,
    "RC-16": 23,
    "G-6": 6,
    "G-8": 50,
    "RR-2": 18,
    "RR-5": 7,
    "LOG-1": 7,
    "LOG-6": 3,
    "LOG-11": 1,
    "LOG-11 (order)": 3,
    "LOG-11 (bounds)": 5,
    "LOG-12": 3,
    "LOG-13": 106,
    "LOG-18": 254,
    "LINK-5 (growth)": 226,
    "OWN-5 (deletion)": 16,
    "OWN-7 (list)": 331,
    "FS-5": 38,
    "FS-9 (next)": 5,
    "FS-12 (left)": 14,
    "FS-13 (acknowledged)": 30,
    "FS-13 (leases)": 8,
    "FS-15 (trims)": 1,
    "FS-15 (drops)": 7,
    "FS-16": 45,
}

Patch = tuple[Any, str, Any]  # class or module, name, replacement


@dataclass(frozen=True, slots=True)
class Mutation:
    rule: str
    what: str
    patches: tuple[Patch, ...]
    expected: tuple[str, ...]
    forced: dict[str, Any] = field(default_factory=dict)
    seeds: int = 2000

    @property
    def near(self) -> int:
        """A seed that noticed it when this was written; tests begin there."""
        return NEAR.get(self.rule, 0)


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The mutation is in force inside the block, in this process."""
    missing = object()
    for owner, name, _ in mutation.patches:
        getattr(owner, name)  # a rule that moved elsewhere must not look unbroken
    before = [(owner, name, owner.__dict__.get(name, missing)) for owner, name, _ in mutation.patches]
    try:
        for owner, name, replacement in mutation.patches:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            if original is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
