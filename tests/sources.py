"""The files of the tree for the tests that look into them: each is read, parsed and walked once in a run, and no syntax tree is kept."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Facts:
    """The parts of a Python file that tests ask for."""

    imports: tuple[tuple[int, str], ...]  # (line, module) of every import that runs; those for type checkers only are left out
    names: frozenset[str]  # keywords of calls, attributes, imported names and the texts of constants
    called: frozenset[str]  # the names of what is called, with their dots; Generic[int]() as Generic
    texts: tuple[tuple[int, str], ...]  # docstrings, and the strings behind constants and fields that stand for one
    functions: tuple[tuple[int, str], ...]  # (line, docstring) of each function that has one
    classes: tuple[str, ...]
    relative: tuple[int, ...]  # the lines of relative imports


@contextmanager
def no_collections() -> Iterator[None]:
    """A syntax tree has no cycles, but so many parts that garbage is looked for again and again while it is made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def facts(path: Path) -> Facts:
    with no_collections():
        return _facts(ast.parse(path.read_text(), str(path)))


def _facts(tree: ast.Module) -> Facts:
    names: set[str] = set()
    called: set[str] = set()
    texts: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    classes: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str() as name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str() as name):
                names.add(name)
            case ast.Call():
                called.add(dotted(node.func))
            case ast.Expr(value=ast.Constant(value=str() as text)):
                texts.append((node.lineno, text))
            case ast.FunctionDef() if ast.get_docstring(node):
                functions.append((node.lineno, ast.get_docstring(node) or ""))
            case ast.ClassDef():
                classes.append(node.name)
    found = tuple(_imports(tree))
    relative = tuple(node.lineno for node in found if isinstance(node, ast.ImportFrom) and node.level)
    imports = tuple(one for node in found for one in _imported(node))
    return Facts(imports, frozenset(names), frozenset(called), tuple(texts), tuple(functions), tuple(classes), relative)


def dotted(node: ast.expr) -> str:
    """The name that an expression is, such as ``threading.Event``; "" where it is something else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
        case ast.Subscript(value=value):
            return dotted(value)
    return ""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below ``node``, at any depth; expressions are not looked into."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # no expression has an import in it
            yield from _imports(child)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
        return
    module = node.module or ""
    # `from package import module` names the module
    yield from ((node.lineno, f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module) for alias in node.names)


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()
