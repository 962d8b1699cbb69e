"""The threads of auto-recovery: callbacks that fail, the vote, and the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bk_core import AutoRecoveryOptions, BookKeeper, RecoveryEvent, connect
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.client.repair import autorecovery
from bk_core.client.repair.autorecovery import AutoRecovery
from bk_core.metadata import open_store
from bk_core.protocol.ledger.replication import Ended
from bk_core.threads import SafeFuture
from tests.unit.client.ledgers_in_memory import ABC, opened, store_ledger

QUICK = AutoRecoveryOptions(look_s=0.05)
PATIENCE_S = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[BookKeeper]:
    uri = f"memory://{tmp_path.name}"
    open_store(uri).initialize_cluster()
    with connect(uri) as client:
        yield client


class Teller:
    """A callback that fails each time with ``error``; ``called`` is set at the ``at``-th call."""

    def __init__(self, error: BaseException, at: int) -> None:
        self._error = error
        self._at = at
        self._calls = 0
        self.called = threading.Event()

    def __call__(self, _: RecoveryEvent) -> None:
        self._calls += 1
        if self._calls >= self._at:
            self.called.set()
        raise self._error


@pytest.mark.parametrize("error", [OSError("the disk is full"), SystemExit("so it says")])
def test_a_callback_that_fails_ends_nothing(client: BookKeeper, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """The auditor goes on, and takes its vote back at the end: no other one could be elected."""
    told, votes = Teller(error, 3), client.store.underreplication()
    running = client.auto_recovery(QUICK, on_event=told)
    with caplog.at_level(logging.ERROR, "bk_core.client"), running:
        while not told.called.wait(0.1):
            assert all(thread.is_alive() for thread in running._threads)
            votes.set_disabled(not votes.is_disabled())
        assert votes.auditor() is not None
        assert all(thread.is_alive() for thread in running._threads)
    assert votes.auditor() is None
    assert f"a callback of auto-recovery failed: {'this is the auditor'}" in caplog.text and str(error) in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_vote_goes_with_a_thread_that_dies(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    running = client.auto_recovery(QUICK)
    elected = threading.Event()
    leads = AutoRecovery._leads

    def leads_once(self: AutoRecovery) -> bool:
        assert leads(self)
        elected.set()
        raise SystemExit

    monkeypatch.setattr(AutoRecovery, "_leads", leads_once)
    running.start()
    assert elected.wait(PATIENCE_S)
    running._threads[0].join(PATIENCE_S)
    assert client.store.underreplication().auditor() is None
    running.close()


def test_a_repair_that_breaks_is_tried_later(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises: the ledgers behind it are repaired at once."""
    running, seen, ended = client.auto_recovery(QUICK), [], {}

    def breaks(_: AutoRecovery, ledger_id: int) -> Ended:
        seen.append(ledger_id)
        if ledger_id == 7:
            raise RuntimeError("a bug")
        return Ended.DONE

    monkeypatch.setattr(AutoRecovery, "_repair_one", breaks)
    monkeypatch.setattr(running._queue, "ended", lambda ledger_id, how, _: ended.update({ledger_id: how}))
    worker = threading.Thread(target=running._work, args=([8, 7],))  # of its own, because it is marked as one of the client's
    worker.start()
    worker.join(PATIENCE_S)
    assert seen == [7, 8] and ended == {7: Ended.FAILED, 8: Ended.DONE}


def test_a_close_in_the_callback_waits_for_nothing(client: BookKeeper) -> None:
    """It would wait for itself, and for threads that wait for the end of the call."""
    outcome: SafeFuture[float] = SafeFuture()

    def closes(_: RecoveryEvent) -> None:
        began = time.monotonic()
        try:
            running.close()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(time.monotonic() - began)

    running = client.auto_recovery(QUICK, on_event=closes)
    running.start()
    assert outcome.result(PATIENCE_S) < 10
    for thread in running._threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert client.store.underreplication().auditor() is None
    running.close()


def test_a_close_waits_for_all_threads_together(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autorecovery, "JOIN_S", 3.0)
    free, busy = threading.Event(), threading.Barrier(4)

    def hangs(_: AutoRecovery) -> None:
        if not free.is_set():
            busy.wait(PATIENCE_S)
            free.wait(PATIENCE_S)

    for turn in ("_audit_turn", "_check_turn", "_repair_turn"):
        monkeypatch.setattr(AutoRecovery, turn, hangs)
    running = client.auto_recovery(QUICK).start()
    busy.wait(PATIENCE_S)
    began = time.monotonic()
    running.close()
    took = time.monotonic() - began
    free.set()
    assert 2.9 < took < 5.5, "three threads, each of which would have had its time"
    for thread in running._threads:
        thread.join(PATIENCE_S)


def test_looks_that_bookies_refuse_are_taken_ever_more_seldom(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-19."""
    running, votes = client.auto_recovery(QUICK), client.store.underreplication()
    running._is_elected = True
    refusing: tuple[str, ...] = ("a:1",)
    monkeypatch.setattr(client, "list_ledgers", lambda: iter([7]))
    monkeypatch.setattr(autorecovery, "check_ledger", lambda *_: SimpleNamespace(not_admitting=refusing, open_tail_lost=(), fragments=()))
    pauses = []
    for _ in range(3):
        ended_ns = time.monotonic_ns()
        running._check_all()
        pauses.append(round((running._check_again_ns - ended_ns) / 60e9))
    assert pauses == [5, 10, 20] and votes.checked_ms() is None
    refusing = ()
    running._check_all()
    assert votes.checked_ms() is not None
    refusing = ("a:1",)
    ended_ns = time.monotonic_ns()
    running._check_all()
    assert round((running._check_again_ns - ended_ns) / 60e9) == 5, "what was refused before a look that nobody refused does not count"


def test_a_bookie_that_answers_without_a_registration_is_not_lost(client: BookKeeper, tmp_path: Path) -> None:
    """RR-16: it may register again; after an outage of the metadata store that takes all bookies a moment."""
    told: list[RecoveryEvent] = []
    bookies = [EmbeddedBookie(tmp_path / str(number), store=client.store).start() for number in range(4)]
    try:
        with client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as ledger:
            ledger.append(b"x")
        for bookie in bookies[1:]:
            assert bookie._registration is not None
            bookie._registration.close()
        ends = sorted(bookie.bookie_id for bookie in bookies[1:])
        with client.auto_recovery(AutoRecoveryOptions(look_s=0.05, delay_s=600.0), on_event=told.append):
            until(lambda: any(event.kind == "spared" for event in told))
            bookies[1].close()
            bookies[1] = EmbeddedBookie(tmp_path / "1", store=client.store, port=bookies[1].port).start()
            until(lambda: len(client.bookies().writable) == 2)
        (spared,) = [event for event in told if event.kind == "spared"]
        assert list(spared.bookies) == ends and not [event for event in told if event.kind in ("lost", "marked")]
        assert not list(client.store.underreplication().marked_ledgers())
    finally:
        for bookie in bookies:
            bookie.close()


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "never seen"])
def test_a_bookie_with_an_id_of_its_own_is_asked_where_it_was(client: BookKeeper, known: bool) -> None:
    """RR-16. Without an address nobody can tell whether it runs, so it has its minute as well."""
    client.store.register_bookie("a:1", "127.0.0.1", 1)
    client.store.write_cookie("shelf", b"5\n", None)
    registration = client.store.register_bookie("shelf", "127.0.0.1", 1)  # where nothing listens
    if not known:
        registration.close()
    told: list[RecoveryEvent] = []
    with client.auto_recovery(QUICK, on_event=told.append) as running:
        if known:
            until(lambda: "shelf" in running._addresses)
            registration.close()
        until(lambda: any(event.bookies == ("shelf",) for event in told))
    assert [event.kind for event in told if event.bookies == ("shelf",)][0] == ("lost" if known else "spared")


def test_who_does_not_audit_follows_and_asks_nobody(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-16. Elected later, it knows that a dead bookie was marked, so that one shortens no other's time."""
    client.store.register_bookie("a:1", "127.0.0.1", 1)
    away = client.store.register_bookie("b:1", "127.0.0.1", 1)
    for bookie in ("b:1", "dead:1"):
        client.store.write_cookie(bookie, b"5\n", None)
    asked: list[object] = []
    monkeypatch.setattr(autorecovery, "probe_bookies", lambda _client, bookies, **_: asked.append(bookies) or {})
    told: list[RecoveryEvent] = []
    following = client.auto_recovery(AutoRecoveryOptions(delay_s=0.0), on_event=told.append)
    monkeypatch.setattr(following, "_leads", lambda: False)
    following._audit_turn()
    following._options = AutoRecoveryOptions(delay_s=600.0)
    away.close()
    monkeypatch.setattr(following, "_leads", lambda: True)
    following._audit_turn()
    assert not asked and not told, "one is away for less than its time, and the other was marked"


def test_a_worker_without_an_auditor_beside_it_leaves_what_no_mark_names(client: BookKeeper, tmp_path: Path) -> None:
    """RR-16: another host says which bookie is lost. Here the mark names one of two that are away."""
    bookies = {one.bookie_id: one for one in (EmbeddedBookie(tmp_path / str(n), store=client.store).start() for n in range(5))}
    try:
        with client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as ledger:
            ledger.append(b"x")
        lost, away, _ = client.ledger_metadata(ledger.ledger_id).fragments[0].ensemble
        for bookie in (lost, away):
            bookies[bookie].close()
        marks, told = client.store.underreplication(), list[RecoveryEvent]()
        marks.mark(ledger.ledger_id, [lost], 1)
        with client.auto_recovery(AutoRecoveryOptions(look_s=0.05), audits=False, on_event=told.append):
            until(lambda: any(event.kind == "repaired" for event in told))
            ensemble = client.ledger_metadata(ledger.ledger_id).fragments[0].ensemble
            assert lost not in ensemble and away in ensemble and marks.mark_of(ledger.ledger_id) is not None
            marks.mark(ledger.ledger_id, [away], 1)
            until(lambda: away not in client.ledger_metadata(ledger.ledger_id).fragments[0].ensemble)
    finally:
        for bookie in bookies.values():
            bookie.close()


@pytest.mark.parametrize("stray", ["bk..cluster:3181", f"{'x' * 70}:3181"], ids=["empty label", "long label"])
def test_a_stray_cookie_stops_no_auditor(client: BookKeeper, stray: str) -> None:
    """No system takes such a host; whoever is really lost is marked all the same."""
    for bookie in ("a:1", "b:1"):
        client.store.register_bookie(bookie, "127.0.0.1", 1)
    client.store.write_cookie(stray, b"5\n", None)
    client.store.write_cookie("127.0.0.1:2", b"5\n", None)
    told: list[RecoveryEvent] = []
    with client.auto_recovery(QUICK, on_event=told.append):
        until(lambda: any("127.0.0.1:2" in event.bookies for event in told if event.kind == "lost"))
    assert not [event for event in told if event.kind == "trouble"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_time_that_a_bookie_is_away_is_followed_while_auto_recovery_is_off(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-16. It came back meanwhile, so its time begins anew when it restarts."""
    now_ns = [10**12]
    monkeypatch.setattr(
        autorecovery, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0], monotonic=time.monotonic, time_ns=time.time_ns)
    )
    store, switch = client.store, client.store.underreplication()
    for bookie in (*ABC, "x:1"):
        store.write_cookie(bookie, b"5\n", None)
    registrations = {bookie: store.register_bookie(bookie, "127.0.0.1", 1) for bookie in (*ABC, "x:1")}
    ledger_id = store_ledger(client, opened(ABC).closed(-1, 0))
    running = client.auto_recovery(AutoRecoveryOptions(delay_s=600.0), repairs=False)

    def after(seconds: int) -> list[int]:
        now_ns[0] += seconds * 10**9
        running._audit_turn()
        return list(switch.marked_ledgers())

    assert after(0) == []
    registrations["a:1"].close()
    assert after(1) == []
    switch.set_disabled(True)
    assert after(1) == []
    back = store.register_bookie("a:1", "127.0.0.1", 1)
    assert after(3600) == []
    back.close()
    assert after(1) == []
    switch.set_disabled(False)
    assert after(1) == [] and after(590) == []
    switch.set_disabled(True)
    assert after(20) == []
    switch.set_disabled(False)
    assert after(0) == [ledger_id]
