"""Seconds that go on while the machine sleeps."""

from __future__ import annotations

import time


def since_boot_s() -> float:
    """Return the seconds since boot, which go on while the machine sleeps. Linux's monotonic clock does not; other systems have only that
    one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
