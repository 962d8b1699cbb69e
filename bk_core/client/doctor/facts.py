"""Finds what a cluster or a bookie is: identity, counts, disks, cookies, racks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.client.doctor.bookies import states_of
from bk_core.client.doctor.http import service_info
from bk_core.client.doctor.probe import TIMEOUT_S, BookieProbe, probe_bookies
from bk_core.client.log.list_store import is_log_name
from bk_core.display.ledgers import DOWN
from bk_core.display.words import host_port
from bk_core.errors import BookieUnavailableError, InvalidArgumentError, MetadataFormatError, NoNodeError
from bk_core.metadata.cookies import Cookie, decode_cookie
from bk_core.metadata.rack_script import ScriptedRacks
from bk_core.metadata.racks import parse_rack_map
from bk_core.metadata.service_info import Endpoint
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import Topology

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

LEDGERS_SHOWN = 20
SAME_DISK_SHARE = 0.01  # of the total, by which the free bytes of one disk may differ between two answers


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster at one moment. ``recovery_delay_s`` is None where nobody has set it; ``auditor`` is None where no auto-recovery runs.
    ``marked`` is the number of ledgers that are marked as under-replicated, ``marked_first`` the first ``LEDGERS_SHOWN`` of them."""

    cluster: str
    layout: str | None
    log_root: str
    ledgers: int
    logs: int
    states: Mapping[BookieId, str]
    probes: Mapping[BookieId, BookieProbe]
    auditor: str | None
    autorecovery_on: bool
    recovery_delay_s: int | None
    marked: int
    marked_first: tuple[int, ...] = ()

    @property
    def answering(self) -> int:
        """The number of bookies that answer."""
        return sum(probe.answers for probe in self.probes.values())

    @property
    def space(self) -> tuple[int, int]:
        """The total and the free bytes of the disks of all bookies that report them. Disks that bookies seem to share count once."""
        disks = self._disks()
        return sum(total for total, _ in disks), sum(free for _, free in disks)

    @property
    def sharing(self) -> int:
        """The number of bookies that seem to have their ledgers on the disks of another one."""
        return sum(probe.total_bytes is not None and probe.free_bytes is not None for probe in self.probes.values()) - len(self._disks())

    def _disks(self) -> list[tuple[int, int]]:
        """Return the total and free bytes of each bookie's disks, once for those of one host that are of one size and have as much free: a
        bookie does not tell which disks they are, and the free bytes change between two answers."""
        found: list[tuple[str, int, int]] = []
        for bookie, probe in self.probes.items():
            host = probe.address[0] if probe.address else bookie
            total, free = probe.total_bytes, probe.free_bytes
            if total is None or free is None:
                continue
            if not any(one[:2] == (host, total) and abs(one[2] - free) <= total * SAME_DISK_SHARE for one in found):
                found.append((host, total, free))
        return [(total, free) for _, total, free in found]


def cluster_facts(client: BookKeeper, *, timeout_s: float = TIMEOUT_S) -> ClusterFacts:
    """Return what a cluster is. Bookies are asked once each, ledgers are counted by their names alone."""
    store = client.store
    states = states_of(client)
    probes = probe_bookies(client, [bookie for bookie, state in states.items() if state != DOWN], timeout_s=timeout_s)
    marks = store.underreplication()
    marked = array("q", marks.marked_ledgers())
    try:
        layout = store.layout()
    except MetadataFormatError:
        layout = None
    return ClusterFacts(
        store.cluster_id(),
        layout,
        store.log_root,
        sum(1 for _ in store.list_ledgers()),
        sum(map(is_log_name, store.children("logs"))),
        states,
        probes,
        marks.auditor(),
        not marks.is_disabled(),
        marks.recovery_delay_s(),
        len(marked),
        tuple(marked[:LEDGERS_SHOWN]),
    )


@dataclass(frozen=True, slots=True)
class BookieLedgers:
    """The ledgers that name a bookie, and the first of them. ``open`` are those that are not closed and name it in their last fragment."""

    ledgers: int
    fragments: int
    open: int
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """A bookie at one moment. ``problem`` says what is wrong with its cookie, "" if nothing is. ``ledgers`` is None if nobody looked."""

    bookie: BookieId
    state: str
    probe: BookieProbe | None
    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str]
    registered_ms: int | None
    cookie: Cookie | None
    problem: str
    rack: str | None
    ledgers: BookieLedgers | None


def check_known(client: BookKeeper, bookie: BookieId) -> str:
    """Return the state of a bookie. Raises InvalidArgumentError for one that is not registered and has no cookie."""
    state = states_of(client).get(bookie)
    if state is None:
        text = f"there is no bookie {bookie}: it is not registered and has no cookie (bk bookie ls shows those that there are)"
        raise InvalidArgumentError(text, bookie=bookie)
    return state


def bookie_facts(
    client: BookKeeper,
    bookie: BookieId,
    *,
    requests: int = 20,
    timeout_s: float = TIMEOUT_S,
    ledgers: bool = True,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> BookieFacts:
    """Return what a bookie is. With ``ledgers`` the metadata of all ledgers is read; ``progress`` is given their ids, and yields them
    again. Raises InvalidArgumentError for a bookie that nobody knows.
    """
    state = check_known(client, bookie)
    probe = None if state == DOWN else probe_bookies(client, [bookie], requests=requests, timeout_s=timeout_s)[bookie]
    registration = client.store.registration(bookie)
    info = service_info(client, bookie)
    cookie, problem = _cookie(client, bookie)
    return BookieFacts(
        bookie,
        state,
        probe,
        () if info is None else info.endpoints,
        {} if info is None else info.properties,
        None if registration is None else registration.created_ms,
        cookie,
        problem,
        rack_of(client, bookie),
        _ledgers_of(client, bookie, progress) if ledgers else None,
    )


def address_of(client: BookKeeper, bookie: BookieId) -> str | None:
    """Return the host and port at which a bookie is registered; None if it is not, and its id tells none."""
    try:
        return host_port(*client.store.resolve(bookie))
    except BookieUnavailableError:
        return None


def rack_of(client: BookKeeper, bookie: BookieId) -> str | None:
    """Return the rack of a bookie as this client's script tells it, or in the cluster's mapping; None where there is no mapping, or none
    that can be understood."""
    if isinstance(scripted := client._session.racks, ScriptedRacks):
        return scripted.topology().rack_of(bookie)
    try:
        racks = parse_rack_map(client.store.read_rack_map().data)
    except (NoNodeError, MetadataFormatError):
        return None
    try:
        hosts = {bookie: client.store.resolve(bookie)[0]}
    except BookieUnavailableError:
        hosts = {}
    view = client.bookies()
    return Topology(racks, hosts, frozenset((*view.writable, *view.readonly))).rack_of(bookie)


def names(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Return True if a fragment of the ledger names the bookie."""
    return any(bookie in fragment.ensemble for fragment in metadata.fragments)


def _cookie(client: BookKeeper, bookie: BookieId) -> tuple[Cookie | None, str]:
    try:
        return decode_cookie(client.store.read_cookie(bookie).data), ""
    except NoNodeError:
        return None, "it has no cookie"
    except MetadataFormatError as error:
        return None, str(error.args[0])


def _ledgers_of(client: BookKeeper, bookie: BookieId, progress: Callable[[Iterable[int]], Iterable[int]]) -> BookieLedgers:
    ledgers = fragments = unclosed = 0
    first: list[int] = []
    for ledger_id, stored in client.store.read_ledgers(progress(client.store.list_ledgers())):
        try:
            metadata = None if stored is None else metadata_codec.decode(stored.data)
        except MetadataFormatError:
            continue
        if metadata is None or not names(metadata, bookie):
            continue
        ledgers += 1
        fragments += sum(bookie in fragment.ensemble for fragment in metadata.fragments)
        unclosed += metadata.state is not LedgerState.CLOSED and bookie in metadata.last_fragment.ensemble
        if len(first) < LEDGERS_SHOWN:
            first.append(ledger_id)
    return BookieLedgers(ledgers, fragments, unclosed, tuple(first))
