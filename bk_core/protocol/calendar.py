"""The times that can be shown: those in the years 1 to 9999. Pure."""

from __future__ import annotations

FIRST_MS = -62_135_596_800_000
"""0001-01-01 00:00:00 UTC in milliseconds since 1970."""

LAST_MS = 253_402_300_799_999
"""9999-12-31 23:59:59.999 UTC."""


def in_calendar(ms: int) -> int:
    """The nearest time that can be shown. Clocks that are set wrong, and other programs, tell any."""
    return min(max(ms, FIRST_MS), LAST_MS)
