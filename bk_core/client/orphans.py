"""Ledgers of logs whose list is gone (OWN-9), and lists that only a person can say the cluster of (OWN-4)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bk_core.client.identity import delete_own
from bk_core.client.list_store import (
    UPDATE_TIMEOUT_S,
    LogClient,
    compare_and_set_list,
    delete_list,
    log_path,
    read_ledger_list,
    read_unlooked,
)
from bk_core.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataFormatError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
    WrongClusterError,
)
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, LOG_ROOT_KEY, Traces, is_orphan
from bk_core.protocol.log.ledger_list import LedgerList


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that carries the name of log ``log``, of which nothing is left. ``log_id`` and ``log_root`` are "" where an earlier
    program made it: then the log may lie at another log root, which only a person can know."""

    ledger_id: int
    log: str
    log_id: str = ""
    log_root: str = ""


def find_orphans(client: Any) -> Iterator[Orphan]:
    """All ledgers whose log's list is gone, ascending (OWN-9). Reads the metadata of every ledger of the cluster. NoClusterError."""
    alive: dict[str, str] = {}
    for ledger_id in client.list_ledgers():
        found = _look(client, ledger_id, alive)
        if found is not None:
            yield found


def delete_orphan(client: Any, orphan: Orphan, *, password: bytes = b"") -> bool:
    """Look again, then fence, recover, close and delete it (LOG-12). False if it is gone, or is no orphan any more. Whatever a recovery
    raises, WrongPasswordError for one."""
    if _look(client, orphan.ledger_id, {}) != orphan:
        return False
    return delete_own(client, orphan.log, orphan.log_id, orphan.ledger_id, password)


def _look(client: Any, ledger_id: int, alive: dict[str, str]) -> Orphan | None:
    """``alive``: ids of logs that were there a moment ago, by name. That one is not there is asked anew for each ledger."""
    try:
        custom = client.ledger_metadata(ledger_id).custom
    except (NoSuchLedgerError, MetadataFormatError):
        return None
    name, log_id, root = (custom.get(key, b"").decode(errors="replace") for key in (LOG_KEY, LOG_ID_KEY, LOG_ROOT_KEY))
    try:
        log_path(name)
    except InvalidArgumentError:  # not a log's
        return None
    if is_orphan(custom, client.store.log_root, Traces(log_id=alive.get(name))) and is_orphan(
        custom, client.store.log_root, _traces(client, name, ledger_id, alive)
    ):
        return Orphan(ledger_id, name, log_id, root)
    return None


def _traces(client: Any, name: str, ledger_id: int, alive: dict[str, str]) -> Traces:
    """The intent first: who lists a ledger forgets its intent after that, and who deletes a list leaves a tombstone before that."""
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


def adopt_log(client: LogClient, name: str, *, from_cluster: str | None = None) -> LedgerList:
    """Say that a log is this cluster's (OWN-4). Of a list that names another cluster, ``from_cluster`` must be that one.

    No ledger is touched, and ledgers that do not carry the log's name are not touched later either (OWN-6). NoSuchLogError;
    WrongClusterError if the list names a cluster and ``from_cluster`` is not it, or if that cluster lies in this metadata store.
    """
    here = client.store.cluster_id()
    deadline = time.monotonic() + UPDATE_TIMEOUT_S
    while True:
        listed, version = read_unlooked(client, name)
        if listed.cluster == here:
            return listed
        _check_named(client, name, listed, from_cluster)
        tied = replace(listed, cluster=here)
        try:
            compare_and_set_list(client, name, tied, version, deadline)
            return tied
        except VersionConflictError:
            continue


def forget_log(client: LogClient, name: str, *, cluster: str) -> None:
    """Remove the list, intents, tombstones and first offsets of a log of another cluster that is gone for good. No ledger is touched.

    NoSuchLogError; InvalidArgumentError for a log of this cluster, which ``delete_log`` deletes; WrongClusterError unless the list names
    ``cluster``, or if that cluster lies in this metadata store.
    """
    listed, version = read_unlooked(client, name)
    if client.store.cluster_id() in (listed.cluster, cluster):
        raise InvalidArgumentError(f"log {name!r} is of this cluster; delete_log (`bk log rm`) deletes it with its ledgers")
    _check_named(client, name, listed, cluster)
    delete_list(client, name, listed.log_id, version, time.monotonic() + UPDATE_TIMEOUT_S)
    for place in ("intents", "deleted", "readers"):
        for child in client.store.children(f"{place}/{name}"):
            client.store.delete(f"{place}/{name}/{child}")
        try:
            client.store.delete(f"{place}/{name}")
        except MetadataError:  # somebody else begins there already
            continue


def _check_named(client: LogClient, name: str, listed: LedgerList, said: str | None) -> None:
    if listed.cluster != (said or ""):
        whose = f"cluster {listed.cluster}" if listed.cluster else "no cluster"
        raise WrongClusterError(f"the list of log {name!r} names {whose}, not {said or 'none'}; nothing was changed", log=name)
    near = client.store.cluster_near(listed.cluster) if listed.cluster else None
    if near is not None:
        raise WrongClusterError(f"cluster {listed.cluster} of log {name!r} is not gone, it lies at {near}; nothing was changed", log=name)
