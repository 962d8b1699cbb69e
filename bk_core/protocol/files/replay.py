"""Replaying a store's log: the owner does it before it serves, a view to follow.

A log is trimmed in whole segments, so it may begin in the middle of old history. Records before its first complete base do not count; all
records behind it do. A later base replaces the tree by an equal one (FS-6). So every replay ends with the same tree, wherever it began.
"""

from __future__ import annotations

from bk_core.errors import FileStoreFormatError
from bk_core.protocol.files.base import BaseReader
from bk_core.protocol.files.records import BaseBegin, BaseEnd, BasePart, Change, decode
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.position import Position


class FileReplay:
    """``take`` every record of the log in order. ``tree`` is what they amount to; another object may take its place by ``take`` alone.

    ``complete``: a whole base was there, so ``tree`` counts; without one it is empty, as of a new store. ``passed_over``: there were
    changes before any complete base. ``base_bytes``, ``bytes_since_base``: what a replay has to read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = FileTree()
        self.complete = False
        self.passed_over = False
        self.first_position: Position | None = None
        self.base_position: Position | None = None
        self.base_bytes = 0
        self.bytes_since_base = 0
        self._base: BaseReader | None = None

    def take(self, record: bytes, position: Position) -> None:
        """Raises FileStoreFormatError, which names the position, for a record that is damaged or does not fit; nothing may be taken after
        it."""
        if self.first_position is None:
            self.first_position = position
        try:
            self._take(record, position)
        except FileStoreFormatError as error:
            where = f"file store {self.name!r}, segment {position.seq}, entry {position.entry}"
            raise FileStoreFormatError(
                f"{where}: {error.args[0]}", **{**error.context, "store": self.name, "position": position}
            ) from error

    def _take(self, record: bytes, position: Position) -> None:
        self.bytes_since_base += len(record)
        decoded = decode(record)
        match decoded:
            case BaseBegin():
                self._base = BaseReader(decoded, record, position)
            case BasePart():
                if self._base is not None:  # else the log begins in the middle of a base
                    self._base.take(decoded, record)
            case BaseEnd():
                self._end_base(decoded, record)
            case _:
                self._change(decoded)

    def _end_base(self, end: BaseEnd, record: bytes) -> None:
        if self._base is None:
            return
        base, self._base = self._base, None
        self.tree = base.end(end, record)
        self.complete = True
        self.base_position, self.base_bytes, self.bytes_since_base = base.position, base.size, 0

    def _change(self, change: Change) -> None:
        """Apply a change. A base without its end, whose writer died, counts for nothing, and neither does a change before the first
        complete one (FS-7)."""
        self._base = None
        if self.complete:
            self.tree.apply(change)
        else:
            self.passed_over = True

    def trim_before(self) -> Position | None:
        """The begin of the last complete base, if whole segments lie before it: a former owner died before it trimmed them (FS-12)."""
        if self.base_position is None or self.first_position is None or self.base_position.seq <= self.first_position.seq:
            return None
        return self.base_position
