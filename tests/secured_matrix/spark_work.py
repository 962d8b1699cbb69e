"""Jobs of Spark at a cluster, with Java beside them: one session for all clusters, whose URIs carry what each of them asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.secured_matrix.operations import COUNT, Sides, java_reads, java_writes, ours_of
from tests.soak.workload import PASSWORD, payload

ROWS = 1000
_STREAM_S = 120


class Jobs:
    """The jobs of one row. ``directory`` is for the checkpoint."""

    def __init__(self, spark: SparkSession, sides: Sides, directory: Path) -> None:
        self._spark, self._sides, self._directory = spark, sides, directory
        self._options: Any = {
            "bookkeeper.metadataServiceUri": sides.uri,
            "bookkeeper.protocol": sides.protocol,
            "password": PASSWORD.decode(),
        }
        self._log = f"rows-{sides.protocol}"

    def batch(self) -> str:
        """Write a log, have Java fence and read its ledgers, read it; read a ledger of Java's, or of ours where Java is not there."""
        sides = self._sides
        self._spark.range(0, ROWS, numPartitions=2).write.format("bookkeeper").options(**self._options, log=self._log).mode("append").save()
        ledger_ids = {segment.ledger_id for segment in sides.client.log(self._log, password=PASSWORD).segments()}
        assert ledger_ids
        for ledger_id in ledger_ids if sides.java is not None else ():
            sides.ask(f"recover {ledger_id}")
            with sides.client.open_ledger(ledger_id, password=PASSWORD) as reader:
                java_reads(sides, ledger_id, reader.read(0, reader.last_add_confirmed))
        rows = self._spark.read.format("bookkeeper").options(**self._options, log=self._log).load().collect()
        assert sorted(row.id for row in rows) == list(range(ROWS))
        java = sides.closed.get("java")
        expected = ours_of(sides.closed["ours"]) if java is None else [payload(java, entry) for entry in range(COUNT)]
        single = {"ledgers": str(sides.closed["ours"] if java is None else java), "includeMetadata": "false"}
        values = self._spark.read.format("bookkeeper").options(**self._options, **single).load().collect()
        assert sorted(bytes(row.value) for row in values) == sorted(expected)
        return f"{len(ledger_ids)} ledgers"

    def stream(self) -> str:
        """Copy the log by a streaming query, while Java writes, and read the copy by ourselves."""
        copy = f"copy-{self._sides.protocol}"
        beside = None if self._sides.java is None else self._sides.pool.submit(java_writes, self._sides)
        stream = self._spark.readStream.format("bookkeeper").options(**self._options, log=self._log, startingOffsets="earliest").load()
        out = {**self._options, "log": copy, "checkpointLocation": str(self._directory / copy)}
        query = stream.writeStream.format("bookkeeper").options(**out).trigger(availableNow=True).start()
        assert query.awaitTermination(_STREAM_S)
        rows = self._sides.client.log(copy, password=PASSWORD).to_arrow()
        assert sorted(rows.column("id").to_pylist()) == list(range(ROWS))
        if beside is not None:
            beside.result(_STREAM_S)
        return ""
