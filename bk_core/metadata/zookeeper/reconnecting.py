"""The pauses between two attempts to connect to ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kazoo.retry import KazooRetry

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.2}
LIVED_S = 2.0
"""A connection that lived so long was sound: after it the pauses are short again."""


class Reconnecting(KazooRetry):  # type: ignore[misc]  # kazoo has no types
    """Pauses that grow to a second also where each connection is made and breaks at once, as behind a proxy whose server is away. kazoo
    itself begins anew with the shortest pause after each connection that was made, which is ten attempts a second."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._made_s: float | None = None  # when the last connection was made, on the monotonic clock

    def reset(self) -> None:
        """Note that there is a connection: kazoo calls this when one was made, and before the first one."""
        self._end()
        self._made_s = time.monotonic()

    def _end(self) -> None:
        made_s, self._made_s = self._made_s, None
        if made_s is not None and time.monotonic() - made_s >= LIVED_S:
            super().reset()

    def copy(self) -> Reconnecting:
        names = ("max_tries", "delay", "backoff", "max_delay", "max_jitter", "sleep_func", "deadline", "interrupt")
        made = Reconnecting(**{name: getattr(self, name) for name in names})
        made.retry_exceptions = self.retry_exceptions
        return made

    def __call__(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def watched() -> Any:
            try:
                return func(*args, **kwargs)
            finally:
                self._end()

        self._made_s = None
        return super().__call__(watched)
