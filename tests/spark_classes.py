"""A driver that does a little of what all do, so that its classes can be kept (``quick_java.py``); it ends when its JVM has ended.

python -m tests.spark_classes
"""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession

END_TIMEOUT_S = 120


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.createDataFrame([(1, "a")], "id long, name string").groupBy("name").count().collect()
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        stream.trigger(availableNow=True).start().awaitTermination(END_TIMEOUT_S)
    spark.stop()
    process.stdin.close()  # upon which the JVM ends
    process.wait(END_TIMEOUT_S)


if __name__ == "__main__":
    main()
