"""A cluster that is started in a process with a Spark session leaves that session alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]

# In the order in which people type it. The first cell makes the session, the second one the children.
CELLS = (
    """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
         .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
current_thread = spark.sparkContext._jvm.java.lang.Thread.currentThread
before = current_thread().getId()
""",
    """
import bk_core
cluster = bk_core.local_cluster(bookies=1)
""",
    """
assert SparkSession.getActiveSession() is not None, "the session is not active any more"
assert current_thread().getId() == before, "the driver's thread has lost its connection to the JVM"
""",
    """
options = {"bookkeeper.metadataServiceUri": cluster.uri, "ensembleSize": 1, "writeQuorumSize": 1, "ackQuorumSize": 1,
           "log": "first"}
rows.write.format("bookkeeper").options(**options).mode("append").save()
""",
    """
source = {"bookkeeper.metadataServiceUri": cluster.uri, "log": "first"}
assert spark.read.format("bookkeeper").options(**source).load().count() == 100
""",
    """
seen = []
query = (spark.readStream.format("bookkeeper").options(**source, startingOffsets="earliest").load()
         .writeStream.foreachBatch(lambda frame, number: seen.append(frame.count())).trigger(availableNow=True).start())
assert query.awaitTermination(100)
assert sum(seen) == 100, seen
""",
    """
assert SparkSession.getActiveSession() is not None
cluster.close()
spark.stop()
print("ALL IS WELL")
""",
)


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.mark.spark
def test_session_first_cluster_second(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("".join(CELLS))
    environment = {**os.environ, "PYTHONPATH": _path(), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert "ALL IS WELL" in done.stdout, (done.stdout + done.stderr)[-4000:]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # the kernel's client libraries warn about themselves
def test_the_same_in_the_cells_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", _path())
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    assert "ALL IS WELL" in outputs, outputs[-4000:]
