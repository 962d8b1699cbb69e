"""What a checkpoint in ledgers leaves behind, while it is there and after it was deleted."""

from __future__ import annotations

from bk_core.client import BookKeeper
from bk_core.client.files.names import store_log
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.upkeep import delete_file_store, file_stores, gc_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.logs import read_log
from bk_core.errors import BkError, NoSuchFileStoreError, NoSuchLedgerError


def ledgers_of(client: BookKeeper, log: str) -> set[int]:
    """All ledgers that say they belong to this log."""
    found = set()
    for ledger_id in client.store.list_ledgers():
        try:
            if client.ledger_metadata(ledger_id).custom.get("log") == log.encode():
                found.add(ledger_id)
        except NoSuchLedgerError:  # deleted in between
            pass
    return found


def leftovers(client: BookKeeper, name: str) -> list[str]:
    """What is there that nobody needs, after a collection of garbage. No owner may be alive."""
    log = store_log(name)
    report = gc_file_store(client, name)
    with FileStoreView.open(client, name) as view:
        found = [f"temporary file {status.path}" for status, _ in view.everything() if status.path.endswith(".tmp")]
        used = set(view.ledgers() or ())
    mine = ledgers_of(client, log)
    found += [f"ledger {ledger_id}" for ledger_id in sorted(mine - read_log(client, log).named(mine) - used)]
    found += [f"node of ledger {node.ledger_id}" for node in data_nodes(client, log) if node.ledger_id not in used]
    found += [f"a file needs ledger {ledger_id}, which is gone" for ledger_id in sorted(used - mine)]
    found += [f"intent {child}" for child in client.store.children(f"intents/{log}")]
    found += [f"could not be deleted: ledger {ledger_id}: {why}" for ledger_id, why in (*report.failed, *report.foreign)]
    return found


def remains(client: BookKeeper, name: str) -> list[str]:
    """Delete the store. What is there afterwards, however it was called."""
    log = store_log(name)
    try:
        report = delete_file_store(client, name)
        found = [f"could not be deleted: ledger {ledger_id}: {why}" for ledger_id, why in (*report.failed, *report.foreign)]
    except NoSuchFileStoreError:
        found = []
    except BkError as error:
        return [f"the store could not be deleted: {error}"]
    try:
        gc_file_store(client, name)
    except NoSuchFileStoreError:
        pass
    found += [f"ledger {ledger_id} of the deleted store" for ledger_id in sorted(ledgers_of(client, log))]
    found += [f"node of ledger {node.ledger_id} of the deleted store" for node in data_nodes(client, log)]
    if name in file_stores(client, remains=True):
        found.append("the deleted store is still listed among what remains")
    return found
