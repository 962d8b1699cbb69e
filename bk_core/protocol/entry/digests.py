"""Digests of entries and the keys derived from a ledger password (wire-protocol.md 7.2, 7.3, 7.5).

A digest is computed over parts, as if they were concatenated: for an entry the 32-byte header and the payload, for an explicit LAC
packet its first 16 bytes. ``compute`` returns the stored form, ``length`` bytes long.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bk_core.errors import InvalidArgumentError
from bk_core.kernels import crc32c
from bk_core.protocol import BytesLike
from bk_core.protocol.ledger.metadata import DigestType

KEY_BYTES = 20  # both keys are SHA-1 values


def master_key(password: bytes) -> bytes:
    """Return the 20-byte ledger key that bookies compare (K1, K2). An empty password is not special."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def hmac_key(password: bytes) -> bytes:
    """Return the 20-byte key of the MAC digest (K3)."""
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class Digest:
    """One digest algorithm. ``compute(hmac_key, *parts)`` returns ``length`` bytes; only MAC uses the key."""

    digest_type: DigestType
    length: int
    compute: Callable[..., bytes] = field(repr=False)


def _crc32(_key: bytes, *parts: BytesLike) -> bytes:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value.to_bytes(8, "big")  # stored as u64: four zero bytes first


def _mac(key: bytes, *parts: BytesLike) -> bytes:
    mac = hmac.new(key, digestmod=hashlib.sha1)
    for part in parts:
        mac.update(part)
    return mac.digest()


def _crc32c(_key: bytes, *parts: BytesLike) -> bytes:
    value = 0
    for part in parts:
        value = crc32c(part, value)
    return value.to_bytes(4, "big")


def _dummy(_key: bytes, *_parts: BytesLike) -> bytes:
    return b""


DIGESTS: Mapping[DigestType, Digest] = MappingProxyType(
    {
        DigestType.CRC32: Digest(DigestType.CRC32, 8, _crc32),
        DigestType.MAC: Digest(DigestType.MAC, 20, _mac),
        DigestType.CRC32C: Digest(DigestType.CRC32C, 4, _crc32c),
        DigestType.DUMMY: Digest(DigestType.DUMMY, 0, _dummy),
    }
)


def digest_for(digest_type: DigestType | int) -> Digest:
    """Return the algorithm of a digest type. Raises InvalidArgumentError for a number outside 1..4."""
    try:
        return DIGESTS[DigestType(digest_type)]
    except ValueError:
        raise InvalidArgumentError(f"unknown digest type {digest_type!r}") from None
