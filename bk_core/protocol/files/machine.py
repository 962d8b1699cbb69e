"""The owner of a file store: a tree of files whose every change is one record of an exclusive log.

The owner replays the log, then it serves. The *next* tree has all changes that were asked for. A change is decided on it and made in it at
once. Then its record is appended. When the append is acknowledged, the change is made in the *acknowledged* tree as well, and its caller is
told. Reads see the acknowledged tree alone, so nothing is ever seen and then lost (FS-8). A refusal waits for the same reason: it may be
due to a change that is not yet acknowledged (FS-9). Both trees apply the same records and share the contents.

    REPLAYING ──serve──► SERVING ──close──► CLOSING ──all is acknowledged──► CLOSED
        │ the log is empty  ▲                  any of them: an append failed, or the world ended it ──► FAILED
        └────► STARTING ────┘ its first base is acknowledged

``bk_core/client/files/store.py`` drives this machine with a log's writer, the simulator with its world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bk_core.errors import BkError, FileStoreClosedError, FileStoreError, FileStoreFormatError
from bk_core.protocol.calendar import in_calendar
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.files import changes
from bk_core.protocol.files.changes import Decided
from bk_core.protocol.files.compaction import LogKeeping, Pending
from bk_core.protocol.files.content import Content
from bk_core.protocol.files.effects import FileEffect
from bk_core.protocol.files.records import Change, Put, encode
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import Compaction, FileLimits, FileState
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.position import Position

__all__ = ["Compaction", "FileLimits", "FileMachine", "FileState"]


class FileMachine(LogKeeping):
    """One owner of the store ``name``; it is never restarted, the next owner is a new machine.

    ``replay`` every record of the log, ``serve``, then call and ``handle`` in any order. An operation ends with ``Complete(token, value)``
    or ``Fail(token, error)``, in the order of the calls. ``now_ms`` is the owner's clock, milliseconds since 1970, for modification times;
    one outside of the calendar counts as the nearest time in it, and one before the store's latest modification as that (FS-21).
    ``tree`` is to be read: ``status``, ``listing``, ``content``, ``exists``, ``walk``. From ``serve`` on it is one object.
    """

    def __init__(self, name: str, limits: FileLimits | None = None) -> None:
        super().__init__(name, limits or FileLimits())
        self._replay = FileReplay(name)

    # --- before it serves ---------------------------------------------------------------------------------------------

    def replay(self, record: bytes, position: Position) -> None:
        """The next record of the log, from its first one on. FileStoreFormatError."""
        assert self.state is FileState.REPLAYING, "records are replayed before the store serves"
        self._replay.take(record, position)

    def serve(self, data_ledgers: Iterable[int], segment: int, *, trim_left: bool = False) -> list[FileEffect]:
        """Begin to serve behind the last record of the log, which nobody else could write when it was taken over. ``data_ledgers`` are
        those that this store had *before* it was taken over (FS-16); the ones that nothing refers to are dropped. FileStoreFormatError for
        a log with changes and without a base: its beginning is lost.

        ``segment`` is the number of the log's segment that this owner begins. ``trim_left``: a former owner took segments off the log's
        list and has not deleted their ledgers, so the log is trimmed again, which deletes them (FS-12). Operations may be called from here
        on. A new store appends an empty base first, and one whose log has many segments a base; ``barrier`` tells when that is
        acknowledged.
        """
        if self._replay.passed_over and not self._replay.complete:
            what = f"file store {self.name!r}: its log has changes, and no whole base before them, so its beginning is lost"
            raise FileStoreFormatError(what, store=self.name)
        self._take_over(self._replay)
        if self._replay.complete:
            self.state = FileState.SERVING
            self._has_base = True
            self._shorten(self._replay, segment, trim_left)
        else:  # FS-7: before anything else
            self.state = FileState.STARTING
            self._append_base()
        self._replay = FileReplay(self.name)
        for ledger_id in data_ledgers:
            self._consider(ledger_id)
        return self._finish_step()

    # --- operations ---------------------------------------------------------------------------------------------------

    def put(self, token: Any, path: str, content: Content, overwrite: bool, parents: bool, now_ms: int) -> list[FileEffect]:
        """Put a file, and with ``parents`` the directories above it that are missing. Completes with its FileStatus.

        InvalidPathError; InvalidArgumentError (the content); FileStoreError (its ledger was dropped); PathNotDirectoryError (a part above
        it is a file); NoSuchPathError (its directory does not exist); PathIsDirectoryError; PathExistsError (without ``overwrite``).
        """

        def decide(tree: FileTree) -> Decided:
            decided = changes.put(tree, path, content, overwrite, parents, self._time(now_ms))
            self._check_content(content)
            return decided

        return self._change(token, decide)

    def mkdirs(self, token: Any, path: str, now_ms: int) -> list[FileEffect]:
        """Make a directory and those above it, as far as they are missing. Completes with its FileStatus.

        InvalidPathError; PathExistsError (it is a file); PathNotDirectoryError (a part above it is a file).
        """
        return self._change(token, lambda tree: changes.mkdirs(tree, path, self._time(now_ms)))

    def rename(self, token: Any, src: str, dst: str, overwrite: bool, now_ms: int) -> list[FileEffect]:
        """``src`` with all in it lies at ``dst`` from now on, with ``overwrite`` a file instead of a file, a directory instead of an empty
        one (FS-19). Completes with the FileStatus of ``dst``.

        InvalidPathError (also if a path below became too long); NoSuchPathError (``src``, or the directory of ``dst``);
        InvalidArgumentError (the root, or into itself); PathExistsError (also if both are the same); PathNotDirectoryError (a part above
        ``dst`` is a file, or ``dst`` is one and ``src`` is none); PathIsDirectoryError (``src`` alone is a file); DirectoryNotEmptyError.
        """
        return self._change(token, lambda tree: changes.rename(tree, src, dst, overwrite, self._time(now_ms)))

    def delete(self, token: Any, path: str, recursive: bool, now_ms: int) -> list[FileEffect]:
        """Delete a file or a directory; of the root, all in it. Completes with False if nothing was there, else with True.

        InvalidPathError; DirectoryNotEmptyError (without ``recursive``).
        """
        return self._change(token, lambda tree: changes.delete(tree, path, recursive, self._time(now_ms)))

    def replace_all(self, token: Any, src: str, now_ms: int) -> list[FileEffect]:
        """Put all in the directory ``src`` in place of all files (FS-20). Completes with the FileStatus of the root.

        InvalidPathError; InvalidArgumentError (the root); NoSuchPathError; PathNotDirectoryError (it is a file).
        """
        return self._change(token, lambda tree: changes.replace_all(tree, src, self._time(now_ms)))

    def barrier(self, token: Any) -> list[FileEffect]:
        """Completes with None when all that was asked for before is acknowledged."""
        return self._change(token, lambda tree: Decided(None, lambda after: None))

    def close(self, token: Any) -> list[FileEffect]:
        """Take no more operations; completes with None when all that was asked for before is acknowledged."""
        if not self._is_open():
            self._effects.append(Fail(token, self._refusal()))
        else:
            self.state = FileState.CLOSING
            self._pending.append(Pending(token, partial(self._closed, token), ready=True))
        return self._finish_step()

    def end(self, error: Exception) -> list[FileEffect]:
        """The world knows that it is over: all that is pending fails with ``error``, as does all that is asked for later."""
        if self.state not in (FileState.CLOSED, FileState.FAILED):
            self._fail(error)
        return self._finish_step()

    def _is_open(self) -> bool:
        return self.state in (FileState.STARTING, FileState.SERVING)

    def _refusal(self) -> Exception:
        if self.error is not None:
            return self.error
        if self.state is FileState.REPLAYING:
            return FileStoreError(f"file store {self.name!r} is not open yet", store=self.name)
        return FileStoreClosedError(f"file store {self.name!r} is closed: open it again", store=self.name)

    def _closed(self, token: Any) -> Complete:
        self.state = FileState.CLOSED
        self._stop_asking()
        return Complete(token)

    def _change(self, token: Any, decide: Callable[[FileTree], Decided]) -> list[FileEffect]:
        """Decided on the next tree, which has all that was asked for before."""
        if not self._is_open():
            self._effects.append(Fail(token, self._refusal()))
            return self._finish_step()
        try:
            decided = decide(self._next)
        except BkError as error:
            self._tell_in_turn(token, partial(Fail, token, error))
        else:
            if decided.record is not None:
                self._make(token, decided.record, decided.answer)
            else:
                self._tell_in_turn(token, lambda: Complete(token, decided.answer(self._acknowledged)))
        return self._finish_step()

    def _tell_in_turn(self, token: Any, told: Callable[[], Complete | Fail]) -> None:
        """Tell an outcome behind those before it. A refusal, or that nothing is to be changed, may be due to changes that are not yet
        acknowledged (FS-9)."""
        self._pending.append(Pending(token, told, ready=True))

    def _make(self, token: Any, record: Change, answer: Callable[[FileTree], Any]) -> None:
        """Make one change by one record (FS-4)."""
        encoded = encode(record)
        leased = self._leased_by(record)
        self._lease(leased)
        self._next.apply(record)

        def acknowledged() -> Complete:
            unreferenced = self._acknowledged.apply(record)
            self._give_back(leased)
            for ledger_id in unreferenced:
                self._consider(ledger_id)
            return Complete(token, answer(self._acknowledged))

        self._append((encoded,), Pending(token, acknowledged, ready=False))

    def _time(self, now_ms: int) -> int:
        """Return the time of a change, never before that of an earlier one. Readers may take a file that is older than others for one that
        nobody needs (FS-21)."""
        return max(in_calendar(now_ms), self._next.latest_ms)

    def _leased_by(self, record: Change) -> frozenset[int]:
        """Return the ledgers that the change leases until it is acknowledged. From now on it may be in the log, whatever becomes of the
        changes behind it (FS-13)."""
        return frozenset(extent.ledger_id for extent in record.content.extents) if isinstance(record, Put) else frozenset()
