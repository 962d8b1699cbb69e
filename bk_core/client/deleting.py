"""Refuses to delete a ledger that a log lists, that holds bytes of a file store, or that nobody understands, unless the caller insists."""

from __future__ import annotations

from collections.abc import Mapping

from bk_core.client.files.nodes import PURPOSE, holds_files
from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import LogClient
from bk_core.errors import InvalidArgumentError, LedgerListedError, LogError, MetadataFormatError, NoSuchLogError
from bk_core.protocol.log.names import store_of


def refuse_listed(client: LogClient, ledger_id: int, custom: Mapping[str, bytes]) -> None:
    """Raise LedgerListedError for a ledger whose custom metadata names a log that lists it, or whose history cannot be read (GRD-2), and
    for one that holds contents of a file store's files (GRD-7)."""
    name = bytes(custom.get("log", b"")).decode("utf-8", "replace")
    try:
        if custom.get("purpose") == PURPOSE and holds_files(client, name, ledger_id):
            what = f"ledger {ledger_id} holds contents of files of file store {store_of(name)!r}, which may refer to it"
            raise LedgerListedError(f"{what}: delete those files or the store instead; {_INSIST}", ledger=ledger_id, log=name)
        listed = bool(name) and ledger_id in read_log(client, name).mentioned([ledger_id])
    except (NoSuchLogError, InvalidArgumentError):
        return
    except LogError as error:
        message = f"ledger {ledger_id} carries the name of log {name!r}, and that log does not tell if it lists it: {error}; {_INSIST}"
        raise LedgerListedError(message, ledger=ledger_id, log=name) from error
    if listed:
        message = f"ledger {ledger_id} is part of log {name!r}, which would lose its entries: trim or delete the log instead; {_INSIST}"
        raise LedgerListedError(message, ledger=ledger_id, log=name)


def refuse_unreadable(ledger_id: int, error: MetadataFormatError, insists: bool) -> None:
    """Raise MetadataFormatError unless the caller insists: nobody knows if a log lists the ledger."""
    if not insists:
        raise MetadataFormatError(f"{error.args[0]}; {_INSIST}", ledger=ledger_id) from error


_INSIST = "even_if_listed=True (--even-if-listed) deletes the ledger all the same"
