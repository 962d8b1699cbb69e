"""The data ledgers of a file store: who refers to them, and when they may go.

A ledger is *referred to* by the acknowledged tree and by leases. The world leases a ledger that it fills, and those of a content that it
is about to put. A put that is not yet acknowledged leases the ledgers of its content. So every ledger that the next tree names is referred
to. More than those are: when a put and the delete behind it are both unacknowledged, neither tree names the ledger, but a crash may leave
the put in the log without the delete.

A base may name a ledger that is dropped. It was appended before the record that took the last reference away, and that record is
acknowledged when the ledger goes (FS-13), so a replay of the log goes past it, and ends without the reference. An owner serves only behind
the end of the log. A view that has not come as far as the deletion may still list the file, and finds that its bytes are gone; it has
only to go on. And because a put that names a dropped ledger is refused (FS-14), no later record brings the reference back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from bk_core.errors import FileStoreError
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.content import Content
from bk_core.protocol.files.effects import DataDropped, DropData, FileEffect, FileEvent, LogRolled, LogTrimmed
from bk_core.protocol.files.state import FileLimits, FileState
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.requests import RequestMachine
from bk_core.protocol.states import Transitions


class DataLedgers(RequestMachine[FileEffect, FileEvent]):
    """Counts leases, and drops what nothing refers to."""

    state = Transitions(
        FileState.REPLAYING,
        {
            FileState.REPLAYING: (FileState.STARTING, FileState.SERVING, FileState.FAILED),
            FileState.STARTING: (FileState.SERVING, FileState.CLOSING, FileState.FAILED),
            FileState.SERVING: (FileState.CLOSING, FileState.FAILED),
            FileState.CLOSING: (FileState.CLOSED, FileState.FAILED),
        },
    )

    def __init__(self, name: str, limits: FileLimits) -> None:
        super().__init__()
        self.name = name
        self.state = FileState.REPLAYING
        self._acknowledged = FileTree()
        self._next = FileTree()  # with all changes that were asked for
        self._limits = limits
        self._leases: dict[int, int] = {}
        self._dropped: set[int] = set()  # decided to go, for good: ids are never used again
        self._to_drop: deque[int] = deque()
        self._dropping = 0
        self._has_base = False  # in the log, for good
        self._pauses: dict[str, int] = {}  # the next one of each work that failed when it was asked for last

    @property
    def tree(self) -> FileTree:
        """The acknowledged tree. Everybody reads that, and that alone (FS-8)."""
        return self._acknowledged

    def hold(self, ledger_id: int) -> None:
        """Lease the ledger once more: it is not dropped before as many ``release``. FileStoreError if it was decided to go already. A lease
        makes nothing due, so this is no step of the machine and has no effects."""
        self._check_there(ledger_id)
        self._lease((ledger_id,))

    def release(self, ledger_id: int) -> list[FileEffect]:
        """Give one lease back. A ledger that nothing refers to is dropped. A put has leases of its own: release right behind it."""
        assert ledger_id in self._leases, f"ledger {ledger_id} is not held"
        self._give_back((ledger_id,))
        return self._finish_step()

    def _lease(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self._leases[ledger_id] = self._leases.get(ledger_id, 0) + 1

    def _give_back(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self._leases[ledger_id] -= 1
            if not self._leases[ledger_id]:
                del self._leases[ledger_id]
                self._consider(ledger_id)

    def _check_content(self, content: Content) -> None:
        for extent in content.extents:
            self._check_there(extent.ledger_id)

    def _check_there(self, ledger_id: int) -> None:
        """Raise FileStoreError for a ledger that was dropped (FS-14)."""
        if ledger_id in self._dropped:
            what = f"file store {self.name!r} has dropped ledger {ledger_id}, to which nothing referred: write the bytes again"
            raise FileStoreError(what, store=self.name, ledger=ledger_id)

    def _consider(self, ledger_id: int) -> None:
        """Drop it if nothing refers to it. Whoever replays or has ended drops nothing."""
        if self._drops() and ledger_id not in self._dropped and not self._is_referred_to(ledger_id):
            self._dropped.add(ledger_id)
            self._to_drop.append(ledger_id)

    def _drops(self) -> bool:
        return self.state in (FileState.STARTING, FileState.SERVING, FileState.CLOSING)

    def _is_referred_to(self, ledger_id: int) -> bool:
        """Return True if the acknowledged tree refers to the ledger, or a lease. Every put that is not acknowledged has one (FS-13)."""
        return ledger_id in self._acknowledged.ledgers or ledger_id in self._leases

    def _may_drop(self) -> bool:
        """Return True once our own base is acknowledged. A log may look empty because a later owner has trimmed it, and then it never is
        (FS-16)."""
        return self._has_base and self._drops()

    def _advance(self) -> None:
        while self._to_drop and self._dropping < self._limits.drops_at_once and self._may_drop():
            self._dropping += 1
            self._drop(self._to_drop.popleft())

    def _drop(self, ledger_id: int) -> None:
        def dropped(event: DataDropped) -> None:
            self._dropping -= 1
            self._done_or_again(f"drop {ledger_id}", event, lambda: self._to_drop.append(ledger_id))

        self._ask(lambda request: DropData(request, ledger_id), dropped)

    def _done_or_again(self, key: str, event: DataDropped | LogRolled | LogTrimmed, again: Callable[[], None]) -> bool:
        """Return True if it is done. Else have it asked for again, each time after a longer pause, because it may fail until somebody
        mends it (FS-15)."""
        if event.outcome is Outcome.OK:
            self._pauses.pop(key, None)
            return True
        pause = self._pauses.get(key, self._limits.retry_ns)
        self._pauses[key] = min(2 * pause, self._limits.retry_ns_max)
        self._after(key, pause, again)
        return False
