"""The names of what belongs to a file store: its log, and the nodes of its data ledgers."""

from __future__ import annotations

from bk_core.arguments import brief
from bk_core.client.log.list_store import log_path
from bk_core.errors import ArgumentTypeError, FileStoreFormatError, InvalidArgumentError, WrongPasswordError
from bk_core.protocol.log.names import FILES_PREFIX


def store_log(name: str) -> str:
    """The log of the file store ``name``. InvalidArgumentError for a name that no log can have."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of a file store must be text, not of type {type(name).__name__}")
    try:
        log_path(name)
        log_path(f"{FILES_PREFIX}{name}")
    except InvalidArgumentError:
        allowed = "letters, digits, '.', '_', '-' (at most 194), starting with a letter or digit"
        raise InvalidArgumentError(f"file store name {brief(name)}: use {allowed}") from None
    return f"{FILES_PREFIX}{name}"


def unreadable(error: FileStoreFormatError, name: str) -> FileStoreFormatError:
    """The error of a store whose log cannot be understood, with what a user can do."""
    log = f"{FILES_PREFIX}{name}"
    return error.retold(
        f"{error.args[0]}. `bk log tail {log}` shows the entries of its log. Give the store another name, or delete this log with all that "
        f"is in it: bk_core.delete_file_store(client, {name!r}) (bk checkpoint rm {name})"
    )


def wrong_password(error: WrongPasswordError, name: str, given: bytes) -> WrongPasswordError:
    """The error of a store that was asked for with a password other than its own."""
    if given:
        return error.retold(f"the password given is not that of file store {name!r}; one that was made without a password takes none")
    return error.retold(f"file store {name!r} was made with a password, and none was given: {WrongPasswordError.given_by}")


def nodes_path(log: str) -> str:
    """The parent of the nodes of a store's data ledgers in the metadata store, below the log root."""
    return f"files/{log}"
