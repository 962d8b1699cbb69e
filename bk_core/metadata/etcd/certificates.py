"""Certificates and keys as grpc takes them, out of the files of MetadataTls, which are read at each connection."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.key_stores import certificates_of, key_pair_of
from bk_core.metadata import secured
from bk_core.metadata.access import MetadataTls
from bk_core.metadata.etcd.connection import Pem

_BUNDLE = "ca-certificates.crt"


def check_tls(tls: MetadataTls) -> None:
    """Raise InvalidArgumentError for what grpc cannot do."""
    if tls.minimum != "1.2":
        raise InvalidArgumentError(
            "minimum of MetadataTls cannot be set with etcd: grpc speaks TLS 1.2 and later, whatever it is asked for"
        )
    if tls.key_password is not None:
        raise InvalidArgumentError(
            "key_password of MetadataTls cannot be used with etcd, because grpc takes no private key that is encrypted: give one without a "
            "password, in a file that nobody else may read, or a key_store (PKCS#12)"
        )


def pem_of(tls: MetadataTls, host: str, port: int, timeout_s: float) -> Pem:
    """Return what a connection to this server takes. Raises OSError, KeyStoreError, and SecretUnavailableError where a function
    for a password fails."""
    authorities, key, chain = _authorities(tls), None, None
    if tls.cert is not None:
        key, chain = Path(tls.key or tls.cert).read_bytes(), Path(tls.cert).read_bytes()
    elif tls.key_store is not None:
        pair = key_pair_of("key_store of MetadataTls", tls.key_store, tls.key_store_password)
        key, chain = pair.key, pair.chain
    return Pem(authorities, key, chain, "" if tls.verify_host else _name_of(tls, host, port, timeout_s))


def _authorities(tls: MetadataTls) -> bytes | None:
    if tls.trust_store is not None:
        return certificates_of("trust_store of MetadataTls", tls.trust_store, tls.trust_store_password)
    return _system() if tls.ca is None else Path(tls.ca).read_bytes()


def _name_of(tls: MetadataTls, host: str, port: int, timeout_s: float) -> str:
    """Return a name in the server's certificate, which grpc is to find there: it looks at the name in any case. The certificate's authority
    is checked here and there."""
    with secured.connect(tls, (host, port), host, timeout_s) as connection:
        shown: Any = connection.getpeercert() or {}
    names = [str(value) for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    common = [str(value) for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return next(iter([*names, *common]), "")


def _system() -> bytes | None:
    """Return the authorities of the system; None where they cannot be found, which leaves it to grpc's own."""
    known = ssl.get_default_verify_paths()
    if known.cafile:
        return Path(known.cafile).read_bytes()
    if known.capath and (bundle := Path(known.capath, _BUNDLE)).is_file():
        return bundle.read_bytes()
    return None
