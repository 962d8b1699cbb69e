"""Key stores and trust stores of PKCS#12 by way of the package cryptography, which not everybody needs. What they hold never becomes a file
of a disk: the library of TLS reads it out of memory that has no name."""

from __future__ import annotations

import os
import ssl
import sys
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import KeyStoreError, MissingPackageError
from bk_core.secrets import Secret, revealed

STORE_BYTES_MAX = 16 << 20
"""The largest file that is read; that of all authorities which are commonly trusted has some hundred KiB."""
_HEAD_BYTES = 2
_LONG_FORM = 0x80
_SEQUENCE, _VERSION = 0x30, b"\x02\x01\x03"
_JAVA_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_JAVA_HINT = "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12 makes one of it"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with those between it and its authority, and its private key, in PEM."""

    key: bytes = field(repr=False)
    chain: bytes

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context of TLS show this certificate. Raises SSLError for a key that is not the certificate's."""
        descriptor = os.memfd_create("bookkeeper-key", os.MFD_CLOEXEC)  # memory without a name, gone with the descriptor
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self.key + self.chain)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"")
        finally:
            os.close(descriptor)


def check_cryptography() -> None:
    """Raise MissingPackageError without the package cryptography."""
    try:
        import cryptography  # noqa: F401 - the functions below import what they need of it
    except ImportError:
        text = f"PKCS#12 needs the package cryptography, there is none ({sys.executable}): pip install 'bk-spark[pkcs12]'"
        raise MissingPackageError(f"{text}, or pip install cryptography", package="cryptography") from None


def key_pair_of(name: str, path: str, password: Secret | None) -> KeyPair:
    """Return certificate and key of a PKCS#12 file. ``name`` says which field the path is from, for messages. Raises KeyStoreError,
    MissingPackageError, and SecretUnavailableError where a function for the password fails."""
    found = _opened(name, path, password)
    if found.key is None:
        raise KeyStoreError(f"{name}, {path}, cannot be used: it holds no private key, as a trust store does not")
    if found.cert is None:
        raise KeyStoreError(f"{name}, {path}, cannot be used: it holds a private key and no certificate of it")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    between = [one.certificate for one in found.additional_certs]
    return KeyPair(key, _pem(_in_order(found.cert.certificate, between)))


def certificates_of(name: str, path: str, password: Secret | None) -> bytes:
    """Return all certificates of a PKCS#12 file in PEM. ``name`` says which field the path is from, for messages. Raises KeyStoreError,
    MissingPackageError, and SecretUnavailableError where a function for the password fails."""
    found = _opened(name, path, password)
    held = [one.certificate for one in (found.cert, *found.additional_certs) if one is not None]
    if not held:
        raise KeyStoreError(f"{name}, {path}, cannot be used: it holds no certificate that could be trusted")
    return _pem(held)


def _in_order(first: Any, others: list[Any]) -> list[Any]:
    """Return a certificate, and behind each the one that signed it. Those that belong to another chain are left out."""
    chain, left = [first], list(others)
    while signer := next((one for one in left if one.subject == chain[-1].issuer), None):
        left.remove(signer)
        chain.append(signer)
    return chain


def _pem(certificates: list[Any]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def _opened(name: str, path: str, password: Secret | None) -> Any:
    check_cryptography()
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    data = _read(name, path)
    secret = None if password is None else revealed(f"the password of {name}", password)
    try:
        return load_pkcs12(data, secret)
    except ValueError:  # the library says of a wrong password what it says of contents that were changed
        wrong = "it has a password, and none is given" if secret is None else "the password is wrong, or what it holds was changed"
        raise KeyStoreError(f"{name}, {path}, cannot be used: {wrong}") from None
    except Exception as error:  # of an algorithm that the library does not know
        raise KeyStoreError(f"{name}, {path}, cannot be used: {type(error).__name__}, {error}") from None


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise KeyStoreError(f"{name}, {path!r}, cannot be used: {reason}") from None
    problem = _problem_of(data)
    if problem:
        raise KeyStoreError(f"{name}, {path}, cannot be used: {problem}")
    return data


def _problem_of(data: bytes) -> str:
    """Return what shows without a password that a file is no PKCS#12, "" for nothing."""
    if data.startswith(_JAVA_MAGIC):
        return f"it is a key store of Java's own kind (JKS), not PKCS#12: {_JAVA_HINT}"
    if data.lstrip().startswith(b"-----BEGIN"):
        return "it is PEM, not PKCS#12: name it as `ca`, or as `cert` and `key`"
    if len(data) < _HEAD_BYTES or data[0] != _SEQUENCE:
        return "it is no PKCS#12 file"
    head, size = _HEAD_BYTES, data[1]
    if data[1] > _LONG_FORM:
        head += data[1] - _LONG_FORM
        size = int.from_bytes(data[_HEAD_BYTES:head], "big")
    if data[1] != _LONG_FORM and len(data) < head + size:  # a length that is not told ends where its content does
        return f"it is damaged: {len(data)} bytes of {head + size} are there"
    return "" if data[head:].startswith(_VERSION) else "it is no PKCS#12 file"
