"""Embedded bookies that ask for tickets: the whole way, with a stand-in for the security contexts alone, because a KDC cannot be had here.
``make kerberos`` plays it with one."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieSasl, BookieTls, Security
from bk_core.bookie.door import Door
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.errors import BookieAuthError, BookieKerberosError, InvalidArgumentError, MissingPackageError
from bk_core.metadata import open_store
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.protocol.bookie.gssapi_server import OFFER
from bk_core.protocol.link.gssapi_exchange import CHOICE, GssapiExchange
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.patience import PATIENT
from tests.integration.secured_zookeeper import Authority

THREE: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
ANN, BOB = "bookkeeper-ann@BK.TEST", "bob@BK.TEST"
KERBEROS = KerberosService("bookkeeper/127.0.0.1@BK.TEST", "/etc/bk/bookie.keytab")
PROOF, SIGNED = b"`proof", b"signed "


@dataclass
class Accepting:
    """The bookie's end: a ticket is the name of a client, and what is signed is what is said."""

    initiator: str = ""
    complete: bool = False

    def step(self, token: bytes) -> bytes | None:
        head, _, name = token.partition(b" ")
        if head != b"`ticket":
            raise BookieKerberosError("its ticket is not taken: A token was invalid")
        self.initiator, self.complete = name.decode(), True
        return PROOF

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(SIGNED):
            raise BookieKerberosError("a signature that is wrong")
        return token.removeprefix(SIGNED)

    def wrap(self, message: bytes) -> bytes:
        return SIGNED + message


@dataclass
class Initiating(Accepting):
    """The client's end."""

    def step(self, token: bytes) -> bytes | None:
        if token != PROOF:
            raise BookieKerberosError("the bookie gives no proof")
        self.complete = True
        return None


@dataclass(frozen=True)
class Ticket:
    """A way to authenticate by the stand-in."""

    name: str = ANN
    first: bytes | None = None

    def exchange(self, host: str) -> GssapiExchange:
        first = b"`ticket " + self.name.encode() if self.first is None else self.first
        return GssapiExchange(self.name, f"bookkeeper/{host}", Initiating(), first)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Accepting]:
    made: list[Accepting] = []

    def accept(_self: KerberosService) -> Accepting:
        made.append(Accepting())
        return made[-1]

    monkeypatch.setattr(KerberosService, "accept", accept)
    monkeypatch.setattr(KerberosService, "check", lambda self: self.principal)
    return made


@dataclass
class Files:
    ca: Authority
    server: tuple[str, str]

    def door(self, kind: str) -> Door:
        certificate, key = self.server if kind == "tls" else (None, None)
        return Door(certificate, key, kerberos=KERBEROS)

    def security(self, kind: str, auth: Any) -> Security:
        return Security(BookieTls(self.ca.certificate) if kind == "tls" else None, auth)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    ca = Authority.made(tmp_path_factory.mktemp("door") / "ca", "ca")
    return Files(ca, ca.signed("b", ["IP:127.0.0.1"]))


@contextmanager
def bookies(files: Files, directory: Path, kind: str, count: int = 3, **limits: float) -> Iterator[tuple[str, list[EmbeddedBookie]]]:
    uri = f"memory://{directory}"
    with ExitStack() as stack:
        store = open_store(uri)
        stack.callback(store.close)
        store.initialize_cluster()
        options = BookieOptions(door=files.door(kind), limits=ConnectionLimits(**limits))
        yield uri, [stack.enter_context(EmbeddedBookie(directory / str(i), "127.0.0.1", 0, store, options)) for i in range(count)]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("kind", ["clear", "tls"])
def test_whoever_has_a_ticket_is_served_in_full(files: Files, tmp_path: Path, kind: str, protocol: Any) -> None:
    payloads = [b"%d" % n * 100 for n in range(500)] + [b"y" * 1_000_000]
    security = files.security(kind, Ticket())
    connect = partial(bk_core.connect, protocol=protocol, security=security, limits=PATIENT)
    with bookies(files, tmp_path, kind) as (uri, _), connect(uri) as client:
        writer = client.create_ledger(**THREE)
        writer.append_many(payloads)
        with client.recover_ledger(writer.ledger_id) as recovered:
            assert recovered.read(0, len(payloads) - 1) == payloads


REFUSED: list[tuple[Any, str, str]] = [
    (
        Ticket(BOB),
        r"does not take this client \(Kerberos principal bob@BK.TEST, .*\): .*does not admit that name",
        "'bob@BK.TEST' is none of",
    ),
    (Ticket(first=b"`another"), "the bookie does not take the ticket", "its ticket is not taken: A token was invalid"),
    (
        BookieSasl("ann", "moss-3310"),
        "does not begin SASL DIGEST-MD5: it may want Kerberos",
        "an empty token, as of a client with a password",
    ),
]


@pytest.mark.parametrize("kind", ["clear", "tls"])
@pytest.mark.parametrize(("auth", "text", "logged"), REFUSED, ids=["a name that is not admitted", "a ticket", "a password"])
def test_each_refusal_has_its_error_and_a_line_in_the_log(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, auth: Any, text: str, logged: str
) -> None:
    """LINK-10, with the words that there are of Apache's bookies."""
    security = files.security(kind, auth)
    with bookies(files, tmp_path, kind, 1) as (uri, _), bk_core.connect(uri, security=security, operation_timeout_s=3600) as client:
        with caplog.at_level(logging.WARNING, "bk_core.bookie"), pytest.raises(BookieAuthError, match=text):
            client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).append(b"x")
    assert any("is not admitted: " in record.message and logged in record.message for record in caplog.records)


def test_a_client_that_shows_nothing_is_told_what_is_missing(files: Files, tmp_path: Path) -> None:
    security = files.security("tls", None)
    with bookies(files, tmp_path, "tls", 1) as (uri, _), bk_core.connect(uri, security=security, operation_timeout_s=3600) as client:
        with pytest.raises(BookieAuthError, match="wants clients that authenticate"):
            client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).append(b"x")


def frame(request: m.Request) -> bytes:
    return codec_v2.frame(codec_v3.encode_request(request))


def answers(file: Any, count: int) -> list[m.Response]:
    return [codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big"))) for _ in range(count)]


@pytest.mark.parametrize("cut", [None, 3, 20, -1])
def test_the_first_token_of_java_may_come_in_clear_behind_start_tls(files: Files, tmp_path: Path, cut: int | None) -> None:
    """wire-protocol.md 10.4: with GSSAPI it is no empty one. All that is said of it comes inside of TLS."""
    ticket = frame(m.AuthRequest(2, "sasl", b"`ticket " + ANN.encode()))
    with bookies(files, tmp_path, "tls", 1) as (_, (bookie,)), socket.create_connection((bookie.host, bookie.port), 30) as plain:
        plain.sendall(frame(m.StartTlsRequest(1)) + (ticket if cut is None else ticket[:cut]))
        with plain.makefile("rb", 0) as file:
            assert answers(file, 1) == [m.StartTlsResponse(1, Status.OK)]
        plain.sendall(b"" if cut is None else ticket[cut:])
        with ssl.create_default_context(cafile=files.ca.certificate).wrap_socket(plain, server_hostname="127.0.0.1") as peer:
            with peer.makefile("rb") as file:
                assert answers(file, 1) == [m.AuthResponse(2, Status.OK, "sasl", PROOF)]
                peer.sendall(frame(m.AuthRequest(3, "sasl", b"")))
                assert answers(file, 1) == [m.AuthResponse(3, Status.OK, "sasl", SIGNED + OFFER)]
                peer.sendall(frame(m.AuthRequest(4, "sasl", SIGNED + CHOICE + ANN.encode())) + frame(m.BookieInfoRequest(5, 0)))
                (served,) = answers(file, 1)
    assert isinstance(served, m.BookieInfoResponse) and served.status is Status.OK and served.request_id == 5


def test_two_tokens_behind_start_tls_end_the_connection(files: Files, tmp_path: Path) -> None:
    ticket = frame(m.AuthRequest(2, "sasl", b"`ticket " + ANN.encode()))
    with bookies(files, tmp_path, "tls", 1) as (_, (bookie,)), socket.create_connection((bookie.host, bookie.port), 30) as plain:
        plain.sendall(frame(m.StartTlsRequest(1)) + ticket + ticket)
        with plain.makefile("rb", 0) as file:
            assert answers(file, 1) == [m.StartTlsResponse(1, Status.OK)] and file.read(1) == b""


def test_a_stranger_has_one_try_and_a_bounded_time(files: Files, tmp_path: Path, stand_in: list[Accepting]) -> None:
    """BKE-5: a thousand tokens of one connection are judged once, none has an answer, and the connection ends."""
    with bookies(files, tmp_path, "clear", 1, stalled_s=1.0) as (_, (bookie,)):
        begun = time.monotonic()
        with socket.create_connection((bookie.host, bookie.port), 30) as peer, peer.makefile("rb", 0) as file:
            peer.sendall(frame(m.AuthRequest(1, "sasl", b"`another" + bytes(600))) * 1000 + frame(m.ReadRequest(2, 7, 0)))
            (refused,) = answers(file, 1)
            assert refused.request_id == 2 and refused.status is Status.UNAUTHORIZED
            assert file.read(1) == b"" and time.monotonic() - begun < 30
        assert len(stand_in) == 1
        with socket.create_connection((bookie.host, bookie.port), 30) as silent:
            assert silent.recv(1) == b"" and len(stand_in) == 1


# --- its words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: KerberosService("", "/k"), "needs a principal, the path of its keytab, and clients"),
        (lambda: KerberosService("a", ""), "needs a principal, the path of its keytab, and clients"),
        (lambda: KerberosService("a", "/k\0"), "needs a principal, the path of its keytab, and clients"),
        (lambda: KerberosService("a", "/k", ""), "needs a principal, the path of its keytab, and clients"),
        (lambda: KerberosService("a", "/k", "("), r"clients of KerberosService, '\(', is no regular expression"),
        (lambda: Door(users_file="/u", kerberos=KERBEROS), "passwords or tickets: give Door users_file or kerberos"),
        (lambda: Door("c", None, "ca", None, ("a",), KERBEROS), "no users_file and no kerberos can be beside them"),
        (lambda: bk_core.local_cluster(kerberos=KERBEROS, apache="4.18.0"), "tls, sasl and kerberos are those of embedded bookies"),
        (lambda: bk_core.local_cluster(kerberos=KERBEROS, sasl=True), "passwords or tickets: leave sasl or kerberos out"),
        (
            lambda: bk_core.local_cluster(kerberos=KerberosService(KERBEROS.principal, "/k", "ann@.*")),
            "'ann@.*', must match bookkeeper/127.0.0.1@BK.TEST too",
        ),
    ],
)
def test_what_can_never_work_is_told_at_the_start(make: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make()


@pytest.mark.parametrize(
    ("clients", "admitted", "refused"),
    [
        (".*bookkeeper.*", [ANN, "x@BOOKKEEPER.bookkeeper"], [BOB, "bookkeepe@R", "x\nbookkeeper"]),
        ("bookkeeper-ann@BK[.]TEST", [ANN], [ANN + "x", "x" + ANN, ANN + "\n", "bookkeeper-ann@BKxTEST"]),
        ("ann@R|bob@R", ["ann@R", "bob@R"], ["ann@R|bob@R", "ann@Rx", "xbob@R"]),
    ],
)
def test_the_whole_name_of_a_client_must_match(clients: str, admitted: list[str], refused: list[str]) -> None:
    kerberos = KerberosService("a", "/k", clients)
    assert all(map(kerberos.admits, admitted)) and not any(map(kerberos.admits, refused))


def test_without_the_package_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingPackageError, match="Kerberos needs the package gssapi"):
        bk_core.local_cluster(1, tmp_path / "c", kerberos=KERBEROS)
    with pytest.raises(MissingPackageError):
        EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=Door(kerberos=KERBEROS))).start()
    assert list(tmp_path.iterdir()) == []


def test_it_shows_the_path_of_its_key_alone(tmp_path: Path) -> None:
    assert repr(KERBEROS) == (
        "KerberosService(principal='bookkeeper/127.0.0.1@BK.TEST', keytab='/etc/bk/bookie.keytab', clients='.*bookkeeper.*')"
    )
