"""The guard of the page: the token of the address, the cookie that it becomes, and the names under which a browser may ask.

Another user of the machine can reach the port, but has no token. A page of a stranger in the user's own browser sends no cookie, because
the cookie is SameSite=Strict. A stranger's host name that leads to this machine (DNS rebinding) is not among the names that are answered.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import NoReturn

from bk_core.errors import InvalidArgumentError

TOKEN_MIN = 22  # letters of six bits each: 132 bits
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


class Token:
    """A random text that opens the page. Its ``repr`` tells nothing, and it does not pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str | None = None) -> None:
        self._text = secrets.token_urlsafe(32) if text is None else text

    def reveal(self) -> str:
        """Return the text itself, for the address that the user is told."""
        return self._text

    def matches(self, given: str) -> bool:
        """Return True if ``given`` is the token; it takes as long for one guess as for another."""
        return hmac.compare_digest(self._text.encode(), given.encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return "<token>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the token of a live page stays in its process")


def token_of_file(path: Path) -> Token:
    """Return the token that the file keeps; a file that does not exist is made, readable for this user alone, with a new one.

    Raises InvalidArgumentError for a file that others may read, or that holds no token."""
    fresh = Token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _kept(path)
    except OSError as error:
        raise InvalidArgumentError(f"the token file {path} cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(fresh.reveal() + "\n")
    return fresh


def _kept(path: Path) -> Token:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InvalidArgumentError(f"{path} is no file that could keep a token")
            text = file.read(4096).strip()
    except OSError as error:
        raise InvalidArgumentError(f"the token file {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgumentError(f"others may read the token file {path}: chmod 600 {path}")
    if len(text) < TOKEN_MIN or not _TOKEN.fullmatch(text):
        told = f"{TOKEN_MIN} or more letters, digits, - and _"
        raise InvalidArgumentError(f"{path} holds no token, which is {told}: delete the file, and a new one is made")
    return Token(text)


def cookie_name(port: int) -> str:
    """Return the name of the cookie. Browsers send cookies of one port to all ports of a host, so each page has a name of its own."""
    return f"bk-ui-{port}"


def cookie_value(header: str | None, name: str) -> str:
    """Return the value of a cookie, "" if there is none."""
    try:
        found = SimpleCookie(header or "").get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def host_of(header: str) -> str:
    """Return the host of a Host header without its port, in lower case; brackets around an IPv6 address are dropped."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?", header.strip())
    return "" if found is None else (found[1] or found[2]).lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Return True if the name or address stands for this machine alone."""
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(header: str | None, bound: str, names: Iterable[str] = ()) -> bool:
    """Return True if a Host header names this page.

    A name that leads here by a stranger's DNS is refused, and an address cannot be one: so on a page that listens on ``bound`` beyond this
    machine, addresses are taken as they are. The port does not count, because a forwarded port is another one.
    """
    host = host_of(header or "")
    if not host:
        return False
    if is_loopback(host) or host == bound.lower() or host in {name.lower() for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return not is_loopback(bound)
