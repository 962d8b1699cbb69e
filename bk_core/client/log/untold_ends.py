"""The ends of a writer's ledgers that the log's list does not have yet."""

from __future__ import annotations

from bk_core.errors import BkError
from bk_core.threads import Monitor, holds_lock


class UntoldEnds:
    """The CLOSED ledgers of one writer whose end is not in the list. ``lock`` is the writer's, and guards them."""

    def __init__(self, lock: Monitor) -> None:
        self._lock = lock
        self._problems: dict[int, BkError | None] = {}  # None as long as it is being told

    @property
    def are_settled(self) -> bool:
        """True if none is being told now."""
        return None not in list(self._problems.values())

    @holds_lock
    def begin(self, ledger_id: int) -> None:
        """Note that the end of this ledger is about to be told."""
        with self._lock:
            self._problems[ledger_id] = None

    @holds_lock
    def finish(self, ledger_id: int, problem: BkError | None) -> None:
        """Note that the end of this ledger was told, or was not because of ``problem``."""
        with self._lock:
            del self._problems[ledger_id]
            if problem is not None:
                self._problems[ledger_id] = problem
            self._lock.notify_all()

    @holds_lock
    def take_errors(self) -> list[BkError]:
        """Return the problems, and forget them."""
        with self._lock:
            errors = [error for error in self._problems.values() if error is not None]
            self._problems = {ledger_id: None for ledger_id, error in self._problems.items() if error is None}
            return errors
