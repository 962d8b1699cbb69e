"""File stores in the words of those who know them as checkpoints: users of ``checkpoint_location`` and of ``bk checkpoint``.

Both need the same places and the same errors, and neither may import the other.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from bk_core.errors import BkError, FileStoreTakenOverError, LogTakenOverError, WrongPasswordError
from bk_core.protocol.log.names import FILES_PREFIX

STORE_SCHEME = "bk"
GATEWAY_SCHEME, GATEWAY_TLS_SCHEME, GATEWAY_AUTHORITY = "webhdfs", "swebhdfs", "bookkeeper-checkpoints"  # of the places that Spark is given
_WORDS = (
    (re.compile(r"\bfile store(s?)\b"), r"checkpoint\1"),
    (re.compile(rf"\blog '{re.escape(FILES_PREFIX)}([^']*)'"), r"the log of checkpoint '\1'"),
)
_TWO_SPELLINGS = re.compile(r"\b(\w+=True) \((--[a-z-]+)\)")


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
    has a spelling for Python and one for the command line, the second is told where ``flags`` says so, else the first.
    """
    told = str(error.args[0])
    if isinstance(error, WrongPasswordError):
        if password:
            told = f"the password given is not that of checkpoint {name!r}; one that was made without a password is opened without one"
        else:
            told = f"checkpoint {name!r} was made with a password, and none was given: {password_given_by}"
    for pattern, word in _WORDS:
        told = pattern.sub(word, told)
    told = _TWO_SPELLINGS.sub(r"\2" if flags else r"\1", told)
    return error.retold(told)


def is_unowned(error: BkError) -> bool:
    """True if the store was fenced and nobody else had it just then, as behind ``bk checkpoint gc --even-if-alive``."""
    return isinstance(error, FileStoreTakenOverError) and bool(error.context.get("unowned"))


def was_deleted(error: BkError) -> bool:
    """True if the store ended because somebody deleted it, and not because another owner opened it."""
    cause = error.__cause__
    return isinstance(error, FileStoreTakenOverError) and isinstance(cause, LogTakenOverError) and bool(cause.context.get("deleted"))
