"""``python -m tests.soak --minutes 30 --bookies 4 --seed N``: exit status 1 if an invariant was broken. See README.md."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path

from bk_core.bookie import apache
from tests.soak.faults import AUTO_RECOVERY_FAULTS, FAULTS, FAULTS_ON_ETCD
from tests.soak.run import Plan, soak
from tests.soak.stores import STORES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--bookies", type=int, help="default: 4, with --auto-recovery 5, so that one can be lost")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--embedded", action="store_true", help="embedded bookies instead of Apache's")
    parser.add_argument("--apache", default=apache.DEFAULT_VERSION, metavar="VERSION")
    parser.add_argument("--metadata", choices=tuple(STORES), default="zookeeper", help="etcd: three servers, and embedded bookies")
    parser.add_argument("--auto-recovery", action="store_true", help="two processes of it, which are killed; bookies are lost for good")
    parser.add_argument("--secured", action="store_true", help="TLS with certificates of clients, and a password; embedded bookies")
    parser.add_argument("--protocol", choices=("v2", "v3"), default="v2")
    parser.add_argument("--no-java", action="store_true", help="without Apache's Java client beside ours")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--directory", type=Path, default=None, help="an empty or new directory for the history and all logs")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bk-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=directory / "client.log", level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    version = None if options.embedded or options.secured or options.metadata == "etcd" else options.apache
    kind = f"{'secured ' if options.secured else ''}{version or 'embedded'} bookies"
    what = f"{kind} on {options.metadata}, {options.minutes:g} minutes"
    print(f"seed {seed}, {what}; history in {directory}", flush=True)
    faults = (FAULTS_ON_ETCD if options.metadata == "etcd" else FAULTS) + (AUTO_RECOVERY_FAULTS if options.auto_recovery else ())
    plan = Plan(
        seconds=options.minutes * 60,
        seed=seed,
        bookies=options.bookies or (5 if options.auto_recovery else 4),
        version=version,
        protocol=options.protocol,
        java=not options.no_java and version is not None,
        faults=() if options.no_faults else faults,
        metadata=options.metadata,
        auto_recovery=options.auto_recovery,
        secured=options.secured,
    )
    report = soak(plan, directory, lambda line: print(line, flush=True))
    print(report.text(), flush=True)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
