"""Apache's bookies with SASL DIGEST-MD5, with TLS and without: who knows a password is served, and each refusal has its error at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import bk_core
from bk_core import AuthExchange, BookieSasl, BookieTls, Security
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieAuthError, BookieUnavailableError
from bk_core.sasl import DigestMd5
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENT
from tests.integration.secured_bookies import BOOKIE_USERS, HERE, sasl_settings, secured_cluster, tls_lines
from tests.integration.secured_zookeeper import Authority
from tests.integration.test_secured_bookies import THREE, refused

pytestmark = pytest.mark.apache
(USER, PASSWORD), *_ = BOOKIE_USERS.items()


@dataclass
class World:
    ca: Authority
    cluster: LocalCluster

    @property
    def tls(self) -> BookieTls:
        return BookieTls(self.ca.certificate)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("sasl")
    ca = Authority.made(directory / "ca", "ca")
    lines, java = sasl_settings(directory)
    with secured_cluster(directory / "cluster", {**tls_lines(ca, ca.signed("b", HERE)), **lines}, java, version=APACHE_VERSION) as cluster:
        yield World(ca, cluster)


@dataclass
class OwnExchange:
    """A program's own exchange: here one that counts, around the one that there is."""

    inner: DigestMd5
    seen: list[bytes]
    plugin: str = "sasl"

    @property
    def done(self) -> bool:
        return self.inner.done

    def first(self) -> bytes:
        return self.inner.first()

    def answer(self, token: bytes) -> bytes | None:
        self.seen.append(token)
        return self.inner.answer(token)


@dataclass
class OwnAuth:
    plugin: str = "sasl"
    hosts: list[str] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)

    def exchange(self, host: str) -> AuthExchange:
        self.hosts.append(host)
        return OwnExchange(DigestMd5(USER, PASSWORD), self.seen, self.plugin)


@pytest.mark.parametrize("tls", [False, True], ids=["in clear", "tls"])
@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_whoever_knows_the_password_is_served(world: World, protocol: Any, tls: bool) -> None:
    security = Security(tls=world.tls if tls else None, auth=BookieSasl(USER, PASSWORD))
    with bk_core.connect(world.cluster.uri, protocol=protocol, security=security, limits=PATIENT) as client:
        with client.create_ledger(**THREE) as writer:
            writer.append_many([b"x" * 1000] * 1000)
            writer.append(b"y" * 2_000_000)
        with client.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 1000) == [b"x" * 1000] * 1000 + [b"y" * 2_000_000]
        left = client.create_ledger(**THREE)
        left.append(b"z")
        with client.recover_ledger(left.ledger_id) as recovered:
            assert recovered.read(0, 0) == [b"z"]


def test_a_program_may_bring_its_own_exchange(world: World) -> None:
    auth = OwnAuth()
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), limits=PATIENT) as client:
        with client.create_ledger(**THREE) as ledger:
            ledger.append(b"x")
    assert auth.hosts[0] == "" and set(auth.hosts[1:]) == {"127.0.0.1"}
    assert any(token.startswith(b"rspauth=") for token in auth.seen)


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["in clear", "tls"])
@pytest.mark.parametrize(
    ("auth", "text"),
    [
        (BookieSasl(USER, "wrong-8731"), f"does not take this client .SASL user '{USER}'.: the user or the secret is wrong there"),
        (BookieSasl("bookkeeper-nobody", PASSWORD), "does not take this client .SASL user 'bookkeeper-nobody'."),
        (BookieSasl("ann", PASSWORD), "does not take this client .SASL user 'ann'."),
        (OwnAuth("another"), "has another authentication provider than 'another'"),
    ],
    ids=["wrong password", "nobody", "a name that is not allowed", "another provider"],
)
def test_each_refusal_has_its_error_at_once(world: World, auth: Any, text: str, tls: bool) -> None:
    """LINK-10: Apache's bookies say nothing of a wrong password, and yet nobody waits for them."""
    security = Security(tls=world.tls if tls else None, auth=auth)
    with bk_core.connect(world.cluster.uri, security=security, operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, text)


def test_a_client_without_a_password_is_told_what_is_missing(world: World) -> None:
    with bk_core.connect(world.cluster.uri, security=Security(world.tls), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "wants (it to|clients that) authenticate")


def test_a_bookie_that_authenticates_nobody_is_an_error(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, security=Security(auth=BookieSasl(USER, PASSWORD)), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "authenticates nobody")
