"""Reads the copies of entries from one bookie alone, as it has them: no other replica is asked, nothing is fenced."""

from __future__ import annotations

import struct
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bk_core.client.inspect import Pending, answer_of, ask_bookie
from bk_core.errors import BookieUnavailableError, DigestError, InvalidArgumentError
from bk_core.protocol import BytesLike
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.wire import read_run
from bk_core.protocol.wire.messages import ReadRunRequest, ReadRunResponse, Response, Status

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

RUN_ENTRIES = 256
RUN_BYTES = 1 << 20
RUNS_AHEAD = 4
SINGLES = 64  # asked for at once after an entry that is not there
TRIES = 8
PAUSE_S = 0.25
_PASSING = frozenset({Status.TIMEOUT, Status.UNAVAILABLE, Status.TOO_MANY_REQUESTS, Status.PROTOCOL_ERROR})
_LAC_AND_LENGTH = struct.Struct(">qq")
_LAC_AT = 16  # in a body


_Asked: TypeAlias = tuple[int, int, Pending]  # with its first and last entry


@dataclass(frozen=True, slots=True)
class CopyRun:
    """An answer of a bookie about ``count`` entries first, first + step, ...: their bodies, or with ``status`` not OK why it has no copy
    of the one entry. ``frames`` are bodies as read answers of v2."""

    first: int
    count: int
    step: int
    status: Status
    frames: BytesLike = b""
    bounds: BytesLike = b""

    def bodies(self) -> Iterator[tuple[int, memoryview]]:
        """Yield each entry id with the body; nothing where there is no copy."""
        places = array("q", bytes(self.bounds))
        view = memoryview(self.frames)
        for index in range(len(places) // 2):
            yield self.first + index * self.step, view[places[2 * index] + read_run.HEADER_BYTES : places[2 * index + 1]]


@dataclass(frozen=True, slots=True)
class Copy:
    """One entry as one bookie has it. ``status`` is the bookie's answer; ``digest_ok`` is True if the body is intact and of this entry, and
    None without a body. ``last_add_confirmed`` and ``length`` are the numbers in the body, right only with a right digest."""

    entry_id: int
    status: Status
    digest_ok: bool | None = None
    last_add_confirmed: int | None = None
    length: int | None = None
    payload: bytes | None = None


class BookieCopies:
    """The copies that one bookie has of a ledger."""

    def __init__(self, client: BookKeeper, ledger_id: int, bookie: BookieId) -> None:
        self._client = client
        self._ledger_id = ledger_id
        self._bookie = bookie

    def runs(self, first: int, last: int, step: int = 1) -> Iterator[CopyRun]:
        """Yield what the bookie has of entries first, first + step, ... up to last, in order. Some runs are asked for ahead.

        Raises BookieUnavailableError if it gives no answer.
        """
        last -= (last - first) % step
        waiting: deque[_Asked] = deque()
        following, tries = first, 0
        while following <= last or waiting:
            while following <= last and len(waiting) < RUNS_AHEAD:
                end = min(last, following + (RUN_ENTRIES - 1) * step)
                waiting.append(self._asked(following, end, step))
                following = end + step
            low, high, future = waiting.popleft()
            status, response = answer_of(self._client, future)
            if status in _PASSING:
                tries += 1
                if tries >= (TRIES if status is Status.TOO_MANY_REQUESTS else 2):
                    raise self._silent(status, low)
                time.sleep(PAUSE_S)
                waiting.appendleft(self._asked(low, high, step))
                continue
            tries = 0
            run = self._run(low, step, status, response)
            yield run
            waiting.extendleft(reversed(self._rest(low + run.count * step, high, step, run.status is not Status.OK)))

    def _rest(self, first: int, last: int, step: int, singles: bool) -> list[_Asked]:
        """Ask for what an answer left out; after an entry that is not there some singly, because more may be missing."""
        alone = range(first, min(last, first + (SINGLES - 1) * step) + 1, step) if singles else range(0)
        asked = [self._asked(entry_id, entry_id, step) for entry_id in alone]
        following = first + len(alone) * step
        return [*asked, self._asked(following, last, step)] if following <= last else asked

    def _asked(self, first: int, last: int, step: int) -> _Asked:
        message = ReadRunRequest(0, self._ledger_id, first, (last - first) // step + 1, step, RUN_BYTES)
        return first, last, ask_bookie(self._client, self._bookie, message)

    def _run(self, first: int, step: int, status: Status, response: Response | None) -> CopyRun:
        if status is not Status.OK or not isinstance(response, ReadRunResponse):
            return CopyRun(first, 1, step, status if status is not Status.OK else Status.PROTOCOL_ERROR)
        frames = bytes(response.frames)
        bounds = read_run.frame_bounds(frames)
        return CopyRun(first, len(bounds) // 16, step, status, frames, bounds)

    def _silent(self, status: Status, entry_id: int) -> BookieUnavailableError:
        message = (
            f"bookie {self._bookie} gave no answer about entry {entry_id} of ledger {self._ledger_id} ({status.name.lower()}); "
            "see if it runs (bk bookie ls) and try again"
        )
        return BookieUnavailableError(message, bookie=self._bookie, ledger=self._ledger_id, entry=entry_id)


class BodyReader:
    """Takes bodies of one ledger apart, and checks them."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._ledger_id = ledger_id
        self._digest_type = metadata.digest_type
        self._key = digests.hmac_key(metadata.password)
        self._overhead = layout.body_overhead(metadata.digest_type)

    def copy(self, entry_id: int, body: BytesLike) -> Copy:
        """Return the copy in a body; also one whose digest is wrong has the numbers and the payload that are there."""
        try:
            entry = layout.decode_body(body, self._ledger_id, entry_id, self._digest_type, self._key)
        except DigestError:
            view = memoryview(body)
            if len(view) < layout.HEADER_BYTES:
                return Copy(entry_id, Status.OK, False)
            lac, length = _LAC_AND_LENGTH.unpack_from(view, _LAC_AT)
            return Copy(entry_id, Status.OK, False, lac, length, bytes(view[self._overhead :]))
        return Copy(entry_id, Status.OK, True, entry.last_add_confirmed, entry.length, entry.payload)

    def copies(self, run: CopyRun) -> Iterator[Copy]:
        """Yield the copies of a run."""
        if run.status is not Status.OK:
            yield Copy(run.first, run.status)
        for entry_id, body in run.bodies():
            yield self.copy(entry_id, body)


def held_spans(metadata: LedgerMetadata, bookie: BookieId, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield first entry, last entry and position of each span of entries in whose ensemble the bookie is."""
    for fragment, following in zip(metadata.fragments, [*(one.first_entry_id for one in metadata.fragments[1:]), last + 1], strict=True):
        low, high = max(first, fragment.first_entry_id), min(last, following - 1)
        for position, name in enumerate(fragment.ensemble):
            if name == bookie and low <= high:
                yield low, high, position


def check_named(ledger_id: int, metadata: LedgerMetadata, *bookies: BookieId) -> None:
    """Raise InvalidArgumentError for a bookie that no fragment of the ledger names."""
    named = dict.fromkeys(name for fragment in metadata.fragments for name in fragment.ensemble)
    for bookie in bookies:
        if bookie not in named:
            message = f"bookie {bookie} holds nothing of ledger {ledger_id}, whose bookies are {', '.join(named)}"
            raise InvalidArgumentError(message, ledger=ledger_id, bookie=bookie)


def copies_of(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata, bookie: BookieId, first: int, last: int) -> Iterator[Copy]:
    """Yield the copies of entries ``first`` to ``last`` that ``bookie`` should have, in order, as it has them.

    Raises InvalidArgumentError for a bookie that no fragment names, BookieUnavailableError if it gives no answer.
    """
    check_named(ledger_id, metadata, bookie)
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    source, reader = BookieCopies(client, ledger_id, bookie), BodyReader(ledger_id, metadata)
    for low, high, position in held_spans(metadata, bookie, first, last):
        for start, end in _contiguous(distribution, position, low, high):
            for run in source.runs(start, end):
                yield from reader.copies(run)


def _contiguous(distribution: Distribution, position: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of consecutive entries that a position holds."""
    if not distribution.striped:
        yield first, last
        return
    start: int | None = None
    for entry_id in range(first, last + 2):
        held = entry_id <= last and distribution.holds(position, entry_id)
        if held and start is None:
            start = entry_id
        elif not held and start is not None:
            yield start, entry_id - 1
            start = None
