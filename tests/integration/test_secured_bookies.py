"""Apache's bookies that ask for TLS and for certificates: all that a client does goes through, and each refusal has its error at once.

``make secure-matrix`` plays this with each release of BookKeeper (BK_TEST_APACHE_VERSION).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls, Security
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import (
    BookieAuthError,
    BookieHostNameError,
    BookieSecurityError,
    BookieTlsError,
    BookieUnavailableError,
    InvalidArgumentError,
    LedgerFencedError,
)
from tests.integration.conftest import APACHE_VERSION
from tests.integration.dead_bookies import revive
from tests.integration.patience import PATIENT, until
from tests.integration.secured_bookies import HERE, secured_cluster, tls_lines
from tests.integration.secured_zookeeper import Authority
from tests.network.detour import Detour

pytestmark = pytest.mark.apache
KEY_PASSWORD = "rain-5520"
QUICK_S = 10.0  # no refusal takes longer, whatever the operation may take
THREE: Any = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
ONE: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


@dataclass
class World:
    """Certificates, and two clusters: one that wants certificates of its clients, one whose own are for another host."""

    ca: Authority
    stranger: Authority
    client: tuple[str, str]
    cluster: LocalCluster
    elsewhere: LocalCluster

    @property
    def tls(self) -> BookieTls:
        return BookieTls(self.ca.certificate, *self.client, key_password=KEY_PASSWORD)

    def connect(self, **settings: Any) -> bk_core.BookKeeper:
        return bk_core.connect(self.cluster.uri, security=Security(self.tls), limits=PATIENT, **settings)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("secured")
    ca, stranger = (Authority.made(directory / name, name) for name in ("ca", "stranger"))
    lines = tls_lines(ca, ca.signed("bookie", HERE), mutual=True)
    away = tls_lines(ca, ca.signed("away", ["DNS:elsewhere.example", "IP:127.0.0.9"]))
    with (
        secured_cluster(directory / "mutual", lines, version=APACHE_VERSION) as cluster,
        secured_cluster(directory / "elsewhere", away, version=APACHE_VERSION, bookies=1) as elsewhere,
    ):
        yield World(ca, stranger, ca.signed("client", key_password=KEY_PASSWORD), cluster, elsewhere)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_all_that_a_client_does_goes_through_tls(world: World, protocol: Any) -> None:
    """Runs, large entries and small ones, reads of all of them, recovery, and a long poll that waits for what is still written."""
    payloads = [bytes([n % 251]) * size for n, size in enumerate([10] * 300 + [100_000] * 40 + [2_000_000] * 3 + [1] * 50)]
    with world.connect(protocol=protocol) as client:
        writer = client.create_ledger(**THREE, password=b"of the ledger")
        writer.append_many(payloads[:200])
        for future in [writer.append_future(one) for one in payloads[200:-1]]:
            future.result(60)
        writer.append(payloads[-1])  # which tells that all before it are confirmed
        with client.open_ledger(writer.ledger_id, password=b"of the ledger") as reader:
            end = reader.read_last_add_confirmed()
            assert reader.read(0, end) == payloads[: end + 1] and end >= len(payloads) - 2
            tail, came = reader.tail(end + 1), threading.Event()
            found: list[bytes] = []

            def follow() -> None:
                for run in tail:
                    found.extend(bytes(one) for one in run.payloads())
                    if b"later" in found:
                        came.set()
                        return

            follower = threading.Thread(target=follow)
            follower.start()
            writer.append(b"later")
            writer.append(b"and last")  # which tells bookies that the one before is confirmed
            assert came.wait(60)
            follower.join(60)
        with client.recover_ledger(writer.ledger_id, password=b"of the ledger") as recovered:
            assert recovered.last_add_confirmed == len(payloads) + 1
            assert recovered.read(len(payloads), len(payloads) + 1) == [b"later", b"and last"]
        with pytest.raises(LedgerFencedError):
            writer.append(b"too late")


def test_a_bookie_that_is_started_again_is_met_by_a_new_handshake(world: World) -> None:
    with world.connect(ensemble_change="delayed") as client, client.create_ledger(**THREE) as writer:
        writer.append_many([b"before"] * 100)
        world.cluster.kill(0)
        writer.append_many([b"meanwhile"] * 100)
        revive(world.cluster, 0)
        writer.append_many([b"after"] * 100)
        writer.close()
        with client.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 299) == [b"before"] * 100 + [b"meanwhile"] * 100 + [b"after"] * 100


REFUSALS: dict[str, tuple[Callable[[World], BookieTls], str]] = {
    "another authority": (lambda w: BookieTls(w.stranger.certificate, *w.client, key_password=KEY_PASSWORD), "that is not trusted"),
    "the system's authorities": (lambda w: BookieTls(), "that is not trusted"),
    "no certificate": (lambda w: BookieTls(w.ca.certificate), "may want a client certificate"),
    "a stranger's certificate": (
        lambda w: BookieTls(w.ca.certificate, *w.stranger.signed("client")),
        "may want a client certificate",
    ),
}


@pytest.mark.parametrize(("name", "protocol"), [*((name, "v3") for name in REFUSALS), ("no certificate", "v2")])
def test_a_client_and_a_bookie_that_do_not_trust_each_other_say_so_at_once(world: World, name: str, protocol: Any) -> None:
    """LINK-10: whatever is asked for, and although an operation may take an hour."""
    make, text = REFUSALS[name]
    with world.connect() as right, right.create_ledger(**THREE) as ledger:
        ledger.append(b"x")
    with bk_core.connect(world.cluster.uri, protocol=protocol, security=Security(make(world)), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieTlsError, text)
        with client.open_ledger(ledger.ledger_id) as reader:
            refused(lambda: reader.read(0, 0), BookieTlsError, text)
            refused(lambda: reader.read(0, 0), BookieTlsError, text)  # in the pause before the next attempt
        with world.connect() as right:
            open_ledger = right.create_ledger(**THREE)
            open_ledger.append(b"x")
            refused(lambda: client.recover_ledger(open_ledger.ledger_id), BookieTlsError, text)
            open_ledger.append(b"nobody has fenced it")


def refused(call: Callable[[], object], kind: type[BookieSecurityError], text: str) -> None:
    began = time.monotonic()
    with pytest.raises(BookieSecurityError, match=text) as told:
        call()
    assert type(told.value) is kind and not told.value.retriable
    assert time.monotonic() - began < QUICK_S


def test_a_certificate_for_another_host_is_an_error_unless_nobody_looks(world: World) -> None:
    tls = BookieTls(world.ca.certificate)
    with bk_core.connect(world.elsewhere.uri, security=Security(tls)) as client:
        refused(lambda: client.create_ledger(**ONE).append(b"x"), BookieHostNameError, "for another host than 127.0.0.1")
    unchecked = Security(BookieTls(world.ca.certificate, verify_host=False, minimum="1.3"))
    with bk_core.connect(world.elsewhere.uri, security=unchecked, limits=PATIENT) as client, client.create_ledger(**ONE) as ledger:
        ledger.append(b"x")
    with bk_core.connect(world.elsewhere.uri, security=Security(BookieTls(world.stranger.certificate, verify_host=False))) as client:
        refused(lambda: client.create_ledger(**ONE).append(b"x"), BookieTlsError, "is not trusted")


def test_bookies_without_tls_are_an_error_and_never_spoken_to_without(world: World, cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, limits=PATIENT) as plain, plain.create_ledger(**THREE) as ledger:
        ledger.append(b"x")
    with bk_core.connect(cluster.uri, security=Security(world.tls), operation_timeout_s=3600) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieTlsError, "does not speak TLS")
        with client.open_ledger(ledger.ledger_id) as reader:
            refused(lambda: reader.read(0, 0), BookieTlsError, "does not speak TLS")


def test_a_client_goes_on_once_its_files_are_right(world: World, tmp_path: Path) -> None:
    """LINK-10: they are read at each connection, and a refusal is no end of trying."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(world.stranger.certificate).read_text())
    tls = BookieTls(str(trusted), *world.client, key_password=KEY_PASSWORD)
    with bk_core.connect(world.cluster.uri, security=Security(tls), quarantine_s=0, limits=PATIENT) as client:
        refused(lambda: client.create_ledger(**THREE).append(b"x"), BookieTlsError, "is not trusted")
        trusted.unlink()
        time_is_over = time.monotonic() + 60
        while True:  # until a later attempt has seen the absent file
            with pytest.raises(BookieSecurityError) as told:
                client.create_ledger(**THREE).append(b"x")
            if "No such file" in str(told.value):
                break
            assert time.monotonic() < time_is_over
        trusted.write_text(Path(world.ca.certificate).read_text())
        while True:
            try:
                with client.create_ledger(**THREE) as ledger:
                    ledger.append(b"x")
                break
            except BookieSecurityError:
                assert time.monotonic() < time_is_over
        assert [one for one in (client.unanswering(0.0))] == []


def test_a_writer_of_a_log_outlives_a_refusal_that_passes(world: World, tmp_path: Path) -> None:
    """LINK-10: a writer that bookies have admitted waits while certificates are changed, and loses nothing."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(world.ca.certificate).read_text())
    tls = BookieTls(str(trusted), *world.client, key_password=KEY_PASSWORD)
    with Detour(world.cluster) as detour, detour.connect(security=Security(tls), quarantine_s=0, limits=PATIENT) as client:
        log = client.create_log("outlives", entry_format="raw", **THREE)
        with log.writer() as writer:
            writer.append(b"before")
            trusted.write_text(Path(world.stranger.certificate).read_text())
            detour.cut()  # each bookie is met by a new handshake
            waiting = writer.append_future(b"meanwhile")
            until(lambda: isinstance(writer.problem, BookieSecurityError), "nothing is refused")
            assert not waiting.done()
            trusted.write_text(Path(world.ca.certificate).read_text())
            waiting.result(60)
        assert [bytes(one) for run in log.reader() for one in run.payloads()] == [b"before", b"meanwhile"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Security(), "says nothing"),
        (lambda: Security("ca.pem"), "Security.tls|tls must be"),  # type: ignore[arg-type]
        (lambda: BookieTls(key="/k"), "mean nothing without cert"),
        (lambda: BookieTls(minimum="1.1"), "minimum must be one of 1.2, 1.3"),  # type: ignore[arg-type]
        (lambda: BookieTls(verify_host="no"), "verify_host must be True or False"),  # type: ignore[arg-type]
        (lambda: bk_core.connect("memory://x", security=Security(BookieTls("/absent.pem"))), "ca of BookieTls, /absent.pem"),
        (lambda: bk_core.connect("memory://x", security=Security(BookieTls("/a\0b"))), "cannot be used: embedded null"),
    ],
)
def test_what_can_never_work_is_told_before_anything_is_asked(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make()


def test_a_password_of_a_key_is_in_no_repr() -> None:
    assert "moss-3310" not in repr(Security(BookieTls(cert="c", key_password="moss-3310")))
    assert BookieAuthError.outcome_unknown  # entries may be on those bookies that did admit this client
