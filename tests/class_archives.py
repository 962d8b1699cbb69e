"""Archives of the classes that a JVM loads (AppCDS): one that finds them ready needs about a third less to start.

An archive is made once, by a JVM that is there for nothing else, and kept in the cache folder of Apache's releases. Its name tells of the
Java and of the jars that it belongs to, and of its own size: a JVM that maps one that was cut short crashes, while one with wrong bytes in
it is noticed and left aside. Whatever goes wrong, a JVM starts without an archive, only more slowly.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bk_core.bookie.apache import cache_directory
from bk_core.errors import BkError

QUIET = "-Xlog:cds=error,cds+dynamic=error"  # no list of the classes that cannot be in an archive, and no word of one that fits no more
UNUSED_S = 3 * 86_400  # each folder with jars has archives of its own: those of a clone that is gone are of no use
Training = Callable[[list[str]], None]


def options(name: str, java: str, class_path: str, train: Training) -> list[str]:
    """Return the options by which a JVM finds its classes ready, made by this call if they are not there; none if that fails.

    ``class_path`` is that of the JVM, jars alone. ``train`` runs such a JVM with the options that it is given, and ends it in order.
    """
    with suppress(OSError):
        folder = cache_directory() / "archives"
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{_key(java, class_path)}"
        archive = _find(folder, stem) or _make(folder, stem, train)
        if archive is not None:
            os.utime(archive)
            return [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", QUIET]
    return []


def _key(java: str, class_path: str) -> str:
    """Return what the JVM compares, too: itself, and each jar with its place, size and time."""
    home = Path(java).resolve().parents[1]
    files = [home / "lib" / "server" / "libjvm.so", home / "lib" / "modules", *_jars(class_path.split(os.pathsep))]
    told = [(str(file), status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _jars(entries: Iterable[str]) -> list[Path]:
    return [Path(found) for entry in entries for found in (sorted(glob.glob(f"{entry}.jar")) if entry.endswith("*") else [entry])]


def _find(folder: Path, stem: str) -> Path | None:
    return next((found for found in folder.glob(f"{stem}-*.jsa") if found.stem == f"{stem}-{found.stat().st_size}"), None)


def _make(folder: Path, stem: str, train: Training) -> Path | None:
    """Return the archive; None if it cannot be made. Another process that wants the same waits for this one."""
    with (folder / f"{stem}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=folder) as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := _find(folder, stem):
            return found
        made = Path(work) / "classes.jsa"
        with suppress(BkError, OSError, subprocess.SubprocessError):
            train([f"-XX:ArchiveClassesAtExit={made}", QUIET])
        if not made.is_file():
            return None
        _forget_unused(folder)
        return made.rename(folder / f"{stem}-{made.stat().st_size}.jsa")


def _forget_unused(folder: Path) -> None:
    for old in folder.glob("*.*"):
        if time.time() - old.stat().st_mtime > UNUSED_S:
            old.unlink()
