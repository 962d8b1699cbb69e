"""The doors of the embedded bookie: what comes before, within and behind START_TLS, the handshake of TLS and SASL.

A case goes in honestly as far as it likes and then does what nobody should: other requests, tokens that are bent, of others or of another
exchange, bytes in place of frames or of TLS, an end. Nobody who was not admitted reads an entry or changes a ledger. Every third case is
admitted first, and is one of ``requests`` then. After each case an honest peer is served.
"""

from __future__ import annotations

import random
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bk_core.errors import BkError
from bk_core.protocol.bookie.digest_md5 import directives
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import encode_request
from tests.fuzz import requests
from tests.fuzz.cases import play_cases
from tests.fuzz.doorways import Doorway, Wire, asked, doorways
from tests.fuzz.requests import KEY, Probe, Result, World, Wrong, bend, body

GUARDED = 1 << 51  # a ledger that only those who are admitted may touch
TREASURE = b"for those who are admitted alone"
CONNECTIONS_S = 20.0


class Intruder:
    """One connection: what it was asked and told, and whether it was let in rightly."""

    def __init__(self, doorway: Doorway, port: int, rng: random.Random) -> None:
        self.doorway, self.rng = doorway, rng
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=requests.ANSWER_S)
        self.protocol: Wire = rng.choice(("v2", "v3"))
        self.is_wild = rng.random() < 0.5  # others say nothing that ends a connection at once, and so are heard longer
        self.received = b""
        self.is_secured = not doorway.tls
        self.is_known = not doorway.sasl
        self.told: list[str] = []
        self._challenge = b""

    @property
    def may_be_served(self) -> bool:
        return self.is_secured and self.is_known

    def send(self, data: bytes, what: str) -> None:
        self.told.append(what)
        self.sock.settimeout(requests.ANSWER_S)
        try:
            self.sock.sendall(data)
        finally:
            self.sock.setblocking(False)

    def listen(self, others: Probe) -> None:
        """Take the answers to everything that was sent."""
        others.await_turn()
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            while more := self.sock.recv(1 << 16):
                self.received += more

    # --- honest steps ---------------------------------------------------------------------------------------------

    def come(self, steps: int) -> None:
        """Go in honestly, so many steps far: TLS, the challenge, the response."""
        self.sock.settimeout(requests.ANSWER_S)
        with_tls = [self.secure] if self.doorway.tls else []
        with_sasl = [self.begin, self.prove] if self.doorway.sasl else []
        for step in [*with_tls, *with_sasl][:steps]:
            self.told.append(step.__name__)
            step()
        self.sock.setblocking(False)

    def secure(self) -> None:
        if asked(self.sock, m.StartTlsRequest(1), "v3").status is not m.Status.OK:
            raise Wrong("an honest START_TLS is refused")
        self.sock = self.doorway.shaken(self.sock)
        self.is_secured = True

    def begin(self) -> None:
        answer = asked(self.sock, m.AuthRequest(2, "sasl", b""), self.protocol)
        if not isinstance(answer, m.AuthResponse) or answer.status is not m.Status.OK:
            raise Wrong(f"no challenge: {answer}")
        self._challenge = answer.payload

    def prove(self) -> None:
        answer = asked(self.sock, m.AuthRequest(3, "sasl", self.token()), self.protocol)
        if not isinstance(answer, m.AuthResponse) or not answer.payload.startswith(b"rspauth="):
            raise Wrong(f"the right response is refused: {answer}")
        self.is_known = True

    def token(self, password: str | None = None) -> bytes:
        """The response to the last challenge."""
        exchange = self.doorway.exchange(password)
        exchange.first()
        return exchange.answer(self._challenge) or b""

    # --- what nobody should do ------------------------------------------------------------------------------------

    def intrude(self) -> None:
        wild = (self._shake, self._babble, self._bend) if self.is_wild else ()
        self.rng.choice((self._ask, self._ask, self._ask, self._ask, self._authenticate, *wild))()

    def _ask(self) -> None:
        """Ask for what is guarded, as everybody may who was admitted."""
        reads = [
            m.ReadRequest(5, GUARDED, 0),
            m.BatchReadRequest(5, GUARDED, 0, 10, 1 << 20),
            m.ReadLacRequest(5, GUARDED),
            m.ReadRequest(5, GUARDED, 0, previous_lac=-1, timeout_ms=10, piggyback=True),
            m.EntryListRequest(5, GUARDED),
            m.BookieInfoRequest(5),
        ]
        changes = [
            m.AddRequest(5, GUARDED, self.rng.randrange(9), KEY, body(GUARDED, 1, b"forged"), self.rng.random() < 0.5),
            m.ReadRequest(5, GUARDED, -1, fence=True, master_key=KEY),
            m.WriteLacRequest(5, GUARDED, 0, KEY, body(GUARDED, 0, b"")),
            m.ForceLedgerRequest(5, GUARDED),
        ]
        request = self.rng.choice(reads if self.may_be_served else reads + changes)
        frame = requests.frame_of(request, self.rng.choice(("v2", "v3")) if self.is_wild else self.protocol)
        if frame is not None:
            more = [
                requests.frame_of(m.ReadRequest(5, GUARDED, entry), self.protocol) or b"" for entry in range(self.rng.choice((0, 0, 4)))
            ]
            self.send(frame + b"".join(more), f"{type(request).__name__} and {len(more)} reads")

    def _authenticate(self) -> None:
        """A token that is empty, bent, of a wrong password, of another challenge, or just bytes; of another provider, too."""
        made = self.token() if self._challenge and self.doorway.sasl else b""
        match self.rng.randrange(6):
            case 0:
                token = b""
            case 1 if made:
                at = self.rng.randrange(len(made))
                token = made[:at] + bytes([made[at] ^ 1 << self.rng.randrange(8)]) + made[at + 1 :]
            case 2 if made:
                token = self.token("another password")
            case 3 if made:
                token = made[: self.rng.randrange(len(made))] + self.rng.choice((b"", b",", b'"', b'nc="', made))
            case 4:
                token = b'charset=utf-8,username="x",realm="bookkeeper",nonce="",nc=00000001,cnonce="",digest-uri="",response=0'
            case _:
                token = self.rng.randbytes(self.rng.choice((1, 30, 4097, 60_000)))
        given, right = directives(token) or {}, directives(made) or {}
        if made and given.get("response") == right.get("response"):
            self.is_known = True  # some bits of it say nothing
        plugin = self.rng.choice(("", "BookieAuthZFactory", "x" * 300)) if self.is_wild and self.rng.random() < 0.3 else "sasl"
        frame = requests.frame_of(m.AuthRequest(4, plugin, token), self.protocol)
        assert frame is not None
        self.send(frame, f"token of {len(token)} bytes")

    def _shake(self) -> None:
        """Ask for TLS, and then say what is no handshake, or only a part of one."""
        hello = _client_hello()
        at = self.rng.randrange(len(hello))
        after = self.rng.choice(
            (b"", hello[:at], hello[:at] + bytes([hello[at] ^ 255]) + hello[at + 1 :], self.rng.randbytes(200), b"\x16\x03\x01")
        )
        self.send(encode_request(m.StartTlsRequest(6), "v3") + after, f"START_TLS and {len(after)} bytes")

    def _babble(self) -> None:
        self.send(self.rng.randbytes(self.rng.choice((1, 3, 4, 50, 70_000))), "bytes")

    def _bend(self) -> None:
        sound = self.rng.choice((m.StartTlsRequest(7), m.AuthRequest(7, "sasl", b""), m.ReadRequest(7, GUARDED, 0)))
        frame = requests.frame_of(sound, self.rng.choice(("v2", "v3")))
        if frame is not None:
            self.send(bend(self.rng, frame), f"bent {type(sound).__name__}")


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


# --- cases ------------------------------------------------------------------------------------------------------------------


@dataclass
class Guarded:
    """The bookies behind one doorway."""

    doorway: Doorway
    world: World
    before: object = field(init=False)

    def __post_init__(self) -> None:
        with self.world.connected(self.world.third) as sock:
            added = asked(sock, m.AddRequest(1, GUARDED, 0, KEY, body(GUARDED, 0, TREASURE)), "v3")
            assert added.status is m.Status.OK, added
        self.before = self.state()

    def state(self) -> object:
        return requests._state(self.world.third, GUARDED)

    def play(self, rng: random.Random, case: int) -> int:
        if case % 3 == 0:
            return self.world.play(requests.script(rng, case), rng, case)
        intruder = Intruder(self.doorway, self.world.third.port, rng)
        try:
            intruder.come(rng.randrange(4))
            with suppress(OSError):  # the bookie may end it at any step
                for _ in range(rng.randrange(1, 12)):
                    intruder.intrude()
                    if rng.random() < 0.6:
                        intruder.listen(self.world.probes[2])
                intruder.listen(self.world.probes[2])
        finally:
            intruder.sock.close()
        self.world.require_peace()
        if TREASURE in intruder.received and not intruder.may_be_served:
            raise Wrong(f"an entry was read by who was not admitted ({self.doorway.name}): {intruder.told}")
        if self.state() != self.before:
            raise Wrong(f"a ledger was changed by who was not admitted ({self.doorway.name}): {intruder.told}")
        return len(intruder.told)

    def require_empty(self) -> None:
        """Wrong if a connection stays open whose peer is gone."""
        deadline = time.monotonic() + CONNECTIONS_S
        while (count := self.world.third.metrics().value("bookkeeper_bookie_connections")) > 1:
            if time.monotonic() > deadline:
                raise Wrong(f"{count:g} connections are open ({self.doorway.name}), and one peer is there")
            time.sleep(0.01)


@contextmanager
def guarded() -> Iterator[list[Guarded]]:
    """Bookies behind each doorway."""
    directory = Path(tempfile.mkdtemp(prefix="bk-fuzz-"))
    try:
        with ExitStack() as stack:
            yield [Guarded(doorway, stack.enter_context(requests.world(doorway))) for doorway in doorways(directory)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(
    *,
    seconds: float | None = None,
    seed: int = 0,
    first: int = 0,
    cases: int | None = None,
    crashes_max: int = 20,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Cases ``first``, first + 1, ... until the time is over, or so many of them or of crashes were seen; crashes are told at once."""
    result = Result()
    caught = (Wrong, BkError, OSError, AssertionError)
    with guarded() as worlds:

        def play(case: int) -> int:
            return worlds[case % len(worlds)].play(random.Random(f"{seed}/{case}"), case)

        play_cases(result, play, seconds=seconds, seed=seed, first=first, cases=cases, crashes_max=crashes_max, say=say, caught=caught)
        for world in worlds:
            try:
                world.require_empty()
            except Wrong as error:
                result.crashes.append(f"seed {seed}, in the end: {error}")
                say(result.crashes[-1])
    return result
