"""Kerberos to ZooKeeper: a mechanism of pure-sasl over the exchange that bookies know, too. The one that pure-sasl brings needs the package
kerberos, which has had no release since 2021."""

from __future__ import annotations

from typing import Any

from bk_core.errors import BkError, BookieKerberosError, MetadataAuthError
from bk_core.kerberos import Identity

NAME = "GSSAPI (bk_core)"
"""The name of the mechanism in pure-sasl's registry, beside its own. ZooKeeper's protocol carries tokens and no names."""
PEER = "ZooKeeper"


def options(identity: Identity) -> dict[str, Any]:
    """Return kazoo's ``sasl_options``. Registers the mechanism."""
    from puresasl import mechanisms

    mechanisms.mechanisms.setdefault(NAME, _mechanism())
    return {"mechanism": NAME, "service": identity.service, "identity": identity}


def check(identity: Identity) -> None:
    """Look at the client's ticket, which a KDC may have to give. Raises MissingPackageError, and MetadataAuthError that says which ticket
    cannot be had and why."""
    try:
        identity.begin("", PEER)
    except BookieKerberosError as error:
        raise MetadataAuthError(f"no connection to ZooKeeper was tried: {error.args[0]}") from None


def _mechanism() -> type[Any]:
    """Return the class. It is made here because its base needs pure-sasl."""
    from puresasl import QOP
    from puresasl.mechanisms import Mechanism

    class Gssapi(Mechanism):  # type: ignore[misc]  # pure-sasl has no types
        """One exchange with one ZooKeeper, on kazoo's own thread. Errors with a ticket are raised as they are; of what comes later kazoo
        makes an AuthFailedError."""

        name = NAME
        score = 0  # it is chosen by its name alone
        qops = (QOP.AUTH,)
        allows_anonymous = False
        uses_plaintext = False
        active_safe = True

        def __init__(self, sasl: Any, identity: Identity) -> None:
            super().__init__(sasl)
            self._exchange = identity.begin(sasl.host, PEER)
            self._has_begun = False

        def process(self, challenge: bytes | None = None) -> bytes:
            if not self._has_begun:
                self._has_begun = True
                return self._exchange.first()
            try:
                answer = self._exchange.answer(challenge or b"")
            except BkError:
                raise
            except Exception as error:
                raise BookieKerberosError(f"the exchange with {PEER} failed: {type(error).__name__}") from None
            self.complete = self._exchange.done
            return answer or b""

        def dispose(self) -> None:
            """Nothing is kept: the tickets are the library's."""

    return Gssapi
