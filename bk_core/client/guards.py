"""Refuses calls unless the caller insists, because each takes a log from others or takes ledgers out of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

from bk_core.client.files.nodes import PURPOSE, holds_files
from bk_core.client.log.history import read_log
from bk_core.client.log.intents import abandoned, intents_of
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.live_writers import ALIVE, foremost, live_writers
from bk_core.errors import InvalidArgumentError, LedgerListedError, LogError, MetadataFormatError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.log.exclusive import Insisted, check_exclusive
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.password import TOLD_MAX, check_told, is_same, witnesses


def admit_writer(client: LogClient, name: str, listed: LedgerList, insisted: Insisted, own: Collection[int] = ()) -> None:
    """Check that a writer may have the log whose list was just read. ``own`` are ledgers of the writer itself. Raises LogOfQueriesError,
    LogFormatError or LogWriterAliveError (GRD-1)."""
    writing = () if insisted.take_over_queries else _writing(client, name)
    live = [one.ledger_id for one in listed.live_segments if one.ledger_id not in own and one.ledger_id not in insisted.gone]
    writer = foremost(live_writers(client, live)) if live and not insisted.take_over else None
    told, alive = ("", False) if writer is None else (writer.told, writer.state == ALIVE)
    check_exclusive(name, listed, writing, insisted, live, told, alive)


def _writing(client: LogClient, name: str) -> set[str]:
    return {intent.query_id for intent in intents_of(client, name).values() if intent.query_id and not abandoned(intent)}


_RIGHT_MAX = 4096
_right: dict[tuple[str, bytes], None] = {}  # log id and digest of a password that a listed ledger has confirmed


def check_password(client: LogClient, name: str, listed: LedgerList, password: bytes) -> None:
    """Raise WrongPasswordError for a password that is not the log's, before anything is fenced or written (GRD-6). A list whose ledgers do
    not tell one (there is none, or their metadata stores none) takes any. A password that a ledger of this very log has confirmed is not
    looked up again, because a ledger keeps its own."""
    known = (listed.log_id, sha256(password).digest())
    if known in _right:
        return
    told: list[tuple[int, bytes]] = []
    for ledger_id in witnesses(listed):
        try:
            metadata = client.ledger_metadata(ledger_id)
        except (NoSuchLedgerError, MetadataFormatError):
            continue
        if metadata.stores_password:
            told.append((ledger_id, metadata.password))
            if is_same(metadata.password, password):
                if len(_right) >= _RIGHT_MAX:
                    _right.clear()
                _right[known] = None
                return
            if len(told) == TOLD_MAX:
                break
    check_told(name, told, password)


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


_INSIST = "even_if_listed=True (--even-if-listed) deletes the ledger all the same"
