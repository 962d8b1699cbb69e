"""The pages of examinations, which take long and begin when somebody opens them: the doctor's, and the x-ray of a whole ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bk_core.display import cluster as cluster_tables
from bk_core.display import xray as xray_tables
from bk_core.display.table import Lines, Table
from bk_core.display.words import told_age
from bk_core.ui.layout import Page, World, bookie_link, ledger_links, log_link, severity_badge, shown
from bk_core.ui.markup import Child, Markup, joined, link, section, sentence, table, tag
from bk_core.ui.pages.ledgers import number

if TYPE_CHECKING:
    from bk_core.client.doctor.findings import Diagnosis, Finding
    from bk_core.client.xray import Xray

DOCTOR_S = 300.0  # so old may a diagnosis be while no bookie comes or goes: it reads the metadata of all ledgers
AGAIN_S = 5.0  # and so old if somebody asks for a new one
XRAY_S = 60.0
XRAY_RATE = 20_000_000  # bytes a second that an x-ray reads
XRAY_ENTRIES = 1_000_000  # of one x-ray
ROWS_MAX = 200
FINDINGS = ("~severity", "finding", "what", "about", "what to do", "command")


def doctor_page(world: World, query: Mapping[str, str]) -> Page:
    """Return what `bk cluster doctor` says. A bookie that comes or goes makes an older answer worthless."""
    sight = world.watcher.sight
    bookies = () if sight is None else (sight.bookies.writable, sight.bookies.readonly, tuple(sight.cookies))
    answer = world.answers.get(("doctor", bookies), world.client.doctor, fresh_s=AGAIN_S if query.get("again") else DOCTOR_S)
    body = section("All of the cluster", shown(answer, _diagnosis, what="a look at the whole cluster", old_s=DOCTOR_S), name="doctor")
    age = "" if answer.age_s is None else f"This is from {told_age(int(answer.age_s * 1000))} ago. "
    about = "Bookies, the metadata of all ledgers and the lists of all logs."
    when = f"They are looked at anew when a bookie comes or goes, and after {DOCTOR_S / 60:.0f} minutes."
    again = link("/doctor?again=1", "Look again")
    more = tag("p", f"{age}{about} {when} ", again, ". ", sentence("`bk cluster doctor` says the same."), class_="soft")
    return Page("Doctor", joined([body, more]), "/", refreshes=answer.is_pending)


def _diagnosis(found: Diagnosis) -> Markup:
    rows = [_finding(one) for one in found.findings[:ROWS_MAX]]
    lines = (part for part in cluster_tables.diagnosis(found) if isinstance(part, str))
    return joined([table(FINDINGS, rows, caption="Findings") if rows else None, _parts(lines)])


def _finding(found: Finding) -> list[Child]:
    """Return a finding as a row in which what it is about leads to its pages."""
    about = [[ledger_links(found.ledgers, found.count), " "] if found.ledgers else None, *([log_link(one), " "] for one in found.logs)]
    return [
        severity_badge(found.severity),
        _whole_words(found.code),
        _with_bookies(found.what, found.bookies),
        about if found.ledgers or found.logs else None,
        sentence(found.advice),
        tag("code", _whole_words(found.command)) if found.command else None,
    ]


def _with_bookies(words: str, bookies: Iterable[str]) -> Markup:
    """Return a sentence in which the ids of bookies are links."""
    names = "|".join(map(re.escape, sorted(bookies, key=len, reverse=True)))
    parts = re.split(rf"(?<![\w.])({names})(?!\w)", words) if names else [words]
    return joined(bookie_link(part) if at % 2 else part for at, part in enumerate(parts))


def xray_page(world: World, ledger_id: int, query: Mapping[str, str]) -> Page:
    """Return the x-ray of a ledger."""
    first = number(query.get("first", "")) or 0
    ask = partial(world.client.xray, ledger_id, first=first, last=first + XRAY_ENTRIES - 1, bytes_per_second=XRAY_RATE)
    if world.password:
        ask = partial(ask, password=world.password)
    answer = world.answers.get(("xray", ledger_id, first), ask, fresh_s=XRAY_S)
    back = tag("p", link(f"/ledgers/{ledger_id}", f"\u2190 ledger {ledger_id}"))
    body = section("Each copy, as its bookie has it", shown(answer, _xray, what="the x-ray", old_s=XRAY_S), name="xray")
    return Page(f"X-ray of ledger {ledger_id}", joined([back, body]), "/ledgers", refreshes=answer.is_pending)


def _xray(found: Xray) -> Markup:
    return _parts(xray_tables.shown(found))


def _parts(parts: Iterable[Table | Lines | str]) -> Markup:
    """Return the parts that a notebook shows as parts of a page."""
    return joined(_part(one) for one in parts)


def _part(part: Table | Lines | str) -> Markup:
    if isinstance(part, str):
        return tag("p", part)
    if isinstance(part, Table):
        names = list(part.columns)
        rows = [
            [value if value is None or isinstance(value, int) else str(value) for value in row]
            for _, row in zip(range(ROWS_MAX), part.rows, strict=False)
        ]
        return table(names, rows)
    return tag("pre", joined(joined([line, Markup("\n")]) for line in part.lines))


def _whole_words(line: str) -> Markup:
    """Return a line that breaks between its words alone: a browser also breaks after hyphens, in the middle of an option."""
    words = (tag("span", word, class_="whole") for word in line.split(" "))
    return joined([" " if at else "", word] for at, word in enumerate(words))
