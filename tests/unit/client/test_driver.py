"""How the effects of a machine reach connections: order, and what happens in between."""

from __future__ import annotations

from array import array
from typing import Any, cast

from bk_core.client.driver import Driver
from bk_core.client.session import Session
from bk_core.net.link_state import AddListener
from bk_core.protocol.effects import WriteLedger
from bk_core.protocol.events import AddReply, BookieLost, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.writer import LedgerWriter
from bk_core.protocol.wire.messages import Status


class Link:
    """A connection that takes everything, or finds out when it sends that it is broken."""

    def __init__(self, bookie: str, broken: bool) -> None:
        self.bookie = bookie
        self.broken = broken
        self.listener: AddListener | None = None

    def listen(self, ledger_id: int, listener: AddListener) -> None:
        self.listener = listener

    def send_adds(self, *_: object) -> None:
        if self.broken and self.listener is not None:
            self.listener.on_lost(self.bookie, Status.UNAVAILABLE)


class World:
    """Session and reactor of one driver. ``broken``: bookies whose connection breaks under a send."""

    def __init__(self, broken: str) -> None:
        self.links = {bookie: Link(bookie, bookie in broken) for bookie in "abcd"}
        self.reactor = self

    def now_ns(self) -> int:
        return 0

    def call_later(self, after_ns: int, callback: object) -> object:
        return self

    def cancel(self) -> None: ...

    def link(self, bookie: str, kind: str, ledger_id: int = 0) -> Link:
        return self.links[bookie]

    def note_answer(self, bookie: str, status: Status) -> None: ...

    def explained(self, error: Exception, since_ns: int) -> Exception:
        return error


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
    assert told == [("zero", "acknowledged"), ("one", "NotEnoughBookiesError")]
    assert (writes[-1].metadata.state, writes[-1].metadata.last_entry_id) == (LedgerState.CLOSED, 0)
