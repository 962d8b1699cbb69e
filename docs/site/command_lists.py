"""Lists of commands, which stand in READMEs as indented code, as tables of the site: there their ends would be cut off on a narrow screen.

    bk local        ZooKeeper and three bookies until Ctrl-C
    bk ui           that cluster as a live page in a browser

A block becomes a table if a line of it is too wide for a page, and each line has a command and, three blanks behind it or more, what that
does. A line that begins with blanks goes on with what the line before it says.
"""

from __future__ import annotations

import html
import re

from markdown_it import MarkdownIt

WIDE = 45
"""The number of characters of code that a page of 400 pixels shows without scrolling."""
_PARSER = MarkdownIt("commonmark").enable("table").disable("inline")
_ROW = re.compile(r"(?P<command>\S+(?: {1,2}\S+)*)(?: {3,}(?P<what>\S.*))?")
_DRAWN = re.compile(r"[\u2500-\u257f►◄▼▲]")
_HEAD = ["| | |", "| --- | --- |"]


def as_tables(text: str) -> str:
    """Return the Markdown with its wide lists of commands as tables."""
    lines = text.split("\n")
    for token in reversed(_PARSER.parse(text)):
        if token.type == "code_block" and token.level == 0 and token.map is not None:
            first, end = token.map
            rows = rows_of([line.removeprefix("    ") for line in lines[first:end]])
            if rows:
                lines[first:end] = [*_HEAD, *(f"| {_code(command)} | {_plain(what)} |" for command, what in rows), ""]
    return "\n".join(lines)


def rows_of(block: list[str]) -> list[tuple[str, str]]:
    """Return the commands of a block, each with what it does; [] if the block is no such list, or no line of it is wide."""
    lines = [line.rstrip() for line in block if line.strip()]
    if max(map(len, lines), default=0) <= WIDE or any(_DRAWN.search(line) for line in lines):
        return []
    rows: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("    ") and rows:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip()
        elif (found := _ROW.fullmatch(line)) is not None:
            rows.append((found["command"], found["what"] or ""))
        else:
            return []
    told = sum(bool(what) for _, what in rows)
    return rows if 2 * told > len(rows) > 1 and not any("`" in command for command, _ in rows) else []


def _code(command: str) -> str:
    """Return a command as code for a cell. Parsers disagree about a bar between backticks in a table."""
    return f"<code>{html.escape(command, quote=False).replace('|', '&#124;')}</code>" if "|" in command else f"`{command}`"


def _plain(what: str) -> str:
    """Return the words of a cell; code between backticks stays code."""
    parts = what.split("`")
    parts[::2] = [re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts).replace("|", r"\|")
