"""The changes of a checkpoint wait for those that they meet, and for no others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import OperationTimeoutError
from bk_spark.checkpoint import staging
from bk_spark.checkpoint.claims import Claims
from bk_spark.checkpoint.staging import CheckpointFiles
from bk_spark.checkpoint.temporaries import Temporaries
from tests.unit.spark.checkpoint_client import temporary
from tests.unit.spark.memory_files import MemoryFiles


def test_a_delete_of_a_directory_has_its_turn_before_changes_below_it_that_come_later() -> None:
    claims, order = Claims(time.monotonic), list[str]()
    standing = {name: threading.Event() for name in ("/d", "/d/1", "/e")}
    stand_in_line = claims._stand_in_line

    def stand(claim: Any) -> None:
        stand_in_line(claim)
        standing[claim.paths[0]].set()

    def change(path: str) -> None:
        with claims.of(path, wait_s=30, within_s=60):
            order.append(path)

    threads = []
    with claims.of("/d/0", wait_s=0, within_s=60):
        claims._stand_in_line = stand  # type: ignore[method-assign]
        for path in standing:
            threads.append(threading.Thread(target=change, args=(path,)))
            threads[-1].start()
            assert standing[path].wait(30)
        threads[2].join(30)
        assert order == ["/e"]  # nothing before it in the line meets it
        with claims.if_free("/d/1") as is_free:
            assert not is_free  # though only those that wait meet it
        with pytest.raises(OperationTimeoutError, match="another request about /d/2 takes longer than 0 s"):
            claims._stand_in_line = stand_in_line  # type: ignore[method-assign]
            with claims.of("/d/2", wait_s=0, within_s=60):
                pass
    for thread in threads:
        thread.join(30)
    assert order == ["/e", "/d", "/d/1"] and claims._line == []


def test_a_claim_that_is_given_up_holds_up_nobody() -> None:
    claims = Claims(time.monotonic)
    with claims.of("/d/0", wait_s=0, within_s=60):
        with pytest.raises(OperationTimeoutError), claims.of("/d", wait_s=0.01, within_s=60):
            pass
        with claims.of("/d/1", wait_s=0, within_s=60):
            pass
    assert claims._line == []


def test_a_delete_whose_name_is_claimed_delays_neither_itself_nor_the_others() -> None:
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    for path in ("/0", "/1"):
        files.create(path, [b"old"], True, True)
        files.create(temporary(path), [b"new"], True, True)
        files.delete(path, recursive=False)
    now[0] = staging.KEPT_BACK_S
    with files._claims("/0"):
        files.tend()
        assert "/0" in store.nodes and "/1" not in store.nodes
    files.tend()
    assert "/0" not in store.nodes


def test_a_delete_that_the_store_fails_is_tried_later() -> None:
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    files.create("/0", [b"old"], True, True)
    files.create(temporary("/0"), [b"new"], True, True)
    files.delete("/0", recursive=False)
    now[0] = staging.KEPT_BACK_S
    tried = []

    def fail(operation: str, path: str) -> None:
        tried.append(path)
        raise OperationTimeoutError("no bookie answers")

    store.before = fail
    files.tend()
    files.tend()
    assert tried == ["/0"]
    store.before = lambda operation, path: None
    now[0] += staging.KEPT_BACK_S
    files.tend()
    assert "/0" not in store.nodes


def test_what_is_due_is_found_without_a_look_at_the_others() -> None:
    looks: list[int] = []

    class Counted(SimpleNamespace):
        @property
        def until_s(self) -> float:
            looks.append(self.number)
            return float(self.number)

    all_of_them = Temporaries()
    for number in range(1000):
        staged = SimpleNamespace(content=SimpleNamespace(inline=b""))
        one: Any = Counted(number=number, staged=staged, target=f"/{number}")
        all_of_them.put(temporary(f"/{number}"), one)
    assert all_of_them.due(1) == [temporary("/0"), temporary("/1")]
    assert looks == [0, 1, 2]


def test_temporary_files_stand_in_the_order_of_their_times() -> None:
    """Also one that had to wait until it could be put."""
    store, now = MemoryFiles(), [0.0]
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    first, second = temporary("/a/0"), temporary("/b/0")

    def wait(operation: str, path: str) -> None:
        if path == "/a":
            files.create(second, [b""], True, True)
            now[0] += 5

    store.before = wait
    files.create(first, [b""], True, True)
    assert files._temporary.due(staging.TEMPORARY_S) == [second]
    assert files._temporary.due(staging.TEMPORARY_S + 5) == [second, first]
