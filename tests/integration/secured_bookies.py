"""Clusters of bookies that ask for TLS, for certificates and for passwords, and what Apache's Java client needs there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.door import Door
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.local_cluster import LocalCluster
from tests import quick_java
from tests.integration.secured_zookeeper import Authority

HERE = ("IP:127.0.0.1", "DNS:localhost")
BOOKIE_USERS = {"bookkeeper-ann": "moss-3310", "bookkeeper-bob": "fern-4421"}
"""The users of SASL DIGEST-MD5 at the bookies, and their passwords. By default bookies take those whose names hold "bookkeeper"."""


SASL_BOOKIE = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
"""Lines of ``bookie.conf`` with which a bookie wants clients that authenticate as its JAAS file says."""
JAVA_SASL = {"clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"}
"""Lines of the Java client's configuration with which it authenticates as its JAAS file says."""


def tls_lines(ca: Authority, server: tuple[str, str], *, mutual: bool = False) -> dict[str, str | int | None]:
    """Lines of ``bookie.conf`` for TLS with certificates of ``ca``; with ``mutual``, clients need one, too."""
    certificate, key = server
    return {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsCertificatePath": certificate,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": ca.certificate,
        "tlsClientAuthentication": "true" if mutual else "false",
    }


def sasl_settings(directory: Path, users: Mapping[str, str] = BOOKIE_USERS) -> tuple[dict[str, str | int | None], tuple[str, ...]]:
    """Return lines of ``bookie.conf`` and options of the JVM for SASL DIGEST-MD5."""
    directory.mkdir(parents=True, exist_ok=True)
    jaas = directory / "jaas.conf"
    known = "\n".join(f'  user_{name}="{password}"' for name, password in users.items())
    jaas.write_text(f"Bookie {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{known};\n}};\n")
    return {**SASL_BOOKIE}, (f"-Djava.security.auth.login.config={jaas}",)


def secured_cluster(
    directory: Path,
    lines: Mapping[str, str | int | None],
    java: tuple[str, ...] = (),
    *,
    version: str,
    bookies: int = 3,
    zookeeper: str | None = None,
) -> LocalCluster:
    """Start a cluster of Apache's bookies with these lines and options."""
    settings = ApacheSettings(lines=lines, java=(*quick_java.java_options(version), *java))
    return quick_java.apache_cluster(bookies, directory, version, settings, zookeeper)


class EmbeddedCluster(LocalCluster):
    """A cluster of embedded bookies with this door, which may be one that ``local_cluster(tls=True)`` does not make; None is none."""

    def __init__(self, directory: Path, door: Door | None, *, bookies: int = 3, zookeeper: str | None = None) -> None:
        self._door = door
        super().__init__(bookies, directory, None, zookeeper, None, None, False, None, False, False, "zookeeper")

    def _make_bookie(self, index: int) -> EmbeddedBookieProcess:
        bookie = super()._make_bookie(index)
        assert isinstance(bookie, EmbeddedBookieProcess)
        bookie._door = self._door
        return bookie


def java_tls_lines(ca: str, client: tuple[str, str] | None = None) -> dict[str, str]:
    """Lines of the Java client's configuration for TLS; with ``client``, a certificate and its key, it shows that."""
    lines = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "false",
        "clientTrustStoreType": "PEM",
        "clientTrustStore": ca,
    }
    if client is not None:
        certificate, key = client
        lines |= {"tlsClientAuthentication": "true", "clientKeyStoreType": "PEM", "clientKeyStore": key, "tlsCertificatePath": certificate}
    return lines


def java_password(path: Path, user: str, password: str) -> str:
    """Write a JAAS file by which the Java client shows a password, and return the JVM's option for it."""
    module = f'org.apache.zookeeper.server.auth.DigestLoginModule required username="{user}" password="{password}"'
    path.write_text(f"BookKeeper {{\n  {module};\n}};\n")
    return f"-Djava.security.auth.login.config={path}"
