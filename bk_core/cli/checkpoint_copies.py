"""``bk checkpoint export`` and ``import``: whole checkpoints between file stores and folders of this machine."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from bk_core.cli.checkpoint_words import in_words, store_and_path, viewed, whole_store
from bk_core.cli.output import cluster_options, connected, password_option, say_json
from bk_core.cli.progress import progress_bar
from bk_core.cli.statuses import terminated_in_order
from bk_core.client.checkpoints.within import everything
from bk_core.client.files.imports import delete_unfinished_imports, forget_import, is_of_import, new_import, unfinished_imports
from bk_core.client.files.names import store_log
from bk_core.display.words import counted
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
_BAR_BYTES = 4 << 20
_BAR_FILES = 50
_SIDECAR = re.compile(r"\..*\.crc")
Advance = Callable[[int], None]


@dataclass(slots=True)
class Copied:
    """The sum of what was copied and found to be the same. ``dropped``: check sums of Hadoop's local file system, which stay there."""

    files: int = 0
    bytes: int = 0
    dropped: int = 0


def _told(done: Copied) -> str:
    return f"{counted(done.files, 'file')}, {counted(done.bytes, 'byte')}"


@contextmanager
def _progress(text: str, files: int, size: int) -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal and there is much to do."""
    shown = _is_terminal() and (size >= _BAR_BYTES or files >= _BAR_FILES)
    with progress_bar(TextColumn(text), BarColumn(), DownloadColumn(), TransferSpeedColumn(), disable=not shown) as progress:
        task = progress.add_task(text, total=size)
        yield lambda done: progress.update(task, advance=done)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


# --- out -----------------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("name", metavar="NAME[/PATH]")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@password_option
@cluster_options
def copy_out(name: str, directory: Path, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Copy a checkpoint into DIR, which must not exist or be empty. Every file is read back and compared.

    What is copied is one moment of the checkpoint, also while its query runs. DIR appears when all of it is there.
    An export that is killed leaves a hidden folder `.DIR.<32 hex digits>.partial` beside it, which you may delete.
    """
    directory, (store, path) = directory.absolute(), store_and_path(name)
    with _of_folder(directory, "cannot be written, so nothing was copied"):
        _check_free(directory)
        with terminated_in_order(), connected(uri, protocol) as client, viewed(client, store, password) as view:
            done = export_files(view, path, directory)
    if as_json:
        say_json({"checkpoint": name, "directory": str(directory), "files": done.files, "bytes": done.bytes})
    else:
        click.echo(f"checkpoint {name}: {_told(done)} copied to {directory}")


@contextmanager
def _of_folder(directory: Path, told: str) -> Iterator[None]:
    """Tell what the system says of a folder of this machine, or of what is in it, as ExportFileError."""
    try:
        yield
    except (BkError, BrokenPipeError):
        raise
    except OSError as error:
        where = "" if error.filename is None or str(error.filename) == str(directory) else f" ({error.filename})"
        raise ExportFileError(f"{directory} {told}: {error.strerror or error}{where}", path=str(directory)) from error


def _check_free(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise InvalidArgumentError(f"{directory} is there already and no empty folder; give one that is not there", path=str(directory))
    if not directory.parent.is_dir():
        told = f"{directory.parent} is no folder, so {directory.name} cannot be made in it"
        raise InvalidArgumentError(told, path=str(directory))


def export_files(view: FileStoreView, path: str, directory: Path) -> Copied:
    """All files below ``path``, of one moment, first into a folder beside ``directory``, which then takes its name."""
    for attempt in range(_TRIES):
        partial = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
        partial.mkdir()
        try:
            done = _write_all(view, path, partial)
            partial.replace(directory)
            return done
        except FileDataLostError:
            view.refresh()
            if attempt + 1 == _TRIES:
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    raise AssertionError("unreachable")


def _write_all(view: FileStoreView, base: str, target: Path) -> Copied:
    found = everything(view, base)
    if found[0][1] is not None:
        raise PathNotDirectoryError(f"{base} of checkpoint {view.name!r} is a file; `bk checkpoint cat` writes one", checkpoint=view.name)
    if len(found) == 1:
        raise FileStoreError(f"{base} of checkpoint {view.name!r} has nothing in it, so nothing was copied", checkpoint=view.name)
    done = Copied()
    sizes = [status.size for status, content in found if content is not None]
    with _progress("copying", len(sizes), sum(sizes)) as advance:
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


@click.command("import")
@click.argument("name")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="A checkpoint of this name may be there: its files go when the new ones are there.")
@click.option("--yes", is_flag=True, help="With --replace: do not ask.")
@click.option("--even-if-alive", is_flag=True, help="Fence the owner although it is open somewhere, or may be.")
@password_option
@cluster_options
def copy_in(
    name: str,
    directory: Path,
    replace: bool,
    yes: bool,
    even_if_alive: bool,
    password: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Copy the checkpoint in DIR into a new file store. Every file is read back and compared.

    The query of the checkpoint must not run meanwhile. The import leaves out the check sums of Hadoop's local file system (.NAME.crc),
    and `.importing-<32 hex digits>` in DIR, which a killed import had left in a store that DIR was copied from.
    All files come in by one change, when every one is there: if the import fails, is interrupted or killed, the checkpoint has the files
    that it had before. What a killed import has left goes with the next one, with the next start of the query, or with `bk checkpoint
    gc`. All files get the time of the import: `bk checkpoint show` tells it as the time of earlier commits.
    """
    name = whole_store(name, "import")
    unreadable = "cannot be read, so nothing was changed"
    with _of_folder(directory, unreadable):
        plan = scan(directory)
    for left in plan.unfinished:
        told = "a killed import had left it there, and it is no part of the checkpoint"
        click.echo(f"checkpoint {name}: {directory / left} is left out: {told}", err=True)
    with terminated_in_order(), connected(uri, protocol) as client, in_words(name, password), _of_folder(directory, unreadable):
        existed = _is_free_for(client, name, password.encode(), replace=replace, even_if_alive=even_if_alive)
        if existed and replace and not yes:
            click.confirm(f"replace all files of checkpoint {name}?", abort=True, err=True)
        how = {"existed": existed, "replace": replace, "even_if_alive": even_if_alive}
        done = import_files(client, name, plan, password.encode(), **how)
    if as_json:
        say_json({"checkpoint": name, "files": done.files, "bytes": done.bytes, "dropped": done.dropped, "replaced": existed and replace})
    else:
        left_out = f" ({counted(done.dropped, 'check sum')} left out)" if done.dropped else ""
        click.echo(f"checkpoint {name}: {_told(done)} copied from {directory}{left_out}")


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
    """Raises InvalidArgumentError for a folder that is no checkpoint, or that has something else than files and folders."""
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


def _is_free_for(client: BookKeeper, name: str, password: bytes, *, replace: bool, even_if_alive: bool) -> bool:
    """True if there is such a store and it may be replaced, or has no files that could be. PathExistsError, LogWriterAliveError."""
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
    client: BookKeeper, name: str, plan: Plan, password: bytes, *, existed: bool, replace: bool = False, even_if_alive: bool = False
) -> Copied:
    """Copy all files into a folder of their own in the store. Once all of them are there and the same, it takes the place of all files in
    one change. So whatever ends the import, the files are the old ones or the new ones, all of them.

    An import that fails deletes its folder. It also deletes the store, if the import created the store, or if the store held nothing but
    folders of killed imports, or is an empty one that a killed import made. It leaves a store into which somebody else has put files
    meanwhile. After an import that was killed, the next owner of the store deletes the folder.

    LogWriterAliveError or FileStoreTakenOverError for a store that somebody else opened meanwhile; PathExistsError for one that has files
    and is not to be replaced, or was made meanwhile (``existed`` is False).
    """
    from bk_core.client.files.upkeep import is_of_gone_import, own_for_import

    try:
        store = own_for_import(client, name, password=password, create=not existed, even_if_alive=existed and even_if_alive)
    except KeyboardInterrupt:
        perhaps = "" if existed else f". There may be an empty checkpoint of this name: `bk checkpoint gc {name}` deletes it"
        click.echo(f"checkpoint {name}: the import was interrupted before it copied anything{perhaps}", err=True)
        raise
    left, has_more = unfinished_imports(store)
    if has_more and not (existed and replace):
        done = _already(store, plan) if existed and not left else None  # by an import that was killed behind its last change
        store.close()
        if done is not None:
            return done
        raise PathExistsError(f"somebody else has made a checkpoint {name!r} meanwhile; it was left as it is", checkpoint=name)
    is_unused = not existed or (not has_more and (bool(left) or is_of_gone_import(client, name)))
    try:
        done = _fill(store, plan)
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
            click.echo(f"checkpoint {name}: the import was interrupted before its files took their place; nothing was changed", err=True)
        raise
    _close_done(store)
    with suppress(BkError):  # the next owner does it as well
        forget_import(client, store_log(name))
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
    """Close the store behind the change that made the import whole. An interrupt comes too late: the close is finished all the same.

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


def _fill(store: FileStore, plan: Plan) -> Copied:
    delete_unfinished_imports(store)
    aside = new_import()
    done = _put_all(store, plan, aside)
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


def _put_all(store: FileStore, plan: Plan, aside: str) -> Copied:
    store.mkdirs(aside)
    for directory in plan.directories:
        store.mkdirs(aside + directory)
    done = Copied(dropped=plan.dropped)
    with _progress("copying", len(plan.files), plan.bytes) as advance:
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
