"""Records the messages of one client: each effect and event of its machines that crosses a connection, with the time on this host."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from bk_core.client.exploring.trace import METADATA_STORE, NONE_WANTED, Entries, Trace, TraceMark, TraceMessage
from bk_core.protocol.effects import Complete, Effect, Fail, LookForBookies, ReadLedger, SendAdds, SendAndForget, SendRead, WriteLedger
from bk_core.protocol.events import AddReply, BookieLost, BookiesLookedFor, Event, LedgerRead, LedgerWritten, Outcome, ReadReply
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadRequest,
    ReadRunRequest,
    Request,
    Status,
    WriteLacRequest,
)

if TYPE_CHECKING:
    from bk_core.client.driver import Driver
    from bk_core.client.session import Session

log = logging.getLogger("bk_core.client")

_NO_REFUSALS = (Status.OK, Status.NO_ENTRY, Outcome.OK)  # that there is no such entry is an answer like another one


@dataclass(slots=True)
class _OpenAdds:
    """Adds of one run to one bookie that have not all been answered."""

    at: int  # the message's place in the trace
    first: int
    last: int
    left: int


class Recorder:
    """Takes down what the drivers of one client do, on its reactor thread, until ``most`` messages are there.

    It must never break what it records: an error of its own is logged, and it stops.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.messages: list[TraceMessage] = []
        self.marks: list[TraceMark] = []
        self.left_out = 0
        self._most = most
        self._stopped = False
        self._drivers: WeakKeyDictionary[Driver, int] = WeakKeyDictionary()  # with a number each, which no later one gets
        self._numbers = count()
        self._asked: dict[tuple[int, int], int] = {}  # (driver, its request) -> the message's place
        self._adds: dict[tuple[int, str], list[_OpenAdds]] = {}  # (driver, bookie)

    def stop(self) -> None:
        """Take nothing down any more."""
        self._stopped = True

    def performs(self, driver: Driver, effect: Effect, now_ns: int) -> None:
        """Take down an effect that ``driver`` is about to perform."""
        self._guarded(self._effect, driver, effect, now_ns)

    def hears(self, driver: Driver, event: Event, now_ns: int) -> None:
        """Take down an event that ``driver`` is about to give to its machine."""
        self._guarded(self._event, driver, event, now_ns)

    def _guarded(self, take: Any, *what: Any) -> None:
        if self._stopped:
            return
        try:
            take(*what)
        except Exception:
            self._stopped = True
            log.exception("a trace of the client's messages failed and ends here")

    def _number(self, driver: Driver) -> int:
        """Return the number of a driver. Its address would be that of another one when it is gone, with answers still to come."""
        number = self._drivers.get(driver)
        if number is None:
            number = self._drivers[driver] = next(self._numbers)
        return number

    # --- what is sent -----------------------------------------------------------------------------------------------------------

    def _effect(self, driver: Driver, effect: Effect, now_ns: int) -> None:
        match effect:
            case SendAdds(bookie, position, run, start):
                self._send_adds(driver, bookie, position, run, start, now_ns)
            case SendRead(request, bookie, message):
                self._ask(driver, request, bookie, *_told(message), now_ns)
            case SendAndForget(bookie, message):
                self._add(TraceMessage(self.name, bookie, driver.ledger_id, *_told(message), now_ns, now_ns, NONE_WANTED))
            case ReadLedger(request):
                self._ask(driver, request, METADATA_STORE, "metadata", "read metadata", None, now_ns)
            case WriteLedger(request, metadata):
                self._ask(driver, request, METADATA_STORE, "metadata", f"set metadata: {_state(metadata)}", None, now_ns)
            case LookForBookies(request):
                self._ask(driver, request, METADATA_STORE, "metadata", "list bookies", None, now_ns)
            case Complete(_, LedgerMetadata() as metadata) if metadata.state is LedgerState.CLOSED:
                self._mark(driver, f"ledger {driver.ledger_id} is CLOSED, last entry {metadata.last_entry_id}", now_ns)
            case Complete(_, int() as last) if hasattr(driver.machine, "last_add_confirmed"):
                self._mark(driver, f"acknowledged up to entry {last}", now_ns)
            case Fail(_, error):
                self._mark(driver, f"failed: {type(error).__name__}", now_ns)

    def _add(self, message: TraceMessage) -> int | None:
        if len(self.messages) >= self._most:
            self.left_out += 1
            return None
        self.messages.append(message)
        return len(self.messages) - 1

    def _mark(self, driver: Driver, text: str, now_ns: int) -> None:
        if len(self.marks) < self._most:
            self.marks.append(TraceMark(self.name, driver.ledger_id, text, now_ns))

    def _ask(self, driver: Driver, request: int, peer: str, kind: str, verb: str, entries: Entries, now_ns: int) -> None:
        at = self._add(TraceMessage(self.name, peer, driver.ledger_id, kind, verb, entries, now_ns))
        if at is not None:
            self._asked[self._number(driver), request] = at

    def _send_adds(self, driver: Driver, bookie: str, position: int, run: PackedAdds, start: int, now_ns: int) -> None:
        entries = run.count_for(position, start, *driver.quorums)
        if not entries:
            return
        first, last = run.first_entry_id + start, run.last_entry_id
        verb = "write back" if run.recovery else "add"
        at = self._add(TraceMessage(self.name, bookie, run.ledger_id, "add", verb, (first, last), now_ns))
        if at is not None:
            self._adds.setdefault((self._number(driver), bookie), []).append(_OpenAdds(at, first, last, entries))

    # --- what comes -------------------------------------------------------------------------------------------------------------

    def _event(self, driver: Driver, event: Event, now_ns: int) -> None:
        match event:
            case AddReply():
                self._added(driver, event, now_ns)
            case BookieLost(bookie, status):
                for adds in self._adds.pop((self._number(driver), bookie), ()):
                    self._answer(adds.at, status, now_ns)
            case ReadReply(request, _, status):
                self._answer(self._asked.pop((self._number(driver), request), None), status, now_ns)
            case LedgerRead(request, outcome, metadata):
                more = "" if metadata is None else f", {metadata.state.name}"
                self._answer(self._asked.pop((self._number(driver), request), None), outcome, now_ns, more)
            case LedgerWritten(request, outcome) | BookiesLookedFor(request, outcome):
                self._answer(self._asked.pop((self._number(driver), request), None), outcome, now_ns)

    def _added(self, driver: Driver, reply: AddReply, now_ns: int) -> None:
        key = self._number(driver), reply.bookie
        last = reply.first_entry_id + reply.count - 1
        for adds in tuple(self._adds.get(key, ())):
            first, end = max(adds.first, reply.first_entry_id), min(adds.last, last)
            if first > end:
                continue
            if reply.entries is None:
                adds.left -= end - first + 1
            else:
                adds.left -= (reply.entries >> (first - reply.first_entry_id) & (1 << end - first + 1) - 1).bit_count()
            if adds.left <= 0 or reply.status is not Status.OK:
                self._adds[key].remove(adds)
                self._answer(adds.at, reply.status, now_ns)

    def _answer(self, at: int | None, result: Status | Outcome, now_ns: int, more: str = "") -> None:
        if at is not None:
            is_refused = result not in _NO_REFUSALS
            self.messages[at] = replace(self.messages[at], answered_ns=now_ns, answer=f"{result.name}{more}", is_refused=is_refused)


@contextmanager
def recording(session: Session, name: str, most: int) -> Iterator[Trace]:
    """Yield the trace of a client, which grows until the ``with`` block ends."""
    recorder = Recorder(name, most)
    session.reactor.post(partial(session.begin_trace, recorder))
    try:
        yield Trace([recorder])
    finally:
        recorder.stop()
        session.reactor.post(partial(session.end_trace, recorder))


def _state(metadata: LedgerMetadata) -> str:
    if metadata.state is LedgerState.CLOSED:
        return f"CLOSED, last entry {metadata.last_entry_id}"
    return f"{metadata.state.name}, {len(metadata.fragments)} fragments" if len(metadata.fragments) > 1 else metadata.state.name


def _told(message: Request) -> tuple[str, str, Entries]:
    """Return the kind of a request, what it asks for, and the entries that it names."""
    match message:
        case ReadRequest(previous_lac=int() as lac):
            return "read", f"wait for more than LAC {lac}", None
        case ReadRequest(entry_id=entry_id, fence=True):
            return "fence", *(("fence", None) if entry_id == LAST_ENTRY else ("fence, read", (entry_id, entry_id)))
        case ReadRequest(entry_id=entry_id):
            return "read", *(("read the last entry", None) if entry_id == LAST_ENTRY else ("read", (entry_id, entry_id)))
        case BatchReadRequest(entry_id=entry_id, entries_max=most):
            return "fence" if message.fence else "read", f"{'fence, ' if message.fence else ''}read up to {most} from {entry_id}", None
        case ReadRunRequest(entry_id=entry_id, count=count):
            return "read", f"read up to {count} from {entry_id}", None
        case ReadLacRequest():
            return "read", "read LAC", None
        case WriteLacRequest():
            return "lac", f"write LAC {message.last_add_confirmed}", None
        case ForceLedgerRequest():
            return "force", "force", None
        case _:
            return "read", type(message).__name__.removesuffix("Request"), None
