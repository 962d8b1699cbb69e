"""HTTP/1.1 as the gateway speaks it: requests off a socket with every length checked first, and answers.

Whoever can reach the port can send bytes, so nothing here believes them: a head has at most ``HEAD_MAX`` bytes and comes within
``HEAD_S``, a line of a chunked body at most ``LINE_MAX``, and what is odd (two lengths, a length and chunks, a bare line feed, a folded
header, a bad percent sign) is refused with 400 and the end of the connection, so that nobody can hide one request in another.
"""

from __future__ import annotations

import math
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

HEAD_MAX = 64 << 10
HEAD_END = b"\r\n\r\n"
HEADERS_MAX = 64
LINE_MAX = 4096
TRAILERS_MAX = 16
PIECE = 64 << 10
LENGTH_MAX = 1 << 50
HEAD_S = 10.0
LINGER_S = 2.0
DRAIN_MAX = 32 << 20

_REQUEST_LINE = re.compile(rb"(GET|PUT|POST|DELETE) (/[!-~\x80-\xff]*) HTTP/1\.([01])")  # Hadoop sends UTF-8 as it is
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*)")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t -~]*)?")
_ONCE = {b"content-length", b"transfer-encoding", b"authorization", b"host"}

REASONS = {
    200: "OK", 201: "Created", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 500: "Internal Server Error", 505: "HTTP Version Not Supported",
}  # fmt: skip


class BadRequest(Exception):  # noqa: N818  # never leaves the gateway
    """A request that is refused before anything looks at what it asks for. The connection ends."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class PeerGone(Exception):  # noqa: N818
    """The peer closed the connection in the middle, or said nothing for too long."""


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` is decoded, ``query`` too (names in lower case); ``target`` is the text that was sent, in ASCII. ``authorization``: what
    follows "Bearer ", or nothing."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False)  # one of them is the secret

    @property
    def authorization(self) -> str:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    @property
    def stays(self) -> bool:
        """True if the connection is to be kept for another request."""
        return "close" not in self.headers.get("connection", "").lower()


class Wire:
    """The bytes of one connection: a socket, and what has come beyond what was asked for (``ahead``, to begin with)."""

    def __init__(self, connection: socket.socket, ahead: bytes = b"") -> None:
        self._socket = connection
        self._ahead = bytearray(ahead)

    def begins(self, timeout_s: float) -> bool:
        """True once the first byte of another request is there, False when the peer has gone or ``timeout_s`` pass."""
        try:
            return bool(self._ahead) or self._receive(time.monotonic() + timeout_s)
        except PeerGone:
            return False

    def head(self) -> Request:
        """The next request line with its headers. BadRequest, PeerGone."""
        deadline = time.monotonic() + HEAD_S
        while (end := self._ahead.find(HEAD_END)) < 0:
            if len(self._ahead) > HEAD_MAX:
                raise BadRequest(400, "the head of the request is too long")
            if not self._receive(deadline):
                raise PeerGone("the peer ended inside the head of a request")
        if end > HEAD_MAX:
            raise BadRequest(400, "the head of the request is too long")
        head = bytes(self._ahead[:end])
        del self._ahead[: end + len(HEAD_END)]
        return _parsed(head)

    def line(self, idle_s: float) -> bytes:
        """Return what comes before the next CRLF, which is taken, too."""
        deadline = time.monotonic() + idle_s
        while (end := self._ahead.find(b"\r\n", 0, LINE_MAX + 2)) < 0:
            if len(self._ahead) > LINE_MAX:
                raise BadRequest(400, "a line of the body is too long")
            if not self._receive(deadline):
                raise PeerGone("the peer ended inside a body")
        line = bytes(self._ahead[:end])
        del self._ahead[: end + 2]
        return line

    def some(self, most: int, idle_s: float) -> bytes:
        """Return 1 to ``most`` bytes, as soon as there are some."""
        if not self._ahead and not self._receive(time.monotonic() + idle_s):
            raise PeerGone("the peer ended inside a body")
        piece = bytes(self._ahead[:most])
        del self._ahead[:most]
        return piece

    def _receive(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerGone("nothing came in time")
        self._socket.settimeout(left)
        try:
            piece = self._socket.recv(PIECE)
        except OSError as error:  # a timeout too
            raise PeerGone(str(error)) from None
        self._ahead += piece
        return bool(piece)

    def send(self, data: bytes, idle_s: float) -> None:
        """PeerGone if it cannot be sent."""
        try:
            self._socket.settimeout(idle_s)
            self._socket.sendall(data)
        except OSError as error:
            raise PeerGone(str(error)) from None

    def linger(self) -> None:
        """Say that no more comes, and take what the peer still sends, for a moment: closing on it would take the answer from it."""
        deadline, taken = time.monotonic() + LINGER_S, 0
        with suppress(OSError, PeerGone):
            self._socket.shutdown(socket.SHUT_WR)
            while taken < DRAIN_MAX:
                self._ahead.clear()
                if not self._receive(deadline):
                    return
                taken += len(self._ahead)


class Body:
    """The bytes behind the head of a request, in pieces of at most ``PIECE`` bytes, each checked before the next is taken."""

    def __init__(self, wire: Wire, request: Request, idle_s: float, whole_s: float = math.inf) -> None:
        self._wire, self._longest_s, self._until = wire, idle_s, time.monotonic() + whole_s
        self._chunked = "transfer-encoding" in request.headers
        self._awaited = request.headers.get("expect", "").lower() == "100-continue"
        self._left = _length(request)
        self.is_whole = not self._chunked and not self._left

    @property
    def _idle_s(self) -> float:
        """The time that the next piece has: ``idle_s``, and what is left of ``whole_s`` for all of them together."""
        return min(self._longest_s, max(0.0, self._until - time.monotonic()))

    def pieces(self) -> Iterator[bytes]:
        """BadRequest, PeerGone: then the body is of no use, and neither is the connection."""
        if self._awaited and not self.is_whole:
            self._wire.send(b"HTTP/1.1 100 Continue\r\n\r\n", self._idle_s)
        while not self.is_whole:
            if not self._left:
                self._left = self._next_chunk()
                if not self._left:
                    self._trailers()
                    self.is_whole = True
                    return
            piece = self._wire.some(min(self._left, PIECE), self._idle_s)
            self._left -= len(piece)
            if not self._left:
                if self._chunked:
                    if self._wire.line(self._idle_s):
                        raise BadRequest(400, "a chunk of the body is longer than it says")
                else:
                    self.is_whole = True
            yield piece

    def all(self, most: int) -> bytes:
        """The whole body. BadRequest if it has more than ``most`` bytes."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > most:
                raise BadRequest(400, "the body is too long")
        return bytes(found)

    def skip(self) -> bool:
        """Take the rest off the socket, so that the connection can go on; False if there is too much of it."""
        taken = 0
        for piece in self.pieces():
            taken += len(piece)
            if taken > DRAIN_MAX:
                return False
        return True

    def _next_chunk(self) -> int:
        match = _CHUNK.fullmatch(self._wire.line(self._idle_s))
        if match is None:
            raise BadRequest(400, "the length of a chunk is no number")
        return int(match[1], 16)

    def _trailers(self) -> None:
        for _ in range(TRAILERS_MAX):
            if not self._wire.line(self._idle_s):
                return
        raise BadRequest(400, "too many lines behind the body")


def decoded(text: str) -> str:
    """``text`` without its percent signs. BadRequest if one of them stands for nothing, or the bytes are no UTF-8."""
    if _ESCAPE.search(text):
        raise BadRequest(400, "a percent sign without two hexadecimal digits")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadRequest(400, "an address that is no UTF-8") from None


def pairs(query: str) -> dict[str, str]:
    """The parameters of a query or a form by their names in lower case. BadRequest for one that comes twice."""
    found: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.replace("+", " ").partition("=")
        name = lower(decoded(name))
        if name in found:
            raise BadRequest(400, "a parameter is there twice")
        found[name] = decoded(value)
    return found


def lower(text: str) -> str:
    """Return a text of ASCII in lower case, and any other text as it is, because some other letters would become ASCII's."""
    return text.lower() if text.isascii() else text


def upper(text: str) -> str:
    """Return a text of ASCII in upper case, and any other text as it is (``lower``)."""
    return text.upper() if text.isascii() else text


def answer_head(status: int, length: int, *, location: str = "", stays: bool = True, octets: bool = False) -> bytes:
    """Status line and headers. JSON has no Content-Type: Spark's Hadoop lacks the class that would look at it."""
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {length}"]
    if location:
        lines.append(f"Location: {location}")
    if octets:
        lines.append("Content-Type: application/octet-stream")
    if not stays:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _parsed(head: bytes) -> Request:
    first, *rest = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadRequest(400, "no request line")
    if match[3] != b"1":
        raise BadRequest(505, "HTTP/1.1 only")
    if len(rest) > HEADERS_MAX:
        raise BadRequest(400, "too many headers")
    try:
        target = match[2].decode()
    except UnicodeDecodeError:
        raise BadRequest(400, "a target that is not UTF-8") from None
    path, _, query = target.partition("?")
    return Request(match[1].decode("ascii"), quote(target, safe=_PRINTABLE), decoded(path), pairs(query), _headers(rest))


def _headers(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise BadRequest(400, "a header that is none")
        name, value = match[1].lower(), match[2].decode("latin-1").strip()
        key = name.decode("ascii")
        if key in found and name in _ONCE:
            raise BadRequest(400, "a header is there twice")
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _length(request: Request) -> int:
    text, coding = request.headers.get("content-length"), request.headers.get("transfer-encoding")
    if coding is not None and (text is not None or coding.lower() != "chunked"):
        raise BadRequest(400, "a length and chunks, or an unknown transfer coding")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > LENGTH_MAX:
        raise BadRequest(400, "the length of the body is no number")
    return int(text)
