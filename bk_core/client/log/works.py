"""Performs the effects of the machines of trimmers and janitors with a client and its store (protocol/log/effects.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Protocol

from bk_core.client.counting import counts_of
from bk_core.client.log.history import history_of
from bk_core.client.log.list_store import LogClient, encoded, read_versioned, write_list
from bk_core.client.repeating import FIRST_PAUSE_S, after_a_try, back_off, still_open, until_definite
from bk_core.errors import (
    BkError,
    LogDataLossError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
)
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.effects import (
    ChangeList,
    ChunkLoaded,
    DeleteLedger,
    ForgetIntent,
    LedgerDeleted,
    LedgerEnded,
    LedgerOpened,
    ListRead,
    ListWritten,
    LoadChunk,
    LogAnswer,
    LogEffect,
    LookAtLedger,
    ReadList,
    RecoverLedger,
)


class Ledgers(Protocol):
    """Closes and deletes ledgers for a pass. A result is True if the ledger existed, None if that failed (``failed`` has the reason)."""

    failed: dict[int, str]
    adopted: Collection[int]  # ledgers without a log's name that the list says are the log's (OWN-11)

    @property
    def over(self) -> bool: ...
    def close_ledger(self, ledger_id: int) -> bool | None: ...
    def delete_ledger(self, ledger_id: int) -> bool | None: ...
    def intent_of(self, ledger_id: int) -> str | None: ...
    def forget(self, ledger_id: int, purpose: str) -> None: ...


class ListWorks:
    """Runs one machine of a log to its end. It waits for the store, and repeats a change of the list, for ``timeout_s`` at most."""

    def __init__(self, client: LogClient, name: str, ledgers: Ledgers, timeout_s: float) -> None:
        self._client = client
        self._name = name
        self._ledgers = ledgers
        self._timeout_s = timeout_s
        self._counts = counts_of(client)
        self._log_id = ""
        self._trimmed_seq = 0
        self._deadline: float | None = None  # of the change of the list that is being tried
        self._is_open = False  # an answer was lost since the last change that was made
        self._pause = FIRST_PAUSE_S

    def run(self, machine: ListClearing) -> None:
        """Run the machine to its end, and raise the error with which it fails. Nothing more is begun once the time of the pass is over."""
        waiting: deque[LogEffect] = deque(machine.start("pass", time.monotonic_ns()))
        while waiting:
            if self._ledgers.over:
                machine.stop()
            effect = waiting.popleft()
            match effect:
                case Complete():
                    pass
                case Fail(_, error):
                    raise error
                case ForgetIntent(ledger_id):
                    purpose = self._ledgers.intent_of(ledger_id)
                    if purpose is not None:
                        self._ledgers.forget(ledger_id, purpose)
                case SetTimer(key, _):
                    self._pause = back_off(self._pause, self._deadline or 0.0, f"changing log {self._name!r}")
                    waiting += machine.handle(TimerFired(key), time.monotonic_ns())
                case _:
                    waiting += machine.handle(self._answer(effect), time.monotonic_ns())

    def _answer(self, effect: LogEffect) -> LogAnswer:
        match effect:
            case ReadList():
                return self._read_list(effect)
            case ChangeList():
                return self._change_list(effect)
            case LoadChunk():
                return self._load_chunk(effect)
            case LookAtLedger():
                return self._look_at(effect)
            case RecoverLedger(request, ledger_id):
                existed = self._ledgers.close_ledger(ledger_id)
                self._deadline = None  # no change of the list is being tried while ledgers are closed and deleted, which may take long
                outcome = {True: Outcome.OK, False: Outcome.NO_SUCH_LEDGER, None: Outcome.UNKNOWN}[existed]
                return LedgerEnded(request, outcome, error=self._problem(ledger_id))
            case DeleteLedger(request, ledger_id):
                existed = self._ledgers.delete_ledger(ledger_id)
                self._deadline = None
                outcome = {True: Outcome.OK, False: Outcome.NO_SUCH_LEDGER, None: Outcome.REFUSED}[existed]
                return LedgerDeleted(request, outcome, self._problem(ledger_id))
            case _:
                raise AssertionError(effect)

    def _problem(self, ledger_id: int) -> Exception | None:
        return BkError(self._ledgers.failed[ledger_id]) if ledger_id in self._ledgers.failed else None

    # --- the list ------------------------------------------------------------------------------------------------------

    def _read_list(self, effect: ReadList) -> ListRead:
        self._deadline = self._deadline or time.monotonic() + self._timeout_s
        deadline = self._deadline
        try:
            with after_a_try(self._is_open):
                listed, version = until_definite(lambda: read_versioned(self._client, self._name), deadline)
        except NoSuchLogError as error:
            return ListRead(effect.request, Outcome.NO_SUCH_LEDGER, error=error)
        self._log_id, self._ledgers.adopted, self._trimmed_seq = listed.log_id, listed.adopted, listed.trimmed_seq
        return ListRead(effect.request, Outcome.OK, version=version, listed=listed)

    def _change_list(self, effect: ChangeList) -> ListWritten:
        deadline = self._deadline = self._deadline or time.monotonic() + self._timeout_s
        try:
            data = encoded(self._name, effect.listed)
            with after_a_try(self._is_open):
                version = write_list(self._client, self._name, effect.listed, effect.version, data)
        except VersionConflictError:
            self._counts.log_conflicts.value += 1
            self._pause = back_off(self._pause, deadline, f"changing log {self._name!r}")
            return ListWritten(effect.request, Outcome.CONFLICT)
        except (NoNodeError, NoSuchLogError):
            return ListWritten(effect.request, Outcome.NO_SUCH_LEDGER)
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            self._is_open = self._is_open or error.outcome_unknown
            if time.monotonic() >= deadline:
                raise (still_open(error) if self._is_open else error) from error.__cause__
            return ListWritten(effect.request, Outcome.UNKNOWN)
        self._deadline, self._pause, self._is_open = None, 0.01, False
        self._counts.log_commits.value += 1
        self._counts.log_trims.value += effect.listed.trimmed_seq > self._trimmed_seq
        self._trimmed_seq = effect.listed.trimmed_seq
        return ListWritten(effect.request, Outcome.OK, version)

    def _load_chunk(self, effect: LoadChunk) -> ChunkLoaded:
        try:
            return ChunkLoaded(effect.request, Outcome.OK, history_of(self._client, self._name, self._log_id)(effect.ref))
        except LogDataLossError as error:
            return ChunkLoaded(effect.request, Outcome.NO_SUCH_LEDGER, error=error)
        except BkError as error:
            return ChunkLoaded(effect.request, Outcome.REFUSED, error=error)

    def _look_at(self, effect: LookAtLedger) -> LedgerOpened:
        try:
            metadata = self._client.ledger_metadata(effect.ledger_id)
        except NoSuchLedgerError:
            self._client.store.check_cluster()  # it is believed only if the cluster is still there and the same (OWN-2)
            return LedgerOpened(effect.request, Outcome.NO_SUCH_LEDGER)
        return LedgerOpened(effect.request, Outcome.OK, metadata.state is LedgerState.CLOSED)
