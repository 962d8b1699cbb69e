"""Key stores and trust stores of PKCS#12: what they hold is shown and trusted, each that cannot be used has its words, and no key of them
lies on a disk."""

from __future__ import annotations

import os
import pickle
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls, MetadataTls, SecretFile, Security
from bk_core.errors import BookieTlsError, InvalidArgumentError, KeyStoreError, MissingPackageError
from bk_core.key_stores import certificates_of, key_pair_of
from bk_core.metadata.etcd.certificates import pem_of
from bk_core.net.entering import prepare
from bk_core.tls_files import context_of
from tests.integration.secured_zookeeper import Authority

PASSWORD = "rain-5520"
ROOT = str(Path(__file__).resolve().parents[3])
NOKEYS = ("-nokeys",)


@dataclass
class World:
    ca: Authority
    between: Authority
    """An authority below the first one, which signs the client's certificate."""
    client: tuple[str, str]
    store: str
    trust: str


def stored(path: Path, *arguments: str) -> str:
    """A PKCS#12 file of ``openssl``."""
    command = ["openssl", "pkcs12", "-export", *arguments, "-passout", f"pass:{PASSWORD}", "-out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return str(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp("stores")
    ca = Authority.made(directory / "ca", "ca")
    certificate, key = ca.signed("between", ["DNS:nobody"])
    request = str(directory / "ca" / "between.csr")
    (directory / "ca" / "authority").write_text("basicConstraints=critical,CA:TRUE\n")
    signing = ("-CA", ca.certificate, "-CAkey", str(directory / "ca" / "ca.key"), "-CAcreateserial", "-days", "2")
    subprocess.run(
        ["openssl", "x509", "-req", "-in", request, *signing, "-extfile", str(directory / "ca" / "authority"), "-out", certificate],
        check=True,
        capture_output=True,
        timeout=60,
    )
    between = Authority(directory / "ca", "between")
    client = between.signed("client")
    both = directory / "chain.pem"
    both.write_text(Path(ca.certificate).read_text() + Path(certificate).read_text())  # in the wrong order
    store = stored(directory / "client.p12", "-in", client[0], "-inkey", client[1], "-certfile", str(both))
    trust = stored(directory / "trust.p12", *NOKEYS, "-in", ca.certificate)
    return World(ca, between, client, store, trust)


def tls(world: World, **others: Any) -> BookieTls:
    how = {"key_store": world.store, "key_store_password": PASSWORD, "trust_store": world.trust, "trust_store_password": PASSWORD}
    return BookieTls(**{**how, **others})


def shaken(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> Any:
    """Have the two shake hands in memory, and return the certificate that the server saw."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(a, b, server_hostname=host), server.wrap_bio(b, a, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1].getpeercert()


def server_of(world: World, *, trusted: str | None = None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*world.ca.signed("server", ["IP:127.0.0.1"]))
    made.load_verify_locations(trusted or world.ca.certificate)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


@pytest.mark.parametrize("kind", ["bookies", "metadata"])
def test_what_the_stores_hold_is_shown_and_trusted(world: World, kind: str) -> None:
    """With the certificate between: the server knows the first authority alone."""
    made = tls(world) if kind == "bookies" else MetadataTls(None, None, None, None, True, world.store, PASSWORD, world.trust, PASSWORD)
    assert shaken(made.context(), server_of(world))["subject"] == ((("commonName", "client"),),)
    stranger = Authority.made(world.ca.directory / "stranger", "ca")
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.load_cert_chain(*stranger.signed("server", ["IP:127.0.0.1"]))
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(made.context(), other)


def test_a_store_and_a_file_of_pem_go_together(world: World) -> None:
    assert shaken(tls(world, trust_store=None, trust_store_password=None, ca=world.ca.certificate).context(), server_of(world))
    pem = tls(world, key_store=None, key_store_password=None, cert=world.client[0], key=world.client[1])
    assert shaken(pem.context(), server_of(world, trusted=_both(world)))


def _both(world: World) -> str:
    path = world.ca.directory / "both.pem"
    path.write_text(Path(world.ca.certificate).read_text() + Path(world.between.certificate).read_text())
    return str(path)


def test_the_algorithms_of_old_files_are_read(world: World, tmp_path: Path) -> None:
    """Java before 17 and OpenSSL before 3 wrote them: RC2 of 40 bits, triple DES, SHA-1."""
    old = stored(tmp_path / "old.p12", "-in", world.client[0], "-inkey", world.client[1], "-legacy", "-macalg", "sha1")
    pair = key_pair_of("key_store", old, PASSWORD)
    assert b"PRIVATE KEY" in pair.key and "PRIVATE" not in repr(pair)


def test_etcd_takes_them_without_a_password_and_in_memory(world: World) -> None:
    """grpc takes no encrypted key; the store is opened here."""
    made = MetadataTls(key_store=world.store, key_store_password=PASSWORD, trust_store=world.trust, trust_store_password=PASSWORD)
    pem = pem_of(made, "127.0.0.1", 1, 1.0)
    assert pem.authorities == Path(world.ca.certificate).read_bytes()
    assert pem.key is not None and pem.key.startswith(b"-----BEGIN PRIVATE KEY-----") and "PRIVATE" not in repr(pem)
    assert pem.chain is not None and pem.chain.count(b"BEGIN CERTIFICATE") == 3
    assert pem.chain == b"".join(Path(one).read_bytes().partition(b"-----BEGIN")[2].join((b"-----BEGIN", b"")) for one in _chain(world))


def _chain(world: World) -> tuple[str, str, str]:
    return world.client[0], world.between.certificate, world.ca.certificate


WATCHED = """
import os, sys
from bk_core import BookieTls
BookieTls(key_store=sys.argv[1], key_store_password=sys.argv[2]).context()  # what is imported is compiled, and written, before
written, descriptors = [], set(os.listdir("/proc/self/fd"))
sys.addaudithook(lambda event, args: written.append(args[0]) if event == "open" and args[1] not in ("r", "rb", None) else None)
BookieTls(key_store=sys.argv[1], key_store_password=sys.argv[2]).context()
assert all(isinstance(one, int) for one in written), written
assert set(os.listdir("/proc/self/fd")) == descriptors
print(len(written))
"""


def test_no_file_of_a_disk_has_the_key(world: World, tmp_path: Path) -> None:
    """The key is written to a descriptor without a name, which is closed."""
    command = [sys.executable, "-c", WATCHED, world.store, PASSWORD]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert not list(tmp_path.iterdir())


STORES: dict[str, tuple[Callable[[World, Path], BookieTls], str]] = {
    "a wrong password": (
        lambda w, p: tls(w, key_store_password="moss-3310"),
        "key_store of BookieTls, .*client.p12, cannot be used: the password is wrong, or what it holds was changed",
    ),
    "no password": (lambda w, p: tls(w, key_store_password=None), "client.p12, cannot be used: it has a password, and none is given"),
    "a wrong password of those who are trusted": (
        lambda w, p: tls(w, trust_store_password="moss-3310"),
        "trust_store of BookieTls, .*trust.p12, cannot be used: the password is wrong",
    ),
    "no key": (lambda w, p: tls(w, key_store=w.trust), "trust.p12, cannot be used: it holds no private key"),
    "no certificate": (
        lambda w, p: tls(w, trust_store=stored(p / "k.p12", "-nocerts", "-inkey", w.client[1])),
        "k.p12, cannot be used: it holds no certificate that could be trusted",
    ),
    "a key without its certificate": (
        lambda w, p: tls(w, key_store=stored(p / "k.p12", "-nocerts", "-inkey", w.client[1])),
        "k.p12, cannot be used: it holds a private key and no certificate of it",
    ),
    "cut off": (lambda w, p: tls(w, key_store=cut(w.store, p, -100)), "it is damaged: [0-9]+ bytes of [0-9]+ are there"),
    "changed": (lambda w, p: tls(w, key_store=bent(w.store, p)), "the password is wrong, or what it holds was changed"),
    "of another kind": (
        lambda w, p: tls(w, key_store=written(p, b"\xfe\xed\xfe\xed\0\0\0\2")),
        "Java's own kind .JKS., not PKCS#12: keytool",
    ),
    "PEM": (lambda w, p: tls(w, trust_store=w.ca.certificate), "it is PEM, not PKCS#12: name it as `ca`"),
    "empty": (lambda w, p: tls(w, key_store=written(p, b"")), "it is no PKCS#12 file"),
    "another DER": (lambda w, p: tls(w, key_store=written(p, b"\x30\x03\x02\x01\x05")), "it is no PKCS#12 file"),
    "a length without its bytes": (lambda w, p: tls(w, key_store=written(p, b"\x30\x84\xff")), "it is damaged"),
    "absent": (lambda w, p: tls(w, key_store="/absent.p12"), "'/absent.p12', cannot be used: No such file"),
    "a path that is none": (lambda w, p: tls(w, key_store="/a\0b"), "cannot be used: embedded null"),
}


def cut(path: str, directory: Path, end: int) -> str:
    return written(directory, Path(path).read_bytes()[:end])


def bent(path: str, directory: Path) -> str:
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    return written(directory, bytes(data))


def written(directory: Path, data: bytes) -> str:
    (directory / "made.p12").write_bytes(data)
    return str(directory / "made.p12")


@pytest.mark.parametrize("name", STORES)
def test_each_store_that_cannot_be_used_has_its_words_before_anything_is_asked(world: World, tmp_path: Path, name: str) -> None:
    make, text = STORES[name]
    made = make(world, tmp_path)
    with pytest.raises(KeyStoreError, match=text) as told:
        bk_core.connect("memory://x", security=Security(made))
    assert "moss" not in str(told.value) and isinstance(told.value, InvalidArgumentError)
    with pytest.raises(BookieTlsError, match=text):
        prepare(Security(made), "b", "127.0.0.1")


def test_a_store_and_its_password_are_read_again_at_each_connection(world: World, tmp_path: Path) -> None:
    store, password = tmp_path / "me.p12", tmp_path / "password"
    store.write_bytes(Path(world.store).read_bytes())
    password.write_text(f"{PASSWORD}\n")
    made = tls(world, key_store=str(store), key_store_password=SecretFile(str(password)))
    assert shaken(made.context(), server_of(world))
    password.write_text("moss-3310\n")
    with pytest.raises(KeyStoreError):
        made.context()
    subject = world.ca.signed("new")
    world.ca.key_store(subject, "new.p12", "moss-3310")
    store.write_bytes((world.ca.directory / "new.p12").read_bytes())
    assert shaken(made.context(), server_of(world))["subject"] == ((("commonName", "new"),),)


@pytest.mark.parametrize("cls", [BookieTls, MetadataTls])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key_store": "/k", "cert": "/c"}, "cert is a file of PEM and key_store one of PKCS#12"),
        ({"trust_store": "/k", "ca": "/c"}, "ca is a file of PEM and trust_store one of PKCS#12"),
        ({"key_store_password": "x"}, "key_store_password means nothing without key_store"),
        ({"trust_store_password": "x"}, "trust_store_password means nothing without trust_store"),
        ({"key_store": 5}, "key_store must be a path as text"),
        ({"key_store": "/k", "key_store_password": 5}, "key_store_password must be text, bytes or a function"),
        ({"key_store": "/k", "key_password": "x"}, "key and key_password mean nothing without cert"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(cls: Any, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        cls(**fields)


def test_passwords_are_in_no_repr_and_files_of_them_in_no_pickle(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("moss-3310")
    for made in (
        BookieTls(key_store="/k", key_store_password="moss-3310"),
        MetadataTls(trust_store="/k", trust_store_password="moss-3310"),
    ):
        assert "moss" not in repr(made)
    security = Security(BookieTls(key_store="/k", key_store_password=SecretFile(str(file))))
    assert b"moss" not in pickle.dumps(security) and pickle.loads(pickle.dumps(security)) == security


def test_without_the_package_it_is_said_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingPackageError, match=r"PKCS#12 needs the package cryptography, .* pip install 'bk-spark\[pkcs12\]'"):
        certificates_of("trust_store", world.trust, PASSWORD)


def trusting(world: World, directory: Path, kind: str, certificate: str) -> dict[str, str]:
    """One certificate as the only one that is trusted."""
    if kind == "ca":
        return {"ca": certificate}
    store = stored(directory / f"{Path(certificate).stem}-alone.p12", *NOKEYS, "-in", certificate)
    return {"trust_store": store, "trust_store_password": PASSWORD}


@pytest.mark.parametrize("kind", ["ca", "trust_store"])
@pytest.mark.parametrize("of", [BookieTls, MetadataTls])
def test_each_certificate_is_trusted_though_it_has_not_signed_itself(world: World, kind: str, of: Any, tmp_path: Path) -> None:
    """As in Java, where each certificate of a trust store is an anchor. One that is no authority vouches for nothing but itself."""
    below = world.between.signed(f"below-{tmp_path.name}", ["IP:127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*below)
    for trusted in (world.between.certificate, below[0]):
        shaken(of(**trusting(world, tmp_path, kind, trusted)).context(), server)
    other = world.between.signed(f"other-{tmp_path.name}", ["IP:127.0.0.1"])
    for nobody in (other[0], world.client[0]):
        with pytest.raises(ssl.SSLCertVerificationError):
            shaken(of(**trusting(world, tmp_path, kind, nobody)).context(), server)


def test_a_certificate_that_is_no_authority_vouches_for_none_below_it(world: World, tmp_path: Path) -> None:
    leaf = world.between.signed(f"leaf-{tmp_path.name}", ["IP:127.0.0.1"])
    forged = Authority(world.between.directory, Path(leaf[0]).stem).signed(f"forged-{tmp_path.name}", ["IP:127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*forged)
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        shaken(BookieTls(leaf[0]).context(), server)


@pytest.mark.parametrize("kind", ["ca", "trust_store"])
def test_a_server_with_authorities_asks_for_a_certificate(world: World, kind: str, tmp_path: Path) -> None:
    certificate, key = world.ca.signed(f"asking-{tmp_path.name}", ["IP:127.0.0.1"])
    trusted: Any = trusting(world, tmp_path, kind, world.ca.certificate)
    server = context_of("test", cert=certificate, key=key, key_password=None, verify_host=False, server=True, **{"ca": None, **trusted})
    assert server.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ssl.SSLError):
        shaken(BookieTls(world.ca.certificate).context(), server)
