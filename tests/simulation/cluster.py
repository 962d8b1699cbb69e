"""A whole cluster in one thread: bookies, metadata store, registry and clients, all of them on one ``World``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bk_core.protocol.ledger.metadata import BookieId, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import Placement, RandomPlacement
from bk_core.protocol.ledger.placement.policy import fill
from bk_core.protocol.limits import Limits
from tests.simulation.bookies import SimBookie
from tests.simulation.clients import Client, Recoverer, Writer
from tests.simulation.invariants import Checker
from tests.simulation.readers import Reader, Tailer
from tests.simulation.replicator import Replicator
from tests.simulation.store import SimStore
from tests.simulation.truth import Truth
from tests.simulation.world import MS, Weather, World

if TYPE_CHECKING:
    from tests.simulation.logs import LogTruth

FIRST_LEDGER = 7
PASSWORD = b"s"
LIMITS = Limits(
    add_timeout_ns=80 * MS,
    read_timeout_ns=80 * MS,
    unreachable_ns=150 * MS,
    read_again_ns=10 * MS,
    read_again_ns_max=40 * MS,
    recovery_window_entries=2,
    recovery_retries_max=3,
    recovery_retry_ns=30 * MS,
    metadata_retry_ns=20 * MS,
    explicit_lac_ns=30 * MS,
    long_poll_ns=60 * MS,
    tail_pause_ns=20 * MS,
    tail_look_ns=100 * MS,
    placement_retry_ns=100 * MS,
    add_retry_ns=20 * MS,
    add_retry_ns_max=200 * MS,
    replication_retry_ns=50 * MS,
)


class DomainPlacement(RandomPlacement):
    """Bookies stand in ``domains`` fault domains by turns. A replacement that would leave a write set in one domain is none."""

    def __init__(self, cluster: Cluster, domains: int, write_quorum: int) -> None:
        super().__init__(cluster.writable, cluster.world.random)
        self._domains = {name: f"d{bookie.index % domains}" for name, bookie in cluster.bookies.items()}
        self._write_quorum = write_quorum

    def domain_of(self, bookie: BookieId) -> str:
        return self._domains[bookie]

    def replace(self, ensemble: Sequence[BookieId], positions: Sequence[int], avoid: Collection[BookieId] = ()) -> dict[int, BookieId]:
        candidates = self._in_order({*ensemble, *avoid})

        def choose(position: int, current: list[BookieId]) -> BookieId | None:
            fitting = (
                c for c in candidates if c not in current and self._spread([*current[:position], c, *current[position + 1 :]], position)
            )
            return next(fitting, None)

        return fill(ensemble, positions, choose)

    def _spread(self, ensemble: list[BookieId], position: int) -> bool:
        """Every write set that ``position`` belongs to spans two domains."""
        size, quorum = len(ensemble), self._write_quorum
        starts = [(position - k) % size for k in range(quorum)]
        return all(len({self._domains[ensemble[(s + k) % size]] for k in range(quorum)}) > 1 for s in starts)


class Cluster:
    """``step`` runs one event and then every invariant whose inputs changed."""

    def __init__(self, seed: int, weather: Weather, bookies: int, limits: Limits = LIMITS, *, verbose: bool = False) -> None:
        self.world = World(seed, weather, verbose=verbose)
        self.limits = limits
        self.truths: dict[int, Truth] = {}
        self.clients: list[Client] = []
        self.logs: list[LogTruth] = []
        self.alarms: list[str] = []  # error lines of machines: each is a finding (papers.md 9)
        self.bookies = {f"b{i + 1}": SimBookie(self, f"b{i + 1}", i) for i in range(bookies)}
        self.bits = {name: bookie.index for name, bookie in self.bookies.items()}
        self.registry_knows = False  # the registry notices crashes at once (written scenarios)
        self.store = SimStore(self)
        self.placement: Placement = RandomPlacement(self.writable, self.world.random)
        self.checker = Checker(self)

    # --- registry --------------------------------------------------------------------------------------------------

    def writable(self) -> list[str]:
        """Return the bookies that placement sees. The registry learns of crashes late, or in a short run never."""
        return [n for n, b in self.bookies.items() if not b.read_only and (b.up or not self.registry_knows)]

    def bookie_down(self, bookie: SimBookie) -> None:
        world = self.world
        for client in self.clients:
            if client.alive and (world.weather.reset >= 1 or world.random() < world.weather.reset):
                world.at(world.delay(), lambda c=client: c.lost(bookie.name))  # type: ignore[misc]
        self.registry_changed()

    def bookie_up(self, bookie: SimBookie) -> None:
        self.registry_changed()

    def registry_changed(self) -> None:
        for client in self.clients:
            if client.alive and client.wants_registry:
                self.world.at(self.world.delay(), client.registry_changed)

    def use_domains(self, domains: int, write_quorum: int) -> None:
        """WR-7: before any client is made."""
        self.placement = DomainPlacement(self, domains, write_quorum)

    # --- ledgers and clients ---------------------------------------------------------------------------------------

    def create_ledger(
        self,
        quorums: tuple[int, int, int],
        ensemble: tuple[str, ...] | None = None,
        custom: dict[str, bytes] | None = None,
        *,
        exact: bool = True,
    ) -> Truth:
        """A fresh OPEN ledger on the first bookies, or on ``ensemble``."""
        size, write, ack = quorums
        chosen = ensemble or tuple(list(self.bookies)[:size])
        metadata = LedgerMetadata(
            size, write, ack, LedgerState.OPEN, (Fragment(0, chosen),), password=PASSWORD, custom=MappingProxyType(dict(custom or {}))
        )
        return self.add_ledger(metadata, exact=exact)

    def add_ledger(self, metadata: LedgerMetadata, *, exact: bool = True) -> Truth:
        truth = Truth(FIRST_LEDGER + len(self.truths), metadata, self.bits, exact=exact)
        truth.stored_above = lambda entry_id: self._stored_above(truth, entry_id)
        self.truths[truth.ledger_id] = truth
        self.world.note(f"ledger {truth.ledger_id} created: {truth.describe()}")
        return truth

    def _stored_above(self, truth: Truth, entry_id: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for bookie in self.bookies.values():
            for stored in bookie.storage.entry_ids(truth.ledger_id):
                if stored > entry_id:
                    found[stored] = found.get(stored, 0) | bookie.bit
        return found

    def writer(self, name: str, truth: Truth, **options: Any) -> Writer:
        return Writer(self, name, truth, options)

    def recoverer(self, name: str, truth: Truth, *, plain: bool = False, **options: Any) -> Recoverer:
        return Recoverer(self, name, truth, options, plain=plain)

    def reader(self, name: str, truth: Truth, *, tailing: bool) -> Reader:
        return Tailer(self, name, truth) if tailing else Reader(self, name, truth, tailing=False)

    def poller(self, name: str, truth: Truth) -> Reader:
        """A tailing reader that asks for the LAC again and again."""
        return Reader(self, name, truth, tailing=True)

    def replicator(self, name: str, truth: Truth, **options: Any) -> Replicator:
        return Replicator(self, name, truth, **options)

    # --- what invariants ask -----------------------------------------------------------------------------------------

    def names(self, mask: int) -> str:
        return " ".join(n for n, b in self.bookies.items() if mask & b.bit) or "none"

    def dead(self) -> int:
        return sum(b.bit for b in self.bookies.values() if not b.up)

    def confirmed(self, name: str) -> int | None:
        for client in self.clients:
            if isinstance(client, Writer) and client.name == name:
                return client.last_add_confirmed
        return None

    def closes_in_recovery(self, name: str) -> bool:
        """D1."""
        return any(isinstance(c, Writer) and c.name == name and c.options.close_in_recovery for c in self.clients)

    def replicating(self, truth: Truth) -> bool:
        return any(isinstance(c, Replicator) and c.truth is truth and c.busy for c in self.clients)

    def loss_is_bounded(self, truth: Truth, entry_id: int) -> bool:
        """I-2 says nothing once an ack quorum of the entry's write set has lost data."""
        md = truth.metadata
        lost = truth.lost & truth.mask(md.fragment_of(entry_id).ensemble, entry_id)
        return lost.bit_count() < md.ack_quorum_size

    # --- running ---------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        if not self.world.step():
            return False
        self.checker.check()
        return True

    def run_until(self, at_ns: int) -> None:
        """Every event before ``at_ns``; then it is that late."""
        world = self.world
        while (due := world.next_at()) is not None and due <= at_ns:
            self.step()
        world.now = max(world.now, at_ns)
