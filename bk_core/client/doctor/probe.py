"""Asks bookies, each over connections of its own, if they answer, how fast, and what they can do.

Every request is a read of a ledger that cannot exist, or a question about disks. Nothing is fenced or written, and the session of the
client takes no notice: no bookie gets into its quarantine because of a probe.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from bk_core.background import WorkerPool
from bk_core.errors import BkError, BookieAuthError, BookieSecurityError, RemoteProtocolError
from bk_core.net.blocking_entry import entered
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.connection import LENGTH_BYTES, Protocol, decode_response, encode_batch_read, encode_request
from bk_core.protocol.wire.messages import BatchReadRequest, BookieInfoRequest, BookieInfoResponse, ReadRequest, Response, Status

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

ANSWERS, REFUSES, NOT_ADMITTED = "answers", "refuses", "not admitted"
SILENT, UNKNOWN_ADDRESS, FOREIGN = "silent", "unknown address", "no bookie"
TIMEOUT_S = 3.0
_AT_ONCE = 16
_FRAME_BYTES_MAX = 1 << 16  # of answers to these requests, which carry no entry
_NOWHERE = (1 << 63) - 1  # the id of a ledger that no layout can make
_PROTOCOLS: tuple[Protocol, ...] = ("v2", "v3")


@dataclass(frozen=True, slots=True)
class BookieProbe:
    """The answers of one bookie. ``state`` is "answers", "not admitted" (TLS, password or role of this client are not what it wants),
    "refuses" (nothing listens there, or the connection broke), "silent" (no answer in time), "unknown address", or "no bookie" (another
    program, or one that hangs up); ``problem`` says more unless it answers.

    ``connect_ns`` is the time that a connection took, ``round_trips_ns`` the times of single requests by protocol. ``total_bytes`` and
    ``free_bytes`` are those of its ledger disks; ``batch_reads`` tells if it has batch reads, as releases from 4.17 on do. ``refusal`` is
    the class of the error with which this client was not admitted. None stands for what is not known.
    """

    bookie: BookieId
    state: str
    problem: str = ""
    address: tuple[str, int] | None = None
    connect_ns: int | None = None
    round_trips_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    total_bytes: int | None = None
    free_bytes: int | None = None
    batch_reads: bool | None = None
    refusal: type[BookieSecurityError] | None = None

    @property
    def answers(self) -> bool:
        """True if it has answered over at least one protocol."""
        return self.state == ANSWERS

    @property
    def used(self) -> float | None:
        """The used share of its disks, 0 to 1."""
        if not self.total_bytes or self.free_bytes is None:
            return None
        return 1 - self.free_bytes / self.total_bytes

    def round_trip_ns(self, share: float = 0.5, protocol: str | None = None) -> int | None:
        """Return the time below which ``share`` of the round trips lie, over all protocols or over one; None without any."""
        times = sorted(ns for name, found in self.round_trips_ns.items() if protocol in (None, name) for ns in found)
        return times[min(len(times) - 1, int(share * len(times)))] if times else None


def probe_bookies(
    client: BookKeeper,
    bookies: Iterable[BookieId],
    *,
    requests: int = 1,
    timeout_s: float = TIMEOUT_S,
    addresses: Mapping[BookieId, tuple[str, int]] = MappingProxyType({}),
) -> dict[BookieId, BookieProbe]:
    """Probe bookies, up to 16 at once, with ``requests`` reads over each protocol. Each answer is awaited ``timeout_s`` at most. A bookie
    that does not answer is no error, but a probe that says so. ``addresses`` has those at which bookies were before, for bookies that are
    not registered."""
    pool = WorkerPool("bk-probe", _AT_ONCE)
    try:
        asked = {
            bookie: pool.call(_Probing(client, bookie, requests, timeout_s, addresses.get(bookie)).run) for bookie in dict.fromkeys(bookies)
        }
        return {bookie: future.result() for bookie, future in asked.items()}
    finally:
        pool.close()


class _Probing:
    """One probe of one bookie."""

    def __init__(self, client: BookKeeper, bookie: BookieId, requests: int, timeout_s: float, before: tuple[str, int] | None) -> None:
        self._client = client
        self._bookie = bookie
        self._requests = requests
        self._timeout_s = timeout_s
        self._before = before

    def run(self) -> BookieProbe:
        try:
            address = self._client.store.resolve(self._bookie)
        except BkError as error:
            if self._before is None:
                return BookieProbe(self._bookie, UNKNOWN_ADDRESS, str(error.args[0]))
            address = self._before
        try:
            return self._ask(address)
        except ConnectionRefusedError:
            return BookieProbe(self._bookie, REFUSES, "nothing listens there", address)
        except BookieSecurityError as error:
            return BookieProbe(self._bookie, NOT_ADMITTED, str(error.args[0]), address, refusal=type(error))
        except TimeoutError:
            return BookieProbe(self._bookie, SILENT, f"no answer within {self._timeout_s:g} s", address)
        except socket.gaierror as error:
            return BookieProbe(self._bookie, UNKNOWN_ADDRESS, f"its host has no address: {error.strerror}", address)
        except (RemoteProtocolError, EOFError) as error:
            return BookieProbe(self._bookie, FOREIGN, str(error.args[0]) if error.args else "it hangs up", address)
        except OSError as error:
            return BookieProbe(self._bookie, REFUSES, error.strerror or str(error), address)
        except (ValueError, OverflowError) as error:  # a host or a port that no system takes, such as a name with an empty label
            return BookieProbe(self._bookie, UNKNOWN_ADDRESS, f"its address cannot be used: {error}", address)

    def _ask(self, address: tuple[str, int]) -> BookieProbe:
        times: dict[str, tuple[int, ...]] = {}
        total = free = None
        connect_ns = 0
        failure: Exception | None = None
        for protocol in _PROTOCOLS:
            begun = time.monotonic_ns()
            try:
                with self._connected(address) as peer:
                    connect_ns = connect_ns or time.monotonic_ns() - begun
                    times[protocol] = tuple(self._round_trip(peer, protocol) for _ in range(self._requests))
                    if protocol == "v3":
                        total, free = self._space(peer)
            except (RemoteProtocolError, EOFError) as error:  # it may refuse one of the two protocols
                failure = error
        if not times and failure is not None:
            raise failure
        return BookieProbe(self._bookie, ANSWERS, "", address, connect_ns, times, total, free, self._has_batch_reads(address))

    @contextmanager
    def _connected(self, address: tuple[str, int]) -> Iterator[socket.socket]:
        with socket.create_connection(address, self._timeout_s) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with entered(plain, self._client.config.bookie_security, self._bookie, address[0]) as peer:
                yield peer

    def _round_trip(self, peer: socket.socket, protocol: Protocol) -> int:
        begun = time.monotonic_ns()
        answer = _exchange(peer, encode_request(ReadRequest(1, _NOWHERE, 0), protocol), protocol, self._timeout_s)
        took_ns = time.monotonic_ns() - begun
        if answer.status is Status.UNAUTHORIZED:  # as it answers everything that comes from outside
            text = "it serves only clients that come in by TLS, a password or a certificate's role, and this one did not: see the options "
            raise BookieAuthError(f"{text}of bookies (bookie_...) in the URI", bookie=self._bookie)
        return took_ns

    def _space(self, peer: socket.socket) -> tuple[int | None, int | None]:
        answer = _exchange(peer, encode_request(BookieInfoRequest(2), "v3"), "v3", self._timeout_s)
        if not isinstance(answer, BookieInfoResponse) or answer.status is not Status.OK:
            return None, None
        return answer.total_disk_bytes, answer.free_disk_bytes

    def _has_batch_reads(self, address: tuple[str, int]) -> bool | None:
        """Return True if the bookie has batch reads, None if that is not known. Old bookies close a connection on which they are asked, so
        this has one of its own (wire-protocol.md 6)."""
        request = BatchReadRequest(1, _NOWHERE, 0, 1, _FRAME_BYTES_MAX)
        try:
            with self._connected(address) as peer:
                return _exchange(peer, encode_batch_read(request, 1), "v2", self._timeout_s).status is Status.NO_LEDGER
        except (RemoteProtocolError, EOFError, ConnectionError):
            return False
        except OSError:
            return None


def _exchange(peer: socket.socket, frame: bytes, protocol: Protocol, timeout_s: float) -> Response:
    """Send a request and return the response. Raises TimeoutError, EOFError if the peer hangs up, RemoteProtocolError."""
    deadline = time.monotonic() + timeout_s
    peer.settimeout(timeout_s)
    peer.sendall(frame)
    length = int.from_bytes(_received(peer, LENGTH_BYTES, deadline), "big")
    if not 0 < length <= _FRAME_BYTES_MAX:
        raise RemoteProtocolError("what answers there is no bookie")
    return decode_response(_received(peer, length, deadline), protocol)


def _received(peer: socket.socket, count: int, deadline: float) -> bytes:
    found = b""
    while len(found) < count:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        more = peer.recv(count - len(found))
        if not more:
            raise EOFError("it hangs up when it is asked")
        found += more
    return found
