"""Peers that are not admitted cost a bookie few lines, little memory and no reads of its files, and may guess twice."""

from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie import peers
from bk_core.bookie.connection import Connection
from bk_core.bookie.door import Door, users_of
from bk_core.bookie.door_files import KEPT_S, REPLACED_S, DoorFiles, Kept
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.seldom import LINES, PERIOD_S, SeldomLines
from bk_core.errors import InvalidArgumentError
from bk_core.net.tls_socket import RECEIVE_BYTES, STRANGER_BYTES, TlsSocket
from bk_core.protocol.bookie.gate import Gate, Then
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from bk_core.security import BookieSasl
from tests.integration.secured_zookeeper import Authority

LOGGER = "bk_core.bookie"
START_TLS = codec_v2.frame(codec_v3.encode_request(m.StartTlsRequest(1)))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def users(directory: Path) -> Door:
    path = directory / "users"
    path.write_text("ann:moss-3310\n")
    return Door(users_file=str(path))


def asked(peer: socket.socket, file: Any, request: m.Request) -> m.Response | None:
    """Return the answer of a bookie, None if it hangs up."""
    peer.sendall(codec_v2.frame(codec_v3.encode_request(request)))
    head = file.read(4)
    return codec_v3.decode_response(file.read(int.from_bytes(head, "big"))) if head else None


def guess(peer: socket.socket, file: Any, password: str) -> Status | None:
    exchange = BookieSasl("ann", password).exchange("127.0.0.1")
    challenge = asked(peer, file, m.AuthRequest(1, "sasl", exchange.first()))
    if not isinstance(challenge, m.AuthResponse):
        return None
    said = asked(peer, file, m.AuthRequest(2, "sasl", exchange.answer(challenge.payload) or b""))
    return None if said is None else said.status


def test_two_wrong_passwords_end_a_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=users(tmp_path))) as bookie:
        with caplog.at_level(logging.WARNING, LOGGER):
            with socket.create_connection((bookie.host, bookie.port), 30) as peer, peer.makefile("rb") as file:
                assert guess(peer, file, "wrong-8731") is Status.UNAUTHORIZED
                assert guess(peer, file, "wrong-8732") is Status.UNAUTHORIZED, "and it says so"
                assert file.read(1) == b""
            with socket.create_connection((bookie.host, bookie.port), 30) as peer, peer.makefile("rb") as file:
                assert guess(peer, file, "wrong-8733") is Status.UNAUTHORIZED
                assert guess(peer, file, "moss-3310") is Status.OK, "who mistypes once is served"
        assert bookie.metrics().value("bookkeeper_bookie_refused_total", why="password") == 3
    lines = [one.getMessage() for one in caplog.records]
    assert len([one for one in lines if "is not admitted: a wrong password of user 'ann'" in one]) == 3
    assert "wrong-" not in caplog.text


def test_a_gate_over_v2_closes_at_once_and_names_are_cut_off() -> None:
    gate = Gate(tls=False, users={"ann": "x"}, nonce=lambda: "n")
    gate.asked(m.AuthRequest(1, "sasl", b""), is_v2=True)
    name = "x" * 200
    token = f'username="{name}",realm="bookkeeper",nonce="n",nc=00000001,cnonce="c",digest-uri="bookkeeper/bookkeeper",response=0'
    found = gate.asked(m.AuthRequest(2, "sasl", token.encode()), is_v2=True)
    assert found.then is Then.CLOSE and found.answer is None and found.refused is not None and len(found.refused) < 100


def test_strangers_fill_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=users(tmp_path))) as bookie:
        with caplog.at_level(logging.WARNING, LOGGER):
            for _ in range(5 * LINES):
                with socket.create_connection((bookie.host, bookie.port), 30) as peer, suppress(ConnectionError):
                    peer.sendall(b"\xff" * 64)
                    assert peer.recv(1) == b""
        assert bookie.metrics().value("bookkeeper_bookie_refused_total", why="malformed") == 5 * LINES
    assert len(caplog.records) == LINES


def test_lines_of_each_kind_are_bounded_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    lines = SeldomLines(2, clock)
    with caplog.at_level(logging.WARNING, LOGGER):
        for n in range(5):
            lines.tell("one", f"one {n}")
        for _ in range(2):
            lines.tell("other", "other", 1)
        clock.now += PERIOD_S
        lines.tell("one", "one again")
        clock.now += PERIOD_S
        lines.tell("one", "at last")
    assert [one.getMessage() for one in caplog.records] == [
        *("one 0", "one 1", "other"),
        *("one again; 3 lines like this were left out before", "at last"),
    ]


# --- files ---------------------------------------------------------------------------------------------------------------


class Files:
    """Two files that go together, with the texts of both as the outcome; ``reads`` counts."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / "a", directory / "b"]
        self.reads = 0
        self.told: list[str] = []
        self.clock = Clock()
        self.put("1", "1")
        self.kept = Kept([str(path) for path in self.paths], self.read, self.told.append, self.clock)

    def put(self, *texts: str) -> None:
        for path, text in zip(self.paths, texts, strict=False):
            path.write_text(text)
            os.utime(path, (1_000_000 + len(text), 1_000_000))

    def read(self) -> str:
        self.reads += 1
        first, second = (path.read_text() for path in self.paths)
        if first != second:
            raise InvalidArgumentError(f"{first} does not go with {second}")
        return first


def test_files_are_read_when_they_change_and_now_and_then(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert [files.kept.get() for _ in range(5)] == ["1"] * 5 and files.reads == 1
    files.put("22", "22")
    assert [files.kept.get() for _ in range(5)] == ["22"] * 5 and files.reads == 2
    files.clock.now += KEPT_S
    assert files.kept.get() == "22" and files.reads == 3


def test_files_that_were_just_written_are_not_believed_for_good(tmp_path: Path) -> None:
    """The next write may fall into the same tick of the file system's clock."""
    files = Files(tmp_path)
    for path in files.paths:
        os.utime(path)
    assert files.kept.get() == "1"
    stamps = [os.stat(path).st_mtime_ns for path in files.paths]
    for path, at in zip(files.paths, stamps, strict=True):
        path.write_text("2")
        os.utime(path, ns=(at, at))
    files.clock.now += 0.5
    assert files.kept.get() == "2"


def test_a_pair_that_is_being_replaced_is_what_it_was_for_a_while(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.kept.get()
    files.put("22")
    assert files.kept.get() == "1" and "22 does not go with 1; what it was before is good for 10 s" in files.told[0]
    files.put("22", "22")
    assert files.kept.get() == "22"
    files.put("333")
    files.clock.now += REPLACED_S - 1
    assert files.kept.get() == "22", "time counts from the last good look"
    reads = files.reads
    files.clock.now += REPLACED_S
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="333 does not go with 22"):
            files.kept.get()
    assert files.reads == reads, "what cannot be used is not read again and again either"
    files.put("333", "333")
    assert files.kept.get() == "333"


def test_files_that_were_never_good_have_no_time(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put("22")
    with pytest.raises(InvalidArgumentError, match="22 does not"):
        files.kept.get()
    files.paths[0].unlink()
    door = DoorFiles(Door(users_file=str(files.paths[0])), files.told.append)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        door.gate()


def test_connections_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr("bk_core.bookie.door_files.users_of", lambda path: read.append(path) or users_of(path))
    door = users(tmp_path)
    os.utime(str(door.users_file), (1_000_000, 1_000_000))
    with EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=door)) as bookie:
        for _ in range(20):
            with socket.create_connection((bookie.host, bookie.port), 30) as peer, peer.makefile("rb") as file:
                assert guess(peer, file, "moss-3310") is Status.OK
    assert len(read) == 1


# --- memory --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("authority"), "ca")


def test_a_handshake_takes_little_and_leaves_nothing(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half a one nor one that was done: without a collector, too."""
    made: list[weakref.ref[Any]] = []
    sizes: list[int] = []

    class Seen(TlsSocket):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(weakref.ref(self))
            sizes.append(len(self._buffer))

    monkeypatch.setattr(peers, "TlsSocket", Seen)
    monkeypatch.setattr("bk_core.bookie.connection.TlsSocket", Seen)
    certificate, key = authority.signed("b", ["IP:127.0.0.1"])
    trusting = ssl.create_default_context(cafile=authority.certificate)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = outgoing.read()
    connections: list[weakref.ref[Any]] = []
    begun = Connection.__init__

    class SeenConnection(Connection):
        __slots__ = ("__weakref__",)

        def __init__(self, *arguments: Any) -> None:
            begun(self, *arguments)
            connections.append(weakref.ref(self))

    monkeypatch.setattr(peers, "Connection", SeenConnection)
    with EmbeddedBookie(tmp_path / "b", options=BookieOptions(door=Door(certificate, key))) as bookie:
        gc.collect()
        gc.disable()
        try:
            for whole in (False, True):
                with socket.create_connection((bookie.host, bookie.port), 30) as plain:
                    plain.sendall(START_TLS)
                    with plain.makefile("rb", 0) as file:
                        assert file.read(int.from_bytes(file.read(4), "big"))
                        if whole:
                            with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as peer, peer.makefile("rb") as inside:
                                assert isinstance(asked(peer, inside, m.BookieInfoRequest(2)), m.BookieInfoResponse)
                                served = made[-1]()
                                assert served is not None and len(served._buffer) == RECEIVE_BYTES
                                del served
                        else:
                            plain.sendall(hello)
                            assert file.read(1)
            with socket.create_connection((bookie.host, bookie.port), 30) as last, last.makefile("rb") as file:
                for _ in range(200):  # each answer is one more turn of the loop
                    assert asked(last, file, m.BookieInfoRequest(3))
                    left = [ref() is not None for ref in (*made, *connections)]
                    if sum(left) == 1:
                        break
                assert len(connections) == 3 and sum(left) == 1, left
        finally:
            gc.enable()
    assert sizes == [STRANGER_BYTES] * 2
