"""Decides if a bookie may believe that a ledger is gone, because an empty or a foreign metadata store denies every ledger."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Sight(Enum):
    """The result of a look at the metadata store."""

    HOME = "the cluster that this bookie has signed in to"
    GONE = "no such cluster: the metadata store has lost it, or never had it"
    FOREIGN = "another cluster"


def judge_cluster(signed: str | None, found: str | None, differences: Collection[str] | None) -> Sight:
    """Compare the instance id and the cookie with those that the bookie signed (BKE-1).

    ``signed`` and ``found`` are instance ids, None in a cluster without one. ``differences`` are the fields in which the store's cookie of
    this bookie differs from its own, None if the store has no cookie of it.
    """
    if found is not None and found != signed:
        return Sight.FOREIGN
    if found != signed or differences is None:
        return Sight.GONE
    return Sight.FOREIGN if differences else Sight.HOME


def may_believe(sights: Collection[Sight]) -> bool:
    """Return True if all looks agree. ``sights`` are the looks around a list of ledgers, at least one made before it and one after it
    (BKE-1)."""
    return all(sight is Sight.HOME for sight in sights)


class Absence(Enum):
    """The common answer of the servers of a metadata store about one ledger."""

    GONE = "no server has it, and most of them were asked"
    THERE = "all that answer have it"
    UNKNOWN = "too few answer"
    CONTRADICTED = "one server has it, and another one has not"


def judge_absence(has: Collection[bool], servers: int) -> Absence:
    """Return what follows from the answers of single servers: ``has`` is True for each that has the ledger (BKE-10)."""
    if len(set(has)) > 1:
        return Absence.CONTRADICTED
    if 2 * len(has) <= servers:
        return Absence.UNKNOWN
    return Absence.THERE if any(has) else Absence.GONE


def may_drop(count: int, held: int, *, floor: int, share: float, told: int) -> bool:
    """Return True if a round may drop ``count`` of ``held`` ledgers: they are few, or no more than a person has agreed to (BKE-2).

    Few are ``floor`` ledgers, or ``share`` of all if that is more.
    """
    return count <= max(floor, share * held, told)
