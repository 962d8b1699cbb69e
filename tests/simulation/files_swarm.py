"""The fifth kind of run: a file store whose owners take over one another, with clients that are in each other's way.

The machine, its records and its trees are the product's; the log, the data ledgers and everything that may go wrong with them are
simulated one level above ledgers, which the other runs are about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from bk_core.protocol.files.content import Content
from bk_core.protocol.files.machine import FileLimits
from tests.simulation.files_invariants import FilesChecker, View
from tests.simulation.files_owners import Owner
from tests.simulation.files_truth import Operation, new_store
from tests.simulation.files_world import DataLedgers, FilesLog
from tests.simulation.world import MS, Weather, World

STEPS_MAX = 200_000
CALM_MS = 400_000
_PATHS = ("/a", "/b", "/d", "/d/a", "/d/b", "/d/e", "/d/e/a", "/f", "/f/a", "/f/d/a")


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """The decisions of a seed. Shares are of calls, requests or effects."""

    storm_ms: int
    paths: int
    clients: int
    think_ms: float
    take_over_ms: int  # between two that open
    owners_max: int
    kills: float  # of take-overs, how many the former owner does not live to see
    learns: float  # of take-overs, how many the former owner is told of before an append fails
    dies_between_effects: float
    append_fails: float
    overtakes: float  # answers to appends
    closes: float
    works_fail: float  # rolls, trims and drops
    works_slow: int  # trims and drops, how much slower than all else
    replays_slow: int
    entries_a_segment: int  # 0: rolls alone begin segments
    contents_a_ledger: int
    staged: float
    views: int
    slow: float
    timers: float
    limits: FileLimits


def draw(seed: int, forced: dict[str, Any]) -> FilesOptions:
    rng = random.Random(f"files {seed}")
    pick = rng.random

    def one_of(*values: Any) -> Any:
        return values[int(pick() * len(values))]

    limits = FileLimits(
        compact_bytes=one_of(200, 600, 600, 2000),
        compact_factor=one_of(1, 2, 4),
        part_bytes=one_of(60, 150, 1000),
        retry_ns=one_of(5, 20) * MS,
        retry_ns_max=200 * MS,
        drops_at_once=one_of(1, 2, 4),
    )
    drawn = FilesOptions(
        storm_ms=one_of(50, 150, 300),
        paths=one_of(4, 7, len(_PATHS)),
        clients=one_of(1, 2, 4, 8),
        think_ms=one_of(0.05, 0.3, 2.0),
        take_over_ms=one_of(5, 20, 60),
        owners_max=one_of(2, 4, 9),
        kills=one_of(0.0, 0.5, 1.0),
        learns=one_of(0.0, 0.3),
        dies_between_effects=one_of(0.0, 0.0, 0.002, 0.01),
        append_fails=one_of(0.0, 0.0, 0.01),
        overtakes=one_of(0.0, 0.2),
        closes=one_of(0.0, 0.002),
        works_fail=one_of(0.0, 0.1, 0.5),
        works_slow=one_of(1, 5, 40),
        replays_slow=one_of(1, 1, 30, 300),
        entries_a_segment=one_of(0, 3, 7, 20),
        contents_a_ledger=one_of(1, 3, 6),
        staged=one_of(0.2, 0.6),
        views=one_of(0, 1, 2),
        slow=one_of(0.0, 0.1, 0.4),
        timers=one_of(0.0, 0.2),
        limits=limits,
    )
    limits = replace(limits, segments_max=one_of(1, 3, 16))  # drawn last, so that all else stays what it was for a seed
    of_limits = {name.removeprefix("limits."): value for name, value in forced.items() if name.startswith("limits.")}
    rest = {name: value for name, value in forced.items() if not name.startswith("limits.")}
    return replace(drawn, **rest, limits=replace(limits, **of_limits))


class FilesPlay:
    """One run of one seed."""

    def __init__(self, seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.options = options = draw(seed, forced or {})
        self.world = world = World(seed, Weather(slow=options.slow, timers=options.timers), verbose=verbose)
        self.log = FilesLog(world.random, options.entries_a_segment)
        self.data = DataLedgers()
        self.owners: list[Owner] = []
        self.nothing = new_store()
        self.calm = False
        self.checker = FilesChecker(self)
        self.cluster = SimpleNamespace(world=world, checker=self.checker)
        self.log.on_confirmed = self.checker.confirmed
        self._made = 0

    def chance(self, share: float) -> bool:
        return bool(share) and not self.calm and self.world.random() < share

    def tell(self, line: str) -> None:
        self.world.note(line)

    def tell_loudly(self, line: str) -> None:
        """Only to who watches; the run is the same without."""
        self.world.lines.append(f"{self.world.now / MS:10.3f} {line}")

    # --- the story -------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        options, world = self.options, self.world
        self._open()
        world.at(int(options.take_over_ms * MS * (0.5 + world.random())), self._next_owner)
        for number in range(options.views):
            world.at(world.delay(), View(self, f"view{number}").go_on)
        while world.now < options.storm_ms * MS:
            self._step()
        self._heal()

    def _step(self) -> bool:
        if self.world.steps > STEPS_MAX:
            self.checker.fail("L-F1", "the run never ends")
        return self.world.step()

    def _open(self) -> Owner:
        owner = Owner(self, f"o{len(self.owners)}")
        self.owners.append(owner)
        owner.open()
        return owner

    def _next_owner(self) -> None:
        if self.calm:
            return
        if len(self.owners) < self.options.owners_max or not any(one.alive and not one.has_ended for one in self.owners):
            self._open()
        self.world.at(int(self.options.take_over_ms * MS * (0.2 + 1.6 * self.world.random())), self._next_owner)

    def before_take_over(self) -> None:
        """The former owner may be dead, may soon be told, or learns it when it writes."""
        writer = next((one for one in self.owners if one.name == self.log.writer), None)
        entries = self.log.entries
        if writer is None or not writer.alive:
            return
        if self.chance(self.options.kills):
            writer.kill()
        elif self.chance(self.options.learns):
            self.world.at(self.world.delay() * 3, writer.told_the_end)
        self.world.stats["files: take-overs"] += bool(entries)

    def took_over(self, under_way: int, kept: int) -> None:
        """Note that so many stayed of the entries that were under way."""
        probes, entries = self.world.probes, self.log.entries
        if kept:
            probes["a change of files that was not acknowledged outlived its owner"] += 1
        if kept < under_way:
            probes["a change of files that was not acknowledged was lost"] += 1
        if entries and entries[-1].kind in ("begin", "part"):
            probes["a base of files was begun by an owner that died"] += 1

    def served(self, owner: Owner) -> None:
        for _ in range(self.options.clients):
            self._client(owner)

    def trimmed(self, what: str) -> None:
        self.tell(f"trimmed by {what}: the log begins with entry {self.log.begin} of {len(self.log.entries)}")
        self.world.stats["files: trims"] += 1
        if self.log.begin <= self.log.confirmed:
            self.checker.replays_from_everywhere()

    # --- clients ---------------------------------------------------------------------------------------------------------

    def _client(self, owner: Owner) -> None:
        """One call after another, until its owner is no more."""
        random = self.world.random
        if self.calm or not owner.alive or owner.is_closing or (owner.has_ended and random() < 0.5):
            return
        chosen = random()
        again = self._thinking(owner)
        if chosen < 0.15:
            self.checker.read(owner, self._path())
            again()
        elif chosen > 1 - self.options.closes and not owner.has_ended:
            self.world.stats["files: owners closed"] += 1
            owner.close()
        elif chosen < 0.18:
            owner.let_go_of_current()
            again()
        elif chosen < 0.18 + self.options.staged * 0.4:
            owner.stage(lambda content: self._staged(owner, content, again), 1 + int(random() * 1.2))
        else:
            owner.call(self._operation(owner), again)

    def _thinking(self, owner: Owner) -> Callable[[], None]:
        def again() -> None:
            self.world.at(int(self.options.think_ms * MS * 2 * self.world.random()), lambda: self._client(owner))

        return again

    def _path(self) -> str:
        chosen = int(self.world.random() * (self.options.paths + 0.1))
        return _PATHS[chosen] if chosen < self.options.paths else "/"

    def _now_ms(self) -> int:
        return 1_000 + self.world.now // MS

    def _inline(self) -> Content:
        self._made += 1
        return Content(b"%d" % self._made * (1 + int(self.world.random() * 8)))

    def _staged(self, owner: Owner, content: Content, again: Callable[[], None]) -> None:
        """It is put now or later, or never."""
        held = [extent.ledger_id for extent in content.extents]

        def release() -> None:
            for ledger_id in held:
                owner.release(ledger_id)

        def put() -> None:
            if not owner.alive or owner.is_closing:
                return
            if owner.has_ended or self.log.writer != owner.name:
                self.world.probes["staged content was put after its owner was taken over"] += 1
            owner.call(
                Operation("put", self._path(), content=content, flag=self._often(), parents=self._often(), now_ms=self._now_ms()), again
            )
            release()

        chosen = self.world.random()
        if chosen < 0.1:
            release()
            again()
        elif chosen < 0.4:
            owner.later(put, 5)
        else:
            put()

    def _often(self) -> bool:
        return self.world.random() < 0.7

    def _operation(self, owner: Owner) -> Operation:
        random, now_ms = self.world.random, self._now_ms()
        chosen = random()
        if chosen < 0.35:
            return Operation("put", self._path(), content=self._inline(), flag=self._often(), parents=self._often(), now_ms=now_ms)
        if chosen < 0.45:
            return Operation("mkdirs", self._path(), now_ms=now_ms)
        if chosen < 0.7:
            return Operation("rename", self._path(), self._path(), flag=self._often(), now_ms=now_ms)
        if chosen < 0.72:
            return Operation("replace_all", self._path(), now_ms=now_ms)
        if chosen < 0.95:
            return Operation("delete", self._path(), flag=self._often(), now_ms=now_ms)
        return Operation("barrier")

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """All is well from here on: whoever is left ends, and a last owner makes good whatever they have left."""
        self.calm = True
        self.world.weather.slow = self.world.weather.timers = 0.0
        self._quiet()
        for owner in self.owners:
            if owner.alive and owner.is_serving and not owner.has_ended and self.log.is_writer(owner.name):
                self.checker.expect("L-F1", not owner.calls, f"{owner.name} owes outcomes: {[str(call.operation) for call in owner.calls]}")
                if not owner.is_closing:
                    self.checker.made_good(owner)
            owner.kill()
        last = self._open()
        self._quiet()
        self.checker.expect("L-F1", last.is_serving, "the last owner never serves")
        for _ in range(6):
            last.call(self._operation(last), lambda: None)
        last.stage(lambda content: self._staged(last, content, lambda: None))
        self._quiet()
        last.let_go_of_current()
        self._quiet()
        self.checker.end(last)
        self._close(last)

    def _close(self, last: Owner) -> None:
        """A store that was closed is opened again as it was."""
        last.close()
        self._quiet()
        self.checker.expect("L-F1", not last.calls, "the last owner never closes")
        begun = self._open()
        self._quiet()
        self.checker.expect("L-F1", begun.is_serving, "a store that was closed is not opened again")
        self.tell(f"{len(self.log.entries)} entries, {len(begun.states[0].nodes)} paths, data ledgers {list(self.data.ledgers)}")

    def _quiet(self) -> None:
        """Until nothing happens any more; timers of machines that are gone do not matter."""
        bound = self.world.now + CALM_MS * MS
        while (at := self.world.next_at()) is not None and at < bound:
            self._step()
        if at is not None:
            self.checker.fail("L-F1", "something goes on for ever")
