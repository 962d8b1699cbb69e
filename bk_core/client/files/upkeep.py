"""File stores as a whole: which there are, who owns one, deleting one, and what nothing refers to any more.

Whatever is deleted was looked at first: its node in the metadata store and the ledger itself must name this cluster and the very log
(OWN-5, OWN-6). An owner cleans up by itself. So whatever deletes here is refused while an owner may live, unless the caller insists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from bk_core.arguments import CLIENT, SECRET, checked
from bk_core.client.files.imports import delete_unfinished_imports, import_mark, is_left_by_import, unfinished_imports
from bk_core.client.files.names import nodes_path, store_log, wrong_password
from bk_core.client.files.nodes import DataNode, data_nodes, delete_data_ledger
from bk_core.client.files.owner import DEFAULT_TIMEOUT_S
from bk_core.client.files.store import FileStore
from bk_core.client.files.view import FileStoreView, no_such_store
from bk_core.client.guards import check_password
from bk_core.client.log.check import release_log
from bk_core.client.log.janitor import GcReport, delete_log, gc_log
from bk_core.client.log.list_store import LogClient, list_if_any, read_ledger_list
from bk_core.client.log.lists import list_logs
from bk_core.client.log.live_writers import ALIVE, GONE, LiveWriter, foremost, live_writers
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    FileStoreError,
    ForeignLedgerError,
    LogWriterAliveError,
    MetadataError,
    NoClusterError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLogError,
    WrongPasswordError,
)
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import LogProperties

_NODES, _TOMBSTONES = "files", "deleted"  # places in the metadata store, by log
_NOTHING = GcReport()
PAUSE_S, PAUSE_MAX_S = 0.05, 2.0  # between two tries to delete what could not be deleted


@dataclass(frozen=True, slots=True, repr=False)
class FileGcReport:
    """The result of deleting what a file store has left.

    ``deleted`` are the data ledgers that were deleted, ``failed`` those that could not be (ledger id, reason), and ``foreign`` those that
    were left alone because they are not this store's (ledger id, reason). ``imports`` are the deleted folders of imports that were killed.
    ``is_gone`` is True if the store held nothing else and was deleted as well. ``finished`` are folders of imports that were killed after
    their last change, which readers had not seen yet: their files are in place.
    """

    deleted: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    foreign: tuple[tuple[int, str], ...] = ()
    imports: tuple[str, ...] = ()
    is_gone: bool = False
    finished: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = {name: getattr(self, name) for name in ("deleted", "failed", "foreign", "imports", "finished")}
        gone = ", and the store is gone" if self.is_gone else ""
        return f"<FileGcReport {', '.join(f'{len(those)} {what}' for what, those in counts.items())}{gone}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import files, table

        return table.html(files.collected(self), repr(self).strip("<>"))


@checked(client=CLIENT)
def file_stores(client: LogClient, *, remains: bool = False) -> list[str]:
    """Return the names of all file stores, sorted.

    ``client`` is a ``BookKeeper``. With ``remains`` the names include deleted stores that have left something.

    Raises NoSuchLogRootError where the log root was given by hand and does not exist.
    """
    logs = list_logs(client)
    places = (logs, client.store.children(_NODES), client.store.children(_TOMBSTONES)) if remains else (logs,)
    return sorted({name for place in places for log in place if (name := store_of(log)) is not None})


@checked(client=CLIENT)
def file_store_owner(client: LogClient, name: str) -> LiveWriter | None:
    """Return the owner of a store, or None if nobody has opened the store since it was closed. NoSuchFileStoreError."""
    return _owner(client, _listed(client, name))


@checked(client=CLIENT)
def check_not_owned(client: LogClient, name: str, *, even_if_alive: bool = False) -> None:
    """Raise LogWriterAliveError where an owner may live, unless ``even_if_alive``. NoSuchFileStoreError."""
    _refuse_owned(client, name, _listed(client, name), even_if_alive)


@checked(client=CLIENT, password=SECRET)
def has_unconfirmed(client: LogClient, name: str, *, password: bytes = b"") -> bool:
    """Return True if an owner that is not seen alive has left a change that readers may not see: it may have been acknowledged, and only
    the next owner, or ``gc_file_store``, can tell. Nothing is fenced. ``client`` is a ``BookKeeper``, ``password`` that of the store.

    Raises NoSuchFileStoreError.
    """
    live = _live(_listed(client, name))
    return any(writer.state != ALIVE and _has_tail(client, ledger_id, password) for ledger_id, writer in live_writers(client, live).items())


def _has_tail(client: LogClient, ledger_id: int, password: bytes) -> bool:
    """Return True unless the ledger certainly has nothing behind its last add confirmed."""
    try:
        with client.open_ledger(ledger_id, password=password) as handle:
            behind = handle.last_add_confirmed + 1
            return not handle.is_closed and bool(handle.read_unconfirmed(behind, behind))
    except NoSuchEntryError:
        return False
    except BkError:
        return True


@checked(client=CLIENT, password=SECRET)
def own_file_store(client: LogClient, name: str, *, password: bytes = b"", create: bool = True, even_if_alive: bool = False) -> FileStore:
    """Open the store called ``name``, which nobody owns, and return its owner.

    ``client`` is a ``BookKeeper``, ``password`` that of the store. ``create`` makes the store if there is none. A store that was closed in
    good order, or that is new, is opened without fencing anybody. If its owner is certainly gone, the ledgers that this owner left are
    recovered and closed first, and no others: an owner that opens the store meanwhile is not fenced. With ``even_if_alive`` a live owner is
    fenced.

    Raises LogWriterAliveError where an owner may live; FileStoreTakenOverError where another one opened the store meanwhile;
    NoSuchFileStoreError without ``create``; WrongPasswordError before anything is done.
    """
    _close_former(client, name, password, create=create, even_if_alive=even_if_alive)
    return FileStore.open(client, name, password=password, create=create, take_over=even_if_alive)


def own_for_import(client: LogClient, name: str, *, password: bytes, create: bool, even_if_alive: bool) -> FileStore:
    """Do what ``own_file_store`` does, for the import of a checkpoint. A store that is made says so (imports.py)."""
    _close_former(client, name, password, create=create, even_if_alive=even_if_alive)
    properties = LogProperties() if create else None
    return FileStore._open(client, name, properties, password=password, take_over=even_if_alive, marks=import_mark())


def _close_former(client: LogClient, name: str, password: bytes, *, create: bool, even_if_alive: bool) -> None:
    if not even_if_alive:
        listed = list_if_any(client, store_log(name)) if create else _listed(client, name)
        if listed is not None:
            _refuse_owned(client, name, listed, even_if_alive)
            _close_gone(client, name, listed, password)


def _close_gone(client: LogClient, name: str, listed: LedgerList, password: bytes) -> None:
    """Close the live segments that an owner who is gone has left. LogWriterAliveError if there are others meanwhile, WrongPasswordError."""
    if not listed.live_segments:
        return
    try:
        release_log(client, store_log(name), password=password, ledgers=_live(listed))
    except LogWriterAliveError as error:
        told = f"another owner has opened file store {name!r} a moment ago; it was left alone"
        message = f"{told}. Stop that process, or fence it: even_if_alive=True (--even-if-alive)"
        raise LogWriterAliveError(message, store=name, insist="even_if_alive") from error


def _check_password(client: LogClient, name: str, listed: LedgerList, password: bytes) -> None:
    """Raise WrongPasswordError, in the words of a user of file stores, before anything is done."""
    try:
        check_password(client, store_log(name), listed, password)
    except WrongPasswordError as error:
        raise wrong_password(error, name, password).nothing_done() from error


def _listed(client: LogClient, name: str) -> LedgerList:
    try:
        return read_ledger_list(client, store_log(name))
    except NoSuchLogError:
        raise no_such_store(client, name) from None


def _owner(client: LogClient, listed: LedgerList) -> LiveWriter | None:
    return foremost(live_writers(client, _live(listed)))


def _live(listed: LedgerList) -> list[int]:
    return [segment.ledger_id for segment in listed.live_segments]


def _refuse_owned(client: LogClient, name: str, listed: LedgerList, even_if_alive: bool) -> None:
    """Raise LogWriterAliveError unless nobody has the store open, for certain."""
    owner = None if even_if_alive else _owner(client, listed)
    if owner is None or owner.state == GONE:
        return
    known = "is open" if owner.state == ALIVE else "may be open"
    message = f"file store {name!r} {known} in {owner.told}; {owner.ending('owner')}, or fence it: even_if_alive=True (--even-if-alive)"
    raise LogWriterAliveError(message, store=name, insist="even_if_alive")


# --- deleting --------------------------------------------------------------------------------------------------------------


@checked(client=CLIENT, password=SECRET)
def delete_file_store(client: LogClient, name: str, *, password: bytes = b"", even_if_alive: bool = False) -> FileGcReport:
    """Delete the store called ``name`` with all its files, and return a report.

    Its log is deleted first, which fences an owner, then its data ledgers, then their nodes. ``client`` is a ``BookKeeper``, ``password``
    that of the store. ``even_if_alive`` ends a live owner. What cannot be deleted now stands in the report, or an error names it;
    ``gc_file_store`` finishes it later.

    Raises NoSuchFileStoreError, LogWriterAliveError where an owner may live, and WrongPasswordError; all of these before anything is done.
    """
    listed = _listed(client, name)
    refuse = partial(_refuse_owned, client, name, even_if_alive=even_if_alive)
    refuse(listed)
    return _delete_store(client, name, listed, password, refuse)


def _delete_store(
    client: LogClient, name: str, listed: LedgerList, password: bytes, refuse: Callable[[LedgerList], object]
) -> FileGcReport:
    """Delete the store, after ``refuse`` was asked: it raises if the list of the store's log forbids that. The store is deleted only with
    the list that was looked at."""
    log = store_log(name)
    _check_password(client, name, listed, password)
    try:
        # an owner that opens the store from here on changes the list, or finds none
        delete_log(client, log, password=password, file_entries=True, check=refuse)
    except NoSuchLogError:  # somebody else deletes it too
        pass
    damaged: list[tuple[int, str]] = []
    # listed behind that: an owner that was not gone may have made one more until then
    nodes = [node for node in data_nodes(client, log, damaged=damaged) if node.log_id == listed.log_id]
    return _delete(client, log, nodes, password, damaged=damaged)


@checked(client=CLIENT, password=SECRET)
def gc_file_store(client: LogClient, name: str, *, password: bytes = b"", even_if_alive: bool = False) -> FileGcReport:
    """Delete what the store called ``name``, and deleted stores of this name, have left, and return a report.

    Left over are data ledgers that no file refers to, and the folders of imports that were killed. A store that holds nothing else is
    deleted with them, and so is an empty store that an import made, if that import was killed before its first file.

    ``client`` is a ``BookKeeper``, ``password`` that of the store. An owner does this by itself when it opens the store. An owner that died
    is fenced in any case, so that everything that it acknowledged is known. With ``even_if_alive`` a live owner is fenced as well.

    Raises LogWriterAliveError where an owner may live; WrongPasswordError before anything is done; NoSuchFileStoreError for a name that
    nothing is left of.
    """
    log = store_log(name)
    damaged: list[tuple[int, str]] = []
    # before anything else: an owner that opens the store from now on refers to none of them anew
    nodes = data_nodes(client, log, damaged=damaged)
    try:
        listed = read_ledger_list(client, log)
    except NoSuchLogError:
        if not (nodes or damaged or client.store.children(f"{_TOMBSTONES}/{log}")):
            raise no_such_store(client, name) from None
        return _delete(client, log, nodes, password, _clean_log(client, log, password), damaged)
    _refuse_owned(client, name, listed, even_if_alive)
    _check_password(client, name, listed, password)
    before = _imported(client, name, password) if listed.live_segments else {}
    _recover(client, name, log, listed, password, even_if_alive)
    finished = _finished(client, name, password, before)
    imports, with_store = _delete_imports(client, name, password)
    if with_store is not None:
        left = [node for node in nodes if node.ledger_id not in with_store.deleted]
        report = _delete(client, log, left, password, with_store, damaged)
        return replace(report, imports=imports, is_gone=True)
    used = _used(client, name, log, listed, password)
    unused = [node for node in nodes if node.log_id != listed.log_id or (used is not None and node.ledger_id not in used)]
    report = _delete(client, log, unused, password, _clean_log(client, log, password), damaged)
    return replace(report, imports=imports, finished=finished)


def _imported(client: LogClient, name: str, password: bytes) -> dict[str, set[int]]:
    """The folders of imports that readers see, with the ids of what lies in each. None where readers see no files at all."""
    try:
        with FileStoreView.open(client, name, password=password) as view:
            return {path: {one.file_id for one in view.listing(path)} for path in unfinished_imports(view)[0]}
    except FileStoreError:
        return {}


def _finished(client: LogClient, name: str, password: bytes, before: dict[str, set[int]]) -> tuple[str, ...]:
    """Return those of the folders that have taken the place of all files: what lay in one lies in the root now (FS-20)."""
    if not before:
        return ()
    with FileStoreView.open(client, name, password=password) as view:
        now = {one.file_id for one in view.listing("/")}
    return tuple(path for path, ids in before.items() if ids and ids == now)


def _delete_imports(client: LogClient, name: str, password: bytes) -> tuple[tuple[str, ...], FileGcReport | None]:
    """The folders that were deleted, and the report of deleting the store, if that had nothing else."""
    with FileStoreView.open(client, name, password=password) as view:
        left, has_more = unfinished_imports(view)
    if not has_more and (left or is_of_gone_import(client, name)):
        report = delete_if_unused(client, name, password)
        return (tuple(left), report) if report is not None else ((), None)
    if not left:
        return (), None
    with own_file_store(client, name, password=password, create=False) as store:
        return tuple(delete_unfinished_imports(store)), None


def is_of_gone_import(client: LogClient, name: str) -> bool:
    """Return True if an import made the store called ``name`` and its process is gone, or old enough to be taken for gone. Where the store
    has no files the import was killed before the first one. NoSuchFileStoreError."""
    try:
        return is_left_by_import(client, store_log(name), _listed(client, name))
    except NoNodeError:
        raise no_such_store(client, name) from None


def delete_if_unused(client: LogClient, name: str, password: bytes) -> FileGcReport | None:
    """Delete a store that was closed in good order and has no files but those of imports that did not end. None where it has others, or
    where somebody has opened it: then it was left as it is. NoSuchFileStoreError, WrongPasswordError."""
    listed = _listed(client, name)

    def refuse(now: LedgerList) -> None:
        if (now.log_id, now.next_seq) != (listed.log_id, listed.next_seq) or now.live_segments:
            raise LogWriterAliveError(f"file store {name!r} was opened a moment ago; it was left alone", store=name)

    try:
        refuse(listed)
        # whoever opens the store from here on adds a ledger to the list
        with FileStoreView.open(client, name, password=password) as view:
            if unfinished_imports(view)[1]:
                return None
        return _delete_store(client, name, listed, password, refuse)
    except LogWriterAliveError:
        return None


def _clean_log(client: LogClient, log: str, password: bytes) -> GcReport:
    """The log's own remains; none of one that is gone."""
    try:
        return gc_log(client, log, password=password)
    except NoSuchLogError:
        return _NOTHING


def _recover(client: LogClient, name: str, log: str, listed: LedgerList, password: bytes, even_if_alive: bool) -> None:
    """Readers may not know the last acknowledged changes of an owner that died, so its ledger is recovered first."""
    if listed.live_segments and even_if_alive:
        release_log(client, log, password=password, even_if_alive=True)
    elif listed.live_segments:
        _close_gone(client, name, listed, password)


def _used(client: LogClient, name: str, log: str, listed: LedgerList, password: bytes) -> frozenset[int] | None:
    """The data ledgers that files refer to; None if nobody can tell. A ledger that nothing refers to behind the recovery is never referred
    to again, whoever opens the store meanwhile: contents are only ever put into ledgers of the owner's own."""
    with FileStoreView.open(client, name, password=password) as view:
        used = view.ledgers()
    return used if read_ledger_list(client, log).log_id == listed.log_id else None


def _delete(
    client: LogClient,
    log: str,
    nodes: Iterable[DataNode],
    password: bytes,
    before: GcReport | FileGcReport = _NOTHING,
    damaged: Iterable[tuple[int, str]] = (),
) -> FileGcReport:
    """The ledgers of these nodes, each only if it is of the log that its node names. ``before``: what was done with the log itself.
    ``damaged``: ledgers whose nodes do not say whose they are; they stay, and are told.

    What may succeed later is tried again, for the client's ``operation_timeout_s`` in all: a ledger that an owner left open is closed
    before it is deleted, and where there are no more bookies than its quorums need, each of them must answer for that in time."""
    config = getattr(client, "config", None)
    deadline, pause = time.monotonic() + (config.operation_timeout_s if config is not None else DEFAULT_TIMEOUT_S), PAUSE_S
    deleted, failed, foreign = list(before.deleted), [*before.failed, *damaged], list(before.foreign)
    left = list(nodes)
    while left:
        again = []
        for node in left:
            try:
                delete_data_ledger(client, log, node.log_id, node.ledger_id, password)
                deleted.append(node.ledger_id)
            except ForeignLedgerError as error:
                foreign.append((node.ledger_id, str(error)))
            except (NoClusterError, ClusterChangedError):
                raise
            except BkError as error:
                if error.retriable and time.monotonic() + pause < deadline:
                    again.append(node)
                else:
                    failed.append((node.ledger_id, str(error)))
        left = again
        if left:
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
    with suppress(MetadataError):  # a parent that is not empty stays, and who makes a node makes its parents
        client.store.delete(nodes_path(log))
    return FileGcReport(tuple(deleted), tuple(failed), tuple(foreign))
