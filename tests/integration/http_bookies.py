"""Apache's bookies with their HTTP server, whose jars are no part of a bookie's and come from Maven once; each at a port of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheBookie, ApacheSettings
from bk_core.bookie.children import free_port
from bk_core.bookie.local_cluster import LocalCluster
from tests.integration.conftest import APACHE_VERSION

SERVER = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer"}

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>http</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.bookkeeper.http</groupId><artifactId>vertx-http-server</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


def _artifact(jar: Path) -> str:
    return re.sub(r"-\d[\w.]*?(?=(-linux|-osx|-windows|\.jar))", "", jar.name)


def with_http(libraries: Path, into: Path) -> Path:
    """Return a folder with the jars of a bookie, and those of the HTTP server that it has not got already in another version."""
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


class HttpCluster(LocalCluster):
    """A cluster of Apache's bookies with these settings, of which each has an HTTP server."""

    def __init__(self, bookies: int, directory: Path, settings: ApacheSettings) -> None:
        super().__init__(bookies, directory, APACHE_VERSION, None, apache_settings=settings)

    def _make_bookie(self, index: int) -> ApacheBookie:
        common, self._settings = self._settings, self._with_port()
        try:
            made = super()._make_bookie(index)
        finally:
            self._settings = common
        assert isinstance(made, ApacheBookie)
        return made

    def _with_port(self) -> ApacheSettings:
        return replace(self._settings, lines={**self._settings.lines, **SERVER, "httpServerPort": free_port()})


def http_cluster(bookies: int, directory: Path, monkeypatch: pytest.MonkeyPatch, settings: ApacheSettings) -> HttpCluster:
    """Start a cluster whose jars lie in a folder of its own; while it runs, ``monkeypatch`` has all resolve those."""
    directory.mkdir(parents=True, exist_ok=True)
    both = with_http(apache.resolve(APACHE_VERSION), directory)
    monkeypatch.setattr(apache, "resolve", lambda *_, **__: both)
    return HttpCluster(bookies, directory / "cluster", settings)
