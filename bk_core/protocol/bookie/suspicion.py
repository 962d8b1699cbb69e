"""When a bookie may believe that a ledger is gone. "It is not there" is what an empty or a foreign metadata store says of everything."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Sight(Enum):
    """The result of a look at the metadata store."""

    HOME = "the cluster that this bookie has signed in to"
    GONE = "no such cluster: the metadata store has lost it, or never had it"
    FOREIGN = "another cluster"


def judge_cluster(signed: str | None, found: str | None, differences: Collection[str] | None) -> Sight:
    """Compare instance id and cookie with those that the bookie signed (BKE-1).

    ``signed`` and ``found`` are instance ids, None in a cluster without one. ``differences`` are the fields in which the store's cookie
    of this bookie differs from its own, None if the store has no cookie of it.
    """
    if found is not None and found != signed:
        return Sight.FOREIGN
    if found != signed or differences is None:
        return Sight.GONE
    return Sight.FOREIGN if differences else Sight.HOME


def may_believe(sights: Collection[Sight]) -> bool:
    """``sights`` are all looks around a list of ledgers, of which at least one was made before it and one after it (BKE-1)."""
    return all(sight is Sight.HOME for sight in sights)


def may_drop(count: int, held: int, *, floor: int, share: float, told: int) -> bool:
    """A round that would drop ``count`` of ``held`` ledgers goes ahead if few of them, or no more than somebody has agreed to (BKE-2).

    ``floor`` ledgers, or ``share`` of all if that is more, are few.
    """
    return count <= max(floor, share * held, told)
