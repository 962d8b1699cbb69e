"""Apache's Java client at embedded bookies that ask for TLS or a password, and we beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.certificates import USER
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from tests.integration.conftest import JavaClient, JavaClientError
from tests.integration.secured_bookies import JAVA_SASL, java_password, java_tls_lines

pytestmark = pytest.mark.apache
UNAUTHORIZED_ACCESS = -102  # BKException.Code.UnauthorizedAccessException
PAYLOADS = [b"x" * 1000] * 50 + [b"y" * 1_000_000]


@contextmanager
def secured(directory: Path, java: JavaClient, *, tls: bool = False, sasl: bool = False) -> Iterator[tuple[LocalCluster, JavaClient]]:
    """A cluster, and the Java client with what it asks for."""
    with local_cluster(3, directory / "cluster", tls=tls, sasl=sasl) as cluster:
        place = directory / "cluster" / "security"
        lines: dict[str, str] = {}
        options: tuple[str, ...] = ()
        if tls:
            lines = java_tls_lines(str(place / "ca.pem"), (str(place / "client.pem"), str(place / "client.key")))
        if sasl:
            lines |= JAVA_SASL
            options = (java_password(directory / "jaas.conf", USER, (place / "password").read_text().strip()),)
        yield cluster, replace(java, lines=lines, java=options)


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        ("tls", "v2"),
        pytest.param("sasl", "v3", marks=pytest.mark.deep),
        pytest.param("tls", "v3", marks=pytest.mark.deep),
        pytest.param("sasl", "v2", marks=pytest.mark.deep),
    ],
)
def test_java_and_we_read_each_other(java_client: JavaClient, tmp_path: Path, kind: str, protocol: str) -> None:
    with secured(tmp_path, java_client, tls=kind == "tls", sasl=kind == "sasl") as (cluster, java):
        with bk_core.connect(cluster.uri) as client:
            left = java.write(cluster, PAYLOADS, protocol=protocol, crash=True)
            with client.recover_ledger(left.ledger_id) as recovered:
                assert recovered.read(0, len(PAYLOADS) - 1) == PAYLOADS
            ours = client.create_ledger()
            ours.append_many(PAYLOADS)
            assert java.recover(cluster, ours.ledger_id, protocol=protocol).payloads == tuple(PAYLOADS)
            ours.abandon()


def test_java_without_a_password_is_refused(java_client: JavaClient, tmp_path: Path) -> None:
    with secured(tmp_path, java_client, sasl=True) as (cluster, with_password):
        assert with_password.write(cluster, [b"from one with the password"]).last_entry_id == 0
        with pytest.raises(JavaClientError) as refused:
            java_client.write(cluster, [b"from one that shows nothing"])
        assert refused.value.code == UNAUTHORIZED_ACCESS
