"""A session with the metadata store that is opened when something is asked of it, and ends when nothing was for a while (SES-13). Pure."""

from __future__ import annotations

from dataclasses import dataclass

IDLE_NS = 30_000_000_000


@dataclass(slots=True)
class OnDemand:
    """``open``: there is a session. Calls and watches that are under way keep it."""

    open: bool = False
    held: int = 0
    used_ns: int = 0

    def began(self, now_ns: int) -> bool:
        """A call or a watch begins. True if a session has to be opened for it."""
        self.held += 1
        self.used_ns = now_ns
        return not self.open

    def ended(self, now_ns: int) -> None:
        """That call or watch is over."""
        self.held -= 1
        self.used_ns = now_ns

    def idle_in_ns(self, now_ns: int) -> int:
        """Time that it is kept yet; 0: it is to be ended now."""
        return IDLE_NS if self.held else max(0, self.used_ns + IDLE_NS - now_ns)
