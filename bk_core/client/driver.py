"""Performs the effects of one machine on the links, the metadata threads and the timers of its session, and feeds the results
back to it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bk_core.client.counting import counts_of, operation_of, replaced_by
from bk_core.client.session import Session
from bk_core.errors import (
    BkError,
    InternalError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata.store import Version
from bk_core.net.link import BookieLink
from bk_core.net.outstanding import Waiting
from bk_core.net.reactor import Timer
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
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BookiesLookedFor,
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
from bk_core.protocol.ledger.metadata import BookieId, LedgerAccess, LedgerMetadata, LedgerState
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, ReadRunRequest, Request, Response, Status

log = logging.getLogger("bk_core.client")

SPECULATE, TICK = "speculate", "tick"  # timers of readers and of writers
SHARED_KINDS = frozenset({"data", "batch", "control"})


class Machine(Protocol):
    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...


class Driver:
    """Performs the effects of one machine, on the reactor thread only, except ``post``.

    If code of this program raises on the way, the driver is broken for good. Outcomes that were decided before are still told, nothing is
    sent any more, and open requests of the machine fail with InternalError. ``on_broken`` returns the effects that tell it; without it
    ``on_fail`` is called once, with None for a token.
    """

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
        self.on_broken: Callable[[InternalError], list[Effect]] = lambda error: [Fail(None, error)]
        self._performing = False
        self._broken: InternalError | None = None
        self._closed = False
        self._counts = counts_of(session)
        self._known: LedgerMetadata | None = None  # as it was stored last, as far as this driver was told
        self._unsure: LedgerMetadata | None = None  # written without an answer
        self._sent_reads = 0
        self._fenced = False

    def set_quorums(self, metadata: LedgerMetadata) -> None:
        """Keep what the metadata has from its caller for other versions of it (META-15)."""
        self._access, self._known = metadata.access, metadata
        self._quorums = (metadata.ensemble_size, metadata.write_quorum_size)

    def feed(self, event: Event) -> None:
        if not self._closed and self.machine is not None:
            for tracer in self.session.tracers:
                tracer.hears(self, event, self.session.reactor.now_ns())
            try:
                self.step(self.machine.handle, event, self.session.reactor.now_ns())
            finally:
                self.on_step()

    def step(self, act: Callable[..., list[Effect]], *arguments: Any, asker: Any = None, **named: Any) -> None:
        """Call the machine's ``act``, and perform the effects that it returns. If the driver is broken, or ``act`` breaks it by raising,
        the token ``asker`` fails instead, if one is given; the error of ``act`` is raised again after that."""
        if self._broken is not None:
            self.perform([] if asker is None else [Fail(asker, self._broken)])
            return
        try:
            effects = act(*arguments, **named)
        except BaseException as error:
            self._break(error, asker=asker)
            self.perform([])
            raise
        self.perform(effects)

    def perform(self, effects: list[Effect]) -> None:
        """Perform the output of one step after that of the step before (SM-1). If a send finds its connection broken, that is a step within
        a step; the effects of the inner step wait until those decided before are performed (I-14).

        A step is whole: if an effect raises, the driver breaks, and the first error is raised again when all outcomes are told.
        """
        self._to_perform += effects
        if self._performing:
            return
        self._performing = True
        first: BaseException | None = None
        while self._to_perform:
            effect = self._to_perform.popleft()
            if self._broken is not None and not isinstance(effect, (Complete, Fail, Log)):
                continue  # the caller that waits for it was told
            try:
                self._perform_one(effect)
            except BaseException as error:
                first = first or error
                self._break(error, effect)
        self._performing = False
        if first is not None:
            raise first

    def _break(self, error: BaseException, effect: Effect | None = None, asker: Any = None) -> None:
        """Break the driver. ``effect`` is the one that raised ``error``; if it was to tell an outcome, that is told once more. ``asker``:
        see ``step``."""
        if self._broken is not None:
            log.error("ledger %d: a further error of this program: %r", self.ledger_id, error)
            return
        broken = self._broken = self._failed_within(error, effect)
        log.error("%s", broken, exc_info=error)
        told: list[Effect] = []
        try:
            told += self.on_broken(broken)
        except Exception as further:
            log.error("ledger %d: a further error of this program: %r", self.ledger_id, further)
        asker = effect.token if isinstance(effect, (Complete, Fail)) else asker
        if asker is not None and not any(isinstance(one, Fail) and one.token is asker for one in told):
            told.append(Fail(asker, broken))
        self._to_perform += told
        try:
            self.close()
        except Exception as further:
            log.error("ledger %d: a further error of this program: %r", self.ledger_id, further)

    def _failed_within(self, error: BaseException, effect: Effect | None) -> InternalError:
        when = "" if effect is None else f" while it performed {type(effect).__name__}"
        what = f"this program failed within itself{when} for ledger {self.ledger_id} ({type(error).__name__}: {error})"
        then = "what was asked for may or may not have been done; open the ledger again, and report this with the program's log"
        failed = InternalError(f"{what}, so this handle does nothing more, and {then}", ledger=self.ledger_id)
        failed.__cause__ = error
        return failed

    @property
    def quorums(self) -> tuple[int, int]:
        """The sizes of ensemble and write quorum by which adds are striped."""
        return self._quorums

    def _perform_one(self, effect: Effect) -> None:
        for tracer in self.session.tracers:
            tracer.performs(self, effect, self.session.reactor.now_ns())
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
                self._send_and_forget(bookie, message)
            case ReadLedger(request, bookies):
                self._read_ledger(request, bookies)
            case WriteLedger(request, metadata, version):
                self._write_ledger(request, metadata, version)
            case LookForBookies(request):
                self._look_for_bookies(request)
            case SetTimer(key, after_ns):
                self._set_timer(key, after_ns)
            case Complete(token, value):
                self.on_complete(token, value)
            case Fail(token, error):
                self.on_fail(token, self.session.explained(error, self._since_ns))
            case Log(level, message):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", message)

    def _send_and_forget(self, bookie: BookieId, message: Request) -> None:
        sent_ns, operation = self.session.reactor.now_ns(), operation_of(message)

        def answer(status: Status, _response: Response | None) -> None:
            self._count_answer(bookie, operation, status, self.session.reactor.now_ns() - sent_ns)

        self.session.link(bookie, "control").request(message, self.session.config.limits.add_timeout_ns, answer)

    def _count_answer(self, bookie: BookieId, operation: str, status: Status, elapsed_ns: int) -> None:
        counts = self._counts.bookie(bookie)
        counts.asked(operation, elapsed_ns)
        if status is not Status.OK:
            counts.failed(operation, status.name)

    def _send_read(self, request: int, bookie: BookieId, message: Request, timeout_ns: int | None) -> None:
        link = self.session.link(bookie, self.session.link_kind(message), self.ledger_id)

        plain = isinstance(message, (ReadRequest, BatchReadRequest, ReadRunRequest)) and message.entry_id >= 0
        sent_ns, operation = self.session.reactor.now_ns(), operation_of(message)
        answered = False
        self._sent_reads += 1
        if operation == "fence" and not self._fenced:
            self._fenced = True
            self._counts.fences.value += 1

        def answer(status: Status, response: Response | None) -> None:
            nonlocal answered
            answered = True
            self._reads.pop(request, None)
            elapsed_ns = self.session.reactor.now_ns() - sent_ns
            if plain:
                self.session.note_read(bookie, status, elapsed_ns)
            self._count_answer(bookie, operation, status, elapsed_ns)
            before = self._sent_reads
            self.feed(ReadReply(request, bookie, status, response))
            if plain and status is not Status.OK:
                self._counts.read_retries.value += self._sent_reads - before

        waiting = link.request(message, timeout_ns or self.session.config.limits.read_timeout_ns, answer, self)
        if not answered:
            self._reads[request] = link, waiting

    def _read_ledger(self, request: int, bookies: Sequence[BookieId] = ()) -> None:
        def read() -> tuple[LedgerMetadata, int, dict[BookieId, tuple[str, int]]]:
            found = self.session.store.read_ledger(self.ledger_id)
            return (
                metadata_codec.decode(found.data, self.ledger_id).with_access(self._access),
                found.version,
                self.session.addresses_of(bookies),
            )

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                metadata, version, addresses = result
                self._count_change(metadata, ours=self._unsure is not None and metadata.fragments == self._unsure.fragments)
                self.feed(LedgerRead(request, Outcome.OK, metadata, version, moved=self.session.have_moved(addresses)))
            else:
                self.feed(LedgerRead(request, outcome_of(error), error=error))

        self.session.metadata_call(read, then)

    def _write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        data = metadata_codec.encode(metadata)

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                self._count_change(metadata, ours=True)
                self.feed(LedgerWritten(request, Outcome.OK, result))
            else:
                outcome = outcome_of(error)
                self._unsure = metadata if outcome is Outcome.UNKNOWN else self._unsure
                self.feed(LedgerWritten(request, outcome, error=error))

        self.session.metadata_call(lambda: self._store_ledger(data, version), then)

    def _count_change(self, stored: LedgerMetadata, *, ours: bool) -> None:
        """Count a change of the ensemble that is stored, if it is ``ours``. A write whose answer was lost is recognised when it is read."""
        before, self._known = self._known, stored
        if ours:
            self._unsure = None
            gone = frozenset() if before is None or stored.state is LedgerState.CLOSED else replaced_by(before, stored)
            if gone:
                self._counts.replaced(gone)

    def _store_ledger(self, data: bytes, version: int) -> Version:
        """Write the metadata by compare-and-set, on a thread that may wait for the store."""
        return self.session.store.write_ledger(self.ledger_id, data, version)

    def _look_for_bookies(self, request: int) -> None:
        """Have the session look at the registered bookies (EC-6). The machine goes on whatever comes of it."""

        def then(error: Exception | None) -> None:
            self.feed(BookiesLookedFor(request, Outcome.OK if error is None else outcome_of(error)))

        self.session.look_for_bookies(then)

    def _set_timer(self, key: str, after_ns: int) -> None:
        old = self._timers.pop(key, None)
        if old is not None:
            old.cancel()
        if not self._closed:
            self._timers[key] = self.session.reactor.call_later(after_ns, lambda: self._fired(key))

    def _fired(self, key: str) -> None:
        """Handle a timer. Before a machine judges which bookie is slow, it learns what the links know (LINK-1)."""
        patience_ns = self.session.config.limits.speculative_read_ns
        if key == SPECULATE:
            moving = frozenset(number for number, (link, one) in self._reads.items() if not link.is_late(one, patience_ns))
            away = frozenset(link.bookie for link, _ in self._reads.values() if not link.is_connected)
            self.feed(ReadsMoving(moving, away))
            before = self._sent_reads
            self.feed(TimerFired(key))
            self._counts.speculative_reads.value += self._sent_reads - before
            return
        elif key == TICK:
            for bookie in self._listening:
                self.feed(BytesDrained(bookie, self.session.link(bookie, self._add_kind, self.ledger_id).drained_ns))
        self.feed(TimerFired(key))

    @property
    def needs_connection(self) -> bool:
        """True if the machine needs its connections to last (LINK-4)."""
        return bool(getattr(self.machine, "needs_connections", False))

    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status, entries: int | None) -> None:
        self.session.note_answer(bookie, status)
        if status is not Status.OK:
            self._counts.bookie(bookie).failed("add", status.name, count)
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
    """Return the outcome for an error. An unreachable store counts as unknown: the identical request is repeated until it is definite
    (META-12)."""
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
