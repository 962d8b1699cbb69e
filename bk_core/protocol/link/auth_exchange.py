"""The exchange by which a client proves to a bookie who it is, as a class of this project or of a program may hold it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class AuthExchange(Protocol):
    """One exchange on one connection: tokens go to the bookie and come back, until both sides are content (wire-protocol.md 10.2).

    Its methods run on the client's own thread and must not block. What they raise ends the connection.
    """

    plugin: str
    """The name of the bookie's authentication provider, such as "sasl"."""

    @property
    def done(self) -> bool:
        """True once this side needs nothing more: it has sent what it had to, and has seen the proof of the bookie where there is one."""

    def first(self) -> bytes:
        """Return the token that opens the exchange; it may be empty."""

    def answer(self, token: bytes) -> bytes | None:
        """Return the answer to a token of the bookie, or None if there is nothing more to send."""


@runtime_checkable
class ExplainedExchange(AuthExchange, Protocol):
    """An exchange that knows what a refusal without a word means. Apache's bookies give none when their SASL fails. Its ``str`` is shown in
    messages and logs as the identity of this client, so it must hold no secret; that of any other exchange is never shown."""

    def refused(self, tokens: int) -> str:
        """Return the likely cause of a refusal that came after so many ``tokens`` of the bookie, for a message."""
