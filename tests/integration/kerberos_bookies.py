"""Kerberos (SASL GSSAPI) at Apache's bookies and at embedded ones, with a KDC of our own: who has a ticket is served, and each refusal has
its error at once, which is the same at both.

``make kerberos`` runs it. It needs MIT Kerberos' programs (Debian: krb5-kdc, krb5-admin-server, krb5-user) and the package gssapi, which is
built there (Debian: libkrb5-dev). The gate has neither: it plays tokens that were recorded here (tests/unit/link/test_gssapi_exchange.py).
``make secure-matrix`` plays it with each release of BookKeeper (BK_TEST_APACHE_VERSION).
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import AuthExchange, BookieKerberos, BookieSasl, BookieTls, Security
from bk_core.bookie import apache
from bk_core.bookie.children import free_port
from bk_core.bookie.door import Door
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieAuthError, BookieKerberosError
from tests.integration.conftest import APACHE_VERSION, JavaClient
from tests.integration.kdc import ANN, REALM, SERVICE, Kdc, jaas, missing_programs
from tests.integration.patience import PATIENT
from tests.integration.secured_bookies import (
    BOOKIE_USERS,
    HERE,
    JAVA_SASL,
    SASL_BOOKIE,
    EmbeddedCluster,
    sasl_settings,
    secured_cluster,
    tls_lines,
)
from tests.integration.secured_zookeeper import Authority
from tests.integration.test_secured_bookies import ONE, THREE, refused

pytestmark = pytest.mark.apache
BOB = f"bob@{REALM}"
"""A principal that the bookies' saslJaasClientAllowedIds do not let in."""
KEYTAB_HEAD = 2
"""The bytes of a keytab before its keys."""
PAYLOADS = [b"x" * 1000] * 50 + [b"y" * 1_000_000]


@dataclass
class World:
    kdc: Kdc
    ca: Authority
    server: Path
    keytab: Path
    bobs: Path
    cluster: LocalCluster
    """Three bookies that are asked in clear."""
    secured: LocalCluster
    """Three that are asked by TLS; with Apache's they are the same."""
    digest: LocalCluster
    """One bookie that wants passwords."""

    @property
    def ann(self) -> BookieKerberos:
        return BookieKerberos(ANN, str(self.keytab))

    @property
    def tls(self) -> BookieTls:
        return BookieTls(self.ca.certificate)


@pytest.fixture(scope="module", params=["Apache's", "embedded"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    assert not missing_programs(), f"missing: {missing_programs()} (Debian: krb5-kdc, krb5-admin-server, krb5-user)"
    apache.resolve(APACHE_VERSION)
    directory = tmp_path_factory.mktemp("kerberos")
    ca = Authority.made(directory / "ca", "ca")
    with Kdc(directory / "kdc") as kdc, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for principal in (SERVICE, ANN, BOB):
            kdc.add(principal)
        server, keytab, bobs = (kdc.keytab(one, f"{n}.keytab") for n, one in enumerate((SERVICE, ANN, BOB)))
        patch.setenv("KRB5_CONFIG", str(kdc.profile))
        patch.setenv("KRB5CCNAME", f"FILE:{directory / 'no-tickets'}")
        make = embedded_clusters if request.param == "embedded" else apache_clusters
        yield World(kdc, ca, server, keytab, bobs, *map(stack.enter_context, make(directory, kdc, ca.signed("b", HERE), ca, server)))


def apache_clusters(directory: Path, kdc: Kdc, certificate: tuple[str, str], ca: Authority, server: Path) -> Iterator[LocalCluster]:
    java = (jaas(directory / "jaas.conf", Bookie=(SERVICE, server)), f"-Djava.security.krb5.conf={kdc.profile}")
    lines: Any = {**tls_lines(ca, certificate), **SASL_BOOKIE}
    passwords, digest_java = sasl_settings(directory / "digest-jaas")
    cluster = secured_cluster(directory / "cluster", lines, java, version=APACHE_VERSION)
    yield cluster
    yield cluster
    yield secured_cluster(directory / "digest", passwords, digest_java, version=APACHE_VERSION, bookies=1)


def embedded_clusters(directory: Path, kdc: Kdc, certificate: tuple[str, str], ca: Authority, server: Path) -> Iterator[LocalCluster]:
    kerberos = KerberosService(SERVICE, str(server))
    users = directory / "users"
    users.write_text("".join(f"{user}:{password}\n" for user, password in BOOKIE_USERS.items()))
    yield EmbeddedCluster(directory / "cluster", Door(kerberos=kerberos))
    yield EmbeddedCluster(directory / "secured", Door(*certificate, kerberos=kerberos))
    yield EmbeddedCluster(directory / "digest", Door(users_file=str(users)), bookies=1)


def writes_and_reads(client: bk_core.BookKeeper, sizes: Any = THREE) -> None:
    with client.create_ledger(**sizes) as writer:
        writer.append_many([b"x" * 1000] * 1000)
        writer.append(b"y" * 2_000_000)
    with client.open_ledger(writer.ledger_id) as reader:
        assert reader.read(0, 1000) == [b"x" * 1000] * 1000 + [b"y" * 2_000_000]
    left = client.create_ledger(**sizes)
    left.append(b"z")
    with client.recover_ledger(left.ledger_id) as recovered:
        assert recovered.read(0, 0) == [b"z"]


@pytest.mark.parametrize("tls", [False, True], ids=["in clear", "tls"])
@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_whoever_has_a_key_is_served(world: World, protocol: Any, tls: bool) -> None:
    security = Security(world.tls if tls else None, world.ann)
    with bk_core.connect((world.secured if tls else world.cluster).uri, protocol=protocol, security=security, limits=PATIENT) as client:
        writes_and_reads(client)


@pytest.mark.parametrize("named", [True, False], ids=["named", "of the process"])
def test_whoever_has_a_ticket_is_served(world: World, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    cache = world.kdc.tickets(ANN, world.keytab, "tickets")
    monkeypatch.setenv("KRB5CCNAME", "FILE:/absent" if named else cache)
    auth = BookieKerberos(ticket_cache=cache) if named else BookieKerberos()
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), limits=PATIENT) as client:
        writes_and_reads(client)


def test_the_uri_says_it_for_all_that_take_one(world: World) -> None:
    key = f"bookie_principal={ANN}&bookie_keytab_file={world.keytab}"
    with bk_core.connect(f"{world.secured.uri}?bookie_ca_file={world.ca.certificate}&{key}", limits=PATIENT) as client:
        writes_and_reads(client)
    with bk_core.connect(f"{world.cluster.uri}?{key}", limits=PATIENT) as client, client.create_ledger(**THREE) as ledger:
        ledger.append(b"x")
    cache = world.kdc.tickets(ANN, world.keytab, "tickets-of-a-uri")
    with bk_core.connect(f"{world.cluster.uri}?bookie_ticket_cache={cache}", limits=PATIENT) as client:
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"x"]


@dataclass
class Watched:
    """Kerberos, with the threads on which it is asked for a ticket."""

    inner: BookieKerberos
    threads: list[str] = field(default_factory=list)

    def exchange(self, host: str) -> AuthExchange:
        self.threads.append(threading.current_thread().name)
        return self.inner.exchange(host)


def test_no_kdc_is_asked_on_the_thread_of_the_connections(world: World) -> None:
    auth = Watched(world.ann)
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), limits=PATIENT) as client:
        writes_and_reads(client)
    assert len(auth.threads) > 3 and auth.threads[0] == threading.current_thread().name
    assert {name.rpartition("-")[0] or name for name in auth.threads[1:]} == {"bookkeeper-security"}


def test_bookies_that_are_started_again_are_met_with_the_same_ticket(world: World) -> None:
    """Without a KDC: tickets that are valid need none."""
    with bk_core.connect(world.cluster.uri, security=Security(auth=world.ann), ensemble_change="delayed", limits=PATIENT) as client:
        with client.create_ledger(**THREE) as writer:
            writer.append_many([b"before"] * 100)
            world.cluster.kill(0)
            writer.append_many([b"meanwhile"] * 100)
            world.cluster.restart(0)
            world.kdc.stop()
            try:
                writer.append_many([b"after"] * 100)
                writer.close()
                with client.open_ledger(writer.ledger_id) as reader:
                    assert reader.read(0, 299) == [b"before"] * 100 + [b"meanwhile"] * 100 + [b"after"] * 100
            finally:
                world.kdc.start()


def no_principal_at_all(w: World) -> BookieKerberos:
    return BookieKerberos(f"bookkeeper-nobody@{REALM}", str(w.keytab))


def nobody_at_the_kdc(w: World) -> BookieKerberos:
    name = f"bookkeeper-gone@{REALM}"
    w.kdc.add(name)
    keytab = w.kdc.keytab(name, "gone.keytab")
    w.kdc.admin(f"delprinc -force {name}")
    return BookieKerberos(name, str(keytab))


def another_key(w: World) -> BookieKerberos:
    name = f"bookkeeper-rolled@{REALM}"
    w.kdc.add(name)
    keytab = w.kdc.keytab(name, "rolled.keytab")
    w.kdc.admin(f"change_password -randkey {name}")
    return BookieKerberos(name, str(keytab))


def somebody_elses(w: World) -> BookieKerberos:
    return BookieKerberos(ANN, ticket_cache=w.kdc.tickets(BOB, w.bobs, "tickets-of-bob"))


def expired(w: World) -> BookieKerberos:
    """A ticket of one second, once ``klist`` says that it is over."""
    name = f"bookkeeper-late@{REALM}"
    w.kdc.add(name, options='-maxlife "1 second"')
    cache = w.kdc.tickets(name, w.kdc.keytab(name, "late.keytab"), "late-tickets")
    time_is_over = time.monotonic() + 60
    while w.kdc.is_valid(cache):
        assert time.monotonic() < time_is_over
    return BookieKerberos(ticket_cache=cache)


WITHOUT_A_TICKET: dict[str, tuple[Callable[[World], BookieKerberos], str]] = {
    "no keytab": (lambda w: BookieKerberos(ANN, "/absent.keytab"), r"by the keytab /absent.keytab: it cannot be read \(No such file"),
    "no key of it there": (no_principal_at_all, "ticket of bookkeeper-nobody@BK.TEST by the keytab .*: it has no key of this principal"),
    "no keytab at all": (lambda w: BookieKerberos(ANN, "/etc/passwd"), "by the keytab /etc/passwd: .* or is no keytab"),
    "unknown at the KDC": (nobody_at_the_kdc, "ticket of bookkeeper-gone@BK.TEST by the keytab .*: the KDC does not know this principal"),
    "another key there": (another_key, "the KDC has another key of this principal than the keytab"),
    "no ticket cache": (lambda w: BookieKerberos(ticket_cache="FILE:/absent"), "in the ticket cache FILE:/absent: there is no ticket"),
    "none of the process": (lambda w: BookieKerberos(), "in the default ticket cache: there is no ticket: make one with kinit"),
    "somebody else's": (somebody_elses, "ticket of bookkeeper-ann@BK.TEST in the ticket cache .*: .* does not match desired name"),
    "an expired ticket": (expired, "in the ticket cache FILE:.*: the ticket has expired: renew it with kinit"),
}


@pytest.mark.parametrize("name", WITHOUT_A_TICKET)
def test_a_client_without_a_ticket_is_told_when_it_connects(world: World, name: str) -> None:
    make, text = WITHOUT_A_TICKET[name]
    refused(lambda: bk_core.connect(world.cluster.uri, security=Security(auth=make(world))), BookieKerberosError, text)


@pytest.mark.parametrize("listens", ["no KDC listens", "no KDC is named"])
def test_a_kdc_that_is_not_there_is_told_when_a_client_connects(world: World, monkeypatch: pytest.MonkeyPatch, listens: str) -> None:
    port = free_port() if listens == "no KDC listens" else None
    monkeypatch.setenv("KRB5_CONFIG", str(world.kdc.written("without.conf", port)))
    name = f"bookkeeper-{listens.replace(' ', '-')}@{REALM}"  # of whom no earlier test keeps a ticket
    world.kdc.add(name)
    auth = BookieKerberos(name, str(world.kdc.keytab(name, "without.keytab")))
    text = "no KDC answers" if port else "krb5.conf names no KDC"
    refused(lambda: bk_core.connect(world.cluster.uri, security=Security(auth=auth)), BookieKerberosError, text)


REFUSED: dict[str, tuple[Callable[[World], Any], type[BookieAuthError], str]] = {
    "a service that is not there": (
        lambda w: replace(w.ann, service="ledgers"),
        BookieKerberosError,
        "no Kerberos ticket for ledgers/127.0.0.1, with the ticket of bookkeeper-ann@BK.TEST by .*: the KDC does not know this service",
    ),
    "a name that is not allowed": (
        lambda w: BookieKerberos(BOB, str(w.bobs)),
        BookieAuthError,
        r"does not take this client \(Kerberos principal bob@BK.TEST, for .*\): .*does not admit that name \(its saslJaasClient",
    ),
    "a password": (
        lambda w: BookieSasl(*next(iter(BOOKIE_USERS.items()))),
        BookieAuthError,
        "does not take this client .SASL user .*.: the bookie does not begin SASL DIGEST-MD5: it may want Kerberos",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_refusal_has_its_error_at_once(world: World, name: str) -> None:
    """LINK-10: and the next attempts are those of the next calls, with growing pauses."""
    make, kind, text = REFUSED[name]
    auth = Watched(make(world))
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), kind, text)
        attempts = len(auth.threads)
        assert not threading.Event().wait(1.0) and len(auth.threads) <= attempts + 3  # those that were under way
        refused(lambda: client.create_ledger(**THREE).append(b"x"), kind, text)


def test_a_library_that_asks_dns_asks_for_another_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defaults of krb5.conf the address of a bookie becomes its name; the error says which one was asked for."""
    monkeypatch.setenv("KRB5_CONFIG", str(world.kdc.written("dns.conf", world.kdc.port, "")))
    with bk_core.connect(world.cluster.uri, security=Security(auth=world.ann), operation_timeout_s=3600) as client:
        text = "the KDC does not know this service: .*bookkeeper/localhost@BK.TEST not found"
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieKerberosError, text)


def test_bookies_that_want_a_password_take_no_ticket(world: World) -> None:
    with bk_core.connect(world.digest.uri, security=Security(auth=world.ann), operation_timeout_s=3600) as client:
        text = "the bookie wants a password .SASL DIGEST-MD5: BookieSasl, .* in place of Kerberos"
        refused(lambda: client.create_ledger(**ONE).append(b"x"), BookieKerberosError, text)


def test_bookies_whose_keytab_is_old_do_not_take_the_ticket_until_it_is_new(world: World) -> None:
    name = f"bookkeeper-new@{REALM}"  # who has no ticket for the old key
    world.kdc.add(name)
    auth = BookieKerberos(name, str(world.kdc.keytab(name, "new.keytab")))
    old = world.server.read_bytes()
    new = world.kdc.keytab(SERVICE, "another.keytab").read_bytes()
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), quarantine_s=0, limits=PATIENT) as client:
        text = "the bookie does not take the ticket: the key in its keytab, its principal or its clock"
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, text)
        world.server.write_bytes(old + new[KEYTAB_HEAD:])  # with the old key, for whoever has a ticket by it
        until_admitted(client)


def until_admitted(client: bk_core.BookKeeper) -> None:
    time_is_over = time.monotonic() + 60
    while True:
        try:
            with client.create_ledger(**THREE) as ledger:
                ledger.append(b"x")
            return
        except BookieAuthError:
            assert time.monotonic() < time_is_over


def test_bookies_that_authenticate_nobody_are_an_error(world: World, cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, security=Security(auth=world.ann), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "authenticates nobody")


def test_a_client_that_shows_nothing_is_told_what_is_missing(world: World) -> None:
    with bk_core.connect(world.secured.uri, security=Security(world.tls), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "wants clients that authenticate")


def test_a_client_goes_on_once_it_has_a_ticket(world: World) -> None:
    """Tickets are looked for at each connection, and a refusal is no end of trying."""
    cache = world.kdc.tickets(BOB, world.bobs, "of-somebody")
    auth = BookieKerberos(ticket_cache=cache)
    with bk_core.connect(world.cluster.uri, security=Security(auth=auth), quarantine_s=0, limits=PATIENT) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieAuthError, "does not admit that name")
        world.kdc.tickets(ANN, world.keytab, "of-somebody")
        until_admitted(client)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_java_and_we_read_each_other(world: World, java_client: JavaClient, tmp_path: Path, protocol: str) -> None:
    options = (jaas(tmp_path / "jaas.conf", BookKeeper=(ANN, world.keytab)), f"-Djava.security.krb5.conf={world.kdc.profile}")
    java = replace(java_client, lines=JAVA_SASL, java=options)
    with bk_core.connect(world.cluster.uri, security=Security(auth=world.ann), limits=PATIENT) as client:
        left = java.write(world.cluster, PAYLOADS, protocol=protocol, crash=True)
        with client.recover_ledger(left.ledger_id) as recovered:
            assert recovered.read(0, len(PAYLOADS) - 1) == PAYLOADS
        ours = client.create_ledger()
        ours.append_many(PAYLOADS)
        assert java.recover(world.cluster, ours.ledger_id, protocol=protocol).payloads == tuple(PAYLOADS)
        ours.abandon()


def test_it_travels_to_other_processes(world: World) -> None:
    security = Security(world.tls, world.ann)
    assert pickle.loads(pickle.dumps(security)) == security
