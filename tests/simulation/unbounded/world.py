"""One unbounded ledger's world from one seed: bookies that crash, clients that take over by force, a store with lost answers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from tests.simulation.unbounded.bookie import UnboundedBookie, What
from tests.simulation.unbounded.client import TICK_NS, Acknowledged, Load, Phase, Send, Store, Stored, Todo, UnboundedClient

MS = 1_000_000
SHAPES = ((3, 2), (3, 2), (2, 1), (4, 3), (4, 2))  # Qw = E, Qa: the variant is not striped
STORM_MS = 1_500


class InvariantViolated(AssertionError):
    pass


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        size, ack = SHAPES[rng.randrange(len(SHAPES))]
        self.loss = (0.0, 0.05, 0.2)[rng.randrange(3)]
        self.duplication = (0.0, 0.2)[rng.randrange(2)]
        self.slow = (0.0, 0.1, 0.4)[rng.randrange(3)]
        self.crash = (0.0, 0.03, 0.1)[rng.randrange(3)]
        self.unknown = (0.0, 0.3)[rng.randrange(2)]
        self.bookies = {name: UnboundedBookie(name) for name in "abcdefg"[: size + 1 + rng.randrange(2)]}
        self.down: dict[str, bool] = dict.fromkeys(self.bookies, False)
        first = LedgerMetadata(size, size, ack, LedgerState.OPEN, (Fragment(0, tuple(self.bookies)[:size]),))
        self.history = [Stored(first, term=0)]  # nobody's term yet: the first writer takes term 1
        self.placement = RandomPlacement(lambda: [b for b in self.bookies if not self.down[b]], rng.random)
        self.acknowledged: dict[int, str] = {}
        self.opened_at = -1
        self.clients: list[UnboundedClient] = []
        self.now = 0
        self.healed = False
        self.submitted = 0
        self.lines: list[str] = []
        self._changed = True
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # --- time and weather ----------------------------------------------------------------------------------------

    def at(self, after_ns: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + max(1, after_ns), self._sequence, function))

    def delay(self) -> int:
        """Speed classes of very different magnitude (replication-protocol.md 13.5)."""
        slow = not self.healed and self.rng.random() < self.slow
        return 1 + int((MS, 10 * MS, 120 * MS, 400 * MS)[self.rng.randrange(4) if slow else 0] * (0.5 + self.rng.random()))

    def hit(self, probability: float) -> bool:
        return not self.healed and self.rng.random() < probability

    def note(self, line: str) -> None:
        self.lines.append(f"{self.now / MS:9.3f} {line}")

    # --- performing ----------------------------------------------------------------------------------------------

    def perform(self, client: UnboundedClient, todo: list[Todo]) -> None:
        for step in todo:
            match step:
                case Send():
                    for _ in range(2 if self.hit(self.duplication) else 1):
                        if not self.hit(self.loss):
                            self.at(self.delay(), lambda s=step: self._arrive(client, s))  # type: ignore[misc]
                case Load():
                    self.at(self.delay(), lambda: self._feed(client, lambda: client.handle_loaded(self.history[-1], len(self.history) - 1)))
                case Store():
                    self._compare_and_set(client, step)
                case Acknowledged(entry_id, value):
                    self.note(f"{client.name} acknowledges {entry_id} {value}")
                    self.require(entry_id not in self.acknowledged, "I-14", f"{entry_id} acknowledged twice")
                    self.acknowledged[entry_id] = value
                    self._changed = True

    def _feed(self, client: UnboundedClient, handle: Callable[[], list[Todo]]) -> None:
        if client in self.clients:
            self.perform(client, handle())

    def _arrive(self, client: UnboundedClient, send: Send) -> None:
        if self.down[send.bookie]:
            return
        reply = self.bookies[send.bookie].handle(send.ask)
        self._changed |= send.ask.what in (What.ADD, What.JOIN)
        if not self.hit(self.loss):
            self.at(self.delay(), lambda: self._feed(client, lambda: client.handle_reply(send.bookie, send.ask, reply)))

    def _compare_and_set(self, client: UnboundedClient, store: Store) -> None:
        """The answer may be lost while the write applies now, or much later (META-12)."""
        unknown = self.hit(self.unknown)

        def apply() -> None:
            good = store.version == len(self.history) - 1
            if good:
                self.history.append(store.wanted)
                self._changed = True
                ledger = store.wanted.ledger
                self.note(f"{client.name}: v{store.version + 1} {ledger.state.name} term {store.wanted.term} {ledger.fragments}")
                if ledger.state is LedgerState.OPEN:
                    self.opened_at = max(self.opened_at, store.wanted.start)
            if not unknown:
                answer(Outcome.OK if good else Outcome.CONFLICT)

        def answer(outcome: Outcome) -> None:
            self.at(self.delay(), lambda: self._feed(client, lambda: client.handle_stored(store, outcome)))

        self.at(self.delay() * (20 if unknown else 1), apply)
        if unknown:
            answer(Outcome.UNKNOWN)

    # --- the story -----------------------------------------------------------------------------------------------

    def play(self) -> World:
        """Clients take over from one another in any weather; then the sky clears and the last one must be able to close (U-6, U-7)."""
        for index in range(2 + self.rng.randrange(3)):
            self.at(int(self.rng.random() * STORM_MS * MS * 0.8), lambda i=index: self._join(f"c{i}"))  # type: ignore[misc]
        self.at(5 * MS, self._weather)
        self._run(STORM_MS * MS)
        self.healed = True
        self.down = dict.fromkeys(self.bookies, False)
        self.clients.clear()
        self._run(self.now + 2_000 * MS)
        self._join("last")
        self._run(self.now + 20_000 * MS)
        self.require(self.history[-1].ledger.state is LedgerState.CLOSED, "U-6, U-7", "not closed in the end")
        for entry_id in range(self.history[-1].ledger.last_entry_id + 1):
            ensemble = self.history[-1].ledger.fragment_of(entry_id).ensemble
            self.require(all(entry_id in self.bookies[b].entries for b in ensemble), "I-G2", f"entry {entry_id} is not everywhere")
        return self

    def _run(self, until_ns: int) -> None:
        while self._heap and self._heap[0][0] <= until_ns and self.history[-1].ledger.state is not LedgerState.CLOSED:
            self.now, _, function = heapq.heappop(self._heap)
            function()
            if self._changed:
                self._changed = False
                self.check()
        self.now = until_ns

    def _join(self, name: str) -> None:
        client = UnboundedClient(name, self.placement)
        self.clients.append(client)
        self.perform(client, client.start())
        self.at(TICK_NS, lambda: self._drive(client))
        self.at(int(3 * MS * self.rng.random()), lambda: self._write(client, 3 + self.rng.randrange(8)))

    def _drive(self, client: UnboundedClient) -> None:
        if client in self.clients:
            if client.phase is Phase.IDLE and self.hit(0.3):
                self.perform(client, client.start())
            self.perform(client, client.tick())
            self.at(TICK_NS, lambda: self._drive(client))

    def _write(self, client: UnboundedClient, left: int) -> None:
        """A few entries once the ledger is open; then the last client closes."""
        if client not in self.clients:
            return
        if left == 0:
            self.perform(client, client.close() if self.healed else [])
        elif client.phase is Phase.OPEN:
            left -= 1
            self.submitted += 1
            self.perform(client, client.append(f"{client.name}/{client.term}/{self.submitted}"))
        self.at(int(15 * MS * self.rng.random()), lambda: self._write(client, left))

    def _weather(self) -> None:
        if self.healed:
            return
        for name in self.bookies:
            if self.hit(self.crash):
                self.down[name] = True
                self.at(int(200 * MS * self.rng.random()), lambda n=name: self.down.update({n: False}))  # type: ignore[misc]
        if self.clients and self.hit(self.crash / 4):
            self.note(f"{self.clients.pop(self.rng.randrange(len(self.clients))).name} dies")
        self.at(5 * MS, self._weather)

    # --- what must hold ------------------------------------------------------------------------------------------

    def require(self, good: bool, rule: str, detail: str) -> None:
        if not good:
            story = "\n".join(self.lines[-30:])
            raise InvariantViolated(f"{rule} broken by seed {self.seed}: {detail}\n{story}")

    def check(self) -> None:
        """After every step that changed a bookie, the metadata or what is acknowledged."""
        self._check_metadata()
        ledger = self.history[-1].ledger
        highest = max((bookie.lac for bookie in self.bookies.values()), default=-1)
        decided = max(self.opened_at, max(self.acknowledged, default=-1))
        self.require(highest <= decided, "I-6", f"LAC {highest} on a bookie, {decided} decided")
        for entry_id in range(decided + 1):
            ensemble = ledger.fragment_of(entry_id).ensemble
            values = [self.bookies[b].entries[entry_id].value for b in ensemble if entry_id in self.bookies[b].entries]
            if entry_id in self.acknowledged:
                good = values.count(self.acknowledged[entry_id])
                self.require(good >= ledger.ack_quorum_size, "U-8 readable", f"entry {entry_id} {self.acknowledged[entry_id]}: {values}")
            if entry_id <= highest:
                self.require(len(set(values)) == 1, "U-8 same value", f"entry {entry_id}: {values} on {ensemble}")
            if entry_id < ledger.last_fragment.first_entry_id:
                self.require(len(values) == len(ensemble), "I-G1", f"entry {entry_id}: {values}")

    def _check_metadata(self) -> None:
        """U-1, U-6: terms rise by one and only with IN_RECOVERY; closed is the end, at or above everything acknowledged."""
        for before, after in zip(self.history[-2:], self.history[-1:], strict=False):
            rises = after.term - before.term
            marked = after.ledger.state is LedgerState.IN_RECOVERY
            self.require(rises == (1 if marked else 0), "U-1", f"term {before.term} to {after.term}, {after.ledger.state.name}")
            self.require(before.ledger.state is not LedgerState.CLOSED, "U-6", "written after the close")
        ledger = self.history[-1].ledger
        if ledger.state is LedgerState.CLOSED:
            self.require(max(self.acknowledged, default=-1) <= ledger.last_entry_id, "I-1", f"closed at {ledger.last_entry_id}")
