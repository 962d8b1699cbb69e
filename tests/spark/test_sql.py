"""SQL: catalog tables, views, INSERT INTO (spark-connectors.md 5.12, and 5.14, no. 17)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bk_core.client.log.history import read_log
from bk_core.errors import InvalidArgumentError
from bk_spark.catalog import for_reading, for_writing, of_table, remember
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.schemas import TABLE_OPTIONS_KEY, schema_of_text, without_table_options

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType(), True, {"comment": "kept"}), StructField("text", StringType())])


# --- without Spark ---------------------------------------------------------------------------------------------------------


def test_options_travel_in_the_first_column_without_secrets() -> None:
    made = {"owner": "me", "provider": "bookkeeper", "log": "a", "password": "hunter2", "option.log": "a", "option.password": "hunter2"}
    options = of_table(made)
    assert options == {"log": "a", "password": "hunter2"} and of_table({"log": "a"}) is None
    noted = remember(SCHEMA, options)
    assert "hunter2" not in noted.json() and noted.fields[0].metadata["comment"] == "kept" and noted.names == SCHEMA.names
    assert for_reading({}, noted) == {"log": "a"} and without_table_options(noted) == without_table_options(SCHEMA)
    assert without_table_options(noted).fields[0].metadata == {"comment": "kept"}


def test_a_statement_goes_before_its_table() -> None:
    noted = remember(SCHEMA, {"log": "a", "startingoffsets": "latest", "maxbytesperpartition": "1m"})
    assert for_reading({"startingOffsets": "earliest", "password": "p"}, noted) == {
        "log": "a",
        "maxbytesperpartition": "1m",
        "startingOffsets": "earliest",
        "password": "p",
    }
    assert "startingoffsets" not in for_reading({}, noted, lambda field: field != "starting_offsets")
    assert for_reading({"subscribe": "b"}, noted) == {"subscribe": "b"}  # another source: nothing of the table's is meant


def test_without_options_the_error_says_what_to_write() -> None:
    with pytest.raises(InvalidArgumentError, match=r"SELECT \* FROM t WITH \(`bookkeeper.metadataServiceUri` = .*, log = 'name'\)"):
        for_reading({}, SCHEMA)
    with pytest.raises(InvalidArgumentError, match=r"INSERT INTO t WITH \(.*log = 'name'\) SELECT"):
        for_writing({})
    damaged = StructType([StructField("id", LongType(), True, {TABLE_OPTIONS_KEY: "[1"})])
    with pytest.raises(InvalidArgumentError, match="create it again"):
        for_reading({}, damaged)


def test_the_source_shows_no_value_of_an_option() -> None:
    assert repr(BookKeeperDataSource({"log": "a", "password": "hunter2"})) == "BookKeeperDataSource(log, password)"


# --- with Spark ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(spark: SparkSession, cluster: Any) -> Iterator[tuple[str, str]]:
    """Two logs, of 7 rows and of 2, and their tables ``t0`` (only read) and ``t1``."""
    spark.createDataFrame([(1,)], "a int")
    names = ("sql-0", "sql-1")
    for number, (name, rows) in enumerate(zip(names, (7, 2), strict=True)):
        writer = spark.range(0, rows, 1, 1).write.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri)
        writer.option("log", name).mode("append").save()
        options = f"`bookkeeper.metadataServiceUri` '{cluster.uri}', log '{name}', password 'hunter2', maxRowsPerTrigger '4'"
        spark.sql(f"CREATE TABLE t{number} USING bookkeeper OPTIONS ({options})")
    yield names
    for number in range(len(names)):
        spark.sql(f"DROP TABLE t{number}")


def test_a_table_remembers_its_options(spark: SparkSession, cluster: Any, client: Any, tables: tuple[str, str], tmp_path: Path) -> None:
    assert spark.sql("SELECT sum(id), count(*) FROM t0").first()[:] == (21, 7)
    assert "hunter2" not in spark.table("t0").schema.json()
    place = f"""{{"seq":0,"entry":{read_log(client, tables[0]).segment(0).first_entry_id},"row":5}}"""
    assert spark.sql(f"SELECT count(*) FROM t0 WITH (startingOffsets = '{place}')").first()[0] == 2
    assert spark.read.option("startingOffsets", "latest").table("t0").count() == 0
    stream = spark.readStream.option("startingOffsets", "earliest").table("t0").writeStream.format("memory").queryName("t0_rows")
    stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert spark.table("t0_rows").count() == 7


def test_inserts_say_where_to(spark: SparkSession, cluster: Any, client: Any, tables: tuple[str, str]) -> None:
    """A table's options must not be used here: what arrives is the metadata of the query's columns, so of the table that is read."""
    for statement in ("INSERT INTO t1 VALUES (1)", "INSERT INTO t1 SELECT * FROM t0"):
        with pytest.raises(PySparkException, match="INSERT INTO t WITH"):
            spark.sql(statement)
    to = f"`bookkeeper.metadataServiceUri` = '{cluster.uri}', log = 'sql-copied'"
    spark.sql(f"INSERT INTO t1 WITH ({to}) SELECT * FROM t0")
    views = [read_log(client, name) for name in ("sql-copied", *tables)]
    assert [view.counts_before(view.end_position)[0] for view in views] == [7, 7, 2]
    assert TABLE_OPTIONS_KEY not in schema_of_text(views[0].properties.schema).json()


def test_tables_from_queries_and_views(spark: SparkSession, cluster: Any, tables: tuple[str, str]) -> None:
    options = f"`bookkeeper.metadataServiceUri` '{cluster.uri}', log '{tables[0]}'"
    with pytest.raises(PySparkException, match="For CREATE TABLE ... AS SELECT write the rows first"):
        spark.sql(f"CREATE TABLE t2 USING bookkeeper OPTIONS ({options}) AS SELECT * FROM t0")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING bookkeeper OPTIONS ({options})")
    assert spark.sql("SELECT sum(id) FROM v").first()[0] == 21
    uri = {"bookkeeper.metadataServiceUri": cluster.uri}
    assert spark.read.format("bookkeeper").options(**uri).load(tables[0]).count() == 7


MADE_WITHOUT_US = {  # statements that make a table t and ask nothing of ours for it; {} are options
    "columns": lambda spark, options: spark.sql(
        "CREATE TABLE t (id bigint) USING bookkeeper OPTIONS (" + ", ".join(f"`{k}` '{v}'" for k, v in options.items()) + ")"
    ),
    "saveAsTable": lambda spark, options: spark.range(2).write.format("bookkeeper").options(**options).saveAsTable("t"),
    "create": lambda spark, options: spark.range(2).writeTo("t").using("bookkeeper").options(**options).create(),
    "createOrReplace": lambda spark, options: spark.range(2).writeTo("t").using("bookkeeper").options(**options).createOrReplace(),
}


@pytest.mark.parametrize("way", MADE_WITHOUT_US)
def test_a_table_that_remembers_nothing_says_how_it_is_made_again(spark: SparkSession, cluster: Any, active: None, way: str) -> None:
    """insertInto takes options behind ``format`` alone. Rows are in the log, so that the way out that the message names has them all."""
    options = {"bookkeeper.metadataServiceUri": cluster.uri, "log": f"sql-{way}"}
    spark.range(1).write.format("bookkeeper").options(**options).mode("append").save()
    MADE_WITHOUT_US[way](spark, options)
    rows = {"columns": 1, "createOrReplace": 2}.get(way, 3)
    try:
        with pytest.raises(PySparkException, match=r"DROP TABLE t; CREATE TABLE t USING bookkeeper OPTIONS.*SELECT \* FROM t WITH"):
            spark.table("t").count()
        assert spark.read.options(**options).table("t").count() == rows
        spark.sql("DROP TABLE t")
        spark.sql("CREATE TABLE t USING bookkeeper OPTIONS (" + ", ".join(f"`{k}` '{v}'" for k, v in options.items()) + ")")
        assert spark.table("t").count() == rows
        with pytest.raises(
            PySparkException, match=r"df.writeTo\('t'\)\.option.*Not df\.write\.option\(\.\.\.\)\.insertInto.*without .format"
        ):
            spark.range(2).write.options(**options).insertInto("t")
        spark.range(1).writeTo("t").options(**options).append()
        spark.range(1).write.format("bookkeeper").options(**options).insertInto("t")
        assert spark.table("t").count() == rows + 2
    finally:
        spark.sql("DROP TABLE IF EXISTS t")


def test_a_temporary_view_is_frozen_at_its_first_use(spark: SparkSession, cluster: Any, active: None) -> None:
    options = {"bookkeeper.metadataServiceUri": cluster.uri, "log": "sql-frozen"}
    made = (
        "CREATE OR REPLACE TEMPORARY VIEW frozen USING bookkeeper OPTIONS (" + ", ".join(f"`{k}` '{v}'" for k, v in options.items()) + ")"
    )
    spark.range(2).write.format("bookkeeper").options(**options).mode("append").save()
    spark.sql(made)
    assert spark.table("frozen").count() == 2
    spark.range(3).write.format("bookkeeper").options(**options).mode("append").save()
    spark.sql("REFRESH TABLE frozen")
    assert spark.table("frozen").count() == 2
    spark.sql(made)
    assert spark.table("frozen").count() == 5


def test_a_mistake_in_create_table_is_told_at_once(spark: SparkSession, cluster: Any, active: None) -> None:
    uri = f"`bookkeeper.metadataServiceUri` '{cluster.uri}'"
    for options, message in ((f"{uri}, logg 'a'", "did you mean log"), (f"{uri}, log 'nobody'", "BK-NO-LOG"), (uri, "name the log")):
        with pytest.raises(PySparkException, match=message):
            spark.sql(f"CREATE TABLE broken USING bookkeeper OPTIONS ({options})")
