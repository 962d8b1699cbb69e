"""``python -m tests.kafka``: 0 if the job gave the same result on Kafka and on BookKeeper, 1 if not."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import bk_core
from bk_core.bookie.apache import DEFAULT_VERSION
from tests.kafka.broker import Broker
from tests.kafka.jars import CONNECTOR, resolve
from tests.kafka.job import Result, System, run, session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--apache", action="store_true", help="Apache bookies instead of embedded ones")
    chosen = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    connector = resolve("spark-kafka", CONNECTOR, transitive=False)
    with (
        tempfile.TemporaryDirectory(prefix="bk-kafka-") as work,
        Broker(Path(work, "kafka")) as broker,
        bk_core.local_cluster(3, apache=DEFAULT_VERSION if chosen.apache else None) as cluster,
    ):
        systems = {
            "Kafka": System("kafka", {"kafka.bootstrap.servers": broker.servers}, {}),
            "BookKeeper": System("bookkeeper", {"bookkeeper.metadataServiceUri": cluster.uri}, {"entryFormat": "raw"}),
        }
        spark = session(connector)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            results = {name: run(spark, system, chosen.rows, Path(work, f"checkpoint-{name}")) for name, system in systems.items()}
        finally:
            spark.stop()
    for name, system in systems.items():
        print(f"{name:<11} format={system.format} {dict(system.cluster)} {dict(system.writing)}")
    return compare(results["Kafka"], results["BookKeeper"], chosen.rows)


def compare(kafka: Result, ours: Result, written: int) -> int:
    only_kafka, only_ours = set(map(repr, kafka.rows)) - set(map(repr, ours.rows)), set(map(repr, ours.rows)) - set(map(repr, kafka.rows))
    print(f"rows written {written:,}; copied: Kafka {len(kafka.rows):,}, BookKeeper {len(ours.rows):,}")
    print(f"rows only in Kafka's result: {len(only_kafka)}; only in ours: {len(only_ours)}")
    print(f"micro-batches: Kafka {len(kafka.batches)} (largest {max(kafka.batches)}), BookKeeper {len(ours.batches)} ({max(ours.batches)})")
    print(f"aggregation: {len(ours.delays)} groups, {'equal' if kafka.delays == ours.delays else 'DIFFERENT'}")
    same = kafka.rows == ours.rows and kafka.delays == ours.delays and kafka.batches == ours.batches
    print("difference: empty" if same else "difference: NOT empty")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
