"""Opening a file store as its owner: take its log over, which fences the former owner, then replay it to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bk_core.client.list_store import LogClient, read_ledger_list
from bk_core.client.log_reader import LogReader
from bk_core.client.log_writer import LogWriter
from bk_core.client.logs import create_log
from bk_core.errors import (
    BkError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreTakenOverError,
    LogDataLossError,
    LogTakenOverError,
    NoSuchFileStoreError,
    NoSuchLogError,
)
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties

REPLAYS_MAX = 8
OUTSTANDING_BYTES_MAX = 64 << 20  # of the log's writer: more than the store lets in, so that only a large base waits there


@dataclass(frozen=True, slots=True)
class Opened:
    """``machine`` has replayed the log that ``writer`` writes; ``listed`` is its list."""

    writer: LogWriter
    listed: LedgerList
    machine: FileMachine


def open_log(
    client: LogClient, name: str, log: str, *, password: bytes, create: LogProperties | None, take_over: bool, roll_max_bytes: int
) -> Opened:
    """``create``: the properties of a log that is made if there is none; None refuses with NoSuchFileStoreError."""
    if create is not None:
        create_log(client, log, create, exist_ok=True)
    try:
        writer = LogWriter.open(
            client,
            log,
            password=password,
            roll_max_bytes=roll_max_bytes,
            outstanding_bytes_max=OUTSTANDING_BYTES_MAX,
            take_over=take_over,
            file_entries=True,
        )
    except NoSuchLogError as error:
        raise NoSuchFileStoreError(f"there is no file store {name!r}", store=name) from error
    except LogTakenOverError as error:
        message = f"file store {name!r} was not taken over, because it has an owner, or one that died without closing it: {error.args[0]}"
        raise FileStoreTakenOverError(message, store=name).nothing_done() from error
    try:
        return Opened(writer, read_ledger_list(client, log), _replayed(client, name, log, password))
    except BaseException:
        leave(writer)
        raise


def leave(writer: LogWriter) -> None:
    """End the writer of a log that could not be opened as a store, so that the log is not left behind as one with a writer."""
    try:
        writer.close()
    except BkError:
        writer.abandon()


def _replayed(client: LogClient, name: str, log: str, password: bytes) -> FileMachine:
    """All earlier segments are CLOSED by the take-over, and the new writer's has no entry, so the end that a reader finds is the end.

    A former owner that does not know yet that it was taken over may still trim what lies before its last base, so it is begun again then.
    """
    for _ in range(REPLAYS_MAX):
        machine = FileMachine(name)
        try:
            for record, position in log_records(client, log, password):
                machine.replay(record, position)
            return machine
        except LogDataLossError as error:
            lost = error
    raise lost


def log_records(client: LogClient, log: str, password: bytes) -> Iterator[tuple[bytes, Position]]:
    """Every record of a store's log from its first entry on, and where it is, up to what is acknowledged now."""
    with LogReader(client, log, password=password) as reader:
        for run in reader.read():
            for index, record in enumerate(run.payloads()):
                yield record, Position(run.segment.seq, run.first_entry + index)


def ended_by(error: BaseException, name: str) -> BkError:
    """The store's error for one of its log, or of this program."""
    told = error.args[0] if isinstance(error, BkError) else repr(error)
    ended: BkError
    if isinstance(error, LogTakenOverError) and error.context.get("deleted"):
        ended = FileStoreTakenOverError(f"file store {name!r} was deleted while this owner had it; opened again it is empty", store=name)
    elif isinstance(error, LogTakenOverError):
        ended = FileStoreTakenOverError(f"another owner opened file store {name!r}, which ended this one: {told}", store=name)
    else:
        ended = FileStoreClosedError(f"file store {name!r} has ended, because its log cannot be written: {told}", store=name)
    ended.__cause__ = error
    return ended


def broken_by(error: Exception, name: str) -> FileStoreError:
    """The store's error for one that its machine raised where it must not."""
    if isinstance(error, FileStoreError):
        return error
    told = f"this program failed within itself ({type(error).__name__}: {error}), so file store {name!r} has ended"
    broken = FileStoreClosedError(f"{told}; open it again, and report this with the program's log", store=name)
    broken.__cause__ = error
    return broken


def again(error: Exception, not_done: str = "") -> Exception:
    """A new error for each caller who is told, since raising changes an exception. It has the same cause. ``not_done`` says what was not
    done; then the outcome is known."""
    if not isinstance(error, BkError):
        return error
    copy = type(error)(f"{error.args[0]}; {not_done}" if not_done else error.args[0], **error.context)
    copy.__cause__ = error.__cause__
    return copy.nothing_done() if not_done or not error.outcome_unknown else copy
