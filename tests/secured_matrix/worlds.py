"""The clusters of the matrix, and what each side needs there. One authority, ZooKeeper, KDC and set of users serves all."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

from bk_core.bookie import apache
from bk_core.bookie.door import Door
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from tests import quick_java
from tests.integration.kdc import ANN, REALM, SERVICE, Kdc, jaas, missing_programs
from tests.integration.secured_bookies import (
    BOOKIE_USERS,
    HERE,
    JAVA_SASL,
    SASL_BOOKIE,
    EmbeddedCluster,
    java_password,
    java_tls_lines,
    sasl_settings,
    secured_cluster,
    tls_lines,
)
from tests.integration.secured_zookeeper import Authority
from tests.secured_matrix.table import EMBEDDED, Place
from tests.soak.java_side import JavaProcess

BOB = f"bob@{REALM}"
"""A principal that the bookies do not admit (saslJaasClientAllowedIds)."""
(USER, PASSWORD), *_ = BOOKIE_USERS.items()
WRONG_PASSWORD = "another-5512"
SECRETS = (*BOOKIE_USERS.values(), WRONG_PASSWORD)
"""The passwords of all users, and the wrong one: they are to stand in no log."""


@dataclass(frozen=True)
class Tickets:
    """A KDC that runs, and the keytabs of the bookies, of a client, and of one that is not admitted."""

    kdc: Kdc
    bookies: Path
    ann: Path
    bob: Path

    @property
    def java(self) -> str:
        """The JVM's option for the KDC."""
        return f"-Djava.security.krb5.conf={self.kdc.profile}"


def without_kerberos() -> str:
    """Return what this machine lacks for Kerberos, "" if nothing."""
    lacks = [*missing_programs(), *([] if importlib.util.find_spec("gssapi") else ["the package gssapi"])]
    return f"{', '.join(lacks)}: see `make kerberos`" if lacks else ""


class Keys:
    """The files of all clusters. ``tickets`` is None without Kerberos."""

    def __init__(self, directory: Path, tickets: Tickets | None) -> None:
        self.directory = directory
        self.tickets = tickets
        self.ca, self.stranger = (Authority.made(directory / name, name) for name in ("ca", "stranger"))
        self.bookie = self.ca.signed("bookie", HERE)
        self.client = self.ca.signed("client")
        self.password = self._secret("password", PASSWORD)
        self.wrong_password = self._secret("wrong-password", WRONG_PASSWORD)
        self.users = self._secret("users", "".join(f"{user}:{password}\n" for user, password in BOOKIE_USERS.items()))

    def _secret(self, name: str, text: str) -> str:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def tls(self, transport: str) -> dict[str, str]:
        """Return the options of a URI for the way to the bookies."""
        certificate, key = self.client
        shown = {"bookie_cert_file": certificate, "bookie_key_file": key} if transport == "mutual" else {}
        return {} if transport == "plain" else {"bookie_ca_file": self.ca.certificate, **shown}

    def auth(self, auth: str) -> dict[str, str]:
        """Return the options of a URI that say who the client is."""
        if auth == "gssapi":
            assert self.tickets is not None
            return {"bookie_principal": ANN, "bookie_keytab_file": str(self.tickets.ann)}
        return {"bookie_user": USER, "bookie_password_file": self.password} if auth == "digest" else {}

    def java(self, transport: str, auth: str, directory: Path) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the lines of the Java client's configuration, and the options of its JVM."""
        lines = {} if transport == "plain" else java_tls_lines(self.ca.certificate, self.client if transport == "mutual" else None)
        if auth == "none":
            return lines, ()
        if auth == "digest":
            return lines | JAVA_SASL, (java_password(directory / "client-jaas.conf", USER, PASSWORD),)
        assert self.tickets is not None
        return lines | JAVA_SASL, (jaas(directory / "client-jaas.conf", BookKeeper=(ANN, self.tickets.ann)), self.tickets.java)


def asked(uri: str, options: Mapping[str, str]) -> str:
    """Return a URI with options."""
    return f"{uri}?{'&'.join(f'{name}={quote(value)}' for name, value in options.items())}" if options else uri


@dataclass(frozen=True)
class World:
    """A cluster that runs, by a bare URI that names no file."""

    place: Place
    keys: Keys
    cluster: LocalCluster

    @property
    def options(self) -> dict[str, str]:
        return self.keys.tls(self.place.transport) | self.keys.auth(self.place.auth)

    @property
    def uri(self) -> str:
        return asked(self.cluster.uri, self.options)

    def java(self, protocol: str) -> JavaProcess:
        """Start Apache's Java client, of the bookies' release where they are Apache's."""
        release = apache.DEFAULT_VERSION if self.place.bookies == EMBEDDED else self.place.bookies
        lines, options = self.keys.java(self.place.transport, self.place.auth, self.cluster.directory)
        return JavaProcess(self.cluster, release, protocol, lines=lines, java=(*quick_java.java_options(release), *options))


@contextmanager
def kerberos(directory: Path) -> Iterator[Tickets]:
    """Run a KDC. Until the end this process and its children ask it: Spark's workers, too, if their session begins inside."""
    with Kdc(directory) as kdc, mock.patch.dict(os.environ, {"KRB5_CONFIG": str(kdc.profile), "KRB5CCNAME": f"FILE:{directory / 'none'}"}):
        for principal in (SERVICE, ANN, BOB):
            kdc.add(principal)
        yield Tickets(kdc, *(kdc.keytab(one, f"{n}.keytab") for n, one in enumerate((SERVICE, ANN, BOB))))


@contextmanager
def made_keys(directory: Path) -> Iterator[Keys]:
    """Make the files of all clusters, with Kerberos if the machine has it."""
    with ExitStack() as stack:
        tickets = None if without_kerberos() else stack.enter_context(kerberos(directory / "kdc"))
        yield Keys(directory, tickets)


@contextmanager
def made_world(place: Place, keys: Keys, keeper: ZooKeeperProcess, directory: Path) -> Iterator[World]:
    """Start the three bookies of a place. Their data is removed at the end, their logs stay."""
    root = f"zk://{keeper.connect_string}/{place.name.replace(' ', '-')}"
    directory = directory / place.name.replace(" ", "-")
    with _cluster(place, keys, root, directory) as cluster:
        yield World(place, keys, cluster)
    for data in ("data", "journal", "ledgers"):
        for path in directory.glob(f"bookie-*/{data}"):
            shutil.rmtree(path, ignore_errors=True)


def _cluster(place: Place, keys: Keys, root: str, directory: Path) -> LocalCluster:
    secure, mutual = place.transport != "plain", place.transport == "mutual"
    if place.bookies == EMBEDDED:
        users = keys.users if place.auth == "digest" else None
        certificate, key = keys.bookie if secure else (None, None)
        kerberos = None
        if place.auth == "gssapi":
            assert keys.tickets is not None
            kerberos = KerberosService(SERVICE, str(keys.tickets.bookies))
        ca = keys.ca.certificate if mutual else None
        door = Door(certificate, key, ca, users, kerberos=kerberos) if secure or users or kerberos else None
        return EmbeddedCluster(directory, door, zookeeper=root)
    lines: dict[str, Any] = tls_lines(keys.ca, keys.bookie, mutual=mutual) if secure else {}
    java: tuple[str, ...] = ()
    if place.auth == "digest":
        more, java = sasl_settings(directory)
        lines |= more
    elif place.auth == "gssapi":
        assert keys.tickets is not None
        directory.mkdir(parents=True, exist_ok=True)
        lines |= SASL_BOOKIE
        java = (jaas(directory / "jaas.conf", Bookie=(SERVICE, keys.tickets.bookies)), keys.tickets.java)
    return secured_cluster(directory, lines, java, version=place.bookies, zookeeper=root)
