"""Committers, trims, retention, sealing and janitors of one log, all at once: nothing listed is ever deleted, nothing else is left."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bk_core.client.log import janitor
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import create_intended, intents_of
from bk_core.client.log.janitor import check_listable, delete_log, gc_log, gc_quietly, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.errors import LogDataLossError, LogError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import LogProperties, SegmentRange

LIMITS = SealLimits(tail_max=5, chunk=3, fan_out=2)
RAW = LogProperties(entry_format="raw")
BATCHES = 60


def commit_batches(client: Any, query: str, seed: int) -> None:
    """Batches of one to three segments over ledgers that are kept open for a while. A janitor may take them away at any time: then the
    batch is written again.
    """
    rng = random.Random(seed)
    handle, entry = None, 0
    for batch in range(BATCHES):
        while True:
            if handle is None or rng.random() < 0.1:
                handle, entry = create_intended(client, "a", RAW, query_id=query), 0
            ranges = [SegmentRange(handle.ledger_id, entry + 2 * i, entry + 2 * i, 1, 10) for i in range(rng.randint(1, 3))]
            entry += 2 * len(ranges)
            used = [handle.ledger_id]

            def change(current: LedgerList, ranges: list[SegmentRange] = ranges, batch: int = batch, used: list[int] = used) -> LedgerList:
                changed = current.append_segments(ranges, batch, query, batch)
                if changed is not current:
                    check_listable(client, "a", "", used)
                return changed

            try:
                update_ledger_list(client, "a", change, limits=LIMITS)
                break
            except LogError as error:
                assert "janitor" in str(error)
                handle = None


def until(done: threading.Event, seed: int, action: Callable[[random.Random], object]) -> int:
    rng = random.Random(seed)
    rounds = 0
    while not done.is_set():
        action(rng)
        rounds += 1
    return rounds


def check_listed(client: Any) -> None:
    """Check that the ledgers which the list names now exist, unless it was trimmed meanwhile."""
    view = read_log(client, "a")
    try:
        missing = [s for s in view.segments() if s.ledger_id not in client.ledgers]
    except LogDataLossError:
        return
    first = read_ledger_list(client, "a").trimmed_seq
    assert [s for s in missing if s.seq >= first] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_at_once(client: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(janitor, "_cleaned_at", {})
    monkeypatch.setattr(janitor, "GC_PERIOD_S", 0.0)
    create_log(client, "a", RAW)
    done = threading.Event()

    def trim(rng: random.Random) -> None:
        listed = read_ledger_list(client, "a")
        trim_log(client, "a", before=Position(rng.randint(listed.trimmed_seq, max(listed.trimmed_seq, listed.next_seq - 10))))
        done.wait(0.02)

    def collect(rng: random.Random) -> None:
        gc_log(client, "a", min_age_s=0 if rng.random() < 0.6 else 3600)
        done.wait(0.03)

    with ThreadPoolExecutor(7) as threads:
        others = [
            threads.submit(until, done, seed + 10, trim),
            threads.submit(until, done, seed + 11, collect),
            threads.submit(until, done, seed + 12, lambda _: gc_quietly(client, "a") and done.wait(0.01)),
            threads.submit(until, done, seed + 13, lambda _: check_listed(client) or done.wait(0.005)),
        ]
        committers = [threads.submit(commit_batches, client, f"q{n}", seed + n) for n in range(3)]
        try:
            for committer in committers:
                committer.result(120)
        finally:
            done.set()
        assert all(other.result(60) for other in others)
    view = read_log(client, "a")
    assert {query: mark.batch_id for query, mark in view.listed.committed.items()} == {f"q{n}": BATCHES - 1 for n in range(3)}
    assert [s.seq for s in view.segments()] == list(range(view.listed.trimmed_seq, view.next_seq))
    assert view.listed.total_rows == view.next_seq
    gc_log(client, "a", min_age_s=0)
    view = read_log(client, "a")
    assert view.mentioned(client.ledgers) == set(client.ledgers), "ledgers that nothing lists"
    assert intents_of(client, "a") == {} and view.listed.released == () == view.listed.dropped
    delete_log(client, "a")
    assert client.ledgers == {}
