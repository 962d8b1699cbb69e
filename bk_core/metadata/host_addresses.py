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


def addresses_of(hosts: Collection[str], lookup: Lookup, is_closed: Callable[[], bool], timeout_s: float = NAMES_S) -> dict[str, str]:
    """Return the address of each host: that of IPv4 if there is one, or the host itself if it is not known. Hosts of which nothing is known
    after ``timeout_s``, or once ``is_closed``, are left out."""
    told: dict[str, str] = {}
    for host in hosts:
        with suppress(ValueError):
            told[host] = str(ipaddress.ip_address(host))
    waiting = deque(sorted(set(hosts) - told.keys()))
    answers: SimpleQueue[tuple[str, Found]] = SimpleQueue()
    deadline = time.monotonic() + timeout_s
    under_way = 0
    while waiting or under_way:
        while waiting and under_way < AT_ONCE:
            under_way += 1
            lookup(waiting[0], 0, partial(_answer, answers, waiting.popleft()))
        left = deadline - time.monotonic()
        if left <= 0 or is_closed():
            break
        with suppress(Empty):
            host, found = answers.get(timeout=min(_LOOK_S, left))
            told[host] = _first(found) or host
            under_way -= 1
    return told


def _answer(answers: SimpleQueue[tuple[str, Found]], host: str, found: Found, _problem: str) -> None:
    answers.put((host, found))


def _first(found: Found) -> str:
    addresses = [str(place[0]) for family, _, _, place in found if family == socket.AF_INET]
    return addresses[0] if addresses else str(found[0][3][0]).partition("%")[0] if found else ""
