"""Stored bytes of ledger metadata, format versions 1, 2 and 3 (metadata.md 3).

Every version starts with ``BookieMetadataFormatVersion``, a tab, the decimal version and a line feed. Version 3 goes on with a varint
length and a protobuf message, version 2 with the same message as protobuf text, version 1 with plain lines. An update is written in
the version that was read (metadata.md 3.2).
"""

from __future__ import annotations

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.metadata_codec.fields import check
from bk_core.protocol.ledger.metadata_codec.v1 import decode_v1, encode_v1
from bk_core.protocol.ledger.metadata_codec.v2_text import decode_v2, encode_v2
from bk_core.protocol.ledger.metadata_codec.v3 import decode_v3, encode_v3

HEADER = b"BookieMetadataFormatVersion\t"
FORMAT_VERSIONS = (1, 2, 3)
_VERSION_DIGITS_MAX = 10


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the bytes of ``metadata`` in its own ``format_version``. Raises MetadataFormatError for a value that other clients could not
    read."""
    check(metadata)
    writers = {1: encode_v1, 2: encode_v2, 3: encode_v3}
    writer = writers.get(metadata.format_version)
    if writer is None:
        raise MetadataFormatError(f"metadata format version {metadata.format_version!r} is not one of 1, 2, 3")
    return HEADER + b"%d\n" % metadata.format_version + writer(metadata)


def decode(data: bytes | bytearray | memoryview, ledger_id: int | None = None) -> LedgerMetadata:
    """Return the metadata stored in ``data``. Raises MetadataFormatError for anything else, which names ``ledger_id`` if it is given."""
    if ledger_id is not None:
        try:
            return decode(data)
        except MetadataFormatError as error:
            raise MetadataFormatError(f"ledger {ledger_id}: {error.args[0]}", **error.context, ledger=ledger_id) from None
    version, body = _split_header(bytes(data))
    raw = {1: decode_v1, 2: decode_v2, 3: decode_v3}[version](body)
    metadata = raw.build(version)
    check(metadata)
    return metadata


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(HEADER):
        raise MetadataFormatError("ledger metadata does not start with the BookieMetadataFormatVersion header")
    start = len(HEADER)
    end = data.find(b"\n", start, start + _VERSION_DIGITS_MAX + 1)
    digits = data[start:end] if end >= 0 else b""
    if not digits.isdigit():
        raise MetadataFormatError("ledger metadata header has no format version")
    version = int(digits)
    if version not in FORMAT_VERSIONS:
        raise MetadataFormatError(f"ledger metadata format version {version} is not one of 1, 2, 3")
    return version, data[end + 1 :]
