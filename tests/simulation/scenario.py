"""Races written down instead of waited for (papers.md 9). README.md teaches the vocabulary in one page.

Everything is deterministic: each message takes 1 ms, each sync 1 ms, timers are exact, and replacements are the first spare bookie in
name order. Time only passes inside ``run``, ``until`` and ``settle``. All invariants are checked after every step of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.limits import Limits
from tests.simulation.clients import Client, Recoverer, Writer
from tests.simulation.cluster import LIMITS, Cluster
from tests.simulation.invariants import INVARIANTS, InvariantViolated
from tests.simulation.readers import Reader
from tests.simulation.replicator import Replicator
from tests.simulation.store import Answer
from tests.simulation.truth import Truth
from tests.simulation.world import MS, STORE, Rule, Weather


class Scenario:
    """A ledger of ``e``/``wq``/``aq`` on b1..bE, with ``bookies`` of them in all, and a story told step by step.

    ``gwq``: the ledger is marked for guaranteed write quorum. ``custom``: other custom metadata. ``limits``: see ``cluster.LIMITS``.
    """

    def __init__(
        self,
        e: int,
        wq: int,
        aq: int,
        *,
        bookies: int | None = None,
        limits: Limits = LIMITS,
        ensemble: tuple[str, ...] | None = None,
        gwq: bool = False,
        custom: dict[str, bytes] | None = None,
        exact: bool = True,
    ) -> None:
        self.cluster = Cluster(0, Weather(fixed_ns=MS), bookies or e, limits, verbose=True)
        self.cluster.registry_knows = True
        self.cluster.placement = RandomPlacement(self.cluster.writable, lambda: 0.0)
        self.world = self.cluster.world
        marks = {**(custom or {}), **({"gwq": b"1"} if gwq else {})}
        self.ledger = self.cluster.create_ledger((e, wq, aq), ensemble, marks, exact=exact)
        self._named = {"w": 0, "r": 0, "t": 0, "rr": 0}

    # --- the cast --------------------------------------------------------------------------------------------------

    def writer(self, **options: Any) -> Writer:
        """The ledger's writer: "w", a second one "w2". Options go to LedgerWriter."""
        return self.cluster.writer(self._name("w"), self.ledger, **options)

    def recoverer(self, *, start: bool = True, **options: Any) -> Recoverer:
        """One run of recovery: "r", "r2", ... Its ``result`` is the CLOSED metadata or the error."""
        client = self.cluster.recoverer(self._name("r"), self.ledger, **options)
        if start:
            client.start()
        return client

    def reader(self, *, tailing: bool = False, start: bool = True) -> Reader:
        """A reader without recovery: "t", "t2", ... Its ``entries`` are what it has read."""
        client = self.cluster.reader(self._name("t"), self.ledger, tailing=tailing)
        if start:
            client.start()
        return client

    def replicator(self, *, start: bool = True, lost: tuple[str, ...] = (), move: float = 0.0) -> Replicator:
        """A re-replicator: "rr". It goes round until a CLOSED ledger needs nothing; bookies in ``lost`` are to be left for good."""
        client = self.cluster.replicator(self._name("rr"), self.ledger, lost=lost, move=move)
        if start:
            client.start()
        return client

    def _name(self, letter: str) -> str:
        self._named[letter] += 1
        count = self._named[letter]
        return letter if count == 1 else f"{letter}{count}"

    # --- messages --------------------------------------------------------------------------------------------------

    def hold(
        self, kind: str | None = None, *, source: str | None = None, to: str | None = None, entry: int | None = None, count: int = -1
    ) -> Rule:
        """Keep messages that match, until ``release``. ``count``: only so many. Returns the rule; ``rule.messages`` are those held."""
        return self._rule(Rule(kind, source, to, entry, None, count))

    def drop(
        self, kind: str | None = None, *, source: str | None = None, to: str | None = None, entry: int | None = None, count: int = -1
    ) -> Rule:
        """Lose messages that match. ``allow`` ends it."""
        return self._rule(Rule(kind, source, to, entry, None, count, drop=True))

    def _rule(self, rule: Rule) -> Rule:
        self.world.rules.append(rule)
        return rule

    def release(self, rule: Rule | None = None, *, only: int | None = None) -> int:
        """End a hold (or all of them) and let its messages travel on, in order; ``only`` so many, and then the hold stays."""
        released = 0
        for one in [rule] if rule is not None else [r for r in self.world.rules if not r.drop]:
            count = len(one.messages) if only is None else min(only, len(one.messages))
            messages, one.messages = one.messages[:count], one.messages[count:]
            if only is None:
                self.allow(one)
            for message in messages:
                self.world.deliver_held(message)
            released += count
        return released

    def discard(self, rule: Rule) -> int:
        """Lose what a hold kept; the hold stays."""
        count = len(rule.messages)
        rule.messages.clear()
        return count

    def allow(self, rule: Rule | None = None) -> None:
        """End a rule (or all drops) without delivering anything."""
        self.world.rules = [r for r in self.world.rules if (r is not rule if rule is not None else not r.drop)]

    def partition(self, a: str | Client, b: str | Client, *, one_way: bool = False) -> None:
        """Nothing sent from a to b arrives any more, nor back unless ``one_way``. Names: bookies, clients, "md"."""
        self.world.partition(_name_of(a), _name_of(b), one_way)

    def heal(self) -> None:
        """End all partitions."""
        self.world.heal()

    # --- metadata --------------------------------------------------------------------------------------------------

    def metadata_hold(self, kind: str = "cas", *, client: str | Client | None = None) -> Rule:
        """Hold requests to the metadata store. After 60 ms the client hears UNKNOWN and repeats; released, they still apply."""
        return self.hold(kind, source=None if client is None else _name_of(client), to=STORE)

    def metadata_lose_answer(self, kind: str = "cas", *, client: str | Client | None = None, count: int = 1) -> Rule:
        """The next request is carried out and its answer lost (scenario 18)."""
        return self.drop(kind + "-reply", source=STORE, to=None if client is None else _name_of(client), count=count)

    def metadata_apply_later(self, *, client: str | Client | None = None, count: int = 1) -> Rule:
        """The next compare-and-set travels until ``release`` (scenario 19); its repetitions pass."""
        return self.hold("cas", source=None if client is None else _name_of(client), to=STORE, count=count)

    def metadata_down(self, down: bool = True) -> None:
        self.cluster.store.down = down

    def metadata_stale(self, *, client: str | Client, count: int = 1) -> None:
        """The next ``count`` reads of this client are answered by a follower that has not heard of the newest version (scenario 46)."""
        store, name, read = self.cluster.store, _name_of(client), self.cluster.store.read
        left = [count]

        def read_of_follower(who: str, truth: Truth, answer: Callable[[Answer], None]) -> None:
            if who != name or not left[0] or truth is not self.ledger:
                read(who, truth, answer)
                return
            left[0] -= 1
            version = truth.version - 1
            read(who, truth, lambda found: answer(replace(found, version=version, value=truth.history[version].metadata)))

        store.read = read_of_follower  # type: ignore[method-assign,assignment]

    def write_metadata(self, metadata: LedgerMetadata, *, role: str = "replicator") -> None:
        """Another program changes the metadata, now. ``role`` decides what I-9 allows it."""
        self.cluster.store.install(self.ledger, metadata, "foreign", role)
        self.cluster.checker.check()

    def substitute(self, first_entry_id: int, old: str, new: str) -> None:
        """A re-replicator copies what ``old`` holds of a fragment to ``new``, then replaces it there (RR-7)."""
        md = self.metadata
        end = next((f.first_entry_id for f in md.fragments if f.first_entry_id > first_entry_id), self.ledger.top_acked + 1)
        fragments = tuple(
            Fragment(f.first_entry_id, tuple(new if b == old else b for b in f.ensemble)) if f.first_entry_id == first_entry_id else f
            for f in md.fragments
        )
        for entry_id in range(first_entry_id, end):
            if self.cluster.bookies[old].holds(self.ledger.ledger_id, entry_id):
                self.cluster.bookies[new].copy_entry(self.ledger, entry_id)
        self.write_metadata(replace(md, fragments=fragments))

    def delete_ledger(self) -> None:
        self.cluster.store.delete(self.ledger)
        self.cluster.checker.check()

    # --- bookies and clients -----------------------------------------------------------------------------------------

    def crash(self, bookie: str) -> None:
        """Lose everything that was not synced; its clients hear BookieLost after 1 ms (``partition`` first if they should not)."""
        self.cluster.bookies[bookie].crash()
        self.cluster.checker.check()

    def restart(self, bookie: str, *, empty: bool = False) -> None:
        """``empty``: on a new disk; it comes back fenced and in limbo for every open ledger that lists it (B-10)."""
        if empty:
            self.cluster.bookies[bookie].wipe()
        self.cluster.bookies[bookie].restart()
        self.cluster.checker.check()

    def read_only(self, bookie: str, on: bool = True) -> None:
        self.cluster.bookies[bookie].turn_read_only(on)

    def slow_disk(self, bookie: str, ms: float = 0.0) -> None:
        """From now on a sync takes ``ms`` there (0: 1 ms again): what it is to make durable is lost in a crash before that."""
        self.cluster.bookies[bookie].sync_ns = int(ms * MS)

    def corrupt(self, bookie: str, entry: int) -> None:
        """The copy of ``entry`` on ``bookie`` fails its digest from now on."""
        self.cluster.bookies[bookie].storage.corrupt[self.ledger.ledger_id, entry] = None

    def io_error(self, bookie: str, entry: int) -> None:
        """Reading ``entry`` on ``bookie`` is an IO error from now on (B-7: never a denial)."""
        self.cluster.bookies[bookie].storage.damage(self.ledger.ledger_id, entry)

    def repair(self, bookie: str, entry: int) -> None:
        """End ``corrupt``. (``io_error`` ends when the entry is stored again.)"""
        self.cluster.bookies[bookie].storage.corrupt.pop((self.ledger.ledger_id, entry), None)

    def mend(self) -> None:
        """Bookies in limbo whose ledger is closed fetch what they lack and leave limbo (RC-27)."""
        for bookie in self.cluster.bookies.values():
            bookie.mend()

    def pause(self, client: Client) -> None:
        """The client's process stops (GC); what arrives waits for it."""
        client.pause()

    def resume(self, client: Client) -> None:
        client.resume()
        self.cluster.checker.check()

    def kill(self, client: Client) -> None:
        client.kill()

    def jump(self, client: Client, ms: int) -> None:
        """The client's clock jumps forward."""
        client.clock_ns += ms * MS

    # --- time ------------------------------------------------------------------------------------------------------

    def run(self, ms: float) -> None:
        self.cluster.run_until(self.world.now + int(ms * MS))

    def settle(self, ms: int = 5_000) -> None:
        """Run until nothing is on its way any more, or for ``ms`` (tailing readers and retries never stop by themselves)."""
        deadline = self.world.now + ms * MS
        while (due := self.world.next_at()) is not None and due <= deadline:
            self.cluster.step()
        self.cluster.checker.check()

    def until(self, condition: Callable[[], bool], ms: int = 5_000) -> None:
        """Run until ``condition`` holds; AssertionError with the story so far if it does not within ``ms``."""
        deadline = self.world.now + ms * MS
        while not condition():
            due = self.world.next_at()
            assert due is not None and due <= deadline, "this never came true:\n" + self.story()
            self.cluster.step()

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        return self.ledger.metadata

    @property
    def state(self) -> LedgerState:
        return self.ledger.metadata.state

    @property
    def last_entry(self) -> int | None:
        """None unless CLOSED."""
        md = self.ledger.metadata
        return md.last_entry_id if md.state is LedgerState.CLOSED else None

    @property
    def fragments(self) -> dict[int, tuple[str, ...]]:
        return {f.first_entry_id: f.ensemble for f in self.ledger.metadata.fragments}

    @property
    def truth(self) -> Truth:
        return self.ledger

    @property
    def acked(self) -> list[int]:
        """Every entry any writer was told OK for, in order."""
        return list(self.ledger.acked)

    def stored(self, entry: int) -> list[str]:
        """Bookies that hold the entry, durably or not."""
        return [n for n, b in self.cluster.bookies.items() if b.holds(self.ledger.ledger_id, entry)]

    def fenced(self) -> list[str]:
        records = {n: b.storage.ledger(self.ledger.ledger_id) for n, b in self.cluster.bookies.items()}
        return [n for n, record in records.items() if record is not None and record.fenced]

    def limbo(self) -> list[str]:
        records = {n: b.storage.ledger(self.ledger.ledger_id) for n, b in self.cluster.bookies.items()}
        return [n for n, record in records.items() if record is not None and record.limbo]

    def lac(self, bookie: str) -> int:
        record = self.cluster.bookies[bookie].storage.ledger(self.ledger.ledger_id)
        return record.last_add_confirmed if record is not None else -1

    def writes(self, client: Client) -> int:
        """Return how many versions of the metadata this client wrote."""
        return sum(1 for v in self.ledger.history if v.by == client.name)

    def arrived(self, kind: str, source: str, to: str, entry: int | None = None) -> int:
        """Return how many such messages have reached ``to`` so far."""
        what = "" if entry is None else f" e{entry}"
        text = f"{source} -> {to}: {kind} of ledger {self.ledger.ledger_id}{what}"
        lines = (line.split(maxsplit=1)[1] for line in self.world.lines)
        return sum(1 for line in lines if line == text or (entry is None and line.startswith(text + " ")))

    def violations(self, *rules: str, ms: int = 5_000) -> set[str]:
        """Play on past broken invariants. Which of them were broken, and which of ``rules`` were at the moment when another one was."""
        found: set[str] = set()
        deadline = self.world.now + ms * MS
        while (due := self.world.next_at()) is not None and due <= deadline:
            try:
                self.cluster.step()
            except InvariantViolated as error:
                found.add(error.rule)
                found.update(one.rule for one in INVARIANTS if one.rule in rules and one.check(self.cluster, self.ledger) is not None)
        return found

    def story(self) -> str:
        """Everything that happened, one line each."""
        return "\n".join(self.world.lines)


def _name_of(who: str | Client) -> str:
    return who if isinstance(who, str) else who.name
