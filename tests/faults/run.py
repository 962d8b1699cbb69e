"""Plays cells one after the other and sums up what they found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bk_core
from tests.faults.cells import CLUSTER, LOCAL, Spec
from tests.faults.harness import DIRECTORY, Cell, HangingError, HarnessError, Verdict, World
from tests.faults.metadata import KINDS, ZOOKEEPER
from tests.faults.standalone import StandaloneSpark

BOOKIES = 4  # one more than an ensemble, so that a lost one can be replaced


@contextmanager
def made_world(directory: Path, apache: str | None = None, checkpoint: str = DIRECTORY, metadata: str = ZOOKEEPER.name) -> Iterator[World]:
    """A new cluster, whose metadata store is a process of its own that may be killed, and no driver yet."""
    with ExitStack() as stack:
        kind = KINDS[metadata]
        keeper = stack.enter_context(kind.process(directory / metadata))
        cluster = stack.enter_context(bk_core.local_cluster(bookies=BOOKIES, apache=apache, zookeeper=kind.uri(keeper)))
        client = stack.enter_context(bk_core.connect(cluster.uri))
        world = World(cluster, client, directory, checkpoint=checkpoint, keeper=keeper)
        stack.callback(world.close)
        yield world


def play(world: World, spec: Spec, seed: str) -> Verdict:
    """One cell from empty to judged. Its choices follow from ``seed`` and its name, whatever is played before it."""
    begun = time.monotonic()
    world.rng = random.Random(f"{seed}/{spec.name}")
    verdict = Verdict(spec.step, spec.fault)
    cell = Cell(world, "f")
    try:
        spec.play(cell)
        cell.judge(verdict)
    except Exception as error:
        verdict.runs, verdict.fired, verdict.errors = cell.runs, cell.fired(), cell.errors
        verdict.problem = f"{type(error).__name__}: {error}"
        if isinstance(error, HangingError) or not isinstance(error, HarnessError):
            world.kill_driver()  # whatever is wrong there shall not trouble the next cell
    finally:
        cell.release()
        cell.heal()
        cell.remove()
    verdict.seconds = time.monotonic() - begun
    return verdict


def play_all(
    chosen: Sequence[Spec],
    directory: Path,
    seed: int,
    repeat: int,
    apache: str | None,
    say: Callable[[str], None],
    checkpoint: str = DIRECTORY,
    metadata: str = ZOOKEEPER.name,
) -> list[Verdict]:
    """All cells ``repeat`` times on one cluster: first those of a local Spark, then those that need executors."""
    verdicts = []
    with made_world(directory, apache, checkpoint, metadata) as world:
        for kind in (LOCAL, CLUSTER):
            mine = [spec for spec in chosen if spec.world == kind]
            if not mine:
                continue
            with ExitStack() as inner:
                inner.callback(world.kill_driver)
                if kind == CLUSTER:
                    world.kill_driver()
                    world.standalone = inner.enter_context(StandaloneSpark(directory / "standalone"))
                    world.master, world.conf = world.standalone.master, world.standalone.conf
                for repetition in range(repeat):
                    for spec in mine:
                        verdict = play(world, spec, f"{seed}/{repetition}")
                        verdicts.append(verdict)
                        say(line(verdict))
    return verdicts


def line(verdict: Verdict) -> str:
    state = "ok  " if verdict.good else "BAD "
    counts = f"runs {verdict.runs} missing {verdict.missing} doubled {verdict.doubled} foreign {verdict.foreign}"
    counts += f" ledgers {verdict.ledgers} leftovers {verdict.leftovers} intents {verdict.intents}"
    if verdict.states:
        counts += f" state rows {verdict.states} differing {verdict.differing}"
    problem = f"\n      {verdict.problem}" if verdict.problem else ""
    return f"{state} {verdict.seconds:5.1f} s  {verdict.step} / {verdict.fault}: {counts}{problem}"


def table(verdicts: Sequence[Verdict]) -> str:
    """Markdown: one row for each cell, summed over its repetitions, and one for all."""
    rows: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        rows.setdefault((verdict.step, verdict.fault), []).append(verdict)
    lines = [
        "| Step | Fault | Played | Starts of the query | Missing | Doubled | Leftovers | State rows | Differing | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [_row(step, fault, found) for (step, fault), found in rows.items()]
    return "\n".join([*lines, _row("**all**", f"{len(rows)} cells", list(verdicts))])


def _row(step: str, fault: str, found: Sequence[Verdict]) -> str:
    each = ((v.runs, v.missing, v.doubled + v.foreign, v.leftovers + v.intents, v.states, v.differing) for v in found)
    total = [sum(values) for values in zip(*each, strict=True)]
    bad = sum(not verdict.good for verdict in found)
    return f"| {step} | {fault} | {len(found)} | " + " | ".join(map(str, total)) + f" | {f'**{bad} bad**' if bad else ''} |"
