"""Files that killed drivers leave behind lie in one folder, which goes with the test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.quick_java import ROOT, spark_leftovers


@pytest.mark.spark
def test_a_driver_puts_blocks_and_libraries_into_the_folder_of_the_run(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    assert Path(jvm.java.lang.System.getProperty("java.io.tmpdir")) == spark_leftovers()
    assert {"blockmgr", "spark"} <= {one.name.partition("-")[0] for one in spark_leftovers().iterdir()}


def test_the_folder_goes_with_its_process() -> None:
    program = "from tests.quick_java import spark_leftovers as made; (made() / 'blockmgr-1').mkdir(); print(made())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("/") and not Path(done.stdout.strip()).exists()
