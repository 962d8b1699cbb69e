"""Embedded bookies that ask for TLS, certificates and passwords: whoever has them is served in full, nobody else with anything."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieSasl, BookieTls, Security
from bk_core.bookie.connection import GATE_FRAME_BYTES_MAX
from bk_core.bookie.door import Door, users_of
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.replicas import ReplicaReader
from bk_core.client.doctor.probe import probe_bookies
from bk_core.errors import BookieAuthError, BookieRoleError, BookieSecurityError, BookieTlsError, InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.secured_zookeeper import Authority

THREE: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


@dataclass
class World:
    directory: Path
    ca: Authority
    stranger: Authority
    server: tuple[str, str]
    client: tuple[str, str]
    users: str
    writer: tuple[str, str]

    @property
    def reader(self) -> tuple[str, str]:
        """A certificate whose first role is not admitted, and whose second one would be."""
        return self.ca.signed("reader", subject="/OU=0:reader,writer/OU=0:writer")

    @property
    def tls(self) -> BookieTls:
        return BookieTls(self.ca.certificate, *self.client)

    def door(self, kind: str) -> Door:
        users = self.users if "sasl" in kind else None
        if kind == "roles":
            return Door(*self.server, self.ca.certificate, None, ("admin", "writer"))
        if "tls" not in kind:
            return Door(users_file=users)
        return Door(*self.server, self.ca.certificate if "mutual" in kind else None, users)

    def security(self, kind: str) -> Security:
        if kind == "roles":
            return Security(BookieTls(self.ca.certificate, *self.writer))
        auth = BookieSasl("ann", "moss-3310") if "sasl" in kind else None
        return Security(self.tls if "tls" in kind else None, auth)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp("door")
    ca, stranger = (Authority.made(directory / name, name) for name in ("ca", "stranger"))
    users = directory / "users"
    users.write_text("# who may\nann:moss-3310\nbob:with:colons\n")
    return World(
        directory, ca, stranger, ca.signed("b", ["IP:127.0.0.1"]), ca.signed("c"), str(users), ca.signed("writer", subject="/OU=0:writer")
    )


@contextmanager
def bookies(world: World, directory: Path, kind: str, count: int = 3) -> Iterator[tuple[str, list[EmbeddedBookie]]]:
    uri = f"memory://{directory}"
    with ExitStack() as stack:
        store = open_store(uri)
        stack.callback(store.close)
        store.initialize_cluster()
        options = BookieOptions(door=world.door(kind), security=world.security(kind))
        yield uri, [stack.enter_context(EmbeddedBookie(directory / str(i), "127.0.0.1", 0, store, options)) for i in range(count)]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("kind", ["tls", "mutual tls", "sasl", "mutual tls, sasl", "roles"])
def test_whoever_has_what_is_asked_for_is_served_in_full(world: World, tmp_path: Path, kind: str, protocol: Any) -> None:
    """LINK-10, from both sides: runs and large entries, long polls, recovery, batch reads; and many clients at once."""
    payloads = [b"%d" % n * 100 for n in range(2000)] + [bytes([n]) * 3_000_000 for n in range(3)]
    with bookies(world, tmp_path, kind) as (uri, _), bk_core.connect(uri, protocol=protocol, security=world.security(kind)) as client:
        writer = client.create_ledger(**THREE)
        writer.append_many(payloads[:-1])
        writer.append(payloads[-1])  # which tells that all before it are confirmed
        with client.open_ledger(writer.ledger_id) as reader:
            end = reader.read_last_add_confirmed()
            assert reader.read(0, end) == payloads[: end + 1] and end >= len(payloads) - 2
            came = threading.Event()
            found: list[bytes] = []

            def follow() -> None:
                for run in reader.tail(end + 1):
                    found.extend(bytes(one) for one in run.payloads())
                    if b"later" in found:
                        return came.set()

            follower = threading.Thread(target=follow)
            follower.start()
            writer.append(b"later")
            writer.append(b"last")
            assert came.wait(60)
            follower.join(60)
        with client.recover_ledger(writer.ledger_id) as recovered:
            assert recovered.last_add_confirmed == len(payloads) + 1 and recovered.read(0, len(payloads) - 1) == payloads


REFUSALS: list[tuple[str, Any, type[BookieSecurityError], str]] = [
    ("tls", lambda w: Security(BookieTls(w.stranger.certificate)), BookieTlsError, "is not trusted"),
    ("mutual tls", lambda w: Security(BookieTls(w.ca.certificate)), BookieTlsError, "may want a client certificate"),
    (
        "mutual tls",
        lambda w: Security(BookieTls(w.ca.certificate, *w.stranger.signed("c"))),
        BookieTlsError,
        "may want a client certificate",
    ),
    ("sasl", lambda w: Security(w.tls), BookieTlsError, "does not speak TLS"),
    (
        "sasl",
        lambda w: Security(auth=BookieSasl("ann", "wrong-8731")),
        BookieAuthError,
        "does not take this client .SASL user 'ann'.: the user or the secret is wrong there",
    ),
    ("sasl", lambda w: Security(auth=BookieSasl("nobody", "moss-3310")), BookieAuthError, "does not take"),
    ("tls", lambda w: Security(w.tls, BookieSasl("ann", "moss-3310")), BookieAuthError, "authenticates nobody"),
    ("mutual tls, sasl", lambda w: Security(w.tls), BookieAuthError, "wants clients that authenticate"),
    ("tls, sasl", lambda w: Security(auth=BookieSasl("ann", "moss-3310")), BookieAuthError, "perhaps .* without TLS"),
    ("roles", lambda w: Security(w.tls), BookieRoleError, "its role .OU=0:ROLE. is none of the bookie's authorizedRoles, or it shows none"),
    ("roles", lambda w: Security(BookieTls(w.ca.certificate, *w.reader)), BookieRoleError, "its role .OU=0:ROLE. is none of the bookie's"),
    ("roles", lambda w: Security(w.tls, BookieSasl("ann", "moss-3310")), BookieAuthError, "another authentication provider than 'sasl'"),
]


@pytest.mark.parametrize(("kind", "make", "error", "text"), REFUSALS)
def test_each_refusal_has_its_error(world: World, tmp_path: Path, kind: str, make: Any, error: type[Exception], text: str) -> None:
    with bookies(world, tmp_path, kind, 1) as (uri, _), bk_core.connect(uri, security=make(world), operation_timeout_s=3600) as client:
        with pytest.raises(BookieSecurityError, match=text) as told:
            client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).append(b"x")
        assert type(told.value) is error


def raw(bookie: EmbeddedBookie, *payloads: bytes) -> list[bytes]:
    """Return the answers of a bookie to payloads that are sent together, one after the other, until it closes or says no more."""
    answers = []
    with socket.create_connection((bookie.host, bookie.port), 5) as peer:
        peer.sendall(b"".join(map(codec_v2.frame, payloads)))
        peer.shutdown(socket.SHUT_WR)
        file = peer.makefile("rb")
        while head := file.read(4):
            answers.append(file.read(int.from_bytes(head, "big")))
        file.close()
    return answers


@pytest.mark.parametrize("kind", ["mutual tls", "sasl", "tls, sasl", "roles"])
def test_nothing_is_served_to_who_just_connects(world: World, tmp_path: Path, kind: str) -> None:
    """Not over v3, not over v2, not in runs; whatever is asked is refused, and nothing was stored."""
    body = m.AddRequest(1, 7, 0, b"k" * 20, (7).to_bytes(8, "big") + bytes(24))
    with bookies(world, tmp_path, kind, 1) as (_, (bookie,)):
        asked = [codec_v3.encode_request(one) for one in (m.ReadRequest(1, 7, 0), m.BookieInfoRequest(2), m.ReadLacRequest(3, 7))]
        said = [codec_v3.decode_response(one) for one in raw(bookie, *asked)]
        assert [(one.request_id, one.status) for one in said] == [(n, Status.UNAUTHORIZED) for n in (1, 2, 3)]
        (answer,) = raw(bookie, codec_v2.encode_request(m.ReadRequest(0, 7, 0)))
        assert codec_v2.decode_response(answer).status is Status.UNAUTHORIZED
        (answer,) = raw(bookie, codec_v2.encode_request(body))
        assert codec_v2.decode_response(answer).status is Status.UNAUTHORIZED
        (answer,) = raw(bookie, *[codec_v2.encode_request(m.ReadRequest(0, 7, n)) for n in range(5)])  # a run is refused by its first
        refused = codec_v2.decode_response(answer)
        assert isinstance(refused, m.ReadResponse) and (refused.status, refused.entry_id) == (Status.UNAUTHORIZED, 0)
        assert raw(bookie, codec_v2.encode_request(m.AuthRequest(0, "other", b""))) == []
        (answer,) = raw(bookie, codec_v3.encode_request(m.AuthRequest(4, "other", b"")))
        assert codec_v3.decode_response(answer).status is Status.UNAUTHORIZED


@pytest.mark.parametrize("kind", ["tls", "sasl"])
def test_who_does_not_come_in_goes(world: World, tmp_path: Path, kind: str) -> None:
    """BKE-5: each byte of a request gives a client that is admitted more time, but no stranger."""
    options = BookieOptions(door=world.door(kind), limits=ConnectionLimits(stalled_s=1.0))
    with EmbeddedBookie(tmp_path, "127.0.0.1", 0, None, options) as bookie:
        with socket.create_connection((bookie.host, bookie.port), 30) as silent, socket.create_connection(silent.getpeername(), 30) as busy:
            asked = codec_v2.frame(codec_v3.encode_request(m.BookieInfoRequest(1)))
            busy.settimeout(0.2)
            begun, answered = time.monotonic(), True
            with suppress(ConnectionError):
                while answered:
                    assert time.monotonic() - begun < 30
                    busy.sendall(asked)
                    with suppress(TimeoutError):
                        answered = bool(busy.recv(4096))
            assert silent.recv(1) == b""


def test_strangers_push_nobody_out_who_is_admitted(world: World, tmp_path: Path) -> None:
    """BKE-6: they push each other out."""
    limits = ConnectionLimits(connections=8, spare_s=0.0)
    one: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    store = open_store(f"memory://{tmp_path}")
    store.initialize_cluster()
    options = BookieOptions(door=world.door("sasl"), limits=limits)
    with EmbeddedBookie(tmp_path / "b", "127.0.0.1", 0, store, options) as bookie, ExitStack() as stack:
        client = stack.enter_context(bk_core.connect(f"memory://{tmp_path}", security=world.security("sasl")))
        ledger = client.create_ledger(**one)
        ledger.append(b"x")
        made = client.metrics().value("bookkeeper_client_bookie_connected_total")
        crowd = [stack.enter_context(socket.create_connection((bookie.host, bookie.port), 30)) for _ in range(40)]
        for peer in crowd[:32]:
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
        ledger.append(b"y")
        assert client.metrics().value("bookkeeper_client_bookie_connected_total") == made
        assert client.metrics().value("bookkeeper_client_bookie_connection_lost_total") == 0
    store.close()


@pytest.mark.parametrize("kind", ["tls", "sasl"])
def test_a_stranger_has_no_large_frames(world: World, tmp_path: Path, kind: str) -> None:
    with EmbeddedBookie(tmp_path, "127.0.0.1", 0, None, BookieOptions(door=world.door(kind))) as bookie:
        with socket.create_connection((bookie.host, bookie.port), 30) as large:
            large.sendall((GATE_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(8))
            assert large.recv(1) == b""


def test_a_password_may_have_any_character_but_a_line_break(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("ann:a\x0b:b\x85c\u2028d\nbob:x\r\n", newline="")
    assert users_of(str(path)) == {"ann": "a\x0b:b\x85c\u2028d", "bob": "x"}


def test_requests_behind_start_tls_end_the_connection(world: World, tmp_path: Path) -> None:
    """They came in clear, and would be taken for TLS."""
    with bookies(world, tmp_path, "tls", 1) as (_, (bookie,)):
        said = raw(bookie, codec_v3.encode_request(m.StartTlsRequest(1)), codec_v3.encode_request(m.ReadRequest(2, 7, 0)))
        assert [codec_v3.decode_response(one) for one in said] == [m.StartTlsResponse(1, Status.OK)]


TOKEN = m.AuthRequest(2, "sasl", b"")


@pytest.mark.parametrize("kind", ["tls, sasl", "tls"])
@pytest.mark.parametrize("cut", [None, 0, 3, 20, -1])
def test_the_first_token_of_java_may_come_in_clear_behind_start_tls(world: World, tmp_path: Path, kind: str, cut: int | None) -> None:
    """wire-protocol.md 10.4: with the request, after its answer, or in pieces; the answer to it comes inside of TLS. A bookie that asks
    nobody who he is says that."""
    start, token = (codec_v2.frame(codec_v3.encode_request(one)) for one in (m.StartTlsRequest(1), TOKEN))
    with bookies(world, tmp_path, kind, 1) as (_, (bookie,)):
        with socket.create_connection((bookie.host, bookie.port), 30) as plain:
            plain.sendall(start + (token if cut is None else token[:cut]))
            with plain.makefile("rb", 0) as file:
                answer = codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big")))
            assert answer == m.StartTlsResponse(1, Status.OK)
            plain.sendall(b"" if cut is None else token[cut:])
            with ssl.create_default_context(cafile=world.ca.certificate).wrap_socket(plain, server_hostname="127.0.0.1") as peer:
                with peer.makefile("rb") as file:
                    said = codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big")))
    assert isinstance(said, m.AuthResponse) and said.request_id == 2 and said.status is Status.OK
    assert said.plugin == ("sasl" if "sasl" in kind else "AuthDisabledPlugin") and (b"nonce=" in said.payload) is ("sasl" in kind)


def test_the_first_token_of_java_may_come_before_start_tls(world: World, tmp_path: Path) -> None:
    """wire-protocol.md 10.4: its client sends the two in this order if its connection is made at once. The answer comes inside of TLS."""
    with bookies(world, tmp_path, "tls, sasl", 1) as (_, (bookie,)):
        with socket.create_connection((bookie.host, bookie.port), 30) as plain:
            plain.sendall(codec_v2.frame(codec_v3.encode_request(TOKEN)) + codec_v2.frame(codec_v3.encode_request(m.StartTlsRequest(1))))
            with plain.makefile("rb", 0) as file:
                answer = codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big")))
            assert answer == m.StartTlsResponse(1, Status.OK)
            with ssl.create_default_context(cafile=world.ca.certificate).wrap_socket(plain, server_hostname="127.0.0.1") as peer:
                with peer.makefile("rb") as file:
                    said = codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big")))
        assert isinstance(said, m.AuthResponse) and said.status is Status.OK and b"nonce=" in said.payload


@pytest.mark.parametrize("behind", [[], [m.ReadRequest(3, 7, 0)], [TOKEN]], ids=["nothing", "a read", "another one"])
def test_a_token_in_clear_is_refused_if_no_tls_follows(world: World, tmp_path: Path, behind: list[m.Request]) -> None:
    """A client that has no TLS learns it soon."""
    with bookies(world, tmp_path, "tls, sasl", 1) as (_, (bookie,)), socket.create_connection((bookie.host, bookie.port), 30) as plain:
        plain.sendall(b"".join(codec_v2.frame(codec_v3.encode_request(one)) for one in (TOKEN, *behind)))
        with plain.makefile("rb", 0) as file:
            said = codec_v3.decode_response(file.read(int.from_bytes(file.read(4), "big")))
        assert isinstance(said, m.AuthResponse) and said.request_id == 2 and said.status is Status.UNAUTHORIZED


@pytest.mark.parametrize(
    "behind", [[TOKEN, TOKEN], [m.AuthRequest(2, "sasl", b"proof")], [TOKEN, m.ReadRequest(3, 7, 0)]], ids=["two", "a proof", "a read"]
)
def test_no_more_than_a_first_token_may_come_behind_start_tls(world: World, tmp_path: Path, behind: list[m.Request]) -> None:
    with bookies(world, tmp_path, "tls, sasl", 1) as (_, (bookie,)):
        said = raw(bookie, *(codec_v3.encode_request(one) for one in (m.StartTlsRequest(1), *behind)))
        assert [codec_v3.decode_response(one) for one in said] == [m.StartTlsResponse(1, Status.OK)]
        assert serves(bookie)
        with socket.create_connection((bookie.host, bookie.port), 30) as plain:  # and none of them late
            plain.sendall(codec_v2.frame(codec_v3.encode_request(m.StartTlsRequest(1))))
            with plain.makefile("rb", 0) as file:
                assert file.read(int.from_bytes(file.read(4), "big"))
                plain.sendall(b"".join(codec_v2.frame(codec_v3.encode_request(one)) for one in behind))
                with suppress(ConnectionError):
                    assert file.read(1) == b""
        with socket.create_connection((bookie.host, bookie.port), 30) as plain:  # nor a frame without an end
            plain.sendall(codec_v2.frame(codec_v3.encode_request(m.StartTlsRequest(1))) + (GATE_FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
            with plain.makefile("rb", 0) as file, suppress(ConnectionError):
                assert len(file.read(1 << 20)) < 64 and file.read(1) == b""


def serves(bookie: EmbeddedBookie) -> bool:
    return bool(raw(bookie, codec_v3.encode_request(m.BookieInfoRequest(1))))


def test_bookies_ask_each_other_by_the_same_door(world: World, tmp_path: Path) -> None:
    kind = "mutual tls, sasl"
    with bookies(world, tmp_path, kind) as (uri, all_three), bk_core.connect(uri, security=world.security(kind)) as client:
        with client.create_ledger(**THREE) as ledger:
            ledger.append_many([b"a", b"b"])
        bookie = all_three[0]
        address = (bookie.host, bookie.port)
        for security, count in ((world.security(kind), 2), (world.security("mutual tls"), 0), (None, 0)):
            reader = ReplicaReader(lambda _: address, security=security)
            assert len(reader.read(bookie.bookie_id, ledger.ledger_id, [0, 1])) == count
            reader.close()
        probes = probe_bookies(client, client.bookies().writable)
        assert all(probe.answers and probe.total_bytes for probe in probes.values()) and len(probes) == 3
    with bookies(world, tmp_path / "other", kind, 1) as (uri, _), bk_core.connect(uri, security=world.security("mutual tls")) as client:
        (probe,) = probe_bookies(client, client.bookies().writable).values()
        assert probe.state == "not admitted" and "wants clients that authenticate" in probe.problem
    for kind in ("mutual tls, sasl", "sasl", "roles"):
        with bookies(world, tmp_path / f"without {kind}", kind, 1) as (uri, _), bk_core.connect(uri) as client:
            (probe,) = probe_bookies(client, client.bookies().writable).values()
            assert (probe.state, probe.answers) == ("not admitted", False) and "this one did not" in probe.problem


def test_new_certificates_and_users_need_no_restart(world: World, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b.pem", "b.key", "users")]
    for path, source in zip(files, (*world.server, world.users), strict=True):
        path.write_text(Path(source).read_text())
    store = open_store(f"memory://{tmp_path}")
    store.initialize_cluster()
    door = Door(str(files[0]), str(files[1]), None, str(files[2]))
    one: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    with EmbeddedBookie(tmp_path / "b", "127.0.0.1", 0, store, BookieOptions(door=door)):
        for path, source in zip(files, world.stranger.signed("new", ["IP:127.0.0.1"]), strict=False):
            path.write_text(Path(source).read_text())
        files[2].write_text("eve:paper-1932\n")
        tls = BookieTls(world.stranger.certificate)
        with bk_core.connect(f"memory://{tmp_path}", security=Security(tls, BookieSasl("eve", "paper-1932"))) as client:
            with client.create_ledger(**one) as ledger:
                ledger.append(b"x")
        with bk_core.connect(f"memory://{tmp_path}", security=Security(tls, BookieSasl("ann", "moss-3310"))) as client:
            with pytest.raises(BookieAuthError):
                client.create_ledger(**one).append(b"x")
    store.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no users"),
        ("ann", "line 1 .* is not NAME:PASSWORD"),
        ("ann:x\n\nann:y", "line 3"),
        (":x", "line 1"),
        ("a:", "line 1"),
    ],
)
def test_a_file_of_users_that_says_something_else_is_refused_and_not_shown(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=problem) as told:
        users_of(str(path))
    assert "ann" not in str(told.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Door(), "asks for nothing"),
        (lambda: Door(key="k"), "mean nothing without cert"),
        (lambda: Door("c", roles=("a",)), "roles stand in clients' certificates: they need client_ca"),
        (lambda: Door("c", None, "ca", "users", ("a",)), "no users_file and no kerberos can be beside them"),
        (lambda: Door("c", None, "ca", None, ("a,b",)), "roles must be names without commas"),
        (lambda: Door("c", None, "ca", None, ("a", " b")), "and without blanks around them, not"),
        (lambda: Door("/absent.pem").check(), "cert of Door, /absent.pem, cannot be used"),
        (lambda: Door(users_file="/absent").check(), "the users in '/absent' cannot be read"),
        (lambda: bk_core.local_cluster(tls=True, apache="4.18.0"), "tls, sasl and kerberos are those of embedded bookies"),
    ],
)
def test_what_can_never_work_is_told_at_the_start(make: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make()


def test_a_door_that_cannot_be_used_changes_nothing(world: World, tmp_path: Path) -> None:
    """Neither a new directory nor one whose data was lost, which would begin anew."""
    store = open_store(f"memory://{tmp_path}")
    store.initialize_cluster()
    wrong = BookieOptions(door=Door("/absent.pem"), accept_data_loss=True)
    with pytest.raises(InvalidArgumentError, match="/absent.pem"):
        EmbeddedBookie(tmp_path / "new", store=store, options=wrong).start()
    assert not (tmp_path / "new").exists()
    with EmbeddedBookie(tmp_path / "old", store=store):
        pass
    (tmp_path / "old" / "current" / "VERSION").unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}
    with pytest.raises(InvalidArgumentError, match="/absent.pem"):
        EmbeddedBookie(tmp_path / "old", store=store, options=wrong).start()
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before
    store.close()
