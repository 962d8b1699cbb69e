"""A table, and how a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import NamedTuple

from bk_core.display.words import cell, safe

ROWS_MAX = 100
"""A notebook shows at most so many rows of one table."""
CELL_MAX = 400
"""A notebook shows at most so many characters of one cell: a serialised schema fills a page."""


class Table(NamedTuple):
    """``columns`` whose name begins with ``#`` hold numbers and are set flush right. The cells are values; ``cell`` makes texts of them."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


class Lines(NamedTuple):
    """Lines of text in which every character has its column, such as a map."""

    lines: Sequence[str]


def html(*parts: Table | Lines | str) -> str:
    """Return tables and lines of text as HTML. Everything is escaped. There are no colours, scripts or links in it, so that it looks like
    the page around it, dark or light."""
    return "<div>" + "".join(map(_part, parts)) + "</div>"


def _part(part: Table | Lines | str) -> str:
    if isinstance(part, Lines):
        lines = "\n".join(escape(safe(line, kept="")) for line in part.lines)
        return f'<pre style="line-height: 1.2; overflow-x: auto">{lines}</pre>'
    return _paragraph(part) if isinstance(part, str) else _table(part)


def _paragraph(text: str) -> str:
    return f"<p>{escape(safe(text, kept=''))}</p>"


def _table(table: Table) -> str:
    aligned = ["right" if column.startswith("#") else "left" for column in table.columns]
    rows = iter(table.rows)
    shown = [_row("td", map(_cut, row), aligned) for row in islice(rows, ROWS_MAX)]
    more = _paragraph(f"... and more: only the first {ROWS_MAX} rows are shown") if next(rows, None) is not None else ""
    head = _row("th", (safe(column.removeprefix("#"), kept="") for column in table.columns), aligned)
    return f"<table><thead>{head}</thead><tbody>{''.join(shown)}</tbody></table>{more}"


def _cut(value: object) -> str:
    text = cell(value)
    return text if len(text) <= CELL_MAX else f"{text[:CELL_MAX]} ..."


def _row(kind: str, texts: Iterable[str], aligned: Sequence[str]) -> str:
    cells = (f'<{kind} style="text-align: {side}">{escape(text)}</{kind}>' for text, side in zip(texts, aligned, strict=True))
    return f"<tr>{''.join(cells)}</tr>"
