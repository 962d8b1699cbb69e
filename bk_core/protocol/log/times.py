"""The times of a log: whose clock they are on, and which of them cannot be. Pure.

Clocks of hosts disagree, by hours where one is set wrong, so none of them may decide what is old: commit times and "now" are both the
metadata store's. A host's clock plays no part but to be warned about.
"""

from __future__ import annotations

from bk_core.errors import LogClockError

SKEW_MS = 5 * 60_000
"""More than this between two clocks, or between a time and now, is no matter of slow answers."""


def commit_time(now_ms: int, before_ms: int, after_ms: int | None = None) -> int:
    """JAN-2: the time of a segment between two others, that of its commit where it fits between them.

    ``before_ms``: its predecessor's, 0 without one. One that claims to be more than ``SKEW_MS`` beyond ``now_ms`` is not believed, or all
    later segments would have its time. ``after_ms``: that of a successor that is committed.
    """
    low = before_ms if before_ms <= now_ms + SKEW_MS else 0
    return max(low, now_ms if after_ms is None else min(now_ms, after_ms))


def check_not_ahead(what: str, ms: int, now_ms: int) -> None:
    """JAN-3: LogClockError for a time given by a caller that the store's clock has not reached."""
    if ms > now_ms + SKEW_MS:
        ahead = (ms - now_ms) / 60_000
        raise LogClockError(
            f"{what} is {ahead:,.0f} minutes ahead of the metadata store's clock ({now_ms} ms since 1970), which alone tells how old "
            "commits are; take the store's time (store.clock_ms()), and set this host's clock right"
        )


def is_ahead(committed_at_ms: int, now_ms: int) -> bool:
    """JAN-3: the commit time of a segment cannot be, so a cut by age ends before it: it would only be old after that time."""
    return committed_at_ms > now_ms + SKEW_MS


def is_skewed(host_ms: int, now_ms: int) -> bool:
    """JAN-4: this host's clock is to be warned about."""
    return abs(host_ms - now_ms) > SKEW_MS
