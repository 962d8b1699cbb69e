"""The production session, its suspicion and its address book, on simulated links and a simulated metadata store."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from bk_core.client.peers import Resolver, Suspects
from bk_core.client.session import Session
from bk_core.config import ClientConfig
from bk_core.errors import MetadataUnavailableError, NoNodeError
from bk_core.metadata.store import BookieView, Versioned
from bk_core.metrics.client import ClientCounts
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.placement import Quarantine
from bk_core.protocol.ledger.read.replica_order import ReadHistory
from bk_core.protocol.session.refusals import Refusals
from bk_core.protocol.session.shortage import Shortages
from bk_core.protocol.wire.messages import Status
from tests.simulation.links import Network, SimLink, SimNames, SimReactor

QUARANTINE_S = 5.0
STORE_GIVES_UP_NS = 10_000_000_000
STORE_LOOK_NS = 100_000_000


class SimStore:
    """The registrations of bookies. During an outage nobody gets an answer."""

    def __init__(self, network: Network) -> None:
        self.world = network.world
        self.registered: dict[str, tuple[str, int]] = {}
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.out_until_ns = 0

    def resolve(self, bookie: str) -> tuple[str, int]:
        if bookie not in self.registered:
            raise NoNodeError(f"no bookie {bookie}")
        return self.registered[bookie]

    def read_ledger(self, ledger_id: int) -> Versioned:
        return Versioned(metadata_codec.encode(self.ledgers[ledger_id]), 0)


class SimSession(Session):
    """Made without threads; everything that it decides is decided by the product."""

    link_type = SimLink

    def __init__(self, name: str, network: Network, store: SimStore) -> None:
        self.name, self.world, self.sim_store = name, network.world, store
        self.config = ClientConfig("memory://simulated", quarantine_s=QUARANTINE_S)
        self.store = store  # type: ignore[assignment]
        self.counts = ClientCounts(name)
        self.reactor = SimReactor(network)
        self.racks = None
        self._links = {}
        self._moved_ns = {}
        self._is_looking = self._looks_again = self._over = False
        self._emptied = ()
        self._view = BookieView((), ())
        self._views = self._view_number = 0
        self._view_lock = RLock()
        self._on_bookies = {}
        self._reads = ReadHistory(self.config.limits.speculative_read_ns)
        quarantine_ns = int(QUARANTINE_S * 1e9)
        self._quarantine = Quarantine(self.reactor.now_ns, quarantine_ns, self.config.quarantine_errors)
        self._suspects = Suspects(self, quarantine_ns, self.config.limits.read_timeout_ns)
        self._resolver = Resolver(self.reactor, self.store, self.metadata_call)
        self._names = SimNames(network)
        self._refusals = Refusals()
        self._shortages = Shortages()
        self.rng = network.world.rng
        self.placement = self._new_placement(None)
        self.on_read: Callable[[SimSession, str, Status], None] = lambda session, bookie, status: None

    def see(self) -> None:
        """The registry has changed."""
        self._bookies_changed(BookieView(tuple(sorted(self.sim_store.registered)), ()))

    def note_read(self, bookie: str, status: Status, elapsed_ns: int) -> None:
        super().note_read(bookie, status, elapsed_ns)
        self.on_read(self, bookie, status)

    @property
    def suspects(self) -> frozenset[str]:
        return self._suspects.members()

    def metadata_call(self, function: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        def fails(at_ns: int) -> None:
            """Fail at the end of the outage, which may come earlier than was said, or after ten seconds."""
            left_ns = min(at_ns, self.sim_store.out_until_ns + 1_000_000) - self.world.now
            if left_ns > 0:
                self.world.at(min(STORE_LOOK_NS, left_ns), lambda: fails(at_ns))
            else:
                then(None, MetadataUnavailableError("nobody answers"))

        def call() -> None:
            if self.world.now < self.sim_store.out_until_ns:
                fails(self.world.now + STORE_GIVES_UP_NS)
                return
            try:
                found = function()
            except NoNodeError as error:
                missing = error
                self.reactor.post(lambda: then(None, missing))
            else:
                self.reactor.post(lambda: then(found, None))

        self.world.at(self.world.delay(), call)
