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
        self._next: dict[tuple[str, int], list[Then]] = {}  # those who wait for a lookup behind the one that is under way

    def lookup(self, host: str, port: int, then: Then, *, anew: bool = False) -> None:
        """Call ``then`` with all addresses in the system's order, or with none and the problem. It is called at once if ``host`` is an
        address itself. Whoever asks during a lookup shares it; with ``anew`` the lookup begins after this call, because the one that is
        under way may find what was there before."""
        try:
            plain = not ipaddress.ip_address(host).is_link_local  # an address with a scope has to be looked up like a name
        except ValueError:
            plain = False
        if not plain:
            self._look_up(host, port, then, anew)
        elif ":" in host:
            then([(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port, 0, 0))], "")
        else:
            then([(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port))], "")

    def _look_up(self, host: str, port: int, then: Then, anew: bool) -> None:
        with self._lock:
            if (host, port) in self._under_way:
                (self._next.setdefault((host, port), []) if anew else self._under_way[host, port]).append(then)
                return
            self._under_way[host, port] = [then]
        try:
            threading.Thread(target=self._ask, args=(host, port), name=f"bookkeeper-name-{host}", daemon=True).start()
        except RuntimeError as error:  # no more threads can be started
            while self._tell(host, port, [], f"the name {host} cannot be resolved: {error}"):
                pass

    def _ask(self, host: str, port: int) -> None:
        goes_on = True
        while goes_on:
            found: list[Address] = []
            problem = ""
            try:
                answers = (self._getaddrinfo or socket.getaddrinfo)(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys((family, kind, number, target) for family, kind, number, _, target in answers))
            except Exception as error:  # the name in a registration may be anything, and the link that waits for it must be told
                problem = f"the name {host!r} cannot be resolved: {error}"
            goes_on = self._tell(host, port, found, problem)

    def _tell(self, host: str, port: int, found: list[Address], problem: str) -> bool:
        """Tell those who wait for this lookup. Return True if others wait for the next one."""
        with self._lock:
            waiting = self._under_way.pop((host, port))
            others = self._next.pop((host, port), None)
            if others is not None:
                self._under_way[host, port] = others

        def tell() -> None:
            for then in waiting:
                then(found, problem)

        self._post(tell)
        return others is not None
