"""Changes a ledger's metadata by compare-and-set, and tries until the outcome is definite (META-11, META-12, META-14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bk_core.errors import BkError, MetadataError, NoSuchLedgerError
from bk_core.protocol.effects import Complete, Effect, Fail, ReadLedger, SetTimer, WriteLedger
from bk_core.protocol.events import Event, LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.limits import Limits

Intent = Callable[[LedgerMetadata], LedgerMetadata | None]


class MetadataChange:
    """Machine: writes the metadata that ``intent`` makes of the stored metadata. It completes ``token`` with the metadata then stored.

    ``intent`` gets metadata and returns the metadata to write, or None if nothing is left to do, or raises the BkError that ends the
    attempt. After a conflict it is called again with what is stored then (META-14). ``metadata`` and ``version`` are the newest that are
    known to be stored.
    """

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, intent: Intent, token: Any, limits: Limits | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self._intent = intent
        self._token = token
        self._limits = limits or Limits()
        self._request = 0
        self._wanted: LedgerMetadata | None = None
        self._finished = False

    def start(self) -> list[Effect]:
        return self._attempt()

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self._finished:
            return []
        match event:
            case LedgerWritten(request=request) if request == self._request and self._wanted is not None:
                return self._written(event, self._wanted)
            case LedgerRead(request=request) if request == self._request and self._wanted is None:
                return self._read(event)
            case TimerFired("metadata"):
                return self._repeat()
            case _:
                return []

    def _attempt(self) -> list[Effect]:
        try:
            self._wanted = self._intent(self.metadata)
        except BkError as error:
            return self._fail(error)
        if self._wanted is None:
            return self._complete()
        self._request += 1
        return [WriteLedger(self._request, self._wanted, self.version)]

    def _written(self, event: LedgerWritten, wanted: LedgerMetadata) -> list[Effect]:
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = wanted, event.version
                return self._complete()
            case Outcome.UNKNOWN:
                return [SetTimer("metadata", self._limits.metadata_retry_ns)]
            case Outcome.CONFLICT:
                self._wanted = None
                self._request += 1
                return [ReadLedger(self._request)]
            case Outcome.NO_SUCH_LEDGER:
                return self._fail(self._gone())
            case _:  # REFUSED: definitely not applied
                return self._fail(self._as_error(event.error))

    def _read(self, event: LedgerRead) -> list[Effect]:
        if event.outcome is Outcome.UNKNOWN:
            return [SetTimer("metadata", self._limits.metadata_retry_ns)]
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._fail(self._gone())
        if event.metadata is None:
            return self._fail(self._as_error(event.error))
        if event.version <= self.version:  # META-11, scenario 46: a follower lags, and a write at this version again would be in vain (L-9)
            return [SetTimer("metadata", self._limits.metadata_retry_ns)]
        self.metadata, self.version = event.metadata, event.version
        return self._attempt()

    def _repeat(self) -> list[Effect]:
        """Send the identical write at the same version again; a read is simply asked again (META-12)."""
        if self._wanted is not None:
            return [WriteLedger(self._request, self._wanted, self.version)]
        return [ReadLedger(self._request)]

    def _complete(self) -> list[Effect]:
        self._finished = True
        return [Complete(self._token, self.metadata)]

    def _fail(self, error: BkError) -> list[Effect]:
        self._finished = True
        return [Fail(self._token, error)]

    def _gone(self) -> BkError:
        return NoSuchLedgerError(f"ledger {self.ledger_id} was deleted", ledger=self.ledger_id)

    def _as_error(self, error: Exception | None) -> BkError:
        return (
            error if isinstance(error, BkError) else MetadataError(f"metadata of ledger {self.ledger_id}: {error}", ledger=self.ledger_id)
        )
