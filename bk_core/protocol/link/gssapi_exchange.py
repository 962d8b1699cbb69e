"""SASL GSSAPI (RFC 4752) from the client's side, over a security context that another module holds (wire-protocol.md 10.3)."""

from __future__ import annotations

from typing import Protocol

from bk_core.errors import BookieKerberosError, RemoteProtocolError
from bk_core.protocol.link.providers import SASL

TOKEN_BYTES_MAX = 16_384
"""The longest token of a bookie that is read; those of Kerberos have some hundred bytes."""
TOKEN_HEAD = b"\x60"
"""The first byte of a token that opens a security context (RFC 2743)."""
DIGEST_MARK = b"nonce="
"""Part of each challenge of DIGEST-MD5, which Java's side sends whatever the first token is."""
OFFER_BYTES = 4
NO_LAYER = 1
"""The bit of the security layer that is none: what is said afterwards goes as it is."""
CHOICE = bytes((NO_LAYER, 0, 0, 0))
"""The answer to the offer: no layer, hence no largest buffer, and no other name than the ticket's."""


class SecurityContext(Protocol):
    """The client's end of a context of GSSAPI, whose first token was made already. No method asks a KDC."""

    @property
    def complete(self) -> bool:
        """True once both sides have proved who they are."""

    def step(self, token: bytes) -> bytes | None:
        """Return the answer to a token of the other side, None for none. Raises BookieKerberosError."""

    def unwrap(self, token: bytes) -> bytes:
        """Return the message in a token that the other side has signed. Raises BookieKerberosError."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message, signed."""


class GssapiExchange:
    """One exchange with one server; an ``ExplainedExchange``. ``who`` names the client for messages, ``target`` the service, and ``first``
    is the token with which ``context`` begins. ``peer`` is the kind of server, for messages."""

    plugin = SASL

    def __init__(self, who: str, target: str, context: SecurityContext, first: bytes, peer: str = "the bookie") -> None:
        self._who = who
        self._target = target
        self._context = context
        self._first = first
        self._peer = peer
        self._done = False

    def __str__(self) -> str:
        return f"Kerberos principal {self._who}, for the service {self._target}"

    __repr__ = __str__

    @property
    def done(self) -> bool:
        """True once the server has proved that it has the service's key, and this side has chosen from what it offers."""
        return self._done

    def first(self) -> bytes:
        """Return the token that was made beforehand, because making it may take a KDC."""
        return self._first

    def answer(self, token: bytes) -> bytes | None:
        """Return the next token, which is empty where this side waits for the bookie's offer. Raises BookieKerberosError, and
        RemoteProtocolError for what does not belong here."""
        if len(token) > TOKEN_BYTES_MAX:
            raise RemoteProtocolError(f"a token of {len(token)} bytes")
        if self._done:
            raise RemoteProtocolError("a token behind the last one")
        if DIGEST_MARK in token and not token.startswith(TOKEN_HEAD):
            raise BookieKerberosError(
                f"{self._peer} wants a password (SASL DIGEST-MD5: BookieSasl, or scheme='sasl' at ZooKeeper) in place of Kerberos"
            )
        if not self._context.complete:
            made = self._context.step(token)
            if made is None and not self._context.complete:
                raise RemoteProtocolError("the security context came to no end")
            return made or b""
        offer = self._context.unwrap(token)
        if len(offer) != OFFER_BYTES:
            raise RemoteProtocolError(f"an offer of security layers of {len(offer)} bytes")
        if not offer[0] & NO_LAYER:
            raise BookieKerberosError(f"{self._peer} insists on a security layer of SASL, which its protocol has no place for")
        self._done = True
        return self._context.wrap(CHOICE)

    def refused(self, tokens: int) -> str:
        """Return what a refusal without a word means after so many tokens of the bookie."""
        if self._done:
            return "the bookie knows who this is and does not admit that name (its saslJaasClientAllowedIds)"
        if tokens:
            return "the bookie ended the exchange in its midst; its log says why"
        return "the bookie does not take the ticket: the key in its keytab, its principal or its clock may be another one; its log says why"
