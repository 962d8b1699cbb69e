"""Limits for tests that are not about timeouts: on a busy machine a bookie's JVM may take longer than 5 s over its first add."""

from __future__ import annotations

from bk_core.protocol.limits import Limits

PATIENT = Limits(add_timeout_ns=60_000_000_000)
