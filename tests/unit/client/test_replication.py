"""The blocking side of re-replication: the lock looked at before each compare-and-set (RR-11)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.client.client import BookKeeper
from bk_core.client.repair import draining
from bk_core.client.repair.draining import check_room
from bk_core.client.repair.jobs import _Job, _ReplicationDriver
from bk_core.client.repair.report import Progress, StillNamed
from bk_core.config import ClientConfig
from bk_core.errors import (
    BkError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecoveryFailedError,
    ReplicationError,
    UnauthorizedError,
)
from bk_core.metadata import open_store
from bk_core.protocol.events import LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import FragmentReport, FragmentSpan, ReplicaReport
from bk_core.protocol.wire.messages import Status
from tests.unit.client.ledgers_in_memory import ABC, change, four_bookies, opened, store_ledger

METADATA = LedgerMetadata(1, 1, 1, LedgerState.OPEN, (Fragment(0, ("a",)),)).closed(0, 1)


class Lock:
    def __init__(self, held: bool | Exception) -> None:
        self.held = held

    def is_held(self) -> bool:
        if isinstance(self.held, Exception):
            raise self.held
        return self.held

    def release(self) -> None:
        self.held = False


class Session:
    """Runs metadata calls at once."""

    tracers = ()

    def __init__(self) -> None:
        self.config = ClientConfig("memory://x")
        self.written: list[int] = []
        self.store = SimpleNamespace(write_ledger=self._write)
        self.reactor = SimpleNamespace(now_ns=lambda: 0)

    def _write(self, ledger_id: int, data: bytes, version: int) -> int:
        self.written.append(version)
        return version + 1

    def metadata_call(self, function: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        try:
            result = function()
        except Exception as error:
            then(None, error)
        else:
            then(result, None)


class Machine:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def handle(self, event: Any, now_ns: int) -> list[Any]:
        self.events.append(event)
        return []


@pytest.mark.parametrize(
    ("held", "outcome", "writes"),
    [
        (True, Outcome.OK, 1),
        (False, Outcome.REFUSED, 0),
        (MetadataUnavailableError("no answer"), Outcome.UNKNOWN, 0),
    ],
)
def test_rr11_without_the_lock_nothing_is_written(held: bool | Exception, outcome: Outcome, writes: int) -> None:
    """RR-11: a lock that went with its session refuses the write for good; if nobody can tell, it is asked again."""
    session, machine = Session(), Machine()
    driver = _ReplicationDriver(session, 7, Lock(held))
    driver.machine = machine
    driver._write_ledger(1, METADATA, 4)
    (event,) = machine.events
    assert isinstance(event, LedgerWritten) and event.outcome is outcome
    assert len(session.written) == writes
    if held is False:
        assert isinstance(event.error, ReplicationError) and "lock" in str(event.error)


# --- whole jobs over a store in memory; nothing here needs a bookie that answers ------------------------------------------


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BookKeeper]:
    monkeypatch.setattr(draining, "GONE_S", 0.2)
    with four_bookies(request.node.name) as made:
        yield made


def test_rr3_an_open_tail_is_left_alone_unless_asked_for(client: BookKeeper) -> None:
    """RR-3, R16: recovery stops a live writer, so it takes a word; the lock is free again afterwards (RR-11)."""
    ledger_id = store_ledger(client, opened(("a:1", "gone:1", "c:1")))
    report = client.repair_ledger(ledger_id)
    assert report.open_tail_lost == ("gone:1",) and not report.is_complete and not report.changed
    assert client.store.underreplication().lock_holder(ledger_id) is None
    assert not client.check_ledger(ledger_id).is_good


def test_rr3_recovery_comes_when_the_grace_period_is_over(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-3: then the ledger is CLOSED and its fragments may be repaired (RR-2)."""
    ledger_id = store_ledger(client, opened(("a:1", "gone:1", "c:1")))
    recovered: list[bytes] = []

    def recover(self: BookKeeper, number: int, *, password: bytes, digest_type: DigestType) -> Any:
        recovered.append(password)
        change(self, number, self.ledger_metadata(number).closed(-1, 0))
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(BookKeeper, "recover_ledger", recover)
    report = client.repair_ledger(ledger_id, recover_open=True, grace_s=0.0)
    assert recovered == [b"pw"] and report.recovered and report.is_complete
    assert client.check_ledger(ledger_id).is_good  # empty and CLOSED: nobody misses the bookie (R17)


def test_rr3_a_writer_that_helps_itself_in_time_is_not_stopped(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-3: looked at again before anything is fenced."""
    ledger_id = store_ledger(client, opened(("a:1", "gone:1", "c:1")))
    monkeypatch.setattr(BookKeeper, "recover_ledger", lambda *_arguments, **_options: pytest.fail("the writer was stopped"))
    steps: list[str] = []

    def writer(progress: Progress) -> None:
        if not steps:
            change(client, ledger_id, opened(("a:1", "x:1", "c:1")))
        steps.append(progress.step)

    report = client.repair_ledger(ledger_id, recover_open=True, grace_s=30.0, on_progress=writer)
    assert steps == ["wait"] and report.is_complete and not report.recovered


@pytest.mark.parametrize("error", [RecoveryFailedError, UnauthorizedError])
def test_rr8_a_recovery_that_fails_is_reported(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, error: type[BkError]) -> None:
    """RR-8: the other ledgers of a run are not given up for it, nor for a ledger whose password nobody gave."""
    ledger_id = store_ledger(client, opened(("a:1", "gone:1", "c:1")))

    def recover(self: BookKeeper, number: int, *, password: bytes, digest_type: DigestType) -> Any:
        raise error("too few bookies")

    monkeypatch.setattr(BookKeeper, "recover_ledger", recover)
    report = client.repair_ledger(ledger_id, recover_open=True, grace_s=0.0)
    assert report.problems == ["too few bookies"] and not report.recovered


def test_rr11_another_replicators_ledger_is_left_alone(client: BookKeeper) -> None:
    """RR-11: for as long as we care to wait; the moment it is free we go on."""
    ledger_id = store_ledger(client, opened(ABC).closed(-1, 0))
    other = open_store(client.config.uri)
    lock = other.underreplication().lock(ledger_id, "worker-7")
    assert lock is not None
    report = client.repair_ledger(ledger_id, lost=["a:1"], only_lost=True, lock_wait_s=0.0)
    assert report.locked_by == "worker-7" and not report.is_complete
    assert client.ledger_metadata(ledger_id).fragments[0].ensemble == ABC
    report = client.repair_ledger(ledger_id, lost=["a:1"], only_lost=True, on_progress=lambda _: lock.release())
    assert report.is_complete and report.moved[0].new == "x:1"
    other.close()


def test_rr6_without_a_spare_bookie_the_name_stays(client: BookKeeper) -> None:
    """RR-6: targets are neither lost nor in the fragment; with none left that is said and nothing is changed."""
    ledger_id = store_ledger(client, opened(ABC).closed(-1, 0))
    report = client.repair_ledger(ledger_id, lost=["a:1", "x:1"], only_lost=True)
    assert len(report.problems) == 1 and "a:1 in fragment 0" in report.problems[0]
    assert client.ledger_metadata(ledger_id).fragments[0].ensemble == ABC


def test_marks_go_when_nothing_is_missing(client: BookKeeper) -> None:
    """metadata.md 1.4: at the version that was read; ledgers that are gone lose theirs too."""
    marks = client.store.underreplication()
    whole, gone = store_ledger(client, opened(ABC).closed(-1, 0)), 4711
    tail = store_ledger(client, opened(("a:1", "gone:1", "c:1")))
    for ledger_id in (whole, gone, tail):
        marks.mark(ledger_id, ["gone:1"], 1)
    assert client.repair_ledger(whole).is_complete
    with pytest.raises(NoSuchLedgerError, match=f"ledger {gone} does not exist"):
        client.repair_ledger(gone)
    client.repair_ledger(tail)
    assert list(marks.marked_ledgers()) == [tail]


def test_a_ledger_that_goes_while_it_is_repaired_is_reported(client: BookKeeper) -> None:
    """Only one that was never there is the caller's mistake."""
    ledger_id = store_ledger(client, opened(ABC).closed(9, 10))
    report = client.repair_ledger(ledger_id, lost=["a:1"], on_progress=lambda _: client.delete_ledger(ledger_id))
    assert report.deleted and "deleted meanwhile" in repr(report)


def test_decommission_passes_over_a_ledger_that_went_since_the_look(client: BookKeeper, emptied: str) -> None:
    ledger_id = store_ledger(client, opened((emptied, "b:1", "c:1")).closed(-1, 0))
    report = client.decommission_bookie(emptied, on_ledger=lambda *_: client.delete_ledger(ledger_id))
    assert report.is_complete and not report.still_named


def test_g27_no_seal_over_a_replica_that_gives_no_answer(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-27, I-G2: all is well at a quick look; then, while an older fragment is read entry by entry, a bookie falls silent."""
    rows = tuple(Fragment(first, ABC) for first in (0, 10, 20))
    marked = LedgerMetadata(3, 3, 2, LedgerState.CLOSED, rows, password=b"pw", custom={"gwq": b"1"}, last_entry_id=29, length=30)
    ledger_id = store_ledger(client, marked)

    def check(job: _Job, spans: Sequence[FragmentSpan], *, full: bool, positions: Any = None) -> list[FragmentReport]:
        return [one(span, Status.TIMEOUT if full and span.first_entry_id == 0 else None) for span in spans]

    def one(span: FragmentSpan, silent: Status | None) -> FragmentReport:
        rows = (ReplicaReport(p, bookie, True, silent=silent if p == 2 else None) for p, bookie in enumerate(span.ensemble))
        return FragmentReport(span, tuple(rows))

    monkeypatch.setattr(_Job, "_check_many", check)
    monkeypatch.setattr(_Job, "_copy", lambda job, machine, span: None)
    report = client.repair_ledger(ledger_id)
    assert not report.sealed and not client.ledger_metadata(ledger_id).sealed
    assert any("c:1 is registered but gives no answer" in problem for problem in report.problems)


def test_decommission_ends_when_no_fragment_names_the_bookie(client: BookKeeper) -> None:
    """RR-7: fragments that store nothing exchange the name as well; the cookie stays while the bookie is up."""
    empty = store_ledger(client, opened(ABC).closed(-1, 0))
    other = store_ledger(client, opened(("b:1", "c:1", "x:1")).closed(-1, 0))
    tail = store_ledger(client, opened(ABC))
    client.store.write_cookie("a:1", b"5\n", None)
    looked: list[tuple[int, int, int]] = []
    report = client.decommission_bookie("a:1", delete_cookie=True, on_ledger=lambda *step: looked.append(step))
    assert report.named_by == [tail] and not report.is_complete and not report.cookie_deleted
    assert looked[:2] == [(1, 2, empty), (2, 2, tail)]
    assert client.ledger_metadata(empty).fragments[0].ensemble == ("x:1", "b:1", "c:1")
    change(client, tail, client.ledger_metadata(tail).closed(-1, 0))
    report = client.decommission_bookie("a:1", delete_cookie=True)
    assert not report.still_named and not report.is_complete  # RR-14: writable, so it may be named at any time
    assert report.writable and report.registered and not report.cookie_deleted
    assert client.ledger_metadata(other).fragments[0].ensemble == ("b:1", "c:1", "x:1")
    with pytest.raises(InvalidArgumentError, match="there is no bookie never:1: no ledger names it"):
        client.decommission_bookie("never:1", delete_cookie=True)
    with pytest.raises(InvalidArgumentError, match="stopped=True vouches that the cookie may be deleted: give delete_cookie=True, too"):
        client.decommission_bookie("a:1", stopped=True)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    assert client.decommission_bookie("127.0.0.1:2", delete_cookie=True).cookie_deleted


@pytest.fixture
def emptied(client: BookKeeper) -> str:
    """A fifth bookie, which is read-only as one that is to be emptied should be."""
    client.store.register_bookie("old:1", "127.0.0.1", 1, readonly=True)
    return "old:1"


def test_decommission_waits_for_an_empty_bookie_to_be_stopped_and_forgets_it(client: BookKeeper) -> None:
    """With ``delete_cookie`` and time: whoever stops it is told when. It may have turned writable meanwhile, so there is another look."""
    registration = client.store.register_bookie("old:1", "127.0.0.1", 1, readonly=True)
    client.store.write_cookie("old:1", b"5\n", None)
    first = store_ledger(client, opened(("old:1", "b:1", "c:1")).closed(-1, 0))
    late: list[int] = []

    def stopped() -> None:
        assert "old:1" not in client.ledger_metadata(first).fragments[0].ensemble
        late.append(store_ledger(client, opened(("old:1", "b:1", "c:1")).closed(-1, 0)))
        threading.Timer(0.2, registration.close).start()

    report = client.decommission_bookie("old:1", wait_s=60.0, delete_cookie=True, on_empty=stopped)
    assert report.is_complete and report.cookie_deleted and not report.registered and len(late) == 1
    assert "old:1" not in client.ledger_metadata(late[0]).fragments[0].ensemble and "old:1" not in client.store.cookies()


@pytest.mark.parametrize("wait_s", [0.0, 0.3])
def test_decommission_keeps_the_cookie_of_a_bookie_that_is_not_stopped(client: BookKeeper, emptied: str, wait_s: float) -> None:
    client.store.write_cookie(emptied, b"5\n", None)
    told: list[None] = []
    report = client.decommission_bookie(emptied, wait_s=wait_s, delete_cookie=True, on_empty=lambda: told.append(None))
    assert report.is_complete and report.registered and not report.cookie_deleted and emptied in client.store.cookies()
    assert len(told) == (1 if wait_s else 0)


def test_decommission_ends_well_for_a_bookie_without_a_cookie_that_is_stopped(client: BookKeeper) -> None:
    """Nothing knows it any more when the last look begins."""
    registration = client.store.register_bookie("old:1", "127.0.0.1", 1, readonly=True)
    ledger_id = store_ledger(client, opened(("old:1", "b:1", "c:1")).closed(-1, 0))
    report = client.decommission_bookie("old:1", wait_s=60.0, delete_cookie=True, on_empty=registration.close)
    assert report.is_complete and [repair.ledger_id for repair in report.repairs] == [ledger_id] and not report.cookie_deleted


def test_a_bookie_is_not_made_read_only_where_no_other_could_take_its_copies(client: BookKeeper) -> None:
    store_ledger(client, opened(ABC))
    check_room(client, "a:1")
    everywhere = store_ledger(client, replace(opened((*ABC, "x:1")), ensemble_size=4))
    with pytest.raises(
        NotEnoughBookiesError, match=r"bookie a:1 stays writable: 1 ledger has all writable bookies \(3 more\) in a fragment"
    ):
        check_room(client, "a:1")
    client.store.register_bookie("y:1", "127.0.0.1", 1)
    check_room(client, "a:1")
    client.delete_ledger(everywhere)


def test_decommission_keeps_the_cookie_of_a_bookie_that_still_takes_connections(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process: its registration has lapsed, and it goes on later, with a registration and without a cookie. One that only takes
    a moment to end is waited for."""
    monkeypatch.setattr(draining, "ENDS_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = frozen.getsockname()[:2]
        bookie = f"127.0.0.1:{address[1]}"
        client.store.write_cookie(bookie, b"5\n", None)
        report = client.decommission_bookie(bookie, delete_cookie=True)
        assert report.is_complete and report.runs_at == address and bookie in client.store.cookies()
    monkeypatch.setattr(draining, "ENDS_S", 60.0)
    with socket.create_server(address) as ending:
        threading.Timer(0.5, ending.close).start()
        report = client.decommission_bookie(bookie, delete_cookie=True)
    assert report.cookie_deleted and report.runs_at is None


@pytest.mark.parametrize("refuses_s", [0.0, 1.0])
def test_decommission_keeps_the_cookie_of_a_bookie_that_restarts(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, refuses_s: float
) -> None:
    """Its address refuses connections while the new process begins, and takes them before it is registered."""
    monkeypatch.setattr(draining, "GONE_S", 60.0)
    with socket.create_server(("127.7.7.7", 0)) as old:  # where nobody else takes the port meanwhile
        address = old.getsockname()[:2]
    bookie = f"127.7.7.7:{address[1]}"
    client.store.write_cookie(bookie, b"5\n", None)
    with ExitStack() as ending:

        def listens() -> None:
            ending.enter_context(socket.create_server(address))

        def registers() -> None:
            client.store.register_bookie(bookie, *address)

        steps = [threading.Timer(refuses_s, listens), threading.Timer(refuses_s + 0.5, registers)]
        for step in steps:
            step.start()
        report = client.decommission_bookie(bookie, delete_cookie=True)
        for step in steps:
            step.join()
    assert report.registered and not report.cookie_deleted and bookie in client.store.cookies()


def test_decommission_keeps_the_cookie_of_a_bookie_that_goes_on_meanwhile(client: BookKeeper) -> None:
    """It was frozen, registers again while its end is awaited, and takes a ledger: it is moved off it once more, and not forgotten."""
    with socket.create_server(("127.0.0.1", 0)) as process:
        address = process.getsockname()[:2]
        bookie = f"127.0.0.1:{address[1]}"
        client.store.write_cookie(bookie, b"5\n", None)
        taken: list[int] = []

        def goes_on() -> None:
            client.store.register_bookie(bookie, *address)
            taken.append(store_ledger(client, opened((bookie, "b:1", "c:1")).closed(-1, 0)))

        thaw = threading.Timer(0.5, goes_on)
        thaw.start()
        report = client.decommission_bookie(bookie, wait_s=30.0, delete_cookie=True)
        thaw.join()
    assert report.registered and report.writable and not report.cookie_deleted and report.runs_at is None
    assert bookie in client.store.cookies() and bookie not in client.ledger_metadata(taken[0]).fragments[0].ensemble


# A full queue of connections answers as little as a host that is gone.
@pytest.mark.parametrize("where", ["bk..cluster:3181", "shelf-1", "full queue", "one of two addresses"])
def test_decommission_keeps_the_cookie_where_nobody_can_tell_whether_the_process_has_ended(
    where: str, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller vouches that it has. A bookie that has no cookie has none to keep."""
    monkeypatch.setattr(draining, "CONNECT_S", 0.3)
    with ExitStack() as queues:
        bookie = where if where in {"bk..cluster:3181", "shelf-1"} else f"127.0.0.1:{full_queue(queues)}"
        if where == "one of two addresses":
            port = int(bookie.rpartition(":")[2])
            bookie = f"two.addresses:{port}"
            both = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_: both)
        client.store.write_cookie(bookie, b"5\n", None)
        report = client.decommission_bookie(bookie, delete_cookie=True)
        assert report.is_complete and not report.cookie_deleted and report.runs_at is None and bookie in client.store.cookies()
        assert report.unseen.startswith("nobody knows where it was: its id is no address" if where == "shelf-1" else "nothing answers at ")
        report = client.decommission_bookie(bookie, delete_cookie=True, stopped=True)
        assert report.cookie_deleted and not report.unseen and bookie not in client.store.cookies()


def full_queue(queues: ExitStack) -> int:
    """Return a port whose system takes no more connections, and refuses none."""
    listening = queues.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    port: int = listening.getsockname()[1]
    for _ in range(8):
        waiting = queues.enter_context(socket.socket())
        waiting.setblocking(False)
        with suppress(BlockingIOError):
            waiting.connect(("127.0.0.1", port))
    return port


def test_decommission_keeps_the_cookie_of_a_process_that_runs_whatever_the_caller_says(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "ENDS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        bookie = f"127.0.0.1:{frozen.getsockname()[1]}"
        client.store.write_cookie(bookie, b"5\n", None)
        report = client.decommission_bookie(bookie, delete_cookie=True, stopped=True)
    assert report.runs_at is not None and not report.cookie_deleted and bookie in client.store.cookies()


@pytest.mark.parametrize("ends", ["is stopped", "turns read-only", "was started"])
def test_rr14_a_bookie_that_stops_during_the_last_look_is_looked_for_again(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """RR-14. It took ledgers whose places the look had passed."""
    registration = client.store.register_bookie("127.0.0.1:2", "127.0.0.1", 2)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    if ends == "was started":
        registration.close()
    late: list[int] = []
    listed = client.list_ledgers

    def list_ledgers() -> list[int]:
        found = list(listed())
        if not late:
            again = client.store.register_bookie("127.0.0.1:2", "127.0.0.1", 2) if ends == "was started" else registration
            late.append(store_ledger(client, opened(("127.0.0.1:2", "b:1", "c:1")).closed(-1, 0)))
            again.set_readonly(True) if ends == "turns read-only" else again.close()
        return found

    monkeypatch.setattr(client, "list_ledgers", list_ledgers)
    report = client.decommission_bookie("127.0.0.1:2", delete_cookie=True)
    assert "127.0.0.1:2" not in client.ledger_metadata(late[0]).fragments[0].ensemble or report.named_by == late
    assert report.cookie_deleted is (ends != "turns read-only" and not report.named_by)


@pytest.mark.parametrize("sight", ["flaps", "cut off", "cut off once"])
def test_rr14_what_happens_during_each_look_keeps_nobody_for_ever(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, sight: str) -> None:
    """RR-14. The time is over, and the bookie is writable for a moment during each look, or the connection to the store is lost in it, so
    that nobody knows. The looks end, and the bookie does not count as empty."""
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    listed, looks = client.list_ledgers, list[int]()

    def list_ledgers() -> list[int]:
        looks.append(1)
        if sight == "flaps":
            client.store.register_bookie("127.0.0.1:2", "127.0.0.1", 2).close()
        return list(listed())

    monkeypatch.setattr(client, "list_ledgers", list_ledgers)
    losses = {"flaps": lambda: 0, "cut off": lambda: len(looks), "cut off once": lambda: min(1, len(looks))}[sight]
    monkeypatch.setattr(type(client.store), "losses", lambda _: losses())
    if sight == "cut off":
        with pytest.raises(MetadataUnavailableError, match=r"lost during each look .* so bookie 127.0.0.1:2 may be named by some"):
            client.decommission_bookie("127.0.0.1:2", delete_cookie=True)
    else:
        report = client.decommission_bookie("127.0.0.1:2", delete_cookie=True)
        assert report.cookie_deleted is report.is_complete is (sight == "cut off once") and report.writable is (sight == "flaps")
    assert ("127.0.0.1:2" in client.store.cookies()) is (sight != "cut off once")
    assert len(looks) == (2 if sight == "cut off once" else draining.LOOKS_AGAIN_MAX + 1)


@pytest.mark.parametrize("back", ["is registered", "listens"])
def test_a_process_that_had_read_its_cookie_gets_it_back(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, back: str) -> None:
    """It was starting while its cookie was deleted, and refused connections still: between the two lies a second with Apache's bookies."""
    monkeypatch.setattr(draining, "ENDS_S", 0.0)
    with socket.create_server(("127.7.7.7", 0)) as old:  # where nobody else takes the port meanwhile
        address = old.getsockname()[:2]
    bookie = f"127.7.7.7:{address[1]}"
    client.store.write_cookie(bookie, b"5\n", None)
    delete = client.delete_cookie
    with ExitStack() as ending:

        def starts(which: str) -> bool:
            monkeypatch.setattr(draining, "GONE_S", 60.0)
            deleted = delete(which)
            if back == "listens":
                ending.enter_context(socket.create_server(address))
            else:
                client.store.register_bookie(bookie, *address)
            return deleted

        monkeypatch.setattr(client, "delete_cookie", starts)
        report = client.decommission_bookie(bookie, delete_cookie=True)
    assert not report.cookie_deleted and client.store.read_cookie(bookie).data == b"5\n"
    assert (report.registered, report.writable, report.runs_at) == ((False, False, address) if back == "listens" else (True, True, None))


@pytest.mark.parametrize("end", [KeyboardInterrupt(), MetadataUnavailableError("there is no connection")])
def test_an_end_right_after_the_deletion_of_a_cookie(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, end: BaseException) -> None:
    """Ctrl-C puts the cookie back, because nobody looked whether the bookie was starting. Without the store it stays deleted, and that is
    told."""
    monkeypatch.setattr(draining, "ENDS_S", 0.0)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    deleted, delete, bookies = [], client.delete_cookie, type(client.store).bookies

    def deletes(bookie: str) -> bool:
        deleted.append(bookie)
        return delete(bookie)

    def ends(store: Any) -> Any:
        if deleted:
            raise end
        return bookies(store)

    monkeypatch.setattr(client, "delete_cookie", deletes)
    monkeypatch.setattr(type(client.store), "bookies", ends)
    with pytest.raises(type(end)) as told:
        client.decommission_bookie("127.0.0.1:2", delete_cookie=True)
    is_interrupt = isinstance(end, KeyboardInterrupt)
    assert deleted and ("127.0.0.1:2" in client.store.cookies()) is is_interrupt
    assert is_interrupt or "the cookie of bookie 127.0.0.1:2 is deleted, and whether it was starting" in str(told.value)


def test_an_interrupt_while_a_cookie_is_deleted_puts_it_back(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had deleted it when Ctrl-C came, and its answer was awaited."""
    monkeypatch.setattr(draining, "ENDS_S", 0.0)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    delete = client.delete_cookie

    def deletes(bookie: str) -> bool:
        delete(bookie)
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "delete_cookie", deletes)
    with pytest.raises(KeyboardInterrupt):
        client.decommission_bookie("127.0.0.1:2", delete_cookie=True)
    assert client.store.read_cookie("127.0.0.1:2").data == b"5\n"


def test_a_cookie_that_cannot_be_put_back_is_told(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie is there again, and the store has gone."""
    monkeypatch.setattr(draining, "ENDS_S", 0.0)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    delete = client.delete_cookie

    def write(*_: Any) -> None:
        raise MetadataUnavailableError("there is no connection")

    def starts(bookie: str) -> bool:
        monkeypatch.setattr(type(client.store), "write_cookie", write)
        deleted = delete(bookie)
        client.store.register_bookie(bookie, "127.0.0.1", 2)
        return deleted

    monkeypatch.setattr(client, "delete_cookie", starts)
    with pytest.raises(
        MetadataUnavailableError, match=r"is deleted and could not be put back: there is no connection; .*cookie put 127.0.0.1:2 FILE"
    ):
        client.decommission_bookie("127.0.0.1:2", delete_cookie=True)


def test_decommission_forgets_a_dead_bookie_at_whose_address_another_one_is(client: BookKeeper) -> None:
    """That proves its end. The other one came before the command, or has the address in another spelling."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        client.store.write_cookie(f"127.0.0.1:{port}", b"5\n", None)
        client.store.register_bookie("newcomer", "127.0.0.1", port)
        assert client.decommission_bookie(f"127.0.0.1:{port}", delete_cookie=True).cookie_deleted
        client.store.write_cookie("shelf", b"5\n", None)
        registration = client.store.register_bookie("shelf", "localhost", port, readonly=True)
        assert client.decommission_bookie("shelf", wait_s=30.0, delete_cookie=True, on_empty=registration.close).cookie_deleted


def test_decommission_takes_no_other_bookie_for_the_one_it_forgets(client: BookKeeper) -> None:
    """Another one has got the address of a bookie that moved before it was stopped."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()[:2]
        registration = client.store.register_bookie("shelf-1", "127.0.0.1", 2, readonly=True)
        client.store.write_cookie("shelf-1", b"5\n", None)

        def moves_and_ends() -> None:
            nonlocal registration
            registration.close()
            registration = client.store.register_bookie("shelf-1", *address, readonly=True)
            registration.close()
            client.store.register_bookie("shelf-2", *address)

        report = client.decommission_bookie("shelf-1", wait_s=30.0, delete_cookie=True, on_empty=moves_and_ends)
    assert report.cookie_deleted and report.runs_at is None


def test_rr16_a_bookie_that_is_spared_keeps_its_replicas(client: BookKeeper) -> None:
    """The ledger is not complete, so its mark stays."""
    ledger_id = store_ledger(client, opened(("away:1", "b:1", "gone:1")).closed(0, 1))
    report = client.repair_ledger(ledger_id, spared=["away:1", "gone:1"])
    assert not report.is_complete and client.ledger_metadata(ledger_id).fragments[0].ensemble == ("away:1", "b:1", "gone:1")
    assert any(problem.startswith("away:1 is away for now") for problem in report.problems)


def test_decommission_waits_for_writers_to_move_on(client: BookKeeper, emptied: str) -> None:
    tail = store_ledger(client, opened((emptied, "b:1", "c:1")))

    def writer(number: int, of: int, ledger_id: int) -> None:
        change(client, tail, opened(("x:1", "b:1", "c:1")))

    assert client.decommission_bookie(emptied, wait_s=20.0, on_ledger=writer).is_complete


@pytest.mark.parametrize("wait_s", [0.0, 0.5])
def test_rr14_writers_that_go_on_do_not_keep_it_for_ever(client: BookKeeper, emptied: str, wait_s: float) -> None:
    """RR-14: each repair of a ledger is answered by a new ledger. It ends with the caller's time, and says what names the bookie then."""
    rounds: list[list[int]] = []
    store_ledger(client, opened((emptied, "b:1", "c:1")).closed(-1, 0))

    def writer(number: int, of: int, ledger_id: int) -> None:
        if number == 1:
            rounds.append([])
        rounds[-1].append(ledger_id)
        store_ledger(client, opened((emptied, "b:1", "c:1")).closed(-1, 0))

    report = client.decommission_bookie(emptied, wait_s=wait_s, on_ledger=writer)
    assert len(report.named_by) == 1 and not report.is_complete
    assert rounds[0] == [0] and report.named_by == [sum(map(len, rounds))]
    assert wait_s or len(rounds) == 1
    assert [repair.ledger_id for repair in report.repairs] == list(range(report.named_by[0]))


def test_rr14_a_ledger_that_came_meanwhile_is_reported_with_its_use(client: BookKeeper, emptied: str) -> None:
    """RR-14: what is reported is of a look at all ledgers after the last repair, not of those that were found first."""
    store_ledger(client, opened((emptied, "b:1", "c:1")).closed(-1, 0))
    newer: list[int] = []

    def writer(number: int, of: int, ledger_id: int) -> None:
        if not newer:
            newer.append(store_ledger(client, replace(opened((emptied, "b:1", "c:1")), custom={"log": b"events"})))
            moved_on = replace(opened((emptied, "b:1", "c:1")), fragments=(Fragment(0, (emptied, "b:1", "c:1")), Fragment(5, ABC)))
            newer.append(store_ledger(client, moved_on))

    report = client.decommission_bookie(emptied, on_ledger=writer)
    assert report.still_named == [
        StillNamed(newer[0], LedgerState.OPEN, written=True, log="events"),
        StillNamed(newer[1], LedgerState.OPEN),
    ]
    assert not report.is_complete


def test_rr14_a_ledger_that_nobody_understands_is_not_passed_over(client: BookKeeper, emptied: str) -> None:
    ledger_id = client.store.new_ledger_id()
    client.store.create_ledger(ledger_id, b"BookieMetadataFormatVersion\t9\n")
    report = client.decommission_bookie(emptied)
    assert report.named_by == [ledger_id] and "9 is not one of" in str(report.still_named[0].problem)


def test_rr14_this_client_places_nothing_on_a_bookie_that_it_empties(client: BookKeeper) -> None:
    """RR-14. Afterwards it may, as everybody else may all the while."""
    store_ledger(client, opened(ABC).closed(-1, 0))
    chosen: list[tuple[str, ...]] = []
    client.decommission_bookie("a:1", on_ledger=lambda *_: chosen.append(client._session.placement.new_ensemble(3, 3)))
    assert [set(ensemble) for ensemble in chosen] == [{"b:1", "c:1", "x:1"}]
    assert {bookie for _ in range(50) for bookie in client._session.placement.new_ensemble(3, 3)} == {*ABC, "x:1"}


def test_rr15_many_fragments_are_exchanged_by_few_changes(client: BookKeeper) -> None:
    """RR-15, RR-7: 640 fragments that store nothing name the bookie; at most one change for each 20 of them."""
    rows = tuple(Fragment(first, ABC) for first in range(640))
    ledger_id = store_ledger(client, replace(opened(ABC), fragments=rows, state=LedgerState.CLOSED))
    report = client.repair_ledger(ledger_id, lost=["a:1"], only_lost=True)
    assert report.is_complete and len(report.moved) == 640
    assert client.store.read_ledger(ledger_id).version <= 32
    assert all(fragment.ensemble == ("x:1", "b:1", "c:1") for fragment in client.ledger_metadata(ledger_id).fragments)
