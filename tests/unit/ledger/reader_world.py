"""A world for reading machines in one thread: bookies as dictionaries, answers on demand, effects sorted by what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendRead, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import LedgerRead, MetadataChanged, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    BatchReadRequest,
    BatchReadResponse,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    ReadRunRequest,
    ReadRunResponse,
    Response,
    Status,
)
from bk_core.protocol.wire.read_run import RunAnswers

LEDGER = 7
E = TypeVar("E", bound=Effect)


def metadata(
    quorums: tuple[int, int, int] = (3, 3, 2),
    *fragments: tuple[int, str],
    state: LedgerState = LedgerState.OPEN,
    last: int = -1,
) -> LedgerMetadata:
    """Fragments as (first entry, one letter for each bookie)."""
    listed = fragments or ((0, "abcdefgh"[: quorums[0]]),)
    return LedgerMetadata(*quorums, state, tuple(Fragment(first, tuple(letters)) for first, letters in listed), last_entry_id=last)


def closed(open_metadata: LedgerMetadata, last: int) -> LedgerMetadata:
    return replace(open_metadata, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1)


def payload(entry_id: int) -> bytes:
    return b"%d" % entry_id


def body(entry_id: int, *, lac: int | None = None, corrupt: bool = False, ledger_id: int = LEDGER) -> bytes:
    told = entry_id - 1 if lac is None else lac
    good = layout.encode_body(ledger_id, entry_id, told, entry_id + 1, payload(entry_id), DigestType.CRC32C, b"")
    return good[:-1] + b"?" if corrupt else good


def batch(first: int, bodies: Sequence[bytes]) -> BatchReadResponse:
    return BatchReadResponse(0, Status.OK, LEDGER, first, codec_v2.join_bodies(list(bodies)))


def single(entry_id: int, *, max_lac: int | None = None, corrupt: bool = False) -> ReadResponse:
    return ReadResponse(0, Status.OK, LEDGER, entry_id, body(entry_id, corrupt=corrupt), max_lac)


def nothing_confirmed() -> ReadResponse:
    """To a plain read of the last entry: there is one, and nothing is confirmed."""
    return ReadResponse(0, Status.OK, LEDGER, LAST_ENTRY, body(0, lac=-1), -1)


def nothing_new(max_lac: int | None = None) -> ReadResponse:
    """Return the answer to a long poll that brought nothing, or no entry."""
    return ReadResponse(0, Status.OK, LEDGER, -1, None, max_lac)


def lac_answer(entry_id: int | None, *, lac: int | None = None, explicit: int | None = None, status: Status = Status.OK) -> ReadLacResponse:
    packet = None if explicit is None else layout.encode_lac_packet(LEDGER, explicit, DigestType.CRC32C, b"")
    return ReadLacResponse(0, status, LEDGER, packet, None if entry_id is None else body(entry_id, lac=lac))


def good(ask: SendRead, *, max_lac: int | None = None) -> Response:
    """All that was asked for."""
    message = ask.message
    if isinstance(message, BatchReadRequest):
        return batch(message.entry_id, [body(e) for e in range(message.entry_id, message.entry_id + message.entries_max)])
    if isinstance(message, ReadRunRequest):
        return read_run(ask, max_lac=max_lac)
    assert isinstance(message, ReadRequest)
    return single(message.entry_id, max_lac=max_lac)


def read_run(ask: SendRead, upto: int | None = None, *, max_lac: int | None = None, corrupt: int | None = None) -> ReadRunResponse:
    """The answers to many single reads, up to an entry."""
    message = ask.message
    assert isinstance(message, ReadRunRequest)
    answers = RunAnswers(message)
    last = message.last_entry_id if upto is None else upto
    for entry_id in range(message.entry_id, last + 1, message.step):
        answers.take(single(entry_id, max_lac=max_lac, corrupt=entry_id == corrupt))
    return answers.response(Status.TIMEOUT)


def only(effects: Sequence[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class World:
    """Drives one machine: keeps what is outstanding, delivered, logged, and the end."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.asks: list[SendRead] = []  # outstanding, in order of asking
        self.all_asks: list[SendRead] = []
        self.runs: list[EntryRun] = []
        self.heard: list[int] = []
        self.adopted: list[tuple[LedgerMetadata, int]] = []
        self.ends: list[object] = []  # None for a good end, else the error
        self.looks: list[ReadLedger] = []
        self.timers: dict[str, int] = {}
        self.logs: list[Log] = []
        self.now_ns = 0

    def start(self) -> World:
        self.perform(self.machine.start())
        return self

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendRead():
                    self.asks.append(effect)
                    self.all_asks.append(effect)
                case Complete(token="run", value=run):
                    self.runs.append(run)
                case Complete(token="heard", value=lac):
                    self.heard.append(lac)
                case Complete(token="metadata", value=value):
                    self.adopted.append(value)
                case Complete(value=value):
                    self.ends.append(value)
                case Fail(error=error):
                    self.ends.append(error)
                case ReadLedger():
                    self.looks.append(effect)
                case SetTimer(key, after_ns):
                    self.timers[key] = after_ns
                case Log():
                    self.logs.append(effect)
                case _:
                    raise AssertionError(f"a reader has no business with {effect}")

    @property
    def entries(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for run in self.runs:
            for index, value in enumerate(run.payloads()):
                assert run.first_entry_id + index == len(found) + self.runs[0].first_entry_id, "in order, without gaps"
                found[run.first_entry_id + index] = value
        return found

    @property
    def bookies(self) -> list[str]:
        return [ask.bookie for ask in self.asks]

    def ask_of(self, bookie: str) -> SendRead:
        return next(ask for ask in self.asks if ask.bookie == bookie)

    def answer(self, ask: SendRead | str, answer: Response | Status | Callable[[SendRead], Response]) -> None:
        """A response, a status without one, or what makes the response."""
        found = self.ask_of(ask) if isinstance(ask, str) else ask
        if found in self.asks:
            self.asks.remove(found)
        if isinstance(answer, Status):
            reply = ReadReply(found.request, found.bookie, answer)
        else:
            response = answer(found) if callable(answer) else answer
            reply = ReadReply(found.request, found.bookie, response.status, response)
        self.perform(self.machine.handle(reply, self.now_ns))

    def answer_all(self, answer: Response | Status | Callable[[SendRead], Response] = good) -> None:
        """Everything that is outstanding now."""
        for ask in list(self.asks):
            self.answer(ask, answer)

    def fire(self, key: str) -> None:
        del self.timers[key]
        self.perform(self.machine.handle(TimerFired(key), self.now_ns))

    def change(self, value: LedgerMetadata, version: int) -> None:
        self.perform(self.machine.handle(MetadataChanged(value, version), self.now_ns))

    def look(self, value: LedgerMetadata | None, version: int = -1, outcome: Outcome = Outcome.OK, moved: bool = False) -> None:
        """Answer the one outstanding look at the metadata."""
        (look,) = self.looks
        self.looks.clear()
        self.perform(self.machine.handle(LedgerRead(look.request, outcome, value, version, moved=moved), self.now_ns))

    def consume(self) -> None:
        self.perform(self.machine.consumed())


OPEN = metadata()
TEN = closed(OPEN, 9)


def reader(first: int = 0, last: int = 9, md: object = TEN, **options: object) -> World:
    settings: dict[str, object] = {"start": 0, "batch": True, "version": 1, **options}
    return World(RangeReader(LEDGER, md, first, last, **settings)).start()  # type: ignore[arg-type]


def expected(first: int, last: int) -> dict[int, bytes]:
    return {e: payload(e) for e in range(first, last + 1)}


def fail_all(world: World, *statuses: Status) -> None:
    """Each replica in turn, then the second look at the metadata, which has nothing new."""
    for status in statuses:
        (ask,) = world.asks
        world.answer(ask, status)
    world.look(TEN, 1)
