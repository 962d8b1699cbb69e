"""A host for the machine in tests: applies changes and keeps the answers that wait for a sync apart from those that may leave."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from bk_core.protocol.bookie import BookieMachine, MemoryBookieStorage, Persist, Reply, ReplyAfterSync, WakeLater
from bk_core.protocol.wire import messages as m

KEY, OTHER = b"k" * 20, b"o" * 20
L = 7


def body(entry_id: int, lac: int = -1, payload: bytes = b"payload", ledger_id: int = L) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, len(payload)) + payload


def lac_packet(lac: int, ledger_id: int = L) -> bytes:
    return struct.pack(">qqI", ledger_id, lac, 0)


def add(entry_id: int, lac: int = -1, **options: Any) -> m.AddRequest:
    ledger_id, key = options.pop("ledger_id", L), options.pop("key", KEY)
    data = options.pop("data", None)
    return m.AddRequest(1, ledger_id, entry_id, key, body(entry_id, lac, ledger_id=ledger_id) if data is None else data, **options)


def read(entry_id: int, ledger_id: int = L) -> m.ReadRequest:
    return m.ReadRequest(1, ledger_id, entry_id)


def fence(entry_id: int = -1, key: bytes = KEY, ledger_id: int = L) -> m.ReadRequest:
    return m.ReadRequest(1, ledger_id, entry_id, fence=True, master_key=key)


def write_lac(lac: int, key: bytes = KEY) -> m.WriteLacRequest:
    return m.WriteLacRequest(1, L, lac, key, lac_packet(lac))


def poll(previous: int, timeout_ms: int | None = 1000, entry_id: int = -1, piggyback: bool = True) -> m.ReadRequest:
    return m.ReadRequest(1, L, entry_id, previous_lac=previous, timeout_ms=timeout_ms, piggyback=piggyback)


class Bookie:
    """One bookie that can crash. ``sent`` holds the answers that have left, by tag."""

    def __init__(self, storage: MemoryBookieStorage | None = None) -> None:
        self.storage = storage or MemoryBookieStorage()
        self.machine = BookieMachine(self.storage)
        self.waiting: list[tuple[int, Any, m.Response]] = []
        self.sent: dict[Any, Any] = {}
        self.now = 1_000_000
        self.number = 0

    def send(self, request: m.Request) -> int:
        self.number += 1
        self.perform(self.machine.handle(self.number, request, self.now))
        return self.number

    def perform(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.storage.apply(effect)
                case ReplyAfterSync():
                    self.waiting.append((self.storage.position, effect.tag, effect.response))
                case Reply():
                    assert effect.tag not in self.sent
                    self.sent[effect.tag] = effect.response
                case WakeLater():
                    assert effect.at_ms > self.now

    def sync(self) -> None:
        durable = self.storage.sync()
        for position, tag, response in self.waiting:
            assert position <= durable
            self.sent[tag] = response
        self.waiting.clear()

    def ask(self, request: m.Request) -> Any:
        tag = self.send(request)
        self.sync()
        return self.sent[tag]

    def status(self, request: m.Request) -> m.Status:
        return m.Status(self.ask(request).status)

    def crash(self) -> None:
        """kill -9: what was not synced is lost, and answers that waited for it never leave."""
        self.storage.crash()
        self.machine = BookieMachine(self.storage)
        self.waiting.clear()

    def collect(self, ledger_id: int = L) -> None:
        self.perform(self.machine.collect(ledger_id, self.now))
        self.sync()

    def lose_everything(self, *limbo: int) -> None:
        """A replaced disk, found out before anything is served."""
        self.storage.wipe()
        self.crash()
        self.perform(self.machine.enter_limbo(limbo))
        self.sync()
