"""Performs the effects of one machine on the links, the metadata threads and the timers of its session, and feeds it what comes of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from bk_core.client.session import Session
from bk_core.errors import (
    BkError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.net.link import BookieLink
from bk_core.net.outstanding import Waiting
from bk_core.net.reactor import Timer
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendAndForget, SendRead, SetTimer, WriteLedger
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BytesDrained,
    Event,
    LedgerRead,
    LedgerWritten,
    Outcome,
    ReadReply,
    ReadsMoving,
    TimerFired,
)
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import BookieId, LedgerAccess, LedgerMetadata
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, ReadRunRequest, Request, Response, Status

log = logging.getLogger("bk_core.client")

SPECULATE, TICK = "speculate", "tick"  # timers of readers and of those who add
SHARED_KINDS = frozenset({"data", "batch", "control"})


class Machine(Protocol):
    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...


class Driver:
    """Performs the effects of one machine. Reactor thread only, except ``post``."""

    def __init__(self, session: Session, ledger_id: int, *, add_kind: str = "data") -> None:
        self.session = session
        self.ledger_id = ledger_id
        self.machine: Machine | None = None
        self.on_complete: Callable[[Any, Any], None] = lambda token, value: None
        self.on_fail: Callable[[Any, Exception], None] = lambda token, error: None
        self.on_step: Callable[[], None] = lambda: None
        self._add_kind = add_kind
        self._since_ns = session.reactor.now_ns()
        self._timers: dict[str, Timer] = {}
        self._listening: set[BookieId] = set()
        self._reads: dict[int, tuple[BookieLink, Waiting]] = {}  # by the machine's number
        self._quorums = (1, 1)
        self._access = LedgerAccess()
        self._to_perform: deque[Effect] = deque()
        self._performing = False
        self._closed = False

    def set_quorums(self, metadata: LedgerMetadata) -> None:
        """META-15: what the metadata has from its caller holds for other versions of it too."""
        self._access = metadata.access
        self._quorums = (metadata.ensemble_size, metadata.write_quorum_size)

    def feed(self, event: Event) -> None:
        if not self._closed and self.machine is not None:
            self.perform(self.machine.handle(event, self.session.reactor.now_ns()))
            self.on_step()

    def perform(self, effects: list[Effect]) -> None:
        """SM-1: the output of one step after that of the step before. A send on a connection that turns out to be broken is a step
        within a step: what the machine makes of it waits until everything said before is out (I-14)."""
        self._to_perform += effects
        if self._performing:
            return
        self._performing = True
        try:
            while self._to_perform:
                self._perform_one(self._to_perform.popleft())
        finally:
            self._performing = False

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case SendAdds(bookie, position, run, start):
                link = self.session.link(bookie, self._add_kind, self.ledger_id)
                if bookie not in self._listening:
                    self._listening.add(bookie)
                    link.listen(self.ledger_id, self)
                link.send_adds(run, position, start, *self._quorums)
            case SendRead(request, bookie, message, timeout_ns):
                self._send_read(request, bookie, message, timeout_ns)
            case SendAndForget(bookie, message):
                self.session.link(bookie, "control").request(message, self.session.config.limits.add_timeout_ns, lambda s, r: None)
            case ReadLedger(request):
                self._read_ledger(request)
            case WriteLedger(request, metadata, version):
                self._write_ledger(request, metadata, version)
            case SetTimer(key, after_ns):
                self._set_timer(key, after_ns)
            case Complete(token, value):
                self.on_complete(token, value)
            case Fail(token, error):
                self.on_fail(token, self.session.explained(error, self._since_ns))
            case Log(level, message):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", message)

    def _send_read(self, request: int, bookie: BookieId, message: Request, timeout_ns: int | None) -> None:
        link = self.session.link(bookie, self.session.link_kind(message), self.ledger_id)

        plain = isinstance(message, (ReadRequest, BatchReadRequest, ReadRunRequest)) and message.entry_id >= 0
        sent_ns = self.session.reactor.now_ns()
        answered = False

        def answer(status: Status, response: Response | None) -> None:
            nonlocal answered
            answered = True
            self._reads.pop(request, None)
            if plain:
                self.session.note_read(bookie, status, self.session.reactor.now_ns() - sent_ns)
            self.feed(ReadReply(request, bookie, status, response))

        waiting = link.request(message, timeout_ns or self.session.config.limits.read_timeout_ns, answer, self)
        if not answered:
            self._reads[request] = link, waiting

    def _read_ledger(self, request: int) -> None:
        def read() -> tuple[LedgerMetadata, int]:
            found = self.session.store.read_ledger(self.ledger_id)
            return metadata_codec.decode(found.data).with_access(self._access), found.version

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                self.feed(LedgerRead(request, Outcome.OK, result[0], result[1]))
            else:
                self.feed(LedgerRead(request, outcome_of(error), error=error))

        self.session.metadata_call(read, then)

    def _write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        data = metadata_codec.encode(metadata)

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                self.feed(LedgerWritten(request, Outcome.OK, result))
            else:
                self.feed(LedgerWritten(request, outcome_of(error), error=error))

        self.session.metadata_call(lambda: self.session.store.write_ledger(self.ledger_id, data, version), then)

    def _set_timer(self, key: str, after_ns: int) -> None:
        old = self._timers.pop(key, None)
        if old is not None:
            old.cancel()
        if not self._closed:
            self._timers[key] = self.session.reactor.call_later(after_ns, lambda: self._fired(key))

    def _fired(self, key: str) -> None:
        """Before a machine judges who is slow it learns what the links know (LINK-1)."""
        patience_ns = self.session.config.limits.speculative_read_ns
        if key == SPECULATE:
            self.feed(ReadsMoving(frozenset(number for number, (link, one) in self._reads.items() if not link.is_late(one, patience_ns))))
        elif key == TICK:
            for bookie in self._listening:
                self.feed(BytesDrained(bookie, self.session.link(bookie, self._add_kind, self.ledger_id).drained_ns))
        self.feed(TimerFired(key))

    @property
    def needs_connection(self) -> bool:
        """LINK-4."""
        return bool(getattr(self.machine, "needs_connections", False))

    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status, entries: int | None) -> None:
        self.session.note_answer(bookie, status)
        self.feed(AddReply(bookie, first_entry_id, count, status, entries))

    def on_lost(self, bookie: BookieId, status: Status) -> None:
        self.session.note_answer(bookie, status)
        self.feed(BookieLost(bookie, status))

    def close(self) -> None:
        """Stop timers and listeners; later events are dropped (L-11). Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.session.tell_of_bookies(self, False)
        for timer in self._timers.values():
            timer.cancel()
        for link, _ in self._reads.values():
            link.forget(self)
        self._reads.clear()
        for bookie in self._listening:
            self.session.link(bookie, self._add_kind, self.ledger_id).unlisten(self.ledger_id, self)
            if self._add_kind not in SHARED_KINDS:
                self.session.drop_link(bookie, self._add_kind)


def outcome_of(error: Exception) -> Outcome:
    """META-12. An unreachable store counts as unknown: the identical request is repeated until it is definite."""
    match error:
        case VersionConflictError():
            return Outcome.CONFLICT
        case NoNodeError():
            return Outcome.NO_SUCH_LEDGER
        case MetadataOutcomeUnknownError() | MetadataUnavailableError():
            return Outcome.UNKNOWN
        case _:
            return Outcome.REFUSED


def as_bk_error(error: BaseException) -> BkError:
    return error if isinstance(error, BkError) else MetadataError(f"unexpected error: {error!r}")
