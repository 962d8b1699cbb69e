"""The stores that the file systems of this process (``fs.py``) have open. fsspec makes many instances of a file system, one for each thread
and each set of options. They share one client and one owner for each store, because two owners of a store would end one another."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import threading
import time
import weakref
from _thread import RLock
from collections import deque
from contextlib import closing, suppress
from typing import NamedTuple
from weakref import WeakValueDictionary

from bk_core.client.client import BookKeeper, connect
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import own_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.files.words import insisted_by, is_unowned, was_deleted
from bk_core.errors import (
    BkError,
    BlockingCallError,
    FileStoreTakenOverError,
    InvalidArgumentError,
    LogWriterAliveError,
    WrongPasswordError,
)
from bk_core.exit_hook import before_clients_end
from bk_core.metadata.uri import shown
from bk_core.threads import Home, SafeFuture, is_ending, start_aside, wait_done

log = logging.getLogger("bk_core.client.files")

PASSWORD_VARIABLE = "BOOKKEEPER_LEDGER_PASSWORD"
LEAVING_S = 60.0  # the longest wait for an instance that was dropped to give its store up
ENDING_S = 30.0  # the longest that the end of the process waits for the stores that it owns to be closed

# --- passwords --------------------------------------------------------------------------------------------------------------


_passwords: dict[str, bytes] = {}  # those that instances of this process were given, under names that tell nothing


def keep_password(password: bytes) -> str:
    for name, known in tuple(_passwords.items()):
        if hmac.compare_digest(known, password):
            return name
    name = secrets.token_hex(8)
    _passwords[name] = password
    return name


def password_from(kept_as: str | None, store: str) -> bytes:
    """Raises InvalidArgumentError where an instance was made with a password that is neither here nor in the environment: without it a
    store that is not there yet would be made without a password."""
    known = _passwords.get(kept_as) if kept_as is not None else None
    given = os.environ.get(PASSWORD_VARIABLE)
    if known is None and given is None and kept_as is not None:
        raise InvalidArgumentError(
            f"the password of file store {store!r} is missing: this file system was made of a pickle or of JSON, which leave it out. Set "
            f"{PASSWORD_VARIABLE} in this process, or make it here: fsspec.filesystem('bk', store={store!r}, password=...)"
        )
    return known if known is not None else (given or "").encode()


# --- connections -----------------------------------------------------------------------------------------------------------


class Connection:
    """A client and what it has opened."""

    def __init__(self, wish: Wish) -> None:
        uri, store, password, mode, take_over = wish
        self.wish = wish
        self._home = Home()
        self.client = connect(uri)
        self.view: FileStoreView | None = None
        try:
            if mode == "r":
                self.files: FileStore | FileStoreView = FileStoreView.open(self.client, store, password=password)
                self.view = self.files
            else:
                self.files = own_file_store(self.client, store, password=password, even_if_alive=take_over)
        except WrongPasswordError as error:
            self.client.close()
            raise _of_password(error, wish) from error
        except LogWriterAliveError as error:
            self.client.close()
            raise insisted_by(error, "take_over=True") from error.__cause__
        except BaseException:
            self.client.close()
            raise
        self._closed = False
        weakref.finalize(self, _leave, (uri, store), self._home, self.files, self.client).atexit = False  # one that was dropped

    @property
    def is_open(self) -> bool:
        """False also in a child of the process that opened it. An owner that was taken over stays, and says so to whoever asks."""
        return not self._closed and self._home.is_here

    @property
    def owner(self) -> FileStore | None:
        """The owner of the store, unless it has ended."""
        return self.files if self.is_open and isinstance(self.files, FileStore) and self.files.is_open else None

    def close(self) -> None:
        """Close the store and its client. Idempotent."""
        if self.is_open:
            self._closed = True
            try:
                self.files.close()
            finally:
                self.client.close()


def retold_to_go_on(error: BkError) -> BkError:
    """The error of an owner that has ended, with the way to go on."""
    told = "to go on, call close() of this file system; its next call opens the store again"
    if was_deleted(error):
        told = f"{told}, with no file in it"
    elif isinstance(error, FileStoreTakenOverError) and not is_unowned(error):
        told = f"{told}, unless the other owner has it; with take_over=True it ends that one"
    return error.retold(f"{error.args[0]}; {told}").nothing_done()


def _of_password(error: WrongPasswordError, wish: Wish) -> WrongPasswordError:
    if wish.password:
        return error.retold(f"the password given is not that of file store {wish.store!r}; one without a password is opened without one")
    how = f'storage_options={{"password": ...}}, or the variable {PASSWORD_VARIABLE}'
    return error.retold(f"file store {wish.store!r} has a password, and none was given: {how}")


_Store = tuple[str, str]
_Key = tuple[str, str, bytes | None]


class Wish(NamedTuple):
    """The arguments that an instance was made with."""

    uri: str
    store: str
    password: bytes
    mode: str
    take_over: bool

    def __repr__(self) -> str:
        return f"<Wish for file store {self.store!r} of {shown(self.uri)}, mode {self.mode!r}>"

    @property
    def place(self) -> _Store:
        return self.uri, self.store

    @property
    def key(self) -> _Key:
        """Two owners of a store would end one another, so a process has one at most, under None."""
        return self.uri, self.store, None if self.mode == "rw" else self.password


_connections: WeakValueDictionary[_Key, Connection] = WeakValueDictionary()
_leaving: deque[tuple[_Store, SafeFuture[None]]] = deque()
_doors: dict[_Store, RLock] = {}  # one for each store that this process has ever opened, so that no store waits for another one
_mine = threading.local()  # ``connecting``: the stores that this thread connects to


def _begin_anew() -> None:
    """Forget all locks in a forked child, because a thread that it does not have may have taken one."""
    global _mine
    _mine = threading.local()
    _doors.clear()
    _leaving.clear()


def _leave(of: _Store, home: Home, files: FileStore | FileStoreView, client: BookKeeper) -> None:
    """Close the store and its client on a thread of their own, so that dropping the last instance waits for nothing. The next one that
    opens the store waits for the end of this. No lock is taken, because this may run wherever memory is allocated."""
    if not home.is_here or is_ending():
        return
    gone: SafeFuture[None] = SafeFuture()
    _leaving.append((of, gone))

    def close() -> None:
        try:
            with suppress(BkError), closing(client):
                files.close()
        finally:
            with suppress(ValueError):
                _leaving.remove((of, gone))
            gone.set_result(None)

    start_aside(close, "bookkeeper-fsspec-leaves")


def _close_owners() -> None:
    """Close all stores at the end of the process, because a store that is left open shows its last change to nobody else, and is refused to
    others, who cannot know that its owner is gone. What was dropped is waited for as well."""
    until = time.monotonic() + ENDING_S
    owners = [owner for connection in tuple(_connections.values()) if (owner := connection.owner) is not None]
    for owner in owners:
        owner.begin_close()
    for owner in owners:
        try:
            owner.close(max(0.0, until - time.monotonic()))
        except BkError as error:
            log.warning("file store %s was not closed when the process ended: %s", owner.name, error)
    for _, gone in tuple(_leaving):
        wait_done(gone, max(0.0, until - time.monotonic()))


os.register_at_fork(after_in_child=_begin_anew)
before_clients_end(_close_owners)


def shared_connection(wish: Wish) -> Connection:
    """The one that the process has: fsspec makes an instance for each thread. BlockingCallError in a handler of a signal that interrupts a
    call which connects to the same store."""
    found = _shared(wish)
    if found is not None:
        return found
    connecting: set[_Store] = _mine.__dict__.setdefault("connecting", set())
    if wish.place in connecting:
        what = f"opening file store {wish.store!r} has to wait for another call of bk:// that this handler of a signal has interrupted"
        raise BlockingCallError(f"{what}: let it set a flag, raise, or start a thread")
    try:
        connecting.add(wish.place)  # in the block: a Ctrl-C right behind it must not leave it there for ever
        with _doors.setdefault(wish.place, RLock()):
            found = _shared(wish)
            if found is None:
                found = _connections[wish.key] = _connected(wish)
            return found
    finally:
        connecting.discard(wish.place)


def _shared(wish: Wish) -> Connection | None:
    """Return the owner that this process has, or None if there is none yet. An owner that was taken over is shared, too, and says so,
    unless ``take_over`` is asked for the first time. WrongPasswordError where this process owns the store with another password: a
    take-over would end that owner for nothing."""
    known = _connections.get(wish.key)
    if known is None or not known.is_open:
        return None
    if known.wish.password != wish.password:
        if known.owner is None:
            return None
        told = f"this process owns file store {wish.store!r} with another password than the one given; nothing was done"
        raise WrongPasswordError(told, store=wish.store).nothing_done()
    is_ended = wish.mode == "rw" and known.owner is None
    return None if is_ended and wish.take_over and not known.wish.take_over else known


def _connected(wish: Wish) -> Connection:
    for of, gone in tuple(_leaving):
        if of == wish.place:
            wait_done(gone, LEAVING_S)
    return Connection(wish)


def owner_here(wish: Wish) -> FileStore | None:
    """The owner of the store that is to be read, if this process has it by an instance of mode "rw" with the same password."""
    known = _connections.get((wish.uri, wish.store, None))
    return known.owner if known is not None and known.wish.password == wish.password else None
