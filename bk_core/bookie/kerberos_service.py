"""Kerberos at the door of a bookie: its principal with the keytab, and the clients that it admits. The package gssapi judges tickets,
without a KDC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bk_core.errors import BookieKerberosError, InvalidArgumentError
from bk_core.kerberos import Context, cause_of, gssapi_package, readable
from bk_core.protocol.bookie.gssapi_server import AcceptingContext, GssapiServer

ANY_BOOKKEEPER = ".*bookkeeper.*"
"""The clients that Apache's bookies admit by default (``saslJaasClientAllowedIds``)."""


@dataclass(frozen=True, slots=True)
class KerberosService:
    """The principal of a bookie, which needs the package gssapi. A client gets a ticket for the host by which it reaches the bookie.

    >>> kerberos = KerberosService("bookkeeper/127.0.0.1@EXAMPLE.ORG", "/etc/bk/bookie.keytab", clients=".*-flights@EXAMPLE[.]ORG")
    >>> cluster = bk_core.local_cluster(kerberos=kerberos)
    """

    principal: str
    """The name of the bookie at the KDC: ``bookkeeper/HOST@REALM``."""
    keytab: str
    """The path of the principal's keys, which are read for each client, so that new ones need no restart."""
    clients: str = ANY_BOOKKEEPER
    """A regular expression that the whole name of a client must match, with its realm, as Apache's ``saslJaasClientAllowedIds``. The
    default is theirs: each name with "bookkeeper" in it, also in its realm."""

    def __post_init__(self) -> None:
        if not all(isinstance(one, str) and one and "\0" not in one for one in (self.principal, self.keytab, self.clients)):
            raise InvalidArgumentError("KerberosService needs a principal, the path of its keytab, and clients")
        try:
            re.compile(self.clients)
        except re.error as error:
            raise InvalidArgumentError(f"clients of KerberosService, {self.clients!r}, is no regular expression: {error}") from None

    def admits(self, client: str) -> bool:
        """Return True if the client of this name, with its realm, is admitted."""
        return re.fullmatch(self.clients, client) is not None

    def server(self) -> GssapiServer:
        """Return a new exchange with one client. Nothing is read before the client has sent something."""
        return GssapiServer(self.accept, self.admits)

    def check(self) -> str:
        """Return the principal with its realm, after reading its key. Raises MissingPackageError without gssapi, InvalidArgumentError that
        names principal and keytab and says what is wrong with them."""
        try:
            return str(self._credentials(gssapi_package()).name)
        except BookieKerberosError as error:
            raise InvalidArgumentError(str(error.args[0])) from None

    def accept(self) -> AcceptingContext:
        """Return the bookie's end of a new security context. Raises MissingPackageError, BookieKerberosError."""
        gssapi = gssapi_package()
        return _Accepting(gssapi, gssapi.SecurityContext(creds=self._credentials(gssapi), usage="accept"))

    def _credentials(self, gssapi: Any) -> Any:
        what = f"no Kerberos for {self.principal} by the keytab {self.keytab}"
        readable(self.keytab, what)
        try:
            name = gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
            store = {"keytab": f"FILE:{self.keytab}"}
            return gssapi.Credentials(name=name, usage="accept", mechs=[gssapi.MechType.kerberos], store=store)
        except gssapi.exceptions.GSSError as error:
            raise BookieKerberosError(f"{what}: {cause_of(gssapi, error)}") from None


class _Accepting(Context):
    """The accepting ``SecurityContext`` of the package gssapi."""

    def __init__(self, gssapi: Any, made: Any) -> None:
        super().__init__(gssapi, made, "its ticket, or what it has signed, is not taken")
        # else the package returns what a refusal says to the other side, and raises with the token after that
        made.__DEFER_STEP_ERRORS__ = False

    @property
    def initiator(self) -> str:
        return str(self._told(lambda: self._made.initiator_name))
