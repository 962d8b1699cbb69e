"""A real ZooKeeper with passwords, rights and TLS: who gets in, who is told what, and that nobody tries for ever."""

from __future__ import annotations

import logging
import pickle
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions as kazoo_errors
from kazoo.protocol.connection import ConnectionHandler

import bk_core
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.cli import run
from bk_core.errors import (
    InvalidArgumentError,
    KeyStoreError,
    MetadataAuthError,
    MetadataDeniedError,
    MetadataHostNameError,
    MetadataTlsError,
    MetadataUnavailableError,
    SecretUnavailableError,
)
from bk_core.metadata import MetadataTls, ZooKeeperAuth, open_store, secured
from bk_core.metadata.store import MetadataStore
from bk_core.metadata.zookeeper import link
from bk_core.metadata.zookeeper.link import _Handler
from bk_core.metadata.zookeeper.store import ZooKeeperStore
from bk_core.secrets import SecretFile, SecretVariable
from tests.integration.patience import until
from tests.integration.secured_zookeeper import USERS, Authority, SecuredZooKeeper

FLIGHTS = ZooKeeperAuth("sasl", "flights", USERS["flights"], acl="creator", readers=("sasl:spark",))
SPARK = ZooKeeperAuth("sasl", "spark", USERS["spark"])
KEY_PASSWORD = "reed-5520"
STORE_PASSWORD = "fern-7316"
ANYBODY = [("world", "anyone", ["ALL"])]


@dataclass(frozen=True)
class World:
    zookeeper: SecuredZooKeeper
    ca: Authority
    stranger: Authority
    client: tuple[str, str]

    @property
    def tls(self) -> MetadataTls:
        return MetadataTls(self.ca.certificate, *self.client, key_password=KEY_PASSWORD)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One ZooKeeper with both ports, whose port for TLS wants a certificate, and a cluster of ``flights`` at /ledgers."""
    directory = tmp_path_factory.mktemp("doors")
    ca, stranger = Authority.made(directory / "ca", "authority"), Authority.made(directory / "stranger", "stranger")
    server = ca.signed("server", ["IP:127.0.0.1"])
    client = ca.signed("client", key_password=KEY_PASSWORD)
    with SecuredZooKeeper(directory / "zookeeper", server=server, client_authority=ca.certificate) as zookeeper:
        with closing(open_store(zookeeper.uri(), auth=FLIGHTS)) as store:
            store.initialize_cluster()
        yield World(zookeeper, ca, stranger, client)


def rights(store: Any, path: str) -> list[tuple[str, str, list[str]]]:
    assert isinstance(store, ZooKeeperStore)
    return [(one.id.scheme, one.id.id, one.acl_list) for one in store._link.client.get_acls(path)[0]]


# who gets in ---------------------------------------------------------------------------------------------------------


def test_sasl_and_its_rights_are_on_all_that_is_created(world: World) -> None:
    """Apache's exception stays one: what makes long ids is open to everybody."""
    mine = [("sasl", "flights", ["ALL"]), ("sasl", "spark", ["READ"])]
    with closing(open_store(world.zookeeper.uri("/rights"), auth=FLIGHTS)) as store:
        store.initialize_cluster()
        store.new_ledger_id()
        store.create_ledger(1, b"x")
        store.create("logs/a", b"")
        store.write_cookie("127.0.0.1:3181", b"", None)
        paths = ["", "/LAYOUT", "/INSTANCEID", "/available/readonly", "/idgen", "/00/0000/L0001", "/00", "/cookies/127.0.0.1:3181"]
        assert {path: rights(store, f"/rights{path}") for path in paths} == dict.fromkeys(paths, mine)
        assert rights(store, "/rights-logs/logs/a") == mine
        with closing(store.register_bookie("127.0.0.1:3181", "127.0.0.1", 3181)):
            assert rights(store, "/rights/available/127.0.0.1:3181") == mine
        store._nodes.ensure("/rights/idgen-long")  # type: ignore[attr-defined]  # a cluster whose ids have left 31 bits
        client = store._link.client  # type: ignore[attr-defined]
        client.delete("/rights/idgen-long")
        assert store._ids._long_id() >> 32 == 1  # type: ignore[attr-defined]
        for path in ("/rights/idgen-long", "/rights/idgen-long/HOB-0000000001"):
            assert rights(store, path) == ANYBODY


def test_a_reader_makes_no_place_for_logs_that_it_would_own(world: World) -> None:
    """A log needs no ledger before it is written, so nothing else keeps a reader from it."""
    uri = world.zookeeper.uri("/kept")
    with closing(open_store(uri, auth=FLIGHTS)) as store:
        store.initialize_cluster()
        assert rights(store, "/kept-logs") == [("sasl", "flights", ["ALL"]), ("sasl", "spark", ["READ"])]
        with bk_core.connect(uri, metadata_auth=SPARK) as reader, pytest.raises(MetadataDeniedError, match="lacks the right CREATE"):
            reader.create_log("theirs", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        assert rights(store, "/kept-logs") == [("sasl", "flights", ["ALL"]), ("sasl", "spark", ["READ"])]


def test_digest_and_a_certificate_are_identities_too(world: World) -> None:
    zookeeper = world.zookeeper
    with closing(open_store(zookeeper.uri("/digest"), auth=ZooKeeperAuth("digest", "ann", "sand-17", acl="creator"))) as store:
        store.initialize_cluster()
        assert [(scheme, right) for scheme, _, right in rights(store, "/digest/LAYOUT")] == [("digest", ["ALL"])]
    with pytest.raises(MetadataDeniedError, match="digest user 'ann'.* lacks the right READ .*wrong password"):
        open_store(zookeeper.uri("/digest"), auth=ZooKeeperAuth("digest", "ann", "other"))
    certificate = ZooKeeperAuth("x509", acl="creator", readers=("world:anyone",))
    with closing(open_store(zookeeper.tls_uri("/x509"), auth=certificate, tls=world.tls)) as store:
        store.initialize_cluster()
        assert rights(store, "/x509/LAYOUT") == [("x509", "CN=client", ["ALL"]), ("world", "anyone", ["READ"])]
    with closing(open_store(zookeeper.uri("/x509"))) as store:
        assert store.cluster_id()


def test_without_rights_everything_is_open_as_ever(world: World) -> None:
    with closing(open_store(world.zookeeper.uri("/open"), auth=SPARK)) as store:
        store.initialize_cluster()
        assert rights(store, "/open/LAYOUT") == ANYBODY


def test_a_chroot_goes_with_rights_and_tls(world: World) -> None:
    uri = f"{world.zookeeper.tls_uri()}?chroot=/below"
    with closing(open_store(uri, auth=FLIGHTS, tls=world.tls)) as store:
        store.initialize_cluster()
        certificate = ("x509", "CN=client", ["ALL"])  # who shows one is both
        assert rights(store, "/below/ledgers/LAYOUT") == [certificate, ("sasl", "flights", ["ALL"]), ("sasl", "spark", ["READ"])]
    with pytest.raises(MetadataDeniedError, match="/below/ledgers/LAYOUT"):
        open_store(f"{world.zookeeper.uri()}?chroot=/below")


def test_one_server_of_several_is_down(world: World) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        uri = world.zookeeper.tls_uri().replace("://", f"://127.0.0.1:{nobody.getsockname()[1]};")
        for _ in range(3):  # kazoo begins with either
            with closing(open_store(uri, auth=SPARK, tls=world.tls)) as store:
                assert store.cluster_id()


def test_what_is_decrypted_already_is_not_waited_for(world: World) -> None:
    """The system knows nothing of it, so waiting would last until the server says something else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*world.ca.signed("both", ["IP:127.0.0.1"]))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.sendall(b"onetwo")  # one record
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        tls = MetadataTls(world.ca.certificate)
        with secured.connect(tls, listener.getsockname(), "127.0.0.1", 60.0) as connection:
            assert connection.recv(3) == b"one"
            handler = _Handler(tls, lambda: None)
            assert handler.select([connection], [], [], 5.0)[0] == [connection] and select.select([connection], [], [], 0)[0] == []
            connection.sendall(b".")
        server.join(60.0)


def test_many_answers_over_tls_are_all_read(world: World) -> None:
    with closing(open_store(world.zookeeper.tls_uri("/many"), auth=FLIGHTS, tls=world.tls)) as store:
        store.initialize_cluster()
        for ledger_id in range(60):
            store.create_ledger(ledger_id, bytes([ledger_id]))
        for _ in range(20):
            found = {ledger_id: stored.data for ledger_id, stored in store.read_ledgers(range(60)) if stored is not None}
            assert found == {ledger_id: bytes([ledger_id]) for ledger_id in range(60)}


def test_key_stores_of_pkcs12_open_the_door_and_are_read_again(world: World, tmp_path: Path) -> None:
    """The client's certificate as ``openssl`` stores it, the authority's as Java's ``keytool`` does, in the URI and beside it."""
    store, password = tmp_path / "client.p12", tmp_path / "password"
    right = Path(world.ca.key_store(world.client, "client.p12", STORE_PASSWORD, key_password=KEY_PASSWORD))
    trust = world.ca.trust_store("trust.p12", STORE_PASSWORD)
    password.write_text(f"{STORE_PASSWORD}\n")
    store.write_bytes(right.read_bytes())
    stores = f"key_store_file={store}&trust_store_file={trust}"
    options = f"{stores}&key_store_password_file={password}&trust_store_password_file={password}&user=flights&password_file={tmp_path}/u"
    (tmp_path / "u").write_text(USERS["flights"])
    with closing(open_store(f"{world.zookeeper.tls_uri('/stored')}?{options}")) as opened:
        opened.initialize_cluster()
    secret = SecretFile(str(password))
    tls = MetadataTls(key_store=str(store), key_store_password=secret, trust_store=trust, trust_store_password=secret)
    with closing(open_store(world.zookeeper.tls_uri("/stored"), tls=tls, auth=FLIGHTS)) as opened:
        opened.create_ledger(7, b"x")
    stranger = world.stranger.key_store(world.stranger.signed("c"), "c.p12", STORE_PASSWORD)
    store.write_bytes(Path(stranger).read_bytes())
    with pytest.raises(MetadataTlsError, match="may want a client certificate"):
        open_store(world.zookeeper.tls_uri("/stored"), tls=tls, auth=FLIGHTS)
    password.write_text("wrong-8731\n")
    with pytest.raises(KeyStoreError, match="trust_store of MetadataTls, .*: the password is wrong") as told:
        open_store(world.zookeeper.tls_uri("/stored"), tls=tls, auth=FLIGHTS)
    assert "8731" not in str(told.value)


def test_a_uri_names_files_and_opens_every_door(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark, `bk`, checkpoints and file stores take nothing but a URI."""
    password, key_password = tmp_path / "password", tmp_path / "key-password"
    password.write_text(f"{USERS['flights']}\n")
    key_password.write_text(KEY_PASSWORD)
    certificate, key = world.client
    tls = f"ca_file={world.ca.certificate}&cert_file={certificate}&key_file={key}&key_password_file={key_password}"
    who = f"user=flights&password_file={password}&acl=creator&readers=sasl:spark,world:anyone"
    with closing(open_store(f"{world.zookeeper.tls_uri('/named')}?{tls}&{who}")) as store:
        store.initialize_cluster()
        found = rights(store, "/named/LAYOUT")
        assert ("sasl", "flights", ["ALL"]) in found and found[-2:] == [("sasl", "spark", ["READ"]), ("world", "anyone", ["READ"])]
    assert run(["cluster", "info", "--uri", f"{world.zookeeper.uri()}?user=flights&password_file={password}"]) == 0
    monkeypatch.setenv("BK_ZOOKEEPER_PASSWORD", USERS["spark"])
    assert run(["cluster", "info", "--uri", f"{world.zookeeper.uri()}?user=spark"]) == 0
    with closing(open_store(f"{world.zookeeper.tls_uri('/named', 'localhost')}?{tls}&verify_host=false&auth=x509")) as store:
        assert not store.cluster_has_changed


# who may only read ---------------------------------------------------------------------------------------------------


def test_who_may_only_read_reads_ledgers_and_is_told_what_lacks_for_more(world: World, tmp_path: Path) -> None:
    uri = world.zookeeper.uri()
    with closing(open_store(uri, auth=FLIGHTS)) as store:
        bookie = EmbeddedBookie(tmp_path / "bookie", store=store).start()
        try:
            how = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
            with bk_core.connect(uri, metadata_auth=FLIGHTS) as writer, bk_core.connect(uri, metadata_auth=SPARK) as reader:
                with writer.create_ledger(**how) as ledger:
                    ledger.append(b"one")
                with writer.create_log("flights", **how).writer() as log:
                    log.append(b"two")
                with reader.open_ledger(ledger.ledger_id) as opened:
                    assert [bytes(one) for one in opened.read(0, 0)] == [b"one"]
                assert [bytes(one) for run in reader.log("flights").reader() for one in run.payloads()] == [b"two"]
                for refused, right in (
                    (lambda: reader.create_ledger(**how), "CREATE on the parent of /ledgers/idgen/ID-"),
                    (lambda: reader.delete_ledger(ledger.ledger_id), f"DELETE on the parent of /ledgers/00/0000/L{ledger.ledger_id:04d}"),
                    (lambda: reader.create_log("ships", **how), "CREATE on"),
                ):
                    with pytest.raises(MetadataDeniedError, match=f"sasl user 'spark'.* lacks the right {right}"):
                        refused()
        finally:
            bookie.close()


# who is refused ------------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_at_once_and_never_shown(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("bk_core.metadata.kazoo").setLevel(1)
    try:
        for user in ("flights", "nobody"):
            begun = time.monotonic()
            with pytest.raises(MetadataAuthError) as refused:
                bk_core.connect(world.zookeeper.uri(), metadata_auth=ZooKeeperAuth("sasl", user, "wrong-8731"), metadata_timeout_s=60)
            assert time.monotonic() - begun < 30
            assert f"sasl user '{user}'" in str(refused.value) and refused.value.code == "BK-METADATA-AUTH"
            assert "wrong-8731" not in str(refused.value)
        with closing(open_store(world.zookeeper.uri("/shown"), auth=ZooKeeperAuth("digest", "ann", "sand-8731"))) as store:
            store.initialize_cluster()
            store.create_ledger(5, b"password: ledger-8731")
            store.read_ledger(5)
    finally:
        logging.getLogger("bk_core.metadata.kazoo").setLevel(logging.NOTSET)
    assert "Sending request(xid=1): Create /shown" in caplog.text or "Create /shown/00/0000/L0005" in caplog.text
    assert "8731" not in caplog.text


def test_one_that_was_taken_before_and_is_not_any_more_ends_its_calls(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A secret in a file that changes with the server's goes on; one that does not change is refused once, without another attempt."""
    secret = tmp_path / "secret"
    secret.write_text("first-1\n")
    zookeeper = SecuredZooKeeper(tmp_path / "zookeeper")
    zookeeper.users = {"flights": "first-1"}
    zookeeper.write_users()
    with zookeeper:
        uri = f"{zookeeper.uri()}?session_timeout_ms=60000"
        by_file = open_store(uri, auth=ZooKeeperAuth("sasl", "flights", SecretFile(str(secret))), timeout_s=60.0)
        by_text = open_store(uri, auth=ZooKeeperAuth("sasl", "flights", "first-1"), timeout_s=60.0)
        with closing(by_file), closing(by_text):
            by_file.initialize_cluster()
            zookeeper.process.kill()
            zookeeper.users = {"flights": "second-2"}
            zookeeper.write_users()
            secret.write_text("second-2\n")
            zookeeper.process.start()
            assert by_file.cluster_id()
            for _ in range(2):
                with pytest.raises(MetadataAuthError, match="sasl user 'flights'"):
                    by_text.cluster_id()
            secret.write_text("third-3\n")  # the file is early, and then the server follows
            zookeeper.process.kill()
            zookeeper.process.start()
            with pytest.raises(MetadataAuthError):
                by_file.cluster_id()
            secret.write_text("second-2\n")
            assert by_file.cluster_id()
            until(lambda: any("does not take this client" in record.getMessage() for record in caplog.records), "nobody was told")


def test_servers_that_are_set_right_take_who_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is the same all the time; a server that was started with a wrong file of users was at fault."""
    monkeypatch.setattr(link, "_REFUSED_AGAIN_S", 1.0)
    zookeeper = SecuredZooKeeper(tmp_path / "zookeeper")
    with zookeeper, closing(open_store(zookeeper.uri(), auth=ZooKeeperAuth("sasl", "flights", USERS["flights"]), timeout_s=60.0)) as store:
        store.initialize_cluster()
        for users in ({"flights": "mistyped"}, USERS):
            zookeeper.process.kill()
            zookeeper.users = dict(users)
            zookeeper.write_users()
            zookeeper.process.start()
            if users is not USERS:
                with pytest.raises(MetadataAuthError):
                    store.cluster_id()
        until(lambda: _is_taken(store), "the client was not taken again")


def _is_taken(store: MetadataStore) -> bool:
    try:
        return bool(store.cluster_id())
    except MetadataAuthError:
        return False


def test_one_of_several_servers_that_does_not_know_the_user_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo goes to the next server after a connection that was dropped, and gives up after a refusal."""

    def refused(*_: object) -> None:
        raise kazoo_errors.AuthFailedError("no")

    monkeypatch.setattr(ConnectionHandler, "_authenticate_with_sasl", refused)
    made = link.Link("127.0.0.1:1,127.0.0.1:2", 10.0, lambda _: None, auth=ZooKeeperAuth("sasl", "flights", "x"))
    try:
        for _ in range(2):  # the second time is after a while
            with pytest.raises(kazoo_errors.ConnectionDropped):
                made.client._connection._authenticate_with_sasl("127.0.0.1", 1.0)
            with pytest.raises(kazoo_errors.AuthFailedError):
                made.client._connection._authenticate_with_sasl("127.0.0.1", 1.0)
    finally:
        made.close(1.0)


@pytest.mark.parametrize("how", ["a function that raises", "a file that is no text", "a password of the key that is away"])
def test_a_secret_that_cannot_be_had_at_one_reconnect_is_asked_for_again(world: World, tmp_path: Path, how: str) -> None:
    secret, of_key = tmp_path / "secret", how.startswith("a password of the key")
    right = KEY_PASSWORD if of_key else USERS["spark"]
    secret.write_text(right)

    def given() -> bytes:
        if not secret.exists():
            raise KeyError(right)
        return secret.read_bytes()

    file = SecretFile(str(secret))
    uri, auth, tls = world.zookeeper.uri(), ZooKeeperAuth("sasl", "spark", given if how.startswith("a function") else file), None
    if of_key:
        uri, auth, tls = world.zookeeper.tls_uri(), SPARK, MetadataTls(world.ca.certificate, *world.client, key_password=file)
    with closing(open_store(f"{uri}?session_timeout_ms=40000", auth=auth, tls=tls, timeout_s=20.0)) as opened:
        store: Any = opened
        if how.startswith("a file"):
            secret.write_bytes(b"m\xf6ss")
        else:
            secret.unlink()
        tries, connect = [0], _Handler.create_connection

        def counted(*args: Any, **options: Any) -> Any:
            tries[0] += 1
            return connect(*args, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_Handler, "create_connection", counted)
            store._link.client._connection._socket.shutdown(socket.SHUT_RDWR)
            until(lambda: tries[0] >= 2, "there was one attempt, or none")
        assert not store.is_connected()
        secret.write_text(right)
        assert store.cluster_id() and store.instance_id()


def test_a_server_that_takes_only_sasl_says_so(tmp_path: Path) -> None:
    with SecuredZooKeeper(tmp_path / "zookeeper", settings={"sessionRequireClientSASLAuth": "true"}) as zookeeper:
        with pytest.raises(MetadataAuthError, match="takes no client that does not authenticate"):
            open_store(zookeeper.uri())
        with closing(open_store(zookeeper.uri(), auth=SPARK)) as store:
            assert store.initialize_cluster()


def test_a_server_without_sasl_is_asked_no_more(tmp_path: Path) -> None:
    """It answers each token with an empty one. The exchange ends, and the error names what the server may lack."""
    began = time.monotonic()
    with ZooKeeperProcess(tmp_path / "zookeeper") as process, pytest.raises(MetadataAuthError, match="or it offers no such authentication"):
        open_store(f"zk://{process.connect_string}/ledgers", auth=SPARK, timeout_s=600.0)
    assert time.monotonic() - began < 120


TLS_PROBLEMS: list[tuple[str, Callable[[World], tuple[str, MetadataTls | None]], type[Exception], str]] = [
    ("wrong authority", lambda w: (w.zookeeper.tls_uri(), MetadataTls(w.stranger.certificate)), MetadataTlsError, "is not trusted"),
    ("the system's authorities", lambda w: (w.zookeeper.tls_uri(), None), MetadataTlsError, "is not trusted"),
    ("another host", lambda w: (w.zookeeper.tls_uri(host="localhost"), w.tls), MetadataHostNameError, "is for another host"),
    ("no certificate", lambda w: (w.zookeeper.tls_uri(), MetadataTls(w.ca.certificate)), MetadataTlsError, "may want a client certificate"),
    (
        "a stranger's certificate",
        lambda w: (w.zookeeper.tls_uri(), MetadataTls(w.ca.certificate, *w.stranger.signed("client"))),
        MetadataTlsError,
        "may want a client certificate",
    ),
    ("no TLS there", lambda w: (w.zookeeper.uri().replace("zk:", "zk+tls:"), w.tls), MetadataTlsError, "does not speak TLS"),
    ("TLS there", lambda w: (w.zookeeper.tls_uri().replace("+tls", ""), None), MetadataTlsError, "speaks TLS only"),
]


@pytest.mark.parametrize(
    ("make", "kind", "text", "patient"),
    [
        pytest.param(*problem, patient, id=f"{name}-{patient}")
        for name, *problem in TLS_PROBLEMS
        for patient in (False, True)
        if not (patient and name == "TLS there")  # without TLS, who waits for a store that starts waits the whole time
    ],
)
def test_tls_that_cannot_be_agreed_on_is_told_at_once(
    world: World, make: Callable[[World], tuple[str, MetadataTls | None]], kind: type[Exception], text: str, patient: bool
) -> None:
    uri, tls = make(world)
    with pytest.raises(MetadataUnavailableError, match=text) as told:
        open_store(uri, tls=tls, timeout_s=600.0, patient=patient)  # the test's own time would be over long before
    assert type(told.value) is kind and not told.value.retriable


def test_a_host_may_go_unchecked_but_not_its_authority(world: World) -> None:
    certificate, key = world.client
    how = {"cert": certificate, "key": key, "key_password": KEY_PASSWORD, "verify_host": False}
    with closing(open_store(world.zookeeper.tls_uri(host="localhost"), tls=MetadataTls(world.ca.certificate, **how), auth=SPARK)) as store:
        assert store.cluster_id()
    with pytest.raises(MetadataTlsError, match="is not trusted"):
        open_store(world.zookeeper.tls_uri(host="localhost"), tls=MetadataTls(world.stranger.certificate, **how), auth=SPARK)


def test_new_certificates_need_no_new_client(world: World, tmp_path: Path) -> None:
    """The files are read at each connection: here that of the authority, which the server leaves for another."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(world.ca.certificate).read_text())
    old, new = world.ca.signed("old", ["IP:127.0.0.1"]), world.stranger.signed("new", ["IP:127.0.0.1"])
    with SecuredZooKeeper(tmp_path / "zookeeper", server=old) as zookeeper:
        uri = zookeeper.tls_uri() + "?session_timeout_ms=60000"
        with closing(open_store(uri, tls=MetadataTls(str(trusted)), timeout_s=60.0)) as store:
            store.initialize_cluster()
            zookeeper.process.kill()
            (zookeeper.directory / "server.pem").write_text(Path(new[1]).read_text() + Path(new[0]).read_text())
            trusted.write_text(Path(world.stranger.certificate).read_text())
            zookeeper.process.start()
            assert store.cluster_id()


def test_too_many_clients_are_told_so_by_tls_too(world: World, tmp_path: Path) -> None:
    server = world.ca.signed("limited", ["IP:127.0.0.1"])
    with SecuredZooKeeper(tmp_path / "zookeeper", server=server, settings={"maxClientCnxns": "2"}) as zookeeper:
        tls = MetadataTls(world.ca.certificate)
        with closing(open_store(zookeeper.tls_uri(), tls=tls)), closing(open_store(zookeeper.tls_uri(), tls=tls)):
            with pytest.raises(MetadataUnavailableError, match="maxClientCnxns"):
                open_store(zookeeper.tls_uri(), tls=tls, timeout_s=1.5)


# what is wrong before anything is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ZooKeeperAuth("plain", "ann", "x"), "scheme must be one of digest, sasl, kerberos, x509"),  # type: ignore[arg-type]
        (lambda: ZooKeeperAuth("sasl", "ann"), "needs user and password"),
        (lambda: ZooKeeperAuth("digest", "a:b", "x"), "must have no colon"),
        (lambda: ZooKeeperAuth("x509", "ann"), "takes neither user nor password"),
        (lambda: ZooKeeperAuth("sasl", "ann", 5), "password must be text, bytes or a function"),  # type: ignore[arg-type]
        (lambda: ZooKeeperAuth("sasl", "ann", "x", readers=("world:anyone",)), "means nothing without acl='creator'"),
        (lambda: ZooKeeperAuth("sasl", "ann", "x", acl="creator", readers=("spark",)), "is not scheme:id"),
        (lambda: MetadataTls(key="/k"), "mean nothing without cert"),
        (lambda: open_store("zk://h/l", tls=MetadataTls()), "write zk\\+tls://"),
        (lambda: open_store("zk+tls://h/l", auth=ZooKeeperAuth("x509")), "needs the client certificate"),
        (lambda: open_store("memory://h", auth=ZooKeeperAuth("digest", "a", "b")), "takes neither credentials nor TLS"),
        (lambda: open_store("zk://h/l?user=a&password_file=/x", auth=ZooKeeperAuth("digest", "a", "b")), "not in both"),
        (lambda: open_store("zk://h/l?ca_file=/x"), "write zk\\+tls://"),
        (lambda: open_store("zk+tls://h/l?verify_host=no"), "verify_host must be true or false"),
        (lambda: open_store("zk://h/l?auth=plain&user=a"), "scheme must be one of"),
        (lambda: open_store("zk+tls+tree://h/l"), "no metadata store is known"),
        (lambda: open_store("zk://h/l?user=a&password_file="), "option 'password_file' of the URI has no value"),
        (lambda: open_store("zk://h/l?chrooot"), "has an option without a value that is not known"),
        (lambda: open_store("zk://h/l?chroot=/a&chroot=/b"), "the option 'chroot' twice"),
        (lambda: open_store("zk+tls://h/l", tls=MetadataTls("/a\0b")), "cannot be used: embedded null"),
        (
            lambda: open_store("zk+tls://h/l", tls=MetadataTls("/absent.pem")),
            "ca of MetadataTls, /absent.pem, cannot be used: No such file",
        ),
    ],
)
def test_what_can_never_work_is_told_before_anything_is_asked(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make()


@pytest.mark.parametrize(
    "uri",
    [
        "zk://ann:moss-3310@h:2181/ledgers",
        "zk://h/ledgers?user=ann&password=moss-3310",
        "zk://h?password=moss-3310",
        "zk://h/ledgers/?password=moss-3310",
        "zk://h/ledgers#password=moss-3310",
        "zk://h/ledgers?passwd=moss-3310",
        "ann:moss-3310@h/ledgers",
        "h/ledgers?password=moss-3310",
        "zookeeper://ann:moss-3310@h/ledgers",
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidArgumentError) as told:
        open_store(uri)
    assert "moss" not in str(told.value)
    assert "password_file=PATH" in str(told.value) or uri not in ("zk://ann:moss-3310@h:2181/ledgers", "zk://h/ledgers#password=moss-3310")


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_a_password_that_is_no_text_is_refused_and_not_shown(scheme: Any) -> None:
    with pytest.raises(SecretUnavailableError, match="the password of ZooKeeper is not UTF-8 text") as failed:
        open_store("zk://127.0.0.1:1/ledgers", auth=ZooKeeperAuth(scheme, "ann", b"moss-3310\xff"))
    assert "moss" not in repr(failed.value) + repr(failed.value.__context__ if not failed.value.__suppress_context__ else "")


def test_a_path_that_can_be_none_is_an_error_of_the_project() -> None:
    with pytest.raises(SecretUnavailableError, match=r"the secret file '/a\\x00b' cannot be read"):
        SecretFile("/a\0b")()


def test_secrets_are_in_no_repr_and_files_of_them_in_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    for value in (ZooKeeperAuth("sasl", "ann", "moss-3310"), MetadataTls(cert="c", key_password="moss-3310")):
        assert "moss-3310" not in f"{value!r} {value}"
    auth = ZooKeeperAuth("sasl", "ann", SecretFile(str(file)))
    with pytest.raises(SecretUnavailableError, match="secret file .* cannot be read: No such file"):
        open_store("zk://127.0.0.1:1/ledgers", auth=auth)
    file.write_text("moss-3310\r\n")
    assert SecretFile(str(file))() == b"moss-3310" and b"moss-3310" not in pickle.dumps(auth) and pickle.loads(pickle.dumps(auth)) == auth
    file.write_text("\n")
    with pytest.raises(SecretUnavailableError, match="is empty"):
        SecretFile(str(file))()
    file.write_bytes(bytes(65_537))
    with pytest.raises(SecretUnavailableError, match="is no secret"):
        SecretFile(str(file))()
    monkeypatch.setenv("HELD_SECRET", "moss-3310")
    assert SecretVariable("HELD_SECRET")() == b"moss-3310"
    monkeypatch.delenv("HELD_SECRET")
    with pytest.raises(SecretUnavailableError, match="HELD_SECRET"):
        SecretVariable("HELD_SECRET")()
