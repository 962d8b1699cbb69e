"""The suites of Hadoop and of Spark: their jars, resolved once by Maven, our classes beside them, and a run of some of them in one JVM.

The clients are those of the pyspark that is installed; only the tests come from Maven.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET  # of reports that the suites write here
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from bk_core.bookie.apache import COPY_DEPENDENCIES, cache_directory, find_java
from bk_core.errors import BookieUnavailableError

BUNDLED = Path(pyspark.__file__).parent / "jars"
HADOOP = "3.5.0"
SPARK = "4.2.0"  # no tests of 4.3 are published; these run with its classes, but for a few that call what it has no more
RESOLVE_TIMEOUT_S = 900.0
RUN_TIMEOUT_S = 1800.0
_JAVA = Path(__file__).parent / "java"
_OF_HADOOP = (
    ("org.apache.hadoop", "hadoop-common", HADOOP, "test-jar"),
    ("org.assertj", "assertj-core", "3.12.2", "jar"),
    ("org.eclipse.jetty", "jetty-util", "9.4.57.v20241219", "jar"),
    ("org.junit.platform", "junit-platform-console-standalone", "1.13.4", "jar"),
)
_OF_SPARK = (
    *(("org.apache.spark", f"spark-{part}_2.13", SPARK, "test-jar") for part in ("sql", "catalyst", "core", "common-utils", "sql-api")),
    *(
        ("org.scalatest", name, "3.2.19", "jar")
        for name in (
            "scalatest-compatible",
            *(f"scalatest-{part}_2.13" for part in ("core", "funsuite", "matchers-core", "shouldmatchers", "mustmatchers")),
        )
    ),
    ("org.scalactic", "scalactic_2.13", "3.2.19", "jar"),
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
# What Spark itself opens to its classes (JavaModuleOptions), as far as its tests need it.
_OPENED = ("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent")
_OPENED_TOO = ("java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar", "jdk.internal.ref")
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %-5p %c{1} - %m%n
"""


Artifacts = Sequence[tuple[str, str, str, str]]


class SuitesUnavailableError(Exception):
    """Java, its compiler, Maven or the jars are missing."""


@dataclass(frozen=True)
class Outcome:
    """One test of a suite; of one that runs several times there are several. ``text``: why it failed or was skipped."""

    suite: str
    name: str
    result: str  # passed, failed or skipped
    text: str = ""


def resolve(artifacts: Artifacts) -> Path:
    """The directory with the jars. Those of Hadoop are 12 MB, those of Spark 75."""
    pom = _pom(artifacts)
    libraries = cache_directory() / "suites" / hashlib.sha256(pom.encode()).hexdigest()[:16] / "lib"
    if libraries.is_dir():
        return libraries
    maven = shutil.which("mvn")
    if maven is None:
        raise SuitesUnavailableError(f"the suites are not in {libraries} and there is no Maven (mvn) to fetch them")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libraries.parent, prefix="resolving-") as work:
        Path(work, "pom.xml").write_text(pom)
        command = [maven, "-q", "-B", COPY_DEPENDENCIES, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise SuitesUnavailableError(f"Maven could not resolve the suites:\n{done.stdout[-2000:]}")
        try:
            Path(work, "lib").rename(libraries)
        except OSError:
            if not libraries.is_dir():  # else another process was as fast
                raise
    return libraries


def _pom(artifacts: Artifacts) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version><type>{kind}</type>{_ALONE}"
        "</dependency>"
        for group, artifact, version, kind in artifacts
    )
    head = "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>suites</artifactId><version>1</version>"
    return f"{head}<dependencies>{dependencies}</dependencies></project>"


def _compiled(libraries: Sequence[Path], names: Sequence[str]) -> Path:
    """Our classes, compiled once for each source text."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise SuitesUnavailableError("no javac to compile the suites' subclasses")
    sources = [_JAVA / f"{name}.java" for name in names]
    against = os.pathsep.join(f"{place}/*" for place in (*libraries, BUNDLED))
    stamp = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + against.encode()).hexdigest()[:16]
    classes = cache_directory() / "suites" / f"classes-{stamp}"
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent, prefix="compiling-") as work:
            built = Path(work, "classes")
            options = ["--release", "17", "-nowarn", "-proc:none", "-Xlint:none", "-d", str(built)]
            command = [compiler, *options, "-cp", against, *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            try:
                built.rename(classes)
            except OSError:
                if not classes.is_dir():
                    raise
    return classes


def run_hadoop(suites: Iterable[str], site: str, directory: Path) -> list[Outcome]:
    """Run nested classes of HadoopSuites by JUnit. ``site``: the text of core-site.xml, the client's settings."""
    chosen = [f"--select-class=HadoopSuites${suite}" for suite in suites]
    reports = directory / "reports"
    main = ["org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--details=summary", f"--reports-dir={reports}"]
    return _run([*main, *chosen], [resolve(_OF_HADOOP)], ("HadoopSuites", "CheckpointAsRoot"), site, directory)


def run_spark(suites: Iterable[str], site: str, directory: Path) -> list[Outcome]:
    """Run suites by ScalaTest: nested classes of SparkSuites, or whole names below org.apache.spark.sql."""
    chosen = [word for suite in suites for word in ("-s", _spark_class(suite))]
    main = ["org.scalatest.tools.Runner", "-R", str(directory / "empty"), "-oW", "-u", str(directory / "reports")]
    return _run([*main, *chosen], [resolve(_OF_SPARK), resolve(_OF_HADOOP)], ("SparkSuites",), site, directory)


def _spark_class(suite: str) -> str:
    return f"org.apache.spark.sql.{suite}" if "." in suite else f"SparkSuites${suite}"


def _run(main: list[str], libraries: Sequence[Path], names: Sequence[str], site: str, directory: Path) -> list[Outcome]:
    try:
        java = find_java()
    except BookieUnavailableError as error:
        raise SuitesUnavailableError(str(error)) from error
    for name in ("conf", "tmp", "empty", "reports"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "conf" / "core-site.xml").write_text(site)
    (directory / "conf" / "log4j2.properties").write_text(_LOGGING)
    places = [str(directory / "conf"), str(_compiled(libraries, names)), *(f"{place}/*" for place in (*libraries, BUNDLED))]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (*_OPENED, *_OPENED_TOO)]
    quick = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
    settings = [f"-Djava.io.tmpdir={directory / 'tmp'}", "-Dspark.testing=true"]
    command = [java, *quick, *opened, *settings, "-cp", os.pathsep.join(places), *main]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (directory / "out.txt").open("w") as out:
        subprocess.run(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S
        )
    return [outcome for report in sorted((directory / "reports").glob("*.xml")) for outcome in _outcomes(report)]


def _outcomes(report: Path) -> Iterable[Outcome]:
    for case in ET.parse(report).getroot().iter("testcase"):
        suite = case.get("classname", "").removeprefix("org.apache.spark.sql.").rpartition("$")[2]
        name = case.get("name", "").removesuffix("()")
        for kind in ("failure", "error", "skipped"):
            found = case.find(kind)
            if found is not None:
                text = found.get("message") or found.text or ""
                yield Outcome(suite, name, "skipped" if kind == "skipped" else "failed", text.strip()[:400])
                break
        else:
            yield Outcome(suite, name, "passed")
