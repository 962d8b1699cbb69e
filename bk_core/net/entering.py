"""A client comes in to a bookie: the bytes of ``Entrance`` (TLS, authentication) over one new connection."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from bk_core.errors import (
    BookieAuthError,
    BookieHostNameError,
    BookieSecurityError,
    BookieTlsError,
    InvalidArgumentError,
    RemoteProtocolError,
)
from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.link.auth_exchange import AuthExchange
from bk_core.protocol.link.entrance import FRAME_BYTES_MAX, Admitted, BeginTls, Entrance, Say, Step
from bk_core.secrets import is_interrupt, told_of
from bk_core.security import BookieTls, Security
from bk_core.tls_files import TlsFailure, failure_of, versions_of

LENGTH_BYTES = 4
REPLACED_S = 0.2  # a certificate and its key are two files, and one is replaced after the other


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files and secrets of one connection to a bookie, which are read already. ``host`` is the one in the bookie's certificate."""

    bookie: str
    host: str
    context: ssl.SSLContext | None
    exchange: AuthExchange | None


Then = Callable[[Prepared | None, BookieSecurityError | None], None]


@dataclass(slots=True, eq=False)
class Turn:
    """One reading of files and secrets: ``then`` is called with the outcome, on the reactor thread."""

    bookie: str
    host: str
    then: Then
    has_begun: bool = False
    is_over: bool = False
    """True once the outcome was told, or nobody wants it any more: who sets it then gets none."""


Prepare = Callable[[str, str, Then], Turn]
"""A function that gets a bookie, its host, and what it calls with the outcome."""


def prepare(security: Security, bookie: str, host: str) -> Prepared:
    """Read files and secrets for one connection, which may take its time. Raises BookieSecurityError."""
    problem: BookieSecurityError
    try:
        context = None if security.tls is None else _context_of(security.tls)
        try:
            exchange = None if security.auth is None else security.auth.exchange(host)
            return Prepared(bookie, host, context, exchange)
        except BaseException as error:  # a program's own may raise anything
            if is_interrupt(error):
                raise
            kind = type(error) if isinstance(error, BookieAuthError) else BookieAuthError
            problem = kind(f"no authentication at bookie {bookie}: {told_of(error, 'what makes the exchange')}", bookie=bookie)
    except Exception as error:
        problem = BookieTlsError(f"no TLS to bookie {bookie}: {told_of(error, 'reading the files')}", bookie=bookie)
    raise problem  # here, so that it does not carry a program's own error along


def _context_of(tls: BookieTls) -> ssl.SSLContext:
    """Read the files, and once more if they cannot be used, because they may be being replaced."""
    try:
        return tls.context()
    except InvalidArgumentError:
        time.sleep(REPLACED_S)
        return tls.context()


class Entering:
    """One connection on its way in. ``socket`` is the one to be used afterwards."""

    def __init__(self, plain: socket.socket, prepared: Prepared, again: Callable[[], None]) -> None:
        self.socket: socket.socket | TlsSocket = plain
        self._prepared = prepared
        self._again = again
        self._entrance = Entrance(prepared.bookie, tls=prepared.context is not None, exchange=prepared.exchange)
        self._tls: TlsSocket | None = None
        self._shaking = self._begun = False
        self._to_send = memoryview(b"")
        self._input = bytearray()

    @property
    def awaits(self) -> str:
        """The name of what is waited for, for messages."""
        return self._entrance.awaits

    @property
    def is_behind(self) -> bool:
        """True if bytes wait for the socket to become writable."""
        return bool(self._to_send) or (self._tls is not None and self._tls.is_behind)

    def go_on(self) -> bool:
        """Do what can be done at once. Return True when this client is in. Raises BookieSecurityError if it is turned away,
        RemoteProtocolError, and OSError for a connection that broke."""
        try:
            return self._go_on()
        except ConnectionError:
            self._take_last_words()
            raise

    def _take_last_words(self) -> None:
        """A bookie that refuses a certificate says so and hangs up, and a send that comes too late would hide what it said. Raises
        BookieSecurityError."""
        if self._tls is None:
            return
        try:
            self._tls.take_last_words()
        except ssl.SSLError as error:
            raise failed_tls(self._prepared, error) from None
        except OSError:
            return  # it said nothing

    def _go_on(self) -> bool:
        if not self._begun:
            self._begun = True
            self._perform(self._entrance.begin())
        while self._push():
            if self._shaking:
                steps = self._shake()
            else:
                payload = self._payload()
                steps = None if payload is None else self._entrance.received(payload)
            if steps is None:
                return False
            if self._perform(steps):
                return True
        return False

    def _perform(self, steps: list[Step]) -> bool:
        """Take the steps. Return True when this client is in."""
        for step in steps:
            if isinstance(step, Say):
                self._to_send = memoryview(b"".join((self._to_send, step.frame)))
            elif isinstance(step, BeginTls):
                self._begin_tls()
            elif isinstance(step, Admitted):
                return True
            else:
                raise step.error
        return False

    def _begin_tls(self) -> None:
        context, host = self._prepared.context, self._prepared.host
        assert context is not None and isinstance(self.socket, socket.socket)
        try:
            self.socket = self._tls = TlsSocket(self.socket, context, host, self._again)
        except ValueError:  # UnicodeError is one
            raise self._error(BookieHostNameError, f"is registered with {host!r}, which is in no certificate") from None
        self._shaking = True

    def _shake(self) -> list[Step] | None:
        assert self._tls is not None
        try:
            if not self._tls.shake():
                return None
        except ssl.SSLError as error:
            raise failed_tls(self._prepared, error) from None
        self._shaking = False
        return self._entrance.secured()

    def _push(self) -> bool:
        """Return True if all that was said has gone out."""
        try:
            while self._to_send:
                self._to_send = self._to_send[self.socket.send(self._to_send) :]
        except BlockingIOError:
            return False
        return True

    def _payload(self) -> bytes | None:
        """Return the next payload, or None if not all of it is there. Never takes a byte of what follows it."""
        if not self._fill(LENGTH_BYTES):
            return None
        size = int.from_bytes(self._input[:LENGTH_BYTES], "big")
        if size > FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a frame of {size} bytes came while {self.awaits} was awaited")
        if not self._fill(LENGTH_BYTES + size):
            return None
        payload, self._input = bytes(self._input[LENGTH_BYTES:]), bytearray()
        return payload

    def _fill(self, size: int) -> bool:
        while len(self._input) < size:
            room = memoryview(bytearray(size - len(self._input)))
            try:
                count = self.socket.recv_into(room)
            except BlockingIOError:
                return False
            except ssl.SSLError as error:
                raise failed_tls(self._prepared, error) from None
            if not count:
                raise ConnectionError(f"closed by the bookie while {self.awaits} was awaited")
            self._input += room[:count]
        return True

    def _error(self, kind: type[BookieSecurityError], text: str) -> BookieSecurityError:
        return kind(f"bookie {self._prepared.bookie} {text}", bookie=self._prepared.bookie)


def failed_tls(prepared: Prepared, error: OSError) -> OSError | BookieSecurityError:
    """Return what an error of TLS means. An end of the connection may have any cause, so it stays what it is."""
    failure, words = failure_of(error)
    detail = f" ({words})" if words else ""
    kind: type[BookieSecurityError] = BookieTlsError
    match failure:
        case TlsFailure.CLOSED:
            return ConnectionError("closed by the bookie in the TLS handshake")
        case TlsFailure.UNTRUSTED:
            text = f"has a certificate that is not trusted{detail}"
        case TlsFailure.OTHER_HOST:
            kind, text = BookieHostNameError, f"has a certificate for another host than {prepared.host}{detail}"
        case TlsFailure.NO_TLS:
            text = f"agrees to TLS, and does not speak it{detail}"
        case TlsFailure.VERSION:
            versions = "" if prepared.context is None else f": this client speaks {versions_of(prepared.context)}"
            text = f"speaks no version of TLS that this client does{detail}{versions}"
        case TlsFailure.REFUSED:
            text = f"ends TLS{detail}: it may want a client certificate of an authority that it trusts"
        case _:
            text = f"ends TLS{detail}"
    return kind(f"bookie {prepared.bookie} {text}", bookie=prepared.bookie)
