"""Data ledgers of a file store, and the nodes that say which there are: ``files/<log>/<ledger id>`` below the log root.

A node is written before its ledger is created and deleted after the ledger is, so that a crash at any point leaves no ledger that the next
owner does not find. Its value says which cluster issued the ledger's id and which log it is for: before anything is deleted, both are
compared, and so is what the ledger itself says of its log (OWN-5, OWN-6).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bk_core.client.files.names import nodes_path
from bk_core.client.identity import delete_own
from bk_core.client.log.list_store import LogClient, ledger_exists, read_ledger_list, unused_ledger_id, update_timeout_s
from bk_core.client.repeating import create_once, until_definite
from bk_core.errors import (
    BkError,
    ClientClosedError,
    FileStoreClosedError,
    ForeignLedgerError,
    MetadataFormatError,
    MetadataOutcomeUnknownError,
    NoNodeError,
    OperationTimeoutError,
)
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, LOG_ROOT_KEY
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import LogProperties
from bk_core.protocol.log.stored_json import loads

PURPOSE = b"files"


@dataclass(frozen=True, slots=True)
class DataNode:
    """The node of one data ledger: the log of its store by id, and the cluster that issued the ledger's id."""

    ledger_id: int
    log_id: str
    cluster: str


def create_data_ledger(
    client: LogClient, log: str, log_id: str, properties: LogProperties, password: bytes, noted: Callable[[int], object] = int
) -> Any:
    """A new ledger for contents of files, with the settings of the store's log, whose node is there before it. Returns its writer.

    ``noted`` is called with the ledger's id as soon as its node may be there. If this fails later, node and ledger may be left, and whoever
    was told has them deleted (``delete_data_ledger``).

    Whatever creating a ledger raises; the node is deleted again then, unless the ledger may have come to be. FileStoreClosedError, and no
    ledger, if another owner has deleted the node meanwhile: nobody would find the ledger any more.
    """
    cluster = client.store.cluster_id()
    custom = {LOG_KEY: log.encode(), LOG_ID_KEY: log_id.encode(), LOG_ROOT_KEY: client.store.log_root.encode()}
    while True:
        ledger_id = unused_ledger_id(client)
        try:
            recorded = _record(client, log, DataNode(ledger_id, log_id, cluster))
        except BkError:
            noted(ledger_id)
            raise
        if recorded:
            noted(ledger_id)
            break
    try:
        handle = client.create_ledger(
            ledger_id=ledger_id,
            ensemble_size=properties.ensemble_size,
            write_quorum_size=properties.write_quorum_size,
            ack_quorum_size=properties.ack_quorum_size,
            digest_type=DigestType[properties.digest_type],
            password=password,
            custom={**custom, "application": b"bk_core", "purpose": PURPOSE},
            guaranteed_write_quorum=properties.guaranteed_write_quorum,
        )
    except (MetadataOutcomeUnknownError, OperationTimeoutError, ClientClosedError):  # it may come to be, and is found by its node
        raise
    except Exception:
        with suppress(BkError):  # nobody can tell now: the next owner looks
            if not ledger_exists(client, ledger_id):
                _forget(client, log, ledger_id)
        raise
    handle.tells_when_dropped = False
    try:
        is_noted = until_definite(lambda: _is_noted(client, log, ledger_id), time.monotonic() + update_timeout_s(client))
    except BaseException:
        handle.abandon()
        raise
    if not is_noted:
        with suppress(BkError):  # the next owner finds what is left by the node
            _record(client, log, DataNode(ledger_id, log_id, cluster))
            handle.close()
            client.delete_ledger(ledger_id, even_if_listed=True)
            _forget(client, log, ledger_id)
        handle.abandon()
        raise FileStoreClosedError(
            f"another owner of file store {store_of(log)!r} has deleted the node of ledger {ledger_id} while the ledger was made, "
            "so nothing was written to it: open the store again",
            store=store_of(log),
            ledger=ledger_id,
        )
    return handle


def _is_noted(client: LogClient, log: str, ledger_id: int) -> bool:
    """True if the node is there once the ledger is. Whoever deletes the node after that looks for the ledger once more."""
    try:
        client.store.read(f"{nodes_path(log)}/{ledger_id}")
    except NoNodeError:
        return False
    return True


def data_ledgers(client: LogClient, log: str) -> list[int]:
    """The ids of the ledgers that have a node under a log's name, ascending. Some may belong to another cluster, or to an earlier log of
    that name: whoever deletes one looks first, as ``delete_data_ledger`` does."""
    return sorted(int(child) for child in client.store.children(nodes_path(log)) if child.isascii() and child.isdecimal())


def data_nodes(
    client: LogClient, log: str, children: Iterable[str] | None = None, *, damaged: list[tuple[int, str]] | None = None
) -> list[DataNode]:
    """The nodes under a log's name whose ledger ids this cluster issued, or those of the names in ``children`` among them. The cluster is
    looked at after the nodes were listed, and before any of them is read. ``damaged`` takes the ledgers whose nodes are none, with what
    is wrong of them; without it MetadataFormatError."""
    children = client.store.children(nodes_path(log)) if children is None else children
    here = client.store.cluster_id()
    found = []
    for child in children:
        try:
            node = read_node(client, log, child)
        except MetadataFormatError as error:
            if damaged is None or not child.isdecimal():
                raise
            damaged.append((int(child), str(error)))
        else:
            found.append(node)
    return [node for node in found if node is not None and node.cluster == here]


def read_node(client: LogClient, log: str, child: str) -> DataNode | None:
    """Return the node of this name, or None if it is gone. MetadataFormatError."""
    path = f"{nodes_path(log)}/{child}"
    try:
        value = loads(client.store.read(path).data)
        return DataNode(int(child), str(value["logId"]), str(value["cluster"]))
    except NoNodeError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataFormatError(f"{path} in the metadata store is no node of a data ledger: {error}") from None


def delete_data_ledger(client: LogClient, log: str, log_id: str, ledger_id: int, password: bytes) -> bool:
    """Close and delete a data ledger, then its node. False if there was no such ledger.

    ForeignLedgerError, and nothing is touched, for a ledger or node that is not of this log and cluster.
    """
    check_node(client, log, log_id, ledger_id)
    existed = delete_own(client, log, log_id, ledger_id, password)
    client.store.check_cluster()  # a cluster made anew meanwhile may have a node of its own there (OWN-10)
    _forget(client, log, ledger_id)
    if not existed and ledger_exists(client, ledger_id):  # it was being made: its maker has seen the node, which is gone now
        existed = delete_own(client, log, log_id, ledger_id, password)
    return existed


def check_node(client: LogClient, log: str, log_id: str, ledger_id: int) -> None:
    """Raise ForeignLedgerError for a ledger whose node speaks of another cluster or log. One without a node tells itself whose it is."""
    node = read_node(client, log, str(ledger_id))
    here = client.store.cluster_id()
    if node is not None and (node.log_id, node.cluster) != (log_id, here):
        raise ForeignLedgerError(
            f"ledger {ledger_id} is no data ledger of log {log!r} (id {log_id}) in cluster {here}: its node names the log {node.log_id} in "
            f"cluster {node.cluster}. It was left alone",
            log=log,
            ledger_id=ledger_id,
        )


def holds_files(client: LogClient, log: str, ledger_id: int) -> bool:
    """True if the store of this log lists the ledger as one of its data ledgers: files may refer to it. NoSuchLogError."""
    log_id = read_ledger_list(client, log).log_id
    return any((node.ledger_id, node.log_id) == (ledger_id, log_id) for node in data_nodes(client, log, [str(ledger_id)]))


def _record(client: LogClient, log: str, node: DataNode) -> bool:
    """False if there is a node of that number already that is not this one: another cluster uses the log root, or used it (OWN-5)."""
    path = f"{nodes_path(log)}/{node.ledger_id}"
    data = json.dumps({"cluster": node.cluster, "logId": node.log_id}).encode()
    return create_once(client.store, path, data, time.monotonic() + update_timeout_s(client)) is True


def _forget(client: LogClient, log: str, ledger_id: int) -> None:
    """Absent is success, and so is a node of another cluster that has come to the number since, which stays (OWN-5). As ``forget_own`` of
    intents, the node is read before each try."""

    def forget() -> None:
        node = read_node(client, log, str(ledger_id))
        if node is not None and node.cluster == (client.store.known_cluster or client.store.cluster_id()):
            client.store.delete(f"{nodes_path(log)}/{ledger_id}")

    until_definite(forget, time.monotonic() + update_timeout_s(client))
