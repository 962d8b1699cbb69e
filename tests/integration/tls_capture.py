"""All bytes between a client and its bookies, as tcpdump sees them: with TLS, none of a ledger's is among them in clear.

``make tls-capture`` runs it. It needs tcpdump and the right to listen on the loopback device, so neither `make test` nor the gate does.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls, Security
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from tests.integration.conftest import APACHE_VERSION
from tests.integration.patience import PATIENT
from tests.integration.secured_bookies import HERE, secured_cluster, tls_lines
from tests.integration.secured_zookeeper import Authority

PATTERN = b"barnacle-7731-heron;"
PASSWORD = b"sorrel-9042"
PAYLOADS = [PATTERN * 50] * 2000
# ``master key`` is what the protocol sends for the ledger's password with every add.
SECRETS = {"payload": PATTERN, "password": PASSWORD, "master key": hashlib.sha1(b"ledger" + PASSWORD).digest()}


class Capture:
    """The bytes that went over some ports of the loopback device. ``packets`` has all bytes once the ``with`` block has ended."""

    def __init__(self) -> None:
        self.packets = b""

    def hits(self) -> dict[str, int]:
        """Return the number of times that each secret was seen."""
        return {name: self.packets.count(secret) for name, secret in SECRETS.items()}


@contextmanager
def captured(cluster: LocalCluster, file: Path) -> Iterator[Capture]:
    """Listen to the ports of a cluster's bookies."""
    ports = " or ".join(f"port {bookie.rpartition(':')[2]}" for bookie in cluster.bookie_ids)
    command = ["tcpdump", "-i", "lo", "-U", "-s", "0", "-B", "65536", "-w", str(file), ports]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tcpdump:
        assert tcpdump.stderr is not None
        first = tcpdump.stderr.readline()
        while first and "listening on" not in first:
            first = tcpdump.stderr.readline()
        assert first, "tcpdump ended: it needs the right to listen"
        found = Capture()
        try:
            yield found
        finally:
            tcpdump.send_signal(signal.SIGINT)
            told = tcpdump.stderr.read()
    assert "0 packets dropped by kernel" in told, told
    found.packets = file.read_bytes()


def play(client: bk_core.BookKeeper, other: bk_core.BookKeeper) -> None:
    """Write, read by long polls as it is written, and recover what the writer left."""
    writer = client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, password=PASSWORD)
    reader = other.open_ledger(writer.ledger_id, password=PASSWORD)
    seen = 0

    def follow() -> None:
        nonlocal seen
        for run in reader.tail(timeout_s=60):
            seen += len(run)
            if seen == len(PAYLOADS):
                return

    follower = threading.Thread(target=follow)
    follower.start()
    writer.append_many(PAYLOADS)
    writer.append(PATTERN)  # brings readers word that those before it are confirmed
    follower.join(60)
    assert seen == len(PAYLOADS)
    reader.close()
    with other.recover_ledger(writer.ledger_id, password=PASSWORD) as recovered:
        assert recovered.read(0, len(PAYLOADS)) == [*PAYLOADS, PATTERN]
    writer.abandon()


@contextmanager
def server(kind: str, tls: bool, directory: Path) -> Iterator[tuple[LocalCluster, Security | None]]:
    if kind == "embedded":
        with local_cluster(1, directory / "cluster", tls=tls, sasl=tls) as cluster:
            yield cluster, None  # the URI names the files
        return
    ca = Authority.made(directory / "ca", "ca")
    lines = tls_lines(ca, ca.signed("bookie", HERE), mutual=True) if tls else {}
    with secured_cluster(directory / "cluster", lines, version=APACHE_VERSION, bookies=1) as cluster:
        yield cluster, Security(BookieTls(ca.certificate, *ca.signed("client"))) if tls else None


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("kind", ["embedded", pytest.param("apache", marks=pytest.mark.apache)])
def test_with_tls_nothing_of_a_ledger_is_seen(tmp_path: Path, kind: str, protocol: Any) -> None:
    """The same play without TLS is seen at least as often as there are copies on the wire, so the search can find it."""
    assert shutil.which("tcpdump"), "tcpdump is needed (Debian: tcpdump)"
    found: dict[bool, Capture] = {}
    for tls in (False, True):
        directory = tmp_path / ("tls" if tls else "clear")
        directory.mkdir()
        with server(kind, tls, directory) as (cluster, security):
            settings: Any = {"protocol": protocol, "limits": PATIENT} | ({"security": security} if security else {})
            with captured(cluster, directory / "packets") as found[tls]:
                with bk_core.connect(cluster.uri, **settings) as client, bk_core.connect(cluster.uri, **settings) as other:
                    play(client, other)
    clear, secured = found[False].hits(), found[True].hits()
    print(
        f"{kind} {protocol}: in clear {len(found[False].packets):,} bytes, {clear}; with TLS {len(found[True].packets):,} bytes, {secured}"
    )
    written = sum(map(len, PAYLOADS))
    assert clear["payload"] > written // len(PATTERN) and clear["master key"] > 0, "the search can find what is there"
    assert clear["password"] == 0, "the protocol never sends the password itself"
    assert secured == dict.fromkeys(SECRETS, 0)
    assert len(found[True].packets) > 3 * written, "a write, a tail and a recovery went over the wire"
