"""Handles ledgers of logs whose list is gone (OWN-9), and what only a person can tell: the cluster of a list (OWN-4), the log of a ledger
that names none (OWN-11)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bk_core.arguments import CLIENT, SECRET, checked
from bk_core.client.identity import delete_own, log_id_of_reader
from bk_core.client.log.history import ChunkCache, history_of
from bk_core.client.log.list_store import (
    LogClient,
    change_ledger_list,
    delete_list,
    ledger_exists,
    log_path,
    read_ledger_list,
    read_unlooked,
    update_timeout_s,
)
from bk_core.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataFormatError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
    WrongClusterError,
)
from bk_core.protocol.log.history import Item, Load
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, LOG_ROOT_KEY, Traces, is_orphan, is_unnamed
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import HistoryRef
from bk_core.protocol.log.stored_json import loads


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that carries the name of log ``log``, of which nothing is left. ``log_id`` and ``log_root`` are "" where an earlier
    program made it: then the log may lie at another log root, which only a person can know."""

    ledger_id: int
    log: str
    log_id: str = ""
    log_root: str = ""


@checked(client=CLIENT)
def find_orphans(client: Any, *, progress: Callable[[Iterable[int]], Iterable[int]] = iter) -> Iterator[Orphan]:
    """Yield all ledgers whose log's list is gone, ascending (OWN-9). Reads the metadata of every ledger of the cluster. ``progress`` is
    given the ids of all ledgers, and yields those to look at. Raises NoClusterError."""
    alive: dict[str, str] = {}
    for ledger_id in progress(client.list_ledgers()):
        found = _look(client, ledger_id, alive)
        if found is not None:
            yield found


@checked(client=CLIENT, password=SECRET)
def delete_orphan(client: Any, orphan: Orphan, *, password: bytes = b"") -> bool:
    """Look again, then fence, recover, close and delete it (LOG-12). False if it is gone, or is no orphan any more. Whatever a recovery
    raises, WrongPasswordError for one."""
    if _look(client, orphan.ledger_id, {}) != orphan:
        return False
    return delete_own(client, orphan.log, orphan.log_id, orphan.ledger_id, password)


def _look(client: Any, ledger_id: int, alive: dict[str, str]) -> Orphan | None:
    """Return the orphan, or None. ``alive`` has the ids of logs that were there a moment ago, by name; a missing log is looked for again
    for each ledger."""
    try:
        custom = client.ledger_metadata(ledger_id).custom
    except (NoSuchLedgerError, MetadataFormatError):
        return None
    name, log_id, root = (custom.get(key, b"").decode(errors="replace") for key in (LOG_KEY, LOG_ID_KEY, LOG_ROOT_KEY))
    try:
        log_path(name)
    except InvalidArgumentError:  # this is not the intent of a log
        return None
    if is_orphan(custom, client.store.log_root, Traces(log_id=alive.get(name))) and is_orphan(
        custom, client.store.log_root, _traces(client, name, ledger_id, alive)
    ):
        return Orphan(ledger_id, name, log_id, root)
    return None


def _traces(client: Any, name: str, ledger_id: int, alive: dict[str, str]) -> Traces:
    """Collect the traces, the intent first: a process that lists a ledger forgets its intent after that, and one that deletes a list leaves
    a tombstone before that."""
    store = client.store
    intended = any(child.partition(".")[0] == str(ledger_id) for child in store.children(f"intents/{name}"))
    try:
        alive[name] = read_ledger_list(client, name).log_id
    except NoSuchLogError:
        alive.pop(name, None)
    except (WrongClusterError, MetadataFormatError):
        return Traces(unclear=True)
    tombstones = frozenset(store.children(f"deleted/{name}"))
    return Traces(alive.get(name), tombstones, intended, unclear=name not in alive and store.log_elsewhere(name) is not None)


# --- lists whose cluster a person names --------------------------------------------------------------------------------


@checked()
def adopt_log(client: LogClient, name: str, *, from_cluster: str | None = None, unnamed: bool = False) -> LedgerList:
    """Say that a log is this cluster's (OWN-4). Of a list that names another cluster, ``from_cluster`` must be that one; of one that was
    adopted before, one that it was adopted from. What else names that cluster for this log (intents, first offsets, tombstones) names
    this one from then on.

    No ledger is touched. One that the list names and that carries no log's name is read, but never taken over nor deleted, unless
    ``unnamed`` says that all of these are the log's (OWN-11); ``unnamed_ledgers`` tells which they are. One that carries another log's name
    or id is left alone whatever is said (OWN-6). NoSuchLogError; WrongClusterError if the list names a cluster and ``from_cluster`` is not
    it, if that cluster lies in this metadata store, or if the list names ledgers that this cluster has yet to make (OWN-14); with
    ``unnamed`` LogHistoryError if the list cannot be read to its beginning.
    """
    here = client.store.cluster_id()

    def adopt(listed: LedgerList) -> LedgerList:
        if listed.cluster != here:
            _check_named(client, name, listed, from_cluster)
            _check_numbers(client, name, listed)
        elif from_cluster is not None and from_cluster not in (here, *listed.adopted_from):
            before = f"it was adopted from {' and '.join(listed.adopted_from)}" if listed.adopted_from else "it was never another's"
            message = f"the list of log {name!r} names this cluster, {here}, and {before}, not {from_cluster}; nothing was changed"
            raise WrongClusterError(message, log=name)
        tied = listed.adopt(here, _unnamed(client, name, listed) if unnamed else ())
        if tied is not listed and listed.cluster not in ("", here):
            _retie(client, name, listed.cluster, here)
        return tied

    return change_ledger_list(client, name, adopt, read=read_unlooked)


@checked()
def unnamed_ledgers(client: LogClient, name: str) -> tuple[int, ...]:
    """Ledgers that the log lists, its history included, that exist and carry no log's name, and that nobody has adopted yet, ascending."""
    listed = read_ledger_list(client, name)
    return tuple(sorted(_unnamed(client, name, listed) - listed.adopted))


def _unnamed(client: LogClient, name: str, listed: LedgerList) -> set[int]:
    load = history_of(client, name, listed.log_id, ChunkCache())
    return {ledger_id for ledger_id in _listed_ledgers(listed, load) if _is_unnamed(client, ledger_id)}


def _listed_ledgers(listed: LedgerList, load: Load) -> set[int]:
    """Return the ledgers that the log lists, without those that a janitor has condemned, which may never have been listed. The children of
    opened references are among the others."""
    found = {*listed.released, *(ref.ledger_id for ref in listed.opened)}
    left: list[Item] = [*listed.dropped, *listed.items]
    while left:
        item = left.pop()
        if item.ledger_id not in found and isinstance(item, HistoryRef):
            left += load(item)
        found.add(item.ledger_id)
    return found


def _is_unnamed(client: LogClient, ledger_id: int) -> bool:
    try:
        return is_unnamed(client.ledger_metadata(ledger_id).custom)
    except NoSuchLedgerError:
        return False


def _check_numbers(client: LogClient, name: str, listed: LedgerList) -> None:
    """Check the numbers of ledgers (OWN-14). Segments in the history have smaller numbers than the ledger that holds their chunk, so chunks
    are not read."""
    named = {*listed.condemned, *listed.released, *(one.ledger_id for one in (*listed.dropped, *listed.opened, *listed.items))}
    last = client.store.new_ledger_id()
    unborn = sorted(ledger_id for ledger_id in named if _is_unborn(client, ledger_id, last))
    if not unborn:
        return
    more = f" and {len(unborn) - 1} more" if len(unborn) > 1 else ""
    message = (
        f"the list of log {name!r} names ledger {unborn[0]}{more} that this cluster has yet to make, as it has given numbers up to {last} "
        f"only: it is another cluster's list, and ledgers made later would be taken for the log's. Nothing was changed. Where its cluster "
        f"is gone for good, forget_log (`bk log forget`) removes the list"
    )
    raise WrongClusterError(message, log=name)


def _is_unborn(client: LogClient, ledger_id: int, last: int) -> bool:
    """Return True if this cluster may still make the ledger. ``last`` is a number that it has just given; a missing ledger with a greater
    one may come."""
    return ledger_id > last and not ledger_exists(client, ledger_id)


def _retie(client: LogClient, name: str, before: str, here: str) -> None:
    """Have what lies beside the list and names cluster ``before`` name ``here``, but for what is about ledgers that this cluster has yet to
    make (OWN-14). It comes before the list is changed: who is interrupted adopts again."""
    last = client.store.new_ledger_id()
    for place in ("intents", "files", "readers", "deleted"):
        for child in client.store.children(f"{place}/{name}"):
            path = f"{place}/{name}/{child}"
            number = child.partition(".")[0]
            if place in ("intents", "files") and number.isdecimal() and _is_unborn(client, int(number), last):
                continue
            try:
                stored = client.store.read(path)
                value = loads(stored.data)
                if isinstance(value, dict) and value.get("cluster") == before:
                    data = json.dumps({**value, "cluster": here}, separators=(",", ":")).encode()
                    client.store.write(path, data, stored.version)
            except (NoNodeError, VersionConflictError, ValueError):  # somebody in this cluster changed it meanwhile, or it is no such value
                continue


@checked()
def forget_log(client: LogClient, name: str, *, cluster: str) -> None:
    """Remove the list, intents, nodes of data ledgers, tombstones and first offsets of a log of another cluster that is gone for good. No
    ledger is touched. What this cluster has under that name, as of a log that it deleted before, stays.

    NoSuchLogError; InvalidArgumentError for a log of this cluster, which ``delete_log`` deletes; WrongClusterError unless the list names
    ``cluster``, or if that cluster lies in this metadata store.
    """
    listed, version = read_unlooked(client, name)
    if client.store.cluster_id() in (listed.cluster, cluster):
        raise InvalidArgumentError(f"log {name!r} is of this cluster; delete_log (`bk log rm`) deletes it with its ledgers")
    _check_named(client, name, listed, cluster)
    delete_list(client, name, listed.log_id, version, time.monotonic() + update_timeout_s(client))
    for place in ("intents", "files", "deleted", "readers"):
        for child in client.store.children(f"{place}/{name}"):
            path = f"{place}/{name}/{child}"
            with suppress(NoNodeError, VersionConflictError):  # it is somebody else's by now
                stored = client.store.read(path)
                if _is_of(stored.data, name, cluster, listed.log_id):
                    client.store.delete(path, stored.version)
        try:
            client.store.delete(f"{place}/{name}")
        except MetadataError:  # it is not empty
            continue


def _is_of(data: bytes, name: str, cluster: str, log_id: str) -> bool:
    """Return True if what lies beside lists of this name names the cluster or, where it names none, the log's id (OWN-3)."""
    try:
        value = loads(data)
        named = value.get("cluster", "")
        return bool(named == cluster or (not named and log_id in (value.get("logId"), log_id_of_reader(data, name))))
    except (ValueError, AttributeError):  # nobody can tell
        return False


def _check_named(client: LogClient, name: str, listed: LedgerList, said: str | None) -> None:
    if listed.cluster != (said or ""):
        whose = f"cluster {listed.cluster}" if listed.cluster else "no cluster"
        raise WrongClusterError(f"the list of log {name!r} names {whose}, not {said or 'none'}; nothing was changed", log=name)
    near = client.store.cluster_near(listed.cluster) if listed.cluster else None
    if near is not None:
        raise WrongClusterError(f"cluster {listed.cluster} of log {name!r} is not gone, it lies at {near}; nothing was changed", log=name)
