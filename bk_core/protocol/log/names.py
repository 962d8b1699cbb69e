"""Names of logs: those that hold the changes of file stores begin alike. Pure.

Logs know nothing else of file stores. File stores are made of logs: ``bk_core.client.files`` imports ``bk_core.client.log``, and not the
other way round.
"""

from __future__ import annotations

from collections.abc import Iterable

from bk_core.errors import InvalidArgumentError

FILES_PREFIX = "files."
"""Logs whose names begin with this hold the changes of file stores, and nothing else is written to them (GRD-7)."""


def not_of_files(names: Iterable[str], asked: str) -> list[str]:
    """The names without those of file stores' logs, unless ``asked`` begins as they do: who reads and writes logs does not mean them."""
    return [name for name in names if asked.startswith(FILES_PREFIX) or not name.startswith(FILES_PREFIX)]


def store_of(log: str) -> str | None:
    """The name of the file store whose log this is; None if it is no store's."""
    return log.removeprefix(FILES_PREFIX) if log.startswith(FILES_PREFIX) and log != FILES_PREFIX else None


def check_not_of_files(log: str, insisted: bool) -> None:
    """Raise InvalidArgumentError for the log of a file store, unless its owner asks (GRD-7)."""
    name = store_of(log) if isinstance(log, str) else None
    if name is not None and not insisted:
        message = (
            f"names that begin with {FILES_PREFIX} are reserved: log {log!r} holds the changes of file store {name!r}. "
            f"Only the owner of the store, FileStore.open(client, {name!r}), writes "
            "and trims it: entries of others would make the store unreadable. To delete the store with its files, call "
            f"bk_core.delete_file_store(client, {name!r}) or run bk checkpoint rm {name}"
        )
        raise InvalidArgumentError(f"{message}. Nothing was done", log=log)
