"""The gateway over TLS: who trusts the certificate is served, who speaks plainly or trusts another one is not."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_spark.checkpoint import checkpoint_location, hadoop_conf, lobby
from bk_spark.checkpoint import gateway as gateways
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.location import _tls
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.memory_files import MemoryFiles


def certificate(folder: Path, name: str, *options: str) -> tuple[str, str]:
    """A new one for this host, signed by itself."""
    files = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    made = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ]
    subprocess.run(["openssl", *made, "-out", files[0], "-keyout", files[1], *(options or ("-nodes",))], check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return certificate(tmp_path_factory.mktemp("tls"), "driver")


@pytest.fixture
def gateway(files: tuple[str, str]) -> Iterator[Gateway]:
    made = Gateway(tls=_tls(files))
    made.files["x"] = CheckpointFiles(MemoryFiles(), 10)
    yield made
    made.close()


def ask(gateway: Gateway, method: str, path: str, trusted: str, body: bytes = b"") -> tuple[int, bytes, str]:
    context = ssl.create_default_context(cafile=trusted)
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=20, context=context)
    try:
        connection.request(method, f"/webhdfs/v1/x{path}", body, {"Authorization": f"Bearer {gateway.access.reveal()}"})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("Location", "")
    finally:
        connection.close()


def test_a_file_goes_both_ways(gateway: Gateway, files: tuple[str, str]) -> None:
    body = bytes(range(256)) * 8000
    for method, op, given, wanted in (("PUT", "CREATE", body, b""), ("GET", "OPEN", b"", body)):
        status, _, where = ask(gateway, method, f"/f?op={op}", files[0])
        assert status == 307 and where.startswith(f"https://127.0.0.1:{gateway.port}/")
        status, found, _ = ask(gateway, method, where.partition("/webhdfs/v1/x")[2], files[0], given)
        assert status in (200, 201) and found == wanted


def test_who_trusts_another_certificate_or_speaks_plainly_is_not_served(
    gateway: Gateway, files: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = certificate(tmp_path, "other")
    with caplog.at_level(logging.WARNING, "bk_spark.checkpoint"):
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(gateway, "GET", "/?op=GETFILESTATUS", other[0])
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as plain:
            secret = gateway.access.reveal()
            plain.sendall(f"GET /webhdfs/v1/x?op=GETFILESTATUS HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
            said = b""
            with suppress(ConnectionResetError):
                while piece := plain.recv(4096):
                    said += piece
        assert b"HTTP/1.1" not in said
        monkeypatch.setattr(gateways, "HEAD_S", 0.2)
        for begun in (b"", b"\x16"):
            monkeypatch.setattr(lobby, "FIRST_BYTE_S", 30 if begun else 0.2)
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as silent:
                silent.sendall(begun)
                assert silent.recv(1) == b""  # no handshake in time
        assert ask(gateway, "GET", "/?op=GETFILESTATUS", files[0])[0] == 200
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "do not agree about TLS" in line]) == 1  # of two
    assert not [line for line in told if gateway.access.reveal() in line or "defect" in line]


def test_closing_ends_connections_that_wait(gateway: Gateway, files: tuple[str, str]) -> None:
    context = ssl.create_default_context(cafile=files[0])
    with context.wrap_socket(socket.create_connection(("127.0.0.1", gateway.port), timeout=20), server_hostname="127.0.0.1") as idle:
        gateway.close()
        assert idle.recv(1) == b""
    assert not [one for one in gateway._connections if one.thread is not None and one.thread.is_alive()]


def test_spark_is_led_to_https() -> None:
    made = hadoop_conf.settings("https://driver:4000", "x", 240)
    assert made["dfs.namenode.https-address.bookkeeper-checkpoints.gateway"] == "driver:4000"
    assert made[hadoop_conf.REFRESH_URL] == "https://driver:4000/token"
    assert hadoop_conf.location("flights", secure=True) == "swebhdfs://bookkeeper-checkpoints/flights"


def test_files_that_are_no_certificate_with_its_key_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    locked = certificate(tmp_path, "locked", "-passout", "pass:s3cret")
    for given, told in (
        ((str(tmp_path / "none.pem"), files[1]), r"tls: .*none\.pem cannot be read: No such file"),
        ((files[1], files[0]), "are no certificate with its key"),
        ((files[0], certificate(tmp_path, "other")[1]), "are no certificate with its key"),
        (locked, "has a passphrase; give one without"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            _tls(given)
    wrong: list[Any] = ["cert.pem", ("cert.pem",), (1, 2)]
    for value in wrong:
        with pytest.raises(ArgumentTypeError, match="tls must be the files of a certificate chain"):
            checkpoint_location(object(), "x", tls=value)
