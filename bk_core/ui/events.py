"""Events of a cluster: from two looks at the same thing to what happened between them. The newest are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bk_core.display.ledgers import WRITABLE, bookie_states
from bk_core.display.words import counted
from bk_core.metadata.store import BookieView
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState

EVENTS_MAX = 1000
EACH_MAX = 20
"""The number of ledgers that came or went between two looks up to which each has a line of its own. More have one line together."""
KINDS = ("ledger", "ensemble", "recovery", "log", "bookie", "cluster")


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened. ``kind`` is one of KINDS; ``weight`` is good, watch, bad or "". ``ledger`` and ``log`` name what it is
    about. ``number`` and ``at_ms`` are given by the log of events."""

    kind: str
    said: str
    weight: str = ""
    ledger: int | None = None
    log: str | None = None
    number: int = 0
    at_ms: int = 0


class EventLog:
    """The newest events. Any thread may read; one writes."""

    def __init__(self, most: int = EVENTS_MAX) -> None:
        self._lock = threading.Lock()
        self._events: deque[ClusterEvent] = deque(maxlen=most)
        self._next = 1

    def add(self, events: Iterable[ClusterEvent], at_ms: int) -> None:
        """Take events of one moment in."""
        with self._lock:
            for one in events:
                self._events.append(ClusterEvent(one.kind, one.said, one.weight, one.ledger, one.log, self._next, at_ms))
                self._next += 1

    def newest(self, count: int = EVENTS_MAX, kind: str = "", ledger: int | None = None) -> list[ClusterEvent]:
        """Return the newest events first, all or those of one kind or about one ledger."""
        with self._lock:
            found = [one for one in reversed(self._events) if kind in ("", one.kind) and (ledger is None or one.ledger == ledger)]
        return found[:count]

    @property
    def total(self) -> int:
        """The number of events that there have been."""
        return self._next - 1


def of_bookies(before: BookieView, now: BookieView) -> Iterator[ClusterEvent]:
    """Yield the bookies that came, went, or became writable or read-only."""
    states_before, states_now = (bookie_states(view.writable, view.readonly) for view in (before, now))
    for bookie in sorted(states_before.keys() | states_now.keys()):
        was, is_now = states_before.get(bookie), states_now.get(bookie)
        if was == is_now:
            continue
        if is_now is None:
            yield ClusterEvent("bookie", f"bookie {bookie} is down: it is not registered any more", "bad")
        elif was is None:
            yield ClusterEvent("bookie", f"bookie {bookie} is up, {is_now}", "good" if is_now == WRITABLE else "watch")
        else:
            yield ClusterEvent("bookie", f"bookie {bookie} is {is_now} now", "good" if is_now == WRITABLE else "watch")


def of_ids(created: list[int], deleted: list[int]) -> Iterator[ClusterEvent]:
    """Yield ledgers that are new and ledgers that are gone."""
    for ids, what, weight in ((created, "created", ""), (deleted, "deleted", "watch")):
        if len(ids) > EACH_MAX:
            yield ClusterEvent("ledger", f"{counted(len(ids), 'ledger')} {what}, {ids[0]} to {ids[-1]}", weight)
        else:
            yield from (ClusterEvent("ledger", f"ledger {one} was {what}", weight, ledger=one) for one in ids)


def of_metadata(ledger_id: int, before: LedgerMetadata | None, now: LedgerMetadata) -> Iterator[ClusterEvent]:
    """Yield what happened to a ledger between two versions of its metadata; ``before`` is None for a ledger that is new."""
    fragments = {} if before is None else {one.first_entry_id: one.ensemble for one in before.fragments}
    last = None if before is None else before.last_fragment.ensemble
    for fragment in now.fragments:
        ensemble = fragments.get(fragment.first_entry_id, last)
        if ensemble is not None and ensemble != fragment.ensemble:
            gone, come = set(ensemble) - set(fragment.ensemble), set(fragment.ensemble) - set(ensemble)
            said = f"ledger {ledger_id}: from entry {fragment.first_entry_id} on {_named(come)} in place of {_named(gone)}"
            yield ClusterEvent("ensemble", said, "watch", ledger=ledger_id)
        last = fragment.ensemble
    state = None if before is None else before.state
    if now.state is not state and now.state is LedgerState.IN_RECOVERY:
        yield ClusterEvent("recovery", f"ledger {ledger_id} is fenced and being recovered", "watch", ledger=ledger_id)
    if now.state is not state and now.state is LedgerState.CLOSED:
        kind, after = ("recovery", ", after its recovery") if state is LedgerState.IN_RECOVERY else ("ledger", "")
        end = "without entries" if now.last_entry_id < 0 else f"at entry {now.last_entry_id}, {counted(now.length, 'byte')}"
        yield ClusterEvent(kind, f"ledger {ledger_id} was closed {end}{after}", "", ledger=ledger_id)


def _named(bookies: set[str]) -> str:
    return ", ".join(sorted(bookies)) or "another order"
