"""``python -m tests.secured_matrix``: all rows, a table, exit status 1 if a cell failed. See README.md."""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.secured_matrix.play import play_all
from tests.secured_matrix.table import BOOKIES, Row, is_good, loaded, rows_of, saved, summary, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.secured_matrix")
    parser.add_argument("--releases", nargs="+", default=BOOKIES, choices=BOOKIES, help="whose bookies")
    parser.add_argument("--only", default="", metavar="REGEX", help="only rows whose 'bookies way who wire' matches")
    parser.add_argument("--without-spark", action="store_true", help="leave its columns out")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    parser.add_argument("--json", type=Path, default=None, help="write the cells there too; rows that are there and are not played stay")
    parser.add_argument("--show", type=Path, default=None, help="only print the tables of such a file")
    parser.add_argument("--directory", type=Path, default=None, help="for a new folder of logs; kept")
    options = parser.parse_args()
    if options.show is not None:
        rows = loaded(options.show)
        print(f"{table(rows)}\n\n{summary(rows)}")
        return 0 if is_good(rows) else 1
    chosen = [row for row in rows_of(options.releases) if re.search(options.only, row.name)]
    if options.list:
        print("\n".join(row.name for row in chosen))
        return 0
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bk-secured-", dir=options.directory))
    print(f"{len(chosen)} rows; logs in {directory}", flush=True)

    def keep(rows: Sequence[Row]) -> None:
        if options.json is not None:
            saved(options.json, rows)

    say = functools.partial(print, flush=True)
    shown = play_all(chosen, directory.absolute(), say, with_spark=not options.without_spark, keep=keep)
    print(f"\n{table(chosen)}", flush=True)
    for log in shown:
        print(f"a log shows a password: {log}", flush=True)
    return 0 if chosen and is_good(chosen) and not shown else 1


if __name__ == "__main__":
    sys.exit(main())
