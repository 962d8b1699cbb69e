"""Apache's own driver for etcd: its jars beside those of the release, and bookies, shell and Java client that use it.

The driver is in Maven as 4.17.3 alone, and names a parent that was never published. So Maven finds one in a folder of ours, which says
no more than the driver's pom needs. It brings nothing by itself: its one dependency, jetcd, is named here.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheBookie, ApacheSettings
from bk_core.bookie.children import free_port
from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.errors import BookieUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from tests import quick_java

RELEASE = "4.17.3"
_PACKAGE = "org.apache.bookkeeper.metadata.etcd"
DRIVERS = tuple(f"-Dbookkeeper.metadata.{side.lower()}.drivers={_PACKAGE}.EtcdMetadata{side}Driver" for side in ("Client", "Bookie"))
_GROUP = "org.apache.bookkeeper.metadata.drivers"
_PARENT = f"""\
<project><modelVersion>4.0.0</modelVersion>
<parent><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper</artifactId><version>{RELEASE}</version></parent>
<groupId>{_GROUP}</groupId><artifactId>metadata-drivers-parent</artifactId><packaging>pom</packaging>
</project>
"""
_POM = f"""\
<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>etcd-driver</artifactId><version>1</version>
<repositories><repository><id>parent-of-the-driver</id><url>{{parents}}</url></repository></repositories>
<dependencies>
<dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>{RELEASE}</version></dependency>
<dependency><groupId>io.etcd</groupId><artifactId>jetcd-core</artifactId><version>0.7.7</version></dependency>
<dependency><groupId>{_GROUP}</groupId><artifactId>metadata-stores-etcd</artifactId><version>{RELEASE}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
</dependencies></project>
"""
_RESOLVE_S = 1800


def resolve() -> Path:
    """Return the directory with the jars, which Maven resolves the first time. Raises BookieUnavailableError if it cannot."""
    apache.find_java()
    libraries = apache.cache_directory() / "apache-etcd" / RELEASE / "lib"
    if libraries.is_dir():
        return libraries
    maven = shutil.which("mvn")
    if maven is None:
        raise BookieUnavailableError("there is no Maven (mvn) to fetch Apache's driver for etcd")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libraries.parent, prefix="resolving-") as work:
        parent = Path(work, "parents", *_GROUP.split("."), "metadata-drivers-parent", RELEASE, f"metadata-drivers-parent-{RELEASE}.pom")
        parent.parent.mkdir(parents=True)
        parent.write_text(_PARENT)
        pom = Path(work, "pom.xml")
        pom.write_text(_POM.format(parents=Path(work, "parents").as_uri()))
        command = [maven, "-B", "-f", str(pom), apache.COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={work}/lib"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_S, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0 or not list(Path(work, "lib").glob("metadata-stores-etcd-*.jar")):
            told = "\n".join([line for line in done.stdout.splitlines() if "ERROR" in line][:4])
            raise BookieUnavailableError(f"Maven could not resolve Apache's driver for etcd:\n{told}")
        Path(work, "lib").rename(libraries)
    return libraries


@dataclass(frozen=True)
class Cluster:
    """A cluster of which the judge needs no more than the URI."""

    uri: str


class World:
    """An etcd, and bookies of Apache's with Apache's driver, whose shell has made the cluster. ``uri`` is the same for Java and for us."""

    def __init__(self, directory: Path, bookies: int = 3) -> None:
        self.libraries = resolve()
        self.java = (*quick_java.OPTIONS, *DRIVERS)
        self._directory, self._count = directory, bookies
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.etcd = self._stack.enter_context(EtcdProcess(self._directory / "etcd"))
        self.scope = "/bk/c1"
        self.uri = self.uri_of(self.scope)
        opened: list[MetadataStore] = []
        self.bookies = [self.bookie(f"bookie-{number}", self.uri, opened) for number in range(self._count)]
        self.bookies[0].init_new_cluster()
        self.store = open_store(self.uri)
        self._stack.callback(self.store.close)
        opened.append(self.store)
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_ready()

    def uri_of(self, scope: str) -> str:
        return f"etcd+apache://{self.etcd.connect_string}{scope}"

    def bookie(self, name: str, uri: str, opened: Sequence[MetadataStore]) -> ApacheBookie:
        """Return a bookie that was not started; the world ends it. ``opened`` is the store that tells if it is registered, or none yet."""
        # the driver knows no under-replication, and its bookies end their collections when they look for it
        lines = {"metadataServiceUri": uri, "gcWaitTime": 2000, "gcOverreplicatedLedgerWaitTime": 0}
        settings = ApacheSettings(heap_mb=256, direct_mb=256, lines=lines, java=self.java)

        def registered(bookie_id: str) -> bool:
            return any(bookie_id in store.bookies().writable for store in opened)

        made = ApacheBookie(self.libraries, self._directory / name, uri, free_port(), registered, settings)
        self._stack.callback(made.kill)
        return made

    def shell(self, *arguments: str) -> str:
        """Return what Apache's shell says."""
        configuration = self._directory / "bookie-0" / "conf"
        command = apache.java_command(
            self.libraries,
            configuration,
            "org.apache.bookkeeper.bookie.BookieShell",
            ["-conf", str(configuration / "bookie.conf"), *arguments],
            options=self.java,
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr
