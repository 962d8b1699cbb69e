"""A second driver, in a process of its own: goes on with the queries of another one from their checkpoint, twice, in two sessions.

    python -m tests.spark.checkpoint_driver '{"uri": ..., "checkpoint": ..., "input": ..., "log": ..., "directory": ...}'

Everything that Spark and Python can log is logged at level DEBUG and kept, with event log, web pages and REST answers, in ``directory``, so
that the test can look for the secrets, which go to ``directory/secrets``. Begins when its standard input ends; prints one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bk_spark import checkpoint_location
from bk_spark.checkpoint import location

PAGE_S = 120  # a busy machine
PAGES = ("environment/", "jobs/", "StreamingQuery/", "SQL/", "api/v1/applications/{}/environment", "api/v1/applications/{}/allexecutors")


@dataclass
class Task:
    uri: str
    checkpoint: str
    input: str
    log: str
    directory: str


def session(directory: Path) -> SparkSession:
    events = directory / "events"
    events.mkdir(exist_ok=True)
    settings = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]").appName("second")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def has_had_a_client(spark: SparkSession) -> bool:
    """True if this JVM ever made a file system for WebHDFS: Hadoop counts its operations from then on."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics().get("webhdfs") is not None


def go_on(spark: SparkSession, task: Task, checkpoint: str) -> int:
    """Take what has come since the last commit; the number of the last batch."""
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(task.input)
    sink = stream.writeStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", task.uri).option("log", task.log)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    return int(query.lastProgress["batchId"])


def keep_what_is_shown(spark: SparkSession, directory: Path, checkpoint: str) -> None:
    """Pages, REST answers, settings, plans, processes: whatever somebody may look at."""
    context: Any = spark.sparkContext
    shown = []
    for page in PAGES:
        with urllib.request.urlopen(f"{context.uiWebUrl}/{page.format(context.applicationId)}", timeout=PAGE_S) as answer:
            shown.append(answer.read().decode())
    frame = spark.read.text(f"{checkpoint}/offsets")
    shown += [frame._jdf.queryExecution().toString(), str(frame.collect()), str(context.getConf().getAll())]
    shown += [str(spark.sql("SET -v").collect()), repr(location._applications), repr(vars(next(iter(location._applications.values()))))]
    for pid in (os.getpid(), context._jvm.java.lang.ProcessHandle.current().pid()):
        for part in ("cmdline", "environ"):
            shown.append(Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace"))
    (directory / "shown").write_text("\n".join(shown))


def main(task: Task) -> None:
    directory = Path(task.directory)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    places, batches, gateways, clients = [], [], [], []
    for number in range(2):
        spark = session(directory)
        if not number:
            sys.stdin.read()  # the other driver has begun
        spark.sparkContext.setLogLevel("DEBUG" if not number else "ERROR")
        places.append(checkpoint_location(spark, task.checkpoint, uri=task.uri))
        clients.append(has_had_a_client(spark))
        gateway = next(iter(location._applications.values())).gateway
        gateways.append(gateway.address)
        with (directory / "secrets").open("a") as kept:
            kept.write(f"{gateway.refresh.reveal()}\n{gateway.access.reveal()}\n")
        batches.append(go_on(spark, task, places[-1]))
        if not number:
            spark.sparkContext.addFile(__file__)  # has Spark write its settings to the event log once more
            keep_what_is_shown(spark, directory, places[-1])
            Path(task.input, "third.json").write_text('{"id": 3}\n')
        spark.stop()
        assert gateway._closed.wait(20) and not location._applications
        location.close(spark)  # nothing is open any more
    print(json.dumps({"places": places, "batches": batches, "gateways": gateways, "clients": clients}))


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
