"""The pictures of the site, as SVG within the page: colours are those of the page, so they follow its light and dark form."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_ARROW = re.compile(r"^ *(\S+) --> (\S+)$", re.M)
_ENDS = "[*]"
_STATE_HEIGHT, _RANK_HEIGHT, _GAP, _PASSING = 30.0, 74.0, 22.0, 26.0


def named(name: str) -> str:
    """Return one of the drawn pictures."""
    return {"concepts": concepts, "commit": commit}[name]()


def _svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    return (
        f'<div class="picture"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'style="min-width: {min(width, 520):.0f}px" '
        f'aria-label="{html.escape(title)}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
        '<path d="M0,0.5 L7.5,4 L0,7.5 z" class="tip"/></marker></defs>' + "".join(parts) + "</svg></div>"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{html.escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="5" class="{kind}"/>'


# --- machines: states in ranks, arrows downwards, those back dashed ---------------------------------------------------


@dataclass
class _Layout:
    """Places of states. An arrow over several ranks passes each of them at a place of its own, so it crosses no state."""

    first: str
    arrows: list[tuple[str, str]]
    rank: dict[str, int] = field(default_factory=dict)
    back: set[tuple[str, str]] = field(default_factory=set)
    rows: list[list[str]] = field(default_factory=list)
    passing: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    x: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._find_back(self.first, [])
        states = dict.fromkeys([self.first, *(state for arrow in self.arrows for state in arrow)])
        self.rank = dict.fromkeys(states, 0)
        for _ in states:  # the longest way down
            for a, b in self.down():
                self.rank[b] = max(self.rank[b], self.rank[a] + 1)
        self.rows = [[s for s in states if self.rank[s] == rank] for rank in range(max(self.rank.values()) + 1)]
        for a, b in self.arrows:
            top, bottom = sorted((self.rank[a], self.rank[b]))
            self.passing[a, b] = [f"{a}>{b}>{rank}" for rank in range(top + 1, bottom)]
            for rank, name in zip(range(top + 1, bottom), self.passing[a, b], strict=True):
                self.rows[rank].append(name)
        self._order()

    def _find_back(self, state: str, way: list[str]) -> None:
        for a, b in self.arrows:
            if a == state and (a, b) not in self.back:
                if b in way or b == state:
                    self.back.add((a, b))
                elif len(way) < 24:
                    self._find_back(b, [*way, state])

    def down(self) -> list[tuple[str, str]]:
        return [arrow for arrow in self.arrows if arrow not in self.back]

    def chain(self, arrow: tuple[str, str]) -> list[str]:
        """Return all places of an arrow, from the upper state to the lower one."""
        a, b = arrow if self.rank[arrow[0]] <= self.rank[arrow[1]] else arrow[::-1]
        return [a, *self.passing[arrow], b]

    def width(self, name: str) -> float:
        return _PASSING if ">" in name else 9.0 * len(name) + 22

    def _order(self) -> None:
        """Put everything near what it is joined with."""
        near: dict[str, list[str]] = {name: [] for row in self.rows for name in row}
        for arrow in self.arrows:
            chain = self.chain(arrow)
            for one, other in zip(chain, chain[1:], strict=False):
                near[one].append(other)
                near[other].append(one)
        self._place()
        for sweep in range(12):
            rows = self.rows[1:] if sweep % 2 == 0 else self.rows[-2::-1]
            for row in rows:
                row.sort(key=lambda name: sum(self.x[other] for other in near[name]) / max(1, len(near[name])))
                self._place()

    def _place(self) -> None:
        widths = [sum(self.width(name) for name in row) + _GAP * (len(row) - 1) for row in self.rows]
        for row, width in zip(self.rows, widths, strict=True):
            at = (max(widths) - width) / 2
            for name in row:
                self.x[name] = at + self.width(name) / 2
                at += self.width(name) + _GAP

    @property
    def size(self) -> tuple[float, float]:
        return max(self.x[name] + self.width(name) / 2 for name in self.x), (len(self.rows) - 1) * _RANK_HEIGHT + _STATE_HEIGHT


def states(mermaid: str) -> str:
    """Return the picture of a state diagram, given as its source."""
    arrows = [(found[1], found[2]) for found in _ARROW.finditer(mermaid)]
    first = next(b for a, b in arrows if a == _ENDS)
    ends = {a for a, b in arrows if b == _ENDS}
    layout = _Layout(first, [(a, b) for a, b in arrows if _ENDS not in (a, b)])
    width, height = layout.size
    margin, top = 14.0, 34.0

    def parts() -> Iterator[str]:
        yield f'<circle cx="{layout.x[first] + margin:.0f}" cy="8" r="6" class="dot"/>'
        yield f'<path d="M{layout.x[first] + margin:.0f},14 V{top:.0f}" class="arrow" marker-end="url(#tip)"/>'
        for arrow in layout.arrows:
            chain = layout.chain(arrow)
            points: list[tuple[float, float]] = []
            for place, name in enumerate(chain):
                y = top + (layout.rank[chain[0]] + place) * _RANK_HEIGHT
                if 0 < place < len(chain) - 1:
                    points += [(layout.x[name], y), (layout.x[name], y + _STATE_HEIGHT)]
                else:
                    other = chain[place + 1] if place == 0 else chain[place - 1]
                    room = layout.width(name) / 2 - 12
                    aside = max(-room, min(room, (layout.x[other] - layout.x[name]) / 3))
                    if (arrow[1], arrow[0]) in layout.arrows:
                        aside = min(room, 10.0) if arrow in layout.back else -min(room, 10.0)
                    points.append((layout.x[name] + aside, y + (_STATE_HEIGHT if place == 0 else 0)))
            upwards = chain[0] != arrow[0]
            yield _curve([(x + margin, y) for x, y in points], "back" if arrow in layout.back else "arrow", upwards)
        for rank, row in enumerate(layout.rows):
            for name in row:
                if ">" not in name:
                    x, y, wide = layout.x[name] + margin, top + rank * _RANK_HEIGHT, layout.width(name)
                    yield _box(x - wide / 2, y, wide, _STATE_HEIGHT, "end" if name in ends else "state")
                    yield _text(x, y + 20, name, "label")

    told = "; ".join(f"{a} to {b}" for a, b in layout.arrows)
    return _svg(width + 2 * margin, top + height + 8, parts(), f"States. {told}")


def _curve(points: list[tuple[float, float]], kind: str, upwards: bool) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False):
        bend = (y2 - y1) / 2
        path += f" C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
    return f'<path d="{path}" class="{kind}" marker-{"start" if upwards else "end"}="url(#tip)"/>'


# --- drawn ------------------------------------------------------------------------------------------------------------


def concepts() -> str:
    """A log, its segments, their ledgers, the fragments of one, and its entries on bookies."""

    def parts() -> Iterator[str]:
        yield _text(10, 18, "log “events”: a list in ZooKeeper, which only compare-and-set changes", "left strong")
        for at, (ledger, state) in enumerate((("ledger 7", "closed"), ("ledger 9", "closed"), ("ledger 12", "open"))):
            x = 10 + at * 150
            kind = "open" if state == "open" else "state"
            yield _box(x, 30, 140, 36, kind) + _text(x + 70, 53, f"segment {at}", "label")
            yield f'<path d="M{x + 70},66 V92" class="arrow" marker-end="url(#tip)"/>'
            yield _box(x, 93, 140, 44, kind) + _text(x + 70, 112, ledger, "label strong") + _text(x + 70, 129, state, "label small")
        yield _text(478, 53, "← new entries go to the last segment", "left small")
        yield _text(478, 112, "← one writer each; closed once,", "left small") + _text(
            491, 129, "and never changed after that", "left small"
        )
        yield '<path d="M380,137 V155 M210,172 V155 H505 V172" class="arrow plain"/>'
        for x, width, first, bookies in ((60, 300, 0, "A, B, C"), (370, 270, 4, "A, D, C")):
            yield _box(x, 172, width, 262, "fragment")
            yield _text(x + 12, 192, f"fragment from entry {first}, on bookies {bookies}", "left small")
        holdings = {"A": range(7), "B": range(4), "C": range(7), "D": range(4, 7)}
        for row, (bookie, entries) in enumerate(holdings.items()):
            y = 204 + row * 56
            yield _text(10, y + 26, bookie, "left strong")
            yield f'<path d="M30,{y + 20} H650" class="line"/>'
            for entry in entries:
                x = (82 + entry * 66) if entry < 4 else (392 + (entry - 4) * 78)
                yield _box(x, y + 2, 44, 36, "entry") + _text(x + 22, y + 25, str(entry), "label")
        yield _text(392, 204 + 56 + 25, "✕ bookie B fails", "left failed")
        yield _text(655, 204 + 3 * 56 + 25, "← takes the place of B", "left small")

    return _svg(
        810, 444, parts(), "A log lists segments; each is a range of a ledger; a ledger has fragments; their entries lie on bookies"
    )


def commit() -> str:
    """A batch of Spark's: tasks write entries to ledgers, and one compare-and-set makes them visible."""

    def parts() -> Iterator[str]:
        yield _box(10, 14, 130, 36, "state") + _text(75, 37, "task 0", "label")
        yield _box(10, 74, 130, 36, "state") + _text(75, 97, "task 1", "label")
        yield _box(10, 134, 130, 36, "failed-box") + _text(75, 157, "task 2, killed", "label")
        for y, name in ((14, "ledger 21: entries 0 to 8"), (74, "ledger 22: entries 0 to 5"), (134, "ledger 23: entries 0 to 2")):
            yield f'<path d="M140,{y + 18} H188" class="arrow" marker-end="url(#tip)"/>'
            yield _box(190, y, 220, 36, "entry") + _text(300, y + 23, name, "label")
        for y, bend in ((32, 18), (92, -18)):
            end = 62 if bend > 0 else 66
            yield f'<path d="M410,{y} C450,{y} 440,{y + bend * 1.4:.0f} 478,{end}" class="arrow" marker-end="url(#tip)"/>'
        yield _box(480, 34, 200, 60, "open") + _text(580, 58, "one compare-and-set:", "label strong")
        yield _text(580, 78, "two segments, one mark", "label")
        yield _text(480, 116, "readers see both or neither", "left small")
        yield _text(424, 157, "← named by no list: never visible, deleted later", "left small")

    return _svg(
        810,
        180,
        parts(),
        "Tasks write to ledgers of their own; the commit lists what finished tasks wrote, together with the mark of the batch",
    )
