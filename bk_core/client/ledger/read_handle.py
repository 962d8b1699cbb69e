"""The reader's handle of one ledger: blocking calls over the reactor. It may be used from several threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

from bk_core.arguments import ID, SECONDS, checked
from bk_core.client.here import StaysHere
from bk_core.client.ledger.read_stream import RunStream, StreamMachine
from bk_core.client.operations import run_machine
from bk_core.client.session import Session
from bk_core.errors import BkError, ClientClosedError, NoNodeError, NoSuchLedgerError, OperationTimeoutError, ReadError
from bk_core.metadata.store import Watch
from bk_core.protocol.events import MetadataChanged
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.read.chunks import EntrySizes
from bk_core.protocol.ledger.read.lac_reader import LacReader, TryLacReader
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.read.tail import Tail
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.ledger.view import LedgerView
from bk_core.threads import holds_lock, is_ending

log = logging.getLogger("bk_core.client")


def _look(known: weakref.ref[ReadHandle]) -> None:
    """Tell the handle of a change. The watch keeps no handle alive."""
    handle = known()
    if handle is not None:
        handle._look()


class ReadHandle(StaysHere):
    """A reader of one ledger. It never fences and never writes metadata (OP-5). ``open`` makes one that follows the ledger's metadata.

    A handle that nobody refers to any more stops following the ledger; if it did, there is a ResourceWarning.
    """

    def __init__(
        self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: ReadOptions | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self._session = session
        self._options = options or session.config.reads
        self._limits = session.config.machine_limits
        self._view = LedgerView(ledger_id, metadata, version, hold_back=self._options.hold_back_in_recovery)
        start = self._options.rotation
        if start is None:
            # a ledger that is opened again is read from the caches that its first read filled
            start = (session.rotation + ledger_id) % metadata.ensemble_size
        if not self._options.sticky:
            start = None
        distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._order = ReplicaOrder(distribution, start, session.read_rank)
        self._sizes = EntrySizes(metadata)  # used on the reactor thread
        self._batch = session.config.protocol == "v2"
        self._lock = threading.RLock()
        self._is_deleted = False
        self._streams: weakref.WeakSet[RunStream] = weakref.WeakSet()  # a stream that an interrupt keeps from starting just disappears
        self._watch: Watch | None = None
        self._closed = False
        self._client = session.client  # the client must outlive its handles
        session.close_with(self)

    @classmethod
    def open(
        cls, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: ReadOptions | None = None
    ) -> ReadHandle:
        """Open ledger ``ledger_id`` and return its handle. Callers use ``BookKeeper.open_ledger``.

        ``session`` is the client's. A ledger whose ``metadata``, of ``version``, is CLOSED is ready as it is. For another one the handle
        subscribes to its metadata first, then learns the last add confirmed from its bookies. ``options`` are those of this reader, in
        place of the client's ``reads``.

        Raises what ``read_last_add_confirmed`` raises; nothing stays subscribed then.

        Rules: OP-2, OP-3.
        """
        handle = cls(session, ledger_id, metadata, version, options)
        try:
            if not handle.is_closed or handle._options.watch_closed:
                handle._watch = session.store.watch_ledger(ledger_id, partial(_look, weakref.ref(handle)))
                handle.refresh()
            handle._ask_lac()
        except BaseException:
            handle.close()
            raise
        return handle

    # --- metadata ----------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata of the ledger that this handle knows."""
        return self._view.metadata

    @property
    def is_closed(self) -> bool:
        """True if the ledger is CLOSED, as far as this handle knows. It does not say if the handle is closed."""
        return self._view.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry that may be read; for a CLOSED ledger its last entry."""
        return self._view.last_add_confirmed

    @property
    def length(self) -> int | None:
        """The payload bytes of a CLOSED ledger, by its metadata (META-10); None before, because nobody knows them."""
        return self._view.metadata.length if self.is_closed else None

    def refresh(self) -> None:
        """Read the metadata again (OP-6). Raises NoSuchLedgerError if the ledger was deleted."""
        self._session.check()
        try:
            self._adopt(*self._read_metadata())
        except NoNodeError:
            raise self._deleted() from None

    def _read_metadata(self) -> tuple[LedgerMetadata, int]:
        found = self._session.store.read_ledger(self.ledger_id)
        return metadata_codec.decode(found.data, self.ledger_id).with_access(self._view.metadata.access), found.version

    def _deleted(self) -> NoSuchLedgerError:
        return NoSuchLedgerError(f"ledger {self.ledger_id} was deleted", ledger=self.ledger_id)

    def _look(self) -> None:
        """Note that the metadata changed. The watch calls this from any thread."""
        if not self._closed:
            self._session.metadata_call(self._read_metadata, self._looked)

    def _looked(self, result: Any, error: Exception | None) -> None:
        if self._closed:
            return
        if error is None:
            self._adopt(*result)
        elif isinstance(error, NoNodeError):
            self._is_deleted = True  # bookies may answer for a quarter of an hour, until they collect it
            self._stop_streams(self._deleted())
        else:
            log.warning("ledger %d: its metadata changed but cannot be read (%s); trying again", self.ledger_id, error)
            self._session.reactor.call_later(self._session.config.limits.metadata_retry_ns, self._look)

    @holds_lock
    def _adopt(self, metadata: LedgerMetadata, version: int) -> None:
        """Take newer metadata and pass it to the machines at work (OP-6, LC-7)."""
        with self._lock:
            if version <= self._view.version:
                return
            for line in self._view.adopt(metadata, version):
                log.error("%s", line.message)
            for stream in self._streams:
                stream.feed(MetadataChanged(metadata, version))

    @holds_lock
    def _heard(self, lac: int) -> None:
        """Take a LAC that a bookie told (RD-9, LC-2)."""
        with self._lock:
            self._view.heard(lac)

    # --- reading -------------------------------------------------------------------------------------------------------

    @checked()
    def read(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of entries first..last. Raises InvalidArgumentError beyond the LAC (RD-1); ReadError, NoSuchEntryError
        (RD-6)."""
        return [payload for run in self.read_runs(first, last) for payload in run.payloads()]

    @checked()
    def read_unconfirmed(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of entries first..last whatever the LAC. They are not promised to last: the ledger may be closed below them
        (RD-11)."""
        self._view.check_range(first, last)
        return [payload for run in self._runs(first, last, unconfirmed=True) for payload in run.payloads()]

    @checked()
    def read_runs(self, first: int, last: int, *, unchecked_bound: bool = False) -> Iterator[EntryRun]:
        """Yield the entries first..last in order, in runs. Raises InvalidArgumentError beyond the handle's LAC, before anything is sent
        (RD-1).

        ``unchecked_bound`` ignores the LAC, for entries known to be acknowledged from elsewhere: from a ledger list that names them or a
        LAC that another handle learned. A CLOSED ledger has nothing beyond its last entry either way.
        """
        self._check_range(first, last, unchecked_bound)
        return self._runs(first, last)

    def _check_range(self, first: int, last: int, unchecked_bound: bool) -> None:
        if unchecked_bound:
            self._view.check_range(first, last)
        else:
            self._view.check_bound(first, last)

    def _runs(self, first: int, last: int, *, unconfirmed: bool = False) -> Iterator[EntryRun]:
        self._session.check()
        began_ns = self._session.reactor.now_ns()
        stream, machine = self._range(first, last, unconfirmed)
        try:
            stream.start()
            while (run := stream.next(self._session.config.operation_timeout_s)) is not None:
                yield run
        except queue.Empty:
            trouble = f": {machine.trouble}" if machine.trouble else ""
            message = f"a read of ledger {self.ledger_id} did not finish in time{trouble}"
            raise self._session.explained(OperationTimeoutError(message, ledger=self.ledger_id), began_ns) from None
        finally:
            self._end(stream)
            self._batch = self._batch and not machine.batch_refused

    @holds_lock
    def _range(self, first: int, last: int, unconfirmed: bool) -> tuple[RunStream, RangeReader]:
        with self._lock:
            machine = RangeReader(
                self.ledger_id,
                self._view.metadata,
                first,
                last,
                batch=self._batch,
                limits=self._limits,
                order=self._order,
                options=self._options,
                version=self._view.version,
                unconfirmed=unconfirmed,
                sizes=self._sizes,
            )
            return self._stream(machine), machine

    @checked(first=ID, timeout_s=SECONDS)
    def tail(self, first: int = 0, *, timeout_s: float | None = None) -> Iterator[EntryRun]:
        """Yield the entries from ``first`` on as they are confirmed, in order, in runs, until the ledger is CLOSED and all were given
        (LC-8).

        It waits as long as it takes. With ``timeout_s`` it stops after so many seconds without an entry, which is not the end of the ledger
        (ask ``is_closed``). Raises InvalidArgumentError if the ledger is CLOSED and ``first`` is not even its next entry; the errors of
        reading an entry (RD-6); NoSuchLedgerError when the ledger is deleted; ClientClosedError when the handle is closed meanwhile.
        """
        self._check_tail(first)
        stream = self._tail(first, deliver=True)
        try:
            stream.start()
            while (run := stream.next(timeout_s)) is not None:
                yield run
        except queue.Empty:
            return
        finally:
            self._end(stream)

    def _check_tail(self, first: int) -> None:
        if self.is_closed and first > self.last_add_confirmed + 1:
            self._view.check_bound(first, first)

    @holds_lock
    def _tail(self, first: int, *, deliver: bool) -> RunStream:
        self._session.check()
        with self._lock:
            if self._is_deleted:
                raise self._deleted()
            machine = Tail(
                self.ledger_id,
                self._view.metadata,
                self._view.version,
                first,
                known=self._view.last_add_confirmed,
                batch=self._batch,
                deliver=deliver,
                limits=self._limits,
                options=self._options,
                order=self._order,
                sizes=self._sizes,
            )
            return self._stream(machine)

    # --- the LAC -------------------------------------------------------------------------------------------------------

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies of the last fragment for the LAC (LC-1); for a CLOSED ledger return its last entry (LC-4).

        Raises UnauthorizedError, ReadTimeoutError and ReadError.
        """
        if not self.is_closed:
            self.refresh()
        return self._ask_lac()

    def try_read_last_add_confirmed(self) -> int:
        """Return the first LAC that is higher than the handle's, or the handle's when no bookie knows a higher one (LC-3)."""
        self._session.check()
        if not self.is_closed:
            machine = TryLacReader(self.ledger_id, self._view.metadata, None, self._view.last_add_confirmed, version=self._view.version)
            self._heard(int(run_machine(self._session, self.ledger_id, machine, machine.start, quorums=self._view.metadata)))
        return self._view.last_add_confirmed

    def _ask_lac(self) -> int:
        """Ask for the LAC (LC-1), and once more if its bookies were replaced meanwhile (R29)."""
        while not self.is_closed:
            machine = self._lac_reader()
            asked = machine.ensemble
            try:
                self._heard(int(run_machine(self._session, self.ledger_id, machine, machine.start, quorums=self._view.metadata)))
                break
            except ReadError:
                self.refresh()
                if self._view.metadata.last_fragment.ensemble == asked and not self.is_closed:
                    raise
        return self._view.last_add_confirmed

    @holds_lock
    def _lac_reader(self) -> LacReader:
        with self._lock:
            return LacReader(self.ledger_id, self._view.metadata, None, version=self._view.version, limits=self._limits)

    @checked(entry_id=ID, timeout_s=SECONDS)
    def wait_for(self, entry_id: int, timeout_s: float) -> bool:
        """Wait until ``entry_id`` may be read and return True. Return False when ``timeout_s`` seconds are over, or the ledger is CLOSED
        below it. Raises NoSuchLedgerError when the ledger is deleted.

        Rules: LC-5, LC-7.
        """
        if entry_id > self._view.last_add_confirmed and not self.is_closed:
            self._wait_until(entry_id, time.monotonic() + timeout_s)
        return entry_id <= self._view.last_add_confirmed

    def _wait_until(self, entry_id: int, deadline: float) -> None:
        stream = self._tail(entry_id, deliver=False)
        try:
            stream.start()
            stream.next(max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return
        finally:
            self._end(stream)

    # --- opening and closing --------------------------------------------------------------------------------------------

    def _stream(self, machine: StreamMachine) -> RunStream:
        """Return a stream. The lock is held since the machine was made, so that it misses no change of the metadata. The caller who starts
        it ends it."""
        if self._closed:
            raise self._closed_error()
        stream = RunStream(self._session, self.ledger_id, machine, self._told, self._view.metadata)
        self._streams.add(stream)
        return stream

    def _told(self, token: Any, value: Any) -> None:
        if token == "heard":
            self._heard(value)
        elif token == "metadata":
            self._adopt(*value)

    @holds_lock
    def _end(self, stream: RunStream) -> None:
        if not self._session.home.is_here:
            return
        with self._lock:
            self._streams.discard(stream)
        stream.close()

    @holds_lock
    def _stop_streams(self, error: BkError) -> None:
        with self._lock:
            for stream in self._streams:
                stream.stop(error)

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the reader of ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id)

    @holds_lock
    def close(self) -> None:
        """Stop following the ledger. Calls that wait in ``tail`` or ``wait_for`` raise ClientClosedError then. Closing again has no effect,
        nor has closing in a forked child."""
        if not self._session.home.is_here:
            return
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
            self._stop_streams(self._closed_error())
        if watch is not None:
            watch.cancel()

    def __del__(self) -> None:
        watch = getattr(self, "_watch", None)
        if watch is None or is_ending() or self._session.is_over or not self._session.home.is_here:
            return
        self._session.reactor.post(watch.cancel)  # on the reactor, because it takes locks that a finalizer may interrupt
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReadHandle ledger {self.ledger_id} {self._view.metadata.state.name} last add confirmed {self._view.last_add_confirmed}>"
