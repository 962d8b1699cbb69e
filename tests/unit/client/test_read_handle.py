"""The promises of a read handle, against bookies on sockets in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.errors import (
    ClientClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore, Versioned, Watch
from bk_core.net.link import BookieLink
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, WriteLacRequest

LIMITS = Limits(metadata_retry_ns=1_000_000, explicit_lac_ns=5_000_000, unreachable_ns=2_000_000_000)


class Cluster:
    """Bookies, a client of them, and the client's store with what happens to its watches written down."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.uri = f"memory://{directory.name}"
        self.store: MetadataStore = open_store(self.uri)
        self.store.initialize_cluster()
        self.bookies = [EmbeddedBookie(directory / str(i), "127.0.0.1", 0, self.store).start() for i in range(count)]
        self.client = bk_core.connect(self.uri, limits=LIMITS, store=cast(MetadataStore, Spy(open_store(self.uri))))
        self.watches = 0

    def count_watches(self, patch: pytest.MonkeyPatch) -> None:
        real = self.client.store.watch_ledger

        def watch_ledger(ledger_id: int, callback: Callable[[], None]) -> Watch:
            self.watches += 1
            return Counted(self, real(ledger_id, callback))

        patch.setattr(self.client.store, "watch_ledger", watch_ledger)

    def rewrite(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """Change the metadata as another client would."""
        found = self.store.read_ledger(ledger_id)
        self.store.write_ledger(ledger_id, metadata_codec.encode(change(metadata_codec.decode(found.data))), found.version)

    def close(self) -> None:
        self.client.close()
        for bookie in self.bookies:
            bookie.close()
        self.store.close()


class Spy:
    """A store whose methods a test may replace."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Counted:
    def __init__(self, cluster: Cluster, inner: Watch) -> None:
        self._cluster, self._inner = cluster, inner

    def cancel(self) -> None:
        self._cluster.watches -= 1
        self._inner.cancel()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def written(cluster: Cluster, count: int) -> bk_core.WriteHandle:
    writer = cluster.client.create_ledger()
    for i in range(count):
        writer.append(b"%d" % i)
    return writer


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, count)]


def eventually(condition: Callable[[], object]) -> None:
    """For what the reactor or a watch does a moment later."""
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


# --- opening -----------------------------------------------------------------------------------------------------------


def test_opening_subscribes_first_and_learns_the_lac(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-3, LC-2: what was acknowledged before, but one; what happens between subscribing and asking is not missed."""
    writer = written(cluster, 5)
    order: list[str] = []
    watch, read = cluster.client.store.watch_ledger, cluster.client.store.read_ledger

    def watch_ledger(ledger_id: int, callback: Callable[[], None]) -> Watch:
        order.append("watch")
        return watch(ledger_id, callback)

    def read_ledger(ledger_id: int) -> Versioned:
        order.append("read")
        return read(ledger_id)

    monkeypatch.setattr(cluster.client.store, "watch_ledger", watch_ledger)
    monkeypatch.setattr(cluster.client.store, "read_ledger", read_ledger)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        assert order[-2:] == ["watch", "read"]
        assert reader.last_add_confirmed >= 3
        assert reader.read(0, 3) == payloads(4)
    writer.close()


def test_a_closed_ledger_needs_no_bookie_and_no_watch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-2, LC-4."""
    writer = written(cluster, 3)
    writer.close()
    cluster.count_watches(monkeypatch)
    for bookie in cluster.bookies:
        bookie.close()
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        assert (reader.last_add_confirmed, reader.length, cluster.watches) == (2, 3, 0)
        assert reader.read_last_add_confirmed() == reader.try_read_last_add_confirmed() == 2
        assert reader.wait_for(2, 0) and not reader.wait_for(3, 30)


def test_an_open_that_fails_leaves_no_watch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-3: too few bookies tell the LAC."""
    writer = written(cluster, 3)
    cluster.count_watches(monkeypatch)
    for bookie in cluster.bookies:
        bookie.close()
    with pytest.raises(ReadError, match="LAC of ledger"):
        cluster.client.open_ledger(writer.ledger_id)
    assert cluster.watches == 0
    writer.abandon()


def test_a_handle_unsubscribes_when_it_is_closed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-3, L-11."""
    writer = written(cluster, 1)
    cluster.count_watches(monkeypatch)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        assert cluster.watches == 1 and "OPEN" in repr(reader)
    assert cluster.watches == 0
    reader.close()
    writer.close()


def test_who_may_open_is_checked_before_any_bookie_is_asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-1: absent, wrong password, wrong digest type; the stored digest type is taken when none is given."""
    writer = cluster.client.create_ledger(password=b"right", digest_type="CRC32")
    cluster.count_watches(monkeypatch)
    asked: list[object] = []
    link = cluster.client._session.link
    monkeypatch.setattr(cluster.client._session, "link", lambda *args: (asked.append(args), link(*args))[1])
    with pytest.raises(NoSuchLedgerError):
        cluster.client.open_ledger(writer.ledger_id + 1)
    with pytest.raises(WrongPasswordError):
        cluster.client.open_ledger(writer.ledger_id, password=b"wrong")
    with pytest.raises(WrongDigestTypeError):
        cluster.client.open_ledger(writer.ledger_id, password=b"right", digest_type="CRC32C")
    assert asked == [] and cluster.watches == 0
    writer.append(b"x")
    writer.close()
    with cluster.client.open_ledger(writer.ledger_id, password=b"right") as reader:
        assert reader.read(0, 0) == [b"x"]


def test_a_reader_of_known_entries_asks_for_nothing_else(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """RD-1: who knows from elsewhere that entries are acknowledged needs no LAC, and no watch of the ledger."""
    writer = written(cluster, 3)
    sent: list[Any] = []
    request = BookieLink.request
    monkeypatch.setattr(BookieLink, "request", lambda self, message, *rest: (sent.append(message), request(self, message, *rest))[1])
    with cluster.client.open_ledger(writer.ledger_id, lac=False) as reader:
        assert sent == [] and cluster.watches == 0
        assert b"".join(p for run in reader.read_runs(0, 2, unchecked_bound=True) for p in run.payloads()) == b"".join(payloads(3))


def test_a_ledger_opened_again_is_read_from_the_same_replica(cluster: Cluster) -> None:
    """RD-2: there its entries are in the cache. Other ledgers begin elsewhere."""
    handles = [cluster.client.open_ledger(written(cluster, 1).ledger_id) for _ in range(3)]
    again = [cluster.client.open_ledger(handle.ledger_id) for handle in handles]
    assert [handle._order.sticky for handle in handles] == [handle._order.sticky for handle in again]
    assert len({handle._order.sticky for handle in handles}) == 3
    for handle in (*handles, *again):
        handle.close()


def test_readers_never_fence_and_never_write_metadata(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-5: opening, reading, asking for the LAC and following leave a live writer alone."""
    writer = written(cluster, 3)
    before = cluster.store.read_ledger(writer.ledger_id).version
    sent: list[Any] = []
    request = BookieLink.request
    monkeypatch.setattr(BookieLink, "request", lambda self, message, *rest: (sent.append(message), request(self, message, *rest))[1])
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        assert reader.wait_for(2, 30)
        assert reader.read(0, 2) == payloads(3)
        assert len(list(reader.tail(timeout_s=0.1))) > 0
        reader.read_last_add_confirmed()
        reader.try_read_last_add_confirmed()
    reads = [m for m in sent if isinstance(m, (ReadRequest, BatchReadRequest))]
    assert reads and not any(m.fence for m in reads)
    assert cluster.store.read_ledger(writer.ledger_id).version == before
    assert writer.append(b"goes on") == 3
    writer.close()


# --- metadata that changes ------------------------------------------------------------------------------------------------


def test_a_close_is_learned_from_the_watch(cluster: Cluster) -> None:
    """OP-6."""
    writer = written(cluster, 3)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        writer.close()
        eventually(lambda: reader.is_closed)
        assert (reader.last_add_confirmed, reader.length) == (2, 3)


def test_a_close_below_the_lac_raises_an_alarm(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """OP-6: and entries beyond the end are refused from then on (RD-1)."""
    writer = written(cluster, 5)
    with cluster.client.open_ledger(writer.ledger_id) as reader, caplog.at_level(logging.ERROR, logger="bk_core.client"):
        cluster.rewrite(writer.ledger_id, lambda md: md.closed(1, 2))
        eventually(lambda: reader.is_closed)
        assert reader.last_add_confirmed == 1
        assert any("closed at entry 1" in line for line in caplog.messages)
        with pytest.raises(InvalidArgumentError, match="last entry 1"):
            reader.read(0, 2)
    writer.abandon()


def test_metadata_that_cannot_be_read_is_read_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-6: a change is not lost because the store was away when it was looked at."""
    writer = written(cluster, 3)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        read = cluster.client.store.read_ledger
        failures = iter([True, True])

        def read_ledger(ledger_id: int) -> Versioned:
            if next(failures, False):
                raise MetadataUnavailableError("away")
            return read(ledger_id)

        monkeypatch.setattr(cluster.client.store, "read_ledger", read_ledger)
        writer.close()
        eventually(lambda: reader.is_closed)


def test_during_a_recovery_nothing_new_is_shown(cluster: Cluster) -> None:
    """Open question 2: until CLOSED; an option turns it off."""
    writer = written(cluster, 3)
    with (
        cluster.client.open_ledger(writer.ledger_id) as reader,
        cluster.client.open_ledger(writer.ledger_id, options=ReadOptions(hold_back_in_recovery=False)) as trusting,
    ):
        before = reader.last_add_confirmed
        cluster.rewrite(writer.ledger_id, LedgerMetadata.in_recovery)
        for _ in range(3):
            writer.append(b"more")
        assert reader.read_last_add_confirmed() == before
        assert trusting.read_last_add_confirmed() >= 4
        cluster.rewrite(writer.ledger_id, lambda md: md.closed(5, 15))
        assert reader.wait_for(5, 30)
    writer.abandon()


def test_closed_ledgers_may_be_watched_too(cluster: Cluster) -> None:
    """OP-6, R29: re-replication moved the ledger."""
    writer = written(cluster, 3)
    writer.close()
    with cluster.client.open_ledger(writer.ledger_id, options=ReadOptions(watch_closed=True)) as reader:
        moved = tuple(reversed(reader.metadata.last_fragment.ensemble))
        cluster.rewrite(writer.ledger_id, lambda md: replace(md, fragments=(Fragment(0, moved),)))
        eventually(lambda: reader.metadata.last_fragment.ensemble == moved)
        assert reader.read(0, 2) == payloads(3)


def test_a_read_whose_bookies_are_gone_finds_the_new_ones(cluster: Cluster) -> None:
    """RD-7, R29, without a watch; the handle remembers what the read found."""
    writer = written(cluster, 3)
    writer.close()
    home = writer.metadata.last_fragment.ensemble
    cluster.rewrite(writer.ledger_id, lambda md: replace(md, fragments=(Fragment(0, ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")),)))
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        cluster.rewrite(writer.ledger_id, lambda md: replace(md, fragments=(Fragment(0, home),)))
        assert reader.read(0, 2) == payloads(3)
        assert reader.metadata.last_fragment.ensemble == home


def test_a_lac_question_to_bookies_that_were_replaced_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """R29, LC-1."""
    writer = written(cluster, 3)
    home = writer.metadata.last_fragment.ensemble
    cluster.rewrite(writer.ledger_id, lambda md: replace(md, fragments=(Fragment(0, ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")),)))
    stale = cluster.client.store.read_ledger(writer.ledger_id)
    cluster.rewrite(writer.ledger_id, lambda md: replace(md, fragments=(Fragment(0, home),)))
    handle = ReadHandle(cluster.client._session, writer.ledger_id, metadata_codec.decode(stale.data), stale.version)
    assert handle._ask_lac() >= 1
    handle.close()
    writer.abandon()


# --- reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(mode=ReadMode.PARALLEL), ReadOptions(sticky=False, speculative=False)])
def test_all_ways_of_reading_give_the_same(cluster: Cluster, protocol: str, options: ReadOptions) -> None:
    """RD-2..RD-5, RD-10: striped and not, across the chunks of a range."""
    with bk_core.connect(cluster.uri, protocol=protocol, reads=options, limits=Limits(read_chunk_entries=7)) as client:
        for quorums in ((3, 3, 2), (3, 2, 1)):
            writer = client.create_ledger(ensemble_size=quorums[0], write_quorum_size=quorums[1], ack_quorum_size=quorums[2])
            writer.append_many(payloads(50))
            writer.close()
            with client.open_ledger(writer.ledger_id) as reader:
                assert reader.read(0, 49) == payloads(50)
                assert reader.read(13, 13) == [b"13"]


def test_the_bound_of_reads(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """RD-1, RD-11: an unconfirmed read goes beyond the LAC and promises nothing."""
    writer = written(cluster, 3)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        for first, last in ((-1, 0), (2, 1), (0, 99)):
            with pytest.raises(InvalidArgumentError):
                reader.read(first, last)
        assert reader.read_unconfirmed(0, 2) == payloads(3)
        with caplog.at_level(logging.INFO, logger="bk_core"), pytest.raises(NoSuchEntryError):
            reader.read_unconfirmed(0, 3)
        assert not caplog.records  # nobody has promised the entry
        assert [p for run in reader.read_runs(0, 2, unchecked_bound=True) for p in run.payloads()] == payloads(3)
    writer.close()


def test_a_read_beyond_the_lac_is_refused_before_anything_is_sent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """RD-1: not even the LAC is asked for, whether or not anybody takes the runs; ``unchecked_bound`` trusts the caller."""
    writer = written(cluster, 1)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        for i in range(1, 4):
            writer.append(b"%d" % i)
        asked: list[object] = []
        request, read_ledger = BookieLink.request, cluster.client.store.read_ledger

        def noted(link: BookieLink, message: Any, *rest: Any) -> None:
            if not isinstance(message, WriteLacRequest):  # that is the writer
                asked.append(message)
            request(link, message, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(BookieLink, "request", noted)
            patch.setattr(cluster.client.store, "read_ledger", lambda *args: (asked.append(args), read_ledger(*args))[1])
            with pytest.raises(InvalidArgumentError, match="entry 99 lies beyond the last add confirmed"):
                reader.read_runs(0, 99)
        assert asked == []
        assert [p for run in reader.read_runs(0, 3, unchecked_bound=True) for p in run.payloads()] == payloads(4)
    writer.close()
    with cluster.client.open_ledger(writer.ledger_id) as reader, pytest.raises(InvalidArgumentError, match="last entry 3"):
        reader.read_runs(0, 4, unchecked_bound=True)


def test_v3_reads_carry_the_lac(cluster: Cluster) -> None:
    """RD-9: an unconfirmed read of the first entry tells how far one may read."""
    with bk_core.connect(cluster.uri, protocol="v3") as client:
        writer = written(cluster, 1)
        with client.open_ledger(writer.ledger_id) as reader:
            for i in range(1, 5):
                writer.append(b"%d" % i)
            before = reader.last_add_confirmed
            assert before < 3
            reader.read_unconfirmed(0, 0)
            assert reader.last_add_confirmed >= 3
        writer.close()


def test_a_try_needs_one_bookie(cluster: Cluster) -> None:
    """LC-3: where a quorum read (LC-1) cannot succeed."""
    writer = written(cluster, 3)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        for i in range(3, 6):
            writer.append(b"%d" % i)
        for bookie in cluster.bookies[:2]:
            bookie.close()
        with pytest.raises(ReadError):
            reader.read_last_add_confirmed()
        assert reader.try_read_last_add_confirmed() >= 4
    writer.abandon()


# --- following -------------------------------------------------------------------------------------------------------------


def test_a_tail_gives_everything_until_the_close(cluster: Cluster) -> None:
    """LC-5..LC-8: from before the first entry; each entry once, in order."""
    writer = cluster.client.create_ledger()
    with cluster.client.open_ledger(writer.ledger_id) as reader, ThreadPoolExecutor(1) as threads:
        seen = threads.submit(lambda: [p for run in reader.tail() for p in run.payloads()])
        for i in range(200):
            writer.append(b"%d" % i)
        writer.close()
        assert seen.result(30) == payloads(200)
        assert reader.is_closed


def test_a_tail_sees_an_entry_without_a_successor(cluster: Cluster) -> None:
    """LC-5: by the explicit LAC, long before the poll is over."""
    writer = cluster.client.create_ledger()
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        runs = reader.tail(timeout_s=20)
        for i in range(3):
            writer.append(b"%d" % i)
            assert next(runs).payloads() == [b"%d" % i]
        runs.close()  # type: ignore[attr-defined]
    writer.close()


def test_a_tail_may_stop_after_silence(cluster: Cluster) -> None:
    """LC-8: which is not the end of the ledger."""
    writer = written(cluster, 3)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        assert [p for run in reader.tail(timeout_s=0.3) for p in run.payloads()] == payloads(3)
        assert not reader.is_closed
        assert not reader.wait_for(50, 0.05)
    writer.close()


@pytest.mark.parametrize("how", ["handle", "client", "deleted"])
def test_who_waits_is_woken(cluster: Cluster, how: str) -> None:
    """L-11, LOG-13: by a close of the handle or the client, and by the deletion of the ledger."""
    writer = written(cluster, 1)
    writer.append(b"last")
    client = bk_core.connect(cluster.uri)
    reader = client.open_ledger(writer.ledger_id)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(list, reader.tail(1000)), threads.submit(reader.wait_for, 1000, 60)]
        eventually(lambda: len(reader._streams) == 2)
        if how == "handle":
            reader.close()
        elif how == "client":
            client.close()
        else:
            cluster.store.delete_ledger(writer.ledger_id)
        for future in waiting:
            with pytest.raises(NoSuchLedgerError if how == "deleted" else ClientClosedError):
                future.result(30)
        if how == "deleted":  # the bookies have it for a while, but nobody waits for more of it
            with pytest.raises(NoSuchLedgerError):
                next(reader.tail(0))
            with pytest.raises(NoSuchLedgerError):
                reader.wait_for(1000, 60)
    client.close()
    writer.abandon()


def test_a_closed_handle_reads_no_more(cluster: Cluster) -> None:
    """L-11."""
    writer = written(cluster, 2)
    writer.close()
    reader = cluster.client.open_ledger(writer.ledger_id)
    reader.close()
    with pytest.raises(ClientClosedError):
        reader.read(0, 1)


def test_a_deleted_ledger_says_so_when_it_is_asked(cluster: Cluster) -> None:
    """LOG-13."""
    writer = written(cluster, 2)
    with cluster.client.open_ledger(writer.ledger_id) as reader:
        cluster.store.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            reader.refresh()
    writer.abandon()


@pytest.mark.parametrize("how", ["range", "tail"])
def test_a_client_that_is_closed_while_somebody_reads_makes_no_connection_any_more(
    cluster: Cluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that is told that its link is closed asks another bookie."""
    client = bk_core.connect(cluster.uri)
    ledger = client.create_ledger()
    ledger.append_many([bytes(10_000)] * 3000)
    ledger.append(b"tells the bookies how far the ledger is confirmed")
    with caplog.at_level(logging.WARNING, logger="bk_core"):
        handle = client.open_ledger(ledger.ledger_id)
        runs = handle.read_runs(0, handle.last_add_confirmed) if how == "range" else handle.tail(0)
        next(runs)
        links = client._session._links
        client.close()
        assert all(link._closed for link in links.values())
    assert "reactor" not in caplog.text and "not closed within" not in caplog.text
    runs.close()
