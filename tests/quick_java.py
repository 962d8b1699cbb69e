"""Options for JVMs that live for seconds: to compile less, by one compiler, and to collect by one thread, halves what they compute."""

from __future__ import annotations

import os

from bk_core.bookie.apache import ApacheSettings

OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
BOOKIES = ApacheSettings(java=OPTIONS)
_OF_SPARK = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")  # the JVM that makes the driver's command line, and the driver's


def hasten_spark() -> None:
    """Spark drivers that this process and its children start. What the environment says already stands behind, so that it holds."""
    for name in _OF_SPARK:
        given = os.environ.get(name, "")
        if OPTIONS[0] not in given:
            os.environ[name] = " ".join([*OPTIONS, given]).strip()
