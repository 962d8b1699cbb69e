"""Connecting to what is no ZooKeeper, or none that gives a session: servers that misbehave, and a bookie's port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError
from bk_core.metadata import open_store

WHOLE_S = 2.0  # of a try that waits its whole time
_FOREIGN = "something answers that is not ZooKeeper, such as a bookie: the URI takes ZooKeeper's port, mostly 2181"


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port on which each connection is handed to ``behave``, and closed at the end if that has not done it."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                taken.append(connection)
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(30)
    for connection in taken:
        connection.close()


def silent(_: socket.socket) -> None:
    pass


def full(connection: socket.socket) -> None:
    """As ZooKeeper does beyond maxClientCnxns."""
    connection.close()


def web(connection: socket.socket) -> None:
    def answer() -> None:
        try:
            if connection.recv(4096):
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        except OSError:
            pass

    threading.Thread(target=answer, daemon=True).start()


def greeting(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def idle(connection: socket.socket) -> None:
    """A ZooKeeper without its quorum."""

    def answer() -> None:
        try:
            if connection.recv(4096) == b"srvr":
                connection.sendall(b"This ZooKeeper instance is not currently serving requests\n")
            connection.close()
        except OSError:
            pass

    threading.Thread(target=answer, daemon=True).start()


@pytest.fixture
def free() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def problem(hosts: str, **settings: float) -> str:
    with pytest.raises(MetadataUnavailableError) as caught:
        bk_core.connect(f"zk://{hosts}/ledgers", **settings)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (silent, "does not answer"),
        (full, r"accepts a connection and closes it at once: its limit of connections for one host (maxClientCnxns) may be reached"),
        (web, _FOREIGN),
        (greeting, _FOREIGN),
        (idle, "does not serve: it may lack its quorum"),
    ],
)
def test_what_is_no_zookeeper_is_told_after_the_whole_time(behave: Callable[[socket.socket], None], words: str) -> None:
    """SES-11."""
    with server(behave) as port:
        begun = time.monotonic()
        text = problem(f"127.0.0.1:{port}", metadata_timeout_s=WHOLE_S)
        assert time.monotonic() - begun >= WHOLE_S - 0.1  # another server may have come up meanwhile
        assert words in text and f"127.0.0.1:{port}" in text


def test_a_port_of_a_bookie_is_no_zookeeper(tmp_path: Path) -> None:
    store = open_store(f"memory://{tmp_path.name}")
    store.initialize_cluster()
    with ExitStack() as stack:
        stack.callback(store.close)
        bookie = EmbeddedBookie(tmp_path / "bookie", "127.0.0.1", 0, store).start()
        stack.callback(bookie.close)
        assert _FOREIGN in problem(bookie.bookie_id, metadata_timeout_s=WHOLE_S)


def test_a_refusal_and_an_unknown_host_are_told_at_once(free: int) -> None:
    """SES-11: the whole time would be ten minutes."""
    text = problem(f"127.0.0.1:{free},nobody.invalid:2181", metadata_timeout_s=600)
    assert f"127.0.0.1:{free} refuses connections: nothing listens there" in text and "the host of nobody.invalid:2181 is unknown" in text


def test_one_address_that_may_still_answer_is_waited_for(free: int) -> None:
    """SES-11."""
    with server(silent) as port:
        begun = time.monotonic()
        text = problem(f"127.0.0.1:{free},127.0.0.1:{port}", metadata_timeout_s=WHOLE_S)
        assert time.monotonic() - begun >= WHOLE_S - 0.1
        assert "refuses connections" in text and "does not answer" in text


def test_who_waits_for_a_store_that_is_starting_waits_the_whole_time(free: int) -> None:
    """SES-11."""
    begun = time.monotonic()
    text = problem(f"127.0.0.1:{free}", metadata_timeout_s=WHOLE_S, await_store=True)
    waited = float(text.partition(" after ")[2].partition(" s")[0])
    assert WHOLE_S - 0.1 <= waited <= time.monotonic() - begun + 0.1 and "refuses connections" in text


@pytest.mark.parametrize("hosts", ["h:99999", "h:0", "h:-1", "h:port", "h1:2181;h2:70000", ":2181", "h:"])
def test_hosts_that_cannot_be_are_refused_before_anything_is_tried(hosts: str) -> None:
    with pytest.raises(InvalidArgumentError, match="uri .*(port within 1..65535|lacks hosts)"):
        open_store(f"zk://{hosts}/ledgers")
