"""A program that is sent SIGINT again and again while it works: ``python -m tests.integration.interrupted URI SEED COUNT SLOW``.

Each interrupt is a real signal at a random moment of one call. After it the handle has to work on, or to say clearly that it does not.
In the end everything is read again: what was acknowledged is there in order, whole and once, and a run of a log that was not acknowledged
is there whole or not at all. The last line on standard output is a JSON object of what happened. Exit status 1 and a message if anything is
wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import bk_core
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BkError
from bk_core.metadata import open_store
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties
from tests.network.proxy import Proxy

MOMENT_S = {False: 0.02, True: 0.2}  # an interrupt comes within this after a call began
WORKS_ON_S = 60.0
RUN = 40


class Signals:
    """Sends one SIGINT at a time, from a thread of its own, and lets it strike only where one is waited for."""

    def __init__(self, rng: random.Random, moment_s: float) -> None:
        self._rng, self._moment_s = rng, moment_s
        self._armed = threading.Semaphore(0)
        self.struck = True
        self.sent = 0
        signal.signal(signal.SIGINT, self._strike)
        threading.Thread(target=self._send, daemon=True).start()

    def _strike(self, *_: object) -> None:
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt

    def _send(self) -> None:
        while True:
            self._armed.acquire()
            time.sleep(self._rng.random() ** 3 * self._moment_s)  # more often early, where the short steps are
            os.kill(os.getpid(), signal.SIGINT)

    def during(self, call: Callable[[], object]) -> bool:
        """True if the call was struck before it ended; the interrupt has come when this returns."""
        ended = False
        self.sent += 1
        try:
            self.struck = False
            self._armed.release()
            call()
            ended = True
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            return not ended


class SlowStore:
    """A store that names a proxy's address for each bookie."""

    def __init__(self, store: Any, proxy: Proxy) -> None:
        self._store, self._proxy = store, proxy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def resolve(self, bookie_id: str) -> tuple[str, int]:
        return "127.0.0.1", self._proxy.link("client", bookie_id, *self._store.resolve(bookie_id)).listen_port


class Work:
    """Everything that can be interrupted, and what was acknowledged meanwhile."""

    def __init__(self, uri: str, seed: int, slow: bool) -> None:
        self.uri, self.slow, self.rng = uri, slow, random.Random(seed)
        self.signals = Signals(random.Random(seed + 1), MOMENT_S[slow])
        self.proxy = Proxy()
        self.bk = self.connect()
        self.name, self.trimmed = f"interrupts-{os.getpid()}", f"interrupts-trimmed-{os.getpid()}"
        for name in (self.name, self.trimmed):
            create_log(self.bk, name, LogProperties(entry_format="raw"))
        self.ledger = self.bk.create_ledger()
        self.log, self.short = LogWriter.open(self.bk, self.name), LogWriter.open(self.bk, self.trimmed)
        self.count = self.dead = self.during = 0
        self.acked: dict[int, list[bytes]] = {self.ledger.ledger_id: []}
        self.log_acked: list[bytes] = []
        self.runs: list[bytes] = []
        self.follower = LogReader(self.bk, self.name)
        self.calls: list[tuple[str, Callable[[], object]]] = [
            *[("append", self.append)] * 4,
            *[("append run", self.append_run)] * 3,
            *[("log append", self.log_append)] * 4,
            *[("log run", self.log_run)] * 4,
            *[("roll", lambda: self.log.roll())] * 2,
            *[("follow", self.follow)] * 2,
            ("read", lambda: self.read_ledger(self.ledger.ledger_id)),
            ("flush", lambda: self.ledger.flush()),
            ("close", self.close_ledger),
            ("close log", self.close_log),
            ("trim", self.trim),
            ("life", self.life),
            ("connect", lambda: self.connect().close()),
        ]

    def connect(self) -> bk_core.BookKeeper:
        if not self.slow:
            return bk_core.connect(self.uri, operation_timeout_s=30)
        store: Any = SlowStore(open_store(self.uri), self.proxy)
        for bookie in store.bookies().writable:
            host, port = store._store.resolve(bookie)
            self.proxy.delay(self.proxy.link("client", bookie, host, port), 0.005)
        return bk_core.connect(self.uri, operation_timeout_s=30, store=store)

    # --- calls ------------------------------------------------------------------------------------------------------------

    def payload(self) -> bytes:
        self.count += 1
        return b"%d." % self.count

    def append(self) -> None:
        payload = self.payload()
        self.ledger.append(payload)
        self.acked[self.ledger.ledger_id].append(payload)

    def run(self) -> tuple[bytes, array[int], list[bytes]]:
        prefix = self.payload()
        payloads = [b"%s%d" % (prefix, i) for i in range(RUN)]
        offsets = array("q", [0])
        for payload in payloads:
            offsets.append(offsets[-1] + len(payload))
        return b"".join(payloads), offsets, payloads

    def append_run(self) -> None:
        data, offsets, payloads = self.run()
        self.ledger.append_run(data, offsets)
        self.acked[self.ledger.ledger_id] += payloads

    def log_append(self) -> None:
        payload = self.payload()
        self.log.append(payload)
        self.log_acked.append(payload)

    def log_run(self) -> None:
        data, offsets, payloads = self.run()
        self.runs.append(payloads[0][:-1])
        self.log.append_run(data, offsets)
        self.log_acked += payloads

    def follow(self) -> None:
        for _ in self.follower.read():
            pass
        self.follower.wait(0.01)

    def close_ledger(self) -> None:
        self.ledger.close()
        self.new_ledger()

    def new_ledger(self) -> None:
        self.ledger = self.bk.create_ledger()
        self.acked[self.ledger.ledger_id] = []

    def close_log(self) -> None:
        self.log.close()
        self.log = LogWriter.open(self.bk, self.name)

    def trim(self) -> None:
        self.short.append(b"x")
        self.short.roll()
        trim_log(self.bk, self.trimmed, before=Position(self.short.position.seq))

    def life(self) -> None:
        ledger = self.bk.create_ledger()
        ledger.append(b"x")
        ledger.abandon()
        self.bk.recover_ledger(ledger.ledger_id).close()
        self.bk.delete_ledger(ledger.ledger_id)

    # --- what holds --------------------------------------------------------------------------------------------------------

    @contextmanager
    def working_on(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        took = time.monotonic() - started
        assert took < WORKS_ON_S, f"after an interrupt of {what} the next calls took {took:.0f} s"

    def interrupt(self) -> None:
        what, call = self.rng.choice(self.calls)
        self.during += self.signals.during(call)
        with self.working_on(what):
            self.alive(self.append, self.new_ledger)
            self.alive(self.log_append, lambda: setattr(self, "log", LogWriter.open(self.bk, self.name)))
            self.alive(lambda: self.short.append(b"y"), lambda: setattr(self, "short", LogWriter.open(self.bk, self.trimmed)))

    def alive(self, call: Callable[[], object], renew: Callable[[], object]) -> None:
        """A handle that says that it is dead is replaced, and counted."""
        try:
            call()
        except BkError as error:
            assert error.code not in ("BK-TIMEOUT", "BK-ERROR"), f"unclear: {error}"
            self.dead += 1
            renew()
            call()

    def read_ledger(self, ledger_id: int) -> list[bytes]:
        with self.bk.open_ledger(ledger_id) as ledger:
            return ledger.read(0, ledger.last_add_confirmed) if ledger.last_add_confirmed >= 0 else []

    def check(self) -> dict[str, int]:
        torn = 0
        self.ledger.close()
        for writer in (self.log, self.short):
            writer.close()
        for ledger_id, acked in self.acked.items():
            self.bk.recover_ledger(ledger_id).close()
            in_order(f"ledger {ledger_id}", self.read_ledger(ledger_id), acked)
        with LogReader(self.bk, self.name) as reader:
            found = [payload for run in reader.read() for payload in run.payloads()]
        in_order("the log", found, self.log_acked)
        there: dict[bytes, int] = {}
        for payload in found:
            prefix = payload[: payload.index(b".") + 1]
            there[prefix] = there.get(prefix, 0) + 1
        torn = sum(there.get(run, 0) not in (0, RUN) for run in self.runs)
        assert not torn, f"{torn} runs of the log are torn"
        gc_log(self.bk, self.trimmed)
        with LogReader(self.bk, self.trimmed) as reader:
            list(reader.read())
        read_log(self.bk, self.trimmed)
        window = self.bk._session.adds
        assert (window._total, window._ledgers) == (0, 0), "the window of adds is not empty"
        self.bk.close()
        return {"interrupts": self.signals.sent, "during": self.during, "dead": self.dead, "acked": len(self.log_acked), "torn": torn}


def in_order(what: str, found: list[bytes], acked: list[bytes]) -> None:
    assert len(set(found)) == len(found), f"{what} has entries twice"
    known = set(acked)
    assert [payload for payload in found if payload in known] == acked, f"{what} lacks or reorders what was acknowledged"


def main(uri: str, seed: str, count: str, slow: str) -> int:
    work = Work(uri, int(seed), slow == "slow")
    for _ in range(int(count)):
        work.interrupt()
    print(json.dumps(work.check()))
    with suppress(Exception):
        work.proxy.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
