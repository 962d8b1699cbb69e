"""Performs, with a client and its store, what a leader of a log asks of its world (protocol/log/effects.py).

``LeaderWorks.answer`` performs one request and gives its one answer; it blocks, so it runs on a ``Worker``. The outcomes mean what the
table in effects.py says: UNKNOWN repeats the identical request (META-12), CONFLICT is somebody else, REFUSED ends it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from bk_core.client.counting import counts_of
from bk_core.client.driver import as_bk_error, outcome_of
from bk_core.client.guards import admit_writer, check_password
from bk_core.client.identity import NOBODY_ADOPTED, check_ledger, recover_own
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.intents import create_intended, forget_own
from bk_core.client.log.list_store import LogClient, encoded, log_path, now_ms, read_versioned, store_now_ms
from bk_core.client.log.live_writers import WRITER, note_left, writer_tag
from bk_core.errors import (
    BkError,
    BookieSecurityError,
    ClientClosedError,
    ClusterChangedError,
    ForeignLedgerError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataFormatError,
    NoClusterError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    PersistenceViolatedError,
    UnauthorizedError,
    VersionConflictError,
    WrongClusterError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import (
    CheckLedger,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    LedgerChecked,
    LedgerCreated,
    LedgerDeleted,
    LedgerEnded,
    ListRead,
    ListWritten,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.exclusive import INSIST_NOTHING, Insisted
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import LogProperties

Work: TypeAlias = ReadList | WriteList | CreateLedger | RecoverLedger | CloseLedger | DeleteLedger | CheckLedger
WorkDone: TypeAlias = ListRead | ListWritten | LedgerCreated | LedgerEnded | LedgerDeleted | LedgerChecked

LISTS_KEPT = 4  # a machine writes over the list it read last, or over the one before that
SEQS_KEPT = 32  # entries that are on their way belong to the last two ledgers, or to the one that follows
ENDS_KEPT = 8  # more than a list can show as live
_TAKEN_OVER = (LedgerFencedError, LedgerClosedError, MetadataConflictError)
_FOR_GOOD = (
    WrongPasswordError,
    WrongDigestTypeError,
    MetadataFormatError,
    InvalidArgumentError,
    ClientClosedError,
    PersistenceViolatedError,
    ClusterChangedError,
    NoClusterError,
    WrongClusterError,
    ForeignLedgerError,
)
_NOT_ADMITTED = (BookieSecurityError, UnauthorizedError)  # to ledgers of this log, whose password is looked at first
_DONE: dict[type[Work], type[WorkDone]] = {
    ReadList: ListRead,
    WriteList: ListWritten,
    CreateLedger: LedgerCreated,
    RecoverLedger: LedgerEnded,
    CloseLedger: LedgerEnded,
    DeleteLedger: LedgerDeleted,
    CheckLedger: LedgerChecked,
}


class LeaderWorks:
    """Ledgers and list of one leader. ``answer`` and ``tell_end`` are called by one thread at a time.

    ``handles``: writers of own ledgers that are not CLOSED. ``seqs``: segment number by ledger id. ``ends``: last entry and bytes of the
    ledgers that were CLOSED last, which a list may still show as live.
    ``unforgotten``: ledgers whose intents are to be forgotten, and could not be.
    ``empty_in_a_row``: own ledgers that failed before they took an entry, one after the other.
    """

    def __init__(self, client: LogClient, name: str, password: bytes, patience_s: float, insisted: Insisted = INSIST_NOTHING) -> None:
        self.name = name
        self.log_id = ""
        self.properties = LogProperties()
        self.handles: dict[int, Any] = {}
        self.seqs: dict[int, int] = {}
        self.ends: dict[int, tuple[int, int]] = {}
        self.unforgotten: set[int] = set()
        self._problem: Exception | None = None
        self._failed: type[Work] | None = None
        self.empty_in_a_row = 0
        self.client = client
        self._password = password
        self._patience_s = patience_s
        self._lists: dict[int, LedgerList] = {}
        self._intended: set[int] = set()  # own ledgers that a janitor may find by their intents
        self._adopted: Collection[int] = NOBODY_ADOPTED
        self._attempt: tuple[WriteList, LedgerList, bytes] | None = None
        self._insisted: Insisted | None = insisted  # None once a ledger of ours is listed: queries commit nothing any more then
        self._tag = writer_tag(now_ms())
        self._short_since: float | None = None  # bookies have been too few for a new ledger since then
        self._admitted = False  # bookies have taken entries of this writer
        self._refusal: tuple[Exception, float] | None = None  # why they take none now, and since when

    def answer(self, work: Work, *, needed: bool = False) -> WorkDone:
        """``needed``: nothing can be written before this ledger is there, so too few bookies are waited for, within the patience."""
        try:
            done = self._perform(work)
            if type(work) is self._failed:
                self._problem = self._failed = None
            return done
        except Exception as first:
            error = self._problem = self._made_sure(work, first)
            self._failed = type(work)
            return _DONE[type(work)](work.request, self._outcome(work, error, needed), error=as_bk_error(error))

    @property
    def problem(self) -> Exception | None:
        """The failure of the last work that failed, for the text of a timeout, until work of its kind is done; else that of the entries."""
        refusal = self._refusal
        return self._problem or (None if refusal is None else refusal[0])

    def appended(self, error: BaseException | None) -> None:
        """Take note of the end of a run of entries. Any thread."""
        if error is None:
            self._admitted, self._refusal = True, None
        elif isinstance(error, _NOT_ADMITTED) and self._refusal is None:
            self._refusal = (error, time.monotonic())

    def _check_refusal(self) -> None:
        """Raise the reason for which bookies do not admit this client: at once if they never did, and else when the patience is over,
        because certificates and passwords are changed while writers are at work. Each further ledger would stay empty (LINK-10)."""
        refusal = self._given_up()
        if refusal is not None and self.empty_in_a_row:
            raise refusal

    def _given_up(self) -> Exception | None:
        """Return the reason for which bookies do not admit this client if that is not waited out any more."""
        refusal = self._refusal  # another thread may take it away
        if refusal is None:
            return None
        error, since = refusal
        return error if not self._admitted or time.monotonic() - since >= self._patience_s else None

    def _perform(self, work: Work) -> WorkDone:
        match work:
            case ReadList(request):
                listed, version = self._read_list()
                ledgers = tuple(segment.ledger_id for segment in listed.segments)
                return ListRead(request, Outcome.OK, ledgers, version, condemned=listed.condemned, next_seq=listed.next_seq)
            case WriteList(request):
                return ListWritten(request, Outcome.OK, self._write_list(work))
            case CreateLedger(request, tags):
                return LedgerCreated(request, Outcome.OK, self._create(tags))
            case RecoverLedger(request, ledger_id):
                return LedgerEnded(request, Outcome.OK, self._recover(ledger_id))
            case CloseLedger(request, ledger_id):
                return LedgerEnded(request, Outcome.OK, self._close(ledger_id))
            case DeleteLedger(request, ledger_id):
                self._delete(ledger_id)
                return LedgerDeleted(request, Outcome.OK)
            case CheckLedger(request, ledger_id):
                check_ledger(self.name, self.log_id, ledger_id, self.client.ledger_metadata(ledger_id))
                return LedgerChecked(request, Outcome.OK)

    def _made_sure(self, work: Work, error: Exception) -> Exception:
        """Return the error. That a ledger is gone is believed only of a cluster that is still there and the same (OWN-2); else return what
        the store says of the cluster."""
        if isinstance(error, (NoSuchLedgerError, NoNodeError)) and isinstance(work, (RecoverLedger, CheckLedger, CloseLedger)):
            try:
                self.client.store.check_cluster()
            except Exception as changed:
                return changed
        return error

    def _outcome(self, work: Work, error: Exception, needed: bool) -> Outcome:
        match work:
            case CreateLedger():
                return self._create_outcome(error, needed)
            case RecoverLedger() if isinstance(error, _NOT_ADMITTED) and self._insisted is not None:
                return Outcome.REFUSED  # nothing was written yet, so whoever opens the log is told at once (LINK-10)
            case RecoverLedger() if isinstance(error, _NOT_ADMITTED):  # of a ledger of ours: bookies have refused its entries, too
                self.appended(error)
                return Outcome.UNKNOWN if self._given_up() is None else Outcome.REFUSED
            case RecoverLedger() | CheckLedger():
                return _recover_outcome(error)
            case CloseLedger():
                return _close_outcome(error)
            case _ if isinstance(error, NoSuchLogError):
                return Outcome.NO_SUCH_LEDGER
            case _:
                return outcome_of(error)

    # --- the list --------------------------------------------------------------------------------------------------

    def _read_list(self) -> tuple[LedgerList, int]:
        """A store's session never sees an older state than it saw before, so a conflict or a missing ledger is seen here too: no sync.

        NoSuchLogError; NoNodeError for a log that was deleted and created again.
        """
        listed, version = read_versioned(self.client, self.name)
        if self.log_id not in ("", listed.log_id):
            raise NoNodeError(f"log {self.name!r} was deleted and created again")
        self.log_id = listed.log_id
        if any(segment.ledger_id in self.handles for segment in listed.segments[-1:]):  # by an attempt whose answer was lost
            self._insisted = None
        if self._insisted is not None:
            admit_writer(self.client, self.name, listed, self._insisted, self.handles)
            check_password(self.client, self.name, listed, self._password)
        self._know(version, listed)
        return listed, version

    def _know(self, version: int, listed: LedgerList) -> None:
        self.properties, self._adopted = listed.properties, listed.adopted
        self.seqs.update((segment.ledger_id, segment.seq) for segment in listed.segments[-2:])
        for ledger_id in list(self.seqs)[:-SEQS_KEPT]:
            del self.seqs[ledger_id]
        self._lists[version] = listed
        self._forget_intents(self.unforgotten | self._intended.intersection(segment.ledger_id for segment in listed.segments))
        for old in sorted(self._lists)[:-LISTS_KEPT]:
            del self._lists[old]

    def _forget_intents(self, ledger_ids: Iterable[int]) -> None:
        """Forget the intents of these ledgers. Those for which it fails stay ``unforgotten``, to be tried again soon: a janitor takes the
        writer of a ledger with an old intent for gone."""
        for ledger_id in tuple(ledger_ids):
            self.unforgotten.add(ledger_id)
            with suppress(BkError):
                forget_own(self.client, self.name, ledger_id)
                self._intended.discard(ledger_id)
                self.unforgotten.discard(ledger_id)

    def forget_again(self) -> None:
        """Try again to forget the intents that could not be forgotten."""
        self._forget_intents(self.unforgotten)

    def _write_list(self, work: WriteList) -> int:
        """Put the last ledger of ``work`` behind the list of that version, with the ends known by now filled in (LOG-1 (4), LOG-6 (2)).

        A repeated request is byte-identical (META-12). The identity of the log is looked at first: versions of a log that was deleted and
        created again start anew, and the compare-and-set would not notice.
        """
        if self._attempt is None or (self._attempt[0].ledgers, self._attempt[0].version) != (work.ledgers, work.version):
            changed, at_ms = self._lists[work.version], store_now_ms(self.client)
            for segment in changed.live_segments:
                if segment.ledger_id in self.ends:
                    changed = changed.close_live(segment.ledger_id, *self.ends[segment.ledger_id], at_ms)
            changed = changed.add_live_segment(work.ledgers[-1], at_ms)
            self._attempt = (work, changed, encoded(self.name, changed))
        _, changed, data = self._attempt
        self._read_list()
        counts = counts_of(self.client)
        try:
            version = self.client.store.write(log_path(self.name), data, work.version)
        except VersionConflictError:
            counts.log_conflicts.value += 1
            raise
        counts.log_commits.value += 1
        (counts.log_rolls if self._insisted is None else counts.log_take_overs).value += 1
        self._insisted = None
        self._know(version, changed)
        return version

    def tell_end(self, ledger_id: int) -> None:
        """Fill in the end of a CLOSED ledger, so that others see it without asking bookies, and may append behind it."""
        last_entry_id, size = self.ends[ledger_id]
        at_ms = store_now_ms(self.client)

        def change(listed: LedgerList) -> LedgerList:
            return listed.close_live(ledger_id, last_entry_id, size, at_ms) if listed.log_id == self.log_id else listed

        with suppress(NoSuchLogError):
            update_ledger_list(self.client, self.name, change)

    # --- ledgers ---------------------------------------------------------------------------------------------------

    def _create(self, tags: Mapping[str, bytes]) -> int:
        """Create a ledger with an intent, so that a janitor finds one that never gets listed (LOG-9)."""
        self._check_refusal()
        custom = {**tags, WRITER: self._tag}
        handle = create_intended(self.client, self.name, self.properties, log_id=self.log_id, password=self._password, custom=custom)
        self._short_since = None
        handle.tells_when_dropped = False
        self.handles[handle.ledger_id] = handle
        self._intended.add(handle.ledger_id)
        return int(handle.ledger_id)

    def _create_outcome(self, error: Exception, needed: bool) -> Outcome:
        if not isinstance(error, NotEnoughBookiesError) or not needed:
            return outcome_of(error)
        now = time.monotonic()
        self._short_since = self._short_since or now
        return Outcome.UNKNOWN if now - self._short_since < self._patience_s else Outcome.REFUSED

    def _recover(self, ledger_id: int) -> int:
        with recover_own(self.client, self.name, self.log_id, ledger_id, self._password, self._adopted) as ended:
            last_entry_id, size = int(ended.last_add_confirmed), int(ended.length)
        if ledger_id in self.handles and last_entry_id < 0:
            self.empty_in_a_row += 1
        self._ended(ledger_id, last_entry_id, size)
        return last_entry_id

    def _close(self, ledger_id: int) -> int:
        metadata = self.handles[ledger_id].close()
        self._ended(ledger_id, metadata.last_entry_id, metadata.length)
        return int(metadata.last_entry_id)

    def _ended(self, ledger_id: int, last_entry_id: int, size: int) -> None:
        self.ends[ledger_id] = (last_entry_id, size)
        if last_entry_id >= 0:
            self.empty_in_a_row = 0
        for old in list(self.ends)[:-ENDS_KEPT]:
            del self.ends[old]
        handle = self.handles.pop(ledger_id, None)
        if handle is not None:
            handle.abandon()

    def _delete(self, ledger_id: int) -> None:
        """A ledger that was never listed: nobody wrote to it (LOG-9)."""
        handle = self.handles.pop(ledger_id, None)
        if handle is not None:
            with suppress(BkError):
                handle.close()
        with suppress(NoSuchLedgerError):
            self.client.delete_ledger(ledger_id, even_if_listed=True)
        self._forget_intents([ledger_id])

    def abandon_all(self) -> None:
        """Stop writing everywhere. The ledgers stay as they are (LOG-20)."""
        while self.handles:
            ledger_id, handle = self.handles.popitem()
            handle.abandon()
            if store_of(self.name) is None:  # an owner of a file store may still be at work with files when its log has ended
                note_left(ledger_id, self._tag, self.log_id)


def append_outcome(error: BaseException | None) -> Outcome:
    """Return the outcome of appending one run of entries."""
    match error:
        case None:
            return Outcome.OK
        case NoSuchLedgerError():
            return Outcome.NO_SUCH_LEDGER
        case LedgerFencedError() | LedgerClosedError() | MetadataConflictError():
            return Outcome.CONFLICT
        case _:
            return Outcome.UNKNOWN


def _recover_outcome(error: Exception) -> Outcome:
    """Return the outcome of a recovery that failed: it cannot be decided now, unless asking again cannot help (LOG-3)."""
    if isinstance(error, (NoSuchLedgerError, NoNodeError)):
        return Outcome.NO_SUCH_LEDGER
    return Outcome.REFUSED if isinstance(error, _FOR_GOOD) else Outcome.UNKNOWN


def _close_outcome(error: Exception) -> Outcome:
    """A close that takes too long goes on, and is waited for again; after any other error the writer is spent: a recovery tells the end."""
    if isinstance(error, NoSuchLedgerError):
        return Outcome.NO_SUCH_LEDGER
    if isinstance(error, _TAKEN_OVER):
        return Outcome.CONFLICT
    return Outcome.UNKNOWN if isinstance(error, OperationTimeoutError) else Outcome.REFUSED
