"""The watches of a file store's owner: each is cancelled when nobody needs it any more, or when the owner ends."""

from __future__ import annotations

from contextlib import suppress

from bk_core.metadata.store import Watch
from bk_core.threads import Monitor, holds_lock


class Watches:
    """The watches of a store, for any thread. They do not refer to the store, so a store that is dropped ends."""

    def __init__(self) -> None:
        self._lock = Monitor()
        self._watches: list[Watch] = []
        self._over = False

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, watch: Watch) -> None:
        """Keep the watch. After the end it is cancelled at once, because nobody would cancel it later."""
        if not self._kept(watch):
            watch.cancel()

    @holds_lock
    def _kept(self, watch: Watch) -> bool:
        with self._lock:
            if not self._over:
                self._watches.append(watch)
            return not self._over

    def cancel(self, watch: Watch) -> None:
        self._forget(watch)
        watch.cancel()

    @holds_lock
    def _forget(self, watch: Watch) -> None:
        with self._lock, suppress(ValueError):
            self._watches.remove(watch)

    @holds_lock
    def end(self) -> list[Watch]:
        """Keep no more watches. Return those that were kept: the caller cancels them, where it may wait."""
        with self._lock:
            self._over = True
            left, self._watches = self._watches, []
        return left
