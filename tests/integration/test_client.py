"""The client against embedded bookies and against Apache's, over both protocols: writing, reading, recovery, a lost bookie, bad input."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

import bk_core
from bk_core.errors import (
    BkError,
    InvalidArgumentError,
    LedgerError,
    LedgerExistsError,
    LedgerFencedError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.dead_bookies import revive
from tests.integration.patience import PATIENT

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bk_core.bookie.local_cluster import LocalCluster
    from bk_core.client import BookKeeper, WriteHandle

PAYLOADS = [b"", b"one", bytes(range(256)), b"x" * 100_000] + [b"%d" % i for i in range(60)]


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[BookKeeper]:
    with bk_core.connect(cluster.uri, protocol=request.param, limits=PATIENT) as opened:
        yield opened


def _append_run(writer: WriteHandle, payloads: list[bytes]) -> Future[int]:
    return writer.append_run_future(b"".join(payloads), array("q", accumulate(map(len, payloads), initial=0)))


def _read_all(client: BookKeeper, ledger_id: int, password: bytes = b"") -> list[bytes]:
    with client.open_ledger(ledger_id, password=password) as reader:
        assert reader.is_closed
        payloads = reader.read(0, reader.last_add_confirmed) if reader.last_add_confirmed >= 0 else []
        assert reader.length == sum(map(len, payloads))
        return payloads


# --- writing and reading ----------------------------------------------------------------------------------------


def test_appends_that_wait_and_a_flush(client: BookKeeper) -> None:
    """On a ledger and on a log, over both protocols, with our bookies and with Apache's."""
    name = f"appends-{client.config.protocol}-{uuid.uuid4().hex[:8]}"
    log = client.create_log(name, entry_format="raw")
    with client.create_ledger() as ledger, log.writer() as writer:
        assert ledger.append_many([b"0", b"1"]) == 1
        (span,) = writer.append_many([b"0", b"1"])
        assert (span.first_entry_id, span.last_entry_id) == (0, 1)
        pending: list[Future[Any]] = []
        for number in range(2, 500):
            pending += [ledger.append_future(b"%d" % number), writer.append_future(b"%d" % number)]
        ledger.flush()
        writer.flush()
        assert all(future.done() for future in pending)
    assert [int(payload) for payload in _read_all(client, ledger.ledger_id)] == list(range(500))
    assert [int(payload) for run in log.reader() for payload in run.payloads()] == list(range(500))
    log.delete()


def test_write_close_and_read(client: BookKeeper) -> None:
    with client.create_ledger(password=b"secret", custom={"who": b"me"}) as writer:
        assert writer.append(PAYLOADS[0]) == 0
        assert writer.append_future(PAYLOADS[1]).result(30) == 1
        assert _append_run(writer, PAYLOADS[2:]).result(30) == len(PAYLOADS) - 1
        closed = writer.close()
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, len(PAYLOADS) - 1, sum(map(len, PAYLOADS)))
    stored = client.ledger_metadata(writer.ledger_id)
    assert (stored.state, stored.last_entry_id, stored.length, stored.custom["who"]) == (
        closed.state,
        closed.last_entry_id,
        closed.length,
        b"me",
    )
    assert writer.ledger_id in client.list_ledgers()
    with client.open_ledger(writer.ledger_id, password=b"secret") as reader:
        runs = list(reader.read_runs(0, len(PAYLOADS) - 1))
        assert reader.read(5, 7) == PAYLOADS[5:8]
    assert [payload for run in runs for payload in run.payloads()] == PAYLOADS
    assert [run.first_entry_id for run in runs[1:]] == [run.last_entry_id + 1 for run in runs[:-1]]


def test_empty_ledger(client: BookKeeper) -> None:
    with client.create_ledger() as writer:
        pass
    assert client.ledger_metadata(writer.ledger_id).last_entry_id == -1
    assert _read_all(client, writer.ledger_id) == []


@pytest.mark.parametrize("quorums", [(3, 2, 2), (3, 2, 1), (3, 1, 1)])
def test_striped_ledger(client: BookKeeper, quorums: tuple[int, int, int]) -> None:
    e, w, a = quorums
    payloads = [b"%d-" % i * (i % 50) for i in range(2500)]
    with client.create_ledger(ensemble_size=e, write_quorum_size=w, ack_quorum_size=a) as writer:
        _append_run(writer, payloads[:2100])
        for payload in payloads[2100:]:
            writer.append_future(payload)
    assert _read_all(client, writer.ledger_id) == payloads
    with client.open_ledger(writer.ledger_id) as reader:
        assert reader.read(1000, 1010) == payloads[1000:1011]


# --- a lost bookie ----------------------------------------------------------------------------------------------


def test_ensemble_change_when_a_bookie_is_killed(client: BookKeeper, cluster: LocalCluster) -> None:
    _need_a_spare(client, cluster)
    payloads = [b"entry %d" % i for i in range(600)]
    with client.create_ledger() as writer:
        first = writer.metadata.last_fragment.ensemble
        _append_run(writer, payloads[:200]).result(30)
        futures = [writer.append_future(payload) for payload in payloads[200:250]]
        victim = cluster.bookie_ids.index(first[0])
        cluster.kill(victim)
        futures += [writer.append_future(payload) for payload in payloads[250:]]
        assert [future.result(30) for future in futures] == list(range(200, 600))
        after: list[int] = []

        def is_replaced() -> bool:
            """WR-10: if all was acknowledged before the loss was seen, it is the next entry that replaces the bookie."""
            after.append(writer.append(b"after"))
            return first[0] not in writer.metadata.last_fragment.ensemble

        _wait_until(is_replaced)
    payloads += [b"after"] * len(after)
    assert after == [*range(600, len(payloads))]
    stored = client.ledger_metadata(writer.ledger_id)
    assert stored.fragments[0].ensemble == first
    assert len(stored.fragments) == 2
    assert first[0] not in stored.last_fragment.ensemble
    assert set(stored.last_fragment.ensemble) == set(cluster.bookie_ids) - {first[0]}
    assert _read_all(client, writer.ledger_id) == payloads
    if cluster.kind == "embedded":
        revive(cluster, victim)
    else:
        cluster.restart(victim)  # which waits for the end of the killed one's session
    assert _read_all(client, writer.ledger_id) == payloads


def test_ledger_is_read_from_one_bookie_left(client: BookKeeper, cluster: LocalCluster) -> None:
    with client.create_ledger(ack_quorum_size=3) as writer:
        writer.append_many_future(PAYLOADS)
    ensemble = writer.metadata.last_fragment.ensemble
    for bookie in ensemble[:2]:
        cluster.stop_bookie(cluster.bookie_ids.index(bookie))
    assert _read_all(client, writer.ledger_id) == PAYLOADS


def _need_a_spare(client: BookKeeper, cluster: LocalCluster) -> None:
    while len(cluster.bookie_ids) < 4:
        cluster.add_bookie()
    _wait_until(lambda: len(client._session.bookies().writable) >= 4)  # its watch may be a moment behind the store


def _wait_until(condition: object, timeout_s: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- reading what is being written -------------------------------------------------------------------------------


def test_open_without_recovery_never_fences(client: BookKeeper) -> None:
    writer = client.create_ledger()
    for payload in PAYLOADS[:10]:
        writer.append(payload)
    with client.open_ledger(writer.ledger_id) as reader:
        assert not reader.is_closed
        assert reader.read_last_add_confirmed() >= 8  # the last add's own confirmation travels with the next one
        assert reader.read(0, 8) == PAYLOADS[:9]
        assert writer.append(b"goes on") == 10
        assert reader.read_last_add_confirmed() >= 9
        with pytest.raises(InvalidArgumentError, match="last add confirmed"):
            reader.read(0, 11)
        writer.close()
        assert reader.read_last_add_confirmed() == 10
        assert reader.is_closed
        assert reader.read(10, 10) == [b"goes on"]


def test_wait_for_sees_an_entry_soon(client: BookKeeper) -> None:
    with client.create_ledger() as writer, client.open_ledger(writer.ledger_id) as reader:
        writer.append(b"first")
        started = time.monotonic()
        assert not reader.wait_for(5, 0.5)
        assert time.monotonic() - started < 20
        timer = threading.Timer(0.5, lambda: [writer.append(b"%d" % i) for i in range(7)])
        timer.start()
        try:
            assert reader.wait_for(6, 20)
        finally:
            timer.join()
        assert reader.read(6, 6) == [b"5"]
        writer.close()
        assert reader.wait_for(7, 20)
        assert not reader.wait_for(8, 20)  # CLOSED below it: no waiting


# --- recovery ----------------------------------------------------------------------------------------------------


def test_recovery_stops_a_live_writer_and_keeps_what_it_acknowledged(client: BookKeeper, cluster: LocalCluster) -> None:
    writer = client.create_ledger()
    acknowledged: list[bytes] = []
    stopped: list[BaseException] = []

    def write() -> None:
        try:
            while True:
                payload = b"entry %d" % len(acknowledged)
                writer.append(payload)
                acknowledged.append(payload)
        except BkError as error:
            stopped.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    _wait_until(lambda: len(acknowledged) > 50)
    with bk_core.connect(cluster.uri, protocol=client.config.protocol, limits=PATIENT) as other:
        reader = other.recover_ledger(writer.ledger_id)
        assert reader.is_closed
        recovered = reader.read(0, reader.last_add_confirmed)
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(stopped[0], LedgerError), stopped
    assert recovered[: len(acknowledged)] == acknowledged
    assert len(recovered) <= len(acknowledged) + 1
    with pytest.raises(LedgerError):
        writer.append(b"too late")
    assert _read_all(client, writer.ledger_id) == recovered


def test_writer_learns_of_the_fence_at_its_next_append(client: BookKeeper) -> None:
    writer = client.create_ledger()
    writer.append(b"kept")
    assert client.recover_ledger(writer.ledger_id).last_add_confirmed == 0
    with pytest.raises(LedgerFencedError):
        writer.append(b"lost")
    writer.abandon()
    assert _read_all(client, writer.ledger_id) == [b"kept"]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_abandoned_ledger_is_recovered(client: BookKeeper, quorums: tuple[int, int, int]) -> None:
    e, w, a = quorums
    writer = client.create_ledger(ensemble_size=e, write_quorum_size=w, ack_quorum_size=a)
    writer.append_many(PAYLOADS)
    writer.abandon()
    assert client.ledger_metadata(writer.ledger_id).state is LedgerState.OPEN
    recovered = client.recover_ledger(writer.ledger_id)
    assert recovered.last_add_confirmed == len(PAYLOADS) - 1
    assert _read_all(client, writer.ledger_id) == PAYLOADS
    assert client.recover_ledger(writer.ledger_id).read(0, 3) == PAYLOADS[:4]


def test_recovery_of_a_ledger_without_entries(client: BookKeeper) -> None:
    writer = client.create_ledger()
    writer.abandon()
    assert client.recover_ledger(writer.ledger_id).last_add_confirmed == -1
    assert _read_all(client, writer.ledger_id) == []


def test_recovery_with_a_bookie_down(client: BookKeeper, cluster: LocalCluster) -> None:
    _need_a_spare(client, cluster)  # recovery writes its last entries again, and without a spare it could not replace the bookie
    writer = client.create_ledger()
    writer.append_many(PAYLOADS)
    writer.abandon()
    cluster.stop_bookie(cluster.bookie_ids.index(writer.metadata.last_fragment.ensemble[1]))
    assert client.recover_ledger(writer.ledger_id).last_add_confirmed == len(PAYLOADS) - 1
    assert _read_all(client, writer.ledger_id) == PAYLOADS


# --- bad input ---------------------------------------------------------------------------------------------------


def test_password_and_digest_type_are_checked(client: BookKeeper) -> None:
    with client.create_ledger(password=b"secret", digest_type="MAC") as writer:
        writer.append(b"x")
    ledger = writer.ledger_id
    for call in (client.open_ledger, client.recover_ledger):
        with pytest.raises(WrongPasswordError) as wrong:
            call(ledger, password=b"guessed")
        assert "secret" not in str(wrong.value)
        assert "guessed" not in str(wrong.value)
        with pytest.raises(WrongDigestTypeError):
            call(ledger, password=b"secret", digest_type="CRC32")
    assert client.open_ledger(ledger, password=b"secret", digest_type="HMAC").read(0, 0) == [b"x"]
    with pytest.raises(InvalidArgumentError, match="digest_type"):
        client.create_ledger(digest_type="MD5")


def test_unknown_and_deleted_ledgers(client: BookKeeper) -> None:
    with client.create_ledger() as writer:
        writer.append(b"x")
    ledger = writer.ledger_id
    with pytest.raises(LedgerExistsError):
        client.create_ledger(ledger_id=ledger)
    client.delete_ledger(ledger)
    for call in (client.open_ledger, client.recover_ledger, client.delete_ledger, client.ledger_metadata):
        for unknown in (ledger, 987_654_321_012):
            with pytest.raises(NoSuchLedgerError, match=str(unknown)):
                call(unknown)
    assert ledger not in client.list_ledgers()


def test_sizes_that_cannot_work(client: BookKeeper) -> None:
    for e, w, a, words in [
        (2, 3, 2, "write_quorum_size 3 is above ensemble_size 2"),
        (3, 2, 3, "ack_quorum_size 3 is above write_quorum_size 2"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            client.create_ledger(ensemble_size=e, write_quorum_size=w, ack_quorum_size=a)
    with pytest.raises(InvalidArgumentError, match="ack_quorum_size"):
        client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=0)
    with pytest.raises(NotEnoughBookiesError):
        client.create_ledger(ensemble_size=40)
    with pytest.raises(InvalidArgumentError):
        client.create_ledger(ledger_id=-1)


def test_payload_that_is_too_large_leaves_the_writer_usable(client: BookKeeper) -> None:
    with client.create_ledger() as writer:
        with pytest.raises(InvalidArgumentError, match="too large"):
            writer.append(bytes(6 << 20))
        with pytest.raises(InvalidArgumentError, match="payloads is empty"):
            writer.append_many_future([])
        assert writer.append(b"small") == 0
    assert _read_all(client, writer.ledger_id) == [b"small"]


def test_ranges_that_cannot_be_read(client: BookKeeper) -> None:
    with client.create_ledger() as writer:
        writer.append(b"x")
    with client.open_ledger(writer.ledger_id) as reader:
        for first, last in [(-1, 0), (1, 0), (0, 1), (7, 9)]:
            with pytest.raises(InvalidArgumentError):
                reader.read(first, last)


def test_truncated_metadata_is_no_ledger(client: BookKeeper, cluster: LocalCluster) -> None:
    with client.create_ledger() as writer:
        writer.append(b"x")
    found = client.store.read_ledger(writer.ledger_id)
    version = client.store.write_ledger(writer.ledger_id, found.data[: len(found.data) // 2], found.version)
    for call in (client.open_ledger, client.recover_ledger, client.ledger_metadata):
        with pytest.raises(MetadataFormatError):
            call(writer.ledger_id)
    client.store.write_ledger(writer.ledger_id, found.data, version)
    assert _read_all(client, writer.ledger_id) == [b"x"]


def test_nobody_at_the_metadata_service() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(MetadataUnavailableError):
        bk_core.connect(f"zk://127.0.0.1:{port}/ledgers", metadata_timeout_s=2.0)
    assert time.monotonic() - started < 20


def test_settings_that_cannot_work() -> None:
    with pytest.raises(InvalidArgumentError, match="protocol"):
        bk_core.connect("zk://127.0.0.1:1/ledgers", protocol="v1")
    with pytest.raises(InvalidArgumentError, match="there is no client setting"):
        bk_core.connect("zk://127.0.0.1:1/ledgers", speed=11)
