"""Learning the LAC of a ledger that is not closed, by asking bookies without fencing them (LC-1..LC-4)."""

from __future__ import annotations

from bk_core.errors import BkError, ReadError, ReadTimeoutError, UnauthorizedError
from bk_core.protocol.effects import Complete, Effect, Fail, SendRead
from bk_core.protocol.entry import digests
from bk_core.protocol.events import MetadataChanged, ReadReply
from bk_core.protocol.ledger.answers import checked_lac
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read_failures import DENIALS, decisive, failure_of
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadLacRequest, ReadRequest, Status


class LacReader:
    """Machine: the LAC by asking all bookies of the last fragment (LC-1, OP-3).

    ``explicit`` asks by READ_LAC, whose answers carry the explicit LAC too (v3); else by reading the last entry. Completes ``token`` with
    the LAC, floored at the entry before the last fragment (D5), as soon as the answers cover every write set (Q-4). Fails it with
    UnauthorizedError at once, else when all have answered and do not cover: ReadTimeoutError if the last answer that failed was a timeout,
    ReadError otherwise.
    ``MetadataChanged``: CLOSED completes with the last entry (LC-4); another last fragment is asked from the start.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, token: object, *, explicit: bool = True, version: int = -1) -> None:
        self.ledger_id = ledger_id
        self._metadata, self._version = metadata, version
        self._token = token
        self._explicit = explicit
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._first_request = 0
        self._heard: dict[int, int] = {}
        self._failed: dict[int, Status] = {}
        self._finished = False

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies that are asked."""
        return self._metadata.last_fragment.ensemble

    def start(self) -> list[Effect]:
        if self._metadata.state is LedgerState.CLOSED:
            return self._complete(self._metadata.last_entry_id)  # LC-4: bookies are never asked
        ensemble = self.ensemble
        requests = range(self._first_request, self._first_request + len(ensemble))
        return [SendRead(r, bookie, self._message(r)) for r, bookie in zip(requests, ensemble, strict=True)]

    def _message(self, request: int) -> ReadLacRequest | ReadRequest:
        if self._explicit:
            return ReadLacRequest(request, self.ledger_id)
        return ReadRequest(request, self.ledger_id, LAST_ENTRY)

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if self._finished:  # R28: completes once
            return []
        match event:
            case ReadReply():
                return self._on_answer(event)
            case MetadataChanged():
                return self._on_metadata(event)
            case _:
                return []

    def _on_answer(self, event: ReadReply) -> list[Effect]:
        """LC-1: a value, a denial (-1), or nothing that counts; of each position once."""
        position = event.request - self._first_request
        if position < 0 or position in self._heard or position in self._failed:
            return []
        value = self._value(event)
        if value is None:
            self._failed[position] = event.status
        else:
            self._heard[position] = value
        return self._decide()

    def _on_metadata(self, event: MetadataChanged) -> list[Effect]:
        """OP-6: another last fragment is asked anew; CLOSED ends the question."""
        if event.version <= self._version:
            return []
        before = self._metadata.last_fragment
        self._metadata, self._version = event.metadata, event.version
        if event.metadata.last_fragment == before and event.metadata.state is not LedgerState.CLOSED:
            return []
        self._first_request += self._distribution.ensemble_size
        self._heard.clear()
        self._failed.clear()
        return self.start()

    def _value(self, reply: ReadReply) -> int | None:
        """LC-1: a definite negative is heard and says -1; a bad copy is not heard."""
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
        self._finished = True
        return [Fail(self._token, self._error())]

    def _enough(self) -> bool:
        """LC-1: round-robin coverage (Q-4), never a count over the ensemble."""
        return self._distribution.covered(self._heard)

    def _result(self) -> int:
        return max([self._metadata.last_fragment.first_entry_id - 1, *self._heard.values()])

    def _complete(self, value: int) -> list[Effect]:
        self._finished = True
        return [Complete(self._token, value)]

    def _error(self) -> BkError:
        ensemble = self.ensemble
        answers = ", ".join(f"{ensemble[p]}: {_text(s)}" for p, s in sorted(self._failed.items()))
        message = f"the LAC of ledger {self.ledger_id} is not known: too few of its bookies answered ({answers})"
        if Status.OK in self._failed.values():
            message += self._metadata.access_note
        last = list(self._failed.values())[-1]
        kind = ReadTimeoutError if last is Status.TIMEOUT else ReadError
        return kind(message, ledger=self.ledger_id, status=last.name)


def _text(status: Status) -> str:
    return "corrupt answer" if status is Status.OK else decisive([failure_of(status)]).text


class TryLacReader(LacReader):
    """Machine: LC-3. The first LAC above ``known`` completes; if there is none, ``known`` when all have answered. Never fails."""

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, token: object, known: int, *, explicit: bool = True, version: int = -1
    ) -> None:
        super().__init__(ledger_id, metadata, token, explicit=explicit, version=version)
        self._known = known

    def _decide(self) -> list[Effect]:
        value = self._result()
        everyone = len(self._heard) + len(self._failed) == self._distribution.ensemble_size
        return self._complete(max(value, self._known)) if value > self._known or everyone else []
