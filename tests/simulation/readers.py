"""Readers: they never fence and never write metadata (OP-5). One asks for the LAC and reads up to it, the other follows (LC-5..LC-8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bk_core.protocol.events import MetadataChanged
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.reader import LacReader, RangeReader
from bk_core.protocol.ledger.read.tail import Tail
from bk_core.protocol.ledger.run import EntryRun
from tests.simulation.clients import Client
from tests.simulation.truth import OPENED, READ, Truth
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Reader(Client):
    """A no-recovery reader (OP-3): learns the LAC, reads up to it, and looks again later; tailing or once."""

    role = "reader"

    def __init__(self, cluster: Cluster, name: str, truth: Truth, *, tailing: bool, pause_ns: int = 20 * MS) -> None:
        super().__init__(cluster, name, truth)
        self.tailing = tailing
        self.position = 0  # next entry to read
        self.last_add_confirmed = -1
        self.metadata: LedgerMetadata | None = None
        self.version = -1
        self.at_end = False
        self.errors: list[Exception] = []
        self.entries: list[tuple[int, bytes]] = []
        self._pause_ns = pause_ns
        self._end = -1
        self._requests = 0
        self.on_done = self._done
        cluster.store.watch(name, truth, lambda md, version: self.soon(lambda: self._adopt(md, version)))

    def start(self) -> None:
        self.cluster.store.read(self.name, self.truth, lambda found: self.soon(lambda: self._opened(found.value, found.version)))

    def _opened(self, metadata: LedgerMetadata | None, version: int) -> None:
        if metadata is None:
            self._later(self.start)
            return
        self._adopt(metadata, version)
        self._look()

    def _adopt(self, metadata: LedgerMetadata, version: int) -> None:
        """OP-6: never an older version."""
        if version <= self.version:
            return
        self.metadata, self.version = metadata, version
        self.truth.note_handle(self.name, version, None)
        if metadata.state is LedgerState.CLOSED:
            self._heard(metadata.last_entry_id)
            self.truth.opened.append((self.name, metadata.last_entry_id, metadata.length))
            self.truth.dirty |= OPENED

    def _heard(self, lac: int) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, lac)
        self.truth.reader_lacs[self.name] = self.last_add_confirmed
        self.truth.dirty |= READ

    def _look(self) -> None:
        """One round: CLOSED tells the end, else the bookies tell the LAC (LC-1, LC-4)."""
        assert self.metadata is not None
        if self.metadata.state is LedgerState.CLOSED:
            self._read()
            return
        self.change_machine(LacReader(self.truth.ledger_id, self.metadata, "lac"))
        self.act(self.machine.start())

    def _read(self) -> None:
        assert self.metadata is not None
        self._end = self.last_add_confirmed
        if self.position > self._end:
            self._round_over()
            return
        start = int(self.world.random() * self.metadata.ensemble_size)
        batch = self.world.random() < 0.5
        limits, ledger_id = self.cluster.limits, self.truth.ledger_id
        self.change_machine(RangeReader(ledger_id, self.metadata, self.position, self._end, start=start, batch=batch, limits=limits))
        self.act(self.machine.start())

    def _done(self, token: Any, value: Any) -> None:
        if token == "lac":
            if isinstance(value, Exception):
                self.errors.append(value)
                self._round_over()
            else:
                self._heard(value)
                self._read()
        elif token == "run":
            self._took(value)
        elif token == "end":
            if isinstance(value, Exception):
                self.errors.append(value)
                self.world.stats["read errors"] += 1
            self._round_over()

    def _took(self, run: EntryRun) -> None:
        for index, payload in enumerate(run.payloads()):
            entry_id = run.first_entry_id + index
            self.entries.append((entry_id, payload))
            self.truth.seen.append((self.name, entry_id, payload))
        self.position = run.last_entry_id + 1
        self.truth.dirty |= READ
        machine = self.machine
        self.world.at(1, lambda: self.soon(lambda: self.act(machine.consumed()) if machine is self.machine else None))

    def _round_over(self) -> None:
        assert self.metadata is not None
        if self.metadata.state is LedgerState.CLOSED and self.position > self.metadata.last_entry_id:
            if not self.at_end:
                self.at_end = True
                self.world.note(f"{self.name}: read to the end")
            return
        if self.tailing:
            self._later(self._look)
        else:
            self.at_end = True

    def _later(self, function: Callable[[], None]) -> None:
        self.world.timer(self._pause_ns, lambda: self.soon(function))


class Tailer(Reader):
    """Follows the ledger to its end with the production tail: long polls, reads, and a look at the metadata now and then."""

    def __init__(self, cluster: Cluster, name: str, truth: Truth) -> None:
        super().__init__(cluster, name, truth, tailing=True)

    def _look(self) -> None:
        assert self.metadata is not None
        if self.at_end:
            return
        options = {"known": self.last_add_confirmed, "batch": self.world.random() < 0.5, "limits": self.cluster.limits}
        self.change_machine(Tail(self.truth.ledger_id, self.metadata, self.version, self.position, **options))
        self.act(self.machine.start())

    def _adopt(self, metadata: LedgerMetadata, version: int) -> None:
        super()._adopt(metadata, version)
        if self.machine is not None and not self.at_end:
            self.act(self.machine.handle(MetadataChanged(metadata, version), self.now))

    def _done(self, token: Any, value: Any) -> None:
        if token == "heard":
            self._heard(value)
        elif token == "metadata":
            Reader._adopt(self, *value)
        elif token == "run":
            self._took(value)
        elif token == "end" and isinstance(value, Exception):
            self.errors.append(value)
            self.world.stats["read errors"] += 1
            self._later(self.start)  # as an application would: open again where it was
        elif token == "end":
            self.at_end = True
            self.world.note(f"{self.name}: read to the end")
