"""A simulated bookie: the production machine on production memory storage, with a disk that syncs late and can fail.

Faults it may suffer: a crash (what was not synced is gone), a wipe (everything is gone; it comes back in limbo and fenced, B-10),
a slow disk, read-only mode, corrupt copies, IO errors. Faults it may not suffer: losing what it synced in any other way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie import machine as bookie_machine
from bk_core.protocol.bookie.answers import failure
from bk_core.protocol.bookie.loss import AfterLoss, after_loss, decided_entries, may_delete, may_leave_limbo
from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.wire.messages import (
    AddRequest,
    BatchReadRequest,
    EntryListRequest,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    Status,
    WriteLacRequest,
)
from tests.simulation.truth import COLLECTED, STORED, Stored, Truth, payload_of
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

DENIALS = (Status.NO_ENTRY, Status.NO_LEDGER)
PROMISES = (Status.OK, *DENIALS, Status.UNKNOWN_LEDGER_STATE)
LAZY_SYNC_NS = 200 * MS  # of adds with deferred sync, unless something else syncs before
_SECOND = struct.Struct(">8xq")


def kind_of(request: Request) -> str:
    """The word for a request in holds, drops and traces."""
    match request:
        case AddRequest():
            return "recovery-add" if request.recovery else "add"
        case ReadRequest(fence=True):
            return "fence" if request.entry_id < 0 else "recovery-read"
        case ReadRequest(previous_lac=int()):
            return "long-poll"
        case ReadRequest():
            return "read"
        case BatchReadRequest():
            return "batch-read"
        case ReadLacRequest():
            return "read-lac"
        case WriteLacRequest():
            return "write-lac"
        case ForceLedgerRequest():
            return "force"
        case EntryListRequest():
            return "entry-list"
        case _:
            return "request"


@dataclass(slots=True, eq=False)
class Call:
    """One request at a bookie; the machine's tag for it."""

    source: str
    request: Any
    kind: str
    answer: Callable[[Any], None]
    decides: bool = False


class SimStorage(MemoryBookieStorage):
    """Memory that tells when a change is durable, and whose copies can rot."""

    def __init__(self, on_durable: Callable[[bookie_machine.Persist], None]) -> None:
        super().__init__()
        self.corrupt: dict[tuple[int, int], None] = {}
        self._on_durable = on_durable

    def _read_body(self, ledger_id: int, entry_id: int, body: bytes) -> bytes:
        body = super()._read_body(ledger_id, entry_id, body)
        if self.corrupt and (ledger_id, entry_id) in self.corrupt:  # the LAC and the payload
            return body[:23] + bytes((body[23] ^ 0x55,)) + body[24:-1] + bytes((body[-1] ^ 0x55,))
        return body

    def heal_damage(self) -> None:
        self._damaged.clear()

    def apply(self, change: bookie_machine.Persist) -> None:
        if self.corrupt and change.entry_id is not None:
            self.corrupt.pop((change.record.ledger_id, change.entry_id), None)
        super().apply(change)

    def sync(self, changes: int | None = None) -> int:
        count = len(self._changes) if changes is None else min(changes, len(self._changes))
        for change in self._changes[:count]:
            self._on_durable(change)
        return super().sync(changes)

    @property
    def unsynced(self) -> list[bookie_machine.Persist]:
        return list(self._changes)


class SimBookie:
    def __init__(self, cluster: Cluster, name: str, index: int) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.name, self.index, self.bit = name, index, 1 << index
        self.storage = SimStorage(self._durable)
        self.up = True
        self.wiped = False
        self.life = 0
        self.read_only = False
        self.busy_until = 0  # until then adds are answered TOO_MANY_REQUESTS
        self.sync_ns = 0  # how long a sync takes here; 0: as the weather is
        self.machine = bookie_machine.BookieMachine(self.storage)

    # --- requests --------------------------------------------------------------------------------------------------

    def receive(self, call: Call) -> None:
        if not self.up:
            return
        call = copy(call)  # a request that comes twice is two requests here
        if self.busy_until > self.world.now and isinstance(call.request, AddRequest):
            self._reply(call, failure(call.request, Status.TOO_MANY_REQUESTS))
            return
        for effect in self.machine.handle(call, call.request, self.world.now // MS):
            self._perform(effect, call)

    def _perform(self, effect: bookie_machine.Effect, call: Call | None) -> None:
        match effect:
            case bookie_machine.Persist():
                self.storage.apply(effect)
                self._applied(effect, call)
            case bookie_machine.Reply(tag, response):
                self._reply(tag, response)
            case bookie_machine.ReplyAfterSync(tag, response):
                if getattr(tag.request, "deferred_sync", False):  # WR-17; ours syncs first nevertheless, other bookies do not
                    self._reply(tag, response)
                    self._sync(LAZY_SYNC_NS, lambda: None)
                else:
                    self._after_sync(tag, response)
            case bookie_machine.WakeLater(_, at_ms):
                life = self.life
                self.world.timer(max(1, at_ms * MS - self.world.now), lambda: self._wake(life))

    def _wake(self, life: int) -> None:
        if self.life == life and self.up:
            for effect in self.machine.wake(self.world.now // MS + 1):
                self._perform(effect, None)

    def _after_sync(self, tag: Any, response: Any) -> None:
        world = self.world
        delay = self.sync_ns or world.delay()
        if world.weather.slow_disk and world.random() < world.weather.slow_disk:
            delay *= 100
        self._sync(delay, lambda: self._reply(tag, response))

    def _sync(self, after_ns: int, then: Callable[[], None]) -> None:
        """Make everything applied until now durable after a while, or nothing of it if the bookie crashes before."""
        life, position = self.life, self.storage.position

        def sync() -> None:
            if self.life != life or not self.up:
                return
            behind = position - self.storage.durable_position
            if behind > 0:
                self.storage.sync(behind)
            then()

        self.world.at(after_ns, sync)

    def _reply(self, call: Call, response: Any) -> None:
        request = call.request
        if call.decides and response.status in DENIALS:
            self.cluster.truths[request.ledger_id].denied[self.index, request.entry_id] = None
        if getattr(request, "fence", False):
            truth = self.cluster.truths.get(request.ledger_id)
            if truth is not None and response.status in PROMISES:
                truth.promised |= self.bit
            if response.status is Status.UNKNOWN_LEDGER_STATE:
                self.world.probes["a bookie in limbo was asked by a recoverer"] += 1
        self.world.send(
            self.name,
            call.source,
            call.kind + "-reply",
            getattr(response, "ledger_id", -1),
            getattr(response, "entry_id", -1),
            lambda: call.answer(response),
        )

    # --- what the simulator remembers ------------------------------------------------------------------------------

    def _applied(self, change: bookie_machine.Persist, call: Call | None) -> None:
        record = change.record
        truth = self.cluster.truths.get(record.ledger_id)
        if truth is None:
            return
        index = self.index
        if record.last_add_confirmed > truth.lacs.get(index, -1):
            truth.lac_at(index, record.last_add_confirmed)
        if record.explicit_lac is not None:
            slot = _SECOND.unpack_from(record.explicit_lac)[0]
            if truth.slots.get(index) != slot:
                truth.slots[index] = slot
                truth.dirty |= STORED
        if change.drop_entries:
            truth.collected.append((index, self._may_collect(truth)))
            for held in truth.copies:
                truth.copies[held] &= ~self.bit
            truth.dirty |= COLLECTED
        if change.entry_id is not None:
            entry_id, recovery = change.entry_id, call is None or call.request.recovery
            good = truth.submitted.get(entry_id) == payload_of(change.body)
            if not recovery:
                for log in self.cluster.logs:
                    log.new_stored.append(record.ledger_id)
            denied = (index, entry_id) in truth.denied
            truth.new_stored.append(Stored(index, entry_id, recovery, good, denied, bool(truth.promised & self.bit)))
            truth.dirty |= STORED

    def _may_collect(self, truth: Truth) -> bool:
        """B-12."""
        return may_delete(None if truth.deleted else truth.metadata, self.name, lock_held=True)

    def _durable(self, change: bookie_machine.Persist) -> None:
        truth = self.cluster.truths.get(change.record.ledger_id)
        if truth is None:
            return
        if change.entry_id is not None:
            truth.copies[change.entry_id] = truth.copies.get(change.entry_id, 0) | self.bit
        if change.record.fenced and not truth.fenced & self.bit:
            truth.fence_durable(self.index)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self.storage.entry_ids(ledger_id)

    def sound_body(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The stored body, None if there is none or it is damaged."""
        if (ledger_id, entry_id) in self.storage.corrupt:
            return None
        try:
            return self.storage.entry(ledger_id, entry_id)
        except BookieIOError:
            return None

    # --- faults ----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        if not self.up:
            return
        world = self.world
        world.stats["crashed"] += 1
        world.note(f"{self.name} crashes")
        if any(change.record.fenced and change.entry_id is None for change in self.storage.unsynced):
            world.probes["a crash took a fence mark that was not durable"] += 1
        self.up, self.life = False, self.life + 1
        self.storage.crash()
        self.cluster.bookie_down(self)

    def wipe(self) -> None:
        """The disk is replaced; only when down."""
        world = self.world
        world.stats["wiped"] += 1
        world.note(f"{self.name} loses its disk")
        self.storage.wipe()
        self.wiped = True
        for truth in self.cluster.truths.values():
            truth.lose(self.index)

    def restart(self) -> None:
        """Before it serves anything, a bookie that lost data fences every ledger that may name it, and enters limbo (B-10, RC-26)."""
        if self.up:
            return
        self.world.note(f"{self.name} restarts{' empty' if self.wiped else ''}")
        self.machine = bookie_machine.BookieMachine(self.storage, read_only=self.read_only)
        if self.wiped:
            self.wiped = False
            self._boot_after_loss()
        self.up = True
        self.cluster.bookie_up(self)

    def _boot_after_loss(self) -> None:
        fates = {t.ledger_id: after_loss(t.metadata, self.name) for t in self.cluster.truths.values() if not t.deleted}
        effects = self.machine.enter_limbo([i for i, fate in fates.items() if fate is AfterLoss.LIMBO])
        for effect in effects + self.machine.fence_closed([i for i, fate in fates.items() if fate is AfterLoss.FENCE]):
            self._perform(effect, None)
        self.storage.sync()

    def turn_read_only(self, on: bool = True) -> None:
        self.read_only = self.machine.read_only = on
        self.world.note(f"{self.name} is {'read-only' if on else 'writable again'}")
        self.cluster.registry_changed()

    def mend(self) -> None:
        """RC-27: a bookie fetches decided entries that it should have, and leaves limbo once the ledger is closed."""
        for truth in self.cluster.truths.values():
            record = self.storage.ledger(truth.ledger_id)
            if not self.up or record is None or not record.limbo:
                continue
            metadata = None if truth.deleted else truth.metadata
            wanted = [] if metadata is None else [e for e, _ in decided_entries(metadata, self.name)]
            found = [self.copy_entry(truth, e) for e in self.machine.missing(truth.ledger_id, wanted)]
            if may_leave_limbo(metadata) and all(found):
                for effect in self.machine.leave_limbo(truth.ledger_id):
                    self._perform(effect, None)
                self.world.note(f"{self.name} leaves limbo of ledger {truth.ledger_id}")
            self.storage.sync()

    def copy_entry(self, truth: Truth, entry_id: int) -> bool:
        """Take the entry from any other bookie that is up, like a recovery add (B-2). False if nobody has a good copy."""
        for other in self.cluster.bookies.values():
            body = other.sound_body(truth.ledger_id, entry_id) if other.up and other is not self else None
            if body is not None:
                for effect in self.machine.restore(truth.ledger_id, entry_id, body, truth.master_key):
                    self._perform(effect, None)
                self.storage.sync()
                return True
        return False

    def collect_moved(self) -> None:
        """B-12: what a closed ledger that names this bookie nowhere left here goes, unless somebody re-replicates it."""
        for truth in self.cluster.truths.values():
            metadata = None if truth.deleted else truth.metadata
            if self.up and metadata is not None and may_delete(metadata, self.name, lock_held=not self.cluster.replicating(truth)):
                for effect in self.machine.collect_moved(truth.ledger_id):
                    self._perform(effect, None)
                self.storage.sync()

    def collect(self, ledger_id: int) -> None:
        """Garbage collection of a ledger whose metadata is gone (B-12)."""
        if not self.up:
            return
        for effect in self.machine.collect(ledger_id, self.world.now // MS):
            self._perform(effect, None)
        self.storage.sync()
