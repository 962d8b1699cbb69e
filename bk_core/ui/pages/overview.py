"""The first page: the cluster, what is wrong with it, its bookies, its logs, and the newest events."""

from __future__ import annotations

from bk_core.client.doctor.bookies import judge_marks
from bk_core.client.doctor.facts import address_of
from bk_core.client.inspect import BookieSpace, bookie_spaces
from bk_core.display.ledgers import DOWN, bookie_states
from bk_core.display.words import counted, told_age
from bk_core.ui.findings import Finding, findings
from bk_core.ui.index import UNREAD
from bk_core.ui.layout import Page, World, amount, bookie_link, ledger_links, log_link, moment, place, severity_badge, state_badge
from bk_core.ui.markup import Child, Markup, badge, empty, facts, joined, link, section, sentence, table, tag, text
from bk_core.ui.pages.events import event_rows
from bk_core.ui.watching import Sight

LOGS_SHOWN = 12
EVENTS_SHOWN = 12
MARKS_S = 15.0
SPACES_S = 10.0
ADDRESSES_S = 10.0
STATES = ("OPEN", "IN_RECOVERY", "CLOSED")


def page(world: World) -> Page:
    """Return the first page."""
    sight = world.watcher.sight
    if sight is None:
        waiting = tag("p", "Looking at the cluster for the first time ...", class_="empty", data_pending=True)
        return Page("Overview", section("Cluster", waiting, name="cluster"), "/", refreshes=True)
    parts = [_cluster(world, sight), _findings(world), _bookies(world, sight), _logs(sight), _events(world)]
    return Page("Overview", joined(parts), "/", refreshes=True)


def _cluster(world: World, sight: Sight) -> Markup:
    index = world.watcher.index
    states = index.states()
    badges: list[Child] = [
        [link(place("/ledgers", {"state": state}), state_badge(state), f" {states[state]:,}", class_="plain"), " "]
        for state in (*STATES, *(sorted(states.keys() - {*STATES, UNREAD.state})))
        if states[state] or state in STATES
    ]
    unread = states[UNREAD.state]
    ledgers: list[Child] = [link("/ledgers", f"{len(index):,}"), "  ", badges]
    if not world.watcher.has_listed:
        ledgers = [tag("span", "being listed ...", class_="soft", data_pending=True)]
    elif unread:
        ledgers.append(tag("span", f" ({unread:,} not read yet)", class_="soft"))
    pairs: list[tuple[str, Child]] = [
        ("cluster", tag("span", sight.cluster, class_="id")),
        ("metadata service", tag("span", world.client.config.shown_uri, class_="id")),
        ("bookies", f"{len(sight.bookies.writable)} writable, {len(sight.bookies.readonly)} read-only, {len(sight.cookies)} with a cookie"),
        ("ledgers", ledgers),
        ("logs", link("/logs", f"{len(sight.logs):,}")),
        ("events", link("/events", f"{world.watcher.events.total:,} since this page began")),
    ]
    return section("Cluster", facts(pairs), name="cluster")


def _findings(world: World) -> Markup:
    client, watcher = world.client, world.watcher
    sight, health = watcher.sight, watcher.health
    alive = set() if sight is None else {*sight.bookies.writable, *sight.bookies.readonly}
    marks = world.answers.get(("marks",), lambda: list(judge_marks(client, frozenset(watcher.index.without_copy(alive)))), fresh_s=MARKS_S)
    items = [_finding(one) for one in findings(watcher, marks.value or ())]
    if not health.answers:
        items.insert(0, _outage(world))
    body = tag("ul", items, class_="findings") if items else empty("Nothing that this page looks at is wrong.")
    return section("Findings", body, name="findings", more=link("/doctor", "look at everything"))


def _outage(world: World) -> Markup:
    """Return the finding that the cluster does not answer, with the age of the others."""
    health, sight = world.watcher.health, world.watcher.sight
    said: list[Child] = ["the cluster does not answer"]
    if health.since_ms is not None:
        said += [" since ", moment(health.since_ms)]
    old = "" if sight is None else f"; what else is listed here was so {told_age(world.now_ms - sight.at_ms)} ago"
    advice = f"see if the metadata store runs and if this host reaches it{old}"
    return tag("li", severity_badge("error"), " ", said, ": ", tag("span", advice, class_="soft"))


def _finding(one: Finding) -> Markup:
    about = [" (", ledger_links(one.ledgers, one.count), ")"] if one.ledgers else None
    return tag("li", severity_badge(one.severity), " ", one.said, about, ": ", tag("span", sentence(one.advice), class_="soft"))


def _bookies(world: World, sight: Sight) -> Markup:
    client, registered = world.client, (*sight.bookies.writable, *sight.bookies.readonly)
    spaces = world.answers.get(("spaces", registered), lambda: bookie_spaces(client, registered), fresh_s=SPACES_S, wait_s=0.7)
    addresses = world.answers.get(
        ("addresses", registered), lambda: {one: address_of(client, one) for one in registered}, fresh_s=ADDRESSES_S, wait_s=0.7
    )
    silent, answers = set(client.unanswering(0.0)), world.watcher.health.answers
    rows = []
    for bookie, state in bookie_states(sight.bookies.writable, sight.bookies.readonly, sight.cookies).items():
        disk: Child = None
        if state != DOWN and spaces.value is not None:
            disk = _disk(spaces.value.get(bookie))
        elif state != DOWN:
            disk = tag(
                "span", "asked ..." if spaces.problem is None else spaces.problem, class_="soft", data_pending=spaces.problem is None
            )
        shown: list[Child] = [state_badge(state) if answers else badge(state)]  # nobody knows if it still is
        if bookie in silent and state != DOWN:
            shown += [" ", badge("silent", "bad")]
        rows.append([bookie_link(bookie), shown, tag("span", text((addresses.value or {}).get(bookie)), class_="id"), disk])
    if not rows:
        return section("Bookies", empty("No bookie is registered, and none has a cookie."), name="bookies")
    return section("Bookies", table(["bookie", "~state", "address", "disk"], rows, caption="Bookies"), name="bookies")


def _disk(space: BookieSpace | None) -> Markup:
    if space is None or space.total_bytes is None or space.free_bytes is None:
        return tag("span", "not reported" if space is not None else "no answer", class_="soft")
    used = space.total_bytes - space.free_bytes
    told = f"{amount(space.free_bytes)} of {amount(space.total_bytes)} free"
    bar = tag(
        "meter",
        told,
        min=0,
        max=space.total_bytes,
        low=space.total_bytes * 8 // 10,
        high=space.total_bytes * 9 // 10,
        optimum=0,
        value=used,
    )
    return tag("span", bar, tag("span", f" {told}"), class_="disk")


def _logs(sight: Sight) -> Markup:
    if not sight.logs:
        return section("Logs", empty("There is no log yet."), name="logs")
    names = [tag("li", log_link(name)) for name in sight.logs[:LOGS_SHOWN]]
    more = link("/logs", f"all {counted(len(sight.logs), 'log')}") if len(sight.logs) > LOGS_SHOWN else None
    return section("Logs", tag("ul", names, class_="names"), name="logs", more=more)


def _events(world: World) -> Markup:
    events = world.watcher.events.newest(EVENTS_SHOWN)
    return section("Newest events", event_rows(events, world.now_ms), name="events", more=link("/events", "all events"))
