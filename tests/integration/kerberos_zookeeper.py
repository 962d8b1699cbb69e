"""Kerberos (SASL GSSAPI) at a real ZooKeeper, with a KDC of our own: who has a ticket gets in, and each refusal has its error.

``make kerberos`` runs it, beside ``kerberos_bookies.py``. It needs MIT Kerberos' programs (Debian: krb5-kdc, krb5-admin-server, krb5-user)
and the package gssapi, which is built there (Debian: libkrb5-dev).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import MetadataAuthError, MetadataDeniedError, MetadataUnavailableError
from bk_core.metadata import ZooKeeperAuth, open_store
from tests.integration.kdc import ANN, REALM, Kdc, jaas, missing_programs
from tests.integration.patience import PATIENT, until

SERVICE = f"zookeeper/127.0.0.1@{REALM}"
BOB = f"bob@{REALM}"
ONE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
AT_ONCE_S = 8.0


@dataclass
class World:
    kdc: Kdc
    server_keytab: Path
    ann: Path
    bob: Path
    zookeeper: ZooKeeperProcess

    @property
    def uri(self) -> str:
        return f"zk://{self.zookeeper.connect_string}/ledgers"

    @property
    def auth(self) -> ZooKeeperAuth:
        return ZooKeeperAuth("kerberos", principal=ANN, keytab=str(self.ann), acl="creator")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    assert not missing_programs(), f"missing: {missing_programs()} (Debian: krb5-kdc, krb5-admin-server, krb5-user)"
    directory = tmp_path_factory.mktemp("kerberos-zookeeper")
    with ExitStack() as stack:
        kdc = stack.enter_context(Kdc(directory / "kdc"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for principal in (SERVICE, ANN, BOB):
            kdc.add(principal)
        server, ann, bob = (kdc.keytab(one, f"{n}.keytab") for n, one in enumerate((SERVICE, ANN, BOB)))
        patch.setenv("KRB5_CONFIG", str(kdc.profile))
        patch.setenv("KRB5CCNAME", f"FILE:{directory / 'no-tickets'}")
        java = [jaas(directory / "jaas.conf", Server=(SERVICE, server)), f"-Djava.security.krb5.conf={kdc.profile}"]
        lines = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
        zookeeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper", settings=lines, java_options=java))
        world = World(kdc, server, ann, bob, zookeeper)
        store = stack.enter_context(closing(open_store(world.uri, auth=world.auth)))
        store.initialize_cluster()
        stack.enter_context(EmbeddedBookie(directory / "bookie", store=store))
        yield world


def test_whoever_has_a_key_gets_in_and_owns_what_it_makes(world: World) -> None:
    with bk_core.connect(world.uri, metadata_auth=world.auth, limits=PATIENT) as client:
        with client.create_ledger(**ONE) as writer:
            writer.append(b"by a ticket")
        left = client.create_ledger(**ONE)
        left.append(b"left")
        with client.recover_ledger(left.ledger_id) as recovered:
            assert recovered.read(0, 0) == [b"left"]
    bob = ZooKeeperAuth("kerberos", principal=BOB, keytab=str(world.bob))
    for others, told in ((bob, "bob@BK.TEST"), (None, "no credentials")):
        with pytest.raises(MetadataDeniedError, match=told):
            bk_core.connect(world.uri, metadata_auth=others)


@pytest.mark.parametrize("named", [True, False], ids=["named", "of the process"])
def test_whoever_has_a_ticket_gets_in(world: World, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    cache = world.kdc.tickets(ANN, world.ann, "tickets")
    monkeypatch.setenv("KRB5CCNAME", "FILE:/absent" if named else cache)
    auth = ZooKeeperAuth("kerberos", ticket_cache=cache if named else None)
    with closing(open_store(world.uri, auth=pickle.loads(pickle.dumps(auth)))) as store:
        assert store.cluster_id()


def test_the_uri_says_it_for_all_that_take_one(world: World) -> None:
    uri = f"{world.uri}?auth=kerberos&principal={ANN}&keytab_file={world.ann}&acl=creator"
    with bk_core.connect(uri, limits=PATIENT) as client, client.create_ledger(**ONE) as ledger:
        ledger.append(b"x")


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        (ZooKeeperAuth("kerberos"), "there is no ticket: make one with kinit, or name a keytab"),
        (ZooKeeperAuth("kerberos", principal=ANN, keytab="/absent/keytab"), "cannot be read .No such file"),
        (ZooKeeperAuth("kerberos", principal=f"nobody@{REALM}", keytab="ANN"), "it has no key of this principal"),
    ],
    ids=["no ticket", "no keytab", "another principal"],
)
def test_who_has_no_ticket_is_told_at_once(world: World, auth: ZooKeeperAuth, told: str) -> None:
    if auth.keytab == "ANN":
        auth = ZooKeeperAuth("kerberos", principal=auth.principal, keytab=str(world.ann))
    began = time.monotonic()
    with pytest.raises(MetadataAuthError, match=told):
        open_store(world.uri, auth=auth)
    assert time.monotonic() - began < AT_ONCE_S


def test_a_service_that_the_kdc_does_not_know(world: World) -> None:
    auth = ZooKeeperAuth("kerberos", principal=ANN, keytab=str(world.ann), service="somebody")
    with pytest.raises((MetadataUnavailableError, MetadataAuthError), match="the KDC does not know this service"):
        open_store(world.uri, auth=auth, timeout_s=3.0)


def test_a_server_that_dies_is_met_again_with_a_ticket(world: World) -> None:
    with bk_core.connect(world.uri, metadata_auth=world.auth, limits=PATIENT) as client:
        with client.create_ledger(**ONE) as first:
            first.append(b"1")
        world.zookeeper.kill()
        world.zookeeper.start()

        def is_there() -> bool:
            try:
                return client.ledger_metadata(first.ledger_id).last_entry_id == 0
            except MetadataUnavailableError:
                return False

        until(is_there, "the same client reads again")


def test_tickets_serve_while_the_kdc_is_away(world: World) -> None:
    """Those by a keytab are kept in the memory of the process, those for the service among them."""
    with closing(open_store(world.uri, auth=world.auth)) as store:
        assert store.cluster_id()
    world.kdc.stop()
    try:
        with closing(open_store(world.uri, auth=world.auth)) as store:
            assert store.cluster_id()
    finally:
        world.kdc.start()


def test_a_server_with_another_key_is_not_taken(world: World) -> None:
    """The KDC gives tickets by a key that the server has not: it drops the connection, and the error says so."""
    carol = f"carol@{REALM}"
    world.kdc.add(carol)
    auth = ZooKeeperAuth("kerberos", principal=carol, keytab=str(world.kdc.keytab(carol, "carol.keytab")))
    new = world.kdc.keytab(SERVICE, "new.keytab")  # a new key at the KDC; the server still has the old one
    with pytest.raises(MetadataAuthError, match=r"does not take this client \(Kerberos .*carol@BK.TEST .*its key, its principal"):
        open_store(world.uri, auth=auth)
    world.server_keytab.write_bytes(new.read_bytes())
    world.zookeeper.kill()
    world.zookeeper.start()
    with pytest.raises(MetadataDeniedError, match="carol@BK.TEST .* lacks the right"):  # it knows who that is
        open_store(world.uri, auth=auth, patient=True)
