"""Shows ledgers, entries and bookies as they are: metadata, headers replica by replica, disk space. It neither fences nor writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bk_core.display.ledgers import UNREADABLE
from bk_core.errors import DigestError, MetadataFormatError
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.wire.messages import BookieInfoRequest, BookieInfoResponse, ReadRequest, ReadResponse, Request, Response, Status
from bk_core.threads import SafeFuture

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

IN_FLIGHT = 64
Pending: TypeAlias = "SafeFuture[tuple[Status, Response | None]]"
"""The answer of a bookie that is on its way: its status, and the response if there is one."""


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger that exists.

    ``metadata`` is None where it cannot be understood, and ``problem`` is the error that says why. ``created_ms`` is the time in the
    metadata, or else the metadata store's own (metadata.md 3.6), in milliseconds since 1970; None where neither has it.
    """

    ledger_id: int
    metadata: LedgerMetadata | None
    created_ms: int | None
    problem: MetadataFormatError | None = None

    @property
    def state(self) -> str:
        """The state: "OPEN", "IN_RECOVERY", "CLOSED", or "UNREADABLE" where the metadata cannot be understood."""
        return UNREADABLE if self.metadata is None else self.metadata.state.name

    @property
    def stored_bytes(self) -> int | None:
        """The bytes that all copies of the entries take on bookies (``stored_bytes``); None where they are not known."""
        return None if self.metadata is None else stored_bytes(self.metadata)


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """One replica's description of an entry.

    ``status`` is the bookie's answer. There is a body only with OK. ``digest_ok`` is True if the body is intact and of this entry; only
    then do ``last_add_confirmed`` (the LAC that the writer knew when it sent the entry) and ``length`` (payload bytes of the ledger up to
    and with this entry) have a meaning. ``payload_bytes`` is the size of this entry's payload.
    """

    entry_id: int
    bookie: BookieId
    status: Status
    digest_ok: bool | None = None
    last_add_confirmed: int | None = None
    length: int | None = None
    payload_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """The bytes of a bookie's ledger disks; None where it does not report them."""

    total_bytes: int | None
    free_bytes: int | None


def stored_bytes(metadata: LedgerMetadata) -> int | None:
    """Return the bytes that all copies of a ledger's entries take on bookies, Qw of each, with header and checksum; None until it is
    CLOSED. What bookies add of their own, and garbage that they have not collected yet, is not counted."""
    if metadata.state is not LedgerState.CLOSED:
        return None
    return metadata.write_quorum_size * (metadata.length + (metadata.last_entry_id + 1) * layout.body_overhead(metadata.digest_type))


def found_ledgers(client: BookKeeper, ledger_ids: Iterable[int]) -> Iterator[FoundLedger]:
    """Yield those of the ledgers that exist, as their metadata is now. Many are asked for at once."""
    for ledger_id, stored in client.store.read_ledgers(ledger_ids):
        if stored is None:
            continue
        try:
            metadata = metadata_codec.decode(stored.data)
        except MetadataFormatError as error:
            yield FoundLedger(ledger_id, None, stored.created_ms, error)
            continue
        yield FoundLedger(ledger_id, metadata, stored.created_ms if metadata.ctime_ms is None else metadata.ctime_ms)


def entry_headers(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata, entry_ids: Iterable[int]) -> Iterator[EntryHeader]:
    """Yield the headers of entries as each bookie of their write set has them, by entry and then in the order of the write set.

    A bookie that does not answer has the status TIMEOUT or UNAVAILABLE; nothing is raised for it.
    """
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    replicas = (
        (entry_id, metadata.fragment_of(entry_id).ensemble[position])
        for entry_id in entry_ids
        for position in distribution.write_set(entry_id)
    )
    key = digests.hmac_key(metadata.password)
    window: deque[tuple[int, BookieId, Pending]] = deque()
    for entry_id, bookie in replicas:
        window.append((entry_id, bookie, ask_bookie(client, bookie, ReadRequest(0, ledger_id, entry_id))))
        if len(window) >= IN_FLIGHT:
            yield _header(client, ledger_id, metadata, key, *window.popleft())
    for asked in window:
        yield _header(client, ledger_id, metadata, key, *asked)


def intact_header(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata, entry_id: int, *, rotation: int) -> EntryHeader | None:
    """Return the header of an entry from the first replica that has an intact copy, None if none has. They are asked one after the other,
    beginning at position ``rotation`` (modulo E) as a read with ``ReadOptions.rotation`` does, so that the entries which a bookie reads
    ahead serve that read."""
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ensemble = metadata.fragment_of(entry_id).ensemble
    key = digests.hmac_key(metadata.password)
    for position in ReplicaOrder(distribution, rotation).positions(entry_id, ensemble):
        asked = ask_bookie(client, ensemble[position], ReadRequest(0, ledger_id, entry_id))
        header = _header(client, ledger_id, metadata, key, entry_id, ensemble[position], asked)
        if header.digest_ok:
            return header
    return None


def _header(
    client: BookKeeper,
    ledger_id: int,
    metadata: LedgerMetadata,
    key: bytes,
    entry_id: int,
    bookie: BookieId,
    answer: Pending,
) -> EntryHeader:
    status, response = answer_of(client, answer)
    body = response.body if isinstance(response, ReadResponse) else None
    if status is not Status.OK or body is None:
        return EntryHeader(entry_id, bookie, status)
    size = len(body) - layout.body_overhead(metadata.digest_type)
    try:
        entry = layout.decode_body(body, ledger_id, entry_id, metadata.digest_type, key)
    except DigestError:
        return EntryHeader(entry_id, bookie, status, False, payload_bytes=max(0, size))
    return EntryHeader(entry_id, bookie, status, True, entry.last_add_confirmed, entry.length, size)


def bookie_spaces(client: BookKeeper, bookies: Sequence[BookieId]) -> dict[BookieId, BookieSpace]:
    """Return the disk space of bookies, which are asked all at once. A bookie that does not answer is missing."""
    asked = [(bookie, ask_bookie(client, bookie, BookieInfoRequest(0))) for bookie in bookies]
    spaces: dict[BookieId, BookieSpace] = {}
    for bookie, future in asked:
        status, response = answer_of(client, future)
        if status is Status.OK and isinstance(response, BookieInfoResponse):
            spaces[bookie] = BookieSpace(response.total_disk_bytes, response.free_disk_bytes)
    return spaces


def ask_bookie(client: BookKeeper, bookie: BookieId, message: Request) -> Pending:
    """Send a request to one bookie, and return its answer to come; ``answer_of`` waits for it."""
    session = client._session
    future = session.owed()

    def send() -> None:
        link = session.link(bookie, session.link_kind(message))
        link.request(message, session.config.limits.read_timeout_ns, lambda *answer: future.settle(answer))

    session.reactor.post(send)
    return future


def answer_of(client: BookKeeper, future: Pending) -> tuple[Status, Response | None]:
    """Wait for an answer. The link answers everything within its own timeout, and a client that is closed meanwhile fails the wait."""
    try:
        return future.result(client.config.operation_timeout_s)
    except FutureTimeoutError:
        return Status.TIMEOUT, None
