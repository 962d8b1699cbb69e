"""The fourth kind of run: clusters that share a metadata store, or follow one another at one root, and logs of equal names in them.

Ledger ids mean nothing without their cluster (OWN-1 .. OWN-14): each cluster counts from 0, so every id is met in several of them. Writers,
janitors, trimmers, people who delete or adopt logs are the product's code on the product's store; a ledger is its metadata here, without
bookies, so "fenced" means that its metadata was changed.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from bk_core.client import identity, repeating
from bk_core.client.log import history, intents, janitor, list_store, lists, orphans
from bk_core.client.log import works as list_works
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    LedgerExistsError,
    LogError,
    LogListFullError,
    NoClusterError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
    WrongClusterError,
)
from bk_core.metadata.zookeeper import store as zookeeper
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.log.codec import encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from tests.simulation.invariants import InvariantViolated
from tests.simulation.owner_invariants import OwnerTruth
from tests.simulation.owner_store import Link, Names, Node, Pretended, Program, Tree
from tests.simulation.world import MS, Weather, World

ROOTS = ("/ledgers", "/other")
SHARED = "/bk-logs"  # where clusters side by side kept their logs once
LOGS = ("a", "b", "c")  # of the first cluster the first two, of others the last two
RAW = LogProperties(entry_format="raw")
STEPS_MAX = 60_000
TURNS_AWAY = 20
BEGUN_MS = 1_000_000
_LEDGER = re.compile(r"(/ledgers|/other)/L(\d{10})")
_ENSEMBLE = (Fragment(0, ("b1", "b2", "b3")),)


@dataclass(frozen=True, slots=True)
class OwnerOptions:
    """The decisions of a seed. ``fate`` is that of the cluster at the first root."""

    two_roots: bool
    shared: bool  # everybody names the old place, which clusters shared
    earlier: bool  # an earlier program has left lists that do not say whose they are
    programs: int
    later: int  # those that begin after the fate
    actions: int
    fate: str
    lost: float  # of changes of logs, how many answers are lost, half of them with the request


def draw(seed: int, forced: dict[str, Any]) -> OwnerOptions:
    rng = random.Random(f"owners {seed}")
    pick = rng.random
    drawn = OwnerOptions(
        two_roots=pick() < 0.4,
        shared=pick() < 0.6,
        earlier=pick() < 0.3,
        programs=2 + int(pick() * 4),
        later=1 + int(pick() * 3),
        actions=2 + int(pick() * 5),
        fate=("none", "anew", "anew", "anew", "away and back", "anew and back")[int(pick() * 6)],
        lost=(0.0, 0.03, 0.15)[int(pick() * 3)],
    )
    return replace(drawn, **forced)


_made = threading.local()  # the link of the store that a program is making: it asks at once, and other programs come between


class OwnerClient:
    """The part of ``BookKeeper`` that logs need, over the product's store."""

    def __init__(self, run: OwnerPlay, program: Program, root: str) -> None:
        self._program = program
        _made.link = Link(run.tree, program, run.world.random, run.has_read, run.options.lost)
        self.store = zookeeper.ZooKeeperStore(hosts="zk", root=root, log_root=SHARED if run.options.shared else None)
        program.home = self.store.cluster_id()

    def create_ledger(self, *, ledger_id: int | None = None, custom: Any = None, **_: Any) -> Any:
        number = self.store.new_ledger_id() if ledger_id is None else ledger_id
        metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, _ENSEMBLE, custom=MappingProxyType(dict(custom or {})))
        try:
            version = self.store.create_ledger(number, metadata_codec.encode(metadata))
        except NodeExistsError:
            raise LedgerExistsError(f"ledger {number} exists already", ledger=number) from None
        return SimpleNamespace(ledger_id=number, close=lambda: self._close(number, metadata, version), abandon=lambda: None)

    def _close(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> None:
        """CL-3."""
        try:
            self.store.write_ledger(ledger_id, metadata_codec.encode(metadata.closed(0, 1)), version)
        except VersionConflictError:
            raise LogError(f"ledger {ledger_id} was taken over") from None

    def _load(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        try:
            found = self.store.read_ledger(ledger_id)
        except NoNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist", ledger=ledger_id) from None
        return metadata_codec.decode(found.data), found.version

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._load(ledger_id)[0]

    def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> Any:
        raise NoSuchLedgerError(f"ledger {ledger_id} holds no entries here", ledger=ledger_id)

    def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> Any:
        """As the client does it: the cluster is looked at before anything is fenced, then RC-1 and RC-17."""
        metadata, version = self._load(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            self.store.check_cluster()
        while metadata.state is not LedgerState.CLOSED:
            wanted = metadata.in_recovery() if metadata.state is LedgerState.OPEN else metadata.closed(0, 1)
            try:
                version = self.store.write_ledger(ledger_id, metadata_codec.encode(wanted), version)
                metadata = wanted
            except VersionConflictError:
                metadata, version = self._load(ledger_id)
            except NoNodeError:
                raise NoSuchLedgerError(f"ledger {ledger_id} was deleted", ledger=ledger_id) from None
        return SimpleNamespace(close=lambda: None)

    def delete_ledger(self, ledger_id: int, *, even_if_listed: bool = False) -> None:
        self._load(ledger_id)
        self.store.delete_ledger(ledger_id)

    def list_ledgers(self) -> Any:
        return self.store.list_ledgers()


class OwnerChecker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.evaluated: Counter[str] = Counter()

    def fail(self, rule: str, detail: str) -> None:
        raise InvariantViolated(rule, self.world.seed, detail, "\n".join(self.world.lines[-40:]))


class OwnerPlay:
    """One run of one seed."""

    def __init__(self, seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.options = draw(seed, forced or {})
        self.world = world = World(seed, Weather(), verbose=verbose)
        world.now = BEGUN_MS * MS
        self.cluster = SimpleNamespace(world=world, checker=OwnerChecker(world))
        self.tree = Tree(lambda: world.now // MS)
        self.truth = OwnerTruth(world, self.cluster.checker.evaluated, SHARED if self.options.shared else "")
        self.programs: list[Program] = []
        self.now: Program | None = None  # whose turn it is
        self.made = 0
        self._stash: dict[str, Node] = {}
        self._turns_then: dict[str, int] = {}  # at the last change of fate
        self.tree.on_change = self._changed

    # --- the story -------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        zero_kept = (zookeeper, "CLOCK_KEPT_S", -1.0)
        pauses = [(module, "back_off", lambda pause, deadline, what: pause) for module in (repeating, list_store, list_works)]
        host = (list_store, "now_ms", lambda: self.world.now // MS)
        names = (lists, "uuid", Names(random.Random(f"names of {self.world.seed}")))
        links = (zookeeper, "Link", lambda hosts, session_timeout_s, on_connection, **_access: _made.link)
        identity._known.clear()
        with Pretended(zero_kept, *pauses, host, names, links):
            try:
                self._play()
            finally:
                for program in self.programs:
                    program.end()
        self._count()

    def _play(self) -> None:
        options, world = self.options, self.world
        self._make_cluster(ROOTS[0])
        if options.two_roots:
            self._make_cluster(ROOTS[1])
        if options.earlier:
            self._earlier_programs()
        for _ in range(options.programs):
            self._begin(self._some_root())
        fates = self._fates()
        while self._step():
            if fates and world.random() < 0.01 and self._all_went_on():
                fates.pop(0)()
                self._turns_then = {program.name: program.turns for program in self.programs}
        for fate in fates:
            fate()
        self._until_done()
        self._clean_up()
        self.truth.end()
        self._tell()

    def _fates(self) -> list[Callable[[], None]]:
        def newcomers() -> None:
            for _ in range(self.options.later):
                self._begin(ROOTS[0])

        def anew() -> None:
            self._take(ROOTS[0])
            self._make_cluster(ROOTS[0])
            for _ in range(int(self.world.random() * 4)):  # others were here before anybody noticed
                self._ledger({} if self.world.random() < 0.5 else {"log": LOGS[int(self.world.random() * 3)].encode()}, LedgerState.OPEN)
            newcomers()

        def away() -> None:
            self._take(ROOTS[0])
            self._begin(ROOTS[0])  # finds nothing

        return {
            "none": [newcomers],
            "anew": [anew],
            "away and back": [away, self._restore, newcomers],
            "anew and back": [anew, self._restore],
        }[self.options.fate]

    def _all_went_on(self) -> bool:
        """A backup takes longer to restore than a few requests: who missed a ledger looks at the cluster before that is back."""
        return all(one.done or one.turns >= self._turns_then.get(one.name, 0) + TURNS_AWAY for one in self.programs)

    def _some_root(self) -> str:
        return ROOTS[int(self.world.random() * 2)] if self.options.two_roots else ROOTS[0]

    def _make_cluster(self, root: str) -> None:
        self.made += 1
        self.truth.at[root] = f"cluster{self.made}"
        self.world.note(f"cluster{self.made} is made at {root}")
        self.tree.make_cluster(root, f"cluster{self.made}")

    def _take(self, root: str) -> None:
        gone = self.tree.take(root)
        self.truth.take(root, gone)
        self._stash = self._stash or gone
        self.world.note(f"the cluster at {root} is gone")

    def _restore(self) -> None:
        """A backup of the metadata store: the root as it was."""
        root = ROOTS[0]
        self.tree.take(root)
        self.tree.nodes.update(self._stash)
        self.truth.restore(root, self._stash)
        self.world.note(f"{self.truth.at[root]} is back at {root}")

    # --- turns -----------------------------------------------------------------------------------------------------------

    def _begin(self, root: str) -> Program:
        name = f"p{len(self.programs)}"
        program = Program(name, lambda: self._live(program, root))
        self.programs.append(program)
        return program

    def _step(self) -> bool:
        waiting = [program for program in self.programs if not program.done]
        if not waiting:
            return False
        self._turn(waiting[int(self.world.random() * len(waiting))])
        return True

    def _turn(self, program: Program) -> None:
        world = self.world
        if world.random() < 0.004:
            program.killed = True
            world.note(f"{program.name} is killed")
            world.stats["programs killed"] += 1
        self.now = program
        world.at(MS, program.turn)
        world.step()
        self.now = None
        if program.error is not None:
            raise program.error
        if self.truth.found is not None:
            self.cluster.checker.fail(*self.truth.found)
        if world.steps > STEPS_MAX:
            self.cluster.checker.fail("L-O1", f"{program.name} never ends: {program.doing}")

    def _until_done(self) -> None:
        while self._step():
            pass

    def _live(self, program: Program, root: str) -> None:
        random = self.world.random
        try:
            client = OwnerClient(self, program, root)
        except NoClusterError:
            self.world.probes["a program found no cluster at its root"] += 1
            return
        actions: list[tuple[float, Callable[[Any, str], object]]] = [
            (0.34, self._commit),
            (0.44, self._leave),
            (0.50, self._plain),
            (0.66, lambda c, name: janitor.gc_log(c, name, min_age_s=0)),
            (0.74, lambda c, name: janitor.trim_log(c, name, max_bytes=int(random() * 4))),
            (0.86, janitor.delete_log),
            (0.91, self._orphans),
            (0.96, self._adopt),
            (1.00, history.read_log),
        ]
        for _ in range(self.options.actions):
            chosen, name = random(), LOGS[int(random() * 2) + (program.home != "cluster1")]
            if not self._do(program, client, next(action for bound, action in actions if chosen < bound), name):
                return

    def _do(self, program: Program, client: OwnerClient, action: Callable[[Any, str], object], name: str) -> bool:
        """False if the program cannot go on with this client."""
        probes = self.world.probes
        program.doing = name
        try:
            action(client, name)
        except ClusterChangedError:
            probes["a program met another cluster at its root"] += 1
            return False
        except NoClusterError:
            probes["a program met no cluster at its root"] += 1
            return self.world.random() < 0.5
        except WrongClusterError:
            probes["a list of another cluster was left alone"] += 1
        except (NoSuchLogError, NoSuchLedgerError, LogError, LogListFullError, LedgerExistsError) as error:
            self.world.stats[f"owners: {type(error).__name__}"] += 1
        except BkError as error:
            self.world.stats[f"owners, other: {type(error).__name__}"] += 1
        return True

    # --- what programs do ------------------------------------------------------------------------------------------------

    def _commit(self, client: Any, name: str) -> None:
        """A batch of a sink: a ledger that was intended, closed, and listed."""
        listed = lists.create_log(client, name, RAW, exist_ok=True)
        handle = intents.create_intended(client, name, listed.properties, log_id=listed.log_id)
        if self.world.random() < 0.1:
            return
        handle.close()

        def change(current: LedgerList) -> LedgerList:
            if current.log_id != listed.log_id:
                raise LogError(f"log {name!r} was created again")
            janitor.check_listable(client, name, listed.log_id, [handle.ledger_id])
            return current.append_segments([SegmentRange(handle.ledger_id, 0, 0, 1, 1)], list_store.store_now_ms(client))

        history.update_ledger_list(client, name, change)
        intents.forget_intent(client, name, handle.ledger_id)
        self.world.stats["owners: segments committed"] += 1

    def _leave(self, client: Any, name: str) -> None:
        """A worker that died with an open ledger."""
        listed = lists.create_log(client, name, RAW, exist_ok=True)
        intents.create_intended(client, name, listed.properties, log_id=listed.log_id)

    def _plain(self, client: Any, name: str) -> None:
        """Somebody whose ledgers are of no log, or of one of an earlier program."""
        handle = client.create_ledger(custom={} if self.world.random() < 0.7 else {"log": name.encode()})
        if self.world.random() < 0.5:
            handle.close()

    def _orphans(self, client: Any, name: str) -> None:
        assert self.now is not None
        who, self.now.doing = self.now, "orphans"
        for orphan in list(orphans.find_orphans(client)):
            who.doing = orphan.log
            if orphans.delete_orphan(client, orphan):
                self.world.probes["a ledger whose log was gone was deleted"] += 1

    def _adopt(self, client: Any, name: str) -> None:
        """A person, who may be wrong."""
        listed, _ = list_store.read_unlooked(client, name)
        assert self.now is not None
        who, self.now.doing = self.now, "a person"
        if orphans.adopt_log(client, name, from_cluster=listed.cluster or None) != listed:
            self.world.probes["a person said whose a log is"] += 1
            who.doing = name
            janitor.trim_log(client, name, max_bytes=0)

    def _earlier_programs(self) -> None:
        """Lists that name no cluster: of a cluster that was here before, of this one, or of nobody."""
        place = SHARED if self.options.shared or self.world.random() < 0.5 else f"{ROOTS[0]}-logs"
        for path in (place, f"{place}/logs"):
            self.tree.create(path)
        for name in LOGS[:2]:
            ids = [self._earlier_ledger(name, number) for number in range(int(self.world.random() * 3))]
            ranges = [SegmentRange(ledger_id, 0, 0, 1, 1) for ledger_id in ids]
            listed = LedgerList(f"earlier {name}", RAW).append_segments(ranges, BEGUN_MS)
            self.tree.create(f"{place}/logs/{name}", encode(listed))

    def _earlier_ledger(self, name: str, number: int) -> int:
        fate = self.world.random()
        ledger_id = self._ledger({"log": name.encode()} if fate < 0.55 else {}, LedgerState.CLOSED)
        if fate > 0.8:
            self.tree.delete(f"{ROOTS[0]}/L{ledger_id:010d}")
        return ledger_id

    def _ledger(self, custom: dict[str, bytes], state: LedgerState) -> int:
        path = self.tree.create(f"{ROOTS[0]}/ID-", sequence=True)
        self.tree.delete(path)
        ledger_id = int(path[-10:])
        ends = (0, 1) if state is LedgerState.CLOSED else (-1, 0)
        metadata = LedgerMetadata(3, 3, 2, state, _ENSEMBLE, *ends, custom=MappingProxyType(custom))
        self.tree.create(f"{ROOTS[0]}/L{ledger_id:010d}", metadata_codec.encode(metadata))
        return ledger_id

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Janitors of the clusters that are there now, and who deletes what they are told of: nothing is left behind (L-O2)."""
        for root in ROOTS[: 1 + self.options.two_roots]:
            self._run_alone(root)

    def _run_alone(self, root: str) -> None:
        def clean() -> None:
            client = OwnerClient(self, program, root)
            for name in LOGS:
                self._do(program, client, lambda c, n: janitor.gc_log(c, n, min_age_s=0), name)
            self._do(program, client, self._orphans, "")

        program = Program(f"last{root}", clean)
        self.programs.append(program)
        self._until_done()

    # --- what is seen ----------------------------------------------------------------------------------------------------

    def _changed(self, path: str, before: Node | None, after: Node | None) -> None:
        ledger = _LEDGER.fullmatch(path)
        if ledger is not None:
            if before is None and after is not None:
                after.cluster = self.truth.at[ledger[1]]
            self.truth.ledger_changed(self.now, ledger[1], int(ledger[2]), before, after)
        else:
            self.truth.node_changed(self.now, path, before, after)

    def has_read(self, program: Program, path: str) -> None:
        """Or has been told that there is nothing."""
        ledger = _LEDGER.fullmatch(path)
        if ledger is None or not program.home:
            return
        node = self.tree.nodes.get(path)
        if node is None and (program.home, int(ledger[2])) not in self.truth.there:
            program.absent[int(ledger[2])] = None
        elif node is None:
            self.world.probes["a ledger was looked for while its cluster was away"] += 1
        elif node.cluster != program.home:
            self.world.probes["a program read a ledger of another cluster under a number that it knew"] += 1
        elif program.doing in LOGS and self.truth.born[node.cluster, int(ledger[2])].get("log") != program.doing.encode():
            self.world.probes["a ledger that is not the log's was looked at for the log"] += 1

    def _tell(self) -> None:
        for root, cluster in sorted(self.truth.at.items()):
            self.world.note(f"{cluster} at {root}: {', '.join(p for p in sorted(self.tree.nodes) if p.startswith(f'{root}/L'))}")

    def _count(self) -> None:
        stats, born = self.world.stats, self.truth.born
        stats["owners: ledgers"] += len(born)
        if len({number for _, number in born}) < len(born):
            self.world.probes["two clusters in one store had a ledger of the same number"] += 1
