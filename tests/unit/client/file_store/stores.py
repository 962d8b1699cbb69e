"""Helpers of the tests of file stores: small ledgers, what is in the metadata store, sources that stall."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.store import FileStore
from bk_core.errors import (
    MetadataUnavailableError,
)
from bk_core.protocol.limits import Limits

LIMITS = Limits(explicit_lac_ns=5_000_000)


LOG = "files.a"


BIG = bytes(range(256)) * 1024  # four times what lies in a record


def small(store: FileStore, *, piece: int = 1 << 20, ledger: int = 64 << 20) -> FileStore:
    """With small entries and data ledgers."""
    store._data._piece, store._data._ledger_bytes = piece, ledger
    return store


def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while not holds():
        assert time.monotonic() < deadline
        never.wait(0.005)


def nodes(client: Any) -> list[int]:
    return [node.ledger_id for node in data_nodes(client, LOG)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-files" in thread.name]


def ledgers_of(store: FileStore, path: str) -> list[int]:
    return [extent.ledger_id for extent in store.content(path).extents]


def names(store: FileStore, path: str = "/") -> list[str]:
    return [status.name for status in store.listing(path)]


class Stalled:
    """A log whose bookies acknowledge nothing until it goes on."""

    def __init__(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appended: list[tuple[bytes, Future[Any]]] = []
        self._store = store
        self._append = store._writer.append_future
        self._patch = monkeypatch
        monkeypatch.setattr(store._writer, "append_future", self._keep)

    def _keep(self, record: bytes) -> Future[Any]:
        self.appended.append((record, Future()))
        return self.appended[-1][1]

    def go_on(self) -> None:
        self._patch.setattr(self._store._writer, "append_future", self._append)
        for record, future in self.appended:
            self._append(record).add_done_callback(lambda done, told=future: told.set_result(done.result()))  # type: ignore[misc]


class Failing:
    """Fails some times with an error before it does what ``call`` does."""

    def __init__(self, call: Callable[..., Any], times: int) -> None:
        self._call = call
        self.left = times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.left:
            self.left -= 1
            raise MetadataUnavailableError("nobody answers")
        return self._call(*arguments, **named)
