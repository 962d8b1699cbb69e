"""Tickets of Kerberos for bookies and ZooKeeper by way of the package gssapi, which not everybody needs. Whatever asks a KDC happens here,
and takes its time: it never runs on the thread of a client's connections."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bk_core.errors import BookieKerberosError, InvalidArgumentError, MissingPackageError
from bk_core.protocol.link.gssapi_exchange import GssapiExchange
from bk_core.protocol.link.providers import SERVICE

_NOBODY = "localhost"  # stands for a host where no bookie is asked yet
_CODE_MASK = 0xFFFFFFFF
_EXPIRED = "the ticket has expired: renew it with kinit"
_NO_TICKET = "there is no ticket: make one with kinit, or name a keytab"
_NO_WORDS = ("", "Success", "Unknown error")  # of the library about its own code, where it knows nothing
_NO_KEY = "it has no key of this principal, or is no keytab"
_CAUSES = {
    -1765328378: "the KDC does not know this principal",
    -1765328377: "the KDC does not know this service: it needs a principal for the host by which clients reach the server",
    -1765328366: "the principal is locked at the KDC",
    -1765328383: "the principal has expired at the KDC",
    -1765328360: "the KDC has another key of this principal than the keytab",
    -1765328353: "the KDC has another key of this principal than the keytab",
    -1765328352: _EXPIRED,
    -1765328347: "the clocks of this host and of the KDC are too far apart",
    -1765328236: "the clocks of this host and of the KDC are too far apart",
    -1765328230: "krb5.conf names no KDC of this realm",
    -1765328164: "krb5.conf names no KDC of this realm that can be found",
    -1765328228: "no KDC answers",
    -1765328203: "the keytab has no key of this principal",
    -1765328189: _NO_TICKET,
    -1765328243: _NO_TICKET,
}
"""The meaning of codes of MIT Kerberos (``krb5.h``) to a user; for others the library's own words stand alone."""


def gssapi_package() -> Any:
    """Return the package gssapi. Raises MissingPackageError without it, or without the library of Kerberos below it."""
    try:
        import gssapi
    except (ImportError, OSError) as error:
        found = "there is none" if isinstance(error, ModuleNotFoundError) and error.name == "gssapi" else f"it cannot be loaded ({error})"
        text = f"Kerberos needs the package gssapi, {found} ({sys.executable}): pip install 'bk-spark[kerberos]'"
        hint = "which builds it and needs a C compiler and the library of Kerberos (Debian: libkrb5-dev)"
        raise MissingPackageError(f"{text}, {hint}", package="gssapi") from None
    return gssapi


@dataclass(frozen=True, slots=True)
class Identity:
    """The source of a client's tickets: a ``keytab`` for its ``principal``, or a ticket cache, where None is the one of this process."""

    principal: str | None
    keytab: str | None
    ticket_cache: str | None
    service: str

    def __str__(self) -> str:
        whose = "" if self.principal is None else f" of {self.principal}"
        if self.keytab is not None:
            return f"ticket{whose} by the keytab {self.keytab}"
        return f"ticket{whose} in {'the default ticket cache' if self.ticket_cache is None else f'the ticket cache {self.ticket_cache}'}"

    def begin(self, host: str, peer: str = "the bookie") -> GssapiExchange:
        """Return an exchange with the server at ``host`` whose first token is made. With an empty host only the client's own ticket is
        checked. ``peer`` is the kind of server, for messages. Raises MissingPackageError, and BookieKerberosError that says which ticket
        cannot be had and why."""
        gssapi = gssapi_package()
        target = f"{self.service}/{host or _NOBODY}"
        what = f"no Kerberos {self}"
        try:
            credentials = self._credentials(gssapi)
            who = str(credentials.name)
            what = f"no Kerberos ticket for {target}, with the {self}"
            name = gssapi.Name(f"{self.service}@{host or _NOBODY}", gssapi.NameType.hostbased_service)
            flags = (gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity)
            made = gssapi.SecurityContext(name=name, creds=credentials, usage="initiate", flags=flags, mech=gssapi.MechType.kerberos)
            context = Context(gssapi, made, f"{peer} gives no proof that it has the key of {target}")
            return GssapiExchange(who, target, context, made.step() or b"" if host else b"", peer)
        except gssapi.exceptions.GSSError as error:
            raise BookieKerberosError(f"{what}: {cause_of(gssapi, error, keytab=self.keytab is not None)}") from None

    def _credentials(self, gssapi: Any) -> Any:
        """Return credentials with a ticket that is valid, which a KDC may have given just now. Raises GSSError, BookieKerberosError."""
        name = None if self.principal is None else gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        made = gssapi.Credentials(name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=self._store())
        if not made.lifetime:
            raise BookieKerberosError(f"no Kerberos {self}: {_EXPIRED}")
        return made

    def _store(self) -> dict[str, str] | None:
        if self.keytab is None:
            return None if self.ticket_cache is None else {"ccache": self.ticket_cache}
        content = readable(self.keytab, f"no Kerberos {self}")
        # tickets of one process alone, anew once the keytab is another one
        cache = hashlib.sha256(f"{self.principal}\0{self.keytab}\0".encode() + content).hexdigest()[:32]
        return {"client_keytab": f"FILE:{self.keytab}", "ccache": f"MEMORY:bookkeeper-{cache}"}


def check_identity(
    whose: str, principal: str | None, keytab: str | None, ticket_cache: str | None, service: str, called: Callable[[str], str] = str
) -> None:
    """Raise InvalidArgumentError where these say no source of tickets. ``whose`` is the class that takes them, or the URI, and ``called``
    returns the name under which a user gave one of them, for the message."""
    if "" in (principal, keytab, ticket_cache, service):
        raise InvalidArgumentError(f"what {whose} is given must not be empty")
    if keytab is not None and ticket_cache is not None:
        raise InvalidArgumentError(f"{whose} takes its tickets by a {called('keytab')} or from a {called('ticket_cache')}, not both")
    if keytab is not None and principal is None:
        raise InvalidArgumentError(f"{whose} needs the {called('principal')} that the {called('keytab')} is for")
    if set("@/") & set(service):
        raise InvalidArgumentError(f"{called('service')} is the part of a principal before its slash, such as {SERVICE!r}, not {service!r}")


class Context:
    """A ``SecurityContext`` of the package gssapi, of either side. What its calls raise begins with ``failed``."""

    def __init__(self, gssapi: Any, made: Any, failed: str) -> None:
        self._gssapi = gssapi
        self._made = made
        self._failed = failed

    @property
    def complete(self) -> bool:
        return bool(self._made.complete)

    def step(self, token: bytes) -> bytes | None:
        made: bytes | None = self._told(self._made.step, token)
        return made

    def unwrap(self, token: bytes) -> bytes:
        return bytes(self._told(self._made.unwrap, token).message)

    def wrap(self, message: bytes) -> bytes:
        return bytes(self._told(self._made.wrap, message, False).message)

    def _told(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._gssapi.exceptions.GSSError as error:
            raise BookieKerberosError(f"{self._failed}: {words_of(error)}") from None


def readable(keytab: str, what: str) -> bytes:
    """Return the content of a keytab. Raises BookieKerberosError that begins with ``what``, if the file cannot be read."""
    try:
        with open(keytab, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BookieKerberosError(f"{what}: it cannot be read ({reason})") from None


def cause_of(gssapi: Any, error: Any, *, keytab: bool = False) -> str:
    """Return the cause of a GSSError: what it means where that is known, and the library's own words, which hold no secret. ``keytab`` says
    that tickets were wanted by one."""
    words = words_of(error)
    if isinstance(error, gssapi.exceptions.ExpiredCredentialsError):
        return _EXPIRED
    code = int(getattr(error, "min_code", 0) or 0) & _CODE_MASK
    known = _CAUSES.get(code - (_CODE_MASK + 1) if code > _CODE_MASK // 2 else code)
    if known == _NO_TICKET and keytab:  # the library looks for a cache where the keytab is of no use
        return _NO_KEY
    return words if known is None else f"{known} ({words})"


def words_of(error: Any) -> str:
    """Return the words of the library about its own code in a GSSError, or where there are none those about the kind of error."""
    try:
        codes = ((error.min_code, False), (error.maj_code, True))
        texts = [_text(one) for code, is_major in codes for one in error.get_all_statuses(code, is_major)]
    except Exception:  # of a library that cannot explain its own code
        texts = []
    return next((text for text in texts if text not in _NO_WORDS), type(error).__name__)


def _text(words: Any) -> str:
    return (words.decode(errors="replace") if isinstance(words, bytes) else str(words)).strip()
