"""Requests that the checkpoint gateway refuses: without the secret, or of any bytes."""

from __future__ import annotations

import json
import logging
import pickle
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_spark.checkpoint import http_parts
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.secret import PY4J_LOGGERS, Secret, keep_out_of_logs, let_go
from tests.unit.spark.checkpoint_client import Client, JavaError, raw, temporary, token
from tests.unit.spark.memory_files import MemoryFiles


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic {}", "Bearer {}x", "{}", "Bearer {} {}"])
def test_without_the_secret_nothing_is_told(gateway: Gateway, store: MemoryFiles, given: str | None) -> None:
    store.put("/f", b"1")
    client = Client(gateway)
    secret = gateway.access.reveal()
    headers = {} if given is None else {"Authorization": given.replace("{}", secret)}
    for target in ("GETFILESTATUS", "OPEN", "NOSUCHOP"):
        status, found, text = client.ask("GET", client.target(target, "/f"), headers=headers)
        assert (status, text) == (401, b"") and set(found) == {"Content-Length", "Connection"}
    status, _, text = client.ask("PUT", client.target("CREATE", "/g", bkstep="2"), iter([b"1"]), headers)
    assert (status, text, store.changes) == (401, b"", [("put", "/f")])
    client.close()


def test_the_refresh_token_is_another_secret(gateway: Gateway) -> None:
    status, text = token(gateway, gateway.refresh.reveal())
    told = json.loads(text)
    assert status == 200 and told["access_token"] == gateway.access.reveal() and told["expires_in"] > 86400
    for wrong in ("", "x", gateway.access.reveal(), gateway.refresh.reveal() + "x"):
        assert token(gateway, wrong) == (401, b"")
    assert token(gateway, gateway.refresh.reveal(), "client_credentials") == (401, b"")
    assert raw(gateway, b"POST /token HTTP/1.1\r\nContent-Length: 5000\r\n\r\n", b"x" * 5000).startswith(b"HTTP/1.1 400 ")


def test_secrets_are_shown_nowhere(gateway: Gateway, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    kept = [gateway.access, gateway.refresh]
    before = {name: list(logging.getLogger(name).filters) for name in PY4J_LOGGERS}  # of an application that is open in this process
    with caplog.at_level(logging.DEBUG):
        client.create("/f", b"1")
        with pytest.raises(JavaError):
            client.read("/no")
        silenced = keep_out_of_logs(kept)
        for name in PY4J_LOGGERS:
            logging.getLogger(name).debug("Command to send: %s", f"set\nrefresh.token\n{gateway.refresh.reveal()}")
            logging.getLogger(name).debug("Command to send: something else")
        let_go(silenced)
        request = http_parts._parsed(b"GET / HTTP/1.1\r\nAuthorization: Bearer " + gateway.access.reveal().encode())
        told = f"{request!r} {gateway!r} {vars(gateway)!r} {kept!r} {vars(gateway.operations)!r} {caplog.text}"
    assert request.authorization == gateway.access.reveal()
    assert "CREATE /webhdfs/v1/x/f: 201" in caplog.text and "something else" in caplog.text
    assert not any(secret.reveal() in told for secret in kept)
    assert before == {name: logging.getLogger(name).filters for name in PY4J_LOGGERS}
    for secret in kept:
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(secret)


def test_secrets_are_compared_in_constant_time_and_take_any_text() -> None:
    secret = Secret()
    assert secret.matches(secret.reveal()) and len(secret.reveal()) >= 43
    assert not secret.matches("é\udc80") and not secret.matches("") and Secret().reveal() != secret.reveal()


HOSTILE = {
    "nothing of HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "an endless line": b"GET /" + b"a" * 100_000,
    "many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n",
    "a verb of small letters": b"get / HTTP/1.1\r\n\r\n",
    "a verb that is answered without a body": b"HEAD / HTTP/1.1\r\n\r\n",
    "no path": b"GET webhdfs HTTP/1.1\r\n\r\n",
    "another address": b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
    "a line feed alone": b"GET / HTTP/1.1\r\nA: b\nAuthorization: c\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nAuthorization : c\r\n\r\n",
    "a NUL": b"GET /\x00 HTTP/1.1\r\n\r\n",
    "a bad percent sign": b"GET /%zz HTTP/1.1\r\n\r\n",
    "no UTF-8": b"GET /%ff HTTP/1.1\r\n\r\n",
    "a parameter twice": b"GET /?op=OPEN&op=DELETE HTTP/1.1\r\n\r\n",
    "two authorizations": b"GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
    "two lengths": b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "an old version": b"GET / HTTP/1.0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_request_that_is_none_is_refused_at_once(gateway: Gateway, client: Client, what: str) -> None:
    found = raw(gateway, HOSTILE[what])
    assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")) and found.endswith(b"Connection: close\r\n\r\n"), found
    assert client.exists("/")


BODIES = {
    "a length and chunks": (b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
    "an unknown coding": (b"Transfer-Encoding: gzip, chunked", b""),
    "a negative length": (b"Content-Length: -1", b""),
    "a length with a sign": (b"Content-Length: +3", b"abc"),
    "an endless length": (b"Content-Length: 99999999999999999999", b""),
    "a chunk without a number": (b"Transfer-Encoding: chunked", b"xyz\r\n"),
    "a negative chunk": (b"Transfer-Encoding: chunked", b"-1\r\n"),
    "a chunk of many digits": (b"Transfer-Encoding: chunked", b"000000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a chunk that is longer than it says": (b"Transfer-Encoding: chunked", b"3\r\nabcd\r\n0\r\n\r\n"),
    "a chunk's endless line": (b"Transfer-Encoding: chunked", b"3;" + b"a" * 10_000),
    "endless trailers": (b"Transfer-Encoding: chunked", b"0\r\n" + b"A: b\r\n" * 100),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_body_that_is_none_leaves_nothing(gateway: Gateway, client: Client, store: MemoryFiles, what: str) -> None:
    header, body = BODIES[what]
    for path in ("/f", temporary("/f")):
        head = f"PUT {client.target('CREATE', path, bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
        found = raw(gateway, head.encode() + header + b"\r\n\r\n" + body)
        assert found.startswith(b"HTTP/1.1 400 "), found
    assert client.names("/") == [] and not store.staged and store.changes == []


@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"PUT /webhdfs/v1/x/f?op=CREATE HTTP/1.1\r\n"]))
def test_any_bytes_are_answered_or_refused(data: bytes, before: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(before + data + b"\r\n\r\n")
        here.shutdown(socket.SHUT_WR)
        wire = http_parts.Wire(there)
        try:
            request = wire.head()
            assert request.path.startswith("/")
            http_parts.Body(wire, request, 5).skip()
        except (http_parts.BadRequest, http_parts.PeerGone):
            pass


def test_a_request_behind_a_body_is_the_next_one(gateway: Gateway, client: Client) -> None:
    """Pipelined, with an answer each; a body that an operation does not take is none of the next request."""
    authorised = f"HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n".encode()
    first = b"GET " + client.target("GETFILESTATUS", "/no").encode() + b" " + authorised + b"Content-Length: 30\r\n\r\n"
    second = b"PUT " + client.target("MKDIRS", "/d").encode() + b" " + authorised + b"Connection: close\r\n\r\n"
    found = raw(gateway, first + b"DELETE /webhdfs/v1/x HTTP/1.1\r\n"[:30] + second, half_close=False)
    assert found.count(b"HTTP/1.1 ") == 2 and b"404 Not Found" in found and b'{"boolean":true}' in found


def test_a_client_that_waits_to_be_told_to_go_on(gateway: Gateway, client: Client) -> None:
    head = f"PUT {client.target('CREATE', '/f', bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {gateway.access.reveal()}\r\n"
    found = raw(
        gateway, head.encode() + b"Expect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", b"abc", half_close=False
    )
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n") and client.read("/f") == b"abc"
