"""Pictures of a ledger: which bookies have which entries, and which replicas of some entries are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bk_core.display.ledgers import DOWN
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata
from bk_core.ui.entries import Replica
from bk_core.ui.layout import bookie_link
from bk_core.ui.markup import Child, Markup, tag

BOOKIES_MAX = 40
FRAGMENTS_MAX = 200
_WIDE = 1000  # units of a bar
_LEAST = 4  # of a fragment of few entries
MARKS = {"ok": "\u25cf", "missing": "\u25cb", "corrupt": "\u2715", "silent": "?"}
WORDS = {"ok": "there", "missing": "missing", "corrupt": "corrupt", "silent": "no answer"}


def fragments_picture(metadata: LedgerMetadata, end: int | None, states: Mapping[str, str]) -> Markup:
    """Return a row for each bookie of the ledger, with a bar where it is in the ensemble. ``end`` is the last entry, None if not known;
    ``states`` says which bookies are down."""
    fragments = metadata.fragments[-FRAGMENTS_MAX:]
    spans = _spans(fragments, end)
    bookies = list(dict.fromkeys(bookie for fragment in fragments for bookie in fragment.ensemble))
    rows = [_row(bookie, fragments, spans, states.get(bookie, DOWN)) for bookie in bookies[:BOOKIES_MAX]]
    more = f"{len(bookies) - BOOKIES_MAX} bookies more are not drawn. " if len(bookies) > BOOKIES_MAX else ""
    earlier = f"Only the last {FRAGMENTS_MAX} fragments are drawn. " if len(metadata.fragments) > FRAGMENTS_MAX else ""
    told = f"{more}{earlier}Entries {fragments[0].first_entry_id} to {'now' if end is None else end}, from left to right."
    body = tag("table", tag("caption", "Fragments by bookie", class_="unseen"), tag("tbody", rows), class_="bars")
    return tag("figure", body, tag("figcaption", told))


def _spans(fragments: Sequence[Fragment], end: int | None) -> list[tuple[float, float]]:
    """Return where the bar of each fragment begins and how wide it is. The last one of a ledger that goes on has a tenth at least."""
    first = fragments[0].first_entry_id
    starts = [fragment.first_entry_id for fragment in fragments]
    last = starts[-1] + max(1, (starts[-1] - first) // 9) if end is None else max(end + 1, starts[-1] + 1)
    scale = _WIDE / max(1, last - first)
    found = []
    for start, stop in zip(starts, [*starts[1:], last], strict=True):
        begin = (start - first) * scale
        found.append((begin, max(_LEAST, (stop - start) * scale - 1)))
    return found


def _row(bookie: str, fragments: Sequence[Fragment], spans: Sequence[tuple[float, float]], state: str) -> Markup:
    bars = [
        tag("rect", x=f"{start:.1f}", width=f"{width:.1f}", y=0, height=10)
        for fragment, (start, width) in zip(fragments, spans, strict=True)
        if bookie in fragment.ensemble
    ]
    firsts = [fragment.first_entry_id for fragment in fragments if bookie in fragment.ensemble]
    told = f"{bookie}: fragments from entry {', '.join(map(str, firsts[:5]))}{', ...' if len(firsts) > 5 else ''}"
    picture = tag("svg", bars, viewBox=f"0 0 {_WIDE} 10", preserveAspectRatio="none", class_=f"bar {state}", role="img", aria_label=told)
    label: list[Child] = [bookie_link(bookie), tag("span", f" {state}", class_="bad-word") if state == DOWN else None]
    return tag("tr", tag("th", label, scope="row"), tag("td", picture))


def replica_map(ensembles: Sequence[tuple[str, ...]], found: Mapping[int, tuple[Replica, ...]]) -> dict[int, Markup]:
    """Return the dots of each entry, one for each place in its ensemble, in its order; ``ensembles`` are those of the entries, likewise."""
    shown = {}
    for (entry_id, replicas), ensemble in zip(found.items(), ensembles, strict=True):
        by_bookie = {replica.bookie: replica for replica in replicas}
        shown[entry_id] = tag("span", [_dot(bookie, by_bookie.get(bookie)) for bookie in ensemble], class_="dots")
    return shown


def _dot(bookie: str, replica: Replica | None) -> Markup:
    if replica is None:
        return tag("span", "\u00b7", class_="dot none", title=f"{bookie}: not in the write set of this entry")
    word = WORDS[replica.state]
    return tag(
        "span", tag("span", MARKS[replica.state], aria_hidden="true"), tag("span", f"{word} ", class_="unseen"),
        class_=f"dot {replica.state}", title=f"{replica.bookie}: {word} ({replica.told})",
    )  # fmt: skip


def legend() -> Markup:
    """Return what the dots mean."""
    marks = [tag("span", tag("span", MARKS[state], class_=f"dot {state}"), f" {word}") for state, word in WORDS.items()]
    return tag("p", marks, tag("span", tag("span", "\u00b7", class_="dot none"), " not in the write set"), class_="legend")
