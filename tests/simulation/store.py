"""The metadata store: per ledger a history of versions, and compare-and-sets whose answer, or whose effect, may come late or never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import LedgerMetadata
from tests.simulation.truth import CAS, META, PendingCas, Truth
from tests.simulation.world import MS, STORE, World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

TIMEOUT_NS = 60 * MS  # after this a client calls a metadata request UNKNOWN


@dataclass(slots=True)
class Answer:
    outcome: Outcome
    version: int = -1
    value: Any = None


UNKNOWN = Answer(Outcome.UNKNOWN)


class SimStore:
    """Ledgers live in ``cluster.truths``; other items (ledger lists of logs) in ``items`` as (value, version)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.items: dict[str, list[Any]] = {}
        self.down = False
        self.ahead_ms = 0  # another server leads, and its clock tells
        self._watches: dict[int, list[Callable[[LedgerMetadata, int], None]]] = {}

    def clock_ms(self) -> int:
        """Return the time with which nodes are stamped (JAN-1)."""
        return self.world.now // MS + self.ahead_ms

    # --- transport -------------------------------------------------------------------------------------------------

    def call(self, client: str, kind: str, ledger_id: int, serve: Callable[[], Answer], answer: Callable[[Answer], None]) -> None:
        """One request. ``answer`` hears once: the truth, or UNKNOWN after a while, whatever became of the request."""
        world, weather = self.world, self.world.weather
        done = [False]

        def reply(found: Answer) -> None:
            if not done[0]:
                done[0] = True
                answer(found)

        fate = world.random() if weather.store_loss else 1.0

        def arrive() -> None:
            if self.down:
                return
            found = serve()
            if done[0] and kind == "cas" and found.outcome is Outcome.OK:
                world.probes["a compare-and-set applied after its client heard UNKNOWN"] += 1
            if fate < weather.store_loss * 0.4:
                if kind == "cas" and found.outcome is Outcome.OK:
                    world.probes["the answer to an applied compare-and-set was lost"] += 1
                return
            world.send(STORE, client, kind + "-reply", ledger_id, -1, lambda: reply(found))

        def leave() -> None:
            world.send(client, STORE, kind, ledger_id, -1, arrive)

        if fate < weather.store_loss:
            if fate >= weather.store_loss * 0.7:
                world.probes["a metadata request never arrived"] += 1
            elif fate >= weather.store_loss * 0.4:
                world.at(int(TIMEOUT_NS * (0.2 + 6 * world.random())), leave)
            else:
                leave()
        else:
            leave()
        world.timer(TIMEOUT_NS, lambda: reply(UNKNOWN))

    # --- ledgers ---------------------------------------------------------------------------------------------------

    def read(self, client: str, truth: Truth, answer: Callable[[Answer], None]) -> None:
        def serve() -> Answer:
            if truth.deleted:
                return Answer(Outcome.NO_SUCH_LEDGER)
            return Answer(Outcome.OK, truth.version, truth.metadata)

        self.call(client, "metadata-read", truth.ledger_id, serve, answer)

    def compare_and_set(
        self, client: str, role: str, truth: Truth, wanted: LedgerMetadata, version: int, answer: Callable[[Answer], None]
    ) -> None:
        pending = PendingCas(client, role, version, wanted)
        truth.pending.append(pending)
        truth.dirty |= CAS
        self.world.stats["cas"] += 1

        def serve() -> Answer:
            if truth.deleted:
                return Answer(Outcome.NO_SUCH_LEDGER)
            if version != truth.version:
                return Answer(Outcome.CONFLICT)
            self.install(truth, wanted, client, role)
            return Answer(Outcome.OK, truth.version)

        def heard(found: Answer) -> None:
            if found.outcome is Outcome.UNKNOWN:
                pending.given_up = True
                self.world.stats["ambiguous cas"] += 1
            answer(found)

        self.call(client, "cas", truth.ledger_id, serve, heard)

    def install(self, truth: Truth, wanted: LedgerMetadata, client: str, role: str) -> None:
        truth.install(wanted, client, role)
        for log in self.cluster.logs:
            log.changed = True
        self.world.note(f"metadata of ledger {truth.ledger_id} by {client}: {truth.describe()}")
        self._tell(truth)

    def delete(self, truth: Truth) -> None:
        truth.deleted = True
        truth.dirty |= META
        self.world.note(f"metadata of ledger {truth.ledger_id} deleted")
        self._tell(truth)

    def watch(self, client: str, truth: Truth, callback: Callable[[LedgerMetadata, int], None]) -> None:
        """``callback`` hears of newer versions, late, possibly out of order, until the end of the run."""

        def tell(metadata: LedgerMetadata, version: int) -> None:
            if (STORE, client) in self.world.cut:  # a client that finds the store again has its watches renewed
                self.world.at(20 * MS, lambda: tell(metadata, version))
                return
            self.world.send(STORE, client, "watch", truth.ledger_id, -1, lambda: callback(metadata, version))

        self._watches.setdefault(truth.ledger_id, []).append(tell)

    def _tell(self, truth: Truth) -> None:
        for tell in self._watches.get(truth.ledger_id, ()):
            tell(truth.metadata, truth.version)

    # --- other items -----------------------------------------------------------------------------------------------

    def read_item(self, client: str, key: str, answer: Callable[[Answer], None]) -> None:
        def serve() -> Answer:
            found = self.items.get(key)
            return Answer(Outcome.NO_SUCH_LEDGER) if found is None else Answer(Outcome.OK, found[1], found[0])

        self.call(client, "list-read", -1, serve, answer)

    def set_item(
        self, client: str, key: str, value: Any, version: int, answer: Callable[[Answer], None], on_set: Callable[[Any], None]
    ) -> None:
        def serve() -> Answer:
            found = self.items.get(key)
            if found is None or found[1] != version:
                return Answer(Outcome.CONFLICT)
            self.items[key] = [value, version + 1]
            on_set(value)
            return Answer(Outcome.OK, version + 1)

        self.call(client, "cas", -1, serve, answer)
