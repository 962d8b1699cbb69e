"""Every failure a user of bk_core or bk_spark can meet, as one tree.

    BkError
    ├── InvalidArgumentError          you passed something that can never work; nothing was done
    │   ├── ArgumentTypeError         of a kind that is not wanted there; a TypeError as well
    │   └── InvalidPathError          the path of a file that no file store takes
    ├── RemoteProtocolError           a peer sent bytes that the protocol does not allow
    ├── BookieError                   one bookie said no, or nothing (per replica; seldom shown alone)
    │   ├── NoSuchLedgerOnBookieError, NoSuchEntryError, BadRequestError, BookieIOError,
    │   ├── UnauthorizedError, BadVersionError, FencedError, ReadOnlyError, TooManyRequestsError,
    │   ├── UnknownLedgerStateError, BookieUnavailableError, BookieTimeoutError
    ├── DigestError                   an entry does not match its digest or its ids
    ├── LedgerError                   a ledger as a whole
    │   ├── NoSuchLedgerError, LedgerExistsError, LedgerFencedError, LedgerClosedError,
    │   ├── NotEnoughBookiesError, RecoveryFailedError (RecoveryTimeoutError), MetadataConflictError, ReadError (ReadTimeoutError),
    │   ├── WrongPasswordError, WrongDigestTypeError, ReplicationError, PersistenceViolatedError,
    │   ├── AddQuorumTimeoutError, DuplicateEntryIdError, WriteFailedError, LedgerListedError, InternalError
    ├── MetadataError                 the metadata store
    │   ├── MetadataUnavailableError, MetadataOutcomeUnknownError, MetadataFormatError, LayoutMismatchError,
    │   ├── NodeExistsError, NoNodeError, VersionConflictError, CollectionRefusedError,
    │   ├── NoClusterError, ClusterChangedError, MetadataDeniedError, ClusterExistsError
    ├── LogError                      a log as a whole
    │   ├── NoSuchLogError, LogExistsError, LogTakenOverError, LogDataLossError, LogHistoryError, LogSchemaError,
    │   ├── LogEntryError, EntryTooLargeError, NullValueError, LogOfQueriesError (LogFormatError), LogClockError, WrongClusterError,
    │   ├── ForeignLedgerError, LogWriterAliveError, LogListFullError, NoSuchLogRootError
    ├── FileStoreError                a file store on ledgers
    │   ├── NoSuchPathError, PathExistsError, PathNotDirectoryError, PathIsDirectoryError, DirectoryNotEmptyError,
    │   ├── NoSuchFileStoreError, FileStoreTakenOverError, FileStoreClosedError, FileStoreFormatError, FileDataLostError
    ├── DiskFullError                 a local cluster's directory has no room
    └── ClientClosedError, ForkedClientError, OperationTimeoutError, BlockingCallError, LocalResourceError,
        MissingPackageError

Class attributes:
``code``             stable text that survives Spark's error conversion (spark-connectors.md 5.13)
``retriable``        the same call may succeed later without any change by the caller
``outcome_unknown``  the effect may or may not have happened (a fenced add may still be in the ledger: WR-11, WR-13). One error of such a
                     class may say that nothing was done: ``nothing_done``

Every class takes one positional message and optional keyword context and pickles, because Spark carries errors between processes.
Secrets never enter a message.
"""

from __future__ import annotations

from typing import Any, Self


class BkError(Exception):
    """Root of all errors of this project. ``context`` holds ledger, entry, bookie where they are known."""

    code = "BK-ERROR"
    retriable = False
    outcome_unknown = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.context = context

    def __str__(self) -> str:
        return f"[{self.code}] {self.args[0]}"

    def nothing_done(self) -> Self:
        """Return this error after noting that nothing was done when it was raised, so its outcome is known."""
        self.outcome_unknown = False
        return self

    def retold(self, text: str, *, of_same_call: bool = True) -> Self:
        """Return a new error that tells the same in the words of ``text``: of the same class, with the same context, cause and outcome.
        Of another call the outcome is what the class says of it."""
        copy = type(self)(text, **self.context)
        copy.__cause__ = self.__cause__
        if of_same_call and "outcome_unknown" in self.__dict__:
            copy.outcome_unknown = self.outcome_unknown
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        own = {"outcome_unknown": False} if "outcome_unknown" in self.__dict__ else None
        return (_rebuild, (type(self), self.args[0], self.context), own)


def _rebuild(cls: type[BkError], message: str, context: dict[str, Any]) -> BkError:
    return cls(message, **context)


class InvalidArgumentError(BkError, ValueError):
    """The caller's argument can never work. Raised before any side effect."""

    code = "BK-ARGUMENT"


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """The caller's argument has the wrong type. Raised before any side effect."""

    code = "BK-ARGUMENT-TYPE"


class InvalidPathError(InvalidArgumentError):
    """A path that no file store takes: not absolute, with an empty, ``.`` or ``..`` part, or too long. Nothing was done."""

    code = "BK-FILES-PATH"


class BlockingCallError(BkError):
    """A call that has to wait was made where it must not wait: in a completion callback, on the client's own thread, or in a signal handler
    (or a finalizer) that interrupts a call it would have to wait for. Nothing was done."""

    code = "BK-BLOCKING-CALL"


class RemoteProtocolError(BkError):
    """A peer broke the wire protocol; its connection is closed."""

    code = "BK-PROTOCOL"
    retriable = True


class ClientClosedError(BkError):
    """The client (or handle) was closed by this program."""

    code = "BK-CLIENT-CLOSED"
    outcome_unknown = True


CLIENT_CLOSED = "this client was closed, by this program or because the process ends"
"""The message of ClientClosedError for every call of a client, whichever part of it is asked first."""


class ForkedClientError(BkError):
    """A client, handle or cluster was used in a process that was forked from its own. Nothing was done: connect again in this process."""

    code = "BK-FORKED"


class OperationTimeoutError(BkError, TimeoutError):
    """The whole operation ran out of its time budget."""

    code = "BK-TIMEOUT"
    retriable = True
    outcome_unknown = True


class LocalResourceError(BkError):
    """This process or host cannot make another connection: no file descriptor, memory or local port is left, or connecting is forbidden
    (SES-10).

    No bookie is to blame. The same client works on as soon as the resource is available again.
    """

    code = "BK-LOCAL-RESOURCES"
    retriable = True
    outcome_unknown = True


class MissingPackageError(BkError, ImportError):
    """A Python package that is needed here is not installed, or too old. The message names it, the version and the Python."""

    code = "BK-PACKAGE"


# --- one bookie -------------------------------------------------------------------------------------------------


class BookieError(BkError):
    """One bookie refused or failed one request."""

    code = "BK-BOOKIE"


class NoSuchLedgerOnBookieError(BookieError):
    code = "BK-BOOKIE-NO-LEDGER"


class NoSuchEntryError(BookieError):
    code = "BK-NO-ENTRY"


class BadRequestError(BookieError):
    code = "BK-BAD-REQUEST"


class BookieIOError(BookieError):
    code = "BK-BOOKIE-IO"
    retriable = True


class UnauthorizedError(BookieError):
    code = "BK-UNAUTHORIZED"


class BadVersionError(BookieError):
    code = "BK-BAD-VERSION"


class FencedError(BookieError):
    code = "BK-BOOKIE-FENCED"
    outcome_unknown = True


class ReadOnlyError(BookieError):
    code = "BK-READ-ONLY"
    retriable = True


class TooManyRequestsError(BookieError):
    code = "BK-TOO-MANY-REQUESTS"
    retriable = True


class UnknownLedgerStateError(BookieError):
    code = "BK-LIMBO"
    retriable = True


class BookieUnavailableError(BookieError):
    code = "BK-BOOKIE-UNAVAILABLE"
    retriable = True
    outcome_unknown = True


class BookieTimeoutError(BookieError):
    code = "BK-BOOKIE-TIMEOUT"
    retriable = True
    outcome_unknown = True


class DiskFullError(BkError):
    """The disk of a local cluster's directory has no room for it. Nothing was started that still runs."""

    code = "BK-DISK-FULL"
    retriable = True


class DigestError(BkError):
    """An entry's digest, ledger id or entry id is not what was asked for (RD-8)."""

    code = "BK-DIGEST"


# --- one ledger -------------------------------------------------------------------------------------------------


class LedgerError(BkError):
    code = "BK-LEDGER"


class NoSuchLedgerError(LedgerError):
    code = "BK-NO-LEDGER"


class LedgerExistsError(LedgerError):
    code = "BK-LEDGER-EXISTS"


class LedgerFencedError(LedgerError):
    """A recovery, of this program or of another, fenced the ledger; what was pending may or may not be part of it (WR-11)."""

    code = "BK-FENCED"
    outcome_unknown = True


class LedgerClosedError(LedgerError):
    code = "BK-LEDGER-CLOSED"
    outcome_unknown = True


class NotEnoughBookiesError(LedgerError):
    code = "BK-NOT-ENOUGH-BOOKIES"
    retriable = True
    outcome_unknown = True


class AddQuorumTimeoutError(LedgerError):
    """An entry stayed without its ack quorum longer than the caller allows (WR-14)."""

    code = "BK-ADD-QUORUM-TIMEOUT"
    retriable = True
    outcome_unknown = True


class DuplicateEntryIdError(LedgerError):
    """The caller chose an entry id that is taken already (WR-2). Nothing was written."""

    code = "BK-DUPLICATE-ENTRY-ID"


class WriteFailedError(LedgerError):
    """The writing of a ledger reached a bound that the caller set (EC-5, WR-17)."""

    code = "BK-WRITE"
    outcome_unknown = True


class InternalError(LedgerError):
    """The code of this program raised an unexpected error while it worked on a ledger. The handle cannot be used again; open a new one, and
    report the error."""

    code = "BK-INTERNAL"
    outcome_unknown = True


class LedgerListedError(LedgerError):
    """A log lists the ledger, so deleting it would take entries out of the log (GRD-2). Nothing was deleted."""

    code = "BK-LEDGER-LISTED"


class RecoveryFailedError(LedgerError):
    """Recovery could not decide where the ledger ends; it stays IN_RECOVERY and may be tried again (RC-21)."""

    code = "BK-RECOVERY"
    retriable = True


class RecoveryTimeoutError(RecoveryFailedError, OperationTimeoutError):
    """Recovery could not decide because bookies did not answer in time (RC-21)."""

    code = "BK-RECOVERY-TIMEOUT"


class MetadataConflictError(LedgerError):
    """The stored ledger metadata was changed by somebody else in a way that ends this operation."""

    code = "BK-CONFLICT"


class ReadError(LedgerError):
    """No replica of an entry could be read (RD-6)."""

    code = "BK-READ"
    retriable = True


class ReadTimeoutError(ReadError, OperationTimeoutError):
    """Too few bookies answered in time (OP-3)."""

    code = "BK-READ-TIMEOUT"


class WrongPasswordError(LedgerError):
    code = "BK-PASSWORD"


class WrongDigestTypeError(LedgerError):
    code = "BK-DIGEST-TYPE"


class ReplicationError(LedgerError):
    """A fragment could not be brought back to full replication; what was copied does no harm and it may be tried again (RR-8)."""

    code = "BK-REPLICATION"
    retriable = True


class PersistenceViolatedError(LedgerError):
    """The ledger was closed below an acknowledged entry. Must never happen (CL-4); report it."""

    code = "BK-PERSISTENCE-VIOLATED"


# --- the metadata store -----------------------------------------------------------------------------------------


class MetadataError(BkError):
    code = "BK-METADATA"


class MetadataUnavailableError(MetadataError):
    """The store cannot be reached; the request was definitely not applied."""

    code = "BK-METADATA-UNAVAILABLE"
    retriable = True


class MetadataDeniedError(MetadataError):
    """The metadata store's access control lists do not let this client do that. Nothing was changed."""

    code = "BK-METADATA-DENIED"


class MetadataOutcomeUnknownError(MetadataError):
    """The answer to a write was lost: it may be applied now, later or never (META-12)."""

    code = "BK-METADATA-UNKNOWN"
    retriable = True
    outcome_unknown = True


class MetadataFormatError(MetadataError):
    """Stored bytes cannot be understood."""

    code = "BK-METADATA-FORMAT"


class LayoutMismatchError(MetadataError):
    code = "BK-LAYOUT"


class CollectionRefusedError(MetadataError):
    """A bookie found that so many of its ledgers, or the whole cluster, are gone that it deletes nothing and reports this instead (BKE-1,
    BKE-2)."""

    code = "BK-COLLECTION-REFUSED"


class NodeExistsError(MetadataError):
    code = "BK-NODE-EXISTS"


class NoNodeError(MetadataError):
    code = "BK-NO-NODE"


class VersionConflictError(MetadataError):
    """A compare-and-set lost, because the stored version is another one."""

    code = "BK-VERSION"


class NoClusterError(MetadataError):
    """There is no cluster at the ledgers root, or none any more (OWN-1, OWN-2). Nothing was read or changed."""

    code = "BK-NO-CLUSTER"


class ClusterExistsError(MetadataError):
    """A new cluster was to be made where something exists already, or inside another cluster (OWN-13). Nothing was changed."""

    code = "BK-CLUSTER-EXISTS"


class ClusterChangedError(MetadataError):
    """The ledgers root holds another cluster than the one this client connected to, so ledger ids mean other ledgers now (OWN-2)."""

    code = "BK-CLUSTER-CHANGED"


# --- one log ----------------------------------------------------------------------------------------------------


class LogError(BkError):
    code = "BK-LOG"


class NoSuchLogError(LogError):
    code = "BK-NO-LOG"


class NoSuchLogRootError(NoSuchLogError):
    """The log root that was given does not exist, because no log was ever made there."""

    code = "BK-NO-LOG-ROOT"


class LogExistsError(LogError):
    code = "BK-LOG-EXISTS"


class LogTakenOverError(LogError):
    """Another writer took the log over; this one must stop (LOG-8)."""

    code = "BK-LOG-TAKEN-OVER"
    outcome_unknown = True


class LogOfQueriesError(LogError):
    """The log is for transactional writers: queries write it, or its entries are Arrow record batches (GRD-1). Nothing was fenced."""

    code = "BK-LOG-QUERIES"


class LogFormatError(LogOfQueriesError):
    """The log is for Arrow record batches, as Spark's queries write them, and not for other bytes (GRD-1). Nothing was fenced."""

    code = "BK-LOG-FORMAT"


class LogWriterAliveError(LogError):
    """The exclusive writer of the log is seen running on this host (GRD-4). Nothing was fenced."""

    code = "BK-LOG-WRITER-ALIVE"


class LogListFullError(LogError):
    """The list of the log would be larger than the metadata store takes. Nothing was changed."""

    code = "BK-LOG-LIST-FULL"


class LogClockError(LogError):
    """A time that was given lies beyond the metadata store's clock, so it would make young commits old (JAN-3). Nothing was changed."""

    code = "BK-LOG-CLOCK"


class LogDataLossError(LogError):
    """Entries behind a position that is still wanted are gone, because the log was trimmed or recreated."""

    code = "BK-LOG-DATA-LOSS"


class LogReplayError(LogError):
    """A batch of a query that the log has already is written again with other rows (BAT-2). Nothing was published."""

    code = "BK-LOG-REPLAY"


class LogHistoryError(LogError):
    """A chunk of the log's history is missing, damaged or not the one referred to; what its segments hold is still in their ledgers."""

    code = "BK-LOG-HISTORY"


class LogSchemaError(LogError):
    code = "BK-LOG-SCHEMA"


class LogEntryError(LogError):
    """An entry of a log is no valid record batch of the log's schema, or is larger than the reader takes. Reading it again will
    not help."""

    code = "BK-LOG-ENTRY"


class WrongClusterError(LogError):
    """A log's list belongs to another cluster, so the ledger ids in it mean other ledgers here (OWN-3, OWN-4). Nothing was changed."""

    code = "BK-WRONG-CLUSTER"


class ForeignLedgerError(LogError):
    """A ledger that a log lists or intends does not carry the log's name and id (OWN-6); it is neither fenced nor deleted."""

    code = "BK-FOREIGN-LEDGER"


class EntryTooLargeError(LogError):
    """A row or value is too large for an entry of any bookie. Raised before it is sent."""

    code = "BK-LOG-ENTRY-TOO-LARGE"


class NullValueError(LogError):
    """A ``value`` for a log of raw entries is null. An entry is a sequence of bytes, which may be empty but never null."""

    code = "BK-LOG-NULL-VALUE"


class FileStoreError(BkError):
    """A file store on ledgers (protocol/files) cannot do what was asked."""

    code = "BK-FILES"


class NoSuchPathError(FileStoreError, FileNotFoundError):
    """The file store has no file or directory of this path. Nothing was changed."""

    code = "BK-FILES-NO-PATH"


class PathExistsError(FileStoreError, FileExistsError):
    """The file store has a file or directory of this path already, and overwriting it was not asked for. Nothing was changed."""

    code = "BK-FILES-EXISTS"


class PathNotDirectoryError(FileStoreError, NotADirectoryError):
    """A part of the path is a file where a directory is needed. Nothing was changed."""

    code = "BK-FILES-NOT-DIRECTORY"


class PathIsDirectoryError(FileStoreError, IsADirectoryError):
    """The path is a directory where a file is needed. Nothing was changed."""

    code = "BK-FILES-IS-DIRECTORY"


class DirectoryNotEmptyError(FileStoreError, OSError):
    """The directory has something in it, and deleting or replacing all of that was not asked for. Nothing was changed."""

    code = "BK-FILES-NOT-EMPTY"


class NoSuchFileStoreError(FileStoreError):
    """The cluster has no file store of this name."""

    code = "BK-FILES-NO-STORE"


class FileStoreTakenOverError(FileStoreError):
    """Another owner opened the file store, which ended this one. A change that was not acknowledged may or may not have been made."""

    code = "BK-FILES-TAKEN-OVER"
    outcome_unknown = True


class FileStoreClosedError(FileStoreError):
    """The file store was closed by this program, or ended by a failure that its message names."""

    code = "BK-FILES-CLOSED"
    outcome_unknown = True


class FileStoreFormatError(FileStoreError):
    """The stored records are no file store that this version understands: they are damaged, or a later version wrote them."""

    code = "BK-FILES-FORMAT"


class FileDataLostError(FileStoreError):
    """The ledger that holds a file's bytes does not exist any more, or has not got them."""

    code = "BK-FILES-DATA-LOST"
