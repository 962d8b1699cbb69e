"""The page of events, and their table, which other pages have too."""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.ui.events import EVENTS_MAX, KINDS, ClusterEvent
from bk_core.ui.layout import Page, World, age, ledger_link, log_link, moment, place
from bk_core.ui.markup import Child, Markup, badge, empty, joined, link, section, table, tag

SHOWN = 200


def page(world: World, kind: str) -> Page:
    """Return the newest events, all or those of one kind."""
    kind = kind if kind in KINDS else ""
    events = world.watcher.events.newest(SHOWN, kind)
    choices = [link("/events", "all", aria_current="true" if not kind else None)]
    choices += [link(place("/events", {"kind": one}), one, aria_current="true" if one == kind else None) for one in KINDS]
    kept = f"These are the events that this page has seen since it began; the newest {EVENTS_MAX:,} are kept."
    about = f"{kept} A ledger that comes and goes between two looks leaves none."
    rows = section("Newest first", event_rows(events, world.now_ms), name="events")
    return Page("Events", joined([tag("p", choices, class_="choices"), rows, tag("p", about, class_="soft")]), "/events", refreshes=True)


def event_rows(events: Sequence[ClusterEvent], now_ms: int) -> Markup:
    """Return events as a table."""
    if not events:
        return empty("Nothing has happened since this page began.")
    rows: list[list[Child]] = []
    for one in events:
        about: Child = (
            "" if one.ledger is None and one.log is None else ledger_link(one.ledger) if one.ledger is not None else log_link(one.log or "")
        )
        rows.append(
            [
                [moment(one.at_ms), tag("span", f" {age(one.at_ms, now_ms)} ago", class_="soft")],
                badge(one.kind, one.weight),
                one.said,
                about,
            ]
        )
    return table(["~when (UTC)", "~kind", "what", "about"], rows, caption="Events", keys=[str(one.number) for one in events])
