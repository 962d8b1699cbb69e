"""Figures of thin and far links.

    python -m tests.network.measure [--megabytes-per-second 0.1 1 5] [--delay 0 0.2] [--seconds 10] [--readers 60]

For each bandwidth of each bookie's link and each delay (one way, in seconds): a bulk read, a read from one bookie only, a full check, a
recovery and a repair, of a ledger that is large enough for ``--seconds``. Printed: seconds; seconds that the bytes of the result take at
that bandwidth; bytes moved for each byte that had to be. Then so many readers of one bookie behind one link. Embedded bookies; run it on
a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from tests.network.detour import Detour

ENTRY_BYTES = 10_000
BOOKIES = 4
PATIENCE_S = 900.0


def write(cluster: LocalCluster, size: int, replicas: int, *, close: bool) -> int:
    """A ledger of random bytes, in one run: nothing in its entries says how much of it is confirmed."""
    payloads = [random.randbytes(ENTRY_BYTES) for _ in range(max(1, size // ENTRY_BYTES))]
    with bk_core.connect(cluster.uri) as bk:
        ledger = bk.create_ledger(ensemble_size=replicas, write_quorum_size=replicas, ack_quorum_size=min(2, replicas))
        ledger.append_many(payloads)
        if close:
            ledger.close()
        else:
            ledger.abandon()
        return ledger.ledger_id


def read(bk: bk_core.BookKeeper, ledger_id: int) -> None:
    with bk.open_ledger(ledger_id) as reader:
        for _ in reader.read_runs(0, reader.last_add_confirmed):
            pass


def show(what: str, took_s: float, ideal_s: float, moved: int, needed: int) -> None:
    print(f"  {what:24s} {took_s:7.1f} s  of {ideal_s:6.1f} s  {took_s / ideal_s:5.2f}   moved/needed {moved / needed:5.2f}", flush=True)


def timed(detour: Detour, job: Callable[[], object]) -> tuple[float, int]:
    moved, began = detour.carried, time.monotonic()
    job()
    return time.monotonic() - began, detour.carried - moved


def one_condition(cluster: LocalCluster, rate: float, delay_s: float, seconds: float) -> None:
    """``needed``: what the operation has to move at least: a recovery reads every copy and writes every copy, a check reads all."""
    size = int(rate * seconds) // ENTRY_BYTES * ENTRY_BYTES
    print(f"{rate / 1e6:g} MB/s for each bookie, {delay_s * 1000:g} ms each way, {size / 1e6:g} MB", flush=True)
    settings = {"operation_timeout_s": PATIENCE_S}
    closed, alone, broken = write(cluster, size, 3, close=True), write(cluster, size, 1, close=True), write(cluster, size, 3, close=False)
    with Detour(cluster) as detour:
        detour.throttle(rate)
        detour.delay(delay_s)
        took, moved = timed(detour, lambda: read(detour.connect(**settings), closed))
        show("bulk read, 3 replicas", took, size / rate, moved, size)
        took, moved = timed(detour, lambda: read(detour.connect(**settings), alone))
        show("bulk read, 1 replica", took, size / rate, moved, size)
        took, moved = timed(detour, lambda: read(detour.connect(protocol="v3", **settings), closed))
        show("the same over v3", took, size / rate, moved, size)
        took, moved = timed(detour, lambda: detour.connect(**settings).check_ledger(closed, full=True))
        show("full check", took, size / rate, moved, 3 * size)
        took, moved = timed(detour, lambda: detour.connect(**settings).recover_ledger(broken).close())
        show("recovery", took, size / rate, moved, 6 * size)
        with bk_core.connect(cluster.uri) as bk:
            lost = bk.ledger_metadata(closed).fragments[0].ensemble[0]
        took, moved = timed(detour, lambda: detour.connect(**settings).repair_ledger(closed, lost=frozenset({lost})))
        show("repair of one replica", took, size / rate, moved, 2 * size)


def many_readers(cluster: LocalCluster, rate: float, readers: int, seconds: float, *, clients: int) -> None:
    """All of one ledger on one bookie; each reads all of it."""
    size = int(rate * seconds / readers) // ENTRY_BYTES * ENTRY_BYTES
    ledger_id = write(cluster, size, 1, close=True)
    with Detour(cluster) as detour:
        made = [detour.connect(operation_timeout_s=60.0) for _ in range(clients)]
        detour.throttle(rate)
        failures: list[str] = []

        def one(number: int) -> None:
            try:
                read(made[number % clients], ledger_id)
            except bk_core.BkError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(readers)]

        def all_of_them() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        took, moved = timed(detour, all_of_them)
        show(f"{readers} readers, {clients} clients", took, readers * size / rate, moved, readers * size)
        print(f"  failed: {len(failures)} {failures[:1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes-per-second", type=float, nargs="+", default=[0.1, 1, 5])
    parser.add_argument("--delay", type=float, nargs="+", default=[0.0, 0.2])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--readers", type=int, default=60)
    arguments = parser.parse_args()
    with bk_core.local_cluster(BOOKIES) as cluster:
        for rate in arguments.megabytes_per_second:
            for delay_s in arguments.delay:
                one_condition(cluster, rate * 1e6, delay_s, arguments.seconds)
        print(f"{arguments.readers} readers behind one link of 5 MB/s", flush=True)
        for clients in (1, arguments.readers):
            many_readers(cluster, 5e6, arguments.readers, 6 * arguments.seconds, clients=clients)


if __name__ == "__main__":
    main()
