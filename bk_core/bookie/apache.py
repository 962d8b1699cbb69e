"""Apache BookKeeper's own bookies on this machine: resolved once by Maven, one JVM each.

A release is about 70 jars and 93 MB; it is kept under ``$BK_CACHE`` (default ``~/.cache/bk-spark``) and found again. Java 17 or newer runs
them. The configuration is that of a small bookie on loopback: DbLedgerStorage, small caches and logs, ready about 5 s after its start.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from bk_core.bookie.children import Child
from bk_core.bookie.java_files import java_environment, java_value
from bk_core.bookie.private import make_directory
from bk_core.errors import BookieUnavailableError, InvalidArgumentError, OperationTimeoutError
from bk_core.protocol.wire.codec_v3 import encode_request, frame
from bk_core.protocol.wire.messages import BookieInfoRequest, StartTlsRequest

DEFAULT_VERSION = "4.18.0"
KNOWN_VERSIONS = ("4.18.0", "4.17.3", "4.16.6", "4.14.7")
JAVA_VERSION_MIN = 17
START_TIMEOUT_S = 90.0
LOOPBACK = "127.0.0.1"
_RESOLVE_TIMEOUT_S = 1800.0

# The last two are needed by the ZooKeeper classes that bookies load, but are only `provided` dependencies there.
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
"""The plugin is pinned, because each version of Maven would take another one, and some the newest that there is."""
_POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>bookies</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>{version}</version></dependency>
<dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>
<dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
</dependencies></project>
"""

_BOOKIE_CONF = """\
metadataServiceUri={uri}
bookiePort={port}
allowLoopback=true
advertisedAddress={host}
listeningInterface={loopback}
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
indexDirectories={directory}/ledgers
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
journalPreAllocSizeMB=4
journalMaxSizeMB=64
entryLogSizeLimit=67108864
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=64
dbStorage_rocksDB_blockCacheSize=8388608
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.985
diskUsageLwmThreshold=0.98
httpServerEnabled=false
"""

_LOG4J2 = """\
appenders=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %-5p %c{1} - %m%n
rootLogger.level=info
rootLogger.appenderRefs=out
rootLogger.appenderRef.out.ref=out
"""

_LOG4J1 = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n
"""

_OF_IPV6 = ("-Djava.net.preferIPv4Stack=false",)  # the last one counts
Progress = Callable[[str], None]


def _silent(_message: str) -> None:
    pass


class _Registered(Protocol):
    def __call__(self, bookie_id: str) -> bool: ...


@cache
def _java_version(java: str) -> int:
    """Return the feature version (17, 21, ...), or 0 if Java does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else 0


def find_java() -> str:
    """Return the path of a ``java`` of version 17 or newer: ``$JAVA_HOME``, then ``PATH``. Raises BookieUnavailableError if
    there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    if on_path := shutil.which("java"):
        candidates.append(on_path)
    for java in candidates:
        if _java_version(java) >= JAVA_VERSION_MIN:
            return java
    raise BookieUnavailableError(f"no Java {JAVA_VERSION_MIN} or newer: install one, or set JAVA_HOME (looked at: {candidates or 'PATH'})")


def cache_directory() -> Path:
    return Path(os.environ.get("BK_CACHE") or Path.home() / ".cache" / "bk-spark")


def resolve(version: str, progress: Progress = _silent) -> Path:
    """Return the directory with the release's jars, which Maven resolves the first time.

    Raises InvalidArgumentError for text that is no version; BookieUnavailableError if Java or Maven is missing or the release cannot be
    resolved.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise InvalidArgumentError(f"{version!r} is no version of Apache BookKeeper; tried here: {', '.join(KNOWN_VERSIONS)}")
    find_java()
    libraries = cache_directory() / "apache" / version / "lib"
    if libraries.is_dir():
        return libraries
    maven = shutil.which("mvn")
    if maven is None:
        raise BookieUnavailableError(f"Apache BookKeeper {version} is not in {libraries.parent} and there is no Maven (mvn) to fetch it")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    progress(f"resolving Apache BookKeeper {version} with Maven, once, about 93 MB ...")
    # The download is made beside its final place and renamed when complete, so that an interrupted one is never taken for a release.
    with tempfile.TemporaryDirectory(dir=libraries.parent, prefix="resolving-") as work:
        _copy_dependencies(maven, version, Path(work), progress)
        try:
            (Path(work) / "lib").rename(libraries)
        except OSError:
            if not libraries.is_dir():  # otherwise another process was as fast
                raise
    progress(f"Apache BookKeeper {version}: {len(list(libraries.iterdir()))} jars in {libraries}")
    return libraries


def _copy_dependencies(maven: str, version: str, work: Path, progress: Progress) -> None:
    pom = work / "pom.xml"
    pom.write_text(_POM.format(version=version))
    command = [maven, "-B", "-f", str(pom), COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={work / 'lib'}"]
    fetched, lines = 0, []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Downloaded from" in line:
                fetched += 1
                if fetched % 20 == 0:
                    progress(f"  Maven: {fetched} files")
            elif "Downloading from" not in line:
                lines.append(line.rstrip())
        status = process.wait(_RESOLVE_TIMEOUT_S)
    if status != 0 or not any((work / "lib").glob("bookkeeper-server-*.jar")):
        errors = [line for line in lines if "ERROR" in line][:4] or lines[-4:]
        told = "\n".join(f"    {line}" for line in errors)
        raise BookieUnavailableError(f"Maven could not resolve Apache BookKeeper {version}:\n{told}")


def java_command(
    libraries: Path,
    configuration: Path,
    main: str,
    arguments: Sequence[str],
    heap_mb: int = 512,
    direct_mb: int | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs a main class of the release with the logging configuration in ``configuration``. ``options`` are
    further ones of the JVM. The class path is jars alone: with a folder in it, a JVM can neither make nor use an archive of classes."""
    return [
        find_java(),
        "-cp",
        f"{libraries}/*",
        f"-Dlog4j.configuration={(configuration / 'log4j.properties').absolute().as_uri()}",
        f"-Dlog4j2.configurationFile={configuration / 'log4j2.properties'}",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/java.io=ALL-UNNAMED",
        "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.net.preferIPv4Stack=true",  # else the loopback interface's first address is ::1%lo, which is no bookie id
        f"-Xmx{heap_mb}m",
        f"-XX:MaxDirectMemorySize={direct_mb or heap_mb}m",
        *options,
        main,
        *arguments,
    ]


def write_logging(configuration: Path) -> None:
    """Write both generations of log4j configuration, which log to standard output: releases up to 4.14 read the first, later ones the
    second."""
    configuration.mkdir(parents=True, exist_ok=True)
    (configuration / "log4j.properties").write_text(_LOG4J1)
    (configuration / "log4j2.properties").write_text(_LOG4J2)


@dataclass(frozen=True)
class ApacheSettings:
    """The settings that Apache's bookies run with: the MiB of heap and of direct memory that a JVM may take; ``lines`` of ``bookie.conf``
    that replace or add to those that keep a bookie small: ``{"journalMaxSizeMB": 2048}``, where None leaves one out; and further options of
    the JVM in ``java``: ``("-XX:+UseSerialGC",)``."""

    heap_mb: int = 512
    direct_mb: int = 512
    lines: Mapping[str, str | int | None] = field(default_factory=dict)
    java: Sequence[str] = ()

    @property
    def host(self) -> str:
        """The host that a bookie advertises (``advertisedAddress``), and on which it listens."""
        return str(self.lines.get("advertisedAddress") or LOOPBACK)

    def bookie_id(self, port: int) -> str:
        """Return the id of a bookie on this port: the one in ``bookieId``, else host and port, without brackets around an IPv6 address."""
        return str(self.lines.get("bookieId") or f"{self.host}:{port}")

    def configuration(self, uri: str, port: int, directory: Path) -> str:
        """Return the text of ``bookie.conf``."""
        values = {"uri": _apache_uri(uri), "port": port, "directory": java_value(str(directory))}
        values |= {"host": LOOPBACK, "loopback": _loopback_interface()}
        small = (line.partition("=") for line in _BOOKIE_CONF.format(**values).splitlines())
        chosen: dict[str, str | int | None] = {name: value for name, _, value in small}
        chosen.update(self.lines)
        return "".join(f"{name}={value}\n" for name, value in chosen.items() if value is not None)


def _loopback_interface() -> str:
    """Return the name of the loopback interface, ``lo`` on Linux and ``lo0`` elsewhere. Without it a bookie listens on all interfaces."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")


class ApacheBookie:
    """One bookie JVM. ``directory`` keeps its data, configuration and ``bookie.log``; ``uri`` names the cluster,
    ``zk://HOST:PORT/ledgers``."""

    def __init__(self, libraries: Path, directory: Path, uri: str, port: int, registered: _Registered, settings: ApacheSettings) -> None:
        self.bookie_id = settings.bookie_id(port)
        self._host = settings.host
        self._libraries = libraries
        self._directory = directory.absolute()
        self._port = port
        self._registered = registered
        self._child: Child | None = None
        make_directory(self._directory)
        write_logging(self._configuration)
        self._memory = (settings.heap_mb, settings.direct_mb)
        self._temporary = self._directory / "tmp"
        self._options = (f"-Djava.io.tmpdir={self._temporary}", *(_OF_IPV6 if ":" in settings.host else ()), *settings.java)
        self._asks_who = settings.lines.get("bookieAuthProviderFactoryClass") is not None
        self._conf.write_text(settings.configuration(uri, port, self._directory))

    @property
    def log(self) -> Path:
        return self._directory / "bookie.log"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self.running and self._child else None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def _configuration(self) -> Path:
        return self._directory / "conf"

    @property
    def _conf(self) -> Path:
        return self._configuration / "bookie.conf"

    def init_new_cluster(self) -> None:
        """Make root, LAYOUT and INSTANCEID with Apache's own shell. Raises BookieUnavailableError with its output if it fails."""
        self._empty_temporary()
        arguments = ["-conf", str(self._conf), "initnewcluster"]
        shell = "org.apache.bookkeeper.bookie.BookieShell"
        command = java_command(self._libraries, self._configuration, shell, arguments, options=self._options)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **java_environment(self._directory)},
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
            raise BookieUnavailableError(f"initnewcluster ended with status {done.returncode}:\n{tail}")

    def _empty_temporary(self) -> None:
        """A JVM unpacks its native libraries into its folder for temporary files, 15 MB of them for RocksDB, and one that is killed leaves
        them there. Each start begins with an empty one, so that they go with the bookie's directory at the latest."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        make_directory(self._temporary)

    def start(self) -> None:
        """Start the JVM; ``wait_ready`` waits until it serves.

        The registration of a killed predecessor stays until its session ends (10 s). The new bookie would open its port and then wait for
        that, and the old registration would pass for the new one, so this waits before the start.
        """
        if self.running:
            raise InvalidArgumentError(f"bookie {self.bookie_id} is running")
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._registered(self.bookie_id):
            if time.monotonic() > deadline:
                raise OperationTimeoutError(f"another bookie is registered as {self.bookie_id}, and stays")
            time.sleep(0.1)
        self._empty_temporary()
        arguments = ["--conf", str(self._conf)]
        main = "org.apache.bookkeeper.server.Main"
        command = java_command(self._libraries, self._configuration, main, arguments, *self._memory, self._options)
        self._child = Child(f"bookie {self.bookie_id}", command, self.log, env=java_environment(self._directory))

    def wait_ready(self) -> None:
        """Wait until it is registered as writable and answers."""
        if self._child is None:
            raise InvalidArgumentError(f"bookie {self.bookie_id} was not started")

        def serves() -> bool:
            return self._registered(self.bookie_id) and answers(self._host, self._port, self._asks_who)

        self._child.wait_until(serves, START_TIMEOUT_S)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=20.0)


def answers(host: str, port: int, asks_who: bool) -> bool:
    """Return True if the bookie at this address answers a request. Until then it may hang up on each: an Apache bookie listens and is
    registered a moment before it serves, and a connection that began in that moment is closed at its first request. A bookie with
    authentication (``asks_who``) is asked for StartTLS, which it answers before a client has authenticated. Other requests it refuses even
    while it serves."""
    request = StartTlsRequest(1) if asks_who else BookieInfoRequest(1)
    try:
        with socket.create_connection((host, port), timeout=1.0) as probe:
            probe.sendall(frame(encode_request(request)))
            return bool(probe.recv(1))
    except OSError:
        return False


def _apache_uri(uri: str) -> str:
    """Return the URI in Apache's form: its scheme names the ledger manager, while ours leaves it to LAYOUT."""
    return uri.replace("zk://", "zk+hierarchical://", 1).replace(",", ";")
