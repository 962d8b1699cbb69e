"""Chooses the connections that a bookie gives up, so that idle peers leave room for those that work (BKE-5, BKE-6)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits in seconds, and the greatest numbers of connections, of long polls and of answers that wait for the disk. Peers that are not
    admitted take no more than a quarter of the connections from those that are.

    ``stalled_s``     a connection ends after so long if no more of a frame comes, if none of the answers is taken, or if it is not admitted
    ``idle_s``        a connection ends after so long if it asks nothing and waits for nothing
    ``spare_s``       a connection may be given up for a new one only after being idle for so long
    """

    connections: int = 4096
    stalled_s: float = 60.0
    idle_s: float = 3600.0
    spare_s: float = 5.0
    polls_per_connection: int = 1000
    waits_per_connection: int = 10_000
    waits: int = 200_000


@dataclass(frozen=True, slots=True)
class Quiet:
    """The state of a connection: the seconds since something was received, and since something was sent or there was nothing to send."""

    received_s: float
    sent_s: float
    half_frame: bool  # a frame has begun and not ended, and the bookie would read more
    unsent: bool  # the peer has not taken all answers
    waits: bool  # requests are not answered yet, long polls among them
    outside_s: float | None = None  # the seconds for which the peer has been here without being admitted; None for one that is


def overdue(quiet: Quiet, limits: ConnectionLimits) -> str | None:
    """Return the reason to give the connection up, or None (BKE-5). A slow peer is never overdue, because each byte counts; one that is not
    admitted has its time for that."""
    if quiet.outside_s is not None and quiet.outside_s >= limits.stalled_s:
        return f"it was not admitted within {limits.stalled_s:g} s"
    if quiet.unsent:
        return f"no answer was taken for {limits.stalled_s:g} s" if quiet.sent_s >= limits.stalled_s else None
    if quiet.half_frame:
        return f"nothing more of a request came for {limits.stalled_s:g} s" if quiet.received_s >= limits.stalled_s else None
    if quiet.waits:
        return None
    return f"nothing was asked for {limits.idle_s:g} s" if quiet.received_s >= limits.idle_s else None


def stranger_makes_room(count: int, oldest_s: float, limits: ConnectionLimits) -> bool:
    """Return True if the peer that is not admitted yet and has been here longest, for ``oldest_s``, goes for a new one when there are too
    many (BKE-6): because it had its time, or because the ``count`` of such peers is a quarter of all."""
    return count > 0 and (oldest_s >= limits.spare_s or count >= max(1, limits.connections // 4))


def to_make_room(connections: Iterable[tuple[_K, Quiet]], limits: ConnectionLimits) -> _K | None:
    """Return the connection to close for a new one when there are too many and no stranger makes room: the admitted one that has been
    silent longest with nothing left to do (BKE-6). None means that all of them work, and the new one is refused."""
    idle = [(quiet.received_s, key) for key, quiet in connections if not quiet.waits and not quiet.unsent and quiet.outside_s is None]
    longest, key = max(idle, key=lambda one: one[0], default=(0.0, None))
    return key if longest >= limits.spare_s else None
