"""Makes the files of a bookie accessible to its owner alone: directories 0700, files 0600. Its records hold the keys with which ledgers are
written."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger("bk_core.bookie")

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


def opener(path: str, flags: int) -> int:
    """Open a file for ``open``; a file that is made gets FILE_MODE."""
    return os.open(path, flags, FILE_MODE)


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents. Only these and the directory itself get DIRECTORY_MODE."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    _restrict(directory, DIRECTORY_MODE)


def make_private(directory: Path) -> None:
    """Make the directory and everything in it private, including what an older version has made. Files of another user are left, with a
    line in the log."""
    make_directory(directory)
    for parent, directories, files in os.walk(directory):
        for names, mode in ((directories, DIRECTORY_MODE), (files, FILE_MODE)):
            for name in names:
                _restrict(Path(parent, name), mode)


def _restrict(path: Path, mode: int) -> None:
    try:
        found = path.lstat().st_mode
        if not stat.S_ISLNK(found) and stat.S_IMODE(found) & ~mode:
            path.chmod(mode)
    except FileNotFoundError:
        pass  # it is gone meanwhile
    except OSError as error:
        log.warning("%s can be read by others, and that cannot be changed: %s", path, error)
