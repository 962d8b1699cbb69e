"""The server's side of SASL DIGEST-MD5 (RFC 2831), as Apache's bookies speak it (wire-protocol.md 10.3)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from bk_core.protocol.link.providers import SERVICE

REALM = SERVICE
DIGEST_URI = f"{SERVICE}/{SERVICE}"
CLAIMED_MAX = 64  # characters of a name that the log shows
RESPONSE_BYTES_MAX = 4096  # RFC 2831, 2.1.2


class DigestMd5Server:
    """One exchange with one client. ``users`` are passwords by name, and ``nonce`` is text that was never used before."""

    def __init__(self, users: Mapping[str, str], nonce: str) -> None:
        self._users = users
        self._nonce = nonce
        self.user = ""
        """The name of the user, once the response was right."""
        self.claimed = ""
        """The name in the response, cut off, whoever has sent it."""

    def challenge(self) -> bytes:
        """Return the first token."""
        return f'realm="{REALM}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()

    def proof(self, response: bytes) -> bytes | None:
        """Return the last token, which proves that this side knows the password; None for a response that is not right."""
        given = directives(response) if len(response) <= RESPONSE_BYTES_MAX else None
        if given is None or not self._is_for_here(given):
            return None
        encoding = "utf-8" if given.get("charset", b"").lower() == b"utf-8" else "latin-1"
        try:
            user = given["username"].decode(encoding)
        except UnicodeDecodeError:
            return None
        self.claimed = user[:CLAIMED_MAX]
        password = self._users.get(user)
        # an unknown user takes as long as a known one
        right = hmac.compare_digest(self._digest(given, user, password or "", "AUTHENTICATE:"), given["response"])
        if password is None or not right or given.get("authzid", given["username"]) != given["username"]:
            return None
        self.user = user
        return b"rspauth=" + self._digest(given, user, password, ":")

    def _is_for_here(self, given: Mapping[str, bytes]) -> bool:
        wanted = {"realm": REALM, "nonce": self._nonce, "nc": "00000001", "digest-uri": DIGEST_URI}
        known = all(given.get(name, b"") == value.encode() for name, value in wanted.items())
        return known and given.get("qop", b"auth") == b"auth" and {"username", "cnonce", "response"} <= given.keys()

    def _digest(self, given: Mapping[str, bytes], user: str, password: str, what: str) -> bytes:
        who = _bytes(user) + b":" + REALM.encode() + b":" + _bytes(password)
        nonces = b":" + self._nonce.encode() + b":" + given["cnonce"]
        authzid = b":" + given["authzid"] if "authzid" in given else b""
        secret = _hex(hashlib.md5(who).digest() + nonces + authzid)
        return _hex(b":".join((secret, self._nonce.encode(), given["nc"], given["cnonce"], b"auth", _hex(f"{what}{DIGEST_URI}".encode()))))


def _hex(data: bytes) -> bytes:
    return hashlib.md5(data).hexdigest().encode()


def _bytes(text: str) -> bytes:
    """Return the bytes of a name or password as they are digested: of ISO-8859-1 where it has all of their characters."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def directives(token: bytes) -> dict[str, bytes] | None:
    """Return the directives of a token by name, None for one that is malformed or has a directive twice."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(token):
        equals = token.find(b"=", at)
        if equals < 0:
            return None
        name = token[at:equals].strip().decode("latin-1")
        value, at = _quoted(token, equals + 2) if token[equals + 1 : equals + 2] == b'"' else _plain(token, equals + 1)
        if at < 0 or not name or name in found:
            return None
        found[name] = value
        rest = token[at:].lstrip()
        if rest and not rest.startswith(b","):
            return None
        at = len(token) - len(rest) + 1
    return found


def _plain(token: bytes, at: int) -> tuple[bytes, int]:
    end = token.find(b",", at)
    end = len(token) if end < 0 else end
    return token[at:end].strip(), end


def _quoted(token: bytes, at: int) -> tuple[bytes, int]:
    """Return the text from ``at`` to its closing quote, and the place behind that, or -1 without one."""
    value = bytearray()
    while at < len(token):
        if token[at] == ord('"'):
            return bytes(value), at + 1
        at += token[at] == ord("\\")
        value += token[at : at + 1]
        at += 1
    return b"", -1
