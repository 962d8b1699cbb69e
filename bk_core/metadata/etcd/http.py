"""Questions to a server of etcd by HTTP, which it answers at the port of its clients: if it serves, and what time it is there."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from bk_core.metadata import secured
from bk_core.metadata.access import MetadataTls

_ANSWER_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Answer:
    """``raw`` is all that came. ``status`` is 0 for what is no HTTP. ``date_ms`` is the server's time in whole seconds; None without."""

    raw: bytes
    status: int = 0
    body: bytes = b""
    date_ms: int | None = None


def ask(target: tuple[Any, ...], host: str, tls: MetadataTls | None, path: str, timeout_s: float) -> Answer:
    """Return the answer to GET. ``target`` is the address, or name and port, of which all addresses are tried; ``host`` is the name. Raises
    OSError."""
    deadline = time.monotonic() + timeout_s
    if tls is None:
        connection: socket.socket = socket.create_connection(target[:2], timeout_s)
    else:
        connection = secured.connect(tls, target, host, timeout_s)
    raw = b""
    with connection:
        connection.settimeout(max(0.05, deadline - time.monotonic()))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        while len(raw) < _ANSWER_MAX:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{host} did not end its answer in time")
            connection.settimeout(left_s)
            chunk = connection.recv(4096)
            if not chunk:
                break
            raw += chunk
    return _taken_apart(raw)


def _taken_apart(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not first.startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        return Answer(raw)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(raw, int(words[1]), body, _milliseconds(headers.get("date", "")))


def _milliseconds(date: str) -> int | None:
    try:
        return int(parsedate_to_datetime(date).timestamp()) * 1000
    except ValueError:
        return None
