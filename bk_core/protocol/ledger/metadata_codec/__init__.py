"""Stored bytes of ledger metadata, format versions 1, 2 and 3 (metadata.md 3)."""

from bk_core.protocol.ledger.metadata_codec.codec import FORMAT_VERSIONS, HEADER, decode, encode
from bk_core.protocol.ledger.metadata_codec.fields import is_bookie_id

__all__ = ["FORMAT_VERSIONS", "HEADER", "decode", "encode", "is_bookie_id"]
