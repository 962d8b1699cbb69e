"""A socket that speaks TLS, with the few methods of a plain one that connections use. It works on buffers and never blocks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

RECEIVE_BYTES = 256 << 10
STRANGER_BYTES = 16 << 10  # received at a time from a client that may be nobody
SEND_BYTES = 512 << 10  # encrypted at a time
STEPS_MAX = 4096  # of one call, because others wait: a record is one, and what the network has at once is PULL_STEPS
PULL_STEPS = 128  # records that carry nothing, such as tickets, may come without an end


class TlsSocket:
    """TLS over a connected socket. Call ``shake`` until it returns True, and then the rest.

    Bytes that were encrypted and not sent yet count as not taken: ``send`` raises BlockingIOError, and when they have gone out it returns
    their number as that of the same bytes, which the caller offers once more. So whoever keeps what was not taken, and waits for the socket
    to become writable, needs to know nothing of TLS.
    """

    def __init__(
        self,
        plain: socket.socket,
        context: ssl.SSLContext,
        host: str | None,
        again: Callable[[], None],
        *,
        server: bool = False,
        came: bytes = b"",
    ) -> None:
        """``again`` is called when not all was taken, because what is left may be decrypted already, and no selector knows of that.
        A ``server`` receives little at a time until ``widen``.
        ``host`` is the one that the certificate must be for. ``came`` is what was read from ``plain`` already. Raises ValueError for a host
        that can be in no certificate."""
        self._plain = plain
        self._again = again
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(came)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=host)
        self._buffer = memoryview(bytearray(STRANGER_BYTES if server else RECEIVE_BYTES))
        self._encrypted = memoryview(b"")  # not sent yet
        self._owed = 0  # the number of bytes that they are of
        self._problem: OSError | None = None  # met behind bytes that had to be handed out first
        self.wire_bytes = 0
        """The number of bytes sent, as the network sees them."""

    def widen(self) -> None:
        """Receive more at a time from now on."""
        if len(self._buffer) < RECEIVE_BYTES:
            self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    # --- the handshake ---------------------------------------------------------------------------------------------

    def shake(self) -> bool:
        """Go on with the handshake. Return True when it is done; its last bytes may still have to be sent (``push``). Raises SSLError, and
        what the plain socket raises."""
        while True:
            try:
                self._tls.do_handshake()
                self.push()
                return True
            except ssl.SSLWantReadError:
                self.push()
                if not self._pull():
                    return False
            except ssl.SSLError:
                with suppress(OSError):
                    self.push()  # what is the matter, for the other side
                raise

    @property
    def is_behind(self) -> bool:
        """True if bytes wait for the socket to become writable."""
        return bool(self._encrypted)

    def push(self) -> bool:
        """Send what is encrypted. Return True if nothing is left."""
        if self._outgoing.pending:
            self._encrypted = memoryview(b"".join((self._encrypted, self._outgoing.read())))
        try:
            while self._encrypted:
                sent = self._plain.send(self._encrypted)
                self.wire_bytes += sent
                self._encrypted = self._encrypted[sent:]
        except BlockingIOError:
            return False
        return True

    def peer_unit(self) -> str | None:
        """Return the first organizational unit in the subject of the other side's certificate, None without one. For after ``shake``."""
        shown: Any = self._tls.getpeercert() or {}
        units = (str(value) for part in shown.get("subject", ()) for kind, value in part if kind == "organizationalUnitName")
        return next(units, None)

    # --- as a socket -----------------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Fill the buffer as far as bytes are there at once. Return their number, or 0 at the end."""
        if self._problem is not None:
            raise self._problem
        read: Any = self._tls.read  # into a view, which its types do not know
        total, size, over, steps = 0, len(view), False, 0
        try:
            while total < size and not over and steps < STEPS_MAX:
                steps += 1
                try:
                    count = read(size - total, view[total:])
                    total += count
                    over = not count
                except ssl.SSLWantReadError:
                    steps += PULL_STEPS
                    if not self._pull():
                        break
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    over = True
        except OSError as error:
            if not total:
                raise
            self._problem = error
            self._again()
        if total == size or (over and total) or steps >= STEPS_MAX:
            self._again()
        if total or over:
            return total
        raise BlockingIOError

    def _pull(self) -> bool:
        """Take what came over the network. Return False if nothing did."""
        try:
            count = self._plain.recv_into(self._buffer)
        except BlockingIOError:
            return False
        if count:
            self._incoming.write(self._buffer[:count])
        else:
            self._incoming.write_eof()
        return True

    def take_last_words(self) -> None:
        """Take what came before the connection broke, because a send that fails leaves it unread. Raises SSLError for the reason that the
        other side gave (an alert), if it gave one."""
        self._pull()
        try:
            self._tls.do_handshake()
            self._tls.read(1)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):  # anything else is of this side: nothing came, or its end
                raise

    def send(self, data: memoryview) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt and send from the front of these buffers. Return the number of bytes that are gone. Raises BlockingIOError if none are;
        the same bytes must then be offered again."""
        if not self._owed:
            self._owed = self._encrypt(buffers)
        if not self.push():
            raise BlockingIOError
        sent, self._owed = self._owed, 0
        return sent

    def _encrypt(self, buffers: Sequence[memoryview]) -> int:
        """Small buffers go together, because each call makes a record of its own."""
        pieces, room = [], SEND_BYTES
        for one in buffers:
            pieces.append(one[:room])
            room -= len(pieces[-1])
            if not room:
                break
        return self._tls.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def fileno(self) -> int:
        return self._plain.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option; the low-water mark is left as it is, because some of the bytes that it counts may have come already."""
        if (level, option) != (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self._plain.setsockopt(level, option, value)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._tls.unwrap()
        with suppress(OSError):
            self.push()
        self._plain.close()
        # ``again`` and a problem's traceback lead back here: without them no collector is needed for what this holds
        self._again, self._problem = _nobody, None
        self._buffer = self._encrypted = memoryview(b"")


def _nobody() -> None:
    """Take no call."""
