"""Apache's bookies as pods: each in a network of its own, with a name that stays and an address that does not.

    unshare -n -m python -m tests.integration.pods DIRECTORY

It needs the right to make networks. The program plays one restart of a pod on another node while clients are at work, and prints for each
of them how long it stood still, in seconds, as one object of JSON. What is sent to the old address is dropped, and nothing is reset.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheBookie, java_command
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from tests import quick_java
from tests.integration.patience import PATIENCE_S
from tests.integration.shelves import SESSION_MS, Lines, OwnLines
from tests.integration.test_moving_bookies import ONE, THREE, TWO, Work, made_on

HERE = "10.231.0.1"  # the clients' and ZooKeeper's
COUNT = 3
NAMES = Path("/run/netns")


def ip(*arguments: str) -> str:
    """Run ``ip``, and return what it says."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Pod:
    """A network with one address, and the cable to it."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._cable = f"v-{name}"
        ip("netns", "add", name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        for place in ([], ["-n", name]):
            ip(*place, "link", "set", "lo", "up")
            ip(*place, "link", "set", "eth0" if place else self._cable, "up")
        ip("-n", name, "addr", "add", f"{address}/32", "dev", "eth0")
        ip("-n", name, "route", "add", HERE, "dev", "eth0")
        ip("route", "add", address, "dev", self._cable)

    def cut(self) -> None:
        """Take the address away from within, and go on to send there from without: all of it is dropped, both ways."""
        (link,) = json.loads(ip("-n", self.name, "-json", "link", "show", "eth0"))
        ip("neigh", "replace", self.address, "lladdr", link["address"], "dev", self._cable, "nud", "permanent")
        ip("-n", self.name, "addr", "flush", "dev", "eth0")


class PodBookie(ApacheBookie):
    """A bookie that starts in the network ``pod``."""

    pod: Pod

    def start(self) -> None:
        def inside(*arguments: Any, **options: Any) -> list[str]:
            return ["ip", "netns", "exec", self.pod.name, *java_command(*arguments, **options)]

        with mock.patch.object(apache, "java_command", inside):
            super().start()


class Pods(OwnLines):
    """Bookies ``bookie-0.bookies``, ``bookie-1.bookies``, ..., which /etc/hosts finds: it is a file of this program's alone."""

    def __init__(self, directory: Path, zookeeper: str, hosts: Path) -> None:
        self._pods: dict[int, Pod] = {}
        self._made_so_far = 0
        self._hosts = hosts
        super().__init__(directory, COUNT, self._lines, zookeeper=zookeeper)

    def _name(self, index: int) -> str:
        return f"bookie-{index}.bookies"

    def _lines(self, index: int) -> Lines:
        return {"advertisedAddress": self._name(index), "listeningInterface": "eth0", "zkTimeout": SESSION_MS}

    def _made(self, index: int) -> ApacheBookie:
        self._made_so_far += 1
        self._pods[index] = Pod(f"pod{self._made_so_far}", f"10.231.1.{self._made_so_far}")
        names = "".join(f"{pod.address} {self._name(at)}\n" for at, pod in self._pods.items())
        self._hosts.write_text(f"127.0.0.1 localhost\n{names}")
        made = super()._made(index)
        made.__class__, made.pod = PodBookie, self._pods[index]  # type: ignore[assignment, attr-defined]
        return made

    def address(self, index: int) -> tuple[str, int]:
        """Return the address at which bookie ``index`` is now."""
        return self._pods[index].address, self.port(index)

    def vanish(self, index: int) -> None:
        """The node of a pod loses its network, and the pod is gone with it."""
        self._pods[index].cut()
        self.kill(index)

    def come_back(self, index: int) -> None:
        """The pod starts on another node: with its name, its data, and another address."""
        self._bookies[index] = moved = self._made(index)
        moved.start()
        moved.wait_ready()


def play(cluster: Pods) -> dict[str, float]:
    """Move the first bookie. Return the longest stand of each kind of work, and how long each took from the new registration on."""
    moved = cluster.bookie_ids[0]
    with (
        bk_core.connect(cluster.uri) as client,
        bk_core.connect(cluster.uri, ensemble_change="delayed") as patient,
        bk_core.connect(cluster.uri) as elsewhere,
    ):
        with made_on(client, moved, ONE) as lonely:
            lonely.append_many([b"x"] * 10)
        spared, unspared = made_on(client, moved, TWO), patient.create_ledger(**THREE)
        left = made_on(elsewhere, moved, ONE)
        left.append_many([b"left"] * 10)
        reader = elsewhere.open_ledger(lonely.ledger_id)
        tail = iter(elsewhere.open_ledger(unspared.ledger_id).tail(0))
        works = [
            Work("writer with a spare", lambda: spared.append(b"x")),
            Work("writer without", lambda: unspared.append(b"x")),
            Work("tail", lambda: next(tail)),
            Work("reader of the only replica", lambda: reader.read(0, 9)),
        ]
        recovered: list[float] = []

        def recover() -> None:
            assert client.recover_ledger(left.ledger_id).last_add_confirmed == 9
            recovered.append(time.monotonic())

        try:
            for work in works:
                work.goes_on()
            cluster.vanish(0)
            recovery = threading.Thread(target=recover)
            recovery.start()
            for work in works[:3]:
                work.goes_on()
            cluster.come_back(0)
            back = time.monotonic()
            after_s = {f"{work.name}, after": work.goes_on() for work in works}
            recovery.join(PATIENCE_S)
            links = [link for link in elsewhere._session._links.values() if link.bookie == moved and link._connected]
            assert {link._target[3] for link in links if link._target} == {cluster.address(0)}
        finally:
            for work in works:
                work.end()
        return {**{work.name: work.longest_s for work in works}, **after_s, "recovery, after": recovered[0] - back}


def main(directory: Path) -> int:
    quick_java.hasten_zookeeper()
    hosts = directory / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    NAMES.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(NAMES)], check=True)  # so that no name of a network is left behind
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{HERE}/32", "dev", "lo")
    with ZooKeeperProcess(directory / "zookeeper", settings={"clientPortAddress": HERE}) as zookeeper:
        cluster = Pods(directory / "cluster", f"zk://{zookeeper.connect_string}/ledgers", hosts)
        try:
            print(json.dumps(play(cluster)), flush=True)
        finally:
            cluster.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
