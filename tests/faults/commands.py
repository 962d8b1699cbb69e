"""The loop of a Spark driver that is a child process: a JSON command per line on standard input, an answer per line on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

MARK = "@@ "
ERROR_CHARS = 6000
Command = dict[str, Any]


def arguments() -> argparse.Namespace:
    """The command line of every such driver: ``--master``, ``--work`` (a directory) and ``--conf`` (settings of Spark, JSON)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--conf", type=json.loads, default={})
    return parser.parse_args()


def serve(spark: SparkSession, actions: Callable[[str], Callable[[Command], Command]], told: Callable[[Exception], str] = str) -> None:
    """Tell the JVM's process id, then perform the commands until the input ends, and stop Spark.

    ``actions`` returns the function for a command's ``do``; its answer is told with ``ok``. ``told`` words an exception.
    """
    jvm: Any = spark.sparkContext._jvm
    print(MARK + json.dumps({"jvm": jvm.java.lang.ProcessHandle.current().pid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": True, **actions(command["do"])(command)}
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {told(error)[:ERROR_CHARS]}"}
        print(MARK + json.dumps(answer), flush=True)
    spark.stop()
