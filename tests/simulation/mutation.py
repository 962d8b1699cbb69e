"""Defines a mutation and puts it in force. The table is in mutations.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

NEAR = {
    "B-3": 17,
    "B-4": 12,
    "B-6 (restart)": 74,
    "B-7": 39,
    "B-10 (limbo)": 88,
    "B-10 (fence)": 118,
    "META-12": 88,
    "WR-2": 24,
    "WR-7": 148,
    "WR-7 (domains)": 7,
    "WR-17 (Qa)": 6,
    "WR-17 (restart)": 56,
    "EC-7 (too high)": 53,
    "EC-7 (too low)": 3,
    "EC-8": 9,
    "EC-10 (order)": 142,
    "EC-10 (no un-ack)": 9,
    "EC-11": 25,
    "CL-4": 86,
    "RC-2": 40,
    "RC-5": 5,
    "RC-6 (floor)": 30,
    "RC-6 (digest)": 39,
    "RC-8": 161,
    "RC-10 (QC - 1)": 19,
    "RC-10 (one)": 11,
    "RC-11": 116,
    "RC-15": 30,
    "RC-16": 37,
    "G-6": 13,
    "G-8": 150,
    "B-2": 9,
    "RR-2": 29,
    "RR-5": 7,
    "RR-7": 2,
    "LOG-1": 14,
    "LOG-6": 4,
    "LOG-7": 4,
    "LOG-18": 254,
    "LOG-15": 5,
    "LOG-11": 1,
    "LOG-11 (order)": 3,
    "LOG-11 (bounds)": 5,
    "LOG-12": 3,
    "LOG-13": 106,
    "LOG-16": 1,
    "LINK-1": 13,
    "LINK-2": 27,
    "LINK-3": 16,
    "LINK-3 (adds)": 2,
    "LINK-4": 2,
    "LINK-4 (too many)": 2,
    "LINK-4 (moved)": 1,
    "LINK-5": 2,
    "LINK-5 (growth)": 226,
    "LINK-7": 2,
    "LINK-7 (for ever)": 2,
    "LINK-8": 5,
    "LINK-9": 2,
    "SES-1": 3,
    "SES-2": 1,
    "SES-3": 1,
    "JAN-1": 5,
    "JAN-2": 70,
    "OWN-5 (number)": 5,
    "OWN-5 (deletion)": 21,
    "OWN-6 (standing)": 8,
    "OWN-7 (list)": 331,
    "OWN-8 (writers)": 131,
    "FS-5": 38,
    "FS-6": 1,
    "FS-9 (next)": 5,
    "FS-11 (never)": 1,
    "FS-12 (left)": 18,
    "FS-13 (acknowledged)": 30,
    "FS-13 (leases)": 11,
    "FS-15 (trims)": 1,
    "FS-15 (drops)": 7,
    "FS-16 (list)": 10,
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
