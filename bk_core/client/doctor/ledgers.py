"""Goes once through the metadata of all ledgers, in bounded memory, and judges what it finds."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from shlex import quote

from bk_core.client.doctor.clocks import WriterClocks
from bk_core.client.doctor.findings import SHOWN_MAX, Finding, LedgerCounts
from bk_core.client.doctor.passwords import ADVICE, OPTION
from bk_core.display.words import counted, told_age
from bk_core.errors import MetadataFormatError
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.log.identity import LOG_KEY, Traces, is_orphan


class Sample:
    """The first few of many ledgers, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, ledger_id: int) -> None:
        """Count one more."""
        self.count += 1
        if self.count <= SHOWN_MAX:
            self.first.append(ledger_id)


class LedgerScan:
    """One pass over the metadata of all ledgers. ``dead`` are bookies that give no answer now; ``registered`` are all that are registered.

    ``ids`` has the ids of all ledgers that were fed, ascending. ``suspects`` are ledgers that may be orphans, at most ``SUSPECTS_MAX``.
    """

    SUSPECTS_MAX = 1000

    def __init__(
        self, registered: Collection[BookieId], dead: Collection[BookieId], log_root: str | None, log_ids: dict[str, str], stuck_ms: int
    ) -> None:
        self._alive = frozenset(registered) - frozenset(dead)
        self._unreachable = frozenset(registered) & frozenset(dead)
        self._log_root, self._log_ids = log_root, log_ids
        self._stuck_ms = stuck_ms
        self.ids = array("q")
        self.closed = array("q")  # with entries, on bookies that answer
        self.suspects: list[int] = []
        self.newest_ms = 0
        self._states: Counter[str] = Counter()
        self._widest = 0  # ensemble of a ledger that lacks copies
        self._fragments: Counter[BookieId] = Counter()
        self._ledgers: Counter[BookieId] = Counter()
        self._lacking: Counter[BookieId] = Counter()
        self._unreadable, self._lost, self._short, self._tails = Sample(), Sample(), Sample(), Sample()
        self._recovering, self._since, self._locked = array("q"), array("q"), array("b")  # the last: True for one with a password
        self._clocks = WriterClocks()
        self._mendable = 0  # ledgers that lack copies, and of which every entry is somewhere
        self.without_copy = array("q")  # with entries of which no bookie that answers has a copy

    def feed(self, found: Iterable[tuple[int, Versioned | None]]) -> Iterator[int]:
        """Take ledgers with their metadata, and yield their ids as they are done."""
        for ledger_id, stored in found:
            if stored is not None:
                self.ids.append(ledger_id)
                self.newest_ms = max(self.newest_ms, stored.modified_ms or 0)
                try:
                    self._take(ledger_id, stored, metadata_codec.decode(stored.data))
                except MetadataFormatError:
                    self._unreadable.add(ledger_id)
            yield ledger_id

    def _take(self, ledger_id: int, stored: Versioned, metadata: LedgerMetadata) -> None:
        self._states[metadata.state.name] += 1
        members = [bookie for fragment in metadata.fragments for bookie in fragment.ensemble]
        self._fragments.update(members)
        named = set(members)
        self._ledgers.update(named)
        if not named <= self._alive:
            self._judge_copies(ledger_id, metadata)
        elif metadata.state is LedgerState.CLOSED and metadata.last_entry_id >= 0:
            self.closed.append(ledger_id)
        if metadata.state is LedgerState.IN_RECOVERY:
            self._recovering.append(ledger_id)
            self._since.append(stored.modified_ms or 0)
            self._locked.append(bool(metadata.has_password))
        self._clocks.take(ledger_id, stored, metadata)
        if LOG_KEY in metadata.custom and self._log_root is not None and len(self.suspects) < self.SUSPECTS_MAX:
            name = metadata.custom[LOG_KEY].decode(errors="replace")
            if is_orphan(metadata.custom, self._log_root, Traces(log_id=self._log_ids.get(name))):
                self.suspects.append(ledger_id)

    def _judge_copies(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        lacking: set[BookieId] = set()
        lost = tail = False
        for index, fragment in enumerate(metadata.fragments):
            gone = [bookie not in self._alive for bookie in fragment.ensemble]
            is_last = index == len(metadata.fragments) - 1
            is_open = is_last and metadata.state is not LedgerState.CLOSED
            end = metadata.last_entry_id if is_last else metadata.fragments[index + 1].first_entry_id - 1
            entries = metadata.ensemble_size if is_open else end - fragment.first_entry_id + 1
            if entries <= 0 or not any(gone):
                continue
            if is_open:
                tail = True
            else:
                lacking.update(bookie for bookie in fragment.ensemble if bookie not in self._alive)
            lost = lost or _is_lost(gone, fragment.first_entry_id, entries, metadata.write_quorum_size)
        if lacking:
            self._widest = max(self._widest, metadata.ensemble_size)
            self._short.add(ledger_id)
            self._lacking.update(lacking)
        if tail:
            self._tails.add(ledger_id)
        self._mendable += bool(lacking) and not lost
        if lost:
            self._lost.add(ledger_id)
            self.without_copy.append(ledger_id)

    @property
    def lacking(self) -> int:
        """The number of ledgers with copies on bookies that give no answer, which can be made again from others."""
        return self._mendable

    # --- results ---------------------------------------------------------------------------------------------------------

    def counts(self) -> LedgerCounts:
        """Return the ledgers by state, and by bookie."""
        states = self._states
        by_state = (states["OPEN"], states["IN_RECOVERY"], states["CLOSED"], self._unreadable.count)
        return LedgerCounts(len(self.ids), *by_state, dict(self._fragments), dict(self._ledgers))

    def findings(self, now_ms: int) -> Iterator[Finding]:
        """Yield what is wrong. ``now_ms`` is the time by which a recovery is called long."""
        if self._unreadable.count:
            what = f"the metadata of {counted(self._unreadable.count, 'ledger')} cannot be understood"
            advice = (
                "Apache's auditor stops at it; restore the node from a backup, or `bk ledger rm ID --even-if-listed` if its entries may go"
            )
            yield _of("ledger-unreadable", self._unreadable, what, advice, "bk ledger show {ledger}")
        if self._lost.count:
            what = f"{counted(self._lost.count, 'ledger')} with entries of which no running bookie has a copy"
            advice = "bring back a bookie that has them, with its data; nothing else can restore them"
            yield _of("no-live-copy", self._lost, what, advice, "bk ledger check {ledger}", bookies=self._gone_of())
        if self._short.count:
            what = f"{counted(self._short.count, 'ledger')} with copies on bookies that are down: {self._told_gone()}"
            advice = "if a bookie comes back soon, nothing; else copy what it had to others"
            if len(self._alive) < self._widest:
                advice = f"start a bookie first: {len(self._alive):,} run, and an ensemble has {self._widest:,}; then copy what is missing"
            lost = "".join(f" --lost {quote(bookie)}" for bookie in sorted(self._unreachable & self._lacking.keys()))
            yield _of("under-replicated", self._short, what, advice, f"bk ledger repair --all{lost}", bookies=self._gone_of())
        if self._tails.count:
            what = f"{counted(self._tails.count, 'ledger')} not closed, with a bookie that is down in the last fragment"
            advice = (
                "a live writer replaces the bookie with its next entry; this closes ledgers whose writer is gone, and ends one that lives"
            )
            which = "{ledger}" if self._tails.count == 1 else "--all"
            yield _of("open-tail-lost", self._tails, what, advice, f"bk ledger repair {which} --recover-open")
        yield from self._stuck(now_ms)
        yield from self._clocks.findings(self.newest_ms)

    def _stuck(self, now_ms: int) -> Iterator[Finding]:
        stuck, longest, option = Sample(), 0, ""
        for ledger_id, since_ms, is_locked in zip(self._recovering, self._since, self._locked, strict=True):
            if now_ms - since_ms > self._stuck_ms:
                option = OPTION if is_locked and not stuck.count else option  # the command names the first of them
                stuck.add(ledger_id)
                longest = max(longest, now_ms - since_ms)
        if stuck.count:
            what = f"{counted(stuck.count, 'ledger')} in recovery without any progress, the longest for {told_age(longest)}"
            advice = "whoever began is gone, or cannot decide for lack of bookies; recover it again when its bookies run"
            advice += ADVICE if option else ""
            yield _of("recovery-stuck", stuck, what, advice, "bk ledger recover {ledger}" + option)

    def _gone_of(self) -> tuple[BookieId, ...]:
        return tuple(bookie for bookie, _ in self._lacking.most_common(SHOWN_MAX))

    def _told_gone(self) -> str:
        most = self._lacking.most_common(3)
        more = len(self._lacking) - len(most)
        return ", ".join(f"{bookie} ({count:,})" for bookie, count in most) + (f" and {more:,} more" if more > 0 else "")


def _of(code: str, sample: Sample, what: str, advice: str, command: str, bookies: tuple[BookieId, ...] = ()) -> Finding:
    """Return a finding about ledgers; ``{ledger}`` in the command is the first of them."""
    filled = command.format(ledger=sample.first[0])
    return Finding(code, what, advice, filled, bookies=bookies, ledgers=tuple(sample.first), count=sample.count)


def _is_lost(gone: list[bool], first_entry_id: int, entries: int, write_quorum_size: int) -> bool:
    """Return True if all replicas of one of these entries are on bookies that are gone. Write sets repeat after E entries."""
    size = len(gone)
    return any(
        all(gone[(entry + offset) % size] for offset in range(write_quorum_size))
        for entry in range(first_entry_id, first_entry_id + min(entries, size))
    )
