"""Markdown as forges read it (CommonMark), rewritten so that Python-Markdown, which MkDocs uses, makes the same page of it.

They differ in lists: CommonMark indents what belongs to an item by the width of its marker, Python-Markdown always by four columns; and
Python-Markdown begins a list, and the next item behind one of several paragraphs, only behind an empty line.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

_PARSER = MarkdownIt("commonmark").enable("table").disable("inline")
_MARKER = re.compile(r" *(?P<marker>(?:[-*+]|\d+[.)]) +)")
_INDENT = 4


def for_python_markdown(text: str) -> str:
    lines = text.split("\n")
    more = [0] * len(lines)
    gaps: set[int] = set()
    items: dict[int, tuple[int, int]] = {}
    for token in _PARSER.parse(text):
        if token.map is None:
            continue
        first, end = token.map
        if token.type in ("bullet_list_open", "ordered_list_open") and token.level == 0 and first > 0 and lines[first - 1].strip():
            gaps.add(first)
        if token.type == "list_item_open":
            before = items.get(token.level)
            if before is not None and before[1] == first and not all(line.strip() for line in lines[slice(*before)]):
                gaps.add(first)  # behind an item of several paragraphs
            items[token.level] = first, end
        if token.type == "list_item_open" and (marker := _MARKER.match(lines[first])) is not None:
            for number in range(first + 1, end):
                more[number] += max(0, _INDENT - len(marker["marker"]))
    out = []
    for number, line in enumerate(lines):
        if number in gaps and lines[number - 1].strip():
            out.append("")
        out.append(" " * more[number] + line if line.strip() else line)
    return "\n".join(out)
