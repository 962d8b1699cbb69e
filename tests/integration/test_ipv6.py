"""Everything on ``::1``: Apache's bookies and embedded ones, ZooKeeper and etcd, TLS with its check of the host, and ``bk``."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls, Security, cli
from bk_core.bookie import apache
from bk_core.bookie.children import free_port
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.etcd_process import EtcdProcess, find_etcd
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import BookieHostNameError, BookieUnavailableError, EtcdProcessError, InvalidArgumentError, MetadataHostNameError
from bk_core.metadata import open_store
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.service_info import decode_service_info
from tests.integration.conftest import APACHE_VERSION
from tests.integration.secured_bookies import tls_lines
from tests.integration.secured_zookeeper import Authority, SecuredZooKeeper
from tests.integration.shelves import Lines, OwnLines

HOST = "::1"
ONE: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


@pytest.fixture(scope="module", autouse=True)
def ipv6() -> None:
    """A machine whose loopback has an address of IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((HOST, 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), settings={"clientPortAddress": HOST}) as process:
        yield process


def play(client: bk_core.BookKeeper) -> None:
    """Write, read, follow and recover a ledger on all bookies."""
    count = len(client.bookies().writable)
    sizes: Any = {"ensemble_size": count, "write_quorum_size": count, "ack_quorum_size": count}
    with client.create_ledger(**sizes) as ledger:
        ledger.append_many([b"x"] * 100)
        with client.open_ledger(ledger.ledger_id) as reader:
            assert next(iter(reader.tail(0))).first_entry_id == 0
    with client.open_ledger(ledger.ledger_id) as reader:
        assert reader.read(0, 99) == [b"x"] * 100
    left = client.create_ledger(**sizes)
    left.append(b"left")
    assert client.recover_ledger(left.ledger_id).read(0, 0) == [b"left"]


def bk(capfd: pytest.CaptureFixture[str], uri: str, *arguments: str) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert cli.run([*arguments, "--uri", uri, "--json"]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_embedded_bookies_and_zookeeper(zookeeper: ZooKeeperProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    uri = f"zk://[{HOST}]:{zookeeper.port}/embedded"
    with ExitStack() as running:
        store = open_store(uri)
        running.callback(store.close)
        store.initialize_cluster()
        bookies = [running.enter_context(EmbeddedBookie(tmp_path / str(n), HOST, 0, store, BookieOptions())) for n in range(2)]
        client = running.enter_context(bk_core.connect(uri))
        assert client.bookies().writable == tuple(sorted(f"{HOST}:{bookie.port}" for bookie in bookies))
        play(client)
        one = bookies[0]
        (shown,) = bk(capfd, uri, "bookie", "show", one.bookie_id)
        assert (shown["state"], shown["probe"]["answer"], shown["probe"]["address"]) == ("writable", "answers", f"[{HOST}]:{one.port}")
        assert bk(capfd, uri, "bookie", "read-only", one.bookie_id, "on")[0]["readOnly"] is True
        assert {found["answer"] for found in bk(capfd, uri, "bookie", "health")} == {"answers"}
        assert bk(capfd, uri, "ledger", "ls", "--bookie", one.bookie_id)
    with pytest.raises(InvalidArgumentError, match=rf"is \[{HOST}\]:{one.port}, not 127"):
        EmbeddedBookie(tmp_path / "0", "127.0.0.1").start()
    with EmbeddedBookie(tmp_path / "0", HOST) as again:
        assert again.bookie_id == one.bookie_id  # which its directory keeps


def test_etcd(tmp_path: Path) -> None:
    try:
        find_etcd()
    except EtcdProcessError as error:
        pytest.skip(str(error))
    pytest.importorskip("grpc")
    port = free_port()
    here = f"http://[{HOST}]:{port}"
    with EtcdProcess(tmp_path / "etcd", port, arguments=["--listen-client-urls", here, "--advertise-client-urls", here]):
        store = open_store(f"etcd://[{HOST}]:{port}/ledgers")
        try:
            store.initialize_cluster()
            with EmbeddedBookie(tmp_path / "bookie", HOST, 0, store), bk_core.connect(f"etcd://[{HOST}]:{port}/ledgers") as client:
                play(client)
                assert store.clock_ms() > 0  # which is asked for by HTTP
        finally:
            store.close()


@pytest.mark.parametrize("kind", ["zk", "etcd"])
def test_the_certificate_of_a_metadata_store_is_for_its_address(kind: str, tmp_path: Path) -> None:
    ca = Authority.made(tmp_path / "ca", "ca")
    for hosts, is_right in (([f"IP:{HOST}"], True), (["IP:127.0.0.1", "DNS:localhost"], False)):
        pair = ca.signed("store", hosts)
        with ExitStack() as running:
            port = running.enter_context(tls_store(kind, tmp_path / str(is_right), pair))
            uri = f"{kind}+tls://[{HOST}]:{port}/ledgers?ca_file={ca.certificate}"
            if is_right:
                store = open_store(uri)
                running.callback(store.close)
                store.initialize_cluster()
                assert store.instance_id()
            else:
                with pytest.raises(MetadataHostNameError):
                    open_store(uri).close()


@contextmanager
def tls_store(kind: str, directory: Path, pair: tuple[str, str]) -> Iterator[int]:
    """A metadata store that speaks TLS on ``::1`` with this certificate; its port."""
    if kind == "zk":
        with SecuredZooKeeper(directory, server=pair, settings={"clientPortAddress": HOST}) as zookeeper:
            yield zookeeper.tls_port
        return
    try:
        find_etcd()
    except EtcdProcessError as error:
        pytest.skip(str(error))
    pytest.importorskip("grpc")
    port, (certificate, key) = free_port(), pair
    here = f"https://[{HOST}]:{port}"
    options = ["--listen-client-urls", here, "--advertise-client-urls", here, "--cert-file", certificate, "--key-file", key]
    with EtcdProcess(directory, port, arguments=options, scheme="https"):
        yield port


def test_a_bookie_of_a_name_with_two_addresses_of_which_one_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-8: IPv6 comes first, as in the answers of most systems, and nobody listens there."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "bookie.example":
            return real(host, port, *arguments, **options)
        return [*real(HOST, port, type=socket.SOCK_STREAM), *real("127.0.0.1", port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    with EmbeddedBookie(tmp_path / "bookie") as bookie, bk_core.connect("memory://two", store=store) as client:
        store.register_bookie("two", "bookie.example", bookie.port)
        play(client)
        assert {link._target[3][0] for link in client._session._links.values() if link._target} == {"127.0.0.1"}


@pytest.mark.apache
def test_apache_bookies_with_tls(zookeeper: ZooKeeperProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Their ids have no brackets, and certificates hold addresses of IPv6, too."""
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    ca = Authority.made(tmp_path / "ca", "ca")
    lines = [tls_lines(ca, ca.signed("here", [f"IP:{HOST}"])), tls_lines(ca, ca.signed("elsewhere", ["IP:127.0.0.1", "DNS:localhost"]))]

    def of(index: int) -> Lines:
        return {**lines[index], "advertisedAddress": HOST, "listeningInterface": None}  # whose first address, ::1%lo, is no bookie id

    uri = f"zk://[{HOST}]:{zookeeper.port}/apache"
    with OwnLines(tmp_path / "cluster", 2, of, zookeeper=uri) as cluster:
        here, elsewhere = cluster.bookie_ids
        assert here == f"{HOST}:{cluster.port(0)}"
        with bk_core.connect(uri) as client:
            registration = client.store.registration(here)
            assert registration is not None
            (endpoint,) = decode_service_info(registration.data).endpoints
            assert (endpoint.host, endpoint.port, endpoint.extensions) == (HOST, cluster.port(0), ("tls",))
            play(client)
            assert {found["answer"] for found in bk(capfd, uri, "bookie", "health")} == {"answers"}
            ledgers = {}
            while len(ledgers) < 2:
                with client.create_ledger(**ONE) as ledger:
                    ledger.append(b"x")
                ledgers[ledger.metadata.fragments[0].ensemble[0]] = ledger.ledger_id
        with bk_core.connect(uri, security=Security(BookieTls(ca.certificate))) as client:
            with client.open_ledger(ledgers[here]) as reader:
                assert reader.read(0, 0) == [b"x"]
            with client.open_ledger(ledgers[elsewhere]) as reader, pytest.raises(BookieHostNameError, match=f"another host than {HOST}"):
                reader.read(0, 0)
