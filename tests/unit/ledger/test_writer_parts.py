"""The README of the writer says which part changes which piece of its state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.write import writer

FOLDER = Path(str(writer.__file__)).parent
PARTS = ("acks", "guarantee", "failures", "ensemble_change", "close", "lac", "writer")
CHANGING = {"acknowledge", "add", "append", "clear", "cut", "discard", "drop_settled", "pop", "setdefault", "update"}
ROW = re.compile(r"^\| (?P<names>`[^|]*`) \| [^|]+ \| (?P<parts>[\w, ]+) \|$", re.MULTILINE)


def changes(tree: ast.Module) -> Iterator[str]:
    """Attributes of ``self`` that are set, that have an item set or deleted, or on which a method is called that changes them."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"), attr=name), ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr=called)):
                if called in CHANGING:
                    yield name
            case _:
                pass


def test_the_readme_tells_which_part_changes_which_state() -> None:
    found: dict[str, set[str]] = {}
    for part in PARTS:
        for name in changes(ast.parse((FOLDER / f"{part}.py").read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(part)
    told: dict[str, set[str]] = {}
    for row in ROW.finditer((FOLDER / "README.md").read_text(encoding="utf-8").partition("## The state")[2].partition("## ")[0]):
        for name in re.findall(r"`(\w+)`", row["names"]):
            told[name] = set(row["parts"].split(", "))
    assert told == found


def test_a_writer_is_freed_as_soon_as_nobody_refers_to_it() -> None:
    """Parts that referred back to it would leave it, with all its runs, to Python's collector (decision 1)."""
    freed: list[str] = []

    class Told(writer.LedgerWriter):
        def __del__(self) -> None:
            freed.append("writer")

    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")),))
    made = Told(7, metadata, 0, RandomPlacement(lambda: [], lambda: 0.5))
    made.append(b"x", memoryview(b"\0" * 8 + b"\1" + b"\0" * 7), "token", 0)
    del made
    assert freed == ["writer"]
