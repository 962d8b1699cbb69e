"""The first half of a recovery: it has the last ensemble fenced, and learns where to start (replication-protocol.md 7.2)."""

from __future__ import annotations

from bk_core.protocol.effects import Effect
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.questions import FenceInquiry, LafrInquiry
from bk_core.protocol.ledger.recover.requests import RecoveryRequests
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import ReadResponse, Status

DENIALS = frozenset({Status.NO_ENTRY, Status.NO_LEDGER})  # these are definite; silence, failures and limbo (RC-25) prove nothing (RC-11)


class FencePhase:
    """The bookies that are fenced, and the numbers heard from them. ``again`` is True if another recoverer has been at this
    ledger before."""

    def __init__(self, requests: RecoveryRequests, stored: LedgerMetadata, options: RecoveryOptions, limits: Limits, again: bool) -> None:
        self._requests = requests
        self._options = options
        self._guaranteed = stored.guaranteed
        self._first_of_last = stored.last_fragment.first_entry_id
        self._distribution = Distribution(stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size)
        self._rereads = again and options.reread_last_fragment
        everyone = list(range(stored.ensemble_size))
        self.inquiry = FenceInquiry(stored.last_fragment.ensemble, list(everyone), limits.recovery_retries_max)
        self.lafr = LafrInquiry(stored.last_fragment.ensemble, everyone if self._asks_for_lafr() else [], 0)

    def _asks_for_lafr(self) -> bool:
        """Return True if the bookies are asked for the explicit LAC, which is the LAFR in a guaranteed ledger (G-22). It is of no use when
        the whole last fragment is read again anyway."""
        return self._guaranteed and self._options.explicit_lafr and not self._rereads

    def start(self) -> list[Effect]:
        """Fence all bookies of the last ensemble, not a quorum of it (RC-4), and ask for the explicit LACs at the same time (G-22)."""
        effects: list[Effect] = [self._requests.fence_read(self.inquiry, p, None) for p in self.inquiry.take()]
        return effects + [self._requests.read_explicit_lac(self.lafr, p) for p in self.lafr.take()]

    def again(self) -> list[Effect]:
        """Ask the bookies that could not answer again (RC-5)."""
        return [self._requests.fence_read(self.inquiry, p, None) for p in self.inquiry.again()]

    def heard(self, position: int, event: ReadReply) -> None:
        if self._proves_fence(event.status):
            response = event.response
            body = response.body if isinstance(response, ReadResponse) and event.status is Status.OK else None
            self.inquiry.heard[position] = self._lac_of(body)
        else:
            self.inquiry.unknown[position] = event.status

    def heard_lafr(self, event: ReadReply) -> None:
        self.lafr.highest = max(self.lafr.highest, self._requests.explicit_lac(event.response))

    def _proves_fence(self, status: Status) -> bool:
        """Return True if the answer proves a fence. Any answer, good or denied, does (RC-4); one in limbo may count (RC-25)."""
        limbo = status is Status.UNKNOWN_LEDGER_STATE and self._options.limbo_counts_as_fenced
        return status is Status.OK or status in DENIALS or limbo

    def _lac_of(self, body: bytes | None) -> int:
        """Return the LAC in the answer if its digest is good. A LAC above the writer's would cost safety (RC-4, RC-6, scenario 35)."""
        entry = self._requests.entry(body, None)
        return -1 if entry is None else entry.last_add_confirmed

    @property
    def covered(self) -> bool:
        """True if no write set has an ack quorum left that is not fenced (RC-5, Q-7). This is exact per write set (D4); a count of answers
        would not be enough (Q-8)."""
        return self._distribution.covered(self.inquiry.heard)

    @property
    def base(self) -> int:
        """The entry up to which everything is as good as it has to be: the highest LAC heard, and at least K - 1 (RC-6). In a guaranteed
        ledger it is the LAFR instead of the LAC (G-12). After another recoverer the LACs are not used (open question 3)."""
        start = self.lafr.highest if self._guaranteed else self.inquiry.highest_lac
        return self._floor if self._rereads else max(start, self._floor)

    @property
    def frozen(self) -> int:
        """The LAC stamped into every write-back of this run (RC-7, D6). It may lie above the base of a guaranteed ledger (G-12)."""
        return self.base if self._rereads else max(self.inquiry.highest_lac, self.base)

    @property
    def _floor(self) -> int:
        """The entry before the last fragment. Entries of earlier fragments are committed (META-6, D5), and their ensembles are not the one
        that is read (R2)."""
        return self._first_of_last - 1
