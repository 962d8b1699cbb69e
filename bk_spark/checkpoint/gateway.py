"""The gateway: a small HTTP server in the driver that answers Spark's own WebHDFS client from file stores.

A thread for each connection, which stays for many requests (HTTP/1.1). A new connection has ``FIRST_BYTE_S`` to begin a head, and
``HEAD_S`` from then on to end it, and only then a thread (``lobby.py``); with TLS it has one from its first byte on, ``HEAD_S`` for the
handshake and ``TOKEN_WAIT_S`` to begin a head. A request without the secret gets 401 with no body, and its connection is closed. At
``connections_max`` the connection goes that has shown no secret yet for the longest time, whatever it has sent; where all have, the one
that has idled longest. If all are busy, new ones wait in the listening socket.

An upload may pause for ``upload_idle_s``: a task opens the file of its state when it begins and writes to it as rows come. A peer that has
died is noticed by TCP's own probes within two minutes. Whatever ends an upload early, there is no file then.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from bk_core.background import BackgroundLoop
from bk_core.errors import BlockingCallError
from bk_core.threads import Flag, Monitor, cannot_wait, holds_lock, interrupted_call
from bk_spark.checkpoint.answers import Answer
from bk_spark.checkpoint.http_parts import HEAD_S, BadRequest, Body, PeerGone, Request, Wire, answer_head, pairs
from bk_spark.checkpoint.lobby import Lobby
from bk_spark.checkpoint.operations import Operations
from bk_spark.checkpoint.secret import Secret
from bk_spark.checkpoint.staging import CheckpointFiles

TOKEN_PATH = "/token"
TOKEN_FORM_MAX = 4096
TOKEN_WAIT_S = 10.0
TOKEN_S = 10 * 365 * 24 * 3600
CONNECTIONS_MAX = 512
KEEP_ALIVE_S = 120.0
UPLOAD_IDLE_S = 3600.0
TEND_S = 0.5
LOBBY_MAX = 256
BACKLOG = 4096  # as many as make one connection each at the same moment; the kernel has a limit of its own
JOIN_S = 5.0
TLS_WARN_AGAIN_S = 60.0
PROBES = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))
log = logging.getLogger("bk_spark.checkpoint")


@dataclass(eq=False, slots=True)
class _Connection:
    """``since``: when it was made, or when its last request ended; None while a request is worked on that has shown the secret.
    ``is_known``: one has shown it. ``is_ended``: the connection goes to make room, and begins nothing more."""

    socket: socket.socket
    since: float | None = field(default_factory=time.monotonic)
    is_known: bool = False
    is_ended: bool = False
    thread: threading.Thread | None = field(default=None, repr=False)


class Gateway:
    """Listens from the moment it is made, on ``bind``:``port`` (0: any free port); clients are told ``host``.

    ``refresh`` and ``access``: the two secrets. A client shows the first once, at ``TOKEN_PATH``, and is given the second, which each of
    its requests carries. ``tls``: with it the gateway speaks HTTPS only. ``ended``: asked twice a second; once it says True the gateway
    closes itself with all its stores. ``on_close`` is called when it has closed, however that came.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = 0,
        host: str | None = None,
        *,
        ended: Callable[[], bool] = lambda: False,
        on_close: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        upload_idle_s: float = UPLOAD_IDLE_S,
    ) -> None:
        self.refresh, self.access = Secret(), Secret()
        self.files: dict[str, CheckpointFiles] = {}
        self._ended, self._on_close, self._most, self._upload_idle_s = ended, on_close, connections_max, upload_idle_s
        self._listener = _listen(bind, port)
        self.port = int(self._listener.getsockname()[1])
        self.host = host or bind
        self.address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self._tls, self._quiet_until_s = tls, 0.0
        self.url = f"{'http' if tls is None else 'https'}://{self.address}"
        self.operations = Operations(self.files, self.url)
        self._leaving: dict[str, tuple[CheckpointFiles, threading.Thread]] = {}  # stores that are being closed, and by whom
        self._left = Monitor()  # of them: nobody closes the client under one
        self._freed = Monitor()  # of the connections, and of whether it closes
        self._connections: set[_Connection] = set()
        self._closing = Flag()
        self._closer: threading.Thread | None = None
        self._silent = Flag()
        self._last: threading.Thread | None = None  # it calls ``on_close``
        self._closed = Flag()
        self._lobby = Lobby(self._listener, LOBBY_MAX, is_tls=tls is not None)
        accepting = BackgroundLoop("bk-checkpoint-accept", self._accept)
        tending = BackgroundLoop("bk-checkpoint-tend", self._tend)
        watching = BackgroundLoop("bk-checkpoint-watch", self._watch)
        self._loops = (accepting, tending, watching)
        accepting.start()
        tending.start(after_s=TEND_S)
        watching.start(after_s=TEND_S)

    def __repr__(self) -> str:
        return f"<Gateway {self.address} {sorted(self.files)}>"

    def close(self) -> None:
        """End all connections, carry out what was kept back, close the stores side by side. A second call returns when all is closed, too,
        and goes on with what an interrupted first one has left. BlockingCallError in a handler of a signal that could wait for ever."""
        _check_wait()
        caller = threading.current_thread()
        first, connections = self._begin_close(caller)
        if first:
            try:
                self._stop_serving(connections)
            finally:
                self._silent.set()
        elif any(loop.is_current for loop in self._loops):  # the first caller waits for this thread
            return
        elif caller is not self._closer:  # and not from a signal handler, inside the first call
            self._silent.wait()
        self._close_stores()

    @holds_lock
    def _begin_close(self, caller: threading.Thread) -> tuple[bool, list[_Connection]]:
        """True for the first call, with the connections to end. No store is added from here on."""
        with self._freed:
            first, connections = not self._closing.is_set(), list(self._connections)
            if first:
                self._closer = caller
            self._closing.set()
        self._freed.notify_all()
        return first, connections

    def _stop_serving(self, connections: list[_Connection]) -> None:
        _wake(self._listener)
        for connection in connections:
            _wake(connection.socket)
        for loop in self._loops:
            loop.wake()
        deadline = time.monotonic() + JOIN_S
        for loop in self._loops:
            loop.join(max(0.0, deadline - time.monotonic()))
        for thread in [connection.thread for connection in connections]:
            if thread is not None and thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _close_stores(self) -> None:
        """Close each store in a thread of its own, so that one that stands still holds up no other. All have the time that the most patient
        one needs."""
        for name in list(self.files):
            closer = threading.Thread(target=self._end, args=(name,), name="bk-checkpoint-close", daemon=True)
            if self._take(name, closer):
                try:
                    closer.start()
                except RuntimeError:  # no thread is left, or the interpreter ends
                    self._leaving[name] = self._leaving[name][0], threading.current_thread()
                    self._end(name)
        leaving = dict(self._leaving)
        patience_s = JOIN_S + max((files.close_s for files, _ in leaving.values()), default=0.0)
        if not self._left.until(self._others_have_left, patience_s):
            names = ", ".join(sorted(dict(self._leaving)))
            log.warning("checkpoints that did not close in %.0f s, and are recovered by who opens them next: %s", patience_s, names)
        if self._is_last():
            try:
                self._on_close()
            finally:
                self._closed.set()
        elif self._last is not threading.current_thread():
            self._closed.wait(patience_s)

    @holds_lock
    def _is_last(self) -> bool:
        """True for the one call that has to tell that all is closed."""
        with self._left:
            if self._last is not None:
                return False
            self._last = threading.current_thread()
            return True

    @property
    def is_closing(self) -> bool:
        """True once it serves nobody any more."""
        return self._closing.is_set()

    @holds_lock
    def add(self, name: str, files: CheckpointFiles) -> bool:
        """Serve a store, and close it in the end. False once the gateway closes: then the caller has to close it."""
        with self._freed:
            if self._closing.is_set():
                return False
            self.files[name] = files
            self.operations.closed.discard(name)
            return True

    def close_files(self, name: str, *, is_asked: bool = False) -> None:
        """Close one store; requests about it are answered that it is not open, and, with ``is_asked``, that the program has closed it.
        Return once it is closed, whoever closes it. BlockingCallError in a handler of a signal that could wait for ever."""
        _check_wait()
        if is_asked and name in self.files:
            self.operations.closed.add(name)
        if self._take(name, threading.current_thread()):
            self._end(name)
        self._left.until(lambda: self._has_left(name), math.inf)

    def if_idle(self, do: Callable[[], None]) -> None:
        """Call it if no store is open, once none is being closed. The caller sees to it that none is added meanwhile."""
        _check_wait()
        self._left.until(self._others_have_left, math.inf)
        if not self.files:
            do()

    @holds_lock
    def _take(self, name: str, closer: threading.Thread) -> bool:
        """True if the store was open and is ``closer``'s now, which calls ``_end``."""
        with self._left:
            files = self.files.pop(name, None)
            if files is not None:
                self._leaving[name] = files, closer
            return files is not None

    def _end(self, name: str) -> None:
        try:
            self._leaving[name][0].close()
        except Exception as error:  # the others are closed too; what is durable stays so
            log.warning("the checkpoint %s did not close well: %s", name, error)
        finally:
            self._forget_store(name)

    @holds_lock
    def _forget_store(self, name: str) -> None:
        with self._left:
            del self._leaving[name]
        self._left.notify_all()

    @holds_lock
    def _has_left(self, name: str) -> bool:
        with self._left:
            return name not in self._leaving or self._leaving[name][1] is threading.current_thread()

    @holds_lock
    def _others_have_left(self) -> bool:
        """Return True if no store is being closed by another thread. A store that this thread closes does not count: then a signal handler
        asks, and waiting for the store would be waiting for the thread that it interrupts."""
        with self._left:
            return all(closer is threading.current_thread() for _, closer in self._leaving.values())

    # --- turns of its loops, until it closes ----------------------------------------------------------------------------------

    def _tend(self) -> float | None:
        if self._closing.is_set():
            return None
        for files in list(self.files.values()):
            try:
                files.tend()
            except Exception:
                log.exception("a defect of the checkpoint gateway")
        return TEND_S

    def _watch(self) -> float | None:
        """Close the gateway when the application has ended. This has a loop of its own, because ``_tend`` may wait for a store."""
        if self._closing.is_set():
            return None
        if self._ended():
            self.close()
        return TEND_S

    def _accept(self) -> float | None:
        if self._closing.is_set():
            self._lobby.close()
            return None
        try:
            for accepted, sent in self._lobby.turn():
                self._make_room()
                self._let_in(accepted, sent)
        except OSError as error:
            if not self._closing.is_set():
                log.warning("the checkpoint gateway cannot take a connection: %s", error)
                return TEND_S  # no file descriptor is left, for one
        return 0.0

    def _let_in(self, accepted: socket.socket, sent: bytes) -> None:
        """Serve the connection in a thread of its own."""
        try:
            connection = _Connection(accepted if self._tls is None else self._wrapped(accepted))
        except OSError:  # it is gone already
            accepted.close()
            return
        wire = Wire(connection.socket, sent)
        connection.thread = threading.Thread(target=self._serve, args=(connection, wire), name="bk-checkpoint", daemon=True)
        with self._freed:
            self._connections.add(connection)
            closing = self._closing.is_set()
        if closing:
            self._forget(connection)
            return
        try:
            connection.thread.start()
        except RuntimeError as error:  # no thread is left
            log.warning("the checkpoint gateway cannot serve a connection: %s", error)
            self._forget(connection)

    def _make_room(self) -> None:
        with self._freed:
            while len(self._connections) >= self._most and not self._closing.is_set():
                idle = [(kept.is_known, kept.since, kept) for kept in self._connections if kept.since is not None and not kept.is_ended]
                if idle:
                    longest = min(idle, key=lambda one: one[:2])[2]
                    longest.is_ended = True
                    _wake(longest.socket)
                self._freed.wait(TEND_S)

    def _serve(self, connection: _Connection, wire: Wire) -> None:
        try:
            _settle_options(connection.socket)
            if isinstance(connection.socket, ssl.SSLSocket):
                connection.socket.settimeout(HEAD_S)
                connection.socket.do_handshake()
            self._converse(connection, wire)
        except ssl.SSLError as error:
            self._warn_of_tls(error)
        except (PeerGone, OSError):
            pass
        except Exception:
            log.exception("a defect of the checkpoint gateway")
        finally:
            self._forget(connection)

    def _warn_of_tls(self, error: ssl.SSLError) -> None:
        """Warn, now and then and not each time, because anybody who reaches the port can cause it. The usual reason is a JVM that does not
        trust the certificate."""
        now = time.monotonic()
        if now >= self._quiet_until_s:
            self._quiet_until_s = now + TLS_WARN_AGAIN_S
            log.warning("the checkpoint gateway and a client do not agree about TLS: %s", error)

    def _wrapped(self, accepted: socket.socket) -> ssl.SSLSocket:
        """The handshake follows in the thread of the connection: a client may take its time for it."""
        assert self._tls is not None
        return self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _forget(self, connection: _Connection) -> None:
        with suppress(OSError):
            connection.socket.close()
        with self._freed:
            self._connections.discard(connection)
            self._freed.notify_all()

    # --- one connection -----------------------------------------------------------------------------------------------------

    def _converse(self, connection: _Connection, wire: Wire) -> None:
        patience_s = TOKEN_WAIT_S
        while True:
            if not wire.begins(patience_s):
                return
            if connection.is_known:
                self._begin(connection)
            try:
                request = wire.head()
                stays = self._answer(connection, wire, request)
            except BadRequest as error:
                wire.send(answer_head(error.status, 0, stays=False), KEEP_ALIVE_S)
                wire.linger()
                return
            if not stays:
                return
            patience_s = KEEP_ALIVE_S
            connection.since = time.monotonic()

    def _begin(self, connection: _Connection) -> None:
        """A request is worked on that has shown the secret, or is the next one of a peer that has. PeerGone if the connection goes."""
        with self._freed:
            if connection.is_ended:
                raise PeerGone("it had to make room for another connection")
            connection.is_known, connection.since = True, None

    def _answer(self, connection: _Connection, wire: Wire, request: Request) -> bool:
        """True if the connection may go on: the request was authorised, and all of it was taken off the socket."""
        if request.method == "POST" and request.path == TOKEN_PATH:
            return self._token(connection, wire, request)
        if not self.access.matches(request.authorization):
            wire.send(answer_head(401, 0, stays=False), KEEP_ALIVE_S)
            wire.linger()
            return False
        self._begin(connection)
        body = Body(wire, request, self._upload_idle_s)
        begun = time.perf_counter()
        answer = self.operations.handle(request, body)
        if log.isEnabledFor(logging.DEBUG):
            took_ms = (time.perf_counter() - begun) * 1e3
            log.debug("%s %s %s: %d, %.1f ms", request.method, request.query.get("op"), request.path, answer.status, took_ms)
        stays = request.stays and body.skip()
        octets = answer.stream is not None
        length = answer.length if octets else len(answer.body)
        head = answer_head(answer.status, length, location=answer.location, stays=stays, octets=octets)
        if answer.stream is None:
            wire.send(head + answer.body, self._upload_idle_s)
        elif not self._stream(wire, head, answer):
            return False
        if not stays:
            wire.linger()
        return stays

    def _stream(self, wire: Wire, head: bytes, answer: Answer) -> bool:
        """False, and the connection ends in the middle, if the bytes cannot be had: the client counts them and says so."""
        left = answer.length
        wire.send(head, self._upload_idle_s)
        try:
            for chunk in answer.stream or ():
                left -= len(chunk)
                if left < 0:
                    break
                wire.send(chunk, self._upload_idle_s)
        except PeerGone:
            raise
        except Exception as error:
            log.warning("a file of a checkpoint could not be read to its end: %s", error)
            return False
        return left == 0

    def _token(self, connection: _Connection, wire: Wire, request: Request) -> bool:
        """The access token for who shows the refresh token (OAuth 2, RFC 6749 section 6)."""
        form = pairs(Body(wire, request, TOKEN_WAIT_S, TOKEN_WAIT_S).all(TOKEN_FORM_MAX).decode("ascii", "replace"))
        if form.get("grant_type") != "refresh_token" or not self.refresh.matches(form.get("refresh_token", "")):
            wire.send(answer_head(401, 0, stays=False), KEEP_ALIVE_S)
            wire.linger()
            return False
        self._begin(connection)
        told = json.dumps({"access_token": self.access.reveal(), "token_type": "bearer", "expires_in": TOKEN_S}).encode("ascii")
        wire.send(answer_head(200, len(told), stays=request.stays) + told, KEEP_ALIVE_S)
        return request.stays


def _check_wait() -> None:
    """Raise BlockingCallError in a handler of a signal that interrupts what other threads wait for."""
    where = interrupted_call()
    if where:
        raise BlockingCallError("closing checkpoints has to wait for other threads, and " + cannot_wait(where))


def _listen(bind: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(bind.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _settle_options(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _wake(connection: socket.socket) -> None:
    """End a connection under the thread that waits for it, which closes it: nobody else may, because the number of a closed descriptor is
    soon another's."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # an SSLSocket's own one would take TLS from the thread that uses it
