"""Names and numbers of a command line, looked at before anything is asked: what cannot be one is a wrong command line (status 2), and what
the cluster has not is an error (status 1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from bk_core.arguments import brief
from bk_core.errors import InvalidArgumentError

_ID_MAX = (1 << 63) - 1


@contextmanager
def of_usage(hint: str | None = None) -> Iterator[None]:
    """Raise a value that can never work as a wrong command line. ``hint`` is the option that gives it."""
    try:
        yield
    except InvalidArgumentError as error:
        if hint is None:
            raise click.UsageError(str(error.args[0])) from error
        raise click.BadParameter(str(error.args[0]), param_hint=hint) from error


class _Name(click.ParamType[str]):
    """A name that ``check`` takes."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            self._check(str(value))
        except InvalidArgumentError as error:
            self.fail(str(error.args[0]), param, ctx)
        return str(value)


class _LedgerId(click.ParamType[int]):
    """A number that a ledger may have."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if re.fullmatch(r"[0-9]{1,19}", value) is None or int(value) > _ID_MAX:
            self.fail(f"{brief(value)} is no id of a ledger, which is a whole number from 0 to {_ID_MAX}", param, ctx)
        return int(value)


def _check_log(name: str) -> None:
    from bk_core.client.log.list_store import log_path

    log_path(name)


def _check_store_path(given: str) -> str:
    """Return the path in the checkpoint that is given in one of the ways that users know: NAME, NAME/PATH, a URL of either."""
    from bk_core.cli.checkpoint_words import in_words, store_and_path
    from bk_core.client.files.names import store_log

    store, path = store_and_path(given)
    with in_words(store, password=""):
        store_log(store)
    return path


def _check_store(given: str) -> None:
    from bk_core.cli.checkpoint_words import store_and_path

    if _check_store_path(given) != "/":
        store, path = store_and_path(given)
        raise InvalidArgumentError(f"this takes a whole checkpoint: {store}, not {path} in it. Nothing was done")


def _check_bookie(bookie_id: str) -> None:
    from bk_core.metadata.service_info import check_bookie_id

    check_bookie_id(bookie_id)


LEDGER = _LedgerId()
LOG = _Name("log", _check_log)
STORE = _Name("checkpoint", _check_store)
STORE_PATH = _Name("checkpoint", _check_store_path)
BOOKIE = _Name("bookie", _check_bookie)
