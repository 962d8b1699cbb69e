"""Makes an embedded bookie read-only, and writable again, by a file in its directory. Whoever may write there may stop the bookie
anyway."""

from __future__ import annotations

from pathlib import Path

from bk_core.bookie.identity import sync_directory, version_file, write_durably
from bk_core.errors import InvalidArgumentError

TOLD = "read-only"
"""A file in the bookie's directory. As long as it is there the bookie takes nothing new, also after a restart."""


def is_told(directory: Path) -> bool:
    """Return True if an operator has made the bookie on ``directory`` read-only."""
    return (directory / TOLD).exists()


def tell(directory: Path, read_only: bool) -> bool:
    """Make the bookie on ``directory`` read-only, or let it be writable. It notices within about a second. Return False if it was told so
    before. Raises InvalidArgumentError if no embedded bookie lives there."""
    if not (version_file(directory).exists() and (directory / "address").exists()):
        raise InvalidArgumentError(f"{directory} is not the directory of an embedded bookie")
    if is_told(directory) is read_only:
        return False
    if read_only:
        write_durably(directory / TOLD, b"an operator has made this bookie read-only: bk bookie read-only BOOKIE off\n")
    else:
        (directory / TOLD).unlink(missing_ok=True)
        sync_directory(directory)
    return True
