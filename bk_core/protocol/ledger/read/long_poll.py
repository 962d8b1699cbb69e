"""One long poll for the entry behind a known LAC (LC-5, LC-6)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from bk_core.errors import BkError, DigestError, NoSuchEntryError, ReadError, UnauthorizedError
from bk_core.protocol.effects import Complete, Effect, Fail, SendRead, SetTimer
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import ReadReply, TimerFired
from bk_core.protocol.ledger.answers import checked_lac
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.read.failures import DENIALS, Failure, decisive, failure_of
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status

POLL_SPECULATE = "poll-speculate"
_BAD_COPY = Failure(None, "corrupt copy")


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll. ``lac`` is above the one polled from, or None if the bookies knew none in time; ``run`` is the next entry if it
    came along."""

    lac: int | None = None
    run: EntryRun | None = None


class LongPoll:
    """Machine: waits at the bookies of the last fragment until the LAC passes ``previous``.

    It completes ``token`` with a PollResult, or fails it: NoSuchEntryError if too many bookies deny that the ledger exists,
    UnauthorizedError, or ReadError if no bookie is of help. It asks all E positions, because the LAC may advance in any write set. It is
    bound to the ensemble it was made with: its owner drops it when the metadata changes (LC-7).

    A bookie with DbLedgerStorage sleeps through a LAC that it has only on disk, so a plain read of its last entry precedes the first poll
    at each bookie (wire-protocol.md 8.7). ``primed`` names the bookies that had this read.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        previous: int,
        token: object,
        *,
        limits: Limits,
        options: ReadOptions,
        order: ReplicaOrder,
        primed: set[BookieId],
        first_request: int = 1,
    ) -> None:
        self.next_request = first_request
        self._ledger_id = ledger_id
        self._ensemble = metadata.last_fragment.ensemble
        self._digest_type = metadata.digest_type
        self._hmac_key = digests.hmac_key(metadata.password)
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._previous = previous
        self._token = token
        self._limits, self._options, self._primed = limits, options, primed
        self._waiting = self._all_positions(order)
        self._asked: dict[int, tuple[int, bool]] = {}  # request: position, True if it is the plain read before the poll
        self._empty = 0
        self._denials = 0
        self._failures: list[Failure] = []
        self._delay_ns = limits.speculative_read_ns
        self._finished = False

    def _all_positions(self, order: ReplicaOrder) -> list[int]:
        """Return all E positions, those that hold the entry first (LC-6)."""
        first = order.positions(self._previous + 1, self._ensemble)
        return first + [p for p in range(self._distribution.ensemble_size) if p not in first]

    def start(self) -> list[Effect]:
        if self._options.parallel_polls:
            return [effect for _ in range(len(self._waiting)) for effect in self._ask_next()]
        return [*self._ask_next(), *self._arm()]

    def _ask_next(self) -> list[Effect]:
        if not self._waiting:
            return []
        position = self._waiting.pop(0)
        return [self._send(position, plain=self._ensemble[position] not in self._primed)]

    def _send(self, position: int, *, plain: bool) -> Effect:
        request, self.next_request = self.next_request, self.next_request + 1
        self._asked[request] = (position, plain)
        if plain:
            return SendRead(request, self._ensemble[position], ReadRequest(request, self._ledger_id, LAST_ENTRY))
        hold_ns = self._limits.long_poll_ns
        message = ReadRequest(
            request, self._ledger_id, LAST_ENTRY, previous_lac=self._previous, timeout_ms=max(1, hold_ns // 1_000_000), piggyback=True
        )
        return SendRead(request, self._ensemble[position], message, hold_ns + self._limits.read_timeout_ns)

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if self._finished:
            return []
        match event:
            case ReadReply(request=request) if request in self._asked:
                return self._on_answer(event)
            case TimerFired(key=key) if key == POLL_SPECULATE:
                return [*self._ask_next(), *self._arm()]
            case _:
                return []

    def _on_answer(self, event: ReadReply) -> list[Effect]:
        """Handle an answer: an entry or a higher LAC ends a poll; the LAC of a plain read is where the poll starts (LC-6)."""
        position, plain = self._asked.pop(event.request)
        return self._on_plain(position, event) if plain else self._on_poll(event)

    def _arm(self) -> list[Effect]:
        """Arm the timer for a sequential poll's next bookie; the follow-ups are speculative as in RD-4 (LC-6)."""
        if not self._waiting or not self._options.speculative:
            return []
        delay, self._delay_ns = self._delay_ns, min(2 * self._delay_ns, self._limits.speculative_read_ns_max)
        return [SetTimer(POLL_SPECULATE, delay)]

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_plain(self, position: int, reply: ReadReply) -> list[Effect]:
        if reply.status in DENIALS:  # the bookie knows no LAC yet, so the next poll needs a plain read again
            return [self._send(position, plain=False)]
        if reply.status is not Status.OK:
            return self._failed(failure_of(reply.status))
        lac = checked_lac(reply.response, self._ledger_id, self._digest_type, self._hmac_key)
        if lac is None:
            return self._failed(_BAD_COPY)
        self._primed.add(reply.bookie)
        lac = max(lac, _max_lac(reply.response))
        return self._complete(PollResult(lac)) if lac > self._previous else [self._send(position, plain=False)]

    def _on_poll(self, reply: ReadReply) -> list[Effect]:
        """Handle the answer to a poll: the entry, or a LAC without it, ends the wait; all others are counted (LC-6)."""
        if reply.status in DENIALS:
            self._denials += 1
            return self._decide()
        if reply.status is not Status.OK:
            return self._failed(failure_of(reply.status))
        body = reply.response.body if isinstance(reply.response, ReadResponse) else None
        lac = _max_lac(reply.response)
        if body is not None:
            run = self._entry(body)
            return self._failed(_BAD_COPY) if run is None else self._complete(PollResult(max(lac, self._previous + 1), run))
        if lac > self._previous:
            return self._complete(PollResult(lac))
        self._empty += 1
        return self._decide()

    def _entry(self, body: bytes) -> EntryRun | None:
        """Return the piggybacked entry, which is verified like any other (RD-8)."""
        entry_id = self._previous + 1
        try:
            payload = layout.decode_body(body, self._ledger_id, entry_id, self._digest_type, self._hmac_key).payload
        except DigestError:
            return None
        return EntryRun(entry_id, 1, payload, memoryview(array("q", (0, len(payload)))))

    def _failed(self, failure: Failure) -> list[Effect]:
        self._failures.append(failure)
        return self._decide()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _decide(self) -> list[Effect]:
        if self._enough_empty():
            return self._complete(PollResult())
        if self._too_many_denials():
            return self._fail(NoSuchEntryError(self._message("its bookies do not know it"), ledger=self._ledger_id))
        if self._asked:
            return []
        if self._waiting:
            return self._ask_next()
        return self._all_answered()

    def _enough_empty(self) -> bool:
        """Return True if E - AQ + 1 bookies of the ensemble had nothing. Nothing relevant to safety depends on this number (LC-6)."""
        return self._empty >= self._distribution.ensemble_size - self._distribution.ack_quorum_size + 1

    def _too_many_denials(self) -> bool:
        return self._denials > self._distribution.ensemble_size - self._distribution.ack_quorum_size

    def _all_answered(self) -> list[Effect]:
        if not self._failures:
            return self._complete(PollResult())
        main = decisive(self._failures)
        message = self._message(main.text)
        error: BkError
        if main.status is Status.UNAUTHORIZED:
            error = UnauthorizedError(message, ledger=self._ledger_id)
        else:
            error = ReadError(message, ledger=self._ledger_id, status="DIGEST" if main.status is None else main.status.name)
        return self._fail(error)

    def _message(self, why: str) -> str:
        return f"waiting for entry {self._previous + 1} of ledger {self._ledger_id}: {why}"

    def _complete(self, result: PollResult) -> list[Effect]:
        self._finished = True
        return [Complete(self._token, result)]

    def _fail(self, error: BkError) -> list[Effect]:
        self._finished = True
        return [Fail(self._token, error)]


def _max_lac(response: object) -> int:
    """Return the LAC that the bookie tells beside the entry, or -1."""
    lac = getattr(response, "max_lac", None)
    return -1 if lac is None else int(lac)
