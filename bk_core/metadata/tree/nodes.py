"""Operations on nodes by their absolute path: what ZooKeeper has, and what other stores do in its manner.

Each has a deadline. A write whose answer is lost is MetadataOutcomeUnknownError, also for ``create`` and ``delete`` unless they are
``repeated``; a read, and what is repeated like one, is tried again until the deadline, then it is MetadataUnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

from bk_core.errors import MetadataError, MetadataOutcomeUnknownError, MetadataUnavailableError, VersionConflictError
from bk_core.metadata.store import Version, Versioned
from bk_core.metrics.client import MetadataCounts

ANY_VERSION = -1
PAUSE_S = 0.05  # before a read is repeated or a foreign registration is looked at again
OnEvent = Callable[[Any], None]
"""A function that is called once after a change of a node, or of the names below it, from any thread, and then forgotten."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A node without its bytes. ``created`` and ``changed`` are transactions of the store, which grow; ``owner`` is the session of an
    ephemeral node, 0 of any other."""

    created: int
    changed: int
    version: Version
    owner: int


class Nodes(Protocol):
    """The nodes of one store."""

    def count_in(self, counts: MetadataCounts) -> None: ...

    def session_id(self) -> int | None:
        """Return the number of this client's session, which its ephemeral nodes carry; None or 0 while there is none."""

    def sync(self, path: str) -> None:
        """Make sure that what is read from now on shows all that was there before this call."""

    def get(self, path: str, watch: OnEvent | None = None, timeout_s: float | None = None) -> Versioned:
        """Return the node. Raises NoNodeError."""

    def get_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        """Yield the nodes of many paths, None for one that does not exist."""

    def set(self, path: str, data: bytes, version: Version) -> Version:
        """Write by compare-and-set. Raises VersionConflictError, NoNodeError."""

    def stat(self, path: str, watch: OnEvent | None = None) -> Stat | None: ...

    def exists(self, path: str) -> bool:
        """Return True if there is such a node, or if there are nodes below it."""

    def created(self, path: str) -> int | None:
        """Return the transaction that made a node; None if there is none."""

    def children(self, path: str, watch: OnEvent | None = None) -> list[str]:
        """Return the sorted names below a node; [] if there is no such node."""

    def create(self, path: str, data: bytes, *, ephemeral: bool = False, under: str = "", repeated: bool = False) -> None:
        """Create a node. Raises NodeExistsError; NoNodeError if ``under`` does not exist, or if a parent is missing where the store wants
        parents."""

    def create_numbered(self, path: str, data: bytes) -> str:
        """Create an ephemeral node and return its path: ``path`` and ten digits, of a number above those of the nodes there. Raises
        NoNodeError if a parent is missing where the store wants parents."""

    def create_with_parents(self, path: str, data: bytes, top: str = "") -> Version: ...

    def make_parents(self, path: str, top: str = "") -> None:
        """Make the parents of a path that are missing below ``top``, where the store wants parents."""

    def ensure(self, path: str, *, for_everybody: bool = False) -> None:
        """Make an empty node if there is none. ``for_everybody`` opens it whatever the rights are that this client gives to others."""

    def delete(self, path: str, version: Version = ANY_VERSION, *, repeated: bool = False) -> None:
        """Delete a node. Raises NoNodeError, VersionConflictError, MetadataError if there are nodes below it."""

    def remove(self, path: str, version: Version) -> None:
        """Delete a node; an absent one is a success."""

    def remove_own(self, path: str) -> None:
        """Delete a node that belongs to this client's session; that of another one is left."""

    def prune(self, path: str, top: str) -> None:
        """Delete the empty parents of a path below ``top``; stop silently at the first that is not empty (metadata.md 2.4)."""

    def read_together(self, asked: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the answers to the reads (operation, path), none of them from before this call. Of "get" it is Versioned, of "exists" Stat
        or None; a MetadataError stands in place of the answer of one that failed."""


class Counting:
    """Counts the requests of a store, their times and their failures."""

    counts: MetadataCounts | None = None

    def count_in(self, counts: MetadataCounts) -> None:
        self.counts = counts

    @contextmanager
    def counted(self, operation: str) -> Iterator[None]:
        begun = monotonic_ns()
        try:
            yield
        except MetadataError as error:
            self.count_failure(operation, error)
            raise
        finally:
            if self.counts is not None:
                self.counts.asked(operation, monotonic_ns() - begun)

    def count_failure(self, operation: str, error: Exception) -> None:
        if self.counts is None:
            return
        if isinstance(error, VersionConflictError):
            self.counts.conflict(operation)
        elif isinstance(error, (MetadataOutcomeUnknownError, MetadataUnavailableError)):
            self.counts.unanswered(operation)
