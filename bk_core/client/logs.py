"""Logs over ledgers: create, list, change, write exclusively, clean up. Blocking functions over a client and its store.

Reading is in ``log_reader``.

A log is one value at store path ``logs/<name>`` (protocol/log/ledger_list.py), only ever changed by ``update_ledger_list``, the one
compare-and-set loop. Beside it, under the same log root: ``intents/<log>/<ledger id>`` for data ledgers that transactional writers keep
open, and ``readers/<log>/<name>`` for durable first offsets.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from bk_core.errors import (
    BkError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    LogDataLossError,
    LogError,
    LogExistsError,
    LogTakenOverError,
    MetadataConflictError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    OperationTimeoutError,
    VersionConflictError,
)
from bk_core.protocol.ledger.metadata import DigestType, LedgerState
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties, decode, encode

if TYPE_CHECKING:
    from bk_core.metadata.store import MetadataStore

T = TypeVar("T")
Buffer: TypeAlias = "bytes | bytearray | memoryview | array[int]"
UPDATE_TIMEOUT_S = 60.0
INTENT_AGE_S = 6 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TAKEN_OVER = (LedgerFencedError, LedgerClosedError, MetadataConflictError)


class LogClient(Protocol):
    """The part of ``BookKeeper`` that logs need."""

    @property
    def store(self) -> MetadataStore: ...
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum_size: int = ...,
        ack_quorum_size: int = ...,
        digest_type: DigestType = ...,
        password: bytes = ...,
        custom: Any = ...,
    ) -> Any: ...
    def open_ledger(self, ledger_id: int, *, password: bytes = ...) -> Any: ...
    def recover_ledger(self, ledger_id: int, *, password: bytes = ...) -> Any: ...
    def delete_ledger(self, ledger_id: int) -> None: ...
    def ledger_metadata(self, ledger_id: int) -> Any: ...


def log_path(name: str) -> str:
    """InvalidArgumentError for a name that cannot be one path element in every store."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"log name {name!r}: use letters, digits, '.', '_', '-' (at most 200), starting with a letter or digit")
    return f"logs/{name}"


def now_ms() -> int:
    return int(time.time() * 1000)


# --- the list -----------------------------------------------------------------------------------------------------


def create_log(client: LogClient, name: str, properties: LogProperties | None = None, *, exist_ok: bool = False) -> LedgerList:
    """Create an empty log. LogExistsError unless ``exist_ok``, which returns the log that is there."""
    chosen = properties or LogProperties()
    chosen.check()
    fresh = LedgerList(log_id=uuid.uuid4().hex, properties=chosen)
    path, data = log_path(name), encode(fresh)
    try:
        _until_definite(lambda: client.store.create(path, data), time.monotonic() + UPDATE_TIMEOUT_S)
    except NodeExistsError:
        found = read_ledger_list(client, name)
        if found.log_id == fresh.log_id or exist_ok:  # the first answer was lost (META-12), or somebody was there first
            return found
        raise LogExistsError(f"log {name!r} exists", log=name) from None
    return fresh


def read_ledger_list(client: LogClient, name: str) -> LedgerList:
    """NoSuchLogError if the log does not exist."""
    return _read(client, name)[0]


def _read(client: LogClient, name: str) -> tuple[LedgerList, int]:
    try:
        stored = client.store.read(log_path(name))
    except NoNodeError:
        raise NoSuchLogError(f"there is no log {name!r}", log=name) from None
    return decode(stored.data), stored.version


def list_logs(client: LogClient) -> list[str]:
    return client.store.children("logs")


def update_ledger_list(
    client: LogClient, name: str, change: Callable[[LedgerList], LedgerList], *, timeout_s: float = UPDATE_TIMEOUT_S
) -> LedgerList:
    """Read, change, compare-and-set until it holds; returns the list that does.

    ``change`` may run several times and must leave a list alone that it has already changed: after a lost answer (META-12: the identical
    request is repeated until the outcome is definite) a conflict may be our own success. OperationTimeoutError after ``timeout_s``;
    whatever ``change`` raises.
    """
    deadline = time.monotonic() + timeout_s
    pause = 0.01
    while True:
        listed, version = _until_definite(lambda: _read(client, name), deadline)
        changed = change(listed)
        if changed is listed:
            return listed
        try:
            _compare_and_set(client, log_path(name), encode(changed), version, deadline)
            return changed
        except VersionConflictError:
            pause = _back_off(pause, deadline, f"changing log {name!r}")
        except NoNodeError:
            raise NoSuchLogError(f"log {name!r} was deleted", log=name) from None


def _compare_and_set(client: LogClient, path: str, data: bytes, version: int, deadline: float) -> None:
    _until_definite(lambda: client.store.write(path, data, version), deadline)


def _until_definite(request: Callable[[], T], deadline: float) -> T:
    """Repeat the identical request while its outcome is unknown or the store is away (META-12, META-13)."""
    pause = 0.01
    while True:
        try:
            return request()
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            if time.monotonic() >= deadline:  # the caller learns whether the outcome is still open
                raise
            pause = _back_off(pause, deadline, str(error))


def _back_off(pause: float, deadline: float, what: str) -> float:
    if time.monotonic() >= deadline:
        raise OperationTimeoutError(f"timed out: {what}")
    time.sleep(pause * random.uniform(0.5, 1.0))
    return min(pause * 2, 1.0)


def delete_log(client: LogClient, name: str, *, password: bytes = b"") -> None:
    """Unlist first, then delete the ledgers (LOG-11): every ledger is closed before it is deleted (LOG-12), fencing its writer."""
    listed = read_ledger_list(client, name)
    _until_definite(lambda: client.store.delete(log_path(name)), time.monotonic() + UPDATE_TIMEOUT_S)
    for ledger_id in sorted(listed.ledger_ids() | set(listed.condemned) | set(_intents(client, name))):
        _close_and_delete(client, ledger_id, password)
        client.store.delete(_intent_path(name, ledger_id))
    for reader in client.store.children(f"readers/{name}"):
        client.store.delete(f"readers/{name}/{reader}")


def trim_log(client: LogClient, name: str, seq: int) -> tuple[int, ...]:
    """Drop all segments before ``seq``, then delete the ledgers that nothing lists any more. Returns those.

    It stops before the first segment whose ledger is not CLOSED (LOG-11): its writer may still commit more of it.
    """
    free: tuple[int, ...] = ()

    def change(listed: LedgerList) -> LedgerList:
        nonlocal free
        changed, free = listed.trim(min(seq, _first_open(client, listed)))
        return changed

    update_ledger_list(client, name, change)
    _delete_condemned(client, name, free, b"")
    return free


def _first_open(client: LogClient, listed: LedgerList) -> int:
    known: dict[int, bool] = {}
    for segment in listed.segments:
        if segment.ledger_id not in known:
            known[segment.ledger_id] = not segment.live and client.ledger_metadata(segment.ledger_id).state is LedgerState.CLOSED
        if not known[segment.ledger_id]:
            return segment.seq
    return listed.next_seq


# --- intents and the janitor ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intent:
    """Who opened a data ledger: written before the ledger takes its first entry."""

    ledger_id: int
    query_id: str
    host: str
    pid: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What one pass did: ledgers deleted, and listed ledgers of vanished writers that were closed."""

    deleted: tuple[int, ...]
    closed: tuple[int, ...]


def _intent_path(log: str, ledger_id: int) -> str:
    return f"intents/{log}/{ledger_id}"


def record_intent(client: LogClient, log: str, intent: Intent) -> None:
    data = json.dumps({"query": intent.query_id, "host": intent.host, "pid": intent.pid, "createdMs": intent.created_ms}).encode()
    try:
        _until_definite(lambda: client.store.create(_intent_path(log, intent.ledger_id), data), time.monotonic() + UPDATE_TIMEOUT_S)
    except NodeExistsError:  # ledger ids are never issued twice, so this is our own first try (META-12)
        return


def _intents(client: LogClient, log: str) -> dict[int, Intent]:
    found: dict[int, Intent] = {}
    for child in client.store.children(f"intents/{log}"):
        try:
            value = json.loads(client.store.read(f"intents/{log}/{child}").data)
        except NoNodeError:
            continue
        found[int(child)] = Intent(int(child), str(value["query"]), str(value["host"]), int(value["pid"]), int(value["createdMs"]))
    return found


def gc_log(client: LogClient, log: str, *, min_age_s: float = INTENT_AGE_S, password: bytes = b"", at_ms: int | None = None) -> GcReport:
    """Clean up after vanished transactional writers. Safe at any time: a commit that races with it fails and its task is run again.

    Intents older than ``min_age_s``: a ledger that is listed is closed (its committed ranges stay); one that is not is condemned in the
    list, so no later commit can name it, then fenced, recovered, deleted, and forgotten.
    """
    before = (now_ms() if at_ms is None else at_ms) - int(min_age_s * 1000)
    old = [ledger_id for ledger_id, intent in _intents(client, log).items() if intent.created_ms <= before]
    try:
        listed = update_ledger_list(client, log, lambda current: current.condemn(old))
    except NoSuchLogError:
        for ledger_id in old:
            _close_and_delete(client, ledger_id, password)
            client.store.delete(_intent_path(log, ledger_id))
        return GcReport(tuple(old), ())
    keep = listed.ledger_ids()
    closed = tuple(ledger_id for ledger_id in old if ledger_id in keep)
    for ledger_id in closed:
        _close(client, ledger_id, password)
        client.store.delete(_intent_path(log, ledger_id))
    _delete_condemned(client, log, listed.condemned, password)
    return GcReport(listed.condemned, closed)


def _delete_condemned(client: LogClient, log: str, ledger_ids: Sequence[int], password: bytes) -> None:
    for ledger_id in ledger_ids:
        _close_and_delete(client, ledger_id, password)
        client.store.delete(_intent_path(log, ledger_id))
    if ledger_ids:
        update_ledger_list(client, log, lambda current: current.absolve(ledger_ids))


def _close(client: LogClient, ledger_id: int, password: bytes) -> bool:
    """Fence, recover and close; False if the ledger does not exist."""
    try:
        client.recover_ledger(ledger_id, password=password).close()
    except NoSuchLedgerError:
        return False
    return True


def _close_and_delete(client: LogClient, ledger_id: int, password: bytes) -> None:
    if _close(client, ledger_id, password):
        client.delete_ledger(ledger_id)


def check_ledgers_exist(client: LogClient, ledger_ids: Sequence[int]) -> None:
    """Before a commit's compare-and-set: a ledger a janitor deleted must not be listed. LogError names it.

    Together with ``condemned`` this is airtight: condemning changes the list, so a commit based on an older list conflicts.
    """
    for ledger_id in ledger_ids:
        try:
            client.ledger_metadata(ledger_id)
        except NoSuchLedgerError:
            raise LogError(f"ledger {ledger_id} was deleted by a janitor; write the rows again", ledger_id=ledger_id) from None


# --- exclusive writing ----------------------------------------------------------------------------------------------


class LogWriter:
    """The one writer of a log (seed 001, LOG-1 .. LOG-8). ``open`` takes the log over, fencing whoever wrote before.

    One row is one entry. Calls from one thread at a time. After LogTakenOverError every further call raises it again.
    """

    def __init__(self, client: LogClient, name: str, *, password: bytes = b"", roll_max_bytes: int = 256 << 20) -> None:
        self.name = name
        self._client = client
        self._password = password
        self._roll_max_bytes = roll_max_bytes
        self._taken_over: str | None = None
        self._bytes = 0
        self._log_id = ""
        self._handle: Any = None

    @classmethod
    def open(cls, client: LogClient, name: str, *, password: bytes = b"", roll_max_bytes: int = 256 << 20, attempts: int = 8) -> LogWriter:
        """Take the log over. LogTakenOverError when other leaders won ``attempts`` rounds (LOG-4); RecoveryFailedError: try again later."""
        writer = cls(client, name, password=password, roll_max_bytes=roll_max_bytes)
        pause = 0.05
        for _ in range(attempts):
            if writer._try_take_over():
                return writer
            time.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, 2.0)
        raise LogTakenOverError(f"log {name!r}: other writers won {attempts} times in a row", log=name)

    def _try_take_over(self) -> bool:
        listed, version = _read(self._client, self.name)
        changed = self._recover_last_two(listed)  # LOG-1 (2)
        handle = self._create(listed.properties)  # LOG-1 (3)
        changed = changed.add_live_segment(handle.ledger_id, now_ms())
        try:
            _compare_and_set(self._client, log_path(self.name), encode(changed), version, time.monotonic() + UPDATE_TIMEOUT_S)
        except VersionConflictError:
            current = read_ledger_list(self._client, self.name)
            if not (current.segments and current.segments[-1].ledger_id == handle.ledger_id):  # LOG-3: else the lost answer was a yes
                self._discard(handle)
                return False
        self._handle, self._log_id = handle, listed.log_id
        return True

    def _recover_last_two(self, listed: LedgerList) -> LedgerList:
        """Penultimate first. A missing ledger is data loss, not something to write behind (LOG-5)."""
        for segment in listed.segments[-2:]:
            try:
                with self._client.recover_ledger(segment.ledger_id, password=self._password) as ended:
                    last, size = ended.last_add_confirmed, ended.length
            except NoSuchLedgerError:
                raise LogDataLossError(f"log {self.name!r} lists ledger {segment.ledger_id}, which does not exist", log=self.name) from None
            listed = listed.close_live(segment.ledger_id, last, size, now_ms())
        return listed

    def _create(self, properties: LogProperties) -> Any:
        return self._client.create_ledger(
            ensemble_size=properties.ensemble_size,
            write_quorum_size=properties.write_quorum_size,
            ack_quorum_size=properties.ack_quorum_size,
            digest_type=DigestType[properties.digest_type],
            password=self._password,
            custom={"application": b"bk_core", "log": self.name.encode()},  # LOG-9
        )

    def _discard(self, handle: Any) -> None:
        try:
            handle.close()
            self._client.delete_ledger(handle.ledger_id)
        except BkError:
            return  # an unlisted ledger without entries is harmless; the custom metadata tells a janitor whose it was

    # --- writing ---------------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        return int(self._handle.ledger_id)

    def append(self, payload: Buffer) -> tuple[int, int]:
        """Append and wait for the ack quorum. Returns (ledger id, entry id). LogTakenOverError if another writer came."""
        return self.append_run(payload, array("q", [0, len(memoryview(payload).cast("B"))]))

    def append_run(self, payloads: Buffer, offsets: Buffer) -> tuple[int, int]:
        """Append ``count`` entries, wait for all. ``offsets``: native int64, count + 1. Returns (ledger id, last entry id)."""
        self._check()
        bounds = memoryview(offsets).cast("B").cast("q")
        if self._bytes >= self._roll_max_bytes:
            self.roll()
        handle = self._handle
        last = self._own(lambda: int(handle.append_run(payloads, offsets).result()))
        self._bytes += bounds[-1] - bounds[0]
        return self.ledger_id, last

    def roll(self) -> None:
        """Create next, list it, then drain and close the previous (LOG-6). Appends wait for acknowledgement, so nothing is in flight."""
        self._check()
        listed = read_ledger_list(self._client, self.name)
        following = self._create(listed.properties)
        try:
            self._update(lambda current: current.add_live_segment(following.ledger_id, now_ms()), following.ledger_id)
        except LogTakenOverError:
            self._discard(following)
            raise
        previous, self._handle, self._bytes = self._handle, following, 0
        self._close_ledger(previous)

    def close(self) -> None:
        """Close the live ledger and say so in the list, so that others may append. No-op after a takeover."""
        handle, self._handle = self._handle, None
        if handle is not None and self._taken_over is None:
            self._close_ledger(handle)
        self._taken_over = self._taken_over or f"log writer of {self.name!r} is closed"

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _close_ledger(self, handle: Any) -> None:
        metadata = self._own(handle.close)
        ledger_id, last, size = handle.ledger_id, metadata.last_entry_id, metadata.length
        update_ledger_list(self._client, self.name, lambda current: current.close_live(ledger_id, last, size, now_ms()))

    def _update(self, change: Callable[[LedgerList], LedgerList], own_new: int) -> None:
        """A change by somebody else is a takeover only if our live segment is no longer the last (a trim is none)."""
        mine = self.ledger_id

        def guarded(current: LedgerList) -> LedgerList:
            last = current.segments[-1] if current.segments else None
            if current.log_id == self._log_id and last is not None and last.ledger_id == own_new:
                return current
            if current.log_id != self._log_id or last is None or last.ledger_id != mine or not last.live:
                self._abdicate(f"log {self.name!r} was taken over by another writer")
            return change(current)

        update_ledger_list(self._client, self.name, guarded)

    def _own(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _TAKEN_OVER as error:
            self._abdicate(f"log {self.name!r} was taken over by another writer ({error.code})")
            raise

    def _abdicate(self, why: str) -> None:
        self._taken_over = why
        raise LogTakenOverError(why, log=self.name)

    def _check(self) -> None:
        if self._taken_over is not None:
            raise LogTakenOverError(self._taken_over, log=self.name)
