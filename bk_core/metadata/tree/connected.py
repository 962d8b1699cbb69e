"""The connection to the servers as a store knows it, and how long it waits for it."""

from __future__ import annotations

from typing import Protocol

from bk_core.threads import Home

KNOWN_ADDRESS_S = 1.0  # the wait for the store about a bookie whose address was known
STOP_S = 15.0


class Connected(Protocol):
    """The connection to the servers, which is made again whenever it is lost."""

    home: Home

    @property
    def connected(self) -> bool: ...

    def close(self, wait_s: float) -> None:
        """End the session, within ``wait_s`` seconds."""
