"""The door of a bookie: the files of certificates, users and keys by which it judges who connects. ``door_files.py`` reads certificates and
users again when they change."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from bk_core.bookie.kerberos_service import KerberosService
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.bookie.gate import Gate
from bk_core.tls_files import context_of


@dataclass(frozen=True, slots=True)
class Door:
    """TLS and users of an embedded bookie. With ``cert`` it serves by TLS alone, with ``client_ca`` only those who show a certificate of
    that authority, with ``roles`` only those whose certificate has one of these roles, with ``users_file`` only those who know a password
    (SASL DIGEST-MD5), and with ``kerberos`` only those with a ticket (SASL GSSAPI)."""

    cert: str | None = None
    """The path of the bookie's certificate (PEM), with those between it and its authority."""
    key: str | None = None
    """The path of its private key (PEM); None looks for it in ``cert``."""
    client_ca: str | None = None
    """The path of the authorities whose certificates clients must show; None asks for none."""
    users_file: str | None = None
    """The path of the users: a line ``NAME:PASSWORD`` for each."""
    roles: tuple[str, ...] = ()
    """The roles that are admitted, as Apache's ``authorizedRoles``: a certificate has its role in its subject, ``OU=0:ROLE``."""
    kerberos: KerberosService | None = None
    """The bookie's principal, its keytab and the clients that are admitted; in place of ``users_file``, as at Apache's bookies."""

    def __post_init__(self) -> None:
        if self.cert is None and (self.key is not None or self.client_ca is not None):
            raise InvalidArgumentError("key and client_ca mean nothing without cert")
        if self.users_file is not None and self.kerberos is not None:
            raise InvalidArgumentError("clients of a bookie have passwords or tickets: give Door users_file or kerberos")
        asks = self.users_file is not None or self.kerberos is not None
        if self.roles and (self.client_ca is None or asks):
            raise InvalidArgumentError(
                "roles stand in clients' certificates: they need client_ca, and no users_file and no kerberos can be beside them"
            )
        if not all(role and role == role.strip() and "," not in role for role in self.roles):
            raise InvalidArgumentError(f"roles must be names without commas, and without blanks around them, not {self.roles!r}")
        if self.cert is None and not asks:
            raise InvalidArgumentError("Door() asks for nothing: give it cert, users_file or kerberos, or leave it out")

    def context(self) -> ssl.SSLContext:
        """Return a new context of these files. Raises InvalidArgumentError that names the file that cannot be used."""
        return context_of("Door", ca=self.client_ca, cert=self.cert, key=self.key, key_password=None, verify_host=False, server=True)

    def gate(self, users: Mapping[str, str] | None = None) -> Gate:
        """Return a new gate for one connection. ``users`` are those of the file, if it was read already. Raises InvalidArgumentError for
        users that cannot be read."""
        if self.users_file is not None and users is None:
            users = users_of(self.users_file)
        kerberos = None if self.kerberos is None else self.kerberos.server()
        return Gate(tls=self.cert is not None, users=users, nonce=lambda: secrets.token_hex(16), roles=self.roles, kerberos=kerberos)

    def check(self) -> None:
        """Read all files once. Raises InvalidArgumentError, and MissingPackageError for ``kerberos`` without gssapi."""
        self.gate()
        if self.cert is not None:
            self.context()
        if self.kerberos is not None:
            self.kerberos.check()


def users_of(path: str) -> dict[str, str]:
    """Return the passwords in a file by user. Raises InvalidArgumentError that names file and line, and never what stands there."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")  # and at no other character, because a password may have it
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidArgumentError(f"the users in {path!r} cannot be read: {reason}") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not name or not colon or not password or name in users:
            raise InvalidArgumentError(f"line {number} of the users in {path!r} is not NAME:PASSWORD of a new user")
        users[name] = password
    if not users:
        raise InvalidArgumentError(f"there are no users in {path!r}")
    return users
