"""Checks which cluster a list and which log a ledger belongs to, before anything is read, taken over, collected, trimmed or deleted (OWN-2
.. OWN-7)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bk_core.errors import ForeignLedgerError, NoSuchLedgerError, WrongClusterError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, Claim, Evidence, Standing, claim, is_unnamed, ledgers_to_look_at, standing
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.stored_json import loads

if TYPE_CHECKING:
    from bk_core.client.log.list_store import LogClient

_KNOWN_MAX = 4096
_known: dict[tuple[str, str, str], None] = {}  # cluster, log, log id: lists that name no cluster and were found to be ours
_lock = threading.RLock()


def of_this_cluster(client: LogClient, name: str, listed: LedgerList, here: str) -> LedgerList:
    """Return the list, which names its cluster from now on. Raises WrongClusterError if it is another's, or may be (OWN-3, OWN-4);
    NoClusterError and ClusterChangedError (OWN-2). ``here`` is the cluster as read after the list (``read_here``), so it was the cluster
    before, too."""
    if listed.cluster == here:
        return listed
    key = (here, name, listed.log_id)
    if listed.cluster or key not in _known:
        evidence = Evidence() if listed.cluster else _evidence(client, name, listed)
        found = claim(listed, here, evidence)
        if found in (Claim.FOREIGN, Claim.UNKNOWN):
            raise WrongClusterError(_why(client, name, listed, here, evidence), log=name, cluster=listed.cluster, here=here)
        if found is Claim.OURS:
            with _lock:
                if len(_known) >= _KNOWN_MAX:
                    _known.clear()
                _known[key] = None
    return replace(listed, cluster=here)


def _evidence(client: LogClient, name: str, listed: LedgerList) -> Evidence:
    """Judge the ledgers of the list or, if it has none, those that its writers have just made."""
    evidence = Evidence()
    for ledger_id in ledgers_to_look_at(listed) or _intended(client, name):
        evidence = evidence.with_ledger(standing(_custom(client, ledger_id), name, listed.log_id))
    if evidence.missing and not ledgers_to_look_at(listed):
        return replace(evidence, missing=0, other=0)  # of intents, only a ledger that carries the name is evidence
    return evidence


def _intended(client: LogClient, name: str) -> Iterable[int]:
    return {int(child.partition(".")[0]) for child in client.store.children(f"intents/{name}")}


def _custom(client: LogClient, ledger_id: int) -> Any:
    try:
        return client.ledger_metadata(ledger_id).custom
    except NoSuchLedgerError:
        return None


def _why(client: LogClient, name: str, listed: LedgerList, here: str, evidence: Evidence) -> str:
    where = f"log {name!r} at {client.store.log_root}/logs/{name}"
    if listed.cluster:
        return (
            f"{where} belongs to cluster {listed.cluster}; this client is connected to cluster {here}. Nothing was read or changed. "
            "Connect to the log's own cluster, or use another log root or name here. If this is that cluster under another identity (it "
            f"was restored, or got an INSTANCEID since), `bk log adopt {name} --from {listed.cluster}` says so, with --all of all its logs"
            f". If that cluster is gone for good, `bk log forget {name} --cluster {listed.cluster}` removes the list, and no ledger"
        )
    total = evidence.named + evidence.other + evidence.missing
    found = f"of {total} ledgers, {evidence.named} carry its name here, {evidence.other} do not, {evidence.missing} do not exist"
    return (
        f"{where} was written by a program that did not note its cluster, and does not look like one of cluster {here}: "
        f"{found if total else 'it has no ledgers that could tell'}. Nothing was read or changed. If it is this cluster's all the same, "
        f"`bk log adopt {name}` says so"
    )


def log_id_of_reader(data: bytes, name: str) -> str | None:
    """Return the id of the log that a durable first offset under this name belongs to; None if it does not tell."""
    try:
        value = loads(data)
        offsets = value["offsets"] if isinstance(value.get("cluster"), str) else value
        return str(offsets[name]["logId"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# --- ledgers --------------------------------------------------------------------------------------------------------


NOBODY_ADOPTED: frozenset[int] = frozenset()


def check_ledger(name: str, log_id: str, ledger_id: int, metadata: Any, adopted: Collection[int] = NOBODY_ADOPTED) -> None:
    """Raise ForeignLedgerError unless the ledger carries the log's name and, if both are known, its id (OWN-6), or carries no log's name
    and is one of those that the list has ``adopted`` (OWN-11)."""
    if standing(metadata.custom, name, log_id, adopted=ledger_id in adopted) is Standing.OTHER:
        raise ForeignLedgerError(
            f"ledger {ledger_id} is not of log {name!r} (id {log_id or 'not known'}): {carried(name, metadata.custom)}. It was left alone",
            log=name,
            ledger_id=ledger_id,
        )


def carried(name: str, custom: Mapping[str, bytes]) -> str:
    """Return in words which log's name a ledger carries that does not count as one of log ``name``, and what to do about one
    without any."""
    if is_unnamed(custom):
        return f"it carries no log's name. If it is this log's all the same, `bk log adopt {name} --unnamed` says so"
    told = {key: value.decode(errors="replace") for key, value in sorted(custom.items()) if key in (LOG_KEY, LOG_ID_KEY)}
    return "it carries " + " and ".join(f"{key}={value}" for key, value in told.items())


def recover_own(
    client: LogClient, name: str, log_id: str, ledger_id: int, password: bytes, adopted: Collection[int] = NOBODY_ADOPTED
) -> Any:
    """Fence, recover and close a ledger of the log; return its reader. Raises ForeignLedgerError before anything is done to another log's
    (OWN-6)."""
    check_ledger(name, log_id, ledger_id, client.ledger_metadata(ledger_id), adopted)
    return client.recover_ledger(ledger_id, password=password)


def close_own(
    client: LogClient, name: str, log_id: str, ledger_id: int, password: bytes, adopted: Collection[int] = NOBODY_ADOPTED
) -> bool:
    """Fence, recover and close a ledger unless it is CLOSED. Return False if it does not exist, which is believed only if the cluster is
    still there and the same (OWN-2)."""
    try:
        metadata = client.ledger_metadata(ledger_id)
        check_ledger(name, log_id, ledger_id, metadata, adopted)
        if metadata.state is not LedgerState.CLOSED:
            client.recover_ledger(ledger_id, password=password).close()
    except NoSuchLedgerError:
        client.store.check_cluster()
        return False
    return True


def delete_own(
    client: LogClient, name: str, log_id: str, ledger_id: int, password: bytes, adopted: Collection[int] = NOBODY_ADOPTED
) -> bool:
    """Close a ledger as ``close_own`` does, then delete it (LOG-12). Return False if there was none."""
    if not close_own(client, name, log_id, ledger_id, password, adopted):
        return False
    client.store.check_cluster()
    try:
        client.delete_ledger(ledger_id, even_if_listed=True)
    except NoSuchLedgerError:  # another janitor was faster, unless the cluster has gone since then
        client.store.check_cluster()
        return False
    return True
