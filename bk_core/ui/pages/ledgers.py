"""The page of all ledgers: filtered by what the index knows, a part at a time; metadata is read of the rows that are shown."""

from __future__ import annotations

from collections.abc import Mapping

from bk_core.client.inspect import FoundLedger, found_ledgers
from bk_core.display.ledgers import UNREADABLE, bookie_states
from bk_core.display.words import counted, id_text
from bk_core.protocol.log.identity import LOG_KEY
from bk_core.ui.index import Filter
from bk_core.ui.layout import Page, World, age, amount, ledger_link, log_link, moment, place, shown, state_badge, steps
from bk_core.ui.markup import Child, Markup, empty, joined, section, table, tag

ROWS = 50
STATES = ("OPEN", "IN_RECOVERY", "CLOSED", UNREADABLE)
COLUMNS = ("#ledger", "~state", "~E/Qw/Qa", "#fragments", "#last entry", "#length", "log", "~created (UTC)", "#age")
_ID_MAX = 2**63 - 1


def number(text: str) -> int | None:
    """Return the ledger or entry id that a text names, None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _ID_MAX else None


def page(world: World, query: Mapping[str, str]) -> Page:
    """Return a part of the ledgers, the highest id first."""
    wanted = Filter(query.get("state", ""), query.get("bookie", ""), query.get("log", ""), number(query.get("id", "")))
    index = world.watcher.index
    above, below = number(query.get("after", "")), number(query.get("before", ""))
    found = index.older(wanted, below, ROWS + 1) if above is None else index.newer(wanted, above, ROWS + 1)
    is_more = len(found) > ROWS
    ids = found[:ROWS] if above is None else found[-ROWS:]
    client = world.client
    answer = world.answers.get(("ledgers", tuple(ids)), lambda: list(found_ledgers(client, ids)), fresh_s=2.0)
    kept = {"state": wanted.state, "bookie": wanted.bookie, "log": wanted.log, "id": wanted.most_id}
    newer = place("/ledgers", {**kept, "after": ids[0]}) if ids and (is_more if above is not None else below is not None) else None
    older = place("/ledgers", {**kept, "before": ids[-1]}) if ids and (is_more if above is None else True) else None
    told = _told(world, wanted, ids)
    if world.watcher.sight is None:
        rows: Markup = tag("p", "Looking at the cluster for the first time ...", class_="empty", data_pending=True)
    elif not world.watcher.has_listed:
        rows = tag("p", "Listing all ledgers ...", class_="empty", data_pending=True)
    elif ids and answer.value is None and answer.problem is not None:
        rows = joined([shown(answer, lambda _: None, what="the metadata of these ledgers"), _known(world, ids)])
    elif ids:
        rows = shown(answer, lambda value: _rows(world, value), what="the metadata of these ledgers")
    else:
        rows = empty("No ledger meets these conditions." if wanted != Filter() else "There is no ledger.")
    body = section("Highest id first", rows, steps(newer, older, told) if ids else None, name="ledgers")
    return Page("Ledgers", joined([_form(world, wanted), body]), "/ledgers")


def _told(world: World, wanted: Filter, ids: list[int]) -> str:
    index = world.watcher.index
    span = "" if not ids else str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
    everything = f"{counted(len(index), 'ledger')} in all"
    if wanted == Filter():
        return f"{span}, {everything}"
    unread = len(index) - index.known
    note = f"; {unread:,} not read yet, so filters do not see them" if unread > 0 and wanted.needs_kind else ""
    found = index.count(wanted)
    return f"{span}, {found:,} that {'meets' if found == 1 else 'meet'} the conditions; {everything}{note}"


def _rows(world: World, found: list[FoundLedger]) -> Markup:
    return table(COLUMNS, [_row(one, world.now_ms) for one in found], caption="Ledgers", keys=[str(one.ledger_id) for one in found])


def _known(world: World, ids: list[int]) -> Markup:
    """Return the rows of what the page knows of these ledgers without asking: state and log."""
    kinds = [(one, world.watcher.index.kind(one)) for one in ids]
    rows: list[list[Child]] = [
        [ledger_link(one), state_badge(kind.state), None, None, None, None, log_link(kind.log) if kind.log else None, None, None]
        for one, kind in kinds
    ]
    return table(COLUMNS, rows, caption="Ledgers", keys=[str(one) for one in ids])


def _row(found: FoundLedger, now_ms: int) -> list[Child]:
    metadata = found.metadata
    times: list[Child] = [moment(found.created_ms), age(found.created_ms, now_ms)]
    if metadata is None:
        return [ledger_link(found.ledger_id), state_badge(UNREADABLE), None, None, None, None, str(found.problem), *times]
    log = metadata.custom.get(LOG_KEY)
    is_closed = metadata.state.name == "CLOSED"
    return [
        ledger_link(found.ledger_id),
        state_badge(metadata.state.name),
        f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}",
        len(metadata.fragments),
        id_text(metadata.last_entry_id) if is_closed else None,
        amount(metadata.length) if is_closed else None,
        None if log is None else log_link(log.decode("utf-8", "replace")),
        *times,
    ]


def _form(world: World, wanted: Filter) -> Markup:
    sight = world.watcher.sight
    bookies = [] if sight is None else list(bookie_states(sight.bookies.writable, sight.bookies.readonly, sight.cookies))
    if wanted.bookie and wanted.bookie not in bookies:
        bookies.append(wanted.bookie)
    fields = [
        _choice("state", "State", STATES, wanted.state),
        _choice("bookie", "Bookie", bookies, wanted.bookie),
        tag("label", "Log ", tag("input", name="log", value=wanted.log, autocomplete="off", size=14)),
        tag(
            "label",
            "From id ",
            tag("input", name="id", value=wanted.most_id, inputmode="numeric", pattern="[0-9]*", autocomplete="off", size=10),
        ),
    ]
    return tag("form", fields, tag("button", "Show", type="submit"), tag("a", "all", href="/ledgers"), action="/ledgers", class_="filter")


def _choice(name: str, title: str, values: tuple[str, ...] | list[str], chosen: str) -> Markup:
    options = [tag("option", "any", value="")] + [tag("option", one, value=one, selected=one == chosen) for one in values]
    return tag("label", f"{title} ", tag("select", options, name=name))
