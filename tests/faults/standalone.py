"""A standalone Spark on this machine: a master and two workers under two host names, so that executors are processes of their own.

``local-cluster`` gives all its workers one host name, and Spark never starts a speculative twin on the host of the first attempt.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pyspark

from bk_core.bookie.apache import find_java
from bk_core.bookie.children import Child, accepts_connections, free_port

HOSTS = ("127.0.0.1", "127.0.0.2")
ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0


class StandaloneSpark:
    """Context manager. ``master`` and ``conf`` are for the driver's session."""

    def __init__(self, directory: Path, cores: int = 2, more: dict[str, str] | None = None) -> None:
        self._directory = directory.absolute()
        self._cores = cores
        self._resources = ExitStack()
        self._workers: list[Child] = []
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.conf = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(cores),
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "3s",
            "spark.speculation.efficiency.enabled": "false",
            "spark.executorEnv.PYTHONPATH": self._path(),
            **(more or {}),
        }

    def _path(self) -> str:
        return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def _start(self, name: str, *arguments: str) -> Child:
        jars = str(Path(str(pyspark.__file__)).with_name("jars") / "*")
        environment = {
            "SPARK_HOME": str(Path(str(pyspark.__file__)).parent),
            "PYTHONPATH": self._path(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
        }
        command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", *JAVA_MODULES, "-cp", jars, *arguments]
        child = Child(name, command, self._directory / f"{name}.log", env=environment)
        self._resources.callback(child.stop)
        return child

    def __enter__(self) -> StandaloneSpark:
        self._directory.mkdir(parents=True, exist_ok=True)
        port = self.master.rsplit(":", 1)[1]
        try:
            master = self._start(
                "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"
            )
            master.wait_until(lambda: accepts_connections(int(port)), START_TIMEOUT_S)
            for host in HOSTS:
                place = ["--host", host, "--webui-port", "0", "--cores", str(self._cores), "--memory", "1g"]
                work = ["--work-dir", str(self._directory / "work")]
                self._workers.append(self._start(f"worker-{host}", "org.apache.spark.deploy.worker.Worker", *place, *work, self.master))
            for worker in self._workers:
                worker.wait_until(lambda log=worker.log: "registered with master" in log.read_text(errors="replace"), START_TIMEOUT_S)  # type: ignore[misc]
        except BaseException:
            self._resources.close()
            raise
        return self

    def executors(self) -> list[int]:
        """The JVMs of the executors that live, which are the children of Spark's workers."""
        found = (child for worker in self._workers for child in psutil.Process(worker.pid).children())
        return [child.pid for child in found if child.status() != psutil.STATUS_ZOMBIE]

    def __exit__(self, *_: object) -> None:
        self._resources.close()
        time.sleep(0)  # executors end with their workers


JAVA_MODULES = ["--add-modules=jdk.incubator.vector", "-XX:+IgnoreUnrecognizedVMOptions"]
