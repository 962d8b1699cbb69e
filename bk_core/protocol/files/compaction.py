"""Keeping the log of a file store short: a base now and then, and a trim of what is before it.

    NONE ──enough bytes: roll──► ROLLING ──rolled: append a base──► WRITING ──acknowledged: trim──► TRIMMING ──trimmed──► NONE

Changes go on all the while. A base is the tree with all changes that were asked for before it, so it stands in the log behind exactly
those (FS-6). A roll or a trim that fails is asked for again after a pause (FS-15); the next base waits until this one has made its way
(FS-11).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bk_core.errors import FileStoreClosedError
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.base import encode_base
from bk_core.protocol.files.data_ledgers import DataLedgers
from bk_core.protocol.files.effects import AppendRecords, LogRolled, LogTrimmed, RecordsAppended, RollLog, TrimLog
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import Compaction, FileLimits, FileState
from bk_core.protocol.log.position import Position

NOBODY = object()  # the token of what nobody waits for


@dataclass(slots=True)
class Pending:
    """Something that was asked for and is not told yet. ``ready``: it is acknowledged, or needs no record. ``then`` makes the change in
    the acknowledged tree, and returns what is told to ``token``."""

    token: Any
    then: Callable[[], Complete | Fail | None]
    ready: bool
    position: Position | None = None


class LogKeeping(DataLedgers):
    """Appends in order, tells outcomes in order, and compacts."""

    def __init__(self, name: str, limits: FileLimits) -> None:
        super().__init__(name, limits)
        self.error: Exception | None = None
        self.compaction = Compaction.NONE
        self._pending: deque[Pending] = deque()
        self._bytes = 0  # of records asked for since the last base
        self._base_bytes = 0  # of that base

    def _append(self, records: tuple[bytes, ...], pending: Pending) -> None:
        self._pending.append(pending)
        self._bytes += sum(map(len, records))
        self._ask(lambda request: AppendRecords(request, records), lambda event: self._appended(pending, event))

    def _appended(self, pending: Pending, event: RecordsAppended) -> None:
        """Take an outcome. Nobody knows what is in the log behind a failed append, so nothing more is appended (FS-10)."""
        if event.outcome is Outcome.OK:
            pending.ready, pending.position = True, event.first_position
        else:
            self._fail(self._told(event.error))

    def _told(self, error: Exception | None) -> Exception:
        """The error of an append, which says that its outcome is unknown."""
        if error is not None and getattr(error, "outcome_unknown", False):
            return error
        what = f"file store {self.name!r}: a change could not be appended, so its outcome is unknown: open the store again"
        closed = FileStoreClosedError(f"{what} ({error})" if error is not None else what, store=self.name)
        closed.__cause__ = error
        return closed

    def _fail(self, error: Exception) -> None:
        """End for good. All that was asked for and not told fails alike (FS-10)."""
        self.state = FileState.FAILED
        self.error = error
        self._stop_asking()
        tokens = [pending.token for pending in self._pending if pending.token is not NOBODY]
        self._pending.clear()
        self._effects.extend(Fail(token, error) for token in tokens)

    def _advance(self) -> None:
        while self._pending and self._may_tell(self._pending[0]):
            told = self._pending.popleft().then()
            if told is not None:
                self._effects.append(told)
        if self._is_base_due():
            self.compaction = Compaction.ROLLING
            self._roll()
        super()._advance()

    def _may_tell(self, first: Pending) -> bool:
        """Return True if the outcome may be told. Only the first of the pending ones is asked about, because outcomes come in call order
        (FS-9)."""
        return first.ready

    # --- bases --------------------------------------------------------------------------------------------------------

    def _is_base_due(self) -> bool:
        """Return True if it is time for a base. It never is while another one is under way (FS-11)."""
        due = max(self._limits.compact_bytes, self._limits.compact_factor * self._base_bytes)
        return self.state is FileState.SERVING and self.compaction is Compaction.NONE and self._bytes > due

    def _roll(self) -> None:
        self._ask(RollLog, self._rolled)

    def _rolled(self, event: LogRolled) -> None:
        if self._done_or_again("roll", event, self._roll) and self.state is FileState.SERVING:  # not on the way out: the next owner will
            self._append_base()

    def _append_base(self) -> None:
        """Append a base of all that was asked for before, acknowledged or not, because that is what stands before it in the log (FS-6)."""
        self.compaction = Compaction.WRITING
        records = encode_base(self._next, self._limits.part_bytes)
        pending = Pending(NOBODY, lambda: self._base_written(pending), ready=False)
        self._append(records, pending)
        self._bytes, self._base_bytes = 0, sum(map(len, records))

    def _base_written(self, pending: Pending) -> None:
        """Trim what is before the base. Only an acknowledged one lets go of that (FS-12)."""
        self._has_base = True
        if self.state is FileState.SERVING:
            assert pending.position is not None, "RecordsAppended tells the position of the first record"
            self._trim(pending.position)
        else:
            self.compaction = Compaction.NONE
        if self.state is FileState.STARTING:  # the first record of a log, which has nothing before it
            self.state = FileState.SERVING

    def _shorten(self, replay: FileReplay, segment: int, trim_left: bool) -> None:
        """Shorten a log of many segments by a base, because each opening begins a segment, however little is written to it (FS-18). Trim
        what a former owner has left otherwise (FS-12)."""
        before = replay.trim_before() or (replay.base_position if trim_left else None)
        if replay.base_position is not None and segment - replay.base_position.seq > self._limits.segments_max:
            self._append_base()  # the first record of a segment, so nothing need be rolled
        elif before is not None:
            self._trim(before)

    def _trim(self, before: Position) -> None:
        self.compaction = Compaction.TRIMMING

        def trimmed(event: LogTrimmed) -> None:
            if self._done_or_again("trim", event, lambda: self._trim(before)):
                self.compaction = Compaction.NONE

        self._ask(lambda request: TrimLog(request, before), trimmed)

    def _take_over(self, replay: FileReplay) -> None:
        """Both trees of a store that was replayed, and how much of its log a base would save."""
        self._acknowledged, self._next = replay.tree, replay.tree.copy()
        self._bytes, self._base_bytes = replay.bytes_since_base, replay.base_bytes
