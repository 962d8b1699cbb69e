"""A session with the metadata store that is opened when something is asked of it, and ends when nothing was asked for a while (SES-13).
Pure."""

from __future__ import annotations

from dataclasses import dataclass

IDLE_NS = 30_000_000_000


@dataclass(slots=True)
class OnDemand:
    """``open`` is True while there is a session. Calls and watches that are under way keep it open."""

    open: bool = False
    held: int = 0
    used_ns: int = 0

    def began(self, now_ns: int) -> bool:
        """Note that a call or a watch begins. Return True if a session has to be opened for it."""
        self.held += 1
        self.used_ns = now_ns
        return not self.open

    def ended(self, now_ns: int) -> None:
        """Note that the call or watch is over."""
        self.held -= 1
        self.used_ns = now_ns

    def idle_in_ns(self, now_ns: int) -> int:
        """Return the time that the session is still kept; 0 means that it is to be ended now."""
        return IDLE_NS if self.held else max(0, self.used_ns + IDLE_NS - now_ns)
