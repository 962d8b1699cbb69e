"""The HTTP server of the page: who gets in, what every answer carries, and connections that are many, slow or odd."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from urllib.parse import urlsplit

import pytest

from bk_core.errors import LivePageError
from bk_core.ui import server as pages
from bk_core.ui.guard import Token
from bk_core.ui.server import Asked, PageServer, Reply
from tests.ui.conftest import Visitor


def answer(asked: Asked) -> Reply:
    if asked.path == "/fails":
        raise ValueError("a fault of ours")
    return Reply(f"path {asked.path} query {dict(asked.query)}".encode())


@contextmanager
def serving(**settings: object) -> Iterator[PageServer]:
    server = PageServer("127.0.0.1", 0, Token(), answer, **settings)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def someone(server: PageServer) -> Visitor:
    return Visitor(server)


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: PageServer, someone: Visitor) -> None:
    opened = someone.get(f"/?{urlsplit(server.open_url).query}", cookie="")
    assert opened.status == 303 and opened.headers["location"] == "/"
    (cookie,) = opened.cookies
    pair, *attributes = cookie.split("; ")
    assert pair == f"bk-ui-{server.port}={server.token.reveal()}" and set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert someone.get("/x", cookie=pair).body == "path /x query {}"


def test_a_browser_that_comes_from_another_site_is_sent_on_by_a_page(server: PageServer, someone: Visitor) -> None:
    """It would keep the cookie back on a redirection that began there."""
    opened = someone.get(f"/?token={server.token.reveal()}", cookie="", Sec_Fetch_Site="cross-site")
    assert opened.status == 200 and opened.cookies and 'http-equiv="refresh"' in opened.body
    assert server.token.reveal() not in opened.body


@pytest.mark.parametrize(
    ("asked", "location"),
    [
        ("/ledgers/5?token={token}", "/ledgers/5"),
        ("/ledgers?state=OPEN&token={token}&q=a%26b&q=", "/ledgers?state=OPEN&q=a%26b&q="),
        ("/logs/a%20b%2Fc/?token={token}", "/logs/a%20b%2Fc/"),
        ("//example.org/x?token={token}", "/example.org/x"),
        ("http://example.org/x?token={token}", "/x"),
        ("http://127.0.0.1//example.org?token={token}", "/"),
        ("/x//example.org?token={token}&a=b", "/?a=b"),
        ("/\\example.org?token={token}", "/"),
        ("/<b>?token={token}", "/"),
    ],
)
def test_an_address_with_the_token_leads_to_the_same_place_without_it(
    server: PageServer, someone: Visitor, asked: str, location: str
) -> None:
    path = asked.format(token=server.token.reveal())
    opened = someone.get(path, cookie="")
    assert (opened.status, opened.headers["location"]) == (303, location) and opened.cookies
    page = someone.get(path, cookie="", Sec_Fetch_Site="cross-site").body
    assert page.count(f'url={escape(location)}"') == page.count(f'href="{escape(location)}"') == 1
    assert someone.get(asked.format(token="wrong"), cookie="").status == 403


@pytest.mark.parametrize("cookie", ["", "bk-ui-1=x", "bk-ui-{port}=wrong", "bk-ui-{port}=", "bk-ui-{port}={token}x"])
@pytest.mark.parametrize("path", ["/", "/static/ui.js", "/?token=wrong", "/?token=", "/nothing"])
def test_who_has_not_the_token_sees_nothing(server: PageServer, someone: Visitor, cookie: str, path: str) -> None:
    got = someone.get(path, cookie=cookie.format(port=server.port, token=server.token.reveal()))
    assert got.status == 403 and not got.cookies and "query" not in got.body and server.token.reveal() not in got.body


@pytest.mark.parametrize("host", ["", "rebound.example", "rebound.example:80", "127.0.0.1.rebound.example", "192.0.2.1", "localhost@x"])
def test_a_name_of_a_stranger_is_refused_before_the_token(server: PageServer, someone: Visitor, host: str) -> None:
    assert someone.get("/", host=host).status == 421
    assert someone.get(f"/?token={server.token.reveal()}", host=host, cookie="").cookies == ()


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_taken_with_any_port(someone: Visitor, host: str) -> None:
    assert someone.get("/", host=host).status == 200


def test_a_further_name_is_taken() -> None:
    with serving(names=["bk.example"]) as server:
        assert Visitor(server).get("/", host="bk.example:443").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_but_reading(someone: Visitor, method: str) -> None:
    got = someone.get("/", method=method)
    assert got.status == 405 and got.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_the_body(someone: Visitor) -> None:
    got, whole = someone.get("/x", method="HEAD"), someone.get("/x")
    assert got.status == 200 and got.body == "" and got.headers["content-length"] == str(len(whole.body))


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/fails"])
def test_every_answer_says_how_it_may_be_used(someone: Visitor, path: str) -> None:
    headers = someone.get(path).headers
    assert {name.lower(): value for name, value in pages.HEADERS.items()}.items() <= headers.items()
    assert "'unsafe-inline'" not in headers["content-security-policy"] and headers["content-security-policy"].startswith(
        "default-src 'none'"
    )
    assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
    assert "python" not in headers["server"].lower()


def test_a_page_that_fails_says_so_without_its_secrets(someone: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    got = someone.get("/fails")
    assert got.status == 500 and "ValueError" not in got.body and "a fault of ours" in caplog.text


def test_parameters(someone: Visitor) -> None:
    assert someone.get("/?a=1&a=2&b=%C3%A9&c=").body == "path / query {'c': '', 'b': 'é', 'a': '1'}"
    assert someone.get("/?" + "&".join(f"p{n}=1" for n in range(50))).status == 400


def talk(server: PageServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n", b"",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example\r\n\r\n", b"GET /\r\n",
        b"GET http://x:y/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_harms_nobody(server: PageServer, someone: Visitor, data: bytes) -> None:
    assert b" 200 " not in talk(server, data).partition(b"\r\n")[0]
    assert someone.get("/").status == 200


def test_a_slow_head_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "HEAD_S", 0.2)
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        while slow.recv(1 << 16):
            pass  # it ends, or the test would time out


def test_strangers_that_fill_all_places_keep_nobody_out() -> None:
    with serving(most=8) as server, ExitStack() as open_ones:
        for _ in range(30):
            stranger = open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            stranger.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(5):
            assert Visitor(server).get("/x").status == 200
        assert len(server._connections) <= 8


def test_those_who_have_shown_the_token_are_not_ended_for_others() -> None:
    go, inside = threading.Event(), threading.Barrier(3, timeout=60)

    def slow(asked: Asked) -> Reply:
        inside.wait()
        assert go.wait(60)
        return Reply(b"done")

    server = PageServer("127.0.0.1", 0, Token(), slow, most=2)
    server.start()
    try:
        bodies: list[str] = []
        threads = [threading.Thread(target=lambda: bodies.append(Visitor(server).get("/").body)) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait()  # both places are taken by requests that are being answered
        with pytest.raises((ConnectionError, OSError)):
            Visitor(server).get("/")
        go.set()
        for thread in threads:
            thread.join(60)
        assert bodies == ["done", "done"]
    finally:
        go.set()
        server.close()


def test_a_port_that_is_taken_is_told(server: PageServer) -> None:
    with pytest.raises(LivePageError, match=f"port {server.port}.*--port"):
        PageServer("127.0.0.1", server.port, Token(), answer)
    with pytest.raises(LivePageError, match="192.0.2.1"):
        PageServer("192.0.2.1", 0, Token(), answer)


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = PageServer("::1", 0, Token(), answer)
    except LivePageError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    server.start()
    try:
        assert server.url == f"http://[::1]:{server.port}/"
        with socket.create_connection(("::1", server.port), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert b" 403 " in connection.recv(1 << 16)
    finally:
        server.close()
