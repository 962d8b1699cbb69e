"""A driver whose checkpoint gateway speaks TLS, with an executor in a JVM of its own. Prints what is in the checkpoint as one line of JSON.

    python -m tests.spark.checkpoint_tls_driver '{"uri": ..., "files": ["cert.pem", "key.pem"], "trusted": "trust.p12", "input": ...}'

The JVMs of driver and executor trust its certificate as the guide says (bk_spark/README.md).
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from bk_spark import checkpoint_location
from bk_spark.checkpoint import close
from tests.spark.deployment import QUIET

JAVA_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
WORK = Path(str(pyspark.__file__)).with_name("work")  # where local-cluster keeps its executors' files: inside the installed package


def run(spark: SparkSession, uri: str, files: list[str], input: str) -> dict[str, Any]:
    place = checkpoint_location(spark, "secure", uri=uri, tls=(files[0], files[1]))
    counts = spark.readStream.schema("key string").json(input).groupBy("key").count()
    query = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    state: list[Any] = spark.read.format("statestore").load(place).collect()
    close(spark)
    return {"place": place, "state": {row.key.key: row.value["count"] for row in state}}


def main(uri: str, files: list[str], trusted: str, input: str) -> None:
    trust = f"-Djavax.net.ssl.trustStore={trusted} -Djavax.net.ssl.trustStorePassword=changeit"
    settings = {**QUIET, "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    builder = SparkSession.builder.master("local-cluster[1,1,512]")
    for key, value in {**settings, **{key: f"{settings.get(key, '')} {trust}" for key in JAVA_OPTIONS}}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    application = str(spark.sparkContext.applicationId)
    try:
        told = run(spark, uri, files, input)
    finally:
        spark.stop()
        shutil.rmtree(WORK / application, ignore_errors=True)
        with suppress(OSError):  # another application has something in it
            WORK.rmdir()
    print(json.dumps(told))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
