"""The duties of every metadata store, as one function over a way to open stores of one and the same cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bk_core.errors import (
    BookieUnavailableError,
    ClientClosedError,
    InvalidArgumentError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata import BookieView, MetadataStore
from bk_core.metadata.service_info import address_of
from bk_core.metadata.underreplication import UnderreplicationStore

OpenStore = Callable[[], MetadataStore]

WAIT_S = 60.0


def eventually(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@contextmanager
def opened(open_store: OpenStore) -> Iterator[MetadataStore]:
    store = open_store()
    try:
        yield store
    finally:
        store.close()


def check_metadata_store(open_store: OpenStore, *, dated: bool = True) -> None:
    """``open_store`` opens independent handles on one cluster, fresh and not initialised. ``dated``: nodes that others read, too, carry the
    time at which they were made; those of logs do in any case."""
    with opened(open_store) as one, opened(open_store) as two:
        _check_cluster(one, two)
        _check_ids(one, two)
        _check_ledgers(one, two, dated)
        _check_clock(one, two)
        _check_logs(one, two)
        _check_watches(one, two)
        _check_cookies(one, two)
        _check_underreplication(one, two, open_store)
        _check_bookies(one, two, open_store, dated)
        _check_rack_map(one, two)
    _check_closed(open_store)


def _check_cluster(one: MetadataStore, two: MetadataStore) -> None:
    assert one.instance_id() is None
    instance_id = one.initialize_cluster()
    assert len(instance_id) == 36
    assert two.initialize_cluster() == instance_id == two.instance_id()
    assert one.bookies() == BookieView((), ())
    assert list(one.list_ledgers()) == []


def _check_ids(one: MetadataStore, two: MetadataStore) -> None:
    seen: list[int] = []

    def take(store: MetadataStore) -> None:
        for _ in range(10):
            seen.append(store.new_ledger_id())

    threads = [threading.Thread(target=take, args=(store,)) for store in (one, two, one)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(seen)) == 30
    assert min(seen) >= 0


def _check_ledgers(one: MetadataStore, two: MetadataStore, dated: bool) -> None:
    ids = [7, 0, 12345, 2**31 - 2]
    for ledger_id in ids:
        assert one.create_ledger(ledger_id, b"metadata %d" % ledger_id) == 0
    assert list(two.list_ledgers()) == sorted(ids)
    read = two.read_ledger(7)
    assert (read.data, read.version) == (b"metadata 7", 0)
    assert (read.created_ms is not None) is dated and (not dated or abs(read.created_ms - time.time() * 1000) < 3_600_000)
    together = dict(two.read_ledgers([12345, 3, 7]))  # in the order that was asked for, with none for one that is not there
    assert [one and one.data for one in together.values()] == [b"metadata 12345", None, b"metadata 7"] and together[7] == read
    assert list(two.read_ledgers([])) == []
    assert two.gone_ledgers(iter([12345, 3, 7, 99])) == [3, 99] and two.gone_ledgers([]) == []
    with pytest.raises(NodeExistsError):
        two.create_ledger(7, b"other")
    version = two.write_ledger(7, b"second", read.version)
    assert version > read.version
    with pytest.raises(VersionConflictError):
        one.write_ledger(7, b"third", read.version)
    assert one.read_ledger(7).data == b"second"
    assert one.write_ledger(7, b"third", version) > version
    many = [12345, 99, 0, *ids, *range(1000, 1600)]  # more than are asked for at once
    told = list(two.read_ledgers(iter(many)))
    assert [ledger_id for ledger_id, _ in told] == many
    assert {ledger_id for ledger_id, stored in told if stored is not None} == set(ids)
    assert dict(told)[7] == one.read_ledger(7)
    for ledger_id in ids:
        one.delete_ledger(ledger_id)
        two.delete_ledger(ledger_id)  # absent is success
    assert list(one.list_ledgers()) == []
    with pytest.raises(NoNodeError):
        one.read_ledger(7)
    with pytest.raises(NoNodeError):
        one.write_ledger(7, b"late", 0)
    with pytest.raises(InvalidArgumentError):
        one.read_ledger(-1)


def _check_clock(one: MetadataStore, two: MetadataStore) -> None:
    """JAN-1: one clock for all, which nodes are stamped with, and it goes on."""
    before = one.clock_ms()
    one.create("logs/timed", b"1")
    made = two.read("logs/timed")
    assert made.created_ms == made.modified_ms is not None and before <= made.created_ms + 1
    eventually(lambda: two.clock_ms() > made.created_ms)
    two.write("logs/timed", b"2", made.version)
    written = one.read("logs/timed")
    assert written.created_ms == made.created_ms and written.modified_ms > made.created_ms
    assert abs(one.clock_ms() - two.clock_ms()) < 5_000
    one.delete("logs/timed")


def _check_logs(one: MetadataStore, two: MetadataStore) -> None:
    assert one.children("logs") == []
    assert one.create("logs/flights", b"v0") == 0
    one.create("logs/delays", b"")
    assert two.children("logs") == ["delays", "flights"]
    assert set(two.children("")) - {"clock"} == {"logs"}
    with pytest.raises(NodeExistsError):
        two.create("logs/flights", b"again")
    version = two.write("logs/flights", b"v1", 0)
    assert (one.read("logs/flights").data, one.read("logs/flights").version) == (b"v1", version)
    with pytest.raises(VersionConflictError):
        one.write("logs/flights", b"v2", 0)
    with pytest.raises(VersionConflictError):
        one.delete("logs/flights", 0)
    one.delete("logs/flights", version)
    one.delete("logs/flights")
    with pytest.raises(NoNodeError):
        two.read("logs/flights")
    with pytest.raises(NoNodeError):
        two.write("logs/flights", b"", version)
    one.delete("logs/delays")
    assert two.children("logs") == []
    assert list(one.list_ledgers()) == []  # logs lie outside the ledgers root
    for wrong in ("", "/logs", "logs/", "a//b", "a/../b"):
        with pytest.raises(InvalidArgumentError):
            one.read(wrong)
    with pytest.raises(InvalidArgumentError):
        one.create("big", b"x" * 1_000_001)


def _check_watches(one: MetadataStore, two: MetadataStore) -> None:
    one.create_ledger(1, b"")
    ledger, log, cancelled = [], [], []
    watches = [one.watch_ledger(1, lambda: ledger.append(1)), one.watch("watched", lambda: log.append(1))]
    one.watch_ledger(1, lambda: cancelled.append(1)).cancel()
    for round_ in range(3):
        two.write_ledger(1, b"x", round_)
        eventually(lambda: len(ledger) == round_ + 1)  # noqa: B023
    two.delete_ledger(1)
    eventually(lambda: len(ledger) == 4)
    two.create("watched", b"")
    eventually(lambda: len(log) == 1)
    two.delete("watched")
    eventually(lambda: len(log) == 2)
    for watch in watches:
        watch.cancel()
    two.create("watched", b"")
    two.delete("watched")
    assert (len(log), cancelled) == (2, [])


def _check_cookies(one: MetadataStore, two: MetadataStore) -> None:
    with pytest.raises(NoNodeError):
        one.read_cookie("bk1:3181")
    version = one.write_cookie("bk1:3181", b"5\n", None)
    with pytest.raises(NodeExistsError):
        two.write_cookie("bk1:3181", b"5\n", None)
    newer = two.write_cookie("bk1:3181", b"5\nx", version)
    with pytest.raises(VersionConflictError):
        one.write_cookie("bk1:3181", b"", version)
    assert one.read_cookie("bk1:3181").data == b"5\nx"
    with pytest.raises(VersionConflictError):
        one.delete_cookie("bk1:3181", version)
    one.delete_cookie("bk1:3181", newer)
    with pytest.raises(NoNodeError):
        two.read_cookie("bk1:3181")
    with pytest.raises(InvalidArgumentError):
        one.write_cookie("a/b", b"", None)


def _check_underreplication(one: MetadataStore, two: MetadataStore, open_store: OpenStore) -> None:
    """RR-11: marks merge and go only at the version that was read; a lock has one holder and ends with its session."""
    mine, other = one.underreplication(), two.underreplication()
    assert list(mine.marked_ledgers()) == [] and mine.mark_of(3) is None and mine.lock_holder(3) is None
    mine.mark(3, ["bk1:3181"], 17)
    mine.mark(2**40, ["bk1:3181"], 17)
    assert list(other.marked_ledgers()) == [3, 2**40]
    mark = other.mark_of(3)
    assert mark is not None and (mark.ledger_id, mark.replicas, mark.created_ms) == (3, ("bk1:3181",), 17)
    mine.mark(3, ["bk2:3181", "bk1:3181"], 18)
    assert not other.unmark(mark)
    mark = other.mark_of(3)
    assert mark is not None and (mark.replicas, mark.created_ms) == (("bk1:3181", "bk2:3181"), 17)
    assert other.unmark(mark) and other.mark_of(3) is None and list(mine.marked_ledgers()) == [2**40]
    far = mine.mark_of(2**40)
    assert far is not None and mine.unmark(far)
    assert list(one.list_ledgers()) == []  # nothing of this counts as a ledger
    lock = mine.lock(3, "host-1")
    assert lock is not None and lock.is_held()
    assert other.lock(3, "host-2") is None and mine.lock(3, "host-1") is None and other.lock_holder(3) == "host-1"
    lock.release()
    assert not lock.is_held()
    with opened(open_store) as third:
        assert third.underreplication().lock(3, "host-3") is not None
        assert mine.lock(3, "host-1") is None
    taken = mine.lock(3, "host-1")
    assert taken is not None
    taken.release()
    assert not mine.is_disabled()
    assert mine.set_disabled(True) and other.is_disabled() and not other.set_disabled(True)
    assert other.set_disabled(False) and not mine.is_disabled() and not mine.set_disabled(False)
    assert mine.auditor() is None and mine.recovery_delay_s() is None
    for seconds in (300, 0, 86_400):
        mine.set_recovery_delay(seconds)
        assert other.recovery_delay_s() == seconds
    _check_candidates(mine, other, open_store)
    assert mine.checked_ms() is None
    for now_ms in (1, 127, 128, 1_800_000_000_000):
        mine.note_checked(now_ms)
        assert other.checked_ms() == now_ms


def _check_candidates(mine: UnderreplicationStore, other: UnderreplicationStore, open_store: OpenStore) -> None:
    """One is elected; whoever withdraws or whose session ends is followed by the next one."""
    first, second = mine.candidate("host-1"), other.candidate("host-2")
    assert mine.auditor() is None
    assert first.is_elected() and not second.is_elected() and first.is_elected()
    assert other.auditor() == "host-1"
    first.withdraw()
    assert second.is_elected() and not first.is_elected() and mine.auditor() == "host-2"
    second.withdraw()
    assert first.is_elected()
    first.withdraw()
    with opened(open_store) as third:
        assert third.underreplication().candidate("host-3").is_elected()
        assert not first.is_elected()
    eventually(first.is_elected)
    first.withdraw()
    assert mine.auditor() is None


def _check_bookies(one: MetadataStore, two: MetadataStore, open_store: OpenStore, dated: bool) -> None:
    views: list[BookieView] = []
    watch = two.watch_bookies(views.append)
    assert views == [BookieView((), ())]
    first = one.register_bookie("bookie-a", "127.0.0.1", 3181)
    eventually(lambda: views[-1] == BookieView(("bookie-a",), ()))
    second = one.register_bookie("bookie-b", "127.0.0.2", 3182, readonly=True)
    eventually(lambda: views[-1] == BookieView(("bookie-a",), ("bookie-b",)))
    assert two.resolve("bookie-a") == ("127.0.0.1", 3181)
    assert two.resolve("bookie-b") == ("127.0.0.2", 3182)
    told = [two.registration(name) for name in ("bookie-a", "bookie-b", "bookie-c")]
    assert [None if one is None else address_of("x", one.data) for one in told] == [("127.0.0.1", 3181), ("127.0.0.2", 3182), None]
    assert told[0] is not None and (told[0].created_ms is not None) is dated
    with pytest.raises(NodeExistsError):
        one.register_bookie("bookie-a", "127.0.0.9", 1)
    first.set_readonly(True)
    eventually(lambda: views[-1] == BookieView((), ("bookie-a", "bookie-b")))
    first.set_readonly(False)
    second.close()
    eventually(lambda: views[-1] == BookieView(("bookie-a",), ()))
    first.close()
    first.close()
    first.set_readonly(True)  # its bookie was told so while it stopped
    eventually(lambda: two.bookies() == BookieView((), ()))
    with opened(open_store) as third:
        third.register_bookie("bookie-a", "127.0.0.3", 3183)
        eventually(lambda: _is_at(two, "bookie-a", ("127.0.0.3", 3183)))
    eventually(lambda: views[-1] == BookieView((), ()))  # closing the store ended its registrations
    _check_two_at_one_address(one, two)
    _check_registrations_anew(one, two, views)
    watch.cancel()
    eventually(lambda: _unresolvable(two, "bookie-a"))
    assert _unresolvable(two, "bookie-a")  # and not where it was
    with opened(open_store) as third:
        third.register_bookie("bookie-a", "127.0.0.4", 3184)
        assert two.resolve("bookie-a") == ("127.0.0.4", 3184)
        assert _unresolvable(two, "127.0.0.4:3184")  # an id without a registration, that looks like another's address
        assert two.resolve("127.0.0.5:3184") == ("127.0.0.5", 3184)
        there = third.register_bookie("bookie-e", "127.0.0.5", 3184)  # what is known of the addresses follows each change
        assert _unresolvable(two, "127.0.0.5:3184")
        there.close()
        there = third.register_bookie("bookie-e", "127.0.0.6", 3184)
        eventually(lambda: _is_at(two, "127.0.0.5:3184", ("127.0.0.5", 3184)))
        eventually(lambda: _unresolvable(two, "127.0.0.6:3184"))
        there.close()
        eventually(lambda: _is_at(two, "127.0.0.6:3184", ("127.0.0.6", 3184)))
        third.register_bookie("10.0.0.5:3181", "localhost", 3185)  # an id that is an address, registered at another one
        assert two.resolve("10.0.0.5:3181") == ("localhost", 3185)
        assert _unresolvable(two, "127.0.0.1:3185") and _unresolvable(two, "::1:3185")
        assert two.resolve("127.0.0.2:3185") == ("127.0.0.2", 3185)
    assert two.resolve("h:3181") == ("h", 3181)


def _check_two_at_one_address(one: MetadataStore, two: MetadataStore) -> None:
    """The registration of a killed bookie stands for a while, and another one has its address by then: the later one holds."""
    dead = one.register_bookie("shelf-0", "127.0.0.7", 3181)
    assert two.resolve("shelf-0") == ("127.0.0.7", 3181)
    fresh = one.register_bookie("shelf-3", "127.0.0.7", 3181)
    assert one.resolve("shelf-3") == two.resolve("shelf-3") == ("127.0.0.7", 3181)
    assert _unresolvable(one, "shelf-0")
    eventually(lambda: _unresolvable(two, "shelf-0"))  # which had its address before
    fresh.close()
    eventually(lambda: not _unresolvable(one, "shelf-0") and not _unresolvable(two, "shelf-0"))
    fresh = one.register_bookie("shelf-3", "127.0.0.7", 3181)
    eventually(lambda: _unresolvable(two, "shelf-0"))
    ordinary = two.register_bookie("127.0.0.9:3181", "127.0.0.9", 3181)
    assert one.resolve("127.0.0.9:3181") == ("127.0.0.9", 3181)
    stranger = two.register_bookie("shelf-9", "127.0.0.9", 3181)
    eventually(lambda: _unresolvable(one, "127.0.0.9:3181"))
    stranger.close()
    eventually(lambda: not _unresolvable(one, "127.0.0.9:3181"))
    ordinary.close()
    dead.close()
    assert _unresolvable(one, "shelf-0")
    back = one.register_bookie("shelf-0", "127.0.0.8", 3181)
    eventually(lambda: _is_at(two, "shelf-0", ("127.0.0.8", 3181)))
    fresh.close()
    back.close()
    eventually(lambda: two.bookies() == BookieView((), ()))


def _check_registrations_anew(one: MetadataStore, two: MetadataStore, views: list[BookieView]) -> None:
    """A watch tells of each registration anew, however soon it follows the last one: by a view without the bookie, or by ``anew``."""
    registered = one.register_bookie("bookie-a", "127.0.0.1", 3181)
    eventually(lambda: views[-1].registered == {"bookie-a"})
    for _ in range(20):
        two.resolve("bookie-a")
        seen = len(views)
        registered.close()
        registered = one.register_bookie("bookie-a", "127.0.0.1", 3181)
        eventually(lambda seen=seen: any(not view.registered or view.anew == {"bookie-a"} for view in views[seen:]))
        eventually(lambda: views[-1].registered == {"bookie-a"})
    registered.close()
    eventually(lambda: views[-1] == BookieView((), ()))


def _check_rack_map(one: MetadataStore, two: MetadataStore) -> None:
    with pytest.raises(NoNodeError):
        one.read_rack_map()
    changes: list[int] = []
    watch = two.watch_rack_map(lambda: changes.append(1))
    version = one.write_rack_map(b"{}", None)
    eventually(lambda: len(changes) == 1)
    with pytest.raises(NodeExistsError):
        two.write_rack_map(b"{}", None)
    newer = two.write_rack_map(b'{"default": {}}', version)
    eventually(lambda: len(changes) == 2)
    with pytest.raises(VersionConflictError):
        one.write_rack_map(b"", version)
    assert (one.read_rack_map().data, one.read_rack_map().version) == (b'{"default": {}}', newer)
    assert one.bookies() == BookieView((), ())  # it lies outside the ledgers root
    assert list(one.list_ledgers()) == []
    watch.cancel()


def _unresolvable(store: MetadataStore, bookie_id: str) -> bool:
    return _is_at(store, bookie_id, None)


def _is_at(store: MetadataStore, bookie_id: str, address: tuple[str, int] | None) -> bool:
    """Return True if the store tells this address now; None stands for a refusal. The watch that tells of a change may be late."""
    try:
        return store.resolve(bookie_id) == address
    except BookieUnavailableError:
        return address is None


def _check_closed(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    store.close()
    with pytest.raises(ClientClosedError):
        store.read_ledger(1)
    with pytest.raises(ClientClosedError):
        list(store.read_ledgers([1]))
    with pytest.raises(ClientClosedError):
        store.bookies()
