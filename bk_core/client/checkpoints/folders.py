"""Copies checkpoints out of file stores into folders of this machine, and out of folders into file stores. Every file is read back."""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.client.checkpoints.within import everything
from bk_core.client.files.imports import delete_unfinished_imports, forget_import, is_of_import, new_import, unfinished_imports
from bk_core.client.files.names import store_log
from bk_core.client.transfer.new_file import FULL
from bk_core.errors import (
    BkError,
    ExportFileError,
    FileDataLostError,
    FileStoreError,
    InvalidArgumentError,
    NoSuchFileStoreError,
    OperationTimeoutError,
    PathExistsError,
    PathNotDirectoryError,
)
from bk_core.protocol.calendar import in_calendar
from bk_core.protocol.files.paths import normal

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.files.store import FileStore
    from bk_core.client.files.view import FileStoreView
    from bk_core.protocol.files.content import FileStatus

_CHUNK = 1 << 20
_TRIES = 5  # so often an export begins again because the checkpoint went on under it
_SIDECAR = re.compile(r"\..*\.crc")
Watched: TypeAlias = Callable[[int, int], AbstractContextManager[Callable[[int], object]]]
"""Gets the numbers of files and bytes that are to be copied. Its block yields a function that is called with the bytes of each part."""


def unwatched(_files: int, _size: int) -> AbstractContextManager[Callable[[int], object]]:
    """Show nothing of a copy."""
    return nullcontext(lambda _done: None)


@dataclass(slots=True)
class Copied:
    """The sum of what was copied and found to be the same. ``dropped``: check sums of Hadoop's local file system, which stay there."""

    files: int = 0
    bytes: int = 0
    dropped: int = 0


@contextmanager
def of_folder(directory: Path, told: str) -> Iterator[None]:
    """Raise errors of the file system as ExportFileError: the folder ``directory``, or a file in it, ``told`` (cannot be read, say)."""
    try:
        yield
    except (BkError, BrokenPipeError):
        raise
    except OSError as error:
        where = "" if error.filename is None or str(error.filename) == str(directory) else f" ({error.filename})"
        if error.errno in FULL:
            where += ". Make room there, or name a folder elsewhere"
        raise ExportFileError(f"{directory} {told}: {error.strerror or error}{where}", path=str(directory)) from error


def check_free(directory: Path) -> None:
    """Raise InvalidArgumentError unless the folder can be made, or is there and empty."""
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise InvalidArgumentError(f"{directory} is there already and no empty folder; give one that is not there", path=str(directory))
    if not directory.parent.is_dir():
        told = f"{directory.parent} is no folder, so {directory.name} cannot be made in it"
        raise InvalidArgumentError(told, path=str(directory))


# --- out -----------------------------------------------------------------------------------------------------------------


def export_files(view: FileStoreView, path: str, directory: Path, watched: Watched = unwatched) -> Copied:
    """Copy all files below ``path``, of one moment, first into a folder beside ``directory``, which then takes its name."""
    for attempt in range(_TRIES):
        partial = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
        partial.mkdir()
        try:
            done = _write_all(view, path, partial, watched)
            partial.replace(directory)
            return done
        except FileDataLostError:
            view.refresh()
            if attempt + 1 == _TRIES:
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    raise AssertionError("unreachable")


def _write_all(view: FileStoreView, base: str, target: Path, watched: Watched) -> Copied:
    found = everything(view, base)
    if found[0][1] is not None:
        raise PathNotDirectoryError(f"{base} of checkpoint {view.name!r} is a file; `bk checkpoint cat` writes one", checkpoint=view.name)
    if len(found) == 1:
        raise FileStoreError(f"{base} of checkpoint {view.name!r} has nothing in it, so nothing was copied", checkpoint=view.name)
    done = Copied()
    sizes = [status.size for status, content in found if content is not None]
    with watched(len(sizes), sum(sizes)) as advance:
        for status, content in found[1:]:
            path = target / status.path.removeprefix(base).lstrip("/")
            if content is None:
                path.mkdir()
                continue
            digest, size = sha256(), 0
            with path.open("xb") as file:
                for chunk in view.content_chunks(content):
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    advance(len(chunk))
            modified_ns = in_calendar(status.modified_ms) * 1_000_000
            os.utime(path, ns=(modified_ns, modified_ns))
            if size != status.size or _digest(_local_chunks(path)) != (digest.digest(), size):
                raise _other(view.name, str(path), f"{status.path} of checkpoint {view.name!r}")
            done.files += 1
            done.bytes += size
    return done


def _other(checkpoint: str, copy: str, original: str) -> FileStoreError:
    told = f"{copy} was read back and is not the same as {original}: nothing was kept of the copy"
    return FileStoreError(told, checkpoint=checkpoint)


def _digest(chunks: Iterable[bytes]) -> tuple[bytes, int]:
    digest, size = sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return digest.digest(), size


def _local_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


# --- in ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The contents of a folder. ``files``: each path below it with what tells that it was changed. ``dropped``: how many check sums are
    left out. ``unfinished``: what killed imports had left in a store from which the folder was copied; it is left out, too."""

    root: Path
    directories: tuple[str, ...]
    files: dict[str, tuple[int, int, int]]
    dropped: int
    unfinished: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(size for size, _, _ in self.files.values())


def scan(root: Path) -> Plan:
    """Return the contents of a folder. Raises InvalidArgumentError for one that is no checkpoint, or that has something else than files and
    folders."""
    directories: list[str] = []
    files: dict[str, tuple[int, int, int]] = {}
    dropped = 0
    unfinished: list[str] = []
    for parent, below, names in os.walk(root, onerror=_raise):
        if Path(parent) == root:
            unfinished = sorted(name for name in (*below, *names) if is_of_import(f"/{name}"))
            below[:], names = [name for name in below if name not in unfinished], [name for name in names if name not in unfinished]
        below.sort()
        for name in (*below, *sorted(names)):
            path = Path(parent) / name
            place, found = normal(f"/{path.relative_to(root).as_posix()}"), path.lstat()
            if stat.S_ISDIR(found.st_mode):
                directories.append(place)
            elif not stat.S_ISREG(found.st_mode):
                raise InvalidArgumentError(f"{path} is neither a file nor a folder; a checkpoint has nothing else", path=str(path))
            elif _SIDECAR.fullmatch(name):
                dropped += 1
            else:
                files[place] = (found.st_size, found.st_mtime_ns, found.st_ino)
    if "/metadata" not in files and "/offsets" not in directories:
        told = f"{root} is no checkpoint of a streaming query: it has neither a file metadata nor a folder offsets"
        raise InvalidArgumentError(told, path=str(root))
    return Plan(root, tuple(directories), files, dropped, tuple(unfinished))


def _raise(error: OSError) -> None:
    raise error


def is_free_for(client: BookKeeper, name: str, password: bytes, *, replace: bool, even_if_alive: bool) -> bool:
    """Return True if there is such a store and its files may be replaced, or it has none; False if there is no such store.

    Raises PathExistsError for a store with files that are not to be replaced, LogWriterAliveError for one that is open somewhere.
    """
    from bk_core.client.files.upkeep import check_not_owned
    from bk_core.client.files.view import FileStoreView

    try:
        check_not_owned(client, name, even_if_alive=even_if_alive or not replace)
    except NoSuchFileStoreError:
        return False
    if not replace:
        with FileStoreView.open(client, name, password=password) as view:
            if unfinished_imports(view)[1]:
                told = f"there is a checkpoint {name!r} already; --replace puts these files in place of its own"
                raise PathExistsError(told, checkpoint=name)
    return True


def import_files(
    client: BookKeeper,
    name: str,
    plan: Plan,
    password: bytes,
    *,
    existed: bool,
    replace: bool = False,
    even_if_alive: bool = False,
    watched: Watched = unwatched,
    on_interrupt: Callable[[str], object] = lambda _: None,
) -> Copied:
    """Copy all files into a folder of their own in the store. Once all of them are there and the same, it takes the place of all files in
    one change. So whatever ends the import, the files are the old ones or the new ones, all of them.

    An import that fails deletes its folder. It also deletes the store, if the import created the store, or if the store held nothing but
    folders of killed imports, or is an empty one that a killed import made. It leaves a store into which somebody else has put files
    meanwhile. After an import that was killed, the next owner of the store deletes the folder.

    ``existed`` is what ``is_free_for`` returned. ``on_interrupt`` is given a sentence that says what a Ctrl-C has left.

    Raises LogWriterAliveError or FileStoreTakenOverError for a store that somebody else opened meanwhile; PathExistsError for one that has
    files and is not to be replaced, or was made meanwhile (``existed`` is False).
    """
    from bk_core.client.files.upkeep import is_of_gone_import, own_for_import

    try:
        store = own_for_import(client, name, password=password, create=not existed, even_if_alive=existed and even_if_alive)
    except KeyboardInterrupt:
        perhaps = "" if existed else f". There may be an empty checkpoint of this name: `bk checkpoint gc {name}` deletes it"
        on_interrupt(f"checkpoint {name}: the import was interrupted before it copied anything{perhaps}")
        raise
    is_unused, is_taken = not existed, False
    try:
        left, has_more = unfinished_imports(store)
        is_taken = has_more and not (existed and replace)
        if is_taken:
            done = _already(store, plan) if existed and not left else None  # by an import that was killed after its last change
        else:
            is_unused = not existed or (not has_more and (bool(left) or is_of_gone_import(client, name)))
            done = _fill(store, plan, watched)
    except BaseException as error:
        if isinstance(error, FileStoreError) and isinstance(
            error.__cause__, OperationTimeoutError
        ):  # nobody answers, so what is tidied up would not be answered either
            store.abandon()
            raise
        _give_up(client, store, password, is_unused=is_unused)
        if isinstance(error, OperationTimeoutError):
            told = f"the import into checkpoint {name!r} timed out before its files took their place, so nothing was changed"
            raise error.retold(f"{told}: {error.args[0]}. Import it again when the cluster answers") from error
        if isinstance(error, KeyboardInterrupt):
            on_interrupt(f"checkpoint {name}: the import was interrupted before its files took their place; nothing was changed")
        raise
    if is_taken:
        store.close()
    else:
        _close_done(store)
        with suppress(BkError):  # the next owner does it as well
            forget_import(client, store_log(name))
    if done is None:
        raise PathExistsError(f"somebody else has made a checkpoint {name!r} meanwhile; it was left as it is", checkpoint=name)
    return done


def _already(store: FileStore, plan: Plan) -> Copied | None:
    """Return the sum of the files if the store has those of the plan, byte by byte, and nothing else; else None."""
    found = {status.path for status in _below(store, "/")}
    if found != {*plan.files, *plan.directories}:
        return None
    for path in plan.files:
        if _digest(store.chunks(path)) != _digest(_local_chunks(plan.root / path[1:])):
            return None
    return Copied(len(plan.files), plan.bytes, plan.dropped)


def _below(store: FileStore, path: str) -> Iterator[FileStatus]:
    for one in store.listing(path):
        yield one
        if one.is_directory:
            yield from _below(store, one.path)


def _close_done(store: FileStore) -> None:
    """Close the store after the change that made the import whole. An interrupt comes too late: the close is finished all the same.

    Raises FileStoreError where the close fails, or is interrupted again: the import is done, and its last change may not show yet.
    """
    try:
        try:
            store.close()
        except KeyboardInterrupt:
            store.close()  # it goes on, and this waits for it
    except BaseException as error:
        store.abandon()
        told = f"the import into checkpoint {store.name!r} is done, all its files are in place, and its end was not clean ({error!r})"
        how = f"readers may see the files from before until `bk checkpoint gc {store.name}`, or until a query opens it"
        raise FileStoreError(f"{told}: {how}", store=store.name) from error


def _fill(store: FileStore, plan: Plan, watched: Watched) -> Copied:
    delete_unfinished_imports(store)
    aside = new_import()
    done = _put_all(store, plan, aside, watched)
    if scan(plan.root) != plan:
        raise FileStoreError(f"{plan.root} was changed while it was copied: its query must not run meanwhile", checkpoint=store.name)
    try:
        store.replace_all(aside)
        return done  # within the block, so that an interrupt here is looked into, too
    except BaseException as error:
        if not _was_replaced(store, aside, error):
            raise
    return done


def _give_up(client: BookKeeper, store: FileStore, password: bytes, *, is_unused: bool) -> None:
    """Leave the store as it was before, if this is its owner still: nobody may be able to tell that here, so a store is deleted for what is
    in it, never for who made it. What cannot be deleted now is left as by an import that was killed."""
    from bk_core.client.files.upkeep import delete_if_unused

    with suppress(BkError):
        if not is_unused and store.is_open:
            store.flush()  # the folder itself may be under way still, and would come when nobody looks any more
            delete_unfinished_imports(store)
        store.close()  # so that every reader sees that what was made is gone
        if is_unused:
            delete_if_unused(client, store.name, password)
    store.abandon()


def _was_replaced(store: FileStore, aside: str, error: BaseException) -> bool:
    """Return True if the change that was interrupted, or whose outcome was not told in time, was made, so that the import is done.
    FileStoreError where nobody can tell."""
    try:
        store.flush()  # from here on the store tells if it was made
        return not store.exists(aside)
    except BaseException as failed:
        told = f"the import into checkpoint {store.name!r} was ended while it put the new files in place of the old ones ({error!r})"
        known = "nobody knows yet if that happened, and it has all of the old files or all of the new ones"
        how = f"`bk checkpoint ls {store.name}` tells which, and the same import again, or `bk checkpoint gc {store.name}`, finishes it"
        raise FileStoreError(f"{told}: {known}; {how} ({failed!r})", store=store.name) from error


def _put_all(store: FileStore, plan: Plan, aside: str, watched: Watched) -> Copied:
    store.mkdirs(aside)
    for directory in plan.directories:
        store.mkdirs(aside + directory)
    done = Copied(dropped=plan.dropped)
    with watched(len(plan.files), plan.bytes) as advance:
        for path in plan.files:
            digest, size = sha256(), 0

            def chunks(path: str = path, digest: Any = digest) -> Iterator[bytes]:
                for chunk in _local_chunks(plan.root / path[1:]):
                    digest.update(chunk)
                    advance(len(chunk))
                    yield chunk

            size = store.put(aside + path, chunks()).size
            if _digest(store.chunks(aside + path)) != (digest.digest(), size):
                raise _other(store.name, f"{path} in checkpoint {store.name!r}", f"{plan.root}{path}")
            done.files += 1
            done.bytes += size
    return done
