"""The identity of a client at the metadata store, and TLS on the way to it. Plain values without the libraries that use them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, get_args

from bk_core.arguments import TEXT, Check, check_fields, one_of, settings
from bk_core.errors import InvalidArgumentError, MetadataAuthError
from bk_core.kerberos import Identity, check_identity
from bk_core.secrets import Secret, SecretFile, SecretVariable, check_secret
from bk_core.tls_files import MinimumTls, check_files, context_of

Scheme: TypeAlias = Literal["digest", "sasl", "kerberos", "x509"]
Acl: TypeAlias = Literal["open", "creator"]
PASSWORD_VARIABLES = {"zk": "BK_ZOOKEEPER_PASSWORD", "etcd": "BK_ETCD_PASSWORD"}
"""The variable that holds the password of the user in a URI which names no file of it, by the driver."""
AUTH_OPTIONS = {
    "zk": ("auth", "user", "password_file", "principal", "keytab_file", "ticket_cache", "service", "acl", "readers"),
    "etcd": ("user", "password_file"),
}
"""The options of a URI about the client's identity, by the driver."""
TLS_OPTIONS = (
    *("ca_file", "cert_file", "key_file", "key_password_file", "verify_host"),
    *("key_store_file", "key_store_password_file", "trust_store_file", "trust_store_password_file"),
    "tls_minimum",
)
"""The options of a URI about certificates, the same for each driver."""
_SECRET = Check("a secret", lambda value: True)  # ``check_secret`` says more
_READERS = Check("a tuple of texts", lambda value: isinstance(value, tuple) and all(isinstance(one, str) for one in value))
_PATH = Check("a path as text", lambda value: isinstance(value, str))


@settings
@dataclass(frozen=True, slots=True)
class ZooKeeperAuth:
    """The identity of a client at ZooKeeper, and the rights on what it creates there. The password is in no ``repr`` and no message.

    >>> ZooKeeperAuth("sasl", "flights", SecretFile("/run/secrets/zookeeper"), acl="creator")
    ZooKeeperAuth(scheme='sasl', user='flights', acl='creator', readers=())
    """

    scheme: Scheme
    """The scheme: "sasl" is SASL DIGEST-MD5, which needs the package pure-sasl; "kerberos" is SASL GSSAPI, which needs the package gssapi,
    too; "digest" is ZooKeeper's own, whose servers take every password and so cannot tell a wrong one from another user; "x509" is the
    client certificate of ``MetadataTls``."""
    user: str = ""
    """The name of the user, with "sasl" and "digest"."""
    password: Secret = field(default=b"", repr=False)
    """The password of the user, or a function that returns it. It is asked for at each new connection."""
    acl: Acl = "open"
    """The rights on the nodes that this client creates: "open" lets everybody do everything, as Apache does by default; "creator" is for
    this identity alone, as with Apache's ``zkEnableSecurity``."""
    readers: tuple[str, ...] = ()
    """The identities that may read what this client creates, with ``acl="creator"``: ids as ZooKeeper writes them, such as "sasl:spark",
    "digest:spark:<hash>" or "world:anyone". The passwords of ledgers stand in these nodes."""
    principal: str | None = None
    """The name of this client at the KDC, with "kerberos": ``keytab`` needs it, and None takes whoever has the ticket cache."""
    keytab: str | None = None
    """The path of the principal's key, which is read at each connection; tickets by it are kept in memory and renewed."""
    ticket_cache: str | None = None
    """The name of a ticket cache, such as "FILE:/run/bk/tickets"; None is that of the process (``KRB5CCNAME``), as ``kinit`` makes it."""
    service: str = "zookeeper"
    """The first part of the servers' principals. The other one is the host in the URI, which the library of Kerberos may replace by its
    name in DNS (``dns_canonicalize_hostname``, ``rdns`` in ``krb5.conf``)."""

    def __post_init__(self) -> None:
        paths = dict.fromkeys(("principal", "keytab", "ticket_cache"), _PATH)
        check_fields(self, {"scheme": TEXT, "password": _SECRET, "acl": TEXT, "readers": _READERS, "service": TEXT, **paths})
        check_secret("password", self.password)
        for name, known in (("scheme", Scheme), ("acl", Acl)):
            if getattr(self, name) not in get_args(known):
                raise InvalidArgumentError(f"{name} must be one of {', '.join(get_args(known))}, not {getattr(self, name)!r}")
        self._check_who()
        self._check_readers()

    def _check_who(self) -> None:
        has_password = callable(self.password) or bool(self.password)
        if self.scheme == "x509" and (self.user or has_password):
            raise InvalidArgumentError("scheme='x509' takes neither user nor password: the client certificate of MetadataTls tells both")
        if self.scheme == "kerberos" and (self.user or has_password):
            raise InvalidArgumentError(
                "scheme='kerberos' takes neither user nor password: it takes a principal and a keytab, or a ticket_cache"
            )
        if self.scheme in ("sasl", "digest") and not (self.user and has_password):
            raise InvalidArgumentError(f"scheme={self.scheme!r} needs user and password")
        if self.scheme == "digest" and ":" in self.user:
            raise InvalidArgumentError("user must have no colon with scheme='digest': it separates the password")
        if self.scheme != "kerberos":
            given = [name for name in ("principal", "keytab", "ticket_cache") if getattr(self, name) is not None]
            if given or self.service != "zookeeper":
                raise InvalidArgumentError(f"{(given or ['service'])[0]} means nothing without scheme='kerberos'")
            return
        check_identity("ZooKeeperAuth", self.principal, self.keytab, self.ticket_cache, self.service)

    def _check_readers(self) -> None:
        if self.readers and self.acl != "creator":
            raise InvalidArgumentError("readers means nothing without acl='creator'")
        for reader in self.readers:
            scheme, _, name = reader.partition(":")
            if not scheme or not name:
                raise InvalidArgumentError(f"readers has {reader!r}, which is not scheme:id such as 'sasl:spark' or 'world:anyone'")

    def __str__(self) -> str:
        if self.scheme == "kerberos":
            return f"Kerberos {identity_of(self)}"
        return "x509 certificate" if self.scheme == "x509" else f"{self.scheme} user {self.user!r}"


def identity_of(auth: ZooKeeperAuth) -> Identity:
    """Return the source of the tickets of a client with scheme="kerberos"."""
    return Identity(auth.principal, auth.keytab, auth.ticket_cache, auth.service)


@settings
@dataclass(frozen=True, slots=True)
class EtcdAuth:
    """The identity of a client at etcd: a user of its own authentication. The password is in no ``repr`` and no message. A server that
    knows its users by their certificates (``--client-cert-auth``) needs none of this.

    >>> EtcdAuth("flights", SecretFile("/run/secrets/etcd"))
    EtcdAuth(user='flights')
    """

    user: str
    """The name of the user. What it may read and write is its roles' at etcd: all below the ledgers root, below the logs and the rack map
    beside it."""
    password: Secret = field(repr=False)
    """The password of the user, or a function that returns it. It is asked for at each new connection."""

    def __post_init__(self) -> None:
        check_fields(self, {"user": TEXT, "password": _SECRET})
        check_secret("password", self.password)
        if not self.user or not (callable(self.password) or self.password):
            raise InvalidArgumentError("EtcdAuth needs user and password")

    def __str__(self) -> str:
        return f"user {self.user!r}"


MetadataAuth: TypeAlias = ZooKeeperAuth | EtcdAuth
"""The identity of a client at one kind of metadata store."""
METADATA_AUTH = one_of((ZooKeeperAuth, EtcdAuth), "ZooKeeperAuth(...) or EtcdAuth(...)")


@settings
@dataclass(frozen=True, slots=True)
class MetadataTls:
    """TLS to the metadata store: files of PEM or PKCS#12, which are read anew at each connection, so that new certificates need no restart.

    >>> MetadataTls(ca="/etc/bk/ca.pem", cert="/etc/bk/client.pem")
    MetadataTls(ca='/etc/bk/ca.pem', cert='/etc/bk/client.pem', key=None, verify_host=True, key_store=None, trust_store=None, minimum='1.2')
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
    """With True, the certificate of the server must be for the host in the URI. Its authority is checked in any case."""
    key_store: str | None = None
    """The path of a PKCS#12 file with the client's own certificate and its key, in place of ``cert`` and ``key``. It needs the package
    cryptography, as ``trust_store`` does."""
    key_store_password: Secret | None = field(default=None, repr=False)
    """The password of ``key_store``, or a function that returns it."""
    trust_store: str | None = None
    """The path of a PKCS#12 file with the certificates of the authorities, in place of ``ca``; each one in it is trusted, too."""
    trust_store_password: Secret | None = field(default=None, repr=False)
    """The password of ``trust_store``, or a function that returns it."""
    minimum: MinimumTls = "1.2"
    """The lowest version of TLS that is spoken: "1.2" or "1.3". With etcd it is the library's own, 1.2."""

    def __post_init__(self) -> None:
        paths = dict.fromkeys(("ca", "cert", "key", "key_store", "trust_store"), _PATH)
        secrets = dict.fromkeys(("key_password", "key_store_password", "trust_store_password"), _SECRET)
        check_fields(self, {**paths, **secrets, "minimum": TEXT, "verify_host": one_of(bool, "True or False")})
        check_files(self)

    def context(self) -> ssl.SSLContext:
        """Return a new context of these files. Raises InvalidArgumentError that names the file that cannot be used, and
        SecretUnavailableError where a function for a password fails."""
        return context_of(
            "MetadataTls",
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


def zookeeper_auth_of(query: Mapping[str, str]) -> ZooKeeperAuth | None:
    """Return what the options of a URI say of the client's identity at ZooKeeper, None if they say nothing. They name files, never a
    secret; what is shown to others goes without them (``ClientConfig.shown_uri``). Raises InvalidArgumentError."""
    if not any(name in query for name in AUTH_OPTIONS["zk"]):
        return None
    scheme = query.get("auth", "sasl")
    secret: Secret = b""
    if "password_file" in query:
        secret = SecretFile(query["password_file"])
    elif scheme not in ("x509", "kerberos"):
        secret = SecretVariable(PASSWORD_VARIABLES["zk"])
    readers = tuple(filter(None, query.get("readers", "").split(",")))
    given: Any = {
        **{name: query.get(name) for name in ("principal", "ticket_cache")},
        "keytab": query.get("keytab_file"),
        "service": query.get("service", "zookeeper"),
    }
    if scheme == "kerberos":  # before ZooKeeperAuth does, which knows no option
        check_identity("the URI", **given, called=_called)
    user, acl = query.get("user", ""), query.get("acl", "open")
    return ZooKeeperAuth(scheme, user, secret, acl, readers, **given)  # type: ignore[arg-type]  # it looks


def etcd_auth_of(query: Mapping[str, str]) -> EtcdAuth | None:
    """Return what the options of a URI say of the client's identity at etcd, None if they say nothing. Raises InvalidArgumentError."""
    if not any(name in query for name in AUTH_OPTIONS["etcd"]):
        return None
    secret = SecretFile(query["password_file"]) if "password_file" in query else SecretVariable(PASSWORD_VARIABLES["etcd"])
    return EtcdAuth(query.get("user", ""), secret)


def tls_of(query: Mapping[str, str]) -> MetadataTls | None:
    """Return what the options of a URI say of certificates, None if they say nothing. Raises InvalidArgumentError."""
    if not any(name in query for name in TLS_OPTIONS):
        return None
    verify = query.get("verify_host", "true")
    if verify not in ("true", "false"):
        raise InvalidArgumentError(f"verify_host must be true or false, not {verify!r}")

    def secret(name: str) -> SecretFile | None:
        return SecretFile(query[name]) if name in query else None

    given: dict[str, Any] = {
        **{name: query.get(_called(name)) for name in ("ca", "cert", "key", "key_store", "trust_store")},
        **{name: secret(_called(name)) for name in ("key_password", "key_store_password", "trust_store_password")},
        "minimum": query.get("tls_minimum", "1.2"),
    }
    check_files(SimpleNamespace(**given), _called)  # before MetadataTls does, which knows no option
    return MetadataTls(**given, verify_host=verify == "true")


def _called(name: str) -> str:
    """Return the option of a URI for a field of MetadataTls or ZooKeeperAuth."""
    if name == "minimum":
        return "tls_minimum"
    return name if name in ("principal", "ticket_cache", "service") else f"{name}_file"


def not_taken(store: str, hosts: str, who: object, reason: str) -> MetadataAuthError:
    """Return the error of a client that a metadata store does not take. ``store`` is the name of its kind, ``who`` the identity of the
    client, and ``reason`` says why, as far as the store tells."""
    known = "which gives no credentials" if who is None else str(who)
    return MetadataAuthError(f"{store} at {hosts} does not take this client ({known}): {reason}; nothing was changed")
