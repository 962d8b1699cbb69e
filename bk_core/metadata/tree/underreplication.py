"""Apache's ``underreplication`` subtree: what metadata/underreplication.py describes, node for node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import Lock

from bk_core.errors import MetadataError, MetadataOutcomeUnknownError, NodeExistsError, NoNodeError, VersionConflictError
from bk_core.metadata import underreplication as layout
from bk_core.metadata.tree.nodes import Nodes
from bk_core.metadata.underreplication import Candidate, Mark, ReplicationLock
from bk_core.protocol.ledger.metadata import BookieId

_TRIES_MAX = 20


class TreeUnderreplication:
    """UnderreplicationStore over nodes."""

    def __init__(self, nodes: Nodes, root: str) -> None:
        self._nodes = nodes
        self._root = root
        self._held: set[int] = set()
        self._votes: set[str] = set()  # those that a candidate of this session has
        self._guard = Lock()

    # marks -----------------------------------------------------------------------------------------------------------

    def mark_of(self, ledger_id: int) -> Mark | None:
        try:
            found = self._nodes.get(f"{self._root}/{layout.mark_path(ledger_id)}")
        except NoNodeError:
            return None
        return layout.decode_mark(found.data, ledger_id, found.version)

    def marked_ledgers(self) -> Iterator[int]:
        return self._walk(f"{self._root}/{layout.LEDGERS}", layout.LEVELS)

    def _walk(self, path: str, levels: int) -> Iterator[int]:
        names = self._nodes.children(path)
        if levels:
            for name in filter(layout.is_level, names):
                yield from self._walk(f"{path}/{name}", levels - 1)
            return
        yield from sorted(ledger_id for name in names if (ledger_id := layout.ledger_of_leaf(name)) is not None)

    def mark(self, ledger_id: int, replicas: Iterable[BookieId], created_ms: int) -> None:
        """Create the mark, or merge it into the existing one at the version read (metadata.md 1.4)."""
        wanted = tuple(replicas)
        path = f"{self._root}/{layout.mark_path(ledger_id)}"
        for _ in range(_TRIES_MAX):
            try:
                self._nodes.create_with_parents(path, layout.encode_mark(wanted, created_ms), self._root)
                return
            except NodeExistsError:
                known = self.mark_of(ledger_id)
            if known is None:
                continue  # repaired meanwhile: the next round creates it
            try:
                data = layout.encode_mark(layout.merged(known.replicas, wanted), known.created_ms or created_ms)
                self._nodes.set(path, data, known.version)
                return
            except (VersionConflictError, NoNodeError):
                continue
        raise MetadataError(f"the mark of ledger {ledger_id} changes faster than it can be written")

    def unmark(self, mark: Mark) -> bool:
        """Delete the leaf at the version it had when it was read, then its empty directories, at most four. After a lost answer it is not
        tried again: versions begin anew, so that might take a newer mark away. Whoever finds a mark that stayed has nothing to repair."""
        path = f"{self._root}/{layout.mark_path(mark.ledger_id)}"
        try:
            self._nodes.remove(path, mark.version)
        except (VersionConflictError, MetadataOutcomeUnknownError):
            return False
        self._nodes.prune(path, f"{self._root}/{layout.LEDGERS}")
        return True

    # locks -----------------------------------------------------------------------------------------------------------

    def lock(self, ledger_id: int, owner: str) -> ReplicationLock | None:
        with self._guard:
            if ledger_id in self._held:
                return None
            self._held.add(ledger_id)
        taken = False
        try:
            taken = self._create_lock(f"{self._root}/{layout.lock_path(ledger_id)}", layout.encode_lock(owner))
        finally:
            if not taken:
                self._forget(ledger_id)
        return _Lock(self, ledger_id) if taken else None

    def _create_lock(self, path: str, data: bytes) -> bool:
        """Create an ephemeral node and return True. A node of this session that nobody holds is left from an answer that was lost."""
        for _ in range(_TRIES_MAX):
            try:
                self._nodes.create(path, data, ephemeral=True)
                return True
            except NoNodeError:
                self._nodes.make_parents(path, self._root)
            except NodeExistsError:
                return self._is_mine(path)
            except MetadataOutcomeUnknownError:
                continue  # created or not, which the next attempt finds out
        raise MetadataError(f"the lock {path} could not be made")

    def lock_holder(self, ledger_id: int) -> str | None:
        try:
            return layout.decode_lock(self._nodes.get(f"{self._root}/{layout.lock_path(ledger_id)}").data)
        except NoNodeError:
            return None

    def holds(self, ledger_id: int) -> bool:
        with self._guard:
            held = ledger_id in self._held
        return held and self._is_mine(f"{self._root}/{layout.lock_path(ledger_id)}")

    def release(self, ledger_id: int) -> None:
        """Delete the node if it is still this session's. If that fails, the node goes with the session."""
        with self._guard:
            if ledger_id not in self._held:
                return
        try:
            self._nodes.remove_own(f"{self._root}/{layout.lock_path(ledger_id)}")
        except MetadataError:
            pass
        finally:
            self._forget(ledger_id)

    def _forget(self, ledger_id: int) -> None:
        with self._guard:
            self._held.discard(ledger_id)

    def _is_mine(self, path: str) -> bool:
        stat = self._nodes.stat(path)
        return stat is not None and stat.owner == self._nodes.session_id()

    def is_disabled(self) -> bool:
        return self._nodes.exists(f"{self._root}/{layout.DISABLE}")

    def set_disabled(self, disabled: bool) -> bool:
        """Make or delete the switch. Both are repeated like reads, because a second time changes nothing."""
        path = f"{self._root}/{layout.DISABLE}"
        try:
            if disabled:
                self._switch_off(path)
            else:
                self._nodes.delete(path, repeated=True)
        except (NodeExistsError, NoNodeError):
            return False
        return True

    def _switch_off(self, path: str) -> None:
        try:
            self._nodes.create(path, b"", repeated=True)
        except NoNodeError:
            self._nodes.make_parents(path, self._root)
            self._nodes.create(path, b"", repeated=True)

    # the auditor -----------------------------------------------------------------------------------------------------

    def auditor(self) -> str | None:
        for path in self.votes():
            try:
                return layout.decode_lock(self._nodes.get(path).data)
            except NoNodeError:
                continue  # its bookie went meanwhile
        return None

    def votes(self) -> list[str]:
        """Return the paths of the votes; the first one is the auditor's."""
        folder = f"{self._root}/{layout.VOTES}"
        numbered = [(number, name) for name in self._nodes.children(folder) if (number := layout.vote_number(name)) is not None]
        return [f"{folder}/{name}" for _, name in sorted(numbered)]

    def candidate(self, owner: str) -> Candidate:
        return _Candidate(self, owner)

    def cast(self, owner: str, vote: str | None) -> str:
        """Return the path of a candidate's vote, which is cast if ``vote`` is gone. After a lost answer the vote that it was about is
        looked for, and taken."""
        if vote is not None:
            if self._is_mine(vote):
                return vote
            self._votes.discard(vote)
        path = f"{self._root}/{layout.VOTES}/{layout.VOTE}"
        data = layout.encode_lock(owner)
        for _ in range(_TRIES_MAX):
            try:
                made = self._nodes.create_numbered(path, data)
                self._votes.add(made)
                return made
            except NoNodeError:
                self._nodes.make_parents(path, self._root)
            except MetadataOutcomeUnknownError:
                for found in self.votes():
                    if self.adopt(found):
                        return found
        raise MetadataError(f"no vote for the auditor could be cast at {path}")

    def adopt(self, vote: str) -> bool:
        """Take a vote of this session that no candidate has, and return True. The answer to its creation was lost, and it was not to be
        seen when it was looked for: a second one stands behind it until the session ends, and so does everybody else's."""
        if vote in self._votes or not self._is_mine(vote):
            return False
        self._votes.add(vote)
        return True

    def withdraw(self, vote: str) -> None:
        """Take a candidate's vote back, and those that nobody has. If that fails, they go with the session."""
        self._votes.discard(vote)
        with suppress(MetadataError):
            self._nodes.remove_own(vote)
            for other in self.votes():
                if other not in self._votes and self._is_mine(other):
                    self._nodes.remove_own(other)

    def recovery_delay_s(self) -> int | None:
        try:
            text = self._nodes.get(f"{self._root}/{layout.DELAY}").data.strip()
        except NoNodeError:
            return None
        return int(text) if text.isdigit() else None

    def checked_ms(self) -> int | None:
        try:
            return layout.decode_time(self._nodes.get(f"{self._root}/{layout.CHECKED}").data)
        except NoNodeError:
            return None

    def set_recovery_delay(self, seconds: int) -> None:
        self._write_over(f"{self._root}/{layout.DELAY}", str(seconds).encode())

    def note_checked(self, now_ms: int) -> None:
        self._write_over(f"{self._root}/{layout.CHECKED}", layout.encode_time(now_ms))

    def _write_over(self, path: str, data: bytes) -> None:
        """Write over what is there: of two who write, the last one counts."""
        self._nodes.make_parents(path, self._root)
        for _ in range(_TRIES_MAX):
            try:
                self._nodes.ensure(path)
                self._nodes.set(path, data, self._nodes.get(path).version)
                return
            except (VersionConflictError, NoNodeError):
                continue
        raise MetadataError(f"{path} changes faster than it can be written")


class _Candidate:
    def __init__(self, store: TreeUnderreplication, owner: str) -> None:
        self._store, self._owner = store, owner
        self._vote: str | None = None

    def is_elected(self) -> bool:
        mine = self._vote = self._store.cast(self._owner, self._vote)
        first = next(iter(self._store.votes()), None)
        if first is not None and first != mine and self._store.adopt(first):
            self._vote = first
            self._store.withdraw(mine)
        return first == self._vote

    def withdraw(self) -> None:
        if self._vote is not None:
            self._store.withdraw(self._vote)
            self._vote = None


class _Lock:
    def __init__(self, owner: TreeUnderreplication, ledger_id: int) -> None:
        self._owner, self._ledger_id = owner, ledger_id

    def is_held(self) -> bool:
        return self._owner.holds(self._ledger_id)

    def release(self) -> None:
        self._owner.release(self._ledger_id)
