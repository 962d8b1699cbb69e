"""The whole cluster is lost in the middle of a batch, for shorter and for longer than a request waits; ledgers that somebody deletes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bk_core.client.files.names import store_log
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.list_store import read_ledger_list
from tests.checkpoints.hardships.ground import BOOKIES, LOOK_S, Ground, Outcome, Query, ground, play

SHORT_S, LONG_S = 15.0, 120.0  # patience
OUTAGE_S = 60.0
GOES_ON_S = 180.0


def outage(ground: Ground, query: Query) -> str:
    """Kill bookies and ZooKeeper under a batch, and start them again after a while."""
    for index in range(BOOKIES):
        ground.cluster.kill(index)
    ground.keeper.kill()
    begun = time.monotonic()
    query.release()
    ended_s = None
    while time.monotonic() < begun + OUTAGE_S:
        if ended_s is None and not query.look()["active"]:
            ended_s = time.monotonic() - begun
        time.sleep(LOOK_S)
    ground.keeper.start()
    for index in range(BOOKIES):
        ground.cluster.restart(index)
    what = f"lost for {time.monotonic() - begun:.0f} s, "
    return what + (f"ended after {ended_s:.0f} s" if ended_s is not None else query.under_hardship(GOES_ON_S))


def measure(work: Path, apache: str | None, states: list[str], say: Callable[[object], None]) -> list[Outcome]:
    """Each with both patiences."""
    found = []
    with ground(work, apache) as here:
        for state in states:
            for patience_s in (SHORT_S, LONG_S):
                name = f"cluster lost for a minute, patience_s={patience_s:g}"
                found.append(play(here, name, state, patience_s, partial(outage, here)))
                say(found[-1])
    return found


def deleted(work: Path, apache: str | None, say: Callable[[object], None]) -> list[tuple[str, str, list[str]]]:
    """Delete the ledger of the log, or one of data, by hand: while the checkpoint is open and a batch is held, or while it is closed.
    (what, when, what the user is told)."""
    found = []
    with ground(work, apache) as here:
        for what in ("log", "data"):
            for when in ("open", "closed"):
                found.append((what, when, _deleted(here, what, when)))
                say(found[-1])
    return found


def _deleted(here: Ground, what: str, when: str) -> list[str]:
    query = Query(here, f"deleted-{what}-{when}", "hdfs", SHORT_S)
    query.hold_at(3)
    query.start()
    query.until(lambda: query.is_held)
    if when == "closed":
        driver = here.driver
        driver.begin({"do": "stop", "names": [query.name]})
        driver.end(query.release)
        query.look()
        query.told.clear()
        query.close()
    ledgers = _ledgers(here, query.name, what)
    for ledger_id in ledgers:
        here.client.store.delete_ledger(ledger_id)  # as a tool of BookKeeper does, which knows of no logs
    if when == "open":
        query.under_hardship(90.0)
        told = [f"query: {error}" for error in query.told]
        query.told.clear()
        query.close()
    else:
        told = []
    for _ in range(2):  # opened again, and once more
        if query.start():
            query.under_hardship(30.0)
        told += query.told or ["goes on"]
        query.told.clear()
    here.kill_driver()
    return told


def _ledgers(here: Ground, name: str, what: str) -> list[int]:
    with FileStoreView.open(here.client, name) as view:
        data = set(view.ledgers() or ())
    if what == "data":
        return sorted(data)
    return [segment.ledger_id for segment in read_ledger_list(here.client, store_log(name)).segments]
