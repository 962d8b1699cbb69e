"""The names that a command line gives to a checkpoint or to a file of one, and those that errors give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from bk_core.cli.output import PASSWORD_VARIABLE
from bk_core.client.checkpoints.within import bases
from bk_core.client.files.imports import is_made_by_import, is_of_import, unfinished_imports
from bk_core.client.files.words import GATEWAY_AUTHORITY, GATEWAY_SCHEME, STORE_SCHEME, of_checkpoint, stored_at
from bk_core.errors import BkError, InvalidArgumentError, NoSuchPathError, PathIsDirectoryError
from bk_core.protocol.files.paths import ROOT, join, normal, parent

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.files.view import FileStoreView

PASSWORD_GIVEN_BY = f"--password, --password-file, or {PASSWORD_VARIABLE}"
_NAMES_MAX = 8
_NEAR_MAX = 1000  # names that are compared with one that is not there


def store_and_path(given: str, below: str = "") -> tuple[str, str]:
    """Return the store and the path of ``NAME`` or ``NAME/PATH``, or of either as Spark is given it, and of a path ``below`` that.

    Raises InvalidArgumentError for another place.
    """
    place = stored_at(given)
    if place is None:
        if "://" in given:
            known = f"NAME, NAME/PATH, {STORE_SCHEME}://NAME/PATH or {GATEWAY_SCHEME}://{GATEWAY_AUTHORITY}/NAME/PATH"
            raise InvalidArgumentError(f"{given} is no checkpoint in ledgers: give {known}")
        if given.startswith(("/", "./", "../", "~/")):
            known = f"NAME, NAME/PATH or {STORE_SCHEME}://NAME/PATH"
            raise InvalidArgumentError(f"{given} is a place on this machine, and no checkpoint in ledgers: give {known}")
        store, _, path = given.partition("/")
        place = store, path
    parts = [part.strip("/") for part in (place[1], below) if part.strip("/")]
    return place[0], normal("/" + "/".join(parts))


def whole_store(given: str, command: str) -> str:
    """Return the name of a store. Raises InvalidArgumentError for a path in one: ``command`` takes a whole checkpoint."""
    from bk_core.client.files.names import store_log

    store, path = store_and_path(given)
    with in_words(store, password=""):
        store_log(store)
    if path != ROOT:
        raise InvalidArgumentError(f"`bk checkpoint {command}` takes a whole checkpoint: {store}, not {path} in it. Nothing was done")
    return store


@contextmanager
def in_words(name: str, password: str) -> Iterator[None]:
    """Have errors of the block speak of the checkpoint ``name``, not of a store, its log and its ledgers."""
    try:
        yield
    except BkError as error:
        raise of_checkpoint(error, name, password=password.encode(), password_given_by=PASSWORD_GIVEN_BY, flags=True) from error


@contextmanager
def viewed(client: BookKeeper, name: str, password: str) -> Iterator[FileStoreView]:
    """Yield the files of a checkpoint. The error for a path that is not there names those that may have been meant. Standard error says
    what an import that is under way, or was killed, has there."""
    from bk_core.client.files.view import FileStoreView

    with in_words(name, password), FileStoreView.open(client, name, password=password.encode()) as view:
        _say_unfinished(client, view, _may_have_more(client, view, password))
        try:
            yield view
        except NoSuchPathError as error:
            path = str(error.context.get("path", ROOT))
            raise NoSuchPathError(_nothing_at(view, path), path=path, checkpoint=name) from error
        except PathIsDirectoryError as error:
            path = str(error.context.get("path", ROOT))
            how = f"`bk checkpoint ls {name}{path.rstrip('/')}` lists it"
            raise PathIsDirectoryError(f"{path} of checkpoint {name!r} is a directory; {how}", path=path, checkpoint=name) from error


def _may_have_more(client: BookKeeper, view: FileStoreView, password: str) -> bool:
    from bk_core.client.files.upkeep import has_unconfirmed

    return has_unconfirmed(client, view.name, password=password.encode())


def _say_unfinished(client: BookKeeper, view: FileStoreView, may_have_more: bool) -> None:
    """Say on standard error why the files may not be all, or not the last ones, that the checkpoint has."""
    left, has_more = unfinished_imports(view)
    ends = f"`bk checkpoint gc {view.name}`"
    if may_have_more:
        whose = "its owner, an import," if left else "its owner"
        told = f"checkpoint {view.name}: {whose} ended without closing it, and its last change is not confirmed, so it may not be shown"
        click.echo(f"{told}; {ends} confirms it, and so does the next owner that opens it", err=True)
    elif left:
        told = f"checkpoint {view.name}: an import of it goes on, or was killed before it was done"
        what = "the files are those from before it, all of them" if has_more else "there are no files of it yet; import it again"
        click.echo(f"{told}: {what}. {ends} deletes what a killed one has left", err=True)
    elif not has_more and is_made_by_import(client, view.log_name):
        told = f"checkpoint {view.name} has no files: an import of it has just begun, or was killed before its first file"
        click.echo(f"{told}; import it again. {ends} deletes what a killed one has left", err=True)
    elif not has_more:
        told = f"checkpoint {view.name} has no files: a query opened it and had not begun, or put none there so far"
        click.echo(f"{told}. `bk checkpoint rm {view.name}` deletes it", err=True)


def _nothing_at(view: FileStoreView, path: str) -> str:
    from bk_core.near import near_names

    above, missing = parent(path), path
    while above != ROOT and not view.exists(above):
        above, missing = parent(above), above
    names = [one.name for one in view.listing(above) if one.path != above and not is_of_import(one.path)] if view.exists(above) else []
    told = f"checkpoint {view.name!r} has no {path}"
    near = near_names(missing.rpartition("/")[2], names[:_NEAR_MAX])
    if near:
        return f"{told}; did you mean {' or '.join(join(above, name) for name in near)}?"
    more = f" and {len(names) - _NAMES_MAX:,} more" if len(names) > _NAMES_MAX else ""
    return f"{told}; {above} has {', '.join(names[:_NAMES_MAX]) or 'nothing in it'}{more}"


def checkpoints_below(view: FileStoreView, path: str) -> str:
    """Return ``it holds a/first and a/second`` for a folder that has checkpoints of queries in it; else nothing."""
    found = [f"{view.name}{base}" for base in bases(view, path) if base != path] if view.exists(path) else []
    more = f" and {len(found) - _NAMES_MAX:,} more" if len(found) > _NAMES_MAX else ""
    return f"it holds {' and '.join(found) if not more else ', '.join(found[:_NAMES_MAX]) + more}" if found else ""
