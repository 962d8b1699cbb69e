"""Clusters of Apache's bookies that ask for TLS, for certificates and for passwords."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bk_core.bookie.apache import ApacheSettings
from bk_core.bookie.local_cluster import LocalCluster
from tests import quick_java
from tests.integration.secured_zookeeper import Authority

HERE = ("IP:127.0.0.1", "DNS:localhost")
BOOKIE_USERS = {"bookkeeper-ann": "moss-3310", "bookkeeper-bob": "fern-4421"}
"""The users of SASL DIGEST-MD5 at the bookies, and their passwords. By default bookies take those whose names hold "bookkeeper"."""


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
    lines: dict[str, str | int | None] = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
    return lines, (f"-Djava.security.auth.login.config={jaas}",)


def secured_cluster(
    directory: Path, lines: Mapping[str, str | int | None], java: tuple[str, ...] = (), *, version: str, bookies: int = 3
) -> LocalCluster:
    """Start a cluster of Apache's bookies with these lines and options."""
    settings = ApacheSettings(lines=lines, java=(*quick_java.java_options(version), *java))
    return quick_java.apache_cluster(bookies, directory, version, settings)
