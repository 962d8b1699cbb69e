"""Looks for what a checkpoint in ledgers leaves behind, while it is there and after it was deleted."""

from __future__ import annotations

from collections.abc import Callable

from bk_core.client import BookKeeper
from bk_core.client.files.names import store_log
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.upkeep import FileGcReport, delete_file_store, file_stores, gc_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.history import read_log
from bk_core.errors import BkError, NoSuchFileStoreError, NoSuchLedgerError, NotEnoughBookiesError

COLLECTIONS_MAX = 5


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


def finished(collect: Callable[[], FileGcReport]) -> FileGcReport:
    """The report of the first collection in which nothing failed, or of the last one. On a busy machine bookies do not always answer in
    time, and with as many bookies as an ensemble has no other can be taken: the ledger stays for the next collection, which must do it.
    """
    for _ in range(COLLECTIONS_MAX - 1):
        try:
            report = collect()
        except NotEnoughBookiesError:
            continue
        if not report.failed:
            return report
    return collect()


def leftovers(client: BookKeeper, name: str) -> list[str]:
    """Return what is there that nobody needs, after a collection of garbage. No owner may be alive."""
    log = store_log(name)
    report = finished(lambda: gc_file_store(client, name))
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
    found = []
    try:
        found += [f"not the store's own: ledger {ledger_id}: {why}" for ledger_id, why in delete_file_store(client, name).foreign]
    except NoSuchFileStoreError:
        pass
    except BkError as error:
        return [f"the store could not be deleted: {error}"]
    try:
        report = finished(lambda: gc_file_store(client, name))
        found += [f"could not be deleted: ledger {ledger_id}: {why}" for ledger_id, why in (*report.failed, *report.foreign)]
    except NoSuchFileStoreError:  # nothing was left for a collection
        pass
    found += [f"ledger {ledger_id} of the deleted store" for ledger_id in sorted(ledgers_of(client, log))]
    found += [f"node of ledger {node.ledger_id} of the deleted store" for node in data_nodes(client, log)]
    if name in file_stores(client, remains=True):
        found.append("the deleted store is still listed among what remains")
    return found
