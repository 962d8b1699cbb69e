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
        """The size in bytes."""
        return len(self.inline) + sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file or directory.

    ``path`` is in normal form. ``size`` is in bytes, and 0 for a directory. ``modified_ms`` is the time of the last change, in milliseconds
    since 1970 by the owner's clock, and never before that of an earlier change (FS-21). ``file_id`` is a number that no other file or
    directory of the store ever has. ``children`` is the number of names in a directory.
    """

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

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import files, table

        return table.html(files.status(self))
