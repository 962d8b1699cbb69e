"""A log of raw entries over the client in memory, and a metadata store that does something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties

RAW = LogProperties(entry_format="raw")


class Store:
    """The client's store with other methods."""

    def __init__(self, store: Any, **methods: Any) -> None:
        self._store = store
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def written(client: Any, name: str = "a", entries: int = 3) -> list[int]:
    """A log with ``entries`` segments, one entry each; their ledgers."""
    create_log(client, name, RAW, exist_ok=True)
    with LogWriter.open(client, name) as writer:
        for i in range(entries):
            writer.append(b"%d" % i)
            writer.roll()
    return [segment.ledger_id for segment in read_ledger_list(client, name).segments]


def untied(client: Any, name: str) -> LedgerList:
    """Store the list as an earlier program would: without its cluster."""
    stored = client.store.read(f"logs/{name}")
    listed = replace(decode(stored.data), cluster="")
    client.store.write(f"logs/{name}", encode(listed), stored.version)
    return listed
