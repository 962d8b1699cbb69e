"""``python -m tests.simulation --seed N --trace`` replays one seed; ``--from S --seeds N --jobs J`` runs many and prints what they did."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.invariants import InvariantViolated
from tests.simulation.probes import PROBES
from tests.simulation.runs import run_of

CHUNK = 100


@dataclass(slots=True)
class Tally:
    seeds: int = 0
    steps: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    evaluated: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.stats.update(other.stats)
        self.probes.update(other.probes)
        self.evaluated.update(other.evaluated)
        self.broken += other.broken


def play_seeds(first: int, count: int) -> Tally:
    """Run seeds first..first+count-1. A broken invariant, or a machine that raises, ends its seed, not the tally."""
    tally = Tally()
    for seed in range(first, first + count):
        run = run_of(seed)
        try:
            run.play()
        except InvariantViolated as error:
            tally.broken.append((seed, error.rule, error.detail))
        except Exception as error:
            tally.broken.append((seed, "crash", f"{type(error).__name__}: {error}"))
        tally.seeds += 1
        tally.steps += run.world.steps
        tally.stats.update(run.world.stats)
        tally.probes.update(run.world.probes)
        tally.evaluated.update(run.cluster.checker.evaluated)
    return tally


def trace(seed: int) -> int:
    run = run_of(seed, verbose=True)
    good = 0
    try:
        run.play()
    except InvariantViolated as error:
        good = 1
        print("\n".join(run.world.lines))
        print(f"\n{error.rule} broken: {error.detail}")
    else:
        print("\n".join(run.world.lines))
    print(f"\n{run.options}\nfingerprint {run.world.fingerprint()}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: every message")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed of many")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long, whatever is left")
    parser.add_argument("--require-probes", action="store_true", help="fail if a rare state was never reached")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # production links say what they meet; here that is the weather
    if options.seed is not None:
        return trace(options.seed)
    begun = time.perf_counter()
    total = Tally()
    starts = range(options.first, options.first + options.seeds, CHUNK)
    sizes = [min(CHUNK, options.first + options.seeds - start) for start in starts]
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            for tally in pool.map(play_seeds, starts, sizes):
                total.add(tally)
                if time.perf_counter() - begun > options.seconds:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
    else:
        for start, size in zip(starts, sizes, strict=True):
            total.add(play_seeds(start, size))
            if time.perf_counter() - begun > options.seconds:
                break
    return report(total, time.perf_counter() - begun, require_probes=options.require_probes)


def report(total: Tally, seconds: float, *, require_probes: bool) -> int:
    print(f"{total.seeds} seeds, {total.steps} steps, {total.seeds / seconds:.0f} seeds/s, {len(total.broken)} broken")
    for title, counts in (("what they did", total.stats), ("rare states reached", total.probes), ("evaluations", total.evaluated)):
        print(f"\n{title}:")
        for name in sorted(counts):
            print(f"  {counts[name]:>10}  {name}")
    missed = [probe for probe in PROBES if not total.probes[probe]]
    if missed:
        print("\nrare states never reached:")
        for probe in missed:
            print(f"  {probe}")
    for seed, rule, detail in total.broken[:20]:
        print(f"\nseed {seed} breaks {rule}: {detail.splitlines()[0]}")
    return 1 if total.broken or (require_probes and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
