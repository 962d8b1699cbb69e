"""The bookie's side of SASL GSSAPI (RFC 4752), over a security context that another module holds (wire-protocol.md 10.3)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from bk_core.errors import BookieKerberosError

TOKEN_BYTES_MAX = 49_152
"""The longest token of a client that is read. Those of Kerberos have some hundred bytes, up to 48,000 where a domain adds its groups."""
NO_LAYER = 1
"""The bit of the security layer that is none: what is said afterwards goes as it is."""
OFFER = bytes((NO_LAYER, 0, 0, 0))
"""The offer of no layer, hence of no largest buffer."""
_CHOICE_BYTES = 4
_SHOWN_BYTES = 100  # of a name that a stranger gives, in a line of the log


class AcceptingContext(Protocol):
    """The bookie's end of a context of GSSAPI. No method asks a KDC."""

    @property
    def complete(self) -> bool:
        """True once both sides have proved who they are."""

    @property
    def initiator(self) -> str:
        """The name of the client, with its realm, once the context is complete."""

    def step(self, token: bytes) -> bytes | None:
        """Return the answer to a token of the client, None or empty for none. Raises BookieKerberosError."""

    def unwrap(self, token: bytes) -> bytes:
        """Return the message in a token that the client has signed. Raises BookieKerberosError."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message, signed. Raises BookieKerberosError."""


class _Stage(Enum):
    TICKET = auto()
    PROVED = auto()  # an empty token comes, and the offer goes
    OFFERED = auto()
    OVER = auto()


class GssapiServer:
    """One exchange with one client. ``accept`` makes the context once there is a token for it, and ``admits`` judges the name of a client.
    An exchange that has failed takes nothing more."""

    def __init__(self, accept: Callable[[], AcceptingContext], admits: Callable[[str], bool]) -> None:
        self._accept = accept
        self._admits = admits
        self._context: AcceptingContext | None = None
        self._stage = _Stage.TICKET
        self.client = ""
        """The name of the client, once it has proved that it is its own."""
        self.done = False
        """True once the client is admitted."""

    def answer(self, token: bytes) -> bytes | None:
        """Return the next token, None where nothing is to be said. Raises BookieKerberosError with the reason, which is for the log, for a
        client that is not admitted."""
        stage, self._stage = self._stage, _Stage.OVER  # which it stays if anything fails
        if len(token) > TOKEN_BYTES_MAX:
            raise BookieKerberosError(f"a token of {len(token)} bytes")
        if stage is _Stage.TICKET:
            return self._step(token)
        if stage is _Stage.PROVED:
            if token:
                raise BookieKerberosError(f"{len(token)} bytes where the offer of security layers was awaited")
            return self._offer()
        if stage is _Stage.OFFERED:
            self._choose(token)
            return None
        raise BookieKerberosError("a token behind the last one")

    def _step(self, token: bytes) -> bytes:
        if not token:
            raise BookieKerberosError("an empty token, as of a client with a password (SASL DIGEST-MD5), in place of a ticket")
        context = self._context = self._context or self._accept()
        made = context.step(token)
        if not context.complete:
            if not made:
                raise BookieKerberosError("the security context came to no end")
            self._stage = _Stage.TICKET
            return made
        self.client = context.initiator
        if not made:
            return self._offer()
        self._stage = _Stage.PROVED
        return made

    def _offer(self) -> bytes:
        assert self._context is not None
        offer = self._context.wrap(OFFER)
        self._stage = _Stage.OFFERED
        return offer

    def _choose(self, token: bytes) -> None:
        """Judge the client's choice: a layer, three bytes that mean nothing without one, and the name that it wants to have."""
        assert self._context is not None
        choice = self._context.unwrap(token)
        if len(choice) < _CHOICE_BYTES or choice[0] != NO_LAYER:
            raise BookieKerberosError(f"{self.client!r} chooses a security layer of SASL that was not offered")
        name = choice[_CHOICE_BYTES:]
        if name and name != self.client.encode():
            raise BookieKerberosError(f"{self.client!r} asks to be {name[:_SHOWN_BYTES]!r}, which is somebody else")
        if not self._admits(self.client):
            raise BookieKerberosError(f"{self.client!r} is none of the clients that are admitted")
        self.done = True
