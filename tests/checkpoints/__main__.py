"""``python -m tests.checkpoints``: all cases, a table, exit status 1 if a row or a state differs. See README.md."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.checkpoints.cases import cases
from tests.checkpoints.judge import table
from tests.checkpoints.play import Plan
from tests.checkpoints.run import play_all
from tests.faults.harness import DIRECTORY, LEDGERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints")
    parser.add_argument("--restarts", type=int, default=20, help="of each query")
    parser.add_argument("--kills", type=int, default=6, help="how many of them are by kill -9 of the driver")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cases", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--together", type=int, default=2, help="how many cases share a Spark session")
    parser.add_argument("--sides", default=f"{DIRECTORY},{LEDGERS}", help="where the checkpoints of the plays lie")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    parser.add_argument("--json", type=Path, default=None, help="write the verdicts there too")
    parser.add_argument("--directory", type=Path, default=None, help="for input, output, checkpoints and drivers' logs; kept")
    options = parser.parse_args()
    chosen = [case for case in cases() if re.search(options.cases, case.name)]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    directory = (options.directory or Path(tempfile.mkdtemp(prefix="bk-checkpoints-"))).absolute()
    plan = Plan(options.restarts, options.kills, tuple(options.sides.split(",")))
    print(f"seed {seed}, {len(chosen)} cases, {plan.rounds} restarts of each, {plan.kills} of them kills; {directory}", flush=True)
    judged = play_all(chosen, directory, seed, plan, options.together, lambda text: print(text, flush=True))
    print(table(judged), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"seed": seed, "verdicts": [asdict(one) for one in judged]}, indent=1) + "\n")
    return 0 if all(one.good for one in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
