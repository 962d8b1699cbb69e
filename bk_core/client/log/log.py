"""A log as an object: ``client.create_log("events")`` and ``client.log("events")``. Its methods call the functions of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from bk_core.arguments import COUNT, POSITIVE, POSITIVE_SECONDS, SECRET, Check, Duration, checked, milliseconds, seconds
from bk_core.client.guards import admit_writer
from bk_core.client.here import StaysHere
from bk_core.client.log.check import LogCheck, check_log
from bk_core.client.log.history import read_log
from bk_core.client.log.info import LogInfo, Segments
from bk_core.client.log.janitor import INTENT_AGE_S, GcReport, apply_retention, delete_log, gc_log, trim_log
from bk_core.client.log.list_store import LogClient, read_ledger_list, store_now_ms
from bk_core.client.log.lists import set_properties
from bk_core.client.log.live_writers import ALIVE, GONE, foremost, live_writers
from bk_core.client.log.picture import Unit
from bk_core.client.log.reader import LogReader
from bk_core.client.log.settings import LogChanges, properties_of
from bk_core.client.log.tables import EARLIEST, LATEST, Compression, Place, WrittenRows, tables
from bk_core.client.log.verify import LogVerification, verify_log
from bk_core.client.log.writer import OUTSTANDING_BYTES_MAX, LogWriter
from bk_core.client.showing import shown_in_time
from bk_core.display.moments import moment
from bk_core.errors import InvalidArgumentError, LogWriterAliveError
from bk_core.protocol.log.exclusive import Insisted
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties
from bk_core.protocol.log.times import check_not_ahead
from bk_core.protocol.log.view import LogView

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
    from matplotlib.axes import Axes

    from bk_core.client.repair.report import OnProgress

Start: TypeAlias = Position | datetime | Literal["earliest", "latest"]
ENTRY_SIZE = 256 << 10
_START = Check('"earliest", "latest", a Position or a datetime', lambda value: isinstance(value, str | Position | datetime))
_BEFORE = Check("a Position or a datetime", lambda value: isinstance(value, Position | datetime))
_SHOWN_SEGMENTS = 20  # of the newest, in a notebook
_FIXED = ("entry_format", "schema")  # the properties of a log that stay as they are


class Log(StaysHere):
    """One log of a cluster, by its name. It holds no connection of its own and keeps nothing: every call sees the log as it is then.

    ``password`` is that of the log's ledgers, for all calls that need one.

    >>> log = client.create_log("events", retention=timedelta(days=7), exist_ok=True)
    >>> with log.writer() as writer:
    ...     writer.append(b"hello")
    >>> for run in log.reader(start="earliest"):
    ...     print(run.payloads())
    """

    @checked(password=SECRET)
    def __init__(self, client: LogClient, name: str, *, password: bytes = b"") -> None:
        """Raises NoSuchLogError."""
        read_ledger_list(client, name)
        self.name = name
        self._client = client
        self._password = password

    def __repr__(self) -> str:
        return f"<Log {self.name} of {self._client!r}>"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows: the log as it is now, and its newest segments.

        The list of the log is read once. A line stands there instead if the cluster fails, or does not answer within a few seconds.
        """
        return shown_in_time(self._shown, repr(self))

    def _shown(self) -> str:
        from bk_core.display import logs, table

        view = self._view()
        return table.html(*logs.info_parts(self._info(view)), "newest segments", logs.segments(view.listed.segments[-_SHOWN_SEGMENTS:]))

    # --- looking ----------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> LogInfo:
        """The log at this moment.

        Raises NoSuchLogError.
        """
        return self._info(self._view())

    def _info(self, view: LogView) -> LogInfo:
        first, end = view.first_position, view.end_position
        rows, size = view.counts_before(end)
        trimmed_rows, trimmed_size = view.counts_before(first)
        live = [segment.ledger_id for segment in view.live_segments]
        last = view.segment(end.seq - 1) if end.seq > first.seq else None
        return LogInfo(
            self.name,
            view.log_id,
            view.properties,
            view.next_seq - view.listed.trimmed_seq,
            rows - trimmed_rows,
            size - trimmed_size,
            first,
            end,
            moment(last.committed_at_ms) if last is not None and last.committed_at_ms else None,
            foremost(live_writers(self._client, live)),
            len(live),
        )

    @checked(first_seq=COUNT, last_seq=COUNT)
    def segments(self, first_seq: int = 0, last_seq: int | None = None) -> Segments:
        """Yield the segments ``first_seq .. last_seq`` (inclusive) that are left, in order; without ``last_seq`` to the newest.

        Raises NoSuchLogError.
        """
        view = self._view()
        return Segments(lambda: view.segments(first_seq, last_seq))

    @checked(last=POSITIVE)
    def plot_segments(self, *, by: Unit = "rows", last: int = 1000, ax: Any = None) -> Axes:
        """Draw the newest segments over the time of their commits, and return the axes: each is a bar, as high as its rows or bytes, that
        begins where the one before ended.

        ``by`` is "rows" or "bytes" (of payload). ``last`` is how many segments are drawn at most. ``ax`` is the axes to draw in, by default
        a figure of its own. What was trimmed is hatched. A dotted line is the last batch of a query; the list keeps no earlier ones.

        Raises NoSuchLogError; InvalidArgumentError for another ``by``; MissingPackageError without matplotlib.

        >>> log.plot_segments(by="bytes")
        """
        from bk_core.client.log.picture import picture_of_segments

        return picture_of_segments(self.name, self._view(), by, last, ax)

    def _view(self) -> LogView:
        return read_log(self._client, self.name)

    # --- writing and reading ------------------------------------------------------------------------------------------------

    @checked(roll_max_bytes=POSITIVE, roll_max_entries=POSITIVE, outstanding_bytes_max=POSITIVE)
    def writer(
        self,
        *,
        take_over: bool = False,
        take_over_queries: bool = False,
        arrow_entries: bool = False,
        roll_max_bytes: int | None = 256 << 20,
        roll_max_entries: int | None = None,
        roll_max_time: Duration | None = None,
        outstanding_bytes_max: int = OUTSTANDING_BYTES_MAX,
    ) -> LogWriter:
        """Become the one writer of the log, once nobody else writes it, and return it.

        A writer that is certainly gone is taken over. ``take_over=True`` ends any other writer as well, wherever it is. ``take_over=False``
        means here "take over only a writer that is certainly gone", while in ``LogWriter.open`` and ``FileStore.open`` it means "take over
        nobody", so that these refuse a log whose writer died as well. ``take_over_queries`` and ``arrow_entries`` insist where queries of
        Spark write the log, and where its entries are Arrow record batches (``LogWriter.open``).

        A ledger is full at ``roll_max_bytes``, ``roll_max_entries`` or ``roll_max_time`` (a timedelta or seconds), and the next one is
        begun. Appends wait while ``outstanding_bytes_max`` bytes are not acknowledged.

        Raises LogWriterAliveError where another writer may live, on this host or on one that cannot be seen from here, or came
        a moment ago; and what ``LogWriter.open`` raises.

        >>> with log.writer() as writer:
        ...     writer.append(b"hello")
        """
        roll_max_s = None if roll_max_time is None else _roll_seconds(roll_max_time)
        gone = () if take_over else self._gone(Insisted(True, take_over_queries, arrow_entries))
        return LogWriter.open(
            self._client,
            self.name,
            password=self._password,
            take_over=take_over,
            gone=gone,
            take_over_queries=take_over_queries,
            arrow_entries=arrow_entries,
            roll_max_bytes=roll_max_bytes,
            roll_max_entries=roll_max_entries,
            roll_max_s=roll_max_s,
            outstanding_bytes_max=outstanding_bytes_max,
        )

    def _gone(self, insisted: Insisted) -> tuple[int, ...]:
        """Return the live ledgers, of which it is certain that their writers are gone. LogWriterAliveError unless it is, and before that
        what forbids to write the log whoever lives (GRD-1, GRD-7)."""
        check_not_of_files(self.name, False)
        listed = read_ledger_list(self._client, self.name)
        live = tuple(segment.ledger_id for segment in listed.live_segments)
        if live:
            admit_writer(self._client, self.name, listed, insisted)
        for ledger_id, writer in live_writers(self._client, live).items():
            if writer.state != GONE:
                known = "is being" if writer.state == ALIVE else "may be being"
                told = f"log {self.name!r} {known} written ({writer.told}; ledger {ledger_id})"
                message = f"{told}; {writer.ending()}, or end its writing: take_over=True (--take-over)"
                raise LogWriterAliveError(message, log=self.name, ledger=ledger_id)
        return live

    @checked(start=_START)
    def reader(self, start: Start = EARLIEST) -> LogReader:
        """Return a reader of the log in order. Nobody is fenced.

        ``start`` is "earliest", the first entry that is left; "latest", after the last entry that can be read now; a Position, for one the
        ``position`` of another reader or the ``end_position`` of a run; or a datetime with a time zone, the first entry that was committed
        then or later.

        Raises InvalidArgumentError for another ``start``; NoSuchLogError; LogDataLossError for a position that was trimmed.

        >>> for run in log.reader():
        ...     run.payloads()
        """
        return LogReader(self._client, self.name, start=self._position(start), password=self._password)

    def _position(self, start: Start) -> Position | None:
        if isinstance(start, Position):
            return start
        if isinstance(start, datetime):
            view = self._view()
            return view.position_at_time(_ms("start", start)) or Position(view.next_seq)
        if start == EARLIEST:
            return None
        if start == LATEST:
            return self._latest()
        raise InvalidArgumentError(f'start must be "earliest", "latest", a Position or a datetime, not {start!r}')

    def _latest(self) -> Position:
        view = self._view()
        if not view.live_segments:
            return view.end_position
        segment = view.live_segments[-1]
        with self._client.open_ledger(segment.ledger_id, password=self._password) as ledger:
            return Position(segment.seq, max(segment.first_entry_id, int(ledger.last_add_confirmed) + 1))

    # --- tables -------------------------------------------------------------------------------------------------------------

    @checked()
    def arrow_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns that ``to_batches`` gives, as a ``pyarrow.Schema``. ``columns`` names those to read, in this order.

        Raises NoSuchLogError; LogSchemaError for a log that has no columns yet; InvalidArgumentError for a column that is not there;
        MissingPackageError where there is no pyarrow.

        >>> log.arrow_schema().names
        """
        return tables().arrow_schema(self._client, self.name, columns)

    @checked(start=_START, end=_START)
    def to_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Start = EARLIEST,
        end: Start = LATEST,
    ) -> pa.RecordBatchReader:
        """Return what the log holds now as Arrow record batches. Nobody is fenced.

        It is a ``pyarrow.RecordBatchReader``: an iterator of record batches, which polars, DuckDB and others take as it is
        (``__arrow_c_stream__``). Batches are made as they are asked for. What it has open, up to four ledgers, is closed when all is read,
        at an error, or when nobody refers to the reader any more (``del``); pyarrow's ``close`` closes none of them.

        A log of Arrow entries has its own columns. A raw log has ``log``, ``ledgerId``, ``entryId``, ``offset``, ``timestamp``, ``key``
        (null), ``value`` and ``length``, as in Spark. ``columns`` names those to read, in this order; only they are decoded. ``start`` and
        ``end`` are places as in ``reader``. The row at ``end`` is the first that is not read.

        Raises NoSuchLogError; LogSchemaError for a log that has no columns yet; InvalidArgumentError for a place or a column that is not
        there; LogDataLossError for what was trimmed; LogEntryError for an entry that is no record batch of the log's; MissingPackageError
        where there is no pyarrow.

        >>> for batch in log.to_batches(columns=["dest", "delay"]):
        ...     batch.num_rows
        """
        first, last = _place("start", start), _place("end", end)
        return tables().open_batches(self._client, self.name, password=self._password, columns=columns, start=first, end=last)

    @checked(start=_START)
    def follow_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Start = EARLIEST,
        stop: threading.Event | None = None,
    ) -> pa.RecordBatchReader:
        """Return what the log holds from ``start`` on, and then what comes, as ``to_batches`` does.

        It goes on until ``stop`` is set, which is seen within half a second, or for ever. It has the columns that the log has when it
        begins: rows with new ones end it, unless ``columns`` names those to read.

        Raises what ``to_batches`` does; while it is read also LogSchemaError for rows with new columns. Any error ends it.

        >>> for batch in log.follow_batches(start="latest"):
        ...     batch.num_rows
        """
        first = _place("start", start)
        return tables().follow_batches(self._client, self.name, password=self._password, columns=columns, start=first, stop=stop)

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Start = EARLIEST,
        end: Start = LATEST,
    ) -> pa.Table:
        """Return the batches of ``to_batches`` as one ``pyarrow.Table``, all of it in memory.

        ``columns``, ``start`` and ``end`` are those of ``to_batches``. Raises what that does.

        >>> table = log.to_arrow(columns=["dest", "delay"])
        """
        return self.to_batches(columns=columns, start=start, end=end).read_all()

    def to_pandas(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Start = EARLIEST,
        end: Start = LATEST,
    ) -> Any:
        """Return the batches of ``to_batches`` as a DataFrame of pandas, all of it in memory.

        ``columns``, ``start`` and ``end`` are those of ``to_batches``. Raises what that does, and MissingPackageError where there is no
        pandas.

        >>> frame = log.to_pandas(columns=["dest", "delay"])
        """
        return tables().to_pandas(self.to_batches(columns=columns, start=start, end=end))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return Arrow's C stream of what the log holds now, which ``polars.DataFrame(log)``, ``pyarrow.table(log)`` and others ask for.

        ``requested_schema`` is a capsule of the types that the other library would like. Raises what ``to_batches`` does.
        """
        return self.to_batches().__arrow_c_stream__(requested_schema)

    @checked(entry_size=POSITIVE)
    def write(self, data: Any, *, take_over: bool = False, entry_size: int = ENTRY_SIZE, compression: Compression = "none") -> WrittenRows:
        """Append the rows of ``data`` and return where they are. Readers see all of them or none.

        ``data`` is a table or record batches of pyarrow, or whatever has ``__arrow_c_stream__``, such as a DataFrame of polars or pandas.
        Columns go by name, whose case counts, and must be the log's. Their types may widen, and a column that is missing is null. The first
        write gives a log without columns its own. A raw log takes a column ``value`` (binary or string), of which each row is an entry.
        Of a DataFrame of pandas an index without a name is left out (``preserve_index=False``); one with a name is a column. ``entry_size``
        is about how many bytes of rows an Arrow entry has, before ``compression`` ("none", "zstd" or "lz4").

        This is a commit, as a batch write of Spark's is, and may come between those of queries. ``take_over=True`` ends an exclusive writer
        of the log, wherever it is; one that is certainly gone is ended without it.

        Raises, before anything is done, LogSchemaError for columns that do not fit; ArgumentTypeError for what has no rows;
        InvalidArgumentError; WrongPasswordError; NoSuchLogError; LogWriterAliveError where an exclusive writer may live;
        MissingPackageError where there is no pyarrow. It raises EntryTooLargeError, NullValueError and LogSchemaError for rows that the log
        cannot keep, LogDataLossError for a log that was made anew meanwhile, and what appending to a ledger raises; nothing of the rows is
        visible then. Of several batches the columns of the later ones are looked at when they come. The acknowledgement of each
        run of rows is waited for up to the client's ``operation_timeout_s``, and so is the end of its ledger after an error; then it raises
        OperationTimeoutError.

        >>> log.write(pyarrow.table({"dest": ["FRA"], "delay": [5]}))
        """
        found = tables()
        ended = None if take_over else self._gone(Insisted(True, True, True))
        return found.write_rows(
            self._client, self.name, data, password=self._password, ended=ended, entry_size=entry_size, compression=compression
        )

    # --- changing -------------------------------------------------------------------------------------------------------------

    def set(self, **changes: Unpack[LogChanges]) -> LogProperties:
        """Change properties for what is written from now on, and return all of them.

        ``changes`` are fields of LogProperties by name. ``retention`` and ``committed_retention`` take a timedelta or seconds; None keeps
        everything.

        Raises InvalidArgumentError for a property that does not exist or cannot be changed, and NoSuchLogError.

        >>> log.set(retention=timedelta(days=7))
        """
        return set_properties(self._client, self.name, **properties_of(changes, _FIXED)).properties

    @checked(before=_BEFORE, max_bytes=COUNT)
    def trim(
        self, *, before: Position | datetime | None = None, older_than: Duration | None = None, max_bytes: int | None = None
    ) -> tuple[int, ...]:
        """Drop whole segments from the front, and return the ids of the ledgers that were deleted.

        A segment is dropped if it lies before the segment of the Position ``before``, or was committed before the datetime ``before``; if
        it was committed longer ago than ``older_than`` (a timedelta or seconds); or if the segments after it have ``max_bytes`` already.

        Raises InvalidArgumentError without a bound; LogClockError for a time that the metadata store's clock has not reached;
        NoSuchLogError.
        """
        if before is None and older_than is None and max_bytes is None:
            raise InvalidArgumentError("say where to trim: before, older_than or max_bytes")
        if isinstance(before, datetime) and older_than is not None:
            raise InvalidArgumentError("before and older_than both name a time: give one of them")
        place = before if isinstance(before, Position) else None
        before_ms = _ms("before", before) if isinstance(before, datetime) else None
        if before_ms is not None:
            read_ledger_list(self._client, self.name)  # a missing log needs no clock
            check_not_ahead(f"before={before}", before_ms, store_now_ms(self._client))
        if older_than is not None:
            before_ms = max(0, store_now_ms(self._client) - milliseconds("older_than", older_than))
        return trim_log(self._client, self.name, before=place, before_ms=before_ms, max_bytes=max_bytes, password=self._password)

    def apply_retention(self) -> tuple[int, ...]:
        """Trim what the log's retention no longer keeps, and return the ids of the ledgers that were deleted.

        Raises NoSuchLogError.
        """
        return apply_retention(self._client, self.name, password=self._password)

    @checked()
    def gc(self, *, min_age: Duration = INTENT_AGE_S) -> GcReport:
        """Clean up after writers that vanished, and return a report. This may be done at any time.

        ``min_age`` (a timedelta or seconds) is the age at which a writer of another host counts as vanished; 0 takes every writer for gone.

        Raises NoSuchLogError.
        """
        return gc_log(self._client, self.name, min_age_s=seconds("min_age", min_age), password=self._password)

    @checked()
    def check(self, *, read: bool = True) -> LogCheck:
        """Check that everything that the log lists is there, and return a report. Nothing is changed. With ``read`` the ends of its ledgers
        are read, too.

        Raises NoSuchLogError.
        """
        return check_log(self._client, self.name, password=self._password, read=read)

    @checked(bytes_per_second=POSITIVE)
    def verify(self, *, bytes_per_second: int | None = None, on_progress: OnProgress | None = None) -> LogVerification:
        """Read every copy of every entry that the log lists, history included, check its digest, and return a report. Nothing is changed,
        and nobody is fenced.

        The list is checked first, as by ``check``. ``bytes_per_second`` bounds how fast copies are read; None sets no bound.
        ``on_progress`` is called with a ``Progress`` of the ledger at hand.

        Raises NoSuchLogError, WrongClusterError, and OperationTimeoutError when nothing moves any more.

        >>> log.verify(bytes_per_second=50 << 20).is_good
        """
        return verify_log(self._client, self.name, password=self._password, bytes_per_second=bytes_per_second, on_progress=on_progress)

    def delete(self) -> None:
        """Delete the log with its ledgers. Its writers are ended.

        Raises NoSuchLogError.
        """
        delete_log(self._client, self.name, password=self._password)


def _roll_seconds(time: Duration) -> float:
    found = seconds("roll_max_time", time)
    POSITIVE_SECONDS("roll_max_time", found)
    return found


def _place(name: str, place: Start) -> Place:
    return _ms(name, place) if isinstance(place, datetime) else place


def _ms(name: str, time: datetime) -> int:
    """Milliseconds since 1970, 0 for an earlier time, before which no log was written. InvalidArgumentError for a time without a zone."""
    if time.tzinfo is None:
        raise InvalidArgumentError(f"{name}={time.isoformat()} names no time zone: give one, for example with tzinfo=UTC")
    return max(0, int(time.timestamp() * 1000))
