"""Draws from a seed which faults happen, when, and to whom; they are recorded like everything else.

Two lanes run beside each other. One harms processes and sessions, one harms single links. Each lane first does each of its kinds once, in a
random order, and then whatever chance says. A fault is always healed before its lane begins the next one, so at most one bookie is away at
a time, while any link may be bad as well. Choices repeat with the seed; the moments at which they hit do not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from bk_core.bookie.children import Child
from bk_core.client import BookKeeper
from bk_core.errors import BkError, BookieUnavailableError
from tests.network.proxy import IN, OUT, Link
from tests.soak.auto_recovery import AutoRecoveries
from tests.soak.cluster import SoakCluster
from tests.soak.history import Follower, Op, Recorder
from tests.soak.stores import SESSION_S, EtcdServers
from tests.soak.workload import Board

BOOKIE_FAULTS = ("bookie_kill", "bookie_pause", "bookie_expiry", "writer_kill")
ETCD_FAULTS = ("etcd_kill", "etcd_kill_all", "etcd_pause", "etcd_leader_moved")
AUTO_RECOVERY_FAULTS = ("bookie_lost", "autorecovery_kill")
PROCESS_FAULTS = (*BOOKIE_FAULTS, "zookeeper_kill", *ETCD_FAULTS, *AUTO_RECOVERY_FAULTS)
LINK_FAULTS = (
    "link_cut",
    "link_refuse",
    "link_delay",
    "link_throttle",
    "link_silent_out",
    "link_silent_in",
    "link_silent_both",
    "store_cut",
    "client_expiry",
)
FAULTS = (*BOOKIE_FAULTS, "zookeeper_kill", *LINK_FAULTS)
FAULTS_ON_ETCD = (*BOOKIE_FAULTS, *ETCD_FAULTS, *LINK_FAULTS)
WRITERS = ("author", "child", "duelist", "leader")
_ACTOR = "faults"
_ROOT = Path(__file__).parents[2]
_REGISTERED_S = 30.0
_RESTARTS_MAX = 3


class Writers:
    """Writers in processes of their own: the one that is killed has a successor. What they write down is read along for the board."""

    def __init__(self, cluster: SoakCluster, recorder: Recorder, board: Board, protocol: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._board = board
        self._protocol = protocol
        self._rng = rng
        self._count = 0
        self._child: Child | None = None
        self._followers: list[Follower] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        self._count += 1
        name = f"child-{self._count}"
        path = self._cluster.directory / f"history-{name}.jsonl"
        options = {
            "name": name,
            "path": str(path),
            "seed": self._rng.getrandbits(32),
            "protocol": self._protocol,
            "uri": self._cluster.uri_through("child"),
            "ports": {bookie: link.listen_port for bookie, link in self._cluster.bookie_links("child").items()},
        }
        command = [sys.executable, "-m", "tests.soak.writer_process", json.dumps(options)]
        path_of_imports = os.pathsep.join(part for part in (str(_ROOT), os.environ.get("PYTHONPATH")) if part)
        self._child = Child(name, command, self._cluster.directory / f"{name}.log", env={"PYTHONPATH": path_of_imports})
        with self._lock:
            self._followers.append(Follower(path))

    def follow(self) -> None:
        """Tell the board what the processes wrote since the last call."""
        with self._lock:
            for follower in self._followers:
                for at, op in follower.new():
                    if at == "end" and op.ok and op.ledger is not None:
                        self._note(op, op.ledger)

    def _note(self, op: Op, ledger_id: int) -> None:
        if op.kind == "create":
            self._board.add(ledger_id, op.actor)
        elif op.kind in ("close", "give_up"):
            self._board.leave(ledger_id, closed=op.kind == "close")

    def kill(self) -> str:
        """SIGKILL; the name of the victim."""
        assert self._child is not None
        name = self._child.name
        if not self._child.running:
            raise AssertionError(f"{name} ended by itself; its output: {self._child.log.read_text()[-2000:]}")
        self._child.kill()
        self._recorder.note(name, "killed")
        self.follow()
        self._board.leave_all_of(name)
        return name

    def ops(self) -> list[Op]:
        self.follow()
        return [op for follower in self._followers for op in follower.ops.values()]


class Injector:
    """Both lanes. ``stop`` ends them; ``heal`` afterwards makes all as new. ``crash`` has what kept a lane from going on."""

    def __init__(
        self,
        cluster: SoakCluster,
        recorder: Recorder,
        writers: Writers,
        client: BookKeeper,
        rng: random.Random,
        kinds: Collection[str],
        recoveries: AutoRecoveries | None = None,
    ) -> None:
        """``recoveries`` are needed for AUTO_RECOVERY_FAULTS."""
        self._cluster = cluster
        self._recorder = recorder
        self._writers = writers
        self._client = client
        self._recoveries = recoveries
        self.crash: BaseException | None = None
        self._stopping = threading.Event()
        self._ahead = set(kinds)
        lanes = [tuple(kind for kind in lane if kind in kinds) for lane in (PROCESS_FAULTS, LINK_FAULTS)]
        self._threads = [
            threading.Thread(target=self._lane, args=(lane, random.Random(rng.getrandbits(32))), name=f"faults-{lane[0]}", daemon=True)
            for lane in lanes
            if lane
        ]

    @property
    def complete(self) -> bool:
        """Each kind has had its turn."""
        return not self._ahead

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def heal(self) -> None:
        """Every link good, every bookie running and registered."""
        self._cluster.proxy.heal_all()
        self._revive()
        for index in range(len(self._cluster.bookies.bookie_ids)):
            self._wait_registered(index)

    def _lane(self, kinds: tuple[str, ...], rng: random.Random) -> None:
        try:
            first = rng.sample(kinds, len(kinds))
            while not self._stopping.is_set():
                kind = first.pop() if first else rng.choice(kinds)
                method: Callable[[random.Random], None] = getattr(self, f"_{kind}")
                self._ahead.discard(kind)
                method(rng)
                self._stopping.wait(rng.uniform(0.3, 1.5))
        except BaseException as error:
            self.crash = error

    def _hold(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    # --- processes and sessions --------------------------------------------------------------------------------------

    def _bookie_kill(self, rng: random.Random) -> None:
        index = rng.randrange(len(self._cluster.bookies.bookie_ids))
        with self._recorder.during(_ACTOR, "fault", fault="bookie_kill", bookie=index):
            self._cluster.bookies.kill(index)
            self._hold(rng.uniform(0, 2))
            self._restart(index)

    def _bookie_lost(self, rng: random.Random) -> None:
        """Kill a bookie for good. Once others have all that it had, one with an empty disk comes under its name."""
        assert self._recoveries is not None
        index = rng.randrange(len(self._cluster.bookies.bookie_ids))
        bookie = self._cluster.bookies.bookie_ids[index]
        with self._recorder.during(_ACTOR, "fault", fault="bookie_lost", bookie=index) as value:
            self._cluster.bookies.kill(index)
            value["replicated_s"] = self._recoveries.await_replicated(bookie)
            self._cluster.bookies.wipe(index)
            self._recoveries.forget(bookie)
            self._restart(index)

    def _autorecovery_kill(self, rng: random.Random) -> None:
        assert self._recoveries is not None
        with self._recorder.during(_ACTOR, "fault", fault="autorecovery_kill") as value:
            value["process"] = self._recoveries.kill_one(rng)

    def _bookie_pause(self, rng: random.Random) -> None:
        """SIGSTOP, shorter than its session, of which a third may have passed since its last ping."""
        self._pause_bookie(rng, "bookie_pause", rng.uniform(0.3, SESSION_S / 2))

    def _bookie_expiry(self, rng: random.Random) -> None:
        """SIGSTOP until its session is gone: it comes back unregistered, with requests in its sockets."""
        self._pause_bookie(rng, "bookie_expiry", SESSION_S + 1.5)

    def _pause_bookie(self, rng: random.Random, kind: str, seconds: float) -> None:
        index = rng.randrange(len(self._cluster.bookies.bookie_ids))
        pid = self._cluster.bookies.pid(index)
        if pid is None:  # it gave up meanwhile
            self._revive()
            return
        with self._recorder.during(_ACTOR, "fault", fault=kind, bookie=index):
            os.kill(pid, signal.SIGSTOP)
            try:
                self._hold(seconds)
            finally:
                os.kill(pid, signal.SIGCONT)
            self._wait_registered(index)

    def _zookeeper_kill(self, rng: random.Random) -> None:
        with self._recorder.during(_ACTOR, "fault", fault="zookeeper_kill"):
            self._cluster.store.kill()
            self._hold(rng.uniform(0, 1))
            self._cluster.store.start()
            self._await_bookies()

    def _await_bookies(self) -> None:
        self._hold(SESSION_S)  # a bookie that was not back in time loses its session only now
        self._revive()
        for index in range(len(self._cluster.bookies.bookie_ids)):
            self._wait_registered(index)

    @property
    def _etcd(self) -> EtcdServers:
        assert isinstance(self._cluster.store, EtcdServers)
        return self._cluster.store

    def _etcd_kill(self, rng: random.Random) -> None:
        """One of three, often the leader: the others go on."""
        with self._recorder.during(_ACTOR, "fault", fault="etcd_kill"):
            server = self._etcd.one(rng)
            server.kill()
            self._hold(rng.uniform(0, SESSION_S))
            server.start()

    def _etcd_kill_all(self, rng: random.Random) -> None:
        with self._recorder.during(_ACTOR, "fault", fault="etcd_kill_all"):
            self._etcd.kill_all()
            self._hold(rng.uniform(0, 1))
            self._etcd.start_all()
            self._await_bookies()

    def _etcd_pause(self, rng: random.Random) -> None:
        """SIGSTOP of one of three, so that its connections stay and say nothing."""
        with self._recorder.during(_ACTOR, "fault", fault="etcd_pause"):
            pid = self._etcd.one(rng).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                self._hold(rng.uniform(0.3, SESSION_S + 1.5))
            finally:
                os.kill(pid, signal.SIGCONT)
            self._await_bookies()

    def _etcd_leader_moved(self, rng: random.Random) -> None:
        with self._recorder.during(_ACTOR, "fault", fault="etcd_leader_moved") as value:
            value["moved"] = self._etcd.move_leader()
            self._hold(rng.uniform(0, 1))

    def _writer_kill(self, rng: random.Random) -> None:
        with self._recorder.during(_ACTOR, "fault", fault="writer_kill") as value:
            value["writer"] = self._writers.kill()
            self._hold(rng.uniform(0, 1))
            self._writers.start()

    def _restart(self, index: int) -> None:
        for attempt in range(_RESTARTS_MAX):
            try:
                return self._cluster.bookies.restart(index)
            except BookieUnavailableError:  # ended while it started, e.g. because the metadata store was slow
                if attempt == _RESTARTS_MAX - 1:
                    raise
        return None

    def _revive(self) -> None:
        """A bookie may give up when it loses its session for too long; an operator's supervisor would start it again."""
        for index in range(len(self._cluster.bookies.bookie_ids)):
            if not self._cluster.bookies.is_running(index):
                with self._recorder.during(_ACTOR, "fault", fault="bookie_gave_up", bookie=index):
                    self._restart(index)

    def _wait_registered(self, index: int) -> None:
        deadline = time.monotonic() + _REGISTERED_S
        while not self._is_registered(self._cluster.bookies.bookie_ids[index]):
            if not self._cluster.bookies.is_running(index) or time.monotonic() > deadline:
                with self._recorder.during(_ACTOR, "fault", fault="bookie_gave_up", bookie=index):
                    return self._restart(index)
            time.sleep(0.1)
        return None

    def _is_registered(self, bookie_id: str) -> bool:
        try:
            return bookie_id in self._client.bookies().writable
        except BkError:
            return False

    # --- links -------------------------------------------------------------------------------------------------------

    def _bookie_link(self, rng: random.Random) -> Link:
        """Mostly one of a writer: that is where a fault has consequences."""
        links = [link for link in self._cluster.proxy.links if not self._cluster.is_to_store(link)]
        writers = [link for link in links if link.owner.startswith(WRITERS)]
        return rng.choice(writers if writers and rng.random() < 0.6 else links)

    def _on_link(self, kind: str, link: Link, harm: Callable[[], None], seconds: float, cut_after: bool = False) -> None:
        self._on_links(kind, [link], lambda _link: harm(), seconds, cut_after)

    def _link_cut(self, rng: random.Random) -> None:
        link = self._bookie_link(rng)
        self._on_link("link_cut", link, lambda: self._cluster.proxy.cut(link), 0.1)

    def _link_refuse(self, rng: random.Random) -> None:
        link = self._bookie_link(rng)
        self._on_link("link_refuse", link, lambda: self._cluster.proxy.cut(link, refuse=True), rng.uniform(0.5, 4))

    def _link_delay(self, rng: random.Random) -> None:
        link, delay = self._bookie_link(rng), rng.choice((0.005, 0.05, 0.5, 2.0))
        self._on_link("link_delay", link, lambda: self._cluster.proxy.delay(link, delay), rng.uniform(1, 6))

    def _link_throttle(self, rng: random.Random) -> None:
        link, rate = self._bookie_link(rng), rng.choice((2_000, 20_000, 200_000))
        self._on_link("link_throttle", link, lambda: self._cluster.proxy.throttle(link, rate), rng.uniform(1, 6))

    def _link_silent_out(self, rng: random.Random) -> None:
        self._silence(rng, "link_silent_out", OUT)

    def _link_silent_in(self, rng: random.Random) -> None:
        self._silence(rng, "link_silent_in", IN)

    def _link_silent_both(self, rng: random.Random) -> None:
        self._silence(rng, "link_silent_both", OUT, IN)

    def _silence(self, rng: random.Random, kind: str, *directions: str) -> None:
        """Often longer than a client waits for an add; half of the time what was held back arrives late."""
        link = self._bookie_link(rng)
        harm = lambda: self._cluster.proxy.silence(link, *directions)  # noqa: E731
        self._on_link(kind, link, harm, rng.uniform(1, 8), cut_after=rng.random() < 0.5)

    def _store_links(self, rng: random.Random) -> list[Link]:
        """Those of one client."""
        links = [link for link in self._cluster.proxy.links if self._cluster.is_to_store(link)]
        owner = rng.choice(sorted({link.owner for link in links}))
        return [link for link in links if link.owner == owner]

    def _on_links(self, kind: str, links: list[Link], harm: Callable[[Link], None], seconds: float, cut_after: bool = False) -> None:
        with self._recorder.during(_ACTOR, "fault", fault=kind, link=str(links[0]), seconds=seconds, cut_after=cut_after):
            for link in links:
                harm(link)
            self._hold(seconds)
            for link in links:
                self._cluster.proxy.heal(link, cut=cut_after)

    def _store_cut(self, rng: random.Random) -> None:
        """The session goes on over other connections."""
        self._on_links("store_cut", self._store_links(rng), self._cluster.proxy.cut, 0.1)

    def _client_expiry(self, rng: random.Random) -> None:
        """Silence until the store has ended the client's session."""
        silence = lambda link: self._cluster.proxy.silence(link, OUT, IN)  # noqa: E731
        self._on_links("client_expiry", self._store_links(rng), silence, SESSION_S + 1.5, cut_after=True)
