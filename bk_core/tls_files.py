"""Files of TLS, made into contexts of the standard library, and the meaning of a failed handshake; of metadata stores and bookies alike."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Literal, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.secrets import Secret, revealed

MinimumTls: TypeAlias = Literal["1.2", "1.3"]
"""The lowest version of TLS that is spoken."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_OTHER_HOST = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_LACKS_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


class TlsFailure(Enum):
    """The meaning of a failed handshake."""

    UNTRUSTED = auto()  # its certificate is of no authority that is trusted, or is not valid now
    OTHER_HOST = auto()  # its certificate is for another host
    REFUSED = auto()  # the other side ends the handshake, mostly for the sake of this client's certificate
    NO_TLS = auto()  # what answers is no TLS
    CLOSED = auto()  # the connection ended, which may have any cause


def context_of(
    owner: str,
    *,
    ca: str | None,
    cert: str | None,
    key: str | None,
    key_password: Secret | None,
    verify_host: bool,
    minimum: MinimumTls = "1.2",
    server: bool = False,
) -> ssl.SSLContext:
    """Return a new context of these files of PEM, each a path. PKCS#12 is not read: ``openssl pkcs12`` makes PEM of it.

    ``owner`` is the class whose fields these are, for messages. Without ``ca`` a client trusts the authorities of the system; a server asks
    clients for certificates only with ``ca``. Raises InvalidArgumentError that names the file that cannot be used, and whatever a function
    for the key's password raises.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = _VERSIONS[minimum]
    made.options |= ssl.OP_NO_RENEGOTIATION  # a handshake amid data, which Apache's bookies never ask for
    if not server:
        made.check_hostname = verify_host
    if ca is not None:
        _load(owner, "ca", ca, lambda: made.load_verify_locations(ca))
        made.verify_mode = ssl.CERT_REQUIRED
    elif not server:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert is not None:
        password = b"" if key_password is None else revealed("key_password", key_password)
        what = cert if key is None else f"{cert} with {key}"
        # an empty password is an error of the library, and None would ask at the terminal
        _load(owner, "cert", what, lambda: made.load_cert_chain(cert, key, lambda: password))
    return made


def _load(owner: str, name: str, path: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ValueError as error:  # a path with a NUL, a password that is too long
        raise InvalidArgumentError(f"{name} of {owner}, {path!r}, cannot be used: {error}") from None
    except OSError as error:  # an SSLError is one, and says of a wrong password what it says of a broken file
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        hint = "; see the path, that it is PEM, and the key's password" if isinstance(error, ssl.SSLError) else ""
        raise InvalidArgumentError(f"{name} of {owner}, {path}, cannot be used: {reason}{hint}") from None


def failure_of(error: OSError) -> tuple[TlsFailure, str]:
    """Return the meaning of the error that ended a handshake, with the words of the library, which may be empty."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure.OTHER_HOST if error.verify_code in _OTHER_HOST else TlsFailure.UNTRUSTED, error.verify_message
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return TlsFailure.CLOSED, ""
    if any(known in reason for known in _LACKS_TLS):
        return TlsFailure.NO_TLS, ""
    return TlsFailure.REFUSED, reason.replace("_", " ").lower() or error.strerror or ""
