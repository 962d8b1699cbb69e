"""File stores in the words of those who know them as checkpoints: users of ``checkpoint_location`` and of ``bk checkpoint``.

Both need the same places and the same errors, and neither may import the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from bk_core.arguments import brief
from bk_core.errors import BkError, FileStoreTakenOverError, LogTakenOverError, WrongPasswordError, insisting
from bk_core.protocol.log.names import FILES_PREFIX

STORE_SCHEME = "bk"
GATEWAY_SCHEME, GATEWAY_TLS_SCHEME, GATEWAY_AUTHORITY = "webhdfs", "swebhdfs", "bookkeeper-checkpoints"  # of the places that Spark is given


def stored_at(checkpoint: str) -> tuple[str, str] | None:
    """The store and the path in it, of a place such as fsspec or Spark is given for a file in a file store; None for another one.

    It is no URL: Hadoop's paths may have ``?`` and ``#`` in them, and what is behind these must not be cut off.
    """
    scheme, _, place = checkpoint.partition("://")
    authority, _, path = place.partition("/")
    if place and scheme == STORE_SCHEME:
        return unquote(authority), f"/{unquote(path)}"
    if place and scheme in (GATEWAY_SCHEME, GATEWAY_TLS_SCHEME) and authority == GATEWAY_AUTHORITY:
        name, _, path = unquote(path).lstrip("/").partition("/")
        return name, f"/{path}"
    return None


def of_checkpoint(error: BkError, name: str, *, password: bytes, password_given_by: str, flags: bool) -> BkError:
    """The error of the store ``name``, as one of the checkpoint of that name: of the same class, outcome and cause.

    A wrong password is told without the ledger that showed it. ``password_given_by`` says how the caller gives one. Of an argument that
    has a spelling for Python and one for the command line, the second is told where ``flags`` says so, else the first. What users wrote
    stays as it is: only this store and its log are named anew, and neither where a text of the error's context names them likewise. The
    context of an error that names the checkpoint has it as ``checkpoint``; one that has it already is told as it is.
    """
    told = str(error.args[0])
    if "checkpoint" in error.context:
        return error.retold(told)
    if isinstance(error, WrongPasswordError):
        if password:
            told = f"the password given is not that of checkpoint {name!r}; one that was made without a password is opened without one"
        else:
            told = f"checkpoint {name!r} was made with a password, and none was given: {password_given_by}"
    given = list(_texts(error.context))
    for known, word in (
        (f"file store {name!r}", f"checkpoint {name!r}"),
        (f"file store name {brief(name)}", f"checkpoint name {brief(name)}"),
        (f"log {f'{FILES_PREFIX}{name}'!r}", f"the log of checkpoint {name!r}"),
    ):
        if not any(known in text for text in given):
            told = told.replace(known, word)
    retold = error.retold(told)
    if told != error.args[0]:
        retold.context["checkpoint"] = name
    python, flag = insisting(str(error.context.get("insist", "")))
    return insisted_by(retold, flag if flags else python)


def _texts(context: dict[str, Any]) -> Iterator[str]:
    """Yield the texts that may be of a user's making, as they are and as messages quote them."""
    for value in context.values():
        if isinstance(value, str):
            yield from (value, repr(value))


def insisted_by(error: BkError, argument: str) -> BkError:
    """The error of a call that is refused unless the caller insists, with the one spelling of the ``argument`` that insists which this
    caller knows. Any other error is returned as it is."""
    if "insist" not in error.context:
        return error
    python, flag = insisting(error.context["insist"])
    before, both, after = str(error.args[0]).rpartition(f"{python} ({flag})")  # the last words of the message, behind all that others wrote
    return error.retold(f"{before}{argument}{after}") if both else error


def is_unowned(error: BkError) -> bool:
    """True if the store was fenced and nobody else had it just then, as behind ``bk checkpoint gc --even-if-alive``."""
    return isinstance(error, FileStoreTakenOverError) and bool(error.context.get("unowned"))


def was_deleted(error: BkError) -> bool:
    """True if the store ended because somebody deleted it, and not because another owner opened it."""
    cause = error.__cause__
    return isinstance(error, FileStoreTakenOverError) and isinstance(cause, LogTakenOverError) and bool(cause.context.get("deleted"))
