"""``df.write`` and ``spark.read`` against bookies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bk_core.client.logs import LogWriter, create_log, gc_log, list_logs, read_ledger_list
from bk_core.protocol.log.ledger_list import LogProperties

pytestmark = pytest.mark.spark


def test_rows_come_back(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str) -> None:
    frame = spark.range(10_000).select("id", F.col("id").cast("string").alias("text"), F.current_timestamp().alias("at"))
    save(frame, log=log, compression="zstd", entrySize="8k")
    save(frame.where("id < 10"), log=log)
    back = load(log=log)
    assert back.count() == 10_010 and back.agg(F.sum("id")).first()[0] == 10_000 * 9_999 // 2 + 45
    assert [f.dataType for f in back.schema.fields] == [f.dataType for f in frame.schema.fields]
    assert load(log=log, maxBytesPerPartition="20k").rdd.getNumPartitions() > 3
    assert load(log=log, startingOffsets="latest").count() == 0
    listed = read_ledger_list(client, log)
    assert listed.counts_before(listed.end_position)[0] == 10_010


def test_no_rows_make_no_ledger(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str) -> None:
    save(spark.range(0), log=log)
    assert read_ledger_list(client, log).segments == ()
    assert load(log=log).count() == 0 and load(log=log).columns == ["id"]


def test_raw_and_ledgers(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str) -> None:
    save(spark.createDataFrame([("a",), ("bb",), ("",)], "value string").coalesce(1), log=log, entryFormat="raw")
    assert sorted(bytes(r.value) for r in load(log=log).collect()) == [b"", b"a", b"bb"]
    with client.create_ledger() as ledger:
        for i in range(10):
            ledger.append(b"%d" % i)
        ids = {"ledgers": str(ledger.ledger_id)}
        assert load(**ids).count() == 0  # still open, and reading never fences
    rows = load(**ids, minPartitions="3").orderBy("entryId").collect()
    assert [(r.ledgerId, r.entryId, bytes(r.value)) for r in rows] == [(ledger.ledger_id, i, b"%d" % i) for i in range(10)]
    assert load(**ids).where("entryId = 3").first().log is None


def test_a_live_log_is_read_but_not_written(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str
) -> None:
    create_log(client, log, LogProperties(entry_format="raw"))
    with LogWriter.open(client, log) as writer:
        writer.append(b"one")
        assert load(log=log).count() == 0
        writer.append(b"two")
        with pytest.raises(PySparkException, match="BK-LOG-TAKEN-OVER"):
            save(spark.createDataFrame([("x",)], "value string"), log=log)
        writer.append(b"three")  # nobody fenced it
    assert load(log=log).count() == 3


def test_a_transaction_is_written_once(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str) -> None:
    for version in ("1", "1", "0", "2"):
        save(spark.range(5), log=log, txnAppId="job", txnVersion=version)
    assert load(log=log).count() == 10


def test_a_failing_write_stays_invisible(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str
) -> None:
    save(spark.range(3), log=log)
    broken = spark.range(0, 1000, 1, 4).select(
        F.when(F.col("id") == 999, F.raise_error("boom").cast("long")).otherwise(F.col("id")).alias("id")
    )
    with pytest.raises(PySparkException, match="boom"):
        save(broken, log=log)
    assert load(log=log).count() == 3
    gc_log(client, log, min_age_s=-60)
    assert load(log=log).count() == 3 and client.store.children(f"intents/{log}") == []


@pytest.mark.parametrize("mode", ["overwrite", "wrong-schema", "unknown-option"])
def test_mistakes_carry_stable_codes(
    spark: SparkSession, cluster: Any, load: Callable[..., Any], save: Callable[..., None], log: str, mode: str
) -> None:
    save(spark.range(3), log=log)
    with pytest.raises(PySparkException, match="BK-LOG-SCHEMA" if mode == "wrong-schema" else "BK-ARGUMENT"):
        if mode == "overwrite":
            uri = {"bookkeeper.metadataServiceUri": cluster.uri}
            spark.range(3).write.format("bookkeeper").options(**uri, log=log).mode("overwrite").save()
        elif mode == "wrong-schema":
            save(spark.range(3).withColumnRenamed("id", "other"), log=log)
        else:
            load(log=log, startingOffset="latest")


def test_sql_temporary_view(spark: SparkSession, cluster: Any, save: Callable[..., None], client: Any, log: str) -> None:
    save(spark.range(7), log=log)
    assert log in list_logs(client)
    options = f"`bookkeeper.metadataServiceUri` '{cluster.uri}', log '{log}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seven USING bookkeeper OPTIONS ({options})")
    assert spark.sql("SELECT sum(id) FROM seven").first()[0] == 21
