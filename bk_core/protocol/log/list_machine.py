"""The base of machines that work on the whole list of a log: reading it, and loading the chunks of its history that an answer needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bk_core.errors import BkError, LogHistoryError, NoSuchLogError
from bk_core.protocol.effects import Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import ChunkLoaded, ListRead, LoadChunk, ReadList
from bk_core.protocol.log.history import Chunk, Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.machine import LogMachine
from bk_core.protocol.log.segments import HistoryRef

CHUNKS_KEPT = 8  # a path through the history has one chunk per level; a world may keep more of them
T = TypeVar("T")


class ListMachine(LogMachine):
    """The base of machines that work on a list. ``listed`` is the list as it was read last, at ``version``; None before that."""

    def __init__(self, name: str, retry_ns: int) -> None:
        super().__init__()
        self.name = name
        self.listed: LedgerList | None = None
        self.version = -1
        self._retry_ns = retry_ns
        self._token: Any = None
        self._chunks: dict[tuple[int, int], Chunk] = {}
        self._missing: tuple[HistoryRef, int] | None = None  # a chunk that did not exist when the list had that version

    def _read_list(self, then: Callable[[], None]) -> None:
        """Read the newest list, then go on with it."""
        self._ask(ReadList, lambda event: self._on_list(event, then))

    def _on_list(self, event: ListRead, then: Callable[[], None]) -> None:
        match event.outcome:
            case Outcome.OK if event.version >= self.version or self._is_another(event):
                self.listed, self.version = event.listed, event.version
                then()
            case Outcome.OK | Outcome.UNKNOWN:  # a stale answer is not believed (META-11)
                self._after("list", self._retry_ns, lambda: self._read_list(then))
            case Outcome.NO_SUCH_LEDGER:
                self._without_log(event.error or NoSuchLogError(f"there is no log {self.name!r}", log=self.name))
            case _:
                self._fail(event.error or BkError(f"the ledger list of log {self.name!r} cannot be used"))

    def _without_log(self, error: Exception) -> None:
        self._fail(error)

    def _is_another(self, event: ListRead) -> bool:
        """Return True if the log was deleted and created again, so that its versions start anew."""
        return self.listed is not None and event.listed is not None and self.listed.log_id != event.listed.log_id

    # --- history ------------------------------------------------------------------------------------------------------

    def _find(
        self,
        question: Callable[[LedgerList, Load], T],
        then: Callable[[T], None],
        again: Callable[[], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Ask ``question`` of the list, and load the chunks that it needs; it may run several times.

        If a chunk is gone, the list is read, and ``again`` goes on with it. A BkError, of ``question`` or of a chunk, goes to ``failed``;
        by default it ends the work.
        """
        assert self.listed is not None
        try:
            found = question(self.listed, self._load)
        except _NotLoadedError as missing:
            ref = missing.ref
            self._ask(
                lambda request: LoadChunk(request, ref),
                lambda event: self._on_chunk(event, ref, lambda: self._find(question, then, again, failed), again, failed or self._fail),
            )
            return
        except BkError as error:
            (failed or self._fail)(error)
            return
        for old in list(self._chunks)[:-CHUNKS_KEPT]:
            del self._chunks[old]
        then(found)

    def _load(self, ref: HistoryRef) -> Chunk:
        key = (ref.ledger_id, ref.entry_id)
        if key not in self._chunks:
            raise _NotLoadedError(ref)
        self._chunks[key] = chunk = self._chunks.pop(key)
        return chunk

    def _on_chunk(
        self,
        event: ChunkLoaded,
        ref: HistoryRef,
        then: Callable[[], None],
        again: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        match event.outcome:
            case Outcome.OK:
                self._chunks[ref.ledger_id, ref.entry_id] = event.chunk
                then()
            case Outcome.UNKNOWN:
                self._after("chunk", self._retry_ns, then)
            case Outcome.NO_SUCH_LEDGER if self._missing != (ref, self.version):  # it was trimmed meanwhile
                self._missing = (ref, self.version)
                self._read_list(again)
            case _:
                where = f"segments {ref.first_seq}..{ref.after_seq - 1} of log {self.name!r} are in history ledger {ref.ledger_id}"
                failed(event.error or LogHistoryError(f"{where}, which cannot be read", log=self.name, ledger=ref.ledger_id))

    def _fail(self, error: Exception) -> None:
        self._effects.append(Fail(self._token, error))


class _NotLoadedError(Exception):
    def __init__(self, ref: HistoryRef) -> None:
        super().__init__()
        self.ref = ref
