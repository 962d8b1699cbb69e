"""Decides how much a bookie may accept from the space left on its disk (B-11, BKE-3, BKE-8, BKE-9): byte counts in, decisions out."""

from __future__ import annotations

from dataclasses import dataclass

RESERVE_BYTES = 64 << 20  # the default
PAGE_BYTES = 4096
_PARTS = 8  # the number of parts of the reserve


@dataclass(frozen=True, slots=True)
class DiskLook:
    """A look at the disk, in bytes. ``pending`` has to be counted before the other two are read, so that bytes written in between count
    twice and are never missed.

    ``outside``   free in the file system
    ``inside``    free in the database's file, which never shrinks
    ``pending``   the most that everything accepted but not yet in the database may still take
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
    """The free bytes. Those inside the file count only beside some room outside, because an entry that finds no long enough gap goes to the
    end of the file."""
    return look.outside + (look.inside if look.outside >= reserve // 4 else 0)


def judge_room(look: DiskLook, reserve: int) -> Room:
    """Judge a look. Below the reserve a bookie is read-only; below half of it, it takes no recovery adds either (B-11); below a quarter, no
    fences of ledgers that it has never heard of (BKE-3). With less than half of the reserve outside the file, room is scarce and the bookie
    gives back what it can."""
    free = free_bytes(look, reserve)
    return Room(
        read_only=free < reserve,
        recovery_adds=free > reserve // 2,
        fence_unknown=free > reserve // 4,
        scarce=look.outside < reserve // 2,
        accept_bytes=_accept_bytes(look, reserve),
    )


def _accept_bytes(look: DiskLook, reserve: int) -> int:
    """Return the bytes that may be accepted (BKE-8). Everything pending must fit outside, with an eighth of the reserve to spare for fences
    and deletions. One request is always admitted when nothing is pending; the spare room is large enough for it."""
    left = look.outside - reserve // _PARTS - look.pending
    return left if left > 0 else int(look.pending == 0)


def demand_of_run(size: int) -> int:
    """Return the most bytes that a run of ``size`` bytes may take: once in the journal and once in the database, in pages of its own
    (BKE-8)."""
    return 3 * size + 8 * PAGE_BYTES


def demand_of_change(size: int) -> int:
    """Return the same for one entry of ``size`` bytes, or none, with the record of its ledger: each changes pages of its own (BKE-8)."""
    return 3 * size + 4 * PAGE_BYTES
