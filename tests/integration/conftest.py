"""Clusters to judge against, and Apache's Java client as a judge.

``cluster``         a local cluster of three bookies; every test that takes it runs with embedded bookies and with Apache 4.18.0
``apache_cluster``  Apache 4.18.0 only
``java_client``     runs the judge (java/Judge.java, compiled against the same release) on a cluster
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.errors import BookieUnavailableError, NotEnoughBookiesError
from tests import quick_java
from tests.integration.dead_bookies import revive
from tests.integration.patience import PATIENT

METADATA: Any = os.environ.get("BK_TEST_METADATA", "zookeeper")  # of the embedded cluster: `make etcd-tests` says etcd
APACHE_VERSION = os.environ.get("BK_TEST_APACHE_VERSION", apache.DEFAULT_VERSION)
logging.getLogger("bk_core").setLevel(logging.INFO)  # a failing test shows which bookie failed, and how
_JAVA = Path(__file__).parent / "java"
_JUDGE_TIMEOUT_S = 90
FIRST_KINDS: dict[str, Any] = {"cluster": "embedded", "quorums": (3, 3, 2), "crash": False, "tls": False}

# For what a client does by itself, whoever keeps the entries: `make test` plays it with Apache's bookies alone.
OURS_ARE_DEEP = pytest.mark.parametrize(
    "cluster", [pytest.param("embedded", marks=pytest.mark.deep), pytest.param("apache", marks=pytest.mark.apache)], indirect=True
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """From a test with both protocols and two kinds of another thing, `make test` plays two pairs: v3 with the first kind (our bookies,
    mirrored, closed, in clear), v2 with the second (Apache's bookies, striped, left open, over TLS). The other pairs are deep."""
    here = Path(__file__).parent
    for item in items:
        parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") and here in item.path.parents else {}
        protocols = [value for value in parameters.values() if value in ("v2", "v3")]
        firsts = [parameters[name] == FIRST_KINDS[name] for name in FIRST_KINDS if name in parameters]
        if protocols and firsts and (protocols[0] == "v3") != firsts[0]:
            item.add_marker(pytest.mark.deep)


def _start(kind: str, directory: Path) -> LocalCluster:
    """A missing Java or Maven skips; anything else that does not start is a failure."""
    if kind == "embedded":
        if METADATA == "etcd":
            return local_cluster(3, directory, metadata=METADATA)
        try:
            apache.find_java()  # ZooKeeper needs it
        except BookieUnavailableError as error:
            pytest.skip(str(error))
        return local_cluster(3, directory)
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    return quick_java.apache_cluster(3, directory, APACHE_VERSION)


@pytest.fixture(scope="session")
def running_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LocalCluster]]:
    """Clusters by kind, started when first wanted and shared by the session."""
    running: dict[str, LocalCluster] = {}

    def cluster_of(kind: str) -> LocalCluster:
        if kind not in running:
            running[kind] = _warm(_start(kind, tmp_path_factory.mktemp(kind)))
        return _all_up(running[kind])

    yield cluster_of
    for cluster in running.values():
        cluster.close()


def _warm(cluster: LocalCluster) -> LocalCluster:
    """A first add makes a bookie's JVM load half of its classes; on a busy machine that alone may take longer than an add timeout."""
    deadline = time.monotonic() + 120
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        while True:
            try:
                with bk.create_ledger(ack_quorum_size=3) as ledger:
                    ledger.append(b"warm")
                return cluster
            except NotEnoughBookiesError:
                assert time.monotonic() < deadline


def _all_up(cluster: LocalCluster) -> LocalCluster:
    """A test may leave bookies dead; the next one finds them alive."""
    for index in range(len(cluster.bookie_ids)):
        if not cluster.is_running(index):
            revive(cluster, index)
    return cluster


@pytest.fixture(params=["embedded", pytest.param("apache", marks=pytest.mark.apache)])
def cluster(request: pytest.FixtureRequest, running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters(request.param)


@pytest.fixture
def apache_cluster(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("apache")


class JavaClientError(Exception):
    """The Java client's own error; ``code`` is BKException's number, 0 for others."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class JavaLedger:
    """The ledger as the judge saw it; ``payloads`` are empty after a write."""

    ledger_id: int
    last_entry_id: int
    length: int
    closed: bool
    payloads: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JavaClient:
    """Apache's client, one JVM per call. ``digest`` is DUMMY, CRC32, CRC32C or MAC; ``protocol`` v2 or v3. Errors: JavaClientError.
    ``lines`` are those of its configuration, ``java`` further options of its JVM. ``quick`` are those by which it starts quickly, for
    jars other than the release's."""

    classes: Path
    libraries: Path
    lines: Mapping[str, str] = field(default_factory=dict)
    java: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None

    def write(
        self,
        cluster: LocalCluster,
        payloads: Sequence[bytes],
        *,
        digest: str = "CRC32C",
        password: str = "",
        protocol: str = "v2",
        quorums: tuple[int, int, int] = (3, 3, 2),
        crash: bool = False,
    ) -> JavaLedger:
        """Write a ledger and close it, or with ``crash`` halt without closing."""
        options = {"password": password, "protocol": protocol, "quorums": quorums, "crash": crash}
        return self.write_each(cluster, payloads, [digest], **options)[0]

    def write_each(
        self,
        cluster: LocalCluster,
        payloads: Sequence[bytes],
        digests: Sequence[str],
        *,
        password: str,
        protocol: str,
        quorums: tuple[int, int, int],
        crash: bool,
    ) -> list[JavaLedger]:
        """The same payloads into one ledger for each digest, by one JVM."""
        e, w, a = quorums
        lines = b"".join(base64.b64encode(payload) + b"\n" for payload in payloads)
        command = "open-and-crash" if crash else "write"
        answers = self.run(cluster, command, protocol, lines, digest=",".join(digests), password=password, e=e, w=w, a=a)
        return [_ledger([answer]) for answer in answers]

    def read(
        self, cluster: LocalCluster, ledger_id: int, *, digest: str = "CRC32C", password: str = "", protocol: str = "v2"
    ) -> JavaLedger:
        """Open without recovery; every entry up to the last add confirmed."""
        return _ledger(self.run(cluster, "read", protocol, ledger=ledger_id, digest=digest, password=password))

    def recover(
        self, cluster: LocalCluster, ledger_id: int, *, digest: str = "CRC32C", password: str = "", protocol: str = "v2"
    ) -> JavaLedger:
        """Open with recovery: fence, close, and every entry."""
        return _ledger(self.run(cluster, "recover", protocol, ledger=ledger_id, digest=digest, password=password))

    def read_each(
        self, cluster: LocalCluster, command: str, ledgers: Mapping[int, str], *, password: str, protocol: str
    ) -> list[JavaLedger]:
        """``command`` is read or recover; ``ledgers`` maps ids to digests. All by one JVM, in their order."""
        ids, digests = ",".join(map(str, ledgers)), ",".join(ledgers.values())
        answers = self.run(cluster, command, protocol, ledger=ids, digest=digests, password=password)
        ends = [i + 1 for i, answer in enumerate(answers) if "ledger" in answer]
        return [_ledger(answers[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def delete(self, cluster: LocalCluster, ledger_id: int) -> None:
        self.run(cluster, "delete", "v2", ledger=ledger_id)

    def list(self, cluster: LocalCluster) -> list[int]:
        return [answer["ledger"] for answer in self.run(cluster, "list", "v2")]

    def run(self, cluster: LocalCluster, command: str, protocol: str, lines: bytes = b"", **options: object) -> list[dict[str, Any]]:
        uri = cluster.uri.partition("?")[0].replace("zk://", "zk+hierarchical://", 1)
        options |= {f"set.{name}": value for name, value in self.lines.items()}
        arguments = [f"uri={uri}", f"protocol={protocol}", f"command={command}", *(f"{key}={value}" for key, value in options.items())]
        quick = quick_java.java_options(APACHE_VERSION) if self.quick is None else self.quick
        options_of_java = *quick, *self.java
        java = apache.java_command(self.libraries, _JAVA, "Judge", arguments, options=options_of_java)
        java[2] += f"{os.pathsep}{self.classes}"  # behind the jars, to which the archive of classes belongs
        done = subprocess.run(java, input=lines, capture_output=True, timeout=_JUDGE_TIMEOUT_S, check=False)
        answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        if answers and "error" in answers[-1]:
            raise JavaClientError(answers[-1]["error"], answers[-1]["message"])
        assert done.returncode == 0, f"the judge ended with status {done.returncode}:\n{done.stderr.decode(errors='replace')[-2000:]}"
        return answers


def _ledger(answers: list[dict[str, Any]]) -> JavaLedger:
    *entries, end = answers
    assert [entry["entry"] for entry in entries] == list(range(len(entries)))
    payloads = tuple(base64.b64decode(entry["payload"]) for entry in entries)
    return JavaLedger(end["ledger"], end["last"], end["length"], end["closed"], payloads)


@pytest.fixture(scope="session")
def java_client() -> JavaClient:
    """The judge, compiled once per release and source text."""
    try:
        libraries = apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("no javac to compile the Java judge")
    source = _JAVA / "Judge.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = apache.cache_directory() / "judge" / f"{APACHE_VERSION}-{digest}"
    if not (classes / "Judge.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        command = [compiler, "--release", "17", "-nowarn", "-proc:none", "-d", str(classes), "-cp", f"{libraries}/*", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    return JavaClient(classes, libraries)
