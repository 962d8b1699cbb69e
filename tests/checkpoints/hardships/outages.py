"""The whole cluster is lost in the middle of a batch, for shorter and for longer than a request waits; ledgers that somebody deletes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bk_core.client.files.names import store_log
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.list_store import read_ledger_list
from tests.checkpoints.hardships.ground import (
    BATCHES,
    BOOKIES,
    HARD,
    LOOK_S,
    STATES,
    Ground,
    HardshipError,
    Outcome,
    Query,
    ground,
    play_all,
)

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


def measure(work: Path, apache: str | None, only: str, say: Callable[[object], None]) -> list[Outcome]:
    """Each state store with both patiences."""
    with ground(work, apache) as here:
        name, do = "cluster lost for a minute, patience_s", partial(outage, here)
        plays = [(f"{name}={patience_s:g}", state, patience_s, do) for state in STATES for patience_s in (SHORT_S, LONG_S)]
        return play_all(here, plays, only, say)


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
    query.hold_at(HARD)
    query.start()
    query.until(lambda: query.is_held)
    if when == "closed":
        query.stop()
        query.told.clear()
        query.close()
    for ledger_id in _ledgers(here, query.name, what):
        here.client.store.delete_ledger(ledger_id)  # as a tool of BookKeeper does, which knows of no logs
    if when == "open":
        what_came = query.under_hardship(GOES_ON_S)
        if query.look()["active"]:  # state is in the executor's memory, and later snapshots of it are in another ledger
            query.stop()
            here.kill_driver()
            return [f"goes on {what_came}"]
    here.kill_driver()  # which has state in its memory
    query.hold_at(BATCHES)
    for _ in range(2):
        if query.start() and query.until(lambda: query.is_held):
            raise HardshipError(f"the query went on without the ledger of its {what}: {query.told}")
    return query.told


def _ledgers(here: Ground, name: str, what: str) -> list[int]:
    with FileStoreView.open(here.client, name) as view:
        data = set(view.ledgers() or ())
    if what == "data":
        return sorted(data)
    return [segment.ledger_id for segment in read_ledger_list(here.client, store_log(name)).segments]
