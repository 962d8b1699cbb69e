"""HTML into which no text of others gets as markup: whatever is no ``Markup`` is escaped, and characters that a browser hides or obeys are
spelled out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

from bk_core.display.words import cell, safe

Value: TypeAlias = "str | int | float | bool | None"
Child: TypeAlias = "Value | Iterable[Child]"
_COLUMNS = {"#": "number", "~": "close"}
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already. Only the functions of this module make it of values."""

    __slots__ = ()


NOTHING = Markup("")


def text(value: object) -> Markup:
    """Return a value as HTML: numbers with commas, control and bidirectional characters as escapes such as \\u202e, markup escaped."""
    return value if isinstance(value, Markup) else Markup(escape(cell(value)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an element. A trailing underscore of an attribute's name is dropped, and others become hyphens: ``class_``, ``data_live``.
    Attributes that are None or False are left out; True leaves the name alone."""
    head = name + "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    return Markup(f"<{head}>") if name in _VOID else Markup(f"<{head}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Return the children one after the other; None is nothing."""
    return Markup("".join(_child(one) for one in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, str | int | float):
        return text(child)
    return joined(child)


def _attribute(key: str, value: Value) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(safe(str(value), kept=""))}"'


def link(href: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return a link to another page of ours."""
    return tag("a", *children, href=href, **attributes)


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]], *, caption: str = "", keys: Sequence[str] | None = None) -> Markup:
    """Return a table whose rows become cards in a narrow window. ``columns`` that begin with ``#`` hold numbers, and those with ``~`` take
    no more room than they need. ``keys`` names the rows, so that the selected one stays selected when the page is refreshed."""
    plain = [column.lstrip("#~") for column in columns]
    kinds = [_COLUMNS.get(column[:1]) for column in columns]
    head = [tag("th", name, class_=kind, scope="col") for name, kind in zip(plain, kinds, strict=True)]
    body = [
        tag(
            "tr",
            [tag("td", _shown(value), class_=kind, data_label=name) for value, kind, name in zip(row, kinds, plain, strict=True)],
            data_key=None if keys is None else keys[number],
        )
        for number, row in enumerate(rows)
    ]
    told = tag("caption", caption, class_="unseen") if caption else None
    return tag("div", tag("table", told, tag("thead", tag("tr", head)), tag("tbody", body), class_="rows"), class_="scroll")


def _shown(value: Child) -> Child:
    """Return a value as one part, so that it stays together where cells are lines of a card."""
    if value is None:
        return text(None)
    return value if isinstance(value, str | int | float) else tag("span", value)


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return a list of facts, a name and a value each."""
    rows = [tag("div", tag("dt", name), tag("dd", text(None) if value is None else value)) for name, value in pairs]
    return tag("dl", rows, class_="facts")


def badge(word: str, kind: str = "") -> Markup:
    """Return a word that stands out; ``kind`` is good, watch, bad or nothing."""
    return tag("span", word, class_=f"badge {kind}".strip())


def sentence(words: str) -> Markup:
    """Return words of ours, in which what stands between backticks is a command."""
    return joined(tag("code", part) if number % 2 else part for number, part in enumerate(words.split("`")))


def section(title: str, *children: Child, name: str, more: Child = None) -> Markup:
    """Return a part of a page that a refresh replaces. ``name`` is its id."""
    heading = tag("div", tag("h2", title), more, class_="head")
    return tag("section", heading, *children, id=name, data_live=True)


def empty(sentence: str) -> Markup:
    """Return a sentence that stands where there is nothing to show."""
    return tag("p", sentence, class_="empty")
