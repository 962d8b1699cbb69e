"""The racks of a cluster's bookies: a fixed mapping, or Pulsar's ``/bookies`` node followed as it changes (metadata.md 1.5, 5.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock

from bk_core.errors import BkError, MetadataFormatError, MetadataUnavailableError, NoNodeError
from bk_core.metadata.store import MetadataStore, Watch
from bk_core.metadata.uri import RACK_SCRIPT_VARIABLE
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement import Topology
from bk_core.protocol.log.stored_json import loads

_LOG = logging.getLogger(__name__)
NOTHING_TELLS = (
    "placement is rack-aware, and nothing tells the racks of the bookies: this process has no script "
    f"(rack_script, or {RACK_SCRIPT_VARIABLE} in its environment) and no mapping (racks), and the cluster has none beside its ledgers root"
)


def parse_rack_map(data: bytes) -> dict[str, str]:
    """Return name (bookie id, ``host:port`` or host) -> location as written, from ``{group: {name: {"rack": ..., "hostname": ...}}}``.

    If a name is in several groups, the last one counts. A name whose ``rack`` is absent or null has no mapping. Raises MetadataFormatError.
    """
    try:
        groups = loads(data.decode() or "{}")
        racks = {name: info.get("rack") for group in groups.values() for name, info in group.items()}
    except (ValueError, AttributeError) as error:
        raise MetadataFormatError(f"the rack map is not JSON of the form {{group: {{bookie: {{rack}}}}}}: {error}") from None
    wrong = sorted(name for name, rack in racks.items() if not (rack is None or isinstance(rack, str)))
    if wrong:
        raise MetadataFormatError(f"the rack of {wrong[0]!r} in the rack map is not text")
    return {name: rack for name, rack in racks.items() if rack is not None}


Later = Callable[[Callable[[], None]], None]


class RegisteredBookies:
    """The registered bookies, as far as they were told. The caller locks."""

    def __init__(self) -> None:
        self._bookies: frozenset[BookieId] = frozenset()
        self._number = 0

    def taken(
        self, bookies: Collection[BookieId], anew: Collection[BookieId], number: int | None
    ) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
        """Return the newest that were told, these or those of a larger number, and which of them may be elsewhere than before."""
        before = self._bookies
        if number is None or number >= self._number:
            self._bookies, self._number = frozenset(bookies), self._number if number is None else number
        return self._bookies, self._bookies - before | self._bookies.intersection(anew)


class RackMap:
    """The rack of each bookie. ``topology`` is the newest that is known; any thread may read it. With ``fixed`` the store's own mapping is
    not read.

    A mapping that cannot be read or understood is reported in the log and the last good one stays, because a typing error in it must not
    move ledgers. One that is absent or empty is reported once. A bookie that cannot be resolved keeps its last known host.

    Whoever brings a change asks the store about it. If the store does not answer, ``later`` gets a function that asks again, and calls it
    some time later on a thread that may ask the store. The lock is never held over a request.
    """

    def __init__(self, store: MetadataStore, fixed: Mapping[str, str] | None = None, later: Later = lambda call: None) -> None:
        self._store = store
        self._later = later
        self._is_behind = False  # ``later`` has a function that it has not called yet
        self._lock = Lock()
        self._racks: Mapping[str, str] = dict(fixed or {})
        self._hosts: dict[BookieId, str] = {}
        self._views = RegisteredBookies()
        self._bookies: frozenset[BookieId] = frozenset()
        self._changes = 0  # of the registered bookies, so far
        self._unresolved: dict[BookieId, int] = {}  # with the change that brought the bookie
        self._stale = fixed is None  # the store's mapping may have changed since it was read
        self._reads = self._taken = 0  # reads of the mapping that were begun; the newest of them whose answer counts
        self._fails = False  # the last read failed, which the log says once
        self._told = False  # of a cluster without a mapping: once
        self._topology = Topology()
        self._watch: Watch | None = None
        if fixed is None:
            self._watch = store.watch_rack_map(self._rack_map_changed)
        try:
            self._refresh()
        except BaseException:
            self.close()
            raise

    def topology(self) -> Topology:
        return self._topology

    def bookies_changed(self, bookies: Collection[BookieId], anew: Collection[BookieId] = (), number: int | None = None) -> None:
        """Take the registered bookies. The hosts of new ones are looked up, so that a mapping by host or address finds custom ids too, and
        those of bookies that registered ``anew``. Bookies with a smaller ``number`` than those before them are older, and are not taken;
        None stands for the newest."""
        with self._lock:
            bookies, fresh = self._views.taken(bookies, anew, number)
            self._changes += 1
            self._unresolved = {one: change for one, change in self._unresolved.items() if one in bookies}
            self._unresolved |= dict.fromkeys(fresh, self._changes)
            self._bookies = bookies
        self._refresh()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _rack_map_changed(self) -> None:
        with self._lock:
            self._stale = True
        self._refresh()

    def _refresh(self) -> None:
        """Ask the store for what is not known, and make a topology of all that is."""
        with self._lock:
            is_stale, self._stale = self._stale, False  # this comes before the read, so that a change during it counts
            self._reads += is_stale
            number = self._reads
        if is_stale:
            self._read(number)
        with self._lock:
            wanted = dict(self._unresolved) if self._racks else {}
        hosts, is_answered = self._hosts_of(wanted)
        with self._lock:
            for bookie, host in hosts.items():
                if self._unresolved.get(bookie) == wanted[bookie]:  # else it has gone, or come back elsewhere
                    self._hosts[bookie] = host
                    del self._unresolved[bookie]
            before, after = self._topology, Topology(self._racks, dict(self._hosts), self._bookies)
            self._topology = after
            asks_again = not self._is_behind and (self._stale or not is_answered)
            self._is_behind = self._is_behind or asks_again
        if after.misplaced != before.misplaced:
            _LOG.warning("bookies left out, their locations have another depth than most: %s", ", ".join(after.misplaced))
        if asks_again:
            self._later(self._catch_up)

    def _catch_up(self) -> None:
        with self._lock:
            self._is_behind = False
        self._refresh()

    def _read(self, number: int) -> None:
        """Read the mapping. Of two answers that of the read which was begun later counts."""
        try:
            racks = parse_rack_map(self._store.read_rack_map().data)
        except NoNodeError:
            racks = {}
        except MetadataFormatError as error:
            _LOG.warning("%s; the last good rack map stays", error)
            return
        except BaseException as error:
            with self._lock:
                self._stale, is_known, self._fails = True, self._fails, True
            if not isinstance(error, BkError):
                raise  # an interrupt: the next look reads it
            _LOG.log(logging.DEBUG if is_known else logging.WARNING, "the rack map cannot be read now: %s", error)
            return
        with self._lock:
            self._fails = False
            if number > self._taken:
                self._racks, self._taken = racks, number
            nothing, self._told = not racks and not self._told, self._told or not racks
        if nothing:
            _LOG.warning("%s: all count as in the default rack", NOTHING_TELLS)

    def _hosts_of(self, bookies: Iterable[BookieId]) -> tuple[dict[BookieId, str], bool]:
        """Return the hosts of the bookies that have one, and False if the store did not answer about all of them."""
        found: dict[BookieId, str] = {}
        for bookie in sorted(bookies):
            try:
                found[bookie] = self._store.resolve(bookie)[0]
            except MetadataUnavailableError as error:
                _LOG.debug("the store does not tell the host of bookie %s now: %s", bookie, error)
                return found, False  # nobody answers about the others either
            except BkError as error:
                _LOG.debug("no host of bookie %s for its rack: %s", bookie, error)
        return found, True
