"""Cuts the front off a log (replication-protocol.md 10.3). It needs no leadership, because its compare-and-set only removes a prefix.

``trim_log`` and the retention (client/log/janitor.py) drive it in production, ``trimming`` (tests/simulation/log_keepers.py) in the
simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bk_core.errors import BkError, InvalidArgumentError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.effects import LedgerOpened, LookAtLedger
from bk_core.protocol.log.history import Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView


@dataclass(frozen=True, slots=True)
class TrimBounds:
    """The bounds of a trim. It drops segments before that of ``before``, segments committed before ``before_ms`` (milliseconds since 1970),
    and those older than the newest ``max_bytes``. Of several bounds the farthest holds."""

    before: Position | None = None
    before_ms: int | None = None
    max_bytes: int | None = None

    def cut(self, listed: LedgerList, load: Load) -> int:
        """Return the sequence number of the first segment to keep. Some segments before it may have to stay."""
        return max(self._cuts(LogView(listed, load)), default=listed.trimmed_seq)

    def dropped(self, listed: LedgerList, load: Load) -> tuple[int, int, int]:
        """Return the segments, rows and bytes that a trim drops at most: it stops before a live segment, and before one whose ledger is
        not CLOSED, which only asking tells."""
        cut = min([self.cut(listed, load), *(segment.seq for segment in listed.segments if segment.live)])
        rows, size = LogView(listed, load).counts_before(Position(cut))
        return cut - listed.trimmed_seq, rows - listed.trimmed_rows, size - listed.trimmed_bytes

    def _cuts(self, view: LogView) -> Iterable[int]:
        first = view.listed.trimmed_seq
        if self.before is not None:
            yield view.normal(self.before).seq if self.before.seq >= first else first
        if self.before_ms is not None:
            found = view.position_at_time(self.before_ms)
            yield view.next_seq if found is None else found.seq
        if self.max_bytes is not None:
            beyond = view.listed.total_bytes - self.max_bytes - view.listed.trimmed_bytes
            yield first if beyond <= 0 else _at_byte(view, beyond)


def _at_byte(view: LogView, beyond: int) -> int:
    """Return the segment with that byte behind the start, so that at least the bytes to keep are kept.

    ``position_at_rows`` always admits one row, so this steps back over it, and over segments without entries behind it.
    """
    found = view.position_at_rows(view.first_position, None, beyond).seq
    while found > view.listed.trimmed_seq and view.counts_before(Position(found))[1] - view.listed.trimmed_bytes > beyond:
        found -= 1
    return found


def check_before(name: str, before: Position | None, listed: LedgerList) -> None:
    """Raise InvalidArgumentError for a bound beyond the end of the log: it is mistyped, or of another log, and would drop everything."""
    if before is None or before.seq <= listed.next_seq:
        return
    end = listed.next_seq
    last = f"whose last segment is {end - 1}: before=Position({end}) (--before-seq {end}) drops all" if end else "which has no segment yet"
    raise InvalidArgumentError(f"segment {before.seq} lies beyond the end of log {name!r}, {last}", log=name)


class LogTrimming(ListClearing):
    """Machine: unlists a prefix, then deletes its ledgers (LOG-11), and whatever else the list has put aside.

    The cut is decided once, on the list as it is first read. It stops before a live segment, and before one whose ledger is neither CLOSED
    nor watched by an intent, because its writer may still commit more of it (LOG-12). So a log that is being written keeps its last ledger,
    and the list keeps the counts of the log when nothing else is left. It completes with the ids that are gone, perhaps none.
    """

    def __init__(self, name: str, bounds: TrimBounds, intents: Collection[int] = (), retry_ns: int = 200_000_000) -> None:
        super().__init__(name, intents, retry_ns)
        self.cut = -1
        self.kept: Segment | None = None  # the first segment that the bounds keep
        self._bounds = bounds
        self._closed: dict[int, None] = {}  # ledgers found CLOSED, which is final

    def _begin(self) -> None:
        assert self.listed is not None
        self._log_id = self._log_id or self.listed.log_id
        if self._is_another_log():
            self._done()
        else:
            self._find(self._decide, self._cut_at, self._begin)

    def _decide(self, listed: LedgerList, load: Load) -> tuple[int, Segment | None]:
        seq = self._bounds.cut(listed, load)
        return seq, LogView(listed, load).segment(seq) if seq < listed.next_seq else None

    def _cut_at(self, decided: tuple[int, Segment | None]) -> None:
        self.cut, self.kept = decided
        self._trim()

    def _trim(self) -> None:
        """Look at ledgers until it is known how far the cut may reach, then cut."""
        assert self.listed is not None
        for segment in self.listed.segments:  # those in the history were closed when they were sealed
            if segment.seq >= self.cut or segment.live:
                break
            if not self._may_go(segment):
                self._look_at(segment)
                return
        self._change(self._without_front, lambda: self._clear(self._done))

    def _may_go(self, segment: Segment) -> bool:
        return segment.ledger_id in self._closed or segment.ledger_id in self._intents

    def _look_at(self, segment: Segment) -> None:
        self._ask(lambda request: LookAtLedger(request, segment.ledger_id), lambda event: self._seen(event, segment))

    def _seen(self, event: LedgerOpened, segment: Segment) -> None:
        """Note that a ledger is CLOSED. One that is gone was CLOSED when somebody deleted it (LOG-12)."""
        match event.outcome:
            case Outcome.UNKNOWN:
                self._after("check", self._retry_ns, self._trim)
            case Outcome.NO_SUCH_LEDGER:
                self._found(segment, closed=True)
            case Outcome.OK:
                self._found(segment, closed=event.closed)
            case _:
                self._fail(event.error or BkError(f"ledger {segment.ledger_id} cannot be looked at"))

    def _found(self, segment: Segment, *, closed: bool) -> None:
        if closed:
            self._closed[segment.ledger_id] = None
        else:
            self.cut = min(self.cut, segment.seq)
        self._trim()

    def _without_front(self, listed: LedgerList, load: Load) -> LedgerList:
        """Return the list without its front, as far as the cut may reach in this list; it may have more live segments than the one that was
        looked at (LOG-11)."""
        kept = (segment.seq for segment in listed.segments if segment.live or not self._may_go(segment))
        return listed.trim(min([self.cut, *kept]), load, self._intents)[0]
