"""Apache's bookies that go away without a word and come back at another address, as pods do, while clients are at work.

Their ids stay. The clients are made once: what they know of addresses is theirs to renew.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError, OperationTimeoutError, ReadError, RecoveryFailedError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENCE_S, until
from tests.integration.shelves import Lines, OwnLines, Shelves
from tests.network.stopping import stop_process

pytestmark = pytest.mark.apache
ONE: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
TWO: Any = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
THREE: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
TIMEOUT_S = 30.0
"""The timeout of adds and reads, long enough for a JVM that has just started beside other work."""
SOON_S = 20.0
"""Reads and writes under way go on at the new address within this time: they do not wait for the timeout at the old one."""
LIMITS = Limits(add_timeout_ns=int(TIMEOUT_S * 1e9), read_timeout_ns=int(TIMEOUT_S * 1e9))


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelves]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with Shelves(tmp_path_factory.mktemp("shelves") / "cluster", 3) as cluster:
        yield cluster


@pytest.fixture
def client(shelves: Shelves) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(shelves.uri, limits=LIMITS) as opened:
        yield opened


def made_on(client: bk_core.BookKeeper, bookie: str, sizes: Any) -> bk_core.WriteHandle:
    """A ledger with this bookie in its ensemble."""
    while True:
        made = client.create_ledger(**sizes)
        if bookie in made.metadata.fragments[0].ensemble:
            return made
        made.abandon()


class Work:
    """Something done again and again on a thread of its own, and when it last succeeded."""

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self.name, self._do = name, do
        self.done, self.at = 0, time.monotonic()
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            try:
                self._do()
            except ReadError:
                continue  # as a reader does whose only replica is away: it asks again
            now = time.monotonic()
            self.longest_s, self.at, self.done = max(self.longest_s, now - self.at), now, self.done + 1

    def goes_on(self, timeout_s: float = PATIENCE_S) -> float:
        """Wait until it has succeeded anew. Return the seconds that took."""
        began, before = time.monotonic(), self.done
        until(lambda: self.done > before + 1, f"{self.name} does not go on", timeout_s)
        return time.monotonic() - began

    def end(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.name


def test_all_that_is_under_way_goes_on_at_the_new_address(shelves: Shelves, client: bk_core.BookKeeper) -> None:
    """A writer with a spare bookie, one without that waits for it, a reader and a tailing reader of its only replica, a recovery."""
    moved = "shelf-0"
    patient = bk_core.connect(shelves.uri, ensemble_change="delayed", limits=LIMITS)
    elsewhere = bk_core.connect(shelves.uri, limits=LIMITS)  # its connections break when it finds out, not when a writer does
    try:
        with made_on(client, moved, ONE) as lonely:
            lonely.append_many([b"x"] * 10)
        spared, unspared = made_on(client, moved, TWO), patient.create_ledger(**THREE)
        left = made_on(elsewhere, moved, ONE)
        left.append_many([b"left"] * 10)
        reader = elsewhere.open_ledger(lonely.ledger_id)
        tail = iter(elsewhere.open_ledger(unspared.ledger_id).tail(0))
        works = [
            Work("a writer with a spare", lambda: spared.append(b"x")),
            Work("a writer without", lambda: unspared.append(b"x")),
            Work("a tail", lambda: next(tail)),
        ]
        reading = Work("a reader of the only replica", lambda: reader.read(0, 9))
        try:
            for work in (*works, reading):
                work.goes_on()
            shelves.vanish(0)
            recovered: list[bk_core.ReadHandle] = []
            recovery = threading.Thread(target=lambda: recovered.append(client.recover_ledger(left.ledger_id)))
            recovery.start()
            for work in works:
                work.goes_on()
            shelves.come_back(0)
            took_s = {work.name: work.goes_on(SOON_S) for work in (*works, reading)}
            recovery.join(SOON_S)
            assert [one.metadata.state for one in recovered] == [LedgerState.CLOSED] and recovered[0].last_add_confirmed == 9
            for connected in (client, patient, elsewhere):
                assert connected.store.resolve(moved) == (shelves.host(0), shelves.port(0))
        finally:
            for work in (*works, reading):
                work.end()
        print({**took_s, **{f"{work.name}, longest": work.longest_s for work in (*works, reading)}})
        spared.close()
        unspared.close()
        assert moved not in spared.metadata.fragments[-1].ensemble  # the spare one was taken
        assert len(unspared.metadata.fragments) == 1  # there was none, and the bookie was waited for
        repaired = client.repair_ledger(unspared.ledger_id, full=True)
        assert repaired.is_complete and client.check_ledger(unspared.ledger_id, full=True).is_good  # where it missed what came meanwhile
    finally:
        patient.close()
        elsewhere.close()


def test_an_id_that_looks_like_the_address_of_another_bookie(tmp_path: Path) -> None:
    """metadata.md 4.4: while its bookie is down, the other one is not asked in its place. It would deny all entries, and a recovery would
    believe it and close the ledger without them."""

    def lines(index: int) -> Lines:
        return {"bookieId": "shelf-0" if index == 0 else f"127.0.0.1:{cluster_port(tmp_path)}"}

    with OwnLines(tmp_path / "cluster", 2, lines) as cluster, bk_core.connect(cluster.uri, operation_timeout_s=20) as client:
        odd = cluster.bookie_ids[1]
        assert client.store.resolve(odd) == ("127.0.0.1", cluster.port(1)) != ("127.0.0.1", cluster.port(0))
        assert odd == f"127.0.0.1:{cluster.port(0)}"
        left = made_on(client, odd, ONE)
        left.append_many([b"left"] * 10)
        cluster.stop_bookie(1)
        cluster.wait_unregistered(1)
        with bk_core.connect(cluster.uri, operation_timeout_s=5) as other:
            with pytest.raises((RecoveryFailedError, OperationTimeoutError)):
                other.recover_ledger(left.ledger_id)
            with pytest.raises(BookieUnavailableError, match="at the address in its id is bookie shelf-0"):
                other.store.resolve(odd)
        cluster.restart(1)
        assert client.recover_ledger(left.ledger_id).read(0, 9) == [b"left"] * 10


def cluster_port(directory: Path) -> int:
    """The port of the first bookie, which is drawn before the second one is made."""
    ports: list[int] = json.loads((directory / "cluster" / "cluster.json").read_text())["bookie_ports"]
    return ports[0]


def test_what_bk_says_of_a_bookie_that_is_down(shelves: Shelves, client: bk_core.BookKeeper, capfd: pytest.CaptureFixture[str]) -> None:
    """Its id tells no address, and its cookie tells that it exists."""

    def bk(*arguments: str) -> list[dict[str, Any]]:
        assert cli.run(["bookie", *arguments, "--uri", shelves.uri, "--json"]) in (0, 1)
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    here = f"{shelves.host(1)}:{shelves.port(1)}"
    (shown,) = bk("show", "shelf-1", "--no-ledgers")
    assert (shown["state"], shown["probe"]["address"], shown["cookie"]["ledgerDirs"] != []) == ("writable", here, True)
    shelves.stop_bookie(1)
    shelves.wait_unregistered(1)
    assert {one["bookie"]: (one["state"], one["address"]) for one in bk("ls")}["shelf-1"] == ("down", None)
    (health,) = bk("health", "shelf-1")
    assert (health["state"], health["problem"]) == ("down", "it is not registered")
    shelves.restart(1)
    (health,) = bk("health", "shelf-1")
    assert (health["answer"], health["address"]) == ("answers", here)


@pytest.mark.deep
def test_a_frozen_bookie_of_which_nothing_is_known_keeps_its_cookie(
    shelves: Shelves, client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its registration has lapsed, and its id is no address. It goes on later, and an auditor must miss it when it dies after that."""
    frozen = "shelf-2"
    bookie = shelves._bookies[2]
    assert isinstance(bookie, apache.ApacheBookie) and bookie.pid is not None
    stop_process(bookie.pid)
    try:
        until(lambda: frozen not in client.bookies().registered, "its registration does not lapse")
        assert cli.run(["bookie", "decommission", frozen, "--delete-cookie", "--yes", "--recover-open", "--uri", shelves.uri]) == 1
        said = capsys.readouterr().out
        assert "its cookie is not deleted" in said and "its id is no address" in said and said.endswith("--delete-cookie --stopped`\n")
        assert frozen in client.store.cookies()
    finally:
        os.kill(bookie.pid, signal.SIGCONT)
    until(lambda: frozen in client.bookies().registered, "it does not go on")
    assert frozen in client.store.cookies()
    with made_on(client, frozen, ONE) as ledger:
        ledger.append(b"x")
