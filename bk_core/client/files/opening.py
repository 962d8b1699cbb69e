"""Opening a file store as its owner: take its log over, which fences the former owner, then replay it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bk_core.client.files.names import unreadable, wrong_password
from bk_core.client.files.nodes import data_ledgers
from bk_core.client.files.view import no_such_store
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import LogClient, list_if_any, read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.live_writers import ALIVE, GONE, foremost, live_writers
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.client.repeating import back_off, until_definite, while_it_may_pass
from bk_core.errors import (
    CLIENT_CLOSED,
    BkError,
    ClientClosedError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreFormatError,
    FileStoreTakenOverError,
    LogDataLossError,
    LogTakenOverError,
    LogWriterAliveError,
    NoSuchLogError,
    NotEnoughBookiesError,
    ReadError,
    WrongPasswordError,
)
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import EMPTY, LogProperties, unchecked_properties

REPLAYS_MAX = 8
OUTSTANDING_BYTES_MAX = 64 << 20  # of the log's writer: more than the store lets in, so that only a large base waits there


@dataclass(frozen=True, slots=True)
class Opened:
    """``machine`` has replayed the log that ``writer`` writes; ``listed`` is its list. ``ledgers``: the data ledgers that there were before
    the former owner was fenced."""

    writer: LogWriter
    listed: LedgerList
    machine: FileMachine
    ledgers: list[int]


def open_log(
    client: LogClient,
    name: str,
    log: str,
    *,
    password: bytes,
    create: LogProperties | None,
    take_over: bool,
    roll_max_bytes: int,
    timeout_s: float,
    marks: Mapping[str, Any] = EMPTY,
) -> Opened:
    """``create``: the properties of a log that is made if there is none; None refuses with NoSuchFileStoreError. ``marks``: what else the
    list of a log says that is made.

    Bookies that are away, as in a restart of them all, are waited for: too few for a new ledger before anything is made or anybody is
    fenced (NotEnoughBookiesError, which does not wait for bookies that the cluster never had), and those that hold the log before it is
    replayed. Bookies that go in the middle of the take-over are waited for too. ``timeout_s`` bounds each of these.
    """
    _await_bookies(client, log, create, timeout_s)
    if create is not None:
        _created(client, log, create, marks)
    # FS-16: those of a later owner, who may take the store over at any time, are not among them
    ledgers = until_definite(lambda: data_ledgers(client, log), time.monotonic() + timeout_s)
    open_writer = partial(
        LogWriter.open,
        client,
        log,
        password=password,
        roll_max_bytes=roll_max_bytes,
        outstanding_bytes_max=OUTSTANDING_BYTES_MAX,
        take_over=take_over,
        file_entries=True,
    )
    try:
        writer = _opened_in_time(open_writer, lambda: _await_bookies(client, log, create, timeout_s), time.monotonic() + timeout_s)
    except NoSuchLogError as error:
        raise no_such_store(client, name) from error
    except WrongPasswordError as error:
        raise wrong_password(error, name, password).nothing_done() from error
    except LogDataLossError as error:
        raise changes_lost(name, error).nothing_done() from error
    except (LogTakenOverError, LogWriterAliveError) as error:
        raise _has_an_owner(client, name, log, take_over) from error
    try:
        deadline = time.monotonic() + timeout_s
        listed = until_definite(lambda: read_ledger_list(client, log), deadline)
        return Opened(writer, listed, _replayed_in_time(client, name, log, password, deadline), ledgers)
    except BaseException as error:
        leave(writer)
        if isinstance(error, LogDataLossError):
            raise changes_lost(name, error) from error
        if isinstance(error, FileStoreFormatError):
            raise unreadable(error, name) from error
        raise


def _opened_in_time(open_writer: Callable[[], LogWriter], await_bookies: Callable[[], None], deadline: float) -> LogWriter:
    """Bookies that were there a moment ago may go in the middle of a take-over: after a pause of the metadata store their sessions end, and
    they register again at once. The former owner is fenced by then, so giving up would leave the store without any."""
    pause = 0.05
    while True:
        try:
            return open_writer()
        except NotEnoughBookiesError as error:
            if time.monotonic() >= deadline:
                raise
            pause = back_off(pause, deadline, str(error))
            await_bookies()


def _has_an_owner(client: LogClient, name: str, log: str, take_over: bool) -> FileStoreTakenOverError:
    """The error of an open that was not to take the store over, or that lost it at once to another open."""
    try:
        live = [segment.ledger_id for segment in read_ledger_list(client, log).live_segments]
        owner = foremost(live_writers(client, live))
    except BkError:  # it was opened by somebody, and nobody can tell now by whom
        owner = None
    if take_over:
        who = f" ({owner.told})" if owner is not None and owner.host else ""
        what = f"another owner opened it at the same moment{who}. Open it again to end that one"
    elif owner is not None and owner.state == GONE:
        what = f"{owner.told}, had it open and died without closing it. take_over=True opens it and loses nothing"
    elif owner is not None and owner.state == ALIVE:
        what = f"{owner.told}, has it open. Close it there, or end that owner with take_over=True"
    else:
        whose = "another process" if owner is None else owner.told
        what = f"{whose}, has it open, or died without closing it. If it is gone, open it with take_over=True, which loses nothing"
    return FileStoreTakenOverError(f"file store {name!r} was not opened: {what}", store=name).nothing_done()


def leave(writer: LogWriter) -> None:
    """End the writer of a log that could not be opened as a store, so that the log is not left behind as one with a writer."""
    try:
        writer.close()
    except BkError:
        writer.abandon()


def _await_bookies(client: LogClient, log: str, create: LogProperties | None, timeout_s: float) -> None:
    """Wait for bookies for the log's next ledger, with the settings that it will have."""
    deadline = time.monotonic() + timeout_s
    listed = until_definite(lambda: list_if_any(client, log), deadline)
    properties = create if listed is None or (create is not None and _is_unused(listed)) else listed.properties
    if properties is not None:
        client.await_bookies(properties.ensemble_size, properties.write_quorum_size)


def _created(client: LogClient, log: str, wanted: LogProperties, marks: Mapping[str, Any]) -> None:
    """A log that never had a ledger is as good as none: somebody's first open may have failed, with settings that never worked."""
    settings = {"ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type"}

    def change(listed: LedgerList) -> LedgerList:
        chosen = unchecked_properties(listed.properties, **{field: getattr(wanted, field) for field in settings})
        return listed.set_properties(chosen) if _is_unused(listed) else listed

    if _is_unused(create_log(client, log, wanted, exist_ok=True, file_entries=True, extra=marks)):
        update_ledger_list(client, log, change)


def _is_unused(listed: LedgerList) -> bool:
    return not listed.next_seq


def _replayed_in_time(client: LogClient, name: str, log: str, password: bytes, deadline: float) -> FileMachine:
    """The bookies that hold the log's earlier ledgers may be others than those that its next one needs, and come back later."""
    replayed = partial(until_definite, partial(_replayed, client, name, log, password), deadline)
    return while_it_may_pass(replayed, lambda error: isinstance(error, ReadError), deadline)


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
    """Yield each record of a store's log with its position, from the first entry up to what is acknowledged now."""
    with LogReader(client, log, password=password) as reader:
        for run in reader.read():
            for index, record in enumerate(run.payloads()):
                yield record, Position(run.segment.seq, run.first_entry_id + index)


def ended_by(error: BaseException, name: str, why: str = "", *, has_owner: bool = True) -> BkError:
    """The store's error for one of its log, or of this program. ``why``: what is known of the reason if it cannot be written.
    ``has_owner``: False if the log was fenced, and is nobody else's so far."""
    told = error.args[0] if isinstance(error, BkError) else repr(error)
    ended: BkError
    if isinstance(error, ClientClosedError):  # its log may learn it first
        return client_closed(name)
    if isinstance(error, LogTakenOverError) and error.context.get("deleted"):
        ended = FileStoreTakenOverError(f"file store {name!r} was deleted while this owner had it; opened again it is empty", store=name)
    elif isinstance(error, LogTakenOverError) and not has_owner:
        how = "gc with even_if_alive (--even-if-alive) does that, and so does an owner that is about to open it"
        told = f"file store {name!r} was fenced, which ended this owner, and no other one has it so far: {how}"
        ended = FileStoreTakenOverError(told, store=name, unowned=True)
    elif isinstance(error, LogTakenOverError):
        who = error.context.get("owner")
        ended = FileStoreTakenOverError(
            f"another owner opened file store {name!r}{f' ({who})' if who else ''}, which ended this one", store=name
        )
    else:
        ended = FileStoreClosedError(f"file store {name!r} has ended, because its log cannot be written: {told}{why}", store=name)
    ended.__cause__ = error
    return ended


def log_ledger_deleted(name: str, ledger_id: int, cause: BaseException | None = None) -> FileStoreClosedError:
    """The store's error when the ledger that its changes go to was deleted under it. ``cause``: the error that told, if one did."""
    deleted = FileStoreClosedError(
        f"ledger {ledger_id}, which file store {name!r} writes its changes to, was deleted by somebody else, so the store has ended: "
        f"changes that were acknowledged since this ledger began are lost. `bk log check files.{name}` tells what is left",
        store=name,
        ledger=ledger_id,
    )
    deleted.__cause__ = cause
    return deleted


def changes_lost(name: str, error: LogDataLossError) -> FileDataLostError:
    """The store's error when a ledger of its log is gone."""
    ledger_id = error.context.get("ledger")
    what = f"ledger {ledger_id}, which held changes of file store {name!r}, does not exist, so nobody can tell what its files are"
    remove = f"bk checkpoint rm {name}, with --even-if-alive where the lost ledger was to tell that its owner is gone"
    then = f"restore that ledger, or delete what is left ({remove}): a query begins anew then, or from a copy"
    return FileDataLostError(f"{what}: {then} (bk checkpoint import)", store=name, ledger=ledger_id)


def client_closed(name: str) -> FileStoreClosedError:
    """The store's error when its client is closed."""
    closed = FileStoreClosedError(f"the client of file store {name!r} was closed by this program", store=name)
    closed.__cause__ = ClientClosedError(CLIENT_CLOSED)
    return closed


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
    copy = error.retold(f"{error.args[0]}; {not_done}" if not_done else error.args[0])
    return copy.nothing_done() if not_done else copy
