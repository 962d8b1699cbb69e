"""Acknowledgements: these rules tell when an entry is committed, fully replicated, and no longer needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bk_core.protocol.effects import Complete, Effect
from bk_core.protocol.ledger.distribution import in_at_least
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.write.base import WriterBase, WriterState
from bk_core.protocol.ledger.write.pending import PendingAdds


def _everywhere(pending: PendingAdds, excluded: Collection[int]) -> int:
    return pending.acks.everywhere(excluded)


class CountingWriter(WriterBase):
    """The part of a writer that counts acknowledgements (WR-7, WR-8, WR-9, G-1, G-2)."""

    def _acknowledged(self, bookie: BookieId, first: int, count: int, entries: int | None, now_ns: int) -> list[Effect]:
        """Count an OK. A late one counts as long as its bookie holds the position, because the bookie does have the entry (SM-3)."""
        if self.state is not WriterState.OPEN:
            return []
        position = self._position.get(bookie)
        if position is None:
            return self._staged_acknowledged(bookie, first, count, entries, now_ns)
        self._pending.acknowledge(position, first, count, entries, now_ns)
        self._progress[position] = (first + count - 1, now_ns)
        # An answer moves the commit only if it concerns the entry after the head, and most do not.
        moves = self._guaranteed or first <= self.acknowledged_head + 1 < first + count
        effects = self._advance() if moves else []
        self._retire()
        if self._failures or self._retries:
            self._clear_failure(position)
        if self._guaranteed:
            effects += self._reconsider(now_ns) + self._close_if_drained()
        return effects

    def _staged_acknowledged(self, bookie: BookieId, first: int, count: int, entries: int | None, now_ns: int) -> list[Effect]:
        """Count the OK of a staged candidate. Before the compare-and-set it is nothing but the reason to make one (G-7)."""
        for staging in self._staging.values():
            if staging.candidate == bookie:
                for pending, those in self._pending.overlapping(first, count):
                    if entries is not None:
                        those &= pending.shifted(entries, first)
                    staging.acked[pending.first] = staging.acked.get(pending.first, 0) | those
                staging.progress_ns = now_ns
                return self._reconsider(now_ns)
        return []

    def _quorum_complete(self, pending: PendingAdds, excluded: Collection[int]) -> int:
        """Return the entries of a run that enough positions have, by the current holders of the positions (WR-7)."""
        complete = pending.acks.in_quorum(self._distribution.ack_quorum_size, excluded)
        if self.options.fault_domains_min > 1 and complete:
            complete &= self._across_domains(pending, excluded)
        return complete

    def _across_domains(self, pending: PendingAdds, excluded: Collection[int]) -> int:
        return self._spanning(0 if position in excluded else acked for position, acked in enumerate(pending.acks.acked))

    def _spanning(self, held: Iterable[int]) -> int:
        """Return the entries that are in enough fault domains; ``held`` has the entries of each position."""
        domains: dict[str, int] = {}
        for bookie, entries in zip(self._ensemble, held, strict=True):
            domain = self._placement.domain_of(bookie)
            domains[domain] = domains.get(domain, 0) | entries
        return in_at_least(self.options.fault_domains_min, list(domains.values()))

    def _may_commit(self) -> bool:
        """Return True if entries may be committed. Only an OPEN handle commits (SM-6), entries drained by a close are never committed
        (CL-1), and none are inside a blocked window (EC-8)."""
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
        """Commit in order and call each callback once (WR-8). The writer's LAC moves only here, or with deferred sync only by force."""
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

    def _let_go(self, pending: PendingAdds, head: int) -> None:
        """Give up the copies of committed entries that a failed bookie lacks, where no replacement is on its way (WR-9, WR-10, WR-15)."""
        committed = pending.between(pending.first, head)
        for position, failed in enumerate(pending.acks.failed):
            pending.acks.give_up(position, failed & committed)

    def _advance_full(self, effects: list[Effect]) -> None:
        """Move the LAFR, after the LAC (G-1). Copies on departing bookies do not count (G-6)."""
        excluded = self._positions_to_exclude()
        reached = self._pending.prefix(self.last_add_fully_replicated, _everywhere, excluded)
        reached = min(reached, self.last_add_confirmed)
        if reached > self.last_add_fully_replicated:
            self.last_add_fully_replicated = reached
            self._arm_explicit_lac(effects)

    def _settled_up_to(self) -> int:
        """Return the entry up to which runs may be forgotten: the commit (WR-9), or the LAFR (G-2). Entries of a fragment on its way are
        kept for its new bookies (EC-8)."""
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
        """Take back a failure, because the bookie took all that it had failed to take (EC-3, G-7, G-8)."""
        if any(pending.acks.failed[position] or pending.acks.unsent(position) for pending in self._pending):
            return
        self._retries.pop(position, None)
        if self._failures_clear():
            self._failures.pop(position, None)
            if self._change is None:
                self._staging.pop(position, None)
