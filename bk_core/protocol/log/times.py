"""The times of a log: all are on the metadata store's clock, and some cannot be right. Pure.

The clocks of hosts disagree, by hours where one is set wrong, so none of them may decide what is old: commit times and "now" are both the
metadata store's. A host's clock is used for nothing but a warning about it.
"""

from __future__ import annotations

from bk_core.errors import LogClockError

SKEW_MS = 5 * 60_000
"""A greater distance between two clocks, or between a time and now, cannot come from slow answers."""


def commit_time(now_ms: int, before_ms: int, after_ms: int | None = None) -> int:
    """Return the time of a segment between two others: its commit's time where that fits between them (JAN-2).

    ``before_ms`` is its predecessor's time, 0 without one. A predecessor's time more than ``SKEW_MS`` beyond ``now_ms`` is not believed,
    because all later segments would get it. ``after_ms`` is the time of a successor that is committed.
    """
    low = before_ms if before_ms <= now_ms + SKEW_MS else 0
    return max(low, now_ms if after_ms is None else min(now_ms, after_ms))


def check_not_ahead(what: str, ms: int, now_ms: int) -> None:
    """Raise LogClockError for a time given by a caller that the store's clock has not reached (JAN-3)."""
    if ms > now_ms + SKEW_MS:
        ahead = (ms - now_ms) / 60_000
        raise LogClockError(
            f"{what} is {ahead:,.0f} minutes ahead of the metadata store's clock ({now_ms} ms since 1970), which alone tells how old "
            "commits are; give a time that has passed there (client.store.clock_ms()), and look whether this host's clock is right"
        )


def is_ahead(committed_at_ms: int, now_ms: int) -> bool:
    """Return True if the commit time of a segment lies in the future and cannot be right. A cut by age ends before the segment, which would
    become old only after that time (JAN-3)."""
    return committed_at_ms > now_ms + SKEW_MS


def is_skewed(host_ms: int, now_ms: int) -> bool:
    """Return True if this host's clock deserves a warning (JAN-4)."""
    return abs(host_ms - now_ms) > SKEW_MS
