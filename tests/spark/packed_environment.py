"""The ways of deploying that need no installation on the executors, as bk_spark/README.md tells them: archives that Spark hands out.

Nothing here sees the checkout: the driver's Python has pyspark alone, and the environments that were packed are gone when Spark starts.
Packing needs the package index, so this is no part of ``make test``: ``make deployments`` names this file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import distributions
from pathlib import Path

import py4j
import pyspark
import pytest

from bk_core.bookie.local_cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PACKER = "venv-pack==0.2.0"
MASTER = "local-cluster[2,1,1024]"
JOB = """
import json, shutil, sys
from importlib.util import find_spec
from pathlib import Path
import pyspark
from pyspark.sql import SparkSession

uri, settings = sys.argv[1], json.loads(sys.argv[2])
alone = find_spec("bk_core") is None and find_spec("bk_spark") is None
builder = SparkSession.builder.master(sys.argv[3]).appName("packed").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
given = {"bookkeeper.metadataServiceUri": uri}

def executor(_):
    from bk_core import kernels
    yield f"{kernels.IMPLEMENTATION} {kernels.__file__}"

def rows(log):
    return list(spark.read.format("bookkeeper").options(**given, log=log).load().selectExpr("count(id)", "count(distinct id)").first())

try:
    spark.range(0, 2000, 1, 2).write.format("bookkeeper").options(**given, log="packed-in").mode("overwrite").save()
    frame = spark.readStream.format("bookkeeper").options(**given, startingOffsets="earliest", log="packed-in").load()
    query = frame.writeStream.format("bookkeeper").options(**given, log="packed-out-" + Path.cwd().name)
    query.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
    found = {
        "alone": alone,
        "in": rows("packed-in"),
        "out": rows("packed-out-" + Path.cwd().name),
        "kernels": sorted(set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(executor).collect())),
    }
finally:  # local-cluster keeps its executors' files inside the installed package
    shutil.rmtree(Path(pyspark.__file__).resolve().parent / "work" / spark.sparkContext.applicationId, ignore_errors=True)
    spark.stop()
print(json.dumps(found), flush=True)
"""


def outside(**environment: str) -> dict[str, str]:
    """Variables without those that lead into the checkout: pip would take the package there for an installed one."""
    mine = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "BK_CORE_KERNELS")
    return {**{name: value for name, value in os.environ.items() if name not in mine}, **environment}


def run(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(command, env=outside(**environment), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def pip(*arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A packed virtual environment, and a packed folder of packages. Both without pyspark, which executors have from their Spark."""
    work = tmp_path_factory.mktemp("packing")
    versions = work / "versions.txt"
    ours = {d.name: d.version for d in distributions() if d.name != "bk-spark"}
    versions.write_text("".join(f"{name}=={version}\n" for name, version in sorted(ours.items())))
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would pack what was deleted since
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", work / "dist", ROOT)
    (wheel,) = (work / "dist").glob("*.whl")
    environment = work / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip("--python", python, "install", "--constraint", versions, wheel, "pyarrow")
    pip("install", "--target", work / "packer", PACKER)
    found = {"environment": work / "environment.tar.gz", "packages": work / "packages.tar.gz"}
    run(python, "-m", "venv_pack", "--quiet", "--prefix", environment, "--output", found["environment"], PYTHONPATH=str(work / "packer"))
    (packages,) = environment.glob("lib/python3*/site-packages")
    with tarfile.open(found["packages"], "w:gz") as out:
        out.add(packages, ".")
    shutil.rmtree(environment)
    return found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has pyspark and nothing of ours."""
    home = tmp_path_factory.mktemp("driver")
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    for package in (pyspark, py4j):
        (packages / package.__name__).symlink_to(Path(package.__file__).resolve().parent)
    return home / "bin" / "python"


@pytest.mark.parametrize("way", ["environment", "packages"])
def test_executors_need_nothing_but_the_archive(
    way: str, archives: dict[str, Path], driver: Path, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The driver has the archive's contents at the same relative path: it plans with the interpreter that the tasks use."""
    home = tmp_path / way
    with tarfile.open(archives[way]) as archive:
        archive.extractall(home / way, filter="tar")
    settings = {"spark.archives": f"{archives[way]}#{way}"}
    if way == "environment":
        variables = outside(PYSPARK_PYTHON="./environment/bin/python")
    else:
        settings["spark.executorEnv.PYTHONPATH"] = "./packages"
        variables = outside(PYSPARK_PYTHON=str(driver), PYTHONPATH="./packages")
    (home / "job.py").write_text(JOB)
    done = subprocess.run(
        [driver, "job.py", cluster.uri, json.dumps(settings), MASTER], cwd=home, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}: {archives[way].stat().st_size / 1e6:.0f} MB, {found}")
    assert found["alone"] == (way == "environment")
    assert found["in"] == found["out"] == [2000, 2000]
    assert all(kernels.startswith("native ") and "/app-" in kernels and f"/{way}/" in kernels for kernels in found["kernels"])
