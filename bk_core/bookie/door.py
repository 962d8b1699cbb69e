"""The door of a bookie: the files of certificates and users by which it judges who connects. They are read anew for each connection."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.bookie.gate import Gate
from bk_core.tls_files import context_of


@dataclass(frozen=True, slots=True)
class Door:
    """TLS and users of an embedded bookie. With ``cert`` it serves by TLS alone, with ``client_ca`` only those who show a certificate of
    that authority, with ``roles`` only those whose certificate has one of these roles, and with ``users_file`` only those who know a
    password (SASL DIGEST-MD5)."""

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

    def __post_init__(self) -> None:
        if self.cert is None and (self.key is not None or self.client_ca is not None):
            raise InvalidArgumentError("key and client_ca mean nothing without cert")
        if self.roles and (self.client_ca is None or self.users_file is not None):
            raise InvalidArgumentError("roles stand in clients' certificates: they need client_ca, and no users_file can be beside them")
        if not all(role and role == role.strip() and "," not in role for role in self.roles):
            raise InvalidArgumentError(f"roles must be names without commas, not {self.roles!r}")
        if self.cert is None and self.users_file is None:
            raise InvalidArgumentError("Door() asks for nothing: give it cert or users_file, or leave it out")

    def context(self) -> ssl.SSLContext:
        """Return a new context of these files. Raises InvalidArgumentError that names the file that cannot be used."""
        return context_of("Door", ca=self.client_ca, cert=self.cert, key=self.key, key_password=None, verify_host=False, server=True)

    def gate(self) -> Gate:
        """Return a new gate for one connection. Raises InvalidArgumentError for users that cannot be read."""
        users = None if self.users_file is None else users_of(self.users_file)
        return Gate(tls=self.cert is not None, users=users, nonce=lambda: secrets.token_hex(16), roles=self.roles)

    def check(self) -> None:
        """Read all files once. Raises InvalidArgumentError."""
        self.gate()
        if self.cert is not None:
            self.context()


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
