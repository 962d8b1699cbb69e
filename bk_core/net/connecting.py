"""Connecting a link: finding the address, pausing between attempts, trying one address after the other, and noticing what this
host lacks."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from contextlib import suppress
from functools import partial

from bk_core.errors import BookieSecurityError
from bk_core.net.answers import AnsweredLink
from bk_core.net.asking import is_repeatable
from bk_core.net.entering import Entering, Prepared
from bk_core.net.local_resources import name_of, shortage_now, shortage_text
from bk_core.net.names import Address
from bk_core.net.sent_bytes import keep_alive
from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.link import Attempts
from bk_core.protocol.session.shortage import AGAIN_NS, EVERYWHERE
from bk_core.protocol.wire.messages import Request, Status

CONNECT_TIMEOUT_NS = 5_000_000_000
PREPARE_TIMEOUT_NS = 30_000_000_000  # for a function of the program, which may ask another server for a secret
ENTER_TIMEOUT_NS = 10_000_000_000
_UNDER_WAY = frozenset({0, errno.EINPROGRESS, errno.EINTR})


class ConnectingLink(AnsweredLink):
    """Connects to the bookie and connects again after a loss (LINK-7, LINK-8, SES-9)."""

    def _ready(self) -> bool:
        """Return True if bytes may be queued: the link is connected, or a connect is on its way."""
        if self._closed:
            return False
        if self._connected or self._connecting:
            return True
        if self._reactor.now_ns() < self._blocked_until_ns:
            return False
        self._connecting = True
        self._ask_where()
        return True

    def _ask_where(self, *, looks_anew: bool = False) -> None:
        """Begin an attempt: ask for the bookie's address. What an attempt under way has found out is forgotten, and those who wait go on
        waiting. With ``looks_anew`` a lookup of the host that is under way does not count."""
        self._forget_socket()
        self._looks_anew = looks_anew
        self._attempt += 1
        self._attempt_until_ns = None  # the resolver has time limits of its own
        self._asks_where, self._found_at = True, None
        self._resolve(self.bookie, partial(self._resolved, self._attempt))

    def _waits_out(self, message: Request) -> bool:
        """Return True if the request waits for the next attempt to connect: the pause before it is no answer of the bookie, unless the last
        attempt was refused (LINK-7)."""
        if self._closed or self._refused or not is_repeatable(message):
            return False
        self._connect_after_pause()
        return True

    def _connect_after_pause(self) -> None:
        if self._reconnect is None:
            after_ns = max(0, self._blocked_until_ns - self._reactor.now_ns())
            self._reconnect = self._reactor.call_later(after_ns, self._connect_again)

    def _connect_again(self) -> None:
        self._reconnect = None
        if self._asking and not self._closed and not self._ready():
            self._connect_after_pause()

    def _is_current(self, attempt: int) -> bool:
        return self._connecting and not self._closed and attempt == self._attempt and self._socket is None

    def _resolved(self, attempt: int, address: tuple[str, int] | None, problem: str) -> None:
        if not self._is_current(attempt):
            return
        found_at = self._found_at
        if address is not None and found_at not in (None, address):
            self._ask_where()  # one of the two answers is from before the bookie moved
            return
        self._short = self._asks_where = False
        if address is None:
            self._look_for_shortage()
            self._not_connected(problem)
            return
        self.address = address
        if self._prepare is None:
            self._look_up(attempt, address)
        else:
            self._attempt_until_ns = self._reactor.now_ns() + PREPARE_TIMEOUT_NS
            self._turn = self._prepare(self.bookie, address[0], partial(self._is_prepared, attempt, address))

    def _is_prepared(self, attempt: int, address: tuple[str, int], prepared: Prepared | None, error: BookieSecurityError | None) -> None:
        if not self._is_current(attempt):
            return
        self._turn = None
        if error is not None:
            self._turned_away(error)
            return
        self._prepared = prepared
        self._look_up(attempt, address)

    def _look_up(self, attempt: int, address: tuple[str, int]) -> None:
        self._attempts = Attempts(0, self._reactor.now_ns() + CONNECT_TIMEOUT_NS)
        self._attempt_until_ns = self._attempts.deadline_ns
        self._names.lookup(*address, partial(self._named, attempt), anew=self._looks_anew)

    def _named(self, attempt: int, addresses: list[Address], problem: str) -> None:
        if not self._is_current(attempt):
            return
        if not addresses:
            self._look_for_shortage()
        self._addresses = deque(addresses)
        self._attempts.left = len(addresses)
        self._try_next(problem or "no address")

    def _try_next(self, problem: str) -> None:
        """Try the next address, or end this attempt if there is none (LINK-8)."""
        self._forget_socket()
        while True:
            now = self._reactor.now_ns()
            share_ns = self._attempts.next(now)
            if share_ns is None:
                self._not_connected(problem)
                return
            self._attempt_until_ns = now + share_ns
            self._target = address = self._addresses.popleft()
            try:
                self._connect(address)
                return
            except OSError as error:
                self._forget_socket()
                problem = str(error)
                self._note_shortage(error)
                if self._short and self._waits_with_adds(address, now):
                    return

    def _look_for_shortage(self) -> None:
        """Ask the system what this process is short of, because resolvers of names and clients of the metadata store do not say it."""
        error = shortage_now()
        if error is not None:
            self._note_shortage(error)

    def _note_shortage(self, error: OSError) -> None:
        text = shortage_text(error)
        self._short = text is not None and name_of(error) in EVERYWHERE
        if text is None:
            return
        if self._on_short is not None:
            self._on_short(name_of(error), text)

    def _waits_with_adds(self, address: Address, now_ns: int) -> bool:
        """Return True if the address is tried again soon (``_look`` does it). Without adds this does not wait, because reads may ask other
        bookies (SES-9)."""
        if not self._health.adds_unanswered or now_ns + AGAIN_NS >= self._attempts.deadline_ns:
            return False
        self._addresses.appendleft(address)
        self._attempts.left += 1
        self._attempt_until_ns = now_ns + AGAIN_NS
        for one in self._asking.held():
            self._tell(partial(one.answer, *one.outcome(Status.UNAVAILABLE)))
        return True

    def _not_connected(self, problem: str) -> None:
        """End the attempt when no address is left. A lack of resources on this host does not count as a failure of the bookie (SES-9)."""
        short, self._short = self._short, False
        self._drop(Status.UNAVAILABLE, problem, backoff=not short)

    def _connect(self, address: Address) -> None:
        family, kind, number, target = address
        self._socket = made = socket.socket(family, kind, number)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(made)
        code = made.connect_ex(target)
        if code not in _UNDER_WAY:  # only this call returns the error; the socket keeps none that ``on_io`` could find
            raise OSError(code, os.strerror(code))
        self._reactor.register(made, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        self._writing = True

    # --- the way in ------------------------------------------------------------------------------------------------

    def _comes_in(self) -> bool:
        """Handle the socket of a connection that is being made. Return True once it is made and this client admitted (LINK-10)."""
        if self._entering is None:
            assert self._socket is not None and not isinstance(self._socket, TlsSocket)
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._note_shortage(OSError(code, os.strerror(code)))
                self._try_next(f"connect failed (errno {code}, {os.strerror(code)})")
                return False
            if self._prepare is None:
                return True
            self._begin_entering()
        return self._goes_on_entering()

    def _begin_entering(self) -> None:
        """Begin the way in. What was not prepared is an error, and no reason to do without."""
        prepared, made = self._prepared, self._socket
        if prepared is None or not isinstance(made, socket.socket):
            raise AssertionError("there is a connection without the files and secrets that belong to it")

        def again() -> None:
            """A turn for bytes that are decrypted already."""
            self._reactor.post(lambda: self.on_io(True, False) if self._is_on(made) else None)

        self._entering = Entering(made, prepared, again)
        self._prepared = None  # it serves once
        self._attempt_until_ns = self._reactor.now_ns() + ENTER_TIMEOUT_NS

    def _is_on(self, made: socket.socket) -> bool:
        return self._socket is not None and self._socket.fileno() == made.fileno()

    def _goes_on_entering(self) -> bool:
        entering = self._entering
        assert entering is not None
        try:
            is_in = entering.go_on()
        except BookieSecurityError as error:
            self._turned_away(error)
            return False
        except OSError as error:
            self._not_connected(str(error))
            return False
        self._socket = entering.socket
        if not is_in:
            self._want_write(entering.is_behind)
            return False
        self._entering = None
        self._tell_of_entry(None)
        return True

    def _turned_away(self, error: BookieSecurityError) -> None:
        """End the attempt. Those who wait are told at once, and the pause before the next attempt grows (LINK-10)."""
        self._tell_of_entry(error)
        self._drop(Status.NOT_ADMITTED, str(error.args[0]))

    def _tell_of_entry(self, error: BookieSecurityError | None) -> None:
        """Tell why this client is not admitted; None where it is, or where that is not known any more."""
        if self._on_entry is not None:
            self._on_entry(self.bookie, error)

    def _attempt_is_over(self) -> None:
        """End an attempt that took too long. Once somebody has taken the connection, no other address is tried."""
        if self._turn is not None:
            begun, within = self._turn.has_begun, f"within {PREPARE_TIMEOUT_NS / 1e9:g} s"
            why = f"were not read {within}" if begun else f"had no turn {within}, because earlier readings of them have not ended"
            self._turned_away(BookieSecurityError(f"the files and secrets for bookie {self.bookie} {why}", bookie=self.bookie))
        elif self._entering is None:
            self._try_next("connect timed out")
        else:
            self._not_connected(f"{self._entering.awaits} was not answered in time")

    def _want_write(self, wanted: bool) -> None:
        if self._socket is not None and wanted != self._writing:
            self._writing = wanted
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._reactor.modify(self._socket, events, self)

    def _forget_socket(self) -> None:
        self._entering = None
        if self._turn is not None:
            self._turn.is_over, self._turn = True, None
        if self._socket is None:
            return
        with suppress(KeyError, ValueError, OSError):
            self._reactor.unregister(self._socket)
        self._socket.close()
        self._socket = None
        self._writing = False
