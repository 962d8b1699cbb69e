"""Stands in front of a bookie that asks who comes, and bends what the bookie says: inside of TLS, or the bytes of the wire themselves."""

from __future__ import annotations

import random
import select
import socket
import threading
from contextlib import suppress

from tests.fuzz.bending import Bender
from tests.fuzz.bent_bookie import BentBookie, Connection
from tests.fuzz.doorways import Doorway

_AUTH_ANSWERS = 2  # of an exchange of SASL
_SPARED = 0.8  # the share of exchanges that are not bent, so that what is behind them is reached
_WIRE_BYTES_MAX = 200_000  # the last byte of the wire that is bent
_TIMEOUT_S = 10.0


class BentDoor(BentBookie):
    """It has the keys of the bookie and of a client. ``to_bookie`` holds what clients sent on wires that were bent as they are."""

    def __init__(self, port: int, doorway: Doorway) -> None:
        self._doorway = doorway
        self.to_bookie: list[bytearray] = []
        super().__init__(port)

    def meet(self, client: socket.socket, bookie: socket.socket, rng: random.Random) -> None:
        target = self._inside if rng.random() < 0.5 else self._outside
        threading.Thread(target=target, args=(client, bookie, rng), daemon=True).start()

    def _inside(self, client: socket.socket, bookie: socket.socket, rng: random.Random) -> None:
        spared = _AUTH_ANSWERS if self._doorway.sasl and rng.random() < _SPARED else 0
        try:
            self.join(*self._doorway.between(client, bookie), rng, spared)
        except OSError:
            client.close()
            bookie.close()

    def _outside(self, client: socket.socket, bookie: socket.socket, rng: random.Random) -> None:
        """Carry bytes, and bend some of those of the bookie: at the beginning, where the handshake is, more often than later."""
        with self._lock:
            rate = self._rate
            connection = Connection(client, bookie, Bender(rng, self._protocol, 0.0))
            self.connections.append(connection)
        size = rng.choice((8, 100, 3000, _WIRE_BYTES_MAX))
        places = sorted(rng.randrange(size) for _ in range(rng.choice((1, 1, 3)))) if rng.random() < rate else []
        said = bytearray()
        self.to_bookie.append(said)
        try:
            with suppress(OSError):
                _carry(client, bookie, said, connection, places, rng)
        finally:
            connection.client_gone.set()
            connection.close()
            client.close()
            bookie.close()


def _carry(
    client: socket.socket, bookie: socket.socket, said: bytearray, connection: Connection, places: list[int], rng: random.Random
) -> None:
    while readable := select.select([client, bookie], [], [], _TIMEOUT_S)[0]:
        for end in readable:
            data = end.recv(1 << 16)
            if not data:
                return
            if end is client:
                said += data
                bookie.sendall(data)
                continue
            connection.frames += 1
            while places and places[0] < len(connection.sent) + len(data):
                bent = _bent(data, places.pop(0) - len(connection.sent), rng)
                if bent is None:
                    return
                data = bent
            connection.sent += data
            client.sendall(data)


def _bent(data: bytes, at: int, rng: random.Random) -> bytes | None:
    """The bytes of the wire with something wrong near ``at``; None ends the connection."""
    at = max(0, min(at, len(data) - 1))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + rng.randbytes(rng.choice((1, 4, 500))) + data[at:]
        case 2:
            return data[:at] + data[at + rng.choice((1, 4, 500)) :]
        case 3:
            return data + data
        case 4:
            return data[:at]  # the rest is lost, and what comes next follows
        case _:
            return None
