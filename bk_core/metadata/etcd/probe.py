"""Looks at the addresses of an etcd that gives no connection, to find the problem of each (SES-11)."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

from bk_core.display.words import host_port
from bk_core.metadata import secured
from bk_core.metadata.access import MetadataTls
from bk_core.metadata.etcd import http
from bk_core.metadata.uri import split_hosts
from bk_core.protocol.session.reach import ETCD, Found, Reach
from bk_core.threads import Monitor, mark_own

DEFAULT_PORT = 2379


def look(hosts: str, timeout_s: float, tls: MetadataTls | None = None) -> list[Found]:
    """Look at all addresses at the same time, by ``tls`` if there is one, each on a thread of its own. One without an answer in time is
    SILENT."""
    servers = split_hosts(hosts, DEFAULT_PORT)
    found: dict[int, Found] = {}
    arrived = Monitor()

    def probe(index: int, host: str, port: int) -> None:
        mark_own()
        result = _probe(host, port, timeout_s, tls)
        with arrived:
            found[index] = result
            arrived.notify_all()

    for index, (host, port) in enumerate(servers):
        try:
            threading.Thread(target=probe, args=(index, host, port), name=f"bk-etcd-look-{host}", daemon=True).start()
        except RuntimeError as error:  # no more threads can be started
            found[index] = Found(host_port(host, port), Reach.UNREACHABLE, str(error), ETCD)
    with arrived:
        arrived.wait_for(lambda: len(found) == len(servers), timeout_s)
        return [found.get(index, Found(host_port(host, port), Reach.SILENT, "", ETCD)) for index, (host, port) in enumerate(servers)]


def _probe(host: str, port: int, timeout_s: float, tls: MetadataTls | None) -> Found:
    name, deadline = host_port(host, port), time.monotonic() + timeout_s
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Found(name, Reach.UNKNOWN_HOST, getattr(error, "strerror", None) or str(error), ETCD)
    results = [_talk(name, host, target, tls, deadline) for _, _, _, _, target in targets]
    refused = [one for one in results if one.reach is Reach.REFUSED]  # if a host has several addresses, one may tell more than another
    return next((one for one in results if one not in refused), results[0])


def _talk(name: str, host: str, target: tuple[Any, ...], tls: MetadataTls | None, deadline: float) -> Found:
    detail = ""
    try:
        reach = kind_of(http.ask(target, host, tls, "/health", max(0.05, deadline - time.monotonic())))
    except ConnectionRefusedError:
        reach = Reach.REFUSED
    except TimeoutError:
        reach = Reach.SILENT
    except (ssl.SSLError, ConnectionError) as error:
        reach, detail = secured.reach_of(error)
    except OSError as error:
        reach, detail = Reach.UNREACHABLE, error.strerror or str(error)
    if reach is Reach.CLOSES:
        reach = _other_way(host, target, tls, deadline)
    return Found(name, reach, detail, ETCD)


def _other_way(host: str, target: tuple[Any, ...], tls: MetadataTls | None, deadline: float) -> Reach:
    """Return the kind of a server that closes: it may speak TLS only, or not at all."""
    if tls is None:
        return Reach.NEEDS_TLS if secured.speaks_tls(target, deadline) else Reach.CLOSES
    try:
        plain = kind_of(http.ask(target, host, None, "/health", max(0.05, deadline - time.monotonic())))
    except OSError:
        return Reach.CLOSES
    return Reach.LACKS_TLS if plain in (Reach.SERVES, Reach.NOT_SERVING) else Reach.CLOSES


def kind_of(answer: http.Answer) -> Reach:
    """Return the kind of server that gave this answer to a question for its health."""
    if answer.raw.startswith(b"\x15\x03") or b"HTTP request to an HTTPS server" in answer.raw:
        return Reach.NEEDS_TLS
    if not answer.raw:
        return Reach.CLOSES
    if b'"health"' not in answer.body:
        return Reach.FOREIGN
    return Reach.SERVES if answer.status == 200 and b"true" in answer.body else Reach.NOT_SERVING
