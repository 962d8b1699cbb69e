"""Shows entries and bookies as they are: headers replica by replica, disk space. It neither fences nor writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.errors import DigestError
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.wire.messages import BookieInfoRequest, BookieInfoResponse, ReadRequest, ReadResponse, Request, Response, Status

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

IN_FLIGHT = 64


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
    """The bytes of a bookie's ledger disks; None where it does not tell them."""

    total_bytes: int | None
    free_bytes: int | None


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
    window: deque[tuple[int, BookieId, Future[tuple[Status, Response | None]]]] = deque()
    for entry_id, bookie in replicas:
        window.append((entry_id, bookie, _ask(client, bookie, ReadRequest(0, ledger_id, entry_id))))
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
        asked = _ask(client, ensemble[position], ReadRequest(0, ledger_id, entry_id))
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
    answer: Future[tuple[Status, Response | None]],
) -> EntryHeader:
    status, response = _answer(client, answer)
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
    asked = [(bookie, _ask(client, bookie, BookieInfoRequest(0))) for bookie in bookies]
    spaces: dict[BookieId, BookieSpace] = {}
    for bookie, future in asked:
        status, response = _answer(client, future)
        if status is Status.OK and isinstance(response, BookieInfoResponse):
            spaces[bookie] = BookieSpace(response.total_disk_bytes, response.free_disk_bytes)
    return spaces


def _ask(client: BookKeeper, bookie: BookieId, message: Request) -> Future[tuple[Status, Response | None]]:
    session = client._session
    future: Future[tuple[Status, Response | None]] = Future()

    def answered(status: Status, response: Response | None) -> None:
        if not future.done():
            future.set_result((status, response))

    def send() -> None:
        link = session.link(bookie, session.link_kind(message))
        link.request(message, session.config.limits.read_timeout_ns, answered)

    session.reactor.post(send)
    return future


def _answer(client: BookKeeper, future: Future[tuple[Status, Response | None]]) -> tuple[Status, Response | None]:
    """Wait for an answer. The link answers everything within its own timeout; the bound here is for a client that is closed meanwhile."""
    try:
        return future.result(client.config.operation_timeout_s)
    except FutureTimeoutError:
        return Status.TIMEOUT, None
