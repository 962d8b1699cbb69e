"""The decisions of a seed before anything happens: weather, quorums, options of the machines, limits, and who takes part (papers.md 9)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.limits import Limits
from tests.simulation.cluster import LIMITS
from tests.simulation.world import MS, Weather

SHAPES = ((3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2), (3, 3, 3), (4, 3, 2), (3, 2, 1), (6, 3, 2), (2, 2, 1), (3, 3, 1))
GWQ_SHAPES = ((3, 3, 2), (5, 3, 2), (3, 3, 1), (4, 3, 2), (3, 2, 1))
# In virtual time a timer of one nanosecond would fire a hundred thousand times while one message travels.
SHORTEST_NS = MS // 2


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """Probabilities are per 5 ms of storm. ``forced`` names fields that a mutation fixed."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    bookies: int = 4
    gwq: bool = False
    plain_recovery: bool = False  # recoverers know nothing of GWQ (G-25)
    weather: Weather = field(default_factory=Weather)
    limits: Limits = LIMITS
    writer: WriterOptions = field(default_factory=WriterOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    storm_ms: int = 300
    entries: int = 10
    entries_at_once: int = 4
    append_every_ms: int = 20
    recoverers: int = 1
    recover_at_ms: int = 100
    readers: int = 0
    tailing: bool = True
    late_readers: int = 0  # they begin when the storm is nearly over, and read everything at once
    replicators: int = 0
    crash: float = 0.0
    wipes: int = 0  # so many bookies may lose their disk; less than an ack quorum, or I-2 would be void
    partition: float = 0.0
    pause: float = 0.0
    read_only: float = 0.0
    clog: float = 0.0
    damage: float = 0.0
    writer_dies_ms: int = 0  # 0: it lives
    recoverer_dies: float = 0.0
    close_at_ms: int = 0  # 0: it closes when all is calm
    force_every_ms: int = 20  # with deferred sync
    domains: int = 0  # fault domains; 0: each bookie is one of its own
    busy: float = 0.0  # bookies answer TOO_MANY_REQUESTS for a while
    delete: bool = False  # at the very end
    calm_ms: int = 30_000  # patience with liveness


def draw(seed: int, forced: dict[str, Any] | None = None) -> SwarmOptions:
    rng = random.Random(seed * 2 + 1)
    forced = forced or {}
    pick = rng.random

    def among(*values: Any) -> Any:
        return values[int(pick() * len(values))]

    gwq = bool(forced.get("gwq", pick() < 0.3))
    quorums = forced.get("quorums") or among(*(GWQ_SHAPES if gwq else SHAPES))
    drawn = SwarmOptions(
        quorums=quorums,
        bookies=quorums[0] + int(pick() * 4),
        gwq=gwq,
        plain_recovery=gwq and pick() < 0.2,
        weather=_weather(pick, among),
        limits=_limits(pick, among),
        writer=_writer(pick, among),
        recovery=_recovery(pick, among),
        storm_ms=among(60, 150, 300, 500),
        entries=1 + int(pick() * among(3, 15, 30)),
        entries_at_once=among(1, 4),
        append_every_ms=among(1, 4, 10, 25),
        recoverers=among(0, 0, 1, 1, 2, 3),
        recover_at_ms=int(pick() * among(20, 100, 300)),
        readers=among(0, 0, 1, 2),
        tailing=pick() < 0.7,
        replicators=among(0, 0, 0, 1),
        crash=among(0.0, 0.02, 0.08, 0.2),
        wipes=1 + int(pick() * (quorums[2] - 1)) if quorums[2] > 1 and pick() < 0.25 else 0,
        partition=among(0.0, 0.0, 0.03, 0.1),
        pause=among(0.0, 0.0, 0.03),
        read_only=among(0.0, 0.0, 0.0, 0.03),
        clog=among(0.0, 0.0, 0.05),
        damage=among(0.0, 0.0, 0.0, 0.05),
        writer_dies_ms=int(1 + pick() * 200) if pick() < 0.2 else 0,
        recoverer_dies=among(0.0, 0.0, 0.03),
        close_at_ms=int(1 + pick() * 300) if pick() < 0.3 else 0,
        delete=pick() < 0.15,
    )
    return override(drawn, forced) if forced else _with_rarities(drawn, seed)


def _with_rarities(drawn: SwarmOptions, seed: int) -> SwarmOptions:
    """Add what few seeds have, from a separate source of chance, so that all other seeds stay as they were. Deferred sync excludes
    guaranteed write quorum."""
    rare = random.Random(f"rarities of {seed}")
    chances = [rare.random() for _ in range(7)]
    writer, domains = drawn.writer, 0
    if chances[0] < 0.08 and not drawn.gwq:
        writer = replace(writer, deferred_sync=True)
    if chances[1] < (0.4 if writer.deferred_sync else 0.06):
        writer = replace(writer, caller_ids=True)
    if chances[2] < 0.07:
        domains = domains_for(drawn.quorums)
        writer = replace(writer, fault_domains_min=2)
    if chances[3] < 0.04:
        writer = replace(writer, quorum_timeout_ns=40 * MS)
    every_ms = (5, 20, 60)[int(chances[5] * 3)]
    drawn = replace(drawn, writer=writer, domains=domains, busy=0.1 if chances[4] < 0.1 else 0.0, force_every_ms=every_ms)
    if chances[6] < 0.05 and not drawn.gwq and not domains:
        return _with_bad_copies(drawn)
    return _with_many_fragments(drawn) if chances[6] > 0.96 and not writer.deferred_sync else drawn


def _with_bad_copies(drawn: SwarmOptions) -> SwarmOptions:
    """Many copies are damaged, on two bookies of three, and many readers come late to what was written in peace and take long answers: so
    that a bad entry comes in the middle of one."""
    entries, every_ms, bookies = max(20, drawn.entries), min(4, drawn.append_every_ms), max(4, drawn.bookies)
    whole = replace(drawn, quorums=(3, 3, 3), bookies=bookies)  # every bookie has every entry, so answers may be long
    weather = replace(drawn.weather, loss=min(0.02, drawn.weather.loss))
    calm = replace(whole, wipes=0, crash=min(0.02, drawn.crash), partition=0.0, weather=weather, recoverers=0)
    calm = replace(calm, writer_dies_ms=0, close_at_ms=0)
    return replace(calm, damage=0.8, late_readers=6, entries=entries, append_every_ms=every_ms, storm_ms=max(300, drawn.storm_ms))


def _with_many_fragments(drawn: SwarmOptions) -> SwarmOptions:
    """Bookies crash under a writer that goes on elsewhere at once, and somebody re-replicates what is left behind."""
    writer = replace(drawn.writer, ensemble_change=EnsembleChangeMode.IMMEDIATE)
    busy = replace(drawn, writer=writer, crash=0.2, replicators=max(1, drawn.replicators), bookies=max(drawn.bookies, drawn.quorums[0] + 2))
    return replace(busy, entries=max(20, drawn.entries), append_every_ms=10, storm_ms=300, writer_dies_ms=0, close_at_ms=0)


def domains_for(quorums: tuple[int, int, int]) -> int:
    """So many that b1 b2 b3 ..., in them by turns, make write sets of two domains at least."""
    size, write_quorum, _ = quorums
    alternate = all(len({(start + k) % size % 2 for k in range(write_quorum)}) == 2 for start in range(size))
    return 2 if alternate else 3


def election_lost(seed: int) -> float:
    """Return how often leaders of a log hear that another one was elected."""
    return 0.7 if random.Random(f"election of {seed}").random() < 0.5 else 0.0


def override(options: SwarmOptions, forced: dict[str, Any]) -> SwarmOptions:
    """``forced`` may name fields of the options, and with dots fields of its parts: "weather.loss", "limits.read_chunk_entries"."""
    for name, value in forced.items():
        part, _, inner = name.partition(".")
        options = replace(options, **{part: replace(getattr(options, part), **{inner: value}) if inner else value})
    return options


def _weather(pick: Any, among: Any) -> Weather:
    return Weather(
        loss=among(0.0, 0.0, 0.02, 0.15),
        duplication=among(0.0, 0.0, 0.1),
        slow=among(0.0, 0.1, 0.4),
        slow_disk=among(0.0, 0.0, 0.2),
        store_loss=among(0.0, 0.0, 0.3),
        reset=among(1.0, 0.5, 0.0),
        timers=among(0.0, 0.0, 0.2),
    )


def _limits(pick: Any, among: Any) -> Limits:
    """Mostly those of the simulator; one in twelve of each is a nasty one."""
    chosen: dict[str, int] = {"recovery_window_entries": among(1, 2, 32)}
    for one in fields(Limits):
        nasty = one.metadata.get("nasty", ())
        if nasty and pick() < 0.08:
            value = among(*nasty)
            chosen[one.name] = max(value, SHORTEST_NS) if one.name.endswith(("_ns", "_ns_max")) else value
    return replace(LIMITS, **chosen)


def _writer(pick: Any, among: Any) -> WriterOptions:
    return WriterOptions(
        ensemble_change=among(*[EnsembleChangeMode.IMMEDIATE] * 3, EnsembleChangeMode.DELAYED, EnsembleChangeMode.DISABLED),
        window=among(None, ChangeWindow.BLOCK, ChangeWindow.SURVIVORS),
        close_in_recovery=pick() < 0.15,
        quorum_timeout_ns=among(None, None, None, 150 * MS),
        busy_resends_max=among(0, 2),
    )


def _recovery(pick: Any, among: Any) -> RecoveryOptions:
    return RecoveryOptions(
        ensemble_change=among(EnsembleChangeMode.IMMEDIATE, EnsembleChangeMode.IMMEDIATE, EnsembleChangeMode.DELAYED),
        barrier=pick() < 0.2,
        reread_last_fragment=pick() < 0.5,
        explicit_lafr=pick() < 0.7,
        limbo_counts_as_fenced=pick() < 0.2,
        bump_version=pick() < 0.2,
        sequential_reads=pick() < 0.2,
    )
