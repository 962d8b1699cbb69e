"""``python -m tests.soak --minutes 30 --bookies 4 --seed N``: exit status 1 if an invariant was broken. See README.md."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path

from bk_core.bookie import apache
from tests.soak.faults import FAULTS
from tests.soak.run import Plan, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--bookies", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--embedded", action="store_true", help="embedded bookies instead of Apache's")
    parser.add_argument("--apache", default=apache.DEFAULT_VERSION, metavar="VERSION")
    parser.add_argument("--protocol", choices=("v2", "v3"), default="v2")
    parser.add_argument("--no-java", action="store_true", help="without Apache's Java client beside ours")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--directory", type=Path, default=None, help="an empty or new directory for the history and all logs")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bk-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=directory / "client.log", level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    version = None if options.embedded else options.apache
    print(f"seed {seed}, {version or 'embedded'} bookies, {options.minutes:g} minutes; history in {directory}", flush=True)
    plan = Plan(
        seconds=options.minutes * 60,
        seed=seed,
        bookies=options.bookies,
        version=version,
        protocol=options.protocol,
        java=not options.no_java and version is not None,
        faults=() if options.no_faults else FAULTS,
    )
    report = soak(plan, directory, lambda line: print(line, flush=True))
    print(report.text(), flush=True)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
