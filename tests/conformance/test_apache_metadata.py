"""Ledger metadata as eight releases of Apache BookKeeper serialize it (apache_metadata/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec import decode, encode

_VECTORS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "apache_metadata" / "vectors.json").read_text())
_CASES = [(release, name) for release, vectors in _VECTORS.items() for name in vectors]
_PASSWORD = 's\u00e9"cret\n'.encode()
_CUSTOM = {"app": b'x\x00\xff"\n'}


def _bookies(*numbers: int) -> tuple[str, ...]:
    return tuple(f"10.0.0.{number}:3181" for number in numbers)


def _format_of(release: str, name: str) -> int:
    if name.startswith("format "):
        return int(name.split(",")[0].removeprefix("format "))
    return 1 if release in ("4.0.0", "4.1.0") else 2


def _expected(release: str, name: str) -> LedgerMetadata:
    version = _format_of(release, name)
    state = LedgerState.IN_RECOVERY if "in recovery" in name else LedgerState.CLOSED if "closed" in name else LedgerState.OPEN
    full = state is LedgerState.CLOSED and "empty" not in name
    stored = version != 1 and "no digest" not in name
    with_time = release in ("4.4.0", "4.5.1")
    return LedgerMetadata(
        3,
        2,
        2,
        state,
        (Fragment(0, _bookies(1, 2, 3)), Fragment(10, _bookies(1, 4, 3))) if full else (Fragment(0, _bookies(1, 2, 3)),),
        last_entry_id=99 if full else -1,
        length=12345 if full else 0,
        digest_type=DigestType.MAC if stored and "CRC32" not in name else DigestType.CRC32,
        password=_PASSWORD if stored else b"",
        custom=_CUSTOM if stored and release in ("4.5.1", "4.14.7", "4.18.0") else {},
        ctime_ms=1_400_000_000_000 if with_time else None,
        creator_token=0 if version == 3 else None,
        format_version=version,
        stores_password=stored,
        has_digest=stored,
    )


@pytest.mark.parametrize(("release", "name"), _CASES)
def test_what_apache_wrote_is_understood_and_written_back(release: str, name: str) -> None:
    """META-8, META-15: byte for byte, but for a line feed that 4.0 and 4.1 did not put behind the last fragment of an open ledger."""
    data = _VECTORS[release][name].encode("latin-1")
    metadata = decode(data)
    assert metadata == _expected(release, name)
    assert encode(metadata).removesuffix(b"\n") == data.removesuffix(b"\n")


def test_all_releases_and_formats_are_there() -> None:
    assert {_format_of(*case) for case in _CASES} == {1, 2, 3} and len(_VECTORS) == 8
    assert len(_CASES) == 2 * 4 + 4 * 12 + 2 * 12
