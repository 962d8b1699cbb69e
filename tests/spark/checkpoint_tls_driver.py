"""A driver whose checkpoint gateway speaks TLS, in a JVM that trusts its certificate. Prints what is in the checkpoint as one line of JSON.

python -m tests.spark.checkpoint_tls_driver '{"uri": ..., "files": ["cert.pem", "key.pem"], "trusted": "trust.p12", "input": ...}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from bk_spark import checkpoint_location
from bk_spark.checkpoint import close
from tests.spark.deployment import QUIET


def main(uri: str, files: list[str], trusted: str, input: str) -> None:
    options = f"-Djavax.net.ssl.trustStore={trusted} -Djavax.net.ssl.trustStorePassword=changeit"
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    for key, value in QUIET.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    place = checkpoint_location(spark, "secure", uri=uri, tls=(files[0], files[1]))
    counts = spark.readStream.schema("key string").json(input).groupBy("key").count()
    query = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    state: list[Any] = spark.read.format("statestore").load(place).collect()
    close(spark)
    spark.stop()
    print(json.dumps({"place": place, "state": {row.key.key: row.value["count"] for row in state}}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
