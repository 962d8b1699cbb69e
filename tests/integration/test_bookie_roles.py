"""Apache's bookies that admit by the role in a certificate (BookieAuthZFactory): who has it is served, and nobody else with anything.

``make secure-matrix`` plays this with each release of BookKeeper (BK_TEST_APACHE_VERSION).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import bk_core
from bk_core import BookieSasl, BookieTls, Security
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieAuthError, BookieRoleError, BookieUnavailableError
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENT
from tests.integration.secured_bookies import HERE, secured_cluster, tls_lines
from tests.integration.secured_zookeeper import Authority
from tests.integration.test_secured_bookies import THREE, refused

pytestmark = pytest.mark.apache
ROLES = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
    "authorizedRoles": "admin,writer",
}
STORE_PASSWORD = "moss-3310"


@dataclass
class World:
    ca: Authority
    cluster: LocalCluster

    def tls(self, name: str, subject: str) -> BookieTls:
        return BookieTls(self.ca.certificate, *self.ca.signed(name, subject=subject))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("roles")
    ca = Authority.made(directory / "ca", "ca")
    lines: Any = {**tls_lines(ca, ca.signed("bookie", HERE), mutual=True), **ROLES}
    with secured_cluster(directory / "cluster", lines, version=APACHE_VERSION) as cluster:
        yield World(ca, cluster)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("subject", ["/OU=0:writer", "/OU=1:cluster;0: admin , nobody/OU=0:nobody"])
def test_whoever_has_a_role_is_served(world: World, protocol: Any, subject: str) -> None:
    security = Security(world.tls("right", subject))
    with bk_core.connect(world.cluster.uri, protocol=protocol, security=security, limits=PATIENT) as client:
        with client.create_ledger(**THREE) as writer:
            writer.append_many([b"x" * 1000] * 1000)
        with client.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 999) == [b"x" * 1000] * 1000


def test_a_role_may_be_in_a_key_store_of_java(world: World) -> None:
    """The one way in which the Java client takes certificates by default."""
    store = world.ca.key_store(world.ca.signed("stored", subject="/OU=0:writer"), "stored.p12", STORE_PASSWORD)
    trust = world.ca.trust_store("trust.p12", STORE_PASSWORD)
    tls = BookieTls(key_store=store, key_store_password=STORE_PASSWORD, trust_store=trust, trust_store_password=STORE_PASSWORD)
    with bk_core.connect(world.cluster.uri, security=Security(tls), limits=PATIENT) as client:
        with client.create_ledger(**THREE) as writer:
            writer.append_many([b"x" * 1000] * 1000)


@pytest.mark.parametrize(
    ("name", "subject"),
    [("another", "/OU=0:reader"), ("second", "/OU=0:reader,writer"), ("late", "/OU=people/OU=0:writer"), ("none", "")],
)
def test_a_certificate_without_the_role_is_refused_at_once(world: World, name: str, subject: str) -> None:
    """LINK-10: it is the role, and not the authority, the host or a password."""
    security = Security(world.tls(name, subject))
    with bk_core.connect(world.cluster.uri, security=security, operation_timeout_s=3600) as client:
        text = "does not admit this client's certificate: its role .OU=0:ROLE. is none of the bookie's authorizedRoles"
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieRoleError, text)


@pytest.mark.parametrize("tls", [False, True], ids=["in clear", "tls"])
def test_a_password_is_no_role(world: World, tls: bool) -> None:
    security = Security(world.tls("user", "/OU=0:reader") if tls else None, BookieSasl("bookkeeper-ann", STORE_PASSWORD))
    with bk_core.connect(world.cluster.uri, security=security, operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "another authentication provider than 'sasl'")
