"""``python -m tests.simulation --seed N --trace`` replays one seed; ``--seeds N`` runs many and prints what they did."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.simulation.cluster import Run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    begun = time.perf_counter()
    for seed in range(options.seed, options.seed + options.seeds):
        run = Run(seed)
        run.play()
        run.world.stats["acknowledged"] = len(run.world.acknowledged)
        run.world.stats["changes"] = len(run.world.metadata.fragments) - 1
        totals.update(run.world.stats)
        if options.trace:
            print("\n".join(run.world.lines))
            print(f"{run.world.options}\ntrace {run.world.trace.hexdigest()[:16]}")
    took = time.perf_counter() - begun
    print(f"{options.seeds} seeds, no violation, {options.seeds / took:.0f} seeds/s: {dict(totals)}")


if __name__ == "__main__":
    main()
