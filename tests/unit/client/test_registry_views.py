"""A session reads lists of registered bookies: who came, who registered anew, and which list is newer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

import bk_core
from bk_core.client import session as client_session
from bk_core.client.session import Session
from bk_core.errors import MetadataDeniedError, MetadataUnavailableError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import BookieView
from bk_core.protocol.events import BookiesChanged

FIRST, SECOND, THIRD = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.9:1"


class Slow(MemoryStore):
    """A store in which one thread reads the registry and then waits."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.initialize_cluster()
        self.waiting: threading.Thread | None = None
        self.has_read, self.go_on = threading.Event(), threading.Event()

    def bookies(self) -> BookieView:
        view = super().bookies()
        if threading.current_thread() is self.waiting:
            self.has_read.set()
            assert self.go_on.wait(30)
        return view


class Told:
    """A link and a writer that take down what they are told."""

    def __init__(self, bookie: str) -> None:
        self.bookie, self.address = bookie, None
        self.returns = 0
        self.came: list[frozenset[str]] = []
        self.lost: list[tuple[tuple[str, int], str]] = []

    def returned(self) -> None:
        self.returns += 1

    def moved(self, _address: object) -> bool:
        return False

    def given_away(self, address: tuple[str, int], bookie: str) -> None:
        self.lost.append((address, bookie))

    def feed(self, event: BookiesChanged) -> None:
        self.came.append(event.came)

    def close(self) -> None:
        pass


@pytest.fixture
def store() -> Slow:
    return Slow()


@pytest.fixture
def session(store: Slow) -> Iterator[Session]:
    with bk_core.connect("memory://views", store=store) as client:
        yield client._session


def on_reactor(session: Session, function: object) -> None:
    done: Future[None] = Future()
    session.reactor.post(lambda: done.set_result(function()))  # type: ignore[operator]
    done.result(30)


def test_a_refresh_does_not_replace_what_the_watch_brought_meanwhile(store: Slow, session: Session) -> None:
    store.register_bookie(FIRST, "10.0.0.1", 1)
    store.waiting = threading.Thread(target=session.refresh_bookies)
    store.waiting.start()
    assert store.has_read.wait(30)
    coming = threading.Thread(target=lambda: store.register_bookie(THIRD, "10.0.0.9", 1))
    coming.start()
    deadline = time.monotonic() + 30
    while store.bookies().writable != (FIRST, THIRD):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    coming.join(0.2)  # it tells the session of it, or waits for the look that is under way
    store.go_on.set()
    for one in (store.waiting, coming):
        one.join(30)
    assert session.bookies().writable == (FIRST, THIRD)


@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "read-only"])
def test_the_pause_ends_when_a_bookie_registers_again(store: Slow, session: Session, readonly: bool) -> None:
    """LINK-7. A bookie that comes back as read-only is read from."""
    registered = store.register_bookie(FIRST, "10.0.0.1", 1)
    link = Told(FIRST)
    on_reactor(session, lambda: session._links.update({(FIRST, "data", 0): link}))  # type: ignore[dict-item]
    registered.close()
    on_reactor(session, lambda: None)
    before = link.returns
    store.register_bookie(FIRST, "10.0.0.1", 1, readonly=readonly)
    on_reactor(session, lambda: None)
    assert link.returns == before + 1
    on_reactor(session, session._links.clear)


def test_a_registration_anew_between_two_lists_counts_as_one(store: Slow, session: Session) -> None:
    """LINK-4, LINK-7, EC-6: ``anew`` says it of a bookie that both lists have. A read-only one takes no entries."""
    link, writer = Told(FIRST), Told("")
    on_reactor(session, lambda: session._links.update({(FIRST, "data", 0): link}))  # type: ignore[dict-item]
    on_reactor(session, lambda: session.tell_of_bookies(writer, True))  # type: ignore[arg-type]
    session._bookies_changed(BookieView((FIRST, SECOND), (THIRD,)))
    on_reactor(session, lambda: None)
    before = link.returns
    session._bookies_changed(BookieView((FIRST, SECOND), (THIRD,), frozenset({FIRST, THIRD})))
    on_reactor(session, lambda: None)
    assert link.returns == before + 1 and writer.came[-1] == {FIRST}
    on_reactor(session, session._links.clear)


def test_addresses_that_nobody_told_are_asked_for_again(store: Slow, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-4. Until then a connection for one bookie may lead to another one that has got its address."""
    monkeypatch.setattr(client_session, "ASK_AGAIN_NS", 1_000_000)
    link, answered = Told(THIRD), threading.Event()
    link.given_away = lambda address, bookie: (link.lost.append((address, bookie)), answered.set())  # type: ignore[assignment, func-returns-value]
    on_reactor(session, lambda: session._links.update({(THIRD, "data", 0): link}))  # type: ignore[dict-item]
    resolve, failures = store.resolve, iter(range(3))

    def resolves(bookie: str) -> tuple[str, int]:
        if bookie == FIRST and next(failures, None) is not None:
            raise MetadataUnavailableError("there is no connection")
        return resolve(bookie)

    monkeypatch.setattr(store, "resolve", resolves)
    on_reactor(session, lambda: setattr(session, "_has_seen_bookies", True))
    store.register_bookie(FIRST, "10.0.0.1", 1)
    assert answered.wait(30) and link.lost == [(("10.0.0.1", 1), FIRST)] and next(failures, None) is None
    on_reactor(session, session._links.clear)


def test_racks_of_bookies_that_registered_anew_are_looked_for_anew(session: Session) -> None:
    told: list[tuple[frozenset[str], frozenset[str], int]] = []
    session.racks = SimpleNamespace(bookies_changed=lambda *of_them: told.append(of_them))  # type: ignore[assignment]
    session._bookies_changed(BookieView((FIRST, SECOND), (THIRD,)))
    session._bookies_changed(BookieView((FIRST, SECOND), (THIRD,), frozenset({FIRST})))
    session.racks = None
    assert [(bookies, anew) for bookies, anew, _ in told] == [({FIRST, SECOND, THIRD}, set()), ({FIRST, SECOND, THIRD}, {FIRST})]
    assert told[1][2] == told[0][2] + 1


def test_a_view_is_not_kept_behind_the_racks_of_an_older_one(session: Session) -> None:
    """Racks ask the metadata store. Nobody waits for that with a newer view, and the older one does not replace it, but who registered anew
    is told."""
    link = Told(FIRST)
    on_reactor(session, lambda: session._links.update({(FIRST, "data", 0): link}))  # type: ignore[dict-item]
    asking, go_on = threading.Event(), threading.Event()

    def ask(_bookies: object, anew: frozenset[str], _number: int) -> None:
        if anew:
            asking.set()
            assert go_on.wait(30)

    session._bookies_changed(BookieView((FIRST,), ()))
    session.racks = SimpleNamespace(bookies_changed=ask)  # type: ignore[assignment]
    older = threading.Thread(target=session._bookies_changed, args=(BookieView((FIRST,), (), frozenset({FIRST})),))
    older.start()
    assert asking.wait(30)
    session._bookies_changed(BookieView((FIRST, SECOND), ()))
    on_reactor(session, lambda: None)
    assert session.bookies().writable == (FIRST, SECOND)
    before = link.returns
    go_on.set()
    older.join(30)
    on_reactor(session, lambda: None)
    session.racks = None
    assert session.bookies().writable == (FIRST, SECOND) and link.returns == before + 1
    on_reactor(session, session._links.clear)


def test_an_address_is_that_of_the_bookie_that_registered_there_last(store: Slow, session: Session) -> None:
    """LINK-4: the registration of a dead bookie stands for a while, and its address may be another one's by then, which would take its
    entries."""
    registered = store.register_bookie("shelf-0", "10.0.0.7", 1)
    link = Told("shelf-0")
    on_reactor(session, lambda: session._links.update({("shelf-0", "data", 0): link}))  # type: ignore[dict-item]
    assert resolved(session, "shelf-0") == (("10.0.0.7", 1), "")
    newer = store.register_bookie("shelf-3", "10.0.0.7", 1)
    until(lambda: link.lost == [(("10.0.0.7", 1), "shelf-3")])
    address, problem = resolved(session, "shelf-0")
    assert address is None and "so bookie shelf-0 is not there any more" in problem
    assert resolved(session, "shelf-3")[0] == ("10.0.0.7", 1)
    newer.close()
    assert resolved(session, "shelf-0")[0] == ("10.0.0.7", 1)
    registered.close()
    on_reactor(session, session._links.clear)


def test_a_bookie_of_which_nothing_may_be_read_does_not_keep_the_others_from_being_looked_for(
    store: Slow, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LINK-4"""
    resolve, found = store.resolve, list[str]()

    def denied(bookie: str) -> tuple[str, int]:
        if bookie == "shelf-1":
            raise MetadataDeniedError("not for you")
        return resolve(bookie)

    monkeypatch.setattr(store, "resolve", denied)
    registered = [store.register_bookie(f"shelf-{number}", "10.0.0.7", number + 1) for number in range(3)]
    done = threading.Event()
    on_reactor(
        session,
        lambda: session._addresses_of(["shelf-0", "shelf-1", "shelf-2"], lambda bookie, _: found.append(bookie), lambda *_: done.set()),
    )
    assert done.wait(30) and found == ["shelf-0", "shelf-2"]
    for registration in registered:
        registration.close()


def test_two_bookies_that_changed_places_unseen_are_found(store: Slow, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-4: the client was cut off meanwhile, and the list that it gets is the same."""
    places = [("10.0.0.7", 1), ("10.0.0.8", 1)]
    shelves = [store.register_bookie(f"shelf-{number}", *place) for number, place in enumerate(places)]
    assert [resolved(session, f"shelf-{number}")[0] for number in (0, 1)] == places
    monkeypatch.setattr(session, "_bookies_changed", lambda _view: None)
    for registration in shelves:
        registration.close()
    shelves = [store.register_bookie(f"shelf-{number}", *place) for number, place in enumerate(reversed(places))]
    monkeypatch.undo()
    session._bookies_changed(store.bookies())
    assert [resolved(session, f"shelf-{number}")[0] for number in (0, 1)] == places[::-1]
    for registration in shelves:
        registration.close()


def test_an_answer_about_a_bookie_that_has_moved_since_takes_no_address_from_another(store: Slow, session: Session) -> None:
    """LINK-4: it comes behind the registration of whoever is there now."""
    moved = store.register_bookie("shelf-0", "10.0.0.7", 1)
    moved.close()
    moved = store.register_bookie("shelf-0", "10.0.0.8", 1)
    there = store.register_bookie("shelf-1", "10.0.0.7", 1)
    on_reactor(session, lambda: session._came_at("shelf-0", ("10.0.0.7", 1)))
    assert resolved(session, "shelf-1")[0] == ("10.0.0.7", 1) and resolved(session, "shelf-0")[0] == ("10.0.0.8", 1)
    moved.close()
    there.close()


def resolved(session: Session, bookie: str) -> tuple[object, str]:
    found: Future[tuple[object, str]] = Future()
    session.reactor.post(lambda: session._resolver.resolve(bookie, lambda *answer: found.set_result(answer)))  # type: ignore[arg-type]
    return found.result(30)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Late(Slow):
    """A store that may be away. ``looks`` counts the times that the registry was read."""

    looks = 0
    away = False

    def bookies(self) -> BookieView:
        self.looks += 1
        if self.away:
            raise MetadataUnavailableError("nobody answers")
        return super().bookies()


def looked(session: Session, count: int = 1) -> list[Exception | None]:
    """Return the answers to ``count`` writers that ask for a look in one go."""
    told: list[Future[Exception | None]] = [Future() for _ in range(count)]

    def ask() -> None:
        for one in told:
            session.look_for_bookies(one.set_result)

    on_reactor(session, ask)
    return [one.result(30) for one in told]


def test_what_a_look_finds_is_told_before_the_look_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """EC-6: the view, the racks and who came are there when the writer decides again."""
    monkeypatch.setattr("bk_core.metadata.memory._MemoryBookiesWatch.tell", lambda self: None)
    store, order = Late(), list[object]()
    with bk_core.connect("memory://late", store=store) as client:
        session, writer = client._session, Told("")
        monkeypatch.setattr(writer, "feed", lambda event: order.append(event.came))
        monkeypatch.setattr(session, "_settle_racks", lambda: order.append("racks"))
        on_reactor(session, lambda: session.tell_of_bookies(writer, True))  # type: ignore[arg-type]
        store.register_bookie(FIRST, "10.0.0.1", 1)
        assert session.bookies().writable == ()
        on_reactor(session, lambda: session.look_for_bookies(lambda error: order.append((error, session.bookies().writable))))
        deadline = time.monotonic() + 30
        while len(order) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert set(order[:2]) == {frozenset({FIRST}), "racks"} and order[2] == (None, (FIRST,))


def test_those_who_ask_during_a_look_share_the_next_one() -> None:
    """EC-6: a thousand ledgers that lose the same bookie read the registry twice."""
    store = Late()
    with bk_core.connect("memory://late", store=store) as client:
        before = store.looks
        assert looked(client._session, 1_000) == [None] * 1_000
        assert store.looks - before == 2


def test_a_look_that_fails_is_told_and_the_next_one_is_begun() -> None:
    """EC-6: by a store that is away, and by a client that is closed."""
    store = Late()
    with bk_core.connect("memory://late", store=store) as client:
        session = client._session
        store.away = True
        assert [type(error) for error in looked(session, 3)] == [MetadataUnavailableError] * 3
        store.away = False
        assert looked(session) == [None]
        session._metadata.close()
        assert [type(error) for error in looked(session, 2)] == [MetadataUnavailableError] * 2
