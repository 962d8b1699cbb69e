"""The second half of a recovery, from the end verdict to the closing compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Set

from bk_core.protocol.effects import Effect
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.recover.questions import BarrierInquiry, EntryInquiry, LengthInquiry
from bk_core.protocol.ledger.recover.requests import RecoveryRequests
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import ReadResponse, Status


class EndPhase:
    """The last questions of a recovery before it closes the ledger. ``end`` is the first missing entry. ``length`` is None until it is
    known (RC-16). Without a ``barrier_lac`` there is no barrier (RC-11a); ``holders`` are the bookies that have shown an entry."""

    def __init__(
        self,
        requests: RecoveryRequests,
        stored: LedgerMetadata,
        limits: Limits,
        end: EntryInquiry,
        *,
        length: int | None,
        barrier_lac: int | None,
        holders: Set[BookieId],
    ) -> None:
        self.last = end.entry_id - 1
        self.length = 0 if self.last < 0 else length  # RC-20
        self._requests = requests
        self._distribution = Distribution(stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size)
        self._barrier_lac = -1 if barrier_lac is None else barrier_lac
        write_set = list(self._distribution.write_set(self.last)) if self.length is None else []
        ensemble = stored.fragment_of(max(self.last, 0)).ensemble  # the last entry may lie in the fragment before the last
        self.lengths = LengthInquiry(ensemble, write_set, limits.recovery_retries_max, entry_id=self.last)
        deniers = [] if barrier_lac is None else sorted(end.denied)
        self.barrier = BarrierInquiry(end.ensemble, deniers, limits.recovery_retries_max)
        self._barrier_wanted = barrier_lac is not None
        self._know_the_key = holders

    def start(self) -> list[Effect]:
        return self._ask_length(self.lengths.take()) + self._write_barrier(self.barrier.take())

    def again(self) -> list[Effect]:
        """Ask the bookies that gave no good answer again, within the budget."""
        wanted = self.lengths.again() if self.length is None else []
        return self._ask_length(wanted) + ([] if self.barrier_holds else self._write_barrier(self.barrier.again()))

    def _ask_length(self, positions: list[int]) -> list[Effect]:
        """Ask for the header of the last entry, which has the length. The length that came with a LAC belongs to another entry, or to none
        (RC-16, D9)."""
        return [self._requests.plain_read(self.lengths, p, self.last) for p in positions]

    def _write_barrier(self, positions: list[int]) -> list[Effect]:
        """Send a journaled request to every bookie whose denial counted; it is stored behind the fence mark (RC-11a)."""
        return [self._write_barrier_at(position) for position in positions]

    def _write_barrier_at(self, position: int) -> Effect:
        if position in self.barrier.read_only:
            return self._requests.force(self.barrier, position)
        return self._requests.write_lac(self.barrier, position, self._barrier_lac)

    def heard_length(self, position: int, event: ReadReply) -> None:
        """Take an answer with the length. A denial counts no more than silence, because the entry is committed and some bookie has it."""
        response = event.response
        entry = self._requests.entry(response.body if isinstance(response, ReadResponse) else None, self.last)
        if entry is not None and self.length is None:
            self.length = entry.length
        elif entry is None:
            self.lengths.unknown[position] = event.status

    def heard_barrier(self, position: int, event: ReadReply) -> list[Effect]:
        """Take an answer. A read-only bookie refuses the LAC and is asked to sync its journal instead, with the fence mark in it. That
        proves something of a bookie that has an entry of the ledger, whose key is on disk; without the key it forgets the mark in a crash
        (B-4)."""
        if event.status is Status.OK:
            self.barrier.confirmed.add(position)
        elif event.status is Status.READ_ONLY and event.bookie in self._know_the_key and position not in self.barrier.read_only:
            self.barrier.read_only.add(position)
            self.barrier.asked.add(position)
            return self._write_barrier([position])
        else:
            self.barrier.unknown[position] = event.status
        return []

    @property
    def barrier_holds(self) -> bool:
        """True if no barrier is wanted, or QC bookies said OK, so that QC fence marks are durable (RC-11a)."""
        return not self._barrier_wanted or len(self.barrier.confirmed) >= self._distribution.denials_needed

    @property
    def ready(self) -> bool:
        return self.length is not None and self.barrier_holds

    @property
    def hopeless(self) -> tuple[str, LengthInquiry | BarrierInquiry] | None:
        """The reason why recovery must stop here, and the inquiry that failed; None while there is hope."""
        if self.length is None and self.lengths.exhausted:
            return f"entry {self.last}, the last one, could not be read for the ledger's length", self.lengths
        if not self.barrier_holds and self.barrier.exhausted:
            return "fence marks could not be confirmed as durable", self.barrier
        return None


def closing_metadata(
    stored: LedgerMetadata, last_entry_id: int, length: int, private_changes: Mapping[int, tuple[BookieId, ...]]
) -> LedgerMetadata:
    """Return the closed metadata: the private fragments of this run take the place of those they replace, in order, and none lies beyond
    the end (RC-17). A guaranteed ledger gets the seal (G-13)."""
    for first, ensemble in sorted(private_changes.items()):
        if first <= last_entry_id + 1:
            stored = stored.with_ensemble(first, ensemble)
    closed = stored.closed(last_entry_id, length)
    return closed.with_seal() if stored.guaranteed else closed
