"""The patience of tests that are not about timeouts: on a busy machine a bookie's JVM may take longer than 5 s over its first add."""

from __future__ import annotations

import time
from collections.abc import Callable

from bk_core.protocol.limits import Limits

PATIENT = Limits(add_timeout_ns=60_000_000_000)
PATIENCE_S = 60.0


def until(true: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
