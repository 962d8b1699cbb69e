"""The room that a bookie has for more entries, from what its disk has left (B-11, BKE-3, BKE-8, BKE-9): byte counts in, decisions out."""

from __future__ import annotations

from dataclasses import dataclass

RESERVE_BYTES = 64 << 20  # if nobody says otherwise
PAGE_BYTES = 4096
_PARTS = 8  # of the reserve


@dataclass(frozen=True, slots=True)
class DiskLook:
    """Bytes. ``pending`` has to be counted before the other two are looked at: what is written in between then counts twice, and never not.

    ``outside``   free in the file system
    ``inside``    free in the database's file, which never shrinks
    ``pending``   what everything that was accepted and is not in the database may still take
    """

    outside: int
    inside: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """``accept_bytes``: changes may be accepted while the sum of their demands since the look is below it."""

    read_only: bool
    recovery_adds: bool
    fence_unknown: bool
    scarce: bool
    accept_bytes: int


def free_bytes(look: DiskLook, reserve: int) -> int:
    """The free bytes. Those inside the file count only beside some room outside: an entry that finds no long enough gap goes to the end of
    the file."""
    return look.outside + (look.inside if look.outside >= reserve // 4 else 0)


def judge_room(look: DiskLook, reserve: int) -> Room:
    """Below the reserve a bookie is read-only; below half of it, it takes no recovery adds either (B-11); below a quarter, no fences of
    ledgers that it has never heard of (BKE-3). It is scarce with room, and gives back what it can, below half of it outside."""
    free = free_bytes(look, reserve)
    return Room(
        read_only=free < reserve,
        recovery_adds=free > reserve // 2,
        fence_unknown=free > reserve // 4,
        scarce=look.outside < reserve // 2,
        accept_bytes=_accept_bytes(look, reserve),
    )


def _accept_bytes(look: DiskLook, reserve: int) -> int:
    """BKE-8: all that is pending fits outside, with an eighth of the reserve to spare for fences and deletions; one request always may come
    when nothing is pending, and is what the spare room is measured for."""
    left = look.outside - reserve // _PARTS - look.pending
    return left if left > 0 else int(look.pending == 0)


def demand_of_run(size: int) -> int:
    """BKE-8: how many bytes a run of ``size`` bytes may take at most, once in the journal and, in pages of its own, in the database."""
    return 3 * size + 8 * PAGE_BYTES


def demand_of_change(size: int) -> int:
    """BKE-8: the same for one entry of ``size`` bytes, or none, with the record of its ledger: each changes pages of its own."""
    return 3 * size + 4 * PAGE_BYTES
