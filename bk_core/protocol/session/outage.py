"""The time that a wait outlives an outage of the metadata store (SES-7), the messages about the outage (SES-8), and the time that a server
may take to answer a new connection (SES-12)."""

from __future__ import annotations


class Outage:
    """Failures that follow each other without a success between them. Any monotonic clock will do, as long as it is always the same."""

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._since_ns: int | None = None

    def failed(self, now_ns: int) -> bool:
        """Note that the store did not answer. Return True if it may be asked again, False when this has lasted for the whole patience
        (SES-7)."""
        if self._since_ns is None:
            self._since_ns = now_ns
        return now_ns - self._since_ns < self._patience_ns

    def answered(self) -> None:
        """Note that the store answered, so that the next outage has the whole patience again (SES-7)."""
        self._since_ns = None


class Connection:
    """The log messages about one connection to the metadata store: each loss is told once, and each return once (SES-8)."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._was_there = False
        self._lost_at_ns: int | None = None

    def changed(self, connected: bool, now_ns: int) -> str | None:
        """Return the message that is due now, or None. The first connection is no news, nor is the time before it."""
        if not connected:
            if not self._was_there or self._lost_at_ns is not None:
                return None
            self._lost_at_ns = now_ns
            return f"no connection to {self._store}; trying again until it is back, open ledgers go on without it"
        self._was_there = True
        lost_at, self._lost_at_ns = self._lost_at_ns, None
        return None if lost_at is None else f"connected to {self._store} again after {(now_ns - lost_at) / 1e9:.1f} s"


class Welcome:
    """The time for which the first answer on a new connection to the metadata store is awaited before another connection is tried (SES-12).

    A ZooKeeper that has begun to listen and does not serve yet may take the request for a session and forget it: nothing will ever come on
    that connection, while the next one is served at once. Each try waits twice as long as the one before, so a server that is only slow
    still gets through.
    """

    def __init__(self, first_s: float = 1.0) -> None:
        self._first_s = first_s
        self._patience_s = first_s

    def waits_s(self, at_most_s: float) -> float:
        return min(self._patience_s, at_most_s)

    def missed(self) -> None:
        self._patience_s *= 2

    def came(self) -> None:
        self._patience_s = self._first_s
