"""What a read task makes of its ranges, against bookies on sockets in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import LogDataLossError
from bk_core.metadata import open_store
from bk_core.protocol.limits import Limits
from bk_spark import partitions
from bk_spark.arrow import RAW_SCHEMA, arrow_schema
from bk_spark.partitions import BookKeeperPartition, read_partition
from bk_spark.planning import EntryRange

NEVER = Limits(explicit_lac_ns=3_600_000_000_000)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bk_core.BookKeeper]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    with bk_core.connect(uri, limits=NEVER) as bk:
        monkeypatch.setattr(partitions, "client_for", lambda *_: bk)
        yield bk
    for bookie in bookies:
        bookie.close()
    store.close()


def values(r: EntryRange) -> list[Any]:
    options: Any = SimpleNamespace(uri="", protocol="v2", password=b"", log="a")
    batches = read_partition(options, arrow_schema(RAW_SCHEMA), True, BookKeeperPartition([r]))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_what_the_driver_knows_to_be_acknowledged_is_read_whatever_the_lac(client: bk_core.BookKeeper) -> None:
    """RD-1, LC-2: the task's handle has never heard of the last entry of a writer that fell silent."""
    ledger = client.create_ledger()
    assert ledger.append_many([b"a", b"b", b"c"]).result(30) == 2
    with client.open_ledger(ledger.ledger_id) as handle:
        assert handle.last_add_confirmed < 2
    assert values(EntryRange(ledger.ledger_id, 0, 2, 3)) == [b"a", b"b", b"c"]
    ledger.close()


def test_a_range_beyond_the_end_of_a_closed_ledger_is_a_loss(client: bk_core.BookKeeper) -> None:
    """RD-1: said as what it is, and nothing of the range is handed out as if it were all."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"a", b"b", b"c"]).result(30)
    with pytest.raises(LogDataLossError, match=rf"entries 3\.\.7 of ledger {ledger.ledger_id} are lost: .* closed at entry 2"):
        values(EntryRange(ledger.ledger_id, 1, 7, 7))
