"""The HTTP server of the page: Python's own ``http.server``, with bounds and checks around it.

One request a connection, GET and HEAD alone. At ``CONNECTIONS_MAX`` the connection goes that has waited longest without having shown the
token. A head that does not come within ``HEAD_S`` ends its connection, and so does an answer that nobody takes within ``WHOLE_S``.
"""

from __future__ import annotations

import logging
import re
import socket
import socketserver
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from bk_core.background import BackgroundLoop
from bk_core.display.words import safe
from bk_core.errors import LivePageError
from bk_core.ui.guard import Token, cookie_name, cookie_value, is_own_host

log = logging.getLogger("bk_core.ui")

CONNECTIONS_MAX = 64
HEAD_S = 10.0
WHOLE_S = 60.0
TEND_S = 0.5
QUERY_MAX = 20  # parameters
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers that every answer carries."""
_LOCAL_PATH = re.compile(
    r"/(?:[A-Za-z0-9._~%!$&()*+,;=:@-]+(?:/[A-Za-z0-9._~%!$&()*+,;=:@-]+)*/?)?"
)  # no two slashes side by side, and no backslash, which counts as one


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has shown the token: its path, still encoded, and its parameters, each by its first value."""

    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a document, or with ``location`` a redirection."""

    body: bytes = b""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    location: str = ""


@dataclass(eq=False, slots=True)
class _Connection:
    socket: socket.socket
    since_s: float = field(default_factory=time.monotonic)
    has_head: bool = False
    is_known: bool = False  # it has shown the token


class PageServer(ThreadingHTTPServer):
    """Listens from the moment it is made, on ``host``:``port`` (0: any free port), and answers once ``start`` was called. ``answer`` makes
    the reply to a request that may see the page; ``names`` are further names under which browsers may ask.

    Raises LivePageError if it cannot listen there."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        token: Token,
        answer: Callable[[Asked], Reply],
        *,
        names: Iterable[str] = (),
        most: int = CONNECTIONS_MAX,
    ) -> None:
        self.token, self.answer, self.host, self.names = token, answer, host, tuple(names)
        self._most = most
        self._lock = Lock()
        self._connections: dict[socket.socket, _Connection] = {}
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self.address_family = family
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # IPv6 has more
        except OSError as error:
            why = error.strerror or str(error)
            raise LivePageError(
                f"the page cannot be served at {host}, port {port}: {why}. Choose another --port, or another --host"
            ) from None
        self.port = int(self.server_address[1])
        self.cookie = cookie_name(self.port)
        self._accepting = Thread(target=self.serve_forever, args=(TEND_S,), name="bk-ui-accept", daemon=True)
        self._tending = BackgroundLoop("bk-ui-tend", self._tend)

    def server_bind(self) -> None:
        """Bind without asking a name server for this host's name, which may take long."""
        if self.address_family == socket.AF_INET6:
            with suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, without the token. A server that listens everywhere has its loopback address here."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host)
        return f"http://{host or (f'[{self.host}]' if ':' in self.host else self.host)}:{self.port}/"

    @property
    def open_url(self) -> str:
        """The address that opens the page: with the token."""
        return f"{self.url}?token={self.token.reveal()}"

    def start(self) -> None:
        """Begin to answer."""
        self._accepting.start()
        self._tending.start()

    def close(self) -> None:
        """End at once, connections as well."""
        self._tending.stop()
        if self._accepting.is_alive():
            self.shutdown()
        self.server_close()
        with self._lock:
            left = list(self._connections)
        for one in left:
            _end(one)

    # --- connections -------------------------------------------------------------------------------------------------

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection in. Where there are too many, one goes that has not shown the token; if all have, the new one."""
        with self._lock:
            victim: Any = None
            if len(self._connections) >= self._most:
                strangers = [one for one in self._connections.values() if not one.is_known]
                victim = min(strangers, key=lambda one: one.since_s).socket if strangers else request
            if victim is not request:
                self._connections.pop(victim, None)  # now, so that the next one does not choose it again
                self._connections[request] = _Connection(request)
        if victim is not None:
            _end(victim)
        if victim is request:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let go of a connection."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def note(self, request: Any, *, is_known: bool = False) -> None:
        """Note that a connection has sent its whole head, or shown the token."""
        with self._lock:
            found = self._connections.get(request)
            if found is not None:
                found.has_head, found.is_known = True, found.is_known or is_known

    def _tend(self) -> float:
        now = time.monotonic()
        with self._lock:
            late = [one.socket for one in self._connections.values() if now - one.since_s > (WHOLE_S if one.has_head else HEAD_S)]
        for one in late:
            _end(one)
        return TEND_S

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke at DEBUG alone: that is nobody's fault."""
        log.debug("a connection of the page ended early", exc_info=True)


def _end(connection: socket.socket) -> None:
    """Have the thread of a connection end: closing the socket itself is for that thread."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request. What is refused is refused before anything of the cluster is looked at."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = HEAD_S

    def setup(self) -> None:
        super().setup()
        self.close_connection = True

    def version_string(self) -> str:
        return "bk"

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.close_connection = True  # one request each: an idle connection keeps no thread

    def do_GET(self) -> None:
        self.server.note(self.request)
        self._send(self._reply())

    do_HEAD = do_GET

    def _reply(self) -> Reply:
        server = self.server
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_own_host(hosts[0], server.host, server.names):
            return _plain(421, "This is no name of this page. Open the address that bk ui has printed.")
        parts = urlsplit(self.path)
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=QUERY_MAX, errors="replace")
        except ValueError:
            return _plain(400, "There are too many parameters.")
        query = dict(reversed(pairs))
        given = query.pop("token", None)
        if given is not None:
            return self._with_token(given, _local(parts.path, [pair for pair in pairs if pair[0] != "token"]))
        if not server.token.matches(cookie_value(self.headers.get("Cookie"), server.cookie)):
            return _plain(403, "The token is missing. Open the whole address that bk ui has printed.")
        server.note(self.request, is_known=True)
        try:
            return server.answer(Asked(parts.path, query))
        except Exception:
            log.exception("the page %s failed", safe(parts.path))
            return _plain(500, "This page failed. The standard error of the program that serves it says why.")

    def _with_token(self, given: str, location: str) -> Reply:
        """Make a cookie of the token, and have the browser drop it from the address, which stays the same otherwise. Browsers keep a
        SameSite=Strict cookie back on a redirection that began on another site's page: then it is a page of ours that goes on."""
        if not self.server.token.matches(given):
            return _plain(403, "This is not the token of this page. Open the whole address that bk ui has printed.")
        self.server.note(self.request, is_known=True)
        self.new_cookie = True
        if self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
            return Reply(status=303, location=location)
        there = escape(location)
        on = f'<meta http-equiv="refresh" content="0;url={there}"><a href="{there}">Go on</a>'
        return Reply(f"<!doctype html><title>bk</title>{on}".encode())

    new_cookie = False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, or one of another method."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._send(_plain(405, "This page only reads: GET and HEAD."))
        else:
            self._send(_plain(code, "This is no request that the page understands."))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        if reply.status == 405:
            self.send_header("Allow", "GET, HEAD")
        if reply.location:
            self.send_header("Location", reply.location)
        if self.new_cookie:
            token = self.server.token.reveal()
            self.send_header("Set-Cookie", f"{self.server.cookie}={token}; Path=/; HttpOnly; SameSite=Strict")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a line would have the token in it."""


def _local(path: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the address on this page of a path, as it was asked for, with parameters. It is that of the overview for a path that a browser
    may take for another host's."""
    here = path if _LOCAL_PATH.fullmatch(path) else "/"
    return f"{here}?{urlencode(pairs)}" if pairs else here


def _plain(status: int, sentence: str) -> Reply:
    return Reply(sentence.encode() + b"\n", status, "text/plain; charset=utf-8")
