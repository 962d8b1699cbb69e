"""Our client in a process of its own: ``python -m tests.benchmarks.ours PROTOCOL``. The commands and answers are those of ``Bench.java``.

It uses what every program uses: ``append_run_future``, ``read_runs`` and ``append``. A run holds at most 500 entries or 1 MiB.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import bk_core
from bk_core.errors import BkError

RUN_ENTRIES = 500
RUN_BYTES = 1 << 20
TIMEOUT_S = 60.0


class Ours:
    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._client: bk_core.BookKeeper | None = None

    def connect(self, uri: str) -> tuple[int, ...]:
        self.disconnect()
        self._client = bk_core.connect(uri, protocol=self._protocol)
        return (0,)

    def disconnect(self) -> tuple[int, ...]:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        return (0,)

    @property
    def client(self) -> bk_core.BookKeeper:
        assert self._client is not None, "connect first"
        return self._client

    def write(self, entries: int, size: int, in_flight: int, e: int, qw: int, qa: int) -> tuple[int, ...]:
        run = max(1, min(RUN_ENTRIES, RUN_BYTES // size, entries))
        values, offsets = bytes(size * run), array("q", range(0, (run + 1) * size, size))
        with self.client.create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa) as ledger:
            pending: deque[Future[int]] = deque()
            start = time.perf_counter_ns()
            for first in range(0, entries, run):
                if len(pending) >= max(2, in_flight // run):
                    pending.popleft().result(TIMEOUT_S)
                pending.append(ledger.append_run_future(values, offsets[: min(run, entries - first) + 1]))
            for future in pending:
                future.result(TIMEOUT_S)
            took = time.perf_counter_ns() - start
        return took, ledger.ledger_id

    def read(self, ledger_id: int, entries: int, batch_bytes: int = 0, copy: int = 1) -> tuple[int, ...]:
        with self.client.open_ledger(ledger_id) as ledger:
            start = time.perf_counter_ns()
            size = sum(len(run.values) for run in ledger.read_runs(0, entries - 1))
            return time.perf_counter_ns() - start, size

    def latency(self, entries: int, size: int, e: int, qw: int, qa: int) -> tuple[int, ...]:
        payload, took = bytes(size), []
        with self.client.create_ledger(ensemble_size=e, write_quorum_size=qw, ack_quorum_size=qa) as ledger:
            for _ in range(entries):
                start = time.perf_counter_ns()
                ledger.append(payload)
                took.append(time.perf_counter_ns() - start)
        took.sort()
        return took[entries // 2], took[int(entries * 0.99)], took[int(entries * 0.999)]


def main() -> None:
    ours = Ours(sys.argv[1])
    commands: dict[str, Callable[..., tuple[int, ...]]]
    commands = {"write": ours.write, "read": ours.read, "single": ours.read, "latency": ours.latency}
    print("ready", flush=True)
    for line in sys.stdin:
        name, *words = line.split()
        try:
            if name == "connect":
                answer = ours.connect(words[0])
            else:
                answer = ours.disconnect() if name == "disconnect" else commands[name](*map(int, words))
        except BkError as error:
            print(error, file=sys.stderr)
            answer = (-1, 0)
        print(*answer, flush=True)
    ours.disconnect()


if __name__ == "__main__":
    main()
