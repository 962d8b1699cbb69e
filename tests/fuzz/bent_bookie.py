"""A TCP server in front of a bookie that bends what the bookie answers. What clients send goes to the bookie as it is, or is swallowed."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from tests.fuzz.bending import Bender

_BACKLOG = 64
_TIMEOUT_S = 10.0  # of one connection of one case: far more than any case takes


@dataclass(eq=False)
class Connection:
    """``sent``: all bytes that went to the client, made of so many ``frames``; the first ``spared`` of them are not bent. ``client_gone``
    is set when the client has closed."""

    client: socket.socket
    bookie: socket.socket
    bender: Bender
    spared: int = 0
    sent: bytearray = field(default_factory=bytearray)
    client_gone: threading.Event = field(default_factory=threading.Event)
    frames: int = 0

    def close(self) -> None:
        for end in (self.client, self.bookie):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class BentBookie:
    """Stands for the bookie at ``port``. ``begin`` gives the seed of what follows; ``swallow`` is the chance that a request gets lost."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self.begin(random.Random(0), "v2", rate=0.0)
        threading.Thread(target=self._accept, name="bent-bookie", daemon=True).start()

    def begin(self, rng: random.Random, protocol: str, *, rate: float, swallow: float = 0.0) -> None:
        """A new case: connections of the last one are closed."""
        with self._lock:
            old, self.connections = self.connections, []
            self._rng, self._protocol, self._rate, self._swallow = rng, protocol, rate, swallow
        for connection in old:
            connection.close()

    def close(self) -> None:
        self._closed = True
        self.begin(random.Random(0), "v2", rate=0.0)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                bookie = socket.create_connection(("127.0.0.1", self._target), timeout=_TIMEOUT_S)
            except OSError:
                client.close()
                continue
            client.settimeout(_TIMEOUT_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                rng = random.Random(self._rng.getrandbits(64))
            self.meet(client, bookie, rng)

    def meet(self, client: socket.socket, bookie: socket.socket, rng: random.Random) -> None:
        """Stand between these two from now on."""
        self.join(client, bookie, rng)

    def join(self, client: socket.socket, bookie: socket.socket, rng: random.Random, spared: int = 0) -> None:
        """Carry frames between these two, of which the first ``spared`` answers are not bent."""
        with self._lock:
            connection = Connection(client, bookie, Bender(rng, self._protocol, self._rate), spared)
            self.connections.append(connection)
            swallow = self._swallow
        threading.Thread(target=self._requests, args=(connection, swallow), daemon=True).start()
        threading.Thread(target=self._answers, args=(connection,), daemon=True).start()

    def _requests(self, connection: Connection, swallow: float) -> None:
        rng = random.Random(connection.bender.rng.getrandbits(64))
        with suppress(OSError), connection.client.makefile("rb") as source:
            while (frame := _read_frame(source)) is not None:
                if not swallow or rng.random() >= swallow:
                    connection.bookie.sendall(frame)
        connection.client_gone.set()
        connection.close()
        connection.client.close()

    def _answers(self, connection: Connection) -> None:
        bender = connection.bender
        with suppress(OSError), connection.bookie.makefile("rb") as source:
            while not bender.cut and (frame := _read_frame(source)) is not None:
                connection.frames += 1
                sent = frame if connection.frames <= connection.spared else bender.frame(frame[4:])
                for piece in bender.pieces(sent):
                    connection.sent += piece
                    connection.client.sendall(piece)
        with suppress(OSError):
            connection.client.shutdown(socket.SHUT_WR if bender.rng.random() < 0.5 else socket.SHUT_RDWR)
        connection.bookie.close()


def _read_frame(source: object) -> bytes | None:
    read = source.read  # type: ignore[attr-defined]
    head = read(4)
    if len(head) < 4:
        return None
    body = read(struct.unpack(">I", head)[0])
    return bytes(head + body)
