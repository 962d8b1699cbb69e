"""Bookies whose connections broke: new ledgers do without them until they answer again (SES-1..SES-4)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status

PROBE_AGAIN_NS = 5_000_000_000
# A bookie without batch read closes the connection that asks for one. That is a feature that it lacks, and no failure.
_OPTIONAL_KINDS = frozenset({"batch"})
# The client itself concludes these, when no answer came or it could not be understood.
_SILENCE = frozenset({Status.UNAVAILABLE, Status.TIMEOUT, Status.PROTOCOL_ERROR, Status.NOT_ADMITTED})


@dataclass(slots=True)
class _Suspect:
    probe_at_ns: int
    asked: bool = False  # a probe is on its way


class Suspicion:
    """A machine without effects: the world tells it what happened and when, and asks it which bookies to probe.

    ``after_ns`` is the quarantine's time; with 0 nobody is ever suspect. ``members`` may be called from any thread, everything else from
    one.
    """

    def __init__(self, after_ns: int) -> None:
        self._after_ns = after_ns
        self._again_ns = min(after_ns, PROBE_AGAIN_NS)
        self._suspects: dict[BookieId, _Suspect] = {}

    def members(self) -> frozenset[BookieId]:
        return frozenset(tuple(self._suspects))

    def broke(self, bookie: BookieId, kind: str, now_ns: int) -> None:
        """Note that a connection of that kind was lost or could not be made (SES-1, SES-4)."""
        if self._after_ns and kind not in _OPTIONAL_KINDS and bookie not in self._suspects:
            self._suspects[bookie] = _Suspect(now_ns + self._after_ns)

    def noted(self, bookie: BookieId, status: Status) -> None:
        """Note the result of a request to this bookie (SES-2)."""
        if self._suspects and status not in _SILENCE:
            self._suspects.pop(bookie, None)

    def due(self, now_ns: int, registered: Container[BookieId]) -> list[BookieId]:
        """Return the bookies to probe now. For each of them ``probed`` must be called afterwards (SES-3)."""
        due = [
            bookie
            for bookie, suspect in self._suspects.items()
            if not suspect.asked and suspect.probe_at_ns <= now_ns and bookie in registered
        ]
        for bookie in due:
            self._suspects[bookie].asked = True
        return due

    def probed(self, bookie: BookieId, status: Status, now_ns: int) -> None:
        """Note the result of a probe (SES-2, SES-3)."""
        self.noted(bookie, status)
        suspect = self._suspects.get(bookie)
        if suspect is not None:
            suspect.asked, suspect.probe_at_ns = False, now_ns + self._again_ns

    def next_ns(self, now_ns: int) -> int | None:
        """Return the time after ``now_ns`` at which ``due`` must be called again at the latest, or None. A change of the registry calls for
        it too."""
        times = [suspect.probe_at_ns for suspect in self._suspects.values() if not suspect.asked and suspect.probe_at_ns > now_ns]
        return min(times, default=None)
