"""The lines of an Apache bookie's bookie.conf, and when such a bookie is ready."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.children import free_port
from bk_core.protocol.wire.codec_v3 import decode_request
from bk_core.protocol.wire.messages import BookieInfoRequest, StartTlsRequest


def lines(settings: ApacheSettings) -> dict[str, str]:
    text = settings.configuration("zk://127.0.0.1:2181,127.0.0.2:2181/ledgers", 3181, Path("/data"))
    assert text.endswith("\n")
    pairs = [line.partition("=")[::2] for line in text.splitlines()]
    assert len(dict(pairs)) == len(pairs)  # a name stands once
    return dict(pairs)


def test_a_small_bookie() -> None:
    found = lines(ApacheSettings())
    assert found["metadataServiceUri"] == "zk+hierarchical://127.0.0.1:2181;127.0.0.2:2181/ledgers"
    assert found["bookiePort"] == "3181"
    assert found["listeningInterface"] in ("lo", "lo0")
    assert found["journalDirectories"] == "/data/journal"
    assert found["journalMaxSizeMB"] == "64"


def test_a_setting_takes_the_place_of_a_small_bookie_s() -> None:
    small = lines(ApacheSettings())
    assert lines(ApacheSettings(lines={"journalMaxSizeMB": 2048})) == small | {"journalMaxSizeMB": "2048"}


def test_a_setting_that_a_small_bookie_leaves_alone() -> None:
    small = lines(ApacheSettings())
    assert lines(ApacheSettings(lines={"journalSyncData": "false"})) == small | {"journalSyncData": "false"}


def test_options_of_the_jvm_stand_behind_those_of_a_bookie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they hold; they stand before the main class, behind which they would be its arguments."""
    begun: list[list[str]] = []
    monkeypatch.setattr(apache, "find_java", lambda: "java")
    monkeypatch.setattr(apache, "Child", lambda name, command, log, env: begun.append(command))
    settings = ApacheSettings(heap_mb=300, java=("-Xmx200m", "-XX:+UseSerialGC"))
    apache.ApacheBookie(tmp_path, tmp_path / "bookie", "zk://127.0.0.1:2181/ledgers", 3181, lambda bookie_id: False, settings).start()
    (command,) = begun
    main = command.index("org.apache.bookkeeper.server.Main")
    assert command[main - 2 : main] == ["-Xmx200m", "-XX:+UseSerialGC"] and command.index("-Xmx300m") < main - 2


@pytest.mark.parametrize(
    ("chosen", "bookie_id", "stack"),
    [
        ({}, "127.0.0.1:3181", []),
        ({"advertisedAddress": "127.0.0.9"}, "127.0.0.9:3181", []),
        ({"advertisedAddress": "::1"}, "::1:3181", ["-Djava.net.preferIPv4Stack=false"]),
        ({"advertisedAddress": "127.0.0.9", "bookieId": "shelf-7"}, "shelf-7", []),
    ],
)
def test_a_bookie_is_known_by_what_its_lines_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], bookie_id: str, stack: list[str]
) -> None:
    """And Java takes addresses of IPv6 only where it is asked to."""
    begun: list[list[str]] = []
    asked: list[str] = []
    monkeypatch.setattr(apache, "find_java", lambda: "java")
    monkeypatch.setattr(apache, "Child", lambda name, command, log, env: begun.append(command))
    settings = ApacheSettings(lines=chosen)
    bookie = apache.ApacheBookie(
        tmp_path, tmp_path / "bookie", "zk://127.0.0.1:2181/ledgers", 3181, lambda one: bool(asked.append(one)), settings
    )
    bookie.start()
    assert (bookie.bookie_id, asked) == (bookie_id, [bookie_id])
    (command,) = begun
    assert [option for option in command if option.startswith("-Djava.net")] == ["-Djava.net.preferIPv4Stack=true", *stack]


def test_a_setting_that_is_left_out() -> None:
    small = lines(ApacheSettings())
    found = lines(ApacheSettings(lines={"dbStorage_writeCacheMaxSizeMb": None}))
    assert set(small) - set(found) == {"dbStorage_writeCacheMaxSizeMb"}


@pytest.mark.parametrize(("answer", "expected"), [(b"", False), (b"\0", True)], ids=["hangs up", "answers"])
@pytest.mark.parametrize("asks_who", [False, True])
def test_a_bookie_is_ready_when_it_answers(asks_who: bool, answer: bytes, expected: bool) -> None:
    """An Apache bookie that listens and does not serve yet closes a connection at its first request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> bytes:
            peer, _ = server.accept()
            with peer:
                request = peer.recv(1000)
                peer.sendall(answer)
                return request

        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(serve)
            assert apache.answers("127.0.0.1", server.getsockname()[1], asks_who) is expected
            kind = type(decode_request(request.result(10)[4:]))
    assert kind is (StartTlsRequest if asks_who else BookieInfoRequest)


def test_a_bookie_that_does_not_listen_is_not_ready() -> None:
    assert not apache.answers("127.0.0.1", free_port(), False)
