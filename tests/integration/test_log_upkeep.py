"""Logs kept clean on a real ZooKeeper and bookies: whose clock counts, what is found and mended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import apply_retention
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.writer import LogWriter
from bk_core.protocol.log.segments import LogProperties

RAW = LogProperties(entry_format="raw")


@pytest.fixture(scope="module")
def embedded(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("embedded")


@pytest.fixture
def client(embedded: LocalCluster) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(embedded.uri) as bk:
        yield bk


@pytest.fixture
def log(request: pytest.FixtureRequest, client: bk_core.BookKeeper) -> str:
    name = request.node.originalname.removeprefix("test_")[:60] + "".join(c for c in request.node.name[-8:] if c.isalnum())
    create_log(client, name, RAW)
    return name


@pytest.mark.parametrize(("committer_s", "janitor_s"), [(-3900, 0), (0, 7200), (-3900, 7200), (86_400, -86_400)])
def test_retention_with_wrong_clocks(
    client: bk_core.BookKeeper, log: str, monkeypatch: pytest.MonkeyPatch, committer_s: int, janitor_s: int
) -> None:
    """JAN-1: hosts that are hours off, one hour to be kept. ZooKeeper's clock, which is right, tells at both ends."""
    set_properties(client, log, retention_ms=3_600_000)
    true_time, before_ms = time.time, client.store.clock_ms()
    monkeypatch.setattr(time, "time", lambda: true_time() + committer_s)
    with LogWriter.open(client, log) as writer:
        writer.append(b"kept")
    monkeypatch.setattr(time, "time", lambda: true_time() + janitor_s)
    assert apply_retention(client, log) == ()
    (segment,) = read_log(client, log).segments()
    assert before_ms <= segment.committed_at_ms <= client.store.clock_ms()
    set_properties(client, log, retention_ms=1)
    assert apply_retention(client, log) == (segment.ledger_id,)
