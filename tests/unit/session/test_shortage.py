"""Connections that this host cannot make: who is blamed for them, and what errors say."""

from __future__ import annotations

import pytest

from bk_core.protocol.session.shortage import EVERYWHERE, EXCUSED_NS, RECENT_NS, THERE, Shortages, is_shortage
from bk_core.protocol.wire.messages import Status

S = 1_000_000_000


@pytest.mark.parametrize("error", sorted(EVERYWHERE))
def test_a_process_that_has_nothing_left_blames_no_bookie(error: str) -> None:
    """SES-9: for as long as it lasts, and only for what could not be reached."""
    shortages = Shortages()
    assert not shortages.excuses(Status.UNAVAILABLE, 0)
    shortages.happened(error, "no more", 5 * S)
    assert shortages.excuses(Status.UNAVAILABLE, 5 * S + EXCUSED_NS)
    assert not shortages.excuses(Status.UNAVAILABLE, 5 * S + EXCUSED_NS + 1)
    assert not any(shortages.excuses(status, 5 * S) for status in Status if status is not Status.UNAVAILABLE)


@pytest.mark.parametrize("error", sorted(THERE))
def test_where_one_address_cannot_be_reached_others_are_chosen(error: str) -> None:
    """SES-9, SES-10: that is explained and not excused."""
    shortages = Shortages()
    shortages.happened(error, "forbidden", 5 * S)
    assert is_shortage(error) and not is_shortage("ECONNREFUSED")
    assert not shortages.excuses(Status.UNAVAILABLE, 5 * S)
    assert shortages.explanation(0, 5 * S) == "forbidden"


def test_only_what_failed_meanwhile_is_explained_by_it() -> None:
    """SES-10."""
    shortages = Shortages()
    assert shortages.explanation(0, 0) == ""
    shortages.happened("EMFILE", "none left", 5 * S)
    assert shortages.explanation(5 * S, 5 * S + RECENT_NS) == "none left"
    assert shortages.explanation(0, 5 * S + RECENT_NS + 1) == ""
    assert shortages.explanation(5 * S + 1, 6 * S) == ""


def test_a_shortage_is_news_once() -> None:
    """SES-10: and again when it was over, or is another one."""
    shortages = Shortages()
    assert shortages.happened("EMFILE", "a", 0)
    assert not shortages.happened("EMFILE", "a", 4 * S)
    assert not shortages.happened("EMFILE", "a", 8 * S)
    assert shortages.happened("ENFILE", "b", 8 * S)
    assert shortages.happened("ENFILE", "b", 8 * S + RECENT_NS + 1)
