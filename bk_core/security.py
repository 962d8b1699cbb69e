"""The security of a client's connections to bookies. Plain values; the files that they name are read when a connection is made."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl

from bk_core.arguments import Check, check_fields, one_of, settings
from bk_core.errors import InvalidArgumentError
from bk_core.kerberos import Identity, check_identity
from bk_core.near import meant_option
from bk_core.protocol.link.auth_exchange import AuthExchange
from bk_core.protocol.link.providers import SERVICE
from bk_core.sasl import DigestMd5
from bk_core.secrets import Secret, SecretFile, SecretVariable, check_secret, text_of
from bk_core.tls_files import MinimumTls, check_files, context_of

PASSWORD_VARIABLE = "BK_BOOKIE_PASSWORD"
"""The variable that holds the password of the user in a URI which names no file of it."""
_OF_TLS = (
    *("bookie_tls", "bookie_ca_file", "bookie_cert_file", "bookie_key_file", "bookie_key_password_file", "bookie_verify_host"),
    *("bookie_key_store_file", "bookie_key_store_password_file", "bookie_trust_store_file", "bookie_trust_store_password_file"),
    "bookie_tls_minimum",
)
_OF_KERBEROS = ("bookie_kerberos", "bookie_principal", "bookie_keytab_file", "bookie_ticket_cache", "bookie_service")
URI_OPTIONS = (*_OF_TLS, *_OF_KERBEROS, "bookie_user", "bookie_password_file")
"""The options of a URI that ``security_of`` understands."""
_SECRET = Check("a secret", lambda value: True)  # ``check_secret`` says more
_PATH = Check("a path as text", lambda value: isinstance(value, str))
_AUTH = Check(
    "BookieSasl(...), BookieKerberos(...), or an object that makes exchanges",
    lambda value: callable(getattr(value, "exchange", None)),
    optional=True,
)
_TEXT = Check("text", lambda value: isinstance(value, str))


@settings
@dataclass(frozen=True, slots=True)
class BookieTls:
    """TLS to bookies: files of PEM or PKCS#12, which are read anew at each connection, so that new certificates need no restart.

    >>> tls = bk_core.BookieTls(ca="/etc/bk/ca.pem", cert="/etc/bk/me.pem", key="/etc/bk/me.key")
    >>> client = bk_core.connect(uri, security=bk_core.Security(tls=tls))
    """

    ca: str | None = None
    """The path of the certificates of the authorities that are trusted, and no others; None trusts those of the system. Each one in it is
    trusted, also an intermediate one without those above it, or the very certificate of a server."""
    cert: str | None = None
    """The path of the client's own certificate, with those between it and its authority; None shows none."""
    key: str | None = None
    """The path of the certificate's private key; None looks for it in ``cert``."""
    key_password: Secret | None = field(default=None, repr=False)
    """The password of the private key, or a function that returns it."""
    verify_host: bool = True
    """With True, the certificate of a bookie must be for the host that the bookie is registered with, or for its address where it is
    registered with one. Its authority is checked in any case."""
    minimum: MinimumTls = "1.2"
    """The lowest version of TLS that is spoken: "1.2" or "1.3"."""
    key_store: str | None = None
    """The path of a PKCS#12 file with the client's own certificate and its key, in place of ``cert`` and ``key``. It needs the package
    cryptography, as ``trust_store`` does."""
    key_store_password: Secret | None = field(default=None, repr=False)
    """The password of ``key_store``, or a function that returns it."""
    trust_store: str | None = None
    """The path of a PKCS#12 file with the certificates of the authorities, in place of ``ca``; each one in it is trusted, too."""
    trust_store_password: Secret | None = field(default=None, repr=False)
    """The password of ``trust_store``, or a function that returns it."""

    def __post_init__(self) -> None:
        paths = dict.fromkeys(("ca", "cert", "key", "key_store", "trust_store"), _PATH)
        secrets = dict.fromkeys(("key_password", "key_store_password", "trust_store_password"), _SECRET)
        check_fields(self, {**paths, **secrets, "minimum": _TEXT, "verify_host": one_of(bool, "True or False")})
        check_files(self)

    def context(self) -> ssl.SSLContext:
        """Return a new context of these files. Raises InvalidArgumentError that names the file that cannot be used, and
        SecretUnavailableError where a function for a password fails."""
        return context_of(
            "BookieTls",
            ca=self.ca,
            cert=self.cert,
            key=self.key,
            key_password=self.key_password,
            verify_host=self.verify_host,
            minimum=self.minimum,
            key_store=self.key_store,
            key_store_password=self.key_store_password,
            trust_store=self.trust_store,
            trust_store_password=self.trust_store_password,
        )


@runtime_checkable
class BookieAuth(Protocol):
    """A way to authenticate at bookies, of this project or of a program: it makes the exchange for each connection."""

    def exchange(self, host: str) -> AuthExchange:
        """Return a new exchange with the bookie at ``host``. It is called at each connection, on a thread of its own, and may read files
        and secrets; what it raises fails the attempt. It is called once with an empty host when a client connects, to find out what is
        wrong before anything is asked."""


@settings
@dataclass(frozen=True, slots=True)
class BookieSasl:
    """A user at bookies, by SASL DIGEST-MD5, which needs the package pure-sasl. The bookie proves that it knows the password, too.

    >>> auth = bk_core.BookieSasl("bookkeeper-flights", bk_core.SecretFile("/run/secrets/bookies"))
    >>> client = bk_core.connect(uri, security=bk_core.Security(tls=bk_core.BookieTls(ca="/etc/bk/ca.pem"), auth=auth))
    """

    user: str
    """The name of the user. Apache's bookies by default take those with "bookkeeper" in it (``saslJaasClientAllowedIds``)."""
    password: Secret = field(repr=False)
    """The password of the user, or a function that returns it. It is asked for at each new connection."""

    def __post_init__(self) -> None:
        check_fields(self, {"user": _TEXT, "password": _SECRET})
        check_secret("password", self.password)
        if not self.user or not (callable(self.password) or self.password):
            raise InvalidArgumentError("BookieSasl needs user and password")

    def exchange(self, host: str) -> AuthExchange:
        """Return a new exchange, whatever the ``host``. Raises MissingPackageError without pure-sasl, and SecretUnavailableError
        where a function for the password fails."""
        return DigestMd5(self.user, text_of("the password of BookieSasl", self.password))


@settings
@dataclass(frozen=True, slots=True)
class BookieKerberos:
    """A principal of Kerberos at bookies (SASL GSSAPI), which needs the package gssapi. The bookie proves who it is, too. Tickets come from
    a keytab, or from a ticket cache that others keep fresh. The KDC is the one that ``krb5.conf`` names.

    >>> auth = bk_core.BookieKerberos("bookkeeper-flights@EXAMPLE.ORG", keytab="/etc/bk/flights.keytab")
    >>> client = bk_core.connect(uri, security=bk_core.Security(auth=auth))
    """

    principal: str | None = None
    """The name of the client at the KDC, which ``keytab`` needs; None takes whoever has the ticket cache. Apache's bookies by default take
    those with "bookkeeper" in it (``saslJaasClientAllowedIds``)."""
    keytab: str | None = None
    """The path of the principal's key, which is read at each connection; tickets by it are kept in memory and renewed."""
    ticket_cache: str | None = None
    """The name of a ticket cache, such as "FILE:/run/bk/tickets"; None is that of the process (``KRB5CCNAME``), as ``kinit`` makes it."""
    service: str = SERVICE
    """The first part of the bookies' principals. The other one is the host that a bookie is registered with, which the library of Kerberos
    may replace by its name in DNS (``dns_canonicalize_hostname``, ``rdns`` in ``krb5.conf``)."""

    def __post_init__(self) -> None:
        check_fields(self, {"principal": _PATH, "keytab": _PATH, "ticket_cache": _PATH, "service": _TEXT})
        check_identity("BookieKerberos", self.principal, self.keytab, self.ticket_cache, self.service)

    def exchange(self, host: str) -> AuthExchange:
        """Return a new exchange with the bookie at ``host``, for which the KDC may be asked for a ticket. Raises MissingPackageError
        without gssapi, and BookieKerberosError that says which ticket cannot be had."""
        return Identity(self.principal, self.keytab, self.ticket_cache, self.service).begin(host)


@settings
@dataclass(frozen=True, slots=True)
class Security:
    """The security of the connections to all bookies of a cluster: a bookie that does not offer it is an error, never spoken to without.

    >>> client = bk_core.connect(uri, security=bk_core.Security(tls=bk_core.BookieTls(ca="/etc/bk/ca.pem")))
    """

    tls: BookieTls | None = None
    """The certificates of TLS; None is without TLS."""
    auth: BookieAuth | None = None
    """The way to authenticate: ``BookieSasl``, ``BookieKerberos``, or an object of a program that makes exchanges (``BookieAuth``);
    None: by the certificate of ``tls`` alone, if it has one."""

    def __post_init__(self) -> None:
        check_fields(self, {"tls": one_of(BookieTls, "BookieTls(...)"), "auth": _AUTH})
        if self.tls is None and self.auth is None:
            raise InvalidArgumentError("Security() says nothing: give it tls or auth, or leave it out")

    def check(self) -> None:
        """Read the files and secrets once. Raises InvalidArgumentError that names what cannot be used, SecretUnavailableError where a
        function for a secret fails, and whatever a program's own exchange raises."""
        if self.tls is not None:
            self.tls.context()
        if self.auth is not None:
            self.auth.exchange("")


def security_of(uri: str) -> Security | None:
    """Return what the options of a URI say of the connections to bookies, None if they say nothing. They name files, never a
    secret; what is shown to others goes without them (``ClientConfig.shown_uri``). Raises InvalidArgumentError."""
    query = dict(parse_qsl(uri.partition("?")[2].partition("#")[0], keep_blank_values=True))
    # Misspelt names first: other errors may follow from them. Those with "password" are refused below, without showing them.
    for name, value in query.items():
        if name.startswith("bookie_") and name not in URI_OPTIONS and value and "password" not in name.lower():
            raise InvalidArgumentError(f"the URI has an unknown option {name!r}; {meant_option(name, 'bookie_', URI_OPTIONS)}")
    for name in URI_OPTIONS:
        if name in query and not query[name]:
            raise InvalidArgumentError(f"the option {name!r} of the URI has no value: write {name}=..., or leave it out")
    for name in ("bookie_tls", "bookie_verify_host", "bookie_kerberos"):
        if query.get(name, "true") not in ("true", "false"):
            raise InvalidArgumentError(f"{name} must be true or false, not {query[name]!r}")
    tls, auth = _tls_of(query), _sasl_of(query)
    kerberos = _kerberos_of(query)
    if auth is not None and kerberos is not None:
        raise InvalidArgumentError("bookie_user is about a password and bookie_principal and its like are about Kerberos: take one of them")
    return None if tls is None and auth is None and kerberos is None else Security(tls, auth or kerberos)


def _tls_of(query: Mapping[str, str]) -> BookieTls | None:
    if not any(name in query for name in _OF_TLS):
        return None
    if query.get("bookie_tls") == "false":
        raise InvalidArgumentError("bookie_tls=false says nothing: leave it out, and all that is about certificates of bookies")

    def secret(name: str) -> SecretFile | None:
        return SecretFile(query[name]) if name in query else None

    given: dict[str, Any] = {
        **{name: query.get(_called(name)) for name in ("ca", "cert", "key", "key_store", "trust_store")},
        **{name: secret(_called(name)) for name in ("key_password", "key_store_password", "trust_store_password")},
        "minimum": query.get("bookie_tls_minimum", "1.2"),
    }
    check_files(SimpleNamespace(**given), _called)  # before BookieTls does, which knows no option
    return BookieTls(**given, verify_host=query.get("bookie_verify_host") != "false")


def _called(name: str) -> str:
    """Return the option of a URI for a field of BookieTls or BookieKerberos."""
    if name == "minimum":
        return "bookie_tls_minimum"
    return f"bookie_{name}" if name in ("principal", "ticket_cache", "service") else f"bookie_{name}_file"


def _sasl_of(query: Mapping[str, str]) -> BookieSasl | None:
    file = query.get("bookie_password_file")
    if "bookie_user" in query:
        return BookieSasl(query["bookie_user"], SecretVariable(PASSWORD_VARIABLE) if file is None else SecretFile(file))
    if file is not None:
        raise InvalidArgumentError("bookie_password_file means nothing without bookie_user")
    return None


def _kerberos_of(query: Mapping[str, str]) -> BookieKerberos | None:
    if not any(name in query for name in _OF_KERBEROS):
        return None
    if query.get("bookie_kerberos") == "false":
        raise InvalidArgumentError("bookie_kerberos=false says nothing: leave it out, and all that is about Kerberos at bookies")
    principal, keytab, cache = (query.get(name) for name in ("bookie_principal", "bookie_keytab_file", "bookie_ticket_cache"))
    service = query.get("bookie_service", SERVICE)
    check_identity("the URI", principal, keytab, cache, service, _called)  # before BookieKerberos does, which knows no option
    return BookieKerberos(principal, keytab, cache, service)
