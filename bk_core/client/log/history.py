"""The history of logs: chunks of old segments in closed ledgers, so that the list of a log stays small for ever.

A client that changes a list and finds it too long seals it right after the change. A history ledger has one entry and, like every ledger
that is created before it is listed, an intent: after a crash ``gc_log`` finds everything. History ledgers have no password: like the list
itself they hold no data.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from bk_core.arguments import checked
from bk_core.client.log.intents import HISTORY, create_intended, forget_intent, intended_ledgers
from bk_core.client.log.list_store import (
    LogClient,
    change_ledger_list,
    ledger_exists,
    read_ledger_list,
    read_versioned,
    store_now_ms,
)
from bk_core.errors import BkError, LogDataLossError, LogHistoryError, MetadataFormatError, NoSuchLedgerError
from bk_core.protocol.log.codec import decode_batches, decode_chunk, encode_chunk
from bk_core.protocol.log.history import Chunk, Load
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.provenance import BatchSpan
from bk_core.protocol.log.sealing import SEAL_LIMITS, SealLimits, next_chunk, ref_to, seal
from bk_core.protocol.log.segments import HistoryRef
from bk_core.protocol.log.view import LogView

CACHED_ITEMS = 65536  # segments and references, of about 250 bytes each
SEAL_TIMEOUT_S = 15.0
RETRY_AFTER_S = 30.0
_log = logging.getLogger("bk_core.client.log")
T = TypeVar("T")


class ChunkCache:
    """The most recently used chunks of all logs. They never change, so nothing has to be invalidated."""

    def __init__(self, items_max: int = CACHED_ITEMS) -> None:
        self._items_max = items_max
        self._items = 0
        self._chunks: OrderedDict[tuple[str, int, int], Chunk] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, key: tuple[str, int, int]) -> Chunk | None:
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def put(self, key: tuple[str, int, int], chunk: Chunk) -> None:
        with self._lock:
            more = len(chunk) - len(self._chunks.pop(key, ()))
            self._items += more
            self._chunks[key] = chunk
            while self._items > self._items_max:
                gone = len(self._chunks.popitem(last=False)[1])
                self._items -= gone


_cache = ChunkCache()
_retry_at: dict[str, float] = {}  # by log id: no sealing before that time


# --- reading --------------------------------------------------------------------------------------------------------


def history_of(client: LogClient, name: str, log_id: str, cache: ChunkCache = _cache) -> Load:
    """Return the function that loads chunks of this log's history. It raises LogDataLossError for chunks that were trimmed meanwhile,
    LogHistoryError if the history is broken."""

    def load(ref: HistoryRef) -> Chunk:
        key = (log_id, ref.ledger_id, ref.entry_id)
        chunk = cache.get(key)
        if chunk is None:
            chunk = _read_chunk(client, name, log_id, ref, lambda data: decode_chunk(data, log_id, ref))
            cache.put(key, chunk)
        return chunk

    return load


def read_batches(client: LogClient, name: str, log_id: str, ref: HistoryRef) -> tuple[BatchSpan, ...]:
    """Return the batches of the segments in a chunk, as far as they are known. The errors are those of ``history_of``."""
    return _read_chunk(client, name, log_id, ref, lambda data: (decode_chunk(data, log_id, ref), decode_batches(data))[1])


def _read_chunk(client: LogClient, name: str, log_id: str, ref: HistoryRef, decode: Callable[[bytes], T]) -> T:
    where = f"log {name!r}: entry {ref.entry_id} of history ledger {ref.ledger_id} (segments {ref.first_seq}..{ref.after_seq - 1})"
    context = {"log": name, "ledger": ref.ledger_id, "entry": ref.entry_id}
    try:
        with client.open_ledger(ref.ledger_id) as handle:
            if not handle.is_closed or handle.last_add_confirmed < ref.entry_id:
                raise LogHistoryError(f"{where} is not there; the ledger was not closed by who listed it", **context)
            data = b"".join(bytes(run.values) for run in handle.read_runs(ref.entry_id, ref.entry_id))
        return decode(data)
    except NoSuchLedgerError:
        listed = read_ledger_list(client, name)
        if listed.log_id != log_id or (listed.trimmed_seq >= ref.after_seq and ref not in listed.dropped):
            raise LogDataLossError(f"{where} was trimmed meanwhile, or the log deleted; read the log again", **context) from None
        raise LogHistoryError(f"{where} does not exist; read the log again, and if it stays so, somebody deleted it", **context) from None
    except MetadataFormatError as error:
        raise LogHistoryError(f"{where} cannot be used: {error.args[0]}", **context) from error


@checked()
def read_log(client: LogClient, name: str, *, log_id: str | None = None) -> LogView:
    """Return a snapshot of the log, history included. Raises NoSuchLogError if there is none; LogDataLossError if it has another id than
    ``log_id``."""
    listed, version = read_versioned(client, name)
    if log_id is not None and listed.log_id != log_id:
        raise LogDataLossError(f"log {name!r} was deleted and created again", log=name)
    return LogView(listed, history_of(client, name, listed.log_id), version)


# --- sealing --------------------------------------------------------------------------------------------------------


def update_ledger_list(
    client: LogClient,
    name: str,
    change: Callable[[LedgerList], LedgerList],
    *,
    timeout_s: float | None = None,
    limits: SealLimits = SEAL_LIMITS,
    read: Callable[[LogClient, str], tuple[LedgerList, int]] = read_versioned,
) -> LedgerList:
    """Change the list as ``change_ledger_list`` does, then seal its surplus. Returns the list as it was changed.

    Sealing comes after the change and cannot fail it: where it does not succeed, the list stays longer until the next change.
    """
    changed = change_ledger_list(client, name, change, timeout_s=timeout_s, read=read)
    if next_chunk(changed, limits):
        _seal_quietly(client, name, changed, limits)
    return changed


def _seal_quietly(client: LogClient, name: str, listed: LedgerList, limits: SealLimits) -> None:
    if time.monotonic() < _retry_at.get(listed.log_id, 0.0):
        return
    _retry_at.pop(listed.log_id, None)
    try:
        crowded = len(listed.segments) > 4 * limits.tail_max
        if crowded or not intended_ledgers(client, name, HISTORY, since_ms=store_now_ms(client) - int(SEAL_TIMEOUT_S * 1000)):
            seal_log(client, name, limits=limits)
    except (BkError, TimeoutError) as error:
        _retry_at[listed.log_id] = time.monotonic() + RETRY_AFTER_S
        _log.warning("log %s: %d segments wait to be moved into the history: %s", name, len(listed.segments), error)


def seal_log(client: LogClient, name: str, *, limits: SealLimits = SEAL_LIMITS) -> int:
    """Move the surplus of the list into history ledgers. Returns how many were written, 0 also if another client was faster.

    One compare-and-set lists them all, once they are closed. Raises the errors of ledger operations; the ledgers written are then deleted
    again, by ``gc_log`` if not at once.
    """
    listed = read_ledger_list(client, name)
    steps: list[tuple[Chunk, HistoryRef]] = []
    mine: list[int] = []
    local = listed
    try:
        while chunk := next_chunk(local, limits):
            ref = ref_to(chunk, write_chunk(client, name, listed, chunk, mine))
            steps.append((chunk, ref))
            local = seal(local, steps[-1:]) or local
        sealed = steps and _list_steps(client, name, listed.log_id, steps)
    except BaseException:
        _discard(client, name, listed.log_id, mine)
        raise
    if not sealed:
        _discard(client, name, listed.log_id, mine)
        return 0
    for ledger_id in mine:
        forget_intent(client, name, ledger_id, HISTORY)
    return len(mine)


def write_chunk(client: LogClient, name: str, listed: LedgerList, chunk: Chunk, mine: list[int]) -> int:
    """Write the chunk into entry 0 of a new ledger, close it and return its id. ``mine`` gets every ledger that may exist from now on."""
    data = encode_chunk(listed.log_id, chunk, listed.batches)
    custom = {"application": b"bk_core", "purpose": b"history"}
    handle = create_intended(client, name, listed.properties, log_id=listed.log_id, purpose=HISTORY, custom=custom)
    mine.append(int(handle.ledger_id))
    try:
        handle.append_run_future(data, array("q", [0, len(data)])).result(SEAL_TIMEOUT_S)
        handle.close()
    except BaseException:
        handle.abandon()
        raise
    return mine[-1]


def _list_steps(client: LogClient, name: str, log_id: str, steps: list[tuple[Chunk, HistoryRef]]) -> bool:
    done = False

    def change(current: LedgerList) -> LedgerList:
        nonlocal done
        done = current.log_id == log_id and steps[-1][1] in current.history  # META-14: the answer to our own write was lost
        sealed = None if done or current.log_id != log_id else seal(current, steps)
        if sealed is not None and not all(ledger_exists(client, ref.ledger_id) for _, ref in steps):
            sealed = None  # a janitor deleted it; condemning changes the list, so no commit can miss that
        done = done or sealed is not None
        return current if sealed is None else sealed

    change_ledger_list(client, name, change)
    return done


def _discard(client: LogClient, name: str, log_id: str, ledger_ids: list[int]) -> None:
    """Delete ledgers that nothing lists as a janitor does: they are condemned first (LOG-18).

    That is a change of the list, so an attempt to list them whose outcome is unknown has been applied before it or never will be. A ledger
    that is listed (that attempt was applied, and it may have been merged since) stays.
    """
    if not ledger_ids:
        return
    load = history_of(client, name, log_id)

    def condemn(current: LedgerList) -> LedgerList:
        return current.condemn(ledger_ids, load) if current.log_id == log_id else current

    try:
        listed = change_ledger_list(client, name, condemn, timeout_s=SEAL_TIMEOUT_S)
        if listed.log_id != log_id:
            return  # the deletion of the log cleans up
        for ledger_id in ledger_ids:
            if ledger_id in listed.condemned:
                with suppress(NoSuchLedgerError):
                    client.delete_ledger(ledger_id, even_if_listed=True)
            forget_intent(client, name, ledger_id, HISTORY)
        change_ledger_list(client, name, lambda current: current.absolve(ledger_ids), timeout_s=SEAL_TIMEOUT_S)
    except BkError as error:
        _log.warning("log %s: history ledgers %s are left to the janitor: %s", name, ledger_ids, error)
