"""Keeps logs clean: the janitor, trimming, retention, deletion.

Everything to be deleted is written down before: in intents for ledgers that are not listed yet, as ``condemned`` and ``dropped`` in the
list for what a trim has cut off, in a tombstone for a log that was deleted. So a later pass finds everything that a crash at any point
leaves. Every pass may run at any time, several at once: a ledger is deleted only after the list forbids committing it. Machines that the
simulator runs too decide what is trimmed, condemned, closed and deleted, and in which order (protocol/log/trimming.py, cleaning.py,
clearing.py). Here are their worlds, and the deletion of whole logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, MutableMapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from bk_core.arguments import COUNT, SECONDS, SECRET, checked
from bk_core.client.counting import counts_of
from bk_core.client.identity import NOBODY_ADOPTED, check_ledger, close_own, delete_own, log_id_of_reader, of_this_cluster
from bk_core.client.log.history import history_of
from bk_core.client.log.intents import (
    HISTORY,
    Intent,
    abandoned,
    forget_intent,
    intents_of,
    record_intent,
)
from bk_core.client.log.list_store import (
    LogClient,
    agree,
    delete_list,
    ledger_exists,
    log_path,
    read_ledger_list,
    read_versioned,
    store_now_ms,
    update_timeout_s,
)
from bk_core.client.log.works import ListWorks
from bk_core.client.patience import patient_until
from bk_core.client.repeating import FIRST_PAUSE_S, back_off, until_definite
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    ForeignLedgerError,
    InvalidArgumentError,
    LogError,
    MetadataError,
    NoClusterError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
    WrongClusterError,
)
from bk_core.protocol.log.cleaning import LogCleaning
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import HistoryRef, Segment
from bk_core.protocol.log.times import check_not_ahead, is_ahead
from bk_core.protocol.log.trimming import LogTrimming, TrimBounds, check_before
from bk_core.protocol.log.vanished import may_be_collected

INTENT_AGE_S = 6 * 3600.0
GC_PERIOD_S = 10.0
_log = logging.getLogger("bk_core.client.log")


@dataclass(frozen=True, slots=True)
class GcReport:
    """The result of one pass.

    ``deleted`` are the ledgers that were deleted, ``closed`` the listed ledgers of vanished writers that were closed, and ``failed`` those
    that could not be (ledger id, reason). ``foreign`` are ledgers that are left alone for good, because they do not carry the log's name
    and id and were not adopted (ledger id, reason). ``forgotten`` are ledgers that did not exist any more, whose intent was forgotten.

    Rules: OWN-6, OWN-11.
    """

    deleted: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    foreign: tuple[tuple[int, str], ...] = ()
    forgotten: tuple[int, ...] = ()

    def __repr__(self) -> str:
        counts = {name: getattr(self, name) for name in ("deleted", "closed", "failed", "foreign", "forgotten")}
        return f"<GcReport {', '.join(f'{len(ledgers)} {what}' for what, ledgers in counts.items())}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        return table.html(logs.collected(self), repr(self).strip("<>"))


class _Pass:
    """One pass over one log: its results so far, and the time at which it ends."""

    def __init__(self, client: LogClient, log: str, password: bytes, budget_s: float | None = None) -> None:
        client.store.check_cluster()
        self.client = client
        self.log = log
        self.password = password
        self.intents = intents_of(client, log)
        self._deadline = None if budget_s is None else time.monotonic() + budget_s
        self._timeout_s = update_timeout_s(client) if budget_s is None else max(1.0, budget_s)
        self.deleted: list[int] = []
        self.closed: list[int] = []
        self.forgotten: list[int] = []  # intents, also of ledgers that were deleted or closed
        self.failed: dict[int, str] = {}
        self.foreign: dict[int, str] = {}
        self._missing: set[int] = set()  # when they were to be closed or deleted
        self.adopted: Collection[int] = NOBODY_ADOPTED  # as in the list that was read last

    @property
    def over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def report(self) -> GcReport:
        known = {*self.deleted, *self.closed}
        left = tuple(ledger_id for ledger_id in self.forgotten if ledger_id not in known)
        failed, foreign = (tuple(sorted(found.items())) for found in (self.failed, self.foreign))
        return GcReport(tuple(self.deleted), tuple(self.closed), failed, foreign, left)

    def run(self, machine: ListClearing) -> None:
        """Run one machine of the log, and keep its results."""
        machine.failed.update((ledger_id, BkError(why)) for ledger_id, why in self.failed.items())
        try:
            ListWorks(self.client, self.log, self, self._timeout_s).run(machine)
        finally:
            self.closed += machine.closed
            self.failed.update((ledger_id, str(error)) for ledger_id, error in machine.failed.items() if ledger_id not in self.failed)

    def close_ledger(self, ledger_id: int) -> bool | None:
        """Close a ledger. Return True if it existed as one of this log, None if it failed. A ledger of another log counts as
        gone (OWN-6)."""
        return self._try(ledger_id, close_own, self._intended_for(ledger_id)) if ledger_id not in self.foreign else False

    def delete_ledger(self, ledger_id: int) -> bool | None:
        existed = self._try(ledger_id, delete_own, self._intended_for(ledger_id))
        if existed:
            self._is_deleted(ledger_id)
        return existed

    def _is_deleted(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)
        counts_of(self.client).log_deleted_ledgers.value += 1

    def _intended_for(self, ledger_id: int) -> str:
        """Return the id of the log, or "" if it is not known: what a janitor has found may belong to an earlier log of this name."""
        intent = self.intents.get(ledger_id)
        return "" if intent is None else intent.log_id

    def intent_of(self, ledger_id: int) -> str | None:
        """Return the purpose of an intent that may be forgotten."""
        intent = self.intents.get(ledger_id)
        return None if intent is None or ledger_id in self.foreign else intent.purpose

    def forget(self, ledger_id: int, purpose: str) -> None:
        """Drop an intent. If its ledger has come to be since it was found missing, the intent stays for the next pass: the list condemns
        the ledger until after this, so nobody has listed it and forgotten the intent (LOG-18)."""
        forget_intent(self.client, self.log, ledger_id, purpose)
        if ledger_id in self._missing and ledger_exists(self.client, ledger_id):
            record_intent(self.client, self.log, self.intents[ledger_id])
        else:
            self.forgotten.append(ledger_id)

    def delete(self, ledger_ids: Iterable[int], log_id: str = "") -> list[int]:
        """Fence, recover, delete and forget ledgers (LOG-12). Returns those that are gone now; others are left for another pass. A ledger
        is deleted only if it carries the log's name and, where both are known, ``log_id`` or that of its intent, or was adopted (OWN-6,
        OWN-11)."""
        gone: list[int] = []
        for ledger_id in ledger_ids:
            if self.over:
                break
            intent = self.intents.get(ledger_id)
            existed = self._try(ledger_id, delete_own, intent.log_id if intent and intent.log_id else log_id)
            if existed is None:
                continue
            if existed:
                self._is_deleted(ledger_id)
            if ledger_id in self.intents and ledger_id not in self.foreign:
                self.client.store.check_cluster()  # a cluster made anew meanwhile may have an intent of its own there (OWN-10)
                self.forget(ledger_id, self.intents[ledger_id].purpose)
            gone.append(ledger_id)
        return gone

    def _try(self, ledger_id: int, action: Callable[[LogClient, str, str, int, bytes, Collection[int]], bool], log_id: str) -> bool | None:
        """Return True if the ledger existed as one of this log, None if it failed."""
        hurry = nullcontext() if self._deadline is None else patient_until(self._deadline)
        try:
            with hurry:
                existed = action(self.client, self.log, log_id, ledger_id, self.password, self.adopted)
        except ForeignLedgerError as error:
            self.foreign[ledger_id] = str(error)
            _log.warning("log %s: %s", self.log, error)
            return False
        except (NoClusterError, ClusterChangedError):
            raise
        except BkError as error:
            self.failed[ledger_id] = str(error)
            _log.warning("log %s: ledger %d cannot be cleaned up now: %s", self.log, ledger_id, error)
            return None
        if not existed:
            self._missing.add(ledger_id)
        return existed


# --- the janitor ----------------------------------------------------------------------------------------------------


@checked(min_age_s=SECONDS, password=SECRET, at_ms=COUNT)
def gc_log(client: LogClient, log: str, *, min_age_s: float = INTENT_AGE_S, password: bytes = b"", at_ms: int | None = None) -> GcReport:
    """Clean up after vanished writers. Safe at any time: a commit that races with it fails with a clear error, and has to be made again.

    Intents of processes that ran on this host and are gone, and all older than ``min_age_s``: a ledger that is listed is closed (its
    committed ranges stay); one that is not is condemned in the list, so no later commit can name it, then fenced, recovered, deleted,
    and forgotten. A worker of a query that is gone may have done its part of a batch that is about to be committed, so its intents are
    left alone for a minute (JAN-8), or for ``min_age_s`` if that is less. ``min_age_s=0`` takes every writer for gone, also those that
    live: they make other ledgers. Then whatever a trim or a deletion has left half done. A ledger that cannot be cleaned up is in
    ``failed``. NoSuchLogError for a name that nothing is left of.
    """
    log_path(log)
    work = _Pass(client, log, password)
    if not (work.intents or client.store.children(_tombstones(log))):
        read_ledger_list(client, log)
    now_ms, min_age_ms = _judged_at(client, at_ms), int(min_age_s * 1000)
    _clean(work, [intent for intent in work.intents.values() if _is_left(intent, now_ms, min_age_ms)])
    return work.report()


def _is_left(intent: Intent, now_ms: int, min_age_ms: int) -> bool:
    """Return True if the ledger of the intent may be collected. The process that commits a query's batch lists the ledgers of its workers;
    history, and the ledgers of a log's writer, are listed by their own process."""
    awaited = intent.purpose != HISTORY and intent.query_id != ""
    return may_be_collected(now_ms - intent.created_ms, min_age_ms, gone=abandoned(intent), awaited=awaited)


def _clean(work: _Pass, old: list[Intent]) -> None:
    _clear_tombstones(work)
    work.run(LogCleaning(work.log, [intent.ledger_id for intent in old], work.intents))


# The time of a client's last clean-up, by the name of the log, a key that needs no read of the store.
_cleaned_at: MutableMapping[LogClient, dict[str, float]] = WeakKeyDictionary()


def gc_quietly(
    client: LogClient, log: str, password: bytes = b"", budget_s: float = 2.0, *, query_id: str | None = None
) -> GcReport | None:
    """Clean up after a commit, every ten seconds at most per client and log. Returns None if it was not yet time, which is found out
    without asking the store.

    It begins nothing more after ``budget_s``. A ledger that is being closed then is given up as soon as the closing makes no progress, and
    left to the next pass: bookies that are away keep no committer waiting.

    It never fails the commit. Ledgers that dead workers of ``query_id``, whose batch is just committed, have left unlisted are garbage for
    certain. Those of other queries may belong to a batch that is still to be committed, however long that takes (Spark ends idle workers
    after a minute), so they are left alone until they are ``INTENT_AGE_S`` old; ``gc_log`` waits for a minute.
    """
    try:
        cleaned_at, now = _cleaned_at.setdefault(client, {}), time.monotonic()
        if log in cleaned_at and now - cleaned_at[log] < GC_PERIOD_S:
            return None
        cleaned_at[log] = now
        read_ledger_list(client, log)  # checks that there is a log and that it is ours
        work = _Pass(client, log, password, budget_s)
        now_ms = store_now_ms(client)
        _clean(work, [intent for intent in work.intents.values() if _is_garbage(intent, query_id, now_ms)])
        if not work.over:
            with suppress(NoSuchLogError):  # it may have been deleted meanwhile
                _retain(work, None)
        report = work.report()
    except Exception as error:  # a commit that succeeded must not be reported as failed
        _log.warning("log %s: cleaning up after a commit failed: %s", log, error)
        return None
    if report != GcReport():
        what = report.deleted, report.closed, report.failed, report.forgotten
        _log.info("log %s: deleted ledgers %s, closed %s, failed %s, forgot intents of %s", log, *what)
    return report


def _judged_at(client: LogClient, at_ms: int | None) -> int:
    """Return now on the store's clock, or the time that the caller gives, which must not lie beyond it (JAN-1, JAN-3)."""
    now_ms = store_now_ms(client)
    if at_ms is None:
        return now_ms
    check_not_ahead("at_ms", at_ms, now_ms)
    return at_ms


def _is_garbage(intent: Intent, query_id: str | None, now_ms: int) -> bool:
    nobodys = intent.purpose == HISTORY or (query_id is not None and intent.query_id == query_id)
    age_ms = int(INTENT_AGE_S * 1000)
    return may_be_collected(now_ms - intent.created_ms, age_ms, gone=abandoned(intent), awaited=not nobodys, grace_ms=age_ms)


def check_listable(client: LogClient, log: str, log_id: str, ledger_ids: Iterable[int]) -> None:
    """Check before a commit's compare-and-set that its ledgers may be listed: LogError for one that a janitor deleted, ForeignLedgerError
    for one that does not carry the log's name and, where it carries one, its id (OWN-6). This also serves the first commit of a log, whose
    ledgers carry no id.

    Together with ``condemned`` this leaves no gap: condemning changes the list, so a commit based on an older list conflicts. Whoever wrote
    the ledgers may have another session, so one that is missing is asked for again behind an agreement of the metadata store's servers.
    """
    for ledger_id in ledger_ids:
        try:
            metadata = _metadata_surely(client, ledger_id)
        except NoSuchLedgerError:
            raise LogError(f"ledger {ledger_id} was deleted by a janitor; write the rows again", ledger_id=ledger_id) from None
        check_ledger(log, log_id, ledger_id, metadata)


def _metadata_surely(client: LogClient, ledger_id: int) -> Any:
    try:
        return client.ledger_metadata(ledger_id)
    except NoSuchLedgerError:
        until_definite(partial(agree, client), time.monotonic() + update_timeout_s(client))
    return client.ledger_metadata(ledger_id)


# --- trimming and retention -----------------------------------------------------------------------------------------


@checked(before_ms=COUNT, max_bytes=COUNT, password=SECRET)
def trim_log(
    client: LogClient,
    log: str,
    *,
    before: Position | None = None,
    before_ms: int | None = None,
    max_bytes: int | None = None,
    password: bytes = b"",
    file_entries: bool = False,
) -> tuple[int, ...]:
    """Drop whole segments from the front, then delete the ledgers that nothing lists any more. Returns those.

    Dropped is what lies before the segment of ``before``, what was committed before ``before_ms``, and what is older than the newest
    ``max_bytes``. It stops before a live segment, and before one whose ledger is neither CLOSED nor watched by an intent (LOG-11): its
    writer may still commit more of it. InvalidArgumentError without any bound, for a ``before`` behind the end, and without
    ``file_entries`` for the log of a file store, which its owner trims (GRD-7); NoSuchLogError.
    """
    check_not_of_files(log, file_entries)
    if before is None and before_ms is None and max_bytes is None:
        raise InvalidArgumentError("say where to trim: before, before_ms or max_bytes")
    if before is not None or before_ms is not None:
        check_before(log, before, read_ledger_list(client, log))  # a missing log needs no clock
    if before_ms is not None:
        check_not_ahead("before_ms", before_ms, store_now_ms(client))
    work = _Pass(client, log, password)
    _trim(work, before, before_ms, max_bytes)
    return work.report().deleted


@checked(password=SECRET, at_ms=COUNT)
def apply_retention(client: LogClient, log: str, *, password: bytes = b"", at_ms: int | None = None) -> tuple[int, ...]:
    """Trim what the log's ``retention_ms`` and ``retention_bytes`` no longer keep. Returns the ledgers deleted. NoSuchLogError;
    InvalidArgumentError for the log of a file store (GRD-7)."""
    check_not_of_files(log, False)
    work = _Pass(client, log, password)
    _retain(work, at_ms)
    return work.report().deleted


def _retain(work: _Pass, at_ms: int | None) -> None:
    """Trim by age and size. ``at_ms`` None means now. The clock is asked only where an age counts."""
    properties = read_ledger_list(work.client, work.log).properties
    if properties.retention_ms is not None or properties.retention_bytes is not None:
        before_ms = None if properties.retention_ms is None else _judged_at(work.client, at_ms) - properties.retention_ms
        _trim(work, None, before_ms, properties.retention_bytes)


def _trim(work: _Pass, before: Position | None, before_ms: int | None, max_bytes: int | None) -> None:
    machine = LogTrimming(work.log, TrimBounds(before, before_ms, max_bytes), work.intents)
    work.run(machine)
    if before_ms is not None:
        _warn_of_ahead(work, machine.kept)


def _warn_of_ahead(work: _Pass, segment: Segment | None) -> None:
    """Warn of a segment whose time lies in the future. It stops retention by age until then; by number or size it can be cut
    off (JAN-3)."""
    if segment is not None and not segment.live and is_ahead(segment.committed_at_ms, store_now_ms(work.client)):
        ahead = (
            "log %s: segment %d says it was committed at %d ms since 1970, which the metadata store's clock has not reached; nothing from"
        )
        what = (work.log, segment.seq, segment.committed_at_ms)
        _log.warning(ahead + " it on is cut off by age before then (bk log trim --before-seq cuts)", *what)


# --- deletion -------------------------------------------------------------------------------------------------------


@checked(password=SECRET)
def delete_log(
    client: LogClient,
    name: str,
    *,
    password: bytes = b"",
    file_entries: bool = False,
    check: Callable[[LedgerList], object] = lambda _: None,
) -> None:
    """Unlist first, then delete the ledgers (LOG-11): every ledger is closed before it is deleted (LOG-12), fencing its writer.

    NoSuchLogError if there is none; InvalidArgumentError without ``file_entries`` for the log of a file store, whose files have ledgers
    of their own (GRD-7). ``check`` is given the list that is about to be deleted, and raises to refuse that: nobody changes the list
    between the two. A tombstone keeps the list until all is gone, so that ``gc_log`` of the same name can finish it.
    """
    check_not_of_files(name, file_entries)
    before = intents_of(client, name)
    listed = _unlist(client, name, check)
    work = _Pass(client, name, password)
    work.delete(_intended(work, listed.log_id, before))
    _clear_tombstones(work)
    _forget_readers(client, name, listed.log_id)
    for place in ("intents", "deleted", "readers"):
        with suppress(MetadataError):  # a parent that is not empty stays, and a process that makes a node makes its parents
            client.store.delete(f"{place}/{name}")
    if work.failed:
        failed = ", ".join(f"{ledger_id} ({why})" for ledger_id, why in sorted(work.failed.items()))
        raise LogError(f"log {name!r} is deleted, but not its ledgers {failed}; gc_log finishes it", log=name)


def _unlist(client: LogClient, name: str, check: Callable[[LedgerList], object]) -> LedgerList:
    """Take the list away and return it. What ``check`` raises of the list as it is then; a tombstone of a log that is there counts for
    nothing."""
    listed, version = read_versioned(client, name)
    deadline, pause = _deadline(client), FIRST_PAUSE_S
    while True:
        check(listed)
        _store_tombstone(client, name, listed)
        try:
            delete_list(client, name, listed.log_id, version, deadline)
            return listed
        except VersionConflictError:  # it was changed meanwhile
            pause = back_off(pause, deadline, f"deleting log {name!r}")
        try:
            again, version = until_definite(partial(read_versioned, client, name), deadline)
        except NoSuchLogError:
            return listed
        if again.log_id != listed.log_id:
            return listed
        listed = again


def _intended(work: _Pass, log_id: str, before: Collection[int]) -> list[int]:
    """Return the ledgers intended for the log that is gone, by intents that name it. Intents that name none were there before it was
    unlisted (OWN-5)."""
    return [i.ledger_id for i in work.intents.values() if i.log_id == log_id or (not i.log_id and i.ledger_id in before)]


def _forget_readers(client: LogClient, name: str, log_id: str) -> None:
    """Delete the first offsets that were kept for this log. A log that was created again under the name keeps those of its own readers
    (OWN-7)."""
    for reader in client.store.children(f"readers/{name}"):
        path = f"readers/{name}/{reader}"
        with suppress(NoNodeError):
            if log_id_of_reader(client.store.read(path).data, name) in (None, log_id):
                client.store.delete(path)


def _deadline(client: LogClient) -> float:
    return time.monotonic() + update_timeout_s(client)


def _tombstones(name: str) -> str:
    return f"deleted/{name}"


def _store_tombstone(client: LogClient, name: str, listed: LedgerList) -> None:
    path, data = f"{_tombstones(name)}/{listed.log_id}", encode(listed)
    deadline, pause = _deadline(client), FIRST_PAUSE_S
    while True:
        try:
            until_definite(lambda: client.store.create(path, data), deadline)
            return
        except NodeExistsError:
            pass
        with suppress(VersionConflictError, NoNodeError):  # another process that deletes the log changes it, or is done with it
            version = client.store.read(path).version
            until_definite(partial(client.store.write, path, data, version), deadline)
            return
        pause = back_off(pause, deadline, f"deleting log {name!r}")


def _clear_tombstones(work: _Pass) -> None:
    for log_id in work.client.store.children(_tombstones(work.log)):
        try:
            if read_ledger_list(work.client, work.log).log_id == log_id:
                continue  # a deletion that stopped before it deleted anything, or is about to begin
        except NoSuchLogError:
            pass
        path = f"{_tombstones(work.log)}/{log_id}"
        try:
            stored, here = work.client.store.read_here(path)
            listed = of_this_cluster(work.client, work.log, decode(stored.data), here)
        except NoNodeError:  # another pass was faster
            continue
        except WrongClusterError as error:
            _log.warning("log %s: the remains of a deleted log of another cluster stay: %s", work.log, error)
            continue
        if _delete_all(work, listed):
            work.client.store.delete(path)


def _delete_all(work: _Pass, listed: LedgerList) -> bool:
    """Delete data ledgers chunk by chunk, and each history ledger after the ledgers that it lists."""
    load = history_of(work.client, work.log, listed.log_id)
    work.adopted = listed.adopted
    done = True
    gone = set(work.deleted)

    def clear(ids: Iterable[int], log_id: str = listed.log_id) -> bool:
        wanted = [ledger_id for ledger_id in dict.fromkeys(ids) if ledger_id not in gone]
        deleted = work.delete(wanted, log_id)
        gone.update(deleted)
        return len(deleted) == len(wanted)

    def clear_ref(ref: HistoryRef) -> bool:
        try:
            chunk = load(ref)
        except BkError as error:
            if ledger_exists(work.client, ref.ledger_id):
                work.failed[ref.ledger_id] = str(error)
                return False
            return True  # an earlier pass deleted it, after everything that it listed
        below = [clear_ref(item) for item in chunk if isinstance(item, HistoryRef)]
        return all(below) and clear(item.ledger_id for item in chunk if not isinstance(item, HistoryRef)) and clear([ref.ledger_id])

    for ref in (*listed.dropped, *listed.history):
        done = clear_ref(ref) and done
    done = clear(listed.condemned, "") and done  # what a janitor has found may belong to an earlier log of this name
    rest = (*listed.released, *(ref.ledger_id for ref in listed.opened), *(segment.ledger_id for segment in listed.segments))
    return clear(rest) and done
