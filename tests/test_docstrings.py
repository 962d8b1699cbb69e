"""Every public name tells what it does, what it takes, and what it raises: the part of it that a machine can check.

The shape: a sentence of what it does; the arguments with their units; ``Raises``; an example where it helps; the rules last.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import bk_core
import bk_spark
from bk_core import errors
from bk_core.metadata.store import MetadataStore
from tests import sources

NAMES_MIN = 160
STORE_METHODS_MIN = 40
"""The numbers of names and methods that there are at least; a walk that finds fewer has lost some."""
ERRORS = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.BkError)}
CHECKED_EVERYWHERE = {"InvalidArgumentError", "ArgumentTypeError"}
"""The docstring of bk_core says for all calls that their arguments are checked."""
NO_VERB = {"A", "All", "An", "As", "False", "How", "Of", "That", "The", "True", "What", "Which", "Who", "Whether", *ERRORS}
RULE = re.compile(r"\b(?:[A-Z]{2,5}-I?\d+[a-z]?)\b")


@dataclass(frozen=True)
class Public:
    """One public name. ``owner`` is the class of a method."""

    name: str
    value: Any
    owner: type | None = None
    is_property: bool = False

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.value.__doc__ or "")

    @property
    def all_docs(self) -> str:
        """Its own docstring and its class's, which may say what holds for all methods. A class of ``bk_core.aio`` may say that its calls
        are those of another class, whose docstrings it then has as well."""
        own = self.doc + "\n" + (self.owner.__doc__ or "" if self.owner is not None else "")
        twin = re.search(r"Its calls are those of\s+``bk_core\.(\w+)``", own)
        if twin is None or not self.name.startswith("aio."):
            return own
        same = getattr(getattr(bk_core, twin[1]), self.name.rpartition(".")[2], None)
        return own + "\n" + (same.__doc__ or "" if same is not None else "")


def public_names() -> Iterator[Public]:
    for module, prefix in ((bk_core, ""), (bk_core.aio, "aio."), (bk_spark, "")):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                yield Public(prefix + name, value)
                yield from methods(prefix + name, value)
            elif inspect.isfunction(value):
                yield Public(prefix + name, value)


def methods(name: str, cls: type) -> Iterator[Public]:
    """The public methods and properties that a class has itself, or from a base of ours that is not public by its own name."""
    for base in cls.__mro__:
        if base is not cls and (not base.__module__.startswith("bk_") or base.__name__ in bk_core.__all__):
            continue
        for one, value in vars(base).items():
            raw = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not one.startswith("_") and inspect.isfunction(raw):
                yield Public(f"{name}.{one}", raw, cls, isinstance(value, property))


PUBLIC = list(public_names())
FUNCTIONS = [one for one in PUBLIC if inspect.isfunction(one.value)]


def _named(names: list[Public]) -> Any:
    return pytest.mark.parametrize("public", names, ids=lambda one: one.name)


def test_all_public_names_are_looked_at() -> None:
    assert len(PUBLIC) >= NAMES_MIN
    assert {one.name.split(".")[0] for one in PUBLIC} >= {*bk_core.__all__, *bk_spark.__all__} - {"__version__", "aio", "errors", "kernels"}


@_named(PUBLIC)
def test_it_says_what_it_does(public: Public) -> None:
    first = public.doc.split("\n\n")[0]
    assert first, f"{public.name} has no docstring"
    assert first.rstrip().endswith((".", ":")), f"the first paragraph is no sentence: {first!r}"
    if inspect.isfunction(public.value) and not public.is_property:
        assert re.split(r"\W", first)[0] not in NO_VERB, f"say with a verb what it does: {first!r}"


@_named(FUNCTIONS)
def test_it_names_each_argument(public: Public) -> None:
    missing = unnamed(public.value, public.all_docs)
    assert not missing, f"{public.name} says nothing of {', '.join(missing)}"


def unnamed(function: Callable[..., Any], doc: str) -> list[str]:
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"\b{name}\b", doc)]


@_named(FUNCTIONS)
def test_it_says_what_it_raises(public: Public) -> None:
    silent = [name for name in raised_in(public.value) if not any(base in public.all_docs for base in _names_of(name))]
    assert not silent, f"{public.name} raises {', '.join(silent)} and does not say so"


def _names_of(error: str) -> list[str]:
    """The names under which an error may be told: its own and those of its bases."""
    return [cls.__name__ for cls in ERRORS[error].__mro__ if cls.__name__ in ERRORS]


def raised_in(function: Callable[..., Any]) -> set[str]:
    """The errors of ours that stand behind a ``raise`` in the function itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    found = (node.exc.func if isinstance(node.exc, ast.Call) else node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return {one.id for one in found if isinstance(one, ast.Name) and one.id in ERRORS}


@_named(PUBLIC)
def test_errors_are_told_in_sentences(public: Public) -> None:
    """ "NoSuchLogError." leaves a stranger to guess; "Raises NoSuchLogError." does not."""
    clipped = clipped_errors(public.doc)
    assert not clipped, f"say that it raises {', '.join(clipped)}"


def clipped_errors(doc: str) -> list[str]:
    """The errors that a docstring names in a paragraph which has no form of "raise", "fail" or "end"."""
    told = re.compile(r"\b(?:raises?|raised|fails?|failed|ends?)\b", re.I)
    return [name for text in doc.split("\n\n") if not told.search(text) for name in re.findall(r"\b\w+Error\b", text) if name in ERRORS]


@_named(FUNCTIONS)
def test_rules_stand_last(public: Public) -> None:
    """A rule's id stands at the end of a sentence, in parentheses, or in a last paragraph of its own."""
    assert not misplaced_rules(public.doc), f"rules in front of words: {misplaced_rules(public.doc)}"


def misplaced_rules(doc: str) -> list[str]:
    plain = re.sub(r"\([^()]*\)", "", doc)
    return RULE.findall(re.sub(r"(?:\n\n|^)(?:Rules?: [^\n]*(?:\n[^\n]+)*)\Z", "", plain))


def test_no_blank_line_stands_within_a_sentence() -> None:
    """Else the summary, which help and the site show, is half of it."""
    files = [path for part in ("bk_core", "bk_spark", "tests") for path in (sources.ROOT / part).rglob("*.py")]
    found = {str(path.relative_to(sources.ROOT)): [n for n, text in sources.facts(path).texts if halved(text)] for path in files}
    assert not {name: lines for name, lines in found.items() if lines}


def halved(doc: str) -> bool:
    first, _, more = inspect.cleandoc(doc).partition("\n\n")
    return bool(more) and first.rstrip()[-1:] not in ".:!?)`"


def test_what_is_wrong_is_seen() -> None:
    def function(first: int, second: int) -> None:
        raise errors.NoSuchLogError("no")

    assert unnamed(function, "Take ``first``.") == ["second"]
    assert clipped_errors("Return it. NoSuchLogError.") == ["NoSuchLogError"] and not clipped_errors("Raises NoSuchLogError.")
    assert misplaced_rules("LOG-1: first.") == ["LOG-1"] and not misplaced_rules("It is first (LOG-1).\n\nRules: LOG-2, LOG-3.")
    assert halved("Return it,\n\nor not.") and not halved("Return it.\n\nOr not.")
    assert raised_in(_raises_one) == {"NoSuchLogError"}


def _raises_one() -> None:
    from bk_core.errors import NoSuchLogError

    raise NoSuchLogError("no")


def test_each_duty_of_a_metadata_store_is_told() -> None:
    """Whoever writes a store has nothing but these docstrings."""
    told = {one.name: one.doc for one in methods("MetadataStore", MetadataStore)}
    assert len(told) >= STORE_METHODS_MIN
    assert not [name for name, doc in told.items() if not doc.rstrip().endswith((".", ")"))]


def test_checked_arguments_are_told_once_for_all() -> None:
    assert all(name in (bk_core.__doc__ or "") for name in CHECKED_EVERYWHERE)
