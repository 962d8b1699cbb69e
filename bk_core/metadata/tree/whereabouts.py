"""The addresses of bookies, as their registrations tell them (metadata.md 4.3, 4.4), kept until they change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Any

from bk_core.background import WorkerPool
from bk_core.display.words import meet
from bk_core.errors import BookieUnavailableError, MetadataUnavailableError, NoNodeError
from bk_core.metadata.occupied import ByPlace, by_place, check_latest, check_nobodys
from bk_core.metadata.service_info import address_of
from bk_core.metadata.store import BookieView
from bk_core.metadata.tree.connected import KNOWN_ADDRESS_S, Connected
from bk_core.metadata.tree.nodes import Nodes
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.session.addresses import Address

READS_AT_ONCE = 16
LISTED_S = 0.25  # so long a list of the registered bookies counts for those that are in it; a watch may be as late


class Whereabouts:
    """The addresses of a cluster's bookies. ``node_of`` names the node of a registration, a read-only one if so asked; ``registered``
    lists those that have one. ``place`` names the servers, and ``timeout_s`` is the wait for them in seconds. ``on_change`` gets each
    bookie whose registration changed or is gone. Any thread."""

    def __init__(
        self,
        link: Connected,
        nodes: Nodes,
        node_of: Callable[[BookieId, bool], str],
        registered: Callable[[], BookieView],
        on_change: Callable[[BookieId], None],
        *,
        place: str,
        timeout_s: float,
    ) -> None:
        self._link, self._nodes = link, nodes
        self._node_of, self._registered, self._on_change = node_of, registered, on_change
        self._place, self._timeout_s = place, timeout_s
        self._lock = RLock()
        self._addresses: dict[BookieId, Address] = {}
        self._last: dict[BookieId, Address] = {}  # those that were told last, also of bookies that are gone
        self._looked_after = 0  # losses
        self._nowhere: set[BookieId] = set()  # registered, and nothing tells where
        self._changes: dict[BookieId, int] = {}  # of registrations, as far as they are known
        self._all_changes = 0  # of registrations, and of the list of those that have one
        self._losses = 0  # of the connection, after which any may have changed
        self._read: dict[BookieId, int] = {}  # the number of its changes and of losses when a registration was read
        self._checked: dict[BookieId, int] = {}  # the number of all changes and losses when it was last seen that no other is there
        self._listed: frozenset[BookieId] = frozenset()  # those that had a registration when they were listed last
        self._listed_at = -math.inf
        self._occupied: tuple[tuple[object, object], ByPlace] | None = None  # with the state for which it holds; replaced as a whole

    def changes_of(self, bookie_id: BookieId) -> int:
        """Return how often the registration of a bookie has changed, as far as it is known."""
        return self._changes.get(bookie_id, 0)

    @property
    def losses(self) -> int:
        """Return how often the connection was lost or made so far. What came and went meanwhile was told to nobody."""
        return self._losses

    def on_connection(self) -> None:
        """Note that the connection was lost or made."""
        with self._lock:
            self._losses += 1

    def look(self) -> None:
        """Read again what was known before the connection was lost, because nothing else tells of a bookie that moved meanwhile. Raises
        MetadataUnavailableError if that was not possible, and is to be called again then. The keeper's thread."""
        with self._lock:
            losses, known = self._losses, list(self._addresses)
        if losses == self._looked_after:
            return
        unread = self._unread(known)
        if len(unread) == 1:
            self._read_one(unread[0])
        else:
            self._read_ahead(unread)
        if self._unread(known):
            raise MetadataUnavailableError(f"the registrations of bookies could not be read again from {self._place}")
        self._looked_after = losses

    def on_list(self, registered: frozenset[BookieId]) -> None:
        """Note which bookies have a registration. One that is new may be at the address of another."""
        with self._lock:
            self._listed_at = time.monotonic()
            if registered != self._listed:
                self._listed = registered
                self._all_changes += 1

    def on_event(self, event: Any) -> None:
        """Note that a registration changed or, without a path, that the connection was lost."""
        if event.path is None:
            self.on_connection()
        else:
            bookie_id = event.path.rpartition("/")[2]
            with self._lock:
                self._changes[bookie_id] = self._changes.get(bookie_id, 0) + 1
                self._all_changes += 1
            self._on_change(bookie_id)

    def resolve(self, bookie_id: BookieId, *, alone: bool = False) -> Address:
        """Return a kept address until the registration changes or the connection is lost. Without a connection it is the last known
        address at once, and with a connection that does not answer, after ``KNOWN_ADDRESS_S`` (SES-5).

        With ``alone`` no other bookie is asked about, and one that is not registered has no address. Raises BookieUnavailableError.
        """
        with self._lock:
            known = self._addresses.get(bookie_id)
            change, changes = self._changes.get(bookie_id, 0) + self._losses, self._all_changes + self._losses
            was_read = self._read.get(bookie_id) == change
            is_checked = alone or self._checked.get(bookie_id) == changes
        if was_read and known is None and bookie_id in self._nowhere:
            return address_of(bookie_id, b"")
        if was_read and known is not None and is_checked:
            return known
        try:
            if known is not None and not self._link.connected:
                raise MetadataUnavailableError(f"there is no connection to {self._place}")
            if was_read and known is not None:
                address = known
            else:
                timeout_s = self._timeout_s if known is None else min(self._timeout_s, KNOWN_ADDRESS_S)
                registration = self._registration(bookie_id, timeout_s)
                address = self._told(bookie_id, registration, change, alone)
                if registration is None:
                    check_nobodys(bookie_id, address, self._by_place())
                    return address
            if not alone:
                check_latest(bookie_id, address, self._by_place(LISTED_S), self._created)
        except MetadataUnavailableError:
            if known is None or self._is_shared(bookie_id, known):
                raise
            return known
        if not alone:
            with self._lock:
                self._checked[bookie_id] = changes
        return address

    def _told(self, bookie_id: BookieId, registration: bytes | None, change: int, alone: bool) -> Address:
        """Return the address that a registration tells, and keep it. It was read after ``change`` changes and holds until there are more,
        also if an answer of before comes behind a newer one. Of a bookie without one nothing is kept, because nothing tells when it comes
        back. A bookie that is elsewhere than it was is told of, whoever asked: no event may have come."""
        has_moved = False
        with self._lock:
            self._read[bookie_id] = change
            self._addresses.pop(bookie_id, None)
            self._nowhere.discard(bookie_id)
            try:
                address = address_of(bookie_id, registration, registered=alone)
            except BookieUnavailableError:
                if registration is not None:
                    self._nowhere.add(bookie_id)
                raise
            if registration is not None:
                has_moved = self._last.get(bookie_id, address) != address
                self._addresses[bookie_id] = self._last[bookie_id] = address
        if has_moved:
            self._on_change(bookie_id)
        return address

    def _is_shared(self, bookie_id: BookieId, address: Address) -> bool:
        """Return True if another registered bookie is known at the same address. Only the servers tell which of them came later."""
        with self._lock:
            others = [at for other, at in self._addresses.items() if other != bookie_id and other in self._listed]
        return any(meet(address, other) for other in others)

    def _by_place(self, listed_s: float = 0.0) -> ByPlace:
        """Return the registered bookies by their addresses. It is made anew when others are registered than at the last call, or a
        registration has changed since. A list of them counts for ``listed_s`` seconds."""
        with self._lock:
            changes = self._all_changes, self._losses  # these come before the reads, so that a change during them counts
            (of, _), found = self._occupied or ((None, None), {})
            if of == changes and time.monotonic() - self._listed_at < listed_s:
                return found
        view = self._registered()
        state = (changes, view)
        kept = self._occupied
        if kept is not None and kept[0] == state:
            found = kept[1]
        else:
            self._read_ahead((*view.writable, *view.readonly))
            addresses, missing = [], False
            for bookie in (*view.writable, *view.readonly):
                try:
                    addresses.append((bookie, self.resolve(bookie, alone=True)))
                except BookieUnavailableError:  # it may be registered again any moment, if it is not, and nothing will tell of it
                    missing = missing or bookie not in self._nowhere
            found = by_place(addresses)
            self._occupied = None if missing else (state, found)
        return found

    def _read_ahead(self, bookies: Sequence[BookieId]) -> None:
        """Read the registrations that are not known, many at once: one after the other costs a round trip each."""
        unread = self._unread(bookies)
        if len(unread) < 2:
            return
        pool = WorkerPool("bk-whereabouts", min(len(unread), READS_AT_ONCE))
        try:
            for future in [pool.call(partial(self._read_one, bookie)) for bookie in unread]:
                future.result()
        finally:
            pool.close()

    def _unread(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        with self._lock:
            return [one for one in bookies if self._read.get(one) != self._changes.get(one, 0) + self._losses]

    def _read_one(self, bookie_id: BookieId) -> None:
        with suppress(BookieUnavailableError):
            self.resolve(bookie_id, alone=True)

    def _created(self, bookie_id: BookieId) -> int | None:
        """Return the transaction by which a bookie registered, None if it is not registered."""
        made = [self._nodes.created(self._node_of(bookie_id, readonly)) for readonly in (False, True)]
        return max((one for one in made if one is not None), default=None)

    def _registration(self, bookie_id: BookieId, timeout_s: float) -> bytes | None:
        for readonly in (False, True):
            try:
                return self._nodes.get(self._node_of(bookie_id, readonly), self.on_event, timeout_s).data
            except NoNodeError:
                continue
        return None
