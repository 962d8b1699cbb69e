"""The owner of a bookie's directory, and the check that it still holds what it once held (metadata.md 4.5, 4.6; B-10)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bk_core.bookie.directory import Condition, condition_of, move_aside, would_overwrite
from bk_core.bookie.private import make_directory, opener
from bk_core.errors import InvalidArgumentError, NoNodeError
from bk_core.metadata.cookies import Cookie, decode_cookie, encode_cookie
from bk_core.metadata.store import MetadataStore


class Standing(Enum):
    NEW = "new"  # it never held anything
    SAME = "same"
    LOST = "lost"  # data that was here may be gone


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check. ``reason`` tells what made the standing LOST."""

    standing: Standing
    reason: str = ""


def cookie_of(bookie_id: str, directory: Path, instance_id: str | None) -> Cookie:
    """Return the cookie. One directory holds journal, ledgers and indexes."""
    place = str(directory.resolve())
    return Cookie(bookie_id, (place,), (place,), instance_id)


def version_file(directory: Path) -> Path:
    return directory / "current" / "VERSION"


def loss_file(directory: Path) -> Path:
    """Return the path of the file that exists while lost entries are being fetched again (RC-27)."""
    return directory / "current" / "LOST"


def examine(store: MetadataStore, bookie_id: str, directory: Path) -> Finding:
    """Compare the cookies and the storage, changing nothing.

    Raises InvalidArgumentError if this is not the directory that belongs to ``bookie_id``: a bookie that served from another one would deny
    entries that were acknowledged, so no option permits it. Raises MetadataFormatError if a cookie cannot be read.
    """
    wanted = cookie_of(bookie_id, directory, store.instance_id())
    path = version_file(directory)
    local = path.read_bytes() if path.exists() else None
    try:
        stored: bytes | None = store.read_cookie(bookie_id).data
    except NoNodeError:
        stored = None
    for owner, data in ((path, local), (f"the metadata store's cookie of {bookie_id}", stored)):
        if data is not None and (differences := wanted.differences(decode_cookie(data))):
            raise InvalidArgumentError(
                f"{directory} is not the directory of bookie {bookie_id}: {owner} has another {', '.join(differences)}"
            )
    finding = _judge(local is not None, stored is not None, condition_of(directory / "current"), path, bookie_id)
    if finding.standing is Standing.NEW and loss_file(directory).exists():
        return Finding(Standing.LOST, f"there is {loss_file(directory)}: a start after a loss ended before all that was lost was marked")
    return finding


def _judge(local: bool, stored: bool, condition: Condition, path: Path, bookie_id: str) -> Finding:
    """Judge the directory by all but ``LOST``. A first start that was killed half-way leaves no ledger behind, which distinguishes it from
    a loss."""
    if condition is Condition.DAMAGED:
        return Finding(Standing.LOST, f"the storage in {path.parent} is damaged")
    if stored and not local:
        return Finding(Standing.LOST, f"the metadata store knows it, but {path} is missing")
    if local and condition is Condition.ABSENT:
        return Finding(Standing.LOST, f"there is {path}, but no storage beside it")
    if condition is Condition.USED and not stored:
        again = f" (`bk bookie cookie put {bookie_id} {path}` brings back one that was deleted by mistake)" if local else ""
        return Finding(Standing.LOST, f"there are ledgers here, but the metadata store has no cookie of it{again}")
    return Finding(Standing.SAME if local and stored else Standing.NEW)


def begin_anew(directory: Path) -> None:
    """Prepare a directory for life after a loss. ``LOST`` is written first: from there on it never passes for new. Then VERSION is deleted,
    and it is back only when all losses are marked: a start that ends before looks like a loss again."""
    write_durably(loss_file(directory), b"entries that were lost here are being fetched from other replicas\n")
    version_file(directory).unlink(missing_ok=True)
    if would_overwrite(directory / "current"):
        move_aside(directory / "current")
    sync_directory(directory / "current")


def sign(store: MetadataStore, bookie_id: str, directory: Path) -> None:
    """Write the missing cookies, the local one first (metadata.md 4.6). The storage must be in its final condition by then."""
    data = encode_cookie(cookie_of(bookie_id, directory, store.instance_id()))
    if not version_file(directory).exists():
        write_durably(version_file(directory), data)
    try:
        store.read_cookie(bookie_id)
    except NoNodeError:
        store.write_cookie(bookie_id, data, None)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file so that after a crash either the old or the new content is there."""
    make_directory(path.parent)
    draft = path.with_name(path.name + ".new")
    try:
        with open(draft, "wb", opener=opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make names that were added to or removed from ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kept_address(directory: Path) -> tuple[str, int] | None:
    """Return the address this directory's bookie had before. Raises InvalidArgumentError if the file makes no sense."""
    path = directory / "address"
    if not path.exists():
        return None
    host, _, port = path.read_text(errors="replace").strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        text = f"{path} does not hold host:port, the id by which ledgers name this bookie"
        raise InvalidArgumentError(f"{text}: write it there again (`bk bookie ls` lists those of the cluster)")
    return host, int(port)
