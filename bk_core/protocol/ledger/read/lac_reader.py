"""Learns the LAC of a ledger that is not closed, by asking bookies without fencing them (LC-1..LC-4)."""

from __future__ import annotations

from bk_core.errors import BkError, NoSuchLedgerError, ReadError, ReadTimeoutError, UnauthorizedError
from bk_core.protocol.effects import Complete, Effect, Fail, ReadLedger, SendRead, SetTimer
from bk_core.protocol.entry import digests
from bk_core.protocol.events import LedgerRead, MetadataChanged, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.answers import checked_lac
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.failures import DENIALS, decisive, failure_of
from bk_core.protocol.ledger.read.unreachable import SILENT, Unreachable, only_unreachable
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadLacRequest, ReadRequest, Status

AGAIN = "lac-again"


class LacReader:
    """Machine: learns the LAC by asking all bookies of the last fragment (LC-1, OP-3).

    With ``explicit`` it asks by READ_LAC, whose answers carry the explicit LAC too (v3); otherwise it reads the last entry. It completes
    ``token`` with the LAC, which is at least the entry before the last fragment (D5), as soon as the answers cover every write set (Q-4).
    It fails with UnauthorizedError at once. When all have answered and do not cover, it fails with ReadTimeoutError if the last answer that
    failed was a timeout, else with ReadError. While missing bookies cannot be reached, it asks them again and reads the metadata (RD-13).
    After a ``MetadataChanged``, CLOSED completes it with the last entry (LC-4), and another last fragment is asked from the start.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        token: object,
        *,
        explicit: bool = True,
        version: int = -1,
        limits: Limits | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self._metadata, self._version = metadata, version
        self._token = token
        self._explicit = explicit
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._next_request = 0
        self._asked: dict[int, int] = {}  # positions by request
        self._look: int | None = None
        self._unreachable = Unreachable(limits or Limits())
        self._now_ns = 0
        self._heard: dict[int, int] = {}
        self._failed: dict[int, Status] = {}
        self._finished = False

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies that are asked."""
        return self._metadata.last_fragment.ensemble

    def start(self) -> list[Effect]:
        if self._metadata.state is LedgerState.CLOSED:
            return self._complete(self._metadata.last_entry_id)  # LC-4: bookies need not be asked
        return [self._ask(position) for position in range(len(self.ensemble))]

    def _ask(self, position: int) -> SendRead:
        request, self._next_request = self._next_request, self._next_request + 1
        self._asked[request] = position
        return SendRead(request, self.ensemble[position], self._message(request))

    def _message(self, request: int) -> ReadLacRequest | ReadRequest:
        if self._explicit:
            return ReadLacRequest(request, self.ledger_id)
        return ReadRequest(request, self.ledger_id, LAST_ENTRY)

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if self._finished:  # R28: it completes once
            return []
        self._now_ns = now_ns
        match event:
            case ReadReply():
                return self._on_answer(event)
            case MetadataChanged():
                return self._on_metadata(event)
            case TimerFired(key=key) if key == AGAIN:
                return self._ask_again()
            case LedgerRead(request=request) if request == self._look:
                return self._on_look(event)
            case _:
                return []

    def _on_answer(self, event: ReadReply) -> list[Effect]:
        """Count a value or a denial (-1) once for each position; nothing else counts (LC-1)."""
        position = self._asked.pop(event.request, None)
        if position is None:
            return []
        value = self._value(event)
        if value is None:
            self._failed[position] = event.status
        else:
            self._heard[position] = value
        return self._decide()

    def _on_metadata(self, event: MetadataChanged) -> list[Effect]:
        """Ask again if there is another last fragment; CLOSED ends the question (OP-6)."""
        if event.version <= self._version:
            return []
        before = self._metadata.last_fragment
        self._metadata, self._version = event.metadata, event.version
        if event.metadata.last_fragment == before and event.metadata.state is not LedgerState.CLOSED:
            return []
        self._asked.clear()
        self._heard.clear()
        self._failed.clear()
        return self.start()

    def _value(self, reply: ReadReply) -> int | None:
        """Return the LAC in an answer. A definite denial gives -1, and a bad copy counts as no answer (LC-1)."""
        if reply.status in DENIALS:
            return -1
        return checked_lac(reply.response, self.ledger_id, self._metadata.digest_type, self._hmac_key)

    def _decide(self) -> list[Effect]:
        if Status.UNAUTHORIZED in self._failed.values():
            self._finished = True
            message = f"a bookie refused to tell the LAC of ledger {self.ledger_id}"
            return [Fail(self._token, UnauthorizedError(message, ledger=self.ledger_id))]
        if self._enough():
            return self._complete(self._result())
        if len(self._heard) + len(self._failed) < self._distribution.ensemble_size:
            return []
        if self._may_come_back() and (pause_ns := self._unreachable.failed(self._now_ns)) is not None:
            return self._wait(pause_ns)
        self._finished = True
        return [Fail(self._token, self._error())]

    def _may_come_back(self) -> bool:
        """Return True if a bookie that could not be reached may still answer. Good answers stay valid (RD-13)."""
        return only_unreachable(self._failed.values(), denials_count=False)

    def _wait(self, pause_ns: int) -> list[Effect]:
        """Wait before asking again (RD-13), and read the metadata meanwhile, because the bookies may have been replaced (R29)."""
        effects: list[Effect] = [SetTimer(AGAIN, pause_ns)]
        if self._look is None:
            self._look, self._next_request = self._next_request, self._next_request + 1
            effects.append(ReadLedger(self._look))
        return effects

    def _ask_again(self) -> list[Effect]:
        missing = sorted(position for position, status in self._failed.items() if status in SILENT)
        for position in missing:
            del self._failed[position]
        return [self._ask(position) for position in missing]

    def _on_look(self, read: LedgerRead) -> list[Effect]:
        self._look = None
        if read.outcome is Outcome.NO_SUCH_LEDGER:
            self._finished = True
            return [Fail(self._token, NoSuchLedgerError(f"ledger {self.ledger_id} was deleted", ledger=self.ledger_id))]
        if read.outcome is not Outcome.OK or read.metadata is None:
            return []
        return self._on_metadata(MetadataChanged(read.metadata, read.version))

    def _enough(self) -> bool:
        """Return True if the answers have round-robin coverage (Q-4); a count over the ensemble would not be enough (LC-1)."""
        return self._distribution.covered(self._heard)

    def _result(self) -> int:
        return max([self._metadata.last_fragment.first_entry_id - 1, *self._heard.values()])

    def _complete(self, value: int) -> list[Effect]:
        self._finished = True
        return [Complete(self._token, value)]

    def _error(self) -> BkError:
        ensemble = self.ensemble
        answers = ", ".join(f"{ensemble[p]}: {_text(s)}" for p, s in sorted(self._failed.items()))
        message = f"the LAC of ledger {self.ledger_id} is not known: too few of its bookies answered ({answers}){self._unreachable}"
        if Status.OK in self._failed.values():
            message += self._metadata.access_note
        last = list(self._failed.values())[-1]
        kind = ReadTimeoutError if last is Status.TIMEOUT else ReadError
        return kind(message, ledger=self.ledger_id, status=last.name)


def _text(status: Status) -> str:
    return "corrupt answer" if status is Status.OK else decisive([failure_of(status)]).text


class TryLacReader(LacReader):
    """Machine: completes with the first LAC above ``known``, or with ``known`` when all have answered without one. It never
    fails (LC-3)."""

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, token: object, known: int, *, explicit: bool = True, version: int = -1
    ) -> None:
        super().__init__(ledger_id, metadata, token, explicit=explicit, version=version)
        self._known = known

    def _decide(self) -> list[Effect]:
        value = self._result()
        everyone = len(self._heard) + len(self._failed) == self._distribution.ensemble_size
        return self._complete(max(value, self._known)) if value > self._known or everyone else []
