"""Writes on command, for ``metrics_cost``: ``python -P metrics_writes.py URI`` with either tree on the path.

A command is ``ENTRIES SIZE RUN``. The answer is the nanoseconds of CPU that all threads of this process took, and those that passed.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import bk_core

IN_FLIGHT_ENTRIES = 4000


def cpu_ns() -> int:
    """Return the CPU time of all threads, to the nanosecond; the threads that count live as long as the client."""
    return sum(int(path.read_text().split()[0]) for path in Path("/proc/self/task").glob("*/schedstat"))


def write(client: bk_core.BookKeeper, entries: int, size: int, run: int) -> tuple[int, int]:
    values, offsets = bytes(size * run), array("q", range(0, (run + 1) * size, size))
    with client.create_ledger() as ledger:
        append_run = getattr(ledger, "append_run_future", None) or ledger.append_run  # older trees have the second one
        pending: deque[Future[int]] = deque()
        began, cpu = time.perf_counter_ns(), cpu_ns()
        for _ in range(entries // run):
            if len(pending) * run >= IN_FLIGHT_ENTRIES:
                pending.popleft().result(60)
            pending.append(append_run(values, offsets))
        for future in pending:
            future.result(60)
        return cpu_ns() - cpu, time.perf_counter_ns() - began


def main() -> None:
    with bk_core.connect(sys.argv[1]) as client:
        print(bk_core.__file__, flush=True)
        for line in sys.stdin:
            entries, size, run = map(int, line.split())
            took = write(client, entries, size, run)
            print(*took, flush=True)


if __name__ == "__main__":
    main()
