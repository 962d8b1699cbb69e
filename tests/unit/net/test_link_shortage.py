"""Links whose connections this host cannot make."""

from __future__ import annotations

import errno
import os
import queue
import socket
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core.net import connecting
from bk_core.net.link import BookieLink
from bk_core.net.link_state import BACKOFF_FIRST_NS
from bk_core.net.local_resources import shortage_text
from bk_core.net.names import Address, Names
from bk_core.net.reactor import Reactor
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.wire.messages import ReadRequest, Status
from tests.integration.patience import until

PATIENCE_S = 20.0
S = 1_000_000_000


class ShortLink(BookieLink):
    """The system refuses its sockets with ``code`` until that is 0."""

    code = 0
    tries = 0

    def _connect(self, address: Address) -> None:
        self.tries += 1
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        super()._connect(address)


def _no_such_name(*_: object, **__: object) -> list[Any]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class World:
    def __init__(self, code: int, address: tuple[str, int]) -> None:
        self.reactor = Reactor()
        self.broke: list[int] = []
        self.short: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.lost: list[Status] = []
        self.answers: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self.link = self.on_reactor(lambda: self._made(code, address))

    def _made(self, code: int, address: tuple[str, int]) -> ShortLink:
        made = ShortLink(
            self.reactor,
            "bookie",
            "v2",
            lambda bookie, then: self.reactor.post(lambda: then(address, "")),
            1 << 20,
            lambda: self.broke.append(1),
            names=Names(self.reactor.post, _no_such_name),
            on_short=lambda name, text: self.short.put(name),
        )
        made.code = code
        return made

    def on_reactor(self, call: Callable[[], Any]) -> Any:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reactor.post(lambda: done.put(call()))
        return done.get(timeout=PATIENCE_S)

    def read(self) -> Status:
        self.reactor.post(lambda: self.link.request(ReadRequest(0, 1, 0), 30 * S, lambda status, _: self.answers.put(status)))
        return self.answers.get(timeout=PATIENCE_S)

    def on_add(self, *_: object) -> None: ...

    def on_lost(self, bookie: str, status: Status) -> None:
        self.lost.append(status)

    def close(self) -> None:
        self.on_reactor(self.link.close)
        self.reactor.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


@pytest.fixture
def world(request: pytest.FixtureRequest, listener: socket.socket) -> Iterator[World]:
    made = World(request.param, listener.getsockname())
    yield made
    made.close()


def indirectly(*codes: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", codes, indirect=True, ids=lambda code: errno.errorcode[code])


@indirectly(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
def test_no_bookie_is_blamed_and_the_next_request_tries_at_once(world: World, listener: socket.socket) -> None:
    """SES-9: however often; as soon as there are descriptors again the same link works."""
    for _ in range(5):
        assert world.read() is Status.UNAVAILABLE
        assert world.short.get(timeout=PATIENCE_S) == errno.errorcode[world.link.code]
    assert world.broke == [] and world.link._backoff_ns == BACKOFF_FIRST_NS
    world.link.code = 0
    world.reactor.post(lambda: world.link.request(ReadRequest(0, 1, 0), 30 * S, lambda status, _: world.answers.put(status)))
    with listener.accept()[0] as peer:
        assert peer.recv(4096)


@indirectly(errno.EMFILE)
def test_adds_wait_for_a_descriptor(world: World, listener: socket.socket) -> None:
    """SES-9: no change of the ensemble for a shortage that passes; reads that wait on the link are told at once."""
    run = PackedAdds(1, 0, 1, b"add!", memoryview(array("q", (0, 4))))

    def send() -> None:
        world.link.listen(1, world)
        world.link.send_adds(run, 0, 0, 1, 1)

    world.on_reactor(send)
    for _ in range(3):
        world.short.get(timeout=PATIENCE_S)
    assert world.read() is Status.UNAVAILABLE
    assert world.lost == []
    world.link.code = 0
    with listener.accept()[0] as peer:
        assert peer.recv(4) == b"add!"
    assert world.lost == [] and world.broke == []


@indirectly(errno.EMFILE)
def test_a_refusal_behind_a_shortage_is_the_bookies(world: World, listener: socket.socket) -> None:
    """SES-9: adds have waited for a descriptor, and then nobody listens there."""
    run = PackedAdds(1, 0, 1, b"add!", memoryview(array("q", (0, 4))))
    listener.close()

    def send() -> None:
        world.link.listen(1, world)
        world.link.send_adds(run, 0, 0, 1, 1)

    world.on_reactor(send)
    world.short.get(timeout=PATIENCE_S)
    world.link.code = 0
    until(lambda: bool(world.lost), "nobody is told of the refusal")
    assert world.lost == [Status.UNAVAILABLE] and world.broke == [1]


@indirectly(errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)
def test_what_concerns_one_address_is_told_and_the_bookie_avoided(world: World, listener: socket.socket) -> None:
    """SES-10, SES-1."""
    assert world.read() is Status.UNAVAILABLE
    assert world.short.get(timeout=PATIENCE_S) == errno.errorcode[world.link.code]
    assert world.broke == [1]


@indirectly(errno.ECONNREFUSED)
def test_a_refusal_is_no_shortage(world: World, listener: socket.socket) -> None:
    """SES-10."""
    assert world.read() is Status.UNAVAILABLE
    assert world.short.empty() and world.broke == [1]


def test_a_name_that_cannot_be_resolved_for_want_of_descriptors(world_of: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SES-9: resolvers only say that there is no such name."""
    monkeypatch.setattr(connecting, "shortage_now", lambda: OSError(errno.EMFILE, "too many"))
    assert world_of.read() is Status.UNAVAILABLE
    assert world_of.short.get(timeout=PATIENCE_S) == "EMFILE" and world_of.broke == []


@pytest.fixture
def world_of() -> Iterator[World]:
    made = World(0, ("no-such-host.invalid", 3181))
    yield made
    made.close()


def test_every_shortage_says_what_to_do() -> None:
    """SES-10."""
    for name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EADDRNOTAVAIL", "EACCES", "EPERM"):
        text = shortage_text(OSError(getattr(errno, name), "x"))
        assert text is not None and text.endswith(f"[{name}]") and ":" in text
    assert shortage_text(OSError("no number")) is None
