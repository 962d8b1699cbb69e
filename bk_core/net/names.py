"""Names of hosts become addresses, never on the reactor's thread: a name server may take seconds, and all ledgers would wait for it."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

Address = tuple[int, int, int, Any]  # family, kind, protocol and what to connect to
Then = Callable[[list[Address], str], None]
GetAddrInfo = Callable[..., list[tuple[Any, Any, Any, Any, Any]]]


class Names:
    """Lookups of one client. A thread of its own for each name that is being looked up: one that hangs keeps nobody else, and nobody waits
    for it at the end. ``post`` takes an answer to the reactor's thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None], getaddrinfo: GetAddrInfo | None = None) -> None:
        self._post = post
        self._getaddrinfo = getaddrinfo
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], list[Then]] = {}

    def lookup(self, host: str, port: int, then: Then) -> None:
        """``then`` gets all addresses in the system's order, or none and what is wrong; at once if ``host`` is an address itself."""
        try:
            plain = not ipaddress.ip_address(host).is_link_local  # a scope is a name again
        except ValueError:
            plain = False
        if not plain:
            self._look_up(host, port, then)
        elif ":" in host:
            then([(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port, 0, 0))], "")
        else:
            then([(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port))], "")

    def _look_up(self, host: str, port: int, then: Then) -> None:
        with self._lock:
            waiting = self._under_way.setdefault((host, port), [])
            waiting.append(then)
            if len(waiting) > 1:
                return
        try:
            threading.Thread(target=self._ask, args=(host, port), name=f"bookkeeper-name-{host}", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._tell(host, port, [], f"the name {host} cannot be resolved: {error}")

    def _ask(self, host: str, port: int) -> None:
        found: list[Address] = []
        problem = ""
        try:
            answers = (self._getaddrinfo or socket.getaddrinfo)(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys((family, kind, number, target) for family, kind, number, _, target in answers))
        except Exception as error:  # a name of a registration may be anything; whoever waits for it must be told
            problem = f"the name {host!r} cannot be resolved: {error}"
        self._tell(host, port, found, problem)

    def _tell(self, host: str, port: int, found: list[Address], problem: str) -> None:
        with self._lock:
            waiting = self._under_way.pop((host, port))

        def tell() -> None:
            for then in waiting:
                then(found, problem)

        self._post(tell)
