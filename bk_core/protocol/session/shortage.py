"""Connections that this host or process cannot make, through no fault of a bookie: decides who is blamed and explains errors (SES-9,
SES-10)."""

from __future__ import annotations

from bk_core.protocol.wire.messages import Status

# By the names of the system's errors: the first prevent every connection, the others only another one to the same address.
EVERYWHERE = frozenset({"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"})
THERE = frozenset({"EADDRNOTAVAIL", "EACCES", "EPERM"})
AGAIN_NS = 100_000_000
EXCUSED_NS = 1_000_000_000
RECENT_NS = 5_000_000_000


def is_shortage(error: str) -> bool:
    return error in EVERYWHERE or error in THERE


class Shortages:
    """The shortages of one client. They use one monotonic clock and one thread."""

    def __init__(self) -> None:
        self._text = ""
        self._at_ns: int | None = None
        self._everywhere_ns: int | None = None

    def happened(self, error: str, text: str, now_ns: int) -> bool:
        """Note that a connection failed for a shortage. Return True if this is news, which a log should have once."""
        news = self._at_ns is None or now_ns - self._at_ns > RECENT_NS or text != self._text
        self._text, self._at_ns = text, now_ns
        if error in EVERYWHERE:
            self._everywhere_ns = now_ns
        return news

    def excuses(self, status: Status, now_ns: int) -> bool:
        """Return True if a bookie that could not be reached just now is not to blame for it (SES-9)."""
        if status is not Status.UNAVAILABLE or self._everywhere_ns is None:
            return False
        return now_ns - self._everywhere_ns <= EXCUSED_NS

    def explanation(self, since_ns: int, now_ns: int) -> str:
        """Return the shortage because of which an operation that began at ``since_ns`` fails now, or an empty text if none is the reason
        (SES-10)."""
        if self._at_ns is None or self._at_ns < since_ns or now_ns - self._at_ns > RECENT_NS:
            return ""
        return self._text
