"""A link on its way in: what a bookie gets to see before it has proved itself, and what those who wait are told (LINK-10)."""

from __future__ import annotations

import queue
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookieHostNameError, BookieSecurityError, BookieTlsError
from bk_core.net import connecting
from bk_core.net.entering import Entering, Prepare, Then, Turn, prepare
from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire.messages import (
    BookieInfoRequest,
    BookieInfoResponse,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    StartTlsResponse,
    Status,
)
from bk_core.security import BookieSasl, BookieTls, Security
from tests.integration.secured_zookeeper import Authority

PATIENCE_S = 20.0
S = 1_000_000_000
SECRET = b"\x5a" * 20  # stands in every read here


class World:
    def __init__(self, directory: Path) -> None:
        self.ca = Authority.made(directory, "ca")
        self.stranger = Authority.made(directory, "stranger")
        self.server = self.ca.signed("server", ["IP:127.0.0.1"])
        self.elsewhere = self.ca.signed("elsewhere", ["DNS:elsewhere", "IP:127.0.0.9"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("ca"))


def whole(peer: Any) -> bytes:
    """The next payload that comes."""
    head = b""
    while len(head) < 4:
        more = peer.recv(4 - len(head))
        if not more:
            return b""
        head += more
    size, payload = int.from_bytes(head, "big"), b""
    while len(payload) < size:
        payload += peer.recv(size - len(payload))
    return payload


def say(peer: Any, response: Any) -> None:
    peer.sendall(codec_v2.frame(codec_v3.encode_response(response)))


def serve_tls(server: tuple[str, str], peer: socket.socket) -> None:
    """Play a bookie with TLS that has every entry."""
    assert codec_v3.decode_request(whole(peer)) == StartTlsRequest(1)
    say(peer, StartTlsResponse(1, Status.OK))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(peer, server_side=True) as secured:
        assert codec_v3.decode_request(whole(secured)) == BookieInfoRequest(2, 0)
        say(secured, BookieInfoResponse(2, Status.OK))
        while payload := whole(secured):
            asked: Any = codec_v2.decode_request(payload)
            secured.sendall(codec_v2.encode_response_frame(ReadResponse(0, Status.OK, asked.ledger_id, asked.entry_id, b"body")))


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[tuple[tuple[str, int], list[socket.socket]]]:
    """A server on the loopback that gives each connection to ``serve``."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    taken.append(peer)
                    with peer:
                        serve(peer)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname(), taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for peer in taken:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


class Client:
    """One link on a reactor of its own, with the answers to its reads."""

    def __init__(self, address: tuple[str, int], security: Security | None, prepares: Prepare | None = None) -> None:
        self.reactor = Reactor()
        self.entries: queue.SimpleQueue[BookieSecurityError | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Status] = queue.SimpleQueue()
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()

        def prepared(bookie: str, host: str, then: Then) -> Turn:
            assert security is not None
            try:
                outcome = partial(then, prepare(security, bookie, host), None)
            except BookieSecurityError as error:
                outcome = partial(then, None, error)
            self.reactor.post(outcome)
            return Turn(bookie, host, then, has_begun=True)

        options: dict[str, Any] = {"prepare": prepares or (None if security is None else prepared)}
        options["on_entry"] = lambda bookie, error: self.entries.put(error)
        self.reactor.post(lambda: made.put(BookieLink(self.reactor, "b", "v2", lambda bookie, then: then(address, ""), 1 << 20, **options)))
        self.link = made.get(timeout=PATIENCE_S)

    def read(self) -> None:
        message = ReadRequest(0, 7, 3, fence=True, master_key=SECRET)
        self.reactor.post(lambda: self.link.request(message, 30 * S, lambda status, _: self.answers.put(status)))

    def answer(self) -> Status:
        return self.answers.get(timeout=PATIENCE_S)

    def close(self) -> None:
        closed = threading.Event()
        self.reactor.post(self.link.close)
        self.reactor.post(closed.set)
        assert closed.wait(PATIENCE_S)
        self.reactor.close()


def test_a_read_goes_through_tls(world: World) -> None:
    with listening(partial(serve_tls, world.server)) as (address, _):
        with closing(Client(address, Security(BookieTls(world.ca.certificate)))) as client:
            for _ in range(3):
                client.read()
            assert [client.answer() for _ in range(3)] == [Status.OK] * 3
            assert client.entries.get(timeout=PATIENCE_S) is None and client.entries.empty()


def test_a_bookie_that_refuses_tls_gets_nothing_else_to_see(world: World) -> None:
    """LINK-10: START_TLS is all that is ever sent in clear, and those who wait are told at once."""
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def serve(peer: socket.socket) -> None:
        first = whole(peer)
        say(peer, StartTlsResponse(1, Status.BAD_REQUEST))
        rest = b""
        with suppress(ConnectionError):
            while more := peer.recv(4096):
                rest += more
        seen.put(first + rest)

    with listening(serve) as (address, _), closing(Client(address, Security(BookieTls(world.ca.certificate)))) as client:
        client.read()
        assert client.answer() is Status.NOT_ADMITTED
        assert type(client.entries.get(timeout=PATIENCE_S)) is BookieTlsError
        assert seen.get(timeout=PATIENCE_S) == codec_v3.encode_request(StartTlsRequest(1))
        client.read()  # in the pause before the next attempt
        assert client.answer() is Status.NOT_ADMITTED


@pytest.mark.parametrize(
    ("server", "tls", "kind", "text"),
    [
        ("server", lambda w: BookieTls(w.stranger.certificate), BookieTlsError, "bookie b has a certificate that is not trusted"),
        ("server", lambda w: BookieTls(), BookieTlsError, "bookie b has a certificate that is not trusted"),
        ("elsewhere", lambda w: BookieTls(w.ca.certificate), BookieHostNameError, "for another host than 127.0.0.1"),
        ("server", lambda w: BookieTls("/absent.pem"), BookieTlsError, "ca of BookieTls, /absent.pem, cannot be used: No such file"),
    ],
)
def test_a_bookie_that_is_not_trusted_gets_nothing(
    world: World, server: str, tls: Callable[[World], BookieTls], kind: type[BookieSecurityError], text: str
) -> None:
    with listening(partial(serve_tls, getattr(world, server))) as (address, _):
        with closing(Client(address, Security(tls(world)))) as client:
            client.read()
            assert client.answer() is Status.NOT_ADMITTED
            error = client.entries.get(timeout=PATIENCE_S)
            assert type(error) is kind and text in str(error)


def test_a_host_may_go_unchecked_but_not_its_authority(world: World) -> None:
    for ca, status in ((world.ca, Status.OK), (world.stranger, Status.NOT_ADMITTED)):
        with listening(partial(serve_tls, world.elsewhere)) as (address, _):
            with closing(Client(address, Security(BookieTls(ca.certificate, verify_host=False)))) as client:
                client.read()
                assert client.answer() is status


def test_new_files_are_taken_at_a_later_attempt(world: World, tmp_path: Path) -> None:
    """LINK-10: the pause grows, and whoever asks after it is let in once the file is right."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(world.stranger.certificate).read_text())
    with listening(partial(serve_tls, world.server)) as (address, taken):
        with closing(Client(address, Security(BookieTls(str(trusted))))) as client:
            client.read()
            assert client.answer() is Status.NOT_ADMITTED
            trusted.write_text(Path(world.ca.certificate).read_text())
            status = Status.NOT_ADMITTED
            while status is Status.NOT_ADMITTED:
                client.read()
                status = client.answer()
            assert status is Status.OK and len(taken) == 2


def hello_of(server: tuple[str, str], peer: socket.socket) -> bytes:
    """Return the answer of a bookie to the first words of a client in the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    came, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = context.wrap_bio(came, out, server_side=True)
    came.write(peer.recv(65_536))
    with suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return out.read()


@pytest.mark.parametrize(
    "ends",
    ["at once", "after START_TLS", "in the handshake", "before a word of it", "after its first word", "within its words", "behind it"],
)
def test_a_connection_that_breaks_on_the_way_in_proves_nothing(world: World, ends: str) -> None:
    """A bookie that is being started or killed does that, so the bookie counts as one that cannot be reached."""

    def serve(peer: socket.socket) -> None:
        if ends == "at once":
            return
        whole(peer)
        if ends == "after START_TLS":
            return
        say(peer, StartTlsResponse(1, Status.OK))
        if ends == "in the handshake":
            peer.recv(10)  # the rest is unread, so the end is a reset
        elif ends == "after its first word":
            peer.recv(65_536)
        elif ends == "within its words":
            peer.sendall(hello_of(world.server, peer)[:500])
        elif ends == "behind it":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*world.server)
            with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(peer, server_side=True) as secured:
                whole(secured)

    with listening(serve) as (address, _), closing(Client(address, Security(BookieTls(world.ca.certificate)))) as client:
        client.read()
        assert client.answer() is Status.UNAVAILABLE
        assert client.entries.get(timeout=PATIENCE_S) is None and client.entries.empty()  # nor does an earlier refusal hold


def test_versions_that_do_not_fit_have_their_words(world: World) -> None:
    """The bookie wants no client certificate, and the message says nothing of one."""

    def serve(peer: socket.socket) -> None:
        whole(peer)
        say(peer, StartTlsResponse(1, Status.OK))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*world.server)
        with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(peer, server_side=True):
            pass

    tls = BookieTls(world.ca.certificate, minimum="1.3")
    with listening(serve) as (address, _), closing(Client(address, Security(tls))) as client:
        client.read()
        assert client.answer() is Status.NOT_ADMITTED
        told = str(client.entries.get(timeout=PATIENCE_S))
        assert "bookie b speaks no version of TLS that this client does" in told and "this client speaks TLS 1.3 and later" in told
        assert "certificate" not in told


class Late(socket.socket):
    """A socket whose fourth send, the one behind the handshake, waits until ``ended``."""

    ended: threading.Event
    sends = 0

    def send(self, *arguments: Any) -> int:
        self.sends += 1
        assert self.sends != 4 or self.ended.wait(PATIENCE_S)
        return super().send(*arguments)


def test_a_refusal_is_heard_though_a_later_send_finds_the_connection_reset(world: World) -> None:
    """The client believes that the handshake is done when the bookie turns its certificate away. What the bookie said lies there unread."""
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        assert codec_v3.decode_request(whole(peer)) == StartTlsRequest(1)
        say(peer, StartTlsResponse(1, Status.OK))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*world.server)
        context.load_verify_locations(world.ca.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        with pytest.raises(ssl.SSLError), context.wrap_socket(peer, server_side=True):
            raise AssertionError
        peer.close()
        ended.set()

    with listening(serve) as (address, _), Late() as made, selectors.DefaultSelector() as selector:
        made.ended = ended
        made.connect(address)
        made.setblocking(False)
        selector.register(made, selectors.EVENT_READ)
        entering = Entering(made, prepare(Security(BookieTls(world.ca.certificate)), "bookie-1", "127.0.0.1"), lambda: None)
        with pytest.raises(BookieTlsError, match="may want a client certificate"):
            while not entering.go_on():
                assert selector.select(PATIENCE_S)
        assert made.sends == 4


def test_one_that_says_nothing_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "ENTER_TIMEOUT_NS", S // 2)
    with listening(lambda peer: [None for _ in iter(lambda: peer.recv(100), b"")] and None) as (address, _):
        with closing(Client(address, Security(BookieTls(world.ca.certificate)))) as client:
            client.read()
            assert client.answer() is Status.UNAVAILABLE


@pytest.mark.parametrize("garbage", [b"\0\0\0\x05hello", b"\x7f\xff\xff\xff", b"\0\0\0\0"])
def test_what_is_no_answer_breaks_the_protocol(world: World, garbage: bytes) -> None:
    def serve(peer: socket.socket) -> None:
        whole(peer)
        peer.sendall(garbage)
        peer.recv(100)

    with listening(serve) as (address, _), closing(Client(address, Security(BookieTls(world.ca.certificate)))) as client:
        client.read()
        assert client.answer() is Status.PROTOCOL_ERROR


def test_a_function_that_fails_is_told_without_its_words(world: World) -> None:
    def given() -> bytes:
        raise KeyError("moss-3310")

    tls = BookieTls(world.ca.certificate, *world.server, key_password=given)
    with listening(partial(serve_tls, world.server)) as (address, _), closing(Client(address, Security(tls))) as client:
        client.read()
        assert client.answer() is Status.NOT_ADMITTED
        told = str(client.entries.get(timeout=PATIENCE_S))
        assert "the function of the key's password failed (KeyError)" in told and "moss" not in told


def given(waiting: queue.SimpleQueue[Callable[..., None]]) -> tuple[Prepare, list[Turn]]:
    """A way to read files that puts off the outcome, and the turns that it gave."""
    turns: list[Turn] = []

    def begin(bookie: str, host: str, then: Then) -> Turn:
        turns.append(Turn(bookie, host, then, has_begun=True))
        waiting.put(then)
        return turns[-1]

    return begin, turns


def test_an_attempt_that_ended_meanwhile_takes_nothing_from_its_files() -> None:
    """A client that is closed while files are read: what comes of them is dropped."""
    waiting: queue.SimpleQueue[Callable[..., None]] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin, turns = given(waiting)
        client = Client(listener.getsockname(), None, begin)
        client.read()
        then = waiting.get(timeout=PATIENCE_S)
        client.reactor.post(client.link.close)
        assert client.answer() is Status.UNAVAILABLE
        client.reactor.post(lambda: then(None, BookieTlsError("late")))
        client.close()
        assert client.entries.empty() and turns[0].is_over


@pytest.mark.parametrize(("begun", "why"), [(True, "were not read within 0.5 s"), (False, "had no turn within 0.5 s, because earlier")])
def test_a_reading_that_hangs_and_one_that_has_no_turn_are_told_apart(begun: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "PREPARE_TIMEOUT_NS", S // 2)
    turns: list[Turn] = []

    def begin(bookie: str, host: str, then: Then) -> Turn:
        turns.append(Turn(bookie, host, then, has_begun=begun))
        return turns[0]

    with closing(Client(("127.0.0.1", 1), None, begin)) as client:
        client.read()
        assert client.answer() is Status.NOT_ADMITTED and turns[0].is_over
        assert f"the files and secrets for bookie b {why}" in str(client.entries.get(timeout=PATIENCE_S))


def test_a_bookie_that_answers_without_an_end_holds_up_nobody_else() -> None:
    """The bookie sends answers that mean nothing, and always more of them. The reactor has other bookies to serve."""
    answers = codec_v2.frame(codec_v3.encode_response(BookieInfoResponse(9_999, Status.UNAUTHORIZED))) * 1000

    def serve(peer: socket.socket) -> None:
        with suppress(ConnectionError):
            while True:
                peer.sendall(answers)

    with listening(serve) as (address, _), closing(Client(address, Security(auth=BookieSasl("ann", "moss-3310")))) as client:
        client.read()
        assert client.answer() is Status.PROTOCOL_ERROR


def test_files_that_nobody_reads_to_the_end_end_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that waits for ever for a secret: those who wait are told, and what it brings later is not for a later attempt."""
    monkeypatch.setattr(connecting, "PREPARE_TIMEOUT_NS", S // 2)
    waiting: queue.SimpleQueue[Callable[..., None]] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with closing(Client(listener.getsockname(), None, given(waiting)[0])) as client:
            client.read()
            assert client.answer() is Status.NOT_ADMITTED
            error = client.entries.get(timeout=PATIENCE_S)
            assert type(error) is BookieSecurityError and "the files and secrets for bookie b were not read within 0.5 s" in str(error)
            first = waiting.get(timeout=PATIENCE_S)
            while waiting.empty():
                client.read()
                client.answer()
            client.reactor.post(lambda: first(None, BookieTlsError("late")))
            assert type(client.entries.get(timeout=PATIENCE_S)) is BookieSecurityError  # of the second attempt


def test_a_certificate_whose_key_follows_a_moment_later_is_taken(world: World, tmp_path: Path) -> None:
    """They are two files, and are replaced one after the other."""
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"
    new = world.ca.signed("new")
    certificate.write_text(Path(new[0]).read_text())
    key.write_text(Path(world.server[1]).read_text())
    follows = threading.Timer(0.05, lambda: key.write_text(Path(new[1]).read_text()))
    follows.start()
    tls = BookieTls(world.ca.certificate, str(certificate), str(key))
    assert prepare(Security(tls), "b", "127.0.0.1").context is not None
    follows.join()
