"""A bookie's cookie: which directories and which cluster belong to its id (metadata.md 4.5). The same bytes stand in VERSION files."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.metadata_codec.text import parse_text, quote_text

LAYOUT_VERSION = 5
_TEXT_VERSIONS = (4, 5)
_LINES_VERSION = 3


@dataclass(frozen=True, slots=True)
class Cookie:
    """``instance_id`` is None in a cluster without one; ``index_dirs`` is None where the index lies in the ledger directories."""

    bookie_id: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None = None
    index_dirs: tuple[str, ...] | None = None

    def differences(self, stored: Cookie) -> tuple[str, ...]:
        """Names of the fields in which ``stored`` differs; a bookie must not start with any (metadata.md 4.5)."""
        mine = (self.bookie_id, self.journal_dirs, self.ledger_dirs, self.instance_id, self.index_dirs or self.ledger_dirs)
        theirs = (stored.bookie_id, stored.journal_dirs, stored.ledger_dirs, stored.instance_id, stored.index_dirs or stored.ledger_dirs)
        names = ("bookie id", "journal directories", "ledger directories", "instance id", "index directories")
        return tuple(name for name, here, there in zip(names, mine, theirs, strict=True) if here != there)


def encode_cookie(cookie: Cookie) -> bytes:
    fields = [
        ("bookieHost", cookie.bookie_id),
        ("journalDir", ",".join(cookie.journal_dirs)),
        ("ledgerDirs", _join(cookie.ledger_dirs)),
    ]
    if cookie.instance_id is not None:
        fields.append(("instanceId", cookie.instance_id))
    if cookie.index_dirs is not None:
        fields.append(("indexDirs", _join(cookie.index_dirs)))
    return f"{LAYOUT_VERSION}\n{''.join(f'{name}: {quote_text(value.encode())}' + chr(10) for name, value in fields)}".encode()


def decode_cookie(data: bytes) -> Cookie:
    """Reads versions 3, 4 and 5; MetadataFormatError for anything else."""
    first, _, rest = data.partition(b"\n")
    version = int(first) if first.isdigit() and len(first) < 10 else 0
    if version == _LINES_VERSION:
        return _decode_lines(rest)
    if version not in _TEXT_VERSIONS:
        raise MetadataFormatError(f"cookie layout version {first[:20]!r} is not one of 3, 4, 5")
    values = {name: _text(value) for name, value in parse_text(rest) if isinstance(value, bytes)}
    missing = [name for name in ("bookieHost", "journalDir", "ledgerDirs") if name not in values]
    if missing:
        raise MetadataFormatError(f"cookie lacks {', '.join(missing)}")
    index_dirs = values.get("indexDirs")
    return Cookie(
        values["bookieHost"],
        tuple(values["journalDir"].split(",")),
        _split(values["ledgerDirs"]),
        values.get("instanceId"),
        None if index_dirs is None else _split(index_dirs),
    )


def _decode_lines(rest: bytes) -> Cookie:
    lines = _text(rest).split("\n")
    if len(lines) < 3:
        raise MetadataFormatError("cookie of version 3 has too few lines")
    return Cookie(lines[0], tuple(lines[1].split(",")), _split(lines[2]))


def _join(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _split(joined: str) -> tuple[str, ...]:
    count, *directories = joined.split("\t")
    if count != str(len(directories)):
        raise MetadataFormatError(f"cookie announces {count!r} directories and lists {len(directories)}")
    return tuple(directories)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MetadataFormatError("cookie is not UTF-8") from None
