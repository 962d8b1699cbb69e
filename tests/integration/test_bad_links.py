"""Links that are thin, silent, cut, or lead to where a bookie was before. Timeouts are short here; a link is thin measured by them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BkError, ReadError
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.messages import AddRequest, AddResponse, ReadRequest, Status
from tests.integration.conftest import OURS_ARE_DEEP
from tests.network import measure
from tests.network.detour import Detour

S = 1_000_000_000
IMPATIENT = Limits(read_timeout_ns=S, add_timeout_ns=S, speculative_read_ns=S // 2)
THIN = 400_000.0  # bytes a second: one default chunk takes 13 timeouts
BYTES = 1_500_000


@pytest.fixture
def detour(cluster: LocalCluster) -> Iterator[Detour]:
    with Detour(cluster) as made:
        yield made


def at_once(jobs: list[Callable[[], Any]]) -> list[BkError]:
    """Make all jobs at once, and return the errors."""
    failures: list[BkError] = []

    def one(job: Callable[[], Any]) -> None:
        try:
            job()
        except BkError as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_a_thin_link_is_slow_and_nothing_else(detour: Detour, protocol: str) -> None:
    """LINK-1, LINK-5: from one bookie, which no other could stand in for; nothing is moved twice."""
    ledger = measure.write(detour.cluster, BYTES, 1, close=True)
    detour.throttle(THIN)
    bk = detour.connect(protocol=protocol, limits=IMPATIENT)
    measure.read(bk, ledger)
    assert detour.carried < 1.1 * BYTES


@OURS_ARE_DEEP
def test_replicas_behind_thin_links(detour: Detour) -> None:
    """LINK-1, RD-4: that an answer takes long is no reason to ask another replica while its bytes come."""
    ledger = measure.write(detour.cluster, BYTES, 3, close=True)
    detour.throttle(THIN)
    measure.read(detour.connect(limits=IMPATIENT), ledger)
    assert detour.carried < 1.1 * BYTES


@OURS_ARE_DEEP
def test_many_readers_share_a_thin_link(detour: Detour) -> None:
    """LINK-1, LINK-6."""
    size = BYTES // 10
    ledger = measure.write(detour.cluster, size, 1, close=True)
    detour.throttle(THIN)
    bk = detour.connect(limits=IMPATIENT)
    assert at_once([lambda: measure.read(bk, ledger)] * 10) == []
    assert detour.carried < 1.1 * 10 * size


@OURS_ARE_DEEP
def test_recovery_and_check_over_thin_links(detour: Detour) -> None:
    """LINK-1, RC-8, RC-13: every copy is read once and written once."""
    size = BYTES // 3
    ledger = measure.write(detour.cluster, size, 3, close=False)
    detour.throttle(THIN)
    bk = detour.connect(limits=IMPATIENT)
    bk.recover_ledger(ledger).close()
    assert detour.carried < 1.1 * 6 * size
    before = detour.carried
    assert bk.check_ledger(ledger, full=True).is_good
    assert detour.carried - before < 1.1 * 3 * size


@OURS_ARE_DEEP
def test_writing_over_thin_links_changes_no_ensemble(detour: Detour) -> None:
    """LINK-1: one entry is on its way for two timeouts without any answer, but its bytes go on."""
    bk = detour.connect(limits=replace(IMPATIENT, add_timeout_ns=5 * S // 2))
    with bk.create_ledger() as ledger:
        ledger.append(b"first")
        detour.throttle(THIN)
        assert ledger.append(bytes(5 * int(THIN))) == 1
        assert len(ledger.metadata.fragments) == 1


@OURS_ARE_DEEP
def test_a_reset_of_all_connections_fails_no_read(detour: Detour) -> None:
    """LINK-7: and batch reads stay."""
    ledger = measure.write(detour.cluster, BYTES, 1, close=True)
    bk = detour.connect()
    with bk.open_ledger(ledger) as reader:
        reader.read(0, 0)
        detour.throttle(4 * THIN)
        cut = threading.Timer(0.3, detour.cut)
        cut.start()
        last = reader.last_add_confirmed
        assert at_once([lambda: reader.read(0, last // 3)] * 15) == []
        cut.join()
        assert reader._batch


@pytest.fixture
def nobody() -> Iterator[tuple[str, int]]:
    """An address that refuses connections: a port that is taken and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("how", ["refused", pytest.param("reset", marks=pytest.mark.deep)])
def test_reads_outlive_a_restart_of_all_bookies(detour: Detour, nobody: tuple[str, int], protocol: str, how: str) -> None:
    """RD-13: whatever is asked while nobody can be reached is answered when somebody can: entries, batches, the LAC, a recovery, a tail."""
    closed, unclosed = (measure.write(detour.cluster, 100_000, 3, close=close) for close in (True, False))
    bk = detour.connect(protocol=protocol)
    away: list[threading.Timer] = []

    def all_away() -> None:
        if how == "refused":
            detour.elsewhere = nobody
            detour.cut()
        else:
            for link in detour.links:
                detour.proxy.cut(link, refuse=True)

    def all_back() -> None:
        detour.elsewhere = None
        detour.proxy.heal_all()

    with bk.open_ledger(closed) as reader, bk.open_ledger(unclosed) as open_reader:
        expected = reader.read(0, reader.last_add_confirmed)
        last = open_reader.read_last_add_confirmed()
        got: dict[str, Any] = {}
        jobs: dict[str, Callable[[], Any]] = {
            "single": lambda: reader.read(0, 0) == expected[:1],
            "all": lambda: reader.read(0, reader.last_add_confirmed) == expected,
            "lac": lambda: open_reader.read_last_add_confirmed() == last,
            "tail": lambda: next(iter(reader.tail(0))).first_entry_id == 0,
        }
        for batch in (jobs, {"recovery": lambda: bk.recover_ledger(unclosed).metadata.state is LedgerState.CLOSED}):
            all_away()
            away.append(threading.Timer(3.0, all_back))
            away[-1].start()
            failures = at_once([lambda name=name, job=job: got.update({name: job()}) for name, job in batch.items()])  # type: ignore[misc]
            away[-1].join()
            assert failures == []
    assert got == dict.fromkeys(["single", "all", "lac", "tail", "recovery"], True)


@OURS_ARE_DEEP
def test_a_read_that_nobody_can_be_asked_for_says_so_in_time(detour: Detour, nobody: tuple[str, int]) -> None:
    """RD-13: the error comes before the operation's timeout, with what each replica said and for how long it was asked."""
    ledger = measure.write(detour.cluster, 10_000, 3, close=True)
    bk = detour.connect(operation_timeout_s=6.0)
    detour.elsewhere = nobody
    with bk.open_ledger(ledger) as reader, pytest.raises(ReadError, match=r"asked again for 5\.[4-9] s") as caught:
        reader.read(0, 0)
    for bookie in detour.cluster.bookie_ids:
        assert f"{bookie}: unavailable" in str(caught.value)


def test_a_cut_in_the_middle_of_an_answer_keeps_what_came(detour: Detour) -> None:
    """LINK-7, RD-10."""
    ledger = measure.write(detour.cluster, BYTES, 1, close=True)
    detour.throttle(10 * THIN)
    bk = detour.connect()
    with bk.open_ledger(ledger) as reader:
        for link in detour.links:
            detour.proxy.cut_within(link, BYTES // 3)
        assert sum(len(payload) for payload in reader.read(0, reader.last_add_confirmed)) == BYTES
        assert reader._batch
    assert detour.carried < 1.5 * BYTES


def test_a_half_dead_link_costs_one_timeout_once(detour: Detour) -> None:
    """LINK-3, LINK-4: what was sent waits for one timeout, whatever the number of handles; then everything works on a new connection."""
    ledgers = [measure.write(detour.cluster, 10_000, 1, close=True) for _ in range(6)]
    bk = detour.connect(limits=IMPATIENT)
    bookies = {bk.ledger_metadata(ledger).fragments[0].ensemble[0] for ledger in ledgers}
    readers = [bk.open_ledger(ledger) for ledger in ledgers]
    for reader in readers:
        reader.read(0, 0)
    silent = [detour.link(bookie) for bookie in bookies]
    detour.owner = "another way"  # new connections go there, as to a bookie behind a gateway that forgot the old ones
    for link in silent:
        detour.proxy.silence(link, "in", "out")
    began = time.monotonic()
    at_once([lambda reader=reader: reader.read(0, 0) for reader in readers])  # type: ignore[misc]
    assert time.monotonic() - began < 10 * IMPATIENT.read_timeout_ns / S
    for reader in readers:
        assert len(reader.read(0, 0)) == 1  # no second timeout: a read has no other bookie to go to
    with bk.create_ledger() as ledger:
        ledger.append(b"x")


def test_a_bookie_that_moved_is_found_without_a_timeout(detour: Detour) -> None:
    """LINK-4: as soon as the registry changes."""
    ledger = measure.write(detour.cluster, 10_000, 1, close=True)
    bk = detour.connect(operation_timeout_s=20.0)
    with bk.open_ledger(ledger) as reader:
        reader.read(0, 0)
        old = detour.links
        detour.owner = "new address"
        for link in old:
            detour.proxy.silence(link, "in", "out")
        bk._session.refresh_bookies()
        deadline = time.monotonic() + 0.8 * bk.config.limits.read_timeout_ns / S  # before anything could be silent for long enough
        while any(link._connected for link in bk._session._links.values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(reader.read(0, 0)) == 1


def test_the_greatest_entry_id_of_all(cluster: LocalCluster) -> None:
    """SM-5, LINK-9: a bookie keeps the entry, says so, and gives it back; the connection lives on."""
    host, port = cluster.bookie_ids[0].rsplit(":", 1)
    ledger, key, last = 987_654_321, digests.master_key(b""), (1 << 63) - 1
    with socket.create_connection((host, int(port)), timeout=20) as peer:

        def ask(*requests: AddRequest | ReadRequest) -> list[Any]:
            peer.sendall(b"".join(connection.encode_request(request, "v2") for request in requests))
            answers: list[Any] = []
            data = b""
            while len(answers) < len(requests):
                more = peer.recv(65536)
                assert more, "the bookie hung up"
                data += more
                while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                    answers.append(connection.decode_response(data[4:size], "v2"))
                    data = data[size:]
            return answers

        for entries in ([last - 5], [last - 2, last - 1, last]):  # several at once: answered as one run
            bodies = [layout.encode_body(ledger, entry, -1, 1, b"x", 3) for entry in entries]
            adds = [AddRequest(0, ledger, entry, key, body) for entry, body in zip(entries, bodies, strict=True)]
            assert ask(*adds) == [AddResponse(0, Status.OK, ledger, entry) for entry in entries]
            reads = ask(*(ReadRequest(0, ledger, entry) for entry in entries))
            assert [answer.body for answer in reads] == bodies
