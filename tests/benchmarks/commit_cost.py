"""The cost of a commit as a log grows: ``python -m tests.benchmarks.commit_cost [--segments 100000] [--bookies 1] [--window 300]``.

Against a real ZooKeeper and embedded bookies. The log is grown by commits of a hundred segments each; at 10, 1,000, 10,000, ... segments a
window of commits of one segment each is timed, the work of moving old segments into the history included. Beside the milliseconds: the
size of the list's node in ZooKeeper, smallest and largest in the window, and the size it would have without a history. Then the log is
read back whole and compared, trimmed to half, and deleted; nothing may be left. The figures are printed and never asserted on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bk_core
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.janitor import delete_log, trim_log
from bk_core.client.log.list_store import log_path, now_ms, read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.protocol.log.codec import encode_segment
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, SegmentRange

LOG = "commit-cost"
AT_ONCE = 100
SEGMENTS_PER_LEDGER = 20
ROWS_PER_ENTRY = 250


@dataclass(frozen=True, slots=True)
class Figures:
    """One row: milliseconds per commit, bytes of the node, references in the list and segments in its tail after the window."""

    segments: int
    median_ms: float
    p99_ms: float
    max_ms: float
    mean_ms: float
    bytes_min: int
    bytes_max: int
    bytes_flat: int
    history: int
    tail: int


class Growth:
    """Commits made-up ranges: the cost of a commit does not depend on what is in the ledgers."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.batch = -1
        self.count = 0
        self.flat_bytes = 0

    def commit(self, segments: int) -> LedgerList:
        ranges = [self._range(self.count + i) for i in range(segments)]
        self.batch += 1
        batch, at_ms = self.batch, now_ms()
        changed = update_ledger_list(self.client, LOG, lambda listed: listed.append_segments(ranges, at_ms, "query", batch))
        self.count += segments
        self.flat_bytes += sum(len(json.dumps(encode_segment(s), separators=(",", ":"))) + 1 for s in changed.segments[-segments:])
        return changed

    def _range(self, seq: int) -> SegmentRange:
        first = seq % SEGMENTS_PER_LEDGER * 40
        return SegmentRange(
            10_000_000 + seq // SEGMENTS_PER_LEDGER, first, first + 39, 39 * ROWS_PER_ENTRY + 17, 10_485_760, ROWS_PER_ENTRY
        )

    def grow_to(self, segments: int) -> None:
        while self.count < segments:
            self.commit(min(AT_ONCE, segments - self.count))

    def measure(self, window: int) -> Figures:
        at = self.count
        times, sizes = [], []
        for _ in range(window):
            started = time.perf_counter()
            self.commit(1)
            times.append(1000 * (time.perf_counter() - started))
            sizes.append(len(self.client.store.read(log_path(LOG)).data))
        listed = read_ledger_list(self.client, LOG)
        cuts = statistics.quantiles(times, n=100)
        timing = (round(statistics.median(times), 2), round(cuts[98], 2), round(max(times), 2), round(statistics.fmean(times), 2))
        return Figures(at, *timing, min(sizes), max(sizes), self.flat_bytes, len(listed.history), len(listed.segments))


def check(growth: Growth) -> dict[str, Any]:
    """Everything is there once, positions in the middle are found, half of it and all of it can be removed without a rest."""
    client = growth.client
    before = set(client.store.list_ledgers())
    started = time.perf_counter()
    seqs = [segment.seq for segment in read_log(client, LOG).segments()]
    read_s = time.perf_counter() - started
    view = read_log(client, LOG)
    started = time.perf_counter()
    middle = view.position_at_rows(view.first_position, view.listed.total_rows // 2, None)
    find_ms = 1000 * (time.perf_counter() - started)
    exact = view.counts_before(middle)[0] == view.listed.total_rows // 2
    started = time.perf_counter()
    trim_log(client, LOG, before=Position(growth.count // 2))
    trim_s = time.perf_counter() - started
    size = len(client.store.read(log_path(LOG)).data)
    delete_log(client, LOG)
    return {
        "complete": seqs == list(range(growth.count)),
        "historyLedgers": len(before),
        "readAllSegmentsS": round(read_s, 2),
        "findMiddleMs": round(find_ms, 2),
        "exact": exact,
        "trimHalfS": round(trim_s, 2),
        "bytesAfterTrim": size,
        "ledgersLeft": len(set(client.store.list_ledgers())),
        "intentsLeft": len(client.store.children(f"intents/{LOG}")),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument("--window", type=int, default=300)
    options = parser.parse_args(arguments)
    points = [n for n in (10, 1_000, 10_000, 100_000, 1_000_000) if n < options.segments] + [options.segments]
    replicas = min(3, options.bookies)
    with (
        tempfile.TemporaryDirectory(prefix="bk-commit-") as directory,
        bk_core.local_cluster(options.bookies, Path(directory)) as cluster,
        bk_core.connect(cluster.uri) as client,
    ):
        quorums = {"ensemble_size": replicas, "write_quorum_size": replicas, "ack_quorum_size": (replicas + 1) // 2}
        create_log(client, LOG, LogProperties(entry_format="arrow", **quorums))
        growth = Growth(client)
        growth.grow_to(2)  # the first commits of a process pay for its imports and connections
        print(
            f"{'segments':>10} {'median':>8} {'p99':>8} {'max':>8} {'mean':>8}   bytes of the node (without history)  refs  tail",
            flush=True,
        )
        for point in points:
            growth.grow_to(point)
            f = growth.measure(options.window)
            timing = f"{f.median_ms:8.2f} {f.p99_ms:8.2f} {f.max_ms:8.2f} {f.mean_ms:8.2f}"
            size = f"{f.bytes_min:,}..{f.bytes_max:,} ({f.bytes_flat:,})"
            print(f"{f.segments:10,} {timing}   {size:>35} {f.history:5} {f.tail:5}", flush=True)
            print(json.dumps(asdict(f)), file=sys.stderr)
        for name, value in check(growth).items():
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
