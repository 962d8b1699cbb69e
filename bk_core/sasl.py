"""SASL by way of pure-sasl, which not everybody needs: kazoo speaks it to ZooKeeper, and ``DigestMd5`` to bookies."""

from __future__ import annotations

import sys

from bk_core.errors import BookieAuthError, InvalidArgumentError, MissingPackageError, RemoteProtocolError
from bk_core.protocol.link.providers import SASL, SERVICE

_PROOF = b"rspauth="
TOKEN_BYTES_MAX = 4096
"""The longest token of a bookie that is read; RFC 2831 allows 2047 bytes."""


def check_sasl(whom: str) -> None:
    """Raise MissingPackageError without pure-sasl. ``whom`` is spoken to by it, for the message."""
    try:
        import puresasl  # noqa: F401 - kazoo imports it
    except ImportError:
        text = f"SASL to {whom} needs pure-sasl, there is none ({sys.executable}): pip install 'bk-spark[sasl]', or pip install pure-sasl"
        raise MissingPackageError(text, package="pure-sasl") from None


class DigestMd5:
    """One exchange with one bookie; an ``ExplainedExchange``. Raises MissingPackageError without pure-sasl, InvalidArgumentError for a user
    or password with characters that Java's side would take for others."""

    plugin = SASL

    def __init__(self, user: str, password: str) -> None:
        check_sasl("bookies")
        from puresasl import QOP
        from puresasl.client import SASLClient

        self._user = user
        try:
            name, secret = user.encode("latin-1"), password.encode("latin-1")  # RFC 2831: so it is read without a word about it
        except UnicodeEncodeError:
            raise InvalidArgumentError("user and password of BookieSasl can only have characters of ISO-8859-1") from None
        self._client = SASLClient(SERVICE, SERVICE, mechanism="DIGEST-MD5", username=name, password=secret, qops=(QOP.AUTH,))

    def __str__(self) -> str:
        return f"SASL user {self._user!r}"

    __repr__ = __str__

    @property
    def done(self) -> bool:
        """True once the bookie has proved that it knows the password, too."""
        return bool(self._client.complete)

    def first(self) -> bytes:
        """Return the empty token: the bookie begins."""
        return b""

    def answer(self, token: bytes) -> bytes | None:
        """Return the response to the challenge; None once the bookie's own proof is right. Raises BookieAuthError if it is not,
        RemoteProtocolError for a token that is too long, and what pure-sasl raises for one that it cannot read."""
        if len(token) > TOKEN_BYTES_MAX:
            raise RemoteProtocolError(f"a token of {len(token)} bytes")
        from puresasl import SASLProtocolException

        try:
            answer: bytes | None = self._client.process(token)
        except SASLProtocolException:
            if not token.startswith(_PROOF):
                raise
            text = f"its proof is not that of one which knows the password of user {self._user!r}: it may be another server in its place"
            raise BookieAuthError(text) from None
        return answer

    def refused(self, tokens: int) -> str:
        """Return what a refusal without a word means after so many tokens of the bookie."""
        if not tokens:
            return "the bookie does not begin SASL DIGEST-MD5: it may want Kerberos (BookieKerberos) in place of a password"
        return "the user or the secret is wrong there"
