"""Does the slow work that a file store's machine asks for: it rolls and trims the log, and closes, recovers and deletes data ledgers. All
of it blocks, so it runs on a worker thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from bk_core.client.counting import counts_of
from bk_core.client.driver import as_bk_error, outcome_of
from bk_core.client.files.nodes import check_node, create_data_ledger, delete_data_ledger
from bk_core.client.identity import close_own
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.list_store import LogClient, ledger_exists, log_path, read_ledger_list
from bk_core.client.log.live_writers import WRITER, foremost, live_writers
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BkError, ForeignLedgerError, LogTakenOverError, NoSuchLogError, OperationTimeoutError
from bk_core.metadata.store import Watch
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.effects import DataDropped, DropData, LogRolled, LogTrimmed, RollLog, TrimLog
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties

Work: TypeAlias = RollLog | TrimLog | DropData
WorkDone: TypeAlias = LogRolled | LogTrimmed | DataDropped
log = logging.getLogger("bk_core.client.files")

CONFIRM_S = 2.0  # so long a drop waits in one go until readers see the change that let go of its ledger


class FileWorks:
    """Log and data ledgers of one owner of a store. It keeps no store alive."""

    def __init__(self, client: LogClient, writer: LogWriter, log_id: str, properties: LogProperties, password: bytes) -> None:
        self._client = client
        self._writer = writer
        self._log = writer.name
        self._log_id = log_id
        self._properties = properties
        self._password = password
        self._tag: bytes | None = None  # of the log's writer, in each of its ledgers
        self.last_ledger: int | None = None  # at the end of the log's list, when ``other_owner`` looked
        self.is_ours = False  # the ledger there was this owner's, then
        self._confirmed: tuple[int, int] | None = None  # the last entry of the log that readers certainly see: its ledger, and its id
        self._told: dict[str, str] = {}  # the last failure of each work that has not come off yet: one line in the program's log is enough

    def answer(self, work: Work) -> WorkDone:
        """Perform one request. Whatever fails is told in the answer, and the machine asks again later."""
        try:
            match work:
                case RollLog(request):
                    self._writer.roll()
                    done: WorkDone = LogRolled(request, Outcome.OK)
                case TrimLog(request, before):
                    trim_log(self._client, self._log, before=before, password=self._password, file_entries=True)
                    counts_of(self._client).file_compactions.value += 1
                    done = LogTrimmed(request, Outcome.OK)
                case DropData(request, ledger_id):
                    self._drop(ledger_id)
                    done = DataDropped(request, Outcome.OK)
            self._told.pop(_what(work), None)
            return done
        except Exception as error:
            self._tell(work, error)
            kinds: dict[type[Work], type[WorkDone]] = {RollLog: LogRolled, TrimLog: LogTrimmed, DropData: DataDropped}
            return kinds[type(work)](work.request, outcome_of(error), as_bk_error(error))

    def _tell(self, work: Work, error: Exception) -> None:
        what = _what(work)
        if self._told.get(what) != str(error):
            self._told[what] = str(error)
            log.warning("log %s: %s is tried again later: %s", self._log, what, error)

    # --- the log ------------------------------------------------------------------------------------------------------------

    def watch_list(self, callback: Callable[[], None]) -> Watch:
        """``callback`` after each change of the log's list, on any thread."""
        self._tag = self._tag_of(self._writer.ledger_id)
        return self._client.store.watch(log_path(self._log), callback)

    def other_owner(self) -> LogTakenOverError | None:
        """The end of this owner, if the log's last ledger is not its writer's: whoever listed it has fenced ours before (LOG-1). The end,
        too, if the log was deleted, or deleted and made again. Says in ``is_ours`` if the last ledger is certainly our writer's."""
        self.is_ours = False
        try:
            listed = read_ledger_list(self._client, self._log)
        except NoSuchLogError:
            listed = None
        if listed is None or listed.log_id != self._log_id:
            return LogTakenOverError(f"log {self._log!r} was deleted", log=self._log, deleted=True)
        self.last_ledger = listed.segments[-1].ledger_id if listed.segments else None
        if self.last_ledger is None or self._tag is None or not ledger_exists(self._client, self.last_ledger):
            return None  # whoever watches the ledger learns that it is gone
        self.is_ours = self._tag_of(self.last_ledger) == self._tag
        if self.is_ours:
            return None
        owner = foremost(live_writers(self._client, [self.last_ledger]))
        told = f"log {self._log!r}: another leader has put a ledger on the list"
        return LogTakenOverError(told, log=self._log, **({"owner": owner.told} if owner is not None and owner.host else {}))

    def is_last(self, ledger_id: int) -> bool:
        """Return True if the log's list ends with this ledger. A ledger that a roll or a trim took off the list may be deleted."""
        listed = read_ledger_list(self._client, self._log)
        return bool(listed.segments) and listed.segments[-1].ledger_id == ledger_id

    def _tag_of(self, ledger_id: int) -> bytes | None:
        found: bytes | None = self._client.ledger_metadata(ledger_id).custom.get(WRITER)
        return found

    # --- data ledgers -----------------------------------------------------------------------------------------------------

    def watch_data(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        """``callback`` after each change of the ledger's metadata, on any thread."""
        return self._client.store.watch_ledger(ledger_id, callback)

    def is_data_gone(self, ledger_id: int) -> bool:
        """Believed only of a cluster that is still there and the same (OWN-2)."""
        if ledger_exists(self._client, ledger_id):
            return False
        self._client.store.check_cluster()
        return True

    def create_data(self, noted: Callable[[int], object]) -> Any:
        return create_data_ledger(self._client, self._log, self._log_id, self._properties, self._password, noted)

    def _drop(self, ledger_id: int) -> None:
        self._confirm()
        try:
            delete_data_ledger(self._client, self._log, self._log_id, ledger_id, self._password)
        except ForeignLedgerError as error:  # asking again would not make it ours
            log.warning("log %s: %s", self._log, error)

    def _confirm(self) -> None:
        """Wait until readers see all changes that are acknowledged now. The change that let go of a ledger is one of them. A view beside an
        owner that dies after a deletion would, else, still list the file whose bytes are gone (FS-22)."""
        ledger_id, last = self._writer.acknowledged
        if last < 0 or (self._confirmed is not None and self._confirmed[0] == ledger_id and self._confirmed[1] >= last):
            return
        with self._client.open_ledger(ledger_id, password=self._password) as handle:
            if not handle.wait_for(last, CONFIRM_S) and not handle.is_closed:
                what = f"entry {last} of ledger {ledger_id}, the last change of log {self._log!r}, is not confirmed to readers after"
                raise OperationTimeoutError(f"{what} {CONFIRM_S:g} s", log=self._log, ledger=ledger_id)
        self._confirmed = (ledger_id, last)

    def close_data(self, handle: Any, failed: bool) -> None:
        """Have the ledger of ``handle`` CLOSED, so that it can be read with certainty and repaired. Whatever a recovery raises."""
        if not failed:
            with suppress(BkError):
                handle.close()
        if handle.metadata.state is not LedgerState.CLOSED:
            handle.abandon()
            self.recover_data(int(handle.ledger_id))

    def recover_data(self, ledger_id: int) -> None:
        """The same for a ledger that another owner left. One that is gone needs nothing; ForeignLedgerError for one that is not the
        store's."""
        check_node(self._client, self._log, self._log_id, ledger_id)
        close_own(self._client, self._log, self._log_id, ledger_id, self._password)

    def clean_log(self) -> None:
        """Delete the ledgers that a former owner, which is certainly gone, made for the log and did not come to list (JAN-5)."""
        gc_log(self._client, self._log, password=self._password)


def _what(work: Work) -> str:
    return f"dropping data ledger {work.ledger_id}" if isinstance(work, DropData) else type(work).__name__
