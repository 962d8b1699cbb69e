"""``bk bookie read-only`` on Apache's bookies with their HTTP server, whose jars are no part of a bookie's and come from Maven once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.children import accepts_connections, free_port
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client.doctor.http import http_address, service_info
from bk_core.errors import BookieUnavailableError, NotEnoughBookiesError
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.integration.embedded import eventually
from tests.integration.patience import PATIENT

pytestmark = pytest.mark.apache

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>http</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.bookkeeper.http</groupId><artifactId>vertx-http-server</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


def _artifact(jar: Path) -> str:
    return re.sub(r"-\d[\w.]*?(?=(-linux|-osx|-windows|\.jar))", "", jar.name)


def _with_http(libraries: Path, into: Path) -> Path:
    """The jars of a bookie, and those of the HTTP server that it has not got already in another version."""
    cached = apache.cache_directory() / "apache-http" / APACHE_VERSION
    if not cached.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("the HTTP server of Apache's bookies comes from Maven, and there is none")
        (into / "pom.xml").write_text(_POM.format(version=APACHE_VERSION))
        command = [maven, "-q", "-B", "-f", str(into / "pom.xml"), apache.COPY_DEPENDENCIES, f"-DoutputDirectory={into / 'http'}"]
        done = subprocess.run([*command, "-DincludeScope=runtime"], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            pytest.skip(f"the HTTP server of Apache's bookies cannot be resolved: {done.stdout[-300:]}")
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(into / "http", cached, dirs_exist_ok=True)
    both = into / "lib"
    both.mkdir()
    known = set()
    for directory in (libraries, cached):
        fresh = [jar for jar in directory.glob("*.jar") if _artifact(jar) not in known]
        known |= {_artifact(jar) for jar in fresh}
        for jar in fresh:
            (both / jar.name).symlink_to(jar)
    return both


@pytest.fixture
def bookie_with_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    try:
        libraries = apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    both = _with_http(libraries, tmp_path)
    monkeypatch.setattr(apache, "resolve", lambda *_, **__: both)
    server = {"httpServerEnabled": "true", "httpServerPort": free_port(), "httpServerHost": "127.0.0.1"}
    lines = {**server, "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer"}
    settings = ApacheSettings(lines=lines, java=quick_java.OPTIONS)  # the cluster is made by Apache's own initnewcluster
    with local_cluster(1, tmp_path / "cluster", apache=APACHE_VERSION, apache_settings=settings) as cluster:
        yield cluster


def test_apaches_bookie_takes_the_word_of_its_http_server(bookie_with_http: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster, (bookie,) = bookie_with_http, bookie_with_http.bookie_ids

    def switched(to: str) -> dict[str, object]:
        capfd.readouterr()
        assert cli.run(["bookie", "read-only", bookie, to, "--uri", cluster.uri, "--json"]) == 0
        found: dict[str, object] = json.loads(capfd.readouterr().out)
        return found

    with bk_core.connect(cluster.uri, limits=PATIENT) as client:
        address = http_address(service_info(client, bookie))
        assert address is not None
        assert eventually(lambda: accepts_connections(int(address.rpartition(":")[2])), 60)  # it begins behind the registration
        assert client.store.bookies().readonly == ()
        assert switched("on") == {"bookie": bookie, "readOnly": True, "told": "http"}
        assert client.store.bookies().readonly == (bookie,)
        assert eventually(lambda: not client._session.bookies().writable, 60)
        sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        with pytest.raises(NotEnoughBookiesError):
            client.create_ledger(**sizes)  # type: ignore[arg-type]
        assert switched("off") == {"bookie": bookie, "readOnly": False, "told": "http"}
        client.await_bookies(1, 1)
        with client.create_ledger(**sizes) as ledger:  # type: ignore[arg-type]
            ledger.append(b"x")


def test_without_one_it_cannot_be_told(apache_cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    bookie = apache_cluster.bookie_ids[0]
    assert cli.run(["bookie", "read-only", bookie, "on", "--uri", apache_cluster.uri]) == 1
    assert "httpServerEnabled=true" in capfd.readouterr().err
