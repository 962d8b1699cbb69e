"""Acknowledgements: when an entry is committed, fully replicated, done with."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bk_core.protocol.effects import Complete, Effect
from bk_core.protocol.ledger.distribution import in_at_least
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.pending import PendingRun
from bk_core.protocol.ledger.writer_base import WriterBase, WriterState


def _everywhere(pending: PendingRun, excluded: Collection[int]) -> int:
    return pending.acks.everywhere(excluded)


class CountingWriter(WriterBase):
    """WR-7, WR-8, WR-9 and G-1, G-2."""

    def _acknowledged(self, bookie: BookieId, first: int, count: int, entries: int | None, now_ns: int) -> list[Effect]:
        """SM-3: a late OK counts as long as its bookie holds the position: it is simply true that it has the entry."""
        if self.state is not WriterState.OPEN:
            return []
        position = self._position.get(bookie)
        if position is None:
            return self._staged_acknowledged(bookie, first, count, entries, now_ns)
        self._pending.acknowledge(position, first, count, entries, now_ns)
        self._progress[position] = (first + count - 1, now_ns)
        # An answer moves the commit only if it is about the entry after the head; most are not.
        moves = self._guaranteed or first <= self.acknowledged_head + 1 < first + count
        effects = self._advance() if moves else []
        self._retire()
        if self._failures or self._retries:
            self._clear_failure(position)
        if self._guaranteed:
            effects += self._reconsider(now_ns) + self._close_if_drained()
        return effects

    def _staged_acknowledged(self, bookie: BookieId, first: int, count: int, entries: int | None, now_ns: int) -> list[Effect]:
        """G-7: counts for nothing before the compare-and-set, except as the reason to make it."""
        for staging in self._staging.values():
            if staging.candidate == bookie:
                for pending, those in self._pending.overlapping(first, count):
                    if entries is not None:
                        those &= pending.shifted(entries, first)
                    staging.acked[pending.first] = staging.acked.get(pending.first, 0) | those
                staging.progress_ns = now_ns
                return self._reconsider(now_ns)
        return []

    def _quorum_complete(self, pending: PendingRun, excluded: Collection[int]) -> int:
        """WR-7: the entries of a run that enough positions have, as those are held now."""
        complete = pending.acks.in_quorum(self._distribution.ack_quorum_size, excluded)
        if self.options.fault_domains_min > 1 and complete:
            complete &= self._across_domains(pending, excluded)
        return complete

    def _across_domains(self, pending: PendingRun, excluded: Collection[int]) -> int:
        return self._spanning(0 if position in excluded else acked for position, acked in enumerate(pending.acks.acked))

    def _spanning(self, held: Iterable[int]) -> int:
        """The entries that are in enough fault domains; ``held`` are those of each position."""
        domains: dict[str, int] = {}
        for bookie, entries in zip(self._ensemble, held, strict=True):
            domain = self._placement.domain_of(bookie)
            domains[domain] = domains.get(domain, 0) | entries
        return in_at_least(self.options.fault_domains_min, list(domains.values()))

    def _may_commit(self) -> bool:
        """Only an OPEN handle commits (SM-6), nothing that a close has drained (CL-1), nothing inside a blocked window (EC-8)."""
        return self.state is WriterState.OPEN and not self._cut and not self._window_blocks()

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        if self._may_commit():
            excluded = self._positions_to_exclude()
            head = self._pending.prefix(self.acknowledged_head, self._quorum_complete, excluded)
            if head > self.acknowledged_head:
                self._commit(head, effects)
        if self._guaranteed and self.state is WriterState.OPEN and not self._window_blocks():
            self._advance_full(effects)
        return effects

    def _commit(self, head: int, effects: list[Effect]) -> None:
        """WR-8: in order, each callback once. The writer's LAC moves here and nowhere else, or with deferred sync by force only."""
        for pending in self._pending.after(self.acknowledged_head):
            if self._replaces_lazily:
                self._let_go(pending, head)
            if pending.last > head:
                break
            pending.waiting = False
            self.pending_bytes -= pending.payload_bytes
            effects.append(Complete(pending.token, pending.last))
        self.acknowledged_head = head
        if not self._deferred:
            self.last_add_confirmed = head
        self._arm_explicit_lac(effects)

    def _let_go(self, pending: PendingRun, head: int) -> None:
        """WR-9, WR-10, WR-15: where no replacement is on its way, what a committed entry lacks at a bookie that failed stays missing."""
        committed = pending.between(pending.first, head)
        for position, failed in enumerate(pending.acks.failed):
            pending.acks.give_up(position, failed & committed)

    def _advance_full(self, effects: list[Effect]) -> None:
        """G-1: the LAFR moves after the LAC. G-6: what departing bookies have does not count."""
        excluded = self._positions_to_exclude()
        reached = self._pending.prefix(self.last_add_fully_replicated, _everywhere, excluded)
        reached = min(reached, self.last_add_confirmed)
        if reached > self.last_add_fully_replicated:
            self.last_add_fully_replicated = reached
            self._arm_explicit_lac(effects)

    def _settled_up_to(self) -> int:
        """WR-9: done with at the commit; EC-8: entries of a fragment on its way are kept for its new bookies; G-2: at the LAFR."""
        if self._guaranteed:
            return self.last_add_fully_replicated
        if self._change is not None:
            return min(self.acknowledged_head, self._change.first_entry_id - 1)
        return self.acknowledged_head

    def _retire(self) -> None:
        for pending in self._pending.drop_settled(self._settled_up_to()):
            for staging in self._staging.values():
                staging.acked.pop(pending.first, None)

    def _clear_failure(self, position: int) -> None:
        """EC-3, G-7, G-8: the bookie took after all what it had failed to take."""
        if any(pending.acks.failed[position] or pending.acks.unsent(position) for pending in self._pending):
            return
        self._retries.pop(position, None)
        if self._failures_clear():
            self._failures.pop(position, None)
            if self._change is None:
                self._staging.pop(position, None)
