"""Spark's checkpoints in ledgers: real queries, both state stores, another driver, and nothing that tells the secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bk_core.client.files.view import FileStoreView
from bk_core.errors import InvalidArgumentError
from bk_spark import checkpoint_location
from bk_spark.checkpoint import close, hadoop_conf
from bk_spark.checkpoint.http_parts import PeerGone
from bk_spark.checkpoint.location import URI_CONF, _applications

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}


@pytest.fixture
def name(log: str) -> str:
    return f"c-{log}".replace("/", "-")[:120]


@pytest.fixture
def place(spark: SparkSession, cluster: Any, name: str, active: None) -> str:
    return checkpoint_location(spark, name, uri=cluster.uri)


def run(writer: Any, place: str) -> Any:
    query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    return query


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stateful_query_goes_on_where_it_was(
    spark: SparkSession, cluster: Any, client: Any, place: str, name: str, provider: str, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    found: dict[str, int] = {}
    batches = 0

    def keep(frame: Any, number: int) -> None:
        found.update({row.key: row["count"] for row in frame.collect()})

    try:
        for files in (2, 1):
            for _ in range(files):
                batches += 1
                (tmp_path / f"{batches}.json").write_text("".join(json.dumps({"key": f"k{i % 5}"}) + "\n" for i in range(20)))
            stream = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).json(str(tmp_path))
            run(stream.groupBy("key").count().writeStream.outputMode("update").foreachBatch(keep), place)
            assert found == {f"k{i}": 4 * batches for i in range(5)}
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        spark.conf.unset("spark.sql.streaming.stateStore.minDeltasForSnapshot")
    state = spark.read.format("statestore").load(place)
    assert {row.key.key: row.value["count"] for row in state.collect()} == found
    offsets = [path for path in spark.read.text(f"{place}/offsets").select(F.input_file_name()).distinct().toPandas().iloc[:, 0]]
    assert sorted(offsets) == [f"{place}/offsets/{batch}" for batch in range(3)]
    with FileStoreView.open(client, name) as view:  # it is in the ledgers, and no temporary file is
        assert {status.name for status in view.listing("/")} >= {"commits", "metadata", "offsets", "sources", "state"}
        assert not [path for path in below(view, "/") if path.endswith(".tmp")]


def below(view: FileStoreView, path: str) -> list[str]:
    found = []
    for status in view.listing(path):
        found += below(view, status.path) if status.is_directory else [status.path]
    return found


def second_driver(kept: Path, task: dict[str, str]) -> subprocess.Popen[str]:
    """It starts its Spark, and then waits for a word."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    program = [sys.executable, "-m", "tests.spark.checkpoint_driver", json.dumps(task)]
    with (kept / "stdout").open("w") as out, (kept / "stderr").open("w") as err:
        return subprocess.Popen(program, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)


@pytest.mark.deep  # make checkpoint-drivers counts rows, too
def test_another_driver_goes_on_and_ends_the_first(
    spark: SparkSession, cluster: Any, load: Callable[..., Any], place: str, name: str, log: str, tmp_path: Path
) -> None:
    files, kept = tmp_path / "input", tmp_path / "kept"
    files.mkdir()
    kept.mkdir()
    (files / "first.json").write_text('{"id": 1}\n')
    other = second_driver(kept, {"uri": cluster.uri, "checkpoint": name, "input": str(files), "log": log, "directory": str(kept)})
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(files))
    sink = stream.writeStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).option("log", log)
    query = sink.option("checkpointLocation", place).trigger(processingTime="200 milliseconds").start()
    query.processAllAvailable()
    other.communicate("now", timeout=250)
    assert other.returncode == 0, (kept / "stderr").read_text()[-3000:]
    told = json.loads((kept / "stdout").read_text().splitlines()[-1])
    assert told["places"] == [place, place] and len(set(told["gateways"])) == 2
    assert told["clients"] == [False, True]  # opening makes no client to close it, where none can be
    with pytest.raises(StreamingQueryException, match="BK-FILES-TAKEN-OVER") as caught:  # it met the third file
        query.awaitTermination(60)
    assert "another driver opened the checkpoint" in str(caught.value)
    assert sorted(row.id for row in load(log=log).collect()) == [1, 3]
    # here again: the other's word counts until somebody asks for the checkpoint
    assert checkpoint_location(spark, name, uri=cluster.uri) == place
    (files / "fourth.json").write_text('{"id": 4}\n')
    run(sink, place)
    assert sorted(row.id for row in load(log=log).collect()) == [1, 3, 4]
    secrets = (kept / "secrets").read_text().split() + [
        secret.reveal() for app in _applications.values() for secret in (app.gateway.refresh, app.gateway.access)
    ]
    assert len(secrets) == 6
    (kept / "secrets").unlink()
    (kept / "exception").write_text(f"{caught.value} {caught.value!r} {vars(caught.value)!r}")
    looked_at = [path for path in kept.rglob("*") if path.is_file()]
    assert len([path for path in looked_at if "events" in path.parts]) >= 2
    shown, said = (kept / "shown").read_text(), (kept / "stderr").read_text()
    assert f'"{hadoop_conf.REFRESH_TOKEN}", "*********(redacted)"' in shown  # so the settings are there
    assert hadoop_conf.REFRESH_URL in said and "DEBUG WebHdfsFileSystem" in said  # so are py4j's commands, and what the JVM has to say
    for path in looked_at:
        text = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in text], path


ODD = ("a b", "50%", "a%20b", "x?y", "x#z", "prüf \U0001f600", "'quo\"te'", "x" * 255, "-n", "a+b&op=DELETE;e", "back\\slash")


def test_files_of_odd_names_go_both_ways_through_hadoops_client(spark: SparkSession, place: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    above = jvm.org.apache.hadoop.fs.Path(f"{place}/odd")
    files = above.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    wrong = []
    for name in ODD:
        path = jvm.org.apache.hadoop.fs.Path(above, name)
        out = files.create(path)
        out.write(name.encode())
        out.close()
        moved = jvm.org.apache.hadoop.fs.Path(above, name[:-1] + "2")
        got = bytes(jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(files.open(path)))
        listed = [status.getPath().getName() for status in files.listStatus(above)]
        renamed = files.rename(path, moved) and files.exists(moved) and not files.exists(path)
        if (got, listed, renamed, files.delete(moved, False)) != (name.encode(), [name], True, True):
            wrong.append((name, got, listed, renamed))
    assert not wrong


def test_a_wrong_secret_opens_nothing(spark: SparkSession, place: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
    path = jvm.org.apache.hadoop.fs.Path(place)
    files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), configuration)
    assert files.exists(path)
    files.close()
    configuration.set(hadoop_conf.REFRESH_TOKEN, "guessed")
    files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), configuration)
    with pytest.raises(Py4JJavaError, match="401"):
        files.exists(path)
    files.close()


def test_an_answer_that_is_lost_is_asked_for_again_and_told_again(
    spark: SparkSession, place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's HttpURLConnection repeats it, whatever WebHDFS's own retries are set to."""
    jvm: Any = spark.sparkContext._jvm
    (application,) = _applications.values()
    operations, asked = application.gateway.operations, []
    handle = operations.handle

    def lose(request: Any, body: Any) -> Any:
        answer = handle(request, body)
        if request.query["op"] in ("RENAME", "DELETE"):
            asked.append(request.query["op"])
            if asked.count(request.query["op"]) == 1:
                raise PeerGone("the answer is lost")
        return answer

    path = jvm.org.apache.hadoop.fs.Path(f"{place}/offsets/0")
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager(path, configuration)
    manager.mkdirs(path.getParent())
    files = application.gateway.files[name]
    deletes: list[str] = []
    delete = files.store.delete
    monkeypatch.setattr(files.store, "delete", lambda path, **options: deletes.append(path) or delete(path, **options))
    for number, overwrite in enumerate([False, True]):
        asked.clear()
        monkeypatch.setattr(operations, "handle", handle)
        stream = manager.createAtomic(path, overwrite)
        stream.write(bytes([number] * 100))
        monkeypatch.setattr(operations, "handle", lose)
        stream.close()
        assert asked == ["DELETE"] * (2 * overwrite) + ["RENAME", "RENAME"]
        assert b"".join(files.open("/offsets/0", 0, None)[1]) == bytes([number] * 100)
        assert [status.path for status in files.listing("/offsets")] == ["/offsets/0"]
    assert deletes == []  # the file was replaced in one change, however often its delete was asked for


def test_the_same_checkpoint_is_opened_once(spark: SparkSession, cluster: Any, place: str, name: str) -> None:
    (application,) = _applications.values()
    store = application.gateway.files[name].store
    spark.conf.set(URI_CONF, cluster.uri)
    try:
        assert checkpoint_location(spark, name) == place and application.gateway.files[name].store is store
    finally:
        spark.conf.unset(URI_CONF)
    with pytest.raises(InvalidArgumentError, match="is open from"):
        checkpoint_location(spark, name, uri=cluster.uri + "x")
    close(spark, name)
    assert not store.is_open and name not in application.gateway.files
    assert checkpoint_location(spark, name, uri=cluster.uri) == place
    with pytest.raises(InvalidArgumentError, match=f"open here: .*'{name}'.*Did you mean '{name}'"):
        close(spark, f"{name}x")
    close(spark)
    close(spark)
    close(spark, name)
    assert not application.gateway.files and list(_applications.values()) == [application]


def test_what_cannot_work_is_said_at_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKKEEPER_METADATA_SERVICE_URI", raising=False)
    with pytest.raises(InvalidArgumentError, match="name the cluster: checkpoint_location"):
        checkpoint_location(spark, "x")
    with pytest.raises(InvalidArgumentError, match="must be the SparkSession of the driver"):
        checkpoint_location(object(), "x", uri="zk://localhost/ledgers")
    with pytest.raises(InvalidArgumentError, match="letters, digits"):
        checkpoint_location(spark, "a/b", uri="memory://none")
