"""A session's care for its bookies: it asks suspect ones if they are back, looks up addresses, and remembers who answers what.

``bk_core/protocol/session`` takes the decisions. Everything here happens on the reactor thread, unless a class says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from bk_core.errors import MetadataOutcomeUnknownError, MetadataUnavailableError
from bk_core.metadata.store import BookieView, MetadataStore
from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor, Timer
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.session.addresses import PATIENCE_NS, Address, AddressBook
from bk_core.protocol.session.suspicion import Suspicion
from bk_core.protocol.wire.messages import ReadRequest, Status

Then = Callable[[Address | None, str], None]
MetadataCall = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]

# Any answer proves that a bookie serves, and "no such entry" is the cheapest one.
_PROBE = ReadRequest(0, (1 << 63) - 1, 0)


class Peers(Protocol):
    """The part of a session that probes need."""

    @property
    def reactor(self) -> Reactor: ...
    def bookies(self) -> BookieView: ...
    def link(self, bookie: BookieId, kind: str, ledger_id: int = 0) -> BookieLink: ...


class Suspects:
    """Bookies whose connection broke. They are asked again after the quarantine's time (SES-3). Any thread may read ``members``."""

    def __init__(self, session: Peers, after_ns: int, probe_timeout_ns: int) -> None:
        self._session = session
        self._probe_timeout_ns = probe_timeout_ns
        self._suspicion = Suspicion(after_ns)
        self._timer: Timer | None = None
        self._closed = False
        self._broke_ns: dict[BookieId, int] = {}  # when a connection to it broke last
        self.members = self._suspicion.members
        self.noted = self._suspicion.noted

    def broke(self, bookie: BookieId, kind: str) -> None:
        now = self._broke_ns[bookie] = self._session.reactor.now_ns()
        self._suspicion.broke(bookie, kind, now)
        if self._timer is None:
            self._wait()

    def broken_since(self, since_ns: int) -> frozenset[BookieId]:
        """Return the bookies whose connection broke at ``since_ns`` or later. Any thread may call it."""
        return frozenset(bookie for bookie, at_ns in tuple(self._broke_ns.items()) if at_ns >= since_ns)

    def probe(self) -> None:
        """Ask those whose time has come. A timer calls this, and so does a change of the registry."""
        if self._closed:
            return
        view = self._session.bookies()
        for bookie in self._suspicion.due(self._session.reactor.now_ns(), {*view.writable, *view.readonly}):
            self._session.link(bookie, "data").request(_PROBE, self._probe_timeout_ns, partial(self._probed, bookie))
        self._wait()

    def _probed(self, bookie: BookieId, status: Status, _response: object) -> None:
        self._suspicion.probed(bookie, status, self._session.reactor.now_ns())
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._session.reactor.now_ns()
        at = None if self._closed else self._suspicion.next_ns(now)
        if at is not None:
            self._timer = self._session.reactor.call_later(at - now, self._fired)

    def _fired(self) -> None:
        self._timer = None
        self.probe()

    def close(self) -> None:
        self._closed = True
        self._wait()


class Resolver:
    """Addresses of bookies for new connections: the store's, or the last known one when the store takes long (SES-5)."""

    def __init__(self, reactor: Reactor, store: MetadataStore, metadata_call: MetadataCall) -> None:
        self._reactor = reactor
        self._store = store
        self._metadata_call = metadata_call
        self._book = AddressBook()
        self._waiting: dict[BookieId, list[Then]] = {}

    def came(self, bookie: BookieId, address: Address) -> None:
        """Learn that a bookie has registered at an address. The store is asked anew about others that were there (LINK-4)."""
        self._book.taken(bookie, address)

    def resolve(self, bookie: BookieId, then: Then) -> None:
        """Call ``then`` with the address, or with None and the reason, exactly once and never before this returns."""
        found = self._book.look_up(bookie)
        self._waiting.setdefault(bookie, []).append(then)
        if found.ask:
            self._ask(bookie)
        if found.known is not None:
            self._reactor.call_later(PATIENCE_NS, partial(self._waited, bookie, then, found.known))

    def _ask(self, bookie: BookieId) -> None:
        self._metadata_call(partial(self._store.resolve, bookie), partial(self._looked_up, bookie))

    def _looked_up(self, bookie: BookieId, address: Address | None, error: Exception | None) -> None:
        if address is not None:
            if not self._book.learned(bookie, address):
                self._ask(bookie)
                return
        else:
            unreachable = isinstance(error, MetadataUnavailableError | MetadataOutcomeUnknownError)
            address = self._book.not_learned(bookie, unreachable=unreachable)
        for then in self._waiting.pop(bookie, ()):
            then(address, str(error) if error else "")

    def _waited(self, bookie: BookieId, then: Then, known: Address) -> None:
        waiting = self._waiting.get(bookie, [])
        if then in waiting and self._book.is_known(bookie, known):
            waiting.remove(then)
            then(known, "")


class Unlisting:
    """Bookies that answer, and not about the list of a ledger's entries (wire-protocol.md 8.10), each for ``KEPT_NS`` since it was learnt:
    a bookie may be restarted with another storage. One client has one; any thread may use it."""

    KEPT_NS = 600_000_000_000

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._until_ns: dict[BookieId, int] = {}

    @property
    def known(self) -> frozenset[BookieId]:
        """The bookies that need not be asked now."""
        now_ns = self._now_ns()
        return frozenset(one for one, until_ns in tuple(self._until_ns.items()) if now_ns < until_ns)

    def learn(self, bookies: Iterable[BookieId]) -> None:
        """Take bookies that did not answer."""
        until_ns = self._now_ns() + self.KEPT_NS
        known = self.known
        self._until_ns.update((one, until_ns) for one in bookies if one not in known)


class Looks:
    """Looks at the registered bookies for writers that have found none (EC-6), one look at a time.

    Those who ask during a look share the next one, because the list may have been read before they asked. A bookie that dies may leave a
    thousand ledgers without a candidate, and changes of ledgers need the metadata threads, too.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None], metadata_call: MetadataCall, look: Callable[[], None]) -> None:
        self._post = post
        self._metadata_call = metadata_call
        self._look = look
        self._waiting: list[Callable[[Exception | None], None]] = []
        self._under_way = False

    def ask(self, then: Callable[[Exception | None], None]) -> None:
        """Look. ``then`` is called after everything that the look has posted, with the error if it failed."""
        self._waiting.append(then)
        if not self._under_way:
            self._begin()

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._under_way = True

        def looked(_result: object, error: Exception | None) -> None:
            self._under_way = False
            for then in waiting:
                self._post(partial(then, error))  # each by itself: one that raises takes nothing from the others
            if self._waiting:
                self._begin()

        self._metadata_call(self._look, looked)
