"""``client.trace()``: the messages of clients with bookies and the metadata store, in their order, and the picture of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from bk_core.arguments import COUNT, checked
from bk_core.display.words import counted
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.protocol.ledger.metadata import BookieId

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METADATA_STORE = "metadata store"
NONE_WANTED = "none is wanted"
Scale: TypeAlias = Literal["order", "time"]
SCALES = get_args(Scale)
Entries: TypeAlias = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """One request of a client, and its answer.

    ``client`` is the name of the trace, ``peer`` a bookie or "metadata store". ``kind`` is "add", "lac" (the last add confirmed, written
    without an entry), "force", "read", "fence" or "metadata"; ``verb`` says it in words, and ``entries`` are the first and the last entry
    that it is about. ``answer`` is the status; "" while there is none, and "none is wanted" where none comes.
    ``is_refused`` is True if that is no success; that there is no such entry is an answer like another one.
    Times are nanoseconds on this host's monotonic clock, as the client sent the request and took in the answer.
    """

    client: str
    peer: BookieId
    ledger_id: int
    kind: str
    verb: str
    entries: Entries
    sent_ns: int
    answered_ns: int | None = None
    answer: str = ""
    is_refused: bool = False

    @property
    def what(self) -> str:
        """The request in words."""
        if self.entries is None:
            return self.verb
        first, last = self.entries
        return f"{self.verb} {first}" if first == last else f"{self.verb} {first} to {last}"


@dataclass(frozen=True, slots=True)
class TraceMark:
    """Something that a client came to know, such as an acknowledged entry, at a time as in ``TraceMessage``."""

    client: str
    ledger_id: int
    text: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a trace: ``number`` counts from 1, ``at_ms`` from the first step. ``message`` or ``mark`` is what happened."""

    number: int
    at_ms: float
    client: str
    text: str
    message: TraceMessage | None = None
    mark: TraceMark | None = None
    is_answer: bool = False


class Recording(Protocol):
    """The part of a recorder that a trace reads."""

    name: str
    messages: list[TraceMessage]
    marks: list[TraceMark]
    left_out: int


class Trace:
    """The messages about entries of ledgers that one or more clients exchanged, as the clients saw them.

    ``with client.trace() as trace`` records one; ``+`` puts those of several clients of one process together. It can be looked at while it
    is recorded. It has all requests to bookies that a handle, a reader or a recovery makes: adds, reads, fences, LACs, forces. Of the
    metadata store it has what happens to a ledger in use: its metadata written by compare-and-set (a change of the ensemble, a recovery, a
    close) and read again on the way. What it does not have: making, opening, listing and deleting ledgers, lists of logs, the registration
    of bookies, answers that came after the end, and times at bookies, because only clients are looked at.

    >>> with client.trace("reader") as trace:
    ...     client.recover_ledger(7)
    >>> trace.plot()
    """

    def __init__(self, recordings: Sequence[Recording]) -> None:
        """``BookKeeper.trace`` makes it, of ``recordings``."""
        self._recordings = tuple(recordings)

    def __add__(self, other: Trace) -> Trace:
        """Return the trace of both. The clients must be of one process, or at least of one host, whose clock they share."""
        if not isinstance(other, Trace):
            raise ArgumentTypeError(f"a trace is put together with another one, not with something of type {type(other).__name__}")
        return Trace((*self._recordings, *(one for one in other._recordings if one not in self._recordings)))

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients, in the order in which they were put together."""
        return tuple(dict.fromkeys(one.name for one in self._recordings))

    @property
    def messages(self) -> tuple[TraceMessage, ...]:
        """All messages, by the time at which they were sent."""
        return tuple(sorted((message for one in self._recordings for message in tuple(one.messages)), key=lambda one: one.sent_ns))

    @property
    def marks(self) -> tuple[TraceMark, ...]:
        """The things that the clients came to know, by time."""
        return tuple(sorted((mark for one in self._recordings for mark in tuple(one.marks)), key=lambda one: one.at_ns))

    @property
    def left_out(self) -> int:
        """The number of messages that were not recorded, because there were more than were asked for."""
        return sum(one.left_out for one in self._recordings)

    @checked()
    def steps(self, *, together: bool = True) -> list[TraceStep]:
        """Return everything in the order in which the clients saw it: what they sent, what came back, what they knew then.

        With ``together``, reads of consecutive entries from one peer that got the same answer are one, from the first request to the
        last answer: a recovery asks for hundreds of entries ahead.
        """
        found: list[tuple[int, int, str, str, TraceMessage | None, TraceMark | None, bool]] = []
        for message in joined(self.messages) if together else self.messages:
            found.append((message.sent_ns, 0, message.client, f"{message.what} -> {message.peer}", message, None, False))
            if message.answered_ns is not None and message.answer != NONE_WANTED:
                text = f"{message.peer}: {message.answer} (to: {message.what})"
                found.append((message.answered_ns, 1, message.client, text, message, None, True))
        found += [(mark.at_ns, 2, mark.client, mark.text, None, mark, False) for mark in self.marks]
        found.sort(key=lambda one: one[:2])
        began = found[0][0] if found else 0
        return [TraceStep(number, (at - began) / 1e6, *rest) for number, (at, _, *rest) in enumerate(found, 1)]  # type: ignore[arg-type]

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each step: ``step``, ``ms``, ``client``, ``ledgerId`` and ``what``."""
        return [
            {"step": one.number, "ms": one.at_ms, "client": one.client, "ledgerId": _subject(one).ledger_id, "what": one.text}
            for one in self.steps()
        ]

    @checked(until=COUNT)
    def plot(self, *, scale: Scale = "order", until: int | None = None, ax: Any = None) -> Axes:
        """Draw the space-time diagram, and return its axes: a lane for each client, bookie and the metadata store, a line for each message.

        ``scale`` is "order", a step to the right for each thing that happened, or "time", in milliseconds. ``until`` is the last step that
        is drawn in full; what comes later is left out. ``ax`` is the axes to draw in, by default a figure of its own. Only the clients'
        clock is known, so a message reaches its peer in the picture halfway between request and answer.

        Raises InvalidArgumentError for another ``scale``, MissingPackageError without matplotlib.
        """
        if scale not in SCALES:
            raise InvalidArgumentError(f'scale must be "order" or "time", not {scale!r}')
        from bk_core.plots.trace import draw_trace

        return draw_trace(list(lanes(self)), list(lines(self, until)), scale=scale, title=_title(self), ax=ax)

    def __repr__(self) -> str:
        left = f", {self.left_out:,} not recorded" if self.left_out else ""
        return f"<Trace of {', '.join(self.clients)}: {counted(len(self.messages), 'message')}{left}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the first steps."""
        from bk_core.display import table

        rows = ((one.number, f"{one.at_ms:.2f}", one.client, one.text) for one in self.steps())
        return table.html(repr(self).strip("<>"), table.Table(["#step", "#ms", "client", "what"], rows))


def joined(messages: Iterable[TraceMessage]) -> list[TraceMessage]:
    """Return the messages, with reads of consecutive entries as one if they have the same client, peer, verb and answer."""
    found: list[TraceMessage] = []
    newest: dict[tuple[object, ...], int] = {}
    for one in messages:
        key = one.client, one.peer, one.ledger_id, one.verb, one.answer
        at = None if one.kind == "add" else newest.get(key)
        if (
            at is not None
            and one.entries is not None
            and (before := found[at]).entries is not None
            and before.entries[1] + 1 == one.entries[0]
        ):
            answered = None if one.answered_ns is None or before.answered_ns is None else max(one.answered_ns, before.answered_ns)
            found[at] = replace(before, entries=(before.entries[0], one.entries[1]), answered_ns=answered)
        else:
            newest[key] = len(found)
            found.append(one)
    return found


def _subject(step: TraceStep) -> TraceMessage | TraceMark:
    found = step.message or step.mark
    assert found is not None
    return found


def _title(trace: Trace) -> str:
    ledgers = sorted({one.ledger_id for one in trace.messages} | {one.ledger_id for one in trace.marks})
    of = f"ledger {ledgers[0]}" if len(ledgers) == 1 else counted(len(ledgers), "ledger")
    return f"messages of {' and '.join(trace.clients)} about {of}"


def lanes(trace: Trace) -> Iterator[str]:
    """Yield the lanes of the picture from above: the first client, the metadata store, the bookies, the other clients."""
    peers = {message.peer for message in trace.messages}
    yield from trace.clients[:1]
    if METADATA_STORE in peers:
        yield METADATA_STORE
    yield from sorted(peers - {METADATA_STORE})
    yield from trace.clients[1:]


def lines(trace: Trace, until: int | None) -> Iterator[dict[str, Any]]:
    """Yield what is drawn: messages with their steps and times, and marks."""
    steps = trace.steps()
    sent = {id(one.message): one for one in steps if one.message is not None and not one.is_answer}
    answered = {id(one.message): one for one in steps if one.message is not None and one.is_answer}
    for key, begin in sent.items():
        message, end = begin.message, answered.get(key)
        if until is not None and begin.number > until:
            continue
        assert message is not None
        seen = end is not None and (until is None or end.number <= until)
        yield {
            "client": message.client, "peer": message.peer, "kind": message.kind, "what": message.what,
            "answer": message.answer if seen else "", "refused": message.is_refused and seen, "wants": message.answer != NONE_WANTED,
            "sent": (begin.number, begin.at_ms), "answered": (end.number, end.at_ms) if seen and end is not None else None,
        }  # fmt: skip
    for one in steps:
        if one.mark is not None and (until is None or one.number <= until):
            yield {"client": one.client, "mark": one.text, "sent": (one.number, one.at_ms)}
