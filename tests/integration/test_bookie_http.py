"""``bk bookie read-only`` on Apache's bookies with their HTTP server, whose jars are no part of a bookie's and come from Maven once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.children import accepts_connections
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.doctor.http import http_address, service_info
from bk_core.errors import BookieUnavailableError, NotEnoughBookiesError
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.integration.embedded import eventually
from tests.integration.http_bookies import http_cluster
from tests.integration.patience import PATIENT
from tests.integration.secured_bookies import HERE, tls_lines
from tests.integration.secured_zookeeper import Authority

pytestmark = pytest.mark.apache


@pytest.fixture
def bookie_with_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    settings = ApacheSettings(java=quick_java.OPTIONS)  # the cluster is made by Apache's own initnewcluster
    with http_cluster(1, tmp_path, monkeypatch, settings) as cluster:
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


def test_apaches_bookie_whose_http_server_speaks_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its registration says "http" all the same, and it wants a certificate. The bookie itself speaks TLS, too."""
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    ca = Authority.made(tmp_path, "ca")
    pair, (cert, key) = ca.signed("bookie", HERE), ca.signed("operator")
    stores = {
        "httpServerTlsEnable": "true",
        "httpServerKeyStorePath": ca.key_store(pair, "bookie", "moss-3310"),
        "httpServerKeyStorePassword": "moss-3310",
        "httpServerTrustStorePath": ca.trust_store("trusted", "fern-4421"),
        "httpServerTrustStorePassword": "fern-4421",
    }
    settings = ApacheSettings(lines={**tls_lines(ca, pair), **stores}, java=quick_java.OPTIONS)
    with http_cluster(1, tmp_path / "cluster", monkeypatch, settings) as cluster:
        (bookie,) = cluster.bookie_ids
        trusting = f"{cluster.uri}{'&' if '?' in cluster.uri else '?'}bookie_ca_file={ca.certificate}"
        known = f"{trusting}&bookie_cert_file={cert}&bookie_key_file={key}"
        with bk_core.connect(known, limits=PATIENT) as client:
            address = http_address(service_info(client, bookie))
            assert address is not None
            assert eventually(lambda: accepts_connections(int(address.rpartition(":")[2])), 60)

            def refused(uri: str, *more: str) -> str:
                capfd.readouterr()
                assert cli.run(["bookie", "read-only", bookie, "on", "--uri", uri, *more]) == 1
                assert client.store.bookies().readonly == ()
                return capfd.readouterr().err

            assert f"if it speaks TLS (httpServerTlsEnable=true), name it as https://{address}" in refused(known)
            assert "wants a certificate of the client, as bookie_cert_file" in refused(trusting, "--http", f"https://{address}")
            other = Authority.made(tmp_path, "other").certificate
            assert "bookie_ca_file in its URI" in refused(known.replace(ca.certificate, other), "--http", f"https://{address}")
            for switch, readonly in (("on", (bookie,)), ("off", ())):
                assert cli.run(["bookie", "read-only", bookie, switch, "--http", f"https://{address}", "--uri", known]) == 0
                assert client.store.bookies().readonly == readonly


def test_without_one_it_cannot_be_told(apache_cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    bookie = apache_cluster.bookie_ids[0]
    assert cli.run(["bookie", "read-only", bookie, "on", "--uri", apache_cluster.uri]) == 1
    assert "httpServerEnabled=true" in capfd.readouterr().err


def test_without_one_a_bookie_starts_read_only_by_its_configuration(tmp_path: Path) -> None:
    """``forceReadOnlyBookie``: it serves what it has, and takes no new ledgers until it starts without that line."""
    try:
        settings = quick_java.bookies(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    sizes: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    with (
        quick_java.apache_cluster(1, tmp_path, APACHE_VERSION, settings) as cluster,
        bk_core.connect(cluster.uri, limits=PATIENT) as client,
    ):
        with client.create_ledger(**sizes) as ledger:
            ledger.append(b"x")
        (bookie,) = cluster.bookie_ids
        cluster.stop_bookie(0)
        configuration = tmp_path / "bookie-0" / "conf" / "bookie.conf"
        before = configuration.read_text()
        configuration.write_text(f"{before}forceReadOnlyBookie=true\n")
        cluster._bookies[0].start()  # it is ready when it is registered as writable, which it never is
        assert eventually(lambda: bookie in client.store.bookies().readonly, 60)
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"x"]
        configuration.write_text(before)
        cluster.restart(0)
        assert client.store.bookies().writable == (bookie,)
