"""Random changes of a store, judged by a plain model: a dictionary of paths.

Answers come in any order, rolls, trims and drops fail, owners die, and after every step each log that a crash could leave behind is
replayed: it has to be the model behind as many changes as the log has, and to find every data ledger that it names.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    FileStoreTakenOverError,
    InvalidArgumentError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.content import Content
from bk_core.protocol.files.effects import AppendRecords
from bk_core.protocol.files.machine import FileLimits, FileState
from bk_core.protocol.files.records import Delete, Mkdirs, Put, Rename, ReplaceAll, decode
from bk_core.protocol.files.tree import FileTree
from tests.unit.files.store_world import Entry, World, inline, large, replayed

Plain = dict[str, Content | None]
"""The content of a file by its path, None of a directory; the root is not in it."""

TINY = FileLimits(compact_bytes=600, compact_factor=2, part_bytes=80, drops_at_once=2)
NAMES = ("a", "b", "ä")


def above(path: str) -> list[str]:
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[:n]) for n in range(1, len(parts))]


def below(plain: Plain, path: str) -> list[str]:
    return [one for one in plain if one.startswith("/" if path == "/" else path + "/")]


def is_directory(plain: Plain, path: str) -> bool:
    return path == "/" or plain.get(path, b"") is None


def check_above(plain: Plain, path: str, parents: bool) -> list[str]:
    """The directories that are missing."""
    if any(plain.get(one) is not None for one in above(path)):
        raise PathNotDirectoryError(path)
    missing = [one for one in above(path) if one not in plain]
    if missing and not parents:
        raise NoSuchPathError(path)
    return missing


def put(plain: Plain, path: str, content: Content, overwrite: bool, parents: bool) -> Plain:
    if path == "/":
        raise PathIsDirectoryError(path)
    missing = check_above(plain, path, parents)
    if is_directory(plain, path):
        raise PathIsDirectoryError(path)
    if path in plain and not overwrite:
        raise PathExistsError(path)
    return {**plain, **dict.fromkeys(missing), path: content}


def mkdirs(plain: Plain, path: str) -> Plain:
    if is_directory(plain, path):
        return plain
    if path in plain:
        raise PathExistsError(path)
    return {**plain, **dict.fromkeys([*check_above(plain, path, True), path])}


def rename(plain: Plain, src: str, dst: str, overwrite: bool) -> Plain:
    if src == "/":
        raise InvalidArgumentError(src)
    if src not in plain:
        raise NoSuchPathError(src)
    if dst.startswith(src + "/"):
        raise InvalidArgumentError(src)
    check_above(plain, dst, False)
    if (dst in plain or dst == "/") and not overwrite:
        raise PathExistsError(dst)
    if src == dst:
        return plain
    if dst == "/" or dst in plain:  # a rename replaces its own kind alone (FS-19)
        if plain[src] is not None and (dst == "/" or plain[dst] is None):
            raise PathIsDirectoryError(dst)
        if plain[src] is None and dst != "/" and plain[dst] is not None:
            raise PathNotDirectoryError(dst)
    if below(plain, dst):
        raise DirectoryNotEmptyError(dst)
    moved = {src, *below(plain, src)}
    left = {path: content for path, content in plain.items() if path not in moved}
    return {**left, **{dst + path[len(src) :]: plain[path] for path in moved}}


def delete(plain: Plain, path: str, recursive: bool) -> Plain:
    if below(plain, path) and not recursive:
        raise DirectoryNotEmptyError(path)
    gone = {path, *below(plain, path)}
    return {one: content for one, content in plain.items() if one not in gone}


def replace_all(plain: Plain, src: str) -> Plain:
    if src == "/":
        raise InvalidArgumentError(src)
    if src not in plain:
        raise NoSuchPathError(src)
    if plain[src] is not None:
        raise PathNotDirectoryError(src)
    return {path[len(src) :]: plain[path] for path in below(plain, src)}


def plainly(tree: FileTree) -> Plain:
    return {one.path: None if one.is_directory else tree.content(one.path) for one in tree.walk() if one.path != "/"}


@dataclass
class Wanted:
    """``outcome``: True or False of a delete, the path of a status, None of a barrier, or the class of an error."""

    token: int
    outcome: Any


class StorePlay:
    """``states[n]`` is the model behind the first n changes in the log of this owner; the first of them is what it replayed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.data = 0  # the newest data ledger
        self.ledgers: set[int] = set()
        self.owners = 0
        self.begin([], {})

    def begin(self, log: list[Entry], state: Plain) -> None:
        """A new owner, behind ``log``, which amounts to ``state``."""
        self.owners += 1
        self.world = World(log, self.ledgers, TINY)
        self.world.on_drop = lambda ledger_id: self.check_possible_logs(ledger_id)
        self.states = [state]
        self.made = self.changes_in(self.world.log)
        self.wanted: list[Wanted] = []
        self.tokens = 0
        assert plainly(self.world.machine.tree) == state

    # --- what is asked -----------------------------------------------------------------------------------------------

    def path(self) -> str:
        if self.random.random() < 0.02:
            return "/"
        return "/" + "/".join(self.random.choice(NAMES) for _ in range(self.random.choice((1, 1, 2, 2, 3))))

    def content(self) -> Content:
        if self.random.random() < 0.4:
            return inline("x" * self.random.randint(0, 30))
        known = sorted(self.ledgers - self.world.machine._dropped)
        ledgers = {
            self.random.choice(known) if known and self.random.random() < 0.5 else self.new_ledger()
            for _ in range(self.random.choice((1, 1, 2)))
        }
        return large(*sorted(ledgers))

    def new_ledger(self) -> int:
        self.data += 1
        self.ledgers.add(self.data)
        return self.data

    def operation(self) -> None:
        self.tokens += 1
        token, now, machine, flag = self.tokens, self.random.randint(1, 10**6), self.world.machine, self.random.random() < 0.5
        path, other, last = self.path(), self.path(), self.states[-1]
        match self.random.choice(("put", "put", "put", "mkdirs", "rename", "rename", "delete", "delete", "replace_all", "barrier")):
            case "put":
                content, parents = self.content(), self.random.random() < 0.7
                ledgers = {extent.ledger_id for extent in content.extents}
                for ledger_id in ledgers:
                    self.world.hold(ledger_id)
                self.expect(token, path, lambda: put(last, path, content, flag, parents))
                self.world.take(machine.put(token, path, content, flag, parents, now))
                for ledger_id in ledgers:
                    self.world.release(ledger_id)
            case "mkdirs":
                self.expect(token, path, lambda: mkdirs(last, path))
                self.world.take(machine.mkdirs(token, path, now))
            case "rename":
                self.expect(token, other, lambda: rename(last, path, other, flag))
                self.world.take(machine.rename(token, path, other, flag, now))
            case "delete":
                there = path in last or (path == "/" and bool(last))
                self.expect(token, there, lambda: delete(last, path, flag))
                self.world.take(machine.delete(token, path, flag, now))
            case "replace_all":
                self.expect(token, "/", lambda: replace_all(last, path))
                self.world.take(machine.replace_all(token, path, now))
            case _:
                self.wanted.append(Wanted(token, None))
                self.world.take(machine.barrier(token))

    def expect(self, token: int, value: Any, change: Any) -> None:
        last = self.states[-1]
        try:
            state = change()
        except BkError as error:
            self.wanted.append(Wanted(token, type(error)))
        else:
            self.wanted.append(Wanted(token, value))
            if state is not last and (state != last or value is not False):
                self.states.append(state)

    # --- what happens ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        world = self.world
        what = self.random.random()
        if what < 0.45:
            self.operation()
        elif what < 0.9 and world.asked:
            effect = world.asked[0] if self.random.random() < 0.6 else self.random.choice(list(world.asked))
            fails = not isinstance(effect, AppendRecords) and self.random.random() < 0.3
            world.answer(effect, Outcome.UNKNOWN if fails else Outcome.OK)
        elif world.timers:
            world.fire()
        self.check_told()
        self.check_acknowledged()
        if self.random.random() < 0.02:
            self.crash()

    def crash(self) -> None:
        """The owner dies, or is taken over and told so; any part of what is not acknowledged may be in the log."""
        self.check_possible_logs()
        log = self.random.choice(self.possible_logs())
        if self.random.random() < 0.5 and self.world.asks(AppendRecords):
            told = len(self.world.told)
            self.world.fail(FileStoreTakenOverError("another owner"))
            assert all(isinstance(error, FileStoreTakenOverError) for _, error in self.world.told[told:])
            assert len(self.world.told) == self.tokens and not self.world.machine._is_open()
        self.ledgers -= set(self.world.dropped)
        self.begin(log, self.state_of(log))

    def possible_logs(self) -> list[list[Entry]]:
        """From what is certainly in the log to all that was asked for."""
        outstanding = [effect for effect in self.world.asked if isinstance(effect, AppendRecords)]
        sure = len(self.world.log)
        if outstanding:
            position = self.world.positions[outstanding[0].request]
            sure = next(index for index, (at, _) in enumerate(self.world.log) if at >= position)
        return [self.world.log[:size] for size in range(sure, len(self.world.log) + 1)]

    # --- what has to be ----------------------------------------------------------------------------------------------

    def changes_in(self, log: list[Entry]) -> int:
        return sum(isinstance(decode(record), Put | Mkdirs | Rename | Delete | ReplaceAll) for _, record in log)

    def state_of(self, log: list[Entry]) -> Plain:
        """Return the state by the model: changes go to the end of the log only, so those that it lacks are the last ones."""
        lacking = self.changes_in(self.world.log) - self.changes_in(log)
        return self.states[len(self.states) - 1 - lacking]

    def check_possible_logs(self, dropped: int = -1) -> None:
        """FS-4, FS-6, FS-7, FS-12, FS-13: what a crash leaves behind is a state that was, and all its data is there."""
        for log in self.possible_logs():
            replay = replayed(log)
            assert plainly(replay.tree) == self.state_of(log)
            assert replay.complete or not self.changes_in(log)
            assert set(replay.tree.ledgers) <= self.ledgers - set(self.world.dropped)
            assert dropped not in replay.tree.ledgers

    def check_told(self) -> None:
        """FS-9."""
        for (token, value), wanted in zip(self.world.told, self.wanted, strict=False):
            assert token == wanted.token
            if isinstance(wanted.outcome, type):
                assert type(value) is wanted.outcome
            else:
                assert getattr(value, "path", value) == wanted.outcome

    def check_acknowledged(self) -> None:
        """FS-8: the tree that is read is that of the changes before the first one that is not acknowledged."""
        logs = self.possible_logs()
        assert plainly(self.world.machine.tree) == self.state_of(logs[0])
        assert self.world.machine.tree.count == len(self.state_of(logs[0]))

    def finish(self) -> None:
        for _ in range(1000):
            self.world.settle()
            if not self.world.timers:
                break
            self.world.fire()
        self.check_told()
        assert len(self.world.told) == len(self.wanted) and self.world.machine.state is FileState.SERVING
        self.check_possible_logs()
        assert plainly(self.world.machine.tree) == self.states[-1]
        used = set(self.world.machine.tree.ledgers)
        assert self.ledgers - set(self.world.dropped) == used, "what nothing refers to is gone"
        assert sum(len(record) for _, record in self.world.log) < 20_000


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_crashes_and_replays(seed: int) -> None:
    """FS-4 to FS-15."""
    run = StorePlay(seed)
    for _ in range(250):
        run.step()
    run.finish()


def test_random_runs_see_what_they_are_for() -> None:
    """Owners die, logs are compacted, ledgers go."""
    owners = bases = dropped = 0
    for seed in range(100, 110):
        run = StorePlay(seed)
        for _ in range(250):
            run.step()
            dropped += len(run.world.dropped)
        run.finish()
        owners += run.owners
        bases += run.world.log[0][0].seq
    assert owners > 20 and bases > 10 and dropped > 10
