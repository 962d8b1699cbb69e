"""A batch and a stream over a cluster whose ZooKeeper and ledgers have passwords, with everything on that Spark writes down.

python -m tests.spark.secrets_driver '{"uri": ..., "password_file": ..., "work": ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.deployment import QUIET


def main(uri: str, password_file: str, work: str) -> None:
    events = Path(work, "events")
    events.mkdir()
    settings = {**QUIET, "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": events.as_uri()}
    builder = SparkSession.builder.master("local[1]")
    for key, value in {**settings, "spark.sql.warehouse.dir": str(Path(work, "warehouse"))}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    options = {"bookkeeper.metadataServiceUri": uri, "passwordFile": password_file, "log": "flights"}
    quorums = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
    spark.range(7).write.format("bookkeeper").options(**options, **quorums).mode("append").save()
    frame = spark.read.format("bookkeeper").options(**options).load()
    frame.explain(mode="extended")
    told = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TABLE flights USING bookkeeper OPTIONS ({told})")
    stream = spark.readStream.format("bookkeeper").options(**options, startingOffsets="earliest").load()
    out = {**options, "log": "copy", **quorums, "checkpointLocation": str(Path(work, "checkpoint"))}
    query = stream.writeStream.format("bookkeeper").options(**out).trigger(availableNow=True).start()
    query.awaitTermination()
    print(*query.recentProgress, sep="\n")
    query.explain(extended=True)
    copied = sum(progress.numInputRows for progress in query.recentProgress)
    spark.stop()
    print(json.dumps({"copied": copied}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
