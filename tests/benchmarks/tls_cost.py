"""The cost of TLS to a client: ``python -m tests.benchmarks.tls_cost [--megabytes 512] [--rounds 3] [--entry-bytes 4096]``.

Two clusters of embedded bookies stand side by side, one in clear and one with TLS and client certificates. The same entries are written to
and read from each by turns, so that a busy machine weighs on both. Seconds of CPU are those of this process, the client, per GB of payload;
the bookies' are not among them. The medians of the rounds are printed and never asserted on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import bk_core
from bk_core.bookie.local_cluster import local_cluster

RUN_BYTES = 4 << 20
IN_FLIGHT = 8


def written(client: bk_core.BookKeeper, total: int, entry_bytes: int) -> int:
    """Write a ledger, one copy of each entry, and return its id."""
    payload = bytes(range(256)) * (entry_bytes // 256)
    run = [payload] * (RUN_BYTES // len(payload))
    with client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
        pending = []
        for _ in range(total // RUN_BYTES):
            pending.append(ledger.append_many_future(run))
            if len(pending) > IN_FLIGHT:
                pending.pop(0).result(120)
        for one in pending:
            one.result(120)
        return ledger.ledger_id


def read_back(client: bk_core.BookKeeper, ledger_id: int) -> int:
    """Read a ledger, and return the number of its entries."""
    with client.open_ledger(ledger_id) as reader:
        return sum(len(run) for run in reader.read_runs(0, reader.last_add_confirmed))


def cpu_of(work: Callable[[], int]) -> tuple[float, float, int]:
    """Seconds of CPU, seconds, and what the work returned."""
    cpu, wall = time.process_time(), time.monotonic()
    found = work()
    return time.process_time() - cpu, time.monotonic() - wall, found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tls_cost")
    parser.add_argument("--megabytes", type=int, default=512, help="of payload, in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entry-bytes", type=int, default=4096)
    options = parser.parse_args(arguments)
    total = options.megabytes << 20
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        clients = {}
        for name, tls in (("clear", False), ("tls", True)):
            cluster = stack.enter_context(local_cluster(1, tls=tls))
            clients[name] = stack.enter_context(bk_core.connect(cluster.uri))
            written(clients[name], 16 << 20, options.entry_bytes)  # so that all is warm
        for _ in range(options.rounds):
            for name, client in clients.items():
                cpu, wall, ledger_id = cpu_of(lambda client=client: written(client, total, options.entry_bytes))  # type: ignore[misc]
                figures[f"write {name}"].append((cpu, wall))
                cpu, wall, _ = cpu_of(lambda client=client, ledger_id=ledger_id: read_back(client, ledger_id))  # type: ignore[misc]
                figures[f"read {name}"].append((cpu, wall))
                client.delete_ledger(ledger_id)
    for name, rounds in sorted(figures.items()):
        cpu, wall = (statistics.median(column) * 1e9 / total for column in zip(*rounds, strict=True))
        print(f"{name:12} {cpu:6.2f} s of CPU per GB   {1e3 / wall:7.1f} MB/s")
    json.dump({name: rounds for name, rounds in figures.items()}, sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
