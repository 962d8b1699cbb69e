"""Reads behind an agreement of the servers, so that none of them tells of an older state (metadata.md 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bk_core.metadata.tree.nodes import Nodes

T = TypeVar("T")


class Agreement:
    """Reads below ``root`` as most servers have it, at the first read or later. A session never sees an older state than the one that it
    agreed on; one that begins meanwhile may be at a server that is behind, so it agrees anew, and the read is made again. One thread."""

    def __init__(self, nodes: Nodes, root: str) -> None:
        self._nodes, self._root = nodes, root
        self._session: object = self  # nobody's

    def read(self, function: Callable[[], T]) -> T:
        """Return what ``function`` reads. It may be called several times. Raises what it raises, and MetadataUnavailableError."""
        while True:
            session = self._nodes.session_id()
            if session != self._session:
                self._nodes.sync(self._root)
                self._session = session
            found = function()
            if self._nodes.session_id() == session:
                return found
