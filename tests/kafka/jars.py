"""Jars that only these comparisons need, resolved once by Maven into the cache directory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bk_core.bookie.apache import COPY_DEPENDENCIES, cache_directory

BROKER = (("org.apache.kafka", "kafka_2.13", "4.1.0"),)
# No connector of Spark 4.3 is published; the one of 4.2.0 runs on it with this token provider (its own was never published).
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
RESOLVE_TIMEOUT_S = 900.0
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def resolve(name: str, artifacts: Sequence[tuple[str, str, str]], *, transitive: bool) -> Path:
    """The directory that holds the jars; RuntimeError with Maven's words if they cannot be had."""
    version = artifacts[0][2]
    libraries = cache_directory() / name / version / "lib"
    if libraries.is_dir():
        return libraries
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(f"{name} {version} is not in {libraries.parent} and there is no Maven (mvn) to fetch it")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libraries.parent, prefix="resolving-") as work:
        Path(work, "pom.xml").write_text(_pom(artifacts, transitive))
        command = [maven, "-q", "-B", COPY_DEPENDENCIES, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not resolve {name} {version}:\n{done.stdout[-2000:]}")
        Path(work, "lib").rename(libraries)
    return libraries


def _pom(artifacts: Sequence[tuple[str, str, str]], transitive: bool) -> str:
    alone = "" if transitive else _ALONE
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{alone}</dependency>"
        for group, artifact, version in artifacts
    )
    head = "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>jars</artifactId><version>1</version>"
    return f"{head}<dependencies>{dependencies}</dependencies></project>"
