"""The page of all logs, and that of one: its properties, its writer, the queries that write to it, and its segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from bk_core.client.log.history import read_log
from bk_core.client.log.live_writers import LiveWriter, foremost, live_writers
from bk_core.client.log.tables import columns_told
from bk_core.display.logs import NO_PYARROW
from bk_core.display.words import counted, id_text, told_duration, told_size
from bk_core.errors import BkError, NoSuchLogError
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_core.ui.layout import Page, World, age, amount, ledger_link, log_link, moment, no_such, place, shown, steps
from bk_core.ui.markup import Child, Markup, badge, empty, facts, joined, link, section, table, tag
from bk_core.ui.pages.ledgers import number

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

ROWS = 50
MARKS_SHOWN = 200
COLUMNS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class SeenLog:
    """A log; ``view`` is None where it cannot be read, and ``problem`` says why."""

    name: str
    view: LogView | None = None
    problem: str | None = None
    writer: LiveWriter | None = None


def page(world: World, query: Mapping[str, str]) -> Page:
    """Return a part of the logs, by name."""
    sight = world.watcher.sight
    if sight is None:
        waiting = tag("p", "Looking at the cluster for the first time ...", class_="empty", data_pending=True)
        return Page("Logs", section("By name", waiting, name="logs"), "/logs", refreshes=True)
    wanted, after_name = query.get("name", ""), query.get("after", "")
    found = [name for name in sight.logs if wanted in name]
    start = next((at for at, name in enumerate(found) if name > after_name), len(found)) if after_name else 0
    names = tuple(found[start : start + ROWS])
    client = world.client
    answer = world.answers.get(("logs", names), lambda: [see_log(client, name) for name in names], fresh_s=2.0)
    before = place("/logs", {"name": wanted, "after": found[start - ROWS - 1] if start > ROWS else ""}) if start else None
    after = place("/logs", {"name": wanted, "after": names[-1]}) if start + ROWS < len(found) else None
    field = tag("label", "Name contains ", tag("input", name="name", value=wanted, autocomplete="off"))
    form = tag("form", field, tag("button", "Show", type="submit"), action="/logs", class_="filter")
    rows: Child = empty("No log has this in its name." if wanted else "There is no log yet.")
    if names:
        rows = shown(answer, lambda value: _rows(world, value), what="the lists of these logs")
    way = steps(before, after, counted(len(found), "log")) if before or after else None
    return Page("Logs", joined([form, section("By name", rows, way, name="logs")]), "/logs", refreshes=True)


def see_log(client: BookKeeper, name: str) -> SeenLog:
    """Read the list of a log. What is wrong with one hides no other."""
    try:
        return SeenLog(name, read_log(client, name))
    except NoSuchLogError:
        return SeenLog(name, problem="it was deleted meanwhile")
    except BkError as error:
        if error.retriable:
            raise
        return SeenLog(name, problem=str(error))


def _rows(world: World, found: list[SeenLog]) -> Markup:
    columns = ["log", "~entries", "#segments", "~live", "#rows", "#bytes", "~last commit (UTC)", "#age"]
    return table(columns, [_row(one, world.now_ms) for one in found], caption="Logs", keys=[one.name for one in found])


def _row(seen: SeenLog, now_ms: int) -> list[Child]:
    view = seen.view
    if view is None:
        return [log_link(seen.name), badge("unreadable", "bad"), None, None, None, None, seen.problem, None]
    listed = view.listed
    committed = max((segment.committed_at_ms for segment in listed.segments), default=0) or None
    return [
        log_link(seen.name),
        view.properties.entry_format if store_of(seen.name) is None else "file store",
        view.next_seq - listed.trimmed_seq,
        badge("live", "good") if view.live_segments else "",
        listed.total_rows - listed.trimmed_rows,
        amount(listed.total_bytes - listed.trimmed_bytes),
        moment(committed),
        age(committed, now_ms),
    ]


# --- one log -------------------------------------------------------------------------------------------------------------


def log_page(world: World, name: str, query: Mapping[str, str]) -> Page:
    """Return the page of a log."""
    client = world.client

    def ask() -> SeenLog:
        try:
            view = read_log(client, name)
        except NoSuchLogError:
            return SeenLog(name)
        return SeenLog(name, view, writer=foremost(live_writers(client, [segment.ledger_id for segment in view.live_segments])))

    answer = world.answers.get(("log", name), ask, fresh_s=1.5)
    title = f"Log {name}"
    if answer.value is None:
        return Page(title, shown(answer, lambda _: None, what="the log"), "/logs", refreshes=True)
    view = answer.value.view
    if view is None:
        return no_such("There is no log of this name. It was deleted, or never made.", "/logs")
    about = shown(answer, lambda seen: _facts(world, view, seen.writer), what="the log")
    parts = [section("Log", about, name="log"), _segments(world, name, view, query), _marks(world, view), _columns(view)]
    return Page(title, joined(parts), "/logs", refreshes=True)


def _facts(world: World, view: LogView, writer: LiveWriter | None) -> Markup:
    listed, properties = view.listed, view.properties
    kinds = {"alive": "good", "gone": "bad"}
    told: Child = None if writer is None else [badge(writer.state, kinds.get(writer.state, "watch")), f" {writer.told}"]
    ages = {"retention": properties.retention_ms, "marks of queries kept": properties.committed_retention_ms}
    pairs: list[tuple[str, Child]] = [
        ("id", tag("span", view.log_id, class_="id")),
        ("entries", properties.entry_format),
        ("writer", told),
        ("segments", _counted_segments(view)),
        ("rows", listed.total_rows - listed.trimmed_rows),
        ("bytes", amount(listed.total_bytes - listed.trimmed_bytes)),
        ("E / Qw / Qa", f"{properties.ensemble_size} / {properties.write_quorum_size} / {properties.ack_quorum_size}"),
        ("digest", properties.digest_type),
        ("guaranteed", properties.guaranteed_write_quorum),
        *((key, "none: for ever" if value is None else told_duration(value)) for key, value in ages.items()),
        ("retention bytes", "none: all" if properties.retention_bytes is None else told_size(properties.retention_bytes)),
    ]
    if listed.condemned:
        pairs.append(("condemned ledgers", f"{len(listed.condemned):,}, to be deleted by the next gc"))
    return facts(pairs)


def _counted_segments(view: LogView) -> str:
    listed = view.listed
    count = view.next_seq - listed.trimmed_seq
    older = count - len(listed.segments)
    told = f"{count:,}" + (f", from {listed.trimmed_seq} on" if listed.trimmed_seq else "")
    return f"{told}; {older:,} of them in its history" if older > 0 else told


def _segments(world: World, name: str, view: LogView, query: Mapping[str, str]) -> Markup:
    first = view.listed.trimmed_seq
    below = number(query.get("before", ""))
    end = view.next_seq if below is None else max(first, min(below, view.next_seq))
    start = max(first, end - ROWS)
    if start >= end:
        return section("Segments", empty("It has no segment yet."), name="segments")
    key = ("segments", view.log_id, view.version, start, end)
    answer = world.answers.get(key, lambda: list(view.segments(start, end - 1)), fresh_s=30.0)
    here = place(f"/logs/{quote(name, safe='')}", {})
    newer = place(here, {"before": min(end + ROWS, view.next_seq)}) if end < view.next_seq else None
    older = place(here, {"before": start}) if start > first else None
    way = steps(newer, older, f"{end - 1} to {start} of {view.next_seq - 1} to {first}") if newer or older else None
    rows = shown(answer, lambda found: _segment_rows(world, found), what="these segments")
    return section("Segments, the newest first", rows, way, name="segments")


def _segment_rows(world: World, found: list[Segment]) -> Markup:
    columns = ["#segment", "#ledger", "#first entry", "#last entry", "#rows", "#bytes", "committed (UTC)", "#age"]
    rows: list[list[Child]] = [
        [
            str(one.seq),
            ledger_link(one.ledger_id),
            id_text(one.first_entry_id),
            _last_entry(one),
            one.rows,
            amount(one.bytes),
            moment(one.committed_at_ms),
            age(one.committed_at_ms or None, world.now_ms),
        ]
        for one in reversed(found)
    ]
    return table(columns, rows, caption="Segments", keys=[str(one.seq) for one in reversed(found)])


def _last_entry(segment: Segment) -> Child:
    if segment.live:
        return badge("live", "good")
    return badge("written off", "bad") if segment.written_off else id_text(segment.last_entry_id)


def _marks(world: World, view: LogView) -> Markup:
    marks = view.listed.committed
    if not marks:
        return section("Queries that write to it", empty("None has committed a batch."), name="marks")
    rows: list[list[Child]] = [
        [
            tag("span", query, class_="id"),
            id_text(mark.batch_id),
            mark.rows,
            amount(mark.bytes),
            moment(mark.at_ms),
            age(mark.at_ms or None, world.now_ms),
        ]
        for query, mark in sorted(marks.items(), key=lambda item: -item[1].at_ms)[:MARKS_SHOWN]
    ]
    more = tag("span", f"the newest {MARKS_SHOWN} of {len(marks):,}", class_="soft") if len(marks) > MARKS_SHOWN else None
    columns = ["query", "#last batch", "#rows", "#bytes", "committed (UTC)", "#age"]
    return section("Queries that write to it", table(columns, rows, caption="Queries that write to it"), name="marks", more=more)


def _columns(view: LogView) -> Markup | None:
    if view.properties.entry_format == "raw":
        return None
    try:
        found = columns_told(view.properties.schema)
    except BkError as error:
        return section("Columns", tag("p", str(error), class_="notice bad"), name="columns")
    if found is None:
        return section("Columns", empty(f"{NO_PYARROW}."), name="columns")
    if not found:
        return section("Columns", empty("It has none until the first write."), name="columns")
    more = link("#columns", f"the first {COLUMNS_SHOWN} of {len(found):,}") if len(found) > COLUMNS_SHOWN else None
    return section("Columns", table(["column", "type"], found[:COLUMNS_SHOWN], caption="Columns"), name="columns", more=more)
