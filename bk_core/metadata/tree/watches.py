"""Watches of a store and registrations of bookies, and the keeper, the one thread that looks after them.

Everything that may have changed is put on its queue, by a watch that fired and by each new connection, because watches do not outlive one.
The keeper then looks at the server and compares.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from typing import Any, Protocol, TypeVar

from bk_core.background import OwnThread
from bk_core.errors import (
    CLIENT_CLOSED,
    ClientClosedError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from bk_core.metadata.store import BookieView
from bk_core.metadata.tree.names import Names
from bk_core.metadata.tree.nodes import PAUSE_S, Nodes
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.threads import Home

_LOG = logging.getLogger(__name__)

_KEEPER_RETRY_S = 0.5
_KEEPER_JOIN_S = 5.0

C = TypeVar("C", bound="Charge")
Arm = Callable[[Any], None]
Stamp = tuple[int, int] | None  # (creation, last change) of a node as transaction ids; None if it does not exist


class Charge(Protocol):
    """Something that the keeper looks after."""

    def look(self) -> None:
        """Compare with the server and act. After a MetadataError the keeper looks again soon."""


class Keeper:
    """One thread that looks at charges when something may have changed."""

    def __init__(self) -> None:
        self.home = Home()
        self._queue: SimpleQueue[Charge | None] = SimpleQueue()
        self._charges: dict[int, Charge] = {}  # by their identity, because there may be thousands
        self._lock = RLock()
        self._closed = False
        self._again: deque[tuple[float, Charge]] = deque()  # with the monotonic seconds at which each is due
        self._is_agains_turn = False
        self._thread: OwnThread | None = None

    def add(self, charge: Charge) -> None:
        with self._lock:
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED)
            self._charges[id(charge)] = charge
            if self._thread is None:
                self._thread = OwnThread("bk-metadata-keeper", self._next)
                self._thread.start()

    def remove(self, charge: Charge) -> None:
        with self._lock:
            self._charges.pop(id(charge), None)

    def look_at(self, charge: Charge) -> None:
        self._queue.put(charge)

    def look_at_all(self) -> None:
        with self._lock:
            charges = list(self._charges.values())
        for charge in charges:
            self._queue.put(charge)

    def each(self, kind: type[C]) -> list[C]:
        """Return the charges of this kind."""
        with self._lock:
            return [charge for charge in self._charges.values() if isinstance(charge, kind)]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._charges = {}
        self._queue.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_KEEPER_JOIN_S)

    def _next(self) -> Callable[[], None] | None:
        left_s = self._again[0][0] - time.monotonic() if self._again else None
        is_due = left_s is not None and left_s <= 0
        self._is_agains_turn = is_due and not self._is_agains_turn  # they take turns with what is new, whatever there is of both
        try:
            if self._is_agains_turn:
                raise Empty
            charge = self._queue.get(timeout=None if left_s is None else max(0.0, left_s))
        except Empty:
            charge = self._again.popleft()[1]
        return None if charge is None else partial(self._look, charge)

    def _look(self, charge: Charge) -> None:
        with self._lock:
            known = id(charge) in self._charges  # ``_charges`` keeps the charge, so that no other object gets its identity
        if known and not self._looked(charge) and all(charge is not other for _, other in self._again):
            self._again.append((time.monotonic() + _KEEPER_RETRY_S, charge))

    def _looked(self, charge: Charge) -> bool:
        try:
            charge.look()
        except ClientClosedError:
            return True
        except MetadataError as error:
            _LOG.debug("looking again soon: %s", error)
            return False
        except Exception:
            _LOG.exception("a callback of a metadata watch failed")
        return True


class Arms:
    """The callbacks that the ZooKeeper client gets: one function per node, however often that is watched.

    kazoo keeps a function until the node changes or the connection is lost, because a single watch cannot be taken back. So the function
    must not keep a cancelled watch alive, and with it everything that its callback refers to.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._lock = RLock()
        self._of_path: dict[str, tuple[Arm, list[Charge]]] = {}

    def enter(self, path: str, charge: Charge) -> Arm:
        """Return the function of this node, which has the keeper look at ``charge`` until ``leave``."""
        with self._lock:
            if path not in self._of_path:
                self._of_path[path] = (partial(self._fired, path), [])
            function, charges = self._of_path[path]
            charges.append(charge)
            return function

    def leave(self, path: str, charge: Charge) -> None:
        with self._lock:
            _, charges = self._of_path.get(path, (None, []))
            charges[:] = [other for other in charges if other is not charge]

    def _fired(self, path: str, _event: Any) -> None:
        with self._lock:
            charges = list(self._of_path[path][1]) if path in self._of_path else []
            if not charges:  # kazoo has forgotten this function, and will not call it again
                self._of_path.pop(path, None)
        for charge in charges:
            self._keeper.look_at(charge)


class _KeptWatch(ABC):
    """A watch that the keeper looks at when an event came, until it is cancelled."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._cancelled = False

    @abstractmethod
    def look(self) -> None: ...

    def cancel(self) -> None:
        self._cancelled = True
        if self._keeper.home.is_here:
            self._keeper.remove(self)

    def _on_event(self, _event: Any) -> None:
        if not self._cancelled:
            self._keeper.look_at(self)


class NodeWatch(_KeptWatch):
    """Calls back when the node's last change differs from that at the last look."""

    def __init__(self, keeper: Keeper, arms: Arms, path: str, stamp_of: Callable[[str, Arm], Stamp], callback: Callable[[], None]) -> None:
        super().__init__(keeper)
        self._arms, self._path, self._stamp_of = arms, path, stamp_of
        self._callback: Callable[[], None] | None = callback
        self._seen: Stamp = None
        self._ready = False
        self._arm = arms.enter(path, self)

    def start(self) -> None:
        self._seen = self._stamp_of(self._path, self._arm)
        self._ready = True
        self._keeper.look_at(self)  # the keeper may have heard of a lost connection before, and then saw no stamp

    def look(self) -> None:
        if self._cancelled or not self._ready:
            return
        stamp, callback = self._stamp_of(self._path, self._arm), self._callback
        if stamp == self._seen or callback is None:
            return
        self._seen = stamp
        callback()

    def cancel(self) -> None:
        super().cancel()
        if self._keeper.home.is_here:
            self._arms.leave(self._path, self)
        self._callback = None  # the keeper may hold this object for a while, and must not hold the watcher


class BookiesWatch(_KeptWatch):
    """Calls back at once, then whenever the registered bookies differ from those at the last call, or registered anew since.

    The keeper looks, and so does whoever wants to know now. Both look here, one after the other: a view that was told elsewhere would be
    missing in what the next look compares with, and a change back to it would be told to nobody.
    """

    def __init__(
        self, keeper: Keeper, probe: Callable[[Callable[[Any], None] | None], BookieView], callback: Callable[[BookieView], None]
    ) -> None:
        super().__init__(keeper)
        self._probe = probe
        self._callback: Callable[[BookieView], None] | None = callback
        self._seen: BookieView | None = None
        self._changed: deque[BookieId] = deque()
        self._due = False  # a look that has not begun: it sees whatever happens until then
        self._looking = RLock()

    def start(self) -> None:
        with self._looking:
            view, callback = self._probe(self._on_event), self._callback
            self._seen = view
            if callback is not None:
                callback(view)
        self._keeper.look_at(self)

    def look(self) -> None:
        self._due = False  # before all else, so that what happens during the look leads to another one
        with self._looking:
            self._compare(self._on_event)

    def refresh(self) -> None:
        try:
            with self._looking:
                self._compare(None)  # changes are noticed by what the last look of the keeper left with the servers
        except BaseException:
            self._on_event(None)  # it may have been an interrupt, and nothing else may lead to another look
            raise

    def _compare(self, arm: Arm | None) -> None:
        if self._cancelled or self._seen is None:
            return
        changed = {self._changed.popleft() for _ in range(len(self._changed))}
        try:
            view, callback = self._probe(arm), self._callback
        except BaseException:
            self._changed.extend(changed)
            raise
        anew = self._seen.registered & view.registered & changed  # gone and back between two looks: both lists have them
        if callback is None or (view == self._seen and not anew):
            return
        before, self._seen = self._seen, view
        try:
            callback(replace(view, anew=anew))
        except BaseException:  # an interrupt of whoever looked: the others are to be told nevertheless
            self._seen = before
            self._changed.extend(changed)
            raise

    def registration_changed(self, bookie: BookieId) -> None:
        """Note that a registration was changed or is gone, and look. Any thread."""
        self._changed.append(bookie)  # before it is asked if a look is due, which takes it along
        self._on_event(None)

    def _on_event(self, event: Any) -> None:
        if not self._due:
            self._due = True
            super()._on_event(event)

    def cancel(self) -> None:
        super().cancel()
        self._callback = None  # kazoo holds this until the registry changes


class NodeRegistration:
    """The ephemeral node of one bookie. The keeper makes it again whenever it is gone while this object is open."""

    def __init__(
        self,
        nodes: Nodes,
        keeper: Keeper,
        root: str,
        names: Names,
        bookie_id: BookieId,
        payload: bytes,
        readonly: bool,
        *,
        held_s: float,
        on_close: Callable[[NodeRegistration], None],
    ) -> None:
        """``root``, ``names``: the cluster's. ``held_s``: the seconds for which the node of a dead process may stay. ``on_close`` is told
        when it is closed, before its nodes go."""
        self.bookie_id = bookie_id
        self._nodes = nodes
        self._keeper = keeper
        self._root, self._names = root, names
        self._payload = payload
        self._readonly = readonly
        self._held_s = held_s
        self._on_close = on_close
        self._closed = False
        self._lock = Lock()

    def start(self) -> None:
        deadline = time.monotonic() + self._held_s + 1.0
        while True:
            try:
                with self._lock:
                    self._apply()
                break
            except NodeExistsError:
                if time.monotonic() > deadline:
                    raise
            except MetadataOutcomeUnknownError as error:
                if time.monotonic() > deadline:
                    raise MetadataUnavailableError(f"bookie {self.bookie_id} could not be registered") from error
            time.sleep(PAUSE_S)
        self._keeper.add(self)
        self._keeper.look_at(self)

    def set_readonly(self, readonly: bool) -> None:
        """Make the new node, then delete the old one (metadata.md 4.1). If that fails, the keeper finishes it."""
        with self._lock:
            self._readonly = readonly
            if self._closed:  # nobody would look after the node, which would stay for as long as the session
                return
            try:
                self._apply()
            finally:
                self._keeper.look_at(self)

    def close(self) -> None:
        """Remove the node. Raises MetadataUnavailableError or MetadataOutcomeUnknownError; the node then goes with the session."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._on_close(self)
            for readonly in (False, True):
                self._nodes.remove_own(self._path(readonly))

    def look(self) -> None:
        with self._lock:
            if not self._closed:
                self._apply()

    def _apply(self) -> None:
        """Keep exactly one node, owned by this session. Raises NodeExistsError while another session's is in the way."""
        path = self._path(self._readonly)
        owner = self._owner(path)
        if owner is None:
            self._create(path)
            owner = self._owner(path)  # this sets the watch that notices the loss of the node
        if owner != self._nodes.session_id():
            raise NodeExistsError(f"bookie {self.bookie_id} is registered by another process", bookie=self.bookie_id)
        self._nodes.remove_own(self._path(not self._readonly))

    def _path(self, readonly: bool) -> str:
        return self._names.registration(self._root, self.bookie_id, readonly)

    def _create(self, path: str) -> None:
        try:
            self._nodes.create(path, self._payload, ephemeral=True, under=f"{self._root}/{self._names.writable}")
        except NodeExistsError:
            pass  # the caller looks at its owner
        except NoNodeError:
            available = f"{self._root}/{self._names.writable}"
            if not self._readonly or not self._nodes.exists(available):
                raise MetadataError(f"{available} does not exist: the cluster was not initialised") from None
            self._nodes.ensure(f"{self._root}/{self._names.readonly}")
            raise MetadataOutcomeUnknownError(f"{path} had no parent; it has one now") from None

    def _owner(self, path: str) -> int | None:
        stat = self._nodes.stat(path, self._on_event)
        return None if stat is None else stat.owner

    def _on_event(self, _event: Any) -> None:
        if not self._closed:
            self._keeper.look_at(self)
