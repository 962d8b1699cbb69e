"""The content of a file, and what a file store tells about a path. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """``length`` bytes in entries ``first_entry_id .. last_entry_id`` (inclusive) of a data ledger. Every entry but the last holds exactly
    ``piece`` bytes, so that the entry of any byte can be computed."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    length: int
    piece: int


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a file: ``inline``, within the record that puts it, or in ``extents`` of data ledgers, one behind the other."""

    inline: bytes = b""
    extents: tuple[Extent, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.inline) + sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """``path`` in normal form. ``size`` in bytes, 0 of a directory. ``modified_ms``: milliseconds since 1970 by the owner's clock, not
    before those of earlier changes (FS-21). ``file_id``: a number that no other file or directory of the store ever has. ``children``: of a
    directory, how many it holds."""

    path: str
    is_directory: bool
    size: int
    modified_ms: int
    file_id: int
    children: int = 0

    @property
    def name(self) -> str:
        """The last part of the path; empty for the root."""
        return self.path.rpartition("/")[2]
