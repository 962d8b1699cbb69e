"""The URIs of metadata stores (metadata.md 1.1): one parser for all of them. It knows no store, and reads no file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from bk_core.display.words import host_and_port, host_port
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.access import AUTH_OPTIONS, TLS_OPTIONS
from bk_core.near import meant_option
from bk_core.security import URI_OPTIONS as OF_BOOKIES

SESSION_TIMEOUT_MS = 10_000
_DIGITS_MAX = 20
_OF_BOOKIES = "bookie_"
_OF_PASSWORD = re.compile("[a-z_]*password", re.IGNORECASE)
RACK_SCRIPT_VARIABLE = "BK_RACK_SCRIPT"
"""The variable that names the script for racks, for programs that are given a URI alone."""
_OF_ALL = ("chroot", "log_root", "session_timeout_ms", "placement")
_OF_MEMORY = ("placement",)
_PLACEMENTS = ("random", "rack-aware")
_LAYOUTS = {"": None, "null": None, "hierarchical": "hierarchical", "longhierarchical": "longhierarchical", "flat": "flat"}
_KNOWN = {"zk": "zk, zk+tls, zk+<layout>", "etcd": "etcd, etcd+tls, etcd+<layout>, etcd+apache"}
APACHE = "apache"
"""The layout of Apache BookKeeper's own driver for etcd (metadata.md 6.2)."""
BY_COOKIES = "cookies"
_OF_APACHE = ("bookies",)
_IN_IDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:[]")


@dataclass(frozen=True, slots=True)
class StoreUri:
    """A URI taken apart. ``hosts`` are separated by commas; of ``memory://`` it is the name. ``layout`` is None where the cluster says
    which one it has. Its ``repr`` shows no option, because somebody may have written a password there."""

    driver: str
    hosts: str
    root: str = ""
    by_tls: bool = False
    layout: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    shown: str = ""
    """The URI for messages: without what stands before its hosts and behind its path."""

    @property
    def session_timeout_s(self) -> float:
        """The timeout of the session in seconds. Raises InvalidArgumentError for a text that is none."""
        session = self.options.get("session_timeout_ms", str(SESSION_TIMEOUT_MS))
        if not (session.isdecimal() and len(session) <= _DIGITS_MAX and 0 < int(session) < 2**31):
            raise InvalidArgumentError(f"session_timeout_ms {session[: _DIGITS_MAX + 1]!r} is not a number of milliseconds")
        return int(session) / 1000

    @property
    def bookies(self) -> tuple[str, ...] | Literal["cookies"]:
        """The ids of the bookies that count as writable without a registration; "cookies" stands for all that have a cookie. Raises
        InvalidArgumentError for an id without an address in it."""
        text = self.options.get("bookies", "")
        if text == BY_COOKIES:
            return "cookies"
        found = [one for one in text.replace(";", ",").split(",") if one]
        for one in found:
            if not _is_bookie_at(one):
                wanted = "cookies for those that have a cookie, or host:port of each with commas"
                raise InvalidArgumentError(f"the option 'bookies' of the URI names {one[:80]!r}: write {wanted}")
        return tuple(dict.fromkeys(found))


def parse(uri: str) -> StoreUri:
    """Return the URI taken apart.

    >>> parse("zk+flat://h1:2181;h2:2181/ledgers?chroot=/x").hosts
    'h1:2181,h2:2181'

    Raises InvalidArgumentError for a text that is not the URI of a store that is known, or that has an option which the store does not
    take, twice, or without a value. No message shows what may be a password. Document: metadata.md 1.1.
    """
    scheme, separator, rest = uri.partition("://")
    driver, *words = scheme.lower().split("+")
    by_tls = words[:1] == ["tls"]
    layout = "+".join(words[1:] if by_tls else words)
    layouts = _LAYOUTS | {APACHE: APACHE} if driver == "etcd" else _LAYOUTS
    if not separator:
        raise InvalidArgumentError(f"{shown(uri)!r} is not the URI of a metadata store, like zk://host:2181/ledgers")
    if driver == "memory" and not words:
        return _in_memory(uri, rest)
    if driver not in _KNOWN or layout not in layouts:
        raise InvalidArgumentError(f"no metadata store is known for {scheme!r}; there are {', '.join(_KNOWN.values())} and memory")
    found = _of_servers(uri, driver, rest, by_tls, layouts[layout])
    found.bookies  # noqa: B018 - refused now if it cannot be read
    placement_of(uri)
    return found


def _in_memory(uri: str, rest: str) -> StoreUri:
    place, _, fragment = rest.partition("#")
    name, _, query = place.partition("?")
    if not name:
        raise InvalidArgumentError("memory:// needs a name: all that open the same name share one store")
    found = _options(uri, query, fragment, _OF_MEMORY)
    placement_of(uri)
    return StoreUri("memory", name, options=found, shown=shown(uri))


def _of_servers(uri: str, driver: str, rest: str, by_tls: bool, layout: str | None) -> StoreUri:
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:  # brackets without an address of IPv6 in them, or characters that no host has
        wanted = f"{driver}://host:port/ledgers, with [::1]:port for IPv6"
        raise InvalidArgumentError(f"the hosts of {shown(uri)!r} cannot be read: {wanted}") from None
    if "@" in parts.netloc:  # it is not shown, because it may hold a password
        raise InvalidArgumentError(f"a URI has no user before its hosts: write {driver}://host:port/ledgers?user=NAME&password_file=PATH")
    hosts = parts.netloc.replace(";", ",").strip(",")
    if not hosts:
        raise InvalidArgumentError(f"{shown(uri)!r} lacks hosts: {driver}://host:port/ledgers")
    if not parts.path.strip("/"):
        raise InvalidArgumentError(f"{shown(uri)!r} lacks the ledgers root: {driver}://host:port/ledgers")
    if parts.path.endswith("/"):
        raise InvalidArgumentError(f"the ledgers root of {shown(uri)!r} ends with a slash: write {parts.path.rstrip('/')}")
    split_hosts(hosts, 1)
    known = (*_OF_ALL, *(_OF_APACHE if layout == APACHE else ()), *AUTH_OPTIONS[driver], *TLS_OPTIONS)
    found = _options(uri, parts.query, parts.fragment, known)
    return StoreUri(driver, hosts, parts.path, by_tls, layout, found, shown(uri))


def placement_of(uri: str) -> str | None:
    """Return what the options of a URI say about the choice of bookies, None if they say nothing. Raises InvalidArgumentError."""
    found = dict(parse_qsl(uri.partition("?")[2].partition("#")[0], keep_blank_values=True)).get("placement")
    if found == "":
        raise InvalidArgumentError("the option 'placement' of the URI has no value: write placement=..., or leave it out")
    if found is not None and found not in _PLACEMENTS:
        raise InvalidArgumentError(f"the option 'placement' of the URI must be one of {', '.join(_PLACEMENTS)}, not {found[:80]!r}")
    return found


def rack_script_here() -> str | None:
    """Return the script that the environment of this process names (``BK_RACK_SCRIPT``), None if it names none. A URI names no program,
    because it comes from whoever writes a query, and this one runs on all hosts of a cluster."""
    return os.environ.get(RACK_SCRIPT_VARIABLE) or None


def shown(uri: str) -> str:
    """Return a URI without what stands before its hosts and behind its path, where somebody may have written a password."""
    head, separator, rest = uri.partition("://")
    place, mark, _ = rest.partition("?") if "?" in rest else rest.partition("#")
    if not separator:
        return head.rpartition("@")[2].partition("?")[0]
    return f"{head}://{place.rpartition('@')[2]}{mark and mark + '...'}"


def _options(uri: str, text: str, fragment: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the options of a URI by name. Raises InvalidArgumentError for one that is unknown, without a value, or given twice, and for a
    fragment. What stands behind an ``&`` or a ``#`` may be a piece of a password: it is shown only where it is an option that is known,
    or the first one that is not."""
    given, found = parse_qsl(text, keep_blank_values=True), dict[str, str]()
    takes = {*known, *OF_BOOKIES}
    for name in [*(name for name, _ in given), fragment]:
        if name not in takes and "password" in name.lower():
            said = (_OF_PASSWORD.match(name) or ["password"])[0]  # what follows may be the password itself
            file = f"{_OF_BOOKIES if name.startswith(_OF_BOOKIES) else ''}password_file=PATH"
            raise InvalidArgumentError(f"a URI never holds a password, as it does in {said!r}: name a file, {file}")
    for name, value in given:
        if name not in takes and not value:
            raise InvalidArgumentError(f"{shown(uri)!r} has an option without a value that is not known: write %26 for an & in a value")
        if name not in takes:
            prefix = _OF_BOOKIES if name.startswith(_OF_BOOKIES) else ""
            hint = meant_option(name, prefix, OF_BOOKIES if prefix else known)
            raise InvalidArgumentError(f"{shown(uri)!r} has an unknown option {name!r}; {hint}")
        if name in found:
            raise InvalidArgumentError(f"the URI has the option {name!r} twice: leave one of them out")
        if not value:
            raise InvalidArgumentError(f"the option {name!r} of the URI has no value: write {name}=..., or leave it out")
        found[name] = value
    if fragment:
        raise InvalidArgumentError(f"{shown(uri)!r} has a '#', behind which nothing may stand: write %23 for one in an option")
    return found


def split_hosts(hosts: str, default_port: int) -> list[tuple[str, int]]:
    """Return host and port of each of the ``hosts``, which commas separate. Raises InvalidArgumentError for text that cannot be one."""
    return [_split(one, default_port) for one in hosts.split(",") if one]


def _is_bookie_at(text: str) -> bool:
    """Return True for the id ``host:port`` of a bookie."""
    return _IN_IDS.issuperset(text) and host_and_port(text) is not None


def joined_hosts(hosts: str, default_port: int) -> str:
    """Return the same hosts, each with its port."""
    return ",".join(host_port(host, port) for host, port in split_hosts(hosts, default_port))


def _split(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0 or (port is None and text.endswith(":")):
        raise InvalidArgumentError(f"uri names {text!r}, which is not a host or host:port with a port within 1..65535")
    return host, default_port if port is None else port
