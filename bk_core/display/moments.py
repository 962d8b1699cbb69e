"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bk_core.protocol.calendar import in_calendar

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC, or the nearest time that there is in the years 1 to 9999."""
    return _EPOCH + timedelta(milliseconds=in_calendar(ms))


def told_utc(ms: int) -> str:
    """Return a time in UTC to the second, without saying that it is UTC."""
    return moment(ms).isoformat(" ", "seconds").removesuffix("+00:00")
