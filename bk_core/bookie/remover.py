"""Removes a temporary directory when the process that holds the lock in there lets it go, however that process ends.

    python -I -S remover.py DIRECTORY

It is a program of its own, run as a file, as launcher.py is. The kernel gives the lock up before it kills the children of a process that
died, so a child may still write for a moment; what it has written is removed with the next attempt. Exit status 1 if something is left.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 10.0
_PAUSE_S = 0.05


def main(directory: Path) -> int:
    """Wait for the lock, and remove ``directory``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the owner
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
    except FileNotFoundError:  # it was removed before this program looked
        return 0
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return 0
        if time.monotonic() > deadline:
            return 1
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
