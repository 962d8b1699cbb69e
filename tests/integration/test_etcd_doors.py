"""etcd by TLS and with users: who gets in, what is said to the others, and that no secret is shown."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import bk_core
from bk_core.bookie.etcd_process import EtcdProcess
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
from bk_core.metadata import EtcdAuth, MetadataTls, open_store
from bk_core.metadata.etcd import link
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.connection import Failure, Pem
from bk_core.metadata.etcd.words import Meaning, meaning_of
from bk_core.secrets import SecretFile
from tests.etcd_control import Control
from tests.integration.patience import until
from tests.integration.secured_zookeeper import Authority

STORE_PASSWORD = "fern-7316"
TOKEN_S = 2
"""The time of a token that nobody uses."""
ROOT, FLIGHTS = ("root", "granite-1"), ("flights", "ink-7041")


@dataclass
class Secured:
    process: EtcdProcess
    authority: Authority
    client: tuple[str, str]

    @property
    def tls(self) -> MetadataTls:
        return MetadataTls(self.authority.certificate, *self.client)

    def stored(self) -> str:
        """Return the path of a key store with the client's certificate."""
        return self.authority.key_store(self.client, "client.p12", STORE_PASSWORD)

    def uri(self, root: str = "/ledgers", host: str = "127.0.0.1") -> str:
        return f"etcd+tls://{host}:{self.process.port}{root}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("etcd-tls")
    authority = Authority.made(directory / "ca", "authority")
    certificate, key = authority.signed("server", ["IP:127.0.0.1"])
    client = authority.signed("client")
    options = ["--cert-file", certificate, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", authority.certificate]
    with EtcdProcess(directory / "etcd", arguments=options, scheme="https") as process:
        world = Secured(process, authority, client)
        with closing(open_store(world.uri(), tls=world.tls)) as store:
            store.initialize_cluster()
        yield world


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd-users"), arguments=["--auth-token-ttl", f"{TOKEN_S}"]) as process:
        Control(process.connect_string).enable_users({"root": (ROOT[1], ""), "flights": (FLIGHTS[1], "/ledgers")})
        with closing(open_store(f"etcd://{process.connect_string}/ledgers", auth=EtcdAuth(*FLIGHTS))) as store:
            store.initialize_cluster()
        yield process


# TLS -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pem", "pkcs12"])
def test_everything_goes_over_tls(secured: Secured, tmp_path: Path, kind: str) -> None:
    options = f"?ca_file={secured.authority.certificate}&cert_file={secured.client[0]}&key_file={secured.client[1]}"
    if kind == "pkcs12":
        (password := tmp_path / "password").write_text(f"{STORE_PASSWORD}\n")
        options = f"?ca_file={secured.authority.certificate}&key_store_file={secured.stored()}&key_store_password_file={password}"
    with closing(open_store(secured.uri() + options)) as store:
        store.create(f"logs/{kind}", b"1")
        made = store.read(f"logs/{kind}").created_ms
        assert made is not None and abs(made - time.time() * 1000) < 60_000  # the servers' clock is asked over TLS, too
        called: list[int] = []
        store.watch(f"logs/{kind}", lambda: called.append(1))
        with closing(store.register_bookie("bk", "127.0.0.1", 1)):
            store.write(f"logs/{kind}", b"2", 0)
            deadline = time.monotonic() + 30
            while not called:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_a_certificate_for_another_host_is_refused_unless_the_host_does_not_matter(secured: Secured) -> None:
    with pytest.raises(MetadataHostNameError, match="the certificate of localhost:.* is for another host"):
        open_store(secured.uri(host="localhost"), tls=secured.tls, timeout_s=5)
    anywhere = MetadataTls(secured.authority.certificate, *secured.client, verify_host=False)
    with closing(open_store(secured.uri(host="localhost"), tls=anywhere)) as store:
        assert store.instance_id() is not None


def test_who_does_not_agree_on_tls_is_told_so(secured: Secured, users: EtcdProcess, tmp_path: Path) -> None:
    stranger = Authority.made(tmp_path, "stranger")
    for uri, tls, told in (
        (secured.uri(), MetadataTls(stranger.certificate, *secured.client), "certificate of .* is not trusted"),
        (secured.uri(), MetadataTls(secured.authority.certificate), "ends the TLS handshake"),
        (secured.uri().replace("+tls", ""), None, r"speaks TLS only: the URI then begins with etcd\+tls://"),
        (f"etcd+tls://{users.connect_string}/ledgers", secured.tls, r"does not speak TLS: it may be the port without it \(etcd://\)"),
    ):
        begun = time.monotonic()
        with pytest.raises(MetadataTlsError, match=told):
            open_store(uri, tls=tls, timeout_s=60, patient=tls is not None)
        assert time.monotonic() - begun < 40


def test_what_cannot_be_used_is_refused_before_anything_is_sent(secured: Secured) -> None:
    with pytest.raises(InvalidArgumentError, match="key_password of MetadataTls cannot be used with etcd"):
        open_store(secured.uri(), tls=MetadataTls(secured.authority.certificate, *secured.client, key_password="x"))
    with pytest.raises(KeyStoreError, match="key_store of MetadataTls, .*client.p12, cannot be used: the password is wrong"):
        open_store(secured.uri(), tls=MetadataTls(secured.authority.certificate, key_store=secured.stored(), key_store_password="x"))
    with pytest.raises(InvalidArgumentError, match="ca of MetadataTls, .*nowhere, cannot be used"):
        open_store(secured.uri(), tls=MetadataTls("/nowhere"))
    with pytest.raises(InvalidArgumentError, match=r"is without TLS, but certificates are given: write etcd\+tls://"):
        open_store("etcd://h/ledgers", tls=secured.tls)


def test_a_key_is_in_no_repr() -> None:
    assert "moss" not in repr(Pem(b"authority", b"moss-3310", b"chain"))


def test_new_certificates_need_no_new_client(secured: Secured, tmp_path: Path) -> None:
    """The files are read at each connection."""
    ca, key, cert = (tmp_path / name for name in ("ca", "key", "cert"))
    ca.write_bytes(Path(secured.authority.certificate).read_bytes())
    cert.write_bytes(Path(secured.client[0]).read_bytes())
    key.write_bytes(Path(secured.client[1]).read_bytes())
    with closing(open_store(secured.uri(), tls=MetadataTls(str(ca), str(cert), str(key)), timeout_s=3)) as store:
        good = cert.read_bytes()
        cert.write_bytes(b"broken")
        store._link.lost(store._link.connection)  # type: ignore[attr-defined]
        with pytest.raises(MetadataUnavailableError):
            store.instance_id()
        cert.write_bytes(good)
        deadline = time.monotonic() + 30
        while not store.is_connected():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert store.instance_id() is not None


# users ---------------------------------------------------------------------------------------------------------------


def test_a_user_gets_in_by_password_file_and_variable(users: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text(FLIGHTS[1] + "\n")
    uri = f"etcd://{users.connect_string}/ledgers"
    for options in (f"?user=flights&password_file={secret}", "?user=flights"):
        with closing(open_store(uri + options)) as store:
            assert store.instance_id() is not None
        monkeypatch.setenv("BK_ETCD_PASSWORD", FLIGHTS[1])
    with closing(bk_core.connect(uri, metadata_auth=EtcdAuth("flights", SecretFile(str(secret))))) as client:
        assert client.store.cluster_id()


def ended_token(store: Any) -> str:
    """Return the token of a connection when etcd takes it no more. A question gives a token its whole time again, so each is asked behind a
    pause that is longer."""
    connection, answers = store._link.connection, SimpleQueue[Any]()
    token: str = connection.token
    deadline = time.monotonic() + 60
    while True:
        time.sleep(TOKEN_S + 1)
        connection.ask("range", pb.RangeRequest(key=b"/ledgers/LAYOUT"), 10, answers.put)
        answer = answers.get(timeout=20)
        if isinstance(answer, Failure):
            assert (answer.code, meaning_of(answer.code, answer.words)) == ("UNAUTHENTICATED", Meaning.TOKEN), answer
            assert connection is store._link.connection and connection.token == token
            return token
        assert time.monotonic() < deadline, "etcd keeps a token for ever"


def test_a_token_that_has_ended_is_made_anew(users: EtcdProcess) -> None:
    with closing(open_store(f"etcd://{users.connect_string}/ledgers", auth=EtcdAuth(*FLIGHTS))) as store:
        assert store.instance_id() is not None
        before = ended_token(store)
        store.create("logs/token", b"")
        store.delete("logs/token")
        assert store._link.connection.token not in ("", before)  # type: ignore[attr-defined]


def test_watches_go_on_after_a_token_has_ended(users: EtcdProcess) -> None:
    """The stream of the watches keeps the token that it began with, and etcd takes no new watch by it any more."""
    with closing(open_store(f"etcd://{users.connect_string}/ledgers", auth=EtcdAuth(*FLIGHTS))) as store:
        store.create("logs/watched", b"0")
        called: list[str] = []
        store.watch("logs/watched", lambda: called.append("before"))
        watching: Any = store._watching  # type: ignore[attr-defined]
        until(lambda: watching._stream is not None and len(watching._stream.by_span) == 1, "the first watch did not begin")
        stream = watching._stream
        ended_token(store)
        store.watch("logs/watched-later", lambda: called.append("after"))
        until(
            lambda: watching._stream not in (None, stream) and len(watching._stream.by_span) == 2,
            "both watches did not come into a stream with another token",
        )
        store.create("logs/watched-later", b"0")
        store.write("logs/watched", b"1", 0)
        until(lambda: set(called) == {"before", "after"}, "a watch was not called")
        store.delete("logs/watched")
        store.delete("logs/watched-later")


def test_who_is_not_taken_is_told_at_once_and_no_password_is_shown(users: EtcdProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    uri = f"etcd://{users.connect_string}/ledgers"
    cases: list[tuple[Any, str]] = [
        (None, r"etcd at .* does not take this client \(which gives no credentials\): it takes no client that does not authenticate"),
        (EtcdAuth("flights", "hunter2"), r"does not take this client \(user 'flights'\): the user or the password is wrong there"),
        (EtcdAuth("nobody", "hunter2"), r"does not take this client \(user 'nobody'\): the user or the password is wrong there"),
    ]
    for auth, told in cases:
        begun = time.monotonic()
        with pytest.raises(MetadataAuthError, match=told) as failure:
            open_store(uri, auth=auth, timeout_s=60, patient=True)
        assert time.monotonic() - begun < 40 and "hunter2" not in str(failure.value)
        assert "hunter2" not in str(pickle.loads(pickle.dumps(failure.value)))
    assert "hunter2" not in caplog.text and "hunter2" not in repr(cases)


def test_a_password_that_is_not_there_is_told_before_anything_is_waited_for(users: EtcdProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BK_ETCD_PASSWORD", raising=False)
    uri = f"etcd://{users.connect_string}/ledgers?user=flights"
    for more, told in (("", "variable BK_ETCD_PASSWORD.* is not set"), ("&password_file=/none", "secret file '/none' cannot be read")):
        with pytest.raises(SecretUnavailableError, match=told):
            open_store(uri + more, timeout_s=600, patient=True)


def test_a_server_without_users_is_no_place_for_a_password(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path) as process:
        with pytest.raises(MetadataAuthError, match="it offers no authentication: leave user and password out"):
            open_store(f"etcd://{process.connect_string}/ledgers", auth=EtcdAuth("a", "b"), timeout_s=5)


def test_what_a_role_does_not_give_is_denied(users: EtcdProcess) -> None:
    with pytest.raises(MetadataDeniedError, match=r"does not let this client do that with /other/LAYOUT.*\(user 'flights'\)"):
        open_store(f"etcd://{users.connect_string}/other", auth=EtcdAuth(*FLIGHTS))


def test_a_new_password_in_the_file_ends_a_refusal(users: EtcdProcess, tmp_path: Path) -> None:
    control = Control(users.connect_string, ["--user", ":".join(ROOT)])
    control.run("user", "add", "ann:old")
    control.run("user", "grant-role", "ann", "flights")
    secret = tmp_path / "secret"
    secret.write_text("old")
    with closing(open_store(f"etcd://{users.connect_string}/ledgers", auth=EtcdAuth("ann", SecretFile(str(secret))), timeout_s=5)) as store:
        control.run("user", "passwd", "ann", "--interactive=false", standard_input=b"new\n")
        store._link.lost(store._link.connection)  # type: ignore[attr-defined]
        with pytest.raises(MetadataAuthError):
            store.instance_id()
        secret.write_text("new")
        assert store.instance_id() is not None


def test_a_user_who_was_away_is_taken_again_with_the_same_password(users: EtcdProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(users.connect_string, ["--user", ":".join(ROOT)])

    def make_user() -> None:
        control.run("user", "add", "bob:same")
        control.run("user", "grant-role", "bob", "flights")

    make_user()
    monkeypatch.setattr(link, "_REFUSED_AGAIN_S", 1.0)
    with closing(open_store(f"etcd://{users.connect_string}/ledgers", auth=EtcdAuth("bob", "same"), timeout_s=5)) as store:
        control.run("user", "delete", "bob")
        store._link.lost(store._link.connection)  # type: ignore[attr-defined]
        with pytest.raises(MetadataAuthError):
            store.instance_id()
        make_user()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert store.instance_id() is not None
                break
            except MetadataAuthError:
                assert time.monotonic() < deadline, "the user was not taken again"


def test_a_function_that_fails_after_a_refusal_is_not_what_callers_hear(users: EtcdProcess) -> None:
    """Its words may hold the secret, and it may be any exception."""
    passwords = [FLIGHTS[1]]

    def given() -> str:
        return passwords[0]  # an IndexError later on

    with closing(open_store(f"etcd://{users.connect_string}/ledgers", auth=EtcdAuth("flights", given), timeout_s=5)) as store:
        passwords[0] = "hunter2"
        store._link.lost(store._link.connection)  # type: ignore[attr-defined]
        with pytest.raises(MetadataAuthError):
            store.instance_id()
        passwords.clear()
        with pytest.raises(MetadataAuthError, match="the user or the password is wrong there"):
            store.instance_id()
        passwords.append(FLIGHTS[1])
        assert store.instance_id() is not None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: EtcdAuth("", "x"), "needs user and password"),
        (lambda: EtcdAuth("a", ""), "needs user and password"),
        (lambda: EtcdAuth("a", 1), "password must be text, bytes or a function"),  # type: ignore[arg-type]
        (lambda: open_store("etcd://h/l?user=a&acl=creator"), "unknown option 'acl'"),
        (lambda: open_store("etcd://h/l?password=hunter2"), "a URI never holds a password"),
        (lambda: open_store("etcd://h/l?user=a&password_file=f", auth=EtcdAuth("a", "b")), "not in both"),
        (lambda: open_store("zk://h/l", auth=EtcdAuth("a", "b")), "identity of the class ZooKeeperAuth, not EtcdAuth"),
        (lambda: bk_core.ClientConfig("etcd://h/l", metadata_auth="a:b"), r"must be ZooKeeperAuth\(...\) or EtcdAuth"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as failure:
        make()
    assert "hunter2" not in str(failure.value)
