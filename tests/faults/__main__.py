"""``python -m tests.faults``: all cells, a table, exit status 1 if anything is missing, doubled or left over. See README.md."""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
import sys
import tempfile
from pathlib import Path

from tests.faults.cells import cells
from tests.faults.harness import DIRECTORY, LEDGERS
from tests.faults.metadata import ETCD, KINDS, ZOOKEEPER
from tests.faults.run import play_all, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--repeat", type=int, default=1, help="how often each cell is played")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cells", default="", metavar="REGEX", help="only cells whose 'step / fault' matches")
    parser.add_argument("--apache", default=None, metavar="VERSION", help="Apache's bookies instead of embedded ones")
    parser.add_argument("--checkpoint", choices=(DIRECTORY, LEDGERS), default=DIRECTORY, help="where the cells' checkpoints are")
    parser.add_argument("--metadata", choices=KINDS, default=ZOOKEEPER.name, help="what the metadata is in")
    parser.add_argument("--list", action="store_true", help="only name the cells")
    parser.add_argument("--json", type=Path, default=None, help="write the verdicts there too")
    parser.add_argument("--directory", type=Path, default=None, help="for logs and checkpoints; kept")
    options = parser.parse_args()
    if options.apache and options.metadata == ETCD.name:
        parser.error("Apache's bookies cannot keep their metadata in this etcd: leave --apache or --metadata etcd out")
    chosen = [spec for spec in cells(options.checkpoint, options.metadata) if re.search(options.cells, spec.name)]
    if options.list:
        print("\n".join(f"{spec.world:8} {spec.name}" for spec in chosen))
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bk-faults-"))
    where = f"{options.apache or 'embedded'} bookies, metadata in {options.metadata}, checkpoints in "
    where += "a directory" if options.checkpoint == DIRECTORY else "ledgers"
    print(f"seed {seed}, {len(chosen)} cells, {where}; {directory}", flush=True)
    say = functools.partial(print, flush=True)
    kinds = {"checkpoint": options.checkpoint, "metadata": options.metadata}
    verdicts = play_all(chosen, directory.absolute(), seed, options.repeat, options.apache, say, **kinds)
    print(table(verdicts), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{name: getattr(v, name) for name in v.__dataclass_fields__} for v in verdicts]
        played = {"seed": seed, "bookies": options.apache or "embedded", **kinds, "verdicts": rows}
        options.json.write_text(json.dumps(played, indent=1) + "\n")
    return 0 if all(verdict.good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
