"""The addresses of hosts, as Java's clients give them to the script that tells racks (metadata.md 5.1)."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

Found: TypeAlias = list[tuple[int, int, int, Any]]  # family, kind, protocol, and the address to connect to
Lookup: TypeAlias = Callable[[str, int, Callable[[Found, str], None]], None]
"""It looks the addresses of a host at a port up, and calls the function with them, or with none and what was wrong; on any thread."""
NAMES_S = 5.0  # for all of one question
AT_ONCE = 32
_LOOK_S = 0.1  # between two looks if the client is being closed


def addresses_of(
    hosts: Collection[str], lookup: Lookup, is_closed: Callable[[], bool], hung: dict[str, None], timeout_s: float = NAMES_S
) -> dict[str, str]:
    """Return the address of each host: that of IPv4 if there is one, or the host itself if it is not known. Hosts of which nothing is known
    after ``timeout_s`` seconds, or once ``is_closed``, are left out.

    ``hung`` has the names of earlier questions that were not looked up in time, the last ones last, and gets those of this question. They
    are looked up behind all others, or ``AT_ONCE`` names that hang would keep these from being looked up, each time.
    """
    told: dict[str, str] = {}
    for host in hosts:
        with suppress(ValueError):
            told[host] = str(ipaddress.ip_address(host))
    names = set(hosts) - told.keys()
    for name in hung.keys() - names:
        del hung[name]
    waiting = deque([*sorted(names - hung.keys()), *hung])
    answers: SimpleQueue[tuple[str, Found]] = SimpleQueue()
    deadline = time.monotonic() + timeout_s
    under_way: set[str] = set()
    while waiting or under_way:
        while waiting and len(under_way) < AT_ONCE:
            name = waiting.popleft()
            under_way.add(name)
            hung.pop(name, None)
            lookup(name, 0, partial(_answer, answers, name))
        left = deadline - time.monotonic()
        if left <= 0 or is_closed():
            break
        with suppress(Empty):
            host, found = answers.get(timeout=min(_LOOK_S, left))
            told[host] = _first(found) or host
            under_way.discard(host)
    hung.update(dict.fromkeys(sorted(under_way)))
    return told


def _answer(answers: SimpleQueue[tuple[str, Found]], host: str, found: Found, _problem: str) -> None:
    answers.put((host, found))


def _first(found: Found) -> str:
    addresses = [str(place[0]) for family, _, _, place in found if family == socket.AF_INET]
    return addresses[0] if addresses else str(found[0][3][0]).partition("%")[0] if found else ""
