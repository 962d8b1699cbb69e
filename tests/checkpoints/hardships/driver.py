"""``python -m tests.checkpoints.hardships.driver``: tests/checkpoints/driver.py with patience, detours, and Hadoop's own client.

{"do": "detour", ...}     from now on bookies are reached at these addresses
{"do": "open" | "close"}  a checkpoint, with the seconds that it took
{"do": "put" | "get"}     a large file through Hadoop's client in the JVM: its SHA-256 and the seconds
{"do": "many", ...}       many files in one directory through that client: the seconds of each step
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

import bk_core.client as client_package
from bk_core.metadata import open_store
from bk_spark.checkpoint import checkpoint_location, close
from tests.checkpoints.driver import Session, session
from tests.faults.commands import arguments, serve
from tests.faults.driver import STORE
from tests.soak.cluster import ThroughProxy

COPY_BYTES = 64 << 10
WRITERS = 24


class Hardships(Session):
    def _placed(self, spec: dict[str, Any]) -> dict[str, Any]:
        checkpoint: str = spec["checkpoint"]
        if not checkpoint.startswith(STORE):
            return spec
        name = checkpoint.removeprefix(STORE)
        return {**spec, "checkpoint": checkpoint_location(self._spark, name, uri=spec["uri"], patience_s=spec["patience"])}

    def detour(self, command: dict[str, Any]) -> dict[str, Any]:
        """Clients that are made later, those of checkpoints too, find the bookies at ``bookies``, by their ids."""
        bookies, connect = command["bookies"], client_package.connect

        def led(uri: str, **settings: Any) -> Any:
            store: Any = ThroughProxy(open_store(uri, patient=True), lambda bookie, host, port: tuple(bookies[bookie]))
            return connect(uri, store=store, **settings)

        client_package.connect = led
        return {}

    def open(self, command: dict[str, Any]) -> dict[str, Any]:
        begun = time.monotonic()
        place = self._placed(command)["checkpoint"]
        return {"place": place, "seconds": time.monotonic() - begun}

    def close(self, command: dict[str, Any]) -> dict[str, Any]:
        close(self._spark, command["checkpoint"].removeprefix(STORE))
        return {}

    # --- Hadoop's client ----------------------------------------------------------------------------------------------------

    def _files(self, command: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The JVM, the path of the command, and its file system."""
        jvm: Any = self._spark.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._placed(command)['checkpoint']}/{command['path']}")
        return jvm, path, path.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration())

    def put(self, command: dict[str, Any]) -> dict[str, Any]:
        """Random bytes, as many as are asked for, which the JVM makes: py4j carries none of them."""
        jvm, path, files = self._files(command)
        digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
        random = jvm.org.apache.commons.io.input.BoundedInputStream(jvm.java.io.FileInputStream("/dev/urandom"), command["bytes"])
        source = jvm.java.security.DigestInputStream(random, digest)
        begun = time.monotonic()
        jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, files.create(path), COPY_BYTES, True)
        return {"seconds": time.monotonic() - begun, "sha256": digest.digest().hex(), "bytes": files.getFileStatus(path).getLen()}

    def get(self, command: dict[str, Any]) -> dict[str, Any]:
        jvm, path, files = self._files(command)
        digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
        source = jvm.java.security.DigestInputStream(files.open(path), digest)
        begun = time.monotonic()
        jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, jvm.java.io.OutputStream.nullOutputStream(), COPY_BYTES, True)
        return {"seconds": time.monotonic() - begun, "sha256": digest.digest().hex()}

    def many(self, command: dict[str, Any]) -> dict[str, Any]:
        """``steps`` of: create ``count`` files, list them at once and in parts, rename the directory and back, delete it with all."""
        jvm, path, files = self._files(command)
        there = jvm.org.apache.hadoop.fs.Path(path.toString() + "-renamed")
        count: int = command["count"]

        def create() -> int:
            files.mkdirs(path)
            errors: list[Exception] = []
            threads = [
                threading.Thread(target=self._create, args=(jvm, files, path, range(n, count, WRITERS), errors)) for n in range(WRITERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            return count

        def rename() -> int:
            return count if files.rename(path, there) and files.rename(there, path) else -1

        steps: dict[str, Callable[[], int]] = {
            "create": create,
            "list": lambda: len(files.listStatus(path)),
            "list in parts": lambda: int(
                jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(files.listStatusIterator(path)).size()
            ),
            "rename twice": rename,
            "delete": lambda: count if files.delete(path, True) and not files.exists(path) else -1,
        }
        found = {}
        for step in command["steps"]:
            begun = time.monotonic()
            there_are = steps[step]()
            found[step] = {"seconds": time.monotonic() - begun, "files": there_are}
        return {"steps": found}

    @staticmethod
    def _create(jvm: Any, files: Any, path: Any, numbers: range, errors: list[Exception]) -> None:
        try:
            for number in numbers:
                if errors:
                    return
                out = files.create(jvm.org.apache.hadoop.fs.Path(path, f"file-{number:06d}"))
                out.write(number % 256)
                out.close()
        except Exception as error:
            errors.append(error)


def short(error: object) -> str:
    """Without the places in Java's code."""
    return "\n".join(line for line in str(error).splitlines() if not line.startswith(("\tat ", "\t...")))


def main() -> None:
    options = arguments()
    spark: SparkSession = session(options.master, options.work)
    serve(spark, partial(getattr, Hardships(spark)), short)


if __name__ == "__main__":
    main()
