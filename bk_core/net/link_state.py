"""The state that the parts of a link share: its connection, its requests, and its listeners."""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bk_core.errors import BookieSecurityError
from bk_core.metrics.client import BookieCounts
from bk_core.metrics.marks import Marks
from bk_core.metrics.registry import Registry
from bk_core.metrics.table import CLIENT
from bk_core.net.asking import Asking
from bk_core.net.entering import Entering, Prepare, Prepared, Turn
from bk_core.net.names import Address, Names
from bk_core.net.outstanding import Waiting
from bk_core.net.reactor import Reactor, Timer
from bk_core.net.receiving import ReceiveBuffer
from bk_core.net.sent_adds import SentAddRuns
from bk_core.net.sent_bytes import SentBytes
from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.link import Attempts, LinkHealth
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import Status

log = logging.getLogger("bk_core.net")

BACKOFF_FIRST_NS = 50_000_000
CHECK_NS = 100_000_000
# A v3 or batch answer to an entry at the v2 limit is a little longer than the limit (wire-protocol.md 2.1).
RECEIVE_SLACK_BYTES = 4096
ADD_TIMEOUT_NS = 5_000_000_000

Resolve = Callable[[BookieId, Callable[[tuple[str, int] | None, str], None]], None]


class AddListener(Protocol):
    """Receives the add answers of one ledger on this link. ``needs_connection`` is True if it cannot go on over another
    connection (WR-17)."""

    @property
    def needs_connection(self) -> bool: ...
    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status, entries: int | None) -> None: ...
    def on_lost(self, bookie: BookieId, status: Status) -> None: ...


class LinkState(ABC):
    """The state of the connections to one bookie, of which there is one at a time. ``link.py`` describes the whole."""

    def __init__(
        self,
        reactor: Reactor,
        bookie: BookieId,
        protocol: connection.Protocol,
        resolve: Resolve,
        frame_bytes_max: int,
        broke: Callable[[], None] = lambda: None,
        *,
        add_timeout_ns: int = ADD_TIMEOUT_NS,
        names: Names | None = None,
        on_silent: Callable[[BookieId, int], None] | None = None,
        on_short: Callable[[str, str], None] | None = None,
        counts: BookieCounts | None = None,
        prepare: Prepare | None = None,
        on_entry: Callable[[BookieId, BookieSecurityError | None], None] | None = None,
    ) -> None:
        """``on_silent`` is called with the bookie and the time since which this connection had been silent when it was given
        up. ``on_short`` is called with the name and the meaning of the system's error when this host cannot make a connection
        (SES-9, SES-10). ``counts`` are those of this bookie, of all connections to it. ``prepare`` gets what a connection takes with
        it where TLS or authentication are wanted; ``on_entry`` is called with the bookie and the reason why this client is not
        admitted, or None when it is, or when the last attempt failed for another reason (LINK-10)."""
        self.bookie = bookie
        self.protocol = protocol
        self.address: tuple[str, int] | None = None  # the address that it is connected to, tries or tried last
        self._reactor = reactor
        self._resolve = resolve
        self._broke = broke  # called when the connection is lost or cannot be made, before anybody who waits on it is told
        self._names = names or Names(reactor.post)
        self._on_silent = on_silent
        self._on_short = on_short
        self._prepare = prepare
        self._on_entry = on_entry
        self._counts = counts or BookieCounts(Registry("a connection", CLIENT), bookie)
        self._add_times = Marks(self._counts.add_seconds)
        self._adds_marked = False  # the time of what this turn sends was noted
        self._short = False  # the attempt that goes on has met a shortage on this host
        self._frame_bytes_max = frame_bytes_max + RECEIVE_SLACK_BYTES
        self._socket: socket.socket | TlsSocket | None = None
        self._turn: Turn | None = None  # in which files and secrets are read for this attempt
        self._prepared: Prepared | None = None
        self._entering: Entering | None = None  # while the connection is made and this client not admitted yet
        self._connecting = False
        self._connected = False
        self._closed = False
        self._output: deque[memoryview] = deque()
        self._input = ReceiveBuffer()
        self._arriving: tuple[BatchParts, m.BatchReadResponse] | None = None  # an answer whose frame has not ended yet
        self._health = LinkHealth(add_timeout_ns)
        self._asking = Asking(protocol, self._health)
        self._outstanding = self._asking.outstanding
        self._adds = SentAddRuns()  # v3 only
        self._listeners: dict[int, AddListener] = {}
        self._next_id = 0
        self._backoff_ns = BACKOFF_FIRST_NS
        self._blocked_until_ns = 0
        self._refused = False  # the last attempt to connect failed
        self._refusal = Status.UNAVAILABLE  # and for this reason
        self._heard = False  # True once bytes came on this connection
        self._has_batch_read = False
        self._attempts = Attempts(0, 0)
        self._addresses: deque[Address] = deque()
        self._target: Address | None = None  # the one of them that it is connected to or tries
        self._attempt = 0
        self._attempt_until_ns: int | None = None
        self._asks_where = False  # the attempt has no address yet; ``address`` is that of an earlier one
        self._looks_anew = False  # the attempt does not take what an earlier lookup of the host finds
        self._found_at: tuple[str, int] | None = None  # the bookie was found here, and not at ``address``, meanwhile
        self._reconnect: Timer | None = None
        self._writing = False
        self._flush_posted = False
        self._waiting_out = SentBytes()
        self._check = reactor.call_later(CHECK_NS, self._check_deadlines)

    @abstractmethod
    def on_io(self, readable: bool, writable: bool) -> None:
        """Handle the socket, which is ready; the reactor calls this."""

    @abstractmethod
    def _check_deadlines(self) -> None:
        """Look for requests whose time is over; the reactor calls this every ``CHECK_NS``."""

    @abstractmethod
    def _drop(self, status: Status, why: str, *, backoff: bool = True, silent: Sequence[Waiting] = ()) -> None:
        """End a connection that is lost or cannot be made."""

    def _tell(self, call: Callable[[], None]) -> None:
        """Call a callback and log what it raises, because a failure of one ledger must not affect the others on this connection."""
        try:
            call()
        except BaseException:  # a user's callback may raise anything
            log.exception("unexpected error about an answer of bookie %s", self.bookie)
