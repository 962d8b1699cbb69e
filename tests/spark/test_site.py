"""The snippets with Spark on the documentation site, in README.md and in bk_spark/README.md do what they show, each page as one program."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bk_core.bookie.local_cluster import LocalCluster
from bk_spark.checkpoint import close
from docs.site import assemble
from docs.site.links import ROOT

pytestmark = pytest.mark.spark


def programs() -> dict[str, str]:
    found = {}
    for page, text in assemble.pages().items():
        blocks = python(text)
        if any("spark" in block for block in blocks):
            found[page] = "\n".join(blocks)
    first = [block for block in python((ROOT / "README.md").read_text()) if "spark" in block]
    beside = python((ROOT / "bk_spark" / "README.md").read_text())  # reads the checkpoint that the first one has made
    assert len(first) == 2 and len(beside) == 1
    return {"README.md": "\n".join([*first, *beside])} | found


def python(text: str) -> list[str]:
    return [code for language, code, not_run in assemble.fences(text) if language == "python" and not not_run]


def test_every_page_about_spark_has_a_program() -> None:
    guides = {f"guides/{name}.md" for name in ("spark-source", "spark-sink", "spark-tables", "checkpoints", "from-delta")}
    assert set(programs()) == {"README.md"} | guides


@pytest.mark.parametrize("page", programs())
def test_every_page_runs(page: str, spark: SparkSession, cluster: LocalCluster, active: None, tmp_path: Path) -> None:
    program = programs()[page].replace(assemble.EXAMPLE_URI, cluster.uri)
    for folder in ("incoming", "doors-table", "doors-checkpoint"):  # Spark takes them in the directory in which its JVM was started
        program = program.replace(f'"{folder}', f'"{tmp_path}/{folder}')
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "flights.csv").write_text("UA,EWR,3\nLH,FRA,-1\n")
    try:
        exec(compile(program, page, "exec"), {})
    finally:
        close(spark)  # the session is that of many tests: a checkpoint would stay open, with its threads, until the last of them
