"""Kerberos (SASL GSSAPI) at embedded bookies, as far as it is theirs alone: how it is asked for, and clients that are hostile.

``make kerberos`` runs it, with kerberos_bookies.py, which has what embedded bookies share with Apache's.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieKerberos, Security
from bk_core.bookie.children import Child
from bk_core.bookie.door import Door
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.local_cluster import local_cluster
from bk_core.bookie.replicas import ReplicaReader
from bk_core.errors import BookieAuthError, InvalidArgumentError
from bk_core.kerberos import Identity
from bk_core.protocol.bookie.gssapi_server import OFFER
from bk_core.protocol.link.gssapi_exchange import CHOICE, GssapiExchange
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire.messages import AuthRequest, AuthResponse, BookieInfoRequest, ReadRequest, Status
from bk_core.security import security_of
from tests.integration.kdc import ANN, REALM, SERVICE, Kdc, missing_programs
from tests.integration.kerberos_bookies import BOB, KEYTAB_HEAD, writes_and_reads
from tests.integration.patience import PATIENT
from tests.integration.test_secured_bookies import THREE, refused

OTHER = f"ledgers/127.0.0.1@{REALM}"
"""Another service on the same host."""
_TIMEOUT_S = 180.0


@dataclass
class World:
    kdc: Kdc
    keytab: Path
    """Of the bookie, and of another service."""
    ann: Path
    bob: Path
    bookie: EmbeddedBookie

    def tickets(self, principal: str = ANN, service: str = "bookkeeper") -> GssapiExchange:
        """Return an exchange of a client, whose first token is made."""
        return Identity(principal, str(self.bob if principal == BOB else self.ann), None, service).begin("127.0.0.1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    assert not missing_programs(), f"missing: {missing_programs()} (Debian: krb5-kdc, krb5-admin-server, krb5-user)"
    directory = tmp_path_factory.mktemp("kerberos")
    with Kdc(directory / "kdc") as kdc, pytest.MonkeyPatch.context() as patch:
        for principal in (SERVICE, OTHER, ANN, BOB):
            kdc.add(principal)
        keytab, other, ann, bob = (kdc.keytab(one, f"{n}.keytab") for n, one in enumerate((SERVICE, OTHER, ANN, BOB)))
        keytab.write_bytes(keytab.read_bytes() + other.read_bytes()[KEYTAB_HEAD:])
        # tickets end when they end, and not five minutes later
        patch.setenv("KRB5_CONFIG", str(kdc.written("strict.conf", kdc.port, " dns_canonicalize_hostname = false\n clockskew = 1\n")))
        patch.setenv("KRB5CCNAME", f"FILE:{directory / 'no-tickets'}")
        options = BookieOptions(door=Door(kerberos=KerberosService(SERVICE, str(keytab))))
        with EmbeddedBookie(directory / "bookie", "127.0.0.1", 0, None, options) as bookie:
            assert bookie._server is not None
            bookie._server._seldom._lines = 1000  # these tests look at the line of each refusal
            yield World(kdc, keytab, ann, bob, bookie)


@dataclass
class Peer:
    """A client that says what a test wants. Behind each token it asks something, to hear if it is served."""

    sock: socket.socket
    is_v2: bool = False
    heard: list[AuthResponse] = field(default_factory=list)
    _number: int = 0

    def say(self, token: bytes) -> tuple[bytes | None, Status]:
        """Return the answer to a token, None for silence, and to the request behind it."""
        self._number += 2
        request = AuthRequest(self._number, "sasl", token)
        if self.is_v2:
            asked = codec_v2.encode_request(request), codec_v2.encode_request(ReadRequest(0, 7, 0))
        else:
            asked = codec_v3.encode_request(request), codec_v3.encode_request(BookieInfoRequest(self._number + 1, 0))
        self.sock.sendall(b"".join(map(codec_v2.frame, asked)))
        payload = None
        while True:
            answer = self._answer()
            if isinstance(answer, AuthResponse):
                assert answer.status is Status.OK and answer.plugin == "sasl" and payload is None
                payload = answer.payload
            else:
                assert self.is_v2 or answer.request_id == self._number + 1
                return payload, answer.status

    def _answer(self) -> Any:
        body = self._exactly(int.from_bytes(self._exactly(4), "big"))
        return codec_v2.decode_response(body) if self.is_v2 else codec_v3.decode_response(body)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            assert more, "the bookie has closed the connection"
            data += more
        return data


@contextmanager
def peer_of(world: World, *, is_v2: bool = False) -> Iterator[Peer]:
    with socket.create_connection((world.bookie.host, world.bookie.port), _TIMEOUT_S) as sock:
        yield Peer(sock, is_v2)


def offered(peer: Peer, exchange: GssapiExchange) -> None:
    """Go on until there is an offer."""
    token: bytes | None = exchange.first()
    while not exchange._context.complete:
        assert token is not None
        proof, status = peer.say(token)
        assert proof is not None and status is Status.UNAUTHORIZED
        token = exchange.answer(proof)
    assert token == b""
    offer, status = peer.say(b"")
    assert offer is not None and exchange._context.unwrap(offer) == OFFER and status is Status.UNAUTHORIZED


def serves(world: World) -> bool:
    """Return True if the bookie still serves who should be."""
    with peer_of(world) as peer:
        exchange = world.tickets()
        offered(peer, exchange)
        return peer.say(exchange._context.wrap(CHOICE)) == (None, Status.OK)


@pytest.mark.parametrize("is_v2", [False, True], ids=["v3", "v2"])
@pytest.mark.parametrize("name", ["", ANN], ids=["without a name", "with its own"])
def test_the_last_token_has_no_answer_and_what_follows_is_served(world: World, name: str, is_v2: bool) -> None:
    with peer_of(world, is_v2=is_v2) as peer:
        exchange = world.tickets()
        offered(peer, exchange)
        served = Status.NO_LEDGER if is_v2 else Status.OK
        assert peer.say(exchange._context.wrap(CHOICE + name.encode())) == (None, served)


@pytest.mark.parametrize(
    ("choice", "principal", "text"),
    [
        (CHOICE + BOB.encode(), ANN, f"'{ANN}' asks to be b'{BOB}', which is somebody else"),
        (CHOICE + ANN.encode(), BOB, f"'{BOB}' asks to be b'{ANN}', which is somebody else"),
        (CHOICE, BOB, f"'{BOB}' is none of the clients that are admitted"),
        (CHOICE + BOB.encode(), BOB, "none of the clients that are admitted"),
        (b"\x02\0\xff\xff", ANN, "a security layer of SASL that was not offered"),
        (b"", ANN, "a security layer of SASL that was not offered"),
    ],
)
def test_a_choice_that_is_not_taken(world: World, caplog: pytest.LogCaptureFixture, choice: bytes, principal: str, text: str) -> None:
    with peer_of(world) as peer, caplog.at_level(logging.WARNING, "bk_core.bookie"):
        exchange = world.tickets(principal)
        offered(peer, exchange)
        assert peer.say(exchange._context.wrap(choice)) == (None, Status.UNAUTHORIZED)
        assert peer.say(world.tickets().first()) == (None, Status.UNAUTHORIZED)  # and nobody has a second try on this connection
    assert [record.message.partition(" is not admitted: ")[2] for record in caplog.records if text in record.message]
    assert serves(world)


def test_a_choice_of_another_context_is_not_taken(world: World) -> None:
    with peer_of(world) as one, peer_of(world) as other:
        exchanges = world.tickets(), world.tickets()
        for peer, exchange in zip((one, other), exchanges, strict=True):
            offered(peer, exchange)
        assert one.say(exchanges[1]._context.wrap(CHOICE)) == (None, Status.UNAUTHORIZED)


def test_a_ticket_for_another_service_is_not_taken_though_its_key_is_there(world: World) -> None:
    with peer_of(world) as peer:
        assert peer.say(world.tickets(service="ledgers").first()) == (None, Status.UNAUTHORIZED)
    assert serves(world)


def test_a_ticket_that_was_seen_before_is_not_taken(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = world.tickets().first()
    with peer_of(world) as peer:
        assert peer.say(first)[0] is not None
    with peer_of(world) as peer, caplog.at_level(logging.WARNING, "bk_core.bookie"):
        assert peer.say(first) == (None, Status.UNAUTHORIZED)
    assert "Request is a replay" in caplog.text


def with_later_end(cache: Path) -> None:
    """Have a ticket cache say that its tickets end a day later than the tickets themselves do, whose own times are encrypted."""
    data = bytearray(cache.read_bytes())
    now = int(time.time())
    found = 0
    for at in range(len(data) - 12):
        begun, starts, ends = struct.unpack_from(">III", data, at)  # authtime, starttime, endtime
        if now - 600 < begun <= starts <= ends < begun + 60:
            struct.pack_into(">I", data, at + 8, ends + 86_400)
            found += 1
    assert found >= 2, "those of the KDC and of the bookie"
    cache.write_bytes(data)


def test_an_expired_ticket_is_not_taken(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Libraries of Kerberos do not show one; this client's is made to believe that it is still good."""
    name = f"bookkeeper-late@{REALM}"
    world.kdc.add(name, options='-maxlife "5 seconds"')
    cache = world.kdc.tickets(name, world.kdc.keytab(name, "late.keytab"), "late-tickets")
    late = Identity(None, None, cache, "bookkeeper")
    late.begin("127.0.0.1")  # which has the ticket put into the cache
    until = time.monotonic() + _TIMEOUT_S
    while world.kdc.is_valid(cache):
        assert time.monotonic() < until
    with_later_end(Path(cache.removeprefix("FILE:")))
    with caplog.at_level(logging.WARNING, "bk_core.bookie"):
        while "Ticket expired" not in caplog.text:  # a second later, because clocks may differ by so much
            assert time.monotonic() < until
            with peer_of(world) as peer:
                assert peer.say(late.begin("127.0.0.1").first())[1] is Status.UNAUTHORIZED
    with peer_of(world) as peer:
        assert peer.say(late.begin("127.0.0.1").first()) == (None, Status.UNAUTHORIZED)
    assert serves(world)


def garbage(token: bytes) -> Iterator[bytes]:
    """Tokens that are none: cut, with one byte changed, with lengths that lie, of other mechanisms, large."""
    yield from (token[:size] for size in (1, 2, 5, 17, 30, 100, len(token) // 2, len(token) - 1))
    yield from (token[:at] + bytes((token[at] ^ 0x41,)) + token[at + 1 :] for at in range(0, len(token), len(token) // 40))
    yield b"\x60\x84\xff\xff\xff\xff" + token[4:]
    yield b"\x60\x28\x06\x06\x2b\x06\x01\x05\x05\x02\xa0\x1e" + bytes(28)  # SPNEGO
    yield b"NTLMSSP\0\x01\0\0\0" + bytes(20)
    yield b'charset=utf-8,username="bookkeeper-ann",realm="bookkeeper",nonce="x"'
    yield bytes(49_152)
    yield token + bytes(40_000)
    yield os.urandom(60_000)


def test_tokens_that_are_none_end_nothing_but_their_own_connection(world: World) -> None:
    token = world.tickets().first()
    for one in garbage(token):
        with peer_of(world) as peer:
            answer, status = peer.say(one)
            assert status is Status.UNAUTHORIZED
            assert peer.say(b"")[1] is Status.UNAUTHORIZED
            assert peer.say(one)[1] is Status.UNAUTHORIZED
    assert serves(world)


def test_many_tickets_on_one_connection_cost_what_one_does(world: World) -> None:
    """A token is judged once; 2000 more are not even looked at, and others are served meanwhile."""
    wrong = codec_v2.frame(codec_v3.encode_request(AuthRequest(1, "sasl", bytes(600))))
    with peer_of(world) as peer:
        peer.sock.sendall(wrong * 2000)
        assert serves(world)
        assert peer.say(b"x") == (None, Status.UNAUTHORIZED)


# --- how it is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.apache
def test_a_local_cluster_asks_for_tickets_and_its_uri_has_them(world: World, tmp_path: Path) -> None:
    kerberos = KerberosService(SERVICE, str(world.keytab), clients=f"bookkeeper(-ann|/127[.]0[.]0[.]1)@{REALM}")
    with local_cluster(3, tmp_path / "cluster", tls=True, kerberos=kerberos) as cluster:
        with bk_core.connect(cluster.uri, limits=PATIENT) as client:
            writes_and_reads(client)
            with client.create_ledger(**THREE) as ledger:
                ledger.append_many([b"a", b"b"])
        bookie = cluster.bookie_ids[0]
        host, _, port = bookie.rpartition(":")
        reader = ReplicaReader(lambda _: (host, int(port)), security=security_of(cluster.uri))  # as bookies ask each other
        assert len(reader.read(bookie, ledger.ledger_id, [0, 1])) == 2
        reader.close()
        tls = security_of(cluster.uri).tls  # type: ignore[union-attr]
        bare = cluster.uri.partition("?")[0]
        for auth, served in ((BookieKerberos(ANN, str(world.ann)), True), (BookieKerberos(BOB, str(world.bob)), False)):
            with bk_core.connect(bare, security=Security(tls, auth), operation_timeout_s=3600) as client:
                if served:
                    writes_and_reads(client)
                else:
                    refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "does not admit that name")  # noqa: B023
        cluster.restart(1)
        with bk_core.connect(cluster.uri, limits=PATIENT) as client:
            writes_and_reads(client)
    with pytest.raises(InvalidArgumentError, match="must match bookkeeper/127.0.0.1@BK.TEST too, by which bookies ask each other"):
        local_cluster(1, tmp_path / "other", kerberos=KerberosService(SERVICE, str(world.keytab), clients=f"bookkeeper-ann@{REALM}"))
    assert not (tmp_path / "other").exists()


@pytest.mark.apache
def test_bk_local_has_it_too(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bk_core.cli", "local", "--bookies", "1", "--port", "0", "--dir", str(tmp_path / "cluster"), "--json"]
    command += ["--kerberos-principal", SERVICE, "--kerberos-keytab", str(world.keytab), "--kerberos-clients", f".*@{REALM}"]
    with (tmp_path / "out").open("wb") as out:
        child = Child("bk local", command, tmp_path / "log", stdout=out)
    try:
        child.wait_until(lambda: (tmp_path / "out").read_text().endswith("}\n"), _TIMEOUT_S)
        uri = json.loads((tmp_path / "out").read_text())["uri"]
        with bk_core.connect(uri, limits=PATIENT) as client:
            writes_and_reads(client, {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1})
        bob = Security(auth=BookieKerberos(BOB, str(world.bob)))
        with bk_core.connect(uri.partition("?")[0], security=bob, limits=PATIENT) as client:
            writes_and_reads(client, {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1})
    finally:
        child.stop()


@pytest.mark.parametrize(
    ("principal", "keytab", "text"),
    [
        (SERVICE, "/absent.keytab", r"no Kerberos for bookkeeper/127.0.0.1@BK.TEST by the keytab /absent.keytab: it cannot be read"),
        (
            f"bookkeeper/elsewhere@{REALM}",
            None,
            "for bookkeeper/elsewhere@BK.TEST by the keytab .*: No key table entry found",
        ),
        (SERVICE, "/etc/passwd", "by the keytab /etc/passwd: "),
    ],
)
def test_a_key_that_is_not_there_is_told_before_anything_starts(
    world: World, tmp_path: Path, principal: str, keytab: str | None, text: str
) -> None:
    kerberos = KerberosService(principal, keytab or str(world.keytab))
    for start in (
        lambda: local_cluster(1, tmp_path / "c", kerberos=kerberos),
        EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=Door(kerberos=kerberos))).start,
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            start()
    uri = "zk://127.0.0.1:9/ledgers"  # where nothing listens, and which would be waited for
    command = [sys.executable, "-m", "bk_core.bookie.server", "--uri", uri, "--directory", str(tmp_path / "s")]
    command += ["--kerberos-principal", principal, "--kerberos-keytab", kerberos.keytab]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 1 and "bookie cannot run: [BK-ARGUMENT] no Kerberos for" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_goes_later_admits_nobody_until_it_is_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    content = world.keytab.read_bytes()
    world.keytab.unlink()
    try:
        with peer_of(world) as peer, caplog.at_level(logging.WARNING, "bk_core.bookie"):
            assert peer.say(world.tickets().first()) == (None, Status.UNAUTHORIZED)
        assert f"by the keytab {world.keytab}: it cannot be read (No such file or directory)" in caplog.text
    finally:
        world.keytab.write_bytes(content)
    assert serves(world)
