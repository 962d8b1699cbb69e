"""An in-memory client for log tests: real store, ledgers as lists of bytes, with fencing."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import LedgerFencedError, NoSuchLedgerError
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.ledger.metadata import LedgerState


@dataclass
class Ledger:
    ledger_id: int
    entries: list[bytes] = field(default_factory=list)
    state: LedgerState = LedgerState.OPEN
    custom: Mapping[str, bytes] = field(default_factory=dict)


class WriteHandle:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id

    @property
    def next_entry_id(self) -> int:
        return len(self._ledger.entries)

    def append_run_future(self, payloads: Any, offsets: Any) -> Future[int]:
        if self._ledger.state is not LedgerState.OPEN:
            raise LedgerFencedError(f"ledger {self.ledger_id} is fenced")
        data, bounds = bytes(payloads), memoryview(offsets).cast("B").cast("q")
        for i in range(len(bounds) - 1):
            self._ledger.entries.append(data[bounds[i] : bounds[i + 1]])
        future: Future[int] = Future()
        future.set_result(len(self._ledger.entries) - 1)
        return future

    def close(self) -> Any:
        if self._ledger.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError(f"ledger {self.ledger_id} is fenced")
        self._ledger.state = LedgerState.CLOSED
        return SimpleNamespace(last_entry_id=len(self._ledger.entries) - 1, length=sum(map(len, self._ledger.entries)))

    def abandon(self) -> None:
        """It stays OPEN."""


class ReadHandle:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id
        self.length = sum(map(len, ledger.entries))

    @property
    def last_add_confirmed(self) -> int:
        return len(self._ledger.entries) - 1

    @property
    def is_closed(self) -> bool:
        return self._ledger.state is LedgerState.CLOSED

    def wait_for(self, entry_id: int, timeout_s: float) -> bool:
        """Return True if the value is there at once, because nobody writes while somebody waits."""
        return entry_id < len(self._ledger.entries)

    def read_last_add_confirmed(self) -> int:
        return len(self._ledger.entries) - 1

    def read_runs(self, first: int, last: int, *, unchecked_bound: bool = False) -> Any:
        for entry in range(first, last + 1):
            value = self._ledger.entries[entry]
            yield SimpleNamespace(first_entry_id=entry, count=1, values=value, offsets=memoryview(array("q", [0, len(value)])))

    def close(self) -> None:
        pass

    def __enter__(self) -> ReadHandle:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass


class FakeClient:
    def __init__(self, store: Any = None) -> None:
        self.store = store or MemoryStore(uuid.uuid4().hex)
        self.store.initialize_cluster()
        self.ledgers: dict[int, Ledger] = {}
        self.recovered: list[int] = []

    def create_ledger(self, *, ledger_id: int | None = None, custom: Mapping[str, bytes] | None = None, **_settings: Any) -> WriteHandle:
        """Create a ledger of log "a", which most tests are about, unless ``custom`` says otherwise."""
        custom = {"log": b"a"} if custom is None else custom
        ledger = Ledger(self.store.new_ledger_id() if ledger_id is None else ledger_id, custom=custom)
        self.ledgers[ledger.ledger_id] = ledger
        return WriteHandle(ledger)

    def _get(self, ledger_id: int) -> Ledger:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> ReadHandle:
        return ReadHandle(self._get(ledger_id))

    def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> ReadHandle:
        ledger = self._get(ledger_id)
        ledger.state = LedgerState.CLOSED
        self.recovered.append(ledger_id)
        return ReadHandle(ledger)

    def delete_ledger(self, ledger_id: int, *, even_if_listed: bool = False) -> None:
        self.ledgers.pop(ledger_id, None)

    def ledger_metadata(self, ledger_id: int) -> Any:
        ledger = self._get(ledger_id)
        return SimpleNamespace(
            state=ledger.state, custom=ledger.custom, fragments=(SimpleNamespace(first_entry_id=0),), stores_password=False
        )


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()
