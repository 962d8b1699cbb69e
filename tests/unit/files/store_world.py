"""A world for the owner of a file store: a log in memory whose answers come when the test says so, and what it says about effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bk_core.errors import FileStoreTakenOverError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.files.content import Content, Extent
from bk_core.protocol.files.effects import (
    AppendRecords,
    DataDropped,
    DropData,
    FileEffect,
    LogRolled,
    LogTrimmed,
    RecordsAppended,
    RollLog,
    TrimLog,
)
from bk_core.protocol.files.machine import FileLimits, FileMachine
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.position import Position

Entry = tuple[Position, bytes]


def inline(text: str) -> Content:
    return Content(text.encode())


def large(*ledger_ids: int, length: int = 10, piece: int = 4) -> Content:
    """A content with one extent in each ledger."""
    return Content(extents=tuple(Extent(ledger_id, 5, 5 + (length - 1) // piece, length, piece) for ledger_id in ledger_ids))


def replayed(log: Iterable[Entry]) -> FileReplay:
    replay = FileReplay("s")
    for position, record in log:
        replay.take(record, position)
    return replay


def shape(tree: FileTree) -> list[Any]:
    """All that can be read of a tree."""
    return [(status, None if status.is_directory else tree.content(status.path)) for status in tree.walk()]


class World:
    """``log``: what was appended, acknowledged or not. ``told``: (token, value or error) in the order of the answers.

    Requests wait in ``asked`` until ``answer`` takes one; ``settle`` answers all of them OK.
    """

    def __init__(
        self, log: Sequence[Entry] = (), data: Iterable[int] = (), limits: FileLimits | None = None, *, trim_left: bool = False
    ) -> None:
        self.machine = FileMachine("s", limits)
        self.log: list[Entry] = list(log)
        self.seq = self.log[-1][0].seq + 1 if self.log else 0
        self.entry = 0
        self.data = set(data)
        self.dropped: list[int] = []
        self.asked: deque[FileEffect] = deque()
        self.timers: list[SetTimer] = []
        self.told: list[tuple[Any, Any]] = []
        self.positions: dict[int, Position] = {}
        self.on_drop: Callable[[int], None] = lambda ledger_id: None
        for position, record in log:
            self.machine.replay(record, position)
        self.take(self.machine.serve(self.data, self.seq, trim_left=trim_left))

    def take(self, effects: Iterable[FileEffect]) -> None:
        for effect in effects:
            match effect:
                case Complete(token, value):
                    self.told.append((token, value))
                case Fail(token, error):
                    self.told.append((token, error))
                case SetTimer():
                    self.timers.append(effect)
                case _:
                    self._perform(effect)
                    self.asked.append(effect)

    def _perform(self, effect: FileEffect) -> None:
        match effect:
            case AppendRecords(request, records):
                self.positions[request] = Position(self.seq, self.entry)
                for record in records:
                    self.log.append((Position(self.seq, self.entry), record))
                    self.entry += 1
            case DropData(_, ledger_id):
                self.on_drop(ledger_id)

    def answer(self, effect: FileEffect, outcome: Outcome = Outcome.OK, error: Exception | None = None) -> None:
        """``effect``, one of ``asked``, came to this."""
        self.asked.remove(effect)
        match effect:
            case AppendRecords(request):
                self.feed(RecordsAppended(request, outcome, error, self.positions[request] if outcome is Outcome.OK else None))
            case RollLog(request):
                if outcome is Outcome.OK:
                    self.seq, self.entry = self.seq + 1, 0
                self.feed(LogRolled(request, outcome, error))
            case TrimLog(request, before):
                if outcome is Outcome.OK:
                    self.log = [one for one in self.log if one[0].seq >= before.seq]
                self.feed(LogTrimmed(request, outcome, error))
            case DropData(request, ledger_id):
                if outcome is Outcome.OK:
                    self.data.discard(ledger_id)
                    self.dropped.append(ledger_id)
                self.feed(DataDropped(request, outcome, error))

    def feed(self, event: Any) -> None:
        self.take(self.machine.handle(event, 0))

    def fire(self) -> None:
        """The oldest timer."""
        self.feed(TimerFired(self.timers.pop(0).key))

    def find(self, kind: type) -> Any:
        """The oldest request of this kind that is not answered."""
        return next(effect for effect in self.asked if isinstance(effect, kind))

    def asks(self, kind: type) -> bool:
        return any(isinstance(effect, kind) for effect in self.asked)

    def settle(self) -> None:
        while self.asked:
            self.answer(self.asked[0])

    def fail(self, error: Exception | None = None) -> None:
        """The oldest append that is not answered fails."""
        self.answer(self.find(AppendRecords), Outcome.UNKNOWN, error or FileStoreTakenOverError("another owner"))

    # --- operations: told at once, or what ``told`` says later -------------------------------------------------------

    def put(self, path: str, content: Content | None = None, *, overwrite: bool = True, parents: bool = True, token: Any = None) -> None:
        content = inline(path) if content is None else content
        self.take(self.machine.put(token or path, path, content, overwrite, parents, 1000))

    def mkdirs(self, path: str, *, token: Any = None) -> None:
        self.take(self.machine.mkdirs(token or path, path, 1000))

    def rename(self, src: str, dst: str, *, overwrite: bool = False, token: Any = None) -> None:
        self.take(self.machine.rename(token or (src, dst), src, dst, overwrite, 1000))

    def delete(self, path: str, *, recursive: bool = False, token: Any = None) -> None:
        self.take(self.machine.delete(token or path, path, recursive, 1000))

    def hold(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.data.add(ledger_id)
            self.machine.hold(ledger_id)

    def release(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.take(self.machine.release(ledger_id))

    def last(self) -> Any:
        """Return the value or the error that was told last."""
        return self.told[-1][1]

    def paths(self) -> list[str]:
        return [status.path for status in self.machine.tree.walk()][1:]


def new_store(limits: FileLimits | None = None) -> World:
    """A new store whose first base is acknowledged."""
    world = World(limits=limits)
    world.settle()
    return world
