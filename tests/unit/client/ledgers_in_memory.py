"""A store in memory with four bookies that never answer, and ledgers that were never written: what repairs do to metadata needs no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bk_core.client.client import BookKeeper, connect
from bk_core.metadata import open_store
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState

ABC = ("a:1", "b:1", "c:1")


@contextmanager
def four_bookies(name: str) -> Iterator[BookKeeper]:
    """A client of a new store of that name, with the bookies of ``ABC`` and x:1."""
    open_store(f"memory://{name}").initialize_cluster()
    with connect(f"memory://{name}") as made:
        for bookie in (*ABC, "x:1"):
            made.store.register_bookie(bookie, "127.0.0.1", 1)
        yield made


def store_ledger(client: BookKeeper, metadata: LedgerMetadata) -> int:
    ledger_id = client.store.new_ledger_id()
    client.store.create_ledger(ledger_id, metadata_codec.encode(metadata))
    return ledger_id


def change(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata) -> None:
    version = client.store.read_ledger(ledger_id).version
    client.store.write_ledger(ledger_id, metadata_codec.encode(metadata), version)


def opened(ensemble: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ensemble),), password=b"pw")
