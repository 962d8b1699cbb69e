"""Errors that are told again: to another caller, with more words, or in the words of other users."""

from __future__ import annotations

import copy
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core import errors
from bk_core.client.files import opening
from bk_core.client.files.words import of_checkpoint
from bk_core.client.log import parts
from bk_core.client.repeating import given_up
from bk_core.errors import BkError, FileStoreTakenOverError, LogTakenOverError, NotEnoughBookiesError
from bk_spark.checkpoint.location import _with_its_name


def classes(root: type[BkError] = BkError) -> set[type[BkError]]:
    """Those of the product: tests have errors of their own, made in other ways."""
    found = {root, *(below for one in root.__subclasses__() for below in classes(one))}
    return {one for one in found if one.__module__.startswith("bk_")}


def drawn() -> dict[str, str]:
    """Return the class above each class, in the tree of the module's docstring."""
    assert errors.__doc__ is not None
    found: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.split("\n\n")[1].splitlines():
        depth = (re.match(r"[ │├└─]*", line).end() - 4) // 4  # type: ignore[union-attr]
        names = re.split(r" {2,}", line.strip(" │├└─"))[0]  # what is said of a class stands behind several spaces
        for token in re.findall(r"\w+|[()]", names):
            if token in "()":  # a class behind which others stand in brackets is above these
                depth += 1 if token == "(" else -1
                continue
            assert token not in found, f"{token} is drawn twice"
            path = [*path[:depth], token]
            found[token] = path[depth - 1] if depth else ""
    return found


def test_all_errors_stand_in_one_file_under_a_tree_of_them() -> None:
    assert not [one for one in classes() if one.__module__ != errors.__name__]
    assert drawn() == {one.__name__: "" if one is BkError else one.__bases__[0].__name__ for one in classes()}


def test_an_error_of_any_class_is_retold_with_all_that_it_carries() -> None:
    cause = ValueError("cause")
    for kind in classes():
        error = kind("first", path="/a")
        error.__cause__ = cause
        for one in (error, copy.copy(error).nothing_done()):
            one.__cause__ = cause
            retold = one.retold("second")
            assert (type(retold), retold.args, retold.context, retold.__cause__) == (kind, ("second",), {"path": "/a"}, cause)
            assert (
                retold.outcome_unknown is one.outcome_unknown and pickle.loads(pickle.dumps(retold)).outcome_unknown is one.outcome_unknown
            )
        assert error.args == ("first",) and error.nothing_done().retold("x", of_same_call=False).outcome_unknown is kind.outcome_unknown


RETOLD: dict[str, Callable[[BkError], Exception]] = {
    "to another caller of a store": opening.again,
    "to another caller of a log": parts.again,
    "with the time that it took": lambda error: given_up(error, time.monotonic()),
    "of a checkpoint": lambda error: of_checkpoint(error, "q", password=b"", password_given_by="", flags=False),
    "with the name of a checkpoint": lambda error: _with_its_name(error, "q"),
}


@pytest.mark.parametrize("how", RETOLD)
def test_whoever_retells_an_error_keeps_its_cause_and_its_outcome(how: str) -> None:
    for kind, cause in ((FileStoreTakenOverError, LogTakenOverError("deleted", deleted=True)), (NotEnoughBookiesError, None)):
        error = kind("told", store="q").nothing_done()
        error.__cause__ = cause
        retold = RETOLD[how](error)
        assert isinstance(retold, kind) and retold is not error
        assert (retold.__cause__, retold.outcome_unknown, retold.context) == (cause, False, {"store": "q"})


def test_a_missing_log_says_if_its_message_is_a_question() -> None:
    """Whatever the name ends with: what is told behind it has to fit."""
    assert not errors.NoSuchLogError("there is no log 'why?'", log="why?").asks
    asking = errors.NoSuchLogError("there is no log 'ordes'; did you mean 'orders'?", near="did you mean 'orders'?")
    assert asking.asks and asking.retold("...").asks


def test_what_became_of_a_call_is_known_or_not_as_it_is_told() -> None:
    ended = NotEnoughBookiesError("away").nothing_done()
    maybe = parts.again(ended, "entries that were not acknowledged before may or may not be in the log")
    assert isinstance(maybe, NotEnoughBookiesError) and maybe.outcome_unknown
    sure = opening.again(NotEnoughBookiesError("away"), "nothing was read")
    assert isinstance(sure, NotEnoughBookiesError) and not sure.outcome_unknown


def test_nobody_else_makes_a_copy_of_an_error() -> None:
    root = Path(__file__).resolve().parents[2]
    modules = [path for package in ("bk_core", "bk_spark") for path in (root / package).rglob("*.py")]
    assert len(modules) > 100 and [path.name for path in modules if "type(error)(" in path.read_text()] == []
