"""The one place that reads and changes the stored ledger list of a log (compare-and-set, META-12 .. META-14)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bk_core.arguments import brief
from bk_core.client.counting import counts_of
from bk_core.client.identity import of_this_cluster
from bk_core.client.repeating import FIRST_PAUSE_S, after_a_try, back_off, compare_and_set, still_open, until_definite
from bk_core.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    NoSuchLogRootError,
    VersionConflictError,
)
from bk_core.metadata.paths import VALUE_BYTES_MAX
from bk_core.near import meant
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.list_size import check_size, is_large
from bk_core.protocol.log.list_size import told as size_told
from bk_core.protocol.log.names import not_of_files
from bk_core.protocol.log.times import is_skewed

if TYPE_CHECKING:
    from bk_core.metadata.store import MetadataStore

T = TypeVar("T")
UPDATE_TIMEOUT_S = 60.0
WARN_AGAIN_S = 3600.0
_log = logging.getLogger("bk_core.client.log")
_warned_s: float | None = None
_large: dict[str, float] = {}  # by log id: when its size was warned about
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


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
        ledger_id: int | None = ...,
        guaranteed_write_quorum: bool = ...,
    ) -> Any: ...
    def open_ledger(self, ledger_id: int, *, password: bytes = ..., lac: bool = ...) -> Any: ...
    def recover_ledger(self, ledger_id: int, *, password: bytes = ...) -> Any: ...
    def delete_ledger(self, ledger_id: int, *, even_if_listed: bool = ...) -> None: ...
    def ledger_metadata(self, ledger_id: int) -> Any: ...
    def await_bookies(self, ensemble_size: int, write_quorum_size: int) -> None: ...


def unused_ledger_id(client: LogClient) -> int:
    """Return a new ledger id that no ledger has. Somebody may have chosen the next numbers for ledgers of theirs, and whoever notes an id
    before the ledger comes to be would take such a ledger for the one that was noted."""
    while True:
        ledger_id = client.store.new_ledger_id()
        if not ledger_exists(client, ledger_id):
            return ledger_id


def ledger_exists(client: LogClient, ledger_id: int) -> bool:
    """False only if the metadata store says so; whatever else it says is raised."""
    try:
        client.ledger_metadata(ledger_id)
    except NoSuchLedgerError:
        return False
    return True


def is_log_name(name: str) -> bool:
    """Return True if a log may have this name. Another node beside the lists of logs was put there by hand."""
    return _NAME.fullmatch(name) is not None


def log_path(name: str) -> str:
    """Raises InvalidArgumentError for a name that cannot be one path element in every store."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of a log must be text, not of type {type(name).__name__}")
    if not is_log_name(name):
        allowed = "letters, digits, '.', '_', '-' (at most 200), starting with a letter or digit"
        raise InvalidArgumentError(f"log name {brief(name)}: use {allowed}")
    return f"logs/{name}"


def update_timeout_s(client: object) -> float:
    """Return the seconds within which a change of a list is made, or fails: the ``operation_timeout_s`` of the client."""
    config = getattr(client, "config", None)
    return UPDATE_TIMEOUT_S if config is None else float(config.operation_timeout_s)


def now_ms() -> int:
    """Return the time on this host's clock, for what is shown, never for what decides how old something is."""
    return int(time.time() * 1000)


def store_now_ms(client: LogClient, *, timeout_s: float | None = None) -> int:
    """Return the time on the metadata store's clock (JAN-1). Warns of a host clock that disagrees (JAN-4), at most once an hour."""
    global _warned_s
    timeout_s = update_timeout_s(client) if timeout_s is None else timeout_s
    told = until_definite(client.store.clock_ms, time.monotonic() + timeout_s)
    host = now_ms()
    if is_skewed(host, told) and (_warned_s is None or time.monotonic() - _warned_s >= WARN_AGAIN_S):
        _warned_s = time.monotonic()
        where = "ahead of" if host > told else "behind"
        _log.warning("this host's clock is %d minutes %s the metadata store's; set it right", abs(host - told) // 60_000, where)
    return told


def read_ledger_list(client: LogClient, name: str) -> LedgerList:
    """Raises NoSuchLogError if the log does not exist. For reading entries take ``read_log``: it knows the history too."""
    return read_versioned(client, name)[0]


def read_versioned(client: LogClient, name: str) -> tuple[LedgerList, int]:
    """The one way to a list: it is looked at whether it is this cluster's before anybody sees it (OWN-3). WrongClusterError."""
    try:
        stored, here = client.store.read_here(log_path(name))
    except NoNodeError:
        raise no_such_log(client, name) from None
    return of_this_cluster(client, name, _decoded(name, stored.data), here), stored.version


def agree(client: LogClient) -> None:
    """Have this client's session see what every other session has written so far (metadata.md 2.3).

    A server of the metadata store may be behind what another session has seen. Callers ask for this before they believe that something is
    missing of which that session knows. Raises what ``list_ledgers`` raises.
    """
    next(client.store.list_ledgers(), None)  # it begins with an agreement of the servers


def list_if_any(client: LogClient, name: str) -> LedgerList | None:
    """Return what ``read_ledger_list`` does, or None if there is no log, for callers who make it then. The error for a log that is not
    there compares its name with those of all logs, which costs more with each."""
    try:
        stored, here = client.store.read_here(log_path(name))
    except NoNodeError:
        return None
    return of_this_cluster(client, name, _decoded(name, stored.data), here)


def read_unlooked(client: LogClient, name: str) -> tuple[LedgerList, int]:
    """Return the list as it is stored, even if it belongs to another cluster. Callers use it only to tell which cluster that is, or to look
    for a change of their own."""
    try:
        stored = client.store.read(log_path(name))
    except NoNodeError:
        raise no_such_log(client, name) from None
    return _decoded(name, stored.data), stored.version


def _decoded(name: str, data: bytes) -> LedgerList:
    try:
        return decode(data)
    except MetadataFormatError as error:
        raise MetadataFormatError(f"log {name!r}: {error.args[0]}", log=name) from None


def no_such_log(client: LogClient, name: str) -> NoSuchLogError:
    """Return the error for a missing list. It means that there is no such log only where there is a cluster, and the same one as before
    (OWN-2)."""
    client.store.check_cluster()
    check_log_root(client)
    elsewhere = client.store.log_elsewhere(name)
    hint = "" if elsewhere is None else f" at {client.store.log_root}; an older program keeps one at {elsewhere} (log_root={elsewhere!r})"
    near = meant(name, not_of_files(filter(is_log_name, client.store.children("logs")), name))
    return NoSuchLogError(f"there is no log {name!r}{hint}{f'; {near}' if near else ''}", log=name, **({"near": near} if near else {}))


def check_log_root(client: LogClient) -> None:
    """Raise NoSuchLogRootError where the log root was given by hand and does not exist: it is mistyped, or no log was ever made there."""
    others = client.store.other_log_roots()
    if others is None:
        return
    there = f"there are {', '.join(others)}: look at log_root" if others else "nor is another one near it"
    message = f"there is no log root {client.store.log_root}, no log was ever made there; {there}. Creating a log makes the root"
    raise NoSuchLogRootError(message, log_root=client.store.log_root)


def change_ledger_list(
    client: LogClient,
    name: str,
    change: Callable[[LedgerList], LedgerList],
    *,
    timeout_s: float | None = None,
    read: Callable[[LogClient, str], tuple[LedgerList, int]] = read_versioned,
) -> LedgerList:
    """Read, change, compare-and-set until it holds; returns the list that does. ``change`` is that of ``compare_and_set``.

    OperationTimeoutError after ``timeout_s``, without it the client's ``operation_timeout_s``; whatever ``change`` raises.
    """
    deadline, counts = time.monotonic() + (update_timeout_s(client) if timeout_s is None else timeout_s), counts_of(client)

    def write(changed: LedgerList, version: int) -> None:
        try:
            compare_and_set_list(client, name, changed, version, deadline)
            counts.log_commits.value += 1
        except VersionConflictError:
            counts.log_conflicts.value += 1
            raise
        except NoNodeError:
            raise NoSuchLogError(f"log {name!r} was deleted", log=name) from None

    return compare_and_set(lambda: read(client, name), change, write, deadline, f"changing log {name!r}")


def encoded(name: str, listed: LedgerList) -> bytes:
    """Return the list as it is to be stored. Raises LogListFullError if the store would not take it. Warns from half of that on, once an
    hour for each log (JAN-7)."""
    data = encode(listed)
    check_size(name, listed, len(data), VALUE_BYTES_MAX)
    if is_large(len(data), VALUE_BYTES_MAX) and time.monotonic() - _large.get(listed.log_id, -WARN_AGAIN_S) >= WARN_AGAIN_S:
        _large[listed.log_id] = time.monotonic()
        _log.warning("the list of log %s has %s", name, size_told(listed, len(data), VALUE_BYTES_MAX))
    return data


def write_list(client: LogClient, name: str, listed: LedgerList, version: int, data: bytes) -> int:
    """The one request that writes over a list: sent once, after a look at the log. One that was deleted and made anew since the list was
    read counts its versions anew, and the compare-and-set would not notice (OWN-7). Returns the new version.

    VersionConflictError, NoNodeError, NoSuchLogError.
    """
    again, now = read_unlooked(client, name)
    if (again.log_id, now) != (listed.log_id, version):
        raise VersionConflictError(f"log {name!r} has another version")
    return client.store.write(log_path(name), data, version)


def compare_and_set_list(client: LogClient, name: str, listed: LedgerList, version: int, deadline: float) -> None:
    """META-12, with ``write_list`` for each try. VersionConflictError, which has an unknown outcome if it may be our own success;
    NoNodeError, NoSuchLogError."""
    is_open = False
    pause, data = FIRST_PAUSE_S, encoded(name, listed)
    while True:
        try:
            with after_a_try(is_open):
                write_list(client, name, listed, version, data)
            return
        except VersionConflictError as conflict:
            conflict.outcome_unknown = is_open
            raise
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            is_open = is_open or error.outcome_unknown
            if time.monotonic() >= deadline:
                raise (still_open(error) if is_open else error) from error.__cause__
            pause = back_off(pause, deadline, str(error))


def delete_list(client: LogClient, name: str, log_id: str, version: int, deadline: float) -> None:
    """Raises VersionConflictError if the log is still there and was changed. It is looked at before each try, because under the same name,
    with the same version, there may be another log by then (OWN-7)."""
    pause, is_open, conflict = FIRST_PAUSE_S, False, False
    while True:
        try:
            with after_a_try(is_open):
                again, now = until_definite(lambda: read_unlooked(client, name), deadline)
        except NoSuchLogError:
            return
        if again.log_id != log_id:
            return
        if conflict or now != version:
            raise VersionConflictError(f"log {name!r} has another version")
        try:
            client.store.delete(log_path(name), version)
            return
        except VersionConflictError:
            conflict = True
        except (MetadataOutcomeUnknownError, MetadataUnavailableError) as error:
            is_open = is_open or error.outcome_unknown
            pause = back_off(pause, deadline, str(error))
