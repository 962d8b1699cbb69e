"""Refuses to write a log, unless the caller insists: one that others write, and one with another password."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from bk_core.client.log.intents import abandoned, intents_of
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.live_writers import ALIVE, foremost, live_writers
from bk_core.errors import MetadataFormatError, NoSuchLedgerError
from bk_core.protocol.log.exclusive import Insisted, check_exclusive
from bk_core.protocol.log.ledger_list import LedgerList
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
