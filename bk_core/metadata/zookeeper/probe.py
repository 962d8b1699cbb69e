"""Looks at the addresses of a ZooKeeper that gives no session, to find the problem of each (SES-11)."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

from bk_core.display.words import host_port
from bk_core.metadata import secured
from bk_core.metadata.access import MetadataTls
from bk_core.metadata.uri import split_hosts
from bk_core.protocol.session.reach import Found, Reach, kind_of
from bk_core.threads import Monitor, mark_own

DEFAULT_PORT = 2181
TLS_PORT = 2281
"""The port of a ZooKeeper that speaks TLS, where the URI names none."""
_UNASKED_S = 0.2  # a server that has too many connections closes a new one at once
_ANSWER_MAX = 64


def look(hosts: str, timeout_s: float, tls: MetadataTls | None = None) -> list[Found]:
    """Look at all addresses at the same time, by ``tls`` if there is one, each on a thread of its own, so that a name server that hangs
    delays no other. One without an answer in time is SILENT."""
    addresses = split_hosts(hosts, DEFAULT_PORT)
    found: dict[int, Found] = {}
    arrived = Monitor()

    def probe(index: int, host: str, port: int) -> None:
        mark_own()
        result = _probe(host, port, timeout_s, tls)
        with arrived:
            found[index] = result
            arrived.notify_all()

    for index, (host, port) in enumerate(addresses):
        try:
            threading.Thread(target=probe, args=(index, host, port), name=f"bk-zookeeper-look-{host}", daemon=True).start()
        except RuntimeError as error:  # no more threads can be started
            found[index] = Found(host_port(host, port), Reach.UNREACHABLE, str(error))
    with arrived:
        arrived.wait_for(lambda: len(found) == len(addresses), timeout_s)
        return [found.get(index, Found(host_port(host, port), Reach.SILENT)) for index, (host, port) in enumerate(addresses)]


def _probe(host: str, port: int, timeout_s: float, tls: MetadataTls | None) -> Found:
    name, deadline = host_port(host, port), time.monotonic() + timeout_s
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Found(name, Reach.UNKNOWN_HOST, getattr(error, "strerror", None) or str(error))
    if tls is None:
        results = [_talk(name, family, target, deadline) for family, _, _, _, target in targets]
    else:
        results = [_talk_by_tls(name, tls, host, family, target, deadline) for family, _, _, _, target in targets]
    refused = [one for one in results if one.reach is Reach.REFUSED]  # if a host has several addresses, one may tell more than another
    return next((one for one in results if one not in refused), results[0])


def _talk(name: str, family: int, target: Any, deadline: float) -> Found:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(0.05, deadline - time.monotonic()))
            connection.connect(target)
            reach = _ask(connection, (time.monotonic() + deadline) / 2)
    except ConnectionRefusedError:
        return Found(name, Reach.REFUSED)
    except TimeoutError:
        return Found(name, Reach.SILENT)
    except OSError as error:
        return Found(name, Reach.UNREACHABLE, error.strerror or "")
    return Found(name, Reach.NEEDS_TLS if reach is Reach.SILENT and secured.speaks_tls(target, deadline) else reach)


def _talk_by_tls(name: str, tls: MetadataTls, host: str, family: int, target: Any, deadline: float) -> Found:
    try:
        with secured.connect(tls, target, host, max(0.05, deadline - time.monotonic())) as connection:
            return Found(name, _ask(connection, deadline))
    except ConnectionRefusedError:
        return Found(name, Reach.REFUSED)
    except TimeoutError:
        return Found(name, Reach.SILENT)
    except (ssl.SSLError, ConnectionError) as error:
        found = Found(name, *secured.reach_of(error))
    except OSError as error:
        return Found(name, Reach.UNREACHABLE, error.strerror or str(error))
    if found.reach is Reach.CLOSES and _talk(name, family, target, deadline).reach in (Reach.SERVES, Reach.NOT_SERVING):
        return Found(name, Reach.LACKS_TLS)  # ZooKeeper without TLS takes the handshake for a request that is too long
    return found


def _ask(connection: socket.socket, deadline: float) -> Reach:
    unasked = _received(connection, time.monotonic() + _UNASKED_S)
    if unasked is not None:
        return Reach.FOREIGN if unasked else Reach.CLOSES
    try:
        connection.sendall(b"srvr")
    except OSError:
        return Reach.CLOSES
    return kind_of(_received(connection, deadline))


def _received(connection: socket.socket, until: float) -> bytes | None:
    """Return the bytes received, None if nothing came in time, b"" if the connection ended."""
    connection.settimeout(max(0.05, until - time.monotonic()))
    try:
        return connection.recv(_ANSWER_MAX)
    except TimeoutError:
        return None
    except ssl.SSLError:  # the other side of TLS 1.3 says no to a client's certificate only here
        raise
    except OSError:
        return b""
