"""Every failure a user of bk_core or bk_spark can meet, as one tree.

    BkError
    ├── InvalidArgumentError          you passed something that can never work; nothing was done
    │   ├── ArgumentTypeError         of a kind that is not wanted there; a TypeError as well
    │   ├── KeyStoreError             a PKCS#12 file that cannot be used
    │   └── InvalidPathError          the path of a file that no file store takes
    ├── RemoteProtocolError           a peer sent bytes that the protocol does not allow
    ├── BookieError                   one bookie said no, or nothing (per replica; seldom shown alone)
    │   ├── NoSuchLedgerOnBookieError, NoSuchEntryError, BadRequestError, BookieIOError,
    │   ├── UnauthorizedError, BadVersionError, FencedError, ReadOnlyError, TooManyRequestsError,
    │   ├── UnknownLedgerStateError, BookieUnavailableError, BookieTimeoutError, BookieHttpError,
    │   ├── BookieSecurityError (BookieTlsError (BookieHostNameError), BookieAuthError (BookieKerberosError, BookieRoleError))
    ├── DigestError                   an entry does not match its digest or its ids
    ├── LedgerError                   a ledger as a whole
    │   ├── NoSuchLedgerError, LedgerExistsError, LedgerFencedError, LedgerClosedError,
    │   ├── NotEnoughBookiesError, RecoveryFailedError (RecoveryTimeoutError), MetadataConflictError, ReadError (ReadTimeoutError),
    │   ├── WrongPasswordError, WrongDigestTypeError, ReplicationError, PersistenceViolatedError,
    │   ├── AddQuorumTimeoutError, DuplicateEntryIdError, WriteFailedError, LedgerListedError, InternalError
    ├── MetadataError                 the metadata store
    │   ├── MetadataUnavailableError (MetadataTlsError (MetadataHostNameError)), MetadataOutcomeUnknownError, MetadataFormatError,
    │   ├── NodeExistsError, NoNodeError, VersionConflictError, CollectionRefusedError, NoAutoRecoveryError, LayoutMismatchError,
    │   ├── NoClusterError, ClusterChangedError, MetadataDeniedError, MetadataAuthError, MetadataContradictionError, ClusterExistsError
    ├── LogError                      a log as a whole
    │   ├── NoSuchLogError (NoSuchLogRootError), LogExistsError, LogTakenOverError, LogDataLossError, LogHistoryError, LogSchemaError,
    │   ├── LogEntryError, EntryTooLargeError, NullValueError, LogOfQueriesError (LogFormatError), LogClockError, WrongClusterError,
    │   ├── ForeignLedgerError, LogWriterAliveError, LogListFullError, NoSuchBatchError, LogReplayError
    ├── FileStoreError                a file store on ledgers
    │   ├── NoSuchPathError, PathExistsError, PathNotDirectoryError, PathIsDirectoryError, DirectoryNotEmptyError,
    │   ├── NoSuchFileStoreError, FileStoreTakenOverError, FileStoreClosedError, FileStoreFormatError, FileDataLostError,
    │   ├── ImportUnfinishedError
    ├── TransferError                 an export, an import or a copy
    │   ├── ExportFileError, ExportFormatError, CopyMismatchError
    ├── DiskFullError                 a local cluster's directory has no room
    └── ClientClosedError (LeftOpenError), ForkedClientError, OperationTimeoutError, BlockingCallError, LocalResourceError,
        MissingPackageError, SecretUnavailableError, EventLoopError, ConcurrentIterationError, LivePageError, ZooKeeperProcessError,
        EtcdProcessError

Class attributes:
``code``             stable text that survives Spark's error conversion (spark-connectors.md 5.13)
``advice``           what a user does about it, in a sentence or two; the reference of the documentation site shows it
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
    advice = "Catch it to catch every failure of this project; look below for the class at hand."
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
        """Return a new error of the same class that tells the same in the words of ``text``, with the same context and cause.

        With ``of_same_call`` the outcome is the same, too; without it the outcome is what the class says of it.
        """
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


def insisting(argument: str) -> tuple[str, str]:
    """The spellings, for Python and for ``bk``, of an argument that insists on a call which is refused without it. Its name stands as
    ``insist`` in the context of the error that names both."""
    return f"{argument}=True", f"--{argument.replace('_', '-')}"


class InvalidArgumentError(BkError, ValueError):
    """The caller's argument can never work. Raised before any side effect."""

    code = "BK-ARGUMENT"
    advice = "Change the argument that the message names."


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """The caller's argument has the wrong type. Raised before any side effect."""

    code = "BK-ARGUMENT-TYPE"
    advice = "Pass a value of the type that the message names."


class InvalidPathError(InvalidArgumentError):
    """A path that no file store takes: not absolute, with an empty, ``.`` or ``..`` part, or too long. Nothing was done."""

    code = "BK-FILES-PATH"
    advice = "Use an absolute path such as `/a/b`, without empty parts, `.` or `..`."


class KeyStoreError(InvalidArgumentError):
    """A key store or trust store (PKCS#12) cannot be used: its password is wrong, it is damaged, or what is wanted is not in it. The
    message names the file."""

    code = "BK-KEY-STORE"
    advice = "See the file and its password with `openssl pkcs12 -info -noout -in FILE` or `keytool -list -keystore FILE`."


class LivePageError(BkError):
    """The live page (``bk ui``) cannot be served: its port is taken, or its address is none of this machine. Nothing was done."""

    code = "BK-LIVE-PAGE"
    advice = "Choose another port or address (`bk ui --port`, `--host`), or end the program that listens there."


class BlockingCallError(BkError):
    """A call that has to wait was made where it must not wait: in a completion callback, on the client's own thread, or in a signal handler
    (or a finalizer) that interrupts a call it would have to wait for. Nothing was done."""

    code = "BK-BLOCKING-CALL"
    advice = "Use the call's `_future` form there, or hand the work to another thread."


class EventLoopError(BkError):
    """A client of ``bk_core.aio`` was used in another event loop than its own, or after its own was closed. Nothing was done."""

    code = "BK-EVENT-LOOP"
    advice = "Connect a client in each event loop, and close it before its loop ends; hand a call to its loop by run_coroutine_threadsafe."


class ConcurrentIterationError(BkError, RuntimeError):
    """A second task asked an iteration of ``bk_core.aio``, or a second thread a reader of a log, for its next run while the first one waits
    for it. Nothing was done."""

    code = "BK-CONCURRENT-ITERATION"
    advice = "Give each task an iteration, and each thread a reader of its own, or let one read and pass the runs on through a queue."


class RemoteProtocolError(BkError):
    """A peer broke the wire protocol; its connection is closed."""

    code = "BK-PROTOCOL"
    advice = "See that host and port are those of a bookie; if they are, report the message."
    retriable = True


class ClientClosedError(BkError):
    """The client (or handle) was closed by this program."""

    code = "BK-CLIENT-CLOSED"
    advice = "Connect again, or close the client later."
    outcome_unknown = True


class LeftOpenError(ClientClosedError):
    """A writer was closed behind its client, so its ledger stays open. What was acknowledged is safe."""

    code = "BK-LEFT-OPEN"
    advice = (
        "Close writers before their client. `recover_ledger` closes the ledger; of a log its next writer does, or `bk log release`. "
        "Only then can the last entries surely be read."
    )
    outcome_unknown = False


CLIENT_CLOSED = "this client was closed, by this program or because the process ends"
"""The message of ClientClosedError for every call of a client, whichever part of it is asked first."""


class ForkedClientError(BkError):
    """A client, handle or cluster was used in a process that was forked from its own. Nothing was done: connect again in this process."""

    code = "BK-FORKED"
    advice = "Call `connect` in the child process."


class OperationTimeoutError(BkError, TimeoutError):
    """The whole operation ran out of its time budget."""

    code = "BK-TIMEOUT"
    advice = "See which bookies or servers the message names; repeat, or raise `operation_timeout_s`."
    retriable = True
    outcome_unknown = True


class LocalResourceError(BkError):
    """This process or host cannot make another connection: no file descriptor, memory or local port is left, or connecting is forbidden
    (SES-10).

    No bookie is to blame. The same client works on as soon as the resource is available again.
    """

    code = "BK-LOCAL-RESOURCES"
    advice = "Raise the limit of open files (`ulimit -n`), or close other connections of this host."
    retriable = True
    outcome_unknown = True


class MissingPackageError(BkError, ImportError):
    """A Python package that is needed here is not installed, too old, or cannot be imported. The message names it, the version or the
    reason, and the Python."""

    code = "BK-PACKAGE"
    advice = "Install the package that the message names, in the Python that it names; where it is there, do what the message says."


class SecretUnavailableError(BkError):
    """A secret cannot be had: its file cannot be read, or its variable is not set. Nothing was done."""

    code = "BK-SECRET"
    advice = "Put the secret where the message says, readable for this process, and try again."
    retriable = True


# --- one bookie -------------------------------------------------------------------------------------------------


class BookieError(BkError):
    """One bookie refused or failed one request."""

    code = "BK-BOOKIE"
    advice = "Read the message: other replicas are asked as well, so this one error alone seldom ends a call."


class NoSuchLedgerOnBookieError(BookieError):
    """The bookie does not know the ledger."""

    code = "BK-BOOKIE-NO-LEDGER"
    advice = "Run `bk ledger check` on the ledger: this bookie should have it if a fragment names it."


class NoSuchEntryError(BookieError):
    """The bookie does not have the entry."""

    code = "BK-NO-ENTRY"
    advice = "Read up to the last add confirmed; if the entry lies below it, run `bk ledger check`."


class BadRequestError(BookieError):
    """The bookie does not accept the request."""

    code = "BK-BAD-REQUEST"
    advice = "See that the bookie is of a supported release; if it is, report the message."


class BookieIOError(BookieError):
    """The bookie could not read or write its disks."""

    code = "BK-BOOKIE-IO"
    advice = "Look into the bookie's log and at its disks."
    retriable = True


class UnauthorizedError(BookieError):
    """The bookie refuses the request because of the ledger's password."""

    code = "BK-UNAUTHORIZED"
    advice = "Pass the password that the ledger was created with; where bookies take no stranger, say who you are with `security`."


class BadVersionError(BookieError):
    """The bookie does not speak this version of the wire protocol."""

    code = "BK-BAD-VERSION"
    advice = 'Use the other wire protocol (`protocol="v2"` or `"v3"`), or a newer bookie.'


class FencedError(BookieError):
    """The ledger is fenced on the bookie, so it refuses a regular add."""

    code = "BK-BOOKIE-FENCED"
    advice = "Open the ledger to see its end, and go on in a new ledger."
    outcome_unknown = True


class ReadOnlyError(BookieError):
    """The bookie takes no new entries, because its disks are full or somebody made it read-only."""

    code = "BK-READ-ONLY"
    advice = "Give the bookie room on its disks, or let writers take others."
    retriable = True


class TooManyRequestsError(BookieError):
    """The bookie has more requests waiting than it takes."""

    code = "BK-TOO-MANY-REQUESTS"
    advice = "Repeat later, or write with less in flight."
    retriable = True


class UnknownLedgerStateError(BookieError):
    """The bookie may have lost entries of the ledger and has not been checked since, so it denies nothing."""

    code = "BK-LIMBO"
    advice = "Wait until the bookie is checked, or repair what it lost with `bk ledger repair --all`."
    retriable = True


class BookieUnavailableError(BookieError):
    """The bookie cannot be reached, or its connection broke."""

    code = "BK-BOOKIE-UNAVAILABLE"
    advice = "See that the bookie runs and that this host reaches its address (`bk bookie ls`)."
    retriable = True
    outcome_unknown = True


class BookieHttpError(BookieError):
    """The HTTP server of a bookie refused or failed, or the bookie has none, so it cannot be switched from here."""

    code = "BK-BOOKIE-HTTP"
    advice = "Start Apache's bookies with httpServerEnabled=true and an httpServerClass; run commands about an embedded bookie on its host."


class BookieTimeoutError(BookieError):
    """The bookie did not answer in time."""

    code = "BK-BOOKIE-TIMEOUT"
    advice = "Look at the load of the bookie and at the network; repeat."
    retriable = True
    outcome_unknown = True


class BookieSecurityError(BookieError):
    """A bookie and this client do not agree on who may speak to whom, and how (LINK-10). Nothing of a ledger was sent to that bookie."""

    code = "BK-BOOKIE-SECURITY"
    advice = "Read the message: it names the bookie and what was not agreed on."
    outcome_unknown = True


class BookieTlsError(BookieSecurityError):
    """A bookie and this client do not agree on TLS: one does not trust the other's certificate, or the bookie speaks none. Nothing of a
    ledger was sent to that bookie."""

    code = "BK-BOOKIE-TLS"
    advice = "See the files of `BookieTls`, the authority of the bookie and your certificate, and that bookies have `tlsProvider`."


class BookieHostNameError(BookieTlsError):
    """The certificate of a bookie is for another host than the one it is registered with. Nothing of a ledger was sent to that bookie."""

    code = "BK-BOOKIE-HOST"
    advice = "Have certificates made that name the hosts of the bookies (`bk bookie ls`), or register bookies with the names they have."


class BookieAuthError(BookieSecurityError):
    """A bookie does not take this client's credentials, wants some and got none, or wants none. Nothing of a ledger was sent to it."""

    code = "BK-BOOKIE-AUTH"
    advice = "See the user and the secret, and which authentication provider the bookies have."


class BookieKerberosError(BookieAuthError):
    """There is no ticket of Kerberos for a bookie, or the bookie and this client do not agree about it. The message names the principal,
    the keytab or the ticket cache, and what Kerberos says. Nothing of a ledger was sent to that bookie."""

    code = "BK-BOOKIE-KERBEROS"
    advice = (
        "Read the message: renew the ticket (`kinit`), or see the keytab (`klist -kt`), the principal, the KDC in `krb5.conf`, and that "
        "the KDC knows the service of the bookie's host (`kvno bookkeeper/HOST`)."
    )


class BookieRoleError(BookieAuthError):
    """A bookie that admits by role (`BookieAuthZFactory`) does not admit the certificate of this client, or got none. Nothing of a ledger
    was sent to it."""

    code = "BK-BOOKIE-ROLE"
    advice = "Show a certificate whose OU has one of the bookie's `authorizedRoles`, as in `OU=0:ROLE`, with `cert` or `key_store`."


class DiskFullError(BkError):
    """The disk of a local cluster's directory has no room for it. Nothing was started that still runs."""

    code = "BK-DISK-FULL"
    advice = "Make room in the directory that the message names, or name another one."
    retriable = True


class ZooKeeperProcessError(BkError):
    """The ZooKeeper process cannot be started: Java or the jars are missing, or it did not come up."""

    code = "BK-ZOOKEEPER-PROCESS"
    advice = "Install Java 17 and pyspark (for ZooKeeper's jars), or name a running ZooKeeper."


class EtcdProcessError(BkError):
    """The etcd process cannot be started: there is no etcd, or it did not come up."""

    code = "BK-ETCD-PROCESS"
    advice = "Install etcd, or name its program in the variable `BK_ETCD`, or name a running etcd."


class TransferError(BkError):
    """A ledger or log could not be exported, imported or copied."""

    code = "BK-TRANSFER"
    advice = "Look below for the class at hand."


class ExportFileError(TransferError):
    """The file of an export cannot be written, or that of an import cannot be read. No part of a file was left."""

    code = "BK-EXPORT-FILE"
    advice = "Name a file that does not exist yet, in a folder with room, or one that can be read."


class ExportFormatError(TransferError):
    """The file is no export, is damaged or cut off, or does not suit what it is imported into. Nothing of it is visible."""

    code = "BK-EXPORT-FORMAT"
    advice = "Fetch the whole file again, or export once more; a log of Arrow entries takes .parquet and .arrow files."


class CopyMismatchError(TransferError):
    """The entries that were read again after an import or a copy are not those that were written."""

    code = "BK-COPY-MISMATCH"
    advice = "Repeat it; if it happens again, check the bookies (`bk ledger xray --full`) and report the message."


class DigestError(BkError):
    """An entry's digest, ledger id or entry id is not what was asked for (RD-8)."""

    code = "BK-DIGEST"
    advice = "Run `bk ledger check`; `bk ledger repair` replaces the copy if another one is intact."


# --- one ledger -------------------------------------------------------------------------------------------------


class LedgerError(BkError):
    """A call about one ledger failed."""

    code = "BK-LEDGER"
    advice = "Read the message: it names the ledger and says what cannot be done with it."


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger."""

    code = "BK-NO-LEDGER"
    advice = "Check the ledger id and the cluster's URI: the ledger was deleted or lies in another cluster."


class LedgerExistsError(LedgerError):
    """A ledger of this id exists. Nothing was created."""

    code = "BK-LEDGER-EXISTS"
    advice = "Choose another ledger id, or leave the id out."


class LedgerFencedError(LedgerError):
    """A recovery, of this program or of another, fenced the ledger; what was pending may or may not be part of it (WR-11, WR-13)."""

    code = "BK-FENCED"
    advice = "Stop writing here: another process has taken over. Read the ledger to see what of the pending entries is there."
    outcome_unknown = True


class LedgerClosedError(LedgerError):
    """The ledger is closed, so it takes no more entries."""

    code = "BK-LEDGER-CLOSED"
    advice = "Create a new ledger for further entries."
    outcome_unknown = True


class NotEnoughBookiesError(LedgerError):
    """There are fewer writable bookies than the ledger needs."""

    code = "BK-NOT-ENOUGH-BOOKIES"
    advice = "Start more bookies, or take a smaller ensemble, for a log by `bk log set` (`bk bookie ls` shows what there is)."
    retriable = True
    outcome_unknown = True


class AddQuorumTimeoutError(LedgerError):
    """An entry stayed without its ack quorum longer than the caller allows (WR-14)."""

    code = "BK-ADD-QUORUM-TIMEOUT"
    advice = "Look at the bookies that the message names; go on in a new ledger."
    retriable = True
    outcome_unknown = True


class DuplicateEntryIdError(LedgerError):
    """The caller chose an entry id that is taken already (WR-2). Nothing was written."""

    code = "BK-DUPLICATE-ENTRY-ID"
    advice = "Give each entry an id of its own."


class WriteFailedError(LedgerError):
    """The writing of a ledger has ended: its ensemble was changed as often as the caller allows (EC-5), or a bookie failed under deferred
    sync, where none is replaced (WR-17)."""

    code = "BK-WRITE"
    advice = "Go on in a new ledger; the message says what ended this one."
    outcome_unknown = True


class InternalError(LedgerError):
    """The code of this program raised an unexpected error while it worked on a ledger. The handle cannot be used again; open a new one, and
    report the error."""

    code = "BK-INTERNAL"
    advice = "Open a new handle, and report the message with its traceback."
    outcome_unknown = True


class LedgerListedError(LedgerError):
    """A log lists the ledger, so deleting it would take entries out of the log (GRD-2). Nothing was deleted."""

    code = "BK-LEDGER-LISTED"
    advice = "Trim or delete the log instead (`bk log trim`, `bk log rm`)."


class RecoveryFailedError(LedgerError):
    """Recovery could not decide where the ledger ends; it stays IN_RECOVERY and may be tried again (RC-21)."""

    code = "BK-RECOVERY"
    advice = "Bring back the bookies that the message names, then recover again."
    retriable = True


class RecoveryTimeoutError(RecoveryFailedError, OperationTimeoutError):
    """Recovery could not decide because bookies did not answer in time (RC-21)."""

    code = "BK-RECOVERY-TIMEOUT"
    advice = "Bring back the bookies that the message names, then recover again; raise `operation_timeout_s` if they are slow."


class MetadataConflictError(LedgerError):
    """The stored ledger metadata was changed by somebody else in a way that ends this operation."""

    code = "BK-CONFLICT"
    advice = "Open the ledger again; somebody else has changed it."


class ReadError(LedgerError):
    """No replica of an entry could be read (RD-6)."""

    code = "BK-READ"
    advice = "Bring back a bookie that has the entry; `bk ledger check` shows which replicas are intact."
    retriable = True


class ReadTimeoutError(ReadError, OperationTimeoutError):
    """Too few bookies answered in time (RD-6, LC-1)."""

    code = "BK-READ-TIMEOUT"
    advice = "Bring back the bookies that the message names, or repeat when they are less busy."


class WrongPasswordError(LedgerError):
    """The password is not the one of the ledger or log."""

    code = "BK-PASSWORD"
    given_by = "password=... in Python, the option password or passwordFile in Spark, --password or --password-file of bk"
    advice = f"Pass the password that the ledger or log was created with: {given_by}."


class WrongDigestTypeError(LedgerError):
    """The digest type is not the one of the ledger."""

    code = "BK-DIGEST-TYPE"
    advice = "Pass the digest type that the ledger was created with, or none where it is stored."


class ReplicationError(LedgerError):
    """A fragment could not be brought back to full replication; what was copied does no harm and it may be tried again (RR-8)."""

    code = "BK-REPLICATION"
    advice = "Bring back a bookie that has the entries, then repair again."
    retriable = True


class PersistenceViolatedError(LedgerError):
    """The ledger was closed below an acknowledged entry. Must never happen (CL-4); report it."""

    code = "BK-PERSISTENCE-VIOLATED"
    advice = "Keep the ledger and the bookies' disks as they are, and report it."


# --- the metadata store -----------------------------------------------------------------------------------------


class MetadataError(BkError):
    """A call to the metadata store failed."""

    code = "BK-METADATA"
    advice = "Read the message: it says what the metadata store cannot do."


class MetadataUnavailableError(MetadataError):
    """The store cannot be reached; the request was definitely not applied."""

    code = "BK-METADATA-UNAVAILABLE"
    advice = "See that the store runs at the address in the URI; ZooKeeper also has a limit of connections (`maxClientCnxns`)."
    retriable = True


class MetadataTlsError(MetadataUnavailableError):
    """The metadata store and this client do not agree on TLS: one does not trust the other's certificate, or only one of them speaks TLS.
    Nothing was asked."""

    code = "BK-METADATA-TLS"
    advice = (
        "See which port speaks TLS (`zk+tls://`, `etcd+tls://`), and the files of `MetadataTls`: the authority of the server, and your "
        "certificate."
    )
    retriable = False


class MetadataHostNameError(MetadataTlsError):
    """The certificate of a server of the metadata store is for another host. Nothing was asked."""

    code = "BK-METADATA-HOST"
    advice = "Name the servers in the URI as their certificates do, or have certificates made that name these hosts."


class MetadataAuthError(MetadataError):
    """The metadata store does not take this client's credentials, or takes no client without any. Nothing was changed."""

    code = "BK-METADATA-AUTH"
    advice = "See the user and the password of `metadata_auth`, and which scheme the servers ask for; then connect anew."


class MetadataDeniedError(MetadataError):
    """The metadata store's access control lists do not let this client do that. Nothing was changed."""

    code = "BK-METADATA-DENIED"
    advice = "Ask for the right on the node that the message names."


class MetadataOutcomeUnknownError(MetadataError):
    """The answer to a write was lost: it may be applied now, later or never (META-12)."""

    code = "BK-METADATA-UNKNOWN"
    advice = "Look whether the change is there, then repeat it if it is not."
    retriable = True
    outcome_unknown = True


class MetadataContradictionError(MetadataError):
    """Servers of one metadata store contradict each other: one of them has what another one lacks. Nothing was changed (BKE-10)."""

    code = "BK-METADATA-CONTRADICTION"
    advice = (
        "Compare the servers (`etcdctl endpoint hashkv --cluster`), and replace the one that lost data; etcd 3.5.0 to 3.5.2 does so when "
        "it is killed. See also that the URI names servers of one cluster only."
    )


class MetadataFormatError(MetadataError):
    """Stored bytes cannot be understood."""

    code = "BK-METADATA-FORMAT"
    advice = "Use a version that knows the format that the message names; if there is none, report the message."


class LayoutMismatchError(MetadataError):
    """The cluster keeps its ledgers in a layout of the metadata store that is not supported, or that changed."""

    code = "BK-LAYOUT"
    advice = "Write the URI with the layout that the message says the cluster has, or without one."


class CollectionRefusedError(MetadataError):
    """A bookie found that so many of its ledgers, or the whole cluster, are gone that it deletes nothing and reports this instead, or that
    the servers of the metadata store contradict each other (BKE-1, BKE-2, BKE-10)."""

    code = "BK-COLLECTION-REFUSED"
    advice = "See that the metadata store is the right, whole one; if the ledgers were deleted on purpose, run `bk bookie collect`."


class NoAutoRecoveryError(MetadataError):
    """The layout of this cluster's metadata does not tell which bookies are lost, so nothing may be moved off them without being asked."""

    code = "BK-NO-AUTO-RECOVERY"
    advice = "Name the bookie that is lost: `bk ledger repair --all --lost ID`, or `bk bookie decommission ID`."


class NodeExistsError(MetadataError):
    """A node of this name exists in the metadata store."""

    code = "BK-NODE-EXISTS"
    advice = "Choose another name, or take what is there."


class NoNodeError(MetadataError):
    """The metadata store has no node of this name."""

    code = "BK-NO-NODE"
    advice = "Check the name; the node was removed meanwhile, or never existed."


class VersionConflictError(MetadataError):
    """A compare-and-set lost, because the stored version is another one."""

    code = "BK-VERSION"
    advice = "Read again and repeat the change."


class NoClusterError(MetadataError):
    """There is no cluster at the ledgers root, or none any more (OWN-1, OWN-2). Nothing was read or changed."""

    code = "BK-NO-CLUSTER"
    advice = "Check the path in the URI, or make a cluster there with `bk cluster init`."


class ClusterExistsError(MetadataError):
    """A new cluster was to be made where something exists already, or inside another cluster (OWN-13). Nothing was changed."""

    code = "BK-CLUSTER-EXISTS"
    advice = "Choose another path for the new cluster."


class ClusterChangedError(MetadataError):
    """The ledgers root holds another cluster than the one this client connected to, so ledger ids mean other ledgers now (OWN-2)."""

    code = "BK-CLUSTER-CHANGED"
    advice = "Connect again, and check that the URI names the cluster that you mean."


# --- one log ----------------------------------------------------------------------------------------------------


class LogError(BkError):
    """A call about one log failed."""

    code = "BK-LOG"
    advice = "Read the message: it names the log and says what cannot be done with it."


class NoSuchLogError(LogError):
    """The cluster has no log of this name."""

    code = "BK-NO-LOG"
    advice = "Check the name (`bk log ls`), or create the log."

    @property
    def asks(self) -> bool:
        """True if the message ends with a question: is another name meant, of a log that there is? It is ``near`` in the context."""
        return bool(self.context.get("near"))


class NoSuchLogRootError(NoSuchLogError):
    """The log root that was given does not exist, because no log was ever made there."""

    code = "BK-NO-LOG-ROOT"
    advice = "Use a log root that the message names, or create a log, which makes the root."


class NoSuchBatchError(LogError):
    """The log does not know the query or the batch, or does not tell which segments are of it."""

    code = "BK-LOG-NO-BATCH"
    advice = "List what is known (`bk log marks NAME`). Of batches that older versions wrote, only each query's last one is known."


class LogExistsError(LogError):
    """A log of this name exists. Nothing was created."""

    code = "BK-LOG-EXISTS"
    advice = "Choose another name, or pass `exist_ok=True`."


class LogTakenOverError(LogError):
    """Another writer took the log over; this one must stop (LOG-20)."""

    code = "BK-LOG-TAKEN-OVER"
    advice = "Stop writing here: another writer has the log. Read the log to see what of the pending entries is there."
    outcome_unknown = True


class LogOfQueriesError(LogError):
    """The log is for transactional writers: queries write it, or its entries are Arrow record batches (GRD-1). Nothing was fenced."""

    code = "BK-LOG-QUERIES"
    advice = "Write it with Spark, or stop its queries and pass `take_over_queries=True`."


class LogFormatError(LogOfQueriesError):
    """The log is for Arrow record batches, as Spark's queries write them, and not for other bytes (GRD-1). Nothing was fenced."""

    code = "BK-LOG-FORMAT"
    advice = 'Create a log with `entry_format="raw"`, or pass `arrow_entries=True` and write Arrow record batches.'


class LogWriterAliveError(LogError):
    """The exclusive writer of the log, or the owner of the file store, is alive, or may be: it is seen running on this host, or it runs on
    another one, where nobody can look (GRD-1, GRD-4); or it died, and the call takes over nobody (``take_over=False``). Nothing was
    fenced."""

    code = "BK-LOG-WRITER-ALIVE"
    advice = "Close the writer, or stop the process, that the message names; or pass `take_over=True` to end it."


class LogListFullError(LogError):
    """The list of the log would be larger than the metadata store takes. Nothing was changed."""

    code = "BK-LOG-LIST-FULL"
    advice = "Trim the log, or drop marks of queries that are gone (`bk log marks --forget`)."


class LogClockError(LogError):
    """A time that was given lies beyond the metadata store's clock, so it would make young commits old (JAN-3). Nothing was changed."""

    code = "BK-LOG-CLOCK"
    advice = "Set this host's clock, and pass a time that is not in the future."


class LogDataLossError(LogError):
    """Entries behind a position that is still wanted are gone, because the log was trimmed or recreated."""

    code = "BK-LOG-DATA-LOSS"
    advice = "Decide whether the loss matters; `failOnDataLoss=false`, or a reader from `earliest`, goes on behind it."


class LogReplayError(LogError):
    """A batch of a query that the log has already is written again with other rows (BAT-2). Nothing was published."""

    code = "BK-LOG-REPLAY"
    advice = "See whether the checkpoint was rolled back or copied; go on with the one that the log knows."


class LogHistoryError(LogError):
    """A chunk of the log's history is missing, damaged or not the one referred to; what its segments hold is still in their ledgers."""

    code = "BK-LOG-HISTORY"
    advice = "Run `bk log check` and bring back the bookies that have the ledger it names."


class LogSchemaError(LogError):
    """Columns do not fit those of the log: by name, by type, or because the log has got new ones."""

    code = "BK-LOG-SCHEMA"
    advice = "Give the DataFrame the log's columns, or write with `mergeSchema=true`; a stream is started again with a new DataFrame."


class LogEntryError(LogError):
    """An entry of a log is no valid record batch of the log's schema, or is larger than the reader takes. Reading it again will
    not help."""

    code = "BK-LOG-ENTRY"
    advice = "Read around the entry with `startingOffsets` and `endingOffsets`, or raise `maxBytesPerEntry` if it is only large."


class WrongClusterError(LogError):
    """A log's list belongs to another cluster, so the ledger ids in it mean other ledgers here (OWN-3, OWN-4). Nothing was changed."""

    code = "BK-WRONG-CLUSTER"
    advice = "Check URI and log root; `bk log adopt` says that the log is this cluster's."


class ForeignLedgerError(LogError):
    """A ledger that a log lists or intends does not carry the log's name and id (OWN-6); it is neither fenced nor deleted."""

    code = "BK-FOREIGN-LEDGER"
    advice = "Run `bk log check`; `bk log adopt --unnamed` takes ledgers that carry no log's name."


class EntryTooLargeError(LogError):
    """A row or value is too large for an entry of any bookie. Raised before it is sent."""

    code = "BK-LOG-ENTRY-TOO-LARGE"
    advice = "Split the row or value: an entry holds 5 MiB at most."


class NullValueError(LogError):
    """A ``value`` for a log of raw entries is null. An entry is a sequence of bytes, which may be empty but never null."""

    code = "BK-LOG-NULL-VALUE"
    advice = "Filter out null values, or write them as empty bytes."


class FileStoreError(BkError):
    """A file store on ledgers (protocol/files) cannot do what was asked."""

    code = "BK-FILES"
    advice = "Read the message: it says what the file store cannot do."


class NoSuchPathError(FileStoreError, FileNotFoundError):
    """The file store has no file or directory of this path. Nothing was changed."""

    code = "BK-FILES-NO-PATH"
    advice = "Check the path (`bk checkpoint ls NAME`)."


class PathExistsError(FileStoreError, FileExistsError):
    """The file store has a file or directory of this path already, and overwriting it was not asked for. Nothing was changed."""

    code = "BK-FILES-EXISTS"
    advice = "Choose another path, or pass `overwrite=True`."


class PathNotDirectoryError(FileStoreError, NotADirectoryError):
    """A part of the path is a file where a directory is needed. Nothing was changed."""

    code = "BK-FILES-NOT-DIRECTORY"
    advice = "Choose a path whose parents are directories."


class PathIsDirectoryError(FileStoreError, IsADirectoryError):
    """The path is a directory where a file is needed. Nothing was changed."""

    code = "BK-FILES-IS-DIRECTORY"
    advice = "Name a file, or list the directory."


class DirectoryNotEmptyError(FileStoreError, OSError):
    """The directory has something in it, and deleting or replacing all of that was not asked for. Nothing was changed."""

    code = "BK-FILES-NOT-EMPTY"
    advice = "Empty the directory first, or ask for a recursive deletion."


class NoSuchFileStoreError(FileStoreError):
    """The cluster has no file store of this name."""

    code = "BK-FILES-NO-STORE"
    advice = "Check the name (`bk checkpoint ls`), or open it with `create=True`."


class FileStoreTakenOverError(FileStoreError):
    """Another owner opened the file store, or gc fenced it, which ended this one. A change that was not acknowledged may or may
    not have been made."""

    code = "BK-FILES-TAKEN-OVER"
    advice = "Stop here, or open the store again, which ends the other owner. Give two programs a store each."
    outcome_unknown = True


class FileStoreClosedError(FileStoreError):
    """The file store was closed by this program, or ended by a failure that its message names."""

    code = "BK-FILES-CLOSED"
    advice = "Open the store again after the cause that the message names is gone."
    outcome_unknown = True


class FileStoreFormatError(FileStoreError):
    """The stored records are no file store that this version understands: they are damaged, or a later version wrote them."""

    code = "BK-FILES-FORMAT"
    advice = "Use the version that wrote the store; if this is the newest, keep the store and report the message."


class ImportUnfinishedError(FileStoreError):
    """The checkpoint holds no file, or only the folder of an import: the import was killed, or ended, before it was done. Nothing was
    changed."""

    code = "BK-FILES-IMPORT-UNFINISHED"
    advice = "Run the import again (`bk checkpoint import`), or begin without it: `bk checkpoint gc NAME` deletes what it has left."


class FileDataLostError(FileStoreError):
    """The ledger that holds a file's bytes does not exist any more, or has not got them."""

    code = "BK-FILES-DATA-LOST"
    advice = "Restore the file from a copy (`bk checkpoint import`), or begin anew without it."
