"""Files of TLS (PEM, PKCS#12) as contexts of the standard library, and the meaning of a failed handshake; for metadata stores and bookies
alike."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Literal, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.key_stores import certificates_of, key_pair_of
from bk_core.secrets import Secret, check_secret, revealed

MinimumTls: TypeAlias = Literal["1.2", "1.3"]
"""The lowest version of TLS that is spoken."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_OTHER_HOST = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
_OF_VERSIONS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW", "INAPPROPRIATE_FALLBACK")
_LACKS_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


class TlsFailure(Enum):
    """The meaning of a failed handshake."""

    UNTRUSTED = auto()  # its certificate is of no authority that is trusted, or is not valid now
    OTHER_HOST = auto()  # its certificate is for another host
    REFUSED = auto()  # the other side ends the handshake for the sake of this client's certificate, or of what only it may know
    VERSION = auto()  # there is no version of TLS that both sides speak
    ENDED = auto()  # the other side, or the library, ends the handshake for another reason
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
    key_store: str | None = None,
    key_store_password: Secret | None = None,
    trust_store: str | None = None,
    trust_store_password: Secret | None = None,
) -> ssl.SSLContext:
    """Return a new context of these files, each a path: of PEM, or of PKCS#12 where they are stores.

    ``owner`` is the class whose fields these are, for messages. Without ``ca`` and ``trust_store`` a client trusts the authorities of the
    system; a server asks clients for certificates only with either. Each certificate in them is trusted: an intermediate authority vouches
    for what it signed, and a certificate of a server for itself. Raises InvalidArgumentError that names the file that cannot be used
    (KeyStoreError for a store), MissingPackageError, and SecretUnavailableError where a function for a password fails.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = _VERSIONS[minimum]
    made.options |= ssl.OP_NO_RENEGOTIATION  # a handshake amid data, which Apache's bookies never ask for
    if not server:
        made.check_hostname = verify_host
    if ca is not None or trust_store is not None:
        made.verify_mode = ssl.CERT_REQUIRED
        # each certificate is one that somebody chose to trust, as Java takes it, whether it has signed itself or not
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca is not None:
        _load(owner, "ca", ca, lambda: made.load_verify_locations(ca))
    elif trust_store is not None:
        trusted = certificates_of(f"trust_store of {owner}", trust_store, trust_store_password).decode("ascii")
        _load(owner, "trust_store", trust_store, lambda: made.load_verify_locations(cadata=trusted))
    elif not server:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert is not None:
        password = b"" if key_password is None else revealed("the key's password", key_password)
        what = cert if key is None else f"{cert} with {key}"
        # an empty password is an error of the library, and None would ask at the terminal
        _load(owner, "cert", what, lambda: made.load_cert_chain(cert, key, lambda: password))
    if key_store is not None:
        pair = key_pair_of(f"key_store of {owner}", key_store, key_store_password)
        _load(owner, "key_store", key_store, lambda: pair.load_into(made))
    return made


def check_files(of: Any, called: Callable[[str], str] = str) -> None:
    """Raise InvalidArgumentError for a version of TLS that is not known, and where the fields of BookieTls or MetadataTls do not go
    together; ArgumentTypeError for no secret. ``called`` returns the name under which a user gave a field, for messages."""
    for name in ("key_password", "key_store_password", "trust_store_password"):
        if getattr(of, name) is not None:
            check_secret(called(name), getattr(of, name))
    if of.minimum not in _VERSIONS:
        raise InvalidArgumentError(f"{called('minimum')} must be one of {', '.join(_VERSIONS)}, not {of.minimum!r}")
    for name in ("ca", "cert", "key", "key_store", "trust_store"):
        if getattr(of, name) == "":
            raise InvalidArgumentError(f"{called(name)} must be the path of a file, not empty")
    if of.cert is None and (of.key is not None or of.key_password is not None):
        raise InvalidArgumentError(f"{called('key')} and {called('key_password')} mean nothing without {called('cert')}")
    for pem, store, whose in (("cert", "key_store", "the client's own certificate"), ("ca", "trust_store", "the authorities")):
        if getattr(of, store) is not None and getattr(of, pem) is not None:
            raise InvalidArgumentError(f"{called(pem)} is a file of PEM and {called(store)} one of PKCS#12, both for {whose}: give one")
    for name in ("key_store", "trust_store"):
        if getattr(of, name) is None and getattr(of, f"{name}_password") is not None:
            raise InvalidArgumentError(f"{called(f'{name}_password')} means nothing without {called(name)}")


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
    if isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError):  # the second one once the first was raised
        return TlsFailure.CLOSED, ""
    if any(known in reason for known in _LACKS_TLS):
        return TlsFailure.NO_TLS, ""
    words = reason.replace("_", " ").lower() or error.strerror or ""
    if any(known in reason for known in _OF_VERSIONS):
        return TlsFailure.VERSION, words
    return TlsFailure.REFUSED if any(known in reason for known in _OF_CERTIFICATES) else TlsFailure.ENDED, words


def versions_of(context: ssl.SSLContext) -> str:
    """Return the versions of TLS that a context speaks, for messages."""
    return f"TLS {next(name for name, version in _VERSIONS.items() if version == context.minimum_version)} and later"
