"""``python -m tests.spark_soak --minutes 30``: see README.md. Exit status 1 if rows are missing or doubled, or memory grew."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tests.spark_soak.run import soak, text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between faults; 0: no faults")
    parser.add_argument("--rows", type=int, default=500, help="rows in each batch of each writing query")
    parser.add_argument("--apache", default=None, metavar="VERSION", help="Apache's bookies instead of embedded ones")
    parser.add_argument("--directory", type=Path, default=None, help="for checkpoints, logs, report.json and memory.png; kept")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bk-spark-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {options.apache or 'embedded'} bookies, {options.minutes:g} minutes; {directory}", flush=True)
    report = soak(directory.absolute(), options.minutes * 60, seed, options.every, options.rows, options.apache)
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(text(report), flush=True)
    return 0 if report["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
