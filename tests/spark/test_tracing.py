"""Batches of real queries, traced to the bookies that hold them and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bk_core.client.log.list_store import read_ledger_list

pytestmark = pytest.mark.spark


def test_each_batch_of_a_stream_is_traced_and_its_entries_back(
    spark: SparkSession, cluster: Any, client: Any, active: None, tmp_path: Path, log: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    counts = [300, 7, 20]
    query_ids = set()
    for batch, rows in enumerate(counts):
        spark.range(rows).repartition(3).write.mode("append").json(str(source / f"{batch}"))
        stream = spark.readStream.schema("id bigint").option("recursiveFileLookup", "true").json(str(source))
        writer = stream.writeStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).option("log", log)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(120)
        query_ids.add(query.id)
    (query_id,) = query_ids
    batches = sorted({span.batch_id for span in read_ledger_list(client, log).batches})
    found = [client.trace_batch(log, query_id, batch) for batch in batches]
    assert sum(one.rows for one in found) == sum(counts)
    assert [one.rows for one in found if one.rows] == counts
    for one in found:
        assert set(one.bookies) <= set(cluster.bookie_ids)
        for part in one.segments:
            for entry in (part.segment.first_entry_id, part.segment.last_entry_id):
                back = client.trace_entry(part.segment.ledger_id, entry)
                assert (back.log, back.query_id, back.batch_id) == (log, query_id, one.batch_id)
    assert "<table>" in found[0]._repr_html_()


def test_a_batch_write_is_traced_as_one(spark: SparkSession, client: Any, save: Callable[..., None], log: str) -> None:
    save(spark.range(100).repartition(4), log=log)
    found = client.trace_batch(log)
    assert (found.rows, found.known) == (100, "recorded")
    assert found.query_id.startswith("write:")
