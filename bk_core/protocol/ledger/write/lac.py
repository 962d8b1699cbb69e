"""Tells bookies the LAC, and moves it when bookies acknowledge before durability (WR-16, WR-17, G-22)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bk_core.errors import BkError, WriteFailedError
from bk_core.protocol.effects import Complete, Effect, Fail, SendAndForget, SendRead, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.write.base import WriterState
from bk_core.protocol.ledger.write.close import ClosingWriter
from bk_core.protocol.wire.messages import ForceLedgerRequest, Status, WriteLacRequest


@dataclass(slots=True, eq=False)
class Force:
    """One force in flight: the last entry acknowledged when it began, the ledger's length there, and the requests not answered."""

    token: Any
    head: int
    length: int
    requests: set[int]


class ConfirmingWriter(ClosingWriter):
    """The part of a writer that makes the LAC known (WR-16, WR-17)."""

    _forces: dict[int, Force]
    _forced_length: int

    # --- force -------------------------------------------------------------------------------------------------------

    def force(self, token: Any, now_ns: int) -> list[Effect]:
        """Make everything acknowledged so far durable on all bookies. ``token`` completes with the LAC after it (WR-17).

        Without deferred sync, acknowledged entries are durable already, and nothing is sent.
        """
        if self.state is not WriterState.OPEN:
            return [Fail(token, self._refusal())]
        if self.acknowledged_head == self.last_add_confirmed:
            return [Complete(token, self.last_add_confirmed)]
        force = Force(token, self.acknowledged_head, self._length_up_to(self.acknowledged_head), set())
        effects: list[Effect] = []
        for bookie in self._ensemble:
            request = self._request()
            force.requests.add(request)
            self._forces[request] = force
            effects.append(SendRead(request, bookie, ForceLedgerRequest(request, self.ledger_id)))
        return effects

    def _force_answered(self, event: ReadReply) -> list[Effect]:
        """Count an answer. All bookies of the ensemble must say OK; the LAC then moves to where the force began, and never back."""
        force = self._forces.pop(event.request, None)
        if force is None:
            return []
        if event.status is not Status.OK:
            message = f"bookie {event.bookie} could not make ledger {self.ledger_id} durable ({event.status.name})"
            return self._fatal(WriteFailedError(message, ledger=self.ledger_id, bookie=event.bookie))
        force.requests.discard(event.request)
        if force.requests:
            return []
        if force.head > self.last_add_confirmed:
            self.last_add_confirmed, self._forced_length = force.head, force.length
        effects: list[Effect] = [Complete(force.token, self.last_add_confirmed)]
        self._arm_explicit_lac(effects)
        return effects

    def _fail_forces(self, error: BkError) -> list[Effect]:
        waiting = list(dict.fromkeys(self._forces.values()))
        self._forces.clear()
        return [Fail(force.token, error) for force in waiting]

    def _closing_length(self) -> int:
        """Return the length without entries that were acknowledged but not forced, which are not part of the ledger (WR-17)."""
        return self._forced_length if self._deferred else super()._closing_length()

    # --- explicit LAC ------------------------------------------------------------------------------------------------

    def _explicit_value(self) -> int:
        """Return the LAC to tell. A guaranteed ledger tells the LAFR instead (G-22); as LAFR <= LAC, plain readers may take it
        for a LAC."""
        return self.last_add_fully_replicated if self._guaranteed else self.last_add_confirmed

    def _arm_explicit_lac(self, effects: list[Effect]) -> None:
        if not self._explicit_set and not self.recovering and self._explicit_value() > self._told_lac:
            self._explicit_set = True
            effects.append(SetTimer("explicit-lac", self._limits.explicit_lac_ns))

    def _explicit_lac(self) -> list[Effect]:
        """Tell the LAC to all E bookies of the ensemble, unless a newer add already did (WR-16)."""
        self._explicit_set = False
        lac = self._explicit_value()
        if self.state is not WriterState.OPEN or lac <= self._told_lac:
            return []
        self._told_lac = lac
        body = layout.encode_lac_packet(self.ledger_id, lac, self.metadata.digest_type, self._hmac_key)
        return [SendAndForget(b, WriteLacRequest(0, self.ledger_id, lac, self._master_key, body)) for b in self._ensemble]
