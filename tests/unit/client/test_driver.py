"""The way of a machine's effects to connections: order, and what happens in between."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

import pytest

from bk_core.client.driver import Driver
from bk_core.client.session import Session
from bk_core.errors import ClientClosedError, ForkedClientError, InternalError, MetadataUnavailableError, NotEnoughBookiesError
from bk_core.net.link_state import AddListener
from bk_core.protocol.effects import Effect, WriteLedger
from bk_core.protocol.events import AddReply, BookieLost, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.protocol.wire.messages import Status


class Link:
    """A connection that takes everything, or finds out when it sends that it is broken."""

    def __init__(self, bookie: str, broken: bool) -> None:
        self.bookie = bookie
        self.broken = broken
        self.listener: AddListener | None = None
        self.wrong: Exception | None = None  # raised by a send instead, as code of ours that is wrong would

    def listen(self, ledger_id: int, listener: AddListener) -> None:
        self.listener = listener

    def unlisten(self, ledger_id: int, listener: AddListener) -> None:
        self.listener = None

    def send_adds(self, *_: object) -> None:
        if self.wrong is not None:
            raise self.wrong
        if self.broken and self.listener is not None:
            self.listener.on_lost(self.bookie, Status.UNAVAILABLE)


class World:
    """Session and reactor of one driver. ``broken``: bookies whose connection breaks under a send."""

    tracers = ()

    def __init__(self, broken: str) -> None:
        self.links = {bookie: Link(bookie, bookie in broken) for bookie in "abcd"}
        self.reactor = self
        self.looks = list[Callable[[Exception | None], None]]()

    def now_ns(self) -> int:
        return 0

    def call_later(self, after_ns: int, callback: object) -> object:
        return self

    def cancel(self) -> None: ...

    def link(self, bookie: str, kind: str, ledger_id: int = 0) -> Link:
        return self.links[bookie]

    def note_answer(self, bookie: str, status: Status) -> None: ...

    def look_for_bookies(self, then: Callable[[Exception | None], None]) -> None:
        self.looks.append(then)

    def tell_of_bookies(self, driver: Driver, wanted: bool) -> None: ...

    def explained(self, error: Exception, since_ns: int) -> Exception:
        return error


METADATA = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")),), password=b"secret")


def writing(world: World) -> tuple[Driver, LedgerWriter, list[tuple[Any, Any]]]:
    """A driver with its writer, and what is told of the writer's tokens: the value, or the error."""
    driver, told = Driver(cast(Session, world), 7), list[tuple[Any, Any]]()
    driver.on_complete = lambda token, value: told.append((token, value))
    driver.on_fail = lambda token, error: told.append((token, error))
    writer = driver.machine = LedgerWriter(7, METADATA, 0, RandomPlacement(lambda: list("abcd"), lambda: 0.0))
    driver.on_broken = writer.give_up
    driver.set_quorums(METADATA)
    return driver, writer, told


ONE = array("q", (0, 1))


def test_a_send_that_raises_ends_the_driver_and_leaves_nothing() -> None:
    """SM-1: a step is whole. What waits is told of it, and what is asked for later as well; no effect is left for the next step."""
    world = World("")
    driver, writer, told = writing(world)
    driver.step(writer.append, b"x", ONE, "zero", 0, asker="zero")
    wrong = world.links["b"].wrong = KeyError("wrong")
    with pytest.raises(KeyError) as raised:
        driver.step(writer.append, b"x", ONE, "one", 0, asker="one")
    assert raised.value is wrong
    assert [token for token, _ in told] == ["zero", "one"] and {error for _, error in told} == {writer.error}
    assert isinstance(writer.error, InternalError) and writer.error.__cause__ is wrong
    assert "ledger 7 (KeyError: 'wrong')" in str(writer.error) and "SendAdds" in str(writer.error)
    assert all(link.listener is None for link in world.links.values()), "it hears of nothing any more"
    driver.step(writer.append, b"x", ONE, "late", 0, asker="late")
    driver.feed(AddReply("a", 0, 1, Status.OK))
    assert told[2:] == [("late", writer.error)]


def test_outcomes_of_a_step_are_told_although_one_of_them_raises() -> None:
    """SM-1: entries that are acknowledged in one step are acknowledged, whatever becomes of the first."""
    world = World("")
    driver, writer, told = writing(world)
    for token in ("zero", "one", "two"):
        driver.step(writer.append, b"x", ONE, token, 0, asker=token)
    tell = driver.on_complete

    def raises_once(token: Any, value: Any) -> None:
        driver.on_complete = tell
        raise KeyError(token)

    driver.on_complete = raises_once
    driver.feed(AddReply("a", 0, 2, Status.OK))
    with pytest.raises(KeyError, match="zero"):
        driver.feed(AddReply("b", 0, 2, Status.OK))
    assert told == [("one", 1), ("two", writer.error), ("zero", writer.error)]
    assert isinstance(writer.error, InternalError)


def test_a_machine_that_raises_fails_who_asked_it() -> None:
    """An error that it raises before it knows a token is not told."""
    driver, writer, told = writing(World(""))
    driver.step(writer.append, b"x", ONE, "zero", 0, asker="zero")
    with pytest.raises(TypeError):
        driver.step(writer.append, None, ONE, "one", 0, asker="one")
    assert told == [("zero", writer.error), ("one", writer.error)] and isinstance(writer.error, InternalError)


def test_a_machine_that_raises_at_an_event_fails_what_is_under_way() -> None:
    """As a reader's: it has one caller, who is told without a token."""
    driver, told = Driver(cast(Session, World("")), 7), list[tuple[Any, Exception]]()
    steps = list[str]()

    class Wrong:
        def handle(self, event: object, now_ns: int) -> list[Effect]:
            raise IndexError("none")

    driver.machine = Wrong()
    driver.on_fail = lambda token, error: told.append((token, error))
    driver.on_step = lambda: steps.append("step")
    with pytest.raises(IndexError):
        driver.feed(BookieLost("c"))
    ((token, error),) = told
    assert token is None and isinstance(error, InternalError) and steps == ["step"]


def test_what_a_broken_connection_leads_to_comes_after_what_was_said_before() -> None:
    """SM-1, I-14: entry 0 was committed in the step that sends to d; that d is gone, and ends the ledger, is told afterwards."""
    world = World("d")
    driver = Driver(cast(Session, world), 7)
    told: list[tuple[str, str]] = []
    writes: list[WriteLedger] = []
    driver.on_complete = lambda token, value: told.append((token, "acknowledged"))
    driver.on_fail = lambda token, error: told.append((token, type(error).__name__))
    cast(Any, driver)._write_ledger = lambda *write: writes.append(WriteLedger(*write))
    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")),), password=b"secret")
    writer = LedgerWriter(7, metadata, 0, RandomPlacement(lambda: list("abcd"), lambda: 0.0))
    driver.machine = writer
    driver.set_quorums(metadata)
    for token in ("zero", "one"):
        driver.perform(writer.append(b"x", array("q", (0, 1)), token, 0))
    driver.feed(BookieLost("c"))
    for bookie in "ab":
        driver.feed(AddReply(bookie, 0, 1, Status.OK))
    (change,) = writes
    driver.feed(LedgerWritten(change.request, Outcome.OK, 1))
    assert told == [("zero", "acknowledged")]
    (looked,) = world.looks
    looked(None)
    assert told == [("zero", "acknowledged"), ("one", "NotEnoughBookiesError")]
    assert (writes[-1].metadata.state, writes[-1].metadata.last_entry_id) == (LedgerState.CLOSED, 0)


@pytest.mark.parametrize("error", [None, MetadataUnavailableError("away"), ClientClosedError("closed"), ForkedClientError("forked")])
def test_a_machine_hears_of_a_look_whatever_came_of_it(error: Exception | None) -> None:
    """EC-6. A driver that is closed by then feeds nothing."""
    for is_closed in (False, True):
        world = World("")
        driver, writer, told = writing(world)
        cast(Any, driver)._write_ledger = lambda *_: None
        writer._placement = RandomPlacement(lambda: list("abc"), lambda: 0.0)
        driver.step(writer.append, b"x", ONE, "zero", 0, asker="zero")
        driver.feed(BookieLost("c"))
        (looked,) = world.looks
        if is_closed:
            driver.close()
        looked(error)
        assert [type(value) for _, value in told] == ([] if is_closed else [NotEnoughBookiesError])
