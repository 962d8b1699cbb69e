"""``python -m tests.fuzz MODULE --seconds N --seed S``: bytes that nobody sane would send, for as long as it is told.

``MODULE`` is a module of this package with ``run(seconds=, seed=, first=, cases=, say=)``, whose result has ``cases``, ``inputs`` and
``crashes``. ``--case`` plays one case again. Exit status 1 if there was a crash.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "module",
        help="frames: to the client; requests: to the bookie; handshakes, secured_frames: both with TLS and SASL; entries: to the reader; "
        "stored: edited texts",
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--case", type=int, default=None, help="only this one")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if chosen.seed is None else chosen.seed
    print(f"{chosen.module}: seed {seed}", flush=True)
    begun = time.monotonic()
    fuzzed = importlib.import_module(f"tests.fuzz.{chosen.module}")
    limits = {"seconds": chosen.seconds} if chosen.case is None else {"first": chosen.case, "cases": 1}
    result = fuzzed.run(seed=seed, say=lambda text: print(text, flush=True), **limits)
    spent = time.monotonic() - begun
    print(f"{chosen.module}: seed {seed}, {result.cases:,} cases, {result.inputs:,} inputs, {len(result.crashes)} crashes in {spent:.0f} s")
    return 1 if result.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
