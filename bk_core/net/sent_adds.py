"""The adds sent over a v3 connection. An answer names its request by number, and a failure may name nothing else (wire-protocol.md 4.3)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class SentAdds:
    """The requests ``numbers``, in order: they add the entries from ``first_entry_id`` on whose write set contains ``position`` (SM-5)."""

    numbers: range
    ledger_id: int
    first_entry_id: int
    position: int
    ensemble_size: int
    write_quorum_size: int
    unanswered: int

    def entry_id(self, number: int) -> int:
        """Return the entry of a request. Of every ``ensemble_size`` entries, ``write_quorum_size`` are in these requests."""
        rounds, rest = divmod(number - self.numbers.start, self.write_quorum_size)
        entry_id = self.first_entry_id + rounds * self.ensemble_size
        while True:
            if (self.position - entry_id) % self.ensemble_size < self.write_quorum_size:
                if rest == 0:
                    return entry_id
                rest -= 1
            entry_id += 1


class SentAddRuns:
    """All runs of adds on one connection that still have unanswered adds."""

    def __init__(self) -> None:
        self._runs: list[SentAdds] = []
        self._firsts: list[int] = []

    def add(self, sent: SentAdds) -> None:
        """Add a run. Its numbers are above those of every earlier run."""
        self._runs.append(sent)
        self._firsts.append(sent.numbers.start)

    def find(self, number: int) -> SentAdds | None:
        index = bisect_right(self._firsts, number) - 1
        return self._runs[index] if index >= 0 and number in self._runs[index].numbers else None

    def answered(self, sent: SentAdds, count: int) -> None:
        sent.unanswered -= count
        if sent.unanswered <= 0:
            index = bisect_right(self._firsts, sent.numbers.start) - 1
            del self._runs[index], self._firsts[index]

    def clear(self) -> None:
        self._runs.clear()
        self._firsts.clear()
