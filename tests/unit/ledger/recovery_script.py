"""A recovery machine and the test that plays everybody else: bookies, store and clock, one answer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bk_core.protocol.effects import Complete, Effect, Fail, Log, LookForBookies, ReadLedger, SendAdds, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, BookiesLookedFor, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Status,
    WriteLacRequest,
    WriteLacResponse,
)

LEDGER = 7
PASSWORD = b"secret"
NO = Status.NO_ENTRY


def ledger(
    *fragments: tuple[int, str],
    shape: tuple[int, int, int] = (3, 3, 2),
    state: LedgerState = LedgerState.OPEN,
    custom: dict[str, bytes] | None = None,
) -> LedgerMetadata:
    """Metadata with fragments like ``(0, "abc")``: first entry, one letter per bookie."""
    rows = tuple(Fragment(first, tuple(letters)) for first, letters in fragments or ((0, "abcdefghi"[: shape[0]]),))
    return LedgerMetadata(*shape, state, rows, password=PASSWORD, custom=custom or {})


def body(entry_id: int, *, lac: int = -1, length: int | None = None, payload: bytes = b"12345", ledger_id: int = LEDGER) -> bytes:
    """A stored entry of five bytes, whose running length fits unless told otherwise."""
    total = 5 * (entry_id + 1) if length is None else length
    return layout.encode_body(ledger_id, entry_id, lac, total, payload, DigestType.CRC32C)


def spoiled(good: bytes) -> bytes:
    return good[:-1] + bytes([good[-1] ^ 1])


@dataclass(frozen=True)
class Added:
    """One recovery add as a bookie gets it."""

    bookie: str
    entry: layout.Entry
    recovery: bool


class Script:
    """Starts a recovery. ``reads`` are the read-like requests that wait for an answer, in the order sent."""

    def __init__(
        self,
        stored: LedgerMetadata | None = None,
        *,
        bookies: str = "abcdefghi",
        version: int = 4,
        options: RecoveryOptions | None = None,
        marked: bool = True,
        **limits: int,
    ) -> None:
        self.stored = stored or ledger()
        self.version = version
        self.limits = Limits(**limits)
        chance = iter(range(100_000))
        placement = RandomPlacement(lambda: list(bookies), lambda: float(next(chance)))
        self.machine = LedgerRecovery(LEDGER, placement, "token", self.limits, options=options or RecoveryOptions())
        self.reads: list[SendRead] = []
        self.sent: list[SendRead] = []
        self.added: list[Added] = []
        self.written: list[WriteLedger] = []
        self.asked_store: list[ReadLedger] = []
        self.looks: list[LookForBookies] = []
        self.timers: dict[str, int] = {}
        self.logs: list[Log] = []
        self.results: list[Any] = []
        self.now_ns = 0
        self.perform(self.machine.start())
        if marked:
            self.mark()

    def perform(self, effects: Sequence[Effect]) -> list[Effect]:
        for effect in effects:
            match effect:
                case SendRead():
                    self.reads.append(effect)
                    self.sent.append(effect)
                case SendAdds(bookie, position, run, start):
                    for index in run.indices(position, start, self.stored.ensemble_size, self.stored.write_quorum_size):
                        self.added.append(Added(bookie, self._decode(run.body(index)), run.recovery))
                case WriteLedger():
                    self.written.append(effect)
                case ReadLedger():
                    self.asked_store.append(effect)
                case LookForBookies():
                    self.looks.append(effect)
                case SetTimer(key, after_ns):
                    self.timers[key] = after_ns
                case Complete(_, value):
                    self.results.append(value)
                case Fail(_, error):
                    self.results.append(error)
                case Log():
                    self.logs.append(effect)
                case _:
                    raise AssertionError(effect)
        return list(effects)

    def _decode(self, raw: memoryview) -> layout.Entry:
        return layout.decode_body(raw, LEDGER, None, self.stored.digest_type, digests.hmac_key(PASSWORD))

    def feed(self, event: Any) -> list[Effect]:
        return self.perform(self.machine.handle(event, self.now_ns))

    # --- the store -----------------------------------------------------------------------------------------------

    def found(self, stored: LedgerMetadata, version: int) -> list[Effect]:
        """Answer the last read of the metadata."""
        self.stored, self.version = stored, version
        return self.feed(LedgerRead(self.asked_store[-1].request, Outcome.OK, stored, version))

    def outcome(self, outcome: Outcome, error: Exception | None = None) -> list[Effect]:
        """Answer the last compare-and-set."""
        write = self.written[-1]
        if outcome is Outcome.OK:
            self.stored, self.version = write.metadata, write.version + 1
        return self.feed(LedgerWritten(write.request, outcome, write.version + 1, error))

    def looked(self) -> list[Effect]:
        """Answer the one look at the registered bookies."""
        return self.feed(BookiesLookedFor(self.looks.pop().request))

    def mark(self) -> None:
        self.found(self.stored, self.version)
        if self.stored.state is LedgerState.OPEN:
            self.outcome(Outcome.OK)

    # --- bookies -------------------------------------------------------------------------------------------------

    def waiting(self, entry_id: int | None = None, kind: type = ReadRequest) -> list[str]:
        """Bookies that owe an answer about one entry (None: the last one)."""
        wanted = LAST_ENTRY if entry_id is None else entry_id
        return [r.bookie for r in self.reads if isinstance(r.message, kind) and getattr(r.message, "entry_id", LAST_ENTRY) == wanted]

    def answer(self, bookies: str, entry_id: int | None, what: bytes | Status) -> list[Effect]:
        """Each of these bookies answers its oldest open read of the entry (None: the last one): with a body, or a status."""
        wanted = LAST_ENTRY if entry_id is None else entry_id
        effects: list[Effect] = []
        for bookie in bookies:
            read = next(r for r in self.reads if r.bookie == bookie and isinstance(r.message, ReadRequest) and r.message.entry_id == wanted)
            self.reads.remove(read)
            effects += self.late(read, what)
        return effects

    def late(self, read: SendRead, what: bytes | Status) -> list[Effect]:
        status = what if isinstance(what, Status) else Status.OK
        answered = status >= 0
        found = None if isinstance(what, Status) else what
        assert isinstance(read.message, ReadRequest)
        response = ReadResponse(read.request, status, LEDGER, read.message.entry_id, found) if answered else None
        return self.feed(ReadReply(read.request, read.bookie, status, response))

    def fence(self, bookies: str, what: bytes | Status = NO) -> list[Effect]:
        return self.answer(bookies, None, what)

    def explicit_lac(self, bookie: str, packet: bytes | None, status: Status = Status.OK) -> list[Effect]:
        read = next(r for r in self.reads if r.bookie == bookie and isinstance(r.message, ReadLacRequest))
        self.reads.remove(read)
        return self.feed(ReadReply(read.request, bookie, status, ReadLacResponse(read.request, status, LEDGER, packet)))

    def barrier(self, bookie: str, status: Status = Status.OK) -> list[Effect]:
        write = next(r for r in self.reads if r.bookie == bookie and isinstance(r.message, WriteLacRequest))
        self.reads.remove(write)
        response = WriteLacResponse(write.request, status, LEDGER) if status >= 0 else None
        return self.feed(ReadReply(write.request, bookie, status, response))

    def force(self, bookie: str, status: Status = Status.OK) -> list[Effect]:
        sent = next(r for r in self.reads if r.bookie == bookie and isinstance(r.message, ForceLedgerRequest))
        self.reads.remove(sent)
        return self.feed(ReadReply(sent.request, bookie, status, ForceLedgerResponse(sent.request, status, LEDGER)))

    def stored_by(self, bookies: str, *entry_ids: int) -> list[Effect]:
        return [e for b in bookies for i in entry_ids for e in self.feed(AddReply(b, i, 1, Status.OK))]

    def lost(self, bookie: str) -> list[Effect]:
        return self.feed(BookieLost(bookie))

    def timer(self, key: str) -> list[Effect]:
        self.timers.pop(key, None)
        return self.feed(TimerFired(key))

    # --- what came of it -------------------------------------------------------------------------------------------

    @property
    def closing(self) -> LedgerMetadata:
        """The metadata of the closing compare-and-set, which must be the last thing written."""
        assert self.written, "nothing was written"
        assert self.written[-1].metadata.state is LedgerState.CLOSED, self.written[-1].metadata.state
        return self.written[-1].metadata

    @property
    def is_closing(self) -> bool:
        return bool(self.written) and self.written[-1].metadata.state is LedgerState.CLOSED

    @property
    def end(self) -> tuple[int, int]:
        return self.closing.last_entry_id, self.closing.length

    @property
    def result(self) -> Any:
        """Exactly one completion (R28)."""
        assert len(self.results) == 1, self.results
        return self.results[0]
