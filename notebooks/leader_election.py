"""Leader election for a log, with kazoo's recipe over the cluster's own ZooKeeper: who writes next when a writer dies.

    python notebooks/leader_election.py                             the demonstration: starts a local cluster and two candidates
    python notebooks/leader_election.py candidate URI LOG NAME      one candidate: waits until it is elected, then writes the log

An election chooses who *should* write. It cannot choose who *does*: a leader that stood still (a long garbage collection, a suspended
machine) goes on where it stopped and does not know that its session is over. So nothing here depends on the election for being right.
The log does that alone: whoever opens it fences the writer before, and that one gets LogTakenOverError, whatever it believes. The
election only spares candidates from fencing each other all the time. ``still_leading`` is how a ``LogWriter`` asks it.

The demonstration lets one candidate lead, stops its process for longer than its session lasts, lets the other one take over, and wakes the
first up again in the middle of its writing.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.recipe.election import Election

import bk_core
from bk_core import LogReader, LogWriter
from bk_core.errors import LogTakenOverError

SESSION_S = 2.0  # a candidate that is silent for so long has lost; ZooKeeper may insist on more
ASK_EVERY = 50  # entries between two looks at the election: asking more often would cost more and make nothing safer
PAUSE_S = 0.01


def still_leading(zookeeper: KazooClient, election: Election, name: str) -> Callable[[], bool]:
    """For ``LogWriter.open(still_leading=...)``: whether ``name`` is the first of the candidates now, as far as ZooKeeper can tell."""
    return lambda: bool(zookeeper.connected) and election.contenders()[:1] == [name]


def candidate(uri: str, log: str, name: str) -> None:
    """Wait to be elected, write until told to stop (SIGTERM) or taken over. Says on standard output what becomes of it."""
    stop = threading.Event()
    zookeeper = KazooClient(hosts=urlsplit(uri).netloc, timeout=SESSION_S)
    zookeeper.start()
    election = Election(zookeeper, f"/elections/{log}", name)

    def end(*_: object) -> None:
        stop.set()
        election.cancel()

    signal.signal(signal.SIGTERM, end)
    try:
        with bk_core.connect(uri) as client:
            election.run(lambda: write(client, log, name, still_leading(zookeeper, election, name), stop))
    finally:
        zookeeper.stop()
        zookeeper.close()


def write(client: bk_core.BookKeeper, log: str, name: str, leading: Callable[[], bool], stop: threading.Event) -> None:
    try:
        with LogWriter.open(client, log, still_leading=leading) as writer:
            say(name, "leads")
            for n in itertools.count():
                if stop.is_set() or (n % ASK_EVERY == ASK_EVERY - 1 and not leading()):
                    return
                writer.append(f"{name} {n}".encode())
                say(name, f"wrote {n}")
                stop.wait(PAUSE_S)
    except LogTakenOverError as error:  # the one thing that is certain
        say(name, f"was taken over: {error}")


def say(name: str, what: str) -> None:
    print(f"{name} {what}", flush=True)


# --- the demonstration ---------------------------------------------------------------------------------------------------


class Candidate:
    """A candidate in a process of its own, and what it said."""

    def __init__(self, uri: str, log: str, name: str) -> None:
        self.said: list[str] = []
        command = [sys.executable, __file__, "candidate", uri, log, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def hears(self, what: str, count: int = 1) -> str:
        """Read on until it has said that so often; the line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            count -= what in line
            if count == 0:
                return line.strip()
        raise RuntimeError(f"a candidate ended without {what!r}: {self.said[-3:]}")

    def written(self) -> list[str]:
        return [line.replace("wrote ", "") for line in self.said if " wrote " in line]

    def end(self, number: signal.Signals) -> None:
        """With this signal; reads what it has to say until it is gone."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=30)
        self.said += rest.splitlines()


def demonstrate(uri: str, log: str = "elected") -> Iterator[str]:
    """What happens, line by line; AssertionError if the log is not what it must be."""
    with bk_core.connect(uri) as client:
        client.create_log(log)
    started: list[Candidate] = []
    try:
        yield from _play(uri, log, started)
    finally:
        for one in started:
            if one.process.poll() is None:
                one.end(signal.SIGKILL)
    ann, ben = started
    with bk_core.connect(uri) as client, LogReader(client, log) as reader:
        entries = [payload.decode() for run in reader.read() for payload in run.payloads()]
    acknowledged = ann.written() + ben.written()
    assert [entry for entry in entries if entry in acknowledged] == acknowledged, "an acknowledged entry is lost or out of place"
    assert len(set(entries)) == len(entries)
    leaders = [name for name, _ in itertools.groupby(entry.split()[0] for entry in entries)]
    assert leaders == ["ann", "ben"], "the first leader wrote after it was taken over"
    yield f"the log has {len(entries)} entries, all {len(acknowledged)} that were acknowledged, first those of ann, then those of ben"


def _play(uri: str, log: str, started: list[Candidate]) -> Iterator[str]:
    ann = Candidate(uri, log, "ann")
    started.append(ann)
    yield ann.hears("leads")
    ben = Candidate(uri, log, "ben")
    started.append(ben)
    yield ann.hears("wrote", 10)
    ann.process.send_signal(signal.SIGSTOP)
    yield "ann's process stands still; her session runs out"
    yield ben.hears("leads")
    yield ben.hears("wrote", 10)
    ann.process.send_signal(signal.SIGCONT)
    yield "ann's process goes on, and does not know yet"
    yield ann.hears("was taken over")
    yield ben.hears("wrote", 3)
    ann.end(signal.SIGTERM)
    ben.end(signal.SIGTERM)


def main() -> None:
    if sys.argv[1:2] == ["candidate"]:
        candidate(*sys.argv[2:5])
        return
    from bk_core.bookie.local_cluster import local_cluster

    with local_cluster(3) as cluster:
        for line in demonstrate(cluster.uri):
            print(line, flush=True)


if __name__ == "__main__":
    main()
