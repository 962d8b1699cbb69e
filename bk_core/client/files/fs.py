"""``bk://STORE/PATH``: file stores for everything that opens files through fsspec, such as pandas, pyarrow, Dask and DuckDB.

The one module that needs the package fsspec, which ``pip install "bk-spark[fsspec]"`` brings. There ``bk://`` is known without an import.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import wraps
from glob import has_magic
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote

from bk_core.client.files.connections import Connection, Wish, keep_password, owner_here, password_from, retold_to_go_on, shared_connection
from bk_core.client.files.store import FileStore
from bk_core.client.files.view import FileStoreView
from bk_core.display.moments import moment
from bk_core.display.words import about
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    FileStoreClosedError,
    FileStoreError,
    InvalidArgumentError,
    MissingPackageError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.near import meant
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.threads import Home

try:
    from fsspec import register_implementation
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
    from fsspec.utils import stringify_path
except ImportError:
    _MESSAGE = f'bk:// needs fsspec, there is none ({sys.executable}): pip install "bk-spark[fsspec]" there'
    raise MissingPackageError(_MESSAGE, package="fsspec") from None

log = logging.getLogger("bk_core.client.files")
T = TypeVar("T")

URI_VARIABLE = "BOOKKEEPER_METADATA_SERVICE_URI"
MODES = ("r", "rw")
_PROTOCOL = "bk"
_QUERY = re.compile(r"\?(?=\w+=)")  # another question mark is part of a name, or of a pattern
_PARAMETERS = ("uri", "mode")
_OPTIONS = ("uri", "store", "password", "mode", "take_over", "access", "password_of")  # in the order in which an instance takes them
_COMPRESSED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar")  # what pandas looks for at the end of a URL
_IN_OPTIONS = ("password", "take_over", "access")  # of the storage options alone
_FSSPEC_OPTIONS = {"skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop", "batch_size"}
_SPOOL_BYTES = 8 << 20  # of a file that is being written: more of it goes to a temporary file of this machine
_CHUNK = 1 << 20


def _naming(call: Callable[..., T]) -> Callable[..., T]:
    """An error about a path names the store: a program may have opened files of several."""

    @wraps(call)
    def named(fs: BookKeeperFileSystem, *arguments: Any, **options: Any) -> T:
        try:
            return call(fs, *arguments, **options)
        except FileStoreError as error:
            if "path" not in error.context or "store" in error.context:
                raise
            told = error.retold(about(f"file store {fs.store!r}", error.args[0]))
            told.context["store"] = fs.store
            raise told from error.__cause__

    return named


class _PathsOf:
    """``_strip_protocol``, which fsspec asks of the class while there is no instance, and of the instance later. An instance that kept its
    own would refer to itself, and would keep its store until the collector of cycles comes."""

    def __get__(self, fs: BookKeeperFileSystem | None, cls: type[BookKeeperFileSystem]) -> Callable[[Any], Any]:
        return cls._any_path if fs is None else fs._own_path


class BookKeeperFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of one store. Paths are absolute: '/a/b'.

    ``uri`` names the cluster (by default BOOKKEEPER_METADATA_SERVICE_URI does), ``store`` the file store, ``password`` is that of the store
    (by default BOOKKEEPER_LEDGER_PASSWORD). ``mode`` "r", the default, reads beside the owner and disturbs nobody; every call sees what is
    there then. "rw" owns the store, and makes it if there is none: it is refused where another owner may live, unless ``take_over``, which
    ends that one. ``access`` is another name of ``mode`` for storage options, because ``fsspec.open`` has a ``mode`` of its own and keeps
    that one from us. A file appears, or is replaced, when it is closed, at once and as a whole.

    What ``to_json``, ``to_dict`` and pickles make of an instance does not show its password. It is made anew of them, with the password, in
    the same process and in its forked children (``password_of`` says where that is kept); another process takes the password from
    BOOKKEEPER_LEDGER_PASSWORD, and is told so if there is none.

    All instances of one process with the same arguments share one connection, and all that own a store one owner: ``take_over`` ends
    none of this process. ``close`` ends what is shared; the next call opens another one. The end of the process closes the stores that it
    owns. A forked child has to make an instance of its own (fsspec does), and those of its parent raise ForkedClientError there.
    """

    protocol: ClassVar[str] = _PROTOCOL
    root_marker: ClassVar[str] = "/"
    cachable: ClassVar[bool] = True

    def __init__(
        self,
        uri: str | None = None,
        store: str | None = None,
        password: str | bytes | None = None,
        mode: str | None = None,
        take_over: bool = False,
        access: str | None = None,
        password_of: str | None = None,
        **options: Any,
    ) -> None:
        if unknown := sorted(options.keys() - _FSSPEC_OPTIONS):
            raise InvalidArgumentError(
                f"bk:// knows no option {unknown[0]!r}; it takes uri, store, password, access (or mode) and take_over"
            )
        super().__init__(**options)
        where = uri or os.environ.get(URI_VARIABLE)
        if not where:
            raise InvalidArgumentError(f"bk:// needs the metadata service of a cluster: uri='zk://...', or the variable {URI_VARIABLE}")
        if not store:
            raise InvalidArgumentError("bk:// needs the name of a file store: bk://STORE/PATH, or store=...")
        for option, given in (("mode", mode), ("access", access)):
            if given is not None and given not in MODES:
                raise InvalidArgumentError(f"{option} must be one of {', '.join(MODES)}, not {given!r}")
        if None not in (mode, access) and mode != access:
            raise InvalidArgumentError(f"mode={mode!r} and access={access!r} are two names of one option: give one")
        if not isinstance(password, str | bytes | None):
            raise ArgumentTypeError(f"the password of a file store is text or bytes, not {type(password).__name__}")
        self.store = store
        self.mode = mode or access or MODES[0]
        self._password_of = password_of
        if password:
            secret = password.encode() if isinstance(password, str) else bytes(password)
            self._password_of = keep_password(secret)
        else:
            secret = b"" if password is not None else password_from(password_of, store)
        self._wish = Wish(where, store, secret, self.mode, take_over)
        self._connection: Connection | None = None
        self._home = Home()
        self._held = threading.local()

    # --- names ------------------------------------------------------------------------------------------------------------

    _strip_protocol = _PathsOf()

    @classmethod
    def _any_path(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._any_path(one) for one in path]
        path = stringify_path(path)
        if path.startswith(f"{_PROTOCOL}://"):
            path = _QUERY.split(path, maxsplit=1)[0][len(_PROTOCOL) + 3 :].partition("/")[2]
        return "/" + path.strip("/")

    def _own_path(self, path: Any) -> Any:
        """Return a path as ``_any_path`` does. InvalidArgumentError for a path of another store."""
        for one in path if isinstance(path, list) else [path]:
            name = self._get_kwargs_from_urls(one).get("store", self.store)
            if name != self.store:
                raise InvalidArgumentError(f"{stringify_path(one)} is of file store {name!r}; these are the files of {self.store!r}")
        return self._any_path(path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        """``bk://STORE/PATH?uri=...&mode=rw``. InvalidArgumentError for a password: URLs are shown in messages and kept in histories."""
        path = stringify_path(path)
        if not path.startswith(f"{_PROTOCOL}://"):
            return {}
        place, *query = _QUERY.split(path[len(_PROTOCOL) + 3 :], maxsplit=1)
        given = dict(parse_qsl(query[0], keep_blank_values=True)) if query else {}
        unknown = [key for key in given if key not in _PARAMETERS]
        if unknown:
            more = "password, take_over and access go into the storage options"
            if unknown[0] not in _IN_OPTIONS:
                near = meant(unknown[0], _PARAMETERS)
                more = f"{near or more}. A file with such a name is opened by its path: fsspec.filesystem('bk', store=...).open('/x?y=z')"
            raise InvalidArgumentError(f"bk:// takes ?uri=...&mode=... and nothing else, not {unknown[0]!r}; {more}")
        if query and place.lower().endswith(_COMPRESSED):
            end = place[place.rindex(".") :]
            raise InvalidArgumentError(
                f"{_PROTOCOL}://{place} is followed by ?{query[0]}, so what takes {end!r} at the end of a URL for a compression, as pandas "
                'does, would not see it and would not compress: give storage_options={"access": "rw"} (and "uri") in place of ?mode=rw'
            )
        name = unquote(place.partition("/")[0])
        return {**({"store": name} if name else {}), **given}

    # --- elsewhere ----------------------------------------------------------------------------------------------------------

    def _told_elsewhere(self) -> dict[str, Any]:
        """The options that make an instance like this one, without its password."""
        told = {**dict(zip(_OPTIONS, self.storage_args, strict=False)), **self.storage_options}
        if self._password_of is not None:
            told |= {"password": None, "password_of": self._password_of}
        return told

    def to_dict(self, *, include_password: bool = False) -> dict[str, Any]:
        """Return what fsspec's method returns, but the password is left out, also with ``include_password``, which is fsspec's default."""
        kind = type(self)
        return {"cls": f"{kind.__module__}:{kind.__name__}", "protocol": _PROTOCOL, "args": [], **self._told_elsewhere()}

    def to_json(self, *, include_password: bool = False) -> str:
        """Return ``to_dict`` as JSON."""
        return json.dumps(self.to_dict())

    def __reduce__(self) -> Any:
        return _made_anew, (type(self), self._told_elsewhere())

    def unstrip_protocol(self, name: str) -> str:
        return f"{_PROTOCOL}://{self.store}{self._strip_protocol(name)}"

    # --- the connection -----------------------------------------------------------------------------------------------------

    def _files(self) -> FileStore | FileStoreView:
        """The files as they are now: where this process owns the store, as the owner knows them, because a view is a moment behind."""
        self._home.check("file system")
        if self.mode == "r" and (owner := owner_here(self._wish)) is not None:
            return owner
        connection = self._connection
        is_new = connection is None or not connection.is_open
        if connection is None or is_new:
            connection = self._connection = shared_connection(self._wish)
        if isinstance(connection.files, FileStore) and connection.files.error is not None:
            raise retold_to_go_on(connection.files.error)
        if connection.view is not None and not is_new and not getattr(self._held, "moment", False):
            connection.view.refresh()
        return connection.files

    def _owner(self) -> FileStore:
        if self.mode != "rw":
            raise InvalidArgumentError(
                f"file store {self.store!r} is open for reading; to write, own it: storage_options={{'access': 'rw'}}, or "
                f"bk://{self.store}/PATH?mode=rw, or fsspec.filesystem('bk', store={self.store!r}, mode='rw')"
            )
        files = self._files()
        assert isinstance(files, FileStore)
        return files

    def close(self) -> None:
        """End the connection, which all instances share that own the store, or that read it with this password. An owner closes its store.
        Idempotent."""
        connection = self._connection
        if connection is not None:
            connection.close()

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Meanwhile this thread sees the files of one moment."""
        if getattr(self._held, "moment", False):
            yield
            return
        self._files()
        self._held.moment = True
        try:
            yield
        finally:
            self._held.moment = False

    # --- looking ------------------------------------------------------------------------------------------------------------

    @_naming
    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        return _info(self._files().status(self._strip_protocol(path)))

    @_naming
    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        found = [_info(status) for status in self._files().listing(self._strip_protocol(path))]
        return found if detail else [one["name"] for one in found]

    def exists(self, path: str, **_options: Any) -> bool:
        return self._files().exists(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self._is_directory(path) is False

    def isdir(self, path: str) -> bool:
        return self._is_directory(path) is True

    def _is_directory(self, path: str) -> bool | None:
        """Return True for a directory, and None if there is nothing. What cannot be asked is an error."""
        try:
            return self._files().status(self._strip_protocol(path)).is_directory
        except NoSuchPathError:
            return None

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        with self._one_moment():
            return super().find(path, *arguments, **options)

    @_naming
    def modified(self, path: str) -> datetime:
        return moment(self._files().status(self._strip_protocol(path)).modified_ms)

    # --- reading ------------------------------------------------------------------------------------------------------------

    @_naming
    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: Any) -> bytes:
        files, path = self._files(), self._strip_protocol(path)
        if start is None and end is None:
            return files.read(path)
        first, last, _ = slice(start, end).indices(files.status(path).size)
        return files.read(path, first, max(0, last - first))

    @_naming
    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **options: Any) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            return _ReadFile(self, path, self._files().content(path), block_size=block_size, **options)
        if mode not in ("wb", "xb"):
            raise InvalidArgumentError(f"files of a store are read (rb), written (wb) or made (xb), each as a whole, not {mode!r}")
        return _WrittenFile(self, path, exclusive=mode == "xb", autocommit=autocommit)

    def _read_content(self, content: Content, start: int, end: int) -> bytes:
        files = self._files()
        return files.read_content(content, start, max(0, end - start))

    # --- changing -----------------------------------------------------------------------------------------------------------

    @_naming
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_options: Any) -> None:
        self._owner().put(self._strip_protocol(path), bytes(value), overwrite=mode != "create")

    @_naming
    def _put(self, owner: FileStore, path: str, data: Iterator[bytes], *, overwrite: bool) -> None:
        owner.put(path, data, overwrite=overwrite)

    @_naming
    def cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        owner, source, target = self._owner(), self._strip_protocol(path1), self._strip_protocol(path2)
        if owner.status(source).is_directory:
            owner.mkdirs(target)
        else:
            owner.put(target, owner.chunks(source))

    @_naming
    def mkdir(self, path: str, create_parents: bool = True, **_options: Any) -> None:
        owner, path = self._owner(), self._strip_protocol(path)
        if not create_parents and not owner.status(self._parent(path)).is_directory:
            raise PathNotDirectoryError(f"{self._parent(path)!r} is a file", path=path)
        self.makedirs(path)

    @_naming
    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        owner, path = self._owner(), self._strip_protocol(path)
        if not exist_ok and owner.exists(path):
            raise PathExistsError(f"{path!r} is there already", path=path)
        owner.mkdirs(path)

    @_naming
    def rmdir(self, path: str) -> None:
        owner, path = self._owner(), self._strip_protocol(path)
        if not owner.status(path).is_directory:
            raise PathNotDirectoryError(f"{path!r} is a file", path=path)
        owner.delete(path)

    def rm_file(self, path: str) -> None:
        self._delete(self._strip_protocol(path), recursive=False)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> Any:
        """Return what fsspec's method returns, but a name that there is stands for itself, whatever characters it has; else it may be a
        pattern."""
        given = self._strip_protocol(path if isinstance(path, list) else [path])
        with self._one_moment():
            named = {one for one in given if has_magic(one) and self.exists(one)}
            found = set(named)
            for one in named if recursive else ():
                found.update(self.find(one, maxdepth=maxdepth, withdirs=True))
            rest = [one for one in given if one not in named]
            try:
                return sorted(found.union(super().expand_path(rest, recursive, maxdepth, **options) if rest else ()))
            except FileNotFoundError as error:
                if isinstance(error, BkError):
                    raise
                told = f"file store {self.store!r}: {' and '.join(map(repr, rest))}: nothing of that name is there"
                raise NoSuchPathError(told, path=rest[0], store=self.store) from None

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """A directory goes with all below it in one step. ``maxdepth`` leaves what is deeper, and the directories that hold it."""
        for one in self.expand_path(path):
            for below in self._down_to(one, maxdepth) if recursive and maxdepth is not None else [one]:
                self._delete(below, recursive=recursive and maxdepth is None)

    def _down_to(self, path: str, maxdepth: int) -> list[str]:
        return [one for one, info in self.find(path, maxdepth=maxdepth, detail=True).items() if info["type"] == "file"]

    @_naming
    def _delete(self, path: str, *, recursive: bool) -> None:
        owner = self._owner()
        if owner.status(path).is_directory and not recursive:
            raise PathIsDirectoryError(f"{path!r} is a directory; recursive=True deletes it with all in it", path=path)
        owner.delete(path, recursive=recursive)

    @_naming
    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Move a file or directory in one step, over a file that is there, and into a directory that is there. Several are moved one by
        one. Of two lists each path goes to the one at its place in the other list, as in fsspec's ``copy``: nothing is a pattern there."""
        paired = isinstance(path1, list) and isinstance(path2, list)
        sources = self._strip_protocol(path1) if paired else self.expand_path(path1)
        into = not isinstance(path2, str) or path2.endswith("/") or self.isdir(path2)
        if len(sources) > 1 and not into:
            raise PathNotDirectoryError(f"{path2!r} is no directory, so that {len(sources)} files cannot be moved into it", path=path2)
        targets = path2 if isinstance(path2, list) else [path2] * len(sources)
        if len(targets) != len(sources):
            raise InvalidArgumentError(f"{len(sources)} files cannot be moved to {len(targets)} paths: give as many; nothing was moved")
        for source, target in zip(sources, targets, strict=True):
            place = self._strip_protocol(target)
            below = isinstance(path2, str) and into
            self._owner().rename(source, f"{place.rstrip('/')}/{source.rpartition('/')[2]}" if below else place, overwrite=True)

    @_naming
    def touch(self, path: str, truncate: bool = True, **_options: Any) -> None:
        """An empty file. One that is there is emptied; with ``truncate=False`` it stays as it is, with its time."""
        with suppress(*() if truncate else (PathExistsError, PathIsDirectoryError)):
            self._owner().put(self._strip_protocol(path), b"", overwrite=truncate)


class _ReadFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file as it was when it was opened, whatever becomes of its name."""

    def __init__(self, fs: BookKeeperFileSystem, path: str, content: Content, **options: Any) -> None:
        self._content = content
        super().__init__(fs, path, "rb", **{**options, "size": content.size})

    def __reduce__(self) -> Any:
        """Pickle the place of the file: the copy reads the same bytes elsewhere, from where it is, as long as the store keeps them."""
        options = {"block_size": self.blocksize, "cache_type": self.cache.name, **self.kwargs}
        return _reopened, (self.fs, self.path, self._content, self.loc, options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs._read_content(self._content, start, end)  # type: ignore[no-any-return]


def _reopened(fs: BookKeeperFileSystem, path: str, content: Content, at: int, options: dict[str, Any]) -> _ReadFile:
    file = _ReadFile(fs, path, content, **options)
    file.seek(at)
    return file


class _WrittenFile(io.BufferedIOBase):
    """A file that is being written. Closing it puts it into the store; in a transaction, the end of the transaction does. Nothing is put by
    a ``with`` that ends by an error, nor by a file that nobody refers to any more."""

    def __init__(self, fs: BookKeeperFileSystem, path: str, *, exclusive: bool, autocommit: bool) -> None:
        super().__init__()
        self._owner = fs._owner()
        self._fs = fs  # whose connection ends when nobody refers to it
        self.path = path
        self._exclusive = exclusive
        self._autocommit = autocommit
        self._spool = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115
        self._size = 0
        if exclusive and self._owner.exists(path):
            self.discard()
            raise PathExistsError(f"file store {fs.store!r}: {path!r} is there already", path=path, store=fs.store)

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.path!r} is being written here, and cannot be pickled")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        if self.closed:
            raise FileStoreClosedError(f"{self.path!r} was closed; open it again to write it anew")
        with memoryview(data) as view, view.cast("B") as octets:
            self._size += self._spool.write(octets)
            return octets.nbytes

    def close(self) -> None:
        """Put it, and end. Raises what kept it from being put; then it is not there, unless the error's ``outcome_unknown`` is True."""
        if self.closed:
            return
        try:
            if self._autocommit:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Put it. Of a transaction, when all files of it are closed."""
        if not self._spool.closed:
            try:
                self._spool.seek(0)
                self._fs._put(self._owner, self.path, iter(lambda: self._spool.read(_CHUNK), b""), overwrite=not self._exclusive)
            finally:
                self._spool.close()

    def discard(self) -> None:
        """Forget it."""
        self._spool.close()
        super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_spool") and not self.closed:
            self.discard()


def _made_anew(kind: type[BookKeeperFileSystem], options: dict[str, Any]) -> BookKeeperFileSystem:
    return kind(**options)


def _info(status: FileStatus) -> dict[str, Any]:
    kind = "directory" if status.is_directory else "file"
    return {"name": status.path, "size": status.size, "type": kind, "mtime": moment(status.modified_ms), "ino": status.file_id}


register_implementation(_PROTOCOL, BookKeeperFileSystem, clobber=True)
