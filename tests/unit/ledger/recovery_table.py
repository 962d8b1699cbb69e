"""A table top: the production machines of bookies, writers and recoverers, and every message in the hands of the test.

Nothing moves by itself. ``run`` delivers what is under way in the order sent, except what ``hold`` keeps back; timers fire when told to.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bk_core.protocol.bookie import BookieMachine, MemoryBookieStorage, Persist, Reply, ReplyAfterSync
from bk_core.protocol.effects import (
    Complete,
    Effect,
    Fail,
    Log,
    LookForBookies,
    ReadLedger,
    SendAdds,
    SendAndForget,
    SendRead,
    SetTimer,
    WriteLedger,
)
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, BookiesLookedFor, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import AddRequest, ReadRequest, Request
from tests.unit.ledger.recovery_script import LEDGER, PASSWORD


@dataclass(eq=False)
class Message:
    """``to`` is a bookie, "store", or the client that gets an answer; ``of`` is the client it belongs to."""

    to: str
    of: str
    what: Any
    deliver: Callable[[], None] = field(repr=False)

    @property
    def entry_id(self) -> int | None:
        """The entry of an add or a read that is on its way to a bookie."""
        entry_id = getattr(self.what, "entry_id", None)
        return entry_id if isinstance(self.what, Request) and entry_id is not None and entry_id >= 0 else None

    @property
    def is_add(self) -> bool:
        return isinstance(self.what, AddRequest)

    @property
    def is_fence(self) -> bool:
        return isinstance(self.what, ReadRequest) and self.what.fence


class Table:
    def __init__(self, stored: LedgerMetadata, bookies: str = "abcdef", limits: Limits | None = None) -> None:
        self.limits = limits or Limits(recovery_retries_max=0)
        self.history = [stored]
        self.storages = {name: MemoryBookieStorage() for name in bookies}
        self.bookies = {name: BookieMachine(storage) for name, storage in self.storages.items()}
        self.writable = list(bookies)
        chance = iter(range(1_000_000))
        self.placement = RandomPlacement(lambda: list(self.writable), lambda: float(next(chance)))
        self.messages: list[Message] = []
        self.machines: dict[str, Any] = {}
        self.results: dict[str, list[Any]] = {}

    @property
    def metadata(self) -> LedgerMetadata:
        return self.history[-1]

    # --- clients -------------------------------------------------------------------------------------------------

    def writer(self, name: str = "w") -> LedgerWriter:
        machine = LedgerWriter(LEDGER, self.metadata, len(self.history) - 1, self.placement, self.limits)
        self.machines[name], self.results[name] = machine, []
        return machine

    def append(self, *payloads: bytes, of: str = "w") -> None:
        for payload in payloads:
            entry_id = self.machines[of].last_add_pushed + 1
            self._perform(of, self.machines[of].append(payload, array("q", (0, len(payload))), entry_id, 0))

    def recover(self, name: str, options: RecoveryOptions | None = None) -> LedgerRecovery:
        machine = LedgerRecovery(LEDGER, self.placement, name, self.limits, options=options)
        self.machines[name], self.results[name] = machine, []
        self._perform(name, machine.start())
        return machine

    def die(self, name: str) -> None:
        """The client is gone; what it sent is still on its way."""
        del self.machines[name]

    def lose(self, client: str, bookie: str) -> None:
        """The connection breaks: what was under way between the two is lost."""
        self.messages = [m for m in self.messages if not (m.of == client and bookie in (m.to, getattr(m.what, "bookie", "")))]
        self._feed(client, BookieLost(bookie))

    def fire(self, client: str, key: str) -> None:
        self._feed(client, TimerFired(key))

    def _feed(self, name: str, event: Any) -> None:
        if name in self.machines:
            self._perform(name, self.machines[name].handle(event, 0))

    def _perform(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendAdds(bookie, position, run, start):
                    shape = self.metadata.ensemble_size, self.metadata.write_quorum_size
                    for index in run.indices(position, start, *shape):
                        self._send_add(name, bookie, run, index)
                case SendRead(number, bookie, message):
                    self._to_bookie(name, bookie, message, partial(_read_reply, number, bookie))
                case SendAndForget(bookie, message):
                    self._to_bookie(name, bookie, message, None)
                case ReadLedger(number):
                    self._post("store", name, effect, partial(self._read, name, number))
                case WriteLedger(number, wanted, version):
                    self._post("store", name, effect, partial(self._write, name, number, wanted, version))
                case LookForBookies(number):
                    self._post("store", name, effect, partial(self._feed, name, BookiesLookedFor(number)))
                case Complete(_, value):
                    self.results[name].append(value)
                case Fail(_, error):
                    self.results[name].append(error)
                case SetTimer() | Log():
                    pass

    def _send_add(self, name: str, bookie: str, run: Any, index: int) -> None:
        body, recovery = bytes(run.body(index)), run.recovery
        request = AddRequest(0, LEDGER, run.first_entry_id + index, digests.master_key(PASSWORD), body, recovery, recovery)
        self._to_bookie(name, bookie, request, lambda r: AddReply(bookie, r.entry_id, 1, r.status))

    def _post(self, to: str, of: str, what: Any, deliver: Callable[[], None]) -> None:
        self.messages.append(Message(to, of, what, deliver))

    def _to_bookie(self, of: str, bookie: str, request: Request, event: Callable[[Any], Any] | None) -> None:
        def arrive() -> None:
            for effect in self.bookies[bookie].handle(object(), request, 0):
                match effect:
                    case Persist():
                        self.storages[bookie].apply(effect)
                    case Reply(_, response) | ReplyAfterSync(_, response):
                        self.storages[bookie].sync()
                        if event is not None:
                            answer = event(response)
                            self._post(of, of, answer, partial(self._feed, of, answer))

        self._post(bookie, of, request, arrive)

    # --- the store -----------------------------------------------------------------------------------------------

    def _read(self, name: str, number: int) -> None:
        answer = LedgerRead(number, Outcome.OK, self.metadata, len(self.history) - 1)
        self._post(name, name, answer, lambda: self._feed(name, answer))

    def _write(self, name: str, number: int, wanted: LedgerMetadata, version: int) -> None:
        good = version == len(self.history) - 1
        if good:
            self.history.append(wanted)
        answer = LedgerWritten(number, Outcome.OK if good else Outcome.CONFLICT, version + 1)
        self._post(name, name, answer, lambda: self._feed(name, answer))

    # --- the hands of the test -------------------------------------------------------------------------------------

    def run(self, hold: Callable[[Message], bool] = lambda m: False) -> list[Message]:
        """Deliver until only held messages are left; these are returned and stay under way."""
        while (message := next((m for m in self.messages if not hold(m)), None)) is not None:
            self.deliver(message)
        return list(self.messages)

    def deliver(self, *messages: Message) -> None:
        for message in messages:
            self.messages.remove(message)
            message.deliver()

    def drop(self, which: Callable[[Message], bool]) -> None:
        """Messages that never arrive. A read that is lost is a timeout to the one who sent it."""
        for message in [m for m in self.messages if which(m)]:
            self.messages.remove(message)

    def store(self, bookies: str, entry_id: int, body: bytes, *, recovery: bool = False) -> None:
        """Put an entry there, whoever wrote it."""
        request = AddRequest(0, LEDGER, entry_id, digests.master_key(PASSWORD), body, recovery, recovery)
        for bookie in bookies:
            self._to_bookie("nobody", bookie, request, None)
            self.messages.pop().deliver()

    def holders(self, entry_id: int) -> str:
        """Return those of the bookies that the metadata names for the entry which have it."""
        metadata = self.metadata
        ensemble = metadata.fragment_of(entry_id).ensemble
        size, quorum = metadata.ensemble_size, metadata.write_quorum_size
        write_set = [ensemble[(entry_id + k) % size] for k in range(quorum)]
        return "".join(b for b in write_set if self.storages[b].entry(LEDGER, entry_id) is not None)

    def lac(self, bookie: str) -> int:
        record = self.storages[bookie].ledger(LEDGER)
        return record.last_add_confirmed if record is not None else -1

    def entry(self, bookie: str, entry_id: int) -> layout.Entry:
        found = self.storages[bookie].entry(LEDGER, entry_id)
        assert found is not None
        return layout.decode_body(found, LEDGER, entry_id, self.metadata.digest_type, digests.hmac_key(PASSWORD))


def _read_reply(number: int, bookie: str, response: Any) -> ReadReply:
    return ReadReply(number, bookie, response.status, response)
