"""BookKeeper: create, open, recover, delete and list ledgers of one cluster."""

from __future__ import annotations

import logging
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from bk_core.arguments import COUNT, ID, POSITIVE, POSITIVE_SECONDS, PROGRESS, SECONDS, SECRET, TEXT, checked
from bk_core.client.access import digest_type_of, granted
from bk_core.client.counting import recovery_counted
from bk_core.client.creation import Creation, custom_metadata
from bk_core.client.here import StaysHere
from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.client.looking import LooksInside
from bk_core.client.operations import run_machine
from bk_core.client.session import Closable, Session
from bk_core.config import ClientConfig, ClientSettings, WireProtocol
from bk_core.errors import (
    ClientClosedError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
)
from bk_core.exit_hook import end_with_process, forget
from bk_core.metadata import open_store
from bk_core.metadata.rack_script import RackScript
from bk_core.metadata.store import BookieView, MetadataStore, Version, Versioned
from bk_core.metrics.client import ClientCounts
from bk_core.metrics.snapshot import Metrics
from bk_core.near import check_names
from bk_core.net.local_resources import local_resource_error
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import GWQ_MARK, BookieId, DigestName, DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.quorums import check_sizes
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery
from bk_core.threads import SafeFuture, is_ending, is_own, made_aside, mark_own, start_aside, wait_done

if TYPE_CHECKING:  # at run time when it is wanted: half of what this module costs to import, and Spark starts processes often
    from bk_core.client.doctor.examine import OnStep
    from bk_core.client.doctor.findings import Diagnosis
    from bk_core.client.exploring.filters import LedgerFilters
    from bk_core.client.exploring.ledger import Ledger
    from bk_core.client.exploring.ledgers import Ledgers
    from bk_core.client.exploring.trace import Trace
    from bk_core.client.log.log import Log
    from bk_core.client.log.settings import LogSettings
    from bk_core.client.repair.autorecovery import AutoRecovery, AutoRecoveryOptions, RecoveryEvent
    from bk_core.client.repair.report import DecommissionReport, LedgerReport, OnProgress, RepairReport, RepairSettings

log = logging.getLogger("bk_core.client")

T = TypeVar("T")


@checked(protocol=TEXT)
def connect(
    uri: str, *, protocol: WireProtocol = "v2", store: MetadataStore | None = None, **settings: Unpack[ClientSettings]
) -> BookKeeper:
    """Connect to the cluster at ``uri``, e.g. ``zk://host:2181/ledgers``, and return its client.

    ``protocol`` is "v2", or "v3" for clusters that refuse v2. ``settings`` are the other fields of ClientConfig by name. ``store`` is a
    metadata store to use in place of the one that ``uri`` names, for tests.

    Raises MetadataUnavailableError when the metadata store does not answer, NoClusterError when there is no cluster at the ledgers root,
    MetadataAuthError and MetadataDeniedError when ZooKeeper does not take this client's credentials or keeps it from looking,
    MetadataTlsError (MetadataHostNameError) when its certificate is not trusted (is for another host), InvalidArgumentError for a bad URI
    or setting, LocalResourceError when this process has no descriptors for another client.

    >>> client = connect("zk://127.0.0.1:2181/ledgers", operation_timeout_s=30)

    Rule: OWN-1.
    """
    check_names(settings, ClientConfig, "client setting")
    config = ClientConfig(uri, protocol, **settings)
    if (security := config.bookie_security) is not None:
        security.check()
    if (script := config.script_of_racks) is not None:
        RackScript(script, config.rack_script_timeout_s).check()

    def make() -> BookKeeper:
        if (
            short := local_resource_error("no client can be made", None)
        ) is not None:  # the store's client would only say that nobody answers
            raise short
        opened = store or open_store(
            uri,
            timeout_s=config.metadata_timeout_s,
            log_root=config.log_root,
            patient=config.await_store,
            auth=config.metadata_auth,
            tls=config.metadata_tls,
        )
        try:
            opened.cluster_id()
            return BookKeeper(config, opened)
        except BaseException:
            opened.close()
            raise

    try:
        return made_aside(make, BookKeeper.close)
    except (OSError, MetadataUnavailableError) as error:
        short = local_resource_error("no client can be made", error if isinstance(error, OSError) else None)
        if short is None:
            raise
        raise short from error


def _end_dropped(session: Session, store: MetadataStore) -> None:
    """End a client that was dropped, on a thread of its own, so that whoever dropped it waits for nothing."""
    mark_own()
    try:
        session.close()
        store.close()
    except Exception as error:
        log.warning("a client that was dropped did not end well: %s", error)


class BookKeeper(LooksInside, StaysHere):
    """A client of one cluster. Threads may share it; processes may not. Close it, or use it with ``with``.

    Handles, logs and tables of a client keep it open. When nobody refers to the client or to one of them any more, it ends by itself, with
    a ResourceWarning.
    """

    def __init__(self, config: ClientConfig, store: MetadataStore) -> None:
        self.config = config
        self._store = store
        self._shared = Session(config, store)
        self._home = self._shared.home
        self._shared.owner = weakref.ref(self)
        store.count_in(self._shared.counts.metadata)
        self._closed = False
        self._going_on: SafeFuture[None] | None = None  # done when an interrupted close is
        end_with_process(self)

    @property
    def is_closed(self) -> bool:
        """True once ``close`` has begun, also one that was interrupted: no call of this client goes out any more."""
        return self._closed or self._going_on is not None or self._shared.is_over

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for logs and other tools."""
        self._home.check()
        return self._store

    @store.setter
    def store(self, store: MetadataStore) -> None:
        self._store = store

    @property
    def _session(self) -> Session:
        self._shared.check()
        return self._shared

    @checked(since_s=SECONDS)
    def unanswering(self, since_s: float) -> tuple[str, ...]:
        """Return the bookies to which a connection of this client's broke, fell silent or could not be made since ``since_s`` on the
        monotonic clock, and that have not answered since then."""
        return self._shared.unanswering(since_s)

    def close_with(self, closable: Closable) -> None:
        """Have ``closable`` closed whenever this client is closed, and before it, because a thread may wait in it for an answer that a
        closed client never gets."""
        self._session.close_with(closable)

    def end(self) -> None:
        """Stop the client as the process ends. Its metadata session ends with the connection (``Session.end``)."""
        if self._home.is_here:
            self._shared.end()

    # --- metrics -------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Return what this client has counted so far: adds, reads, times, bytes, ensemble changes, timeouts, connections, requests to the
        metadata store, and what its logs and file stores did. No server is asked, and a client that was closed has them, too.

        >>> client.metrics()["bookkeeper_client_add_entry_seconds"].p99_s

        Raises ForkedClientError in a forked child.
        """
        self._home.check()
        return self._shared.counts.registry.snapshot()

    @property
    def counts(self) -> ClientCounts:
        """The counts of this client. Its own parts count in them, and exporters read them."""
        return self._shared.counts

    # --- ledgers -------------------------------------------------------------------------------------------------

    @checked(ensemble_size=POSITIVE, write_quorum_size=POSITIVE, ack_quorum_size=POSITIVE, password=SECRET, ledger_id=ID)
    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | DigestName = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        guaranteed_write_quorum: bool = False,
        caller_ids: bool = False,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """Create a ledger and return its writer.

        Each entry is written to ``write_quorum_size`` (Qw) of ``ensemble_size`` (E) bookies and is acknowledged once ``ack_quorum_size``
        (Qa) of them have stored it: E >= Qw >= Qa >= 1. ``digest_type`` is the checksum of entries, and readers need the same ``password``.
        ``custom`` is metadata of the caller's own, names to bytes. ``ledger_id`` is the id to take; without it the cluster chooses one.

        With ``guaranteed_write_quorum`` entries are acknowledged at Qa and end up on all Qw bookies before the ledger is closed; this is
        marked in the custom metadata for good. With ``caller_ids`` every append names its entry id. With ``deferred_sync`` bookies
        acknowledge before they sync, and ``WriteHandle.force`` makes entries durable and readable.

        Raises InvalidArgumentError for sizes or options that do not go together, NotEnoughBookiesError if fewer bookies can be written to,
        and LedgerExistsError if ``ledger_id`` is taken.

        >>> with client.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2) as ledger:
        ...     ledger.append(b"hello")

        Rules: CR-1..CR-7, G-0, WR-2, WR-17; replication-protocol.md 9.
        """
        check_sizes(ensemble_size, write_quorum_size, ack_quorum_size)
        if guaranteed_write_quorum and deferred_sync:
            raise InvalidArgumentError("deferred_sync allows no ensemble change, which guaranteed_write_quorum needs; choose one")
        options = replace(self._session.writer_options(), caller_ids=caller_ids, deferred_sync=deferred_sync)
        digest = digest_type_of(digest_type)
        marks = custom_metadata(custom or {})
        if guaranteed_write_quorum and write_quorum_size > ack_quorum_size:
            marks[GWQ_MARK] = b"1"
        creation = self._creation
        ensemble = creation.new_ensemble(ensemble_size, write_quorum_size)
        template = LedgerMetadata(
            len(ensemble),
            write_quorum_size,
            ack_quorum_size,
            LedgerState.OPEN,
            (Fragment(0, ensemble),),
            digest_type=digest,
            password=password,
            custom=MappingProxyType(marks),
            ctime_ms=time.time_ns() // 1_000_000,  # this clock's, as the Java client stores it: to be shown, and compared with nothing
            creator_token=random.SystemRandom().randrange(1, (1 << 63) - 1),  # a Java client's later writes leave 0 there
        )
        number, metadata, version = creation.create(template, ledger_id)
        self.counts.ledgers_created.value += 1
        return WriteHandle(self._session, number, metadata, version, options)

    @checked(ensemble_size=POSITIVE, write_quorum_size=POSITIVE)
    def await_bookies(self, ensemble_size: int, write_quorum_size: int) -> None:
        """Wait until there are bookies for a new ledger of these sizes, as after a restart of them all.

        ``ensemble_size`` and ``write_quorum_size`` are those of ``create_ledger``.

        Raises NotEnoughBookiesError when there are still too few after ``operation_timeout_s``, and at once if there would be too few with
        all that have a cookie in this cluster.
        """
        self._creation.await_bookies(ensemble_size, write_quorum_size)

    @property
    def _creation(self) -> Creation:
        return Creation(self._session, self.store)

    @checked(ledger_id=ID)
    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of ledger ``ledger_id`` as it is stored now. No bookie is asked.

        Raises NoSuchLedgerError, and MetadataFormatError if what is stored cannot be understood.
        """
        return self._load(ledger_id)[0]

    def _load(self, ledger_id: int) -> tuple[LedgerMetadata, Version]:
        try:
            found = self.store.read_ledger(ledger_id)
        except NoNodeError:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist", ledger=ledger_id) from None
        return metadata_codec.decode(found.data, ledger_id), found.version

    @checked(ledger_id=ID, password=SECRET)
    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | DigestName | None = None,
        options: ReadOptions | None = None,
        lac: bool = True,
    ) -> ReadHandle:
        """Open ledger ``ledger_id`` for reading and return its reader. Nothing is recovered, so a live writer is never disturbed.

        ``digest_type`` and ``password`` are what entries are checked with where metadata stores none, as old releases of Apache's left it;
        without ``digest_type`` CRC32 is assumed there. ``options`` are those of this reader, in place of the client's ``reads``.
        ``lac=False`` neither asks for the last add confirmed nor follows the metadata of a ledger that is not CLOSED. It is for callers who
        read only entries that are known to be acknowledged (``read_runs(..., unchecked_bound=True)``).

        Raises NoSuchLedgerError; WrongPasswordError; WrongDigestTypeError if ``digest_type`` is given and another one is stored;
        ReadTimeoutError, ReadError or UnauthorizedError when the bookies of a ledger that is not CLOSED do not give its last add confirmed.

        >>> with client.open_ledger(7) as ledger:
        ...     runs = list(ledger.read_runs(0, ledger.last_add_confirmed))

        Rules: OP-3, OP-5, META-15.
        """
        metadata, version = self._load(ledger_id)
        metadata = granted(ledger_id, metadata, password, digest_type)
        self.counts.ledgers_opened.value += 1
        if not lac:
            return ReadHandle(self._session, ledger_id, metadata, version, options)
        return ReadHandle.open(self._session, ledger_id, metadata, version, options)

    @checked(ledger_id=ID, password=SECRET)
    def open_known(self, ledger_id: int, stored: Versioned, *, password: bytes = b"", options: ReadOptions | None = None) -> ReadHandle:
        """Open ledger ``ledger_id`` by metadata that somebody else read from the store, as ``open_ledger(..., lac=False)`` does.

        ``stored`` is that metadata with its version. The store itself is asked only when no replica of an entry has it. ``password`` and
        ``options`` are as in ``open_ledger``.

        Raises WrongPasswordError, and MetadataFormatError if ``stored`` cannot be understood.

        Rules: SES-13, RD-7.
        """
        metadata = granted(ledger_id, metadata_codec.decode(stored.data, ledger_id), password, None)
        self.counts.ledgers_opened.value += 1
        return ReadHandle(self._session, ledger_id, metadata, stored.version, options)

    @checked(ledger_id=ID, password=SECRET)
    def recover_ledger(self, ledger_id: int, *, password: bytes = b"", digest_type: DigestType | DigestName | None = None) -> ReadHandle:
        """Fence, recover and close ledger ``ledger_id``, then open it and return its reader. A live writer is stopped for good.

        ``password`` and ``digest_type`` are as in ``open_ledger``. The call takes as long as reading and storing the last fragment takes,
        if the ledger is guaranteed or somebody began to recover it.

        Raises OperationTimeoutError after ``operation_timeout_s`` without progress. Raises RecoveryFailedError, or NotEnoughBookiesError
        when entries must be written back and a dead bookie has no replacement: the ledger stays IN_RECOVERY then, and recovery may be tried
        again.

        Rule: OP-4.
        """
        metadata, version = self._session.definite(lambda: self._load(ledger_id))
        metadata = granted(ledger_id, metadata, password, digest_type)
        if metadata.state is not LedgerState.CLOSED:
            # before anything is fenced: a ledger that is IN_RECOVERY already is fenced without a write (OWN-10)
            self._session.definite(self.store.check_cluster)
            options = self._session.recovery_options()
            machine = LedgerRecovery(ledger_id, self._session.placement, None, self.config.machine_limits, options=options)
            kind = f"recovery-{random.getrandbits(32)}"
            with recovery_counted(self.counts):
                run_machine(
                    self._session,
                    ledger_id,
                    machine,
                    machine.start,
                    add_kind=kind,
                    quorums=metadata,
                    what="recovering",
                    places_entries=True,
                )
            closed, version = self._session.definite(lambda: self._load(ledger_id))
            metadata = closed.with_access(metadata.access)
        return ReadHandle(self._session, ledger_id, metadata, version)

    @checked(ledger_id=ID)
    def delete_ledger(self, ledger_id: int, *, even_if_listed: bool = False) -> None:
        """Delete the metadata of ledger ``ledger_id``, whatever its state is; bookies drop its entries later.

        A ledger that is not CLOSED is deleted as well, as Apache's client does it. Its writer is not told: bookies go on acknowledging its
        entries, which are lost, until it closes the ledger or a bookie fails. Recover the ledger first (``recover_ledger``), which ends
        the writer. ``even_if_listed`` deletes also a ledger that a log lists, which loses its entries, and one whose metadata cannot be
        understood.

        Raises NoSuchLedgerError if there is none. Unless ``even_if_listed`` raises LedgerListedError for one that a log lists, and
        MetadataFormatError for one that nobody understands.

        Rules: GRD-2, GRD-7.
        """
        from bk_core.client.deleting import refuse_listed, refuse_unreadable

        try:
            metadata, _ = self._load(ledger_id)
            if not even_if_listed and metadata.custom:
                refuse_listed(self, ledger_id, metadata.custom)
        except MetadataFormatError as error:
            refuse_unreadable(ledger_id, error, even_if_listed)
        self._session.definite(lambda: self.store.delete_ledger(ledger_id))
        self.counts.ledgers_deleted.value += 1

    @checked(ledger_id=ID)
    def ledger(self, ledger_id: int) -> Ledger:
        """Return ledger ``ledger_id`` as an object to look at: its metadata, fragments and bookies. No bookie is asked.

        ``open_ledger`` reads entries, and ``ledger_metadata`` returns the metadata alone.

        Raises NoSuchLedgerError.

        >>> client.ledger(7).plot_fragments()
        """
        from bk_core.client.exploring.ledger import read_ledger

        return read_ledger(self, ledger_id)

    @checked(limit=COUNT, progress=PROGRESS)
    def ledgers(
        self, *, limit: int | None = None, progress: Callable[[int], object] | bool = False, **filters: Unpack[LedgerFilters]
    ) -> Ledgers:
        """Return the ledgers of the cluster as a table, which is read when it is asked for. No bookie is asked.

        ``filters`` are conditions that all hold. Of the id, which spare reading metadata: ``ids`` (a collection), ``first_id`` and
        ``last_id`` (inclusive), ``listed_by`` (the name of a log that lists it). Of the metadata: ``state`` (one, or a collection of
        them), ``bookie`` (an id, or a collection of which a fragment names one), ``log`` (the log that it was made for), ``created_after``
        (inclusive) and ``created_before`` (datetimes with a time zone), ``min_length`` and ``max_length`` (bytes of payload, of CLOSED
        ledgers). ``limit`` ends the table after so many ledgers. ``progress`` reports how many were looked at: with True on standard error,
        otherwise it is a function that is called with the number.

        Raises InvalidArgumentError and ArgumentTypeError for a condition that cannot be.

        >>> client.ledgers(state="OPEN", bookie="10.0.0.7:3181").to_pandas()
        """
        from bk_core.client.exploring.filters import Wanted
        from bk_core.client.exploring.ledgers import Ledgers

        return Ledgers(self, Wanted().with_filters(filters), limit, progress)

    @checked(limit=POSITIVE)
    def trace(self, name: str = "client", *, limit: int = 10_000) -> AbstractContextManager[Trace]:
        """Record the messages of this client about entries of ledgers while a ``with`` block runs, and yield their Trace.

        ``name`` is what the client is called there. ``limit`` is how many messages are recorded at most; memory holds them all. Payloads
        are not recorded. Recorded are requests to bookies (adds, reads, fences, LACs, forces) and, of those to the metadata store, changes
        and reads of the metadata of a ledger in use, as a recovery, a close and a change of the ensemble make them. Making, opening,
        listing and deleting ledgers, and the lists of logs, are not.

        >>> with client.trace() as trace:
        ...     client.recover_ledger(7)
        >>> trace.plot()
        """
        from bk_core.client.exploring.recorder import recording

        return recording(self._session, name, limit)

    def list_ledgers(self) -> Iterator[int]:
        """Yield the ids of all ledgers, ascending. They are read as they are asked for."""
        return self._kept_for(self.store.list_ledgers())

    def _kept_for(self, items: Iterator[T]) -> Iterator[T]:
        """The iterator keeps its client."""
        yield from items

    def bookies(self) -> BookieView:
        """Return the registered bookies, writable and read-only."""
        return self.store.bookies()

    # --- logs -----------------------------------------------------------------------------------------------------

    @checked(password=SECRET)
    def create_log(self, name: str, *, exist_ok: bool = False, password: bytes = b"", **properties: Unpack[LogSettings]) -> Log:
        """Create an empty log called ``name`` and return it.

        ``exist_ok`` returns a log that is there already, as it is. ``password`` is that of the log's ledgers. ``properties`` are fields of
        LogProperties (``entry_format``, ``schema``, ``ensemble_size``, ``write_quorum_size``, ``ack_quorum_size``, ``digest_type``,
        ``guaranteed``, ``retention_ms``, ``retention_bytes``, ``committed_retention_ms``), and two that are a timedelta or seconds:
        ``retention`` in place of ``retention_ms``, and ``committed_retention`` in place of ``committed_retention_ms``. ``schema`` gives
        the columns of a log of Arrow entries before its first write does, as DDL (``"id BIGINT, carrier STRING"``) or an Arrow schema;
        ``entry_format`` is "arrow" with it, and "raw" without, which is what ``LogWriter`` writes; ``bk log create`` makes a log for rows
        ("arrow") unless it is told otherwise.

        Raises LogExistsError unless ``exist_ok``, InvalidArgumentError for a name or property that cannot be, LogSchemaError for a schema
        that no log has, and MissingPackageError where a schema is given and there is no pyarrow.

        >>> log = client.create_log("events", entry_format="raw", retention=timedelta(days=7), exist_ok=True)
        """
        from bk_core.client.log.lists import create_log
        from bk_core.client.log.log import Log
        from bk_core.client.log.settings import properties_of
        from bk_core.protocol.log.segments import LogProperties

        create_log(self, name, LogProperties(**properties_of(properties)), exist_ok=exist_ok)
        return Log(self, name, password=password)

    @checked(password=SECRET)
    def log(self, name: str, *, password: bytes = b"") -> Log:
        """Return the log called ``name``. ``password`` is that of its ledgers.

        Raises NoSuchLogError.
        """
        from bk_core.client.log.log import Log

        return Log(self, name, password=password)

    def logs(self) -> list[str]:
        """Return the names of all logs, sorted.

        Raises NoSuchLogRootError where the log root was given by hand and does not exist.
        """
        from bk_core.client.log.lists import list_logs

        return list_logs(self)

    # --- the whole cluster ---------------------------------------------------------------------------------------

    @checked(stuck_s=SECONDS, timeout_s=POSITIVE_SECONDS)
    def doctor(
        self,
        *,
        stuck_s: float = 600.0,
        timeout_s: float = 3.0,
        clock: bool = False,
        read_last: bool = False,
        on_step: OnStep | None = None,
    ) -> Diagnosis:
        """Look at the whole cluster, and return what is wrong and the command that helps with each.

        Bookies are asked over connections of their own, ``timeout_s`` seconds at most for each answer; the metadata of all ledgers and the
        lists of all logs are read. Nothing is fenced or written. A recovery without progress for ``stuck_s`` seconds is stuck. ``clock``
        also compares clocks by a write to an empty node, the only way to see that this host's is ahead. ``read_last``
        also reads the first and the last entry of each replica of all CLOSED ledgers, which finds those whose entries are on no bookie and
        takes some milliseconds a ledger. ``on_step`` is called now and then with the step, how much of it is done, and of how much.

        Raises NoClusterError, and MetadataUnavailableError when the metadata store does not answer.
        """
        from bk_core.client.doctor.examine import DoctorOptions, examine

        return examine(self, DoctorOptions(stuck_s, timeout_s, clock, read_last), on_step)

    # --- re-replication ------------------------------------------------------------------------------------------

    @checked(ledger_id=ID, password=SECRET, bytes_per_second=POSITIVE)
    def check_ledger(
        self,
        ledger_id: int,
        *,
        full: bool = False,
        digest_type: DigestType | DigestName | None = None,
        password: bytes | None = None,
        bytes_per_second: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> LedgerReport:
        """Find replicas of entries of ledger ``ledger_id`` that are missing or corrupt, and return a report. Nothing is fenced or written.

        The check looks at the first and last entry of each replica, with ``full`` at all entries. ``digest_type`` and ``password`` are used
        where metadata stores none. ``bytes_per_second`` bounds how fast entries are read. ``on_progress`` is called with a ``Progress`` now
        and then.

        Raises NoSuchLedgerError.

        Rules: RR-4, META-15.
        """
        from bk_core.client.repair import jobs as replication
        from bk_core.client.repair.report import repair_options

        options: dict[str, Any] = {"full": full, "digest_type": digest_type, "password": password}
        options |= {"bytes_per_second": bytes_per_second, "on_progress": on_progress}
        return replication.check_ledger(self, ledger_id, repair_options(options))

    @checked(ledger_id=ID)
    def repair_ledger(self, ledger_id: int, **options: Unpack[RepairSettings]) -> RepairReport:
        """Copy what is missing of ledger ``ledger_id``, replace bookies that are gone, and return a report.

        ``options`` are the fields of RepairOptions by name. What could not be repaired stands in the report.

        Raises NoSuchLedgerError; a ledger that is deleted during the repair is reported as ``deleted``. Raises MetadataFormatError if what
        is stored cannot be understood.

        Rules: RR-1..RR-8, G-27.
        """
        from bk_core.client.repair import jobs as replication
        from bk_core.client.repair.report import repair_options

        return replication.repair_ledger(self, ledger_id, repair_options(options))

    @checked()
    def auto_recovery(
        self,
        options: AutoRecoveryOptions | None = None,
        *,
        audits: bool = True,
        repairs: bool = True,
        on_event: Callable[[RecoveryEvent], object] | None = None,
        **repair: Unpack[RepairSettings],
    ) -> AutoRecovery:
        """Return a re-replication that runs by itself on threads of its own, from ``start`` to ``close``, or in a ``with`` block.

        ``options`` are the settings. ``audits`` and ``repairs`` choose the parts: to mark what lost bookies had, and to repair what is
        marked. ``on_event`` is called on those threads with each RecoveryEvent. ``repair`` are fields of RepairOptions by name. Raises
        InvalidArgumentError; ``start`` raises BookieSecurityError if all bookies that answer refuse this client.

        >>> with client.auto_recovery(AutoRecoveryOptions(workers=4)):
        ...     stopped.wait()

        Rules: RR-16, RR-17, RR-18, RR-19.
        """
        from bk_core.client.repair.autorecovery import AutoRecovery
        from bk_core.client.repair.report import repair_options

        return AutoRecovery(self, options, audits=audits, repairs=repairs, repair=repair_options(repair), on_event=on_event)

    @checked(wait_s=SECONDS)
    def decommission_bookie(
        self,
        bookie: BookieId,
        *,
        wait_s: float = 0.0,
        delete_cookie: bool = False,
        stopped: bool = False,
        on_ledger: Callable[[int, int, int], None] | None = None,
        on_empty: Callable[[], None] | None = None,
        on_change: Callable[[RepairReport], None] | None = None,
        **options: Unpack[RepairSettings],
    ) -> DecommissionReport:
        """Move everything off ``bookie``, alive or dead, until no fragment names it, and return a report.

        All ledgers that name the bookie are gone through once, and again until ``wait_s`` seconds are over, for writers that have not moved
        on. ``delete_cookie`` forgets the bookie for good once nothing names it and it is down; if it still runs then, the rest of
        ``wait_s`` is for somebody to stop it, and ``on_empty`` is called when that wait begins. The cookie stays where nobody can tell
        whether its process has ended: nothing answers at its address, or the bookie has an id of its own and was not registered when this
        began. ``stopped`` says that you have made sure of it. ``on_ledger`` is called before each ledger with its number, how many there
        are, and its id, and ``on_change`` after each that was changed with the report of its repair: what was moved stays moved if an error
        ends the whole. ``options`` are the fields of RepairOptions by name.

        Raises InvalidArgumentError for a bookie that no ledger names, that is not registered and has no cookie, and for ``stopped``
        without ``delete_cookie``.

        Rule: RR-14.
        """
        from bk_core.client.repair import draining
        from bk_core.client.repair.report import repair_options

        return draining.decommission_bookie(
            self,
            bookie,
            repair_options(options),
            wait_s=wait_s,
            delete_cookie=delete_cookie,
            stopped=stopped,
            on_ledger=on_ledger,
            on_empty=on_empty,
            on_change=on_change,
        )

    @checked()
    def delete_cookie(self, bookie: BookieId) -> bool:
        """Forget ``bookie`` for good, so that it cannot start again on its old data. Return False if it had no cookie.

        Raises VersionConflictError if the cookie was changed meanwhile.
        """
        try:
            version = self.store.read_cookie(bookie).version
        except NoNodeError:
            return False
        self._session.definite(lambda: self.store.delete_cookie(bookie, version))
        return True

    def close(self) -> None:
        """End the connections. Idempotent.

        Ledgers that are being written stay OPEN, also those of logs, so close their handles and writers first. Otherwise somebody must
        recover such a ledger (the next writer of its log does) before its last acknowledged entries can surely be read.

        The call does nothing while the interpreter is being taken down, nor in a forked child. If it comes on a thread of the client's own,
        where Python may run a ``__del__``, another thread closes the client. So it does after an interrupt (Ctrl-C), and a later call waits
        for it.
        """
        if self._closed or is_ending() or not self._home.is_here:
            return
        if is_own():
            with suppress(ClientClosedError):
                self._shared.aside(self._close)
            return
        try:
            if self._going_on is None or not wait_done(self._going_on, self.config.operation_timeout_s) or not self._closed:
                self._close()
        except Exception:
            raise
        except BaseException:
            self._go_on_closing()
            raise

    def _close(self) -> None:
        """The next call does what an interrupted one has left undone."""
        self._shared.close()
        self._store.close()
        self._closed = True
        forget(self)

    def _go_on_closing(self) -> None:
        """Have a thread do what an interrupt has left undone: whoever leaves a ``with`` block by Ctrl-C calls nothing more."""
        if self._closed or (self._going_on is not None and not self._going_on.done()):
            return
        self._going_on = done = SafeFuture[None]()

        def close() -> None:
            mark_own()
            try:
                self._close()
            except Exception as error:
                log.warning("a client whose close was interrupted did not end well: %s", error)
            finally:
                done.set_result(None)

        start_aside(close, "bookkeeper-closing")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or is_ending() or self._shared.is_ended or not self._home.is_here:
            return
        close_began = self._shared.is_over  # asked first: the thread below may be done before the next line
        with suppress(RuntimeError):  # at the very end of a process no more threads are started
            start_aside(partial(_end_dropped, self._shared, self._store), "bookkeeper-dropped")
        if close_began:
            return  # its close was interrupted, and nothing could go on with it
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BookKeeper {self.config.shown_uri} {self.config.protocol}{' closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the bookies, as far as this client knows them without asking."""
        from bk_core.display import ledgers, table

        bookies = self._shared.bookies()
        return table.html(repr(self).strip("<>"), ledgers.bookies(ledgers.bookie_states(bookies.writable, bookies.readonly)))
