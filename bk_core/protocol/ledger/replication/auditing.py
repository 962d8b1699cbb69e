"""Decides which bookies are lost, and which marked ledgers are repaired when (RR-16 to RR-19). Pure: times are given, in nanoseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from bk_core.protocol.ledger.metadata import BookieId

AGAIN_SOON_NS = 60_000_000_000
BACKOFF_FIRST_NS = 5_000_000_000
BACKOFF_MAX_NS = 300_000_000_000
SPARED_NS = 60_000_000_000
"""The time that a bookie has to register again if it answers although it is not registered (RR-16)."""
CHECK_AGAIN_NS = 300_000_000_000
"""The time between the first look at all ledgers and the next one, where some could not be judged (RR-19)."""


def may_begin(admitting: int, refusing: int) -> bool:
    """Return True unless all bookies that answered refuse this client: it could look at no copy, and make none (RR-19)."""
    return admitting > 0 or refusing == 0


def check_pause_ns(refused: int, every_ns: int) -> int:
    """Return the time from the end of a look at all ledgers to the next one, after ``refused`` looks in a row in which bookies refused this
    client (RR-19). It doubles with each, up to ``every_ns``, the time between two looks where nobody refuses: a refusal may last for ever,
    and each look reads from all bookies."""
    return min(CHECK_AGAIN_NS << min(max(refused, 1) - 1, 30), every_ns)


def check_due(checked_ms: int | None, now_ms: int, every_ms: int) -> bool:
    """Return True if all ledgers are to be looked at, because the last look was noted ``every_ms`` ago or more, or never. A time in the
    future is of a host with a wrong clock, and says nothing (RR-4)."""
    return checked_ms is None or not 0 <= now_ms - checked_ms < every_ms


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of a look at the bookies. ``lost`` are those whose ledgers are to be marked now, none if there is nothing to do.
    ``look_ns`` is the time at which the next bookie is due, None if none is."""

    lost: frozenset[BookieId] = frozenset()
    look_ns: int | None = None


class LostBookies:
    """Watches which bookies are away, and for how long (RR-16).

    A bookie is away if it has a cookie and is not registered. It is lost after ``delay_ns`` away, at once if another one is away too whose
    ledgers were not marked yet: a dead bookie whose cookie is kept shortens no other's time. Its ledgers are marked, again a minute later,
    and then every ``again_ns`` while it stays away. The second time is for ledgers that clients created on it because they learned late
    that it was gone, and closed before they missed it. Nothing is done while no bookie at all is registered: that is an outage, and nobody
    could take a copy. After an outage of the metadata store bookies register one after the other, all of which ran all the while: one that
    answers has a minute more for that, once while it is away.
    """

    def __init__(self, again_ns: int) -> None:
        self._again_ns = again_ns
        self._away: dict[BookieId, int] = {}
        self._marked: dict[BookieId, int] = {}
        self._once: set[BookieId] = set()  # those of the bookies marked that are due again soon
        self._spared: dict[BookieId, int] = {}  # the times until which bookies that answered are not lost

    def look(self, known: Iterable[BookieId], registered: Collection[BookieId], delay_ns: int, now_ns: int) -> Audit:
        """Take in a look at the registry at ``now_ns``, and return what is due."""
        if not registered:
            return Audit()
        away = {bookie: self._away.get(bookie, now_ns) for bookie in known if bookie not in registered}
        self._away = away
        self._marked = {bookie: at for bookie, at in self._marked.items() if bookie in away}
        self._once &= away.keys()
        self._spared = {bookie: at for bookie, at in self._spared.items() if bookie in away}
        wait_ns = 0 if len(away.keys() - self._marked.keys()) > 1 else delay_ns
        due = {bookie: max(self._due_ns(bookie, since + wait_ns), self._spared.get(bookie, now_ns)) for bookie, since in away.items()}
        lost = frozenset(bookie for bookie, at in due.items() if at <= now_ns)
        next_ns = min((at for bookie, at in due.items() if bookie not in lost), default=None)
        return Audit(lost, next_ns)

    def to_ask(self, lost: Iterable[BookieId]) -> list[BookieId]:
        """Return those of ``lost`` that have to be asked whether they run, before their ledgers are marked for the first time."""
        return [bookie for bookie in lost if bookie not in self._marked and bookie not in self._spared]

    def answered(self, bookies: Iterable[BookieId], now_ns: int) -> None:
        """Note that bookies which are away answer. They are lost a minute later, unless they have registered by then."""
        self._spared |= dict.fromkeys(bookies, now_ns + SPARED_NS)

    def _due_ns(self, bookie: BookieId, lost_ns: int) -> int:
        marked = self._marked.get(bookie)
        again_ns = min(AGAIN_SOON_NS, self._again_ns) if bookie in self._once else self._again_ns
        return lost_ns if marked is None else marked + again_ns

    def took_over(self) -> None:
        """Have the ledgers of all bookies that were marked so far marked once more, soon: who marked them may not have come to the end."""
        self._once |= self._marked.keys()

    def marked(self, lost: Iterable[BookieId], now_ns: int) -> None:
        """Note that the ledgers of these bookies were marked by a look at all ledgers that began at ``now_ns``."""
        for bookie in lost:
            if bookie in self._away:
                if bookie in self._marked:
                    self._once.discard(bookie)
                else:
                    self._once.add(bookie)
                self._marked[bookie] = now_ns


class Ended(Enum):
    """The end of an attempt to repair a ledger."""

    DONE = auto()  # nothing is left to do, or the ledger is gone
    HELD = auto()  # somebody else works on it
    TAIL = auto()  # only the undecided last fragment lacks a bookie, which its writer may replace
    FAILED = auto()


@dataclass(slots=True)
class _Known:
    not_before_ns: int = 0
    failures: int = 0
    tail_since_ns: int | None = None


class RepairQueue:
    """Chooses which marked ledgers are repaired now (RR-17), and when the writer of an open one has had its time (RR-18).

    A ledger that could not be repaired is tried again after a pause that doubles, up to five minutes. One that another replicator holds
    is looked at again soon. The open tail of a ledger is left alone until ``grace_ns`` after it was first found without a bookie.
    """

    def __init__(self, grace_ns: int) -> None:
        self._grace_ns = grace_ns
        self._known: dict[int, _Known] = {}

    def ready(self, marked: Collection[int], now_ns: int) -> list[int]:
        """Return those of the marked ledgers that may be tried now, in the order given. What is not marked any more is forgotten."""
        self._known = {ledger_id: known for ledger_id, known in self._known.items() if ledger_id in marked}
        return [ledger_id for ledger_id in marked if (known := self._known.get(ledger_id)) is None or known.not_before_ns <= now_ns]

    def recovers(self, ledger_id: int, now_ns: int) -> bool:
        """Return True if an attempt may recover the ledger, because its writer has had its time (RR-3)."""
        known = self._known.get(ledger_id)
        return known is not None and known.tail_since_ns is not None and now_ns - known.tail_since_ns >= self._grace_ns

    def ended(self, ledger_id: int, how: Ended, now_ns: int) -> None:
        """Take in the end of an attempt."""
        if how is Ended.DONE:
            self._known.pop(ledger_id, None)
            return
        known = self._known.setdefault(ledger_id, _Known())
        if how is Ended.TAIL and not self.recovers(ledger_id, now_ns):
            known.tail_since_ns = now_ns if known.tail_since_ns is None else known.tail_since_ns
            known.not_before_ns = known.tail_since_ns + self._grace_ns
        elif how is Ended.HELD:
            known.not_before_ns = now_ns + BACKOFF_FIRST_NS
        else:
            known.not_before_ns = now_ns + min(BACKOFF_FIRST_NS << min(known.failures, 8), BACKOFF_MAX_NS)
            known.failures += 1
