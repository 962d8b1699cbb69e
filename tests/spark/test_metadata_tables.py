"""``metadata=`` tables: what they say is what the cluster is, and nothing is fenced by looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, InputPartition

from bk_core.client.log.history import read_log
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.ledger_list import LogProperties
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.tables.reader import TABLES
from tests.spark_clients import close_clients

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(cluster: Any) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Rows of a table as Spark's workers make them, in this process. ``push`` are filters that Spark would push down."""

    def rows(table: str, push: list[Any] | None = None, **options: str) -> list[dict[str, Any]]:
        given = {"bookkeeper.metadataServiceUri": cluster.uri, "metadata": table, **options}
        source = BookKeeperDataSource({**given, **({} if push is None else {"pushdown": "true"})})
        reader: Any = source.reader(source.schema())
        if push is not None:
            assert list(reader.pushFilters(push)) == push
        partitions = reader.partitions() or [InputPartition(None)]
        return [row for p in partitions for batch in reader.read(p) for row in batch.to_pylist()]

    yield rows
    close_clients()


@pytest.fixture
def written(client: Any, log: str) -> str:
    """A raw log with a closed segment of three entries and a live one."""
    create_log(client, log, LogProperties(entry_format="raw"))
    with LogWriter.open(client, log) as writer:
        for value in (b"a", b"bb", b"ccc"):
            writer.append(value)
    return log


def test_ledgers_and_fragments(client: Any, cluster: Any, rows: Callable[..., Any], written: str) -> None:
    (segment,) = [s for s in read_log(client, written).segments() if s.entries]
    with client.create_ledger(write_quorum_size=2, digest_type="MAC", password=b"pw", custom={"k": b"v"}) as ledger:
        ledger.append(b"x" * 10)
        ledger.append(b"y")
        opened = {row["ledgerId"]: row for row in rows("ledgers")}[ledger.ledger_id]
        assert (opened["state"], opened["lastEntryId"], opened["length"]) == ("OPEN", None, None)
        one = {"ledgers": str(ledger.ledger_id)}
        (lac,) = rows("ledgers", **one, openLedgers="lac", password="pw")
        assert lac["lastEntryId"] in (0, 1) and lac["passwordProtected"] and lac["custom"] == [("k", b"v")]
        ledger.append(b"z")  # nobody fenced it
    (row,) = rows("ledgers", **one)
    quorums = (row["ensembleSize"], row["writeQuorumSize"], row["ackQuorumSize"], row["digestType"], row["guaranteed"])
    assert quorums == (3, 2, 2, "MAC", False) and row["createdAt"] > datetime(2020, 1, 1, tzinfo=UTC)
    assert (row["state"], row["lastEntryId"], row["length"], row["fragments"], row["log"]) == ("CLOSED", 2, 12, 1, None)
    (ours,) = [row for row in rows("ledgers", log=written) if row["ledgerId"] == segment.ledger_id]
    assert ours["log"] == written and ours["length"] == 6 and not ours["passwordProtected"]
    found = rows("fragments", **one)
    ensemble = client.ledger_metadata(ledger.ledger_id).fragments[0].ensemble
    assert [(f["fragment"], f["firstEntryId"], f["lastEntryId"], f["position"]) for f in found] == [(0, 0, 2, i) for i in range(3)]
    assert tuple(f["bookie"] for f in found) == ensemble
    assert rows("ledgers", [EqualTo(("ledgerId",), ledger.ledger_id)], columns="ledgerId") == [{"ledgerId": ledger.ledger_id}]
    with pytest.raises(InvalidArgumentError, match="only look"):
        rows("ledgers", openLedgers="recover")


def test_bookies(client: Any, rows: Callable[..., Any], written: str) -> None:
    found = rows("bookies")
    assert [row["bookie"] for row in found] == sorted(client.bookies().writable) and {row["mode"] for row in found} == {"WRITABLE"}
    counts = {row["bookie"]: 0 for row in found}
    for ledger_id in client.list_ledgers():
        for bookie in {b for f in client.ledger_metadata(ledger_id).fragments for b in f.ensemble}:
            counts[bookie] += 1
    assert {row["bookie"]: row["ledgers"] for row in found} == counts
    assert all(0 < row["freeBytes"] <= row["totalBytes"] and row["host"] == "127.0.0.1" and row["port"] > 0 for row in found)
    assert all(set(row) == {"bookie", "mode"} for row in rows("bookies", columns="bookie,mode"))


def test_logs_and_segments(client: Any, rows: Callable[..., Any], written: str) -> None:
    with LogWriter.open(client, written) as writer:
        writer.append(b"live")
        (row,) = rows("logs", log=written)
        view = read_log(client, written)
        assert (row["entryFormat"], row["rows"], row["bytes"], row["live"], row["logId"]) == ("raw", 3, 6, True, view.log_id)
        assert row["segments"] == view.next_seq - row["firstSeq"] and row["nextSeq"] == view.next_seq
        segments = rows("segments", log=written)
        assert [s["seq"] for s in segments] == [s.seq for s in view.segments()]
        first, live = segments[0], segments[-1]
        assert (first["entries"], first["rows"], first["bytes"], first["offset"], first["live"]) == (3, 3, 6, 0, False)
        assert not any(s["writtenOff"] for s in segments)
        assert live["live"] and live["offset"] == 3 and live["rows"] is live["committedAt"] is live["lastEntryId"] is None
    assert written in [row["log"] for row in rows("logs")]
    assert [row["log"] for row in rows("logs", [EqualTo(("log",), written)])] == [written]
    later = [GreaterThan(("committedAt",), first["committedAt"])]
    assert 0 < len(rows("segments", later, log=written)) < len(rows("segments", log=written)) + 1
    assert rows("segments", [EqualTo(("log",), "nobody")], log=written) == []


def test_entries_are_checked_replica_by_replica(client: Any, rows: Callable[..., Any], written: str) -> None:
    (segment,) = [s for s in read_log(client, written).segments() if s.entries]
    found = rows("entries", log=written)
    assert [(r["log"], r["ledgerId"], r["entryId"]) for r in found] == [(written, segment.ledger_id, i) for i in range(3)]
    assert [(r["payloadBytes"], r["length"], r["digestOk"], r["replicas"], r["corrupt"]) for r in found] == [
        (1, 1, True, 3, []),
        (2, 3, True, 3, []),
        (3, 6, True, 3, []),
    ]
    assert found[2]["lastAddConfirmed"] <= 1
    assert [r["entryId"] for r in rows("entries", [EqualTo(("entryId",), 1)], ledgers=str(segment.ledger_id))] == [1]
    with pytest.raises(InvalidArgumentError, match="name the ledgers or the log"):
        rows("entries")


def test_counting_reads_no_entry(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, cluster: Any, log: str
) -> None:
    save(spark.range(2500), log=log)
    counted = load(metadata="segments", log=log).agg({"rows": "sum"}).first()[0]
    assert counted == load(log=log).count() == 2500
    assert load(metadata="ledgers").where("state = 'CLOSED'").count() == sum(
        client.ledger_metadata(i).state is LedgerState.CLOSED for i in client.list_ledgers()
    )
    uri = {"bookkeeper.metadataServiceUri": cluster.uri}
    with pytest.raises(PySparkException, match="BK-ARGUMENT.*batch reads"):
        stream = spark.readStream.format("bookkeeper").options(**uri, metadata="logs").load()
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_the_readme_describes_every_column() -> None:
    readme = (Path(__file__).parents[2] / "bk_spark" / "README.md").read_text()
    for name, table in TABLES.items():
        assert f"| `{name}` |" in readme
        assert all(f"`{field.name}`" in readme for field in table.schema.fields)
