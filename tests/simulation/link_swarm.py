"""The third kind of run: sessions that read and write over thin, half-dead, cut and moved links (LINK-1..9, SES-1..6).

The links, the session's suspicion and its address book are those of the product, down to the bytes of a frame.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from bk_core.net.asking import is_repeatable
from bk_core.net.link_state import CHECK_NS
from bk_core.net.outstanding import Waiting
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.link import CUTS_MAX
from bk_core.protocol.wire.messages import (
    ReadRequest,
    Response,
    Status,
)
from tests.simulation.invariants import InvariantViolated
from tests.simulation.link_clients import HEADER_BYTES, Adder, Asked, Puller, Reader, body_of
from tests.simulation.link_hosts import SimHost, Troubles
from tests.simulation.link_invariants import LINK_INVARIANTS
from tests.simulation.link_session import SimSession, SimStore
from tests.simulation.links import FAST, TIMEOUT_NS, Line, Network, SimLink, SimSocket
from tests.simulation.world import MS, Weather, World

S = 1_000 * MS
LOOK_NS = 250 * MS
SILENCE = frozenset({Status.UNAVAILABLE, Status.TIMEOUT, Status.PROTOCOL_ERROR})
FIRST_LEDGER, READ_LEDGER = 7, 500


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The choices of a seed. Probabilities are per half second of storm and host."""

    hosts: int = 3
    sessions: int = 1
    pullers: int = 3
    depth: int = 1
    entries: int = 60
    entry_bytes: int = 4000
    rate: int = FAST  # bytes a second, of each bookie both ways
    latency_ns: int = MS
    sync_ns: int = 5 * MS
    storm_s: float = 15.0
    silent: float = 0.0
    stopped: float = 0.0
    cut: float = 0.0
    crash: float = 0.0
    move: float = 0.0
    outage: float = 0.0
    two_addresses: bool = False
    troubles: tuple[float, float, float] = (0.0, 0.0, 0.0)  # forgets, garbage, cuts in an answer
    adds: bool = True
    readers: int = 0


def draw(seed: int, forced: dict[str, Any]) -> LinkOptions:
    rng = Random(f"links of {seed}, drawn")

    def among(*values: Any) -> Any:
        return values[int(rng.random() * len(values))]

    mild = rng.random() < 0.25
    drawn: dict[str, Any] = {
        "hosts": 3 + int(rng.random() * 3),
        "sessions": among(1, 1, 2),
        "pullers": among(0, 1, 3, 6, 12),
        "depth": among(1, 2, 4),
        "entries": among(5, 40, 120),
        "entry_bytes": among(100, 1000, 4000, 20_000),
        "rate": among(40_000, 100_000, 400_000, 2_000_000, FAST),
        "latency_ns": among(MS // 5, 2 * MS, 100 * MS),
        "sync_ns": among(MS, 20 * MS),
        "storm_s": among(10.0, 20.0, 40.0),
        "two_addresses": rng.random() < 0.2,
        "adds": rng.random() < 0.7,
    }
    rare = {
        "silent": among(0.0, 0.02, 0.06),
        "stopped": among(0.0, 0.0, 0.03),
        "cut": among(0.0, 0.03, 0.2),
        "crash": among(0.0, 0.02),
        "move": among(0.0, 0.0, 0.02),
        "outage": among(0.0, 0.0, 0.03),
        "troubles": (among(0.0, 0.0, 0.02), among(0.0, 0.0, 0.01), among(0.0, 0.0, 0.05)),
    }
    seldom = Random(f"links of {seed}, readers")  # of its own: all else stays what it was
    drawn["readers"] = 1 + int(seldom.random() * 2) if seldom.random() < 0.4 else 0
    return LinkOptions(**{**drawn, **({} if mild else rare), **forced})


class LinkChecker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.evaluated: Counter[str] = Counter()

    def fail(self, rule: str, detail: str) -> None:
        raise InvariantViolated(rule, self.world.seed, detail, "\n".join(self.world.lines[-40:]))


@dataclass(slots=True)
class LinkCluster:
    world: World
    checker: LinkChecker


class LinkPlay:
    """One run of one seed."""

    def __init__(self, seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.options = options = draw(seed, forced or {})
        self.world = world = World(seed, Weather(), verbose=verbose)
        self.cluster = LinkCluster(world, LinkChecker(world))
        self.network = Network(world, self._find)
        self.network.on_drop, self.network.on_send, self.network.on_answer = self._dropped, self._sent, self._has_answered
        self.store = SimStore(self.network)
        self.calm = self.over = False
        self.asked: list[Asked] = []
        self.useful_bytes = 0
        self._answers: deque[tuple[int, SimSocket, int]] = deque()  # when something was answered, and when that was sent
        self._answered_ns: dict[SimSocket, int] = {}
        self.brought_nothing: set[SimSocket] = set()  # connections on which an answer was that there is no such entry
        self.told_ns: dict[str, int] = {}  # when the sessions were told where a bookie is
        self.suspect_ns: dict[tuple[str, str], int] = {}
        self._found: dict[str, list[str]] = {}
        self._broken: dict[tuple[str, str], None] = {}  # by session and bookie: its connection broke and it has not answered since
        self.hosts = {name: self._host(name) for name in (f"b{i + 1}" for i in range(options.hosts))}
        self.sessions = [SimSession(f"c{i + 1}", self.network, self.store) for i in range(options.sessions)]
        for session in self.sessions:
            session.on_read = self.heard
        self.bodies: dict[int, list[bytes]] = {}
        self.pullers = [self._puller(index) for index in range(options.pullers)]
        self.readers = [self._reader(index) for index in range(options.readers)]
        self.adders = [Adder(self, session, 100 * index) for index, session in enumerate(self.sessions) if options.adds]
        self.largest_bytes = max([options.entry_bytes, 200]) + 64

    @property
    def is_mild(self) -> bool:
        o = self.options
        return not any((o.silent, o.stopped, o.cut, o.crash, o.move, o.outage, *o.troubles))

    def _host(self, name: str) -> SimHost:
        o, world = self.options, self.world
        host = SimHost(
            name,
            self.network,
            Line(world, o.rate, o.latency_ns),
            Line(world, o.rate, o.latency_ns),
            o.latency_ns,
            o.sync_ns,
            Troubles(*o.troubles),
            o.two_addresses,
        )
        self.store.registered[name] = (name, host.port)
        self.told_ns[name] = 0
        return host

    def _puller(self, index: int) -> Puller:
        o, random = self.options, self.world.random
        ledger_id = FIRST_LEDGER + index
        self.bodies[ledger_id] = [body_of(ledger_id, entry_id, 1 + o.entry_bytes) for entry_id in range(o.entries)]
        for host in self.hosts.values():
            host.put(ledger_id, self.bodies[ledger_id])
        kind = ("single", "run", "batch")[int(random() * 3)]
        first = 0 if random() < 0.7 else int(random() * o.hosts)
        return Puller(self, self.sessions[index % len(self.sessions)], ledger_id, kind, o.depth, first)

    def _reader(self, index: int) -> Reader:
        ledger_id = READ_LEDGER + index
        bodies = [body_of(ledger_id, entry_id, 100 + self.options.entry_bytes) for entry_id in range(self.options.entries)]
        for host in self.hosts.values():
            host.put(ledger_id, bodies)
        self.bodies[ledger_id] = bodies
        names, last = tuple(self.hosts), len(bodies) - 1
        quorums = len(names), len(names), 1
        fragments = (Fragment(0, names),)
        length = sum(map(len, bodies)) - len(bodies) * HEADER_BYTES
        self.store.ledgers[ledger_id] = LedgerMetadata(
            *quorums, LedgerState.CLOSED, fragments, last_entry_id=last, length=length, digest_type=DigestType.DUMMY
        )
        return Reader(self, self.sessions[index % len(self.sessions)], ledger_id, index % 2 == 0)

    # --- what is asked and answered --------------------------------------------------------------------------------------

    def ask(
        self, session: SimSession, bookie: str, kind: str, message: Any, then: Callable[[Status, Response | None], None], reader: Any
    ) -> None:
        link = session.link(bookie, kind)
        assert isinstance(link, SimLink)

        def heard(status: Status, response: Response | None) -> None:
            session.note_answer(bookie, status)
            self.heard(session, bookie, status)
            then(status, response)

        asked = Asked(self, link, message, heard, (link.losses, link.failures))
        self.asked.append(asked)
        waiting = link.request(message, TIMEOUT_NS, asked.answer, reader)
        if asked.waiting is None:
            asked.waiting = waiting
            if waiting.patience.sent_ns is None:
                self.world.probes["a request waited for its turn"] += 1

    def outstanding(self, link: SimLink) -> list[Asked]:
        return [one for one in self.asked[-400:] if one.link is link and not one.answers and one.waiting is not None and one.sends]

    def answered_ns(self, sock: SimSocket) -> int:
        """Return the latest time of sending of what was answered on a connection; not yet of what its link may not have looked at since."""
        while self._answers and self._answers[0][0] <= self.world.now - 2 * CHECK_NS:
            _, answered, sent_ns = self._answers.popleft()
            self._answered_ns[answered] = max(self._answered_ns.get(answered, 0), sent_ns)
        return self._answered_ns.get(sock, 0)

    def _sent(self, link: SimLink, waiting: Waiting) -> None:
        asked = getattr(waiting.answer, "__self__", None)
        if not isinstance(asked, Asked):
            if isinstance(waiting.answer, partial):
                self.world.probes["a suspect was asked whether it is back"] += 1
                if link.connection is not None:
                    self.brought_nothing.add(link.connection)
            return
        asked.waiting = waiting
        asked.sends += 1
        asked.piece_ns = self.world.now
        if waiting.cuts:
            self.world.probes["a request was sent again after its connection was lost"] += 1
        if isinstance(asked.message, ReadRequest) and asked.sends > CUTS_MAX + 1:
            self._find("I-K7", f"{asked} was sent {asked.sends} times")

    def answered(self, asked: Asked, status: Status) -> None:
        """LINK-1, LINK-2, LINK-7: whether what is told is what really happened."""
        link, now, waiting = asked.link, self.world.now, asked.waiting
        if asked.answers > 1:
            self._find("I-K3", f"{asked} was answered {asked.answers} times, at last with {status.name}")
        if waiting is None:
            return
        sock, sent_ns = link.latest, waiting.patience.sent_ns
        losses, failures = link.losses - asked.counted[0], link.failures - asked.counted[1]
        if status not in SILENCE:
            self._good(asked, waiting, status)
        elif status is Status.TIMEOUT and sent_ns is not None and sock is not None and link.dropped_ns != now:
            if asked.message.ledger_id in sock.forgotten:
                self.world.probes["a request was passed over while others were answered"] += 1
            elif now - max(sent_ns, sock.heard_ns) < TIMEOUT_NS - MS:
                self._find("I-K1", f"{asked} was given up {(now - sock.heard_ns) / MS:.0f} ms after bytes had come")
        may_repeat = is_repeatable(asked.message) and sent_ns is not None
        if status is Status.UNAVAILABLE and may_repeat and losses <= CUTS_MAX and not failures and not link._refused:
            self._find("I-K7", f"{asked} was told to be unavailable after {losses} lost connections")
        if status in SILENCE and self.is_mild:
            self._find("I-K1", f"{asked} ended with {status.name}; nothing was wrong but that the network is thin")

    def _good(self, asked: Asked, waiting: Waiting, status: Status) -> None:
        sock = asked.link.latest
        if sock is not None and waiting.patience.sent_ns is not None:
            if status is not Status.OK:
                self.brought_nothing.add(sock)
            self._answers.append((self.world.now, sock, asked.piece_ns))
            if self.world.now - waiting.patience.sent_ns > TIMEOUT_NS:
                self.world.probes["an answer took longer than its timeout and was taken"] += 1

    # --- suspicion -------------------------------------------------------------------------------------------------------

    def _dropped(self, link: SimLink, status: Status, why: str, counts: bool) -> None:
        if status is Status.PROTOCOL_ERROR:
            self.world.probes["what a bookie sent broke the protocol"] += 1
        if why.startswith("the bookie moved"):
            self.world.probes["a link was dropped because its bookie had moved"] += 1
        session, kind = self._owner(link)
        if counts and kind != "batch":
            self._broken[session, link.bookie] = None

    def _owner(self, link: SimLink) -> tuple[str, str]:
        return next((session.name, kind) for session in self.sessions for (_, kind, _), one in session._links.items() if one is link)

    def _has_answered(self, link: SimLink) -> None:
        self._broken.pop((self._owner(link)[0], link.bookie), None)

    def heard(self, session: SimSession, bookie: str, status: Status) -> None:
        if status not in SILENCE:
            self._broken.pop((session.name, bookie), None)

    def chose(self, session: SimSession, chosen: tuple[str, ...]) -> None:
        """SES-1."""
        broken = [bookie for bookie in self.hosts if (session.name, bookie) in self._broken]
        avoided = {*broken, *session._avoided()}
        others = [bookie for bookie in session.bookies().writable if bookie not in avoided]
        if len(others) >= len(chosen):
            self.world.probes["a new ensemble did without a suspect"] += bool(broken)
            if set(chosen) & set(broken):
                self._find("I-K8", f"{session.name} chose {chosen}; {broken} had broken, and there were {others}")

    def _find(self, rule: str, detail: str) -> None:
        self._found.setdefault(rule, []).append(detail)

    def found(self, rule: str) -> str | None:
        return next(iter(self._found.get(rule, ())), None)

    # --- running ---------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        world, o = self.world, self.options
        self._publish()
        for puller in self.pullers:
            world.at(int(S * world.random()), puller.start)
        for adder in self.adders:
            world.at(int(S * world.random()), adder.go_on)
        for reader in self.readers:
            world.at(int(S * world.random()), reader.start)
        world.at(LOOK_NS, self._look)
        world.at(500 * MS, self._weather)
        self._run_until(int(o.storm_s * S), lambda: False)
        self._heal()
        total = sum(len(body) for bodies in self.bodies.values() for body in bodies)
        self._run_until(world.now + 120 * S + 6 * total * S // o.rate, self._is_quiet)
        self.over = True
        self._check()
        stats = world.stats
        stats["links"] += len(self.network.links)
        stats["requests over links"] += len(self.asked)
        stats["bytes over links"] += sum(host.back.carried for host in self.hosts.values())

    def _is_quiet(self) -> bool:
        suspects = any(session.suspects for session in self.sessions)
        adding = any(adder.waits_since(link) is not None for adder in self.adders for link in self.network.links)
        return (
            not suspects
            and not adding
            and all(p.done for p in [*self.pullers, *self.readers])
            and all(asked.answers for asked in self.asked[-400:])
        )

    def _run_until(self, at_ns: int, over: Callable[[], bool]) -> None:
        world = self.world
        looked_ns = world.now
        while (due := world.next_at()) is not None and due <= at_ns:
            world.step()
            if world.now - looked_ns >= LOOK_NS:
                looked_ns = world.now
                if over():
                    return

    def _look(self) -> None:
        for reader in self.readers:
            machine = None if reader.driver is None else reader.driver.machine
            if isinstance(machine, RangeReader) and machine.trouble:
                self.world.probes["a read waited for replicas of which none could be reached"] += 1
        for session in self.sessions:
            for bookie in self.hosts:
                key = session.name, bookie
                if bookie not in session.suspects:
                    if self.suspect_ns.pop(key, None) is not None:
                        self.world.probes["a suspect was back and could be chosen again"] += 1
                else:
                    self.suspect_ns.setdefault(key, self.world.now)
        self._check()
        self.world.at(LOOK_NS, self._look)

    def _check(self) -> None:
        for one in LINK_INVARIANTS:
            found = one.check(self)
            self.cluster.checker.evaluated[one.rule] += 1
            if found is not None:
                self.cluster.checker.fail(one.rule, found)

    # --- what happens to it ----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        for session in self.sessions:
            self.world.at(self.world.delay(), session.see)

    def _register(self, host: SimHost) -> None:
        self.store.registered[host.name] = (host.name, host.port)
        self.told_ns[host.name] = self.world.now
        self._publish()

    def _weather(self) -> None:
        if self.calm:
            return
        o, world = self.options, self.world
        for host in self.hosts.values():
            for chance, harm in (
                (o.silent, self._silence),
                (o.stopped, self._stop),
                (o.cut, self._cut),
                (o.crash, self._crash),
                (o.move, self._move),
            ):
                if chance and world.random() < chance:
                    harm(host)
                    host.bad_ns = world.now
        if o.outage and world.random() < o.outage:
            world.note("the metadata store is away")
            self.store.out_until_ns = world.now + int(12 * S * world.random())
            world.at(self.store.out_until_ns - world.now + 1, self._publish)  # watches are set anew
        world.at(500 * MS, self._weather)

    def _silence(self, host: SimHost) -> None:
        which = ((True, True), (True, False), (False, True))[int(self.world.random() * 3)]
        self.world.note(f"{host.name} is silent {which}")
        host.silence(*which)
        self._later(host, lambda: host.silence(False, False))

    def _stop(self, host: SimHost) -> None:
        self.world.note(f"{host.name} stands still")
        host.stop(True)
        self._later(host, lambda: host.stop(False))

    def _cut(self, host: SimHost) -> None:
        self.world.note(f"the connections to {host.name} are reset")
        host.cut_all()

    def _crash(self, host: SimHost) -> None:
        if not host.up:
            return
        vanish = self.world.random() < 0.5
        self.world.note(f"{host.name} crashes{' and nobody is told' if vanish else ''}")
        host.crash(vanish=vanish)
        if self.world.random() < 0.7:
            self.store.registered.pop(host.name, None)
            self._publish()
        self._later(host, lambda: self._restart(host))

    def _restart(self, host: SimHost) -> None:
        host.restart()
        self._register(host)

    def _move(self, host: SimHost) -> None:
        if not host.up:
            return
        self.world.note(f"{host.name} moves")
        host.move()
        self._register(host)

    def _later(self, host: SimHost, end: Callable[[], None]) -> None:
        def over() -> None:
            end()
            host.bad_ns = self.world.now

        self.world.at(int((0.5 + 14 * self.world.random()) * S), over)

    def _heal(self) -> None:
        self.calm = True
        self.world.note("it is calm")
        self.store.out_until_ns = min(self.store.out_until_ns, self.world.now)
        for host in self.hosts.values():
            host.troubles = Troubles()
            host.silence(False, False)
            host.stop(False)
            host.bad_ns = self.world.now
            if not host.up:
                host.restart()
            self._register(host)
