"""A client of the checkpoint gateway that speaks as Spark's own does, and one that sends any bytes."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from bk_spark.checkpoint.gateway import TOKEN_PATH, Gateway

UUID = "0a1b2c3d-0000-4000-8000-00000000000"


def temporary(path: str, number: int = 1, task: str = "") -> str:
    """The name that Spark writes ``path`` under at first."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.{UUID}{number}{task}.tmp"


class JavaError(Exception):
    """A RemoteException, which the client throws."""

    def __init__(self, status: int, told: dict[str, str]) -> None:
        super().__init__(f"{told['javaClassName']}: {told['message']}")
        self.status, self.java_class, self.message = status, told["javaClassName"], told["message"]
        assert told["exception"] == self.java_class.rpartition(".")[2]


class Client:
    """One connection, kept. ``requests``: how many were sent."""

    def __init__(self, gateway: Gateway, name: str = "x") -> None:
        self.gateway, self.name, self.requests = gateway, name, 0
        self.connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=20)
        self.headers = {"AUTHORIZATION": f"Bearer {gateway.access.reveal()}"}

    def close(self) -> None:
        self.connection.close()

    def ask(self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
        self.requests += 1
        chunked = body is not None and not isinstance(body, bytes)
        self.connection.request(method, target, body, self.headers if headers is None else headers, encode_chunked=chunked)
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def target(self, op: str, path: str, **query: str) -> str:
        return f"/webhdfs/v1/{quote(self.name + path)}?{urlencode({'op': op, 'user.name': 'spark', **query})}"

    def json(self, method: str, op: str, path: str, **query: str) -> Any:
        return self._value(*self.ask(method, self.target(op, path, **query)))

    def _value(self, status: int, headers: Any, text: bytes) -> Any:
        assert "content-type" not in headers
        value = json.loads(text) if text else None
        if status >= 400:
            raise JavaError(status, value["RemoteException"])
        assert status == 200, status
        return value

    # --- what Spark asks for ------------------------------------------------------------------------------------------------

    def status(self, path: str, op: str = "GETFILESTATUS") -> dict[str, Any]:
        found: dict[str, Any] = self.json("GET", op, path)["FileStatus"]
        return found

    def exists(self, path: str) -> bool:
        try:
            self.status(path)
        except JavaError as error:
            if error.status != 404:
                raise
            return False
        return True

    def names(self, path: str) -> list[str]:
        return [status["pathSuffix"] for status in self.json("GET", "LISTSTATUS", path)["FileStatuses"]["FileStatus"]]

    def mkdirs(self, path: str) -> bool:
        return bool(self.json("PUT", "MKDIRS", path)["boolean"])

    def delete(self, path: str, recursive: bool = False) -> bool:
        return bool(self.json("DELETE", "DELETE", path, recursive=str(recursive).lower())["boolean"])

    def rename(self, src: str, dst: str, options: str | None = "NONE") -> Any:
        given = {} if options is None else {"renameoptions": options}
        answer = self.json("PUT", "RENAME", src, destination=f"/{self.name}{dst}", **given)
        return answer["boolean"] if options is None else answer

    def create(self, path: str, body: bytes | Iterable[bytes], overwrite: bool = True, **query: str) -> None:
        status, headers, text = self.ask("PUT", self.target("CREATE", path, overwrite=str(overwrite).lower(), **query), b"")
        if status != 307:
            self._value(status, headers, text)
        assert not text
        whole = [body] if isinstance(body, bytes) else body
        status, headers, text = self.ask("PUT", self._there(headers), iter(whole))
        if status != 201:
            self._value(status, headers, text)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        status, headers, text = self.ask("GET", self.target("OPEN", path, buffersize="4096"))
        if status != 307:
            self._value(status, headers, text)
        more = "" if length is None else f"&length={length}"
        status, headers, text = self.ask("GET", f"{self._there(headers)}&offset={offset}{more}")
        if status != 200:
            self._value(status, headers, text)
        return text

    def write_atomic(self, path: str, body: bytes, overwrite: bool = False, number: int = 1) -> None:
        """As RenameBasedFSDataOutputStream over a FileContext does it."""
        there = temporary(path, number)
        self.create(there, body)
        self.status(there, "GETFILELINKSTATUS")
        if self.exists(path):
            if not overwrite:
                raise FileExistsError(path)
            self.delete(path)
        self.rename(there, path)

    def _there(self, headers: Any) -> str:
        url = urlsplit(headers["location"])
        assert url.netloc == self.gateway.address
        return f"{url.path}?{url.query}"


def token(gateway: Gateway, refresh: str, grant: str = "refresh_token") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=20)
    try:
        form = urlencode({"grant_type": grant, "refresh_token": refresh, "client_id": "bk-spark"})
        connection.request("POST", TOKEN_PATH, form, {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(gateway: Gateway, *parts: bytes, half_close: bool = True) -> bytes:
    """All that comes back for these bytes until the gateway ends the connection."""
    with socket.create_connection((gateway.host, gateway.port), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:  # it was ended already
            pass
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
        return found
