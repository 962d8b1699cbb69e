"""Short runs of the whole, and its parts: the proxy, the files.

``BK_SEED`` repeats the choices of an earlier run. ``BK_SOAK_RELEASES`` names releases and protocols for the runs with Java beside us
(default ``4.18.0:v2 4.14.7:v3``).
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError, LedgerFencedError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerState
from tests.network.proxy import IN, OUT, Link, Proxy
from tests.soak.cluster import ThroughProxy
from tests.soak.faults import AUTO_RECOVERY_FAULTS, FAULTS, FAULTS_ON_ETCD, LINK_FAULTS
from tests.soak.history import Follower, Recorder, digest, digests, load, split
from tests.soak.run import Plan, Report, missing_faults, soak
from tests.soak.workload import payload

SEED = int(os.environ.get("BK_SEED") or random.SystemRandom().randrange(1 << 32))
RELEASES = os.environ.get("BK_SOAK_RELEASES", "4.18.0:v2 4.14.7:v3").split()


# --- files ---------------------------------------------------------------------------------------------------------------


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    """An operation that is not answered stays unknown; a line that a crash cut short does not count; a follower sees each line once."""
    recorder = Recorder(tmp_path / "history.jsonl", "x:")
    follower = Follower(recorder.path)
    open_op = recorder.begin("w", "append", 5, first=0, count=2, digests=digests([b"a", b"b"]))
    with pytest.raises(LedgerFencedError), recorder.during("w", "close", 5):
        raise LedgerFencedError("too late")
    assert [(at, op.kind) for at, op in follower.new()] == [("begin", "append"), ("begin", "close"), ("end", "close")]
    with recorder.during("w", "create", e=3) as value:
        value["ledger"] = 7
    with recorder.path.open("ab") as file:
        file.write(b'{"at":"end","op":"x:0","ns":1')
    assert [(at, op.kind, op.ledger) for at, op in follower.new()] == [("begin", "create", 7), ("end", "create", 7)]
    recorder.close()
    loaded = load(recorder.path)
    assert loaded == recorder.ops == list(follower.ops.values())
    assert [(op.outcome, op.error, op.ends) for op in loaded] == [("unknown", "", 0), ("unknown", "BK-FENCED", 1), ("ok", "", 1)]
    assert split(open_op.args["digests"]) == [digest(b"a"), digest(b"b")]


# --- the proxy -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def _connect(link: Link) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", link.listen_port), timeout=5)
    connection.settimeout(5)
    return connection


def _exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return _receive(connection, len(data))


def _receive(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (more := connection.recv(65536)):
        got += more
    return got


def test_the_proxy_carries_and_cuts_one_link(proxy: Proxy, echo: int) -> None:
    one, other = (proxy.link(owner, "server", "127.0.0.1", echo) for owner in ("one", "other"))
    assert proxy.link("one", "server", "127.0.0.1", echo) is one
    with _connect(one) as first, _connect(other) as second:
        data = random.randbytes(1_000_000)
        sender = threading.Thread(target=first.sendall, args=(data,))
        sender.start()
        assert _receive(first, len(data)) == data
        sender.join()
        proxy.cut(one, refuse=True)
        with pytest.raises(ConnectionError):
            assert not first.recv(1)
            raise ConnectionResetError
        assert _exchange(second, b"still there") == b"still there"
    with pytest.raises(ConnectionError):
        with _connect(one) as refused:
            assert not refused.recv(1)
        raise ConnectionResetError
    proxy.heal(one)
    with _connect(one) as again:
        assert _exchange(again, b"back") == b"back"


@pytest.mark.parametrize("directions", [(OUT,), (IN,), (OUT, IN)])
@pytest.mark.parametrize("cut", [False, True])
def test_what_a_silent_link_took_is_late_or_lost_with_its_connection(
    proxy: Proxy, echo: int, directions: tuple[str, ...], cut: bool
) -> None:
    link = proxy.link("client", "server", "127.0.0.1", echo)
    with _connect(link) as connection:
        assert _exchange(connection, b"before") == b"before"
        proxy.silence(link, *directions)
        connection.sendall(b"during")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)
        proxy.heal(link, cut=cut)
        if cut:
            with pytest.raises(ConnectionError):
                assert not connection.recv(1)
                raise ConnectionResetError
        else:
            assert _receive(connection, 6) == b"during"


def test_delay_and_throttle_take_time(proxy: Proxy, echo: int) -> None:
    link = proxy.link("client", "server", "127.0.0.1", echo)
    with _connect(link) as connection:
        proxy.delay(link, 0.2)
        begun = time.monotonic()
        assert _exchange(connection, b"slow") == b"slow"
        assert time.monotonic() - begun >= 0.4  # there and back
        proxy.heal(link)
        proxy.throttle(link, 10_000)
        begun = time.monotonic()
        assert len(_exchange(connection, bytes(4_000))) == 4_000
        assert time.monotonic() - begun >= 0.4


# --- the whole -----------------------------------------------------------------------------------------------------------


def _run(plan: Plan, directory: Path) -> Report:
    try:
        apache.find_java()  # ZooKeeper needs it
        if plan.version is not None:
            apache.resolve(plan.version)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    print(f"\nseed {plan.seed} (BK_SEED repeats its choices)", flush=True)
    report = soak(plan, directory)
    print(report.text(), flush=True)
    return report


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_seconds_on_embedded_bookies(tmp_path: Path) -> None:
    """I-1, I-2, I-5 .. I-8, I-13 .. I-15, I-18, L-1, L-4, LOG-I1 .. LOG-I5 while bookies, sessions and links fail."""
    report = _run(Plan(10, SEED, version=None), tmp_path)
    assert report.good, report.text()
    assert report.facts["entries_acknowledged"] > 1000


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_bookies_that_ask_for_a_certificate_and_a_password(tmp_path: Path) -> None:
    """TLS and SASL begin anew over links that are cut, thin and silent, and behind kills of bookies and writers."""
    faults = ("bookie_kill", "bookie_pause", "writer_kill", *LINK_FAULTS)
    report = _run(Plan(20, SEED, version=None, faults=faults, secured=True), tmp_path)
    assert report.good, report.text()
    assert report.facts["entries_acknowledged"] > 500


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_that_closes_short_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole chain sees a real fault: a metadata store that records the end of a ledger one entry too low (CL-1, RC-18)."""

    def close_short(store: ThroughProxy, ledger_id: int, data: bytes, version: int) -> int:
        metadata = metadata_codec.decode(data)
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id >= 5:
            size = metadata.length - len(payload(ledger_id, metadata.last_entry_id))
            data = metadata_codec.encode(replace(metadata, last_entry_id=metadata.last_entry_id - 1, length=size))
        return int(store.__getattr__("write_ledger")(ledger_id, data, version))

    monkeypatch.setattr(ThroughProxy, "write_ledger", close_short, raising=False)
    report = _run(Plan(3, SEED, version=None, faults=()), tmp_path)
    assert {"I-1", "I-2", "I-15"} <= {violation.rule for violation in report.violations}
    assert report.facts["entries_lost"] > 0


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.apache
def test_all_faults_on_apache_bookies(tmp_path: Path) -> None:
    """The same on Apache's bookies, each kind of fault at least once."""
    report = _run(Plan(45, SEED, complete=True), tmp_path)
    assert report.good, report.text()
    assert not missing_faults(report)
    assert report.facts["entries_acknowledged"] > 1000
    assert report.facts["log_entries_acknowledged"] > 100


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_bookies_are_lost_for_good_beside_auto_recovery(tmp_path: Path) -> None:
    faults = ("bookie_pause", "writer_kill", *AUTO_RECOVERY_FAULTS, *LINK_FAULTS)
    report = _run(Plan(60, SEED, bookies=5, version=None, faults=faults, complete=True, auto_recovery=True), tmp_path)
    assert report.good, report.text()
    assert not missing_faults(report)
    assert report.facts["autorecovery_repaired"] > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.deep
def test_three_etcds_and_embedded_bookies_under_every_fault(tmp_path: Path) -> None:
    report = _run(Plan(45, SEED, version=None, metadata="etcd", faults=FAULTS_ON_ETCD, complete=True), tmp_path)
    assert report.good, report.text()
    assert not missing_faults(report)
    assert report.facts["entries_acknowledged"] > 1000
    assert report.facts["compactions"] > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.apache
@pytest.mark.parametrize("release", [*RELEASES[:1], *(pytest.param(one, marks=pytest.mark.deep) for one in RELEASES[1:])])
def test_java_beside_us(tmp_path: Path, release: str) -> None:
    """Writers of both kinds are fenced, fought for and recovered by both, alone and at the same time; all agree and nothing is lost."""
    if shutil.which("javac") is None:
        pytest.skip("no javac to compile the Java side")
    version, protocol = release.split(":")
    seconds = 8 if version == apache.DEFAULT_VERSION and protocol == "v2" else 4
    faults = tuple(kind for kind in (*LINK_FAULTS, "bookie_pause") if kind in FAULTS and "expiry" not in kind)
    report = _run(Plan(seconds, SEED, version=version, protocol=protocol, java=True, others=False, faults=faults), tmp_path)
    assert report.good, report.text()
    assert report.facts["entries_lost"] == 0
    for kind in ("written_by_java", "written_by_python", "recovered_by_java", "recovered_by_python", "recovered_by_python_and_java"):
        assert report.duels[kind] > 0, report.text()
