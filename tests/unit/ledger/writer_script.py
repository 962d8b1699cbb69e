"""A writer in the hands of a test: every event is written down, every effect is recorded. Bookies are single letters."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from bk_core.protocol.effects import (
    Complete,
    Effect,
    Fail,
    Log,
    LookForBookies,
    ReadLedger,
    SendAdds,
    SendAndForget,
    SendRead,
    SetTimer,
    WriteLedger,
)
from bk_core.protocol.events import AddReply, BookieLost, BookiesLookedFor, Event, LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.write.writer import LedgerWriter, WriterOptions
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

SECOND = 1_000_000_000


class Domains(RandomPlacement):
    """The fault domain of a bookie is its capital, if it has one in ``of``, else itself."""

    of: dict[str, str] = {}

    def domain_of(self, bookie: str) -> str:
        return self.of.get(bookie, bookie)


class WriterScript:
    """``effects`` are those of the last step; ``done``, ``failed`` and ``logs`` those of all. Replacements come in alphabetical order."""

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 3, 2),
        bookies: str = "abcd",
        *,
        guaranteed: bool = False,
        options: WriterOptions | None = None,
        frozen_lac: int | None = None,
        base: int = -1,
        first_entry_id: int = 0,
        domains: dict[str, str] | None = None,
        **limits: int,
    ) -> None:
        self.bookies = list(bookies)
        fragments = (Fragment(0, tuple(bookies[: shape[0]])),)
        if first_entry_id:
            fragments = (Fragment(0, tuple(reversed(bookies[: shape[0]]))), Fragment(first_entry_id, fragments[0].ensemble))
        custom = {"gwq": b"1"} if guaranteed else {}
        metadata = LedgerMetadata(*shape, LedgerState.OPEN, fragments, password=b"secret", custom=custom)
        chance = iter(range(1_000_000))
        placement = Domains(lambda: self.bookies, lambda: float(next(chance)))
        placement.of = domains or {}
        self.writer = LedgerWriter(7, metadata, 0, placement, Limits(**limits), options=options, frozen_lac=frozen_lac, base=base)
        self.now = 0
        self.version = 0
        self.effects: list[Effect] = []
        self.done: list[tuple[Any, Any]] = []
        self.failed: list[tuple[Any, type[Exception]]] = []
        self.errors: list[Exception] = []
        self.logs: list[str] = []

    # --- steps -----------------------------------------------------------------------------------------------------

    def do(self, effects: list[Effect]) -> WriterScript:
        self.effects = effects
        for effect in effects:
            match effect:
                case Complete(token, value):
                    self.done.append((token, value))
                case Fail(token, error):
                    self.failed.append((token, type(error)))
                    self.errors.append(error)
                case Log(_, message):
                    self.logs.append(message)
        return self

    def feed(self, event: Event) -> WriterScript:
        return self.do(self.writer.handle(event, self.now))

    def append(self, token: Any, *payloads: bytes, at: int | None = None, **more: int) -> WriterScript:
        payloads = payloads or (b"x",)
        offsets = array("q", [0])
        for payload in payloads:
            offsets.append(offsets[-1] + len(payload))
        return self.do(self.writer.append(b"".join(payloads), offsets, token, self.now, first_entry_id=at, **more))

    def ack(self, bookies: str, first: int, count: int = 1) -> WriterScript:
        gathered: list[Effect] = []
        for bookie in bookies:
            gathered += self.writer.handle(AddReply(bookie, first, count, Status.OK), self.now)
        return self.do(gathered)

    def refuse(self, bookie: str, first: int, status: Status = Status.IO_ERROR, count: int = 1) -> WriterScript:
        return self.feed(AddReply(bookie, first, count, status))

    def lose(self, bookie: str) -> WriterScript:
        return self.feed(BookieLost(bookie))

    def tick(self, after_ns: int = 0) -> WriterScript:
        self.now += after_ns
        return self.feed(TimerFired("tick"))

    def fire(self, key: str) -> WriterScript:
        return self.feed(TimerFired(key))

    # --- the store -------------------------------------------------------------------------------------------------

    def stored(self, write: WriteLedger, outcome: Outcome = Outcome.OK) -> WriterScript:
        """Answer a write; with OK the store now has it."""
        self.version += outcome is Outcome.OK
        return self.feed(LedgerWritten(write.request, outcome, self.version if outcome is Outcome.OK else -1))

    def conflict(self, write: WriteLedger, found: LedgerMetadata, version: int = 5) -> WriterScript:
        """Answer a write with a conflict and the read after it with ``found``."""
        self.feed(LedgerWritten(write.request, Outcome.CONFLICT))
        assert self.effects == [ReadLedger(write.request)]
        self.version = version
        return self.feed(LedgerRead(write.request, Outcome.OK, found, version))

    def looked(self, outcome: Outcome = Outcome.OK) -> WriterScript:
        """Answer the look at the registered bookies that the last step asked for."""
        (look,) = self.of(LookForBookies)
        return self.feed(BookiesLookedFor(look.request, outcome))

    # --- what came out ---------------------------------------------------------------------------------------------

    @property
    def write(self) -> WriteLedger:
        (write,) = self.of(WriteLedger)
        return write

    @property
    def writes(self) -> list[WriteLedger]:
        return self.of(WriteLedger)

    def of(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.effects if isinstance(e, kind)]

    @property
    def sent(self) -> list[tuple[str, int]]:
        """(bookie, first entry sent) of the last step's adds."""
        return [(e.bookie, e.run.first_entry_id + e.start) for e in self.of(SendAdds)]

    @property
    def timers(self) -> list[str]:
        return [e.key for e in self.of(SetTimer)]

    @property
    def reads(self) -> list[SendRead]:
        return self.of(SendRead)

    @property
    def told(self) -> list[tuple[str, int]]:
        """(bookie, LAC) of the last step's explicit LACs."""
        return [(e.bookie, e.message.last_add_confirmed) for e in self.of(SendAndForget)]

    @property
    def last_ensemble(self) -> str:
        return "".join(self.writer.metadata.last_fragment.ensemble)


def tokens(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [token for token, _ in pairs]
