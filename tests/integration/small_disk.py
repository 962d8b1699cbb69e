"""A real file system of a few MiB, in memory, that can be filled to its last byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, mib: int) -> Iterator[Path]:
    """Mounted on ``directory``. The test is skipped where this user may not mount."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "bk-test", str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode != 0:
        pytest.skip(f"this user cannot mount a file system: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], timeout=60, check=True)


def free_bytes(directory: Path) -> int:
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def fill_with(path: Path) -> None:
    """Have another file take what is left, to the last byte."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
