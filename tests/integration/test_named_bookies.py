"""Apache's bookies that are registered by name, with TLS, as the pods of a StatefulSet are: a pod that starts anew has its name, and
another address. Its old address takes what comes, and answers nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls, Security
from bk_core.bookie import apache
from bk_core.errors import BookieHostNameError, BookieUnavailableError
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENCE_S
from tests.integration.secured_bookies import tls_lines
from tests.integration.secured_zookeeper import Authority
from tests.integration.shelves import Lines, NamedShelves, OwnLines
from tests.integration.test_moving_bookies import ONE, SOON_S, TWO, Work, made_on

pytestmark = pytest.mark.apache
NAMES = ("DNS:shelf-0.shelves.example", "DNS:shelf-1.shelves.example")


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    return Authority.made(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture
def pods(ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedShelves]:
    real, addresses = socket.getaddrinfo, dict[str, str]()

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        return real(addresses.get(host, host), *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    lines = tls_lines(ca, ca.signed("pods", NAMES))
    with NamedShelves(tmp_path / "cluster", 2, addresses, lines=lines) as cluster:
        yield cluster


def test_a_pod_is_found_by_its_name(pods: NamedShelves, ca: Authority) -> None:
    """And its certificate is for its name, so that it holds at each address."""
    security, moved = Security(BookieTls(ca.certificate)), pods.bookie_ids[0]
    assert moved == f"{pods.name(0)}:{pods.port(0)}"
    with bk_core.connect(pods.uri, security=security, ensemble_change="delayed") as client:
        writer = made_on(client, moved, {**TWO, "ack_quorum_size": 1})
        with made_on(client, moved, ONE) as lonely:
            lonely.append_many([b"x"] * 10)
        left = made_on(client, moved, ONE)
        left.append_many([b"left"] * 10)
        reader = client.open_ledger(lonely.ledger_id)
        tail = iter(client.open_ledger(writer.ledger_id).tail(0))
        works = [Work("a writer", lambda: writer.append(b"x")), Work("a tail", lambda: next(tail))]
        reading = Work("a reader", lambda: reader.read(0, 9))
        try:
            for work in (*works, reading):
                work.goes_on()
            pods.vanish(0)
            recovered: list[bk_core.ReadHandle] = []
            recovery = threading.Thread(target=lambda: recovered.append(client.recover_ledger(left.ledger_id)))
            recovery.start()
            for work in works:
                work.goes_on()
            pods.come_back(0)
            took_s = {work.name: work.goes_on(SOON_S) for work in (*works, reading)}
            recovery.join(PATIENCE_S)
            print({**took_s, **{f"{work.name}, longest": work.longest_s for work in (*works, reading)}})
            assert [one.last_add_confirmed for one in recovered] == [9]
        finally:
            for work in (*works, reading):
                work.end()
        links = [link for link in client._session._links.values() if link.bookie == moved and link._connected]
        assert {link._target[3] for link in links if link._target} == {(pods.host(0), pods.port(0))}


def test_a_certificate_is_for_the_host_that_is_registered_whatever_the_id(ca: Authority, tmp_path: Path) -> None:
    """An id is no name: a bookie that is registered with an address needs that address in its certificate."""
    lines = tls_lines(ca, ca.signed("by-id", ["DNS:shelf-0", "DNS:shelf-1", "IP:127.0.0.1"]))

    def of(index: int) -> Lines:
        return {**lines, "bookieId": f"shelf-{index}", "advertisedAddress": f"127.0.0.{index + 1}"}

    tls = BookieTls(ca.certificate)
    with OwnLines(tmp_path / "cluster", 2, of) as cluster, bk_core.connect(cluster.uri, security=Security(tls)) as client:
        with bk_core.connect(cluster.uri, security=Security(BookieTls(ca.certificate, verify_host=False))) as any_host:
            ledgers = [made_on(any_host, bookie, ONE) for bookie in cluster.bookie_ids]
            for ledger in ledgers:
                ledger.append(b"x")
                ledger.close()
        with client.open_ledger(ledgers[0].ledger_id) as reader:
            assert reader.read(0, 0) == [b"x"]
        with (
            client.open_ledger(ledgers[1].ledger_id) as reader,
            pytest.raises(BookieHostNameError, match=r"another host than 127\.0\.0\.2"),
        ):
            reader.read(0, 0)
