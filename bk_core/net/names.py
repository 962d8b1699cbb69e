"""Looks up the addresses of host names on threads of its own. A name server may take seconds, and on the reactor thread all ledgers would
wait for it."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

Address = tuple[int, int, int, Any]  # family, kind, protocol, and the address to connect to
Then = Callable[[list[Address], str], None]
GetAddrInfo = Callable[..., list[tuple[Any, Any, Any, Any, Any]]]


class Names:
    """The lookups of one client. Each name that is being looked up has a thread of its own, so that one that hangs delays no other, and
    nobody waits for it at the end. ``post`` carries an answer to the reactor thread."""

    def __init__(self, post: Callable[[Callable[[], None]], None], getaddrinfo: GetAddrInfo | None = None) -> None:
        self._post = post
        self._getaddrinfo = getaddrinfo
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], list[Then]] = {}

    def lookup(self, host: str, port: int, then: Then) -> None:
        """Call ``then`` with all addresses in the system's order, or with none and the problem. It is called at once if ``host`` is an
        address itself."""
        try:
            plain = not ipaddress.ip_address(host).is_link_local  # an address with a scope has to be looked up like a name
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
        except RuntimeError as error:  # no more threads can be started
            self._tell(host, port, [], f"the name {host} cannot be resolved: {error}")

    def _ask(self, host: str, port: int) -> None:
        found: list[Address] = []
        problem = ""
        try:
            answers = (self._getaddrinfo or socket.getaddrinfo)(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys((family, kind, number, target) for family, kind, number, _, target in answers))
        except Exception as error:  # the name in a registration may be anything, and the link that waits for it must be told
            problem = f"the name {host!r} cannot be resolved: {error}"
        self._tell(host, port, found, problem)

    def _tell(self, host: str, port: int, found: list[Address], problem: str) -> None:
        with self._lock:
            waiting = self._under_way.pop((host, port))

        def tell() -> None:
            for then in waiting:
                then(found, problem)

        self._post(tell)
